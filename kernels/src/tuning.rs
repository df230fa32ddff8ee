//! Kernel variants of an adapter: what can be chosen, what is legal where, and what to try when one is measured. The
//! values for adapters nobody tuned are rows of [`table`].

pub mod candidates;
pub mod table;

pub use candidates::Field;
pub use table::{Measurement, Row, When};

use crate::profile::Facts;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How a kernel sums over the lanes of a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduce {
    /// `subgroupAdd`, then workgroup memory between subgroups (of any size, read from the built-in).
    Subgroup,
    /// A tree in workgroup memory.
    Shared,
}

/// How the state space ([`ops::ssd`](crate::ops::ssd)) is computed in steps of more than a few tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ssd {
    /// Token by token: one dispatch, no scratch.
    Sequential,
    /// Blocks of tokens in order: one dispatch, no scratch.
    Streaming {
        /// Tokens of a block.
        block: u32,
    },
    /// Blocks side by side, five dispatches. Their scratch
    /// ([`scratch_words`](crate::ops::ssd::scratch_words)) is part of the plan's workspace.
    Kernels {
        /// Tokens of a block.
        block: u32,
    },
}

/// How the gated delta rule ([`ops::delta`](crate::ops::delta)) is computed in steps of more than a few tokens. No form
/// has scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Delta {
    /// Token by token.
    Sequential,
    /// Blocks of tokens in order.
    Blocks {
        /// `C`, tokens of a block: 16, or 32 where that fits workgroup memory.
        block: u32,
    },
}

/// Kernel variants chosen for an adapter. They change speed, and results only by rounding. Bytes follow some of them:
/// with [`Ssd::Kernels`] the workspace holds what goes from kernel to kernel, with a larger `attention_fill` what goes
/// from splits of the keys to their merge, with fewer `norm_values` more norms. The plan has it to the byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Sums over lanes.
    pub reduce: Reduce,
    /// Invocations of a mat-vec workgroup. Unused where lanes have rows of their own (software drivers with subgroups
    /// of 8 and more).
    pub mat_vec_workgroup: u32,
    /// Weight rows one mat-vec workgroup computes.
    pub mat_vec_rows: u32,
    /// Most values of the matrices of a product that takes in the norm before it: each of its workgroups norms the row for
    /// itself, which a dispatch less has to be worth. With 0 none does.
    pub norm_values: u32,
    /// Whether the mat-mat stages tiles in workgroup memory (GPUs) or keeps to registers (CPU drivers).
    pub mat_mat_shared: bool,
    /// Invocations of the row-wise kernels (norms, sampling).
    pub row_workgroup: u32,
    /// Invocations of an attention workgroup.
    pub attention_workgroup: u32,
    /// Workgroups of one token that keep the device busy: where its heads are fewer, decode splits the keys among
    /// several workgroups a head, and another dispatch merges them.
    pub attention_fill: u32,
    /// Form of the state space.
    pub ssd: Ssd,
    /// Form of the gated delta rule.
    pub delta: Delta,
}

/// Variants, and where they are from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuned {
    /// The variants.
    pub tuning: Tuning,
    /// For people: `table row …`, or the file.
    pub source: String,
}

/// A value that no kernel of an adapter can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("tuning: {field}: expected {expected}, got {got}")]
pub struct TuningError {
    /// The field, as documents name it.
    pub field: Field,
    /// What it may be.
    pub expected: String,
    /// What it is.
    pub got: String,
}

/// Most invocations of any workgroup: the row-wise kernels and the mat-vec were tested up to here.
const MOST_LANES: u32 = 256;
/// Most lanes of attention: a quad of queries a lane fills its half of 16 KiB at more.
const MOST_ATTENTION_LANES: u32 = 64;
/// Most rows of a mat-vec workgroup: 8 a lane of 8.
const MOST_ROWS: u32 = 64;
/// Far more workgroups than anything has at a time.
const MOST_FILL: u32 = 1 << 20;
/// More values than a matrix of any layer has.
const MOST_NORM_VALUES: u32 = 1 << 30;
/// Workgroup memory of the tiles of the mat-mat.
const TILES_MEMORY: u32 = 16 << 10;
/// Invocations of the tiles of the mat-mat.
const TILES_LANES: u32 = 256;

impl Tuning {
    /// Whether every kernel of an adapter can have these. Nothing else decides that: what passes here plans and runs.
    ///
    /// # Errors
    /// The first field whose value is none, and what it may be.
    pub fn checked(&self, facts: &Facts) -> Result<(), TuningError> {
        let wrong = |field: Field, expected: String, got: String| Err(TuningError { field, expected, got });
        if self.reduce == Reduce::Subgroup && facts.subgroup_size.is_none() {
            let expected = "shared: there are no subgroups".to_owned();
            return wrong(Field::Reduce, expected, "subgroup".to_owned());
        }
        let lanes = facts.limits.max_compute_invocations_per_workgroup.min(MOST_LANES);
        for (field, value, least, most) in [
            (Field::MatVecWorkgroup, self.mat_vec_workgroup, 1, lanes),
            (Field::MatVecRows, self.mat_vec_rows, 1, MOST_ROWS),
            (Field::RowWorkgroup, self.row_workgroup, 4, lanes),
            (Field::AttentionWorkgroup, self.attention_workgroup, 8, lanes.min(MOST_ATTENTION_LANES)),
        ] {
            if !value.is_power_of_two() || !(least..=most).contains(&value) {
                return wrong(field, format!("a power of two from {least} to {most}"), value.to_string());
            }
        }
        if !(1..=MOST_FILL).contains(&self.attention_fill) {
            let expected = format!("a number from 1 to {MOST_FILL}");
            return wrong(Field::AttentionFill, expected, self.attention_fill.to_string());
        }
        if self.norm_values > MOST_NORM_VALUES {
            let expected = format!("a number from 0 to {MOST_NORM_VALUES}");
            return wrong(Field::NormValues, expected, self.norm_values.to_string());
        }
        let memory = facts.limits.max_compute_workgroup_storage_size;
        if self.mat_mat_shared && (lanes < TILES_LANES || memory < TILES_MEMORY) {
            let expected = format!("false: tiles need {TILES_LANES} invocations and {TILES_MEMORY} bytes");
            return wrong(Field::MatMatShared, expected, "true".to_owned());
        }
        match self.ssd {
            Ssd::Sequential => {}
            Ssd::Streaming { block } if block.is_power_of_two() && (4..=64).contains(&block) => {}
            Ssd::Kernels { block } if block.is_power_of_two() && (4..=256).contains(&block) => {}
            Ssd::Streaming { block } | Ssd::Kernels { block } => {
                let most = if matches!(self.ssd, Ssd::Kernels { .. }) { 256 } else { 64 };
                let expected = format!("blocks of a power of two from 4 to {most}");
                return wrong(Field::Ssd, expected, block.to_string());
            }
        }
        match self.delta {
            Delta::Sequential | Delta::Blocks { block: 16 | 32 } => Ok(()),
            Delta::Blocks { block } => {
                wrong(Field::Delta, "blocks of 16 or 32".to_owned(), block.to_string())
            }
        }
    }
}
