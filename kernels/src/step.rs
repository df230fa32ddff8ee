//! The step tables: what changes from step to step, in one buffer of 32-bit words that every kernel can read.
//!
//! ```text
//! header   [16]               tokens, logit rows, longest KV length, and what is reserved
//! rows     [R]                token indices whose logits are wanted
//! ids      [T]                token ids
//! position [T]                position of each token in its sequence
//! slot     [T]                slot of each token
//! tiles    [n, 4] per table   runs of tokens of one sequence: first token, tokens, slot, position of the first
//! tables   [slots, pages]     per KV kind: physical page of each logical page (a ring for sliding windows)
//! ropes    [T, pairs, 2]      per rope: cosine and sine of each token's angles, f32
//! ```
//!
//! Rows and ids stand first, so that what reads nothing else is the same whatever the tokens of a step.
//!
//! Sines and cosines come from the host: WGSL promises no accuracy at large angles.

use serde::{Deserialize, Serialize};

/// Words of the header.
pub const HEADER_WORDS: u32 = 16;
/// Header word: tokens in the step.
pub const HEADER_TOKENS: u32 = 0;
/// Header word: logit rows wanted.
pub const HEADER_LOGIT_ROWS: u32 = 1;
/// Header word: the longest KV length of any sequence in the step, this step's tokens included.
pub const HEADER_KV_MAX: u32 = 2;
/// Header word of the number of entries of tile table 0; table `i` is at `HEADER_TILES + i`.
pub const HEADER_TILES: u32 = 4;
/// Header word that is always 0.
pub const HEADER_ZERO: u32 = 15;
/// Tile tables a layout may have.
pub const MAX_TILE_TABLES: usize = 8;
/// Words of one tile entry.
pub const TILE_WORDS: u32 = 4;
/// Tokens of one KV page: a constant of the plan.
pub const PAGE: u32 = 32;

/// Tiles of at most `tokens` consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TileTable {
    /// Tokens a tile may hold.
    pub tokens: u32,
    /// Entries there is room for.
    pub capacity: u32,
    /// Word offset.
    pub offset: u32,
}

/// The block table of one KV kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockTable {
    /// Logical pages of a slot. Logical page `n` stands at `n mod pages`: the identity for full attention (a slot
    /// never holds more), a ring for sliding windows.
    pub pages: u32,
    /// Word offset.
    pub offset: u32,
}

/// The cosines and sines of one rope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RopeTable {
    /// Rotated pairs of a head.
    pub pairs: u32,
    /// Word offset.
    pub offset: u32,
}

/// Where everything stands. Offsets and sizes are in 32-bit words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLayout {
    /// Most tokens in a step.
    pub tokens: u32,
    /// Most logit rows in a step.
    pub logit_rows: u32,
    /// Slots.
    pub slots: u32,
    /// Word offset of the ids.
    pub ids: u32,
    /// Word offset of the positions.
    pub positions: u32,
    /// Word offset of the slots.
    pub token_slots: u32,
    /// Word offset of the logit rows.
    pub rows: u32,
    /// Tile tables.
    pub tiles: Vec<TileTable>,
    /// Block tables, one per KV kind.
    pub tables: Vec<BlockTable>,
    /// Rope tables.
    pub ropes: Vec<RopeTable>,
    /// Words in all.
    pub words: u64,
}

impl StepLayout {
    /// Lays the tables out. `tile_tokens`: tokens per tile, one entry per tile table; `pages`: logical pages of a
    /// slot, one entry per KV kind; `pairs`: rotated pairs, one entry per rope. `None` past 2³² words or
    /// [`MAX_TILE_TABLES`].
    pub fn new(
        tokens: u32,
        logit_rows: u32,
        slots: u32,
        tile_tokens: &[u32],
        pages: &[u32],
        pairs: &[u32],
    ) -> Option<Self> {
        if tile_tokens.len() > MAX_TILE_TABLES {
            return None;
        }
        let mut words = u64::from(HEADER_WORDS);
        // Tables start at multiples of 64 words, so that each can be uploaded by itself.
        let mut take = |count: u64| -> Option<u32> {
            let offset = words.next_multiple_of(64);
            words = offset.checked_add(count)?;
            u32::try_from(words).ok()?;
            u32::try_from(offset).ok()
        };
        let rows = take(u64::from(logit_rows))?;
        let ids = take(u64::from(tokens))?;
        let positions = take(u64::from(tokens))?;
        let token_slots = take(u64::from(tokens))?;
        let mut tiles = Vec::new();
        for &per_tile in tile_tokens {
            let per_tile = per_tile.max(1);
            // Every sequence may end in a partly filled tile.
            let capacity = tokens.div_ceil(per_tile).saturating_add(slots).min(tokens);
            let offset = take(u64::from(capacity) * u64::from(TILE_WORDS))?;
            tiles.push(TileTable { tokens: per_tile, capacity, offset });
        }
        let mut tables = Vec::new();
        for &pages in pages {
            tables.push(BlockTable { pages, offset: take(u64::from(pages) * u64::from(slots))? });
        }
        let mut ropes = Vec::new();
        for &pairs in pairs {
            ropes.push(RopeTable { pairs, offset: take(u64::from(tokens) * u64::from(pairs) * 2)? });
        }
        let words = words.next_multiple_of(64);
        Some(Self {
            tokens,
            logit_rows,
            slots,
            ids,
            positions,
            token_slots,
            rows,
            tiles,
            tables,
            ropes,
            words,
        })
    }
}
