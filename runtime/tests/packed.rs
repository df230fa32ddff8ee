//! Loads of matrices whose codes, scales and offsets stand in tensors of their own, beside a factor: every value is
//! computed again from the planes, by the definitions of the formats.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod toy;

use plimsoll_estimator::plan::Role;
use plimsoll_kernels::Format;
use plimsoll_kernels::format::ScaleType;
use plimsoll_models::Model;
use plimsoll_models::model::{Matrix, ScaleForm};
use plimsoll_runtime::{Device, DeviceOptions};
use toy::*;

fn device() -> Device {
    Device::open(&DeviceOptions::default()).unwrap()
}

const STAGING: u64 = 1024;

/// Bytes that look like nothing in particular.
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// The magnitudes of e2m1.
fn e2m1(code: u8) -> f32 {
    let value = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { value } else { -value }
}

/// e4m3 without its NaN.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let value =
        if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
    if code & 0x80 == 0 { value } else { -value }
}

/// Codes of e4m3 that are numbers.
fn numbers(count: usize, seed: u64) -> Vec<u8> {
    noise(count, seed).into_iter().map(|code| if code & 0x7F == 0x7F { 0x38 } else { code }).collect()
}

/// What a load makes of matrix `index`, with shards and staging that cut it in odd places.
fn loaded(model: &Model, tensors: &[Stored], index: usize) -> Vec<f32> {
    let device = device();
    let plan = plan(device.profile(), model, 16, STAGING, Role::Arena);
    decoded(&device, model, &sharded(tensors, 2), &plan, index)
}

fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= 1e-6 * expected.abs(), "value {i}: {got} is not {expected}");
    }
}

fn one(matrix: Matrix) -> Model {
    model(vec![matrix], vec![])
}

#[test]
fn mxfp4_stacks_join_from_two_tensors() {
    let (experts, rows, cols) = (4, 10, 96);
    let codes = noise(experts * rows * cols / 2, 1);
    let powers: Vec<u8> = noise(experts * rows * cols / 32, 2).iter().map(|e| 120 + e % 16).collect();
    let tensors = [
        stored("blocks", "U8", &[experts, rows, cols / 32, 16], codes.clone()),
        stored("scales", "U8", &[experts, rows, cols / 32], powers.clone()),
    ];
    let pieces = vec![piece(&["blocks", "scales"], 0, (experts * rows) as u32)];
    let got = loaded(&one(matrix(Format::Mxfp4, cols as u32, experts as u32, pieces)), &tensors, 0);
    let value = |i: usize| {
        let code = codes[i / 2] >> (4 * (i % 2)) & 15;
        e2m1(code) * 2f32.powi(i32::from(powers[i / 32]) - 127)
    };
    assert_close(&got, &(0..experts * rows * cols).map(value).collect::<Vec<_>>());
}

#[test]
fn affine_rows_join_from_codes_scales_and_offsets() {
    // 3 bits cross bytes; the codes come as 32-bit words.
    for (bits, group) in [(3_usize, 64_usize), (4, 32), (8, 128)] {
        let (rows, cols) = (20, 256);
        let codes = noise(rows * cols * bits / 8, 3);
        let scales: Vec<f32> = (0..rows * cols / group).map(|i| (i % 9) as f32 * 0.5 - 2.0).collect();
        let offsets: Vec<f32> = (0..rows * cols / group).map(|i| (i % 7) as f32 * 0.25).collect();
        let tensors = [
            stored("w", "U32", &[rows, cols * bits / 32], codes.clone()),
            stored("scales", "BF16", &[rows, cols / group], bf16s(&scales)),
            stored("biases", "BF16", &[rows, cols / group], bf16s(&offsets)),
        ];
        let format = Format::Affine { bits: bits as u8, group: group as u8, scales: ScaleType::BF16 };
        // The lower rows first.
        let planes = ["w", "scales", "biases"];
        let pieces = vec![piece(&planes, 7, 13), piece(&planes, 0, 7)];
        let got = loaded(&one(matrix(format, cols as u32, 1, pieces)), &tensors, 0);
        let value = |i: usize| {
            let code =
                (0..bits).map(|b| u32::from(codes[(i * bits + b) / 8] >> ((i * bits + b) % 8) & 1) << b);
            scales[i / group] * code.sum::<u32>() as f32 + offsets[i / group]
        };
        let expected = (7 * cols..rows * cols).chain(0..7 * cols).map(value).collect::<Vec<_>>();
        assert_close(&got, &expected);
    }
}

