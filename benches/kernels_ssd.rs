//! The forms of the state space over the length of a prompt: time of a layer, tokens and operations a second, and what
//! part that is of the multiply-add rate measured on the same device in the same run. On a shared machine the CPU
//! time of a software driver says more than the clock on the wall; both are printed where the system tells it.
//!
//! `cargo bench --bench kernels_ssd [-- FILTER]`; `PLIMSOLL_SSD_BLOCKS=8,16` for other blocks.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "../tests/mamba/mod.rs"]
mod mamba;
#[path = "../tests/steps/mod.rs"]
mod steps;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mamba::{Layer, every_form};
use plimsoll_kernels::ops::ssd;
use plimsoll_kernels::{Profile, Ssd, SsmShape};
use plimsoll_runtime::lone::{Data, LoneKernel, Options};
use std::time::Duration;
use steps::run;

/// CPU seconds of the process so far, the driver's threads included.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

/// What runs one layer: its stages with their operands.
struct Work {
    stages: Vec<(ssd::Stage, Vec<Data>)>,
    step: mamba::Step,
}

impl Work {
    fn new(profile: &Profile, shape: SsmShape, tokens: u32) -> Self {
        // A step of few tokens is planned as such.
        let layer = Layer::new(shape, tokens, 1, 0);
        let step = layer.step(&[run(0, 32, tokens)], 1);
        let words = ssd::scratch_words(profile, &layer.args) as usize;
        let states = Data::F32(step.states.clone());
        let out = Data::Poison((tokens * layer.args.out_stride) as usize);
        // Zeros: kernels are timed one by one, so what they read must be finite.
        let scratch = Data::F32(vec![0.0; words]);
        let stages = ssd::plan(profile, &layer.args).into_iter();
        let stages = stages.map(|s| (s.clone(), step.operands(&s, [&states, &out, &scratch]))).collect();
        Self { stages, step }
    }

    fn time(&self, device: &LoneKernel, rounds: u32, reps: u32) -> Duration {
        let one = |(stage, operands): &(ssd::Stage, Vec<Data>)| {
            device
                .time(&stage.call, &self.step.words, operands, &self.step.shape, None, (rounds, reps))
                .unwrap()
        };
        self.stages.iter().map(one).sum()
    }
}

fn benches(c: &mut Criterion) {
    let device = LoneKernel::open(Options { default_limits: false, ..Options::default() }).unwrap();
    let ceilings = device.ceilings().unwrap();
    println!("{}: {:.1} GFLOP/s", device.profile().name, ceilings.flops / 1e9);
    let blocks = std::env::var("PLIMSOLL_SSD_BLOCKS").unwrap_or_else(|_| "16,32,64".to_owned());
    let blocks: Vec<u32> = blocks.split(',').filter_map(|b| b.parse().ok()).collect();
    let shapes = [
        ("64x64x128x8", SsmShape { heads: 64, head_dim: 64, state: 128, groups: 8 }),
        ("8x32x32x2", SsmShape { heads: 8, head_dim: 32, state: 32, groups: 2 }),
    ];
    for (name, shape) in shapes {
        for tokens in [1, 8, 128, 512, 2048] {
            for (profile, _) in every_form(device.profile(), &blocks) {
                let form = match profile.tuning.ssd {
                    Ssd::Sequential => "sequential".to_owned(),
                    _ if tokens <= 8 => continue,
                    Ssd::Streaming { block } => format!("streaming_{block}"),
                    Ssd::Kernels { block } => format!("kernels_{block}"),
                };
                let id = format!("{name}/{tokens}/{form}");
                if std::env::args().skip(1).any(|a| !a.starts_with('-') && !id.contains(&a)) {
                    continue;
                }
                let work = Work::new(&profile, shape, tokens);
                work.time(&device, 1, 1);
                let before = cpu_seconds();
                let best = work.time(&device, 3, if tokens < 100 { 100 } else { 1 }).as_secs_f64();
                let dispatches = if tokens < 100 { 301.0 } else { 4.0 };
                let cpu = before.zip(cpu_seconds()).map(|(a, b)| (b - a) / dispatches);
                // What the recurrence itself needs, whatever the form computes.
                let flops =
                    f64::from(tokens) * f64::from(shape.inner()) * (5.0 * f64::from(shape.state) + 4.0);
                println!(
                    "{id}: {:.2} ms, {:.0} tokens/s, {:.2} GFLOP/s ({:.0} % of multiply-adds); CPU {:.2} ms, {:.2} GFLOP/s a core",
                    best * 1e3,
                    f64::from(tokens) / best,
                    flops / best / 1e9,
                    100.0 * flops / best / ceilings.flops,
                    cpu.unwrap_or(0.0) * 1e3,
                    cpu.map_or(0.0, |cpu| flops / cpu / 1e9),
                );
                if std::env::var_os("PLIMSOLL_SSD_QUICK").is_some() {
                    continue;
                }
                let mut group = c.benchmark_group("kernels_ssd");
                group
                    .sample_size(10)
                    .warm_up_time(Duration::from_millis(100))
                    .measurement_time(Duration::from_secs(1));
                group.throughput(Throughput::Elements(tokens.into()));
                group.bench_function(&id, |b| b.iter_custom(|n| work.time(&device, 1, n as u32) * n as u32));
                group.finish();
            }
        }
    }
}

criterion_group!(kernels, benches);
criterion_main!(kernels);
