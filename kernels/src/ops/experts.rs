//! Products with a stack of experts: `out[t·Top + i, n] = Σ_k W[e(t, i), n, k]·x[row, k] (+ bias[e, n])`, where `row` is
//! the token `t`, or the choice `t·Top + i` itself. Sums in f32.
//!
//! The bodies are those of [`mat_vec`] and [`mat_mat`]; what differs is how a workgroup finds its rows.
//!
//! * Few tokens: the mat-vec for one row of x, the choice read from the routing.
//! * Many tokens: a tile of the sorted choices ([`super::expert_sort`]), whose rows of x are gathered and whose rows of
//!   out are scattered; the mat-vec for up to 4 or 8 rows where an expert can expect no more, else the mat-mat.
//!
//! Grid: `ceil(rows / rows of the body)` workgroups for each choice, or for each tile there may be: `ceil(T·Top / tile)`
//! and one more for each expert. Tiles past the header's count, and those of other shards' experts, leave before they
//! load. Every row of out is thus written once, by the shard that has its expert.
//!
//! Workgroup memory: that of the body. Limits: 6 storage buffers.
//!
//! Measured (lavapipe of Mesa 22.3, 2 cores busy with other work, so as parts of the adapter's multiply-add rate in the
//! same run; 512 tokens, 6 of 128 experts, 464×768): mxfp4 47 %, q4_k 44 %, q8_0 36 %, f16 26 %, which is what the dense
//! mat-mat reaches. The sort before it takes 0.6 % of its time, the router 0.8 %. Not yet timed on a GPU.

use super::linear::{self, NO_BIAS};
use super::{expert_sort, mat_mat, mat_vec};
use crate::shader::{Access, Shader};
use crate::{Call, Cost, Count, Format, Profile, Record, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// One choice a workgroup, from the routing.
    Routing(mat_vec::Variant),
    /// A tile of few choices, from the sorted table.
    Few(mat_vec::Variant),
    /// A tile of many choices, from the sorted table.
    Many(mat_mat::Variant),
}

crate::params! {
    /// Sizes and places. Those that [`linear::Params`] has too mean the same.
    pub struct Params {
        /// Rows of the dispatch.
        n: u32,
        /// `K`.
        k: u32,
        /// Octs of a row of the matrix.
        octs: u32,
        /// Words between rows of the matrix.
        w_stride: u32,
        /// Values between rows of x.
        x_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// First row of an expert's matrix, and column of out.
        out_column: u32,
        /// Always 0.
        accumulate: u32,
        /// Place of the bias of the first expert of the shard in the vectors, or `NO_BIAS`.
        bias: u32,
        /// Rows of an expert's matrix.
        matrix_rows: u32,
        /// First expert of the shard.
        first_expert: u32,
        /// Experts of the shard.
        shard_experts: u32,
        /// `Top`.
        top: u32,
        /// 1 when x has a row a choice.
        x_choices: u32,
        /// Values between rows of the routing.
        routing_stride: u32,
        /// Word of the sorted table where its list begins.
        list: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Stored format of the stack.
    pub format: Format,
    /// `X`, all experts.
    pub experts: u32,
    /// First expert of the shard that is bound; choices of experts outside it leave.
    pub first_expert: u32,
    /// Experts of the shard.
    pub shard_experts: u32,
    /// Rows of an expert's matrix.
    pub n: u32,
    /// `K`.
    pub k: u32,
    /// First row of an expert's matrix that this dispatch computes.
    pub first_row: u32,
    /// Rows that this dispatch computes.
    pub rows: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// `x` has a row a choice; else a row a token.
    pub x_choices: bool,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// `Top`.
    pub top: u32,
    /// Values between rows of the routing.
    pub routing_stride: u32,
    /// Bias `[X, N]` in the vectors.
    pub bias: Option<u32>,
    /// Choices a tile of the sorted table holds, as [`tile`] answers; `None`: few tokens, and the routing itself is read.
    pub tile: Option<u32>,
    /// Most tokens of a step.
    pub max_tokens: u32,
}

/// Tiles smaller than what this answers go to the mat-vec.
fn smallest_mat_mat(body: mat_mat::Body) -> u32 {
    match body {
        mat_mat::Body::Broadcast => 8,
        mat_mat::Body::Plain => 4,
        mat_mat::Body::Tiles => 16,
    }
}

/// Choices a tile should hold for the rows an expert can expect: `T·Top / X`. Twice that while it is so few that a
/// mat-vec is quicker (an expert seldom gets more, and its matrix is then read once), else what the body takes.
pub fn tile(profile: &Profile, experts: u32, top: u32, max_tokens: u32) -> u32 {
    let body = mat_mat::body(profile);
    let choices = u64::from(max_tokens) * u64::from(top);
    let twice = (2 * choices).div_ceil(u64::from(experts.max(1))).max(1);
    let least = smallest_mat_mat(body);
    if twice <= u64::from(least / 2) {
        return (twice as u32).next_power_of_two();
    }
    match body {
        mat_mat::Body::Broadcast | mat_mat::Body::Plain => least,
        mat_mat::Body::Tiles => twice.div_ceil(2).next_power_of_two().clamp(16, 64) as u32,
    }
}

/// Plans the dispatch. Operands: weights (Read), x (ReadArena), out (Write), vectors (Read; any one word when there is
/// no bias), and the routing or, with a tile, the sorted table of [`expert_sort`] (ReadArena, `array<u32>`).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let wide = linear::wide(args.k, args.x_stride);
    let body = mat_mat::body(profile);
    let (variant, rows) = match args.tile {
        None => {
            let body = mat_vec::Variant::new(profile, args.format, 1, wide);
            let rows = body.rows;
            (Variant::Routing(body), rows)
        }
        Some(tile) if tile < smallest_mat_mat(body) => {
            let body = mat_vec::Variant::new(profile, args.format, tile, wide);
            let rows = body.rows;
            (Variant::Few(body), rows)
        }
        Some(tile) => {
            let body = mat_mat::Variant::new(args.format, body, wide).covering(tile);
            let (rows, _) = body.tile();
            (Variant::Many(body), rows)
        }
    };
    let unit = Unit::Choices(args.top);
    let groups = args.rows.div_ceil(rows);
    let workgroups = match args.tile {
        None => Count::each(unit, 1, groups),
        Some(tile) => {
            let choices = args.max_tokens.saturating_mul(args.top);
            Count::each(unit, tile, groups).and(args.experts.min(choices))
        }
    };
    let record = Record::new(args.format, args.k);
    Call {
        kernel: variant.into(),
        params: params(args, record),
        workgroups,
        rows: unit,
        cost: cost(args, record),
    }
}

