//! What an estimate answers is what it was asked, what it did not compute is not there, and what it suggests is taken when
//! it is typed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/asked.rs"]
mod asked;

use asked::{ask, config, flags_of, text, with};
use serde_json::{Value, json};
use std::process::Command;

#[test]
fn what_is_suggested_is_in_the_formats_that_were_asked_for() {
    let llama = config("llama-3.1-8b");
    let formats: [(&[&str], &str); 6] = [
        (&["--kv", "q4_0"], "q4_0"),
        (&["--kv", "bf16"], "bf16"),
        (&["--kv-k", "q8_0"], "q8_0/f16"),
        (&["--kv-k", "q8_0", "--kv-v", "q4_0"], "q8_0/q4_0"),
        (&["--kv", "q8_0", "--kv-v", "f32"], "q8_0/f32"),
        (&["--kv", "f16"], "f16"),
    ];
    for (kv, name) in formats {
        let base = [llama.as_str(), "--memory", "20GB", "--context", "131072"];
        let args = [&base[..], kv].concat();
        let (code, report, _) = ask(&args);
        assert_eq!((code, &report["geometry"]["kv"]), (3, &json!(name)));
        let nearest = report["refusal"]["nearest"].as_array().unwrap();
        // A shorter context fits in any format: it comes first, and in the one that was asked for.
        assert_eq!(nearest[0]["kv"], name, "{nearest:?}");
        assert!(nearest[0]["context"].as_u64().unwrap() > 20_000, "{nearest:?}");
        for near in nearest {
            // Wider formats give nothing.
            assert!(near["kv"] == name || near["kv"] == "f16" || near["kv"] == "q8_0", "{near}");
            let number = |key: &str| near[key].to_string();
            let (k, v) = near["kv"].as_str().unwrap().split_once('/').unwrap_or_else(|| {
                let both = near["kv"].as_str().unwrap();
                (both, both)
            });
            let (context, slots, chunk) = (number("context"), number("slots"), number("prefill_chunk"));
            let tried = [&base[..3], &["--context", &context, "--slots", &slots, "--chunk", &chunk]].concat();
            let (code, tried, _) = ask(&[&tried[..], &["--kv-k", k, "--kv-v", v]].concat());
            assert_eq!((code, &tried["bytes"]["total"]), (0, &near["total"]), "{near}");
            assert_eq!(tried["geometry"]["kv"], near["kv"]);
        }
        // And as people copy it.
        let (_, said) = text(&args);
        assert!(said.contains(&format!("   {name} ")), "{said}");
        let copied = with(&args, &flags_of(&said));
        let copied: Vec<&str> = copied.iter().map(String::as_str).collect();
        assert_eq!(text(&copied).0, 0, "{copied:?}");
    }
}

#[test]
fn changes_of_formats_are_flags_that_take_them() {
    let llama = config("llama-3.1-8b");
    let (_, said) = text(&[&llama, "--kv-k", "f32", "--kv-v", "f16"]);
    assert!(said.contains("--kv-k q8_0 --kv-v q8_0"), "{said}");
    let (_, said) = text(&[&llama, "--kv", "bf16"]);
    assert!(said.contains("--kv q8_0") && !said.contains("--kv bf16"), "{said}");
    // Another engine, whose formats are apart, too: from both and not from the keys'.
    let (_, report, _) = ask(&[&llama, "--runtime", "llama.cpp", "--kv-k", "q8_0"]);
    let levers = report["levers"].as_array().unwrap();
    assert!(levers.iter().any(|lever| lever["change"] == "kv q8_0/f16 -> q8_0"), "{levers:?}");
}

/// Every number of a document with the way to it.
fn numbers(value: &Value, at: String, found: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(number) => found.push((at, number.as_f64().unwrap())),
        Value::Array(all) => all.iter().enumerate().for_each(|(i, v)| numbers(v, format!("{at}/{i}"), found)),
        Value::Object(all) => all.iter().for_each(|(key, v)| numbers(v, format!("{at}/{key}"), found)),
        _ => {}
    }
}

