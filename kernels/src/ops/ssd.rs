//! Selective state space (Mamba2): Δ, decay, state and output of every head, in one of three forms.
//!
//! `Δ = softplus(dt + bias)`, `h ← e^(Δ·a) h + Δ·x Bᵀ`, `y = h C + D·x`, with B and C of the head's group.
//!
//! | form | dispatches | scratch | what it is for |
//! |---|---|---|---|
//! | token-sequential | 1, on CPU drivers 1 for 256 tokens | none | steps of few tokens for each sequence |
//! | streaming: blocks in order, the state in workgroup memory | 1 | none | prefill |
//! | five kernels: sums, block states, passing, C·Bᵀ, output | 5 | [`scratch_words`] | long prefills in parallel |
//!
//! [`Tuning::ssd`](crate::Tuning::ssd) chooses the form of prefills; a form that cannot hold a size gives way to one
//! that can. All three give the same function up to rounding, whatever the block.
//!
//! CPU drivers take the sequential form, which measured fastest there (its text has the figures); GPUs the streaming
//! form, which has not been timed on one.

mod form;
mod twins;
mod variant;

pub use twins::{chunked, recurrent};
pub use variant::{Part, Variant};

use crate::step::{HEADER_TILES, TileTable};
use crate::{Call, Cost, Count, Profile, SsmShape, Unit};
use form::Form;

crate::params! {
    /// Sizes and places; offsets in words, those of the scratch in `vec4`s.
    pub struct Params {
        /// First head of the dispatch; first group for the products.
        first_head: u32,
        /// Heads of the dispatch; groups for the products.
        heads: u32,
        /// `H`.
        all_heads: u32,
        /// `H / G`.
        group_heads: u32,
        /// `G`.
        groups: u32,
        /// `P`.
        head_dim: u32,
        /// Quads of rows of a head, `ceil(P / 4)`.
        quads: u32,
        /// Workgroups that share a head (a group, a block's heads).
        parts: u32,
        /// First token of each sequence, in the sequential form.
        first_token: u32,
        /// Tokens of each sequence from there, in the sequential form.
        window: u32,
        /// Numbers that blocks may have.
        blocks: u32,
        /// Values between rows of xbc.
        xbc_stride: u32,
        /// First column of B.
        b_column: u32,
        /// First column of C.
        c_column: u32,
        /// First column of dt.
        dt_column: u32,
        /// Values between rows of dt.
        dt_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Decay rates.
        a: u32,
        /// Pass-through.
        d: u32,
        /// Bias of dt.
        dt_bias: u32,
        /// Least Δ.
        low: f32,
        /// Largest Δ.
        high: f32,
        /// Header word with the number of sequences.
        sequence_count: u32,
        /// Sequences in the step tables.
        sequences: u32,
        /// First slot that is bound.
        first_slot: u32,
        /// Slots that are bound.
        slots: u32,
        /// C·Bᵀ in the scratch.
        products: u32,
        /// Block states in the scratch.
        block_states: u32,
    }
}

/// Sizes and places. Words are of the step tables, vectors' offsets are words too.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Sizes.
    pub shape: SsmShape,
    /// Values between rows of `xbc`: x at column 0, B at `H·P`, C at `H·P + G·N`.
    pub xbc_stride: u32,
    /// First column of dt `[H]`.
    pub dt_column: u32,
    /// Values between rows of `dt`.
    pub dt_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// `[H]` in the vectors, negative.
    pub a: u32,
    /// `[H]` in the vectors.
    pub d: u32,
    /// `[H]` in the vectors.
    pub dt_bias: u32,
    /// Bounds of Δ.
    pub dt_limit: Option<[f32; 2]>,
    /// Index of a tile table that has one entry a sequence, and the table. Entries stand in the order of their tokens.
    pub sequences: (u32, TileTable),
    /// First slot of the states that are bound; sequences in other slots leave.
    pub first_slot: u32,
    /// Slots of the states that are bound: `[slots, H, P, N]`. A sequence that begins at position 0 begins with zeros.
    pub slots: u32,
    /// Most tokens of a step.
    pub max_tokens: u32,
}

/// An operand of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// x, B, C (ReadArena).
    Xbc,
    /// dt (ReadArena).
    Dt,
    /// States (Write).
    States,
    /// out (Write).
    Out,
    /// Vectors (Read).
    Vectors,
    /// Scratch of [`scratch_words`] (Write or ReadArena).
    Scratch,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// For people and profiles: what follows the op's label.
    pub name: &'static str,
    /// What to run.
    pub call: Call,
    /// Operands from binding 2 on.
    pub operands: Vec<Operand>,
}

