//! gpt-oss in GGUF: what the file says of the model, and what its writer did to the tensors.
//!
//! Established from the public writer and its reader (llama.cpp: conversion/gpt_oss.py and base.py,
//! src/models/openai-moe.cpp; names: gguf-py's constants.py), and by running files written after them against the logits
//! of their source:
//!
//! * Gates and ups, neighbours in the source, are two stacks `[experts, width, hidden]`, and so are their biases. Plain
//!   experts, transposed in the source, are not here.
//! * A block of MXFP4 is its scale, then 16 bytes: the low halves are the first 16 values, the high halves the others,
//!   where the source has neighbours in a byte. The kernels of the format read it so.
//! * No other value is changed; rows of queries and keys keep their order. The second norm is `post_attention_norm`, the
//!   sinks are `attn_sinks.weight`.
//! * Every second layer attends over the window only, the first among them: there is no key for it, the reader knows.
//! * The bound of the gates, 7, and the factor in their sigmoid, 1.702, are constants of the reader.
//! * YaRN's factor, first context and betas have keys; older files leave the betas out, which are 32 and 1 then.
//!   Whether the ends of its blend are whole indices has none. The public reader rounds them; the published models say
//!   they are not to be, and were not while they were trained, so they are not here, and a note says it.

use super::{ALPHA, Config, LIMIT, check_experts};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::gguf::Metadata;
use crate::error::{ModelError, quoted};
use crate::rope::{Rope, Scaling};
use crate::zoo::dense::{Dense, gguf_size, metadata, missing, scaling_type};
use crate::zoo::fields::Range;

/// What a reader of a file should know of YaRN.
const ROUNDING: &str = "GGUF does not say whether the ends of YaRN's blend are rounded; as the published models \
                        state, they are not";

fn key(name: &str) -> String {
    format!("gpt-oss.{name}")
}

fn required(meta: &Metadata, name: &str) -> Result<u32, ModelError> {
    gguf_size(meta, &key(name))?.ok_or_else(|| missing(&key(name)))
}

pub(super) fn from_gguf(checkpoint: &Checkpoint) -> Result<Config, ModelError> {
    let meta = metadata(checkpoint)?;
    let ffn = required(meta, "expert_feed_forward_length")?;
    let sizes = Dense { ffn, ..Dense::from_gguf(checkpoint, "gpt-oss")? };
    let (experts, top) = (required(meta, "expert_count")?, required(meta, "expert_used_count")?);
    check_experts(
        experts,
        top,
        ffn,
        &key("expert_used_count"),
        &key("expert_count × expert_feed_forward_length"),
    )?;
    for name in ["attention.sliding_window_pattern", "rope.freq_base_swa"] {
        if meta.contains(&key(name)) {
            return Err(ModelError::unsupported(key(name), "alternating layers of one rotation are"));
        }
    }
    if let Some(scale) = meta.opt_f64(&key("expert_weights_scale"))?
        && scale != 0.0
        && scale != 1.0
    {
        return Err(ModelError::unsupported(key("expert_weights_scale"), "1 is"));
    }
    let (rope, notes) = rope(meta, sizes.shape.head_dim)?;
    Ok(Config {
        window: required(meta, "attention.sliding_window")?,
        sliding: (0..sizes.layers).map(|layer| layer.is_multiple_of(2)).collect(),
        rope,
        experts,
        top,
        limit: LIMIT as f32,
        alpha: ALPHA as f32,
        notes,
        sizes,
    })
}

/// The rotation, and what there is to say of it.
fn rope(meta: &Metadata, head_dim: u32) -> Result<(Rope, Vec<String>), ModelError> {
    let base = key("rope.freq_base");
    let theta = Range::THETA.check(&base, meta.opt_f64(&base)?.unwrap_or(150_000.0))?;
    let rotated = gguf_size(meta, &key("rope.dimension_count"))?.unwrap_or(head_dim);
    if rotated != head_dim {
        return Err(ModelError::field(
            key("rope.dimension_count"),
            format!("the head size, {head_dim}"),
            rotated.to_string(),
        ));
    }
    match scaling_type(meta, "gpt-oss")? {
        None | Some("none") => return Ok((Rope::new(theta, head_dim, Scaling::None), vec![])),
        Some("yarn") => {}
        Some(other) => {
            return Err(ModelError::unsupported(
                format!("rope scaling {}", quoted(other)),
                "none and yarn are",
            ));
        }
    }
    // The writer passes on what configurations say, the reader means something else by it.
    for (name, plain) in [("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_log_multiplier", 0.0)] {
        let key = key(&format!("rope.scaling.{name}"));
        if meta.opt_f64(&key)?.is_some_and(|value| value != plain) {
            return Err(ModelError::unsupported(key, "YaRN without it is"));
        }
    }
    let optional = |name: &str| {
        let key = key(&format!("rope.scaling.{name}"));
        meta.opt_f64(&key)?.map(|value| Range::STRETCH.check(&key, value)).transpose()
    };
    let needed = |name: &str| optional(name)?.ok_or_else(|| missing(&key(&format!("rope.scaling.{name}"))));
    let (fast, slow) =
        (optional("yarn_beta_fast")?.unwrap_or(32.0), optional("yarn_beta_slow")?.unwrap_or(1.0));
    if fast < slow {
        let expected = format!("at least yarn_beta_slow ({slow})");
        return Err(ModelError::field(key("rope.scaling.yarn_beta_fast"), expected, fast.to_string()));
    }
    if theta <= 1.0 {
        return Err(ModelError::field(base, "above 1, to scale by YaRN", theta.to_string()));
    }
    let scaling = Scaling::Yarn {
        factor: needed("factor")?,
        beta_fast: fast,
        beta_slow: slow,
        original: needed("original_context_length")?,
        truncate: false,
        attention_factor: None,
    };
    Ok((Rope::new(theta, head_dim, scaling), vec![ROUNDING.to_owned()]))
}
