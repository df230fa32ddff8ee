//! qwen3moe, qwen3next, qwen35 and qwen35moe files: what writers did to their sources, the forms they may have, and
//! metadata that contradicts itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::tensors::{golden, matrices, open, runs};
use common::{Gguf, Kv};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{Delta, Op, Router};
use plimsoll_models::model::Transform;
use plimsoll_models::{Model, ModelError, Registry};

fn build(file: &Gguf) -> Result<Model, ModelError> {
    Registry::standard().build(&Checkpoint::from_gguf_bytes(file.bytes(), "test").unwrap())
}

fn deltas(model: &Model) -> Vec<&Delta> {
    let deltas = model.graph.ops.iter().filter_map(|(_, op)| match op {
        Op::Delta { delta, .. } => Some(delta),
        _ => None,
    });
    deltas.collect()
}

fn router(model: &Model) -> &Router {
    let router = model.graph.ops.iter().find_map(|(_, op)| match op {
        Op::Route { router, .. } => Some(router),
        _ => None,
    });
    router.unwrap()
}

#[test]
fn files_are_their_sources_but_for_what_writers_do() {
    for (gguf, source, tiled) in [
        ("gguf_qwen3_moe", "qwen3_moe", false),
        ("gguf_qwen3_next", "qwen3_next", false),
        ("gguf_qwen3_5", "qwen3_5_text", true),
        ("gguf_qwen3_5_moe", "qwen3_5_moe_text", true),
    ] {
        let (a, mut b) = (open(&format!("golden/{gguf}/model.gguf")), golden(source));
        // Norms have their 1, and value heads may take turns.
        for (_, op) in &mut b.graph.ops {
            match op {
                Op::RmsNorm { plus_one, .. } => *plus_one = false,
                Op::Attention { attention, .. } => {
                    for norm in [&mut attention.q_norm, &mut attention.k_norm].into_iter().flatten() {
                        norm.plus_one = false;
                    }
                }
                Op::Delta { delta, .. } => delta.tiled = tiled,
                _ => {}
            }
        }
        assert_eq!((&a.graph, &a.states), (&b.graph, &b.states), "{gguf}");
        assert_eq!(a.ropes, b.ropes, "{gguf}");
        assert_eq!((&a.architecture, a.parameters()), (&b.architecture, b.parameters()), "{gguf}");
        assert_eq!((a.layers, a.context_max), (b.layers, b.context_max), "{gguf}");
        assert!(a.vectors.iter().all(|v| v.transform == Transform::None), "A is stored itself");
        let drafts = a.notes.iter().any(|n| n.contains("further tokens"));
        assert_eq!(drafts, gguf == "gguf_qwen3_5", "{gguf}: {:?}", a.notes);
    }
}

/// A value, which tests change.
enum Change {
    Set(Kv),
    Remove,
}

/// One layer that attends and one before that does not, or two that attend, with every tensor, all of them f32.
struct File {
    arch: &'static str,
    gguf: Gguf,
}

const HIDDEN: u64 = 32;

