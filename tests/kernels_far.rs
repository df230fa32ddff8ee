//! Norms of numbers far from 1: huge ones are normed like any others, what is beyond even that is no number and never a
//! row of zeros, and zeros stay zeros without an epsilon. On the device against the CPU twins, with subgroups and
//! without.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod steps;

use plimsoll_kernels::ops::{gated_norm, rms_norm, rope_kv, softcap};
use plimsoll_kernels::{Call, KvFormat, KvLayout, Profile, StepLayout, StepShape, Unit};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, floats};
use steps::{Noise, assert_close, run, shape, step_words};

/// Factors of values from −1 to 1 that norms must not see.
const FACTORS: [f32; 5] = [1.0, 1e-3, 1e12, 1e20, 1e25];
/// Values whose squares are beyond f32 whatever is done.
const BEYOND: f32 = 1e31;

fn devices() -> [LoneKernel; 2] {
    [true, false].map(|subgroups| LoneKernel::open(Options { subgroups, ..Options::default() }).unwrap())
}

fn step(tokens: u32) -> (Vec<u32>, StepShape) {
    let layout = StepLayout::new(tokens, 1, 1, &[], &[], &[]).unwrap();
    step_words(&layout, &[run(0, 0, tokens)], 1)
}

fn first(device: &LoneKernel, call: &Call, tokens: u32, operands: &[Data]) -> Vec<f32> {
    let (step, step_shape) = step(tokens);
    floats(&device.run(call, &step, operands, &step_shape, None).unwrap()[0])
}

/// A row for each of [`FACTORS`], then one of zeros, then one with a value beyond.
fn rows(width: u32, noise: &mut Noise) -> Vec<f32> {
    let mut x = Vec::new();
    for factor in FACTORS {
        x.extend(noise.floats(width as usize).into_iter().map(|v| v * factor));
    }
    x.resize(x.len() + width as usize, 0.0);
    x.extend(noise.floats(width as usize));
    *x.last_mut().unwrap() = BEYOND;
    x
}
const ROWS: u32 = FACTORS.len() as u32 + 2;

/// All rows but the last are the twin's; of the last none is a number.
fn check(got: &[f32], twin: &[f32], width: u32, what: &str) {
    let (rest, last) = got.split_at(got.len() - width as usize);
    assert_close(rest, &twin[..rest.len()], 1e-5, what);
    assert!(rest[rest.len() - width as usize..].iter().all(|v| *v == 0.0), "{what}: zeros stay zeros");
    assert!(last.iter().all(|v| v.is_nan()), "{what}: {:?}", &last[..last.len().min(4)]);
}

fn profiles(device: &LoneKernel) -> [Profile; 2] {
    [device.profile().clone(), Profile::webgpu_default()]
}

#[test]
fn rms_norms_of_huge_values() {
    for device in devices() {
        for (profile, width, eps) in
            profiles(&device).iter().flat_map(|p| [(p, 5, 0.0), (p, 576, 1e-5), (p, 64, 1e-6)])
        {
            let mut noise = Noise::new(9);
            let args = rms_norm::Args {
                width,
                groups: 1,
                x_stride: width,
                out_stride: width,
                eps,
                weight: 0,
                plus_one: false,
                accumulate: false,
                unit: Unit::Tokens,
            };
            let x = rows(width, &mut noise);
            let weight = noise.floats(width as usize);
            let mut twin = vec![0.0; x.len()];
            rms_norm::twin(&args, ROWS as usize, &x, &weight, &mut twin);
            let call = rms_norm::plan(profile, &args);
            let got =
                first(&device, &call, ROWS, &[Data::F32(x), Data::Poison(twin.len()), Data::F32(weight)]);
            check(&got, &twin, width, &format!("{} of {width}, epsilon {eps}", call.kernel.name()));
        }
    }
}

