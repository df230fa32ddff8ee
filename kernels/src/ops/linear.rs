//! `out = x·Wᵀ (+ bias) (+ out)`: the choice between mat-vec and mat-mat, and what they share.

use super::gate::Activation;
use super::{mat_mat, mat_vec, norm};
use crate::shader::{Access, Source};
use crate::{Call, Cost, Format, Profile, Record};

/// Most rows of `x` that the mat-vec takes; more go to the mat-mat. Where lanes have rows of their own, both have one body,
/// and the mat-vec is the one for fewer columns.
pub const MAT_VEC_ROWS: u32 = 8;

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Stored format of the matrix.
    pub format: Format,
    /// `N`, columns of `out` and rows of this shard; half its rows where there is a gate.
    pub n: u32,
    /// `K`, whole blocks of the format.
    pub k: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Column of `out` where this shard begins.
    pub out_column: u32,
    /// Add into `out` instead of overwriting.
    pub accumulate: bool,
    /// Word offset of the bias of this shard in the vectors.
    pub bias: Option<u32>,
    /// What a row is: tokens or logit rows.
    pub unit: crate::Unit,
    /// Most rows in a step.
    pub max_rows: u32,
    /// A norm of the rows of `x` on their way in, see [`takes`].
    pub norm: Option<Norm>,
    /// The matrix has `2·N` rows and `out = act(y[:, :N])·y[:, N:]` of the product `y`, see [`takes`].
    pub gate: Option<Activation>,
}

/// A root-mean-square norm of whole rows of `K` values, as [`rms_norm`](super::rms_norm) has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Word offset of the weight in the vectors: a multiple of four.
    pub weight: u32,
    /// The weight is stored zero-centred.
    pub plus_one: bool,
    /// Inside the root.
    pub eps: f32,
}

crate::params! {
    /// Sizes and places of both kernels.
    pub struct Params {
        /// Header word with the number of rows of x.
        count_word: u32,
        /// `N`.
        n: u32,
        /// `K`.
        k: u32,
        /// Octs of a row of the matrix.
        octs: u32,
        /// Words between rows of the matrix.
        w_stride: u32,
        /// Values between rows of x.
        x_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Column of out where this shard begins.
        out_column: u32,
        /// 1 to add into out.
        accumulate: u32,
        /// Place of the bias in the vectors, or `NO_BIAS`.
        bias: u32,
        /// Of the norm on the way in: place of the weight in vec4s.
        weight: u32,
        /// Inside its root.
        eps: f32,
        /// 1 for zero-centred weights.
        plus_one: f32,
    }
}

/// `Params::bias` of a product without one.
pub(crate) const NO_BIAS: u32 = u32::MAX;

/// Plans the dispatch. Operands: matrix shard (Read), x (ReadArena), out (Write), vectors (Read; any one word when
/// there is no bias).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    if args.max_rows <= MAT_VEC_ROWS { mat_vec::plan(profile, args) } else { mat_mat::plan(profile, args) }
}

/// The record of the matrix. A `K` that is not whole blocks is cut to whole blocks: no matrix has one.
pub(crate) fn record(args: &Args) -> Option<Record> {
    Record::new(args.format, args.k)
}

pub(crate) fn params(args: &Args) -> Params {
    let record = record(args);
    Params {
        count_word: super::lanes::count_word(args.unit),
        n: args.n,
        k: args.k,
        octs: record.map_or(0, |r| r.octs()),
        w_stride: record.map_or(0, |r| (r.stride() / 4) as u32),
        x_stride: args.x_stride,
        out_stride: args.out_stride,
        out_column: args.out_column,
        accumulate: args.accumulate.into(),
        bias: args.bias.unwrap_or(NO_BIAS),
        weight: args.norm.map_or(0, |norm| norm.weight / 4),
        eps: args.norm.map_or(0.0, |norm| norm.eps),
        plus_one: if args.norm.is_some_and(|norm| norm.plus_one) { 1.0 } else { 0.0 },
    }
}

/// Whether the dispatch for up to `max_rows` rows does a norm on the way in and a gate on the way out: a mat-vec whose
/// rows of x are read by vec4. (A mat-mat would do the norm of each row of x once for every tile of the matrix.)
pub fn takes(profile: &Profile, max_rows: u32, k: u32, x_stride: u32) -> bool {
    max_rows <= MAT_VEC_ROWS && wide(k, x_stride) && mat_vec::takes(profile)
}

/// Whether rows of x can be read as whole octs of vec4.
pub(crate) fn wide(k: u32, x_stride: u32) -> bool {
    k.is_multiple_of(8) && x_stride.is_multiple_of(4)
}

/// The start of a product's module: parameters, and the operands w, x, out and vectors.
/// `quads`: the matrix is read by four words; `normed`: vectors are.
pub(crate) fn source(params: &str, wide: bool, quads: bool, normed: bool) -> Source {
    let vectors = if normed {
        include_str!("linear_vectors_quads.wgsl")
    } else {
        include_str!("linear_vectors_singles.wgsl")
    };
    Source::new(params)
        .operand(0, Access::Read, "w", if quads { "array<vec4<u32>>" } else { "array<u32>" })
        .operand(1, Access::ReadArena, "x", if wide { "array<vec4<f32>>" } else { "array<f32>" })
        .operand(2, Access::Write, "out", "array<f32>")
        .operand(3, Access::Read, "vectors", if normed { "array<vec4<f32>>" } else { "array<f32>" })
        .text(vectors)
}

