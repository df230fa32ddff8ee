//! The rows whose logits are wanted: `out[r] = x[rows[r]]`.
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a row, 4 values an invocation. Workgroup memory: none. Limits: 3 storage
//! buffers.

use super::{elementwise, lanes};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile, Unit};
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
        /// Word of the row indices in the step tables.
        rows: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row.
    pub width: u32,
    /// Word offset of the row indices in the step tables.
    pub rows: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
}

/// Plans the dispatch. Operands: x (ReadArena), out (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(Unit::LogitRows),
        width: args.width,
        per_row: elementwise::per_row(args.width),
        x_stride: args.x_stride,
        out_stride: args.out_stride,
        rows: args.rows,
    };
    elementwise::call(Variant {}.into(), params.words(), args.width, Unit::LogitRows, 8, 0)
}

/// The CPU twin.
pub fn twin(args: &Args, rows: &[u32], x: &[f32], out: &mut [f32]) {
    let width = args.width as usize;
    for (to, from) in rows.iter().enumerate() {
        let x = &x[*from as usize * args.x_stride as usize..][..width];
        out[to * args.out_stride as usize..][..width].copy_from_slice(x);
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
        "select_rows".to_owned()
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::ReadArena, "x", "array<f32>")
            .operand(1, Access::Write, "out", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .text(elementwise::TEXT)
            .text(include_str!("select_rows.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
