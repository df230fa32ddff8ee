//! gpt-oss: spellings, published configurations, layouts of experts, GGUF, and models that contradict
//! themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Kv;
use common::gguf::Edited;
use common::tensors::{Tensors, bare, config, formats, golden, golden_with, merge};
use plimsoll_kernels::Format;
use plimsoll_models::graph::Op;
use plimsoll_models::model::State;
use plimsoll_models::{Model, ModelError};
use serde_json::{Value, json};

#[test]
fn both_spellings_of_a_config_are_one_model() {
    for family in ["gpt_oss", "gpt_oss_mxfp4"] {
        let old = bare(&config(&format!("golden/{family}/config.json"))).unwrap();
        let new = bare(&config(&format!("golden/{family}/config.transformers5.json"))).unwrap();
        assert_eq!((&old.matrices, &old.graph, &old.states), (&new.matrices, &new.graph, &new.states));
        assert_eq!(old.ropes, new.ropes);
        // The tensors say the same as the configuration.
        let read = golden(family);
        assert_eq!(old.graph, read.graph);
        assert_eq!(formats(&old), formats(&read));
        assert_eq!(old.parameters(), read.parameters());
    }
}

#[test]
fn a_published_config_is_priced_with_its_experts_packed() {
    for (name, layers, experts) in [("gpt-oss-20b", 24u64, 32u64), ("gpt-oss-120b", 36, 128)] {
        let model = bare(&config(&format!("configs/{name}.json"))).unwrap();
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
    assert_eq!(interleaved(&golden("gpt_oss")), [true; 4]);
    assert_eq!(interleaved(&golden("gpt_oss_mxfp4")), [true; 4]);
    let mlx = golden("mlx_gpt_oss");
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
    let refused = |change: &dyn Fn(&mut Value)| golden_with("gpt_oss", change).unwrap_err();
    for (change, expected) in [
        (
            json!({"num_experts_per_tok": 7, "experts_per_token": 7}),
            "num_experts_per_tok: expected at most the 6 experts",
        ),
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
            merge(c, &change);
        });
        assert!(error.to_string().contains(expected), "{change}: {error}");
    }
    // Packed rows are whole blocks.
    let error = golden_with("gpt_oss_mxfp4", |c| c["intermediate_size"] = json!(48)).unwrap_err();
    assert!(error.to_string().contains("gate_up_proj"), "{error}");
    let error = bare(&{
        let mut c = config("golden/gpt_oss_mxfp4/config.json");
        c["intermediate_size"] = json!(48);
        c
    })
    .unwrap_err();
    assert!(error.to_string().contains("whole groups of 32"), "{error}");
}

#[test]
fn gguf_files_are_their_sources_but_for_the_order_of_gates() {
    for family in ["gpt_oss", "gpt_oss_mxfp4"] {
        let gguf = Edited::of(&format!("gguf_{family}")).build().unwrap();
        let mut source = golden(family);
        for (_, op) in &mut source.graph.ops {
            if let Op::ClampedGate { gate, .. } = op {
                // No key states the bound: it is that of the published models.
                (gate.interleaved, gate.limit) = (false, 7.0);
            }
        }
        assert_eq!((&gguf.graph, &gguf.states), (&source.graph, &source.states), "{family}");
        let sizes = |m: &Model| (m.parameters(), m.vocab, m.hidden, m.layers, m.context_max);
        assert_eq!(sizes(&gguf), sizes(&source), "{family}");
        let close = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-6;
        assert!(gguf.ropes[0].frequencies.iter().zip(&source.ropes[0].frequencies).all(close), "{family}");
        assert!((gguf.ropes[0].growth - source.ropes[0].growth).abs() < 1e-9);
        assert!(gguf.notes.len() == 1 && gguf.notes[0].contains("YaRN"), "{:?}", gguf.notes);
        let stack = gguf.matrices.iter().find(|m| m.experts > 1).unwrap();
        let rows: Vec<_> = stack.source.pieces[..3].iter().map(|p| (p.planes[0].as_str(), p.rows)).collect();
        let [gate, up] = ["gate", "up"].map(|part| format!("blk.0.ffn_{part}_exps.weight"));
        let width = stack.rows / stack.experts / 2;
        assert_eq!(rows, [(gate.as_str(), width), (up.as_str(), width), (gate.as_str(), width)]);
    }
    // Files from before the betas had keys mean those of the published models.
    let older = Edited::of("gguf_gpt_oss").without_key("gpt-oss.rope.scaling.yarn_beta_fast");
    let older = older.without_key("gpt-oss.rope.scaling.yarn_beta_slow").build().unwrap();
    assert_eq!(older.ropes, Edited::of("gguf_gpt_oss").build().unwrap().ropes);
    let plain = Edited::of("gguf_gpt_oss").without_key("gpt-oss.rope.scaling.type");
    let plain = plain.without_key("gpt-oss.rope.scaling.factor").build().unwrap();
    assert!(plain.notes.is_empty() && plain.ropes[0].growth == 1.0);
}

