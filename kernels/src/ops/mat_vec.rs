//! Matrix × 1–8 vectors.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

pub use super::linear::Args;

/// Plans the dispatch. Operands: matrix shard (Read), x (ReadArena), out (Write), vectors (Read).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let _ = (profile, args);
    todo!()
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> { Vec::new() }
}

impl Shader for Variant {
    fn name(&self) -> String { todo!() }
    fn wgsl(&self) -> String { todo!() }
    fn operands(&self) -> Vec<Access> { todo!() }
    fn workgroup(&self) -> u32 { todo!() }
}
