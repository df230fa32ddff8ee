//! What sequences keep, and what a prefill needs, of every published configuration of the hybrids and of the families
//! with windows: the closed forms against plans, byte for byte. Where no configuration of a form is published, a golden
//! one stands in: shared keys, fused gated delta projections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Toy, open};
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::{Geometry, KvPair, KvStore, Plan, Priced, Pricer};
use plimsoll_kernels::{AttentionShape, KvFormat, Profile};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::model::State;
use plimsoll_models::{Model, Registry};

/// Layers with keys and values of their own: how many, KV heads of each, head size.
type Layers = (u64, u64, u64);

/// A configuration as its publisher describes it.
struct Published {
    config: &'static str,
    full: Layers,
    /// And the window.
    sliding: (Layers, u64),
    recurrent: Recurrent,
}

enum Recurrent {
    None,
    /// Layers, key heads, value heads, key size, value size, taps.
    Delta(u64, u64, u64, u64, u64, u64),
    /// Layers, heads, head size, state, groups, taps.
    Mamba2(u64, u64, u64, u64, u64, u64),
}

const NO_WINDOW: (Layers, u64) = ((0, 0, 0), 1);

const fn published(config: &'static str, full: Layers, recurrent: Recurrent) -> Published {
    Published { config, full, sliding: NO_WINDOW, recurrent }
}

const fn windowed(config: &'static str, full: Layers, sliding: Layers, window: u64) -> Published {
    Published { config, full, sliding: (sliding, window), recurrent: Recurrent::None }
}

#[rustfmt::skip]
const ALL: [Published; 18] = [
    published("configs/qwen3.5-27b.json", (16, 4, 256), Recurrent::Delta(48, 16, 48, 128, 128, 4)),
    published("configs/qwen3.5-9b.json", (8, 4, 256), Recurrent::Delta(24, 16, 32, 128, 128, 4)),
    published("configs/qwen3.5-35b-a3b.json", (10, 2, 256), Recurrent::Delta(30, 16, 32, 128, 128, 4)),
    published("configs/qwen3.6-35b-a3b-nvfp4.json", (10, 2, 256), Recurrent::Delta(30, 16, 32, 128, 128, 4)),
    published("golden/qwen3_next", (1, 2, 32), Recurrent::Delta(3, 2, 4, 16, 32, 4)),
    published("configs/qwen3-30b-a3b.json", (48, 4, 128), Recurrent::None),
    windowed("configs/gemma-4-31b-it-nvfp4.json", (10, 4, 512), (50, 16, 256), 1024),
    windowed("golden/gemma4_text_dense", (1, 1, 32), (3, 2, 16), 16),
    windowed("golden/gemma4_text_moe", (1, 1, 32), (2, 2, 16), 16),
    // Six layers, the last three of which read what others keep.
    windowed("golden/gemma4_text_ple", (1, 1, 32), (2, 1, 16), 16),
    windowed("configs/gpt-oss-20b.json", (12, 8, 64), (12, 8, 64), 128),
    windowed("configs/gpt-oss-120b.json", (18, 8, 64), (18, 8, 64), 128),
    published("configs/nemotron-3-nano-30b-a3b.json", (6, 2, 128), Recurrent::Mamba2(23, 64, 64, 128, 8, 4)),
    published("configs/nemotron-3-nano-30b-a3b-nvfp4.json", (6, 2, 128), Recurrent::Mamba2(23, 64, 64, 128, 8, 4)),
    published("configs/nemotron-3.5-lightning-30b-a3b-nvfp4.json", (6, 2, 128), Recurrent::Mamba2(23, 64, 64, 128, 8, 4)),
    published("configs/nemotron-h-56b-base-8k.json", (10, 8, 128), Recurrent::Mamba2(54, 256, 64, 256, 8, 4)),
    published("configs/mamba2-130m-hf.json", (0, 0, 0), Recurrent::Mamba2(24, 24, 64, 128, 1, 4)),
    published("configs/mamba2-codestral-7b.json", (0, 0, 0), Recurrent::Mamba2(64, 128, 64, 128, 8, 4)),
];

impl Published {
    /// Bytes of all pools: cells times the bytes of keys and values of a token. A page is 32 cells.
    fn kv(&self, g: &Geometry) -> u64 {
        let pages = |tokens: u64| tokens.div_ceil(32) * 32 * u64::from(g.slots);
        let token = |(layers, heads, size): Layers| {
            // f32, f16, or blocks of 32 bytes and an f16 scale.
            let vector = match g.kv {
                KvFormat::F32 => heads * size * 4,
                KvFormat::F16 => heads * size * 2,
                KvFormat::Q8_0 => heads * size / 32 * 34,
            };
            layers * 2 * vector
        };
        let (sliding, window) = self.sliding;
        let (context, chunk) = (u64::from(g.context), u64::from(g.prefill_chunk));
        pages(context) * token(self.full) + pages(context.min(window + chunk - 1)) * token(sliding)
    }

    /// Bytes of the state of one sequence: f32, the matrix states and the last inputs of the convolutions.
    fn state(&self) -> u64 {
        match self.recurrent {
            Recurrent::None => 0,
            Recurrent::Delta(layers, hk, hv, dk, dv, taps) => {
                layers * 4 * (hv * dk * dv + (taps - 1) * (2 * hk * dk + hv * dv))
            }
            Recurrent::Mamba2(layers, h, p, n, g, taps) => {
                layers * 4 * (h * p * n + (taps - 1) * (h * p + 2 * g * n))
            }
        }
    }
}

