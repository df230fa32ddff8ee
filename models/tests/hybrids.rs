//! nemotron_h and mamba2: spellings, facts of published models, GGUF, and models that contradict themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::tensors::{Tensors, bare, config, config_text, golden, open, state_bytes};
use common::{Gguf, Kv};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::Op;
use plimsoll_models::model::Transform;
use plimsoll_models::{Model, ModelError, Registry};
use serde_json::{Value, json};

#[test]
fn both_spellings_of_a_golden_are_one_model() {
    for family in ["nemotron_h", "nemotron_h_latent", "nemotron_h_dtclamp", "mamba2"] {
        let old = open(&format!("golden/{family}"));
        let tensors = Tensors::of(family);
        // As the file has it: with bare words and with objects for infinities.
        for name in ["config.json", "config.transformers5.json"] {
            let text = config_text(&format!("golden/{family}/{name}"));
            let files = vec![("model.safetensors".to_owned(), tensors.bytes())];
            let checkpoint =
                Checkpoint::from_safetensors_bytes(None, files, Some(text.as_bytes()), family).unwrap();
            assert_eq!(Registry::standard().build(&checkpoint).unwrap(), old, "{family} {name}");
        }
    }
    for family in ["mlx_nemotron_h_2bit", "mlx_nemotron_h_nvfp4", "modelopt_nemotron_h"] {
        assert_eq!(open(&format!("golden/{family}")).graph, golden("nemotron_h").graph, "{family}");
    }
}

#[test]
fn published_models_have_the_published_sizes() {
    for (name, parameters, layers, state) in [
        ("nemotron-3-nano-30b-a3b", 31_577_940_288, 52, 49_930_240),
        ("nemotron-3-nano-30b-a3b-nvfp4", 31_577_940_288, 52, 49_930_240),
        ("nemotron-3.5-lightning-30b-a3b-nvfp4", 31_577_940_288, 52, 49_930_240),
        ("nemotron-h-56b-base-8k", 56_324_350_464, 118, 54 * 4 * (256 * 64 * 256 + 3 * (16_384 + 4096))),
        ("mamba2-130m-hf", 128_989_632, 24, 24 * 4 * (24 * 64 * 128 + 3 * (1536 + 256))),
        ("mamba2-codestral-7b", 7_285_403_648, 64, 64 * 4 * (128 * 64 * 128 + 3 * (8192 + 2048))),
    ] {
        let model = open(&format!("configs/{name}.json"));
        assert_eq!((model.parameters(), model.layers), (parameters, layers), "{name}");
        assert_eq!(state_bytes(&model), state, "{name}");
        assert!(model.ropes.is_empty(), "{name}");
    }
    let nano = open("configs/nemotron-3-nano-30b-a3b.json");
    assert_eq!(nano.states.iter().filter(|s| s.attention().is_some()).count(), 6);
    let lightning = open("configs/nemotron-3.5-lightning-30b-a3b-nvfp4.json");
    assert_eq!(nano.graph, lightning.graph);
    assert_eq!((nano.context_max, lightning.context_max), (262_144, 1_048_576));
    // It asks for states in float32, which they are in.
    assert!(!nano.notes.iter().any(|n| n.contains("float32")), "{:?}", nano.notes);
    assert!(lightning.notes.iter().any(|n| n.contains("left out")));
}

/// Which of the matrices of a bare configuration are NVFP4, under this name.
fn packed(config: &Value, name: &str) -> (Model, Vec<String>) {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), name).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    let packed = model.matrices.iter().filter(|m| m.format == plimsoll_kernels::Format::Nvfp4Scaled);
    let names = packed.flat_map(|m| m.source.tensors().map(str::to_owned).collect::<Vec<_>>()).collect();
    (model, names)
}

