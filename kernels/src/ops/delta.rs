//! Gated delta rule: with `g = a·softplus(a_in + dt_bias)`, `β = sigmoid(b_in)`, and q, k normalised to length one,
//! `S ← e^g S`, `d = β (v − Sᵀk)`, `S ← S + k dᵀ`, `o = Sᵀq / sqrt(Ek)`, for every value head.
//!
//! | form | state | what it is for |
//! |---|---|---|
//! | token by token ([`delta_sequential`]) | registers | steps of at most 8 tokens, software drivers, what does not fit blocks |
//! | blocks of tokens ([`delta_blocks`]) | workgroup memory | prefill on GPUs |
//!
//! Each is one dispatch without scratch, or several that share the heads and their columns where one would pass the
//! work budget. [`Tuning::delta`](crate::Tuning::delta) chooses the form of steps of more than 8 tokens. Both give the
//! same function up to rounding, whatever the block.
//!
//! Measured (lavapipe of Mesa 22.3, subgroups of 8, 2 cores shared with other work, so processor time: milliseconds of
//! all cores for one layer), at 1, 128 and 512 tokens of one sequence. On no GPU yet:
//!
//! | Hv × Hg × Ek × Ev | token by token | without subgroups | blocks of 16 | blocks of 32 |
//! |---|---|---|---|---|
//! | 48 × 16 × 128 × 128 (Qwen3.5-27B) | 3.8, 53, 305 | 6.7, 233, 1380 | 65, 517, 2700 | 150, 653, 3560 |
//! | 8 × 4 × 32 × 32 | 0.04, 0.4, 1.6 | –, 1.1, 4.3 | 0.5, 5.8, 23 | 1.7, 8.3, 36 |
//!
//! That is 8 to 16 GFLOP/s for each core token by token, and 1.2 to 1.7 in blocks: a software driver loads lane by lane,
//! and workgroup memory costs it as much as any other. Of the sequential form, one column a lane instead of two costs
//! 85 at 48 × 16 × 128 × 128 and 128 tokens, and eight lanes to a column 390.

mod twins;

pub use twins::{chunked, recurrent};

use super::{delta_blocks, delta_sequential, norm};
use crate::shader::{Access, Source};
use crate::step::{HEADER_TILES, TileTable};
use crate::{Call, Cost, Count, Delta, DeltaShape, Kernel, Profile, Unit};

crate::params! {
    /// Sizes and places; offsets in words.
    pub struct Params {
        /// Header word with the number of sequences.
        count_word: u32,
        /// Their table.
        sequences: u32,
        /// First item of the dispatch: an item is a head and a slice of its columns.
        first_item: u32,
        /// Items of the dispatch.
        items: u32,
        /// Slices of a head.
        slices: u32,
        /// `Hv`.
        heads: u32,
        /// Value heads in a row that share a key head: `Hv / Hg`, or 1 where they take turns.
        group: u32,
        /// `Ev`.
        value_dim: u32,
        /// First column of k.
        k_column: u32,
        /// First column of v.
        v_column: u32,
        /// Values between rows of qkv.
        qkv_stride: u32,
        /// First column of the decay's input.
        a_column: u32,
        /// First column of β's input.
        b_column: u32,
        /// Values between rows of ab.
        ab_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Decay factors in the vectors.
        a: u32,
        /// Biases in the vectors.
        dt_bias: u32,
        /// First slot bound.
        first_slot: u32,
        /// Slots bound.
        slots: u32,
        /// Inside the roots.
        eps: f32,
        /// 1 / sqrt(Ek).
        scale: f32,
    }
}

/// Sizes and places. Words are of the step tables, vectors' offsets are words too.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Sizes.
    pub shape: DeltaShape,
    /// Value head `h` uses key head `h mod Hg`; else `h / (Hv/Hg)`.
    pub tiled: bool,
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

/// Operands of both forms, in order.
const OPERANDS: [Operand; 5] = [Operand::Qkv, Operand::Ab, Operand::States, Operand::Out, Operand::Vectors];

/// How they are used.
pub(crate) const ACCESSES: [Access; 5] =
    [Access::ReadArena, Access::ReadArena, Access::Write, Access::Write, Access::Read];

/// The builtins of an entry point, where `lanes` does not bring its own.
pub(crate) const LANES: &str = "struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}
";

