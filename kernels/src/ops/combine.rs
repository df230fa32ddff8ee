//! The experts' answers of each token, summed: `out[t] = Σ_i weight[t, i]·x[t·Top + i]`, or `out[t] += …`.

use crate::{Call, Profile};

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row.
    pub width: u32,
    /// `Top`.
    pub top: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of the routing.
    pub routing_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// `out += …`.
    pub accumulate: bool,
}

/// Plans the dispatch. Operands: x (ReadArena), routing (ReadArena), out (Write).
pub fn plan(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}
