//! Products whose lanes have rows of the matrix of their own: the body of [`mat_vec`](super::mat_vec) and
//! [`mat_mat`](super::mat_mat) for drivers that load lane by lane (lavapipe), where a load costs the same for one word
//! and for four. Codes are loaded by vec4, each value of x once for 8 lanes and all rows, and nothing is summed at the
//! end, so rows of any length keep all lanes busy.

use super::{lanes, linear};
use crate::Format;
use crate::shader::Source;
use crate::unpack::chunk_unpackers;

/// Lanes of a workgroup, of one subgroup: four values each are a chunk.
pub(crate) const LANES: u32 = 8;

/// The module, after its parameters and operands; a lane has `rows` rows of the matrix and `cols` of x.
pub(crate) fn module(
    source: Source,
    share: &str,
    format: Format,
    rows: u32,
    cols: u32,
    wide: bool,
) -> String {
    // Scales of 16 values are two a chunk.
    let halves = if format.scales().octs() < 4 { 2 } else { 1 };
    let source = source
        .constant("ROWS", rows)
        .constant("COLS", cols)
        .constant("HALVES", halves)
        .constant("NO_BIAS", linear::NO_BIAS);
    let counts = [("ROWS", rows), ("COLS", cols), ("HALVES", halves), ("SHARING", 4 / halves)];
    chunk_unpackers(source, format)
        .text(if wide {
            include_str!("linear_quads_wide.wgsl")
        } else {
            concat!(include_str!("linear_single.wgsl"), include_str!("linear_quads_narrow.wgsl"))
        })
        .text(include_str!("linear.wgsl"))
        .text(share)
        .text(&lanes::unroll(include_str!("row_lanes.wgsl"), &counts))
        .finish()
}
