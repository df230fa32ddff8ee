//! What estimates answer of the device and of what else is on it: companions, what goes, and a table's memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/asked.rs"]
mod asked;

use asked::{ask, config, flags_of, run, text, with};
use serde_json::{Value, json};

#[test]
fn a_companion_that_cannot_be_is_a_refusal_by_its_name_and_limit() {
    let (llama, small, hybrid) = (config("llama-3.1-8b"), config("smollm2-135m"), config("qwen3.5-9b"));
    // Rows of 151,936 logits for 300 slots are past a binding; those of SmolLM2 are not.
    let wide = config("qwen3-8b");
    for (flag, what) in [("--draft", "which drafts for it"), ("--with", "beside it")] {
        let args = [small.as_str(), "--slots", "300", "--context", "64", flag, &wide, "--memory", "80GiB"];
        let (code, report, said) = ask(&args);
        assert_eq!((code, &report["verdict"]), (3, &json!("refused")), "{said}");
        let refusal = &report["refusal"];
        assert_eq!(
            (&refusal["broke"], &refusal["have"]),
            (&json!("binding"), &json!(128 << 20)),
            "{refusal}"
        );
        let reason = refusal["reason"].as_str().unwrap();
        assert!(
            reason.contains("qwen3-8b") && reason.contains(what) && reason.contains("binding limit"),
            "{reason}"
        );
        assert!(said.contains(reason), "{said}");
        // What of it is known stands, and what fits has a companion that can be.
        assert!(report["bytes"]["total"].as_u64().unwrap() > 0);
        assert!(report["ladder"].as_array().unwrap().iter().all(|rung| rung["verdict"] == "refused"));
        let (_, said) = text(&args);
        let copied = with(&args, &flags_of(&said));
        let copied: Vec<&str> = copied.iter().map(String::as_str).collect();
        assert_eq!(ask(&copied).0, 0, "{copied:?}");
    }
    // Also where no memory is known, and of a model by its own limit first.
    let (code, report, _) = ask(&[&small, "--slots", "300", "--context", "64", "--with", &wide]);
    assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("binding")));
    let (_, report, _) = ask(&[&wide, "--slots", "300", "--context", "64", "--with", &wide]);
    assert!(!report["refusal"]["reason"].as_str().unwrap().contains("beside"), "{}", report["refusal"]);
    // By another engine's rules it is the engine that does not hold it.
    let args = [llama.as_str(), "--runtime", "vllm", "--kv", "f16", "--with", &hybrid, "--memory", "80GiB"];
    assert_ne!(ask(&args).0, 4);
}

/// A model that goes is what it is by itself, whatever is asked of the one that comes.
#[test]
fn what_goes_is_priced_by_itself() {
    let (small, wide) = (config("smollm2-135m"), config("qwen3-8b"));
    // No geometry of it fits WebGPU's least limits.
    let huge = format!("{}/../models/tests/data/priced/llama-4-scout.json", env!("CARGO_MANIFEST_DIR"));
    for more in [&[][..], &["--runtime", "llama.cpp"], &["--runtime", "vllm"]] {
        let (_, alone, _) = ask(&[&[wide.as_str()], more].concat());
        // Rows of 151,936 logits for 300 slots are past a binding.
        for asked in [&["--slots", "300", "--context", "64"][..], &["--chunk", "64", "--kv", "f32"]] {
            let (code, report, said) = ask(&[&[small.as_str(), "--replaces", &wide], asked, more].concat());
            assert_eq!((code, said.as_str()), (0, ""), "{asked:?} {more:?}");
            assert_eq!(
                report["others"]["replaced"][0]["bytes"], alone["bytes"]["total"],
                "{asked:?} {more:?}"
            );
        }
    }
    // What has no price is told where nothing is credited with it.
    for memory in [&[][..], &["--memory", "8GiB"], &["--device", "lavapipe"]] {
        let (code, report, said) = ask(&[&[small.as_str(), "--replaces", &huge], memory].concat());
        assert_eq!(code, 0, "{said}");
        let told = |text: &str| text.contains("--replaces") && text.contains("give the bytes");
        assert!(told(&said) && told(&report["warnings"].to_string()), "{said}");
    }
}

#[test]
fn what_goes_says_what_it_is_added_to() {
    let small = config("smollm2-135m");
    let cases: [(&[&str], &str); 3] = [
        (&[], "no budget is known to add them to"),
        (&["--memory", "64GiB"], "not added to the budget"),
        (&["--device", "h200"], "not added to the budget"),
    ];
    for (more, expected) in cases {
        let args = [&[small.as_str(), "--replaces", "12GB"], more].concat();
        let (code, said) = text(&args);
        assert!(code == 0 && said.contains("12,000,000,000 bytes") && said.contains(expected), "{said}");
        assert_eq!(ask(&args).1["others"]["credited"], 0);
    }
}

