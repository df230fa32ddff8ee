//! Head norms, rope and the KV write: queries rotate in place, keys and values go to their pages, unless another layer
//! wrote them.

use super::{lanes, norm};
use crate::shader::{Access, Shader, Source};
use crate::step::PAGE;
use crate::{Call, Cost, Count, KvFormat, KvLayout, Profile, Reduce, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// How pages are stored.
    pub format: KvFormat,
    /// `E`.
    pub head_dim: u32,
    /// Pairs are neighbours.
    pub interleaved: bool,
    /// Sums over lanes.
    pub reduce: Reduce,
    /// Invocations.
    pub workgroup: u32,
}

crate::params! {
    /// Sizes and places; offsets in words.
    pub struct Params {
        /// `Hq`.
        heads: u32,
        /// Query heads this dispatch does: `Hq` or 0.
        queries: u32,
        /// `Hk`, or 0 where another layer wrote them.
        kv_heads: u32,
        /// Heads of the row before the first value head.
        values: u32,
        /// Values between rows.
        stride: u32,
        /// Positions in the step tables.
        positions: u32,
        /// Slots in the step tables.
        slots: u32,
        /// Block table.
        table: u32,
        /// Logical pages of a slot.
        pages: u32,
        /// First physical page of the segment.
        first_page: u32,
        /// Physical pages of the segment.
        segment_pages: u32,
        /// Cosines and sines in the step tables.
        ropes: u32,
        /// Rotated pairs.
        pairs: u32,
        /// 1 when queries are normed.
        q_norm: u32,
        /// Their weight.
        q_weight: u32,
        /// Their eps.
        q_eps: f32,
        /// 1 for zero-centred weights.
        q_plus_one: f32,
        /// 1 when keys are normed.
        k_norm: u32,
        /// Their weight.
        k_weight: u32,
        /// Their eps.
        k_eps: f32,
        /// 1 for zero-centred weights.
        k_plus_one: f32,
        /// 1 when values are normed.
        v_norm: u32,
        /// Their eps.
        v_eps: f32,
    }
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// From their own columns: stacked q, k, v.
    #[default]
    Own,
    /// Values are the keys before their norm and rotation: stacked q, k.
    Values,
    /// From the state, which another layer wrote in this step: q alone.
    Shared,
}

impl Keys {
    /// Columns of the stacked projection.
    pub fn width(self, shape: &crate::AttentionShape) -> u32 {
        match self {
            Keys::Own => shape.qkv_width(),
            Keys::Values => (shape.heads + shape.kv_heads) * shape.head_dim,
            Keys::Shared => shape.heads * shape.head_dim,
        }
    }
}

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
    /// Norm of each value head, without a weight: its epsilon.
    pub v_norm: Option<f32>,
    /// Where keys and values come from.
    pub keys: Keys,
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

/// Plans the dispatch. Operands: qkv `[T, ` [`Keys::width`] `]` (Write), KV segment (Write), vectors (Read). With
/// [`Keys::Shared`] the segment is bound and left alone.
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let shape = &args.shape;
    let workgroup = if profile.cpu {
        profile.tuning.row_workgroup
    } else {
        // A lane for each pair, in whole subgroups of most GPUs.
        (shape.head_dim / 2).next_multiple_of(32).clamp(32, profile.tuning.row_workgroup.max(32))
    };
    let variant = Variant {
        format: args.kv.format,
        head_dim: shape.head_dim,
        interleaved: args.rope.is_some_and(|r| r.interleaved),
        reduce: profile.tuning.reduce,
        workgroup,
    };
    let norm = |norm: Option<HeadNorm>| match norm {
        Some(n) => (1, n.weight, n.eps, if n.plus_one { 1.0 } else { 0.0 }),
        None => (0, 0, 0.0, 0.0),
    };
    let (q_norm, q_weight, q_eps, q_plus_one) = norm(args.q_norm);
    let (k_norm, k_weight, k_eps, k_plus_one) = norm(args.k_norm);
    let queries = if args.rotate_queries { shape.heads } else { 0 };
    let kv_heads = if args.keys == Keys::Shared { 0 } else { shape.kv_heads };
    let params = Params {
        heads: shape.heads,
        queries,
        kv_heads,
        values: shape.heads + if args.keys == Keys::Own { shape.kv_heads } else { 0 },
        stride: args.qkv_stride,
        positions: args.positions,
        slots: args.token_slots,
        table: args.place.table,
        pages: args.place.pages,
        first_page: args.place.first_page,
        segment_pages: args.place.segment_pages,
        ropes: args.rope.map_or(0, |r| r.table),
        pairs: args.rope.map_or(0, |r| r.pairs),
        q_norm,
        q_weight,
        q_eps,
        q_plus_one,
        k_norm,
        k_weight,
        k_eps,
        k_plus_one,
        v_norm: args.v_norm.is_some().into(),
        v_eps: args.v_norm.unwrap_or(0.0),
    };
    let size = u64::from(shape.head_dim);
    let rotated = u64::from(queries + kv_heads);
    let read = u64::from(kv_heads) * if args.keys == Keys::Own { 2 } else { 1 };
    let stored = if kv_heads == 0 { 0 } else { args.kv.token_bytes() };
    let normed = if args.v_norm.is_some() { u64::from(kv_heads) } else { 0 };
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tokens, 1, queries + kv_heads),
        rows: Unit::Tokens,
        cost: Cost {
            bytes_per_row: (2 * u64::from(queries) + read) * size * 4 + stored,
            // Norm 5, rope 3 a value; the norm of values 3.
            flops_per_row: (rotated * 8 + normed * 3) * size,
            ..Cost::default()
        },
    }
}

