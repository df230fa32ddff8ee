//! Documents are read back as what was written, of any model, geometry, budget and engine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::hybrid::Hybrid;
use common::{Toy, open};
use plimsoll_estimator::peers::{Engine, Options};
use plimsoll_estimator::report::{Question, Report};
use plimsoll_estimator::{
    Budget, Geometry, KvPair, KvStore, Overhead, Priced, Reading, budget::Setting, geometry::Images, peers,
};
use plimsoll_kernels::{KvFormat, Limits, Profile};
use plimsoll_models::{Checkpoint, Model};
use proptest::prelude::*;
use std::sync::LazyLock;

/// Published models of every kind of state, and small ones built by hand, which stand for the same checkpoint.
static MODELS: LazyLock<Vec<(Checkpoint, Model)>> = LazyLock::new(|| {
    let names = [
        "smollm2-135m",
        "gemma-3-12b-it",
        "gemma-4-31b-it-nvfp4",
        "gpt-oss-20b",
        "mamba2-130m-hf",
        "nemotron-3-nano-30b-a3b",
        "qwen3.5-9b",
        "deepseek-v3",
    ];
    let mut models: Vec<_> = names.map(|name| open(&format!("configs/{name}.json"))).into();
    let (checkpoint, _) = open("configs/smollm2-135m.json");
    models.push((checkpoint.clone(), Toy::small().build()));
    models.push((checkpoint, Hybrid::small().build()));
    models
});

fn geometries() -> impl Strategy<Value = Geometry> {
    let usual = (1u32..300_000, 1u32..64, 1u32..3000, 1u32..70);
    let wild = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let pairs = (prop::sample::select(&KvStore::ALL), prop::sample::select(&KvStore::ALL));
    let images = prop::option::weighted(0.3, (0u32..5, 0u32..3000, 0u32..3000));
    (
        prop_oneof![8 => usual, 1 => wild],
        prop::sample::select(&KvFormat::ALL),
        0u32..4,
        0u32..5,
        prop::option::weighted(0.4, pairs),
        images,
    )
        .prop_map(
            |((context, slots, prefill_chunk, logit_rows), kv, draft_depth, snapshots, pair, images)| {
                let (count, width, height) = images.unwrap_or_default();
                let images = Images { count, width, height };
                let kv_pair = pair.map(|(k, v)| KvPair { k, v });
                let priced = Priced { kv: kv_pair, snapshots, images };
                Geometry { context, slots, prefill_chunk, kv, logit_rows, draft_depth, priced }
            },
        )
}

/// A ceiling, a reading and a reserve, each there or not.
fn budgets() -> impl Strategy<Value = Option<Budget>> {
    let bytes = || prop::option::of(prop_oneof![any::<u64>(), 1u64 << 20..1 << 40]);
    (bytes(), bytes(), bytes(), any::<bool>()).prop_map(|(asked, read, reserve, whole)| {
        let reading = read.map(|bytes| Reading {
            bytes,
            total: whole.then_some(bytes),
            beside: 0,
            source: "a \"card\"\u{1b}[31m\u{202e}é".into(),
            taken: 7,
            excluded: vec!["what others hold".into()],
        });
        let reserve = reserve.map(|bytes| Setting { bytes, name: "flag --reserve".into() });
        Budget::resolve_beside(asked.map(|asked| (asked, "flag --memory")), reading, reserve.as_ref())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_report_is_read_back_as_it_was_written(
        which in any::<prop::sample::Index>(), geometry in geometries(), budget in budgets(),
        engine in prop::option::weighted(0.3, prop::sample::select(&Engine::ALL)),
        roomy in any::<bool>(),
    ) {
        let (checkpoint, model) = which.get(&MODELS);
        let limits = Limits {
            max_buffer_size: 1 << 42,
            max_storage_buffer_binding_size: 1 << 32,
            ..Limits::webgpu_default()
        };
        let profile =
            if roomy { Profile::new("roomy", limits, Some((32, 32)), false) } else { Profile::webgpu_default() };
        let question = Question {
            checkpoint,
            model,
            geometry: &geometry,
            profile: &profile,
            budget: budget.as_ref(),
            overhead: Overhead::default(),
            company: None,
        };
        let report = match engine {
            Some(engine) => peers::report(&question, engine, &Options::default()),
            None => Report::new(&question).unwrap().0,
        };
        let written = serde_json::to_string_pretty(&report).unwrap();
        let read: Report = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(&read, &report);
        prop_assert_eq!(serde_json::to_string_pretty(&read).unwrap(), written);
    }
}
