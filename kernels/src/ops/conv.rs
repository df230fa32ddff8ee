//! Causal convolution over the tokens of each sequence, channel by channel, and SiLU:
//! `out[t, c] = silu(bias[c] + Σ_j weight[c, j]·x[t − (taps − 1) + j, c])`. What stands before the step's first token
//! of a sequence is its tail, and zero before its position 0.

use super::lanes;
use crate::shader::{Access, Shader, Source};
use crate::step::{HEADER_TILES, TileTable};
use crate::{Call, Cost, Count, Profile, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Which of the two.
    pub part: Part,
    /// Taps of the filter.
    pub taps: u32,
    /// Tokens of a workgroup; 1 for the tail.
    pub tokens: u32,
}

/// The convolution, or what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Writes `out`.
    Conv,
    /// Writes the tails.
    Tail,
}

/// Invocations: channels of a workgroup.
const WORKGROUP: u32 = 64;
/// Most tokens that one invocation walks.
const TOKENS: u32 = 8;

crate::params! {
    /// Sizes and places; offsets in words.
    pub struct Params {
        /// `C`.
        channels: u32,
        /// Workgroups that share the channels.
        parts: u32,
        /// First column of x.
        column: u32,
        /// Values between rows of x.
        x_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Weight.
        weight: u32,
        /// 1 with a bias.
        has_bias: u32,
        /// Bias.
        bias: u32,
        /// Positions.
        positions: u32,
        /// Slots.
        token_slots: u32,
        /// Header word with the number of sequences.
        sequence_count: u32,
        /// Sequences in the step tables.
        sequences: u32,
        /// First slot that is bound.
        first_slot: u32,
        /// Slots that are bound.
        slots: u32,
    }
}

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

impl Args {
    fn params(&self) -> Params {
        Params {
            channels: self.channels,
            parts: self.channels.div_ceil(WORKGROUP),
            column: self.column,
            x_stride: self.x_stride,
            out_stride: self.out_stride,
            weight: self.weight,
            has_bias: self.bias.is_some().into(),
            bias: self.bias.unwrap_or(0),
            positions: self.positions,
            token_slots: self.token_slots,
            sequence_count: HEADER_TILES + self.sequences.0,
            sequences: self.sequences.1.offset,
            first_slot: self.first_slot,
            slots: self.slots,
        }
    }

    /// Inputs of a tail.
    fn past(&self) -> usize {
        self.taps.saturating_sub(1) as usize
    }
}

/// Plans the convolution. Operands: x (ReadArena), tails (ReadArena), out (Write), vectors (Read).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = args.params();
    let tokens = args.max_tokens.clamp(1, TOKENS);
    let variant = Variant { part: Part::Conv, taps: args.taps, tokens };
    let (channels, taps) = (u64::from(args.channels), u64::from(args.taps));
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tokens, tokens, params.parts),
        rows: Unit::Tokens,
        cost: Cost {
            bytes_fixed: channels * (taps + 1) * 4,
            // A run of tokens loads what is before it once more.
            bytes_per_row: channels * (8 + 4 * (taps - taps.min(1)).div_ceil(tokens.into())),
            flops_per_row: channels * (2 * taps + 4),
            ..Cost::default()
        },
    }
}

/// Plans the update of the tails, which follows the convolution. Operands: x (ReadArena), tails (Write).
pub fn tail(_profile: &Profile, args: &Args) -> Call {
    let params = args.params();
    let variant = Variant { part: Part::Tail, taps: args.taps, tokens: 1 };
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tiles(args.sequences.0), 1, params.parts),
        rows: Unit::Tiles(args.sequences.0),
        cost: Cost { bytes_per_row: u64::from(args.channels) * args.past() as u64 * 8, ..Cost::default() },
    }
}

