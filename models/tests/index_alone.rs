//! An index whose shards are not here is priced with the configuration beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::checkpoint::{Checkpoint, Source};
use plimsoll_models::zoo::Registry;
use std::path::PathBuf;

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
const INDEX: &str = r#"{"metadata": {"total_size": 12345}, "weight_map": {
    "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
    "lm_head.weight": "model-00002-of-00002.safetensors"}}"#;
const NAME: &str = "model.safetensors.index.json";

fn directory(test: &str, files: &[(&str, &str)]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("plimsoll-index-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    for (name, text) in files {
        std::fs::write(path.join(name), text).unwrap();
    }
    path
}

#[test]
fn an_index_without_shards_is_priced() {
    let path = directory("none", &[("config.json", CONFIG), (NAME, INDEX)]);
    for opened in [path.clone(), path.join(NAME)] {
        let checkpoint = Checkpoint::open(&opened).unwrap();
        assert_eq!(checkpoint.source(), Source::Config);
        assert_eq!(checkpoint.stated_bytes(), Some(12345));
        assert_eq!(checkpoint.lists("lm_head.weight"), Some(true));
        assert_eq!(checkpoint.lists("model.norm.weight"), Some(false));
        assert_eq!(checkpoint.lists("language_model.norm.weight"), None);
        let bare = Checkpoint::from_config_bytes(CONFIG.as_bytes(), "bare").unwrap();
        let registry = Registry::standard();
        let (model, expected) = (registry.build(&checkpoint).unwrap(), registry.build(&bare).unwrap());
        assert_eq!(model.parameters(), expected.parameters());
    }
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn some_of_the_shards_is_an_error_that_names_the_missing_one() {
    let header = r#"{"model.embed_tokens.weight":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}"#;
    let mut shard = (header.len() as u64).to_le_bytes().to_vec();
    shard.extend_from_slice(header.as_bytes());
    shard.extend_from_slice(&[0, 0]);
    let path = directory("some", &[("config.json", CONFIG), (NAME, INDEX)]);
    std::fs::write(path.join("model-00001-of-00002.safetensors"), shard).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("model-00002-of-00002.safetensors") && error.contains("no such file"), "{error}");
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn an_index_without_a_configuration_says_what_is_missing() {
    let path = directory("alone", &[(NAME, INDEX)]);
    for opened in [path.clone(), path.join(NAME)] {
        let error = Checkpoint::open(&opened).unwrap_err().to_string();
        assert!(error.contains("config.json"), "{error}");
    }
    std::fs::remove_dir_all(path).unwrap();
}
