//! qwen3_moe, qwen3_5, qwen3_5_moe and qwen3_next: spellings, facts of published models, where rows come from, and
//! configurations that contradict themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::tensors::{Tensors, bare, config, golden, matrices, open, runs, state_bytes};
use plimsoll_models::ModelError;
use plimsoll_models::graph::Op;
use serde_json::{Value, json};

const FAMILIES: [&str; 4] = ["qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"];

fn changed(family: &str, key: &str, value: &Value) -> Value {
    let mut c = config(&format!("golden/{family}/config.json"));
    c[key] = value.clone();
    c
}

#[test]
fn both_spellings_of_a_golden_are_one_model() {
    for family in FAMILIES {
        let newer = config(&format!("golden/{family}/config.transformers5.json"));
        assert_eq!(Tensors::of(family).build(&newer).unwrap(), golden(family), "{family}");
        let (a, b) = (bare(&newer).unwrap(), golden(family));
        assert_eq!((a.graph, a.states, a.ropes), (b.graph, b.states, b.ropes), "{family} without tensors");
    }
}

#[test]
fn published_models_have_the_published_sizes() {
    for (name, parameters, layers, attending, state) in [
        ("qwen3-30b-a3b", 30_532_122_624, 48, 48, 0),
        ("qwen3.5-27b", 26_895_998_464, 64, 16, 156_893_184),
        ("qwen3.5-35b-a3b", 34_660_610_688, 40, 10, 65_863_680),
        ("qwen3.6-35b-a3b-nvfp4", 34_660_610_688, 40, 10, 65_863_680),
        ("qwen3.5-9b", 8_953_803_264, 32, 8, 52_690_944),
    ] {
        let model = open(&format!("configs/{name}.json"));
        assert_eq!((model.parameters(), model.layers), (parameters, layers), "{name}");
        assert_eq!(model.states.iter().filter(|s| s.attention().is_some()).count(), attending, "{name}");
        assert_eq!(state_bytes(&model), state, "{name}");
    }
    let large = open("configs/qwen3.5-27b.json");
    assert_eq!(large.ropes[0].pairs(), 32, "a quarter of a head of 256");
    assert!(large.notes.iter().any(|n| n.contains("images")), "{:?}", large.notes);
    assert!(large.notes.iter().any(|n| n.contains("further tokens")), "{:?}", large.notes);
    let packed = open("configs/qwen3.6-35b-a3b-nvfp4.json");
    let format = |label: &str| matrices(&packed, label)[0].format.to_string();
    assert_eq!(format("layers.0.experts_gate_up"), format("layers.0.shared_gate_up"));
    assert_ne!(format("layers.0.experts_gate_up"), format("layers.0.in_proj_qkv"));
    assert_ne!(format("layers.0.in_proj_qkv"), format("layers.0.router"));
}

#[test]
fn converted_checkpoints_are_their_sources_but_for_the_ones_in_their_norms() {
    for (family, source) in [
        ("mlx_qwen3_moe_4bit", "qwen3_moe"),
        ("mlx_qwen3_5_4bit", "qwen3_5_text"),
        ("mlx_qwen3_5_nvfp4", "qwen3_5_text"),
        ("mlx_qwen3_5_moe_4bit", "qwen3_5_moe_text"),
        ("mlx_qwen3_5_moe_nvfp4", "qwen3_5_moe_text"),
    ] {
        let (mut a, b) = (golden(family), golden(source));
        let mut changed = 0;
        for (_, op) in &mut a.graph.ops {
            match op {
                Op::RmsNorm { plus_one, .. } if source != "qwen3_moe" => {
                    assert!(!*plus_one, "{family}");
                    (*plus_one, changed) = (true, changed + 1);
                }
                Op::Attention { attention, .. } if source != "qwen3_moe" => {
                    for norm in [&mut attention.q_norm, &mut attention.k_norm].into_iter().flatten() {
                        assert!(!norm.plus_one, "{family}");
                        norm.plus_one = true;
                    }
                }
                _ => {}
            }
        }
        assert_eq!(changed > 0, source != "qwen3_moe");
        assert_eq!((&a.graph, &a.states, a.parameters()), (&b.graph, &b.states, b.parameters()), "{family}");
    }
}

#[test]
fn queries_and_gates_alternate_inside_each_head() {
    let model = golden("qwen3_5_text");
    assert_eq!(runs(matrices(&model, "layers.1.qkv")[0]), [(0, 32), (64, 32), (128, 32), (192, 32)]);
    assert_eq!(runs(matrices(&model, "layers.1.attn_gate")[0]), [(32, 32), (96, 32), (160, 32), (224, 32)]);
}