/// The dispatch of [`plan`] for arguments that differ from those of `like` in nothing but the first expert and the first
/// row: a stack of experts is a thousand dispatches.
pub fn plan_as(like: &Call, args: &Args) -> Call {
    let params = params(args, Record::new(args.format, args.k));
    Call {
        kernel: like.kernel.clone(),
        params,
        workgroups: like.workgroups,
        rows: like.rows,
        cost: like.cost,
    }
}

fn params(args: &Args, record: Option<Record>) -> Vec<u32> {
    let sorted = expert_sort::Args {
        experts: args.experts,
        top: args.top,
        tile: args.tile.unwrap_or(1),
        routing_stride: args.routing_stride,
        max_tokens: args.max_tokens,
    };
    let params = Params {
        n: args.rows,
        k: args.k,
        octs: record.map_or(0, |r| r.octs()),
        w_stride: record.map_or(0, |r| (r.stride() / 4) as u32),
        x_stride: args.x_stride,
        out_stride: args.out_stride,
        out_column: args.first_row,
        accumulate: 0,
        bias: args.bias.map_or(NO_BIAS, |at| at + args.first_expert * args.n),
        matrix_rows: args.n,
        first_expert: args.first_expert,
        shard_experts: args.shard_experts,
        top: args.top,
        x_choices: args.x_choices.into(),
        routing_stride: args.routing_stride,
        list: expert_sort::list(&sorted),
    };
    params.words()
}

/// What a dispatch moves and computes when the choices fall on all experts alike: a shard has its part of them.
fn cost(args: &Args, record: Option<Record>) -> Cost {
    let (n, k) = (u64::from(args.rows), u64::from(args.k));
    let (all, here) = (u64::from(args.experts.max(1)), u64::from(args.shard_experts));
    let part = |whole: u64| (whole * here).div_ceil(all);
    let matrix = n * record.map_or(0, |r| r.stride()) + if args.bias.is_some() { 4 * n } else { 0 };
    let values = 4 * (k + n) + 4;
    let choices = u64::from(args.max_tokens) * u64::from(args.top);
    let (fixed, row) = match args.tile {
        // Each choice reads its expert's rows.
        None => (0, matrix + values),
        // Each expert that is chosen is read once, but for tiles that overflow.
        Some(_) => (matrix * here.min(choices), values),
    };
    Cost { bytes_fixed: fixed, bytes_per_row: part(row), flops_per_row: part(2 * n * k), ..Cost::default() }
}

