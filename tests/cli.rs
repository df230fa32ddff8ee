//! The command line: exit codes, documents, and what goes to which stream. Text comes from a tiny random model with
//! a tokenizer of one token per character.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::*;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use support::data;

#[test]
fn usage_is_2_and_names_the_setting() {
    let model = golden();
    let cases = [
        (vec!["estimate", &model, "--memory", "48 bananas"], "--memory"),
        (vec!["estimate", &model, "--max-binding", "1e9"], "--max-binding"),
        (vec!["estimate", &model, "--context", "0"], "--context"),
        (vec!["estimate", &model, "--kv", "q9"], "--kv"),
        (vec!["estimate", &model, "--draft-depth", "65"], "--draft-depth"),
        (vec!["bench", &model, "--lengths", "1,0"], "--lengths"),
        (vec!["bench", &model, "--lengths", "5", "-p", "5"], "--lengths"),
        (vec!["perplexity", &model], "--file"),
        (vec!["estimate", "hf:owner"], "hf:owner/name"),
        (vec!["run", "hf:owner/../name"], "hf:"),
        (vec!["logits", &model, "--out", "x"], "--ids"),
        (vec!["fly"], "fly"),
        (vec!["probe", &model, "--context", "64"], "--context"),
        (vec!["probe", &model, "--from", "23"], "--from"),
        (vec!["probe", &model, "--from", "65", "--max", "64"], "--from"),
        (vec!["serve", &model], "serve"),
    ];
    for (args, named) in cases {
        let output = run(&args);
        assert_eq!(code(&output), 2, "{args:?}");
        assert!(stderr(&output).contains(named), "{}", stderr(&output));
        // Perplexities are documents always.
        assert_eq!(output.stdout.is_empty(), args[0] != "perplexity", "{args:?}");
    }
    let speaking = speaking("usage");
    let output = run(&["run", &speaking, "-p", "a", "--temperature", "NaN"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("temperature"), "{}", stderr(&output));
    // Bad options are no refusals: that word is for what may not be loaded. They name the flag, before any load.
    let text = PathBuf::from(&speaking).join("text.txt");
    std::fs::write(&text, "some words to be scored").unwrap();
    let text = text.to_str().unwrap();
    let cases = [
        (vec!["run", &speaking, "-p", "a", "--temperature", "-1"], "--temperature: expected"),
        (vec!["run", &speaking, "-p", "a", "--repeat-penalty", "0"], "--repeat-penalty"),
        (vec!["chat", &speaking, "--top-p", "-0.5"], "--top-p"),
        (vec!["run", &speaking, "-p", "a", "--stop", ""], "stop strings"),
        (vec!["logits", &model, "--ids", "1,256", "--out", "x"], "256"),
        (vec!["perplexity", &speaking, "--file", text, "--window", "2"], "--window"),
        (vec!["perplexity", &speaking, "--file", text, "--window", "8", "--context", "4"], "--context 4"),
        (
            vec!["logits", &model, "--ids", "1", "--out", "/no/such/folder/x"],
            "cannot write /no/such/folder/x",
        ),
    ];
    for (mut args, named) in cases {
        // No device is opened for them.
        args.extend(["--adapter", "no such adapter"]);
        let output = run(&args);
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains(named) && !said.contains("refused"), "{said}");
    }
}

/// Flags are read before `--json` is: who asked for a document has one all the same.
#[test]
fn wrong_flags_have_a_document_too() {
    let cases: [&[&str]; 5] = [
        &["run", "--json", "--memory=0"],
        &["run", "--no-such-flag", "--json"],
        &["run", "--json", "-p", "a", "--file", "b"],
        &["bench", "-r", "0", "--json"],
        &["perplexity", "--no-such-flag"],
    ];
    for args in cases {
        let output = run(args);
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["error"]["exit_code"], 2, "{args:?}: {found}");
        let message = found["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains("Usage"), "{args:?}: {message}");
        assert!(stderr(&output).contains(message.lines().next().unwrap()), "{}", stderr(&output));
    }
    assert!(run(&["run", "--no-such-flag", "-p", "a", "--", "--json"]).stdout.is_empty());
    for asked in ["--help", "--version"] {
        let output = run(&[asked, "--json"]);
        assert_eq!(code(&output), 0, "{asked}: {}", stderr(&output));
        assert!(!output.stdout.starts_with(b"{"), "{asked}");
    }
}

