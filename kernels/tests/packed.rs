//! Planes of packed safetensors: what MLX, modelopt and compressed-tensors decode theirs to, and what joining them keeps.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rows;
mod vectors;

use half::bf16;
use plimsoll_kernels::dequant::{dequantize, dequantize_rows, e4m3, e8m0, first_row_not_finite};
use plimsoll_kernels::format::{ScaleType, gather};
use plimsoll_kernels::{Format, Record, RecordError};
use proptest::prelude::*;
use rows::random_rows;
use vectors::{Near, matrices};

/// `code · scale + offset` of every value, rounded to bf16 after each operation as MLX has it.
fn in_bf16(format: Format, rows: &[u8]) -> Vec<f32> {
    let Format::Affine { bits, group, scales: ScaleType::BF16 } = format else { panic!("{format}") };
    let round = |v: f32| bf16::from_f32(v).to_f32();
    let mut all = Vec::new();
    for block in rows.chunks_exact(format.block_bytes()) {
        let (codes, ends) = block.split_at(usize::from(group) / 8 * usize::from(bits));
        let end = |at: usize| bf16::from_le_bytes([ends[at], ends[at + 1]]).to_f32();
        for i in 0..usize::from(group) {
            let bit = |at: usize| u32::from(codes[at / 8] >> (at % 8) & 1);
            let code: u32 = (0..usize::from(bits)).map(|b| bit(i * usize::from(bits) + b) << b).sum();
            all.push(round(round(code as f32 * end(0)) + end(2)));
        }
    }
    all
}

/// Every matrix of the vectors decodes to the reference's values.
#[test]
fn matrices_decode_to_reference_values() {
    let all = matrices();
    // 21 affine with f32 and 3 with bf16, the four others of MLX and its table of e2m1; five of NVIDIA's tools.
    assert_eq!(all.len(), 21 + 3 + 4 + 1 + 5);
    for m in all {
        let rows = m.gathered();
        assert_eq!(first_row_not_finite(m.format, m.cols as u32, &rows), None, "{}", m.name);
        let mut got = vec![f32::NAN; m.rows * m.cols];
        dequantize_rows(m.format, m.cols as u32, &rows, &mut got);
        assert_eq!(got.len(), m.values.len(), "{}", m.name);
        let worst =
            got.iter().zip(&m.values).map(|(a, b)| (a - b).abs() / b.abs().max(1e-30)).fold(0.0, f32::max);
        match m.near {
            Near::Exact => assert!(got == m.values, "{}: {worst:e}", m.name),
            Near::Bf16 => assert!(in_bf16(m.format, &rows) == m.values, "{}", m.name),
            Near::ToBf16 => {
                let rounded: Vec<f32> = got.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
                assert!(rounded == m.values, "{}: {worst:e}", m.name);
            }
        }
        // And the records hold the same.
        let record = Record::new(m.format, m.cols as u32).unwrap();
        let stride = record.stride() as usize;
        let mut packed = vec![0xA5; stride * m.rows];
        record.repack(&rows, &mut packed).unwrap();
        for (row, expected) in packed.chunks_exact(stride).zip(got.chunks_exact(m.cols)) {
            let mut decoded = vec![f32::NAN; m.cols];
            record.decode(row, &mut decoded);
            assert_eq!(decoded, expected, "{}", m.name);
        }
    }
}

#[test]
fn e4m3_has_its_values() {
    let values = vectors::e4m3_values();
    assert_eq!(values.len(), 256);
    for (code, value) in values {
        let got = e4m3(code);
        if code & 0x7F == 0x7F {
            assert!(got.is_nan(), "{code:#x}");
        } else {
            assert_eq!(got.to_bits(), value.to_bits(), "{code:#x}: {got} is not {value}");
        }
    }
    for e in 0..=254 {
        assert_eq!(f64::from(e8m0(e)), 2f64.powi(i32::from(e) - 127));
    }
    assert!(e8m0(255).is_nan());
}

#[test]
fn mxfp8_has_every_code() {
    // All codes as a matrix of 8 blocks, with a scale of 2^0 each.
    let values = vectors::mxfp8_values();
    assert_eq!(values.len(), 256);
    let codes: Vec<u8> = (0..=255).collect();
    let (mut row, mut got) = (vec![0; Format::Mxfp8.row_bytes(256).unwrap() as usize], vec![0.0; 256]);
    gather(Format::Mxfp8, &[&codes, &[127; 8]], 1.0, &mut row).unwrap();
    dequantize(Format::Mxfp8, &row, &mut got);
    for (code, (got, value)) in got.iter().zip(values).enumerate() {
        assert!(
            got.to_bits() == value.to_bits() || got.is_nan() && value.is_nan(),
            "{code:#x}: {got}, {value}"
        );
    }
}

