//! Steps made by hand, for tests and benches of lone kernels: ragged batches, shuffled pages, poisoned cells.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_kernels::ops::{attention, attention_merge, rope_kv};
use plimsoll_kernels::step::{HEADER_KV_MAX, HEADER_LOGIT_ROWS, HEADER_TILES, HEADER_TOKENS, PAGE};
use plimsoll_kernels::{AttentionShape, KvFormat, KvLayout, Profile, StepLayout, StepShape};
use plimsoll_runtime::lone::{Data, LoneKernel, POISON, floats};

/// A small generator of the same numbers everywhere.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

/// The tokens of one sequence in a step.
#[derive(Clone, Copy)]
pub struct Run {
    pub slot: u32,
    pub first: u32,
    pub tokens: u32,
}

pub const fn run(slot: u32, first: u32, tokens: u32) -> Run {
    Run { slot, first, tokens }
}

/// An attention layer and a step through it.
#[derive(Clone)]
pub struct Case {
    pub shape: AttentionShape,
    pub format: KvFormat,
    pub runs: Vec<Run>,
    pub window: Option<u32>,
    pub softcap: Option<f32>,
    /// Each query head has a sink.
    pub sinks: bool,
    pub decode: bool,
    /// Logical pages of a slot.
    pub pages: u32,
    /// Segments the pool is bound in.
    pub segments: u32,
    /// Ends of the KV ranges but the last.
    pub cuts: Vec<u32>,
    pub splits: u32,
    /// Values of a row beyond those the kernel uses.
    pub slack: u32,
}

pub fn shape(heads: u32, kv_heads: u32, head_dim: u32) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim }
}

impl Case {
    pub fn new(shape: AttentionShape, format: KvFormat, runs: &[Run]) -> Self {
        let longest = runs.iter().map(|r| r.first + r.tokens).max().unwrap_or(1);
        Self {
            shape,
            format,
            runs: runs.to_vec(),
            window: None,
            softcap: None,
            sinks: false,
            decode: false,
            pages: longest.div_ceil(PAGE),
            segments: 1,
            cuts: Vec::new(),
            splits: 1,
            slack: 3,
        }
    }
}

/// Where the sinks stand.
pub const SINKS: u32 = 3;

/// A case with its tables, its pool and its activations.
pub struct Built {
    pub case: Case,
    pub layout: StepLayout,
    pub kv: KvLayout,
    pub step: Vec<u32>,
    pub step_shape: StepShape,
    pub physical_pages: u32,
    /// Every physical page; cells that no query reaches are poison.
    pub pool: Vec<u32>,
    pub qkv: Vec<f32>,
    /// Sinks from word [`SINKS`] on, poison before them.
    pub vectors: Vec<f32>,
    pub qkv_stride: u32,
    pub out_stride: u32,
}

/// The header, positions, slots and tiles of `runs`; block tables and ropes are left to the caller.
pub fn step_words(layout: &StepLayout, runs: &[Run], logit_rows: u32) -> (Vec<u32>, StepShape) {
    let mut step = vec![POISON; layout.words as usize];
    let tokens: u32 = runs.iter().map(|r| r.tokens).sum();
    let kv_max = runs.iter().map(|r| r.first + r.tokens).max().unwrap_or(0);
    step[HEADER_TOKENS as usize] = tokens;
    step[HEADER_LOGIT_ROWS as usize] = logit_rows;
    step[HEADER_KV_MAX as usize] = kv_max;
    let mut token = 0;
    let mut tiles = vec![0u32; layout.tiles.len()];
    for run in runs {
        for (count, table) in tiles.iter_mut().zip(&layout.tiles) {
            for first in (0..run.tokens).step_by(table.tokens as usize) {
                assert!(*count < table.capacity);
                let at = (table.offset + *count * 4) as usize;
                let size = table.tokens.min(run.tokens - first);
                step[at..at + 4].copy_from_slice(&[token + first, size, run.slot, run.first + first]);
                *count += 1;
            }
        }
        for i in 0..run.tokens {
            step[(layout.positions + token + i) as usize] = run.first + i;
            step[(layout.token_slots + token + i) as usize] = run.slot;
        }
        token += run.tokens;
    }
    for (i, count) in tiles.iter().enumerate() {
        step[HEADER_TILES as usize + i] = *count;
    }
    (step, StepShape { tokens, logit_rows, tiles, kv_max })
}

