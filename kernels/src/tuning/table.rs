//! The tuning of adapters that nobody tuned: the first row whose conditions hold. Rows go by what an adapter is, never by
//! a name. Each says what was measured for it, on what, and where the figures stand; or that nothing was, and why its
//! values are what they are.

use super::{Delta, Reduce, Ssd, Tuning};
use crate::profile::Facts;
use serde::Serialize;
use std::fmt;

/// What an adapter must be for a row. What is 0 or false asks for nothing, but for `cpu`, which must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct When {
    /// A software driver, or a GPU.
    pub cpu: bool,
    /// Least of its smallest subgroup; adapters without subgroups have 0.
    pub subgroup: u32,
    /// Least workgroup memory, bytes.
    pub workgroup_memory: u32,
    /// Least of the most invocations a workgroup may have.
    pub invocations: u32,
    /// Arithmetic in f16.
    pub f16: bool,
    /// Cooperative matrices.
    pub cooperative_matrix: bool,
}

/// Any GPU.
const GPU: When = When {
    cpu: false,
    subgroup: 0,
    workgroup_memory: 0,
    invocations: 0,
    f16: false,
    cooperative_matrix: false,
};
/// Any software driver.
const CPU: When = When { cpu: true, ..GPU };

/// Something that was measured, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Measurement {
    /// The adapter, and the machine it was on.
    pub adapter: &'static str,
    /// Its driver, with the version.
    pub driver: &'static str,
    /// Year, month, day.
    pub date: &'static str,
    /// What was measured, and how.
    pub what: &'static str,
    /// The figures, and what they decide.
    pub figures: &'static str,
    /// Where all of them stand.
    pub source: &'static str,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// For which adapters.
    pub when: When,
    /// The values.
    pub tuning: Tuning,
    /// What was measured for it; none for a row that no adapter here has.
    pub measured: &'static [Measurement],
    /// Why the values are what they are where nothing was measured.
    pub reasoning: &'static str,
}