/// Plans the dispatches, in order, each within the profile's work budget (split over heads).
pub fn plan(profile: &Profile, args: &Args) -> Vec<Stage> {
    match form::choose(profile, args) {
        Form::Sequential => stages(profile, args, &sequential(profile, args)),
        Form::Streaming { block, quads } => stages(profile, args, &streaming(profile, args, block, quads)),
        Form::Kernels { block } => {
            kernels(profile, args, block).iter().flat_map(|work| stages(profile, args, work)).collect()
        }
    }
}

/// Words of scratch that the form chosen by `profile` needs; 0 for the streaming and the sequential form. They depend
/// on the most tokens and sequences of a step, never on the length of a prompt.
pub fn scratch_words(profile: &Profile, args: &Args) -> u64 {
    match form::choose(profile, args) {
        Form::Sequential | Form::Streaming { .. } => 0,
        Form::Kernels { block } => form::Scratch::new(args, block).words,
    }
}

/// A dispatch over all heads, before it is split.
struct Work {
    name: &'static str,
    variant: Variant,
    /// Heads, or groups.
    units: u32,
    /// Workgroups that share a unit, if `shared`; else units of a workgroup.
    parts: u32,
    /// Units go to the lanes of a workgroup.
    lanes: bool,
    unit: Unit,
    tile: u32,
    plus: u32,
    /// Tokens of a sequence in one dispatch.
    window: u32,
    params: Params,
    /// Operations of a token and unit.
    flops: u64,
    /// Bytes of a token and unit.
    bytes: u64,
    /// Bytes of a sequence and unit: its state, read and written.
    state_bytes: u64,
}

fn params(args: &Args) -> Params {
    let shape = &args.shape;
    let group_heads = shape.heads / shape.groups.max(1);
    Params {
        all_heads: shape.heads,
        group_heads: group_heads.max(1),
        groups: shape.groups,
        head_dim: shape.head_dim,
        quads: shape.head_dim.div_ceil(4),
        xbc_stride: args.xbc_stride,
        b_column: shape.inner(),
        c_column: shape.inner() + shape.groups * shape.state,
        dt_column: args.dt_column,
        dt_stride: args.dt_stride,
        out_stride: args.out_stride,
        a: args.a,
        d: args.d,
        dt_bias: args.dt_bias,
        low: args.dt_limit.map_or(0.0, |l| l[0]),
        // An infinite bound is no bound, and WGSL promises nothing of infinities.
        high: args.dt_limit.map_or(f32::MAX, |l| l[1].min(f32::MAX)),
        sequence_count: HEADER_TILES + args.sequences.0,
        sequences: args.sequences.1.offset,
        first_slot: args.first_slot,
        slots: args.slots,
        ..Params::default()
    }
}

/// Whether N, P and the rows are read four values at a time.
fn vec4(args: &Args) -> bool {
    [args.shape.state, args.shape.head_dim, args.xbc_stride].iter().all(|v| v.is_multiple_of(4))
}

/// Invocations of a workgroup with barriers between them.
fn workgroup(profile: &Profile) -> u32 {
    if profile.cpu { profile.tuning.row_workgroup } else { 64 }
}

/// Tokens of a sequence that a CPU driver walks in one dispatch of the sequential form: their B and C stay in its caches
/// while every head of the group walks them.
const WINDOW: u32 = 256;
/// Operations of Δ and a decay.
const DELTA: u64 = 24;

fn sequential(profile: &Profile, args: &Args) -> Work {
    let (p, n) = (u64::from(args.shape.head_dim), u64::from(args.shape.state));
    let variant = form::sequential(profile, args);
    Work {
        name: "",
        units: args.shape.heads,
        parts: args.shape.head_dim.div_ceil(variant.rows),
        variant,
        lanes: false,
        unit: Unit::Tiles(args.sequences.0),
        tile: 1,
        plus: 0,
        window: if profile.cpu { WINDOW } else { u32::MAX },
        params: params(args),
        flops: p * (5 * n + 4) + DELTA,
        bytes: 8 * p + 4,
        state_bytes: 8 * p * n,
    }
}

fn streaming(profile: &Profile, args: &Args, block: u32, quads: u32) -> Work {
    let (p, n, l) = (u64::from(args.shape.head_dim), u64::from(args.shape.state), u64::from(block));
    let lanes = workgroup(profile);
    let parts = args.shape.head_dim.div_ceil(4 * quads);
    let variant = Variant {
        part: Part::Streaming,
        state: args.shape.state,
        block,
        rows: quads,
        tokens: form::register_tokens(block, block * quads / lanes),
        workgroup: lanes,
        vec4: vec4(args),
    };
    Work {
        name: "",
        variant,
        units: args.shape.heads,
        parts,
        lanes: false,
        unit: Unit::Tiles(args.sequences.0),
        tile: 1,
        plus: 0,
        window: u32::MAX,
        params: params(args),
        flops: 4 * p * n + p * l + u64::from(parts) * (l * n + 4 * l + DELTA),
        bytes: 8 * p + 4,
        state_bytes: 8 * p * n,
    }
}

