//! Checkpoints and configurations that contradict each other or are no model's: each is refused by name, or what is made
//! of it is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::tensors::{Tensors, bare, config, golden};
use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use serde_json::{Value, json};

/// Every golden in safetensors.
const FAMILIES: [&str; 10] = [
    "llama",
    "qwen3",
    "gemma3_text",
    "gemma4_text_dense",
    "gpt_oss",
    "nemotron_h",
    "mamba2",
    "qwen3_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
];

fn published(family: &str) -> Value {
    config(&format!("golden/{family}/config.json"))
}

#[track_caller]
fn refused(result: Result<Model, ModelError>, parts: &[&str]) {
    let error = result.expect_err(&parts.join(" "));
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
    assert!(error.is_bad_input(), "{text}");
}

/// Cuts the last layer off a configuration, and off its lists.
fn one_layer_less(config: &mut Value) {
    let config = config.as_object_mut().unwrap();
    for key in ["layer_types", "layers_block_type"] {
        if let Some(list) = config.get_mut(key).and_then(Value::as_array_mut) {
            list.pop();
        }
    }
    if let Some(Value::String(pattern)) = config.get_mut("hybrid_override_pattern") {
        pattern.pop();
    }
    if let Some(layers) = config.get("num_hidden_layers").and_then(Value::as_u64) {
        config.insert("num_hidden_layers".into(), json!(layers - 1));
    }
}

#[test]
fn layers_past_the_stated_number_are_named() {
    for family in FAMILIES {
        let whole = golden(family);
        let mut config = published(family);
        one_layer_less(&mut config);
        // Of a gemma4 the last layer is full whatever the list says.
        if family.starts_with("gemma4") {
            continue;
        }
        let last = whole.layers - 1;
        refused(
            Tensors::of(family).build(&config),
            &[&format!("layers.{last}."), &format!("{last} layers"), &format!("layer {last}")],
        );
    }
}

#[test]
fn layers_that_predict_further_tokens_may_be_left_over_where_they_are_stated() {
    let mut tensors = Tensors::of("nemotron_h");
    let layers = golden("nemotron_h").layers;
    tensors.set(&format!("backbone.layers.{layers}.norm.weight"), "F32", &[48]);
    let mut config = published("nemotron_h");
    refused(tensors.build(&config), &[&format!("layers.{layers}.norm.weight")]);
    config["num_nextn_predict_layers"] = json!(1);
    assert!(tensors.build(&config).unwrap().notes.iter().any(|note| note.contains("further tokens")));
    tensors.set(&format!("backbone.layers.{}.norm.weight", layers + 1), "F32", &[48]);
    refused(tensors.build(&config), &[&format!("layers.{}.norm.weight", layers + 1)]);
}

#[test]
fn what_no_part_of_a_layer_reads_is_named_but_for_known_side_tensors() {
    for (family, tensor) in [
        ("llama", "model.layers.1.self_attn.q_norm.weight"),
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen3", "model.layers.0.mlp.up_proj.bias"),
        ("gemma3_text", "model.layers.0.self_attn.k_proj.bias"),
        ("mamba2", "backbone.layers.1.mixer.dt_proj.weight"),
        ("qwen3_moe", "model.layers.0.mlp.shared_expert.up_proj.weight"),
        ("llama", "lm_head.bias"),
        ("llama", "model.layers.0.self_attn.q_proj.weight_scale"),
    ] {
        let mut tensors = Tensors::of(family);
        tensors.set(tensor, "F32", &[8]);
        refused(tensors.build(&published(family)), &[tensor, "nothing reads"]);
    }
    let mut tensors = Tensors::of("llama");
    for side in [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.k_proj.k_scale",
        "model.layers.1.mlp.down_proj.input_scale",
        "mtp.layers.0.norm.weight",
        "model.visual.blocks.0.attn.qkv.bias",
        "vision_tower.encoder.layers.0.norm.weight",
    ] {
        tensors.set(side, "F32", &[8]);
    }
    let mut model = tensors.build(&published("llama")).unwrap();
    let told = std::mem::take(&mut model.notes);
    assert_eq!(told.len(), 2, "the tower and the layers that draft: {told:?}");
    assert!(told.iter().all(|note| note.contains("left out")), "{told:?}");
    assert_eq!(model, golden("llama"));
}

