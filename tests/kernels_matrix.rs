//! Products, embedding and elementwise kernels against their CPU twins, on whatever adapter there is.
//!
//! Everything runs at WebGPU's default limits. Outputs start as NaNs, rows stand apart with NaNs between them, and
//! what a kernel may not touch must be unchanged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod products;

use plimsoll_kernels::ops::{add, embed, gate, linear, mat_mat, mat_vec, select_rows, softcap};
use plimsoll_kernels::{Call, Format, Record, Reduce, StepShape, Unit, step};
use plimsoll_runtime::lone::{Data, POISON, floats};
use products::*;

#[test]
fn mat_vec_of_every_format() {
    for (index, format) in Format::ALL.into_iter().enumerate() {
        for (i, n) in ODD.into_iter().enumerate() {
            for k in lengths(format) {
                // One and two rows of x in turn; each has a pipeline of its own.
                let t = 1 + (i + index) as u32 % 2;
                let mut args = product(format, n, k, t);
                if i % 3 == 1 {
                    args = linear::Args { out_stride: n + 5, out_column: 2, bias: Some(3), ..args };
                } else if i % 3 == 2 {
                    args = linear::Args { accumulate: true, x_stride: k.next_multiple_of(4) + 4, ..args };
                }
                let lone = lone(true);
                check_product(lone, &linear::plan(lone.profile(), &args), &args, t);
            }
        }
    }
}

#[test]
fn mat_vec_of_every_width_and_way() {
    for (lone, profile) in ways() {
        for format in [Format::F16, Format::Q4K, Format::Q8_0] {
            let k = lengths(format)[1];
            for (max, t) in [(1, 1), (8, 8), (8, 7), (8, 1), (4, 3)] {
                for n in [1, 33, 65] {
                    let args = product(format, n, k, max);
                    check_product(lone, &mat_vec::plan(&profile, &args), &args, t);
                }
            }
        }
    }
}

#[test]
fn mat_mat_of_every_format() {
    for (index, format) in Format::ALL.into_iter().enumerate() {
        for (lone, profile) in [(lone(true), lone(true).profile().clone()), (lone(true), as_gpu(lone(true)))]
        {
            for (i, n) in ODD.into_iter().enumerate() {
                let t = ODD[(i * 4 + index) % ODD.len()];
                let mut args = product(format, n, lengths(format)[i % 2], t.max(9));
                if i % 3 == 1 {
                    args = linear::Args { out_stride: n + 5, out_column: 2, bias: Some(3), ..args };
                } else if i % 3 == 2 {
                    args = linear::Args { accumulate: true, x_stride: args.k + 4, ..args };
                }
                check_product(lone, &mat_mat::plan(&profile, &args), &args, t);
            }
        }
    }
}

#[test]
fn mat_mat_of_every_size_and_way() {
    for (lone, profile) in ways() {
        for format in [Format::F32, Format::Q4K] {
            for n in ODD {
                for t in ODD {
                    let args = product(format, n, lengths(format)[0], t);
                    check_product(lone, &mat_mat::plan(&profile, &args), &args, t);
                }
            }
        }
    }
}

#[test]
fn embedding_of_every_format() {
    let lone = lone(true);
    for format in Format::ALL {
        for width in lengths(format) {
            let args = embed::Args {
                format,
                width,
                first_row: 10,
                rows: 7,
                scale: 1.5,
                ids: step::HEADER_WORDS,
                out_stride: width + 3,
            };
            let ids = [10, 16, 9, 17, 12, 0, 12, u32::MAX];
            let table = records(format, args.rows, width, 99);
            let words = [header(ids.len() as u32, 0), ids.to_vec()].concat();
            let mut expected = vec![f32::from_bits(POISON); ids.len() * args.out_stride as usize];
            let before = Data::F32(expected.clone());
            embed::twin(&args, &ids, &table, &mut expected);
            let call = embed::plan(lone.profile(), &args);
            let got = lone
                .run(&call, &words, &[Data::Bytes(table), before], &shape(ids.len() as u32, 0), None)
                .unwrap();
            for (i, (got, expected)) in floats(&got[0]).iter().zip(&expected).enumerate() {
                let same = got.to_bits() == expected.to_bits()
                    || (got - expected).abs() <= 2e-5 * expected.abs().max(1e-2);
                assert!(same, "{format} width {width}, value {i}: {got} is not {expected}");
            }
        }
    }
}

