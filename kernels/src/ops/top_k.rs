//! The `k` largest logits of each row with their ids, largest first, ties to the lower id, and the row's
//! log-sum-exp.
//!
//! Two dispatches: blocks of the vocabulary into scratch, then the blocks of each row. A NaN counts as the most
//! negative finite float and is reported as that, so that the order is total; but the log-sum-exp of a row that holds
//! a NaN or +∞ is NaN, and nothing should be chosen from such a row.

use super::lanes;
use crate::shader::{Access, Shader, Source};
use crate::{Call, Cost, Count, Profile, Reduce, Unit};
use serde::{Deserialize, Serialize};

/// Largest `k`.
pub const MAX_K: u32 = 64;
/// Logits one workgroup of the first stage looks through.
pub const BLOCK: u32 = 2048;
/// The id of what is missing when the vocabulary is smaller than `k`.
pub const NONE: u32 = u32::MAX;

/// Which of the two dispatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Logits to the best of each block.
    Blocks,
    /// The best of the blocks to the best of the row.
    Merge,
}

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Stage.
    pub stage: Stage,
    /// Maxima over lanes.
    pub reduce: Reduce,
    /// Invocations.
    pub workgroup: u32,
}

crate::params! {
    /// Sizes.
    pub struct Params {
        /// Values of a row.
        vocab: u32,
        /// Values between rows.
        stride: u32,
        /// Pairs wanted.
        k: u32,
        /// Blocks of a row.
        blocks: u32,
        /// Workgroups of a row.
        groups: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// `V`.
    pub vocab: u32,
    /// Values between rows.
    pub stride: u32,
    /// `k`, at most 64.
    pub k: u32,
}

/// Words of the scratch between the stages: `[rows][blocks][k + 1][2]`.
pub fn scratch_words(vocab: u32, k: u32, rows: u32) -> u64 {
    u64::from(rows) * u64::from(vocab.div_ceil(BLOCK)) * (u64::from(k) + 1) * 2
}

/// Words of the result of one row: `k` pairs of id and logit (f32 bits), then a pair of 0 and the log-sum-exp of
/// the row (f32 bits).
pub const fn out_words(k: u32) -> u64 {
    (k as u64 + 1) * 2
}

/// Plans the two dispatches, or `None` when `k` is not in 1..=[`MAX_K`], the vocabulary is empty or a stride is
/// shorter than the vocabulary. Operands of the first: logits (ReadArena), scratch (Write); of the second: scratch
/// (ReadArena), out (Write; [`out_words`] a row).
pub fn plan(profile: &Profile, args: &Args) -> Option<[Call; 2]> {
    if args.k == 0 || args.k > MAX_K || args.vocab == 0 || args.stride < args.vocab {
        return None;
    }
    let blocks = args.vocab.div_ceil(BLOCK);
    let scratch = scratch_words(args.vocab, args.k, 1) * 4;
    let (vocab, k) = (u64::from(args.vocab), u64::from(args.k));
    let call = |stage, groups, cost| {
        let variant =
            Variant { stage, reduce: profile.tuning.reduce, workgroup: profile.tuning.row_workgroup };
        let params = Params { vocab: args.vocab, stride: args.stride, k: args.k, blocks, groups };
        Call {
            kernel: variant.into(),
            params: params.words(),
            workgroups: Count::each(Unit::LogitRows, 1, groups),
            rows: Unit::LogitRows,
            cost,
        }
    };
    let first = Cost {
        bytes_per_row: vocab * 4 + scratch,
        // A comparison and a term of the sum for each logit, and what the lane of each winner looks through again.
        flops_per_row: 6 * vocab + k * 256,
        ..Cost::default()
    };
    let pairs = u64::from(blocks) * k;
    let second = Cost {
        bytes_per_row: scratch + out_words(args.k) * 4,
        flops_per_row: 2 * pairs + k * 256,
        ..Cost::default()
    };
    Some([call(Stage::Blocks, blocks, first), call(Stage::Merge, 1, second)])
}

/// The CPU twin: the words of `rows` results.
pub fn twin(args: &Args, rows: usize, logits: &[f32]) -> Vec<u32> {
    let mut out = Vec::new();
    for row in 0..rows {
        let logits = &logits[row * args.stride as usize..][..args.vocab as usize];
        let usable = |v: f32| if v.is_nan() { -f32::MAX } else { v };
        let mut order: Vec<u32> = (0..args.vocab).collect();
        // Equal zeros of both signs tie, as floats do.
        let at = |id: u32| usable(logits[id as usize]) + 0.0;
        order.sort_by(|a, b| at(*b).total_cmp(&at(*a)).then(a.cmp(b)));
        for i in 0..args.k as usize {
            let (id, logit) = order.get(i).map_or((NONE, -f32::MAX), |id| (*id, at(*id)));
            out.extend([id, logit.to_bits()]);
        }
        let finite = |v: f32| f64::from(usable(v).clamp(-f32::MAX, f32::MAX));
        let largest = logits.iter().map(|v| finite(*v)).fold(f64::MIN, f64::max);
        let sum: f64 = logits.iter().map(|v| (finite(*v) - largest).exp()).sum();
        let spoilt = logits.iter().any(|v| v.is_nan() || *v == f32::INFINITY);
        let log_sum_exp = if spoilt { f32::NAN } else { (largest + sum.ln()) as f32 };
        out.extend([0, log_sum_exp.to_bits()]);
    }
    out
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for stage in [Stage::Blocks, Stage::Merge] {
            for (reduce, workgroup) in [(Reduce::Subgroup, 8), (Reduce::Subgroup, 128), (Reduce::Shared, 128)]
            {
                all.push(Self { stage, reduce, workgroup });
            }
        }
        all
    }
}

impl Variant {
    /// Cells of a lane: as many as a cell of a full block has candidates.
    fn cells(&self) -> u32 {
        BLOCK.div_ceil(self.workgroup).isqrt().max(1)
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        let stage = match self.stage {
            Stage::Blocks => "blocks",
            Stage::Merge => "merge",
        };
        format!("top_k_{stage}_{}_wg{}", lanes::reduce_name(self.reduce), self.workgroup)
    }

    fn wgsl(&self) -> String {
        let (ty, text) = match self.stage {
            Stage::Blocks => ("array<f32>", include_str!("top_k_blocks.wgsl")),
            Stage::Merge => ("array<u32>", include_str!("top_k_merge.wgsl")),
        };
        Source::new(Params::WGSL)
            .constant("WG", self.workgroup)
            .constant("BLOCK", BLOCK)
            .constant("CELLS", self.cells())
            .operand(0, Access::ReadArena, "x", ty)
            .operand(1, Access::Write, "out", "array<u32>")
            .text(lanes::entry(self.reduce))
            .text(lanes::FLOAT_KEY)
            .text(text)
            .text(include_str!("top_k.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