/// Parameters, bindings, constants and functions of both forms.
pub(crate) fn source(workgroup: u32, key_dim: u32, columns: u32) -> Source {
    Source::new(Params::WGSL)
        .operand(0, Access::ReadArena, "qkv", "array<f32>")
        .operand(1, Access::ReadArena, "ab", "array<f32>")
        .operand(2, Access::Write, "states", "array<f32>")
        .operand(3, Access::Write, "out", "array<f32>")
        .operand(4, Access::Read, "vectors", "array<f32>")
        .constant("WG", workgroup)
        .constant("EK", key_dim)
        .constant("COLUMNS", columns)
        .text(norm::TEXT)
        .text(include_str!("delta_gates.wgsl"))
}

/// The pipeline, columns of a workgroup, and operations for each token and item.
fn form(profile: &Profile, args: &Args) -> (Kernel, u32, u64) {
    let (key_dim, value_dim) = (args.shape.key_dim, args.shape.value_dim);
    let blocks = match profile.tuning.delta {
        Delta::Blocks { block } if args.max_tokens > SEQUENTIAL_TOKENS => [block, 16]
            .into_iter()
            .find_map(|block| delta_blocks::Variant::of(profile, key_dim, value_dim, block)),
        Delta::Blocks { .. } | Delta::Sequential => None,
    };
    match blocks {
        Some(variant) => (variant.clone().into(), variant.columns, variant.flops()),
        None => {
            let variant = delta_sequential::Variant::of(profile, key_dim);
            (variant.clone().into(), variant.columns(), variant.flops())
        }
    }
}

/// Steps of at most so many tokens go token by token whatever the profile says: a block would be mostly empty.
const SEQUENTIAL_TOKENS: u32 = 8;

/// Plans the dispatches, in order, each within the profile's work budget: where all heads would exceed it, the (head,
/// slice of columns) pairs are split evenly.
pub fn plan(profile: &Profile, args: &Args) -> Vec<Stage> {
    let shape = &args.shape;
    let (kernel, columns, flops) = form(profile, args);
    let slices = shape.value_dim.div_ceil(columns.max(1)).max(1);
    let items = shape.heads.saturating_mul(slices);
    // Items of a dispatch, so that its operations at the most tokens keep to the budget.
    let most = profile.work_budget / flops.saturating_mul(args.max_tokens.into()).max(1);
    let parts = items.div_ceil(most.clamp(1, u64::from(items.max(1))) as u32).max(1);
    let per_part = items.div_ceil(parts);
    let (table, sequences) = (args.sequences.0, args.sequences.1.offset);
    let stage = |first_item: u32| {
        let items = per_part.min(items - first_item);
        let params = Params {
            count_word: HEADER_TILES + table,
            sequences,
            first_item,
            items,
            slices,
            heads: shape.heads,
            group: if args.tiled { 1 } else { (shape.heads / shape.key_heads.max(1)).max(1) },
            value_dim: shape.value_dim,
            k_column: shape.key_heads * shape.key_dim,
            v_column: 2 * shape.key_heads * shape.key_dim,
            qkv_stride: args.qkv_stride,
            a_column: args.a_column,
            b_column: args.b_column,
            ab_stride: args.ab_stride,
            out_stride: args.out_stride,
            a: args.a,
            dt_bias: args.dt_bias,
            first_slot: args.first_slot,
            slots: args.slots,
            eps: args.eps,
            scale: 1.0 / (shape.key_dim as f32).sqrt(),
        };
        // The state is read and written once a sequence: once for all of a prefill, for every token of a decode.
        let width = u64::from(columns.min(shape.value_dim));
        let state = 8 * u64::from(items) * u64::from(shape.key_dim) * width;
        let (bytes_fixed, state_per_row) =
            if args.max_tokens <= SEQUENTIAL_TOKENS { (0, state) } else { (state, 0) };
        let row = u64::from(items) * (8 * u64::from(shape.key_dim) + 8 * width + 8);
        Stage {
            name: "",
            call: Call {
                kernel: kernel.clone(),
                params: params.words(),
                workgroups: Count::each(Unit::Tiles(table), 1, items),
                rows: Unit::Tokens,
                cost: Cost {
                    bytes_fixed,
                    bytes_per_row: row + state_per_row,
                    flops_per_row: u64::from(items) * flops,
                    ..Cost::default()
                },
            },
            operands: OPERANDS.to_vec(),
        }
    };
    (0..items).step_by(per_part.max(1) as usize).map(stage).collect()
}

/// Words of scratch that the form chosen by `profile` needs: both carry everything in registers and workgroup memory.
pub fn scratch_words(_profile: &Profile, _args: &Args) -> u64 {
    0
}