impl When {
    /// Whether an adapter is one of these.
    pub fn holds(&self, facts: &Facts) -> bool {
        self.cpu == facts.cpu
            && self.subgroup <= facts.subgroup_size.map_or(0, |(low, _)| low.max(1))
            && self.workgroup_memory <= facts.limits.max_compute_workgroup_storage_size
            && self.invocations <= facts.limits.max_compute_invocations_per_workgroup
            && (!self.f16 || facts.f16)
            && (!self.cooperative_matrix || facts.cooperative_matrix)
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.cpu { "a software driver" } else { "a GPU" })?;
        for (least, what) in [
            (self.subgroup, "subgroups of at least"),
            (self.workgroup_memory, "bytes of workgroup memory, at least"),
            (self.invocations, "invocations of a workgroup, at least"),
        ] {
            if least > 0 {
                write!(f, ", {what} {least}")?;
            }
        }
        for (wanted, what) in [(self.f16, "f16"), (self.cooperative_matrix, "cooperative matrices")] {
            if wanted {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

/// What all measurements so far were made on.
const ADAPTER: &str = "llvmpipe, 8 lanes of 256 bits, subgroups of 8, 2 cores of a virtual machine";
const DRIVER: &str = "lavapipe, Mesa 22.3.6 (LLVM 15.0.6)";

/// For software drivers with subgroups of 8.
static EIGHT_LANES: [Measurement; 7] = [
    Measurement {
        adapter: ADAPTER,
        driver: DRIVER,
        date: "2026-11-30",
        what: "mat_vec_rows: one column, q4_1, 2048 x 2048, in cache, by rows a lane; processor time, the machine was busy",
        figures: "4 a lane (32 of 8 lanes): 5.1 GB/s of weights; 2 lose 12 %, 8 gain 4 % and take twice the compile time",
        source: "kernels/src/ops/mat_vec.rs",
    },
    Measurement {
        adapter: ADAPTER,
        driver: DRIVER,
        date: "2026-11-30",
        what: "norm_values: a dispatch less against norms by every workgroup, one row",
        figures: "4 Mi, with gates done too, against neither: decode of Gemma 3 270M 6 % faster, of SmolLM2-135M no \
            difference shown",
        source: "benches/results/compare.md",
    },
    Measurement {
        adapter: ADAPTER,
        driver: DRIVER,
        date: "2026-11-30",
        what: "mat_mat_shared: q4_1 at 64 x 1536 x 576 (tiles and plain), at 512 x 2048 x 2048 (broadcast); processor time, the machine was busy",
        figures: "tiles 4 GFLOP/s, registers 23 (plain) and 56 (broadcast)",
        source: "kernels/src/ops/mat_mat.rs",
    },
    Measurement {
        adapter: ADAPTER,
        driver: DRIVER,
        date: "2026-11-29",
        what: "attention_workgroup: GFLOP/s for each core, 9 x 3 x 64, f16, 64 tokens at 448, by lanes; processor time",
        figures: "8 lanes 5.1, 16 lanes 3.8, 32 lanes 2.5, 64 lanes 2.1; the same order at two other sizes and at decode",
        source: "kernels/src/ops/attention.wgsl",
    },
    Measurement {
        adapter: ADAPTER,
        driver: DRIVER,
        date: "2026-11-30",
        what: "attention_fill: decode with and without splits of the keys",
        figures: "a merge costs what a thread needs for some hundred keys: 2, as many as threads",
        source: "nowhere else",
    },
    Measurement {
        adapter: ADAPTER,
        driver: DRIVER,
        date: "2026-11-30",
        what: "ssd: milliseconds on the wall of a layer, H 64, P 64, N 128, G 8, T 2,048, best of three",
        figures: "sequential 329, five kernels 611 (blocks of 64), streaming 947 (blocks of 32)",
        source: "benches/results/flat_prefill.md",
    },
    Measurement {
        adapter: ADAPTER,
        driver: DRIVER,
        date: "2026-11-29",
        what: "delta: milliseconds of all cores for a layer, 48 x 16 x 128 x 128, 512 tokens; processor time, the machine was busy",
        figures: "sequential 305, blocks of 16 2,700, blocks of 32 3,560",
        source: "kernels/src/ops/delta.rs",
    },
];

/// Why software drivers get one subgroup a workgroup.
const ONE_SUBGROUP: &str =
    "a workgroup is one subgroup: a barrier of a software driver costs every invocation, and lanes are few";
/// Why GPUs get what they get.
const BY_REASONING: &str = "never measured on a GPU: 64 lanes are whole subgroups of all of them, tiles save reads of \
    weights, blocks of tokens save reads of the state, and 1,024 workgroups are some for every core";

/// What software drivers have in common.
const SOFTWARE: Tuning = Tuning {
    reduce: Reduce::Subgroup,
    mat_vec_workgroup: 8,
    mat_vec_rows: 32,
    norm_values: 4 << 20,
    mat_mat_shared: false,
    row_workgroup: 8,
    // Four keys a lane: each query load is used four times.
    attention_workgroup: 8,
    // As many as threads of a small machine.
    attention_fill: 2,
    ssd: Ssd::Sequential,
    delta: Delta::Sequential,
};
/// What GPUs have in common.
const HARDWARE: Tuning = Tuning {
    reduce: Reduce::Subgroup,
    mat_vec_workgroup: 64,
    mat_vec_rows: 4,
    norm_values: 8 << 20,
    mat_mat_shared: true,
    row_workgroup: 128,
    attention_workgroup: 64,
    attention_fill: 1024,
    ssd: Ssd::Streaming { block: 16 },
    delta: Delta::Blocks { block: 16 },
};

/// The table, the most particular row first. The last is for whatever no other is for.
pub static ROWS: [Row; 7] = [
    Row {
        name: "cpu-subgroup-32",
        when: When { subgroup: 32, ..CPU },
        tuning: Tuning { mat_vec_workgroup: 32, row_workgroup: 32, ..SOFTWARE },
        measured: &[],
        reasoning: ONE_SUBGROUP,
    },
    Row {
        name: "cpu-subgroup-16",
        when: When { subgroup: 16, ..CPU },
        tuning: Tuning { mat_vec_workgroup: 16, row_workgroup: 16, ..SOFTWARE },
        measured: &[],
        reasoning: ONE_SUBGROUP,
    },
    Row {
        name: "cpu-subgroup-8",
        when: When { subgroup: 8, ..CPU },
        tuning: SOFTWARE,
        measured: &EIGHT_LANES,
        reasoning: ONE_SUBGROUP,
    },
    Row {
        name: "cpu-subgroup-4",
        when: When { subgroup: 1, ..CPU },
        tuning: Tuning { mat_vec_workgroup: 4, mat_vec_rows: 8, row_workgroup: 4, ..SOFTWARE },
        measured: &[],
        reasoning: ONE_SUBGROUP,
    },
    Row {
        name: "cpu",
        when: CPU,
        tuning: Tuning { reduce: Reduce::Shared, mat_vec_rows: 8, ..SOFTWARE },
        measured: &[],
        reasoning: "without subgroups: the 8 lanes of 256 bits that most processors have, and 8 rows so that their \
            sums fit workgroup memory",
    },
    Row {
        name: "gpu-subgroups",
        when: When { subgroup: 1, ..GPU },
        tuning: HARDWARE,
        measured: &[],
        reasoning: BY_REASONING,
    },
    Row {
        name: "gpu",
        when: GPU,
        tuning: Tuning { reduce: Reduce::Shared, ..HARDWARE },
        measured: &[],
        reasoning: BY_REASONING,
    },
];

/// The row for an adapter.
pub fn look_up(facts: &Facts) -> &'static Row {
    let [.., last] = &ROWS;
    ROWS.iter().find(|row| row.when.holds(facts)).unwrap_or(last)
}

/// A row by its name.
pub fn named(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}
