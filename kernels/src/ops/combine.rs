//! The experts' answers of each token, summed: `out[t] = Σ_i weight[t, i]·x[t·Top + i]`, or `out[t] += …`, in the order
//! of `i`.
//!
//! Grid: `ceil(width / 256)` workgroups of 64 a token, 4 values an invocation. Workgroup memory: none. Limits: 4 storage
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
        /// Values of a row.
        width: u32,
        /// Workgroups for one row.
        per_row: u32,
        /// `Top`.
        top: u32,
        /// Values between rows of x.
        x_stride: u32,
        /// Values between rows of the routing.
        routing_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// 1 to add into out.
        accumulate: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Values of a row.
    pub width: u32,
    /// `Top`.
    pub top: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// Values between rows of the routing.
    pub routing_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// `out += …`.
    pub accumulate: bool,
}

/// Plans the dispatch. Operands: x (ReadArena), routing (ReadArena, `array<u32>`), out (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let params = Params {
        width: args.width,
        per_row: elementwise::per_row(args.width),
        top: args.top,
        x_stride: args.x_stride,
        routing_stride: args.routing_stride,
        out_stride: args.out_stride,
        accumulate: args.accumulate.into(),
    };
    let top = u64::from(args.top);
    let bytes = 4 * (top + if args.accumulate { 2 } else { 1 });
    let mut call = elementwise::call(
        Variant {}.into(),
        params.words(),
        args.width,
        Unit::Tokens,
        bytes,
        2 * top + u64::from(args.accumulate),
    );
    call.cost.bytes_per_row += 4 * top;
    call
}

/// The CPU twin over `tokens` tokens; `routing` holds ids (as bits) and weights as the router leaves them.
pub fn twin(args: &Args, tokens: usize, x: &[f32], routing: &[u32], out: &mut [f32]) {
    let top = args.top as usize;
    for t in 0..tokens {
        let weights = &routing[t * args.routing_stride as usize + top..][..top];
        for c in 0..args.width as usize {
            let sum: f64 = (0..top)
                .map(|i| {
                    let x = x[(t * top + i) * args.x_stride as usize + c];
                    f64::from(f32::from_bits(weights[i])) * f64::from(x)
                })
                .sum();
            let out = &mut out[t * args.out_stride as usize + c];
            *out = (sum + if args.accumulate { f64::from(*out) } else { 0.0 }) as f32;
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
        "combine".to_owned()
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::ReadArena, "x", "array<f32>")
            .operand(1, Access::ReadArena, "routing", "array<u32>")
            .operand(2, Access::Write, "out", "array<f32>")
            .constant("WG", elementwise::WORKGROUP)
            .constant("EACH", elementwise::EACH)
            .text(elementwise::TEXT)
            .text(&lanes::unroll(include_str!("combine.wgsl"), &[("EACH", elementwise::EACH)]))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::ReadArena, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        elementwise::WORKGROUP
    }
}
