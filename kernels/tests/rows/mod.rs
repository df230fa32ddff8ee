//! Rows of every format for tests.

use plimsoll_kernels::Format;
use plimsoll_kernels::format::ScaleType;

/// Pseudo-random checkpoint rows with finite, moderate scales of both signs: values of about 1 and less.
pub fn random_rows(format: Format, rows: usize, cols: u32, seed: u64) -> Vec<u8> {
    let bytes = format.row_bytes(u64::from(cols)).unwrap() as usize * rows;
    let mut state = seed | 1;
    let mut out: Vec<u8> = (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        })
        .collect();
    let row_bytes = format.row_bytes(u64::from(cols)).unwrap() as usize;
    for row in out.chunks_exact_mut(row_bytes.max(1)) {
        let (blocks, factor) = row.split_at_mut(row_bytes - format.row_tail());
        blocks.chunks_exact_mut(format.block_bytes()).for_each(|block| tame(format, block));
        if let Some(last) = factor.last_mut() {
            *last = *last & 0x83 | 0x3C;
        }
    }
    out
}

/// Makes the floats of a block finite and moderate.
fn tame(format: Format, block: &mut [u8]) {
    let exponent = |b: &mut u8, bits: u8| *b = *b & 0x83 | bits;
    let halves: &[usize] = match format {
        Format::F32 => return exponent(&mut block[3], 0x3C),
        Format::BF16 => return exponent(&mut block[1], 0x3C),
        Format::Mxfp4 => {
            block[0] = 118 + block[0] % 16;
            return;
        }
        Format::Mxfp8 => {
            block[..32].iter_mut().for_each(number);
            block[32] = 112 + block[32] % 16;
            return;
        }
        Format::Nvfp4 | Format::Nvfp4Scaled => return number(&mut block[8]),
        Format::Fp8 => return number(&mut block[0]),
        Format::Affine { scales, .. } => {
            let ends = block.len() - 2 * scales.bytes();
            for two in block[ends..].chunks_exact_mut(scales.bytes()) {
                exponent(&mut two[scales.bytes() - 1], if scales == ScaleType::F16 { 0x20 } else { 0x3C });
            }
            return;
        }
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        _ => &[0],
    };
    for &at in halves {
        exponent(&mut block[at + 1], 0x20);
    }
}

/// Makes a NaN of e4m3 the largest number.
fn number(code: &mut u8) {
    if *code & 0x7F == 0x7F {
        *code &= 0xFE;
    }
}
