//! gemma4 in GGUF: what the file says of the model, and what its writer did to the tensors.
//!
//! Established from the public writer and its reader (llama.cpp: conversion/gemma.py and base.py, src/models/gemma4.cpp;
//! names: gguf-py's constants.py), and by running files written after them against the logits of their source:
//!
//! * No value is changed. Norms are plain in the source, so that nothing is added to them as gemma3's writer does; rows
//!   of queries and keys keep their order, rotated as halves.
//! * `rope_freqs.weight` has a divisor for each pair of a full layer's head: 1 for those that turn, 1e30 for those that
//!   do not. That is the "proportional" rotation, and the sliding layers do not read it.
//! * `attention.key_length` is the head size of the full layers, `…_swa` of the sliding ones; the same goes for
//!   `rope.dimension_count` and `rope.freq_base`, where the reader takes 10,000 for a sliding base that is missing.
//! * `attention.sliding_window_pattern` is true for the sliding layers. `attention.head_count_kv` is an array where the
//!   kinds differ, `feed_forward_length` where the layers without keys of their own are twice as wide.
//! * `attention.shared_kv_layers` is the number of layers at the end that read an earlier layer's keys and values.
//!   Tensors of theirs may be there; nothing reads them.
//! * A full layer without `attn_v` takes its keys for values.
//! * `layer_scalar` is `layer_output_scale`; the router's `scale` is `ffn_gate_inp.scale`, `per_expert_scale` is
//!   `ffn_down_exps.scale`. The reader goes on as with ones where the first or the last are missing.
//! * `ffn_gate_up_exps` has each expert's gates before its ups, as the source; files with two stacks can be read too.

use super::config::{Alone, Config, Moe, check_own_embedding, own_layers, share};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::gguf::Metadata;
use crate::error::ModelError;
use crate::rope::{Rope, Scaling};
use crate::zoo::dense::{
    Dense, epsilon, gguf_layers, gguf_per_layer, gguf_size, gguf_vocab, metadata, missing, rope_from_gguf,
};
use crate::zoo::fields::Range;
use plimsoll_kernels::AttentionShape;

/// The base of the sliding layers' rotation where a file does not say.
const LOCAL_THETA: f64 = 10_000.0;

fn key(name: &str) -> String {
    format!("gemma4.{name}")
}

fn required(meta: &Metadata, name: &str) -> Result<u32, ModelError> {
    gguf_size(meta, &key(name))?.ok_or_else(|| missing(&key(name)))
}

/// A count that may be zero, as it is where nothing states it.
fn count(meta: &Metadata, name: &str) -> Result<u32, ModelError> {
    match meta.opt_u64(&key(name))? {
        None | Some(0) => Ok(0),
        Some(_) => required(meta, name),
    }
}

pub(super) fn from_gguf(checkpoint: &Checkpoint) -> Result<Config, ModelError> {
    let meta = metadata(checkpoint)?;
    let layers = gguf_layers(meta, "gemma4")?;
    let each = |name: &str| gguf_per_layer(meta, &key(name), layers);
    let sliding = pattern(meta, layers)?;
    let heads = each("attention.head_count")?.ok_or_else(|| missing(&key("attention.head_count")))?;
    let kv_heads = each("attention.head_count_kv")?.unwrap_or_else(|| heads.clone());
    let ffn = each("feed_forward_length")?.ok_or_else(|| missing(&key("feed_forward_length")))?;
    let full = head_size(meta, "")?;
    let local = head_size(meta, "_swa")?;
    if let Some(scale) = meta.opt_f64(&key("attention.scale"))?
        && scale != 1.0
    {
        return Err(ModelError::unsupported(key("attention.scale"), "1 is"));
    }

    let alone = |layer: usize| Alone {
        sliding: sliding[layer],
        shape: AttentionShape {
            heads: heads[layer],
            kv_heads: kv_heads[layer],
            head_dim: if sliding[layer] { local } else { full },
        },
        values_are_keys: !sliding[layer]
            && checkpoint.tensor(&format!("blk.{layer}.attn_v.weight")).is_none(),
        ffn: ffn[layer],
    };
    let all: Vec<Alone> = (0..layers as usize).map(alone).collect();
    let sharing = "attention.shared_kv_layers";
    let own = own_layers(&key(sharing), layers, count(meta, sharing)?)?;
    let window = required(meta, "attention.sliding_window")?;
    let softcap = key("final_logit_softcapping");
    let softcap = meta.opt_f64(&softcap)?.map(|cap| Range::CAP.check(&softcap, cap)).transpose()?;
    let own_embedding = count(meta, "embedding_length_per_layer_input")?;
    check_own_embedding(&key("embedding_length_per_layer_input"), own_embedding, layers)?;
    let first = all.first().ok_or_else(|| missing(&key("block_count")))?;
    let sizes = Dense {
        vocab: gguf_vocab(meta, "gemma4")?,
        hidden: required(meta, "embedding_length")?,
        layers,
        ffn: ffn.iter().copied().max().unwrap_or(0),
        shape: first.shape,
        eps: epsilon(meta, "gemma4")?,
        context_max: required(meta, "context_length")?,
        tied: checkpoint.tensor("output.weight").is_none(),
    };
    if let Some(layer) = ffn.iter().position(|&width| width == 0) {
        let expected = format!("a width for layer {layer}");
        return Err(ModelError::field(key("feed_forward_length"), expected, "0"));
    }
    Ok(Config {
        sizes: sizes.checked()?,
        window,
        layers: share(&key(sharing), &all, own)?,
        ropes: ropes(checkpoint, full, local)?,
        softcap: softcap.map(|cap| cap as f32),
        own_embedding,
        moe: moe(checkpoint, meta)?,
        notes: notes(meta),
    })
}