/// Splits a row of blocks into its planes by their definition, value by value: the opposite of `gather`.
fn planes_of(format: Format, cols: usize, row: &[u8]) -> Vec<Vec<u8>> {
    let mut planes: Vec<Vec<u8>> = format.planes(cols as u64).unwrap().iter().map(|_| Vec::new()).collect();
    let blocks = row.len() - format.row_tail();
    for block in row[..blocks].chunks_exact(format.block_bytes()) {
        match format {
            Format::Affine { bits, group, scales } => {
                let codes = usize::from(group) * usize::from(bits) / 8;
                planes[0].extend(&block[..codes]);
                planes[1].extend(&block[codes..][..scales.bytes()]);
                planes[2].extend(&block[codes + scales.bytes()..]);
            }
            Format::Mxfp4 => {
                let nibble = |i: usize| block[1 + i % 16] >> (4 * (i / 16)) & 15;
                planes[0].extend((0..16).map(|j| nibble(2 * j) | nibble(2 * j + 1) << 4));
                planes[1].push(block[0]);
            }
            Format::Fp8 => planes[0].extend(block),
            _ => {
                let (scale, codes) = block.split_last().unwrap();
                planes[0].extend(codes);
                planes[1].push(*scale);
            }
        }
    }
    planes
}

fn packed_formats() -> Vec<Format> {
    Format::every().filter(|f| f.planes(f.block_len() as u64).is_some()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Joined planes are the row they came from.
    #[test]
    fn gathered_planes_are_the_row(index in 0usize..68, blocks in 0usize..6, seed: u64) {
        let formats = packed_formats();
        prop_assert_eq!(formats.len(), 68);
        let format = formats[index];
        let cols = blocks * format.block_len();
        let row = random_rows(format, 1, cols as u32, seed);
        let planes = planes_of(format, cols, &row);
        let sizes: Vec<u64> = planes.iter().map(|p| p.len() as u64).collect();
        prop_assert_eq!(format.planes(cols as u64), Some(sizes));
        let factor = row.last_chunk().map_or(0.0, |b| f32::from_le_bytes(*b));
        let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
        let mut joined = vec![0xA5; row.len()];
        gather(format, &planes, factor, &mut joined).unwrap();
        prop_assert_eq!(joined, row);
    }

    /// Any lengths at all: joined or refused.
    #[test]
    fn wrong_lengths_are_errors(
        index in 0usize..Format::ALL.len(),
        sizes in prop::collection::vec(0usize..80, 0..5),
        row in 0usize..300,
    ) {
        let format = Format::ALL[index];
        let bytes = [0x55; 80];
        let planes: Vec<&[u8]> = sizes.iter().map(|s| &bytes[..*s]).collect();
        let mut out = vec![0; row];
        let whole = row.checked_sub(format.row_tail()).filter(|b| b % format.block_bytes() == 0);
        let expected = whole.and_then(|b| format.planes((b / format.block_bytes() * format.block_len()) as u64));
        let fits = expected == Some(sizes.iter().map(|s| *s as u64).collect());
        prop_assert_eq!(gather(format, &planes, 1.0, &mut out).is_ok(), fits);
    }
}

#[test]
fn errors_name_what_does_not_fit() {
    let format = Format::from_name("affine4_g64_bf16").unwrap();
    let (codes, ends) = ([0; 64], [0; 4]);
    let mut row = [0; 72];
    assert_eq!(gather(format, &[&codes, &ends, &ends], 0.0, &mut row), Ok(()));
    let refused = |planes: &[&[u8]], row: &mut [u8]| gather(format, planes, 0.0, row).unwrap_err();
    assert_eq!(refused(&[&codes, &ends, &ends], &mut [0; 71]), RecordError::Row { format, got: 71 });
    assert_eq!(refused(&[&codes, &ends], &mut row), RecordError::Planes { format, expected: 3, got: 2 });
    assert_eq!(
        refused(&[&codes, &ends[..2], &ends], &mut row),
        RecordError::Plane { format, plane: 1, expected: 4, got: 2 }
    );
    // Formats that come as blocks have no planes.
    let format = Format::Q4_0;
    assert_eq!(
        gather(format, &[&[0; 18]], 0.0, &mut [0; 18]),
        Err(RecordError::Planes { format, expected: 0, got: 1 })
    );
    assert_eq!(
        gather(format, &[], 0.0, &mut [0; 18]),
        Err(RecordError::Planes { format, expected: 0, got: 0 })
    );
}

/// Rows decode one by one, to the factor of their own; what is not whole is left alone.
#[test]
fn rows_have_their_own_factors() {
    let rows: Vec<u8> =
        [1.0f32, -0.5].iter().flat_map(|f| [&[0x38; 3][..], &f.to_le_bytes()].concat()).collect();
    let mut out = [9.0; 7];
    dequantize_rows(Format::Fp8, 3, &rows, &mut out);
    assert_eq!(out, [1.0, 1.0, 1.0, -0.5, -0.5, -0.5, 9.0]);
    let mut out = [9.0; 3];
    dequantize(Format::Fp8, &rows[7..10], &mut out);
    assert_eq!(out, [1.0; 3], "blocks by themselves have no factor");
    dequantize_rows(Format::Mxfp4, 33, &[0; 17], &mut out);
    dequantize_rows(Format::Fp8, 3, &rows[..6], &mut out);
    dequantize_rows(Format::Fp8, 0, &rows, &mut out);
    assert_eq!(out, [1.0; 3]);
}
