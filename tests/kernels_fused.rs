//! Mat-vecs that take in the norm before them and give out what the gate after them makes, against their CPU twin.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod products;

use plimsoll_kernels::Format;
use plimsoll_kernels::ops::gate::Activation;
use plimsoll_kernels::ops::{linear, mat_vec};
use plimsoll_runtime::lone::{Data, floats};
use products::*;

/// The norm whose weight stands behind `n` pairs of biases.
fn norm(n: u32, plus_one: bool) -> Option<linear::Norm> {
    Some(linear::Norm { weight: (3 + 2 * n).next_multiple_of(4), plus_one, eps: 1e-5 })
}

/// A length of rows of vec4s for a format.
fn length(format: Format) -> u32 {
    let block = format.block_len() as u32;
    if block >= 32 { 3 * block } else { 88u32.next_multiple_of(block.max(8)) }
}

#[test]
fn every_format_takes_a_norm_in_and_gives_a_gate_out() {
    let lone = lone(true);
    for (index, format) in Format::ALL.into_iter().enumerate() {
        // Each of the two is an end of the body for itself, so a pipeline a format has both.
        let (n, k, t) = ([1, 17, 33][index % 3], length(format), 1 + index as u32 % 2);
        let args = linear::Args {
            norm: norm(n, index % 2 == 1),
            gate: Some(Activation::Silu),
            bias: (index % 2 == 0).then_some(3),
            out_stride: n + 3,
            out_column: 1,
            ..product(format, n, k, t)
        };
        assert!(linear::takes(lone.profile(), args.max_rows, k, args.x_stride));
        check_product(lone, &linear::plan(lone.profile(), &args), &args, t);
    }
}

#[test]
fn every_way_that_takes_them() {
    let mut ways_that_take = 0;
    for (way, (lone, profile)) in ways().into_iter().enumerate() {
        let (format, other) = [(Format::Q4_1, Format::F16), (Format::Q4K, Format::Q4_1)][way % 2];
        let k = length(format);
        if !linear::takes(&profile, 1, k, k) {
            continue;
        }
        ways_that_take += 1;
        let check = |format, n, max, t, norm, gate, accumulate| {
            let bias = (n == 16).then_some(3);
            let args =
                linear::Args { norm, gate, bias, accumulate, ..product(format, n, length(format), max) };
            check_product(lone, &mat_vec::plan(&profile, &args), &args, t);
        };
        for (n, t) in [(1, 7), (16, 8), (35, 1), (64, 5)] {
            check(format, n, 8, t, norm(n, way % 2 == 1), Some(Activation::GeluTanh), false);
        }
        for n in [1, 16, 35] {
            check(format, n, 1, 1, norm(n, n == 16), None, n == 35);
            check(other, n, 4, 3, None, Some([Activation::Sigmoid, Activation::ReluSquared][way % 2]), false);
        }
    }
    // The adapter as it is where it has subgroups, and as a GPU with and without.
    assert!(ways_that_take >= 3, "{ways_that_take}");
}

/// A tuning file may ask for any number of rows; both sides of a gate have as many.
#[test]
fn any_number_of_rows_has_both_sides() {
    let (format, n, k) = (Format::Q8_0, 57, 96);
    for (lone, own) in ways().into_iter().filter(|(_, profile)| linear::takes(profile, 1, 96, 96)) {
        for rows in [1, 3, 8, 24, 40, 64] {
            let mut profile = own.clone();
            profile.tuning.mat_vec_rows = rows;
            let args = linear::Args {
                norm: norm(n, false),
                gate: Some(Activation::Silu),
                ..product(format, n, k, 1)
            };
            check_product(lone, &mat_vec::plan(&profile, &args), &args, 1);
        }
    }
}

#[test]
fn rows_that_no_norm_can_have_are_nan_and_zeros_stay_zeros() {
    let (lone, n, k) = (lone(true), 5, 96);
    let args = linear::Args { norm: norm(n, false), ..product(Format::F32, n, k, 4) };
    let vectors = vec![1e6; (args.norm.unwrap().weight + k) as usize];
    let mut x = vec![0.0; 4 * k as usize];
    x[k as usize + 1] = f32::INFINITY;
    x[2 * k as usize + 2] = f32::NAN;
    // With these weights a sum that was not scaled before would be 10^40.
    x[3 * k as usize..].fill(1e27);
    let weights: Vec<f32> = vec![1e5; (n * k) as usize];
    let operands = [
        Data::Bytes(bytemuck::cast_slice(&weights).to_vec()),
        Data::F32(x),
        Data::F32(vec![0.0; 4 * n as usize]),
        Data::F32(vectors),
    ];
    let call = linear::plan(lone.profile(), &args);
    let got = lone.run(&call, &header(4, 0), &operands, &shape(4, 0), None).unwrap();
    let got = floats(&got[0]);
    assert_eq!(got[..5], [0.0; 5]);
    assert!(got[5..15].iter().all(|v| v.is_nan()), "{got:?}");
    assert!(got[15..].iter().all(|v| (v / 96e11 - 1.0).abs() < 1e-5), "{got:?}");
}
