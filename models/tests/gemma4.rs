//! gemma4: spellings, published configurations, sharing of keys and values, and models that contradict themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_kernels::Format;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{Keys, Op};
use plimsoll_models::model::State;
use plimsoll_models::{Model, ModelError, Registry};
use serde_json::{Value, json};
use std::path::PathBuf;

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(path)
}

fn config(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(path)).unwrap()).unwrap()
}

fn from_config(config: &Value) -> Result<Model, ModelError> {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "test")?;
    Registry::standard().build(&checkpoint)
}

/// A golden checkpoint whose configuration was changed.
fn golden(family: &str, change: impl FnOnce(&mut Value)) -> Result<Model, ModelError> {
    let mut config = config(&format!("golden/{family}/config.json"));
    change(&mut config);
    let weights = std::fs::read(data(&format!("golden/{family}/model.safetensors"))).unwrap();
    let files = vec![("model.safetensors".to_owned(), weights)];
    let config = config.to_string();
    let checkpoint = Checkpoint::from_safetensors_bytes(None, files, Some(config.as_bytes()), "test")?;
    Registry::standard().build(&checkpoint)
}

const FAMILIES: [&str; 3] = ["gemma4_text_dense", "gemma4_text_moe", "gemma4_text_ple"];

#[test]
fn both_spellings_of_a_config_are_one_model() {
    for family in FAMILIES {
        let old = from_config(&config(&format!("golden/{family}/config.json"))).unwrap();
        let new = from_config(&config(&format!("golden/{family}/config.transformers5.json"))).unwrap();
        assert_eq!((&old.matrices, &old.graph, &old.states), (&new.matrices, &new.graph, &new.states));
        assert_eq!(old.ropes, new.ropes);
        // The tensors say the same as the configuration.
        let read = golden(family, |_| ()).unwrap();
        assert_eq!(old, Model { name: old.name.clone(), ..read });
    }
}

#[test]
fn a_configuration_of_mlx_is_what_its_tensors_are() {
    for family in ["mlx_gemma4_nvfp4", "mlx_gemma4_moe_nvfp4", "mlx_gemma4_ple_mxfp8"] {
        let bare = from_config(&config(&format!("golden/{family}/config.json"))).unwrap();
        let read = golden(family, |_| ()).unwrap();
        let formats = |m: &Model| m.matrices.iter().map(|m| (m.format, m.rows, m.cols)).collect::<Vec<_>>();
        assert_eq!(formats(&bare), formats(&read), "{family}");
        assert_eq!((&bare.graph, &bare.states), (&read.graph, &read.states), "{family}");
    }
}

/// 50 sliding layers of 16 heads of 256 and 10 full ones of 4 heads of 512.
#[test]
fn a_published_config_is_priced() {
    let model = from_config(&config("configs/gemma-4-31b-it-nvfp4.json")).unwrap();
    let mut kinds = [0; 2];
    for state in &model.states {
        let shape = state.attention().unwrap();
        match state {
            State::KvSliding { window, .. } => {
                kinds[0] += 1;
                assert_eq!((*window, shape.kv_heads, shape.head_dim), (1024, 16, 256));
            }
            _ => {
                kinds[1] += 1;
                assert_eq!((shape.heads, shape.kv_heads, shape.head_dim), (32, 4, 512));
            }
        }
    }
    assert_eq!(kinds, [50, 10]);
    // A quarter of the full layers' heads turns: 64 of 256 pairs.
    assert_eq!(model.ropes[0].frequencies.iter().filter(|f| **f > 0.0).count(), 64);
    assert_eq!(model.ropes[0].pairs(), 256);
    // The file leaves attention plain and packs the MLPs.
    let packed = model.matrices.iter().filter(|m| m.format == Format::Nvfp4Scaled).count();
    assert_eq!(packed, 60 * 3);
    assert!(model.parameters() > 29_000_000_000 && model.parameters() < 33_000_000_000);
}

#[test]
fn sharing_layers_read_the_last_of_their_kind_and_keep_nothing() {
    let model = golden("gemma4_text_ple", |_| ()).unwrap();
    assert_eq!(model.states.len(), 3);
    let reads: Vec<_> = model
        .graph
        .ops
        .iter()
        .filter_map(|(_, op)| match op {
            Op::Attention { attention, .. } => Some((attention.state.0, attention.keys)),
            _ => None,
        })
        .collect();
    let (own, shared) = (Keys::Own, Keys::Shared);
    assert_eq!(reads, [(0, own), (1, own), (2, own), (1, shared), (1, shared), (2, shared)]);
}

#[test]
fn what_contradicts_itself_is_an_error() {
    for (family, change, expected) in [
        ("gemma4_text_ple", json!({"num_kv_shared_layers": 6}), "under the 6 layers"),
        ("gemma4_text_ple", json!({"num_kv_shared_layers": 4}), "whose keys and values it can share"),
        ("gemma4_text_ple", json!({"use_double_wide_mlp": false}), "expected shape"),
        ("gemma4_text_ple", json!({"hidden_size_per_layer_input": 8}), "expected shape"),
        ("gemma4_text_ple", json!({"hidden_size_per_layer_input": 2147483647}), "under 2^26"),
        ("gemma4_text_ple", json!({"vocab_size_per_layer_input": 255}), "the vocabulary, 256"),
        ("gemma4_text_dense", json!({"global_head_dim": 33}), "an even number"),
        ("gemma4_text_dense", json!({"num_global_key_value_heads": 3}), "a divisor of the 4 query heads"),
        ("gemma4_text_dense", json!({"attention_k_eq_v": false}), "k_proj"),
        ("gemma4_text_dense", json!({"per_layer_config": {"1": {"head_dim": 8}}}), "heads of 16 and of 8"),
        ("gemma4_text_dense", json!({"per_layer_config": {"1": {"window": 8}}}), "per_layer_config"),
        (
            "gemma4_text_dense",
            json!({"per_layer_config": {"1": 8}}),
            "per_layer_config.1: expected an object",
        ),
        ("gemma4_text_dense", json!({"use_bidirectional_attention": "all"}), "causal gemma4 is"),
        ("gemma4_text_dense", json!({"final_logit_softcapping": 0}), "final_logit_softcapping"),
        ("gemma4_text_moe", json!({"top_k_experts": 7}), "at most the 6 experts"),
        ("gemma4_text_moe", json!({"num_experts": 5}), "expected shape"),
        ("gemma4_text_moe", json!({"moe_intermediate_size": 2147483647}), "under 2^30"),
    ] {
        let error = golden(family, |c| {
            for (key, value) in change.as_object().unwrap() {
                c[key] = value.clone();
            }
        })
        .unwrap_err();
        assert!(error.to_string().contains(expected), "{change}: {error}");
    }
}