/// Runs an elementwise kernel and compares relatively; what the twin leaves must be untouched.
fn check_values(
    call: &Call,
    words: &[u32],
    operands: &[Data],
    step: &StepShape,
    expected: &[f32],
    within: f32,
) {
    let got = lone(false).run(call, words, operands, step, None).unwrap();
    for (i, (got, expected)) in floats(&got[0]).iter().zip(expected).enumerate() {
        let same =
            got.to_bits() == expected.to_bits() || (got - expected).abs() <= within * expected.abs() + 1e-30;
        assert!(same, "{}, value {i}: {got:e} is not {expected:e}", call.kernel.name());
    }
}

#[test]
fn elementwise_kernels() {
    let profile = lone(false).profile();
    for (rows, width) in [(1, 1), (2, 255), (3, 256), (2, 257), (33, 65)] {
        let (x_stride, out_stride) = (2 * width + 3, width + 1);
        let unit = Unit::Tokens;
        let (words, step) = (header(rows, 0), shape(rows, 0));
        // Values from tiny to far beyond where the functions are flat.
        let mut x = spaced(rows, 2 * width, x_stride, 21);
        for (i, v) in x.iter_mut().enumerate() {
            *v *= [1.0, 10.0, 100.0, 1e4, 1e-3, 0.1, 1e15][i % 7];
        }
        let poison = vec![f32::from_bits(POISON); (rows * out_stride) as usize];
        for activation in [gate::Activation::Silu, gate::Activation::GeluTanh] {
            let args = gate::Args { activation, width, x_stride, out_stride, unit };
            let mut expected = poison.clone();
            gate::twin(&args, rows as usize, &x, &mut expected);
            // Where 1 + tanh cancels, what is left is as exact as f32 near 1: compare without those.
            let call = gate::plan(profile, &args);
            let got = lone(false).run(
                &call,
                &words,
                &[Data::F32(x.clone()), Data::F32(poison.clone())],
                &step,
                None,
            );
            for (i, (got, expected)) in floats(&got.unwrap()[0]).iter().zip(&expected).enumerate() {
                let (row, column) = (i as u32 / out_stride, i as u32 % out_stride);
                if column >= width {
                    assert_eq!(got.to_bits(), POISON);
                    continue;
                }
                let at = (row * x_stride + column) as usize;
                let size = (x[at] * x[at + width as usize]).abs();
                let bound = 1e-6 * size + 2e-5 * expected.abs().min(1e-3 * size) + 1e-30;
                assert!(
                    (got - expected).abs() <= bound,
                    "{activation:?} of {}: {got:e}, not {expected:e}",
                    x[at]
                );
            }
        }
        let args = softcap::Args { width, stride: x_stride, cap: 30.0, unit };
        let mut expected = x.clone();
        softcap::twin(&args, rows as usize, &mut expected);
        check_values(&softcap::plan(profile, &args), &words, &[Data::F32(x.clone())], &step, &expected, 2e-6);

        let args = add::Args { width, x_stride, out_stride, unit };
        let before = spaced(rows, width, out_stride, 4);
        let mut expected = before.clone();
        add::twin(&args, rows as usize, &x, &mut expected);
        let operands = [Data::F32(x.clone()), Data::F32(before)];
        check_values(&add::plan(profile, &args), &words, &operands, &step, &expected, 0.0);

        let wanted: Vec<u32> = [rows - 1, 0, rows / 2].to_vec();
        let words = [header(rows, 3), wanted.clone()].concat();
        let args = select_rows::Args { width, rows: step::HEADER_WORDS, x_stride, out_stride };
        let mut expected = vec![f32::from_bits(POISON); (3 * out_stride) as usize];
        let before = Data::F32(expected.clone());
        select_rows::twin(&args, &wanted, &x, &mut expected);
        let call = select_rows::plan(profile, &args);
        check_values(&call, &words, &[Data::F32(x), before], &shape(rows, 3), &expected, 0.0);
    }
}

