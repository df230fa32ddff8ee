//! Matrix × matrix: `out[t, n] = Σ_k W[n, k]·x[t, k] (+ bias[n]) (+ out[t, n])`, sums in f32.
//!
//! Three bodies, chosen by what the adapter is:
//!
//! * *tiles*: 64 × 64 outputs by 256 invocations, 32 values of K at a time decoded once into workgroup memory
//!   (16 KiB), 4 × 4 outputs an invocation. For GPUs; not yet timed on one. The experts' products also have it with 16
//!   and 32 rows of x.
//! * *broadcast*: 8 lanes of one subgroup, each with 6 rows of W of its own, and 32 rows of x for all: of each 8 of those a
//!   lane loads four values of one and hands them to the others. No workgroup memory, no barrier. For up to 8 rows of x it
//!   is the body of the mat-vec, `row_lanes`.
//! * *plain*: 8 lanes with 8 rows of W each and 4 rows of x, which every lane loads by itself. The same without
//!   subgroups.
//!
//! Grid: `ceil(N / rows) × ceil(T / tokens)` of the tile, folded over two dimensions. Limits: 5 storage buffers.
//!
//! Measured (lavapipe of Mesa 22.3, processor time over two on two cores of an EPYC; GFLOP/s of broadcast at 512×2048×2048
//! now, and before with 4 × 8 and, for f32, 4 × 16 sums and 32 values of K at a time): f32 44 (23), q4_1 56 (35), q8_0 52 (32),
//! f16 44, q4_k 56, q6_k 50. The driver compiles it in 1.5 to 2 s of processor time (0.6 to 1.5). Other shapes (rows × rows of
//! x; f32, q4_1): 4 × 32 40 and 51, 4 × 48 46 and 57, 8 × 32 42 and 56 at twice the compile time. At 64×1536×576 and q4_1,
//! elsewhere: plain 23, tiles 4.

use super::{lanes, linear, row_lanes};
use crate::shader::{Access, Shader, Source};
use crate::unpack::{quad_unpackers, unpackers};
use crate::{Call, Count, Format, Profile};
use serde::{Deserialize, Serialize};

pub use super::linear::{Args, twin};

/// How a workgroup shares its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Outputs of 64 rows of the matrix through workgroup memory.
    Tiles,
    /// Registers only; lanes load x for each other.
    Broadcast,
    /// Registers only; each lane loads all of x.
    Plain,
}

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Stored format of the matrix.
    pub format: Format,
    /// How the work is shared.
    pub body: Body,
    /// Rows of the matrix a lane keeps (register bodies).
    pub rows: u32,
    /// Rows of x a lane takes: all of the workgroup's (register bodies), or a sixteenth of them, at most 4 (tiles).
    pub tokens: u32,
    /// `x` is read as vec4.
    pub wide: bool,
}

/// Lanes of a workgroup of the register bodies.
const LANES: u32 = 8;
/// Rows of the matrix of a lane of [`Body::Broadcast`], and rows of x of a workgroup: 192 sums of 8 lanes stand in a CPU's
/// first cache, and the loop over four values of K in that of its instructions.
const BROADCAST: (u32, u32) = (6, 32);
/// The same where a workgroup has no more rows of x than lanes, each with a sum for each.
const NARROW_ROWS: u32 = 4;
/// Rows of a tile of [`Body::Tiles`], as its text has it.
const TILE: u32 = 64;
/// Lanes of [`Body::Tiles`] along the rows of x.
const TILE_LANES: u32 = 16;

/// The body for an adapter.
pub(crate) fn body(profile: &Profile) -> Body {
    if profile.tuning.mat_mat_shared {
        Body::Tiles
    } else if profile.subgroups && profile.subgroup_size.0 >= LANES {
        Body::Broadcast
    } else {
        Body::Plain
    }
}

/// Plans the dispatch. Operands: matrix shard (Read), x (ReadArena), out (Write), vectors (Read).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let variant = Variant::new(args.format, body(profile), linear::wide(args.k, args.x_stride));
    // A program of few tokens has no more rows of x than they are.
    let variant = if variant.body == Body::Broadcast { variant.covering(args.max_rows) } else { variant };
    let (rows, tokens) = variant.tile();
    Call {
        params: linear::params(args).words(),
        workgroups: Count::each(args.unit, tokens, args.n.div_ceil(rows)),
        rows: args.unit,
        cost: linear::cost(args),
        kernel: variant.into(),
    }
}

impl Variant {
    /// What a body takes by default.
    pub(crate) fn new(format: Format, body: Body, wide: bool) -> Self {
        match body {
            Body::Tiles => Self { format, body, rows: 4, tokens: 4, wide },
            Body::Broadcast => Self { format, body, rows: BROADCAST.0, tokens: BROADCAST.1, wide },
            Body::Plain => Self { format, body, rows: 8, tokens: 4, wide },
        }
    }