/// The size of the heads of a kind of layer.
fn head_size(meta: &Metadata, kind: &str) -> Result<u32, ModelError> {
    let (keys, values) = (format!("attention.key_length{kind}"), format!("attention.value_length{kind}"));
    let size = required(meta, &keys)?;
    match gguf_size(meta, &key(&values))? {
        Some(other) if other != size => Err(ModelError::unsupported(
            format!("value heads of {other} beside key heads of {size}"),
            "heads of one size",
        )),
        _ => Ok(size),
    }
}

/// Which layers attend over the window only.
fn pattern(meta: &Metadata, layers: u32) -> Result<Vec<bool>, ModelError> {
    let key = key("attention.sliding_window_pattern");
    let sliding = meta.array(&key)?.bools()?;
    if sliding.len() != layers as usize {
        let expected = format!("one for each of {layers} layers");
        return Err(ModelError::field(key, expected, sliding.len().to_string()));
    }
    Ok(sliding)
}

/// Of the full layers, then of the sliding ones.
fn ropes(checkpoint: &Checkpoint, full: u32, local: u32) -> Result<Vec<Rope>, ModelError> {
    let meta = metadata(checkpoint)?;
    // Without its divisors the rotation of a full layer is another.
    checkpoint.require("rope_freqs.weight")?;
    let base = key("rope.freq_base_swa");
    let theta = Range::THETA.check(&base, meta.opt_f64(&base)?.unwrap_or(LOCAL_THETA))?;
    let size = "rope.dimension_count_swa";
    let rotated = gguf_size(meta, &key(size))?.unwrap_or(local);
    if rotated > local || !rotated.is_multiple_of(2) {
        let expected = format!("an even number up to the head size {local}");
        return Err(ModelError::field(key(size), expected, rotated.to_string()));
    }
    Ok(vec![
        rope_from_gguf(checkpoint, "gemma4", 1_000_000.0, full)?,
        Rope::new(theta, rotated, Scaling::None),
    ])
}

fn moe(checkpoint: &Checkpoint, meta: &Metadata) -> Result<Option<Moe>, ModelError> {
    let experts = count(meta, "expert_count")?;
    if experts == 0 {
        // A router would go unread.
        return match checkpoint.tensor("blk.0.ffn_gate_inp.weight") {
            None => Ok(None),
            Some(router) => {
                let expected = format!("a number of experts, as there is {}", router.name);
                Err(ModelError::field(key("expert_count"), expected, "none"))
            }
        };
    }
    let moe = Moe {
        experts,
        top: required(meta, "expert_used_count")?,
        width: required(meta, "expert_feed_forward_length")?,
    };
    moe.checked(&key("expert_used_count"), &key("expert_count × expert_feed_forward_length")).map(Some)
}

fn notes(meta: &Metadata) -> Vec<String> {
    let suppresses = meta.contains("tokenizer.ggml.suppress_tokens");
    let note = "the file lists tokens never to be chosen, of images and sounds; they can be chosen here";
    suppresses.then(|| note.to_owned()).into_iter().collect()
}