#[test]
fn what_was_not_computed_is_no_zero() {
    let (llama, smollm) = (config("llama-3.1-8b"), config("smollm2-135m"));
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("answers");
    std::fs::create_dir_all(&folder).unwrap();
    let page = folder.join("refused.html");
    let page = page.to_str().unwrap();
    let refusals: [(&[&str], &str); 8] = [
        (&[&llama, "--max-allocation", "1kB"], "allocation"),
        (&[&llama, "--max-binding", "1kB", "--memory", "80GiB"], "binding"),
        (&[&llama, "--slots", "100000"], "geometry"),
        (&[&llama, "--context", "1000000000", "--memory", "20GB"], "geometry"),
        (&[&llama, "--slots", "300", "--context", "64"], "binding"),
        (&[&llama, "--runtime", "vllm", "--kv", "q8_0"], "limit"),
        (&[&llama, "--runtime", "llama.cpp", "--slots", "100000", "--memory", "80GiB"], "geometry"),
        (
            &[&smollm, "--context", "1", "--draft-depth", "0", "--snapshots", "0", "--max-binding", "4kB"],
            "binding",
        ),
    ];
    for (args, broke) in refusals {
        let (code, report, _) = ask(args);
        assert_eq!(
            (code, &report["refusal"]["broke"]),
            (3, &json!(broke)),
            "{args:?}: {}",
            report["refusal"]
        );
        for absent in ["bytes", "largest_allocation", "largest_binding", "pipelines", "coefficients"] {
            assert_eq!(report[absent], Value::Null, "{args:?}: {absent}");
        }
        let mut found = Vec::new();
        numbers(&report, String::new(), &mut found);
        // What a model has none of is 0, and so is what was asked for as that.
        let real = ["/model/", "/geometry/", "/recurrent_bytes_per_slot", "/overhead/bytes", "draft_depth"];
        let real = |at: &str| real.iter().any(|part| at.contains(part)) || at == "/budget/taken";
        let zeros: Vec<&String> =
            found.iter().filter(|(at, n)| *n == 0.0 && !real(at)).map(|(at, _)| at).collect();
        let zeros: Vec<_> = zeros.into_iter().filter(|at| !at.contains("/priced/")).collect();
        assert!(zeros.is_empty(), "{args:?}: {zeros:?}");
        // Neither people nor browsers are told of nothing.
        let (_, said) = text(&[args, &["--chart", "--html", page]].concat());
        let built = std::fs::read_to_string(page).unwrap();
        for said in [&said, &built] {
            assert!(!said.contains(" 0 B") && !said.contains(": ,"), "{args:?}: {said}");
        }
    }
    // What is a closed form of no engine is no part of its sums, and says so.
    let (_, report, _) = ask(&[&llama, "--runtime", "mlx"]);
    assert_eq!(report["not_in_bytes"], json!(["activations", "io", "retained", "load_host"]));
    assert_eq!((&report["largest_binding"], &report["pipelines"]), (&Value::Null, &Value::Null));
    assert_eq!(ask(&[&llama]).1.get("not_in_bytes"), None);
}

#[test]
fn where_a_search_ends_is_not_the_answer() {
    let small = config("smollm2-135m");
    let roomy = ["--device", "h200", "--context", "32", "--kv", "q8_0"];
    let (code, report, _) = ask(&[&[small.as_str()], &roomy[..]].concat());
    assert_eq!((code, &report["largest"]["slots"]), (0, &json!(4096)));
    let ends = &report["largest"]["bounded_by"];
    assert_eq!(ends, &json!({"context": "model", "slots": "search", "prefill_chunk": "context"}));
    assert_eq!(report["frontier"]["bounded_by"], "search");
    assert_eq!(report["frontier"]["points"][0]["bounded_by"], "model");
    let (_, said) = text(&[&[small.as_str()], &roomy[..]].concat());
    assert!(said.contains("slots at least 4,096") && said.contains("more slots are not tried"), "{said}");
    assert!(said.contains("8,192 (all that the model was made for)"), "{said}");
    assert!(said.contains("chunk 32 (the whole context)"), "{said}");
    // More does fit.
    assert_eq!(ask(&[&[small.as_str(), "--slots", "5000"], &roomy[..]].concat()).0, 0);
    let (_, report, _) = ask(&[&small, "--device", "h200", "--context", "100000"]);
    assert_eq!(report["largest"]["prefill_chunk"], 65_536);
    assert_eq!(report["largest"]["bounded_by"]["prefill_chunk"], "search");
    assert_eq!(report["largest"]["bounded_by"]["context"], "search");
    // What a budget ends says nothing.
    let (_, report, _) = ask(&[&config("llama-3.1-8b"), "--memory", "20GB"]);
    assert_eq!(
        report["largest"]["bounded_by"],
        json!({"context": null, "slots": null, "prefill_chunk": null})
    );
    assert_eq!(report["frontier"]["bounded_by"], Value::Null);
    let (_, report, _) = ask(&[&small, "--runtime", "llama.cpp", "--memory", "80GiB", "--context", "8192"]);
    assert_eq!(report["largest"]["bounded_by"]["context"], "model");
    assert_eq!(report["largest"]["bounded_by"]["prefill_chunk"], "search");
}

