//! The forms of the state space over the length of a prompt: a step through a layer, as `benches/figures` measures. On a
//! shared machine the CPU time of a software driver says more than the clock on the wall.
//!
//! `cargo bench --bench kernels_ssd [-- FILTER]`; `PLIMSOLL_SSD_BLOCKS=8,16` for other blocks.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod figures;
#[path = "../tests/mamba/mod.rs"]
mod mamba;
#[path = "../tests/steps/mod.rs"]
mod steps;

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Figures, Rate, Work};
use mamba::{Layer, every_form, planned};
use plimsoll_kernels::ops::ssd;
use plimsoll_kernels::{Profile, Ssd, SsmShape};
use plimsoll_runtime::lone::Data;
use steps::run;

fn layer(profile: &Profile, shape: SsmShape, tokens: u32) -> Work {
    // A step of few tokens is planned as such.
    let layer = Layer::new(shape, tokens, 1, 0);
    let step = layer.step(&[run(0, 32, tokens)], 1);
    let words = ssd::scratch_words(profile, &layer.args) as usize;
    let states = Data::F32(step.states.clone());
    let out = Data::Poison((tokens * layer.args.out_stride) as usize);
    // Zeros: kernels are timed one by one, so what they read must be finite.
    let scratch = Data::F32(vec![0.0; words]);
    let stages = ssd::plan(profile, &layer.args).into_iter();
    let stages = stages.map(|s| {
        let operands = step.operands(&s, [&states, &out, &scratch]);
        (s.call, operands)
    });
    Work {
        // What the recurrence itself needs, whatever the form computes.
        flops: Some(u64::from(tokens) * u64::from(shape.inner()) * (5 * u64::from(shape.state) + 4)),
        rate: Rate::Tokens,
        timing: (3, if tokens < 100 { 100 } else { 1 }),
        ..Work::of(stages.collect(), (&step.words, &step.shape))
    }
}

fn benches(c: &mut Criterion) {
    let figures = Figures::open("kernels_ssd");
    let blocks = std::env::var("PLIMSOLL_SSD_BLOCKS").unwrap_or_else(|_| "16,32,64".to_owned());
    let blocks: Vec<u32> = blocks.split(',').filter_map(|b| b.parse().ok()).collect();
    let shapes = [
        ("64x64x128x8", SsmShape { heads: 64, head_dim: 64, state: 128, groups: 8 }),
        ("8x32x32x2", SsmShape { heads: 8, head_dim: 32, state: 32, groups: 2 }),
    ];
    for (name, shape) in shapes {
        for tokens in [1, 8, 128, 512, 2048] {
            for (profile, _) in every_form(figures.profile(), &blocks) {
                let asked = profile.tuning.ssd;
                let form = match asked {
                    Ssd::Sequential => "sequential".to_owned(),
                    _ if tokens <= 8 => continue,
                    Ssd::Streaming { block } => format!("streaming_{block}"),
                    Ssd::Kernels { block } => format!("kernels_{block}"),
                };
                let name = format!("{name}/{tokens}/{form}");
                // A figure goes by what ran.
                let got = planned(&profile, &Layer::new(shape, tokens, 1, 0).args);
                if got == asked {
                    figures.measure(c, &name, || layer(&profile, shape, tokens));
                } else if figures.wanted(&name) {
                    println!("{name}: does not fit this device, which would run {got:?}");
                }
            }
        }
    }
}

criterion_group!(kernels, benches);
criterion_main!(kernels);