/// The CPU twin for `tokens` tokens, with f64 sums. `weights` are the values of the shard `[shard_experts, n, k]`,
/// `routing` ids (as bits) in columns `0..Top`. Rows of choices whose experts are elsewhere are left alone.
pub fn twin(
    args: &Args,
    tokens: usize,
    weights: &[f32],
    x: &[f32],
    vectors: &[f32],
    routing: &[u32],
    out: &mut [f32],
) {
    let (n, k, top) = (args.n as usize, args.k as usize, args.top as usize);
    for choice in 0..tokens * top {
        let expert = routing[choice / top * args.routing_stride as usize + choice % top];
        let Some(place) = expert.checked_sub(args.first_expert).filter(|e| *e < args.shard_experts) else {
            continue;
        };
        let row = if args.x_choices { choice } else { choice / top };
        let x = &x[row * args.x_stride as usize..][..k];
        for n_at in args.first_row as usize..(args.first_row + args.rows) as usize {
            let w = &weights[(place as usize * n + n_at) * k..][..k];
            let dot: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let bias =
                args.bias.map_or(0.0, |at| f64::from(vectors[at as usize + expert as usize * n + n_at]));
            out[choice * args.out_stride as usize + n_at] = (dot + bias) as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        // Experts take no norm in and do no gate.
        let plain = |v: &mat_vec::Variant| !v.normed && v.gate.is_none();
        let vec: Vec<_> = mat_vec::Variant::all().into_iter().filter(plain).collect();
        let mut all: Vec<_> = vec.iter().cloned().map(Variant::Routing).collect();
        all.extend(vec.into_iter().filter(|v| !v.wide || v.format == Format::Q4K).map(Variant::Few));
        for body in mat_mat::Variant::all() {
            if body.body == mat_mat::Body::Tiles {
                all.extend([16, 32].map(|tile| Variant::Many(body.clone().covering(tile))));
            }
            all.push(Variant::Many(body));
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        match self {
            Variant::Routing(body) => format!("experts_routing_{}", body.name()),
            Variant::Few(body) => format!("experts_{}", body.name()),
            Variant::Many(body) => format!("experts_{}", body.name()),
        }
    }

    fn wgsl(&self) -> String {
        let (wide, quads, shared) = match self {
            Variant::Routing(body) | Variant::Few(body) => (body.wide, body.quads(), body.shared()),
            Variant::Many(body) => (body.wide, body.quads(), body.shared()),
        };
        let source = linear::source(Params::WGSL, wide, quads, false)
            .operand(4, Access::ReadArena, "routing", "array<u32>")
            .constant("HEADER", expert_sort::HEADER);
        let rows = match self {
            Variant::Routing(_) => include_str!("experts_routing.wgsl"),
            Variant::Few(_) | Variant::Many(_) => include_str!("experts_sorted.wgsl"),
        };
        let leave = match shared {
            None => include_str!("linear_leave.wgsl").to_owned(),
            Some(name) => include_str!("experts_leave.wgsl").replace("SHARED", name),
        };
        let share = [include_str!("experts.wgsl"), rows, &leave].concat();
        match self {
            Variant::Routing(body) | Variant::Few(body) => body.module(source, &share),
            Variant::Many(body) => body.module(source, &share),
        }
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Read, Access::ReadArena, Access::Write, Access::Read, Access::ReadArena]
    }

    fn workgroup(&self) -> u32 {
        match self {
            Variant::Routing(body) | Variant::Few(body) => body.workgroup(),
            Variant::Many(body) => body.workgroup(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kernel, Limits, StepShape};

    fn cpu() -> Profile {
        Profile::new("cpu", Limits::webgpu_default(), Some((8, 8)), true)
    }

    #[test]
    fn tiles_grow_with_the_rows_of_an_expert() {
        let gpu = Profile::webgpu_default();
        let of =
            |profile: &Profile| [9, 32, 64, 256, 512, 1024, 4096].map(|tokens| tile(profile, 128, 6, tokens));
        assert_eq!(of(&cpu()), [1, 4, 8, 8, 8, 8, 8]);
        assert_eq!(of(&gpu), [1, 4, 8, 16, 32, 64, 64]);
        assert_eq!(tile(&gpu, 0, 0, 0), 1);
    }

    #[test]
    fn grids_and_costs_are_those_of_the_choices() {
        let args = Args {
            format: Format::Q8_0,
            experts: 128,
            first_expert: 64,
            shard_experts: 64,
            n: 100,
            k: 64,
            first_row: 32,
            rows: 64,
            x_stride: 64,
            x_choices: false,
            out_stride: 100,
            top: 6,
            routing_stride: 12,
            bias: None,
            tile: None,
            max_tokens: 8,
        };
        let step = |tokens| StepShape { tokens, ..StepShape::default() };
        // 64 rows of 64 codes and two halves, padded to 80 bytes; half of the experts, so half of the choices.
        let few = plan(&cpu(), &args);
        assert_eq!(few.workgroups.of(&step(3)), 3 * 6 * 2);
        assert_eq!(few.cost.bytes(18, 0), 18 * (64 * 80 + 4 * 64 + 4 * 64 + 4) / 2);
        assert_eq!(few.cost.flops(18, 0), 18 * 64 * 64);
        let many = plan(&cpu(), &Args { tile: Some(8), max_tokens: 512, ..args.clone() });
        assert!(matches!(many.kernel, Kernel::Experts(Variant::Many(_))));
        assert_eq!(many.workgroups.of(&step(100)), (600 / 8 + 128) * 2);
        assert_eq!(many.cost.bytes_fixed, 64 * 64 * 80);
        // 24 choices cannot end in more than 24 tiles.
        let short = plan(&cpu(), &Args { tile: Some(2), max_tokens: 4, ..args });
        assert!(matches!(short.kernel, Kernel::Experts(Variant::Few(_))));
        assert_eq!(short.workgroups.of(&step(4)), (12 + 24) * 2);
    }
}