#[test]
fn one_model_drafts_for_another() {
    let (qwen, small) = (config("qwen3.5-27b"), config("smollm2-135m"));
    let named = |args: &[&str]| {
        let (code, report, said) = ask(&[&[qwen.as_str()], args].concat());
        let here = report["others"]["here"].as_array().cloned().unwrap_or_default();
        let roles: Vec<String> = here.iter().map(|o| o["role"].as_str().unwrap().to_owned()).collect();
        (code, roles, report, said)
    };
    let (_, own, alone, _) = named(&["--draft-depth", "3"]);
    let (code, other, both, said) = named(&["--draft-depth", "3", "--draft", &small]);
    assert_eq!((code, own, other), (0, vec!["draft_layers".into()], vec!["draft".into()]), "{said}");
    // What the model itself takes hangs on the depth alone.
    assert_eq!(alone["bytes"], both["bytes"]);
    // So in an engine that takes one of them: with the small model, no layers of the large one.
    let engine = |args: &[&str]| ask(&[&[&qwen, "--runtime", "vllm", "--draft-depth", "3"], args].concat()).1;
    let (alone, both) = (engine(&[]), engine(&["--draft", &small]));
    let weights = |report: &Value| report["bytes"]["weights"].as_u64().unwrap();
    assert_eq!(weights(&alone) - weights(&both), 849_398_784);
}

/// A figure of a table is no reading: asked again it says the same.
#[test]
fn what_a_devices_memory_refuses_is_refused_for_good() {
    let (qwen, small) = (config("qwen3-8b"), config("smollm2-135m"));
    let cases: [&[&str]; 8] = [
        &["--device", "rtx 4060 ti"],
        &["--device", "rtx 4060 ti", "--context", "4096", "--with", &small, "--with", &small],
        &["--device", "h200", "--reserve", "200GB"],
        &["--device", "h200", "--reserve", "135GB"],
        &["--device", "h200", "--memory", "10GB"],
        &["--device", "h200", "--runtime", "mlx", "--slots", "100"],
        &["--device", "h200", "--runtime", "llama.cpp", "--context", "1000000"],
        // Of which the engine takes a share.
        &["--device", "h200", "--runtime", "vllm", "--slots", "106"],
    ];
    for flags in cases {
        let args = [&[qwen.as_str()], flags].concat();
        let (code, report, _) = ask(&args);
        assert_eq!(
            (code, &report["refusal"]["lasts"]),
            (3, &json!("forever")),
            "{args:?} {}",
            report["refusal"]
        );
        let (_, said) = text(&args);
        assert!(said.contains("lasts     permanent"), "{args:?} {said}");
    }
}

#[test]
fn a_device_without_a_memory_of_its_own_says_so() {
    let qwen = config("qwen3-8b");
    let (code, said) = text(&[&qwen, "--device", "lavapipe"]);
    assert!(
        code == 0 && said.contains("lavapipe has no memory of its own that is known: give --memory 8GiB"),
        "{said}"
    );
    assert!(text(&[&qwen]).1.contains("or --device NAME"));
    assert_eq!(text(&[&qwen, "--device", "lavapipe", "--memory", "64GiB"]).0, 0);
}

/// Who is beside the model has no longer context than it was made for, and that is said.
#[test]
fn a_companion_with_less_context_is_told() {
    let (llama, small) = (config("llama-3.1-8b"), config("smollm2-135m"));
    for more in [&["--with"][..], &["--draft-depth", "2", "--draft"], &["--runtime", "vllm", "--with"]] {
        let at = |context: &'static str| [&[llama.as_str(), "--context", context], more, &[&small]].concat();
        let (_, report, said) = ask(&at("131072"));
        let expected =
            "priced with a context of 8,192, all that it was made for, and not with the 131,072 asked for";
        assert!(
            said.contains(expected) && report["warnings"].to_string().contains(expected),
            "{more:?} {said}"
        );
        assert_eq!(report["others"]["here"][0]["context"], 8192);
        assert!(text(&at("131072")).1.contains(", at a context of 8,192"), "{more:?}");
        let (_, report, said) = ask(&at("8192"));
        assert_eq!((said.as_str(), &report["warnings"]), ("", &json!([])), "{more:?}");
        assert!(!text(&at("8192")).1.contains("at a context of"), "{more:?}");
    }
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    assert!(help.contains("no longer context than it was made for"), "{help}");
}

/// Heads of 40 are no whole blocks of 32: the format that suits both is offered.
#[test]
fn a_companion_that_a_format_does_not_suit_has_a_nearest() {
    let llama = config("llama-3.1-8b");
    let odd = std::env::temp_dir().join(format!("plimsoll-answers-odd-{}.json", std::process::id()));
    let stated = json!({"model_type": "llama", "vocab_size": 64, "hidden_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 4096});
    std::fs::write(&odd, stated.to_string()).unwrap();
    for more in [&[][..], &["--runtime", "llama.cpp"]] {
        let args = [&[llama.as_str(), "--kv", "q8_0", "--with", odd.to_str().unwrap()], more].concat();
        let (code, report, said) = ask(&args);
        assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("kv_format")), "{said}");
        let nearest = report["refusal"]["nearest"].as_array().unwrap();
        assert!(nearest.iter().any(|near| near["kv"] == "f16"), "{more:?} {nearest:?}");
        let with = [&[llama.as_str(), "--kv", "f16", "--with", odd.to_str().unwrap()], more].concat();
        assert_eq!(ask(&with).0, 0);
    }
    std::fs::remove_file(odd).unwrap();
}