/// The WGSL of what is done on the way in and on the way out.
pub(crate) fn ways(normed: bool, gate: Option<Activation>) -> String {
    let mut text = String::new();
    if normed {
        text += &norm::values(true);
        text += include_str!("linear_normed.wgsl");
    }
    if let Some(activation) = gate {
        text += activation.wgsl();
        text += include_str!("linear_gated.wgsl");
    }
    text
}

/// The WGSL of which rows a workgroup takes: as they stand.
pub(crate) const ROWS: &str = concat!(include_str!("linear_rows.wgsl"), include_str!("linear_leave.wgsl"));

pub(crate) fn cost(args: &Args) -> Cost {
    let (n, k) = (u64::from(args.n), u64::from(args.k));
    let rows = if args.gate.is_some() { 2 * n } else { n };
    let bias = if args.bias.is_some() { 4 * rows } else { 0 };
    // As the norm's and the gate's own dispatches count.
    let (weight, norm) = if args.norm.is_some() { (4 * k, 5 * k) } else { (0, 0) };
    let gate = if args.gate.is_some() { super::gate::FLOPS * n } else { 0 };
    Cost {
        bytes_fixed: rows * record(args).map_or(0, |r| r.stride()) + bias + weight,
        bytes_per_row: 4 * k + 4 * n * if args.accumulate { 2 } else { 1 },
        flops_per_row: 2 * rows * k + norm + gate,
        ..Cost::default()
    }
}

/// The CPU twin of both kernels, with f64 sums: `rows` rows of `x`, `weights` as device records.
pub fn twin(args: &Args, rows: usize, weights: &[u8], x: &[f32], vectors: &[f32], out: &mut [f32]) {
    let Some(record) = record(args) else { return };
    let k = args.k as usize;
    let decoded: Vec<Vec<f32>> = weights
        .chunks_exact(record.stride() as usize)
        .map(|bytes| {
            let mut w = vec![0.0f32; k];
            record.decode(bytes, &mut w);
            w
        })
        .collect();
    for row in 0..rows {
        let mut x: Vec<f64> = x[row * args.x_stride as usize..][..k].iter().map(|x| f64::from(*x)).collect();
        if let Some(normed) = args.norm {
            let scale = norm::inverse_root(x.iter().map(|x| x * x).sum::<f64>() / k as f64, normed.eps);
            for (x, w) in x.iter_mut().zip(&vectors[normed.weight as usize..]) {
                *x *= scale * (f64::from(*w) + if normed.plus_one { 1.0 } else { 0.0 });
            }
        }
        let product = |n: usize| {
            let dot: f64 = decoded[n].iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum();
            dot + args.bias.map_or(0.0, |at| f64::from(vectors[at as usize + n]))
        };
        for n in 0..args.n as usize {
            let out = &mut out[row * args.out_stride as usize + args.out_column as usize + n];
            let value = match args.gate {
                None => product(n),
                Some(activation) => activation.of(product(n)) * product(args.n as usize + n),
            };
            *out = (value + if args.accumulate { f64::from(*out) } else { 0.0 }) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kernel, Limits, Unit};

    fn args(max_rows: u32) -> Args {
        Args {
            format: Format::Q4_0,
            n: 100,
            k: 96,
            x_stride: 96,
            out_stride: 100,
            out_column: 0,
            accumulate: true,
            bias: Some(0),
            unit: Unit::Tokens,
            max_rows,
            norm: None,
            gate: None,
        }
    }

    #[test]
    fn few_rows_are_vectors() {
        let gpu = Profile::webgpu_default();
        let is_vec = |profile: &Profile, rows| matches!(plan(profile, &args(rows)).kernel, Kernel::MatVec(_));
        assert!(is_vec(&gpu, 1) && is_vec(&gpu, 8) && !is_vec(&gpu, 9));
        let cpu = Profile::new("cpu", Limits::webgpu_default(), Some((8, 8)), true);
        assert!(is_vec(&cpu, 1) && is_vec(&cpu, 8) && !is_vec(&cpu, 9));
    }

    #[test]
    fn cost_counts_what_moves() {
        let cost = cost(&args(1));
        // 3 blocks of 18 bytes, padded to 64.
        assert_eq!(cost.bytes_fixed, 100 * 64 + 400);
        assert_eq!(cost.bytes(2, 0), cost.bytes_fixed + 2 * (96 * 4 + 2 * 100 * 4));
        assert_eq!(cost.flops(3, 0), 3 * 2 * 100 * 96);
    }

    #[test]
    fn no_tuning_passes_the_limits() {
        let mut profile = Profile::webgpu_default();
        profile.tuning.mat_vec_workgroup = 4096;
        profile.tuning.mat_vec_rows = 64;
        for rows in 1..=8 {
            let Kernel::MatVec(v) = mat_vec::plan(&profile, &args(rows)).kernel else { continue };
            assert!(v.workgroup <= profile.limits.max_compute_invocations_per_workgroup);
            assert!(4 * v.workgroup * v.rows * v.cols <= profile.limits.max_compute_workgroup_storage_size);
        }
    }
}