#[test]
fn what_is_too_long_needs_no_device() {
    let (model, speaking) = (golden(), speaking("long"));
    let cases = [
        vec!["run", &speaking, "-p", "0123456789", "--context", "8"],
        vec!["run", &speaking, "-p", "01", "--context", "8", "-n", "6"],
        vec!["logits", &model, "--ids", "1,2,3", "--context", "2", "--out", "x"],
        vec!["bench", &model, "-p", "8", "-n", "4", "--context", "10"],
    ];
    for mut args in cases {
        args.extend(["--adapter", "no such adapter"]);
        let output = run(&args);
        assert_eq!(code(&output), 3, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("refused: "), "{}", stderr(&output));
    }
    // A tokenizer without BOS makes nothing of nothing.
    let path = PathBuf::from(&speaking).join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = Value::Null;
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let empty = run(&["run", &speaking, "-p", "", "--adapter", "no such adapter"]);
    assert_eq!(code(&empty), 5, "{}", stderr(&empty));
    assert!(!stderr(&empty).contains("refused"), "{}", stderr(&empty));
}

#[test]
fn weights_alone_do_not_say_what_they_are() {
    let path = scratch("bare").join("model.safetensors");
    std::fs::copy(data("golden/llama/model.safetensors"), &path).unwrap();
    let output = run(&["estimate", path.to_str().unwrap()]);
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains("no config.json beside"), "{}", stderr(&output));
}

#[test]
fn an_estimate_for_people_has_flags_to_copy() {
    let config = data("configs/smollm2-135m.json").display().to_string();
    let shown = |args: &[&str]| {
        let output = run(&[&["estimate", config.as_str()], args].concat());
        code(&output);
        (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
    };
    let (free, said) = shown(&[]);
    assert!(free.contains("no budget: give --memory") && free.contains("--chunk 128"), "{free}");
    assert!(!free.contains("largest that fits") && !free.contains("no_budget"), "{free}");
    assert!(!said.contains("beyond"), "{said}");
    let (tight, _) = shown(&["--memory", "300MB"]);
    let nearest = tight.lines().find_map(|line| line.strip_prefix("nearest: ")).expect("flags");
    let tried = [&["--memory", "300MB"], &*nearest.split(' ').collect::<Vec<_>>()].concat();
    assert!(shown(&tried).0.contains("verdict   fits"), "{nearest}");
    assert!(tight.contains("there are 300,000,000"), "{tight}");
    let (limited, _) = shown(&["--max-allocation", "1kB"]);
    assert!(limited.contains("refused (") && !limited.contains("largest buffer"), "{limited}");
    let (_, said) = shown(&["--context", "100000"]);
    assert!(said.contains("context 100000 is beyond the 8192"), "{said}");
    let (drafted, _) = shown(&["--draft-depth", "3", "--memory", "300MB"]);
    assert!(drafted.contains("KV f16, draft depth 3, on") && drafted.contains("drafts"), "{drafted}");
}

#[test]
fn an_estimate_has_its_schema() {
    let config = data("configs/llama-3.1-8b.json").display().to_string();
    let report = good(&["estimate", &config, "--json"]);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["verdict"], "no_budget");
    assert_eq!(report["model"]["architecture"], "llama");
    assert_eq!(report["model"]["source"], "config");
    assert_eq!(report["model"]["layers"]["attention_full"], 32);
    let geometry = json!({"context": 8192, "slots": 1, "prefill_chunk": 512, "kv": "f16", "weights": "as-stored", "page": 32});
    for (key, value) in geometry.as_object().unwrap() {
        assert_eq!(&report["geometry"][key], value, "{key}");
    }
    assert_eq!(report["kv_bytes_per_token"], 2 * 32 * 8 * 128 * 2);
    assert_eq!(report["bytes"]["kv"], 8192u64 * 2 * 32 * 8 * 128 * 2);
    assert_eq!(report["bytes"]["kv_by_kind"]["full"], report["bytes"]["kv"]);
    let sum: u64 = ["weights", "kv", "recurrent", "activations", "io", "retained"]
        .iter()
        .map(|key| report["bytes"][key].as_u64().unwrap())
        .sum();
    assert_eq!(report["bytes"]["total"].as_u64().unwrap(), sum);
    for key in ["exact", "overhead", "largest_allocation", "largest_binding", "ladder", "levers"] {
        assert!(!report[key].is_null(), "{key}");
    }
    assert_eq!(report["refusal"], Value::Null);
    let fits = good(&["estimate", &config, "--json", "--memory", "48GiB", "--slots", "2", "--kv", "q8_0"]);
    assert_eq!(fits["verdict"], "fits");
    assert_eq!(fits["budget"]["bytes"], 48u64 << 30);
    assert_eq!(fits["budget"]["source"], "flag --memory");
    assert_eq!((&fits["geometry"]["slots"], &fits["geometry"]["kv"]), (&json!(2), &json!("q8_0")));
}

