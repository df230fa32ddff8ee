//! Every storage format against published reference values, and every record against its checkpoint rows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rows;

use plimsoll_kernels::dequant::{dequantize, dequantize_rows, first_not_finite, first_row_not_finite};
use plimsoll_kernels::{Format, Record};
use proptest::prelude::*;
use rows::random_rows;
use safetensors::SafeTensors;

const VECTORS: &[u8] = include_bytes!("../../tests/data/golden/gguf_quant_vectors.safetensors");

/// The name of a format in the vectors.
fn reference_name(format: Format) -> String {
    format.name().to_uppercase()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Distance in units of the last place.
fn ulps(a: f32, b: f32) -> u32 {
    let key = |x: f32| {
        let bits = x.to_bits() as i32;
        if bits < 0 { i32::MIN - bits } else { bits }
    };
    if a == b { 0 } else { key(a).abs_diff(key(b)) }
}

/// Blocks decode to the reference's values: exactly, but one unit in the last place where a scale, a product and a
/// minimum round (the reference sums in another order).
#[test]
fn blocks_decode_to_reference_values() {
    let vectors = SafeTensors::deserialize(VECTORS).unwrap();
    let mut seen = 0;
    for format in Format::ALL {
        for (bytes, values) in [("raw", "values"), ("quantized", "roundtrip")] {
            let name = reference_name(format);
            let Ok(blocks) = vectors.tensor(&format!("{name}.{bytes}")) else { continue };
            let expected = floats(vectors.tensor(&format!("{name}.{values}")).unwrap().data());
            let mut got = vec![f32::NAN; expected.len()];
            dequantize(format, blocks.data(), &mut got);
            let worst = got.iter().zip(&expected).map(|(a, b)| ulps(*a, *b)).max().unwrap();
            assert_eq!(worst, 0, "{name}.{values}: {worst} units in the last place");
            seen += 1;
        }
    }
    // 13 quantised formats with random blocks, 8 formats with quantised text.
    assert_eq!(seen, 21, "vectors of some format are missing");
}

/// Repacking loses nothing: a decoded record is the dequantised row, bit for bit.
fn record_is_row(format: Format, rows: usize, cols: u32, seed: u64) {
    let source = random_rows(format, rows, cols, seed);
    let record = Record::new(format, cols).unwrap();
    let stride = record.stride() as usize;
    let row_bytes = source.len() / rows;
    assert_eq!(stride % 16, 0);
    if !format.is_float() {
        // Rows of single bytes are filled up to whole octs.
        let filled = if format == Format::Fp8 { cols.next_multiple_of(8) - cols } else { 0 };
        let expected = (row_bytes + filled as usize).next_multiple_of(16);
        assert_eq!(stride, expected, "{format}: no bytes but padding");
    }
    assert_eq!(u64::from(record.rows_per_shard_unit()) * record.stride() % 256, 0);
    let mut packed = vec![0xA5; stride * rows];
    record.repack(&source, &mut packed).unwrap();
    let mut expected = vec![0.0; cols as usize];
    let mut got = vec![f32::NAN; cols as usize];
    for row in 0..rows {
        dequantize_rows(format, cols, &source[row * row_bytes..][..row_bytes], &mut expected);
        record.decode(&packed[row * stride..][..stride], &mut got);
        let same = got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits() || a == b);
        assert!(same, "{format}, {cols} columns, row {row}: {got:?} is not {expected:?}");
    }
}

