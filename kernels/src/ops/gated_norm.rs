//! Norm with a gate, over groups of channels, in place: `x = norm(x·silu(z))·w` (gate first) or
//! `x = norm(x)·w·silu(z)`, `norm(u) = u / sqrt(mean(u²) + eps)` over each group by itself.

use crate::{Call, Profile};

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row, all groups together.
    pub width: u32,
    /// Groups; they divide the width.
    pub groups: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// First column of the gate.
    pub gate_column: u32,
    /// Values between rows of the gate.
    pub gate_stride: u32,
    /// Word offset of the weight in the vectors.
    pub weight: u32,
    /// The weight has one value for each channel of a group, shared by the groups; else one for each channel.
    pub weight_shared: bool,
    /// Inside the root.
    pub eps: f32,
    /// Gate before the norm.
    pub gate_first: bool,
}

/// Plans the dispatch. Operands: x (Write), gate (ReadArena), vectors (Read).
pub fn plan(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}
