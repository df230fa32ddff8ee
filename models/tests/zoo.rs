//! The zoo: spellings, defaults, and models that contradict themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::data;
use common::tensors::{bare, config, golden, golden_with};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::model::State;
use plimsoll_models::{Model, ModelError, Registry};
use serde_json::{Value, json};

fn close(a: &Model, b: &Model) {
    assert_eq!(a.matrices, b.matrices);
    assert_eq!(a.graph, b.graph);
    assert_eq!(a.states, b.states);
    for (a, b) in a.ropes.iter().zip(&b.ropes) {
        for (a, b) in a.frequencies.iter().zip(&b.frequencies) {
            assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        }
    }
}

#[test]
fn both_spellings_of_a_config_are_one_model() {
    for family in ["llama", "qwen3", "gemma3_text"] {
        let old = bare(&config(&format!("golden/{family}/config.json"))).unwrap();
        let new = bare(&config(&format!("golden/{family}/config.transformers5.json"))).unwrap();
        close(&old, &new);
    }
}

#[test]
fn a_sparse_gemma_config_takes_the_class_defaults() {
    let sparse = bare(&config("configs/gemma-3-4b-it-sparse.json")).unwrap();
    assert_eq!((sparse.vocab, sparse.hidden, sparse.layers), (262_208, 2560, 34));
    let shape = sparse.states[0].attention().unwrap();
    assert_eq!((shape.heads, shape.kv_heads, shape.head_dim), (8, 4, 256));
    let full: Vec<usize> = (0..34).filter(|&i| matches!(sparse.states[i], State::KvFull { .. })).collect();
    assert_eq!(full, [5, 11, 17, 23, 29]);
    assert!(sparse.states.iter().all(|s| !matches!(s, State::KvSliding { window, .. } if *window != 1024)));
    // The full layers are stretched eightfold, the sliding ones are not.
    assert!((sparse.ropes[0].frequencies[0] - 0.125).abs() < 1e-12);
    assert!((sparse.ropes[1].frequencies[0] - 1.0).abs() < 1e-12);
}

#[test]
fn a_list_of_layer_types_beats_an_interval() {
    let mut gemma = config("golden/gemma3_text/config.json");
    gemma["layer_types"] = json!(["full_attention", "sliding_attention", "full_attention", "full_attention"]);
    let model = bare(&gemma).unwrap();
    let sliding: Vec<bool> = model.states.iter().map(|s| matches!(s, State::KvSliding { .. })).collect();
    assert_eq!(sliding, [false, true, false, false]);
    gemma["layer_types"] = json!(["full_attention"]);
    assert!(matches!(bare(&gemma).unwrap_err(), ModelError::Field { key, .. } if key == "layer_types"));
}

#[test]
fn engine_bug_08_query_heads_that_are_no_multiple_of_kv_heads_are_refused() {
    for family in ["llama", "qwen3", "gemma3_text"] {
        let error = golden_with(family, |c| {
            c["num_attention_heads"] = json!(3);
            c["num_key_value_heads"] = json!(2);
        })
        .unwrap_err();
        assert!(error.to_string().contains("a divisor of the 3 query heads, got 2"), "{error}");
        assert!(error.is_bad_input());
    }
}

#[test]
fn odd_heads_are_refused_before_planning() {
    let error = golden_with("llama", |c| c["head_dim"] = json!(5)).unwrap_err();
    assert!(error.to_string().contains("head size: expected an even number"), "{error}");
}

#[test]
fn shapes_and_missing_tensors_are_named() {
    let error = golden_with("llama", |c| c["intermediate_size"] = json!(97)).unwrap_err();
    let ModelError::Shape { name, expected, got } = &error else { panic!("{error}") };
    assert_eq!(
        (name.as_str(), &expected[..], &got[..]),
        ("model.layers.0.mlp.gate_proj.weight", &[97, 64][..], &[96, 64][..])
    );
    let error = golden_with("llama", |c| c["num_hidden_layers"] = json!(4)).unwrap_err();
    assert!(error.to_string().contains("model.layers.3.input_layernorm.weight is missing"), "{error}");
    // A vocabulary that disagrees with the embedding.
    let error = golden_with("qwen3", |c| c["vocab_size"] = json!(300)).unwrap_err();
    assert!(
        matches!(&error, ModelError::Shape { name, .. } if name == "model.embed_tokens.weight"),
        "{error}"
    );
}

