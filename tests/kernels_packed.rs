//! Products and embeddings of weights as MLX, modelopt and compressed-tensors pack them, on whatever adapter there is: against
//! the products of MLX and against the CPU twins, at WebGPU's default limits, with subgroups and without, into outputs
//! filled with NaNs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod products;
#[path = "../kernels/tests/vectors/mod.rs"]
mod vectors;

use plimsoll_kernels::format::ScaleType;
use plimsoll_kernels::ops::{embed, linear, mat_mat, mat_vec};
use plimsoll_kernels::{Format, Record, step};
use plimsoll_runtime::lone::{Data, POISON, floats};
use products::*;
use vectors::{Matrix, matrices};

/// A matrix as the device holds it.
fn records_of(m: &Matrix) -> Vec<u8> {
    let record = Record::new(m.format, m.cols as u32).unwrap();
    let mut packed = vec![0xA5; record.stride() as usize * m.rows];
    record.repack(&m.gathered(), &mut packed).unwrap();
    packed
}

/// Rows of x in turn, `t` of them.
fn rows_of(x: &[f32], cols: usize, t: u32) -> Vec<f32> {
    let rows = x.len() / cols;
    (0..t as usize).flat_map(|i| &x[i % rows * cols..][..cols]).copied().collect()
}

/// `x·Wᵀ` of every matrix by each kernel with subgroups and without (the affine ones with f32 scales, of which there are
/// many, with the tuning of a GPU and of this adapter in turn, the others with both), within a few units in the last place of the sum of magnitudes of
/// the twin with f64 sums and of MLX's product.
#[test]
fn products_are_the_references() {
    let mut compared = 0;
    for (index, m) in matrices().into_iter().enumerate() {
        let (n, k) = (m.rows as u32, m.cols as u32);
        let weights = records_of(&m);
        let x = if k == 256 { vectors::x() } else { noise(3 * m.cols, 17) };
        let many = matches!(m.format, Format::Affine { scales: ScaleType::F32, .. });
        let ways = ways().into_iter().enumerate().filter(|(way, _)| !many || (way + index) % 2 == 0);
        for (_, (lone, profile)) in ways {
            for (t, vec) in [(1, true), (3, true), (8, true), (3, false), (11, false)] {
                let args = product(m.format, n, k, t);
                let plan = if vec { mat_vec::plan } else { mat_mat::plan };
                let call = plan(&profile, &args);
                let x = rows_of(&x, m.cols, t);
                let got = floats(&check_product_of(lone, &call, &args, t, &weights, &x));
                let Some(y) = &m.y else { continue };
                for (i, got) in got.iter().enumerate() {
                    let (row, column) = (i / m.rows, i % m.rows);
                    let y = y[row % 3 * m.rows + column];
                    let w = &m.values[column * m.cols..][..m.cols];
                    let size: f32 = w.iter().zip(&x[row * m.cols..]).map(|(w, x)| (w * x).abs()).sum();
                    assert!(
                        (got - y).abs() <= 1e-5 * size + 1e-30,
                        "{} by {}: ({row}, {column}): {got} is not {y}",
                        m.name,
                        call.kernel.name()
                    );
                    compared += 1;
                }
            }
        }
    }
    // Matrices with a product have 12 rows; 26 rows of x in two ways or four.
    assert_eq!(compared, (21 * 2 + 6 * 4) * 12 * 26);
}

/// Every row of every matrix as an embedding.
#[test]
fn embeddings_are_the_references() {
    for m in matrices() {
        let (rows, width) = (m.rows as u32, m.cols as u32);
        let args = embed::Args {
            format: m.format,
            width,
            first_row: 0,
            rows,
            scale: 1.0,
            ids: step::HEADER_WORDS,
            out_stride: width + 3,
        };
        let table = records_of(&m);
        let ids: Vec<u32> = (0..rows).rev().collect();
        let words = [header(rows, 0), ids.clone()].concat();
        let poison = vec![f32::from_bits(POISON); (rows * args.out_stride) as usize];
        let mut expected = poison.clone();
        embed::twin(&args, &ids, &table, &mut expected);
        for (lone, profile) in ways() {
            let call = embed::plan(&profile, &args);
            let operands = [Data::Bytes(table.clone()), Data::F32(poison.clone())];
            let got = lone.run(&call, &words, &operands, &shape(rows, 0), None).unwrap();
            for (i, (got, twin)) in floats(&got[0]).iter().zip(&expected).enumerate() {
                let (row, column) = (i / args.out_stride as usize, i % args.out_stride as usize);
                if column >= m.cols {
                    assert_eq!(got.to_bits(), POISON, "{}: ({row}, {column})", m.name);
                    continue;
                }
                let at = (m.rows - 1 - row) * m.cols;
                let largest = m.values[at..][..m.cols].iter().fold(0.0f32, |a, v| a.max(v.abs()));
                // Codes with a bias and offsets cancel: a unit in the last place of the largest.
                assert!(
                    (got - twin).abs() <= 2e-7 * largest,
                    "{}: ({row}, {column}): {got} is not {twin}",
                    m.name
                );
            }
        }
    }
}

