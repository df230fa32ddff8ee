//! Product with a number, in place: `x = factor·x`, or `x = factor·v·x` where `v` stands in the vectors.
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a row, 4 values an invocation. Workgroup memory: none. Limits: 3 storage
//! buffers.

use super::{elementwise, lanes};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// There is a second factor in the vectors.
    pub vector: bool,
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
        /// Values between rows.
        stride: u32,
        /// Second factor in the vectors.
        vector: u32,
        /// Factor.
        factor: f32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Factor.
    pub factor: f32,
    /// Word offset of a second factor in the vectors.
    pub vector: Option<u32>,
    /// Values of a row.
    pub width: u32,
    /// Values between rows.
    pub stride: u32,
    /// What a row is: tokens, logit rows or choices.
    pub unit: Unit,
}

/// Plans the dispatch. Operands: x (Write), vectors (Read).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(args.unit),
        per_token: lanes::per_token(args.unit),
        width: args.width,
        per_row: elementwise::per_row(args.width),
        stride: args.stride,
        vector: args.vector.unwrap_or(0),
        factor: args.factor,
    };
    let variant = Variant { vector: args.vector.is_some() };
    elementwise::call(variant.into(), params.words(), args.width, args.unit, 8, 1)
}

/// The CPU twin over `rows` rows.
pub fn twin(args: &Args, rows: usize, x: &mut [f32], vectors: &[f32]) {
    let second = args.vector.map_or(1.0, |at| f64::from(vectors[at as usize]));
    for row in 0..rows {
        for x in &mut x[row * args.stride as usize..][..args.width as usize] {
            *x = (f64::from(args.factor) * second * f64::from(*x)) as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        [false, true].map(|vector| Self { vector }).to_vec()
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        if self.vector { "scale_vector" } else { "scale" }.to_owned()
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::Write, "x", "array<f32>")
            .operand(1, Access::Read, "vectors", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .flag("VECTOR", self.vector)
            .text(elementwise::TEXT)
            .text(include_str!("scale.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Write, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
