//! Head norms, rope and the KV write: queries rotate in place, keys and values go to their pages.

use crate::shader::{Access, Shader, Source};
use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {}

/// A head norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// Word offset of the weight `[E]` in the vectors.
    pub weight: u32,
    /// The weight is stored zero-centred.
    pub plus_one: bool,
    /// Inside the root.
    pub eps: f32,
}

/// A rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Word offset of the cosines and sines `[T, pairs, 2]` in the step tables.
    pub table: u32,
    /// Rotated pairs; the other values of the head pass.
    pub pairs: u32,
    /// Pairs are neighbours (2i, 2i+1) instead of halves (i, i + pairs).
    pub interleaved: bool,
}

/// Where the KV of a layer stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvPlace {
    /// Word offset of the block table in the step tables.
    pub table: u32,
    /// Logical pages of a slot; logical page `n` stands at `n mod pages`.
    pub pages: u32,
    /// First physical page of the bound segment.
    pub first_page: u32,
    /// Physical pages of the bound segment; others are not touched.
    pub segment_pages: u32,
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Heads.
    pub shape: crate::AttentionShape,
    /// Page layout.
    pub kv: crate::KvLayout,
    /// Pages.
    pub place: KvPlace,
    /// Norm of each query head before the rope.
    pub q_norm: Option<HeadNorm>,
    /// Norm of each key head before the rope.
    pub k_norm: Option<HeadNorm>,
    /// Rotation.
    pub rope: Option<Rope>,
    /// Whether this dispatch does the queries too (the first segment does).
    pub rotate_queries: bool,
    /// Word offset of the positions.
    pub positions: u32,
    /// Word offset of the slots.
    pub token_slots: u32,
    /// Values between rows of `qkv`.
    pub qkv_stride: u32,
}

/// Plans the dispatch. Operands: qkv `[T, (Hq + 2·Hk)·E]` (Write), KV segment (Write), vectors (Read).
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
