//! gemma4: spellings, published configurations, sharing of keys and values, GGUF, experts stored one by one, and models
//! that contradict themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Kv;
use common::gguf::Edited;
use common::tensors::{Tensors, bare, config, formats, golden, golden_with, merge};
use plimsoll_kernels::Format;
use plimsoll_models::graph::{Keys, Op};
use plimsoll_models::model::State;
use plimsoll_models::{Model, ModelError};
use serde_json::json;

const FAMILIES: [&str; 3] = ["gemma4_text_dense", "gemma4_text_moe", "gemma4_text_ple"];

#[test]
fn both_spellings_of_a_config_are_one_model() {
    for family in FAMILIES {
        let old = bare(&config(&format!("golden/{family}/config.json"))).unwrap();
        let new = bare(&config(&format!("golden/{family}/config.transformers5.json"))).unwrap();
        assert_eq!((&old.matrices, &old.graph, &old.states), (&new.matrices, &new.graph, &new.states));
        assert_eq!(old.ropes, new.ropes);
        // The tensors say the same as the configuration.
        let read = golden(family);
        assert_eq!(old, Model { name: old.name.clone(), ..read });
    }
}

#[test]
fn a_configuration_of_mlx_is_what_its_tensors_are() {
    for family in ["mlx_gemma4_nvfp4", "mlx_gemma4_moe_nvfp4", "mlx_gemma4_ple_mxfp8"] {
        let bare = bare(&config(&format!("golden/{family}/config.json"))).unwrap();
        let read = golden(family);
        assert_eq!(formats(&bare), formats(&read), "{family}");
        assert_eq!((&bare.graph, &bare.states), (&read.graph, &read.states), "{family}");
    }
}

/// 50 sliding layers of 16 heads of 256 and 10 full ones of 4 heads of 512.
#[test]
fn a_published_config_is_priced() {
    let model = bare(&config("configs/gemma-4-31b-it-nvfp4.json")).unwrap();
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
    let model = golden("gemma4_text_ple");
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
        let error = golden_with(family, |c| {
            merge(c, &change);
        })
        .unwrap_err();
        assert!(error.to_string().contains(expected), "{change}: {error}");
    }
}

/// Tensors of a stack of experts, taken apart as quantised checkpoints have them.
fn one_by_one(tensors: &mut Tensors, module: &str) {
    for layer in 0..3 {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for (stack, parts) in [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])]
        {
            let (dtype, shape, bytes) = tensors.0.remove(&name(&format!("experts.{stack}"))).unwrap();
            let rows = shape[1] / parts.len() as u64;
            let mut pieces = bytes.chunks_exact((rows * shape[2] * 2) as usize);
            for expert in 0..shape[0] {
                for part in parts {
                    let one = name(&format!("{module}.{expert}.{part}.weight"));
                    let piece = pieces.next().unwrap().to_vec();
                    tensors.0.insert(one, (dtype.clone(), vec![rows, shape[2]], piece));
                }
            }
            assert!(pieces.next().is_none());
        }
    }
}

#[test]
fn experts_may_be_stored_one_by_one() {
    let config = config("golden/gemma4_text_moe/config.json");
    let stacked = golden("gemma4_text_moe");
    for module in ["experts", "moe.experts"] {
        let mut tensors = Tensors::of("gemma4_text_moe");
        one_by_one(&mut tensors, module);
        let model = tensors.build(&config).unwrap();
        assert_eq!((&model.graph, formats(&model)), (&stacked.graph, formats(&stacked)), "{module}");
        let stack = model.matrices.iter().find(|m| m.source.pieces.len() == 12).unwrap();
        let names: Vec<_> = stack.source.pieces.iter().map(|p| p.planes[0].as_str()).collect();
        let [gate, up, next] = ["0.gate_proj", "0.up_proj", "1.gate_proj"]
            .map(|part| format!("model.layers.0.{module}.{part}.weight"));
        assert_eq!(names[..3], [gate, up, next]);
        assert!(stack.source.pieces.iter().all(|p| (p.first_row, p.rows) == (0, 32)));

        tensors.0.remove(&format!("model.layers.1.{module}.5.up_proj.weight")).unwrap();
        let error = tensors.build(&config).unwrap_err();
        assert!(
            matches!(&error, ModelError::MissingTensor { name, .. } if name.ends_with("5.up_proj.weight")),
            "{error}"
        );
    }
}