/// The CPU twin: `qkv` in place; pages of the bound segment in `segment` (words).
pub fn twin(args: &Args, step: &[u32], vectors: &[f32], qkv: &mut [f32], segment: &mut [u32]) {
    let shape = &args.shape;
    let size = shape.head_dim as usize;
    let prepared = |x: &[f32], head: Option<HeadNorm>, token: usize| -> Vec<f32> {
        let mut x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        if let Some(head) = head {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / size as f64;
            let scale = norm::inverse_root(mean, head.eps);
            for (v, w) in x.iter_mut().zip(&vectors[head.weight as usize..]) {
                *v *= scale * (f64::from(*w) + if head.plus_one { 1.0 } else { 0.0 });
            }
        }
        if let Some(rope) = args.rope {
            let pairs = rope.pairs as usize;
            let table = &step[rope.table as usize + token * pairs * 2..];
            for i in 0..pairs {
                let (first, second) = if rope.interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
                let [c, s] = [table[2 * i], table[2 * i + 1]].map(|w| f64::from(f32::from_bits(w)));
                let (a, b) = (x[first], x[second]);
                x[first] = a * c - b * s;
                x[second] = b * c + a * s;
            }
        }
        x.into_iter().map(|v| v as f32).collect()
    };
    for token in 0..step[crate::step::HEADER_TOKENS as usize] as usize {
        let row = &mut qkv[token * args.qkv_stride as usize..][..args.keys.width(shape) as usize];
        let (queries, rest) = row.split_at_mut(shape.heads as usize * size);
        if args.rotate_queries {
            for head in queries.chunks_mut(size) {
                let x = prepared(head, args.q_norm, token);
                head.copy_from_slice(&x);
            }
        }
        if args.keys == Keys::Shared {
            continue;
        }
        let position = step[args.positions as usize + token];
        let slot = step[args.token_slots as usize + token];
        let Some(page) = args.place.page(step, slot, position / PAGE) else { continue };
        let words = args.kv.page_words() as usize;
        let page = &mut segment[page as usize * words..][..words];
        let (keys, own) = rest.split_at(shape.kv_heads as usize * size);
        let values = if args.keys == Keys::Values { keys } else { own };
        for (head, (key, value)) in (0..).zip(keys.chunks(size).zip(values.chunks(size))) {
            let scale = args.v_norm.map_or(1.0, |eps| {
                let squares: f64 = value.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
                norm::inverse_root(squares / size as f64, eps)
            });
            let value: Vec<f32> = value.iter().map(|v| (f64::from(*v) * scale) as f32).collect();
            args.kv.store(page, head, position % PAGE, &prepared(key, args.k_norm, token), &value);
        }
    }
}

impl KvPlace {
    /// The page of the bound segment that holds logical page `page` of `slot`, if it stands there.
    pub fn page(&self, step: &[u32], slot: u32, page: u32) -> Option<u32> {
        let physical = step[(self.table + slot * self.pages + page % self.pages) as usize];
        physical.checked_sub(self.first_page).filter(|p| *p < self.segment_pages)
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (reduce, workgroup) in [(Reduce::Subgroup, 8), (Reduce::Shared, 64)] {
            for format in KvFormat::ALL {
                for (head_dim, interleaved) in [(64, false), (128, true)] {
                    all.push(Self { format, head_dim, interleaved, reduce, workgroup });
                }
            }
        }
        all.push(Self {
            format: KvFormat::F16,
            head_dim: 5,
            interleaved: false,
            reduce: Reduce::Subgroup,
            workgroup: 32,
        });
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!(
            "rope_kv_{}_e{}{}_{}_wg{}",
            self.format,
            self.head_dim,
            if self.interleaved { "_pairs" } else { "" },
            lanes::reduce_name(self.reduce),
            self.workgroup
        )
    }

    fn wgsl(&self) -> String {
        let layout = KvLayout { format: self.format, kv_heads: 1, head_dim: self.head_dim };
        let (store, q8) = match self.format {
            KvFormat::F32 => (include_str!("rope_kv_f32.wgsl"), 0),
            KvFormat::F16 => (include_str!("rope_kv_f16.wgsl"), 0),
            KvFormat::Q8_0 => (include_str!("rope_kv_q8_0.wgsl"), 1),
        };
        Source::new(Params::WGSL)
            .constant("WG", self.workgroup)
            .constant("E", self.head_dim)
            .constant("EP", self.head_dim.next_multiple_of(8))
            .constant("BLOCKS", layout.scale_words())
            .constant("ROW_WORDS", layout.row_words())
            .constant("HEAD_WORDS", layout.head_words())
            .flag("INTERLEAVED", self.interleaved)
            .operand(0, Access::Write, "qkv", "array<f32>")
            .operand(1, Access::Write, "kv", "array<u32>")
            .operand(2, Access::Read, "vectors", "array<f32>")
            .text(&norm::values(false))
            .text(lanes::entry(self.reduce))
            .text(&lanes::unroll(include_str!("rope_kv.wgsl"), &[("Q8", q8)]))
            .text(store)
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Write, Access::Write, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
