//! Softcap in place: `x = cap·tanh(x/cap)`.
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a row, 4 values an invocation. Workgroup memory: none. Limits: 2 storage
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
        /// Cap.
        cap: f32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row.
    pub width: u32,
    /// Values between rows.
    pub stride: u32,
    /// Cap.
    pub cap: f32,
    /// What a row is: tokens or logit rows.
    pub unit: crate::Unit,
}

/// Plans the dispatch. Operands: x (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(args.unit),
        width: args.width,
        per_row: elementwise::per_row(args.width),
        x_stride: args.stride,
        cap: args.cap,
    };
    elementwise::call(Variant {}.into(), params.words(), args.width, args.unit, 8, 16)
}

/// The CPU twin over `rows` rows.
pub fn twin(args: &Args, rows: usize, x: &mut [f32]) {
    let cap = f64::from(args.cap);
    for row in 0..rows {
        for x in &mut x[row * args.stride as usize..][..args.width as usize] {
            *x = (cap * (f64::from(*x) / cap).tanh()) as f32;
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
        "softcap".to_owned()
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::Write, "x", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .text(elementwise::TEXT)
            .text(include_str!("tanh.wgsl"))
            .text(include_str!("softcap.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Write]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
