//! What estimates by other engines' rules answer: their rules, their fields, and what they do not start with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/asked.rs"]
mod asked;

use asked::{ask, config, flags_of, run, text, with};
use serde_json::{Value, json};

/// Every field of the bytes that is not a figure of the engine's is named, and no other.
#[test]
fn engines_name_every_field_that_they_give_no_figure_of() {
    for (engine, own) in [("llama.cpp", false), ("vllm", false), ("mlx", true)] {
        let (_, report, _) = ask(&[&config("gemma-3-12b-it"), "--runtime", engine]);
        let named: Vec<&str> =
            report["not_in_bytes"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let bytes = report["bytes"].as_object().unwrap();
        assert_eq!(named.contains(&"load_peak"), !own, "{engine}: {named:?}");
        assert_eq!(bytes["load_peak"] == bytes["total"], !own, "{engine}");
        assert_eq!(report["exact"]["activations"] == json!(false), named.contains(&"activations"));
        for (name, value) in
            bytes.iter().filter(|(name, _)| !["load_peak", "recurrent"].contains(&name.as_str()))
        {
            assert_eq!(*value == json!(0), named.contains(&name.as_str()), "{engine}: {name} is {value}");
        }
    }
}

/// Sentences of an engine's rules are of what the model has and what was asked for.
#[test]
fn engines_tell_the_rules_that_apply() {
    let rules = |model: &str, flags: &[&str]| {
        let (_, report, said) = ask(&[&[config(model).as_str(), "--runtime"], flags].concat());
        let rules = report["rules"].as_array().unwrap_or_else(|| panic!("{flags:?}: {said}"));
        rules.iter().map(|rule| rule.as_str().unwrap().to_owned()).collect::<Vec<_>>().join("\n")
    };
    let holds = "a sliding layer holds window";
    for unified in [&[][..], &["--kv-unified"]] {
        let of = |model: &str, flags: &[&str]| rules(model, &[&["llama.cpp"], unified, flags].concat());
        let windows = of("gemma-3-12b-it", &[]);
        assert!(windows.contains(holds) && !windows.contains("--swa-full"), "{windows}");
        let every = of("gemma-3-12b-it", &["--swa-full"]);
        assert!(!every.contains(holds) && every.contains("--swa-full"), "{every}");
        let plain = of("llama-3.1-8b", &[]);
        assert!(!plain.contains("slid") && plain.contains("cells rounded up to 256"), "{plain}");
        let states = of("mamba2-codestral-7b", &[]);
        assert!(!["cells", "stream", "slid"].iter().any(|word| states.contains(word)), "{states}");
        assert!(states.contains("recurrent states in f32"), "{states}");
    }
    let states = rules("mamba2-codestral-7b", &["mlx"]);
    assert!(!states.contains("cells") && !states.contains("buffer"), "{states}");
    let states = rules("mamba2-codestral-7b", &["vllm", "--memory", "80GiB"]);
    assert!(states.contains("blocks of states") && states.contains("sequences at once"), "{states}");
    assert!(!states.contains("tokens in") && !states.contains("attention page"), "{states}");
    let hybrid = rules("qwen3.5-9b", &["vllm", "--memory", "80GiB"]);
    assert!(hybrid.contains("tokens in") && hybrid.contains("attention page"), "{hybrid}");
}

#[test]
fn a_share_of_vllm_is_of_the_whole_device() {
    let (model, small) = (config("llama-3.1-8b"), config("smollm2-135m"));
    let vllm =
        |more: &[&str]| ask(&[&[model.as_str(), "--runtime", "vllm", "--context", "8192"], more].concat());
    let (_, alone, _) = vllm(&[]);
    let need = alone["bytes"]["total"].as_u64().unwrap();
    let (_, with, _) = vllm(&["--with", &small]);
    let beside = with["others"]["here"][0]["total"].as_u64().unwrap();
    let half = ["--gpu-memory-utilization", "0.5"];
    let ends = |whole: u64, more: &[&str]| vllm(&[&["--memory", &whole.to_string()], more].concat());
    // Half of the device is the model's; a tenant in the other half takes nothing of it.
    assert_eq!(ends(2 * need, &half).0, 0);
    assert_eq!(ends(2 * need - 2, &half).0, 3);
    assert!(beside < need);
    assert_eq!(ends(2 * need, &[&half[..], &["--with", &small]].concat()).0, 0);
    // A model that drafts is inside of it.
    assert_eq!(ends(2 * need, &[&half[..], &["--draft", &small]].concat()).0, 3);
    assert_eq!(ends(2 * (need + beside), &[&half[..], &["--draft", &small]].concat()).0, 0);
    let (code, refused, _) = ends(2 * (need + beside) - 2, &[&half[..], &["--draft", &small]].concat());
    assert_eq!((code, &refused["refusal"]["need"]), (3, &json!(need)), "{refused}");
    assert_eq!(refused["refusal"]["have"], need - 1);
    // A tenant that does not leave the share free is one beside which it does not start.
    let whole = 10 * need;
    let (code, refused, said) = ends(whole, &["--gpu-memory-utilization", "0.9999", "--with", &small]);
    assert_eq!((code, &refused["refusal"]["broke"]), (3, &json!("total")), "{said}");
    assert_eq!(refused["refusal"]["have"], whole - beside);
    let share =
        said.split("--gpu-memory-utilization ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert_eq!(ends(whole, &["--gpu-memory-utilization", share, "--with", &small]).0, 0, "{share}");
    let whole = whole.to_string();
    let args = [&model, "--runtime", "vllm", "--gpu-memory-utilization", "0.9999", "--with", &small];
    let (_, said) = text(&[&args[..], &["--context", "8192", "--memory", &whole]].concat());
    assert!(said.contains("does not start") && !said.contains("no geometry of this model fits"), "{said}");
    // And so is a reserve: it is left of the device, and the share is of all of it.
    let device = ["--device", "h200", "--gpu-memory-utilization", "1"];
    assert_eq!(vllm(&device).0, 0);
    assert_eq!(vllm(&[&device[..], &["--reserve", "1GiB"]].concat()).0, 3);
}

#[test]
fn images_by_other_engines_rules_are_priced_or_refused() {
    let (sees, blind) = (config("qwen3.5-27b"), config("qwen3-8b"));
    for engine in ["llama.cpp", "vllm", "mlx"] {
        let with = |model: &str, more: &[&str]| ask(&[&[model, "--runtime", engine], more].concat());
        let (_, none, _) = with(&sees, &[]);
        let (code, some, said) = with(&sees, &["--images", "8"]);
        assert_eq!(code, 0, "{said}");
        // The tower is loaded, and the rules say that no more of it is told.
        let weights = |report: &Value| report["bytes"]["weights"].as_u64().unwrap();
        let tower = weights(&some) - weights(&none);
        assert_eq!(tower, 921_460_192);
        let rules = some["rules"].to_string();
        assert!(rules.contains(&tower.to_string()) && rules.contains("however many images"), "{rules}");
        assert!(!none["rules"].to_string().contains("tower"));
        let (code, refused, said) = with(&blind, &["--images", "1"]);
        assert_eq!((code, &refused["refusal"]["name"]), (3, &json!("images")), "{said}");
        assert!(said.contains("reads no images"), "{said}");
        let near = &refused["refusal"]["nearest"][0];
        assert_eq!((&near["images"], &near["kv"]), (&Value::Null, &json!("f16")), "{near}");
        assert_eq!(text(&[&blind, "--runtime", engine, "--images", "1"]).0, 3);
    }
}

#[test]
fn formats_by_other_engines_rules_go_by_their_names() {
    let model = config("llama-3.1-8b");
    let vllm = [model.as_str(), "--runtime", "vllm", "--kv-fp8", "--memory", "20GiB", "--context", "131072"];
    let (code, report, _) = ask(&vllm);
    assert_eq!((code, &report["geometry"]["kv"]), (3, &json!("fp8")));
    assert!(report["rules"].to_string().contains("fp8, one byte a value"), "{}", report["rules"]);
    assert!(text(&vllm).1.contains("KV fp8,"));
    // What is suggested can be asked for.
    let near = &report["refusal"]["nearest"][0];
    let [context, slots, chunk] = ["context", "slots", "prefill_chunk"].map(|key| near[key].to_string());
    let kv = near["kv"].as_str().unwrap();
    assert_eq!(kv, "fp8");
    let again = [&model, "--runtime", "vllm", "--kv", kv, "--memory", "20GiB", "--context", &context];
    let (code, report, said) = ask(&[&again[..], &["--slots", &slots, "--chunk", &chunk]].concat());
    assert_eq!((code, &report["bytes"]["total"]), (0, &near["total"]), "{said}");
    let quantised = [model.as_str(), "--runtime", "mlx", "--kv-bits", "4"];
    let (_, report, _) = ask(&quantised);
    assert_eq!((&report["geometry"]["kv"], &report["geometry"]["kv_bits"]), (&json!("f16"), &json!(4)));
    assert!(text(&quantised).1.contains("KV f16 (full caches in 4 bits)"));
    // The others do not have it, and an estimate of ours is one alone.
    for engine in ["llama.cpp", "mlx"] {
        assert_eq!(ask(&[&model, "--runtime", engine, "--kv", "fp8"]).0, 3, "{engine}");
    }
    // One type is of both.
    for (engine, k, v) in [("vllm", "fp8", "f16"), ("vllm", "f16", "f32"), ("mlx", "f16", "f32")] {
        let (code, report, said) = ask(&[&model, "--runtime", engine, "--kv-k", k, "--kv-v", v]);
        assert!(code == 3 && said.contains("one type for keys and values"), "{engine}: {said}");
        assert!(!report["refusal"]["nearest"].as_array().unwrap().is_empty(), "{report}");
    }
    for (k, v) in [("fp8", "f16"), ("f16", "f32"), ("bf16", "f16"), ("f32", "f16")] {
        for engine in ["vllm", "mlx"].into_iter().filter(|engine| *engine == "vllm" || k != "fp8") {
            let (code, report, _) = ask(&[&model, "--runtime", engine, "--kv-k", k, "--kv-v", v]);
            let reason = report["refusal"]["reason"].as_str().unwrap_or_default();
            assert!(
                code == 3 && reason.contains(&format!("{k} and {v}")),
                "{engine} {k}/{v}: {code} {report}"
            );
        }
    }
    assert_eq!(ask(&[&model, "--runtime", "llama.cpp", "--kv-k", "f16", "--kv-v", "f32"]).0, 0);
    assert_eq!(ask(&[&model, "--runtime", "vllm", "--kv-k", "fp8", "--kv-v", "fp8"]).0, 0);
    let kv = |format| ask(&[&model, "--kv", format]).1["bytes"]["kv"].as_u64().unwrap();
    assert_eq!(2 * kv("fp8"), kv("f16"));
}

#[test]
fn one_more_token_costs_what_the_ladder_rises_by() {
    for (model, token, pool) in [("gemma-3-12b-it", 65_536, 393_216), ("gpt-oss-20b", 24_576, 49_152)] {
        let path = config(model);
        let (_, report, _) = ask(&[&path, "--runtime", "vllm", "--context", "131072"]);
        assert_eq!(
            (&report["kv_bytes_per_token"], &report["pool_bytes_per_token"]),
            (&json!(token), &json!(pool))
        );
        let rungs = report["ladder"].as_array().unwrap();
        let [.., low, high] = rungs.as_slice() else { panic!("{rungs:?}") };
        let of = |rung: &Value, key: &str| rung[key].as_u64().unwrap();
        let rise = (of(high, "total") - of(low, "total")) / (of(high, "context") - of(low, "context"));
        assert_eq!(rise, token, "{model}");
        let said = text(&[&path, "--runtime", "vllm"]).1;
        assert!(said.contains("as logs count them"), "{said}");
    }
    // States that are kept at every block's end are part of that, and are no constant.
    let nano = config("nemotron-3-nano-30b-a3b");
    let asked = [nano.as_str(), "--runtime", "vllm", "--mamba-cache", "all", "--context", "131072"];
    let (_, report, _) = ask(&asked);
    assert_eq!(
        (&report["kv_bytes_per_token"], &report["recurrent_bytes_per_slot"]),
        (&json!(30_720), &json!(null))
    );
    assert_eq!(report["bytes"]["recurrent"], 4 * 61 * 6 * 2176 * 1024u64);
    let (_, said) = text(&asked);
    assert!(said.contains("one more token of context: 30,720 bytes a slot"), "{said}");
    assert!(!said.contains("at any context") && !said.contains("costs the same"), "{said}");
    let (code, report, _) = ask(&[&config("mamba2-130m-hf"), "--runtime", "vllm", "--mamba-cache", "all"]);
    assert_eq!((code, &report["bytes"]), (3, &json!(null)), "{report}");
}

/// What is held while caches grow is held against the budget as what is held in the end.
#[test]
fn what_mlx_holds_while_it_grows_must_fit_too() {
    let llama = config("llama-3.1-8b");
    for budget in [&["--device", "apple-m4-max-48"][..], &["--memory", "40GB"]] {
        let args = [&[llama.as_str(), "--runtime", "mlx", "--context", "131072"], budget].concat();
        let (code, report, said) = ask(&args);
        let of = |report: &Value, key: &str| report[key].as_u64().unwrap();
        let have = of(&report["budget"], "bytes");
        assert!(of(&report["bytes"], "total") < have && of(&report["bytes"], "load_peak") > have);
        assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("load_peak")), "{said}");
        assert_eq!(report["refusal"]["need"], report["bytes"]["load_peak"]);
        assert!(said.contains("both copies of every cache"), "{said}");
        // What is said to fit does, and one token more does not.
        let most = of(&report["largest"], "context");
        let at = |context: u64| {
            let context = context.to_string();
            ask(&[&[llama.as_str(), "--runtime", "mlx", "--context", &context], budget].concat()).0
        };
        assert_eq!((at(most), at(most + 1)), (0, 3), "{most}");
        let last = report["ladder"].as_array().unwrap().last().unwrap();
        assert_eq!(last["verdict"], "refused");
        for near in report["refusal"]["nearest"].as_array().unwrap() {
            assert_eq!(at(near["context"].as_u64().unwrap()), 0, "{near}");
        }
    }
}

