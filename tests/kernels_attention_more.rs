//! Sinks: a score beside the keys' own that takes weight and gives no value. It must join exactly once for each token
//! and head, whatever splits, segments, ranges and windows the keys are cut by.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod steps;

use plimsoll_kernels::KvFormat;
use plimsoll_kernels::ops::{attention, attention_merge};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, POISON, floats};
use std::sync::{LazyLock, Mutex, MutexGuard};
use steps::{Built, Case, Noise, Run, SINKS, assert_close, run, shape};

/// A device at WebGPU's limits, one as it is, and one without subgroups.
fn devices() -> MutexGuard<'static, Vec<LoneKernel>> {
    static DEVICES: LazyLock<Mutex<Vec<LoneKernel>>> = LazyLock::new(|| {
        let ways = [(true, true), (true, false), (false, true)];
        let open =
            |(subgroups, default_limits)| LoneKernel::open(Options { subgroups, default_limits }).unwrap();
        Mutex::new(ways.map(open).into())
    });
    DEVICES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Rounding only: values are at most 1, scores at most about 10.
const TOLERANCE: f32 = 5e-6;

const RAGGED: [Run; 4] = [run(2, 40, 1), run(0, 0, 7), run(1, 31, 34), run(3, 95, 2)];

fn sinks(case: Case) -> Case {
    Case { sinks: true, ..case }
}

fn check_on(device: &LoneKernel, case: &Case, what: &str) -> Vec<f32> {
    let built = Built::new(case, 7);
    let got = built.on_device(device, device.profile());
    assert_close(&got, &built.expected(), TOLERANCE, what);
    got
}

fn check(case: &Case, what: &str) -> Vec<f32> {
    check_on(&devices()[0], case, what)
}

/// The largest distance of values that both wrote.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).filter(|(a, _)| a.to_bits() != POISON).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn sinks_take_weight_in_every_format_on_every_device() {
    for (i, device) in devices().iter().enumerate() {
        let formats = if i == 0 { &KvFormat::ALL[..] } else { &[KvFormat::Q8_0] };
        for &format in formats {
            let case = sinks(Case::new(shape(6, 2, 64), format, &RAGGED));
            let with = check_on(device, &case, &format!("{format}"));
            let decode =
                Case { runs: vec![run(0, 70, 1), run(1, 0, 1)], decode: true, splits: 8, ..case.clone() };
            check_on(device, &decode, &format!("{format}, decode"));
            let without = check_on(device, &Case { sinks: false, ..case }, &format!("{format}, no sinks"));
            assert!(apart(&with, &without) > 0.1, "sinks must matter here");
        }
    }
}

#[test]
fn segments_ranges_and_splits_join_a_sink_once() {
    let one = sinks(Case::new(shape(6, 2, 64), KvFormat::F16, &RAGGED));
    let plain = check(&one, "one dispatch");
    for (segments, cuts) in
        [(3, vec![]), (1, vec![1, 32, 33, 70]), (2, vec![64, 97]), (1, vec![500]), (3, vec![33, 95, 200])]
    {
        for splits in [1, 3] {
            let what = format!("{segments} segments, {splits} splits, cuts {cuts:?}");
            let case = Case { segments, splits, cuts: cuts.clone(), ..one.clone() };
            assert_close(&check(&case, &what), &plain, TOLERANCE, &what);
        }
    }
    let runs = [run(1, 200, 1), run(0, 0, 1), run(2, 31, 1), run(3, 517, 1)];
    let one = sinks(Case { decode: true, ..Case::new(shape(6, 2, 64), KvFormat::Q8_0, &runs) });
    let plain = check(&one, "decode");
    for (splits, segments, cuts) in
        [(3, 1, vec![]), (16, 1, vec![]), (8, 2, vec![50, 320]), (1, 2, vec![50, 320])]
    {
        let what = format!("decode, {splits} splits, {segments} segments, cuts {cuts:?}");
        let case = Case { splits, segments, cuts, ..one.clone() };
        assert_close(&check(&case, &what), &plain, TOLERANCE, &what);
    }
}