impl File {
    fn new(arch: &'static str) -> Self {
        let mut gguf = Gguf::default().key("general.architecture", Kv::Str(arch));
        for (name, value) in [
            ("block_count", 2),
            ("context_length", 64),
            ("embedding_length", HIDDEN as u32),
            ("vocab_size", 16),
            ("feed_forward_length", 48),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 8),
            ("attention.value_length", 8),
            ("rope.dimension_count", if arch == "qwen3moe" { 8 } else { 2 }),
            ("expert_count", 4),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 24),
            ("expert_shared_feed_forward_length", 40),
            ("ssm.conv_kernel", 4),
            ("ssm.inner_size", 32),
            ("ssm.state_size", 16),
            ("ssm.time_step_rank", 4),
            ("ssm.group_count", 2),
            ("full_attention_interval", 2),
        ] {
            // Where all layers attend and no expert is shared, or none are there, nobody reads it.
            let unread = match arch {
                "qwen3moe" => &["ssm.", "full_attention_interval", "expert_shared"][..],
                "qwen35" => &["expert_"][..],
                _ => &[],
            };
            if unread.iter().any(|start| name.starts_with(start)) {
                continue;
            }
            gguf = gguf.key(&format!("{arch}.{name}"), Kv::U32(value));
        }
        gguf = gguf.key(&format!("{arch}.attention.layer_norm_rms_epsilon"), Kv::F32(1e-6));
        let mut file = Self { arch, gguf };
        file.put("token_embd.weight", &[HIDDEN, 16]);
        file.put("output_norm.weight", &[HIDDEN]);
        for layer in 0..2 {
            let attends = layer == 1 || arch == "qwen3moe";
            file.layer(layer, attends);
        }
        file
    }

    fn layer(&mut self, layer: u32, attends: bool) {
        let plain = self.arch == "qwen3moe";
        let mut parts: Vec<(&str, Vec<u64>)> = vec![("attn_norm.weight", vec![HIDDEN])];
        parts.push((if plain { "ffn_norm.weight" } else { "post_attention_norm.weight" }, vec![HIDDEN]));
        if attends {
            parts.push(("attn_q.weight", vec![HIDDEN, if plain { 32 } else { 64 }]));
            parts.extend(["attn_k.weight", "attn_v.weight"].map(|name| (name, vec![HIDDEN, 16])));
            parts.push(("attn_output.weight", vec![32, HIDDEN]));
            parts.extend(["attn_q_norm.weight", "attn_k_norm.weight"].map(|name| (name, vec![8])));
        } else {
            // Two key heads of 16, four value heads of 8.
            parts.push(("attn_qkv.weight", vec![HIDDEN, 96]));
            parts.push(("attn_gate.weight", vec![HIDDEN, 32]));
            parts.push(("ssm_conv1d.weight", vec![4, 96]));
            parts.push(("ssm_a", vec![4]));
            parts.push(("ssm_dt.bias", vec![4]));
            parts.push(("ssm_norm.weight", vec![8]));
            parts.push(("ssm_out.weight", vec![32, HIDDEN]));
            match self.arch {
                "qwen3next" => parts.push(("ssm_ba.weight", vec![HIDDEN, 8])),
                _ => parts.extend(["ssm_alpha.weight", "ssm_beta.weight"].map(|n| (n, vec![HIDDEN, 4]))),
            }
        }
        if self.arch == "qwen35" {
            parts.extend(["ffn_gate.weight", "ffn_up.weight"].map(|name| (name, vec![HIDDEN, 48])));
            parts.push(("ffn_down.weight", vec![48, HIDDEN]));
        } else {
            parts.push(("ffn_gate_inp.weight", vec![HIDDEN, 4]));
            parts.extend(["ffn_gate_exps.weight", "ffn_up_exps.weight"].map(|n| (n, vec![HIDDEN, 24, 4])));
            parts.push(("ffn_down_exps.weight", vec![24, HIDDEN, 4]));
            if !plain {
                parts.push(("ffn_gate_inp_shexp.weight", vec![HIDDEN]));
                parts.extend(["ffn_gate_shexp.weight", "ffn_up_shexp.weight"].map(|n| (n, vec![HIDDEN, 40])));
                parts.push(("ffn_down_shexp.weight", vec![40, HIDDEN]));
            }
        }
        for (name, ne) in parts {
            self.put(&format!("blk.{layer}.{name}"), &ne);
        }
    }

    fn put(&mut self, name: &str, ne: &[u64]) {
        let bytes = 4 * ne.iter().product::<u64>() as usize;
        let gguf = std::mem::take(&mut self.gguf);
        self.gguf = gguf.tensor(name, ne, 0, bytes);
    }

    fn without(mut self, name: &str) -> Self {
        let before = self.gguf.tensors.len();
        self.gguf.tensors.retain(|t| t.0 != name);
        assert_eq!(self.gguf.tensors.len() + 1, before, "{name}");
        self
    }

    fn with(mut self, name: &str, ne: &[u64]) -> Self {
        self.put(name, ne);
        self
    }

    fn change(mut self, name: &str, change: Change) -> Self {
        let key = format!("{}.{name}", self.arch);
        self.gguf.keys.retain(|(k, _)| *k != key);
        if let Change::Set(value) = change {
            self.gguf.keys.push((key, value));
        }
        self
    }

    fn set(self, name: &str, value: Kv) -> Self {
        self.change(name, Change::Set(value))
    }

    fn build(&self) -> Result<Model, ModelError> {
        build(&self.gguf)
    }
}

