//! Which form a size gets, and the sizes that follow from it.

use super::{Args, Part, Variant, workgroup};
use crate::{Profile, Ssd};

/// Workgroup memory a kernel may have.
const MEMORY: u32 = 16 << 10;
/// Steps of at most so many tokens are walked token by token.
const FEW: u32 = 8;
/// Values of the state a lane holds where lanes hand x to each other.
const SPREAD: u32 = 256;

/// What was chosen.
pub enum Form {
    /// Token by token.
    Sequential,
    /// Blocks in order, so many quads of rows of a head in a workgroup.
    Streaming {
        /// `L`.
        block: u32,
        /// Quads of rows.
        quads: u32,
    },
    /// Five kernels.
    Kernels {
        /// `L`.
        block: u32,
    },
}

/// Steps of at most so many tokens may have one token of each sequence.
pub fn few(args: &Args) -> u32 {
    args.sequences.1.capacity.max(FEW)
}

/// The form for `args`.
pub fn choose(profile: &Profile, args: &Args) -> Form {
    if args.max_tokens <= few(args) {
        return Form::Sequential;
    }
    match profile.tuning.ssd {
        Ssd::Sequential => Form::Sequential,
        Ssd::Streaming { block } => streaming(profile, args, block),
        Ssd::Kernels { block } => {
            let block = block.next_multiple_of(4).clamp(4, 256);
            let scratch = Scratch::new(args, block);
            // Vectors are numbered with 32 bits.
            let most = profile.limits.max_storage_buffer_binding_size.min(u32::MAX.into());
            if scratch.words.saturating_mul(4) <= most {
                Form::Kernels { block }
            } else {
                streaming(profile, args, block.min(16))
            }
        }
    }
}

/// The streaming form with as many rows to a workgroup as its memory holds, in blocks of at most `block`.
fn streaming(profile: &Profile, args: &Args, block: u32) -> Form {
    let memory = profile.limits.max_compute_workgroup_storage_size.min(MEMORY);
    let mut block = block.next_multiple_of(4).clamp(4, 64);
    while block >= 4 {
        for quads in [4, 2, 1] {
            let state = u64::from(quads) * u64::from(args.shape.state.div_ceil(4)) * 64;
            let bytes = state + u64::from(block * quads * 16 + block * block * 4 + 3 * block * 4);
            // Each variable may be padded.
            if bytes + 64 <= u64::from(memory) && (quads == 1 || quads <= args.shape.head_dim.div_ceil(4)) {
                return Form::Streaming { block, quads };
            }
        }
        block = block / 8 * 4;
    }
    Form::Sequential
}

/// The largest power of two that is at most `most` and 8 and divides the block.
pub fn register_tokens(block: u32, most: u32) -> u32 {
    [8, 4, 2].into_iter().find(|t| *t <= most && block.is_multiple_of(*t)).unwrap_or(1)
}

/// The variant of the sequential form: the values of a lane fit its registers, the sums of a few tokens the memory.
pub fn sequential(profile: &Profile, args: &Args) -> Variant {
    let (state, head_dim) = (args.shape.state.max(1), args.shape.head_dim.max(1));
    let most = args.max_tokens.max(1);
    let variant = |block, rows, tokens, lanes| Variant {
        part: Part::Sequential,
        state,
        block,
        rows,
        tokens,
        workgroup: lanes,
        vec4: state.is_multiple_of(lanes),
    };
    let lanes = workgroup(profile);
    if profile.cpu && profile.subgroups && profile.subgroup_size == (lanes, lanes) && state <= 64 * lanes {
        let octs = (SPREAD / (state.div_ceil(lanes) * lanes)).clamp(1, 8).min(head_dim.div_ceil(lanes));
        return variant(most.min(32), octs * lanes, lanes, lanes);
    }
    // CPU drivers keep what does not fit registers in their first cache, which costs less than loading B and C again.
    let (mut lanes, registers) = if profile.cpu { (lanes, 128) } else { (32, 32) };
    lanes = lanes.min(state.next_power_of_two());
    while state.div_ceil(lanes) > 32 && lanes < 256 {
        lanes *= 2;
    }
    let rows = (registers / state.div_ceil(lanes)).clamp(1, 8).min(head_dim);
    let mut tokens = most.min(8);
    while tokens > 1 && tokens * (rows * (lanes + 1) + 2) * 4 + 64 > MEMORY {
        tokens -= 1;
    }
    variant(tokens, rows, 1, lanes)
}

/// Where what stands in the scratch of the five kernels, in `vec4`s: four numbers of each token and head, C·Bᵀ of each
/// block and group, the state of each block and head.
pub struct Scratch {
    /// Numbers that blocks may have.
    pub blocks: u32,
    /// First of C·Bᵀ.
    pub products: u32,
    /// First of the states.
    pub states: u32,
    /// Words in all.
    pub words: u64,
}

impl Scratch {
    /// Lays it out for blocks of `block` tokens.
    pub fn new(args: &Args, block: u32) -> Self {
        let shape = &args.shape;
        let sequences = args.sequences.1.capacity.clamp(1, args.max_tokens.max(1));
        // Every sequence but one may end in a block that is not full.
        let blocks = args.max_tokens.div_ceil(block) + sequences - 1;
        let products = u64::from(args.max_tokens) * u64::from(shape.heads);
        let states = products + u64::from(blocks * shape.groups) * u64::from(block * block / 4);
        let of_head = u64::from(shape.head_dim.div_ceil(4) * 4 * shape.state.div_ceil(4));
        let words = (states + u64::from(blocks) * u64::from(shape.heads) * of_head).saturating_mul(4);
        // Offsets past 2³² are of a form that is not chosen.
        Self { blocks, products: products as u32, states: states as u32, words }
    }
}
