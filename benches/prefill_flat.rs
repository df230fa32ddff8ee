//! Prefill at prompts of 256 to 16,384 tokens, on one runtime that was admitted for the longest: a pure Mamba2 model,
//! whose tokens a second stay flat, and the bundled hybrid, whose two attention layers do more work for each later
//! token. Before and after each length the process's memory is printed, which stays where it is.
//!
//! Beside every length stands what it should take by a model: a token costs the same wherever it stands, but for the
//! operations of attention that grow with what a token sees. Both costs come from the first 1,024 tokens, in which the
//! time of attention's dispatches is measured, so all that a longer prompt may lose is computed before it runs.
//!
//! `cargo bench --profile dev --bench prefill_flat`; PLIMSOLL_BENCH_TOP=2048 ends the sweep there, and
//! PLIMSOLL_FIGURES_ONLY=1 leaves criterion's sampling out.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use figures::cpu_seconds;
use plimsoll::{Checkpoint, Model};
use plimsoll_estimator::Plan;
use plimsoll_kernels::{KvFormat, StepShape};
use plimsoll_runtime::profiler::Method;
use plimsoll_runtime::{DeviceOptions, Stepper, Wanted};
use std::time::{Duration, Instant};
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

/// Prompts of the turns whose median counts.
const TURNS: usize = 5;

/// Tokens that the model knows, in two chunks.
const KNOWN: usize = 2 * CHUNK;

/// Seconds on the clock on the wall, and of all processors for this process: on a shared machine these say more.
#[derive(Clone, Copy)]
struct Seconds([f64; 2]);

impl Seconds {
    fn of(work: impl FnOnce()) -> Self {
        let (cpu, wall) = (cpu_seconds(), Instant::now());
        work();
        let wall = wall.elapsed().as_secs_f64();
        let cpu = cpu.zip(cpu_seconds()).map_or(f64::NAN, |(before, after)| after - before);
        Self([wall, cpu])
    }

    /// Of each clock by itself.
    fn median(all: &[Self]) -> Self {
        Self([0, 1].map(|clock| median(all.iter().map(|s| s.0[clock]).collect())))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One prompt, in chunks.
fn prompt(loaded: &mut Loaded, ids: &[u32]) {
    for (i, part) in ids.chunks(CHUNK).enumerate() {
        let last = (i + 1) * CHUNK >= ids.len();
        let wanted = if last { Wanted::Last } else { Wanted::None };
        loaded.step(&[(0, (i * CHUNK) as u32, part, wanted)]);
    }
}

/// What prompts should take.
struct Explained {
    plan: Plan,
    /// Of a whole chunk.
    shape: StepShape,
    /// The part of the known tokens' time that is attention's.
    attention: f64,
}

impl Explained {
    /// From steps of which each dispatch is timed.
    fn new(loaded: &mut Loaded, known: &[u32]) -> Self {
        let plan = loaded.runtime.plan().clone();
        loaded.runtime.start_profile(Method::Alone).unwrap();
        let (mut parts, mut shape) = (Vec::new(), StepShape::default());
        for _ in 0..TURNS {
            prompt(loaded, known);
            let (mut attention, mut all) = (0.0, 0.0);
            for step in loaded.runtime.take_profile().0 {
                for sample in &step.samples {
                    let cost = plan.programs[step.program].dispatches[sample.dispatch as usize].cost;
                    all += sample.seconds;
                    attention += if cost.flops_per_row_kv > 0 { sample.seconds } else { 0.0 };
                }
                shape = StepShape { logit_rows: 0, ..step.shape };
            }
            parts.push(attention / all);
        }
        loaded.runtime.stop_profile();
        Self { plan, shape, attention: median(parts) }
    }

    /// Operations of attention in a prompt.
    fn operations(&self, tokens: usize) -> f64 {
        let grown = |kv: usize| self.plan.work(&self.shape, kv as u32).1 - self.plan.work(&self.shape, 0).1;
        let chunks = (0..tokens).step_by(CHUNK).map(|first| {
            let rows = CHUNK.min(tokens - first);
            // The first row sees itself, the last all of them.
            grown(first + rows.div_ceil(2)) as f64 * rows as f64 / CHUNK as f64
        });
        chunks.sum()
    }

    /// Seconds of a prompt, and the part of them that is attention's, when the known tokens take `known`.
    fn seconds(&self, tokens: usize, known: f64) -> (f64, f64) {
        let rest = (1.0 - self.attention) * known * tokens as f64 / KNOWN as f64;
        let more = match self.operations(KNOWN) {
            0.0 => 0.0,
            known_operations => self.operations(tokens) / known_operations,
        };
        let attention = self.attention * known * more;
        (rest + attention, attention / (rest + attention))
    }
}

fn sweep(c: &mut Criterion, name: &str, checkpoint: &Checkpoint, model: &Model) {
    let vocab = model.vocab;
    let asked = geometry(CONTEXT, 1, CHUNK as u32, KvFormat::F16, 1);
    let mut loaded = Loaded::new(checkpoint, model, &DeviceOptions::default(), &asked);
    let ids: Vec<u32> = (0..CONTEXT).map(|i| i.wrapping_mul(7919).wrapping_add(11) % vocab).collect();
    prompt(&mut loaded, &ids[..KNOWN]);
    let explained = Explained::new(&mut loaded, &ids[..KNOWN]);
    let mut group = c.benchmark_group(name);
    // One prompt is one sample: ten are the least that criterion takes.
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_millis(1));
    for tokens in (8..).map(|power| 1usize << power).take_while(|&tokens| tokens <= top() as usize) {
        eprintln!("{name}, {tokens} tokens: resident {:?} kB before", resident());
        let (mut known, mut taken) = (Vec::new(), Vec::new());
        // In turns: what else the machine does comes and goes.
        for _ in 0..TURNS {
            known.push(Seconds::of(|| prompt(&mut loaded, &ids[..KNOWN])));
            taken.push(Seconds::of(|| prompt(&mut loaded, &ids[..tokens])));
        }
        let (known, taken) = (Seconds::median(&known), Seconds::median(&taken));
        let [wall, cpu] = [0, 1].map(|clock| {
            let (model, attention) = explained.seconds(tokens, known.0[clock]);
            (tokens as f64 / taken.0[clock], tokens as f64 / model, attention)
        });
        println!(
            "{name}, {tokens} tokens: {:.0} tok/s, by the model {:.0}, of which {:.0} % is attention: {:.2} of it; a second \
             of a processor {:.0}, by the model {:.0}: {:.2} of it",
            wall.0,
            wall.1,
            100.0 * wall.2,
            wall.0 / wall.1,
            cpu.0,
            cpu.1,
            cpu.0 / cpu.1
        );
        if std::env::var_os("PLIMSOLL_FIGURES_ONLY").is_none() {
            group.throughput(Throughput::Elements(tokens as u64));
            group.bench_with_input(BenchmarkId::from_parameter(tokens), &ids[..tokens], |b, ids| {
                b.iter(|| prompt(&mut loaded, ids));
            });
        }
        eprintln!("{name}, {tokens} tokens: resident {:?} kB after", resident());
    }
    group.finish();
}

criterion_group!(benches, prefill);
criterion_main!(benches);
