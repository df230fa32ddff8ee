//! Gated delta rule: with `g = a·softplus(a_in + dt_bias)`, `β = sigmoid(b_in)`, and q, k normalised to length one,
//! `S ← e^g S`, `d = β (v − Sᵀk)`, `S ← S + k dᵀ`, `o = Sᵀq / sqrt(Ek)`, for every value head.

use crate::step::TileTable;
use crate::{Call, DeltaShape, Profile};

/// Sizes and places. Words are of the step tables, vectors' offsets are words too.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Sizes.
    pub shape: DeltaShape,
    /// Values between rows of `qkv`: q at column 0, k at `Hg·Ek`, v at `2·Hg·Ek`.
    pub qkv_stride: u32,
    /// First column of the decay's input `[Hv]`.
    pub a_column: u32,
    /// First column of β's input `[Hv]`.
    pub b_column: u32,
    /// Values between rows of `ab`.
    pub ab_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// `[Hv]` in the vectors, negative.
    pub a: u32,
    /// `[Hv]` in the vectors.
    pub dt_bias: u32,
    /// Added to the sum of squares of q and k before the root.
    pub eps: f32,
    /// Index of a tile table that has one entry a sequence, and the table.
    pub sequences: (u32, TileTable),
    /// First slot of the states that are bound; sequences in other slots leave.
    pub first_slot: u32,
    /// Slots of the states that are bound: `[slots, Hv, Ek, Ev]`.
    pub slots: u32,
    /// Most tokens of a step.
    pub max_tokens: u32,
}

/// An operand of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// q, k, v (ReadArena).
    Qkv,
    /// Inputs of decay and β (ReadArena).
    Ab,
    /// States (Write).
    States,
    /// out (Write).
    Out,
    /// Vectors (Read).
    Vectors,
    /// Scratch of [`scratch_words`] (Write or ReadArena).
    Scratch,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// For people and profiles: what follows the op's label.
    pub name: &'static str,
    /// What to run.
    pub call: Call,
    /// Operands from binding 2 on.
    pub operands: Vec<Operand>,
}

/// Plans the dispatches, in order, each within the profile's work budget (split over heads).
pub fn plan(_profile: &Profile, _args: &Args) -> Vec<Stage> {
    unimplemented!()
}

/// Words of scratch that the form chosen by `profile` needs.
pub fn scratch_words(_profile: &Profile, _args: &Args) -> u64 {
    unimplemented!()
}