#[test]
fn factors_serve_a_row_an_expert_or_everything_in_each_form() {
    let (experts, rows, cols) = (3_usize, 8_usize, 32_usize);
    let all = experts * rows;
    let stored_factors: Vec<f32> = (0..all).map(|i| 0.25 * (i % 11 + 1) as f32).collect();
    let planes = |e: usize| {
        let (codes, scales) = (noise(rows * cols / 2, e as u64 + 9), numbers(rows * cols / 16, e as u64 + 5));
        (codes, scales)
    };
    let unscaled = |e: usize| -> Vec<f32> {
        let (codes, scales) = planes(e);
        (0..rows * cols).map(|i| e2m1(codes[i / 2] >> (4 * (i % 2)) & 15) * e4m3(scales[i / 16])).collect()
    };
    // Separate experts of NVFP4, each with a factor: in a tensor of its own, or one of them all.
    for (form, factor) in [
        (ScaleForm::Times, (|v| v) as fn(f32) -> f32),
        (ScaleForm::Over, |v| 1.0 / v),
        (ScaleForm::MaxAbs, |v| v / 2688.0),
    ] {
        let mut tensors = vec![stored("factors", "F16", &[experts, 1], halves(&stored_factors[..experts]))];
        let mut pieces = vec![];
        for (e, &own_factor) in stored_factors[..experts].iter().enumerate() {
            let (codes, scales) = planes(e);
            tensors.push(stored(&format!("w{e}"), "U8", &[rows, cols / 2], codes));
            tensors.push(stored(&format!("s{e}"), "F8_E4M3", &[rows, cols / 16], scales));
            tensors.push(stored(&format!("f{e}"), "F32", &[], f32s(&[own_factor])));
            let piece = piece(&[&format!("w{e}"), &format!("s{e}")], 0, rows as u32);
            let own = format!("f{e}");
            let (tensor, index) = if e == 1 { ("factors", 1) } else { (own.as_str(), 0) };
            pieces.push(scaled(piece, tensor, Some(index), form));
        }
        let model = one(matrix(Format::Nvfp4Scaled, cols as u32, experts as u32, pieces));
        let expected: Vec<f32> = (0..experts)
            .flat_map(|e| unscaled(e).into_iter().map(move |v| (e, v)))
            .map(|(e, v)| v * factor(stored_factors[e]))
            .collect();
        assert_close(&loaded(&model, &tensors, 0), &expected);
    }
    // FP8: one factor for each row, from the piece's first on; and none at all.
    let codes = numbers(all * cols, 77);
    let tensors = [
        stored("w", "F8_E4M3", &[experts, rows, cols], codes.clone()),
        stored("rows", "BF16", &[experts, rows, 1], bf16s(&stored_factors)),
    ];
    let part = |first: usize, rows: usize| piece(&["w"], first as u32, rows as u32);
    let pieces = vec![scaled(part(5, all - 5), "rows", None, ScaleForm::Times), part(0, 5)];
    let got = loaded(&one(matrix(Format::Fp8, cols as u32, 1, pieces)), &tensors, 0);
    let row = |r: usize| codes[r * cols..(r + 1) * cols].iter().map(|&code| e4m3(code));
    let scaled = (5..all).flat_map(|r| row(r).map(move |v| (r, v))).map(|(r, v)| v * stored_factors[r]);
    assert_close(&got, &scaled.chain((0..5).flat_map(row)).collect::<Vec<_>>());
}

