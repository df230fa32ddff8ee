//! Gated activation: `out = act(x[:, :F]) · x[:, F:]`.
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
    /// Activation.
    pub activation: Activation,
}

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x·sigmoid(x)`.
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
    /// `max(x, 0)²`.
    ReluSquared,
    /// `1 / (1 + exp(−x))`.
    Sigmoid,
}

impl Activation {
    /// `fn activation(x: f32) -> f32`.
    pub(crate) fn wgsl(self) -> &'static str {
        match self {
            Activation::Silu => include_str!("gate_silu.wgsl"),
            Activation::GeluTanh => concat!(include_str!("tanh.wgsl"), include_str!("gate_gelu_tanh.wgsl")),
            Activation::ReluSquared => include_str!("gate_relu_squared.wgsl"),
            Activation::Sigmoid => include_str!("gate_sigmoid.wgsl"),
        }
    }

    /// The CPU twin.
    pub(crate) fn of(self, x: f64) -> f64 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::ReluSquared => x.max(0.0) * x.max(0.0),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        }
    }

    /// How names of variants call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::ReluSquared => "relu_squared",
            Activation::Sigmoid => "sigmoid",
        }
    }

    /// Every activation.
    pub(crate) const ALL: [Self; 4] =
        [Activation::Silu, Activation::GeluTanh, Activation::ReluSquared, Activation::Sigmoid];
}

/// Operations of a value of `out`.
pub(crate) const FLOPS: u64 = 16;

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
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Activation.
    pub activation: Activation,
    /// `F`.
    pub width: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// What a row is: tokens, logit rows or choices.
    pub unit: crate::Unit,
}

/// Plans the dispatch. Operands: x `[T, 2F]` (ReadArena), out (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        count_word: lanes::count_word(args.unit),
        per_token: lanes::per_token(args.unit),
        width: args.width,
        per_row: elementwise::per_row(args.width),
        x_stride: args.x_stride,
        out_stride: args.out_stride,
    };
    elementwise::call(
        Variant { activation: args.activation }.into(),
        params.words(),
        args.width,
        args.unit,
        12,
        FLOPS,
    )
}

/// The CPU twin over `rows` rows.
pub fn twin(args: &Args, rows: usize, x: &[f32], out: &mut [f32]) {
    let width = args.width as usize;
    for row in 0..rows {
        let x = &x[row * args.x_stride as usize..][..2 * width];
        let out = &mut out[row * args.out_stride as usize..][..width];
        for (i, out) in out.iter_mut().enumerate() {
            *out = (args.activation.of(f64::from(x[i])) * f64::from(x[width + i])) as f32;
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
        format!("gate_{}", self.activation.name())
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::ReadArena, "x", "array<f32>")
            .operand(1, Access::Write, "out", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .text(elementwise::TEXT)
            .text(self.activation.wgsl())
            .text(include_str!("gate.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
