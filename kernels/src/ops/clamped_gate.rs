//! Clamped gated activation: `out = (up + 1)·gate·sigmoid(alpha·gate)` with `gate` at most `limit` and `up` within
//! `±limit` (gpt-oss; `alpha` is 1.702 there, the sigmoid form of GELU).
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a row, 4 values an invocation. Workgroup memory: none. Limits: 3 storage
//! buffers.

use super::{elementwise, lanes};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Gates at even columns, ups at odd ones.
    pub interleaved: bool,
}

crate::params! {
    /// Sizes and places.
    pub struct Params {
        /// Header word with the number of rows, or of tokens that have several each.
        count_word: u32,
        /// Rows for each that the header counts.
        per_token: u32,
        /// Values of a row.
        width: u32,
        /// Workgroups for one row.
        per_row: u32,
        /// Values between rows of x.
        x_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Bound of the inputs.
        limit: f32,
        /// Factor inside the sigmoid.
        alpha: f32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// `F`.
    pub width: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Gates stand at even columns and ups at odd ones; else in the first and in the second half.
    pub interleaved: bool,
    /// Gates are at most this, ups within ± this; positive.
    pub limit: f32,
    /// Factor inside the sigmoid.
    pub alpha: f32,
    /// What a row is: tokens, logit rows or choices.
    pub unit: crate::Unit,
}

/// Plans the dispatch. Operands: x `[rows, 2F]` (ReadArena), out (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(args.unit),
        per_token: lanes::per_token(args.unit),
        width: args.width,
        per_row: elementwise::per_row(args.width),
        x_stride: args.x_stride,
        out_stride: args.out_stride,
        limit: args.limit,
        alpha: args.alpha,
    };
    let variant = Variant { interleaved: args.interleaved };
    elementwise::call(variant.into(), params.words(), args.width, args.unit, 12, 9)
}

/// The CPU twin over `rows` rows.
pub fn twin(args: &Args, rows: usize, x: &[f32], out: &mut [f32]) {
    let width = args.width as usize;
    let (limit, alpha) = (f64::from(args.limit), f64::from(args.alpha));
    for row in 0..rows {
        let x = &x[row * args.x_stride as usize..][..2 * width];
        let out = &mut out[row * args.out_stride as usize..][..width];
        for (i, out) in out.iter_mut().enumerate() {
            let (g, up) = if args.interleaved { (x[2 * i], x[2 * i + 1]) } else { (x[i], x[width + i]) };
            let g = f64::from(g).min(limit);
            let up = f64::from(up).clamp(-limit, limit);
            *out = ((up + 1.0) * g / (1.0 + (-alpha * g).exp())) as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        [false, true].map(|interleaved| Self { interleaved }).to_vec()
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        if self.interleaved { "clamped_gate_interleaved" } else { "clamped_gate" }.to_owned()
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::ReadArena, "x", "array<f32>")
            .operand(1, Access::Write, "out", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .constant("STEP", if self.interleaved { 2 } else { 1 })
            .text(elementwise::TEXT)
            .text(include_str!("clamped_gate.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