#[test]
fn drafts_that_an_engine_does_not_hold_can_be_left_out() {
    let path = config("mamba2-130m-hf");
    let asked = [path.as_str(), "--runtime", "mlx", "--draft-depth", "1"];
    let (code, report, said) = ask(&asked);
    assert_eq!(code, 3);
    assert!(!said.contains("own layers") && said.contains("drafting"), "{said}");
    assert_eq!(report["refusal"]["nearest"][0]["draft_depth"], 0, "{}", report["refusal"]);
    let (_, said) = text(&asked);
    let flags = flags_of(&said);
    assert_eq!(flags.trim(), "--draft-depth 0");
    assert_eq!(
        run(&with(&asked, &flags).iter().map(String::as_str).collect::<Vec<_>>()).status.code(),
        Some(0)
    );
    // Layers that draft are named where there are any; less memory than that needs offers less still.
    let (_, report, said) = ask(&[
        &config("qwen3.5-27b"),
        "--runtime",
        "mlx",
        "--draft-depth",
        "1",
        "--kv",
        "q8_0",
        "--memory",
        "55GB",
        "--context",
        "131072",
    ]);
    assert!(said.contains("own layers"), "{said}");
    let near = report["refusal"]["nearest"].as_array().unwrap();
    assert!(
        !near.is_empty()
            && near.iter().all(|s| s["draft_depth"] == 0 && s["total"].as_u64() <= Some(55_000_000_000)),
        "{near:?}"
    );
}
