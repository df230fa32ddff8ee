//! Matrix × matrix: `out[t, n] = Σ_k W[n, k]·x[t, k] (+ bias[n]) (+ out[t, n])`, sums in f32.
//!
//! Three bodies, chosen by what the adapter is:
//!
//! * *tiles*: 64 × 64 outputs by 256 invocations, 32 values of K at a time decoded once into workgroup memory
//!   (16 KiB), 4 × 4 outputs an invocation. For GPUs; not yet timed on one. The experts' products also have it with 16
//!   and 32 rows of x.
//! * *broadcast*: 8 lanes of one subgroup, each with 4 rows of W of its own, and 8 rows of x (16 against f32) for all: a
//!   lane loads four values of each chunk of x and hands them to the others. No workgroup memory, no barrier. The
//!   mat-vec has this body too, for fewer rows of x.
//! * *plain*: 8 lanes with 8 rows of W each and 4 rows of x, which every lane loads by itself. The same without
//!   subgroups.
//!
//! Grid: `ceil(N / rows) × ceil(T / tokens)` of the tile, folded over two dimensions. Limits: 5 storage buffers.
//!
//! Measured (lavapipe of Mesa 22.3, 2 cores busy with other work, so processor time over two; GFLOP/s of broadcast at
//! 128×2048×2048): q4_1 35, q8_0 33, f32 25. Other register tiles (rows a lane × rows of x): f32 2 × 8 17, 4 × 8 18, 8 × 8
//! 16, 2 × 16 24; q4_1 2 × 8 28, 4 × 4 32, and 4 × 16 40 and 8 × 8 43 at twice the compile time. f32 is held by its loads,
//! codes by arithmetic. At 64×1536×576: plain q4_1 23, q8_0 18; tiles 4.

use super::{lanes, linear, row_lanes};
use crate::shader::{Access, Shader, Source};
use crate::unpack::unpackers;
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

/// Lanes of a workgroup of the register bodies: an oct of x.
const LANES: u32 = 8;
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
            // Eight loads for 32 values of f32: twice the rows of x use them.
            Body::Broadcast => {
                Self { format, body, rows: 4, tokens: if format == Format::F32 { 16 } else { 8 }, wide }
            }
            Body::Plain => Self { format, body, rows: 8, tokens: 4, wide },
        }
    }

    /// The same for as few rows of x as cover `tile`.
    pub(crate) fn covering(self, tile: u32) -> Self {
        let tokens = match self.body {
            Body::Tiles => tile.div_ceil(TILE_LANES).clamp(1, 4),
            Body::Broadcast | Body::Plain => tile.max(1),
        };
        Self { tokens, ..self }
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
            let shape = row_lanes::Shape { format, rows, cols, wide, normed: false, gate: None };
            return row_lanes::module(source, share, &shape);
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
