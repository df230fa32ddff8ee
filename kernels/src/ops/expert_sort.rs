//! Choices sorted by expert, and cut into tiles: what a grouped mat-mat walks.
//!
//! ```text
//! header [4]                      tiles, then zeros
//! tiles  [max_tiles, 4]           expert, first entry of the list, entries (1 to tile), 0
//! list   [T·Top]                  choices `t·Top + i`, expert by expert, each in rising order
//! ```
//!
//! Grid: one workgroup. A lane owns an expert: it counts its choices, all lanes add up what stands before them, and the
//! lane writes its part of the list and its tiles; with more experts than lanes, in rounds. No atomics, so the order is
//! the same each time. The ids are read through workgroup memory, 1,024 at a time.
//!
//! Workgroup memory: 6 KiB. Limits: 3 storage buffers.

use super::lanes;
use crate::shader::{Access, Shader, Source};
use crate::{Call, Cost, Count, Profile, Unit};
use serde::{Deserialize, Serialize};

/// Ids in workgroup memory at a time.
const STAGE: u32 = 1024;

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Invocations: experts of a round.
    pub workgroup: u32,
}

crate::params! {
    /// Sizes and places.
    pub struct Params {
        /// `X`.
        experts: u32,
        /// `Top`.
        top: u32,
        /// Choices a tile may hold.
        tile: u32,
        /// Values between rows of the routing.
        routing_stride: u32,
        /// Word of the table where the list begins.
        list: u32,
    }
}

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

/// Words of the header.
pub const HEADER: u32 = 4;

/// The most tiles there can be: `ceil(T·Top / tile) + min(X, T·Top)`.
pub fn max_tiles(args: &Args) -> u32 {
    let choices = args.max_tokens.saturating_mul(args.top);
    choices.div_ceil(args.tile.max(1)).saturating_add(args.experts.min(choices))
}

/// Word of the table where the list begins.
pub fn list(args: &Args) -> u32 {
    HEADER.saturating_add(max_tiles(args).saturating_mul(4))
}

/// Words of the table.
pub fn words(args: &Args) -> u64 {
    u64::from(HEADER) + 4 * u64::from(max_tiles(args)) + u64::from(args.max_tokens) * u64::from(args.top)
}

/// Plans the dispatches, in order: one. Operands: routing (ReadArena, `array<u32>`), table (Write, `array<u32>`).
pub fn plan(profile: &Profile, args: &Args) -> Vec<Call> {
    // Lanes also load, so a few experts do not mean few lanes.
    let most = profile.limits.max_compute_invocations_per_workgroup.min(256);
    let workgroup = args.experts.max(64).next_power_of_two().min(most);
    let params = Params {
        experts: args.experts,
        top: args.top,
        tile: args.tile.max(1),
        routing_stride: args.routing_stride,
        list: list(args),
    };
    // Every round reads the ids twice; the list is written once, and at most as many tiles.
    let rounds = u64::from(args.experts.div_ceil(workgroup.max(1)));
    vec![Call {
        kernel: Variant { workgroup }.into(),
        params: params.words(),
        workgroups: Count::fixed(1),
        rows: Unit::Choices(args.top),
        cost: Cost {
            bytes_per_row: 8 * rounds + 4,
            flops_per_row: 2 * u64::from(args.experts),
            bytes_fixed: 16 * (u64::from(args.experts) + 1),
            ..Cost::default()
        },
    }]
}

/// The CPU twin for `tokens` tokens: the words of the table. Tiles that are not used are zeros.
pub fn twin(args: &Args, tokens: usize, routing: &[u32]) -> Vec<u32> {
    let top = args.top as usize;
    let mut table = vec![0; words(args) as usize];
    let (mut tiles, mut entries, list) = (0, 0, list(args) as usize);
    for expert in 0..args.experts {
        let first = entries;
        for choice in 0..tokens * top {
            if routing[choice / top * args.routing_stride as usize + choice % top] == expert {
                table[list + entries] = choice as u32;
                entries += 1;
            }
        }
        for at in (first..entries).step_by(args.tile.max(1) as usize) {
            let size = (entries - at).min(args.tile.max(1) as usize);
            let to = HEADER as usize + 4 * tiles;
            table[to..to + 4].copy_from_slice(&[expert, at as u32, size as u32, 0]);
            tiles += 1;
        }
    }
    table[0] = tiles as u32;
    table
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        vec![Self { workgroup: 64 }, Self { workgroup: 256 }]
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!("expert_sort_w{}", self.workgroup)
    }

    fn wgsl(&self) -> String {
        Source::new(Params::WGSL)
            .operand(0, Access::ReadArena, "routing", "array<u32>")
            .operand(1, Access::Write, "table", "array<u32>")
            .constant("WG", self.workgroup)
            .constant("STAGE", STAGE)
            .constant("HEADER", HEADER)
            .text(&lanes::unroll(include_str!("expert_sort.wgsl"), &[("FOUR", 4)]))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