#[test]
fn absurd_numbers_are_named_fields() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-5)),
        ("hidden_size", json!(1u64 << 63)),
        ("num_hidden_layers", json!(1_000_000)),
        ("num_attention_heads", json!("four")),
        ("vocab_size", json!(1u64 << 31)),
        ("vocab_size", json!(256.5)),
        ("rms_norm_eps", json!("Infinity")),
        ("rms_norm_eps", json!(-1.0)),
        ("head_dim", json!([])),
        ("rope_theta", json!(0.0)),
        ("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0})),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        (
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 0.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
        ),
        ("max_position_embeddings", json!(0)),
        ("tie_word_embeddings", json!("yes")),
    ] {
        let error = golden_with("llama", |c| c[key] = value.clone()).expect_err(key);
        assert!(matches!(error, ModelError::Field { .. }), "{key} = {value}: {error}");
    }
    for (key, value) in [
        ("rope_scaling", json!({"rope_type": "dynamic", "factor": 4.0})),
        ("rope_scaling", json!({"rope_type": "proportional"})),
        ("partial_rotary_factor", json!(0.5)),
        ("mlp_bias", json!(true)),
    ] {
        let error = golden_with("llama", |c| c[key] = value.clone()).expect_err(key);
        assert!(matches!(error, ModelError::Unsupported { .. }), "{key} = {value}: {error}");
    }
}

/// A model that would run, and answer nonsense, is refused by the field that says so.
#[test]
fn another_activation_is_refused() {
    for (family, key, good, other) in [
        ("llama", "hidden_act", "swish", "gelu"),
        ("qwen3", "hidden_act", "silu", "relu"),
        ("gemma3_text", "hidden_activation", "gelu_new", "silu"),
    ] {
        golden_with(family, |config| config[key] = json!(good)).unwrap();
        golden_with(family, |config| config[key] = Value::Null).unwrap();
        let error = golden_with(family, |config| config[key] = json!(other)).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{family}: {error}");
        assert!(error.to_string().contains(key) && error.to_string().contains(other), "{error}");
        let error = golden_with(family, |config| config[key] = json!(1)).unwrap_err();
        assert!(matches!(error, ModelError::Field { .. }), "{family}: {error}");
    }
}

#[test]
fn numbers_that_do_not_fit_the_device_are_refused() {
    for key in ["final_logit_softcapping", "query_pre_attn_scalar", "rms_norm_eps", "rope_local_base_freq"] {
        golden_with("gemma3_text", |config| config[key] = json!(1.0)).unwrap();
        for number in [1e39, -1e39, 1e300] {
            let error = golden_with("gemma3_text", |config| config[key] = json!(number)).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}

#[test]
fn packed_weights_are_not_priced_as_plain_ones() {
    for (key, value, named) in [
        ("quantization_config", json!({"quant_method": "awq", "bits": 4}), "awq"),
        ("quantization_config", json!({"quant_method": "bitnet"}), "bitnet"),
        ("quantization", json!({"group_size": 64, "bits": 7}), "7 bits"),
        ("quantization_config", json!({"quant_method": "gptq", "bits": 4}), "gptq"),
        ("quantization_config", json!({"quant_method": "fp8"}), "fp8"),
    ] {
        for base in ["configs/llama-3.1-8b.json", "configs/qwen3-8b.json", "configs/gemma-3-270m.json"] {
            let mut config = config(base);
            config[key] = value.clone();
            let error = bare(&config).expect_err(base);
            assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(named), "{error}");
        }
    }
    let mut plain = config("configs/qwen3-8b.json");
    plain["quantization_config"] = Value::Null;
    assert!(bare(&plain).is_ok());
}

#[test]
fn an_unknown_architecture_cannot_be_priced() {
    let error = bare(&json!({"model_type": "phi9", "hidden_size": 64})).unwrap_err();
    let ModelError::UnknownArchitecture { stated, known } = &error else { panic!("{error}") };
    assert_eq!(stated, "phi9");
    assert!(known.contains("llama") && known.contains("gemma3"));
    assert!(matches!(bare(&json!({"hidden_size": 64})).unwrap_err(), ModelError::UnknownArchitecture { .. }));
}

#[test]
fn gguf_models_match_their_source() {
    for (gguf, source) in [("gguf_llama", "llama"), ("gguf_qwen3", "qwen3")] {
        let checkpoint = Checkpoint::open(&data(&format!("golden/{gguf}/model.gguf"))).unwrap();
        let a = Registry::standard().build(&checkpoint).unwrap();
        let b = golden(source);
        assert_eq!(
            (a.vocab, a.hidden, a.layers, a.states.len()),
            (b.vocab, b.hidden, b.layers, b.states.len())
        );
        assert_eq!(a.states[0].attention(), b.states[0].attention());
        assert_eq!(a.matrices.len(), b.matrices.len());
        for (a, b) in a.ropes[0].frequencies.iter().zip(&b.ropes[0].frequencies) {
            assert!((a / b - 1.0).abs() < 1e-5, "{a} {b}");
        }
    }
}

#[test]
fn tied_heads_are_counted_once() {
    let tied = bare(&config("configs/smollm2-135m.json")).unwrap();
    assert_eq!(tied.parameters(), 134_515_008);
    let untied = golden("llama");
    assert!(untied.matrices.iter().any(|m| m.source.name() == "lm_head.weight"));
}
