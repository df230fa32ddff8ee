//! Root-mean-square norm: `out = x / sqrt(mean(x²) + eps) · (w + plus_one)`, or `out += …`; of a whole row, or of each
//! of the groups a row is cut into, which share the weight.

use super::{lanes, norm};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Cost, Count, Profile, Reduce};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Sum over lanes.
    pub reduce: Reduce,
    /// Invocations.
    pub workgroup: u32,
    /// Rows are read four values at a time.
    pub vec4: bool,
    /// `out += …`.
    pub accumulate: bool,
}

crate::params! {
    /// Sizes in `Value`s (one float or four) but for `values`.
    pub struct Params {
        /// Header word with the number of rows.
        count_word: u32,
        /// Groups of a row.
        groups: u32,
        /// Length of a group.
        width: u32,
        /// Distance of rows of x.
        x_stride: u32,
        /// Distance of rows of out.
        out_stride: u32,
        /// Place of the weight.
        weight: u32,
        /// Floats of a group.
        values: f32,
        /// Inside the root.
        eps: f32,
        /// 1 for zero-centred weights.
        plus_one: f32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a group; of a row, where that is one.
    pub width: u32,
    /// Groups of a row, each normed by itself with the same weight.
    pub groups: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Inside the root.
    pub eps: f32,
    /// Word offset in the vectors.
    pub weight: u32,
    /// The weight is stored zero-centred.
    pub plus_one: bool,
    /// `out += norm(x)`: a post-norm joined with the residual.
    pub accumulate: bool,
    /// What a row is: tokens or logit rows.
    pub unit: crate::Unit,
}

/// Plans the dispatch. Operands: x (ReadArena), out (Write), vectors (Read).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let vec4 = [args.width, args.x_stride, args.out_stride, args.weight].iter().all(|v| v.is_multiple_of(4));
    let size = if vec4 { 4 } else { 1 };
    let variant = Variant {
        reduce: profile.tuning.reduce,
        workgroup: profile.tuning.row_workgroup,
        vec4,
        accumulate: args.accumulate,
    };
    let params = Params {
        count_word: lanes::count_word(args.unit),
        groups: args.groups,
        width: args.width / size,
        x_stride: args.x_stride / size,
        out_stride: args.out_stride / size,
        weight: args.weight / size,
        values: args.width as f32,
        eps: args.eps,
        plus_one: if args.plus_one { 1.0 } else { 0.0 },
    };
    let width = u64::from(args.width) * u64::from(args.groups);
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(args.unit, 1, args.groups),
        rows: args.unit,
        cost: Cost {
            bytes_fixed: u64::from(args.width) * 4,
            bytes_per_row: width * if args.accumulate { 12 } else { 8 },
            flops_per_row: width * if args.accumulate { 6 } else { 5 },
            ..Cost::default()
        },
    }
}

/// The CPU twin: `rows` rows of `x` into `out`, both with their strides; `vectors` holds the weight.
pub fn twin(args: &Args, rows: usize, x: &[f32], vectors: &[f32], out: &mut [f32]) {
    let width = args.width as usize;
    let weight = &vectors[args.weight as usize..][..width];
    for (row, group) in (0..rows).flat_map(|row| (0..args.groups as usize).map(move |group| (row, group))) {
        let x = &x[row * args.x_stride as usize + group * width..][..width];
        let out = &mut out[row * args.out_stride as usize + group * width..][..width];
        let mean = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / width as f64;
        let scale = norm::inverse_root(mean, args.eps);
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            let v = f64::from(*x) * scale * (f64::from(*w) + if args.plus_one { 1.0 } else { 0.0 });
            *out = (v + if args.accumulate { f64::from(*out) } else { 0.0 }) as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (reduce, workgroup) in [(Reduce::Subgroup, 8), (Reduce::Subgroup, 128), (Reduce::Shared, 128)] {
            for (vec4, accumulate) in [(true, false), (true, true), (false, false), (false, true)] {
                all.push(Self { reduce, workgroup, vec4, accumulate });
            }
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!(
            "rms_norm{}{}_{}_wg{}",
            if self.accumulate { "_add" } else { "" },
            if self.vec4 { "_vec4" } else { "" },
            lanes::reduce_name(self.reduce),
            self.workgroup
        )
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .constant("WG", self.workgroup)
            .flag("ACCUMULATE", self.accumulate)
            .operand(0, Access::ReadArena, "x", "array<Value>")
            .operand(1, Access::Write, "out", "array<Value>")
            .operand(2, Access::Read, "vectors", "array<Value>")
            .text(&norm::values(self.vec4))
            .text(lanes::entry(self.reduce))
            .text(include_str!("rms_norm.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
