//! Matrix × 1–8 vectors: `out[t, n] = Σ_k W[n, k]·x[t, k] (+ bias[n]) (+ out[t, n])`, sums in f32.
//!
//! Grid: a workgroup computes ROWS rows of W for up to COLS rows of x, `ceil(N / ROWS) × ceil(T / COLS)` workgroups, folded
//! over two dimensions. Two forms, chosen by what the adapter is:
//!
//! * GPUs, and drivers without subgroups of 8: lanes share K by granules of octs, and are summed at the end. A software
//!   driver wants the workgroup to be one subgroup (no barrier, no workgroup memory), a GPU 64 lanes.
//! * Software drivers with subgroups of 8 or more: lanes have rows of their own (`row_lanes`), 4 each; for one row of x and
//!   values without scales they stand side by side in 16 rows (`spread_lanes.wgsl`).
//!
//! Both can take in the root-mean-square norm before them (`x·w` is summed, and the sums are divided by the root at the
//! end) and do the gate after them (the matrix has the rows of the gate and then those of what it gates): three dispatches
//! less in a layer. See [`linear::takes`].
//!
//! Workgroup memory: `4·WG·ROWS·COLS` bytes but for one subgroup, so 8 KiB at 64 lanes, 4 rows, 8 columns. Limits: 5
//! storage buffers.
//!
//! Precision: codes with a bias or an offset (affine ones) are summed unsigned and the offset is added once a granule; the
//! error is that of an f32 sum over magnitudes two to three times the weights'. Floats, e2m1, e4m3 and q8_0 have none.
//!
//! Measured (lavapipe of Mesa 22.3, 8 lanes of 256 bits, 2 cores busy with other work, so processor time over two; lanes
//! with rows of their own, one column, 2048×2048, which the caches hold): GB/s of weights, and 10⁹ multiply-adds a second
//! doubled. Reading: f32 10.4 (5.2), bf16 9.0, f16 8.7, q8_0 7.1 (13), affine8 6.5. Arithmetic, which is what holds the
//! others: q4_1 5.1 (16), q4_0 4.9, q4_k 4.9 (17), q5_k 5.0 (15), q5_0 5.1, q5_1 4.9, q6_k 4.8 (12), q3_k 3.2, q2_k 2.9,
//! iq4_nl 3.1, iq4_xs 2.9, fp8 5.4, mxfp8 5.7, nvfp4 3.6, mxfp4 3.7, affine6 4.3, affine5 4.9, affine4 4.7, affine3 3.4,
//! affine2 2.9, affine1 2.3 (25). 576×1536 is within 10 % of that. The loads alone reach 11 GB/s (and 16 as u64, which
//! would need another feature): that driver loads lane by lane, some 60 cycles a load of one word or four, so codes come
//! by vec4. For q4_1, of 52 ns that 32 values of 8 rows take, 29 are loads. Rows a lane: 2 lose 12 %, 8 gain 4 % and
//! take twice the compile time. 2, 4 and 8 columns of q4_1 take 1.5, 2.1 and 3.6 times as long as one.
//!
//! From memory (another machine of two cores, nothing else running, each beside the reading of its own run, 10.0 to 12.1
//! GB/s): of 4096×4096 in f32 (64 MiB) rows of their own reached 59 %, lanes side by side in 4 rows 72, in 8 rows 83 and
//! 84, in 16 rows 85 and 87; of 8192×8192 in bf16 (128 MiB) 66, 84 and 86. 32 short streams are what rows of their own
//! were. In the caches side by side is as fast (bf16) or up to a third faster (f32).

use super::gate::Activation;
use super::{lanes, linear, mat_mat, row_lanes};
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
    /// None: lanes have rows of the matrix of their own.
    Own,
    /// The workgroup is one subgroup of 8 lanes, side by side in the rows, and reads by four words.
    Spread,
}

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Stored format of the matrix.
    pub format: Format,
    /// Rows of `x`: 1, 2, 4 or 8.
    pub cols: u32,
    /// Rows of the matrix, of the whole workgroup.
    pub rows: u32,
    /// Invocations; a power of two.
    pub workgroup: u32,
    /// Octs a lane takes at a time.
    pub granule: u32,
    /// Sum over lanes.
    pub sum: Sum,
    /// `x` is read as vec4.
    pub wide: bool,
    /// A norm of the rows of x on the way in.
    pub normed: bool,
    /// A gate on the way out: half of the rows are the gate's.
    pub gate: Option<Activation>,
}

