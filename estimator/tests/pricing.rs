//! Prices: those of the plans, to the byte, whatever was priced before; what rises with what.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::hybrid::Hybrid;
use common::{Toy, data};
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::report::bytes;
use plimsoll_estimator::shards::Cut;
use plimsoll_estimator::{Geometry, KvPair, KvStore, Plan, Price, Priced, Pricer};
use plimsoll_kernels::{AttentionShape, KvFormat, Limits, Profile, StepShape};
use plimsoll_models::model::State;
use plimsoll_models::{Checkpoint, Model, Registry};
use proptest::prelude::*;
use rayon::prelude::*;
use std::sync::LazyLock;

/// Every published configuration that the zoo reads, and models built by hand.
static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let mut models: Vec<Model> = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(data("configs")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "json")) {
        if let Ok(checkpoint) = Checkpoint::open(path)
            && let Ok(model) = Registry::standard().build(&checkpoint)
        {
            models.push(model);
        }
    }
    assert!(models.len() > 15, "{} of the published configurations", models.len());
    models.push(Toy::small().build());
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 32 };
    let states =
        vec![State::KvFull { shape }, State::KvSliding { shape, window: 40 }, State::KvFull { shape }];
    models.push(Toy { shape, states, ..Toy::small() }.build());
    models.push(Hybrid::small().build());
    let mut broken = Toy::small().build();
    broken.vectors[0].len -= 1;
    models.push(broken);
    models
});

fn profiles() -> Vec<Profile> {
    let limits = |max_buffer_size, max_storage_buffer_binding_size| Limits {
        max_buffer_size,
        max_storage_buffer_binding_size,
        ..Limits::webgpu_default()
    };
    vec![
        Profile::webgpu_default(),
        Profile::new("large", limits(1 << 40, (1 << 31) - 4), Some((32, 32)), false),
        Profile::new("small", limits(1 << 26, 1 << 25), None, true),
    ]
}

/// The price that a plan comes to.
fn of(plan: &Plan) -> Price {
    let largest = plan.buffers.iter().max_by_key(|b| b.bytes).unwrap();
    let bound = plan.programs.iter().flat_map(|p| &p.dispatches);
    let bound = bound.flat_map(|d| d.views.iter().map(move |v| (v.bytes, &d.label)));
    let (binding, label) = bound.max_by_key(|(bytes, _)| *bytes).unwrap();
    let named = |name: &str, bytes| plimsoll_estimator::report::Largest { name: name.into(), bytes };
    Price {
        bytes: bytes(plan),
        staging: plan.staging_bytes,
        largest_allocation: named(&largest.name, largest.bytes),
        largest_binding: named(label, binding),
        pipelines: plan.kernels.len() as u32,
        buffers: plan.buffers.len() as u32,
        kv_cut: Cut::of(plan.kv.layers.iter().map(|layer| layer.segments.len())),
    }
}

fn geometries() -> impl Strategy<Value = Geometry> {
    let small = (1u32..40_000, 1u32..12, 1u32..1100, 1u32..20);
    let large = (1u32..300_000, 1u32..200, 1u32..5000, 1u32..300);
    let wild = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let numbers = prop_oneof![6 => small, 3 => large, 1 => wild];
    let pairs = prop::option::weighted(
        0.2,
        (prop::sample::select(&KvStore::ALL), prop::sample::select(&KvStore::ALL)),
    );
    (numbers, prop::sample::select(&KvFormat::ALL), 0u32..4, prop::option::weighted(0.2, 1u32..9), pairs)
        .prop_map(|((context, slots, prefill_chunk, logit_rows), kv, draft_depth, snapshots, pair)| {
            Geometry {
                context,
                slots,
                prefill_chunk,
                kv,
                logit_rows,
                draft_depth,
                priced: Priced {
                    kv: pair.map(|(k, v)| KvPair { k, v }),
                    snapshots: snapshots.unwrap_or(0),
                    ..Priced::default()
                },
            }
        })
}

