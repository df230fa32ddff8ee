//! gpt-oss: spellings, published configurations, layouts of experts, and models that contradict themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_kernels::Format;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::Op;
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

#[test]
fn both_spellings_of_a_config_are_one_model() {
    for family in ["gpt_oss", "gpt_oss_mxfp4"] {
        let old = from_config(&config(&format!("golden/{family}/config.json"))).unwrap();
        let new = from_config(&config(&format!("golden/{family}/config.transformers5.json"))).unwrap();
        assert_eq!((&old.matrices, &old.graph, &old.states), (&new.matrices, &new.graph, &new.states));
        assert_eq!(old.ropes, new.ropes);
        // The tensors say the same as the configuration.
        let read = golden(family, |_| ()).unwrap();
        assert_eq!(old.graph, read.graph);
        let formats = |m: &Model| m.matrices.iter().map(|m| (m.format, m.rows, m.cols)).collect::<Vec<_>>();
        assert_eq!(formats(&old), formats(&read));
        assert_eq!(old.parameters(), read.parameters());
    }
}

#[test]
fn a_published_config_is_priced_with_its_experts_packed() {
    for (name, layers, experts) in [("gpt-oss-20b", 24u64, 32u64), ("gpt-oss-120b", 36, 128)] {
        let model = from_config(&config(&format!("configs/{name}.json"))).unwrap();
        let packed: u64 = model
            .matrices
            .iter()
            .filter(|m| m.format == Format::Mxfp4)
            .map(|m| u64::from(m.rows) * m.format.row_bytes(m.cols.into()).unwrap())
            .sum();
        // 5760 and 2880 rows an expert, of 90 blocks of 17 bytes each.
        assert_eq!(packed, layers * experts * (5760 + 2880) * 90 * 17, "{name}");
        assert!(model.matrices.iter().all(|m| m.format == Format::Mxfp4 || m.format == Format::BF16));
        // Keys and values of a token: 8 heads of 64, twice; sliding first, 128 of them.
        let sliding = |s: &State| matches!(s, State::KvSliding { window: 128, .. });
        let kinds: Vec<bool> = model.states.iter().map(sliding).collect();
        assert!(kinds.iter().enumerate().all(|(i, &s)| s == (i % 2 == 0)) && kinds.len() as u64 == layers);
        assert!(
            model.states.iter().all(|s| s.attention().is_some_and(|a| (a.kv_heads, a.head_dim) == (8, 64)))
        );
        // 0.1·ln 32 + 1.
        assert!((model.ropes[0].growth - 1.346_573_590_28).abs() < 1e-9);
    }
}

#[test]
fn gates_are_interleaved_unless_they_are_stored_apart() {
    let interleaved = |model: &Model| {
        let gates = model.graph.ops.iter().filter_map(|(_, op)| match op {
            Op::ClampedGate { gate, .. } => Some(gate.interleaved),
            _ => None,
        });
        gates.collect::<Vec<_>>()
    };
    assert_eq!(interleaved(&golden("gpt_oss", |_| ()).unwrap()), [true; 4]);
    assert_eq!(interleaved(&golden("gpt_oss_mxfp4", |_| ()).unwrap()), [true; 4]);
    let mlx = golden("mlx_gpt_oss", |_| ()).unwrap();
    assert_eq!(interleaved(&mlx), [false; 4]);
    let stack = mlx.matrices.iter().find(|m| m.source.pieces.len() == 10).unwrap();
    let rows: Vec<_> =
        stack.source.pieces.iter().map(|p| (p.planes[0].as_str(), p.first_row, p.rows)).collect();
    let [gate, up] = ["gate", "up"].map(|part| format!("model.layers.0.mlp.experts.{part}_proj.weight"));
    assert_eq!(rows[..3], [(gate.as_str(), 0, 64), (up.as_str(), 0, 64), (gate.as_str(), 64, 64)]);
    let joined = mlx.vectors.iter().find(|v| v.joined.is_some()).unwrap();
    assert_eq!((joined.len, joined.tensor_len(), joined.tensors().count()), (640, 320, 2));
}

#[test]
fn what_contradicts_itself_is_an_error() {
    let refused = |change: &dyn Fn(&mut Value)| golden("gpt_oss", change).unwrap_err();
    for (change, expected) in [
        (json!({"num_experts_per_tok": 7}), "num_experts_per_tok: expected at most the 6 experts"),
        (json!({"num_local_experts": 7}), "expected shape"),
        (json!({"num_local_experts": 2147483647, "intermediate_size": 67108864}), "under 2^30"),
        (json!({"swiglu_limit": 0.0}), "swiglu_limit: expected a number from 0.01 to 1000000"),
        (json!({"swiglu_alpha": -1}), "swiglu_alpha: expected a number from 0.0001 to 10000"),
        (json!({"attention_bias": false}), "gpt-oss without attention_bias is not supported"),
        (json!({"hidden_act": "gelu"}), "hidden_act"),
        (json!({"layer_types": ["full_attention"]}), "layer_types"),
        (json!({"sliding_window": 0}), "sliding_window"),
        (json!({"intermediate_size": 50}), "expected shape"),
    ] {
        let error = refused(&|c: &mut Value| {
            for (key, value) in change.as_object().unwrap() {
                c[key] = value.clone();
            }
        });
        assert!(error.to_string().contains(expected), "{change}: {error}");
    }
    // Packed rows are whole blocks.
    let error = golden("gpt_oss_mxfp4", |c| c["intermediate_size"] = json!(48)).unwrap_err();
    assert!(error.to_string().contains("gate_up_proj"), "{error}");
    let error = from_config(&{
        let mut c = config("golden/gpt_oss_mxfp4/config.json");
        c["intermediate_size"] = json!(48);
        c
    })
    .unwrap_err();
    assert!(error.to_string().contains("whole groups of 32"), "{error}");
}
