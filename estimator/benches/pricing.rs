//! What capacity planning waits for: a grid of geometries of one model, a whole report, a plan of many layers.
//!
//! `cargo bench -p plimsoll-estimator --bench pricing`
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use plimsoll_estimator::report::Question;
use plimsoll_estimator::{Budget, Geometry, Overhead, Plan, Pricer, Report};
use plimsoll_kernels::Profile;
use plimsoll_models::{Checkpoint, Model, Registry};
use rayon::prelude::*;
use std::path::PathBuf;

fn open(config: &str) -> (Checkpoint, Model) {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/configs");
    let checkpoint = Checkpoint::open(&data.join(format!("{config}.json"))).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

/// 50 contexts up to 128,000 × 20 numbers of slots × 10 chunks.
fn grid(model: &Model) -> Vec<Geometry> {
    let base = Geometry::default_for(model.context_max);
    let at = |i: u32| {
        let (context, slots, chunk) = (1 + i % 50, 1 + i / 50 % 20, 1 + i / 1000);
        let (context, prefill_chunk) = (context * 2560, chunk * 96);
        Geometry { context, slots, prefill_chunk, logit_rows: slots, ..base.clone() }
    };
    (0..10_000).map(at).collect()
}

fn prices(c: &mut Criterion) {
    let profile = Profile::webgpu_default();
    let mut group = c.benchmark_group("prices of 10,000 geometries");
    group.sample_size(10);
    for config in ["nemotron-3-nano-30b-a3b", "llama-3.1-8b", "smollm2-135m"] {
        let (_, model) = open(config);
        let grid = grid(&model);
        group.bench_function(config, |b| {
            // From nothing: what is kept of one round would answer the next.
            b.iter_batched(
                || Pricer::new(&model, &profile),
                |pricer| grid.par_iter().map(|g| pricer.price(g).map_or(0, |p| p.total())).max(),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn reports(c: &mut Criterion) {
    let profile = Profile::webgpu_default();
    let budget = Budget::flag(24 << 30, "flag --memory");
    let mut group = c.benchmark_group("report");
    group.sample_size(20);
    for config in [
        "smollm2-135m",
        "llama-3.1-8b",
        "nemotron-3-nano-30b-a3b",
        "qwen3.5-35b-a3b",
        "gemma-3-12b-it",
        "gemma-4-31b-it-nvfp4",
        "nemotron-h-56b-base-8k",
        "gpt-oss-120b",
        "deepseek-v3",
    ] {
        let (checkpoint, model) = open(config);
        let geometry = Geometry::default_for(model.context_max);
        let question = Question {
            checkpoint: &checkpoint,
            model: &model,
            geometry: &geometry,
            profile: &profile,
            budget: Some(&budget),
            overhead: Overhead::default(),
            company: None,
        };
        group.bench_function(config, |b| b.iter(|| Report::new(&question).unwrap().0.bytes.map(|b| b.total)));
    }
    group.finish();
}

fn plans(c: &mut Criterion) {
    let profile = Profile::webgpu_default();
    let mut group = c.benchmark_group("plan");
    group.sample_size(20);
    for config in ["smollm2-135m", "nemotron-h-56b-base-8k"] {
        let (_, model) = open(config);
        let geometry = Geometry::default_for(model.context_max);
        group.bench_function(config, |b| b.iter(|| Plan::new(&model, &geometry, &profile).unwrap().total()));
    }
    group.finish();
}

/// From the file to the report: all that a process does between its start and what it writes.
fn estimates(c: &mut Criterion) {
    let profile = Profile::webgpu_default();
    let budget = Budget::flag(24 << 30, "flag --memory");
    let mut group = c.benchmark_group("estimate of a config.json");
    group.sample_size(20);
    for config in ["smollm2-135m", "llama-3.1-8b", "gpt-oss-120b", "deepseek-v3"] {
        group.bench_function(config, |b| {
            b.iter(|| {
                let (checkpoint, model) = open(config);
                let geometry = Geometry::default_for(model.context_max);
                let question = Question {
                    checkpoint: &checkpoint,
                    model: &model,
                    geometry: &geometry,
                    profile: &profile,
                    budget: Some(&budget),
                    overhead: Overhead::default(),
                    company: None,
                };
                Report::new(&question).unwrap().0.bytes.map(|b| b.total)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, prices, estimates, reports, plans);
criterion_main!(benches);