    /// The same for as few rows of x as cover `tile`.
    pub(crate) fn covering(self, tile: u32) -> Self {
        let (rows, tokens) = match self.body {
            Body::Tiles => (self.rows, tile.div_ceil(TILE_LANES).clamp(1, 4)),
            Body::Broadcast if tile > LANES => (self.rows, tile.next_multiple_of(LANES).min(BROADCAST.1)),
            Body::Broadcast => (NARROW_ROWS, tile.max(1)),
            Body::Plain => (self.rows, tile.max(1)),
        };
        Self { rows, tokens, ..self }
    }

    /// Workgroup memory with barriers behind it, by name: what a decision of the whole workgroup is handed on in.
    pub(crate) fn shared(&self) -> Option<&'static str> {
        (self.body == Body::Tiles).then_some("tile_w")
    }

    /// Rows of the matrix and of x that a workgroup covers.
    pub fn tile(&self) -> (u32, u32) {
        match self.body {
            Body::Tiles => (TILE, TILE_LANES * self.tokens),
            Body::Broadcast | Body::Plain => (self.rows * LANES, self.tokens),
        }
    }

    /// Whether the matrix is bound as vec4.
    pub(crate) fn quads(&self) -> bool {
        self.body == Body::Broadcast
    }

    /// The module, after its parameters and operands; `share` is the text of `share_of`, `row_of`, `x_row` and `leaves`.
    pub(crate) fn module(&self, source: Source, share: &str) -> String {
        if self.body == Body::Broadcast {
            let &Self { format, rows, tokens: cols, wide, .. } = self;
            if cols <= LANES {
                let shape =
                    row_lanes::Shape { format, rows, cols, wide, normed: false, gate: None, spread: false };
                return row_lanes::module(source, share, &shape);
            }
            return self.columns(source, share);
        }
        let source = source
            .constant("WG", self.workgroup())
            .constant("ROWS", self.rows)
            .constant("TOKENS", self.tokens)
            .constant("NO_BIAS", linear::NO_BIAS);
        let counts = [("ROWS", self.rows), ("TOKENS", self.tokens), ("FOUR", 4)];
        let source = unpackers(source, self.format);
        let source = source
            .text(if self.wide {
                include_str!("linear_wide.wgsl")
            } else {
                concat!(include_str!("linear_single.wgsl"), include_str!("linear_narrow.wgsl"))
            })
            .text(include_str!("linear.wgsl"))
            .text(share);
        let body = match self.body {
            Body::Tiles => include_str!("mat_mat_tiles.wgsl"),
            Body::Broadcast | Body::Plain => include_str!("mat_mat_plain.wgsl"),
        };
        source.text(&lanes::unroll(body, &counts)).finish()
    }

    /// The module of [`Body::Broadcast`] for more rows of x than lanes.
    fn columns(&self, source: Source, share: &str) -> String {
        let halves = row_lanes::halves(self.format);
        let (rows, groups) = (self.rows, self.tokens / LANES);
        let source = source
            .constant("ROWS", rows)
            .constant("GROUPS", groups)
            .constant("HALVES", halves)
            .constant("NO_BIAS", linear::NO_BIAS)
            .flag("HAS_SCALE", self.format.has_scale());
        let counts = [("ROWS", rows), ("GROUPS", groups), ("EIGHT", LANES)];
        let inside = if self.wide {
            include_str!("linear_inside_wide.wgsl")
        } else {
            concat!(include_str!("linear_single.wgsl"), include_str!("linear_inside_narrow.wgsl"))
        };
        quad_unpackers(source, self.format)
            .text(inside)
            .text(include_str!("linear.wgsl"))
            .text(share)
            .text(lanes::ALONE)
            .text(&lanes::unroll(include_str!("mat_mat_columns.wgsl"), &counts))
            .finish()
    }

    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for format in Format::ALL {
            all.push(Self::new(format, Body::Tiles, true));
        }
        for format in [Format::F16, Format::Q4K] {
            all.push(Self::new(format, Body::Tiles, false));
            all.push(Self::new(format, Body::Broadcast, false));
            all.push(Self::new(format, Body::Broadcast, true));
            all.push(Self::new(format, Body::Broadcast, true).covering(LANES));
            all.push(Self::new(format, Body::Plain, false));
            all.push(Self::new(format, Body::Plain, true));
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        let Self { format, body, rows, tokens, wide } = self;
        let body = match body {
            Body::Tiles => "tiles",
            Body::Broadcast => "broadcast",
            Body::Plain => "plain",
        };
        let wide = if *wide { "" } else { "_narrow" };
        format!("mat_mat_{format}_{body}_r{rows}_t{tokens}{wide}")
    }

    fn wgsl(&self) -> String {
        self.module(linear::source(linear::Params::WGSL, self.wide, self.quads(), false), linear::ROWS)
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Read, Access::ReadArena, Access::Write, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        match self.body {
            Body::Tiles => TILE * TILE / 16,
            Body::Broadcast | Body::Plain => LANES,
        }
    }
}
