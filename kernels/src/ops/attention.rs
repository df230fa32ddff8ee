//! Attention over pages: an online softmax over the keys of a range, carried from dispatch to dispatch.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

pub use super::rope_kv::KvPlace;

/// The KV range of one dispatch, in a uniform of its own with a dynamic offset: `[first token, tokens, 0, 0]`.
pub const RANGE_WORDS: usize = 4;

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Heads.
    pub shape: crate::AttentionShape,
    /// Page layout.
    pub kv: crate::KvLayout,
    /// Pages.
    pub place: KvPlace,
    /// Factor of the scores.
    pub scale: f32,
    /// `cap·tanh(score/cap)` before the mask.
    pub softcap: Option<f32>,
    /// A query at `q` sees keys in `(q − window, q]`.
    pub window: Option<u32>,
    /// Index of the tile table.
    pub tile_table: u32,
    /// The tile table.
    pub tiles: crate::step::TileTable,
    /// `P`, splits of the range that run side by side; 1 writes `out` at the last range, more leave parts to the merge.
    pub splits: u32,
    /// The first dispatch of a layer starts from nothing, others continue the carried state.
    pub first_segment: bool,
    /// With `splits = 1` the last segment of the last range in reach writes `out`.
    pub last_segment: bool,
    /// Word offset of the slots.
    pub token_slots: u32,
    /// Values between rows of `qkv`.
    pub qkv_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Most tokens in a step.
    pub max_tokens: u32,
}

/// Plans the dispatch. Operands: qkv (ReadArena), KV segment (ReadArena), out (Write), scratch (Write; `scratch_words` f32), range (Range).
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let _ = (profile, args);
    todo!()
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        Vec::new()
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        todo!()
    }
    fn wgsl(&self) -> String {
        todo!()
    }
    fn operands(&self) -> Vec<Access> {
        todo!()
    }
    fn workgroup(&self) -> u32 {
        todo!()
    }
}