const ARCHITECTURES: [&str; 4] = ["qwen3moe", "qwen3next", "qwen35", "qwen35moe"];

#[test]
fn what_is_not_stated_has_the_readers_defaults() {
    for arch in ARCHITECTURES {
        let whole = File::new(arch).build().unwrap();
        for key in ["attention.value_length", "attention.key_length", "full_attention_interval"] {
            if key == "full_attention_interval" && arch == "qwen3moe" {
                continue;
            }
            let changed = File::new(arch).change(key, Change::Remove);
            let changed = match key {
                // Every fourth: none here attends.
                "full_attention_interval" => {
                    changed.set("attention.recurrent_layers", Kv::I32s(vec![1, 0])).build()
                }
                _ => changed.build(),
            };
            assert_eq!(changed.unwrap(), whole, "{arch} {key}");
        }
        assert!(whole.notes.is_empty(), "{arch}: {:?}", whole.notes);
    }
    let model = File::new("qwen35moe").change("full_attention_interval", Change::Remove);
    let error = model.build().unwrap_err();
    assert!(
        matches!(&error, ModelError::MissingTensor { name, .. } if name == "blk.1.attn_qkv.weight"),
        "{error}"
    );
}

#[test]
fn value_heads_take_turns_where_writers_move_them() {
    for (arch, tiled) in [("qwen3next", false), ("qwen35", true), ("qwen35moe", true)] {
        let file = || File::new(arch);
        assert!(deltas(&file().build().unwrap()).iter().all(|d| d.tiled == tiled), "{arch}");
        for stated in [true, false] {
            let model = file().set("ssm.v_head_reordered", Kv::Bool(stated)).build().unwrap();
            assert!(deltas(&model).iter().all(|d| d.tiled == stated), "{arch}, stated");
        }
    }
}

#[test]
fn fused_projections_of_older_files_are_taken_apart_by_key_heads() {
    let newer = File::new("qwen3next").build().unwrap();
    assert_eq!(runs(matrices(&newer, "layers.0.in_proj_qkv")[0]), [(0, 96)]);
    let ba = matrices(&newer, "layers.0.in_proj_ba");
    assert_eq!((runs(ba[0]), runs(ba[1])), (vec![(0, 2), (4, 2)], vec![(2, 2), (6, 2)]));
    // Two key heads with 16 rows each of q and k, then 16 of v and of z for two value heads: 64 rows a key head.
    let older = File::new("qwen3next").without("blk.0.attn_qkv.weight").without("blk.0.attn_gate.weight");
    let older = older.with("blk.0.ssm_in.weight", &[HIDDEN, 128]).build().unwrap();
    assert_eq!(
        runs(matrices(&older, "layers.0.in_proj_qkv")[0]),
        [(0, 16), (64, 16), (16, 16), (80, 16), (32, 16), (96, 16)]
    );
    assert_eq!(runs(matrices(&older, "layers.0.in_proj_z")[0]), [(48, 16), (112, 16)]);
    assert_eq!(older.graph, newer.graph);
}