#[test]
fn limits_tell_both_values_and_which_won() {
    let small = config("smollm2-135m");
    let (_, report, said) =
        ask(&[&small, "--max-allocation", "1.5GiB", "--device", "4090", "--max-binding", "1GiB"]);
    let device = report["limits"][0]["device"].as_u64().unwrap();
    assert!(device > 3 << 29 && !said.contains("changes nothing"), "{said}");
    assert_eq!(report["limits"][0]["bytes"], 3u64 << 29);
    assert_eq!(
        (&report["limits"][0]["won"], &report["limits"][0]["setting"]),
        (&json!("requested"), &json!("flag --max-allocation"))
    );
    assert_eq!(
        (&report["limits"][1]["what"], &report["limits"][1]["bytes"]),
        (&json!("binding"), &json!(1 << 30))
    );
    // Above what there is they change nothing, and that is told.
    let (code, report, said) = ask(&[&small, "--max-allocation", "1GiB", "--max-binding", "2GiB"]);
    assert_eq!(code, 0);
    for (at, flag, bytes, asked) in
        [(0, "--max-allocation", 256u64, 1024u64), (1, "--max-binding", 128, 2048)]
    {
        let limit = &report["limits"][at];
        assert_eq!((&limit["won"], &limit["bytes"]), (&json!("derived"), &json!(bytes << 20)), "{limit}");
        assert_eq!((&limit["requested"], &limit["device"]), (&json!(asked << 20), &json!(bytes << 20)));
        assert!(
            said.lines().any(|l| l.contains(flag) && l.contains("changes nothing") && l.contains("MiB")),
            "{said}"
        );
    }
    let plain = ask(&[&small]).1;
    assert_eq!(
        (&plain["limits"][1]["won"], &plain["limits"][1]["requested"]),
        (&json!("derived"), &Value::Null)
    );
    // A binding is no longer than its buffer: the flag that broke it is the one of buffers.
    let (code, report, said) = ask(&[&small, "--max-allocation", "1kB"]);
    assert_eq!(
        (code, &report["refusal"]["broke"], &report["refusal"]["have"]),
        (3, &json!("allocation"), &json!(1000))
    );
    assert!(said.contains("allocation limit is 1,000 bytes") && !said.contains("binding"), "{said}");
    let (_, said) = text(&[&small, "--max-allocation", "1kB"]);
    assert!(said.contains("flag --max-allocation") && !said.contains("WebGPU's least limits"), "{said}");
    let (_, report, said) = ask(&[&small, "--max-binding", "1kB"]);
    assert!(
        report["refusal"]["broke"] == "binding" && said.contains("binding limit is 1,000 bytes"),
        "{said}"
    );
    let (_, report, _) = ask(&[&small, "--max-binding", "64MiB", "--max-allocation", "32MiB"]);
    assert_eq!(
        (&report["limits"][1]["setting"], &report["limits"][1]["bytes"]),
        (&json!("flag --max-allocation"), &json!(32 << 20))
    );
}

#[test]
fn a_reserve_is_told_with_what_it_is_of() {
    let small = config("smollm2-135m");
    let (code, report, said) = ask(&[&small, "--memory", "64GiB", "--reserve", "1GiB"]);
    assert_eq!((code, &report["budget"]["bytes"]), (0, &json!(64u64 << 30)));
    let why = report["budget"]["why"].as_str().unwrap();
    assert!(why.contains("flag --reserve") && said.contains("--memory stays whole"), "{why}; {said}");
    assert!(text(&[&small, "--memory", "64GiB", "--reserve", "1GiB"]).1.contains(why));
    // Of a device it is taken, and the smaller of what is left and the ceiling holds; people see both.
    let (_, report, _) = ask(&[&small, "--memory", "64GiB", "--device", "h200", "--reserve", "100GiB"]);
    let derived = report["budget"]["derived"].as_u64().unwrap();
    assert_eq!(report["budget"]["bytes"], derived - (100 << 30));
    let (_, said) = text(&[&small, "--memory", "64GiB", "--device", "h200", "--reserve", "100GiB"]);
    assert!(said.contains("flag --reserve") && said.contains("68,719,476,736 (flag --memory)"), "{said}");
    // The variable is told like the flag.
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"));
    let output =
        command.args([&small, "--memory", "64GiB"]).env("PLIMSOLL_RESERVE", "1GiB").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("PLIMSOLL_RESERVE") && said.contains("stays whole"),
        "{said}"
    );
}