impl Built {
    pub fn new(case: &Case, seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        let kv = KvLayout::new(case.format, &case.shape).unwrap();
        let tokens: u32 = case.runs.iter().map(|r| r.tokens).sum();
        let slots = case.runs.iter().map(|r| r.slot).max().unwrap_or(0) + 1;
        let per_tile = attention::tile_tokens(&case.shape, case.decode);
        let layout = StepLayout::new(tokens + 2, 1, slots, &[3, per_tile], &[case.pages], &[]).unwrap();
        let (mut step, step_shape) = step_words(&layout, &case.runs, 1);
        // Pages in a random order, with two that no slot owns.
        let physical_pages = slots * case.pages + 2;
        let mut order: Vec<u32> = (0..physical_pages).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, noise.below(i + 1));
        }
        let table = layout.tables[0].offset as usize;
        step[table..table + (slots * case.pages) as usize]
            .copy_from_slice(&order[..(slots * case.pages) as usize]);
        let words = kv.page_words() as usize;
        let mut pool = vec![POISON; words * physical_pages as usize];
        let size = case.shape.head_dim as usize;
        for run in &case.runs {
            let first = case.window.map_or(0, |w| (run.first + 1).saturating_sub(w));
            for position in first..run.first + run.tokens {
                let page = step[table + (run.slot * case.pages + position / PAGE % case.pages) as usize];
                let page = &mut pool[page as usize * words..][..words];
                for head in 0..case.shape.kv_heads {
                    let key = noise.floats(size);
                    let value = noise.floats(size);
                    kv.store(page, head, position % PAGE, &key, &value);
                }
            }
        }
        let qkv_stride = case.shape.qkv_width() + case.slack;
        // Larger queries than keys, so that some weights matter more than others.
        let qkv = noise.floats((tokens * qkv_stride) as usize).into_iter().map(|v| v * 4.0).collect();
        let out_stride = case.shape.heads * case.shape.head_dim + case.slack;
        // From nothing to more than every key together.
        let mut vectors = vec![f32::from_bits(POISON); SINKS as usize];
        vectors.extend(
            (0..case.shape.heads).map(|head| 4.0 * noise.float() + if head == 0 { 6.0 } else { 0.0 }),
        );
        Self {
            case: case.clone(),
            layout,
            kv,
            step,
            step_shape,
            physical_pages,
            pool,
            qkv,
            vectors,
            qkv_stride,
            out_stride,
        }
    }

    /// The arguments of the dispatch on a segment.
    pub fn args(&self, segment: u32) -> attention::Args {
        let per_segment = self.physical_pages.div_ceil(self.case.segments);
        let first_page = segment * per_segment;
        attention::Args {
            shape: self.case.shape,
            kv: self.kv,
            place: rope_kv::KvPlace {
                table: self.layout.tables[0].offset,
                pages: self.case.pages,
                first_page,
                segment_pages: per_segment.min(self.physical_pages - first_page),
            },
            scale: 1.0 / (self.case.shape.head_dim as f32).sqrt(),
            softcap: self.case.softcap,
            window: self.case.window,
            sinks: self.case.sinks.then_some(SINKS),
            tile_table: 1,
            tiles: self.layout.tiles[1],
            splits: self.case.splits,
            first_segment: segment == 0,
            last_segment: segment + 1 == self.case.segments,
            qkv_stride: self.qkv_stride,
            out_stride: self.out_stride,
            max_tokens: self.layout.tokens,
        }
    }

    /// The words of a segment.
    pub fn segment(&self, args: &attention::Args) -> Vec<u32> {
        let words = self.kv.page_words() as usize;
        let place = &args.place;
        self.pool[place.first_page as usize * words..][..place.segment_pages as usize * words].to_vec()
    }

    pub fn out_words(&self) -> usize {
        (self.step_shape.tokens * self.out_stride) as usize
    }

    pub fn scratch_words(&self) -> usize {
        attention::scratch_words(&self.case.shape, self.case.splits, self.layout.tokens) as usize
    }

    pub fn merge(&self) -> attention_merge::Args {
        attention_merge::Args {
            shape: self.case.shape,
            splits: self.case.splits,
            out_stride: self.out_stride,
            max_tokens: self.layout.tokens,
            sinks: self.case.sinks.then_some(SINKS),
        }
    }

    /// What the twin answers; places it does not write hold poison.
    pub fn expected(&self) -> Vec<f32> {
        let mut out = vec![f32::from_bits(POISON); self.out_words()];
        let args = self.args(0);
        attention::twin(&args, &self.step, &self.qkv, &self.pool, &self.vectors, &mut out);
        out
    }

    /// All dispatches of the layer: segments within ranges, then the merge.
    pub fn on_device(&self, device: &LoneKernel, profile: &Profile) -> Vec<f32> {
        let mut out = Data::Poison(self.out_words());
        let mut scratch = Data::Poison(self.scratch_words());
        let mut first = 0;
        let ends = self.case.cuts.iter().copied().chain([u32::MAX]);
        for end in ends {
            for segment in 0..self.case.segments {
                let args = self.args(segment);
                let call = attention::plan(profile, &args);
                let mut operands =
                    vec![Data::F32(self.qkv.clone()), Data::U32(self.segment(&args)), out.clone(), scratch];
                if args.joins_sinks() {
                    operands.push(Data::F32(self.vectors.clone()));
                }
                let range = Some([first, end - first, 0, 0]);
                let written = device.run(&call, &self.step, &operands, &self.step_shape, range).unwrap();
                [out, scratch] = [0, 1].map(|i| Data::Bytes(written[i].clone()));
            }
            first = end;
        }
        if self.case.splits > 1 {
            let call = attention_merge::plan(profile, &self.merge());
            let mut operands = vec![scratch, out.clone()];
            if self.case.sinks {
                operands.push(Data::F32(self.vectors.clone()));
            }
            let written = device.run(&call, &self.step, &operands, &self.step_shape, None).unwrap();
            out = Data::Bytes(written[0].clone());
        }
        match out {
            Data::Bytes(bytes) => floats(&bytes),
            _ => panic!("no dispatch"),
        }
    }
}

/// Every value within `tolerance`, and poison exactly where the twin leaves it.
pub fn assert_close(got: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        if e.to_bits() == POISON {
            assert_eq!(g.to_bits(), POISON, "{what}: value {i} is not the kernel's to write, got {g}");
        } else {
            assert!((g - e).abs() <= tolerance, "{what}: value {i}: expected {e}, got {g}");
        }
    }
}
