//! The rows whose logits are wanted: `out[r] = x[rows[r]]`.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row.
    pub width: u32,
    /// Word offset of the row indices in the step tables.
    pub rows: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
}

/// Plans the dispatch. Operands: x (ReadArena), out (Write).
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
