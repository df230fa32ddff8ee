//! Product with another tensor, in place: `x = x·act(by)`, or `x = act(x)·by`.
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a row, 4 values an invocation. Workgroup memory: none. Limits: 3 storage
//! buffers.

use super::gate::Activation;
use super::{elementwise, lanes};
use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Activation; `None`: a plain product.
    pub activation: Option<Activation>,
    /// The activation is of `by`; else of `x`.
    pub of_by: bool,
    /// `by` has one value a row.
    pub broadcast: bool,
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
        /// First column of by.
        by_column: u32,
        /// Values between rows of by.
        by_stride: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Activation; `None`: a plain product.
    pub activation: Option<Activation>,
    /// The activation is of `by`; else of `x`.
    pub of_by: bool,
    /// `by` has one value a row.
    pub broadcast: bool,
    /// Values of a row of `x`.
    pub width: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// First column of `by`.
    pub by_column: u32,
    /// Values between rows of `by`.
    pub by_stride: u32,
    /// What a row is: tokens, logit rows or choices.
    pub unit: Unit,
}

/// Plans the dispatch. Operands: x (Write), by (ReadArena).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(args.unit),
        per_token: lanes::per_token(args.unit),
        width: args.width,
        per_row: elementwise::per_row(args.width),
        x_stride: args.x_stride,
        by_column: args.by_column,
        by_stride: args.by_stride,
    };
    // A plain product has no side.
    let of_by = args.of_by && args.activation.is_some();
    let variant = Variant { activation: args.activation, of_by, broadcast: args.broadcast };
    let flops = if args.activation.is_some() { 16 } else { 1 };
    elementwise::call(variant.into(), params.words(), args.width, args.unit, 12, flops)
}

/// The CPU twin over `rows` rows.
pub fn twin(args: &Args, rows: usize, x: &mut [f32], by: &[f32]) {
    let act = |v: f64| args.activation.map_or(v, |a| a.of(v));
    for row in 0..rows {
        let by = &by[row * args.by_stride as usize + args.by_column as usize..];
        for (i, x) in x[row * args.x_stride as usize..][..args.width as usize].iter_mut().enumerate() {
            let (value, factor) = (f64::from(*x), f64::from(by[if args.broadcast { 0 } else { i }]));
            *x = if args.of_by { value * act(factor) } else { act(value) * factor } as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let variant = |activation, of_by, broadcast| Self { activation, of_by, broadcast };
        let mut all = vec![variant(None, false, false), variant(None, false, true)];
        for activation in
            [Activation::Silu, Activation::GeluTanh, Activation::ReluSquared, Activation::Sigmoid]
        {
            all.push(variant(Some(activation), true, false));
            all.push(variant(Some(activation), false, false));
            all.push(variant(Some(activation), true, true));
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        let side = if self.of_by { "by" } else { "x" };
        let product = self.activation.map_or(String::new(), |a| format!("_{}_{side}", a.name()));
        format!("multiply{product}{}", if self.broadcast { "_broadcast" } else { "" })
    }

    fn wgsl(&self) -> String {
        let activation = self
            .activation
            .map_or("fn activation(x: f32) -> f32 { return x; }", |activation| activation.wgsl());
        Source::new(Params::WGSL)
            .operand(0, Access::Write, "x", "array<f32>")
            .operand(1, Access::ReadArena, "by", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .flag("OF_BY", self.of_by)
            .flag("BROADCAST", self.broadcast)
            .text(elementwise::TEXT)
            .text(activation)
            .text(include_str!("multiply.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Write, Access::ReadArena]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