/// One pricer a model and profile, shared by all cases, so that what is kept of one geometry is met by the next.
static PRICERS: LazyLock<Vec<Pricer<'static>>> = LazyLock::new(|| {
    let profiles: &'static [Profile] = Box::leak(profiles().into_boxed_slice());
    MODELS.iter().flat_map(|model| profiles.iter().map(move |profile| Pricer::new(model, profile))).collect()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_price_is_the_plans(geometry in geometries(), which in any::<prop::sample::Index>()) {
        let pricer = which.get(&PRICERS);
        let plan = pricer.plan(&geometry);
        let price = pricer.price(&geometry);
        match (&plan, &price) {
            (Ok(plan), Ok(price)) => {
                prop_assert_eq!(&of(plan), price, "{}", pricer.model().name);
                let total = plan.total();
                prop_assert!(pricer.price_within(&geometry, total).is_some());
                prop_assert!(pricer.price_within(&geometry, total - 1).is_none());
                let sum: u64 = Segment::ALL.iter().map(|&s| price.segment_bytes(s)).sum();
                prop_assert_eq!(sum, price.total());
            }
            (Err(plan), Err(price)) => prop_assert_eq!(plan, price),
            _ => prop_assert!(false, "{:?} {:?}", plan.err(), price.err()),
        }
    }
}

/// A chain of thousands of layers: nothing takes time with the square of them.
#[test]
fn deep_models_are_planned_in_little_time() {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 16 };
    let model = Toy { states: vec![State::KvFull { shape }; 4096], ..Toy::small() }.build();
    let begin = std::time::Instant::now();
    let plan = Plan::new(&model, &Geometry::default_for(4096), &Profile::webgpu_default()).unwrap();
    eprintln!("4,096 layers in {:?}", begin.elapsed());
    assert!(plan.programs[0].dispatches.len() >= 4096 * 6);
    assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
}

/// What capacity planning asks: every context × slots × chunk of a grid.
#[test]
fn ten_thousand_geometries_are_priced_in_little_time() {
    let profile = Profile::webgpu_default();
    for config in ["nemotron-3-nano-30b-a3b", "llama-3.1-8b"] {
        let checkpoint = Checkpoint::open(&data(&format!("configs/{config}.json"))).unwrap();
        let model = Registry::standard().build(&checkpoint).unwrap();
        let base = Geometry::default_for(model.context_max);
        let grid: Vec<Geometry> = (0..10_000)
            .map(|i| {
                let (context, slots, chunk) = (1 + i % 50, 1 + i / 50 % 20, 1 + i / 1000);
                Geometry {
                    context: context * 2560,
                    slots,
                    prefill_chunk: chunk * 96,
                    logit_rows: slots,
                    ..base.clone()
                }
            })
            .collect();
        let pricer = Pricer::new(&model, &profile);
        let begin = std::time::Instant::now();
        let totals: Vec<u64> = grid.par_iter().map(|g| pricer.price(g).unwrap().total()).collect();
        let elapsed = begin.elapsed();
        eprintln!("10,000 geometries of {config} in {elapsed:?}");
        let mut different = totals.clone();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 9_000, "{}", different.len());
        // Beside other tests and builds; by itself it takes under a second on two cores.
        assert!(elapsed.as_secs() < 60, "{config}: {elapsed:?}");
        for i in (0..10_000).step_by(997) {
            assert_eq!(totals[i], pricer.plan(&grid[i]).unwrap().total(), "{:?}", grid[i]);
        }
    }
}

#[test]
fn work_is_that_of_the_plan() {
    let profile = Profile::webgpu_default();
    for name in ["smollm2-135m", "gpt-oss-20b", "nemotron-3-nano-30b-a3b", "qwen3.5-9b", "deepseek-v3"] {
        let checkpoint = Checkpoint::open(&data(&format!("configs/{name}.json"))).unwrap();
        let model = Registry::standard().build(&checkpoint).unwrap();
        let pricer = Pricer::new(&model, &profile);
        for slots in [1, 40] {
            let geometry = Geometry { slots, logit_rows: slots, ..Geometry::default_for(model.context_max) };
            let plan = pricer.plan(&geometry).unwrap();
            let step = |tokens| StepShape { tokens, logit_rows: 1, kv_max: 4096, ..StepShape::default() };
            let works = pricer.work(&geometry, [(step(1), 4096), (step(300), 2048)]).unwrap();
            assert_eq!(
                works,
                [plan.work(&step(1), 4096), plan.work(&step(300), 2048)],
                "{name}, {slots} slots"
            );
            let price = pricer.price(&geometry).unwrap();
            assert_eq!(price.total(), plan.total(), "{name}, {slots} slots");
        }
    }
}
