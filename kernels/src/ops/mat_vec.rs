//! Matrix × 1–8 vectors: `out[t, n] = Σ_k W[n, k]·x[t, k] (+ bias[n]) (+ out[t, n])`, sums in f32.
//!
//! Grid: a workgroup computes ROWS rows of W for up to COLS rows of x, its lanes share K by granules of octs, and the
//! lanes are summed at the end. `ceil(N / ROWS) × ceil(T / COLS)` workgroups, folded over two dimensions. A software
//! driver wants the workgroup to be one subgroup (no barrier, no workgroup memory), a GPU 64 lanes.
//!
//! Workgroup memory: `4·WG·ROWS·COLS` bytes but for one subgroup, so 8 KiB at 64 lanes, 4 rows, 8 columns. Limits: 5
//! storage buffers.
//!
//! Precision: codes with a bias or an offset (affine ones) are summed unsigned and the offset is added once a granule; the
//! error is that of an f32 sum over magnitudes two to three times the weights'. Floats, e2m1, e4m3 and q8_0 have none.
//!
//! Measured (lavapipe of Mesa 22.3, 2 cores shared with other work, so processor time over two; 8 lanes, 8 rows, one
//! column, 576×1536): GB/s of weights f32 6.2, f16 5.4, bf16 5.9, q8_0 3.9, q4_1 3.4, q4_0 2.8, q5_1 2.8, q6_k 2.5,
//! q4_k 2.3, q5_0 and iq4_nl 2.4, mxfp4 2.2, q5_k and iq4_xs 1.8, q2_k 1.4, q3_k 1.2; 4096×4096 is within 15 %. That
//! driver loads lane by lane, so loads count: 8 rows use a loaded x; 16 gain nothing more, 4 lose 20 %. The same of
//! packed safetensors (group 64, bf16 scales; between 576×1536 runs up to 15 % apart): affine8 4.1, affine4 3.0, affine6
//! 2.8, affine5 2.5, affine3 1.7, affine2 1.6, affine1 1.0, mxfp8 3.4, fp8 3.3, nvfp4 2.3, nvfp4 with a row factor 2.0.
//! Granules of 4 octs, which groups of 64 allow, gain nothing for affine4 and lose 15 % for affine8.

use super::{lanes, linear};
use crate::shader::{Access, Shader, Source};
use crate::unpack::unpackers;
use crate::{Call, Count, Format, Profile, Reduce};
use serde::{Deserialize, Serialize};

pub use super::linear::{Args, twin};

/// How the lanes of a workgroup are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sum {
    /// The workgroup is one subgroup.
    OneSubgroup,
    /// Subgroups of any size, then workgroup memory.
    Subgroups,
    /// Workgroup memory.
    Shared,
}

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Stored format of the matrix.
    pub format: Format,
    /// Rows of `x`: 1, 2, 4 or 8.
    pub cols: u32,
    /// Rows of the matrix.
    pub rows: u32,
    /// Invocations; a power of two.
    pub workgroup: u32,
    /// Octs a lane takes at a time.
    pub granule: u32,
    /// Sum over lanes.
    pub sum: Sum,
    /// `x` is read as vec4.
    pub wide: bool,
}

/// Plans the dispatch. Operands: matrix shard (Read), x (ReadArena), out (Write), vectors (Read).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let cols = args.max_rows.clamp(1, linear::MAT_VEC_ROWS);
    let variant = Variant::new(profile, args.format, cols, linear::wide(args.k, args.x_stride));
    let (cols, groups) = (variant.cols, args.n.div_ceil(variant.rows));
    Call {
        kernel: variant.into(),
        params: linear::params(args).words(),
        workgroups: Count::each(args.unit, cols, groups),
        rows: args.unit,
        cost: linear::cost(args),
    }
}

/// Octs a lane takes at a time: no more than share a scale, `K` whole granules, and no more than keep 8 lanes busy: blocks
/// of 256 are 8 × 4 octs, rows of smaller blocks may be short (`K` = 576), rows of single values end anywhere.
const fn granule(format: Format) -> u32 {
    match format.block_len() {
        1 => 1,
        256 => format.scales().octs(),
        _ => 2,
    }
}