#[test]
fn a_bare_configuration_named_nvfp4_is_priced_as_nvidia_publishes_the_family() {
    for name in ["nemotron-3-nano-30b-a3b-nvfp4", "nemotron-3.5-lightning-30b-a3b-nvfp4"] {
        let config = config(&format!("configs/{name}.json"));
        let (model, packed) = self::packed(&config, name);
        assert!(
            model.notes.iter().any(|n| n.contains("hf_quant_config.json") && n.contains("NVFP4")),
            "{name}"
        );
        let of = |layer: u32| packed.iter().any(|n| n.contains(&format!(".layers.{layer}.mixer.")));
        // Attention, and the Mamba layer before each.
        for wide in [5, 12, 19, 26, 33, 42, 4, 11, 18, 25, 32, 41] {
            assert!(!of(wide), "{name}: layer {wide}");
        }
        let narrow = (0..52).filter(|layer| of(*layer)).count();
        assert_eq!(narrow, 52 - 12, "{name}");
        for part in ["lm_head", "embed", "conv1d", "gate.weight", "norm"] {
            assert!(!packed.iter().any(|n| n.contains(part)), "{name}: {part}");
        }
        // 17 Mamba layers' two projections, 23 layers of 128 experts and a shared one: half a byte a value, a byte for
        // 16 of them, and four for each tensor.
        let mamba = 17 * (2688 * (2 * 4096 + 2 * 8 * 128 + 64) + 4096 * 2688u64);
        let experts = 23 * (128 * 2 * 1856 * 2688 + 2 * 3712 * 2688u64);
        let narrow: u64 = model
            .matrices
            .iter()
            .filter(|m| m.format == plimsoll_kernels::Format::Nvfp4Scaled)
            .map(|m| u64::from(m.rows) * u64::from(m.cols))
            .sum();
        assert_eq!(narrow, mamba + experts, "{name}");
        // The published file is 19 GB.
        let wide = model.parameters() - narrow;
        let bytes = narrow / 2 + narrow / 16 + 2 * wide;
        assert!((18_500_000_000..20_000_000_000).contains(&bytes), "{name}: {bytes}");
    }
    // What is said in a file goes before a name, and of other families a name is a note.
    let mut nano = config("configs/nemotron-3-nano-30b-a3b-nvfp4.json");
    let (model, names) = packed(&nano, "nemotron-3-nano-30b-a3b");
    assert!(names.is_empty() && !model.notes.iter().any(|n| n.contains("hf_quant_config")));
    nano["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    assert!(packed(&nano, "nano-nvfp4").1.is_empty());
    let (model, names) = packed(&config("configs/llama-3.1-8b.json"), "llama-3.1-8b-FP8");
    assert!(names.is_empty() && model.notes.iter().any(|n| n.contains("FP8") && n.contains("priced plain")));
}

#[test]
fn a_finite_time_step_limit_binds_and_is_told() {
    let limit = |value: Value| {
        let mut c = config("golden/nemotron_h/config.json");
        c["time_step_limit"] = value;
        bare(&c)
    };
    let bounds = |model: &Model| {
        model.graph.ops.iter().find_map(|(_, op)| match op {
            Op::Ssd { ssd, .. } => Some(ssd.dt_limit),
            _ => None,
        })
    };
    for none in [Value::Null, json!([0, "Infinity"]), json!([0.0, {"__float__": "Infinity"}])] {
        let model = limit(none).unwrap();
        assert_eq!(bounds(&model), Some(None));
    }
    let model = limit(json!([0.001, 0.1])).unwrap();
    assert_eq!(bounds(&model), Some(Some([0.001, 0.1])));
    assert!(model.notes.iter().any(|n| n.contains("time_step_limit")), "{:?}", model.notes);
    assert_eq!(bounds(&limit(json!([0.001, "Infinity"])).unwrap()), Some(Some([0.001, f32::MAX])));
    for bad in [
        json!(1),
        json!([0.0]),
        json!([0.2, 0.1]),
        json!([-1.0, 1.0]),
        json!(["NaN", 1.0]),
        json!([0.0, "NaN"]),
        json!([0.0, "large"]),
        json!(["Infinity", "Infinity"]),
    ] {
        let error = limit(bad.clone()).expect_err(&bad.to_string());
        assert!(matches!(&error, ModelError::Field { key, .. } if key == "time_step_limit"), "{error}");
    }
    // Training's own numbers have no effect.
    let mut c = config("golden/nemotron_h/config.json");
    let before = bare(&c).unwrap();
    c["time_step_min"] = json!(0.5);
    c["time_step_max"] = json!(0.6);
    assert_eq!(bare(&c).unwrap(), before);
}

#[test]
fn biases_are_read_where_they_are_and_contradictions_refused() {
    let biased = |model: &Model, name: &str| {
        model.graph.ops.iter().any(|(label, op)| {
            label.ends_with(name) && matches!(op, Op::Linear { bias, .. } if bias.iter().all(Option::is_some) && !bias.is_empty())
        })
    };
    let plain = config("golden/nemotron_h/config.json");
    let with = |keys: &[&str]| {
        let mut c = plain.clone();
        keys.iter().for_each(|key| c[*key] = json!(true));
        c
    };
    let mut all = with(&["use_bias", "mamba_proj_bias", "attention_bias"]);
    let model = bare(&all).unwrap();
    for name in ["in_proj", "out_proj", "qkv", "attn_output"] {
        assert!(biased(&model, name), "{name}");
    }
    // No experts have biases here; a model of plain MLPs may.
    assert!(matches!(bare(&with(&["mlp_bias"])).unwrap_err(), ModelError::Unsupported { .. }));
    all["hybrid_override_pattern"] = json!("MM-*--");
    all["mlp_bias"] = json!(true);
    assert!(biased(&bare(&all).unwrap(), "up"));
    // Two spellings that contradict each other: readers obey one each.
    let one = with(&["mamba_proj_bias"]);
    let mut tensors = Tensors::of("nemotron_h");
    for error in [bare(&one).unwrap_err(), tensors.build(&one).unwrap_err()] {
        assert!(matches!(error, ModelError::Field { key, .. } if key == "mamba_proj_bias"));
    }
    let both = with(&["use_bias", "mamba_proj_bias"]);
    for layer in [0, 2] {
        tensors.set(&format!("backbone.layers.{layer}.mixer.in_proj.bias"), "F32", &[328]);
        assert!(tensors.build(&both).unwrap_err().to_string().contains("proj.bias is missing"));
        tensors.set(&format!("backbone.layers.{layer}.mixer.out_proj.bias"), "F32", &[64]);
    }
    assert!(biased(&tensors.build(&both).unwrap(), "in_proj"));
    let error = tensors.build(&plain).unwrap_err();
    assert!(error.to_string().contains("in_proj.bias"), "{error}");
    assert!(matches!(
        Tensors::of("nemotron_h").build(&with(&["attention_bias"])).unwrap_err(),
        ModelError::MissingTensor { .. }
    ));
}

#[test]
fn hostile_configurations_are_typed_errors() {
    for (key, value) in [
        ("hybrid_override_pattern", json!("MEM*-")),
        ("hybrid_override_pattern", json!("MEM*-X")),
        ("hybrid_override_pattern", json!("MEM*|E")),
        ("hybrid_override_pattern", json!("")),
        ("hybrid_override_pattern", json!(["M", 1])),
        ("hybrid_override_pattern", json!({})),
        ("hybrid_override_pattern", Value::Null),
        ("layers_block_type", json!(["mamba", "moe", "mamba", "attention", "moe", "mlp"])),
        ("layer_types", json!(["mamba"])),
        ("num_hidden_layers", json!(0)),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(1 << 30)),
        ("vocab_size", json!(-1)),
        ("layer_norm_epsilon", json!("NaN")),
        ("layer_norm_epsilon", json!("Infinity")),
        ("layer_norm_epsilon", json!(-1.0)),
        ("mamba_num_heads", json!(7)),
        ("mamba_num_heads", json!(1u64 << 31)),
        ("mamba_num_heads", json!(1 << 20)),
        ("mamba_head_dim", json!(1 << 20)),
        ("ssm_state_size", json!(0)),
        ("n_groups", json!(3)),
        ("n_groups", json!(2147483647u32)),
        ("conv_kernel", json!(1)),
        ("conv_kernel", json!(1000)),
        ("num_attention_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("attention_head_dim", json!(32)),
        ("head_dim", json!(1u64 << 30)),
        ("intermediate_size", json!(2147483647u32)),
        ("n_routed_experts", json!(0)),
        ("n_routed_experts", json!(1 << 20)),
        ("num_local_experts", json!(9)),
        ("moe_intermediate_size", json!(2147483647u32)),
        ("moe_latent_size", json!("small")),
        ("moe_shared_expert_intermediate_size", json!(null)),
        ("num_experts_per_tok", json!(0)),
        ("num_experts_per_tok", json!(9)),
        ("n_group", json!(3)),
        ("n_group", json!(8)),
        ("routed_scaling_factor", json!("NaN")),
        ("routed_scaling_factor", json!(0.0)),
        ("norm_topk_prob", json!("yes")),
        ("use_conv_bias", json!(1)),
        ("tie_word_embeddings", json!(2)),
        ("quantization_config", json!(7)),
        ("quantization", json!({"bits": 4, "group_size": 64, "mode": "nvfp4"})),
    ] {
        let mut c = config("golden/nemotron_h/config.json");
        c[key] = value.clone();
        let error = bare(&c).expect_err(&format!("{key} = {value}"));
        assert!(matches!(error, ModelError::Field { .. }), "{key} = {value}: {error}");
    }
    for (key, value) in [
        ("mlp_hidden_act", json!("silu")),
        ("mamba_hidden_act", json!("relu")),
        ("sliding_window", json!(128)),
        ("quantization_config", json!({"quant_method": "gptq", "bits": 4})),
    ] {
        let mut c = config("golden/nemotron_h/config.json");
        c[key] = value.clone();
        let error = bare(&c).expect_err(&format!("{key} = {value}"));
        assert!(matches!(error, ModelError::Unsupported { .. }), "{key} = {value}: {error}");
    }
    let mut groups = config("golden/nemotron_h_latent/config.json");
    groups["topk_group"] = json!(5);
    assert!(bare(&groups).is_err());
    groups["topk_group"] = json!(1);
    groups["num_experts_per_tok"] = json!(4);
    assert!(bare(&groups).unwrap_err().to_string().contains("1 to 3"));
    for (key, value) in [
        ("num_heads", json!(16)),
        ("expand", json!(3)),
        ("expand", json!("NaN")),
        ("n_groups", json!(3)),
        ("state_size", json!(1u64 << 40)),
        ("num_hidden_layers", json!(100_000)),
        ("head_dim", json!(0)),
        ("layer_norm_epsilon", json!(1e300)),
    ] {
        let mut c = config("golden/mamba2/config.json");
        c[key] = value.clone();
        let error = bare(&c).expect_err(&format!("{key} = {value}"));
        assert!(matches!(error, ModelError::Field { .. }), "{key} = {value}: {error}");
    }
}

#[test]
fn tensors_of_other_sizes_than_the_configuration_are_refused() {
    for (key, value) in
        [("mamba_head_dim", 32), ("mamba_num_heads", 4), ("ssm_state_size", 8), ("conv_kernel", 3)]
    {
        let mut c = config("golden/nemotron_h/config.json");
        c[key] = json!(value);
        let error = Tensors::of("nemotron_h").build(&c).unwrap_err();
        assert!(matches!(error, ModelError::Shape { .. }), "{key}: {error}");
    }
    let c = config("golden/nemotron_h/config.json");
    for (name, shape) in [
        ("A_log", &[9][..]),
        ("conv1d.weight", &[4, 192]),
        ("conv1d.weight", &[192, 1, 5]),
        ("norm.weight", &[64]),
    ] {
        let mut tensors = Tensors::of("nemotron_h");
        tensors.set(&format!("backbone.layers.0.mixer.{name}"), "F32", shape);
        assert!(matches!(tensors.build(&c).unwrap_err(), ModelError::Shape { .. }), "{name}");
    }
    let mut tensors = Tensors::of("nemotron_h");
    tensors.set("backbone.layers.0.mixer.D", "U8", &[8]);
    assert!(matches!(tensors.build(&c).unwrap_err(), ModelError::Unsupported { .. }));
    // A shared expert that the configuration denies.
    let mut c = c;
    c["n_shared_experts"] = json!(0);
    assert!(matches!(Tensors::of("nemotron_h").build(&c).unwrap_err(), ModelError::Field { .. }));
}

#[test]
fn names_may_begin_with_model() {
    let c = config("golden/mamba2/config.json");
    let mut tensors = Tensors::of("mamba2");
    for name in tensors.0.keys().cloned().collect::<Vec<_>>() {
        if let Some(rest) = name.strip_prefix("backbone.") {
            tensors.rename(&name, &format!("model.{}", rest.replace("embeddings", "embed_tokens")));
        }
    }
    assert_eq!(tensors.build(&c).unwrap().graph, golden("mamba2").graph);
}

#[test]
fn gguf_models_are_their_sources() {
    for (gguf, source) in [
        ("gguf_nemotron_h", "nemotron_h"),
        ("gguf_nemotron_h_latent", "nemotron_h_latent"),
        ("gguf_mamba2", "mamba2"),
    ] {
        let (a, b) = (open(&format!("golden/{gguf}/model.gguf")), golden(source));
        assert_eq!((&a.graph, &a.states), (&b.graph, &b.states), "{gguf}");
        assert_eq!((&a.architecture, a.parameters()), (&b.architecture, b.parameters()));
        assert!(a.vectors.iter().all(|v| v.transform == Transform::None), "A is stored itself");
        assert!(b.vectors.iter().any(|v| v.transform == Transform::NegExp));
    }
}

#[test]
fn hostile_gguf_metadata_is_a_typed_error() {
    let file = |blocks: u32, kv: &[i32], ffn: &[i32], extra: u32, experts: u32| {
        let key = |name: &str| format!("nemotron_h_moe.{name}");
        Gguf::default()
            .key("general.architecture", Kv::Str("nemotron_h_moe"))
            .key(&key("block_count"), Kv::U32(blocks))
            .key(&key("context_length"), Kv::U32(64))
            .key(&key("embedding_length"), Kv::U32(32))
            .key(&key("vocab_size"), Kv::U32(16))
            .key(&key("attention.head_count"), Kv::U32(4))
            .key(&key("attention.head_count_kv"), Kv::I32s(kv.to_vec()))
            .key(&key("attention.key_length"), Kv::U32(8))
            .key(&key("attention.layer_norm_rms_epsilon"), Kv::F32(1e-5))
            .key(&key("feed_forward_length"), Kv::I32s(ffn.to_vec()))
            .key(&key("nextn_predict_layers"), Kv::U32(extra))
            .key(&key("expert_count"), Kv::U32(experts))
            .key(&key("ssm.conv_kernel"), Kv::U32(4))
            .key(&key("ssm.inner_size"), Kv::U32(32))
            .key(&key("ssm.state_size"), Kv::U32(16))
            .key(&key("ssm.time_step_rank"), Kv::U32(if experts == 5 { 3 } else { 4 }))
            .tensor("blk.1.ffn_gate_inp.weight", &[32, 8], 0, 1024)
            .bytes()
    };
    let build =
        |bytes: Vec<u8>| Registry::standard().build(&Checkpoint::from_gguf_bytes(bytes, "test").unwrap());
    for (name, bytes, expected) in [
        ("lists of another length", file(3, &[0, 2], &[0, 0, 8], 0, 0), "head_count_kv"),
        ("attention and MLP at once", file(2, &[2, 0], &[8, 0], 0, 0), "feed_forward_length"),
        ("nothing but extra layers", file(2, &[0, 2], &[0, 0], 2, 0), "nextn_predict_layers"),
        ("more extra layers than all", file(2, &[0, 2], &[0, 0], u32::MAX, 0), "nextn_predict_layers"),
        ("a router without experts", file(2, &[0, 0], &[0, 8], 0, 0), "expert_count"),
        ("a router without a choice", file(2, &[0, 0], &[0, 8], 0, 8), "expert_used_count"),
        ("heads that do not divide", file(2, &[0, 2], &[0, 0], 0, 5), "inner_size"),
        ("too many layers", file(1 << 20, &[0], &[0], 0, 0), "layers"),
        ("a negative width", file(2, &[0, 2], &[0, -1], 0, 0), "feed_forward_length"),
    ] {
        let error = build(bytes).expect_err(name);
        assert!(
            matches!(error, ModelError::Field { .. } | ModelError::Unsupported { .. }),
            "{name}: {error}"
        );
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
    // Sound metadata fails by the first tensor that is not there.
    let error = build(file(2, &[0, 2], &[0, 0], 0, 0)).unwrap_err();
    assert!(
        matches!(&error, ModelError::MissingTensor { name, .. } if name == "token_embd.weight"),
        "{error}"
    );
}
