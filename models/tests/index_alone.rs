//! An index whose shards are not here is priced with the configuration beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::ModelError;
use plimsoll_models::checkpoint::{Checkpoint, Source};
use plimsoll_models::zoo::Registry;
use serde_json::{Value, json};
use std::path::PathBuf;

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
const INDEX: &str = r#"{"metadata": {"total_size": 12345}, "weight_map": {
    "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.input_layernorm.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.q_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.k_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.v_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.o_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.post_attention_layernorm.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.mlp.gate_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.mlp.up_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.mlp.down_proj.weight": "model-00001-of-00002.safetensors",
    "model.norm.weight": "model-00002-of-00002.safetensors",
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
        assert_eq!(checkpoint.lists("language_model.norm.weight"), Some(false));
        let bare = Checkpoint::from_config_bytes(CONFIG.as_bytes(), "bare").unwrap();
        let registry = Registry::standard();
        let (model, expected) = (registry.build(&checkpoint).unwrap(), registry.build(&bare).unwrap());
        assert_eq!(model.parameters(), expected.parameters());
        assert_eq!(bare.lists("lm_head.weight"), None);
    }
    std::fs::remove_dir_all(path).unwrap();
}

/// Names are facts of the checkpoint: the same ones are missing or too many as with the shards.
#[test]
fn names_are_held_against_what_is_priced() {
    let build = |test: &str, config: &Value, index: &Value| {
        let path = directory(test, &[("config.json", &config.to_string()), (NAME, &index.to_string())]);
        let built = Registry::standard().build(&Checkpoint::open(&path).unwrap());
        std::fs::remove_dir_all(path).unwrap();
        built
    };
    let (config, index): (Value, Value) =
        (serde_json::from_str(CONFIG).unwrap(), serde_json::from_str(INDEX).unwrap());
    for name in index["weight_map"].as_object().unwrap().keys() {
        let mut less = index.clone();
        less["weight_map"].as_object_mut().unwrap().remove(name);
        let error = build("less", &config, &less).unwrap_err();
        assert!(matches!(&error, ModelError::MissingTensor { name: n, .. } if n == name), "{error}");
    }
    for name in [
        "model.layers.0.evil",
        "model.layers.1.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "lm_head.bias",
    ] {
        let mut more = index.clone();
        more["weight_map"][name] = json!("a.safetensors");
        let error = build("more", &config, &more).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    // What is beside the text model is told; what packers note and rotations are nothing.
    let mut more = index.clone();
    more["weight_map"]["visual.blocks.0.evil"] = json!("a.safetensors");
    more["weight_map"]["audio.x"] = json!("a.safetensors");
    more["weight_map"]["model.layers.0.self_attn.rotary_emb.inv_freq"] = json!("a.safetensors");
    let notes = build("beside", &config, &more).unwrap().notes.join("\n");
    assert!(
        notes.contains("reads images is left out") && notes.contains("\"audio.x\" (1 in all)"),
        "{notes}"
    );
    // A file of another model altogether.
    let other = json!({"weight_map": {"foo": "a.safetensors"}});
    assert!(matches!(build("other", &config, &other), Err(ModelError::MissingTensor { .. })));
    // A tied head is not missed, and the names of wrappers are found.
    let mut tied = config.clone();
    tied["tie_word_embeddings"] = json!(true);
    let mut headless = index.clone();
    headless["weight_map"].as_object_mut().unwrap().remove("lm_head.weight");
    build("tied", &tied, &headless).unwrap();
    for (size, told) in [(json!("x"), true), (json!(-1), true), (json!(1e30), true), (json!(5), false)] {
        let mut sized = index.clone();
        sized["metadata"]["total_size"] = size.clone();
        let notes = build("sized", &config, &sized).unwrap().notes.join("\n");
        assert_eq!(notes.contains("is no number of bytes"), told, "{size}: {notes}");
    }
}

/// A mixture whose experts are listed one by one, or in stacks, or packed.
#[test]
fn experts_are_found_under_the_names_that_are_listed() {
    let mixture = |quantized: bool| {
        let mut config = json!({"model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
            "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 128, "tie_word_embeddings": true});
        if quantized {
            config["quantization"] = json!({"group_size": 64, "bits": 4});
        }
        config
    };
    let plain = ["embed_tokens", "norm"].map(|name| format!("model.{name}.weight"));
    let parts = ["input_layernorm", "post_attention_layernorm", "mlp.gate"];
    let attention = ["q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"];
    let names = parts.map(str::to_owned).into_iter().chain(attention.map(|a| format!("self_attn.{a}")));
    let mut outer: Vec<String> = plain.into_iter().collect();
    outer.extend(names.map(|name| format!("model.layers.0.{name}.weight")));
    let gate_up_down = ["gate_proj", "up_proj", "down_proj"];
    let separate =
        (0..4).flat_map(|e| gate_up_down.map(|p| format!("model.layers.0.mlp.experts.{e}.{p}.weight")));
    let stacked = ["gate_up_proj", "down_proj"].map(|p| format!("model.layers.0.mlp.experts.{p}"));
    let switch = gate_up_down.map(|p| format!("model.layers.0.mlp.switch_mlp.{p}.weight"));
    let cases: [(bool, Vec<String>); 4] = [
        (false, separate.collect()),
        (false, stacked.to_vec()),
        (false, switch.to_vec()),
        (true, switch.to_vec()),
    ];
    for (quantized, experts) in cases {
        let mut names: Vec<String> = outer.iter().chain(&experts).cloned().collect();
        if quantized {
            let packed =
                names.iter().filter(|n| !n.contains("norm")).filter_map(|n| n.strip_suffix(".weight"));
            let beside: Vec<String> =
                packed.flat_map(|n| [format!("{n}.scales"), format!("{n}.biases")]).collect();
            names.extend(beside);
        }
        let build = |names: &[String]| {
            let map: serde_json::Map<String, Value> =
                names.iter().map(|n| (n.clone(), json!("a.safetensors"))).collect();
            let index = json!({"weight_map": map}).to_string();
            let path =
                directory("experts", &[("config.json", &mixture(quantized).to_string()), (NAME, &index)]);
            let built = Registry::standard().build(&Checkpoint::open(&path).unwrap());
            std::fs::remove_dir_all(path).unwrap();
            built
        };
        let model = build(&names).unwrap_or_else(|e| panic!("{e}: {names:?}"));
        assert!(!model.notes.iter().any(|n| n.contains("left out")), "{:?}", model.notes);
        for gone in &experts {
            let less: Vec<String> = names.iter().filter(|n| *n != gone).cloned().collect();
            assert!(build(&less).is_err(), "without {gone}");
        }
    }
}

#[test]
fn some_of_the_shards_is_an_error_that_names_the_missing_one() {
    let header = r#"{"model.embed_tokens.weight":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}"#;
    let mut shard = (header.len() as u64).to_le_bytes().to_vec();
    shard.extend_from_slice(header.as_bytes());
    shard.extend_from_slice(&[0, 0]);
    let index = r#"{"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors"}}"#;
    let path = directory("some", &[("config.json", CONFIG), (NAME, index)]);
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

/// Every small checkpoint, of every family and packing, by its configuration and the names of its tensors.
#[test]
fn names_of_whole_checkpoints_are_found() {
    let golden = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/golden"));
    let mut read = 0;
    for folder in std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()) {
        let (config, weights) = (folder.join("config.json"), folder.join("model.safetensors"));
        if !config.is_file() || !weights.is_file() {
            continue;
        }
        let whole = Checkpoint::open(&folder).unwrap();
        let Ok(expected) = Registry::standard().build(&whole) else { continue };
        let map: serde_json::Map<String, Value> =
            whole.tensors().map(|t| (t.name.clone(), json!("a.safetensors"))).collect();
        let index = json!({"metadata": {"total_size": whole.checkpoint_bytes()}, "weight_map": map});
        let name = folder.file_name().unwrap().to_str().unwrap();
        let (config, index) = (std::fs::read_to_string(config).unwrap(), index.to_string());
        let path = directory(name, &[("config.json", config.as_str()), (NAME, index.as_str())]);
        let second = "hf_quant_config.json";
        if folder.join(second).is_file() {
            std::fs::copy(folder.join(second), path.join(second)).unwrap();
        }
        let alone = Registry::standard().build(&Checkpoint::open(&path).unwrap());
        std::fs::remove_dir_all(path).unwrap();
        let alone = alone.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(alone.parameters(), expected.parameters(), "{name}");
        read += 1;
    }
    assert!(read > 30, "{read}");
}