/// One sequence at a chunk of 512.
fn alone(context: u32) -> Geometry {
    Geometry {
        context,
        slots: 1,
        prefill_chunk: 512,
        kv: KvFormat::F16,
        logit_rows: 1,
        draft_depth: 0,
        priced: Default::default(),
    }
}

fn plan(model: &Model, geometry: &Geometry) -> Plan {
    Plan::new(model, geometry, &Profile::webgpu_default()).unwrap()
}

#[test]
fn pools_are_the_closed_forms() {
    for case in &ALL {
        let (_, model) = open(case.config);
        // Heads of 16 do not hold a block of q8_0.
        let small = [case.full.2, case.sliding.0.2].iter().any(|size| size % 32 != 0);
        for (context, slots, chunk, depth, kv) in [
            (1, 1, 1, 0, KvFormat::F16),
            (1_500, 1, 512, 0, KvFormat::F16),
            (1_000, 3, 128, 1, KvFormat::F32),
            (40_961, 2, 384, 3, if small { KvFormat::F16 } else { KvFormat::Q8_0 }),
            (262_144, 1, 512, 0, KvFormat::F16),
        ] {
            let g = Geometry {
                context,
                slots,
                prefill_chunk: chunk,
                kv,
                logit_rows: slots,
                draft_depth: depth,
                priced: Default::default(),
            };
            let made = plan(&model, &g);
            let what = format!("{}, {g:?}", case.config);
            assert_eq!(made.segment_bytes(Segment::Kv), case.kv(&g), "{what}");
            let copies = u64::from(slots) * u64::from(depth + 1);
            assert_eq!(made.segment_bytes(Segment::Recurrent), case.state() * copies, "{what}");
        }
    }
}

#[test]
fn the_figures_that_are_published_are_these() {
    for (config, state, kv_per_token) in [
        ("configs/qwen3.5-27b.json", 156_893_184, 65_536),
        ("configs/nemotron-3-nano-30b-a3b.json", 49_930_240, 6_144),
    ] {
        let case = ALL.iter().find(|case| case.config == config).unwrap();
        assert_eq!(case.state(), state);
        assert_eq!(case.kv(&alone(8_192)), 8_192 * kv_per_token);
    }
}

#[test]
fn prefill_memory_does_not_know_the_prompt() {
    for case in &ALL {
        let (_, model) = open(case.config);
        let activations = |context| plan(&model, &alone(context)).segment_bytes(Segment::Activations);
        let at = activations(1_500);
        for context in [3_000, 6_000, 262_144] {
            assert_eq!(activations(context), at, "{} at {context}", case.config);
        }
    }
}

/// Pages whose bytes are no whole units of an offset are padded, and the padding is of the kind that has it.
#[test]
fn kinds_add_up_to_the_pool() {
    let shape = AttentionShape { heads: 6, kv_heads: 3, head_dim: 32 };
    let odd = Toy {
        shape,
        states: vec![
            State::KvFull { shape },
            State::KvSliding { shape, window: 40 },
            State::KvFull { shape },
        ],
        ..Toy::small()
    };
    let configs = std::fs::read_dir(common::data("configs")).unwrap().map(|entry| entry.unwrap().path());
    let published = configs.filter(|path| path.extension().is_some_and(|e| e == "json"));
    let models: Vec<Model> = published
        .map(|path| Registry::standard().build(&Checkpoint::open(&path).unwrap()).unwrap())
        .chain([odd.build()])
        .collect();
    let mut padded = 0;
    for model in &models {
        let mut wide = Profile::webgpu_default();
        wide.limits.max_buffer_size = 1 << 40;
        wide.limits.max_storage_buffer_binding_size = (1 << 32) - 4;
        for profile in [Profile::webgpu_default(), wide] {
            let pricer = Pricer::new(model, &profile);
            for (context, slots, chunk) in [(1, 1, 1), (32, 3, 8), (4_096, 1, 512), (5_000, 3, 100)] {
                for (k, v) in [
                    (KvStore::F16, KvStore::F16),
                    (KvStore::Q8_0, KvStore::Q8_0),
                    (KvStore::Q4_0, KvStore::Q4_0),
                    (KvStore::Q8_0, KvStore::F32),
                ] {
                    let pair = KvPair { k, v };
                    // What the kernels have is run, and not only priced.
                    let run = k.run().filter(|_| k == v);
                    let priced = Priced { kv: run.is_none().then_some(pair), ..Priced::default() };
                    let kv = run.unwrap_or(KvFormat::F16);
                    let g = Geometry {
                        slots,
                        prefill_chunk: chunk,
                        logit_rows: slots,
                        kv,
                        priced,
                        ..alone(context)
                    };
                    let Ok(price) = pricer.price(&g) else { continue };
                    let kinds = &price.bytes.kv_by_kind;
                    let sum = kinds.full + kinds.sliding + kinds.mla + kinds.draft;
                    assert_eq!(sum, price.bytes.kv, "{}: {g:?}", model.name);
                    let made = pricer.plan(&g).unwrap();
                    let views: u64 =
                        made.kv.layers.iter().flat_map(|l| &l.segments).map(|s| s.view.bytes).sum();
                    padded += u32::from(views < price.bytes.kv);
                }
            }
        }
    }
    assert!(padded > 0, "no view is padded");
}
