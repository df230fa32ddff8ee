//! Headers of families that are priced and not run: those with the published shapes are taken, others are not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use serde_json::{Value, json};

fn read(path: &str) -> Vec<u8> {
    let at = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&at).unwrap_or_else(|e| panic!("{at}: {e}"))
}

fn build(config: &[u8]) -> Result<Model, ModelError> {
    Registry::standard().build(&Checkpoint::from_config_bytes(config, "priced")?)
}

/// A safetensors file of zeros with these tensors.
fn safetensors(tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<u64>() * 2;
        header
            .insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + at as usize, 0);
    file
}

#[test]
fn headers_with_the_published_shapes_are_taken_and_others_are_not() {
    let small = |name: &str, changes: Value| {
        let mut config: Value =
            serde_json::from_slice(&read(&format!("tests/data/priced/{name}.json"))).unwrap();
        let place = if config.get("text_config").is_some() {
            config.get_mut("text_config").unwrap()
        } else {
            &mut config
        };
        for (key, value) in changes.as_object().unwrap() {
            place[key] = value.clone();
        }
        config.as_object_mut().unwrap().remove("vision_config");
        config
    };
    let base = |more: Value| {
        let mut sizes = json!({"hidden_size": 64, "vocab_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "num_hidden_layers": 2, "intermediate_size": 48});
        sizes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sizes
    };
    // Name, configuration, taps of convolutions, whether stacks are stored inputs by outputs.
    for (name, config, taps, transposed) in [
        ("mistral", small("mistral-7b-v0.3", base(json!({}))), 0, false),
        ("qwen2", small("qwen2.5-7b", base(json!({}))), 0, false),
        ("phi3", small("phi-4-mini", base(json!({}))), 0, false),
        (
            "llama4",
            small("llama-4-scout", base(json!({"intermediate_size_mlp": 80, "num_local_experts": 4}))),
            0,
            true,
        ),
        (
            "qwen3-vl-moe",
            small(
                "qwen3-vl-30b-a3b",
                base(json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40})),
            ),
            0,
            true,
        ),
        (
            "mistral4",
            small(
                "mistral-small-4-119b",
                base(json!({"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                    "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
                    "v_head_dim": 12})),
            ),
            0,
            false,
        ),
        (
            "granite",
            small(
                "granite-4.0-h-small",
                base(
                    json!({"layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
                    "shared_intermediate_size": 40, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}),
                ),
            ),
            4,
            false,
        ),
        (
            "lfm2",
            small("lfm2-1.2b", base(json!({"layer_types": ["conv", "full_attention"], "block_ff_dim": 96}))),
            3,
            false,
        ),
    ] {
        let model = build(config.to_string().as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut tensors: Vec<(String, Vec<u64>)> = Vec::new();
        for matrix in &model.matrices {
            let (experts, cols) = (u64::from(matrix.experts), u64::from(matrix.cols));
            let rows = u64::from(matrix.rows) / experts;
            let shape = match (experts, transposed) {
                (1, _) => vec![rows, cols],
                (_, true) => vec![experts, cols, rows],
                (_, false) => vec![experts, rows, cols],
            };
            tensors.push((matrix.source.name().to_owned(), shape));
        }
        for vector in &model.vectors {
            let len = u64::from(vector.len);
            let conv = vector.tensor.contains("conv") && vector.tensor.ends_with(".weight");
            let shape = if conv { vec![len / taps, 1, taps] } else { vec![len] };
            tensors.push((vector.tensor.clone(), shape));
        }
        let open = |tensors: &[(String, Vec<u64>)]| {
            let files = vec![("model.safetensors".to_owned(), safetensors(tensors))];
            let checkpoint =
                Checkpoint::from_safetensors_bytes(None, files, Some(config.to_string().as_bytes()), name)?;
            Registry::standard().build(&checkpoint)
        };
        let read = open(&tensors).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(read.parameters(), model.parameters(), "{name}");
        assert!(read.extras.estimate_only.is_some(), "{name}");
        // The last dimension of any of them one more: another model.
        for i in 0..tensors.len() {
            let mut other = tensors.clone();
            *other[i].1.last_mut().unwrap() += 1;
            assert!(open(&other).is_err(), "{name}: {:?}", other[i]);
        }
    }
}

/// DeepSeek's FP8 has a scale for each square block: headers that say so are as good as the configuration.
#[test]
fn headers_of_block_fp8_are_priced_by_their_names() {
    let config = json!({
        "model_type": "deepseek_v3", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 384,
        "moe_intermediate_size": 128, "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "moe_layer_freq": 1, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "v_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu",
        "max_position_embeddings": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "num_nextn_predict_layers": 0,
        "attention_bias": false,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128]},
    });
    let bare = common::tensors::bare(&config).unwrap();
    let mut tensors = common::tensors::Tensors(Default::default());
    for matrix in &bare.matrices {
        for name in matrix.source.tensors() {
            let rows = u64::from(matrix.rows) / matrix.source.tensors().count() as u64;
            let (rows, cols) = (rows.max(1), u64::from(matrix.cols));
            if matrix.format == plimsoll_kernels::Format::Fp8 {
                tensors.set(name, "F8_E4M3", &[rows, cols]);
                tensors.set(&format!("{name}_scale_inv"), "F32", &[rows.div_ceil(128), cols.div_ceil(128)]);
            } else {
                tensors.set(name, "BF16", &[rows, cols]);
            }
        }
    }
    for vector in &bare.vectors {
        vector.tensors().for_each(|name| tensors.set(name, "BF16", &[u64::from(vector.len)]));
    }
    let read = tensors.build(&config).unwrap();
    assert_eq!(
        (&read.graph, &read.states, read.parameters()),
        (&bare.graph, &bare.states, bare.parameters())
    );
    assert!(read.notes.iter().any(|note| note.contains("FP8")) && read.extras.estimate_only.is_some());
    // A checkpoint without such scales is read as ever, and one whose configuration says nothing is refused as ever.
    let mut silent = config;
    silent.as_object_mut().unwrap().remove("quantization_config");
    assert!(tensors.build(&silent).is_err());
}