#[test]
fn a_refusal_is_3_and_what_it_suggests_fits() {
    let config = data("configs/smollm2-135m.json").display().to_string();
    let total = good(&["estimate", &config, "--json"])["bytes"]["total"].as_u64().unwrap();
    let budget = (total - 1).to_string();
    let output = run(&["estimate", &config, "--json", "--memory", &budget]);
    assert_eq!(code(&output), 3);
    let report = document(&output);
    assert_eq!(report["verdict"], "refused");
    assert_eq!(report["refusal"]["broke"], "total");
    assert_eq!(report["refusal"]["need"], total);
    assert_eq!(report["refusal"]["have"], total - 1);
    let nearest = report["refusal"]["nearest"].as_array().unwrap();
    assert!(!nearest.is_empty());
    for suggestion in nearest {
        let text = |key: &str| suggestion[key].to_string();
        let tried = good(&[
            "estimate",
            &config,
            "--json",
            "--memory",
            &budget,
            "--context",
            &text("context"),
            "--slots",
            &text("slots"),
            "--chunk",
            &text("prefill_chunk"),
            "--kv",
            suggestion["kv"].as_str().unwrap(),
        ]);
        assert_eq!(tried["verdict"], "fits");
        assert_eq!(tried["bytes"]["total"], suggestion["total"]);
    }
    let exactly = good(&["estimate", &config, "--json", "--memory", &total.to_string()]);
    assert_eq!(exactly["verdict"], "fits");
    // People get a table, with the term that broke it and what would fit.
    let table = run(&["estimate", &config, "--memory", "1MiB"]);
    assert_eq!(code(&table), 3);
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(text.contains("weights") && text.contains("refused (total)"), "{text}");
}

#[test]
fn the_environment_is_a_ceiling_too() {
    let config = data("configs/smollm2-135m.json").display().to_string();
    let with = |variable: &str, args: &[&str]| {
        plimsoll()
            .env("PLIMSOLL_MEMORY_LIMIT", variable)
            .args(["estimate", &config, "--json"])
            .args(args)
            .output()
    };
    let report = document(&with("4GiB", &[]).unwrap());
    assert_eq!(report["budget"]["bytes"], 4u64 << 30);
    assert_eq!(report["budget"]["source"], "environment PLIMSOLL_MEMORY_LIMIT");
    let report = document(&with("4GiB", &["--memory", "2GiB"]).unwrap());
    assert_eq!(report["budget"]["bytes"], 2u64 << 30);
    // A limit of nothing is no limit, whatever another setting says.
    for (text, args) in [("0", &["--memory", "2GiB"][..]), ("lots", &[])] {
        let output = with(text, args).unwrap();
        assert_eq!(code(&output), 2, "{text}");
        assert!(stderr(&output).contains("PLIMSOLL_MEMORY_LIMIT"), "{}", stderr(&output));
        assert_eq!(document(&output)["error"]["exit_code"], 2);
    }
}

