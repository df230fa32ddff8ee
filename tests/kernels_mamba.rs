//! Convolution, state space and gated norm of Mamba2 layers, on the device against the CPU twins: as the adapter is,
//! without subgroups, at WebGPU's limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mamba;
mod steps;

use mamba::conv::{Conv, bits};
use mamba::{Layer, devices, every_form, planned, scale_of};
use plimsoll_kernels::ops::{gated_norm, ssd};
use plimsoll_kernels::{Profile, Ssd, SsmShape, StepLayout};
use plimsoll_runtime::lone::{Data, POISON, floats};
use steps::{Noise, Run, assert_close, run, step_words};

const fn shape(heads: u32, head_dim: u32, state: u32, groups: u32) -> SsmShape {
    SsmShape { heads, head_dim, state, groups }
}

/// Packed: warm and cold, at odd positions, slots out of order.
const PACKED: [Run; 5] = [run(3, 17, 1), run(0, 0, 21), run(4, 1, 2), run(1, 0, 1), run(2, 333, 38)];

#[test]
fn twins_agree() {
    for (shape, runs) in [
        (shape(4, 3, 5, 2), &PACKED[..]),
        (shape(3, 24, 17, 3), &[run(0, 0, 100)]),
        (shape(2, 1, 1, 1), &[run(1, 5, 33)]),
    ] {
        let layer = Layer::new(shape, 400, 5, 3);
        let data = layer.step(runs, 1);
        let (out, states) = data.expected();
        for block in [1, 2, 7, 16, 64, 1000] {
            let (mut other, mut left) = (vec![f32::from_bits(POISON); out.len()], data.states.clone());
            ssd::chunked(
                &layer.args,
                block,
                &data.words,
                &data.xbc,
                &data.dt,
                &mut left,
                &layer.vectors,
                &mut other,
            );
            // Both sum in f64 and round once.
            assert_close(&other, &out, 1e-6 * scale_of(&out), &format!("{shape:?}, blocks of {block}"));
            assert_close(&left, &states, 1e-6 * scale_of(&states), "states");
        }
    }
}

#[test]
fn every_form_at_every_length() {
    for device in devices().iter() {
        for (profile, block) in every_form(device.profile(), &[12, 16, 32]) {
            let layer = Layer::new(shape(4, 8, 16, 2), 300, 3, 11);
            assert_eq!(planned(&profile, &layer.args), profile.tuning.ssd, "another form is tested");
            let mut lengths = vec![1, 2, 3, 7, 8, block - 1, block, block + 1, 100, 257];
            lengths.dedup();
            for tokens in lengths {
                let slot = tokens % 3;
                layer.check(device, &profile, &[run(slot, 0, tokens)], "from nothing");
                layer.check(device, &profile, &[run(slot, 13, tokens)], "continued");
            }
        }
    }
}

#[test]
fn sequences_packed_in_a_step() {
    for device in devices().iter() {
        for (profile, _) in every_form(device.profile(), &[4, 16]) {
            for shape in [shape(4, 8, 16, 2), shape(6, 5, 7, 3)] {
                let layer = Layer::new(shape, 70, 5, 5);
                layer.check(device, &profile, &PACKED, "packed");
                let ones: Vec<Run> = (0..5).map(|i| run(4 - i, 7 * i, 1)).collect();
                layer.check(device, &profile, &ones, "one token each");
            }
        }
    }
}

