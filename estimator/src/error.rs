//! Why no plan could be made.

use crate::others::Role;
use plimsoll_kernels::Limits;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A limit of the adapter that a plan met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Bytes of one buffer.
    Allocation,
    /// Bytes of one binding.
    Binding,
    /// Storage buffers of one stage.
    StorageBuffers,
    /// Invocations of a workgroup.
    Invocations,
    /// Workgroups of a dispatch.
    Workgroups,
}

impl Limit {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Allocation => "allocation",
            Limit::Binding => "binding",
            Limit::StorageBuffers => "storage_buffers",
            Limit::Invocations => "invocations",
            Limit::Workgroups => "workgroups",
        }
    }
}

impl Limit {
    /// The name in a sentence.
    const fn said(self) -> &'static str {
        match self {
            Limit::Allocation => "allocation",
            Limit::Binding => "binding",
            Limit::StorageBuffers => "storage buffer",
            Limit::Invocations => "invocation",
            Limit::Workgroups => "workgroup",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Limit::Allocation | Limit::Binding => " bytes",
            Limit::StorageBuffers | Limit::Invocations | Limit::Workgroups => "",
        }
    }
}

/// Why no plan could be made.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A part that cannot be made smaller exceeds a limit of the adapter.
    #[error("{name} needs {0}{2} where the {1} limit is {3}{2}", grouped(*need), limit.said(), limit.unit(), grouped(*have))]
    Limit {
        /// Which limit.
        limit: Limit,
        /// What met it.
        name: String,
        /// What it needs.
        need: u64,
        /// What there is.
        have: u64,
    },
    /// The KV format cannot hold heads of this size.
    #[error("KV format {format} needs heads of a multiple of 32 values, this model has {head_dim}")]
    KvFormat {
        /// Asked for.
        format: &'static str,
        /// The model's.
        head_dim: u32,
    },
    /// A number of the geometry is out of range.
    #[error("{field}: expected {expected}, got {}", grouped(*got))]
    Geometry {
        /// Which.
        field: &'static str,
        /// The range, with its unit where that is not the field's.
        expected: String,
        /// What was asked.
        got: u64,
        /// The end of the range that it is beyond.
        have: u64,
    },
    /// The model's graph contradicts itself: a fault of its architecture, not of the checkpoint.
    #[error("the graph of this model is malformed at {at}: {why}")]
    Graph {
        /// Which op.
        at: String,
        /// What is wrong.
        why: String,
    },
    /// Another engine, by whose rules this is priced, does not hold it.
    #[error(transparent)]
    Engine(#[from] crate::peers::PeerError),
    /// A model that is to be on the device, too, cannot be with this geometry.
    #[error("{model}, {}: {error}", role.said())]
    Beside {
        /// Which.
        model: String,
        /// Why it is there.
        role: Role,
        /// What stands against it.
        error: Box<PlanError>,
    },
}

/// Digits in groups of three, as reports and refusals print bytes: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// In the largest binary unit that leaves at least 1: `1.50 GiB`.
pub fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}

impl PlanError {
    /// Whether it is a fault of an architecture, which no other geometry mends.
    pub(crate) fn is_fault(&self) -> bool {
        match self {
            Self::Graph { .. } => true,
            Self::Beside { error, .. } => error.is_fault(),
            _ => false,
        }
    }

    /// By the limit that broke: within buffers that are no larger than a binding may be, it is the buffers'.
    pub(crate) fn by(self, limits: &Limits) -> Self {
        match self {
            Self::Limit { limit: Limit::Binding, name, need, .. }
                if limits.max_buffer_size <= limits.max_storage_buffer_binding_size =>
            {
                Self::Limit { limit: Limit::Allocation, name, need, have: limits.max_buffer_size }
            }
            other => other,
        }
    }

    pub(crate) fn graph(at: &str, why: impl Into<String>) -> Self {
        PlanError::Graph { at: at.to_owned(), why: why.into() }
    }
}
