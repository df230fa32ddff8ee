//! Joins the splits of an attention: `out = Σ e^{m_i − m} acc_i / Σ e^{m_i − m} l_i`.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Heads.
    pub shape: crate::AttentionShape,
    /// `P`.
    pub splits: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Most tokens in a step.
    pub max_tokens: u32,
}

/// Plans the dispatch. Operands: scratch (ReadArena), out (Write).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let _ = (profile, args);
    todo!()
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        Vec::new()
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        todo!()
    }
    fn wgsl(&self) -> String {
        todo!()
    }
    fn operands(&self) -> Vec<Access> {
        todo!()
    }
    fn workgroup(&self) -> u32 {
        todo!()
    }
}
