//! Attention, rope with the KV write, norm and top-k by themselves, as `benches/figures` measures.
//!
//! `cargo bench --bench kernels_attention [-- FILTER]`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod figures;
#[path = "../tests/steps/mod.rs"]
mod steps;

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Figures, Work};
use plimsoll_kernels::ops::{attention, attention_merge, rms_norm, rope_kv, top_k};
use plimsoll_kernels::{KvFormat, Profile, StepLayout, Unit};
use plimsoll_runtime::lone::Data;
use steps::{Built, Case, Noise, run, shape, step_words};

/// Fewer dispatches a round than elsewhere: some of these take a software driver tens of milliseconds.
const TIMING: (u32, u32) = (5, 3);

/// Decode of one token and a prefill chunk, deep in a sequence, of small and larger heads.
fn attentions(figures: &Figures, c: &mut Criterion) {
    for (name, heads) in
        [("9x3x64", shape(9, 3, 64)), ("24x4x256", shape(24, 4, 256)), ("4x1x256", shape(4, 1, 256))]
    {
        for format in KvFormat::ALL {
            for (kind, first, tokens) in [("decode", 1023, 1), ("prefill", 448, 64)] {
                let decode = kind == "decode";
                for splits in if decode { &[1, 8][..] } else { &[1] } {
                    let case = Case {
                        decode,
                        splits: *splits,
                        ..Case::new(heads, format, &[run(0, first, tokens)])
                    };
                    let built = Built::new(&case, 1);
                    let args = built.args(0);
                    // The form with workgroup memory, where the adapter's own is another.
                    let own = figures.profile();
                    let plain = Profile { subgroups: false, ..own.clone() };
                    let calls = [own, &plain].map(|profile| attention::plan(profile, &args));
                    let forms = if calls[0].kernel == calls[1].kernel { 1 } else { 2 };
                    for (call, form) in calls.iter().zip(["", "_shared"]).take(forms) {
                        let name = format!("attention_{name}_{format}_{kind}_{splits}{form}");
                        figures.measure(c, &name, || {
                            let operands = vec![
                                Data::F32(built.qkv.clone()),
                                Data::U32(built.segment(&args)),
                                Data::Poison(built.out_words()),
                                Data::Poison(built.scratch_words()),
                            ];
                            Work {
                                range: Some([0, u32::MAX, 0, 0]),
                                kv: u64::from(first + tokens / 2),
                                timing: TIMING,
                                ..Work::new(call.clone(), operands, (&built.step, &built.step_shape))
                            }
                        });
                    }
                }
            }
        }
    }
    let case =
        Case { decode: true, splits: 8, ..Case::new(shape(24, 4, 256), KvFormat::F16, &[run(0, 99, 1)]) };
    let built = Built::new(&case, 1);
    figures.measure(c, "attention_merge_24x256_8", || {
        let call = attention_merge::plan(figures.profile(), &built.merge());
        let operands = vec![Data::F32(vec![1.0; built.scratch_words()]), Data::Poison(built.out_words())];
        Work { timing: TIMING, ..Work::new(call, operands, (&built.step, &built.step_shape)) }
    });
}

fn rows(figures: &Figures, c: &mut Criterion) {
    let profile = figures.profile();
    let mut noise = Noise::new(1);
    for (width, tokens) in [(576, 1), (576, 256), (5120, 64)] {
        let layout = StepLayout::new(tokens, 1, 1, &[], &[], &[]).unwrap();
        let (step, step_shape) = step_words(&layout, &[run(0, 0, tokens)], 1);
        let args = rms_norm::Args {
            width,
            groups: 1,
            x_stride: width,
            out_stride: width,
            eps: 1e-5,
            weight: 0,
            plus_one: false,
            accumulate: false,
            unit: Unit::Tokens,
        };
        let call = rms_norm::plan(profile, &args);
        let size = (width * tokens) as usize;
        let operands =
            vec![Data::F32(noise.floats(size)), Data::Poison(size), Data::F32(noise.floats(width as usize))];
        figures.measure(c, &format!("rms_norm_{tokens}x{width}"), || Work {
            timing: TIMING,
            ..Work::new(call, operands, (&step, &step_shape))
        });
    }
    for format in KvFormat::ALL {
        for tokens in [1, 128] {
            let heads = shape(16, 8, 128);
            let built = Built::new(&Case::new(heads, format, &[run(0, 0, tokens)]), 1);
            let pairs = heads.head_dim / 2;
            let mut step = built.step.clone();
            let table = step.len() as u32;
            step.extend(noise.floats((tokens * pairs * 2) as usize).iter().map(|v| v.to_bits()));
            let norm = Some(rope_kv::HeadNorm { weight: 0, plus_one: false, eps: 1e-6 });
            let args = rope_kv::Args {
                shape: heads,
                kv: built.kv,
                place: built.args(0).place,
                q_norm: norm,
                k_norm: norm,
                v_norm: None,
                keys: rope_kv::Keys::Own,
                rope: Some(rope_kv::Rope { table, pairs, interleaved: false }),
                rotate_queries: true,
                positions: built.layout.positions,
                token_slots: built.layout.token_slots,
                qkv_stride: built.qkv_stride,
            };
            let call = rope_kv::plan(profile, &args);
            let operands = vec![
                Data::F32(built.qkv.clone()),
                Data::U32(built.pool.clone()),
                Data::F32(noise.floats(heads.head_dim as usize)),
            ];
            figures.measure(c, &format!("rope_kv_16x8x128_{format}_{tokens}"), || Work {
                timing: TIMING,
                ..Work::new(call, operands, (&step, &built.step_shape))
            });
        }
    }
    for (vocab, k) in [(49_152, 1), (49_152, 40), (262_144, 1), (262_144, 64)] {
        let layout = StepLayout::new(1, 1, 1, &[], &[], &[]).unwrap();
        let (step, step_shape) = step_words(&layout, &[run(0, 0, 1)], 1);
        let args = top_k::Args { vocab, stride: vocab, k };
        let [first, second] = top_k::plan(profile, &args).unwrap();
        let scratch = top_k::scratch_words(vocab, k, 1) as usize;
        let logits = vec![Data::F32(noise.floats(vocab as usize)), Data::Poison(scratch)];
        let work =
            |call, operands| Work { timing: TIMING, ..Work::new(call, operands, (&step, &step_shape)) };
        figures.measure(c, &format!("top_k_{vocab}_{k}_blocks"), || work(first.clone(), logits.clone()));
        figures.measure(c, &format!("top_k_{vocab}_{k}_merge"), || {
            let written = figures.device().run(&first, &step, &logits, &step_shape, None).unwrap();
            let pairs = Data::Bytes(written[0].clone());
            work(second, vec![pairs, Data::Poison(top_k::out_words(k) as usize)])
        });
    }
}

fn benches(c: &mut Criterion) {
    let figures = Figures::open("kernels_attention");
    rows(&figures, c);
    attentions(&figures, c);
}

criterion_group!(kernels, benches);
criterion_main!(kernels);
