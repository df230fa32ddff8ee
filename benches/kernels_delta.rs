//! The gated delta rule by itself, in every form: a step through a layer, as `benches/figures` measures.
//!
//! `cargo bench --bench kernels_delta [-- FILTER]`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod figures;
#[path = "../tests/steps/mod.rs"]
mod steps;

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Figures, Rate, Work};
use plimsoll_kernels::ops::delta::{self, Operand};
use plimsoll_kernels::{Delta, DeltaShape, Kernel, Profile, StepLayout};
use plimsoll_runtime::lone::Data;
use steps::{Noise, run, step_words};

fn layer(profile: &Profile, shape: DeltaShape, tokens: u32) -> Work {
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
    let [qkv, ab, states] = [tokens * args.qkv_stride, tokens * args.ab_stride, shape.recurrent(1).values]
        .map(|count| noise.floats(count as usize));
    let out_words = (tokens * args.out_stride) as usize;
    let data = |operand: &Operand| match operand {
        Operand::Qkv => Data::F32(qkv.clone()),
        Operand::Ab => Data::F32(ab.clone()),
        Operand::States => Data::F32(states.clone()),
        Operand::Out | Operand::Scratch => Data::Poison(out_words),
        Operand::Vectors => Data::F32(vectors.clone()),
    };
    let stages = delta::plan(profile, &args).into_iter();
    let stages = stages.map(|s| {
        let operands = s.operands.iter().map(data).collect();
        (s.call, operands)
    });
    Work { rate: Rate::Tokens, timing: (3, 1), ..Work::of(stages.collect(), (&step, &step_shape)) }
}

fn benches(c: &mut Criterion) {
    let figures = Figures::open("kernels_delta");
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
                if !figures.wanted(&name) {
                    continue;
                }
                let mut profile = figures.profile().clone();
                profile.tuning.delta = delta;
                let work = layer(&profile, shape, tokens);
                // A figure goes by what ran.
                let got = match &work.stages[0].0.kernel {
                    Kernel::DeltaBlocks(variant) => Delta::Blocks { block: variant.block },
                    _ => Delta::Sequential,
                };
                if got == delta {
                    figures.measure(c, &name, || work);
                } else {
                    println!("{name}: does not fit this device, which would run {got:?}");
                }
            }
        }
    }
}

criterion_group!(kernels, benches);
criterion_main!(kernels);
