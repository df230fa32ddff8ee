//! The command line against weights, numbers, texts and places that are not what they should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::*;
use serde_json::Value;
use std::path::Path;
use support::Tensors;

/// A copy of a speaking model with some values of a tensor replaced.
fn spoilt(name: &str, tensor: &str, all: bool, value: f32) -> String {
    let folder = speaking(name);
    let path = Path::new(&folder).join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let parsed: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let at = |i: usize| 8 + header + parsed[tensor]["data_offsets"][i].as_u64().unwrap() as usize;
    let (from, to) = (at(0), at(1));
    let from = if all { from } else { to - 4 };
    for place in bytes[from..to].chunks_mut(4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    folder
}

const CHOICES: [&[&str]; 3] = [&[], &["--temperature", "1", "--top-k", "5"], &["--temperature", "1"]];

#[test]
fn weights_that_are_not_numbers_are_named_and_give_no_token() {
    for (i, (tensor, value)) in [
        ("model.norm.weight", f32::NAN),
        ("lm_head.weight", f32::NEG_INFINITY),
        ("model.layers.0.self_attn.q_proj.weight", f32::NAN),
        ("model.layers.1.mlp.down_proj.weight", f32::INFINITY),
    ]
    .into_iter()
    .enumerate()
    {
        let model = spoilt(&format!("spoilt-{i}"), tensor, false, value);
        let output = run(&["run", &model, "-p", "Hello", "--context", "32"]);
        assert_eq!(code(&output), 5, "{tensor}: {}", stderr(&output));
        assert!(output.stdout.is_empty() && stderr(&output).contains(tensor), "{}", stderr(&output));
    }
}

#[test]
fn weights_that_overflow_give_no_token() {
    let model = spoilt("overflow", "model.norm.weight", true, 1e38);
    for choice in CHOICES {
        for more in [&[][..], &["--no-subgroups"]] {
            let output = run(&[&["run", &model, "-p", "Hello", "--context", "32"], choice, more].concat());
            assert_eq!(code(&output), 6, "{choice:?}: {}", stderr(&output));
            assert!(stderr(&output).contains("finite"), "{}", stderr(&output));
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "", "{choice:?}");
        }
    }
    let out = Path::new(&model).join("out.safetensors");
    let output = run(&["logits", &model, "--prompt", "Hello", "--out", out.to_str().unwrap()]);
    assert_eq!((code(&output), out.exists()), (6, false), "{}", stderr(&output));
}

#[test]
fn numbers_without_measure_are_refused_or_obeyed() {
    let model = speaking("measure");
    let out = Path::new(&model).join("out.safetensors").display().to_string();
    let most = u32::MAX.to_string();
    for args in [
        vec!["estimate", &model, "--context", &most],
        vec!["run", &model, "-p", "x", "--context", &most, "--slots", &most, "--chunk", &most],
        vec!["logits", &model, "--ids", "1", "--generate", &most, "--out", &out],
    ] {
        let output = run(&args);
        assert_eq!(code(&output), 3, "{args:?}: {}", stderr(&output));
    }
    for flag in ["--temperature", "--min-p", "--repeat-penalty"] {
        let output = run(&["run", &model, "-p", "x", flag, "-1"]);
        assert_eq!(code(&output), 2);
        assert!(stderr(&output).contains(flag) && stderr(&output).contains("got -1"), "{}", stderr(&output));
    }
    let mild = ["--context", "32", "-n", "4", "--temperature", "1", "--repeat-penalty", "1e-45", "--json"];
    good(&[&["run", &model, "-p", "x"], &mild[..]].concat());
}

#[test]
fn a_prompt_that_is_no_text_is_5() {
    let model = speaking("no-text");
    let path = Path::new(&model).join("bytes");
    std::fs::write(&path, [0xFF, 0xFE, b'a']).unwrap();
    let named = run(&["run", &model, "--file", path.to_str().unwrap()]);
    assert_eq!(code(&named), 5, "{}", stderr(&named));
    for verb in ["run", "chat"] {
        let mut piped = plimsoll();
        piped.args([verb, &model]).stdin(std::fs::File::open(&path).unwrap());
        let output = piped.output().unwrap();
        assert_eq!(code(&output), 5, "{verb}: {}", stderr(&output));
        assert!(stderr(&output).contains("UTF-8"), "{}", stderr(&output));
    }
}

