//! Attention over pages and the merge of its splits, on the device against the CPU twins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod steps;

use plimsoll_kernels::ops::{attention, attention_merge};
use plimsoll_kernels::step::PAGE;
use plimsoll_kernels::{Kernel, KvFormat};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, POISON, floats};
use std::sync::{LazyLock, Mutex, MutexGuard};
use steps::{Built, Case, Noise, Run, assert_close, run, shape};

/// One device at WebGPU's default limits; cases take turns, because a software driver has only so many cores.
fn device() -> MutexGuard<'static, LoneKernel> {
    static DEVICE: LazyLock<Mutex<LoneKernel>> =
        LazyLock::new(|| Mutex::new(LoneKernel::open(Options::default()).unwrap()));
    DEVICE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Rounding only: values are at most 1, scores at most about 10. Stored keys and values are the same on both sides,
/// so it holds for every format.
const TOLERANCE: f32 = 5e-6;

fn check(case: &Case, what: &str) -> Vec<f32> {
    let built = Built::new(case, 7);
    let device = device();
    let got = built.on_device(&device, device.profile());
    assert_close(&got, &built.expected(), TOLERANCE, what);
    got
}

/// Four sequences at different places of their pages, slots out of order.
const RAGGED: [Run; 4] = [run(2, 40, 1), run(0, 0, 7), run(1, 31, 34), run(3, 95, 2)];

#[test]
fn ragged_batches_of_every_format() {
    for format in KvFormat::ALL {
        check(&Case::new(shape(6, 2, 64), format, &RAGGED), &format!("ragged {format}"));
    }
}

#[test]
fn segments_and_ranges_carry_the_state() {
    for format in KvFormat::ALL {
        let one = Case::new(shape(6, 2, 64), format, &RAGGED);
        let plain = check(&one, "one dispatch");
        // Cuts inside pages, at page ends, and past the end.
        for (segments, cuts) in [(3, vec![]), (1, vec![1, 32, 33, 70]), (2, vec![64, 97]), (1, vec![500])] {
            let case = Case { segments, cuts: cuts.clone(), ..one.clone() };
            let what = format!("{format}, {segments} segments, cuts {cuts:?}");
            assert_close(&check(&case, &what), &plain, TOLERANCE, &what);
        }
    }
}

#[test]
fn splits_join_to_the_same() {
    let runs = [run(1, 200, 1), run(0, 0, 1), run(2, 31, 1), run(3, 517, 1)];
    for format in KvFormat::ALL {
        let one = Case { decode: true, ..Case::new(shape(6, 2, 64), format, &runs) };
        let plain = check(&one, "one split");
        for splits in [3, 16] {
            let what = format!("{format}, {splits} splits");
            assert_close(&check(&Case { splits, ..one.clone() }, &what), &plain, TOLERANCE, &what);
        }
        let case = Case { splits: 3, segments: 2, cuts: vec![50, 320], ..one };
        check(&case, &format!("{format}, splits, segments and ranges"));
    }
}

#[test]
fn chunks_equal_one_shot() {
    // The last chunk of each: the pool holds what the chunks before have written.
    for (first, tokens) in [(0, 70), (64, 6), (67, 3), (69, 1)] {
        let case = Case::new(shape(6, 2, 64), KvFormat::F16, &[run(0, first, tokens)]);
        let whole = Built::new(&Case::new(shape(6, 2, 64), KvFormat::F16, &[run(0, 0, 70)]), 7);
        let mut chunk = Built::new(&case, 7);
        chunk.step[chunk.layout.tables[0].offset as usize..][..3]
            .copy_from_slice(&whole.step[whole.layout.tables[0].offset as usize..][..3]);
        chunk.pool = whole.pool.clone();
        chunk.qkv = whole.qkv[(first * whole.qkv_stride) as usize..].to_vec();
        let device = device();
        let got = chunk.on_device(&device, device.profile());
        let expected = &whole.expected()[(first * whole.out_stride) as usize..];
        assert_close(&got, expected, TOLERANCE, &format!("{tokens} tokens behind {first}"));
    }
}