#[test]
fn plain_experts_stored_apart_are_not_transposed() {
    let mut tensors = Tensors::of("gpt_oss");
    for layer in 0..4 {
        let name = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}");
        for stack in ["gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"] {
            tensors.0.remove(&name(stack)).unwrap();
        }
        for (part, rows, cols) in [("gate_proj", 48, 64), ("up_proj", 48, 64), ("down_proj", 64, 48)] {
            tensors.set(&name(&format!("{part}.weight")), "BF16", &[6, rows, cols]);
            tensors.set(&name(&format!("{part}.bias")), "BF16", &[6, rows]);
        }
    }
    let model = tensors.build(&config("golden/gpt_oss/config.json")).unwrap();
    let transposed = model.matrices.iter().flat_map(|m| &m.source.pieces).filter(|p| p.transposed).count();
    assert_eq!((transposed, model.parameters()), (0, golden("gpt_oss").parameters()));
}

#[test]
fn hostile_gguf_metadata_is_a_typed_error() {
    for (key, value, expected) in [
        ("block_count", Kv::U32(5), "blk.4.attn_norm.weight is missing"),
        ("block_count", Kv::U32(1 << 30), "1 to 4096"),
        ("expert_count", Kv::U32(0), "expert_count"),
        ("expert_count", Kv::U32(5), "expected shape"),
        ("expert_used_count", Kv::U32(7), "at most the 6 experts"),
        ("expert_used_count", Kv::Str("2"), "expert_used_count"),
        ("expert_feed_forward_length", Kv::U32(i32::MAX as u32), "under 2^30"),
        ("expert_feed_forward_length", Kv::U32(47), "expected shape"),
        ("expert_weights_scale", Kv::F32(2.5), "expert_weights_scale"),
        ("attention.sliding_window", Kv::U32(0), "sliding_window"),
        ("attention.sliding_window_pattern", Kv::U32(3), "sliding_window_pattern"),
        ("attention.head_count_kv", Kv::U32(3), "a divisor of the 4 query heads"),
        ("rope.freq_base_swa", Kv::F32(1e4), "freq_base_swa"),
        ("rope.freq_base", Kv::F32(1.0), "above 1, to scale by YaRN"),
        ("rope.freq_base", Kv::F32(f32::NAN), "freq_base"),
        ("rope.dimension_count", Kv::U32(16), "the head size, 32"),
        ("rope.scaling.type", Kv::Str("linear"), "none and yarn are"),
        ("rope.scaling.factor", Kv::F32(0.0), "rope.scaling.factor"),
        ("rope.scaling.original_context_length", Kv::F32(-4.0), "original_context_length"),
        ("rope.scaling.yarn_beta_fast", Kv::F32(0.5), "at least yarn_beta_slow (1)"),
        ("rope.scaling.yarn_beta_slow", Kv::F32(f32::INFINITY), "yarn_beta_slow"),
        ("rope.scaling.yarn_attn_factor", Kv::F32(0.7), "yarn_attn_factor"),
        ("rope.scaling.yarn_ext_factor", Kv::F32(0.0), "yarn_ext_factor"),
        ("rope.scaling.yarn_log_multiplier", Kv::F32(0.1), "yarn_log_multiplier"),
    ] {
        let file = Edited::of("gguf_gpt_oss").set(&format!("gpt-oss.{key}"), &value);
        let error = file.build().expect_err(&format!("{key}: {expected}"));
        assert!(error.to_string().contains(expected), "{key}: {error}");
    }
    for key in [
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "attention.sliding_window",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
    ] {
        let error = Edited::of("gguf_gpt_oss").without_key(&format!("gpt-oss.{key}")).build().expect_err(key);
        assert!(matches!(&error, ModelError::Field { key: k, .. } if k.ends_with(key)), "{key}: {error}");
    }
    for tensor in [
        "blk.0.attn_sinks.weight",
        "blk.1.attn_k.bias",
        "blk.3.ffn_gate_inp.bias",
        "blk.2.ffn_gate_exps.weight",
        "blk.2.ffn_up_exps.weight",
        "blk.2.ffn_up_exps.bias",
        "blk.2.ffn_down_exps.bias",
    ] {
        let error = Edited::of("gguf_gpt_oss_mxfp4").without(tensor).build().expect_err(tensor);
        assert!(matches!(&error, ModelError::MissingTensor { name, .. } if name == tensor), "{error}");
    }
    // Neither of the two.
    let error =
        Edited::of("gguf_gpt_oss").without("ffn_gate_exps").without("ffn_up_exps").build().unwrap_err();
    assert!(error.to_string().contains("blk.0.ffn_gate_exps.weight is missing"), "{error}");
}
