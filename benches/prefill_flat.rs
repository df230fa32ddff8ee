//! Prefill at prompts of 256 to 16,384 tokens, on one runtime that was admitted for the longest: a pure Mamba2 model,
//! whose tokens a second stay flat, and the bundled hybrid, whose two attention layers do more work for each later
//! token. Before and after each length the process's memory is printed, which stays where it is. Run with
//! `cargo bench --profile dev --bench prefill_flat`; PLIMSOLL_BENCH_TOP=2048 ends the sweep there.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use plimsoll::{Checkpoint, Model};
use plimsoll_kernels::KvFormat;
use plimsoll_runtime::{DeviceOptions, Wanted};
use std::time::Duration;
use support::{Loaded, geometry};

/// The context that the plan is made for, and the longest prompt.
const CONTEXT: u32 = 16_384;
const CHUNK: usize = 512;

/// Where the sweep ends: minutes of a software driver lie in the longest prompts.
fn top() -> u32 {
    let set = std::env::var("PLIMSOLL_BENCH_TOP").ok();
    set.map_or(CONTEXT, |text| text.parse().expect("PLIMSOLL_BENCH_TOP: tokens")).min(CONTEXT)
}

/// What the process holds now, in kB, where the system says it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn prefill(c: &mut Criterion) {
    let (checkpoint, model) = support::open(&support::data("golden/mamba2"));
    sweep(c, "prefill of a pure Mamba2 model", &checkpoint, &model);
    let opened = plimsoll::demo().unwrap();
    sweep(c, "prefill of plimsoll-demo", &opened.checkpoint, &opened.model);
}

fn sweep(c: &mut Criterion, name: &str, checkpoint: &Checkpoint, model: &Model) {
    let vocab = model.vocab;
    let asked = geometry(CONTEXT, 1, CHUNK as u32, KvFormat::F16, 1);
    let mut loaded = Loaded::new(checkpoint, model, &DeviceOptions::default(), &asked);
    let mut group = c.benchmark_group(name);
    // One prompt is one sample: ten are the least that criterion takes.
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_millis(1));
    let lengths = (8..).map(|power| 1u32 << power).take_while(|&tokens| tokens <= top());
    for tokens in lengths {
        let ids: Vec<u32> = (0..tokens).map(|i| i.wrapping_mul(7919).wrapping_add(11) % vocab).collect();
        eprintln!("{name}, {tokens} tokens: resident {:?} kB before", resident());
        group.throughput(Throughput::Elements(tokens.into()));
        group.bench_with_input(BenchmarkId::from_parameter(tokens), &ids, |b, ids| {
            b.iter(|| {
                for (i, part) in ids.chunks(CHUNK).enumerate() {
                    let last = (i + 1) * CHUNK >= ids.len();
                    let wanted = if last { Wanted::Last } else { Wanted::None };
                    loaded.step(&[(0, (i * CHUNK) as u32, part, wanted)]);
                }
            });
        });
        eprintln!("{name}, {tokens} tokens: resident {:?} kB after", resident());
    }
    group.finish();
}

criterion_group!(benches, prefill);
criterion_main!(benches);
