//! Norm with a gate, over groups of channels, in place: `x = norm(x·silu(z))·w` (gate first) or
//! `x = norm(x)·w·silu(z)`, `norm(u) = u / sqrt(mean(u²) + eps)` over each group by itself.

use super::{lanes, norm};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Cost, Count, Profile, Reduce, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Sum over lanes.
    pub reduce: Reduce,
    /// Invocations.
    pub workgroup: u32,
    /// Groups are read four values at a time.
    pub vec4: bool,
    /// Gate before the norm.
    pub gate_first: bool,
}

crate::params! {
    /// Sizes in `Value`s (one float or four) but for `values`.
    pub struct Params {
        /// Groups of a row.
        groups: u32,
        /// Length of a group.
        width: u32,
        /// Distance of rows of x.
        x_stride: u32,
        /// First column of the gate.
        gate_column: u32,
        /// Distance of rows of the gate.
        gate_stride: u32,
        /// Place of the weight.
        weight: u32,
        /// Distance of the groups' weights, 0 where they share one.
        weight_step: u32,
        /// Floats of a group.
        values: f32,
        /// Inside the root.
        eps: f32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row, all groups together.
    pub width: u32,
    /// Groups; they divide the width.
    pub groups: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// First column of the gate.
    pub gate_column: u32,
    /// Values between rows of the gate.
    pub gate_stride: u32,
    /// Word offset of the weight in the vectors.
    pub weight: u32,
    /// The weight has one value for each channel of a group, shared by the groups; else one for each channel.
    pub weight_shared: bool,
    /// Inside the root.
    pub eps: f32,
    /// Gate before the norm.
    pub gate_first: bool,
}

impl Args {
    /// Values of a group.
    fn group(&self) -> u32 {
        self.width / self.groups.max(1)
    }
}

/// Plans the dispatch. Operands: x (Write), gate (ReadArena), vectors (Read).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let group = args.group();
    let places = [group, args.x_stride, args.gate_column, args.gate_stride, args.weight];
    let vec4 = places.iter().all(|v| v.is_multiple_of(4));
    let size = if vec4 { 4 } else { 1 };
    let variant = Variant {
        reduce: profile.tuning.reduce,
        workgroup: profile.tuning.row_workgroup,
        vec4,
        gate_first: args.gate_first,
    };
    let params = Params {
        groups: args.groups,
        width: group / size,
        x_stride: args.x_stride / size,
        gate_column: args.gate_column / size,
        gate_stride: args.gate_stride / size,
        weight: args.weight / size,
        weight_step: if args.weight_shared { 0 } else { group / size },
        values: group as f32,
        eps: args.eps,
    };
    let width = u64::from(args.width);
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tokens, 1, args.groups),
        rows: Unit::Tokens,
        cost: Cost {
            bytes_fixed: u64::from(if args.weight_shared { group } else { args.width }) * 4,
            bytes_per_row: width * 12,
            flops_per_row: width * 9,
            ..Cost::default()
        },
    }
}

/// The CPU twin: `rows` rows of `x` in place; `vectors` holds the weight.
pub fn twin(args: &Args, rows: usize, x: &mut [f32], gate: &[f32], vectors: &[f32]) {
    let group = args.group() as usize;
    for row in 0..rows {
        for g in 0..args.groups as usize {
            let x = &mut x[row * args.x_stride as usize + g * group..][..group];
            let z = &gate[row * args.gate_stride as usize + args.gate_column as usize + g * group..][..group];
            let from = args.weight as usize + if args.weight_shared { 0 } else { g * group };
            let weight = &vectors[from..][..group];
            let silu = |z: f32| f64::from(z) / (1.0 + (-f64::from(z)).exp());
            let before = |x: f32, z: f32| f64::from(x) * if args.gate_first { silu(z) } else { 1.0 };
            let squares: f64 = x.iter().zip(z).map(|(x, z)| before(*x, *z).powi(2)).sum();
            let scale = norm::inverse_root(squares / group as f64, args.eps);
            for ((x, z), w) in x.iter_mut().zip(z).zip(weight) {
                let after = if args.gate_first { 1.0 } else { silu(*z) };
                *x = (before(*x, *z) * scale * f64::from(*w) * after) as f32;
            }
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (reduce, workgroup) in [(Reduce::Subgroup, 8), (Reduce::Subgroup, 128), (Reduce::Shared, 128)] {
            for (vec4, gate_first) in [(true, false), (true, true), (false, false), (false, true)] {
                all.push(Self { reduce, workgroup, vec4, gate_first });
            }
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!(
            "gated_norm_{}{}_{}_wg{}",
            if self.gate_first { "gate_first" } else { "gate_last" },
            if self.vec4 { "_vec4" } else { "" },
            lanes::reduce_name(self.reduce),
            self.workgroup
        )
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .constant("WG", self.workgroup)
            .flag("GATE_FIRST", self.gate_first)
            .operand(0, Access::Write, "x", "array<Value>")
            .operand(1, Access::ReadArena, "gate", "array<Value>")
            .operand(2, Access::Read, "vectors", "array<Value>")
            .text(&norm::values(self.vec4))
            .text(lanes::entry(self.reduce))
            .text(include_str!("gated_norm.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Write, Access::ReadArena, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
