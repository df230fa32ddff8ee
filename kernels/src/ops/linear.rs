//! `out = x·Wᵀ (+ bias) (+ out)`: the choice between mat-vec and mat-mat.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Stored format of the matrix.
    pub format: crate::Format,
    /// `N`, rows of this shard.
    pub n: u32,
    /// `K`.
    pub k: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Column of `out` where this shard begins.
    pub out_column: u32,
    /// Add into `out` instead of overwriting.
    pub accumulate: bool,
    /// Word offset of the bias of this shard in the vectors.
    pub bias: Option<u32>,
    /// What a row is: tokens or logit rows.
    pub unit: crate::Unit,
    /// Most rows in a step.
    pub max_rows: u32,
}

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
