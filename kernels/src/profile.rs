//! What a plan may assume of an adapter: limits, features and the tuning row. Data only; no GPU is asked here.

use serde::{Deserialize, Serialize};

/// The limits that shape a plan, named as WebGPU names them. Bytes unless stated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Largest buffer.
    pub max_buffer_size: u64,
    /// Largest storage binding.
    pub max_storage_buffer_binding_size: u64,
    /// Storage buffers one stage may bind (a count).
    pub max_storage_buffers_per_shader_stage: u32,
    /// Workgroup memory of one workgroup.
    pub max_compute_workgroup_storage_size: u32,
    /// Invocations of one workgroup (a count).
    pub max_compute_invocations_per_workgroup: u32,
    /// Workgroups a dispatch may have along one dimension (a count).
    pub max_compute_workgroups_per_dimension: u32,
}

impl Limits {
    /// The limits every WebGPU adapter must give.
    pub const fn webgpu_default() -> Self {
        Self {
            max_buffer_size: 256 << 20,
            max_storage_buffer_binding_size: 128 << 20,
            max_storage_buffers_per_shader_stage: 8,
            max_compute_workgroup_storage_size: 16 << 10,
            max_compute_invocations_per_workgroup: 256,
            max_compute_workgroups_per_dimension: 65_535,
        }
    }
}

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
#[serde(rename_all = "snake_case")]
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
#[serde(rename_all = "snake_case")]
pub enum Delta {
    /// Token by token.
    Sequential,
    /// Blocks of tokens in order.
    Blocks {
        /// `C`, tokens of a block: 16, or 32 where that fits workgroup memory.
        block: u32,
    },
}

/// Kernel variants chosen for an adapter. They change speed, and results only by rounding. Bytes follow one of them:
/// with [`Ssd::Kernels`] the workspace holds what goes from kernel to kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Sums over lanes.
    pub reduce: Reduce,
    /// Invocations of a mat-vec workgroup.
    pub mat_vec_workgroup: u32,
    /// Weight rows one mat-vec workgroup computes.
    pub mat_vec_rows: u32,
    /// Most values of the matrices of a product that takes in the norm before it: each of its workgroups norms the row for
    /// itself, which a dispatch less has to be worth.
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

/// Everything about an adapter that a plan depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// For people; never decides anything.
    pub name: String,
    /// Limits the device is opened with.
    pub limits: Limits,
    /// Subgroup operations may be used.
    pub subgroups: bool,
    /// Smallest and largest subgroup size the adapter may choose; `(1, 1)` without subgroups.
    pub subgroup_size: (u32, u32),
    /// A software driver: workgroup barriers are dear, lanes are few.
    pub cpu: bool,
    /// Floating-point operations one submit (and so one dispatch) may hold: watchdogs act per submit, and a
    /// submit is what can be cancelled.
    pub work_budget: u64,
    /// Chosen variants.
    pub tuning: Tuning,
}

impl Profile {
    /// The plain profile: WebGPU's default limits, no subgroups, a GPU. What is priced when no adapter is named.
    pub fn webgpu_default() -> Self {
        Self::new("webgpu-default", Limits::webgpu_default(), None, false)
    }

    /// A profile from what an adapter states. `subgroup_size` is `None` when subgroup operations are missing or
    /// switched off.
    pub fn new(name: &str, limits: Limits, subgroup_size: Option<(u32, u32)>, cpu: bool) -> Self {
        let reduce = if subgroup_size.is_some() { Reduce::Subgroup } else { Reduce::Shared };
        let (low, high) = subgroup_size.unwrap_or((1, 1));
        let tuning = if cpu {
            // A barrier costs 10-30 ns per invocation on software drivers, so a workgroup is one subgroup.
            let lanes = if subgroup_size.is_some() { low.clamp(4, 32) } else { 8 };
            Tuning {
                reduce,
                mat_vec_workgroup: lanes,
                mat_vec_rows: if low >= 8 { 32 } else { 8 },
                // Measured on lavapipe: a dispatch costs some 70 µs of waking its threads, and the weight of a norm some
                // 25 ns for 32 values of 32 rows on one of two threads, so 5.7 million values are even.
                norm_values: 4 << 20,
                mat_mat_shared: false,
                row_workgroup: lanes,
                // Four keys a lane: each query load is used four times.
                attention_workgroup: 8,
                // As many as threads of a small machine. Measured on lavapipe with two: a merge costs what a thread
                // needs for some hundred keys.
                attention_fill: 2,
                // The fastest of the three on lavapipe; the kernel's header has the figures.
                ssd: Ssd::Sequential,
                delta: Delta::Sequential,
            }
        } else {
            Tuning {
                reduce,
                mat_vec_workgroup: 64,
                mat_vec_rows: 4,
                // Not measured on a GPU yet.
                norm_values: 8 << 20,
                mat_mat_shared: true,
                row_workgroup: 128,
                attention_workgroup: 64,
                // Not measured on a GPU yet.
                attention_fill: 1024,
                // By its traffic; not measured on a GPU yet.
                ssd: Ssd::Streaming { block: 16 },
                // Not measured on a GPU yet.
                delta: Delta::Blocks { block: 16 },
            }
        };
        Self {
            name: name.to_owned(),
            limits,
            subgroups: subgroup_size.is_some(),
            subgroup_size: (low, high),
            cpu,
            work_budget: if cpu { 1 << 31 } else { 1 << 34 },
            tuning,
        }
    }
}
