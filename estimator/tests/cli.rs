//! `plimsoll-estimate`, as people and scripts call it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/binary.rs"]
mod binary;

use binary::run;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn config(name: &str) -> String {
    format!("{}/../tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"))
}

/// The document of a call that ends with `code`.
fn document(args: &[&str], code: i32) -> Value {
    let output = run(&[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"))
}

fn number(document: &Value, pointer: &str) -> u64 {
    let found = document.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{pointer} in {document}"))
}

#[test]
fn keys_and_values_may_differ_and_the_bytes_follow_both() {
    let llama = config("llama-3.1-8b");
    let kv = |args: &[&str]| {
        let all = [&[llama.as_str(), "--context", "4096"], args].concat();
        number(&document(&all, 0), "/bytes/kv")
    };
    let cells = 4096 * 32 * 8;
    let row = |format: &str| match format {
        "f32" => 512,
        "f16" | "bf16" => 256,
        "q8_0" => 4 * 34,
        _ => 4 * 18,
    };
    for k in ["f32", "f16", "bf16", "q8_0", "q4_0"] {
        assert_eq!(kv(&["--kv", k]), cells * 2 * row(k), "{k}");
        for v in ["f16", "bf16", "q8_0", "q4_0"] {
            assert_eq!(kv(&["--kv-k", k, "--kv-v", v]), cells * (row(k) + row(v)), "{k}/{v}");
        }
    }
    // Half of a pair is enough, over what both are otherwise.
    assert_eq!(kv(&["--kv", "q8_0", "--kv-v", "f32"]), cells * (row("q8_0") + row("f32")));
    let report = document(&[&llama, "--kv-k", "q8_0"], 0);
    assert_eq!(report["geometry"]["kv"], "q8_0/f16");
    assert!(report["estimate_only"].as_str().unwrap().contains("q8_0"), "{report}");
    assert_eq!(document(&[&llama, "--kv", "q8_0"], 0)["estimate_only"], Value::Null);
}

#[test]
fn heads_that_are_no_whole_blocks_are_refused_by_format() {
    let folder = tempfile(
        r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}"#,
    );
    for format in ["q8_0", "q4_0"] {
        let refused = document(&[&folder, "--kv", format], 3);
        assert_eq!(refused["refusal"]["broke"], "kv_format");
        assert!(refused["refusal"]["reason"].as_str().unwrap().contains(format), "{refused}");
    }
}

/// A config.json in a folder of its own.
fn tempfile(text: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("estimate-{}-{next}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("config.json");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn snapshots_hold_states_and_windows_and_nothing_else() {
    // Full attention alone: pages are shared, a snapshot is nothing.
    let llama = document(&[&config("llama-3.1-8b"), "--snapshots", "8"], 0);
    assert_eq!(number(&llama, "/bytes/retained"), 0);
    // 48 delta layers.
    let qwen = document(&[&config("qwen3.5-27b"), "--snapshots", "32"], 0);
    assert_eq!(number(&qwen, "/bytes/retained"), 32 * 156_893_184);
    assert_eq!(number(&qwen, "/geometry/snapshots"), 32);
    // 15 windows of 512 tokens, one head of 256.
    let gemma = document(&[&config("gemma-3-270m"), "--snapshots", "2"], 0);
    assert_eq!(number(&gemma, "/bytes/retained"), 2 * 15 * 512 * 2 * 256 * 2);
    let without = document(&[&config("gemma-3-270m")], 0);
    assert_eq!(
        number(&gemma, "/bytes/total") - number(&without, "/bytes/total"),
        number(&gemma, "/bytes/retained")
    );
    let lever = gemma["levers"].as_array().unwrap().iter().find(|l| l["change"] == "snapshots 2 -> 0");
    assert_eq!(lever.unwrap()["saves"], gemma["bytes"]["retained"]);
}

#[test]
fn neighbours_take_from_the_budget_and_what_is_replaced_gives_to_a_reading_alone() {
    let (model, draft) = (config("gemma-3-12b-it"), config("gemma-3-270m"));
    let alone = document(&[&model], 0);
    let total = number(&alone, "/bytes/total");
    let small = number(&document(&[&draft], 0), "/bytes/total");
    let both = [model.as_str(), "--draft", &draft];
    let exactly = (total + small).to_string();
    let fits = document(&[both.as_slice(), &["--memory", &exactly]].concat(), 0);
    assert_eq!(fits["verdict"], "fits");
    assert_eq!(fits["others"]["here"][0]["role"], "draft");
    assert_eq!(number(&fits, "/others/here/0/total"), small);
    let less = (total + small - 1).to_string();
    let refused = document(&[both.as_slice(), &["--memory", &less]].concat(), 3);
    assert!(refused["budget"]["source"].as_str().unwrap().contains("gemma-3-270m"), "{refused}");
    assert_eq!(number(&refused, "/budget/bytes"), total - 1);
    // A ceiling is for everything together: nothing is added to it.
    let credited = [both.as_slice(), &["--memory", &less, "--replaces", "12GB"]].concat();
    assert_eq!(number(&document(&credited, 3), "/others/replaced/0/bytes"), 12_000_000_000);
    // So is what the table says that a device has.
    let device = |more: &[&str]| {
        document(&[&[model.as_str(), "--device", "4090", "--context", "1024"], more].concat(), 0)
    };
    let (plain, replacing) =
        (device(&["--weights", "q4_k_m"]), device(&["--weights", "q4_k_m", "--replaces", "12GB"]));
    assert_eq!(number(&plain, "/budget/bytes"), number(&replacing, "/budget/bytes"));
    // A model is replaced by its plan's price.
    let named = document(&[&model, "--replaces", &draft], 0);
    assert_eq!(number(&named, "/others/replaced/0/bytes"), small);
    assert_eq!(run(&[&model, "--replaces", "no such thing"]).status.code(), Some(2));
    assert_eq!(run(&[&model, "--with", "/nowhere/config.json"]).status.code(), Some(5));
}

#[test]
fn drafting_multiplies_states_alone() {
    let depth = |config: &str, depth: &str| {
        let report = document(&[config, "--slots", "4", "--draft-depth", depth], 0);
        (number(&report, "/bytes/recurrent"), number(&report, "/bytes/kv"))
    };
    let qwen = config("qwen3.5-27b");
    let (none, kv) = depth(&qwen, "0");
    assert_eq!(none, 4 * 156_893_184);
    for copies in [2, 6] {
        assert_eq!(depth(&qwen, &copies.to_string()), (none * (copies + 1), kv));
    }
    assert_eq!(depth(&config("llama-3.1-8b"), "6").0, 0);
}

#[test]
fn the_binary_knows_no_gpu() {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--locked",
            "-p",
            "plimsoll-estimator",
            "-e",
            "normal",
            "--prefix",
            "none",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.contains("plimsoll-models"), "{tree}");
    for crate_of_gpus in ["wgpu", "naga", "ash ", "metal", "windows "] {
        assert!(!tree.lines().any(|line| line.starts_with(crate_of_gpus)), "{crate_of_gpus} in\n{tree}");
    }
}

#[test]
fn a_format_that_nothing_has_is_a_contradiction() {
    let model = config("smollm2-135m");
    let both = run(&[&model, "--kv", "f16", "--kv-k", "q8_0", "--kv-v", "q8_0"]);
    let said = String::from_utf8_lossy(&both.stderr).into_owned();
    assert_eq!(both.status.code(), Some(2), "{said}");
    assert!(said.contains("--kv:") && said.contains("--kv-k"), "{said}");
    for args in [["--kv", "f16", "--kv-k", "q8_0"], ["--kv-k", "q8_0", "--kv-v", "q8_0"]] {
        assert_eq!(run(&[&[model.as_str()][..], &args[..]].concat()).status.code(), Some(0), "{args:?}");
    }
}
