//! Activation in place: `x = act(x)`.
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a row, 4 values an invocation. Workgroup memory: none. Limits: 2 storage
//! buffers.

use super::gate::Activation;
use super::{elementwise, lanes};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Activation.
    pub activation: Activation,
}

crate::params! {
    /// Sizes and places.
    pub struct Params {
        /// Header word with the number of rows.
        count_word: u32,
        /// Rows for each that the header counts.
        times: u32,
        /// Values of a row.
        width: u32,
        /// Workgroups for one row.
        per_row: u32,
        /// Values between rows.
        stride: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Activation.
    pub activation: Activation,
    /// Values of a row.
    pub width: u32,
    /// Values between rows.
    pub stride: u32,
    /// What a row is: tokens, choices or logit rows.
    pub unit: Unit,
}

/// Plans the dispatch. Operands: x (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(args.unit),
        times: if let Unit::Choices(top) = args.unit { top } else { 1 },
        width: args.width,
        per_row: elementwise::per_row(args.width),
        stride: args.stride,
    };
    let kernel = Variant { activation: args.activation }.into();
    elementwise::call(kernel, params.words(), args.width, args.unit, 8, 15)
}

/// The CPU twin over `rows` rows.
pub fn twin(args: &Args, rows: usize, x: &mut [f32]) {
    for row in 0..rows {
        for x in &mut x[row * args.stride as usize..][..args.width as usize] {
            *x = args.activation.of(f64::from(*x)) as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        Activation::ALL.into_iter().map(|activation| Self { activation }).collect()
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!("activate_{}", self.activation.name())
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::Write, "x", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .text(elementwise::TEXT)
            .text(self.activation.wgsl())
            .text(include_str!("activate.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Write]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