#[test]
fn windows_and_caps_leave_sinks_alone() {
    for (window, runs) in [
        (40, vec![run(0, 150, 20), run(1, 3, 9), run(2, 95, 2)]),
        (1, vec![run(0, 64, 33)]),
        (33, vec![run(1, 31, 2), run(0, 96, 1)]),
    ] {
        let case =
            Case { window: Some(window), pages: 3, ..Case::new(shape(6, 2, 64), KvFormat::F16, &runs) };
        let case = sinks(case);
        check(&case, &format!("window {window}"));
        check(&Case { splits: 3, segments: 2, ..case.clone() }, &format!("window {window}, split"));
        check(&Case { softcap: Some(2.0), ..case }, &format!("window {window}, capped"));
    }
}

#[test]
fn ratios_and_head_sizes_with_sinks() {
    for (ratio, head_dim) in [(1, 5), (5, 40), (8, 64), (20, 16), (2, 512)] {
        let runs = [run(1, 37, 1), run(0, 5, 9)];
        let case = sinks(Case::new(shape(2 * ratio, 2, head_dim), KvFormat::F16, &runs));
        check(&case, &format!("ratio {ratio}, head size {head_dim}"));
        check(&Case { decode: true, splits: 3, ..case }, &format!("ratio {ratio}, {head_dim}, decode"));
    }
    let devices = devices();
    let mut profile = devices[0].profile().clone();
    for workgroup in [64, 256] {
        profile.tuning.attention_workgroup = workgroup;
        let built = Built::new(&sinks(Case::new(shape(6, 2, 64), KvFormat::F32, &RAGGED)), 5);
        let got = built.on_device(&devices[0], &profile);
        assert_close(&got, &built.expected(), TOLERANCE, &format!("workgroup {workgroup}"));
    }
}

/// One token that sees only itself, with a score of 6·(1/2)·1 = 3 before the cap: a sink of 3 halves its value, and one
/// that is ln 3 above leaves a quarter. Neither the scale nor the cap touches it.
#[test]
fn a_sink_is_neither_scaled_nor_capped() {
    let devices = devices();
    for (softcap, score) in [(None, 3.0f32), (Some(2.0f32), 2.0 * 1.5f32.tanh())] {
        for splits in [1, 4] {
            let case = Case { softcap, splits, ..Case::new(shape(3, 1, 4), KvFormat::F32, &[run(0, 0, 1)]) };
            let mut built = Built::new(&sinks(case), 3);
            let words = built.kv.page_words() as usize;
            let page = built.step[built.layout.tables[0].offset as usize] as usize;
            built.kv.store(
                &mut built.pool[page * words..][..words],
                0,
                0,
                &[1.0, 0.0, 0.0, 0.0],
                &[8.0, -4.0, 2.0, 1.0],
            );
            for head in 0..3 {
                built.qkv[head * 4] = 6.0;
            }
            let far = -40.0;
            built.vectors[SINKS as usize..].copy_from_slice(&[score, score + 3f32.ln(), far]);
            let got = built.on_device(&devices[0], devices[0].profile());
            for (head, part) in [0.5, 0.25, 1.0].into_iter().enumerate() {
                for (got, value) in got[head * 4..].iter().zip([8.0, -4.0, 2.0, 1.0]) {
                    let what = format!("cap {softcap:?}, {splits} splits, head {head}");
                    assert!((got - part * value).abs() < 1e-5, "{what}: {got} is not {}", part * value);
                }
            }
        }
    }
}