#[test]
fn vectors_and_biases_have_their_own_shapes() {
    for (family, tensor, shape) in [
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj_bias", [1, 0]),
        ("gpt_oss", "model.layers.1.mlp.experts.down_proj_bias", [1, 0]),
        ("mlx_gpt_oss", "model.layers.0.mlp.experts.gate_proj.bias", [1, 0]),
        ("mlx_gpt_oss", "model.layers.0.mlp.experts.down_proj.bias", [1, 0]),
    ] {
        let mut tensors = Tensors::of(family);
        let entry = tensors.0.get_mut(tensor).expect(tensor);
        let stored = entry.1.clone();
        entry.1 = shape.map(|i| stored[i]).to_vec();
        let config = published(family);
        refused(tensors.build(&config), &[tensor, "shape"]);
        tensors.0.get_mut(tensor).unwrap().1 = vec![stored[0] * stored[1]];
        refused(tensors.build(&config), &[tensor, "shape"]);
        tensors.0.get_mut(tensor).unwrap().1 = [&[1][..], &stored, &[1]].concat();
        tensors.build(&config).unwrap();
    }
    for (family, tensor) in [
        ("llama", "model.norm.weight"),
        ("gpt_oss", "model.layers.0.self_attn.q_proj.bias"),
        ("nemotron_h", "backbone.layers.0.mixer.D"),
    ] {
        let mut tensors = Tensors::of(family);
        let len = tensors.0[tensor].1[0];
        tensors.0.get_mut(tensor).unwrap().1 = vec![2, len / 2];
        refused(tensors.build(&published(family)), &[tensor, "shape"]);
        tensors.0.get_mut(tensor).unwrap().1 = vec![1, len, 1];
        tensors.build(&published(family)).unwrap();
    }
    // The norm of groups of channels, in groups; and taps that only count right.
    let mut tensors = Tensors::of("nemotron_h");
    let groups = published("nemotron_h")["n_groups"].as_u64().unwrap();
    let norm = tensors.0.get_mut("backbone.layers.0.mixer.norm.weight").unwrap();
    let inner = norm.1[0];
    norm.1 = vec![groups, inner / groups];
    tensors.build(&published("nemotron_h")).unwrap();
    tensors.0.get_mut("backbone.layers.0.mixer.norm.weight").unwrap().1 = vec![inner / groups, groups];
    refused(tensors.build(&published("nemotron_h")), &["mixer.norm.weight", "shape"]);
    let conv = "backbone.layers.0.mixer.conv1d.weight";
    let mut tensors = Tensors::of("nemotron_h");
    let stored = tensors.0[conv].1.clone();
    tensors.0.get_mut(conv).unwrap().1 = vec![stored[0], 2, stored[2] / 2];
    refused(tensors.build(&published("nemotron_h")), &[conv, "shape"]);
}

#[test]
fn a_head_beside_a_tied_embedding_is_used_and_told_unless_it_is_the_same() {
    for (family, table, head) in [
        ("qwen3", "model.embed_tokens.weight", "lm_head.weight"),
        ("gemma3_text", "model.embed_tokens.weight", "lm_head.weight"),
        ("gemma4_text_dense", "model.embed_tokens.weight", "lm_head.weight"),
        ("mlx_qwen3_5bit", "model.embed_tokens.weight", "lm_head.weight"),
    ] {
        let config = published(family);
        assert_eq!(config["tie_word_embeddings"], true, "{family}");
        let mut tensors = Tensors::of(family);
        let tied = tensors.build(&config).unwrap();
        for part in ["weight", "scales", "biases"] {
            let of = |name: &str| name.replace("weight", part);
            if let Some(entry) = tensors.0.get(&of(table)).cloned() {
                tensors.0.insert(of(head), entry);
            }
        }
        assert_eq!(tensors.build(&config).unwrap(), tied, "{family}: a copy is the embedding");
        *tensors.0.get_mut(head).unwrap().2.last_mut().unwrap() ^= 1;
        let model = tensors.build(&config).unwrap();
        assert_eq!(model.matrices.len(), tied.matrices.len() + 1, "{family}");
        assert!(
            model.notes.iter().any(|n| n.contains(head) && n.contains("tie_word_embeddings")),
            "{family}"
        );
    }
}

#[test]
fn stated_biases_are_there_and_denied_ones_are_not() {
    for (family, key, bias) in [
        ("nemotron_h", "use_bias", "mixer.in_proj.bias"),
        ("nemotron_h", "attention_bias", "mixer.q_proj.bias"),
        ("mamba2", "use_bias", "mixer.in_proj.bias"),
        ("llama", "attention_bias", "self_attn.q_proj.bias"),
        ("qwen3", "attention_bias", "self_attn.q_proj.bias"),
        ("qwen3_moe", "attention_bias", "_proj.bias"),
    ] {
        let mut config = published(family);
        config[key] = json!(true);
        if key == "use_bias" && family == "nemotron_h" {
            config["mamba_proj_bias"] = json!(true);
        }
        refused(Tensors::of(family).build(&config), &[bias, "missing"]);
    }
    // Two spellings of one switch, which readers obey one each.
    let mut config = published("nemotron_h");
    config["use_bias"] = json!(true);
    config["mamba_proj_bias"] = json!(false);
    refused(Tensors::of("nemotron_h").build(&config), &["mamba_proj_bias", "use_bias"]);
    // A convolution without the bias that its configuration denies, or with the one that it does not state.
    let mut tensors = Tensors::of("mamba2");
    let mut config = published("mamba2");
    config["use_conv_bias"] = json!(false);
    refused(tensors.build(&config), &["use_conv_bias", "conv1d.bias"]);
    tensors.0.retain(|name, _| !name.ends_with("conv1d.bias"));
    tensors.build(&config).unwrap();
    config["use_conv_bias"] = json!(true);
    refused(tensors.build(&config), &["conv1d.bias", "missing"]);
}