#[test]
fn fused_projections_are_taken_apart_by_key_heads() {
    // Two key heads with 16 rows each of q and k, then 64 of v and of z for two value heads: 160 rows a key head.
    let model = golden("qwen3_next");
    assert_eq!(
        runs(matrices(&model, "layers.0.in_proj_qkv")[0]),
        [(0, 16), (160, 16), (16, 16), (176, 16), (32, 64), (192, 64)]
    );
    assert_eq!(runs(matrices(&model, "layers.0.in_proj_z")[0]), [(96, 64), (256, 64)]);
    let ba = matrices(&model, "layers.0.in_proj_ba");
    assert_eq!((runs(ba[0]), runs(ba[1])), (vec![(0, 2), (4, 2)], vec![(2, 2), (6, 2)]));
}

#[test]
fn gates_and_ups_of_an_expert_are_one_matrix_however_they_are_stored() {
    let separate = golden("qwen3_5_moe_text");
    let stack = matrices(&separate, "layers.0.experts_gate_up")[0];
    assert_eq!((stack.rows, stack.experts, stack.source.pieces.len()), (6 * 64, 6, 12));
    let names: Vec<&str> = stack.source.tensors().take(3).collect();
    let module = "model.layers.0.mlp.experts";
    let expected = [("0", "gate"), ("0", "up"), ("1", "gate")];
    assert_eq!(names, expected.map(|(e, part)| format!("{module}.{e}.{part}_proj.weight")));

    let split = golden("mlx_qwen3_5_moe_4bit");
    let stack = matrices(&split, "layers.0.experts_gate_up")[0];
    assert_eq!(runs(stack)[..4], [(0, 32), (0, 32), (32, 32), (32, 32)]);
    assert!(stack.source.pieces[1].planes[0].contains("up_proj"));

    // Stacked as the hub has it.
    let mut tensors = Tensors::of("qwen3_5_moe_text");
    for layer in 0..3 {
        let module = format!("model.layers.{layer}.mlp.experts");
        tensors.0.retain(|name, _| !name.starts_with(&module));
        tensors.set(&format!("{module}.gate_up_proj"), "BF16", &[6, 64, 64]);
        tensors.set(&format!("{module}.down_proj"), "BF16", &[6, 64, 32]);
    }
    let config = config("golden/qwen3_5_moe_text/config.json");
    let stacked = tensors.build(&config).unwrap();
    assert_eq!(stacked.graph, separate.graph);
    assert_eq!(runs(matrices(&stacked, "layers.0.experts_gate_up")[0]), [(0, 384)]);
    // Two gates in another order of dimensions are another checkpoint.
    tensors.set("model.layers.0.mlp.experts.gate_up_proj", "BF16", &[6, 32, 128]);
    assert!(matches!(tensors.build(&config).unwrap_err(), ModelError::Shape { .. }));
}

#[test]
fn experts_of_several_formats_are_refused() {
    let c = config("golden/qwen3_moe/config.json");
    for part in ["gate", "up", "down"] {
        let mut tensors = Tensors::of("qwen3_moe");
        let shape: &[u64] = if part == "down" { &[64, 32] } else { &[32, 64] };
        tensors.set(&format!("model.layers.1.mlp.experts.3.{part}_proj.weight"), "F32", shape);
        let error = tensors.build(&c).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{part}: {error}");
        tensors.0.remove(&format!("model.layers.1.mlp.experts.3.{part}_proj.weight"));
        let error = tensors.build(&c).unwrap_err();
        assert!(matches!(error, ModelError::MissingTensor { .. }), "{part}: {error}");
    }
}

