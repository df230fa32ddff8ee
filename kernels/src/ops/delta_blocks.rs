//! Gated delta rule in blocks of tokens: prefill.

use super::{delta, lanes};
use crate::Profile;
use crate::shader::{Access, Shader};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// `Ek`.
    pub key_dim: u32,
    /// Columns of the state of a workgroup, a multiple of 4.
    pub columns: u32,
    /// `C`, tokens of a block, a multiple of 4.
    pub block: u32,
    /// Rows of the state whose keys and queries are in workgroup memory at a time, a multiple of 4.
    pub tile: u32,
    /// Invocations, at least `C/2`.
    pub workgroup: u32,
}

/// Most columns of a workgroup.
const COLUMNS: u32 = 32;

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let variant =
            |key_dim, columns, block, tile, workgroup| Self { key_dim, columns, block, tile, workgroup };
        vec![
            variant(128, 16, 16, 16, 64),
            variant(128, 16, 16, 16, 8),
            variant(256, 8, 16, 16, 64),
            variant(33, 20, 16, 16, 64),
            variant(32, 4, 32, 16, 64),
        ]
    }

    /// The variant for blocks of `block` tokens with the most columns that fit; `None` where not even 4 do.
    pub(crate) fn of(profile: &Profile, key_dim: u32, value_dim: u32, block: u32) -> Option<Self> {
        let block = block.clamp(4, 32).next_multiple_of(4);
        // 16 KiB leave room for several workgroups on a core; larger blocks need more, where there is more.
        let memory = if block > 16 { 32 << 10 } else { 16 << 10 };
        let memory = memory.min(profile.limits.max_compute_workgroup_storage_size);
        let invocations = profile.limits.max_compute_invocations_per_workgroup;
        let workgroup = if profile.cpu { profile.tuning.row_workgroup } else { 64 };
        let workgroup = workgroup.max(block / 2);
        let variant = |columns, tile| Self { key_dim, columns, block, tile, workgroup };
        let fits = |variant: &Self| variant.bytes() <= u64::from(memory) && workgroup <= invocations;
        let most = value_dim.clamp(1, COLUMNS).next_multiple_of(4);
        let columns = (1..=most / 4).rev().map(|n| 4 * n).find(|c| fits(&variant(*c, 16)))?;
        // No slice wider than the others.
        let slices = value_dim.div_ceil(columns).max(1);
        let columns = value_dim.div_ceil(slices).next_multiple_of(4).max(4);
        let tiles = [64, 32].into_iter().filter(|tile| tile / 2 < key_dim);
        let tile = tiles.map(|tile| variant(columns, tile)).find(|v| fits(v));
        Some(tile.unwrap_or(variant(columns, 16)))
    }

    /// Bytes of workgroup memory.
    fn bytes(&self) -> u64 {
        let [key_dim, columns, block, tile] =
            [self.key_dim, self.columns, self.block, self.tile].map(u64::from);
        4 * (key_dim * columns
            + 2 * tile * block
            + 2 * block * (columns + block)
            + block * columns
            + 6 * block)
    }

    /// Operations for a token and a slice of columns: products with K and Q, the causal halves of K Kᵀ and Q Kᵀ with
    /// the tiles on the diagonal, the update; substitution and P U.
    pub(crate) fn flops(&self) -> u64 {
        let [key_dim, columns, block] = [self.key_dim, self.columns, self.block].map(u64::from);
        key_dim * (6 * columns + 2 * (block + 4)) + 2 * block * columns
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!(
            "delta_blocks_e{}_{}x{}_t{}_wg{}",
            self.key_dim, self.block, self.columns, self.tile, self.workgroup
        )
    }

    fn wgsl(&self) -> String {
        let (quads, blocks) = (self.columns / 4, self.block / 4);
        let tasks = 2 * blocks * (quads + blocks);
        // Rows of the state that an invocation updates at once.
        let rows = if self.workgroup < 64 { 4 } else { 2 };
        let counts =
            [("TASKS", tasks.div_ceil(self.workgroup)), ("BLOCKS", blocks), ("ROWS", rows), ("QUAD", 4)];
        delta::source(self.workgroup, self.key_dim, self.columns)
            .constant("C", self.block)
            .constant("QUADS", quads)
            .constant("BLOCKS", blocks)
            .constant("TILE", self.tile)
            .constant("ALL_TASKS", tasks)
            .constant("ROWS", rows)
            .text(delta::LANES)
            .text(&lanes::unroll(include_str!("delta_blocks.wgsl"), &counts))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        delta::ACCESSES.to_vec()
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
