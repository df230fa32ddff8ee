//! What a plan may assume of an adapter: limits, features and the tuning row. Data only; no GPU is asked here.

use crate::tuning::{Tuned, Tuning, TuningError, table};
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

/// What an adapter is, as far as kernels depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Limits the device is opened with.
    pub limits: Limits,
    /// Smallest and largest subgroup size the adapter may choose; `None` when subgroup operations are missing or switched
    /// off.
    pub subgroup_size: Option<(u32, u32)>,
    /// A software driver: workgroup barriers are dear, lanes are few.
    pub cpu: bool,
    /// It has arithmetic in f16. No kernel needs it.
    pub f16: bool,
    /// It has cooperative matrices. No kernel needs them.
    pub cooperative_matrix: bool,
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
    /// It has arithmetic in f16. No kernel needs it.
    #[serde(default)]
    pub f16: bool,
    /// It has cooperative matrices. No kernel needs them.
    #[serde(default)]
    pub cooperative_matrix: bool,
    /// Floating-point operations one submit (and so one dispatch) may hold: watchdogs act per submit, and a
    /// submit is what can be cancelled.
    pub work_budget: u64,
    /// Chosen variants.
    pub tuning: Tuning,
    /// Where they are from: `table row …`, or the file. For people; never decides anything.
    #[serde(default)]
    pub tuned_by: String,
}

impl Profile {
    /// The plain profile: WebGPU's default limits, no subgroups, a GPU. What is priced when no adapter is named.
    pub fn webgpu_default() -> Self {
        Self::new("webgpu-default", Limits::webgpu_default(), None, false)
    }

    /// A profile from what an adapter states, without anything that no kernel needs. `subgroup_size` is `None` when
    /// subgroup operations are missing or switched off.
    pub fn new(name: &str, limits: Limits, subgroup_size: Option<(u32, u32)>, cpu: bool) -> Self {
        Self::of(name, Facts { limits, subgroup_size, cpu, f16: false, cooperative_matrix: false })
    }

    /// A profile from what an adapter is, with the tuning that the [table] has for it.
    pub fn of(name: &str, facts: Facts) -> Self {
        let row = table::look_up(&facts);
        Self {
            name: name.to_owned(),
            subgroups: facts.subgroup_size.is_some(),
            subgroup_size: facts.subgroup_size.unwrap_or((1, 1)),
            cpu: facts.cpu,
            f16: facts.f16,
            cooperative_matrix: facts.cooperative_matrix,
            work_budget: if facts.cpu { 1 << 31 } else { 1 << 34 },
            limits: facts.limits,
            tuning: row.tuning.clone(),
            tuned_by: format!("table row {}", row.name),
        }
    }

    /// What the adapter is.
    pub fn facts(&self) -> Facts {
        Facts {
            limits: self.limits.clone(),
            subgroup_size: self.subgroups.then_some(self.subgroup_size),
            cpu: self.cpu,
            f16: self.f16,
            cooperative_matrix: self.cooperative_matrix,
        }
    }

    /// The same adapter with other variants.
    ///
    /// # Errors
    /// Variants that it cannot have.
    pub fn tuned(self, tuned: &Tuned) -> Result<Self, TuningError> {
        tuned.tuning.checked(&self.facts())?;
        Ok(Self { tuning: tuned.tuning.clone(), tuned_by: tuned.source.clone(), ..self })
    }
}
