//! Products with a stack of experts: `out[t·Top + i, n] = Σ_k W[e(t, i), n, k]·x[row, k] (+ bias[e, n])`, where `row` is
//! the token `t`, or the choice `t·Top + i` itself.

use super::expert_sort;
use crate::{Call, Format, Profile};

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Stored format of the stack.
    pub format: Format,
    /// `X`, all experts.
    pub experts: u32,
    /// First expert of the shard that is bound; choices of experts outside it leave.
    pub first_expert: u32,
    /// Experts of the shard.
    pub shard_experts: u32,
    /// Rows of an expert's matrix.
    pub n: u32,
    /// `K`.
    pub k: u32,
    /// First row of an expert's matrix that this dispatch computes.
    pub first_row: u32,
    /// Rows that this dispatch computes.
    pub rows: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// `x` has a row a choice; else a row a token.
    pub x_choices: bool,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// `Top`.
    pub top: u32,
    /// Values between rows of the routing.
    pub routing_stride: u32,
    /// Bias `[X, N]` in the vectors.
    pub bias: Option<u32>,
    /// Choices a tile of the sorted table holds; `None`: few tokens, and the routing itself is read.
    pub tile: Option<u32>,
    /// Most tokens of a step.
    pub max_tokens: u32,
}

/// Choices a tile should hold for the rows an expert can expect: `T·Top / X`.
pub fn tile(_profile: &Profile, _experts: u32, _top: u32, _max_tokens: u32) -> u32 {
    unimplemented!()
}

/// Plans the dispatch. Operands: weights (Read), x (ReadArena), out (Write), vectors (Read), and the routing or, with a
/// tile, the sorted table of [`expert_sort`] (ReadArena, `array<u32>`).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let _ = expert_sort::Args {
        experts: args.experts,
        top: args.top,
        tile: args.tile.unwrap_or(1),
        routing_stride: args.routing_stride,
        max_tokens: args.max_tokens,
    };
    unimplemented!()
}