#[test]
fn gated_norms_of_huge_values() {
    for device in devices() {
        for (profile, gate_first) in profiles(&device).iter().flat_map(|p| [(p, false), (p, true)]) {
            let width = 40;
            let mut noise = Noise::new(10);
            let args = gated_norm::Args {
                width,
                groups: 1,
                x_stride: width,
                gate_column: 0,
                gate_stride: width,
                weight: 0,
                weight_shared: false,
                eps: 0.0,
                gate_first,
            };
            let x = rows(width, &mut noise);
            let gate = vec![1.5; x.len()];
            let weight = noise.floats(width as usize);
            let mut twin = x.clone();
            gated_norm::twin(&args, ROWS as usize, &mut twin, &gate, &weight);
            let call = gated_norm::plan(profile, &args);
            let got = first(&device, &call, ROWS, &[Data::F32(x), Data::F32(gate), Data::F32(weight)]);
            check(&got, &twin, width, &call.kernel.name());
        }
    }
}

#[test]
fn head_norms_of_huge_values() {
    let shape = shape(2, 1, 16);
    let kv = KvLayout::new(KvFormat::F32, &shape).unwrap();
    for device in devices() {
        let mut noise = Noise::new(11);
        let layout = StepLayout::new(ROWS, 1, 1, &[], &[1], &[1]).unwrap();
        let (mut step, step_shape) = step_words(&layout, &[run(0, 0, ROWS)], 1);
        step[layout.tables[0].offset as usize] = 0;
        let norm = |weight| Some(rope_kv::HeadNorm { weight, plus_one: false, eps: 0.0 });
        let args = rope_kv::Args {
            shape,
            kv,
            place: rope_kv::KvPlace {
                table: layout.tables[0].offset,
                pages: 1,
                first_page: 0,
                segment_pages: 1,
            },
            q_norm: norm(0),
            k_norm: norm(16),
            v_norm: Some(0.0),
            keys: rope_kv::Keys::Own,
            rope: None,
            rotate_queries: true,
            positions: layout.positions,
            token_slots: layout.token_slots,
            qkv_stride: 64,
        };
        // Each head has what a row has: the sum of squares of one is none of another's.
        let heads: Vec<Vec<f32>> = (0..4).map(|_| rows(16, &mut noise)).collect();
        let row = |token: usize| heads.iter().flat_map(move |h| h[token * 16..][..16].to_vec());
        let qkv: Vec<f32> = (0..ROWS as usize).flat_map(row).collect();
        let vectors = noise.floats(32);
        let words = kv.page_words() as usize;
        let (mut twin, mut page) = (qkv.clone(), vec![0; words]);
        rope_kv::twin(&args, &step, &vectors, &mut twin, &mut page);
        let call = rope_kv::plan(device.profile(), &args);
        let operands = [Data::F32(qkv), Data::F32(vec![0.0; words]), Data::F32(vectors)];
        let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
        let (got, pages) = (floats(&written[0]), floats(&written[1]));
        let last = (ROWS as usize - 1) * 64;
        assert_close(&got[..last], &twin[..last], 1e-5, "queries");
        assert!(got[last..last + 32].iter().all(|v| v.is_nan()), "{:?}", &got[last..last + 4]);
        // Keys and values: what the twin has as numbers, and two heads of none.
        let (mut spoilt, mut same) = (0, 0);
        for (got, twin) in pages.iter().zip(&page) {
            match (got.is_nan(), (got - f32::from_bits(*twin)).abs() <= 1e-5) {
                (true, _) => spoilt += 1,
                (false, true) => same += 1,
                _ => panic!("expected {}, got {got}", f32::from_bits(*twin)),
            }
        }
        assert_eq!((spoilt, same), (2 * 16, words - 2 * 16));
    }
}

#[test]
fn a_cap_makes_no_number_of_none() {
    for device in devices() {
        let args = softcap::Args { width: 4, stride: 4, cap: 30.0, unit: Unit::Tokens };
        let call = softcap::plan(device.profile(), &args);
        let got = first(&device, &call, 1, &[Data::F32(vec![f32::NAN, 1e38, -f32::NAN, 0.5])]);
        assert!(got[0].is_nan() && got[2].is_nan(), "{got:?}");
        assert_close(&[got[1], got[3]], &[30.0, 30.0 * (0.5f32 / 30.0).tanh()], 1e-4, "capped");
    }
}
