//! Selective state space (Mamba2): Δ, decay, state and output of every head.

use crate::step::TileTable;
use crate::{Call, Profile, SsmShape};

/// Sizes and places. Words are of the step tables, vectors' offsets are words too.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Sizes.
    pub shape: SsmShape,
    /// Values between rows of `xbc`: x at column 0, B at `H·P`, C at `H·P + G·N`.
    pub xbc_stride: u32,
    /// First column of dt `[H]`.
    pub dt_column: u32,
    /// Values between rows of `dt`.
    pub dt_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// `[H]` in the vectors, negative.
    pub a: u32,
    /// `[H]` in the vectors.
    pub d: u32,
    /// `[H]` in the vectors.
    pub dt_bias: u32,
    /// Bounds of Δ.
    pub dt_limit: Option<[f32; 2]>,
    /// Index of a tile table that has one entry a sequence, and the table.
    pub sequences: (u32, TileTable),
    /// First slot of the states that are bound; sequences in other slots leave.
    pub first_slot: u32,
    /// Slots of the states that are bound: `[slots, H, P, N]`.
    pub slots: u32,
    /// Most tokens of a step.
    pub max_tokens: u32,
}

/// An operand of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// x, B, C (ReadArena).
    Xbc,
    /// dt (ReadArena).
    Dt,
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

/// Words of scratch that the form chosen by `profile` needs; 0 for the streaming and the sequential form.
pub fn scratch_words(_profile: &Profile, _args: &Args) -> u64 {
    unimplemented!()
}
