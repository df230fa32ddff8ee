//! The gated delta rule by itself, in every form: time of a step through a layer, bytes and operations a second, and
//! what part that is of the read bandwidth and the multiply-add rate measured on the same device in the same run.
//!
//! `cargo bench --bench kernels_delta [-- FILTER]`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "../tests/steps/mod.rs"]
mod steps;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_kernels::ops::delta::{self, Operand};
use plimsoll_kernels::{Delta, DeltaShape, Kernel, Profile, StepLayout};
use plimsoll_runtime::lone::{Ceilings, Data, LoneKernel, Options};
use std::time::Duration;
use steps::{Noise, run, step_words};

/// The stages of a plan, measured one by one.
struct Layer<'a> {
    device: &'a LoneKernel,
    stages: Vec<delta::Stage>,
    step: Vec<u32>,
    step_shape: plimsoll_kernels::StepShape,
    operands: [Vec<f32>; 4],
    out_words: usize,
}

impl<'a> Layer<'a> {
    fn new(device: &'a LoneKernel, profile: &Profile, shape: DeltaShape, tokens: u32) -> Self {
        let mut noise = Noise::new(1);
        // Steps of at most 8 tokens are planned token by token.
        let most = if profile.tuning.delta == Delta::Sequential { tokens } else { tokens.max(16) };
        let layout = StepLayout::new(most, 1, 1, &[most], &[], &[]).unwrap();
        let (step, step_shape) = step_words(&layout, &[run(0, 64, tokens)], 1);
        let args = delta::Args {
            shape,
            tiled: false,
            qkv_stride: shape.channels(),
            a_column: 0,
            b_column: shape.heads,
            ab_stride: 2 * shape.heads,
            out_stride: shape.inner(),
            a: 0,
            dt_bias: shape.heads,
            eps: 1e-6,
            sequences: (0, layout.tiles[0]),
            first_slot: 0,
            slots: 1,
            max_tokens: most,
        };
        let mut vectors = noise.floats(2 * shape.heads as usize);
        vectors[..shape.heads as usize].iter_mut().for_each(|a| *a = -a.abs());
        let operands = [
            noise.floats((tokens * args.qkv_stride) as usize),
            noise.floats((tokens * args.ab_stride) as usize),
            noise.floats(shape.recurrent(1).values as usize),
            vectors,
        ];
        let out_words = (tokens * args.out_stride) as usize;
        Self { device, stages: delta::plan(profile, &args), step, step_shape, operands, out_words }
    }

    fn time(&self, rounds: u32, reps: u32) -> Duration {
        let [qkv, ab, states, vectors] = &self.operands;
        let one = |stage: &delta::Stage| {
            let operands: Vec<Data> = stage
                .operands
                .iter()
                .map(|operand| match operand {
                    Operand::Qkv => Data::F32(qkv.clone()),
                    Operand::Ab => Data::F32(ab.clone()),
                    Operand::States => Data::F32(states.clone()),
                    Operand::Out | Operand::Scratch => Data::Poison(self.out_words),
                    Operand::Vectors => Data::F32(vectors.clone()),
                })
                .collect();
            self.device
                .time(&stage.call, &self.step, &operands, &self.step_shape, None, (rounds, reps))
                .unwrap()
        };
        self.stages.iter().map(one).sum()
    }

    fn kernel(&self) -> &Kernel {
        &self.stages[0].call.kernel
    }

    /// Bytes and operations of all stages.
    fn cost(&self) -> (u64, u64) {
        let rows = u64::from(self.step_shape.tokens);
        let costs = self.stages.iter().map(|s| (s.call.cost.bytes(rows, 0), s.call.cost.flops(rows, 0)));
        costs.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

fn benches(c: &mut Criterion) {
    let device = LoneKernel::open(Options { default_limits: false, ..Options::default() }).unwrap();
    let ceilings: Ceilings = device.ceilings().unwrap();
    let name = &device.profile().name;
    println!("{name}: read {:.1} GB/s, {:.1} GFLOP/s", ceilings.read / 1e9, ceilings.flops / 1e9);
    let layers = [
        ("48x16x128x128", DeltaShape { heads: 48, key_heads: 16, key_dim: 128, value_dim: 128 }),
        ("8x4x32x32", DeltaShape { heads: 8, key_heads: 4, key_dim: 32, value_dim: 32 }),
    ];
    for (label, shape) in layers {
        for tokens in [1, 128, 512] {
            for (form, delta) in [
                ("sequential", Delta::Sequential),
                ("blocks16", Delta::Blocks { block: 16 }),
                ("blocks32", Delta::Blocks { block: 32 }),
            ] {
                let name = format!("delta_{label}_{tokens}_{form}");
                let mut profile = device.profile().clone();
                profile.tuning.delta = delta;
                let layer = Layer::new(&device, &profile, shape, tokens);
                let (bytes, flops) = layer.cost();
                let mut group = c.benchmark_group("kernels_delta");
                group
                    .sample_size(10)
                    .warm_up_time(Duration::from_millis(100))
                    .measurement_time(Duration::from_secs(1));
                group.throughput(Throughput::Elements(u64::from(tokens)));
                group.bench_function(&name, |b| b.iter_custom(|n| layer.time(1, n as u32) * n as u32));
                group.finish();
                let best = layer.time(3, 1).as_secs_f64();
                println!(
                    "{name}: {} {:.1} us, {:.2} GB/s ({:.0} % of reading), {:.2} GFLOP/s ({:.0} % of multiply-adds)",
                    layer.kernel().name(),
                    best * 1e6,
                    bytes as f64 / best / 1e9,
                    100.0 * bytes as f64 / best / ceilings.read,
                    flops as f64 / best / 1e9,
                    100.0 * flops as f64 / best / ceilings.flops,
                );
            }
        }
    }
}

criterion_group!(kernels, benches);
criterion_main!(kernels);
