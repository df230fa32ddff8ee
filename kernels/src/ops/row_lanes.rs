//! Products whose lanes have rows of the matrix of their own: the body of [`mat_vec`](super::mat_vec) and
//! [`mat_mat`](super::mat_mat) for drivers that load lane by lane (lavapipe), where a load costs the same for one word
//! and for four. Codes are loaded by vec4, each value of x once for 8 lanes and all rows, and nothing is summed at the
//! end, so rows of any length keep all lanes busy. The lines of the next rows are fetched ahead: on a model whose weights
//! stream from memory (98 MB a token, two cores of a server, lavapipe 22.3) decode went from 25.0 to 30.9 tokens a second
//! of SmolLM2 and from 13.3 to 16.1 of Gemma 3 270M with a word of every 64 bytes, and to 28 and 14.8 with one of every
//! 128.
//!
//! And of those whose lanes stand side by side in the rows, for one row of x and single values (f32, f16, bf16): each lane
//! loads its own x then, and no value is handed around. See [`mat_vec`](super::mat_vec) for what both measured.

use super::gate::Activation;
use super::{lanes, linear};
use crate::Format;
use crate::shader::Source;
use crate::unpack::chunk_unpackers;

/// Lanes of a workgroup, of one subgroup: four values each are a chunk.
pub(crate) const LANES: u32 = 8;

/// Bytes between the words that are fetched ahead: a cache line.
const LINE: usize = 64;

/// What the text is made from.
pub(crate) struct Shape {
    pub format: Format,
    /// Rows of the matrix a lane has; even where there is a gate.
    pub rows: u32,
    /// Rows of x.
    pub cols: u32,
    pub wide: bool,
    /// A norm on the way in.
    pub normed: bool,
    /// A gate on the way out.
    pub gate: Option<Activation>,
    /// Lanes stand side by side in the rows, and `rows` are the workgroup's.
    pub spread: bool,
}

/// Scales of a chunk: those of 16 values are two.
pub(crate) fn halves(format: Format) -> u32 {
    if format.scales().octs() < 4 { 2 } else { 1 }
}

/// The module, after its parameters and operands.
pub(crate) fn module(source: Source, share: &str, shape: &Shape) -> String {
    let &Shape { format, rows, cols, wide, normed, gate, spread } = shape;
    let halves = halves(format);
    let sides = if gate.is_some() { 2 } else { 1 };
    let outs = rows / sides;
    // What 8 lanes read of a chunk, in lines for each of them.
    let bytes = format.block_bytes() * 32 / format.block_len() * rows as usize;
    let touches = bytes.div_ceil(LINE);
    let source = source
        .constant("SIDES", sides)
        .constant("TOUCHES", touches as u32)
        .constant("TOUCH_QUADS", bytes.div_ceil(16 * touches) as u32)
        .constant("OUTS", outs)
        .constant("COLS", cols)
        .constant("HALVES", halves)
        .constant("NO_BIAS", linear::NO_BIAS);
    let counts = [
        ("SIDES", sides),
        ("TOUCHES", touches as u32),
        ("OUTS", outs),
        ("COLS", cols),
        ("HALVES", halves),
        ("SHARING", 4 / halves),
        ("NORMED", normed.into()),
        ("PLAIN", (!normed).into()),
        ("GATED", gate.is_some().into()),
        ("UNGATED", gate.is_none().into()),
    ];
    let body = if spread { include_str!("spread_lanes.wgsl") } else { include_str!("row_lanes.wgsl") };
    chunk_unpackers(source, format)
        .text(if wide {
            include_str!("linear_quads_wide.wgsl")
        } else {
            concat!(include_str!("linear_single.wgsl"), include_str!("linear_quads_narrow.wgsl"))
        })
        .text(include_str!("linear.wgsl"))
        .text(share)
        .text(&linear::ways(normed, gate))
        .text(lanes::ALONE)
        .text(&lanes::unroll(body, &counts))
        .finish()
}
