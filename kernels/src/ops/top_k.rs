//! The `k` largest logits of each row with their ids, largest first, ties to the lower id.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// `V`.
    pub vocab: u32,
    /// Values between rows.
    pub stride: u32,
    /// `k`, at most 64.
    pub k: u32,
    /// Most rows in a step.
    pub max_rows: u32,
}

/// Plans the dispatch. Operands: two stages; see `plan`.
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