#[test]
fn what_cannot_be_priced_is_4() {
    let folder = scratch("unknown");
    let cases = [
        ("gptj.json", r#"{"model_type": "gptj", "n_layer": 2}"#, "gptj"),
        ("sparse.json", r#"{"model_type": "llama", "hidden_size": 64}"#, "expected"),
    ];
    for (name, text, named) in cases {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        let output = run(&["estimate", path.to_str().unwrap(), "--json"]);
        assert_eq!(code(&output), 4, "{name}: {}", stderr(&output));
        assert!(stderr(&output).contains(named), "{}", stderr(&output));
        assert_eq!(document(&output)["verdict"], "cannot_price");
    }
}

#[test]
fn a_bad_file_is_5() {
    let folder = scratch("bad");
    let whole = std::fs::read(data("golden/gguf_llama/model.gguf")).unwrap();
    let files: [(&str, &[u8]); 4] = [
        ("cut.gguf", &whole[..whole.len() / 2]),
        ("short.gguf", &whole[..7]),
        ("text.gguf", b"GGUF is not what this is"),
        ("config.json", b"{\"model_type\": "),
    ];
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        let path = path.to_str().unwrap();
        for args in [vec!["inspect", path], vec!["estimate", path], vec!["run", path, "-p", "x"]] {
            let output = run(&args);
            assert_eq!(code(&output), 5, "{args:?}: {}", stderr(&output));
            assert!(output.stdout.is_empty());
        }
    }
    assert_eq!(code(&run(&["inspect", folder.join("nothing.gguf").to_str().unwrap()])), 5);
    let no_text = run(&["perplexity", &golden(), "--file", "/no/such/text"]);
    assert_eq!(code(&no_text), 5, "{}", stderr(&no_text));
}

#[test]
fn an_adapter_that_is_not_there_is_6() {
    let output = run(&["logits", &golden(), "--ids", "1", "--out", "x", "--adapter", "no such adapter"]);
    assert_eq!(code(&output), 6);
    assert!(stderr(&output).contains("no such adapter"), "{}", stderr(&output));
}

#[test]
fn devices_and_checkpoints_are_described() {
    let devices = good(&["devices", "--json"]);
    for device in devices["adapters"].as_array().unwrap() {
        assert!(device["adapter"]["limits"]["max_buffer_size"].as_u64().unwrap() > 0);
        assert!(device["profile"]["tuning"].is_object());
    }
    assert_eq!(code(&run(&["devices"])), 0);
    let gguf = data("golden/gguf_llama/model.gguf").display().to_string();
    let about = good(&["inspect", &gguf, "--json"]);
    assert_eq!(about["architecture"], "llama");
    assert_eq!(about["model"]["layers"], 3);
    let tensors = about["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(about["checkpoint_bytes"], bytes);
    assert_eq!(code(&run(&["inspect", &gguf, "-v"])), 0);
    let said = good(&["inspect", &speaking("inspect"), "--json"]);
    assert_eq!(said["tokenizer"]["adds_bos"], true);
    assert!(said["chat_template"]["source"].as_str().unwrap().contains("[assistant]"));
}

#[test]
fn a_prompt_is_continued_alike_however_it_is_asked() {
    let model = speaking("run");
    let common = ["--kv", "f32", "-n", "12", "--ignore-eos", "--context", "64"];
    let ask = |more: &[&str]| run(&[&["run", model.as_str()], &common[..], more].concat());
    let plain = ask(&["-p", "Hello there", "-v"]);
    assert_eq!(code(&plain), 0, "{}", stderr(&plain));
    for word in ["weights", "kv", "total", "budget", "Hello there"] {
        assert!(stderr(&plain).contains(word), "the admitted plan: {}", stderr(&plain));
    }
    let output = ask(&["-p", "Hello there", "--json", "--chunk", "4"]);
    let whole = document(&output);
    assert_eq!(format!("{}\n", whole["text"].as_str().unwrap()), String::from_utf8_lossy(&plain.stdout));
    assert_eq!(whole["prompt_ids"].as_array().unwrap().len(), 12, "BOS and eleven characters");
    assert_eq!(whole["prompt_ids"][0], 1);
    assert_eq!(whole["token_ids"].as_array().unwrap().len(), 12);
    assert_eq!(whole["finish"], "length");
    assert_eq!(whole["bytes"]["total"], whole["allocated"]["bytes"]);

    let path = PathBuf::from(&model).join("prompt.txt");
    std::fs::write(&path, "Hello there").unwrap();
    assert_eq!(ask(&["--file", path.to_str().unwrap()]).stdout, plain.stdout);
    let mut piped = plimsoll();
    piped.args(["run", model.as_str()]).args(common).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"Hello there").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, plain.stdout);

    // A token that is none of the model's ends nothing, so that asking for it is a mistake.
    for (unknown, verb) in [("999999", "run"), ("4294967295", "run"), ("999999", "chat")] {
        let output = run(&[verb, &model, "--stop-token", "1", "--stop-token", unknown]);
        assert_eq!(code(&output), 2, "{verb}: {}", stderr(&output));
        let said = format!("stop token {unknown}: the vocabulary has ");
        assert!(stderr(&output).contains(&said), "{}", stderr(&output));
        assert!(!stderr(&output).contains("refused"), "{}", stderr(&output));
    }
    // The first stop token that the answer holds ends it.
    let third = whole["token_ids"][3].to_string();
    let stopped = document(&ask(&["-p", "Hello there", "--json", "--stop-token", &third]));
    assert!(stopped["token_ids"].as_array().unwrap().len() <= 3);
    assert_eq!(stopped["finish"], "stop");
    let drawn = ["-p", "Hello there", "--json", "--temperature", "1.5", "--top-k", "40", "--seed", "3"];
    assert_eq!(document(&ask(&drawn))["token_ids"], document(&ask(&drawn))["token_ids"]);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_runs() {
    let model = speaking("refused");
    let small = run(&["run", &model, "-p", "x", "--memory", "100kB"]);
    assert_eq!(code(&small), 3);
    assert!(small.stdout.is_empty());
    let said = stderr(&small);
    assert!(said.contains("weights") && said.contains("flag --memory"), "{said}");
    assert_eq!(said.matches("the plan needs").count(), 1, "{said}");
    assert!(!said.contains("layers") && !said.contains("saves"), "the estimate has its own verb: {said}");
    let report = run(&["run", &model, "-p", "x", "--memory", "100kB", "--json"]);
    assert_eq!((code(&report), &document(&report)["verdict"]), (3, &json!("refused")));
    let long = run(&["run", &model, "-p", "0123456789", "-n", "30", "--context", "32"]);
    assert_eq!(code(&long), 3);
    assert!(stderr(&long).contains("11 prompt tokens and 30 new ones make 41"), "{}", stderr(&long));
    let insisted = good(&[
        "run",
        &model,
        "-p",
        "x",
        "-n",
        "1",
        "--memory",
        "100kB",
        "--context",
        "32",
        "--insist",
        "--json",
    ]);
    assert_eq!(insisted["overridden"], true);
}
#[test]
fn nobody_reading_is_no_fault() {
    let model = speaking("pipe");
    for args in [vec!["run", &model, "-p", "x", "-n", "40", "--ignore-eos"], vec!["inspect", &model, "-v"]] {
        let mut child = plimsoll().args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    }
}
