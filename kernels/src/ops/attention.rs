//! Attention over pages: an online softmax over the keys of a range, carried from dispatch to dispatch.

use super::lanes;
use crate::shader::{Access, Shader, Source};
use crate::step::{HEADER_TILES, PAGE, TILE_WORDS};
use crate::{AttentionShape, Call, Cost, Count, KvFormat, KvLayout, Profile, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// How pages are stored.
    pub format: KvFormat,
    /// `E`.
    pub head_dim: u32,
    /// Query tokens of a workgroup.
    pub tokens: u32,
    /// Query heads of a workgroup, of the group of one KV head.
    pub heads: u32,
    /// Each query head has a sink.
    pub sinks: bool,
    /// Invocations.
    pub workgroup: u32,
    /// They are one subgroup.
    pub one_subgroup: bool,
}

pub use super::rope_kv::KvPlace;

crate::params! {
    /// Sizes and places; offsets in words.
    pub struct Params {
        /// `Hq`.
        heads: u32,
        /// `Hk`.
        kv_heads: u32,
        /// `Hq / Hk`.
        group: u32,
        /// Workgroups that share a group.
        parts: u32,
        /// `P`.
        splits: u32,
        /// Header word with the number of tiles.
        tile_count: u32,
        /// Tiles in the step tables.
        tiles: u32,
        /// Block table.
        table: u32,
        /// Logical pages of a slot.
        pages: u32,
        /// First physical page of the segment.
        first_page: u32,
        /// Physical pages of the segment.
        segment_pages: u32,
        /// Values between rows of qkv.
        qkv_stride: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Tokens the scratch has room for.
        max_tokens: u32,
        /// 1 for the first segment of a layer.
        first_segment: u32,
        /// 1 for the last segment of a layer.
        last_segment: u32,
        /// Window, or 0.
        window: u32,
        /// Factor of the scores.
        scale: f32,
        /// Cap of the scores, or 0.
        softcap: f32,
        /// Sinks in the vectors.
        sinks: u32,
    }
}

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
    /// A query at `q` sees keys in `(q − window, q]`; at least 1.
    pub window: Option<u32>,
    /// Word offset of `[Hq]` in the vectors: a score for each query head, neither scaled nor capped, that joins the
    /// softmax and has no value. With splits the merge joins it, and only the merge.
    pub sinks: Option<u32>,
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
    /// Values between rows of `qkv`.
    pub qkv_stride: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
    /// Most tokens in a step.
    pub max_tokens: u32,
}

impl Args {
    /// Whether this dispatch may be the one that divides by the sums, and so needs the sinks.
    pub const fn joins_sinks(&self) -> bool {
        self.sinks.is_some() && self.splits == 1 && self.last_segment
    }
}

/// Products of a key that the text for one subgroup may spell out.
const UNROLLED: u32 = 2048;

/// Query rows a workgroup may hold: their queries take at most 8 KiB of workgroup memory.
const fn most_rows(shape: &AttentionShape) -> u32 {
    let rows = 2048 / if shape.head_dim == 0 { 8 } else { shape.padded() };
    if rows == 0 {
        1
    } else if rows > 16 {
        16
    } else {
        rows
    }
}

/// Query heads of a group that one workgroup serves: all of them, or an even share.
const fn heads_of_part(shape: &AttentionShape) -> u32 {
    let group = if shape.group() == 0 { 1 } else { shape.group() };
    group.div_ceil(group.div_ceil(most_rows(shape)))
}

/// Most splits of the keys at decode: the scratch for their states does not depend on the context.
const MOST_SPLITS: u32 = 8;

/// `P` at decode: as many splits as it takes to keep the device busy with the heads of one token, at most 8.
pub fn decode_splits(profile: &Profile, shape: &AttentionShape) -> u32 {
    let parts = shape.group().div_ceil(heads_of_part(shape).max(1)).max(1);
    let workgroups = shape.kv_heads.max(1).saturating_mul(parts);
    profile.tuning.attention_fill.div_ceil(workgroups).clamp(1, MOST_SPLITS)
}

/// Query tokens a tile may hold for heads of this shape; 1 for decode.
pub const fn tile_tokens(shape: &AttentionShape, decode: bool) -> u32 {
    if decode { 1 } else { most_rows(shape) / heads_of_part(shape) }
}