fn kernels(profile: &Profile, args: &Args, block: u32) -> Vec<Work> {
    let shape = &args.shape;
    let (p, n, l) = (u64::from(shape.head_dim), u64::from(shape.state), u64::from(block));
    let scratch = form::Scratch::new(args, block);
    let quads = shape.head_dim.div_ceil(4);
    let nq = shape.state.div_ceil(4);
    let plus = scratch.blocks - args.max_tokens.div_ceil(block);
    let lanes = 64;
    let tokens = form::register_tokens(block, if profile.cpu { 8 } else { 4 });
    let params = Params {
        blocks: scratch.blocks,
        products: scratch.products,
        block_states: scratch.states,
        ..params(args)
    };
    let work = |name, part, tile_tokens, items: u32, flops, bytes| Work {
        name,
        variant: Variant {
            part,
            state: shape.state,
            block,
            rows: 0,
            tokens: tile_tokens,
            workgroup: lanes,
            vec4: vec4(args),
        },
        units: shape.heads,
        parts: items.div_ceil(lanes),
        lanes: false,
        unit: Unit::Tokens,
        tile: block,
        plus,
        window: u32::MAX,
        params,
        flops,
        bytes,
        state_bytes: 0,
    };
    // Bytes of a block state for each of its tokens.
    let state = 4 * p * n / l.max(1) + 4;
    let sums = work(".sums", Part::Sums, 1, 1, DELTA, 36);
    let states = work(".states", Part::States, 1, quads * nq, 2 * p * n + p, state + 4 * p);
    let passing = Work {
        unit: Unit::Tiles(args.sequences.0),
        tile: 1,
        plus: 0,
        state_bytes: 8 * p * n,
        ..work(".passing", Part::Passing, 1, shape.head_dim * nq, 2 * p * n / l.max(1) + 1, 2 * state)
    };
    let tiles = (block / 4) * (block / 4);
    let products = Work {
        units: shape.groups,
        ..work(".products", Part::Products, 1, tiles, l * n + 4 * n, 8 * n + 4 * l)
    };
    let output = 2 * p * n + p * l + 16 * p;
    let items = block.div_ceil(tokens) * quads;
    let output = work(".output", Part::Output, tokens, items, output, state + 8 * p + 2 * l);
    vec![Work { lanes: true, ..sums }, states, passing, products, output]
}

/// Splits a dispatch over windows of tokens and over its heads, so that each is within the work budget at the most tokens.
fn stages(profile: &Profile, args: &Args, work: &Work) -> Vec<Stage> {
    let windows = args.max_tokens.div_ceil(work.window).max(1);
    // A window's share of the cost of all tokens.
    let share = |cost: u64| cost.div_ceil(windows.into());
    let most = profile.work_budget / share(work.flops).saturating_mul(args.max_tokens.into()).max(1);
    let dispatches = u64::from(work.units).div_ceil(most.max(1)).max(1) as u32;
    let each = work.units.div_ceil(dispatches).max(1);
    let mut stages = Vec::new();
    let begins =
        (0..windows).flat_map(|w| (0..work.units).step_by(each as usize).map(move |first| (w, first)));
    for (window, first) in begins {
        let units = each.min(work.units - first);
        let (parts, per) = if work.lanes {
            let parts = units.div_ceil(work.variant.workgroup);
            (parts, parts)
        } else {
            (work.parts, work.parts * units)
        };
        let many = u64::from(units);
        // With few tokens each may be of another sequence, with many they are of one.
        let few = args.max_tokens <= form::few(args);
        let (fixed, row) = if few { (0, work.state_bytes) } else { (work.state_bytes, 0) };
        let params = Params {
            first_head: first,
            heads: units,
            parts,
            first_token: window * work.window,
            window: work.window,
            ..work.params
        };
        stages.push(Stage {
            name: work.name,
            call: Call {
                kernel: work.variant.clone().into(),
                params: params.words(),
                workgroups: Count::each(work.unit, work.tile, per).and(work.plus),
                rows: Unit::Tokens,
                cost: Cost {
                    bytes_fixed: many * fixed,
                    bytes_per_row: many * share(work.bytes + row),
                    flops_per_row: many * share(work.flops),
                    ..Cost::default()
                },
            },
            operands: work.variant.part.operands().to_vec(),
        });
    }
    stages
}