#[test]
fn sizes_of_real_models_and_odd_ones() {
    let devices = devices();
    for (index, shape) in [
        shape(4, 64, 128, 2),
        shape(3, 24, 17, 1),
        shape(2, 256, 16, 2),
        shape(2, 33, 256, 1),
        shape(5, 1, 1, 5),
        shape(2, 32, 255, 1),
        shape(130, 4, 4, 10),
        // More than the streaming form holds.
        shape(2, 6, 1500, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let device = &devices[index % devices.len()];
        for (profile, _) in every_form(device.profile(), &[32]) {
            let layer = Layer::new(shape, 48, 4, 3);
            let runs = [run(2, 9, 21), run(0, 0, 17), run(1, 3, 1)];
            layer.check(device, &profile, &runs, "a real step");
            // A decode program.
            let layer = Layer::new(shape, 3, 3, 3);
            layer.check(device, &profile, &[run(2, 40, 1), run(1, 0, 1), run(0, 7, 1)], "decode");
        }
    }
}

#[test]
fn forms_of_gpus_on_this_device() {
    let devices = devices();
    for (profile, _) in every_form(&Profile::webgpu_default(), &[16, 32]) {
        for shape in [shape(4, 64, 128, 2), shape(3, 20, 48, 1)] {
            let layer = Layer::new(shape, 90, 3, 2);
            layer.check(&devices[0], &profile, &[run(1, 5, 40), run(0, 0, 37)], "as a GPU");
            let layer = Layer::new(shape, 2, 2, 2);
            layer.check(&devices[0], &profile, &[run(1, 5, 1), run(0, 0, 1)], "as a GPU, decode");
        }
    }
}

#[test]
fn slots_of_another_binding_stay() {
    let devices = devices();
    for (profile, _) in every_form(devices[0].profile(), &[16]) {
        let mut layer = Layer::new(shape(4, 8, 16, 2), 70, 5, 3);
        for (first, slots) in [(0, 2), (2, 2), (4, 1)] {
            (layer.args.first_slot, layer.args.slots) = (first, slots);
            layer.check(&devices[0], &profile, &PACKED, &format!("slots {first}+{slots}"));
        }
    }
}

#[test]
fn deltas_are_clamped_only_if_told_and_stay_finite() {
    let devices = devices();
    for (profile, _) in every_form(devices[0].profile(), &[16]) {
        let mut layer = Layer::new(shape(4, 8, 16, 2), 40, 2, 3);
        let mut data = layer.step(&[run(1, 0, 19), run(0, 4, 18)], 4);
        for (i, dt) in data.dt.iter_mut().enumerate() {
            *dt = match i % 5 {
                0 => -200.0,
                1 => 90.0,
                2 => -7.0,
                _ => *dt,
            };
        }
        for limit in [None, Some([0.0, f32::INFINITY]), Some([0.01, 3.0])] {
            layer.args.dt_limit = limit;
            data.layer.args.dt_limit = limit;
            data.check(&devices[0], &profile, &format!("limits {limit:?}"));
        }
    }
}

#[test]
fn dispatches_are_split_by_the_work_budget() {
    let devices = devices();
    for (profile, _) in every_form(devices[0].profile(), &[16]) {
        let whole = Layer::new(shape(12, 8, 16, 3), 64, 2, 3);
        let one = ssd::plan(&profile, &whole.args);
        let most = |stages: &[ssd::Stage]| stages.iter().map(|s| s.call.cost.flops(64, 0)).max().unwrap();
        let budget = most(&one) / 5;
        let tight = Profile { work_budget: budget, ..profile.clone() };
        let stages = ssd::plan(&tight, &whole.args);
        assert!(stages.len() >= one.len() + 4, "{} dispatches of {}", stages.len(), one.len());
        assert!(most(&stages) <= budget, "{} of {budget}", most(&stages));
        let sum = |stages: &[ssd::Stage]| stages.iter().map(|s| s.call.cost.flops(64, 0)).sum::<u64>();
        assert_eq!(sum(&stages), sum(&one));
        whole.check(&devices[0], &tight, &[run(1, 5, 40), run(0, 0, 22)], "split");
    }
}

#[test]
fn windows_of_tokens_hand_the_state_on() {
    // CPU drivers get the sequential form in dispatches of 256 tokens of each sequence.
    let devices = devices();
    let mut profile = devices[0].profile().clone();
    profile.tuning.ssd = Ssd::Sequential;
    let layer = Layer::new(shape(2, 8, 16, 1), 1000, 4, 2);
    if profile.cpu {
        assert_eq!(ssd::plan(&profile, &layer.args).len(), 4);
    }
    for tokens in [255, 256, 257, 512, 770] {
        let runs = [run(2, 3, 7), run(0, 0, tokens), run(1, 0, 1), run(3, 19, 200)];
        layer.check(&devices[0], &profile, &runs, &format!("{tokens} tokens"));
    }
}

#[test]
fn scratch_follows_the_step_and_gives_way() {
    let mut profile = Profile::webgpu_default();
    profile.tuning.ssd = Ssd::Kernels { block: 128 };
    let nemotron = shape(64, 64, 128, 8);
    let layer = Layer::new(nemotron, 2048, 1, 0);
    // Four numbers of each token and head, C·Bᵀ of 17 blocks and 8 groups, 17 block states of 64 heads.
    let words = 4 * 2048 * 64 + 17 * 8 * 128 * 128 + 17 * 64 * 64 * 128;
    assert_eq!(ssd::scratch_words(&profile, &layer.args), words);
    assert_eq!(ssd::plan(&profile, &layer.args).len(), 5);
    profile.limits.max_storage_buffer_binding_size = words * 4 - 4;
    assert_eq!(ssd::scratch_words(&profile, &layer.args), 0);
    assert_eq!(ssd::plan(&profile, &layer.args).len(), 1);
    for form in [Ssd::Sequential, Ssd::Streaming { block: 16 }] {
        profile.tuning.ssd = form;
        assert_eq!(ssd::scratch_words(&profile, &layer.args), 0);
    }
}

#[test]
fn engine_bug_01_workspace_of_long_prompts() {
    let devices = devices();
    for (profile, _) in every_form(devices[0].profile(), &[64]) {
        // A small layer and the bundled model's.
        for (shape, chunk) in [(shape(2, 4, 8, 1), 512), (shape(8, 32, 32, 2), 512)] {
            let layer = Layer::new(shape, chunk, 1, 0);
            for tokens in [2048, 16_384] {
                let whole = Layer::new(shape, tokens, 1, 0);
                let data = whole.step(&[run(0, 0, tokens)], 3);
                let (expected, left) = data.expected();
                // The same plan, chunk by chunk. Scratch is what the chunk was planned with, between guards: a form that
                // worked outside of it would be an error of the run.
                let mut states = data.states.clone();
                let (tolerance, stride) = (1e-4 * scale_of(&expected), layer.args.out_stride as usize);
                for first in (0..tokens).step_by(chunk as usize) {
                    let mut part = data.part(&layer, first, chunk.min(tokens - first));
                    part.states = states;
                    let (out, after, _) = part.on_device(&devices[0], &profile);
                    let at = first as usize * stride;
                    let what = format!("{shape:?} {:?}, {tokens} tokens at {first}", profile.tuning.ssd);
                    assert_close(&out, &expected[at..at + out.len()], tolerance, &what);
                    states = after;
                }
                assert_close(&states, &left, 1e-4 * scale_of(&left), "state behind the prompt");
            }
        }
    }
}

#[test]
fn engine_bug_02_groups_are_runs_of_heads() {
    let devices = devices();
    let case = shape(4, 1, 1, 2);
    for (mut profile, _) in every_form(devices[0].profile(), &[4]) {
        // By hand: Δ = ln 2 each time (dt = 0), a = −1 so that half fades, D = 0. B and C of group 0 are 1, of group 1
        // are 10 and 100; heads 0 and 1 are of group 0, 2 and 3 of group 1.
        for (slots, max) in [(1, 2), (1, 20)] {
            profile.name = format!("of {max} tokens");
            let mut layer = Layer::new(case, max, slots, 0);
            layer.vectors = vec![-1.0; 4].into_iter().chain(vec![0.0; 8]).collect();
            (layer.args.a, layer.args.d, layer.args.dt_bias) = (0, 4, 8);
            let mut data = layer.step(&[run(0, 0, 2)], 1);
            let stride = layer.args.xbc_stride as usize;
            for t in 0..2 {
                data.xbc[t * stride..t * stride + 8].copy_from_slice(&[1., 2., 3., 4., 1., 10., 1., 100.]);
                data.dt[t * layer.args.dt_stride as usize + layer.args.dt_column as usize..][..4].fill(0.0);
            }
            let (out, _, _) = data.on_device(&devices[0], &profile);
            let ln2 = std::f32::consts::LN_2;
            for (t, factor) in [(0, 1.0), (1, 1.5)] {
                for (head, by_hand) in [1.0, 2.0, 3000.0, 4000.0].into_iter().enumerate() {
                    let (got, by_hand) =
                        (out[t * layer.args.out_stride as usize + head], by_hand * ln2 * factor);
                    let what = format!("token {t}, head {head}, {:?}", profile.tuning.ssd);
                    assert!((got - by_hand).abs() <= 1e-6 * by_hand, "{what}: {got}, by hand {by_hand}");
                }
            }
            data.check(&devices[0], &profile, "twin");
        }
    }
}

#[test]
fn engine_bug_04_steps_on_a_warm_state() {
    let devices = devices();
    for device in devices.iter() {
        for (profile, _) in every_form(device.profile(), &[4]) {
            for max in [6, 20] {
                // 4 tokens, then 2 on what they left, are 6 at once.
                let layer = Layer::new(shape(4, 8, 16, 2), max, 2, 3);
                let data = layer.step(&[run(1, 0, 6)], 9);
                let (whole, left, _) = data.on_device(device, &profile);
                let cold = data.part(&layer, 0, 4);
                let (head, between, _) = cold.on_device(device, &profile);
                let mut warm = data.part(&layer, 4, 2);
                warm.states = between;
                let (tail, after, _) = warm.on_device(device, &profile);
                let got = [head, tail].concat();
                let what = format!("{:?}", profile.tuning.ssd);
                assert_close(&got, &whole, 2e-6 * scale_of(&whole), &what);
                assert_close(&after, &left, 2e-6 * scale_of(&left), &what);
            }
        }
        // The convolution and its tail.
        for taps in 1..=8 {
            let layer = Conv::new(70, taps, &[run(1, 0, 6)], 2);
            let whole = layer.on_device(device, device.profile());
            let cold = layer.part(0, 4);
            let (head, between) = cold.on_device(device, device.profile());
            let mut warm = layer.part(4, 2);
            warm.tails = between;
            let (tail, after) = warm.on_device(device, device.profile());
            assert_close(&[head, tail].concat(), &whole.0, 1e-6, "convolution");
            assert_eq!(bits(&after), bits(&whole.1), "{taps} taps");
        }
    }
}

#[test]
fn convolutions_of_any_taps() {
    for device in devices().iter() {
        for taps in 1..=8 {
            for channels in [1, 64, 131] {
                Conv::new(channels, taps, &PACKED, 6).check(device, device.profile());
                // Steps shorter than the tail, at positions shorter than the tail.
                let short =
                    [run(0, 1, 1), run(2, 3, 2), run(1, 0, 2), run(5, 2, 3), run(3, 6, 1), run(4, 0, 1)];
                let mut layer = Conv::new(channels, taps, &short, 7);
                layer.check(device, device.profile());
                let size = ((taps - 1) * channels) as usize;
                let all = layer.tails.clone();
                for (first, slots) in [(0, 3), (3, 1), (4, 3)] {
                    (layer.args.first_slot, layer.args.slots) = (first, slots);
                    let bound = &all[first as usize * size..(first + slots) as usize * size];
                    layer.tails = if size == 0 { vec![0.0] } else { bound.to_vec() };
                    layer.check(device, device.profile());
                }
            }
        }
    }
}

#[test]
fn convolutions_by_steps_of_any_length() {
    let devices = devices();
    let whole = Conv::new(37, 4, &[run(0, 0, 41)], 1);
    let (out, left) = whole.on_device(&devices[0], devices[0].profile());
    for size in [1, 2, 3, 5, 8, 13] {
        let (mut got, mut tails) = (Vec::new(), whole.tails.clone());
        for first in (0..41).step_by(size as usize) {
            let mut part = whole.part(first, size.min(41 - first));
            part.tails = tails;
            let (out, after) = part.on_device(&devices[0], devices[0].profile());
            got.extend(out);
            tails = after;
        }
        assert_close(&got, &out, 1e-6, &format!("steps of {size}"));
        assert_eq!(bits(&tails), bits(&left), "steps of {size}");
    }
}

#[test]
fn gated_norms_of_any_groups() {
    for device in devices().iter() {
        let mut wide = Profile::webgpu_default();
        if device.profile().subgroups {
            wide.tuning.reduce = plimsoll_kernels::Reduce::Subgroup;
        }
        for profile in [device.profile(), &wide] {
            let mut noise = Noise::new(4);
            for (width, groups, column, slack) in
                [(1, 1, 0, 0), (15, 3, 2, 1), (96, 4, 8, 4), (4096, 8, 64, 0), (130, 2, 1, 7), (64, 64, 0, 0)]
            {
                for (weight_shared, gate_first) in
                    [(false, true), (true, false), (true, true), (false, false)]
                {
                    let rows = 3;
                    let args = gated_norm::Args {
                        width,
                        groups,
                        x_stride: width + slack,
                        gate_column: column,
                        gate_stride: width + column + 2 * slack,
                        weight: 4,
                        weight_shared,
                        eps: 1e-5,
                        gate_first,
                    };
                    let mut x = vec![f32::from_bits(POISON); (rows * args.x_stride) as usize];
                    let mut gate = vec![f32::from_bits(POISON); (rows * args.gate_stride) as usize];
                    for row in x.chunks_mut(args.x_stride as usize) {
                        row[..width as usize].copy_from_slice(&noise.floats(width as usize));
                    }
                    for row in gate.chunks_mut(args.gate_stride as usize) {
                        let z = noise.floats(width as usize).into_iter().map(|v| v * 9.0);
                        row[column as usize..][..width as usize].copy_from_slice(&z.collect::<Vec<_>>());
                        // Gates so far below nothing that their exponential overflows.
                        row[column as usize] = if width > 1 { -1e4 } else { 2.0 };
                    }
                    let vectors = noise.floats(4 + width as usize);
                    let mut expected = x.clone();
                    gated_norm::twin(&args, rows as usize, &mut expected, &gate, &vectors);
                    let (step, step_shape) = {
                        let layout = StepLayout::new(rows, 1, 1, &[], &[], &[]).unwrap();
                        step_words(&layout, &[run(0, 0, rows)], 1)
                    };
                    let call = gated_norm::plan(profile, &args);
                    let operands = [Data::F32(x), Data::F32(gate), Data::F32(vectors)];
                    let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
                    let what = format!("{} of {width} / {groups}", call.kernel.name());
                    assert_close(&floats(&written[0]), &expected, 1e-5 * scale_of(&expected), &what);
                }
            }
        }
    }
}