impl Variant {
    /// The variant for at least `cols` rows of x on an adapter.
    pub(crate) fn new(profile: &Profile, format: Format, cols: u32, wide: bool) -> Self {
        let tuning = &profile.tuning;
        let cols = cols.max(1).next_power_of_two();
        let mut workgroup = tuning.mat_vec_workgroup.max(1).next_power_of_two();
        let mut rows = tuning.mat_vec_rows.max(1);
        let sum = match tuning.reduce {
            Reduce::Shared => Sum::Shared,
            Reduce::Subgroup if profile.subgroup_size.0 >= workgroup => Sum::OneSubgroup,
            Reduce::Subgroup => Sum::Subgroups,
        };
        if sum != Sum::OneSubgroup {
            // A tuning row is advice; the limits are not.
            let limits = &profile.limits;
            let fits = |workgroup: u32, rows: u32| {
                4 * workgroup * rows * cols <= limits.max_compute_workgroup_storage_size
            };
            while workgroup > 1 && workgroup > limits.max_compute_invocations_per_workgroup {
                workgroup /= 2;
            }
            while rows > 1 && !fits(workgroup, rows) {
                rows = rows.div_ceil(2);
            }
            while workgroup > 1 && !fits(workgroup, rows) {
                workgroup /= 2;
            }
        }
        Self { format, cols, rows, workgroup, granule: granule(format), sum, wide }
    }

    /// Workgroup memory with barriers behind it, by name: what a decision of the whole workgroup is handed on in.
    pub(crate) fn shared(&self) -> Option<&'static str> {
        (self.sum != Sum::OneSubgroup).then_some("partial")
    }

    /// The module, after its parameters and operands; `share` is the text of `share_of`, `row_of`, `x_row` and `leaves`.
    pub(crate) fn module(&self, source: Source, share: &str) -> String {
        let source = source
            .constant("WG", self.workgroup)
            .constant("ROWS", self.rows)
            .constant("COLS", self.cols)
            .constant("GRANULE", self.granule)
            .constant("KEPT", (self.rows * self.cols).div_ceil(self.workgroup.max(1)))
            .constant("NO_BIAS", linear::NO_BIAS);
        let counts = [("ROWS", self.rows), ("COLS", self.cols), ("GRANULE", self.granule)];
        unpackers(source, self.format)
            .text(if self.wide {
                include_str!("linear_wide.wgsl")
            } else {
                concat!(include_str!("linear_single.wgsl"), include_str!("linear_narrow.wgsl"))
            })
            .text(include_str!("linear.wgsl"))
            .text(share)
            .text(match self.sum {
                Sum::OneSubgroup => include_str!("mat_vec_one.wgsl"),
                Sum::Subgroups => include_str!("mat_vec_subgroups.wgsl"),
                Sum::Shared => include_str!("mat_vec_shared.wgsl"),
            })
            .text(&lanes::unroll(include_str!("mat_vec.wgsl"), &counts))
            .finish()
    }

    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let base = Self {
            format: Format::F32,
            cols: 1,
            rows: 4,
            workgroup: 64,
            granule: 1,
            sum: Sum::Subgroups,
            wide: true,
        };
        let mut all: Vec<_> = Format::ALL
            .into_iter()
            .map(|format| Self { format, granule: granule(format), ..base.clone() })
            .collect();
        for sum in [Sum::OneSubgroup, Sum::Shared] {
            for cols in [1, 8] {
                let workgroup = if sum == Sum::OneSubgroup { 8 } else { 64 };
                all.push(Self {
                    format: Format::Q4K,
                    granule: granule(Format::Q4K),
                    cols,
                    workgroup,
                    sum,
                    ..base.clone()
                });
                all.push(Self { format: Format::F16, cols, workgroup, sum, wide: false, ..base.clone() });
            }
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        let Self { format, cols, rows, workgroup, granule, sum, wide } = self;
        let sum = match sum {
            Sum::OneSubgroup => "one",
            Sum::Subgroups => "subgroups",
            Sum::Shared => "shared",
        };
        let wide = if *wide { "" } else { "_narrow" };
        format!("mat_vec_{format}_c{cols}_r{rows}_w{workgroup}_g{granule}_{sum}{wide}")
    }

    fn wgsl(&self) -> String {
        self.module(linear::source(linear::Params::WGSL, self.wide), linear::ROWS)
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Read, Access::ReadArena, Access::Write, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
