//! Softcap in place: `x = cap·tanh(x/cap)`.

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
    /// Values between rows.
    pub stride: u32,
    /// Cap.
    pub cap: f32,
    /// What a row is: tokens or logit rows.
    pub unit: crate::Unit,
}

/// Plans the dispatch. Operands: x (Write).
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
