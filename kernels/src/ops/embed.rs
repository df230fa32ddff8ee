//! Rows of the embedding table: `out[t] = scale · table[ids[t]]`.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Stored format of the table.
    pub format: crate::Format,
    /// `D`.
    pub width: u32,
    /// First table row of this shard; tokens of other shards leave.
    pub first_row: u32,
    /// Rows of this shard.
    pub rows: u32,
    /// Factor.
    pub scale: f32,
    /// Word offset of the ids in the step tables.
    pub ids: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
}

/// Plans the dispatch. Operands: table shard (Read), out (Write).
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
