//! Residual sum: `out += x`.
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a row, 4 values an invocation. Workgroup memory: none. Limits: 3 storage
//! buffers.

use super::{elementwise, lanes};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

crate::params! {
    /// Sizes and places.
    pub struct Params {
        /// Header word with the number of rows.
        count_word: u32,
        /// Values of a row.
        width: u32,
        /// Workgroups for one row.
        per_row: u32,
        /// Values between rows of x.
        x_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row.
    pub width: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// What a row is: tokens or logit rows.
    pub unit: crate::Unit,
}

/// Plans the dispatch. Operands: x (ReadArena), out (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(args.unit),
        width: args.width,
        per_row: elementwise::per_row(args.width),
        x_stride: args.x_stride,
        out_stride: args.out_stride,
    };
    elementwise::call(Variant {}.into(), params.words(), args.width, args.unit, 12, 1)
}

/// The CPU twin over `rows` rows.
pub fn twin(args: &Args, rows: usize, x: &[f32], out: &mut [f32]) {
    let width = args.width as usize;
    for row in 0..rows {
        let x = &x[row * args.x_stride as usize..][..width];
        for (out, x) in out[row * args.out_stride as usize..][..width].iter_mut().zip(x) {
            *out = (f64::from(*out) + f64::from(*x)) as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        vec![Self {}]
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        "add".to_owned()
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::ReadArena, "x", "array<f32>")
            .operand(1, Access::Write, "out", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .text(elementwise::TEXT)
            .text(include_str!("add.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
