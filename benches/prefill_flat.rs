//! Prefill of the bundled model at prompts of 256 to 16,384 tokens, on one runtime that was admitted for the longest:
//! tokens a second should stay flat, because only its two attention layers see the whole past. Run with
//! `cargo bench --profile dev --bench prefill_flat`; PLIMSOLL_BENCH_TOP=2048 ends the sweep there.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
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

fn prefill(c: &mut Criterion) {
    let opened = plimsoll::demo().unwrap();
    let vocab = opened.model.vocab;
    let asked = geometry(CONTEXT, 1, CHUNK as u32, KvFormat::F16, 1);
    let mut loaded = Loaded::new(&opened.checkpoint, &opened.model, &DeviceOptions::default(), &asked);
    let mut group = c.benchmark_group("prefill of plimsoll-demo");
    // One prompt is one sample: ten are the least that criterion takes.
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_millis(1));
    let lengths = (8..).map(|power| 1u32 << power).take_while(|&tokens| tokens <= top());
    for tokens in lengths {
        let ids: Vec<u32> = (0..tokens).map(|i| i.wrapping_mul(7919).wrapping_add(11) % vocab).collect();
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
    }
    group.finish();
}

criterion_group!(benches, prefill);
criterion_main!(benches);
