//! What is wrong with a value in a file is said with the file and the key.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("named-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Ends with one of the codes for bad input, and names the file and the key.
fn names(model: &Path, file: &Path, key: &str) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate")).arg(model).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(4 | 5)), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("{}: ", file.display())), "{} in {message}", file.display());
    assert!(message.contains(key), "{key} in {message}");
    assert_eq!(message.matches(file.to_str().unwrap()).count(), 1, "{message}");
}

fn config() -> Value {
    json!({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 128})
}

#[test]
fn values_of_configurations() {
    let folder = folder("config");
    let file = folder.join("config.json");
    for (key, bad) in [
        ("num_hidden_layers", json!(-1)),
        ("vocab_size", Value::Null),
        ("torch_dtype", json!(5)),
        ("model_type", json!(5)),
        ("rope_theta", json!("fast")),
        ("hidden_act", json!("softsign")),
        ("quantization_config", json!({"quant_method": "bitnet"})),
        ("quantization_config", json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 7})),
    ] {
        let mut config = config();
        config[key] = bad;
        std::fs::write(&file, config.to_string()).unwrap();
        names(&file, &file, key);
        names(&folder, &file, key);
    }
    std::fs::write(&file, config().to_string()).unwrap();
    let second = folder.join("hf_quant_config.json");
    std::fs::write(&second, r#"{"quantization": {"quant_algo": "NVFP4", "group_size": 7}}"#).unwrap();
    names(&folder, &second, "group_size");
    std::fs::remove_file(second).unwrap();
    let index = folder.join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"lm_head.weight": "../a.safetensors"}}"#).unwrap();
    names(&folder, &index, "weight_map");
    names(&index, &index, "weight_map");
    // The index is in order, and the configuration is not.
    std::fs::write(&index, r#"{"weight_map": {"lm_head.weight": "a.safetensors"}}"#).unwrap();
    let mut bad = config();
    bad["num_attention_heads"] = json!(0);
    std::fs::write(&file, bad.to_string()).unwrap();
    names(&index, &file, "num_attention_heads");
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A GGUF file without tensors that has these texts for values.
fn gguf(values: &[(&str, &str)]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        text(&mut out, key);
        out.extend(8u32.to_le_bytes());
        text(&mut out, value);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out
}

#[test]
fn values_of_ggufs() {
    let folder = folder("gguf");
    let file = folder.join("m.gguf");
    std::fs::write(&file, gguf(&[("general.architecture", "llama"), ("llama.embedding_length", "many")]))
        .unwrap();
    names(&file, &file, "llama.embedding_length");
    std::fs::write(&file, gguf(&[("general.architecture", "llama"), ("split.count", "two")])).unwrap();
    names(&file, &file, "split.count");
    names(&folder, &folder, "split.count");
}