#[test]
fn too_many_images_are_as_many_as_fit() {
    let gemma = config("gemma-3-12b-it");
    let args = [gemma.as_str(), "--images", "100", "--memory", "40GB"];
    let (code, report, _) = ask(&args);
    let nearest = report["refusal"]["nearest"].as_array().unwrap();
    // A context that holds them all, else as many as there is room for, else none.
    let offered: Vec<_> = nearest.iter().map(|near| (&near["context"], &near["images"])).collect();
    let expected = [(&json!(25_600), &json!(100)), (&json!(8192), &json!(32)), (&json!(8192), &json!(0))];
    assert_eq!((code, offered.as_slice()), (3, expected.as_slice()), "{nearest:?}");
    for near in nearest {
        let number = |key: &str| near[key].to_string();
        let (context, images) = (number("context"), number("images"));
        let flags = [gemma.as_str(), "--memory", "40GB", "--context", &context, "--images", &images];
        let (code, report, said) = ask(&flags);
        assert_eq!((code, &report["bytes"]["total"]), (0, &near["total"]), "{flags:?}: {said}");
    }
    let (_, said) = text(&args);
    let copied = with(&args, &flags_of(&said));
    assert!(copied.ends_with(&["--context".to_owned(), "25600".to_owned()]), "{copied:?}");
    assert_eq!(ask(&copied.iter().map(String::as_str).collect::<Vec<_>>()).0, 0);
}

#[test]
fn snapshots_given_up_are_a_number() {
    let llama = config("qwen3.5-27b");
    let (code, report, _) = ask(&[&llama, "--snapshots", "50", "--memory", "56GB"]);
    let nearest = report["refusal"]["nearest"].as_array().unwrap();
    assert!(code == 3 && nearest.iter().all(|near| near["snapshots"].is_u64()), "{nearest:?}");
    let (code, report, _) = ask(&[&llama, "--memory", "20GB"]);
    let none = report["refusal"]["nearest"].as_array().unwrap();
    assert!(code == 3 && none.iter().all(|near| near["snapshots"].is_null()), "{none:?}");
}

#[test]
fn a_limit_that_ends_a_search_is_named() {
    let path = config("qwen3.5-27b");
    let asked = [path.as_str(), "--context", "32", "--chunk", "64", "--memory", "154GB"];
    let (_, report, _) = ask(&asked);
    assert_eq!(
        (&report["largest"]["slots"], &report["largest"]["bounded_by"]["slots"]),
        (&json!(135), &Value::Null)
    );
    let why = report["largest"]["stopped_by"]["slots"].as_str().unwrap();
    assert!(why.contains("logits needs 135,086,080 bytes where the binding limit"), "{why}");
    let why = report["frontier"]["stopped_by"].as_str().unwrap();
    assert!(why.contains("binding limit"), "{why}");
    let said = text(&asked).1;
    assert!(
        said.contains("not memory but a limit ends the slots") && said.contains("with 256 slots: "),
        "{said}"
    );
    // Where memory ends it no limit is blamed.
    let (_, report, _) = ask(&[&config("llama-3.1-8b"), "--memory", "16.2GB", "--context", "256"]);
    assert!(report["largest"]["slots"].as_u64() > Some(0), "{}", report["largest"]);
    let none = json!({"context": null, "slots": null, "prefill_chunk": null});
    assert_eq!((&report["largest"]["stopped_by"], &report["frontier"]["stopped_by"]), (&none, &Value::Null));
}

#[test]
fn an_image_beyond_the_cap_is_told_with_the_cap() {
    let path = config("qwen3.5-27b");
    let with = |size: &str| ask(&[&path, "--images", "1", "--context", "65536", "--image-size", size]);
    let (_, report, said) = with("9000x9000");
    assert!(said.contains("9000x9000") && said.contains("4096x4096"), "{said}");
    assert!(report["warnings"].to_string().contains("4096x4096"), "{}", report["warnings"]);
    for size in ["4096x4096", "8192x2048", "max"] {
        assert_eq!(with(size).1["warnings"], json!([]), "{size}");
    }
}