#[test]
fn other_forms_of_one_model() {
    // Gates and ups of the experts in one tensor, gates first.
    let split = File::new("qwen35moe").build().unwrap();
    let mut file = File::new("qwen35moe");
    for layer in 0..2 {
        for part in ["gate", "up"] {
            file = file.without(&format!("blk.{layer}.ffn_{part}_exps.weight"));
        }
        file = file.with(&format!("blk.{layer}.ffn_gate_up_exps.weight"), &[HIDDEN, 48, 4]);
    }
    let joined = file.build().unwrap();
    assert_eq!(joined.graph, split.graph);
    assert_eq!(runs(matrices(&joined, "layers.0.experts_gate_up")[0]), [(0, 192)]);
    let pieces = runs(matrices(&split, "layers.0.experts_gate_up")[0]);
    assert_eq!(pieces[..4], [(0, 24), (0, 24), (24, 24), (24, 24)]);
    // The gate of the shared expert as a matrix of one row.
    let matrix = File::new("qwen35moe").without("blk.1.ffn_gate_inp_shexp.weight");
    let matrix = matrix.with("blk.1.ffn_gate_inp_shexp.weight", &[HIDDEN, 1]).build().unwrap();
    assert_eq!(matrix.graph, split.graph);
    // Ollama's name of the biases, and its lists of heads.
    let other = File::new("qwen35moe").without("blk.0.ssm_dt.bias").with("blk.0.ssm_dt", &[4]);
    let other = other.set("attention.head_count_kv", Kv::I32s(vec![0, 2])).build().unwrap();
    assert_eq!((&other.graph, &other.states), (&split.graph, &split.states));
    // A list of the layers instead of an interval.
    let listed = File::new("qwen35moe").change("full_attention_interval", Change::Remove);
    let listed = listed.set("attention.recurrent_layers", Kv::Raw(9, bools(&[true, false])));
    assert_eq!(listed.build().unwrap().graph, split.graph);
    // Draft layers are left out, and a tied head is the embedding.
    let drafts =
        File::new("qwen35moe").set("block_count", Kv::U32(3)).set("nextn_predict_layers", Kv::U32(1));
    let drafts = drafts.with("blk.2.attn_norm.weight", &[HIDDEN]).build().unwrap();
    assert_eq!((drafts.layers, &drafts.graph), (2, &split.graph));
    assert!(drafts.notes.iter().any(|n| n.contains("further tokens")), "{:?}", drafts.notes);
    let untied = File::new("qwen35moe").with("output.weight", &[HIDDEN, 16]).build().unwrap();
    assert_eq!(untied.parameters(), split.parameters() + 16 * HIDDEN);
    // Weights are normalised, as the public reader does, unless a file says otherwise.
    for arch in ["qwen3moe", "qwen3next"] {
        assert!(router(&File::new(arch).build().unwrap()).normalise, "{arch}");
        let model = File::new(arch).set("expert_weights_norm", Kv::Bool(false)).build().unwrap();
        assert!(!router(&model).normalise, "{arch}");
    }
}

/// The elements of an array of booleans, as GGUF has them.
fn bools(values: &[bool]) -> Vec<u8> {
    let mut out = 7u32.to_le_bytes().to_vec();
    out.extend((values.len() as u64).to_le_bytes());
    out.extend(values.iter().map(|v| u8::from(*v)));
    out
}