/// e4m3, alone and as a scale, is exact down to its smallest number, whatever hardware does with small floats.
#[test]
fn every_e4m3_is_exact() {
    let codes: Vec<u8> = (0..=255u8).filter(|c| c & 0x7F != 0x7F).collect();
    // 254 rows of one value and a factor of one; of 16 values of one and a scale.
    let single = codes.iter().flat_map(|c| [&[*c][..], &1f32.to_le_bytes()].concat()).collect::<Vec<u8>>();
    let scales = codes.iter().flat_map(|c| [&[0x22; 8][..], &[*c]].concat()).collect::<Vec<u8>>();
    let scaled = codes.iter().flat_map(|c| [&[0x22; 8][..], &[*c], &0.5f32.to_le_bytes()].concat()).collect();
    let whole = codes.iter().flat_map(|c| [&[*c; 32][..], &[127]].concat()).collect();
    for (format, width, rows, factor) in [
        (Format::Fp8, 1, single, 1.0),
        (Format::Nvfp4, 16, scales, 1.0),
        (Format::Nvfp4Scaled, 16, scaled, 0.5),
        (Format::Mxfp8, 32, whole, 1.0),
    ] {
        let record = Record::new(format, width).unwrap();
        let count = codes.len() as u32;
        let mut table = vec![0; record.stride() as usize * codes.len()];
        record.repack(&rows, &mut table).unwrap();
        let args = embed::Args {
            format,
            width,
            first_row: 0,
            rows: count,
            scale: 1.0,
            ids: step::HEADER_WORDS,
            out_stride: width,
        };
        let words = [header(count, 0), (0..count).collect()].concat();
        let operands = [Data::Bytes(table), Data::Poison((count * width) as usize)];
        for (lone, profile) in ways() {
            let call = embed::plan(&profile, &args);
            let got = lone.run(&call, &words, &operands, &shape(count, 0), None).unwrap();
            for (i, got) in floats(&got[0]).iter().enumerate() {
                let code = codes[i / width as usize];
                let expected = plimsoll_kernels::dequant::e4m3(code) * factor;
                assert_eq!(*got, expected, "{format}: {code:#x}");
            }
        }
    }
}

/// Sizes that are multiples of nothing, in every way.
#[test]
fn odd_sizes_in_every_way() {
    let affine = |bits, group, scales| Format::Affine { bits, group, scales };
    let formats = [
        (Format::Fp8, [1, 7, 33, 130]),
        (Format::Nvfp4, [16, 48, 80, 336]),
        (Format::Nvfp4Scaled, [16, 48, 80, 336]),
        (Format::Mxfp8, [32, 96, 160, 352]),
        (affine(1, 32, ScaleType::F16), [32, 96, 160, 352]),
        (affine(4, 64, ScaleType::BF16), [64, 192, 320, 576]),
        (affine(8, 128, ScaleType::F32), [128, 384, 640, 896]),
    ];
    for (lone, profile) in ways() {
        for (format, lengths) in formats {
            for (i, k) in lengths.into_iter().enumerate() {
                for (j, n) in [1, 5, 33, 65].into_iter().enumerate() {
                    let t = [1u32, 2, 3, 7][(i + j) % 4];
                    let gap = [0, 4, 3][(i + j) % 3];
                    let args = linear::Args {
                        out_stride: n + 2,
                        out_column: 1,
                        x_stride: k + gap,
                        max_rows: t.next_power_of_two(),
                        ..product(format, n, k, t)
                    };
                    check_product(lone, &mat_vec::plan(&profile, &args), &args, t);
                    let t = [1, 9, 33, 65][(2 * i + j) % 4];
                    let args = linear::Args { max_rows: t, ..args };
                    check_product(lone, &mat_mat::plan(&profile, &args), &args, t);
                }
            }
        }
    }
}
