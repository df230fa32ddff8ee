//! Causal convolution over the tokens of each sequence, channel by channel, and SiLU:
//! `out[t, c] = silu(bias[c] + Σ_j weight[c, j]·x[t − (taps − 1) + j, c])`. What stands before the step's first token
//! of a sequence is its tail, and zero before its position 0.

use crate::step::TileTable;
use crate::{Call, Profile};

/// Sizes and places. Words are of the step tables, vectors' offsets are words too.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// `C`.
    pub channels: u32,
    /// Taps of the filter.
    pub taps: u32,
    /// First column of `x`.
    pub column: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Weight `[C, taps]` in the vectors.
    pub weight: u32,
    /// Bias `[C]` in the vectors.
    pub bias: Option<u32>,
    /// Word offset of the positions.
    pub positions: u32,
    /// Word offset of the slots.
    pub token_slots: u32,
    /// Index of a tile table that has one entry a sequence, and the table.
    pub sequences: (u32, TileTable),
    /// First slot of the tails that are bound; those of other slots leave.
    pub first_slot: u32,
    /// Slots of the tails that are bound: `[slots, taps − 1, C]`, the newest input last.
    pub slots: u32,
    /// Most tokens of a step.
    pub max_tokens: u32,
}

/// Plans the convolution. Operands: x (ReadArena), tails (ReadArena), out (Write), vectors (Read).
pub fn plan(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}

/// Plans the update of the tails, which follows the convolution. Operands: x (ReadArena), tails (Write).
pub fn tail(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}