#[test]
fn hostile_metadata_is_a_typed_error() {
    let hybrids = &ARCHITECTURES[1..];
    let mixtures = ["qwen3moe", "qwen3next", "qwen35moe"];
    let cases: Vec<(&[&str], &str, Kv)> = vec![
        (&ARCHITECTURES, "block_count", Kv::U32(1 << 20)),
        (&ARCHITECTURES, "block_count", Kv::U32(0)),
        (&ARCHITECTURES, "nextn_predict_layers", Kv::U32(2)),
        (&ARCHITECTURES, "nextn_predict_layers", Kv::U64(u64::MAX)),
        (&ARCHITECTURES, "embedding_length", Kv::U64(1 << 40)),
        (&ARCHITECTURES, "context_length", Kv::Str("long")),
        (&ARCHITECTURES, "attention.head_count", Kv::U32(3)),
        (&ARCHITECTURES, "attention.head_count", Kv::U32(u32::MAX)),
        (&ARCHITECTURES, "attention.head_count_kv", Kv::I32s(vec![2, 0])),
        (&ARCHITECTURES, "attention.head_count_kv", Kv::I32s(vec![2])),
        (&ARCHITECTURES, "attention.head_count_kv", Kv::I32s(vec![2, -2])),
        (&ARCHITECTURES, "attention.key_length", Kv::U32(1 << 30)),
        (&ARCHITECTURES, "attention.layer_norm_rms_epsilon", Kv::F32(-1.0)),
        (&ARCHITECTURES, "rope.dimension_count", Kv::U32(16)),
        (&ARCHITECTURES, "rope.dimension_count", Kv::U32(3)),
        (&ARCHITECTURES, "rope.freq_base", Kv::F32(f32::NAN)),
        (&ARCHITECTURES, "rope.dimension_sections", Kv::I32s(vec![1])),
        (&ARCHITECTURES, "rope.dimension_sections", Kv::I32s(vec![1, -1, 0])),
        (&ARCHITECTURES, "vocab_size", Kv::U32(0)),
        (hybrids, "full_attention_interval", Kv::U32(0)),
        (hybrids, "attention.recurrent_layers", Kv::I32s(vec![1])),
        (hybrids, "attention.recurrent_layers", Kv::F32s(vec![1.0, 0.0])),
        (hybrids, "ssm.time_step_rank", Kv::U32(3)),
        (hybrids, "ssm.time_step_rank", Kv::U32(1 << 30)),
        (hybrids, "ssm.group_count", Kv::U32(3)),
        (hybrids, "ssm.group_count", Kv::U32(0)),
        (hybrids, "ssm.state_size", Kv::U32(1 << 20)),
        (hybrids, "ssm.inner_size", Kv::U32(u32::MAX)),
        (hybrids, "ssm.conv_kernel", Kv::U32(1)),
        (hybrids, "ssm.v_head_reordered", Kv::U32(1)),
        (&mixtures, "expert_count", Kv::U32(0)),
        (&mixtures, "expert_count", Kv::U32(1 << 20)),
        (&mixtures, "expert_used_count", Kv::U32(5)),
        (&mixtures, "expert_used_count", Kv::U32(0)),
        (&mixtures, "expert_feed_forward_length", Kv::U32(1 << 30)),
        (&mixtures, "expert_weights_norm", Kv::Str("no")),
        (&mixtures[1..], "expert_shared_feed_forward_length", Kv::U32(1 << 30)),
        (&["qwen35"], "feed_forward_length", Kv::U32(1 << 30)),
    ];
    for (architectures, key, value) in &cases {
        for arch in *architectures {
            let file = File::new(arch).change("attention.value_length", Change::Remove);
            let error = file.set(key, copy(value)).build().expect_err(&format!("{arch} {key}"));
            assert!(matches!(error, ModelError::Field { .. }), "{arch} {key}: {error}");
        }
    }
    for (arch, key, value) in [
        ("qwen3moe", "attention.scale", Kv::F32(0.5)),
        ("qwen3moe", "attention.value_length", Kv::U32(16)),
        ("qwen3moe", "rope.scaling.type", Kv::Str("longrope")),
        ("qwen3moe", "expert_gating_func", Kv::U32(2)),
        ("qwen3next", "expert_weights_scale", Kv::F32(2.5)),
        ("qwen35moe", "expert_group_count", Kv::U32(2)),
        ("qwen35moe", "expert_weights_norm", Kv::Bool(false)),
    ] {
        let error = File::new(arch).set(key, value).build().expect_err(&format!("{arch} {key}"));
        assert!(matches!(error, ModelError::Unsupported { .. }), "{arch} {key}: {error}");
    }
    let error = File::new("qwen35").with("blk.1.attn_q.bias", &[64]).build().unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
    for arch in ARCHITECTURES {
        for key in ["embedding_length", "block_count", "context_length", "attention.head_count"] {
            let error = File::new(arch).change(key, Change::Remove).build().unwrap_err();
            assert!(matches!(error, ModelError::Field { .. }), "{arch} without {key}: {error}");
        }
        // Every tensor is needed, and in its size.
        let names: Vec<String> = File::new(arch).gguf.tensors.iter().map(|t| t.0.clone()).collect();
        for name in names {
            let error = File::new(arch).without(&name).build().expect_err(&name);
            assert!(matches!(error, ModelError::MissingTensor { .. }), "{arch} {name}: {error}");
            let wrong = File::new(arch).without(&name).with(&name, &[HIDDEN, 7]);
            let error = wrong.build().expect_err(&name);
            assert!(matches!(error, ModelError::Shape { .. }), "{arch} {name}: {error}");
        }
    }
}

fn copy(value: &Kv) -> Kv {
    match value {
        Kv::U32(v) => Kv::U32(*v),
        Kv::U64(v) => Kv::U64(*v),
        Kv::F32(v) => Kv::F32(*v),
        Kv::Str(v) => Kv::Str(v),
        Kv::I32s(v) => Kv::I32s(v.clone()),
        Kv::F32s(v) => Kv::F32s(v.clone()),
        _ => panic!("not used here"),
    }
}