#[test]
fn a_group_that_the_scales_deny_is_refused_also_where_rows_are_no_multiple_of_it() {
    // Rows of 96 are no whole number of groups of 64 or 128, and such rows stay plain; these are packed all the same.
    let family = "mlx_llama_4bit";
    let mut config = published(family);
    let own = config["quantization"]["group_size"].as_u64().unwrap();
    for group in [32, 64, 128].into_iter().filter(|group| *group != own) {
        for key in ["quantization", "quantization_config"] {
            config[key]["group_size"] = json!(group);
        }
        refused(
            Tensors::of(family).build(&config),
            &["quantization of", &format!("_g{own}_"), &format!("_g{group}_")],
        );
    }
    let mut config = published(family);
    config["quantization"]["model.layers.0.self_attn.q_proj"] = json!(false);
    refused(Tensors::of(family).build(&config), &["model.layers.0.self_attn.q_proj", "no packing"]);
}

#[test]
fn two_spellings_of_one_number_agree() {
    for (family, key) in [("gpt_oss", "experts_per_token"), ("nemotron_h", "num_experts")] {
        let mut config = published(family);
        config[key] = json!(3);
        refused(bare(&config), &["the same value in all spellings"]);
    }
}

#[test]
fn numbers_out_of_range_are_named_with_the_range() {
    let cases: [(&str, &str, &[f64]); 13] = [
        ("llama", "rms_norm_eps", &[1.8e19, 2.0, -1e-6]),
        ("qwen3", "rms_norm_eps", &[1e30]),
        ("qwen3_moe", "rms_norm_eps", &[-1.0]),
        ("mamba2", "layer_norm_epsilon", &[1e19]),
        ("nemotron_h", "layer_norm_epsilon", &[1e19, -1e-5]),
        ("nemotron_h", "routed_scaling_factor", &[1e20, 0.0, -2.5, 1e-30]),
        ("llama", "rope_theta", &[0.5, 0.0, -1e4, 1e30]),
        ("gemma3_text", "rope_local_base_freq", &[0.5, -1.0]),
        ("gemma3_text", "final_logit_softcapping", &[1e-40, 0.0, -30.0, 1e30]),
        ("gemma4_text_dense", "final_logit_softcapping", &[1e-40, 1e30]),
        ("gemma3_text", "query_pre_attn_scalar", &[1e-30, 0.0, 1e30]),
        ("gpt_oss", "swiglu_limit", &[1e30, 0.0, 1e-30]),
        ("gpt_oss", "swiglu_alpha", &[1e30, -1.0]),
    ];
    for (family, key, values) in cases {
        for value in values {
            let mut config = published(family);
            config[key] = json!(value);
            refused(bare(&config), &[key, "a number from", &value.to_string()]);
        }
        for value in ["NaN", "Infinity"] {
            let mut config = published(family);
            config[key] = json!(value);
            refused(bare(&config), &[key, value]);
        }
    }
    for (key, value) in [("factor", 1e30), ("factor", 0.0), ("low_freq_factor", -1.0), ("factor", 1e-30)] {
        let mut config = published("llama");
        config["rope_scaling"][key] = json!(value);
        refused(bare(&config), &[key, "a number from"]);
    }
    // What is merely unusual is not refused.
    let mut config = published("llama");
    config["rms_norm_eps"] = json!(0.0);
    config["rope_theta"] = json!(1.0);
    bare(&config).unwrap();
}

#[test]
fn published_forms_of_every_family_are_read_whole() {
    let mut count = 0;
    for entry in std::fs::read_dir(common::data("golden")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let checkpoint = Checkpoint::open(&path).unwrap();
        let model = Registry::standard().build(&checkpoint);
        let model = model.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!model.notes.iter().any(|note| note.contains("tie_word_embeddings")), "{:?}", model.notes);
        count += 1;
    }
    assert!(count > 30, "{count} goldens");
}

#[test]
fn a_gguf_file_is_read_whole() {
    let folder = common::data("golden/gguf_llama");
    let mut files = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    let file = files.find(|p| p.extension().is_some_and(|e| e == "gguf")).unwrap();
    let bytes = std::fs::read(file).unwrap();
    // Names of the same length: offsets stay what they are.
    for (from, to) in
        [("blk.1.attn_norm.weight", "blk.1.attn_nurm.weight"), ("output_norm.weight", "output_nurm.weight")]
    {
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let checkpoint = Checkpoint::from_gguf_bytes(bytes, "test").unwrap();
        refused(Registry::standard().build(&checkpoint), &[from, "missing"]);
    }
    let key = b"llama.block_count";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    let mut bytes = bytes.clone();
    let layers = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(layers - 1).to_le_bytes());
    let checkpoint = Checkpoint::from_gguf_bytes(bytes, "test").unwrap();
    let last = layers - 1;
    refused(Registry::standard().build(&checkpoint), &[&format!("blk.{last}."), &format!("layer {last}")]);
}
