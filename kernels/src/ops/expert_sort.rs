//! Choices sorted by expert, and cut into tiles: what a grouped mat-mat walks.
//!
//! ```text
//! header [4]                      tiles, and what is reserved
//! tiles  [max_tiles, 4]           expert, first entry of the list, entries (1 to tile), 0
//! list   [T·Top]                  choices `t·Top + i`, expert by expert
//! ```

use crate::{Call, Profile};

/// Sizes and places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Args {
    /// `X`.
    pub experts: u32,
    /// `Top`.
    pub top: u32,
    /// Choices a tile may hold.
    pub tile: u32,
    /// Values between rows of the routing.
    pub routing_stride: u32,
    /// Most tokens of a step.
    pub max_tokens: u32,
}

/// The most tiles there can be: `ceil(T·Top / tile) + min(X, T·Top)`.
pub fn max_tiles(args: &Args) -> u32 {
    let choices = args.max_tokens.saturating_mul(args.top);
    choices.div_ceil(args.tile.max(1)).saturating_add(args.experts.min(choices))
}

/// Words of the table.
pub fn words(args: &Args) -> u64 {
    4 + 4 * u64::from(max_tiles(args)) + u64::from(args.max_tokens) * u64::from(args.top)
}

/// Plans the dispatches, in order. Operands: routing (ReadArena, `array<u32>`), table (Write, `array<u32>`).
pub fn plan(_profile: &Profile, _args: &Args) -> Vec<Call> {
    unimplemented!()
}