#[test]
fn sinks_far_from_the_scores_stay_finite() {
    let devices = devices();
    let plain = Case::new(shape(6, 2, 64), KvFormat::F32, &RAGGED);
    let without = Built::new(&plain, 7).on_device(&devices[0], devices[0].profile());
    for splits in [1, 3] {
        for (sink, answers) in [(1e4, false), (3e38, false), (-1e4, true), (-3e38, true)] {
            let mut built = Built::new(&sinks(Case { splits, ..plain.clone() }), 7);
            built.vectors[SINKS as usize..].fill(sink);
            let got = built.on_device(&devices[0], devices[0].profile());
            let expected: Vec<f32> =
                without.iter().map(|v| if v.to_bits() == POISON || answers { *v } else { 0.0 }).collect();
            assert_close(&got, &expected, TOLERANCE, &format!("sinks of {sink}, {splits} splits"));
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero_beside_a_sink() {
    for splits in [1, 3] {
        let case =
            Case { window: Some(8), splits, ..Case::new(shape(6, 2, 64), KvFormat::F16, &[run(0, 90, 2)]) };
        let mut built = Built::new(&sinks(case), 5);
        // A range that ends before the window of every row.
        built.step[plimsoll_kernels::step::HEADER_KV_MAX as usize] = 32;
        built.case.cuts = vec![32];
        let devices = devices();
        let device = &devices[0];
        let args = built.args(0);
        let call = attention::plan(device.profile(), &args);
        let mut operands = vec![
            Data::F32(built.qkv.clone()),
            Data::U32(built.segment(&args)),
            Data::Poison(built.out_words()),
            Data::Poison(built.scratch_words()),
        ];
        if args.joins_sinks() {
            operands.push(Data::F32(built.vectors.clone()));
        }
        let step = (&built.step, &built.step_shape);
        let mut written = device.run(&call, step.0, &operands, step.1, Some([0, 32, 0, 0])).unwrap();
        if splits > 1 {
            let call = attention_merge::plan(device.profile(), &built.merge());
            let operands = [
                Data::Bytes(written[1].clone()),
                Data::Poison(built.out_words()),
                Data::F32(built.vectors.clone()),
            ];
            written = device.run(&call, step.0, &operands, step.1, None).unwrap();
        }
        for row in floats(&written[0]).chunks(built.out_stride as usize) {
            assert!(row[..6 * 64].iter().all(|v| *v == 0.0), "{splits} splits");
        }
    }
}

#[test]
fn merges_of_odd_sizes_with_sinks() {
    let devices = devices();
    for (shape, splits, tokens) in [(shape(3, 1, 5), 2, 3), (shape(7, 7, 40), 16, 1), (shape(2, 1, 64), 5, 9)]
    {
        let max_tokens = tokens + 2;
        let out_stride = shape.heads * shape.head_dim + 1;
        let args = attention_merge::Args { shape, splits, out_stride, max_tokens, sinks: Some(2) };
        let mut noise = Noise::new(splits.into());
        let mut scratch = noise.floats(attention::scratch_words(&shape, splits, max_tokens) as usize);
        for state in scratch.chunks_mut(shape.padded() as usize + 4) {
            state[shape.padded() as usize] *= 5.0;
            state[shape.padded() as usize + 1] += 1.5;
        }
        let vectors: Vec<f32> = noise.floats(2 + shape.heads as usize).iter().map(|v| v * 6.0).collect();
        let mut expected = vec![f32::from_bits(POISON); (tokens * args.out_stride) as usize];
        attention_merge::twin(&args, tokens as usize, &scratch, &vectors, &mut expected);
        let layout = plimsoll_kernels::StepLayout::new(tokens, 1, 1, &[], &[], &[]).unwrap();
        let (step, step_shape) = steps::step_words(&layout, &[run(0, 0, tokens)], 1);
        for device in devices.iter() {
            let call = attention_merge::plan(device.profile(), &args);
            let operands =
                [Data::F32(scratch.clone()), Data::Poison(expected.len()), Data::F32(vectors.clone())];
            let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
            assert_close(&floats(&written[0]), &expected, 1e-5, &format!("merge {shape:?}"));
        }
    }
}
