//! What is asked of a model: how much context, how many sequences, in what steps.

use plimsoll_kernels::KvFormat;
use serde::{Deserialize, Serialize};

/// The longest context a plan is made for, in tokens.
pub const MAX_CONTEXT: u32 = 1 << 30;
/// The most slots a plan is made for.
pub const MAX_SLOTS: u32 = 1 << 16;
/// The most tokens a step is planned for.
pub const MAX_CHUNK: u32 = 1 << 20;
/// The deepest draft a plan is made for.
pub const MAX_DRAFT_DEPTH: u32 = 64;
/// The most logit rows a step is planned for.
pub const MAX_LOGIT_ROWS: u32 = 1 << 20;

/// The numbers a plan is made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Tokens a sequence may hold, prompt and answer together.
    pub context: u32,
    /// Sequences held at once.
    pub slots: u32,
    /// Most tokens in a step.
    pub prefill_chunk: u32,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// Most positions of a step whose logits are computed; at least `slots`.
    pub logit_rows: u32,
    /// Tokens drafted ahead: every recurrent state is kept `draft_depth + 1` times.
    #[serde(default)]
    pub draft_depth: u32,
}

impl Geometry {
    /// The default for a model of `context_max`: context 8,192 or the model's maximum, one slot, chunks of 512,
    /// f16 KV.
    pub fn default_for(context_max: u32) -> Self {
        Self {
            context: context_max.clamp(1, 8192),
            slots: 1,
            prefill_chunk: 512,
            kv: KvFormat::F16,
            logit_rows: 1,
            draft_depth: 0,
        }
    }
}
