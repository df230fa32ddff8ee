//! Gated activation: `out = act(x[:, :F]) · x[:, F:]`.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x·sigmoid(x)`.
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Activation.
    pub activation: Activation,
    /// `F`.
    pub width: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// What a row is: tokens or logit rows.
    pub unit: crate::Unit,
}

/// Plans the dispatch. Operands: x `[T, 2F]` (ReadArena), out (Write).
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
