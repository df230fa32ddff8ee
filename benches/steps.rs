//! Planning, one prefill step and one decode step of whole models: the golden llama, and SmolLM2-135M where
//! `make models` has fetched it. Run with `cargo bench --profile dev --bench steps`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_estimator::{Budget, Geometry, Overhead, Plan, Pricer, Solver};
use plimsoll_kernels::{KvFormat, Profile};
use plimsoll_runtime::{DeviceOptions, Wanted};
use std::path::PathBuf;
use std::time::Duration;
use support::{Loaded, data, geometry, open};

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("planning");
    let profile = Profile::webgpu_default();
    for config in ["llama-3.1-8b", "gemma-3-27b-it-reconstructed", "smollm2-135m"] {
        let (_, model) = open(&data(&format!("configs/{config}.json")));
        let asked = Geometry::default_for(model.context_max);
        group.bench_function(format!("plan/{config}"), |b| {
            b.iter(|| Plan::new(&model, &asked, &profile).unwrap().total())
        });
        let total = Plan::new(&model, &asked, &profile).unwrap().total();
        let budget = Budget::flag(total + total / 10, "bench");
        let pricer = Pricer::new(&model, &profile);
        let solver =
            Solver { pricer: &pricer, budget: Some(&budget), overhead: Overhead::default(), company: None };
        group.sample_size(10);
        group.bench_function(format!("largest_context/{config}"), |b| {
            b.iter(|| solver.largest_context(&asked))
        });
    }
    group.finish();
}

fn steps(c: &mut Criterion) {
    let smollm2 =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let mut models = vec![("golden llama", data("golden/llama"))];
    if smollm2.is_file() {
        models.push(("SmolLM2-135M Q4_1", smollm2));
    }
    for (name, path) in models {
        let (checkpoint, model) = open(&path);
        let mut group = c.benchmark_group(format!("steps of {name}"));
        group.sample_size(10).measurement_time(Duration::from_secs(8));
        let asked = geometry(256, 1, 128, KvFormat::F16, 1);
        let mut loaded = Loaded::new(&checkpoint, &model, &DeviceOptions::default(), &asked);
        let ids: Vec<u32> = (0..128).map(|i| i * 31 % model.vocab.min(256)).collect();
        group.throughput(Throughput::Elements(128));
        group.bench_function("prefill of 128 tokens", |b| {
            b.iter(|| loaded.step(&[(0, 0, &ids, Wanted::Last)]))
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function("decode at 128", |b| {
            b.iter(|| loaded.step(&[(0, 128, &ids[..1], Wanted::Last)]))
        });
        group.finish();
    }
}

criterion_group!(benches, planning, steps);
criterion_main!(benches);