#[test]
fn layers_are_dense_or_have_experts_by_the_rule() {
    let sparse = |c: &Value| {
        let model = bare(c).unwrap();
        let routes = model.graph.ops.iter().filter(|(_, op)| matches!(op, Op::Route { .. }));
        routes.map(|(label, _)| label.split('.').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(sparse(&changed("qwen3_moe", "decoder_sparse_step", &json!(2))), ["1"]);
    assert_eq!(sparse(&changed("qwen3_moe", "mlp_only_layers", &json!([1]))), ["0", "2"]);
    assert_eq!(sparse(&changed("qwen3_next", "mlp_only_layers", &json!([1, 9]))), ["0", "2", "3"]);
    let normalised = |c: &Value| {
        bare(c).unwrap().graph.ops.iter().find_map(|(_, op)| match op {
            Op::Route { router, .. } => Some(router.normalise),
            _ => None,
        })
    };
    assert_eq!(normalised(&config("golden/qwen3_moe/config.json")), Some(true));
    assert_eq!(normalised(&changed("qwen3_moe", "norm_topk_prob", &Value::Null)), Some(false));
    assert_eq!(normalised(&changed("qwen3_next", "norm_topk_prob", &Value::Null)), Some(true));
    assert_eq!(normalised(&changed("qwen3_next", "norm_topk_prob", &json!(false))), Some(false));
    assert_eq!(normalised(&changed("qwen3_5_moe_text", "norm_topk_prob", &Value::Null)), Some(true));
}

#[test]
fn the_interval_alone_tells_the_layers() {
    let mut c = config("golden/qwen3_5_text/config.json");
    let listed = bare(&c).unwrap();
    c["layer_types"] = Value::Null;
    assert_eq!(bare(&c).unwrap(), listed);
    c["full_attention_interval"] = Value::Null;
    let attending = bare(&c).unwrap().states.iter().map(|s| s.attention().is_some()).collect::<Vec<_>>();
    assert_eq!(attending, [false, false, false, true], "every fourth where nothing is said");
}

#[test]
fn hostile_configurations_are_typed_errors() {
    for (family, key, value) in [
        ("qwen3_moe", "num_experts", json!(0)),
        ("qwen3_moe", "num_experts", json!(1 << 20)),
        ("qwen3_moe", "num_local_experts", json!(9)),
        ("qwen3_moe", "num_experts_per_tok", json!(9)),
        ("qwen3_moe", "moe_intermediate_size", json!(2147483647u32)),
        ("qwen3_moe", "norm_topk_prob", json!("yes")),
        ("qwen3_moe", "decoder_sparse_step", json!(0)),
        ("qwen3_moe", "mlp_only_layers", json!([-1])),
        ("qwen3_moe", "mlp_only_layers", json!("all")),
        ("qwen3_moe", "num_hidden_layers", json!(1 << 30)),
        ("qwen3_moe", "num_key_value_heads", json!(3)),
        ("qwen3_moe", "hidden_size", json!(2147483647u32)),
        ("qwen3_moe", "rms_norm_eps", json!(-1.0)),
        ("qwen3_next", "intermediate_size", json!(0)),
        ("qwen3_next", "shared_expert_intermediate_size", json!(2147483647u32)),
        ("qwen3_next", "partial_rotary_factor", json!(1.5)),
        ("qwen3_next", "partial_rotary_factor", json!(0.1)),
        ("qwen3_next", "full_attention_interval", json!(0)),
        ("qwen3_next", "linear_num_key_heads", json!(3)),
        ("qwen3_next", "linear_key_head_dim", json!(1 << 20)),
        ("qwen3_5_text", "linear_num_value_heads", json!(2147483647u32)),
        ("qwen3_5_text", "linear_value_head_dim", json!(0)),
        ("qwen3_5_text", "linear_conv_kernel_dim", json!(1)),
        ("qwen3_5_text", "layer_types", json!(["linear_attention"])),
        ("qwen3_5_text", "layer_types", json!(["mamba", "mamba", "mamba", "mamba"])),
        ("qwen3_5_text", "full_attention_interval", json!(3)),
        ("qwen3_5_text", "head_dim", json!(1u64 << 30)),
        ("qwen3_5_text", "intermediate_size", Value::Null),
    ] {
        let mut c = changed(family, key, &value);
        if key == "intermediate_size" && family == "qwen3_next" {
            c["mlp_only_layers"] = json!([0]);
        }
        let error = bare(&c).expect_err(&format!("{family} {key} = {value}"));
        assert!(matches!(error, ModelError::Field { .. }), "{family} {key} = {value}: {error}");
    }
    for (family, key, value) in [
        ("qwen3_moe", "hidden_act", json!("gelu")),
        ("qwen3_moe", "partial_rotary_factor", json!(0.5)),
        ("qwen3_5_text", "attention_bias", json!(true)),
        ("qwen3_5_text", "attn_output_gate", json!(false)),
        ("qwen3_5_moe_text", "mlp_only_layers", json!([0])),
        ("qwen3_5_moe_text", "norm_topk_prob", json!(false)),
    ] {
        let error = bare(&changed(family, key, &value)).expect_err(&format!("{family} {key} = {value}"));
        assert!(matches!(error, ModelError::Unsupported { .. }), "{family} {key} = {value}: {error}");
    }
    let mut windows = changed("qwen3_moe", "use_sliding_window", &json!(true));
    windows["sliding_window"] = json!(16);
    assert!(matches!(bare(&windows).unwrap_err(), ModelError::Unsupported { .. }));
}

#[test]
fn tensors_of_other_sizes_than_the_configuration_are_refused() {
    for (family, key, value) in [
        ("qwen3_next", "linear_num_key_heads", 4),
        ("qwen3_next", "linear_value_head_dim", 16),
        ("qwen3_5_text", "linear_conv_kernel_dim", 3),
        ("qwen3_5_text", "num_attention_heads", 2),
        ("qwen3_5_moe_text", "num_experts", 5),
        ("qwen3_5_moe_text", "moe_intermediate_size", 16),
    ] {
        let error = Tensors::of(family).build(&changed(family, key, &json!(value))).unwrap_err();
        assert!(matches!(error, ModelError::Shape { .. }), "{family} {key}: {error}");
    }
}