/// Floats of the state between dispatches: `[splits][max_tokens][Hq]` of `Ep + 4`, acc then (m, l, 0, 0).
pub const fn scratch_words(shape: &AttentionShape, splits: u32, max_tokens: u32) -> u64 {
    splits as u64 * max_tokens as u64 * shape.heads as u64 * (shape.padded() as u64 + 4)
}

/// Plans the dispatch. Operands: qkv (ReadArena), KV segment (ReadArena), out (Write), scratch (Write;
/// [`scratch_words`] f32), range (Range) and, where [`Args::joins_sinks`], vectors (Read). The tiles hold at most
/// [`tile_tokens`] tokens.
///
/// The dispatch with the first segment and a range from token 0 starts the states; others continue them. With one
/// split the dispatch with the last segment and a range up to the longest KV length writes `out`.
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let shape = &args.shape;
    let heads = heads_of_part(shape);
    let parts = shape.group().div_ceil(heads);
    let tokens = args.tiles.tokens.clamp(1, tile_tokens(shape, false));
    let rows = tokens * heads;
    let workgroup = if rows == 1 {
        profile.tuning.attention_workgroup.min(32)
    } else {
        profile.tuning.attention_workgroup
    };
    let one_subgroup = profile.cpu
        && profile.subgroups
        && (8..=PAGE).contains(&workgroup)
        && workgroup <= profile.subgroup_size.0
        && rows * shape.padded() <= UNROLLED;
    let sinks = args.joins_sinks();
    let variant = Variant {
        format: args.kv.format,
        head_dim: shape.head_dim,
        tokens,
        heads,
        sinks,
        workgroup,
        one_subgroup,
    };
    let params = Params {
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        group: shape.group(),
        parts,
        splits: args.splits,
        tile_count: HEADER_TILES + args.tile_table,
        tiles: args.tiles.offset,
        table: args.place.table,
        pages: args.place.pages,
        first_page: args.place.first_page,
        segment_pages: args.place.segment_pages,
        qkv_stride: args.qkv_stride,
        out_stride: args.out_stride,
        max_tokens: args.max_tokens,
        first_segment: args.first_segment.into(),
        last_segment: args.last_segment.into(),
        // Positions stay below 2^31, so a larger window hides nothing (and its sum with a position would wrap).
        window: args.window.filter(|w| *w < 1 << 31).unwrap_or(0),
        scale: args.scale,
        softcap: args.softcap.unwrap_or(0.0),
        sinks: args.sinks.unwrap_or(0),
    };
    let values = u64::from(shape.heads) * u64::from(shape.head_dim);
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tiles(args.tile_table), 1, shape.kv_heads * parts * args.splits),
        rows: Unit::Tokens,
        cost: Cost {
            bytes_per_row: values * 8 * u64::from(parts.max(1)),
            // Pages are read once by each tile and part.
            bytes_per_row_kv: (args.kv.token_bytes() * u64::from(parts)).div_ceil(u64::from(tokens)),
            flops_per_row_kv: 4 * values + 4 * u64::from(shape.heads),
            ..Cost::default()
        },
    }
}

/// The CPU twin: attention of the tokens of a step over all their keys, whatever dispatches, splits and segments do.
/// `pool` holds every physical page (words).
pub fn twin(args: &Args, step: &[u32], qkv: &[f32], pool: &[u32], vectors: &[f32], out: &mut [f32]) {
    let shape = &args.shape;
    let (size, group) = (shape.head_dim as usize, shape.group());
    let words = args.kv.page_words() as usize;
    let tiles = step[(HEADER_TILES + args.tile_table) as usize];
    let entries = step[args.tiles.offset as usize..].chunks(TILE_WORDS as usize).take(tiles as usize);
    for entry in entries {
        for i in 0..entry[1] {
            let (token, slot, query) = ((entry[0] + i) as usize, entry[2], entry[3] + i);
            let first = args.window.map_or(0, |w| (query + 1).saturating_sub(w));
            for head in 0..shape.heads {
                let q = &qkv[token * args.qkv_stride as usize + head as usize * size..][..size];
                let cell = |position: u32, value: bool| {
                    let logical = position / PAGE % args.place.pages;
                    let physical = step[(args.place.table + slot * args.place.pages + logical) as usize];
                    let page = &pool[physical as usize * words..][..words];
                    args.kv.load(page, head / group, position % PAGE, value)
                };
                let scores: Vec<f64> = (first..=query)
                    .map(|position| {
                        let key = cell(position, false);
                        let dot: f64 = q.iter().zip(&key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let score = dot * f64::from(args.scale);
                        match args.softcap.map(f64::from) {
                            Some(cap) => cap * (score / cap).tanh(),
                            None => score,
                        }
                    })
                    .collect();
                let sink = args.sinks.map(|at| f64::from(vectors[(at + head) as usize]));
                let largest = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - largest).exp());
                let mut acc = vec![0.0; size];
                for (position, weight) in (first..=query).zip(&weights) {
                    for (a, v) in acc.iter_mut().zip(cell(position, true)) {
                        *a += weight * f64::from(v);
                    }
                }
                let to = &mut out[token * args.out_stride as usize + head as usize * size..][..size];
                for (o, a) in to.iter_mut().zip(acc) {
                    *o = (a / sum) as f32;
                }
            }
        }
    }
}