#[test]
fn windows_on_rings() {
    // 3 pages hold 70 tokens of reach; positions 150.. have gone round the ring.
    for format in KvFormat::ALL {
        for (window, runs) in [
            (40, vec![run(0, 150, 20), run(1, 3, 9), run(2, 95, 2)]),
            (1, vec![run(0, 64, 33)]),
            (33, vec![run(1, 31, 2), run(0, 96, 1)]),
        ] {
            let case = Case { window: Some(window), pages: 3, ..Case::new(shape(6, 2, 64), format, &runs) };
            let what = format!("{format}, window {window}");
            check(&case, &what);
            check(&Case { splits: 3, segments: 2, ..case }, &format!("{what}, split"));
        }
    }
}

#[test]
fn softcap_caps_before_the_mask() {
    let case = Case { softcap: Some(2.0), ..Case::new(shape(6, 2, 64), KvFormat::F32, &RAGGED) };
    let capped = check(&case, "softcap");
    check(&Case { window: Some(u32::MAX), ..case.clone() }, "a window without end");
    let plain = check(&Case { softcap: None, ..case }, "no softcap");
    assert!(capped.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 1e-2), "the cap must matter here");
}

#[test]
fn engine_bug_08_gqa_ratios() {
    for (ratio, head_dim) in [(1, 32), (3, 64), (5, 40), (6, 32), (7, 16), (8, 24), (20, 16)] {
        let runs = [run(1, 37, 1), run(0, 5, 9)];
        let case = Case::new(shape(2 * ratio, 2, head_dim), KvFormat::F16, &runs);
        check(&case, &format!("ratio {ratio}, head size {head_dim}"));
        if ratio == 7 {
            check(&Case { decode: true, splits: 3, ..case }, "ratio 7, decode");
        }
    }
    // One token that sees only itself answers with its value, whatever its query.
    for format in [KvFormat::F32, KvFormat::F16] {
        let mut built = Built::new(&Case::new(shape(2, 1, 5), format, &[run(0, 0, 1)]), 3);
        let words = built.kv.page_words() as usize;
        let page = built.step[built.layout.tables[0].offset as usize] as usize;
        let page_words = &mut built.pool[page * words..][..words];
        built.kv.store(page_words, 0, 0, &[0.5; 5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
        let device = device();
        let got = built.on_device(&device, device.profile());
        assert_eq!(got[..10], [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0], "{format}");
    }
}

#[test]
fn head_sizes_up_to_512() {
    for (shape, format) in [
        (shape(3, 1, 512), KvFormat::F16),
        (shape(4, 4, 96), KvFormat::Q8_0),
        (shape(6, 1, 256), KvFormat::F16),
        (shape(6, 2, 13), KvFormat::F32),
    ] {
        check(&Case::new(shape, format, &RAGGED), &format!("{shape:?} {format}"));
    }
}

#[test]
fn variants_of_gpus_give_the_same() {
    let device = device();
    let mut profile = device.profile().clone();
    for workgroup in [16, 64, 256] {
        profile.tuning.attention_workgroup = workgroup;
        for (shape, decode) in [(shape(6, 2, 64), false), (shape(2, 2, 64), true)] {
            let case = Case { decode, ..Case::new(shape, KvFormat::Q8_0, &RAGGED) };
            let built = Built::new(&case, 5);
            let got = built.on_device(&device, &profile);
            assert_close(&got, &built.expected(), TOLERANCE, &format!("workgroup {workgroup}, {shape:?}"));
        }
    }
}

#[test]
fn scores_far_apart_stay_finite() {
    // Scores of several thousand: exponentials of their differences are 0 or 1.
    let mut built = Built::new(&Case::new(shape(6, 2, 64), KvFormat::F32, &RAGGED), 11);
    for q in &mut built.qkv {
        *q *= 3000.0;
    }
    let device = device();
    let got = built.on_device(&device, device.profile());
    assert_close(&got, &built.expected(), 2e-3, "large scores");
}

#[test]
fn rows_that_see_nothing_are_zero() {
    // A range before the window of every row; and one that the first row of the tile sees a key of, the second none.
    for (window, first, blind) in [(8, 90, [true, true]), (1, 31, [false, true])] {
        for splits in [1, 3] {
            let runs = [run(0, first, 2)];
            let case =
                Case { window: Some(window), splits, ..Case::new(shape(6, 2, 64), KvFormat::F16, &runs) };
            let mut built = Built::new(&case, 5);
            built.step[plimsoll_kernels::step::HEADER_KV_MAX as usize] = 32;
            let Built { step, step_shape, .. } = &built;
            let device = device();
            let args = built.args(0);
            let call = attention::plan(device.profile(), &args);
            let operands = [
                Data::F32(built.qkv.clone()),
                Data::U32(built.segment(&args)),
                Data::Poison(built.out_words()),
                Data::Poison(built.scratch_words()),
            ];
            let range = Some([0, 32, 0, 0]);
            let mut written = device.run(&call, step, &operands, step_shape, range).unwrap();
            if splits > 1 {
                let call = attention_merge::plan(device.profile(), &built.merge());
                let operands = [Data::Bytes(written[1].clone()), Data::Poison(built.out_words())];
                written = device.run(&call, step, &operands, step_shape, None).unwrap();
            }
            let out = floats(&written[0]);
            for (row, blind) in out.chunks(built.out_stride as usize).zip(blind) {
                let what = format!("window {window}, {splits} splits");
                assert_eq!(row[..6 * 64].iter().all(|v| *v == 0.0), blind, "{what}");
                assert!(row[..6 * 64].iter().all(|v| v.is_finite()), "{what}");
            }
        }
    }
}

#[test]
fn merges_of_odd_sizes() {
    let device = device();
    for (shape, splits, tokens) in [(shape(3, 1, 5), 2, 3), (shape(7, 7, 40), 16, 1), (shape(2, 1, 64), 5, 9)]
    {
        let max_tokens = tokens + 2;
        let out_stride = shape.heads * shape.head_dim + 1;
        let args = attention_merge::Args { shape, splits, out_stride, max_tokens, sinks: None };
        let mut noise = Noise::new(splits.into());
        let mut scratch = noise.floats(attention::scratch_words(&shape, splits, max_tokens) as usize);
        for state in scratch.chunks_mut(shape.padded() as usize + 4) {
            // m spread over a few units, l positive.
            state[shape.padded() as usize] *= 5.0;
            state[shape.padded() as usize + 1] += 1.5;
        }
        let mut expected = vec![f32::from_bits(POISON); (tokens * args.out_stride) as usize];
        attention_merge::twin(&args, tokens as usize, &scratch, &[], &mut expected);
        let (step, step_shape) = {
            let layout = plimsoll_kernels::StepLayout::new(tokens, 1, 1, &[], &[], &[]).unwrap();
            steps::step_words(&layout, &[run(0, 0, tokens)], 1)
        };
        let call = attention_merge::plan(device.profile(), &args);
        let operands = [Data::F32(scratch), Data::Poison(expected.len())];
        let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
        assert_close(&floats(&written[0]), &expected, 1e-5, &format!("merge {shape:?}"));
    }
}

#[test]
fn tiles_fit_every_shape() {
    let profile = plimsoll_kernels::Profile::webgpu_default();
    for head_dim in [5, 8, 64, 80, 128, 192, 256, 512] {
        for group in 1..=32 {
            let shape = shape(group, 1, head_dim);
            assert_eq!(attention::tile_tokens(&shape, true), 1);
            let tokens = attention::tile_tokens(&shape, false);
            let layout = plimsoll_kernels::StepLayout::new(8, 1, 1, &[tokens], &[4], &[]).unwrap();
            let built = Built::new(&Case::new(shape, KvFormat::F16, &[run(0, 0, 2)]), 1);
            let args = attention::Args { tile_table: 0, tiles: layout.tiles[0], ..built.args(0) };
            let call = attention::plan(&profile, &args);
            let Kernel::Attention(variant) = &call.kernel else { panic!("another kernel") };
            let rows = variant.tokens * variant.heads;
            assert!(rows * shape.padded() * 4 <= 8192 && rows <= 16 && tokens == variant.tokens);
            // Every head of the group is in exactly one part.
            let parts = group.div_ceil(variant.heads);
            assert_eq!(call.workgroups.per, parts);
            assert!((parts - 1) * variant.heads < group);
        }
    }
    let one = attention::scratch_words(&shape(4, 2, 5), 2, 3);
    assert_eq!(one, 2 * 3 * 4 * (8 + 4));
    assert_eq!(PAGE, 32);
}