#[cfg(unix)]
#[test]
fn what_is_written_goes_where_it_was_told() {
    let folder = scratch("where");
    let (file, link) = (folder.join("file"), folder.join("link"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let ask = |out: &str| run(&["logits", &golden(), "--ids", "1", "--out", out]);
    assert_eq!(code(&ask(link.to_str().unwrap())), 0);
    // The link is still one, and its file has the tensors: a device would still be a device.
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(Tensors::read(&file).rows("logits").len(), 1);
    let nowhere = ask(folder.join("no/such/folder").to_str().unwrap());
    assert_eq!(code(&nowhere), 2);
    assert!(stderr(&nowhere).contains("cannot write"), "{}", stderr(&nowhere));
}

#[test]
fn nothing_is_written_over_a_models_own_files() {
    let model = speaking("own");
    let html = |file: &str| run(&["bench", &model, "--profile", "--html", file]);
    let logits = |file: &str| run(&["logits", &model, "--ids", "1", "--out", file]);
    let log = |file: &str| run(&["probe", &model, "--log", file]);
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let file = Path::new(&model).join(name);
        let before = std::fs::read(&file).unwrap();
        let path = file.to_str().unwrap();
        for (flag, output) in [("--out", logits(path)), ("--html", html(path)), ("--log", log(path))] {
            assert_eq!(code(&output), 2, "{flag} {name}: {}", stderr(&output));
            assert!(stderr(&output).contains(flag), "{name}: {}", stderr(&output));
        }
        assert!(std::fs::read(&file).unwrap() == before, "{name}");
    }
}

#[test]
fn lengths_and_documents_that_are_none_are_explained() {
    let model = speaking("none");
    for flag in ["--lengths", "-p"] {
        let output = run(&["bench", &model, flag, "4294967295"]);
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        for part in ["fewer than 4,294,967,295 tokens", "got 4,294,967,295 + 64"] {
            assert!(stderr(&output).contains(part), "{flag}: {}", stderr(&output));
        }
    }
    let path = Path::new(&model).join("documents.txt");
    for (text, reason) in
        [("=====\n=====\n", "no document"), ("", "no document"), ("=====", "lines that read \"=====\"")]
    {
        std::fs::write(&path, text).unwrap();
        let output = run(&["perplexity", &model, "--documents", path.to_str().unwrap()]);
        assert_eq!(code(&output), 5, "{text:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{text:?}: {}", stderr(&output));
    }
    std::fs::write(&path, "a").unwrap();
    let output = run(&["perplexity", &model, "--file", path.to_str().unwrap(), "--window", "16"]);
    assert_eq!(code(&output), 5);
    assert!(stderr(&output).contains("one window of 16"), "{}", stderr(&output));
}

/// A stack that no system can give makes every thread fail to start, as a limit on processes or on addresses does.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_started_are_an_error() {
    let mut command = plimsoll();
    command.env("RUST_MIN_STACK", (1u64 << 50).to_string());
    let output = command.args(["run", &speaking("threads"), "-p", "a", "-n", "1"]).output().unwrap();
    assert_eq!(code(&output), 6, "{}", stderr(&output));
    assert!(stderr(&output).contains("no threads to work with"), "{}", stderr(&output));
}

/// What never ends is not read to its end: no more of a prompt is than could fit, and none of it is tokenized then.
#[cfg(target_os = "linux")]
#[test]
fn texts_that_do_not_end_are_refused() {
    use std::fs::File;
    use std::process::Stdio;

    let model = speaking("hostile-endless");
    let input = |path: &str, args: &[&str]| {
        let input = Stdio::from(File::open(path).unwrap());
        plimsoll().args(args).stdin(input).output().unwrap()
    };
    let small = ["--context", "64", "-n", "2"];
    for (args, expected, says) in [
        (vec!["run", &model, "--file", "/dev/zero"], 3, "more than 1,048,576 bytes"),
        (vec!["run", &model, "--file", "/dev/full"], 3, "a context of 64"),
        (vec!["run", &model, "--chat"], 3, "more than 1,048,576 bytes"),
        (vec!["run", &model], 3, "more than 1,048,576 bytes"),
        (vec!["chat", &model], 3, "more than 1,048,576 bytes"),
    ] {
        let output = input("/dev/zero", &[&args[..], &small].concat());
        assert_eq!(code(&output), expected, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
    let output = run(&["perplexity", &model, "--file", "/dev/zero", "--window", "16"]);
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    assert!(stderr(&output).contains("at most 67108864 bytes"), "{}", stderr(&output));

    // A line that is too long is no end of a conversation.
    let lines = scratch("hostile-lines").join("lines");
    std::fs::write(&lines, format!("{}\nHi\n", "a".repeat((1 << 20) + 1))).unwrap();
    let output = input(lines.to_str().unwrap(), &["chat", &model, "--json", "--context", "64", "-n", "2"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let found = document(&output);
    assert_eq!(found["failed"].as_array().map(Vec::len), Some(1), "{found}");
    assert!(found["failed"][0]["error"].as_str().unwrap().contains("more than 1,048,576 bytes"), "{found}");
    assert_eq!(found["messages"][0]["content"], "Hi", "{found}");
}