/// f16 of quarters below 2048.
fn halves(values: &[f32]) -> Vec<u8> {
    let half = |v: &f32| {
        let bits = v.to_bits();
        ((bits >> 16 & 0x8000) | (((bits >> 23 & 0xFF) - 112) << 10) | (bits >> 13 & 0x3FF)) as u16
    };
    values.iter().flat_map(|v| half(v).to_le_bytes()).collect()
}

/// An NVFP4 matrix of two pieces, its factors of either, and its tensors.
fn good() -> (Model, Vec<Stored>) {
    let planes = ["w", "s"];
    let pieces = vec![
        scaled(piece(&planes, 0, 6), "f", Some(0), ScaleForm::Over),
        scaled(piece(&planes, 6, 4), "rows", None, ScaleForm::Times),
    ];
    let tensors = vec![
        stored("w", "U8", &[10, 16], noise(160, 1)),
        stored("s", "F8_E4M3", &[10, 2], vec![0x38; 20]),
        stored("f", "F32", &[1], f32s(&[2.0])),
        stored("rows", "F32", &[10, 1], f32s(&[1.0; 10])),
    ];
    (one(matrix(Format::Nvfp4Scaled, 32, 1, pieces)), tensors)
}

#[test]
fn planes_and_factors_that_do_not_fit_are_refused_by_name() {
    let device = device();
    type Change = fn(&mut Model, &mut Vec<Stored>);
    let cases: [(Change, &[&str]); 19] = [
        (|_, _| (), &[]),
        (|_, t| t[1].0 = "other".into(), &["tensor s is missing"]),
        (|_, t| t[2].0 = "other".into(), &["tensor f is missing"]),
        (|_, t| t[1] = stored("s", "F8_E5M2", &[10, 2], vec![0x38; 20]), &["tensor s", "plane 1", "f8_e5m2"]),
        (|_, t| t[0] = stored("w", "BF16", &[10, 8], vec![0; 160]), &["tensor w", "plane 0", "bf16"]),
        (
            |_, t| t[1] = stored("s", "U8", &[9, 2], vec![0x38; 18]),
            &["rows of tensor s", "10, as w has", "9"],
        ),
        (
            |_, t| t[1] = stored("s", "U8", &[5, 2], vec![0x38; 10]),
            &["tensor s", "6 rows of 2 bytes", "[5, 2]"],
        ),
        (
            |_, t| t[1] = stored("s", "U8", &[10, 3], vec![0x38; 30]),
            &["tensor s", "rows of 2 bytes", "[10, 3]"],
        ),
        (
            |_, t| t[1] = stored("s", "U8", &[11, 2], vec![0x38; 22]),
            &["rows of tensor s", "10, as w has", "11"],
        ),
        (|_, t| t[0].2 = vec![16, 10], &["tensor w", "rows of 16 bytes", "[16, 10]"]),
        (|m, _| m.matrices[0].source.pieces[1].first_row = 7, &["tensor w", "at least 11 rows"]),
        (|m, _| drop(m.matrices[0].source.pieces[0].planes.pop()), &["tensor w", "nvfp4_scaled", "u8"]),
        (
            |m, _| m.matrices[0].source.pieces[0].transposed = true,
            &["tensor w", "to be transposed", "nvfp4_scaled"],
        ),
        (|_, t| t[2] = stored("f", "U8", &[1], vec![2]), &["tensor f", "f32, f16 or bf16", "u8"]),
        (
            |m, _| m.matrices[0].source.pieces[0].scale.as_mut().unwrap().index = Some(1),
            &["tensor f", "[2]", "[1]"],
        ),
        (|_, t| t[3] = stored("rows", "F32", &[9], f32s(&[1.0; 9])), &["tensor rows", "[10]", "[9]"]),
        (|_, t| t[2].3 = f32s(&[0.0]), &["tensor f, value 0", "reciprocal", "got 0"]),
        (|_, t| t[2].3 = f32s(&[f32::NAN]), &["tensor f, value 0", "got NaN"]),
        (
            |_, t| t[3].3[28..32].copy_from_slice(&f32s(&[f32::INFINITY])),
            &["tensor rows, value 7", "got inf"],
        ),
    ];
    for (change, expected) in cases {
        let (mut model, mut tensors) = good();
        change(&mut model, &mut tensors);
        let plan = plan(device.profile(), &model, 4, STAGING, Role::Matrices);
        let before = device.totals();
        let outcome = load(&device, &model, &checkpoint(&tensors), plan);
        if expected.is_empty() {
            outcome.unwrap();
            continue;
        }
        let error = outcome.unwrap_err().to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(device.totals(), before, "{error}");
    }
    // Formats that end in no factor have none; scales are of the format's own type.
    let affine = Format::Affine { bits: 4, group: 32, scales: ScaleType::F16 };
    let planes = piece(&["w", "s", "b"], 0, 4);
    let tensors = |scales| {
        vec![
            stored("w", "U32", &[4, 8], noise(128, 1)),
            stored("s", scales, &[4, 2], vec![0; 16]),
            stored("b", "F16", &[4, 2], vec![0; 16]),
            stored("f", "F32", &[1], f32s(&[2.0])),
        ]
    };
    let beside = one(matrix(affine, 64, 1, vec![scaled(planes.clone(), "f", Some(0), ScaleForm::Times)]));
    for (model, scales, expected) in [
        (beside, "F16", "use of tensor f: expected no factor beside affine4_g32_f16"),
        (one(matrix(affine, 64, 1, vec![planes])), "BF16", "format of tensor s"),
    ] {
        let plan = plan(device.profile(), &model, 4, STAGING, Role::Matrices);
        let error = load(&device, &model, &checkpoint(&tensors(scales)), plan).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn scales_that_are_not_finite_are_refused_by_tensor_and_row() {
    let device = device();
    // Rows of a piece that does not begin the tensor, behind rows of another; and a product that overflows.
    for (at, row) in [(0, 0), (11, 5), (12, 6), (19, 9)] {
        let (model, mut tensors) = good();
        tensors[1].3[at] = 0x7F;
        let plan = plan(device.profile(), &model, 4, STAGING, Role::Matrices);
        let error = load(&device, &model, &checkpoint(&tensors), plan).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor w, row {row}:")), "{error}");
    }
    let (model, mut tensors) = good();
    tensors[1].3.fill(0x7E);
    tensors[0].3.fill(0x77);
    tensors[3].3[32..36].copy_from_slice(&f32s(&[f32::MAX]));
    let plan = plan(device.profile(), &model, 4, STAGING, Role::Matrices);
    let error = load(&device, &model, &checkpoint(&tensors), plan).unwrap_err().to_string();
    assert!(error.contains("tensor w, row 8:"), "{error}");
}

#[test]
fn rows_longer_than_what_is_joined_at_a_time_are_joined_all_the_same() {
    let device = device();
    let (rows, cols) = (12, 20_000);
    let codes = numbers(rows * cols, 4);
    let factors: Vec<f32> = (0..rows).map(|r| 0.5 * (r + 1) as f32).collect();
    let model = one(matrix(
        Format::Fp8,
        cols as u32,
        1,
        vec![scaled(piece(&["w"], 0, rows as u32), "f", None, ScaleForm::Times)],
    ));
    let tensors = |codes: Vec<u8>| {
        checkpoint(&[
            stored("w", "F8_E4M3", &[rows, cols], codes),
            stored("f", "F32", &[rows], f32s(&factors)),
        ])
    };
    // Everything in one task.
    let plan = plan(device.profile(), &model, u32::MAX, 1 << 20, Role::Arena);
    let got = decoded(&device, &model, &tensors(codes.clone()), &plan, 0);
    let expected = codes.iter().enumerate().map(|(i, &code)| e4m3(code) * factors[i / cols]);
    assert_close(&got, &expected.collect::<Vec<_>>());
    let mut spoilt = codes;
    spoilt[9 * cols + 17] = 0xFF;
    let error = load(&device, &model, &tensors(spoilt), plan).unwrap_err().to_string();
    assert!(error.contains("tensor w, row 9:"), "{error}");
}
