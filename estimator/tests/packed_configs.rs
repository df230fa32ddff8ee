//! Configurations of packed weights: priced packed, priced plain with a word why, or not priced. Never plain in silence.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::{Checkpoint, Registry};
use serde_json::{Value, json};
use std::process::Command;

/// A small dense model that says this of its weights.
fn dense(key: &str, block: &Value) -> Value {
    let mut config = json!({
        "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "max_position_embeddings": 2048, "torch_dtype": "bfloat16"
    });
    config[key] = block.clone();
    config
}

/// Exit code and document of an estimate.
fn estimate(id: &str, config: &Value) -> (i32, Value) {
    let path = std::env::temp_dir().join(format!("plimsoll-packed-{}-{id}.json", std::process::id()));
    std::fs::write(&path, config.to_string()).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate")).arg(&path).arg("--json").output().unwrap();
    std::fs::remove_file(&path).unwrap();
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
}

fn group(targets: Value) -> Value {
    json!({"targets": targets, "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}})
}

#[test]
fn what_says_not_how_weights_are_stored_cannot_be_priced() {
    let key = "quantization_config";
    let int4 = json!({"targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}});
    for (id, key, block, said) in [
        ("modelopt", key, json!({"quant_method": "modelopt"}), "quant_algo"),
        (
            "modelopt-groups",
            key,
            json!({"quant_method": "modelopt", "config_groups": {"group_0": group(json!(["Linear"]))}}),
            "quant_algo",
        ),
        (
            "modelopt-mixed",
            key,
            json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"transformer.h.0.mlp": {"quant_algo": "FP8"}}}),
            "packs none",
        ),
        ("mxfp4", key, json!({"quant_method": "mxfp4"}), "packs none"),
        (
            "unmatched",
            key,
            json!({"quant_method": "compressed-tensors",
            "config_groups": {"group_0": group(json!(["re:.*block_sparse_moe.*"]))}}),
            "packs none",
        ),
        (
            "class",
            key,
            json!({"quant_method": "compressed-tensors",
            "config_groups": {"group_0": group(json!(["MyLinear"]))}}),
            "packs none",
        ),
        (
            "no-groups",
            key,
            json!({"quant_method": "compressed-tensors", "config_groups": {}}),
            "config_groups",
        ),
        (
            "null-groups",
            key,
            json!({"quant_method": "compressed-tensors", "config_groups": null}),
            "config_groups",
        ),
        (
            "no-targets",
            key,
            json!({"quant_method": "compressed-tensors",
            "config_groups": {"group_0": group(json!([]))}}),
            "targets",
        ),
        (
            "int4",
            key,
            json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": int4.clone()}}),
            "config_groups.group_0",
        ),
        (
            "sparse",
            key,
            json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"},
            "config_groups": {"group_0": group(json!(["Linear"]))}}),
            "sparsity_config",
        ),
        (
            "old-key",
            "compression_config",
            json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": int4}}),
            "compression_config",
        ),
        ("fp8", key, json!({"quant_method": "fp8", "activation_scheme": "dynamic"}), "fp8"),
        ("fbgemm", key, json!({"quant_method": "fbgemm_fp8"}), "fbgemm_fp8"),
        ("awq", key, json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true}), "awq"),
        (
            "gptq",
            key,
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true}),
            "gptq",
        ),
        (
            "bnb",
            key,
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}),
            "bitsandbytes",
        ),
        ("bnb-alone", key, json!({"load_in_8bit": true}), "unstated"),
        ("torchao", key, json!({"quant_method": "torchao", "quant_type": "int4_weight_only"}), "torchao"),
        ("quark", key, json!({"quant_method": "quark"}), "quark"),
        ("empty", key, json!({}), "unstated"),
        ("mlx-size", "quantization", json!({"group_size": 64}), "unstated"),
    ] {
        let (code, document) = estimate(id, &dense(key, &block));
        assert_eq!(code, 4, "{id}: {document}");
        assert_eq!(document["verdict"], "cannot_price", "{id}");
        let message = document["error"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{id}: {message}");
    }
}

#[test]
fn what_packs_nothing_by_its_own_word_is_priced_plain_and_says_so() {
    for (id, key, block) in [
        (
            "kv-alone",
            "quantization_config",
            json!({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}),
        ),
        ("null", "quantization_config", json!({"quant_method": "modelopt", "quant_algo": null})),
        (
            "ct-kv",
            "quantization_config",
            json!({"quant_method": "compressed-tensors", "config_groups": {},
            "kv_cache_scheme": {"num_bits": 8, "type": "float"}}),
        ),
        // Rows of 64 and 128 values are no groups of 128 each, and MLX packs no half.
        (
            "ragged",
            "quantization",
            json!({"bits": 4, "group_size": 128, "model.layers.0.mlp.down_proj": false,
            "model.layers.1.mlp.down_proj": false}),
        ),
    ] {
        let (code, document) = estimate(id, &dense(key, &block));
        assert_eq!(code, 0, "{id}: {document}");
        let notes = document["model"]["notes"].as_array().unwrap();
        let told =
            |note: &&Value| note.as_str().is_some_and(|n| n.contains(key) && n.contains("priced plain"));
        assert_eq!(notes.iter().filter(told).count(), 1, "{id}: {notes:?}");
        let plain = estimate("plain", &dense("unused", &Value::Null)).1;
        assert_eq!(document["bytes"]["weights"], plain["bytes"]["weights"], "{id}");
    }
}

#[test]
fn a_group_of_nothing_beside_others_is_told() {
    let nvfp4 = json!({"targets": ["re:.*block_sparse_moe.*"],
        "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}});
    let groups = |more: Option<&Value>| {
        let mut groups = json!({"group_0": group(json!(["Linear"]))});
        groups["group_1"] = more.cloned().unwrap_or(Value::Null);
        groups.as_object_mut().unwrap().retain(|_, group| !group.is_null());
        dense("quantization_config", &json!({"quant_method": "compressed-tensors", "config_groups": groups}))
    };
    let notes = |config: &Value| {
        let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "groups").unwrap();
        Registry::standard().build(&checkpoint).unwrap().notes
    };
    assert_eq!(notes(&groups(None)), Vec::<String>::new());
    let told = notes(&groups(Some(&nvfp4)));
    assert!(told.iter().any(|n| n.contains("nvfp4") && n.contains("does not have")), "{told:?}");
}

/// What the blocks above become where they are understood: fewer bytes than plain.
#[test]
fn what_packs_something_is_priced_packed() {
    let weights = |id: &str, key: &str, block: Value| {
        let (code, document) = estimate(id, &dense(key, &block));
        assert_eq!(code, 0, "{id}: {document}");
        document["bytes"]["weights"].as_u64().unwrap()
    };
    let plain = weights("none", "unused", Value::Null);
    for (id, key, block) in [
        ("p-modelopt", "quantization_config", json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})),
        (
            "p-groups",
            "compression_config",
            json!({"quant_method": "compressed-tensors",
            "config_groups": {"group_0": group(json!(["Linear"]))}}),
        ),
        ("p-fp8", "quantization_config", json!({"quant_method": "fp8", "weight_block_size": [128, 128]})),
        ("p-mlx", "quantization", json!({"bits": 4, "group_size": 64})),
    ] {
        assert!(weights(id, key, block) < plain, "{id}");
    }
}