#[test]
fn records_hold_what_rows_hold() {
    for format in Format::every() {
        for blocks in [1, 2, 3, 5, 8, 9] {
            record_is_row(format, 3, blocks * format.block_len() as u32, 0x5EED + u64::from(blocks));
        }
    }
    for cols in 1..20 {
        for format in [Format::F32, Format::F16, Format::BF16, Format::Fp8] {
            record_is_row(format, 2, cols, u64::from(cols));
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let record = Record::new(Format::Q4_0, 64).unwrap();
    assert_eq!(record.stride(), 48);
    assert!(record.repack(&[0; 35], &mut [0; 48]).is_err());
    assert!(record.repack(&[0; 36], &mut [0; 47]).is_err());
    assert_eq!(Record::new(Format::Q4_0, 33), None);
    assert_eq!(Record::new(Format::F32, 0), None);
    assert_eq!(Record::new(Format::F32, u32::MAX), None);
    // A short record decodes to something rather than stopping the program.
    record.decode(&[1, 2, 3], &mut [0.0; 64]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_row_survives(format in 0usize..Format::ALL.len(), blocks in 1u32..6, rows in 1usize..4, seed: u64) {
        let format = Format::ALL[format];
        record_is_row(format, rows, blocks * format.block_len() as u32, seed);
    }
}

/// A block is called finite exactly when all it decodes to is: any bytes may stand in a checkpoint.
#[test]
fn blocks_that_are_not_finite_are_found() {
    for format in Format::ALL {
        let size = format.block_bytes();
        let mut whole = random_rows(format, 1, 1024, 3);
        whole.truncate(whole.len() - format.row_tail());
        assert_eq!(first_not_finite(format, &whole), None, "{format}");
        let at = whole.len() / size - 1;
        // Each byte of a block, with all its bits or with the exponents of infinities of both signs.
        let mut found = 0;
        for byte in 0..size {
            for (value, before) in [
                (0xFF, None),
                (0xFE, None),
                (0x7C, Some(0)),
                (0xFC, Some(0)),
                (0x7F, Some(0x80)),
                (0xFF, Some(0x80)),
                (0x7F, Some(0x7F)),
            ] {
                let mut blocks = whole.clone();
                let block = &mut blocks[at * size..];
                block[byte] = value;
                if let (Some(before), Some(b)) = (before, byte.checked_sub(1)) {
                    block[b] = before;
                }
                let mut values = vec![0.0; format.block_len()];
                dequantize(format, block, &mut values);
                // 2^127, doubled values and more: what MXFP4 calls NaN need not overflow.
                let nan = format == Format::Mxfp4 && block[0] == 0xFF;
                let bad = nan || values.iter().any(|v| !v.is_finite());
                assert_eq!(
                    first_not_finite(format, &blocks),
                    bad.then_some(at),
                    "{format}, byte {byte}: {value}"
                );
                found += u32::from(bad);
            }
        }
        assert!(found > 0, "{format}");
    }
}

/// Factors of rows count too, and what only the product with one makes infinite.
#[test]
fn rows_that_are_not_finite_are_found() {
    for format in Format::ALL {
        let cols = 3 * format.block_len() as u32;
        let rows = random_rows(format, 3, cols, 11);
        let bytes = rows.len() / 3;
        assert_eq!(first_row_not_finite(format, cols, &rows), None, "{format}");
        assert_eq!(first_row_not_finite(format, cols, &[]), None, "{format}");
        let set = |row: usize, at: usize, with: &[u8]| {
            let mut rows = rows.clone();
            rows[row * bytes + at..][..with.len()].copy_from_slice(with);
            first_row_not_finite(format, cols, &rows)
        };
        if format == Format::Fp8 {
            assert_eq!(set(1, 2, &[0x7F]), Some(1));
            // The largest number: a factor of 2^119 keeps it one, 2^120 does not, and 2^120 of small ones is finite.
            for (code, factor, found) in [(0x7E, 119, None), (0x7E, 120, Some(2)), (0x38, 120, None)] {
                let row = [&[code; 3][..], &2f32.powi(factor).to_le_bytes()].concat();
                assert_eq!(set(2, 0, &row), found, "{code}, {factor}");
            }
        }
        if format.row_tail() > 0 {
            for factor in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert_eq!(set(2, bytes - 4, &factor.to_le_bytes()), Some(2), "{format}");
            }
            assert_eq!(set(2, bytes - 4, &0f32.to_le_bytes()), None, "{format}");
        }
    }
}

#[test]
fn formats_go_through_serde() {
    for format in Format::every() {
        let text = serde_json::to_string(&format).unwrap();
        assert_eq!(serde_json::from_str::<Format>(&text).unwrap(), format, "{text}");
    }
}
