//! What tests of the command line share: running it, its streams, and a tiny random model that speaks: one token per
//! character.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

pub mod probe;

use crate::support::data;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub fn plimsoll() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command
        .env_remove("PLIMSOLL_MEMORY_LIMIT")
        .env_remove("PLIMSOLL_RESERVE")
        .env_remove("PLIMSOLL_CACHE_LIMIT")
        .env_remove("PLIMSOLL_ADAPTER")
        // Neither what the hub said nor what somebody tuned here.
        .env("PLIMSOLL_CACHE", "")
        .stdin(Stdio::null());
    command
}

pub fn run(args: &[&str]) -> Output {
    plimsoll().args(args).output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The exit code; never a panic.
pub fn code(output: &Output) -> i32 {
    assert!(!stderr(output).contains("panicked"), "{}", stderr(output));
    output.status.code().unwrap()
}

/// Standard output, which is one JSON document.
pub fn document(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}, {}", stderr(output)))
}

pub fn good(args: &[&str]) -> Value {
    let output = run(args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    document(&output)
}

pub fn golden() -> String {
    data("golden/llama").display().to_string()
}

/// A folder of its own for a test.
pub fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The golden llama with a tokenizer: a token for each printable character, `<s>` before every text.
pub fn speaking(name: &str) -> String {
    let folder = scratch(name);
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(data("golden/llama").join(file), folder.join(file)).unwrap();
    }
    let mut texts = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    texts.extend(('!'..='~').chain(['Ġ', 'Ċ']).map(String::from));
    let texts: Vec<String> = (0..256).map(|i| texts.get(i).cloned().unwrap_or(format!("x{i}"))).collect();
    let vocab: serde_json::Map<String, Value> =
        texts.iter().cloned().zip((0..256).map(|i| json!(i))).collect();
    let special = |id: u32| {
        json!({"id": id, "content": texts[id as usize], "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(1), special(2)],
        "pre_tokenizer": level, "decoder": level,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let template =
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]";
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    folder.display().to_string()
}