/// Whether the variants of an adapter do norms and gates. A workgroup of one subgroup that shares K keeps each sum in one
/// lane, and both need sums in others.
pub(crate) fn takes(profile: &Profile) -> bool {
    Variant::new(profile, Format::F32, 1, true).sum != Sum::OneSubgroup
}

/// Plans the dispatch. Operands: matrix shard (Read), x (ReadArena), out (Write), vectors (Read).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let cols = args.max_rows.clamp(1, linear::MAT_VEC_ROWS);
    let wide = linear::wide(args.k, args.x_stride);
    let variant = Variant::new(profile, args.format, cols, wide).with(args.norm.is_some(), args.gate);
    let (cols, groups) = (variant.cols, args.n.div_ceil(variant.outs()));
    Call {
        kernel: variant.into(),
        params: linear::params(args).words(),
        workgroups: Count::each(args.unit, cols, groups),
        rows: args.unit,
        cost: linear::cost(args),
    }
}

/// Rows of the matrix that lanes stand side by side in: x is loaded once for all of them.
const SPREAD_ROWS: u32 = 16;

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
        if mat_mat::body(profile) == mat_mat::Body::Broadcast {
            let own = (rows / row_lanes::LANES).clamp(1, 8) * row_lanes::LANES;
            // Formats that have scales, be they of a whole row, are not read by it.
            let spread = cols == 1 && format.is_float();
            return Self {
                format,
                cols,
                rows: if spread { SPREAD_ROWS } else { own },
                workgroup: row_lanes::LANES,
                granule: 4,
                sum: if spread { Sum::Spread } else { Sum::Own },
                wide,
                normed: false,
                gate: None,
            };
        }
        let sum = match tuning.reduce {
            Reduce::Shared => Sum::Shared,
            Reduce::Subgroup if profile.subgroup_size.0 >= workgroup => Sum::OneSubgroup,
            Reduce::Subgroup => Sum::Subgroups,
        };
        if sum != Sum::OneSubgroup {
            // A tuning row is advice; the limits are not.
            let limits = &profile.limits;
            // With the squares of a norm, and rows in pairs for a gate.
            let fits = |workgroup: u32, rows: u32| {
                4 * workgroup * (rows.next_multiple_of(2) + 1) * cols
                    <= limits.max_compute_workgroup_storage_size
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
        Self { format, cols, rows, workgroup, granule: granule(format), sum, wide, normed: false, gate: None }
    }

    /// The same with a norm and a gate.
    fn with(self, normed: bool, gate: Option<Activation>) -> Self {
        // Each side has as many, of the workgroup or of each lane that has rows of its own.
        let pairs = if self.sum == Sum::Own { 2 * row_lanes::LANES } else { 2 };
        let rows = if gate.is_some() { self.rows.next_multiple_of(pairs) } else { self.rows };
        Self { rows, normed, gate, ..self }
    }

    /// Columns of out of the whole workgroup.
    fn outs(&self) -> u32 {
        if self.gate.is_some() { self.rows / 2 } else { self.rows }
    }

    /// Workgroup memory with barriers behind it, by name: what a decision of the whole workgroup is handed on in.
    pub(crate) fn shared(&self) -> Option<&'static str> {
        matches!(self.sum, Sum::Subgroups | Sum::Shared).then_some("partial")
    }

    /// Whether the matrix is bound as vec4.
    pub(crate) fn quads(&self) -> bool {
        matches!(self.sum, Sum::Own | Sum::Spread)
    }

    /// The module, after its parameters and operands; `share` is the text of `share_of`, `row_of`, `x_row` and `leaves`.
    pub(crate) fn module(&self, source: Source, share: &str) -> String {
        if self.quads() {
            let spread = self.sum == Sum::Spread;
            let rows = if spread { self.rows } else { self.rows / row_lanes::LANES };
            let &Self { format, cols, wide, normed, gate, .. } = self;
            return row_lanes::module(
                source,
                share,
                &row_lanes::Shape { format, rows, cols, wide, normed, gate, spread },
            );
        }
        let source = source
            .constant("WG", self.workgroup)
            .constant("ROWS", self.rows)
            .constant("COLS", self.cols)
            .constant("GRANULE", self.granule)
            .constant("OUTS", self.outs())
            .constant("SUMS", (self.rows + u32::from(self.normed)) * self.cols)
            .constant("KEPT", (self.rows * self.cols).div_ceil(self.workgroup.max(1)))
            .constant("NO_BIAS", linear::NO_BIAS);
        let counts = [
            ("ROWS", self.rows),
            ("COLS", self.cols),
            ("GRANULE", self.granule),
            ("NORMED", self.normed.into()),
            ("PLAIN", (!self.normed).into()),
            ("GATED", self.gate.is_some().into()),
            ("UNGATED", self.gate.is_none().into()),
        ];
        unpackers(source, self.format)
            .text(if self.wide {
                include_str!("linear_wide.wgsl")
            } else {
                concat!(include_str!("linear_single.wgsl"), include_str!("linear_narrow.wgsl"))
            })
            .text(include_str!("linear.wgsl"))
            .text(share)
            .text(&linear::ways(self.normed, self.gate))
            .text(match self.sum {
                Sum::OneSubgroup => include_str!("mat_vec_one.wgsl"),
                Sum::Subgroups => include_str!("mat_vec_subgroups.wgsl"),
                Sum::Shared => include_str!("mat_vec_shared.wgsl"),
                // They have bodies of their own.
                Sum::Own | Sum::Spread => "",
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
            normed: false,
            gate: None,
        };
        let mut all: Vec<_> = Format::ALL
            .into_iter()
            .map(|format| Self { format, granule: granule(format), ..base.clone() })
            .collect();
        let own = Self { rows: 32, workgroup: row_lanes::LANES, granule: 4, sum: Sum::Own, ..base.clone() };
        all.extend(Format::ALL.into_iter().map(|format| Self { format, ..own.clone() }));
        all.push(Self { format: Format::F16, cols: 4, wide: false, ..own.clone() });
        let spread = Self { rows: SPREAD_ROWS, sum: Sum::Spread, ..own.clone() };
        for format in Format::ALL.into_iter().filter(|format| format.is_float()) {
            all.push(Self { format, ..spread.clone() });
            all.push(Self { format, wide: false, ..spread.clone() });
            all.push(Self { format, normed: true, gate: Some(Activation::Silu), ..spread.clone() });
        }
        for (normed, gate) in
            [(true, None), (false, Some(Activation::Silu)), (true, Some(Activation::GeluTanh))]
        {
            for (cols, of) in [(1, &own), (4, &base), (4, &Self { sum: Sum::Shared, ..base.clone() })] {
                all.push(Self { format: Format::Q4_1, cols, normed, gate, ..of.clone() });
            }
        }
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
        let Self { format, cols, rows, workgroup, granule, sum, wide, normed, gate } = self;
        let sum = match sum {
            Sum::OneSubgroup => "one",
            Sum::Subgroups => "subgroups",
            Sum::Shared => "shared",
            Sum::Own => "own",
            Sum::Spread => "spread",
        };
        let wide = if *wide { "" } else { "_narrow" };
        let normed = if *normed { "_normed" } else { "" };
        let gate = gate.map(|activation| format!("_{}", activation.name())).unwrap_or_default();
        format!("mat_vec_{format}_c{cols}_r{rows}_w{workgroup}_g{granule}_{sum}{wide}{normed}{gate}")
    }

    fn wgsl(&self) -> String {
        let source = linear::source(linear::Params::WGSL, self.wide, self.quads(), self.normed);
        self.module(source, linear::ROWS)
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Read, Access::ReadArena, Access::Write, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