/// How the lanes of a workgroup share its work.
struct Lanes {
    /// Lanes over keys in the scores.
    keys: u32,
    /// Rows of a lane in the scores.
    score_rows: u32,
    /// Lanes over units of 8 columns in the values.
    units: u32,
    /// Units of a lane.
    lane_units: u32,
    /// Groups of rows in the values.
    row_groups: u32,
    /// Rows of a lane in the values.
    value_rows: u32,
    /// Groups of keys in the values.
    key_groups: u32,
    /// Lanes over the keys of a row in the weights.
    weight_parts: u32,
}

/// The largest power of two that is at most `value` and 8, at least 1.
const fn power(value: u32) -> u32 {
    match value {
        0..2 => 1,
        2..4 => 2,
        4..8 => 4,
        _ => 8,
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let variant = |format, head_dim, tokens, heads, workgroup| Self {
            format,
            head_dim,
            tokens,
            heads,
            sinks: false,
            workgroup,
            one_subgroup: false,
        };
        let mut all = Vec::new();
        for format in KvFormat::ALL {
            all.push(variant(format, 64, 5, 3, 8));
            all.push(variant(format, 256, 1, 6, 64));
            all.push(variant(format, 128, 1, 1, 32));
            all.push(Self { one_subgroup: true, ..variant(format, 64, 1, 3, 8) });
        }
        all.push(Self { one_subgroup: true, ..variant(KvFormat::F16, 5, 8, 2, 16) });
        all.push(Self { one_subgroup: true, sinks: true, ..variant(KvFormat::Q8_0, 128, 1, 2, 8) });
        all.push(variant(KvFormat::F16, 5, 8, 2, 64));
        all.push(variant(KvFormat::F16, 512, 1, 4, 64));
        all.push(Self { sinks: true, ..variant(KvFormat::F16, 64, 2, 8, 64) });
        all.push(Self { sinks: true, ..variant(KvFormat::F32, 128, 1, 1, 32) });
        all
    }

    fn lanes(&self) -> Lanes {
        let rows = self.tokens * self.heads;
        let columns = self.head_dim.div_ceil(8);
        let keys = self.workgroup.min(PAGE);
        let units = columns.min(self.workgroup);
        let groups = self.workgroup / units;
        let row_groups = groups.min(rows);
        let value_rows = rows.div_ceil(row_groups);
        let lane_units = columns.div_ceil(units);
        let parts = if value_rows == 1 && lane_units == 1 { power(groups / row_groups) } else { 1 };
        Lanes {
            keys,
            score_rows: rows.div_ceil(self.workgroup / keys),
            units,
            lane_units,
            row_groups,
            value_rows,
            key_groups: parts,
            weight_parts: power(self.workgroup / rows),
        }
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!(
            "attention_{}_e{}_{}x{}{}_wg{}{}",
            self.format,
            self.head_dim,
            self.tokens,
            self.heads,
            if self.sinks { "_sinks" } else { "" },
            self.workgroup,
            if self.one_subgroup { "_subgroup" } else { "" },
        )
    }

    fn wgsl(&self) -> String {
        let layout = KvLayout { format: self.format, kv_heads: 1, head_dim: self.head_dim };
        // Words of a binding's element, elements of 8 values, units that share a scale.
        let (element, unit, block, ty, text) = match self.format {
            KvFormat::F32 => (4, 2, 1, "array<vec4<u32>>", include_str!("attention_f32.wgsl")),
            KvFormat::F16 => (4, 1, 1, "array<vec4<u32>>", include_str!("attention_f16.wgsl")),
            KvFormat::Q8_0 => (2, 1, 4, "array<vec2<u32>>", include_str!("attention_q8_0.wgsl")),
        };
        let (rows, columns) = (self.tokens * self.heads, self.head_dim.div_ceil(8));
        let mut source = Source::new(Params::WGSL)
            .constant("WG", self.workgroup)
            .constant("E", self.head_dim)
            .constant("TOKENS", self.tokens)
            .constant("HEADS", self.heads)
            .constant("QUADS", columns * 2)
            .constant("UNITS", columns)
            .constant("BLOCKS", columns / block)
            .constant("BLOCK_UNITS", block)
            .constant("HEAD_STEP", layout.head_words() / element)
            .constant("ROW_STEP", layout.row_words() / element)
            .constant("UNIT_STEP", unit)
            .operand(0, Access::ReadArena, "qkv", "array<f32>")
            .operand(1, Access::ReadArena, "kv", ty)
            .operand(2, Access::Write, "out", "array<f32>")
            .operand(3, Access::Write, "scratch", "array<vec4<f32>>")
            .operand(4, Access::Range, "range", "vec4<u32>");
        if self.sinks {
            source = source.operand(5, Access::Read, "vectors", "array<f32>");
        }
        let source = source.text(include_str!("attention_reach.wgsl"));
        let main = if self.one_subgroup {
            let counts = [
                ("ROWS", rows),
                ("UNITS", columns),
                ("LANE_UNITS", columns.div_ceil(self.workgroup)),
                ("GROUPS", PAGE / self.workgroup),
                ("WG", self.workgroup),
                ("SCALES", if block > 1 { columns / block } else { 0 }),
                ("SINKS", self.sinks.into()),
            ];
            source.text(&lanes::unroll(include_str!("attention_lanes.wgsl"), &counts))
        } else {
            let lanes = self.lanes();
            let counts = [
                ("VALUE_ROWS", lanes.value_rows),
                ("LANE_UNITS", lanes.lane_units),
                ("SCORE_ROWS", lanes.score_rows),
                ("LANE_KEYS", PAGE / lanes.keys),
                ("QUAD", 4),
                ("SINKS", self.sinks.into()),
            ];
            let joined = if lanes.key_groups > 1 { self.workgroup * 2 } else { 0 };
            source
                .constant("ROWS", rows)
                .constant("QUERY_QUADS", (rows * columns * 2).max(joined))
                .constant("KEY_LANES", lanes.keys)
                .constant("SCORE_ROWS", lanes.score_rows)
                .constant("UNIT_LANES", lanes.units)
                .constant("ROW_GROUPS", lanes.row_groups)
                .constant("VALUE_ROWS", lanes.value_rows)
                .constant("KEY_GROUPS", lanes.key_groups)
                .constant("WEIGHT_PARTS", lanes.weight_parts)
                .text(&lanes::unroll(include_str!("attention.wgsl"), &counts))
        };
        main.text(text).finish()
    }

    fn operands(&self) -> Vec<Access> {
        let mut all = vec![Access::ReadArena, Access::ReadArena, Access::Write, Access::Write, Access::Range];
        if self.sinks {
            all.push(Access::Read);
        }
        all
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    #[test]
    fn heads_that_keep_the_device_busy_are_not_split() {
        let cpu = Profile::new("cpu", Limits::webgpu_default(), Some((8, 8)), true);
        let gpu = Profile::webgpu_default();
        let shape = |heads, kv_heads| AttentionShape { heads, kv_heads, head_dim: 64 };
        for (heads, kv_heads, on_cpu, on_gpu) in [(9, 3, 1, 8), (4, 1, 2, 8), (64, 1, 1, 8), (256, 256, 1, 4)]
        {
            let splits = [&cpu, &gpu].map(|profile| decode_splits(profile, &shape(heads, kv_heads)));
            assert_eq!(splits, [on_cpu, on_gpu], "{heads} x {kv_heads}");
        }
        // A malformed shape is found elsewhere, and is no reason to divide by zero.
        assert_eq!(decode_splits(&cpu, &shape(0, 0)), 2);
    }
}