/// The CPU twin of the convolution: `tails` are those that are bound, places of other slots in `out` stay.
pub fn twin(args: &Args, step: &[u32], x: &[f32], tails: &[f32], vectors: &[f32], out: &mut [f32]) {
    let (channels, past) = (args.channels as usize, args.past());
    for [first, tokens, slot, position] in super::sequences(step, args.sequences) {
        let Some(slot) = slot.checked_sub(args.first_slot).filter(|s| *s < args.slots) else { continue };
        for i in 0..tokens as usize {
            for c in 0..channels {
                let mut sum = args.bias.map_or(0.0, |b| f64::from(vectors[b as usize + c]));
                for j in 0..=past {
                    // Of the tokens of this step, the tail's before it at negative indices.
                    let from = i as i64 + j as i64 - past as i64;
                    let value = if from >= 0 {
                        x[(first as usize + from as usize) * args.x_stride as usize
                            + args.column as usize
                            + c]
                    } else if i64::from(position) + from < 0 {
                        0.0
                    } else {
                        tails[(slot as usize * past + (past as i64 + from) as usize) * channels + c]
                    };
                    let weight = vectors[args.weight as usize + c * args.taps as usize + j];
                    sum += f64::from(weight) * f64::from(value);
                }
                out[(first as usize + i) * args.out_stride as usize + c] =
                    (sum / (1.0 + (-sum).exp())) as f32;
            }
        }
    }
}

/// The CPU twin of the tails' update.
pub fn tail_twin(args: &Args, step: &[u32], x: &[f32], tails: &mut [f32]) {
    let (channels, past) = (args.channels as usize, args.past());
    for [first, tokens, slot, position] in super::sequences(step, args.sequences) {
        let Some(slot) = slot.checked_sub(args.first_slot).filter(|s| *s < args.slots) else { continue };
        let tail = &mut tails[slot as usize * past * channels..][..past * channels];
        let mut inputs = if position == 0 { vec![0.0; past * channels] } else { tail.to_vec() };
        // A step that starts at positions 1.. may have less before it than a tail holds.
        let real = (position as usize).min(past);
        inputs[..(past - real) * channels].fill(0.0);
        for i in 0..tokens as usize {
            let row = (first as usize + i) * args.x_stride as usize + args.column as usize;
            inputs.extend_from_slice(&x[row..row + channels]);
        }
        tail.copy_from_slice(&inputs[inputs.len() - past * channels..]);
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for taps in 1..=8 {
            all.push(Self { part: Part::Conv, taps, tokens: 1 });
            all.push(Self { part: Part::Conv, taps, tokens: TOKENS });
            all.push(Self { part: Part::Tail, taps, tokens: 1 });
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        let part = if self.part == Part::Conv { "conv" } else { "conv_tail" };
        format!("{part}_taps{}_{}", self.taps, self.tokens)
    }

    fn wgsl(&self) -> String {
        let past = self.taps.saturating_sub(1);
        let shift: String = (0..past).map(|j| format!("x{j} = x{};\n", j + 1)).collect();
        let newest = format!("x{past} = x[token * p.x_stride + p.column + channel];\n");
        let source = Source::new(Params::WGSL)
            .constant("WG", WORKGROUP)
            .constant("TOKENS", self.tokens)
            .constant("TAPS", self.taps)
            .operand(0, Access::ReadArena, "x", "array<f32>");
        let counts = [("TAPS", self.taps), ("PAST", past)];
        match self.part {
            Part::Conv => source
                .operand(1, Access::ReadArena, "tails", "array<f32>")
                .operand(2, Access::Write, "out", "array<f32>")
                .operand(3, Access::Read, "vectors", "array<f32>")
                .text(&lanes::unroll(
                    &include_str!("conv.wgsl").replace("//: shift", &shift).replace("//: newest", &newest),
                    &counts,
                )),
            Part::Tail => source
                .operand(1, Access::Write, "tails", "array<f32>")
                .text(&lanes::unroll(include_str!("conv_tail.wgsl"), &counts)),
        }
        .finish()
    }

    fn operands(&self) -> Vec<Access> {
        match self.part {
            Part::Conv => vec![Access::ReadArena, Access::ReadArena, Access::Write, Access::Read],
            Part::Tail => vec![Access::ReadArena, Access::Write],
        }
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }
}