/// A dispatch of more than 65,535 workgroups is folded: no row is lost, none is written twice.
#[test]
fn engine_bug_06a_gemv_65536_rows() {
    let lone = lone(true);
    let args = product(Format::Q4_0, 65_536, 32, 1);
    check_product(lone, &linear::plan(lone.profile(), &args), &args, 1);
    // One row a workgroup: the count itself passes the limit.
    let mut profile = lone.profile().clone();
    profile.tuning.mat_vec_rows = 1;
    let args = product(Format::Q4_0, 65_537, 32, 1);
    check_product(lone, &linear::plan(&profile, &args), &args, 1);
}

/// 250·250 + 250·250 passes what an f16 holds: every variant accumulates in f32.
#[test]
fn engine_bug_07_f32_accumulation() {
    for (lone, profile) in ways() {
        for t in [1, 8, 33] {
            let args = product(Format::F16, 3, 2, t);
            let record = Record::new(Format::F16, 2).unwrap();
            let row: Vec<u8> = [0x5BD0u16; 2].into_iter().flat_map(u16::to_le_bytes).collect();
            let mut packed = vec![0; record.stride() as usize * 3];
            record.repack(&row.repeat(3), &mut packed).unwrap();
            let x = vec![250.0; 2 * t as usize];
            let operands = [Data::Bytes(packed), Data::F32(x), Data::Poison(3 * t as usize), Data::Poison(1)];
            let call = linear::plan(&profile, &args);
            let got = lone.run(&call, &header(t, 0), &operands, &shape(t, 0), None).unwrap();
            assert_eq!(floats(&got[0]), vec![125_000.0; 3 * t as usize], "{}", call.kernel.name());
        }
    }
}

/// No kernel assumes a subgroup size: with the adapter's own, with several subgroups a workgroup, and with none, a
/// product is right, and the same bits come out every time.
#[test]
fn engine_bug_11_any_subgroup_size() {
    for (lone, mut profile) in ways() {
        for workgroup in [8, 16, 64] {
            profile.tuning.mat_vec_workgroup = workgroup;
            let square = product(Format::F32, 32, 32, 32);
            let reduction = product(Format::F32, 1, 33, 1);
            let calls = [
                (mat_mat::plan(&profile, &square), &square, 32),
                (mat_vec::plan(&profile, &reduction), &reduction, 1),
            ];
            for (call, args, t) in calls {
                let first = check_product(lone, &call, args, t);
                for _ in 0..3 {
                    assert_eq!(
                        check_product(lone, &call, args, t),
                        first,
                        "{} changes its mind",
                        call.kernel.name()
                    );
                }
            }
        }
        // A reduction that may not use subgroups although the device has them.
        profile.tuning.reduce = Reduce::Shared;
        let reduction = product(Format::F32, 1, 33, 1);
        check_product(lone, &mat_vec::plan(&profile, &reduction), &reduction, 1);
    }
}

/// No part of a tile stays unwritten: outputs start as NaNs, and none is left.
#[test]
fn engine_bug_12_every_tile_written() {
    for (lone, profile) in ways() {
        for n in [33, 63, 64, 65] {
            for t in [33, 64, 65] {
                let args = product(Format::Q8_0, n, 64, t);
                let out = check_product(lone, &mat_mat::plan(&profile, &args), &args, t);
                assert!(floats(&out).iter().all(|v| v.is_finite()), "n {n}, t {t}");
            }
        }
    }
}
