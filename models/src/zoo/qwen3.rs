//! qwen3: llama with a norm of each query and key head before the rope.

use super::Architecture;
use super::dense::{Defaults, Dense, rope_from_config, rope_from_gguf};
use super::fields::Fields;
use super::llama::{Options, SILU, build};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::model::Model;

/// The qwen3 family.
pub struct Qwen3;

impl Architecture for Qwen3 {
    fn name(&self) -> &'static str {
        "qwen3"
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let (sizes, rope, biased) = if checkpoint.metadata().is_some() {
            let sizes = Dense::from_gguf(checkpoint, "qwen3")?;
            let rope = rope_from_gguf(checkpoint, "qwen3", 1_000_000.0, sizes.shape.head_dim)?;
            (sizes, rope, false)
        } else {
            let fields = Fields::of(checkpoint)?;
            fields.activation("hidden_act", &SILU)?;
            if fields.get("sliding_window").is_some() && fields.flag("use_sliding_window", false)? {
                return Err(ModelError::unsupported("use_sliding_window", "qwen3 with full attention is"));
            }
            let defaults = Defaults {
                head_dim: Some(128),
                eps: Some(1e-6),
                context: Some(32_768),
                ..Defaults::default()
            };
            let sizes = Dense::from_config(&fields, &defaults)?;
            let rope =
                rope_from_config(&fields, "full_attention", "rope_theta", 10_000.0, sizes.shape.head_dim)?;
            (sizes, rope, fields.flag("attention_bias", false)?)
        };
        build(checkpoint, self.name(), sizes, rope, Options { interleaved: false, biased, head_norms: true })
    }
}