#[test]
fn embeddings_of_layers_are_there_if_the_configuration_says_so() {
    for change in [json!({"hidden_size_per_layer_input": 0}), json!({"hidden_size_per_layer_input": null})] {
        let error = golden_with("gemma4_text_ple", |c| merge(c, &change)).unwrap_err();
        assert!(
            matches!(&error, ModelError::Field { key, .. } if key == "hidden_size_per_layer_input"),
            "{error}"
        );
        assert!(error.to_string().contains("embed_tokens_per_layer.weight"), "{error}");
    }
    let change = json!({"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 256});
    let error = golden_with("gemma4_text_dense", |c| merge(c, &change)).unwrap_err();
    assert!(
        matches!(&error, ModelError::MissingTensor { name, .. } if name == "model.embed_tokens_per_layer.weight"),
        "{error}"
    );
    let error = Edited::of("gguf_gemma4_ple")
        .set("gemma4.embedding_length_per_layer_input", &Kv::U32(0))
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("there is per_layer_token_embd.weight"), "{error}");
}

/// Numbers of a scaling that is not named would be left out without a word.
#[test]
fn gguf_rope_scaling_is_named() {
    let nameless = Edited::of("gguf_gpt_oss").without_key("gpt-oss.rope.scaling.type").build().unwrap_err();
    assert!(nameless.to_string().contains("gpt-oss.rope.scaling.type"), "{nameless}");
    for (family, arch) in [("gguf_llama", "llama"), ("gguf_qwen3_moe", "qwen3moe")] {
        for number in ["scaling.factor", "scale_linear"] {
            let key = format!("{arch}.rope.{number}");
            let error = Edited::of(family).set(&key, &Kv::F32(8.0)).build().unwrap_err();
            assert!(error.to_string().contains(&format!("{arch}.rope.scaling.type")), "{error}");
            Edited::of(family).set(&key, &Kv::F32(1.0)).build().unwrap();
        }
    }
}

#[test]
fn gguf_files_are_their_sources() {
    for kind in ["dense", "moe", "ple"] {
        let gguf = Edited::of(&format!("gguf_gemma4_{kind}")).build().unwrap();
        let source = golden(&format!("gemma4_text_{kind}"));
        assert_eq!((&gguf.graph, &gguf.states), (&source.graph, &source.states), "{kind}");
        let sizes = |m: &Model| (m.parameters(), m.vocab, m.hidden, m.layers, m.context_max);
        assert_eq!(sizes(&gguf), sizes(&source), "{kind}");
        for (a, b) in gguf.ropes.iter().zip(&source.ropes) {
            assert_eq!(a.pairs(), b.pairs());
            // What does not turn has a divisor so large that it turns by nothing.
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * b + 1e-29;
            assert!(a.frequencies.iter().zip(&b.frequencies).all(close), "{kind}: {a:?} {b:?}");
        }
        assert!(gguf.notes.is_empty(), "{:?}", gguf.notes);
    }
    // What the public reader does without, too.
    let plain = Edited::of("gguf_gemma4_moe").build().unwrap();
    let without = Edited::of("gguf_gemma4_moe").without("layer_output_scale").without("ffn_down_exps.scale");
    let bare = without.build().unwrap();
    assert_eq!(bare.parameters() + 3 * (1 + 6), plain.parameters());
    // But of every layer or of none.
    for part in ["blk.0.layer_output_scale", "blk.1.ffn_down_exps.scale"] {
        let error = Edited::of("gguf_gemma4_moe").without(part).build().unwrap_err();
        assert!(matches!(&error, ModelError::MissingTensor { name, .. } if name.contains(part)), "{error}");
    }
    let noted = Edited::of("gguf_gemma4_dense").set("tokenizer.ggml.suppress_tokens", &Kv::I32s(vec![1]));
    assert!(noted.build().unwrap().notes[0].contains("never to be chosen"));
    // Without a base of the sliding layers it is 10,000, and their heads turn as a whole.
    let shorter = Edited::of("gguf_gemma4_dense").without_key("gemma4.rope.freq_base_swa");
    let shorter = shorter.without_key("gemma4.rope.dimension_count_swa").build().unwrap();
    assert_eq!(shorter.ropes, Edited::of("gguf_gemma4_dense").build().unwrap().ropes);
}

#[test]
fn hostile_gguf_metadata_is_a_typed_error() {
    for (kind, key, value, expected) in [
        ("ple", "block_count", Kv::U32(7), "one for each of 7 layers"),
        ("ple", "block_count", Kv::U32(1 << 30), "1 to 4096"),
        ("ple", "block_count", Kv::U32(0), "block_count"),
        ("ple", "attention.shared_kv_layers", Kv::U32(6), "under the 6 layers"),
        ("ple", "attention.shared_kv_layers", Kv::U32(5), "whose keys and values it can share"),
        ("ple", "attention.shared_kv_layers", Kv::Str("3"), "shared_kv_layers"),
        ("ple", "feed_forward_length", Kv::U32(64), "expected shape"),
        ("ple", "feed_forward_length", Kv::I32s(vec![64, 64, 64, 0, 128, 128]), "a width for layer 3"),
        ("ple", "feed_forward_length", Kv::I32s(vec![64; 5]), "one for each of 6 layers"),
        ("ple", "embedding_length_per_layer_input", Kv::U32(8), "expected shape"),
        ("ple", "embedding_length_per_layer_input", Kv::U32(1 << 28), "under 2^26"),
        ("dense", "embedding_length_per_layer_input", Kv::U32(16), "per_layer_token_embd.weight is missing"),
        ("dense", "attention.sliding_window_pattern", Kv::U32(6), "sliding_window_pattern"),
        ("dense", "attention.sliding_window_pattern", Kv::I32s(vec![1, 1, 1, 0]), "sliding_window_pattern"),
        ("dense", "attention.sliding_window", Kv::U32(0), "sliding_window"),
        ("dense", "attention.head_count", Kv::U32(0), "attention heads: expected 1 to 65536"),
        ("dense", "attention.head_count", Kv::I32s(vec![4, 4, 4, 0]), "a divisor of the 0 query heads"),
        ("dense", "attention.head_count_kv", Kv::I32s(vec![2, 2, 0, 1]), "a divisor of the 4 query heads"),
        ("dense", "attention.head_count_kv", Kv::U32(2), "expected shape"),
        ("dense", "attention.key_length", Kv::U32(33), "value heads of 32"),
        ("dense", "attention.value_length_swa", Kv::U32(8), "value heads of 8"),
        ("dense", "attention.scale", Kv::F32(0.5), "attention.scale"),
        (
            "dense",
            "attention.layer_norm_rms_epsilon",
            Kv::F32(f32::NAN),
            "layer_norm_rms_epsilon: expected a number from 0 to 1",
        ),
        ("dense", "rope.freq_base_swa", Kv::F32(-1.0), "freq_base_swa"),
        ("dense", "rope.freq_base", Kv::F32(f32::INFINITY), "freq_base"),
        ("dense", "rope.dimension_count_swa", Kv::U32(15), "an even number up to the head size 16"),
        ("dense", "rope.dimension_count_swa", Kv::U32(18), "an even number up to the head size 16"),
        ("dense", "final_logit_softcapping", Kv::F32(0.0), "final_logit_softcapping"),
        ("dense", "vocab_size", Kv::U32(255), "the tokenizer's vocabulary"),
        ("dense", "expert_count", Kv::U32(4), "expert_used_count"),
        ("moe", "expert_count", Kv::U32(0), "as there is blk.0.ffn_gate_inp.weight"),
        ("moe", "expert_count", Kv::U32(5), "expected shape"),
        ("moe", "expert_used_count", Kv::U32(7), "at most the 6 experts"),
        ("moe", "expert_feed_forward_length", Kv::U32(i32::MAX as u32), "under 2^30"),
    ] {
        let file = Edited::of(&format!("gguf_gemma4_{kind}")).set(&format!("gemma4.{key}"), &value);
        let error = file.build().expect_err(&format!("{kind} {key}: {expected}"));
        assert!(error.to_string().contains(expected), "{kind} {key}: {error}");
    }
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.key_length",
        "attention.key_length_swa",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
    ] {
        let file = Edited::of("gguf_gemma4_dense").without_key(&format!("gemma4.{key}"));
        let error = file.build().expect_err(key);
        assert!(matches!(&error, ModelError::Field { key: k, .. } if k.ends_with(key)), "{key}: {error}");
    }
    for (kind, tensor) in [
        ("dense", "rope_freqs.weight"),
        ("dense", "blk.0.attn_v.weight"),
        ("dense", "blk.2.post_ffw_norm.weight"),
        ("moe", "blk.1.ffn_gate_inp.scale"),
        ("moe", "blk.1.ffn_gate_up_exps.weight"),
        ("moe", "blk.1.ffn_down_exps.weight"),
        ("ple", "per_layer_token_embd.weight"),
        ("ple", "blk.5.inp_gate.weight"),
    ] {
        let error = Edited::of(&format!("gguf_gemma4_{kind}")).without(tensor).build().expect_err(tensor);
        assert!(matches!(&error, ModelError::MissingTensor { name, .. } if name == tensor), "{error}");
    }
}
