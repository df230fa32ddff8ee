//! Joins the splits of an attention: `out = Σ e^{m_i − m} acc_i / (Σ e^{m_i − m} l_i [+ e^{sink − m}])`.

use super::lanes;
use crate::shader::{Access, Shader, Source};
use crate::{Call, Cost, Count, Profile, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Each query head has a sink.
    pub sinks: bool,
    /// Invocations.
    pub workgroup: u32,
}

crate::params! {
    /// Sizes.
    pub struct Params {
        /// `Hq`.
        heads: u32,
        /// `E`.
        head_dim: u32,
        /// `Ep / 4`.
        quads: u32,
        /// `P`.
        splits: u32,
        /// Tokens the scratch has room for.
        max_tokens: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Workgroups of a token.
        blocks: u32,
        /// Sinks in the vectors.
        sinks: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Heads.
    pub shape: crate::AttentionShape,
    /// `P`.
    pub splits: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Most tokens in a step.
    pub max_tokens: u32,
    /// Word offset of `[Hq]` in the vectors: the sinks of [`super::attention::Args`].
    pub sinks: Option<u32>,
}

/// Plans the dispatch. Operands: scratch (ReadArena), out (Write) and, with sinks, vectors (Read).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let shape = &args.shape;
    let workgroup = if profile.cpu { profile.tuning.row_workgroup } else { 64 };
    let variant = Variant { sinks: args.sinks.is_some(), workgroup };
    let quads = shape.padded() / 4;
    let blocks = (shape.heads * quads).div_ceil(variant.workgroup);
    let params = Params {
        heads: shape.heads,
        head_dim: shape.head_dim,
        quads,
        splits: args.splits,
        max_tokens: args.max_tokens,
        out_stride: args.out_stride,
        blocks,
        sinks: args.sinks.unwrap_or(0),
    };
    let values = u64::from(shape.heads) * u64::from(shape.padded());
    let splits = u64::from(args.splits);
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tokens, 1, blocks),
        rows: Unit::Tokens,
        cost: Cost {
            bytes_per_row: (splits * (values + 4 * u64::from(shape.heads)) + values) * 4,
            flops_per_row: splits * values * 2,
            ..Cost::default()
        },
    }
}

/// The CPU twin: `tokens` rows of `out` from the states in `scratch`.
pub fn twin(args: &Args, tokens: usize, scratch: &[f32], vectors: &[f32], out: &mut [f32]) {
    let (heads, size) = (args.shape.heads as usize, args.shape.head_dim as usize);
    let padded = args.shape.padded() as usize;
    for token in 0..tokens {
        for head in 0..heads {
            let states: Vec<&[f32]> = (0..args.splits as usize)
                .map(|split| {
                    let index = (split * args.max_tokens as usize + token) * heads + head;
                    &scratch[index * (padded + 4)..][..padded + 4]
                })
                .collect();
            let sink = args.sinks.map(|at| f64::from(vectors[at as usize + head]));
            let largest = states.iter().map(|s| f64::from(s[padded])).chain(sink).fold(f64::MIN, f64::max);
            let sum_of = |pick: &dyn Fn(&[f32]) -> f32| -> f64 {
                states.iter().map(|s| (f64::from(s[padded]) - largest).exp() * f64::from(pick(s))).sum()
            };
            let sum = sum_of(&|s| s[padded + 1]) + sink.map_or(0.0, |s| (s - largest).exp());
            for e in 0..size {
                let value = if sum > 0.0 { sum_of(&|s| s[e]) / sum } else { 0.0 };
                out[token * args.out_stride as usize + head * size + e] = value as f32;
            }
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        [false, true].map(|sinks| Self { sinks, workgroup: 64 }).to_vec()
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!("attention_merge{}_wg{}", if self.sinks { "_sinks" } else { "" }, self.workgroup)
    }

    fn wgsl(&self) -> String {
        let source = Source::new(Params::WGSL)
            .constant("WG", self.workgroup)
            .operand(0, Access::ReadArena, "scratch", "array<vec4<f32>>")
            .operand(1, Access::Write, "out", "array<f32>");
        let source =
            if self.sinks { source.operand(2, Access::Read, "vectors", "array<f32>") } else { source };
        source
            .text(&lanes::unroll(include_str!("attention_merge.wgsl"), &[("SINKS", self.sinks.into())]))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        let mut all = vec![Access::ReadArena, Access::Write];
        if self.sinks {
            all.push(Access::Read);
        }
        all
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
