//! Values of checkpoint rows, straight from the formats' definitions: what records and kernels are held against.
//!
//! Block structures are those of the public `ggml` library (`ggml-common.h`), MXFP4's those of the OCP microscaling
//! specification 1.0 with doubled element values and halved scales.

use crate::Format;
use half::{bf16, f16};

/// Element values of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Doubled element values of e2m1.
pub const E2M1_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the scale that an e8m0 byte states: `2^(e − 128)`.
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Scale and minimum `j` of the 12 packed bytes of Q4_K and Q5_K, six bits each.
pub(crate) fn k_scale(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
    }
}

/// Scale `j` of the 12 packed bytes of Q3_K, biased by 32.
pub(crate) fn q3_scale(s: &[u8], j: usize) -> u8 {
    let low = if j < 8 { s[j] & 15 } else { s[j - 8] >> 4 };
    low | (s[8 + j % 4] >> (2 * (j / 4)) & 3) << 4
}

/// Scale `j` of an IQ4_XS block, biased by 32.
pub(crate) fn iq4_xs_scale(b: &[u8], j: usize) -> u8 {
    let high = u16::from_le_bytes([b[2], b[3]]);
    b[4 + j / 2] >> (4 * (j % 2)) & 15 | ((high >> (2 * j) & 3) as u8) << 4
}

/// The code of element `i` of a block as the format stores it, without bias; 0 for plain floats.
pub(crate) fn code(format: Format, b: &[u8], i: usize) -> u8 {
    /// Nibbles of a block of 32: low ones are elements 0–15, high ones 16–31.
    fn nibble(q: &[u8], i: usize) -> u8 {
        q[i % 16] >> (4 * (i / 16)) & 15
    }
    fn bit(q: &[u8], i: usize) -> u8 {
        q[i / 8] >> (i % 8) & 1
    }
    /// Nibbles of a block of 256: runs of 64 share 32 bytes.
    fn k_nibble(q: &[u8], i: usize) -> u8 {
        q[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15
    }
    /// Two bits of a block of 256: runs of 128 share 32 bytes.
    fn k_pair(q: &[u8], i: usize) -> u8 {
        q[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3
    }
    match format {
        Format::F32 | Format::F16 | Format::BF16 => 0,
        Format::Q4_0 | Format::Iq4Nl => nibble(&b[2..], i),
        Format::Q4_1 => nibble(&b[4..], i),
        Format::Q5_0 => nibble(&b[6..], i) | bit(&b[2..], i) << 4,
        Format::Q5_1 => nibble(&b[8..], i) | bit(&b[4..], i) << 4,
        Format::Q8_0 => b[2 + i],
        Format::Q2K => k_pair(&b[16..], i),
        Format::Q3K => k_pair(&b[32..], i) | (b[i % 32] >> (i / 32) & 1) << 2,
        Format::Q4K => k_nibble(&b[16..], i),
        Format::Q5K => k_nibble(&b[48..], i) | (b[16 + i % 32] >> (i / 32) & 1) << 4,
        Format::Q6K => {
            let low = b[64 * (i / 128) + i % 64] >> (4 * (i / 64 % 2)) & 15;
            low | (b[128 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3) << 4
        }
        Format::Iq4Xs => nibble(&b[8 + 16 * (i / 32)..], i % 32),
        Format::Mxfp4 => nibble(&b[1..], i),
        _ => unimplemented!(),
    }
}

/// Value `i` of one block (of `block_bytes` bytes).
fn value(format: Format, b: &[u8], i: usize) -> f32 {
    let q = i32::from(code(format, b, i));
    match format {
        Format::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Format::F16 => half_at(b, 0),
        Format::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        Format::Q4_0 => half_at(b, 0) * (q - 8) as f32,
        Format::Q5_0 => half_at(b, 0) * (q - 16) as f32,
        Format::Q4_1 | Format::Q5_1 => half_at(b, 0) * q as f32 + half_at(b, 2),
        Format::Q8_0 => half_at(b, 0) * f32::from(q as u8 as i8),
        Format::Q2K => {
            let s = b[i / 16];
            half_at(b, 80) * f32::from(s & 15) * q as f32 - half_at(b, 82) * f32::from(s >> 4)
        }
        Format::Q3K => half_at(b, 108) * (f32::from(q3_scale(&b[96..], i / 16)) - 32.0) * (q - 4) as f32,
        Format::Q4K | Format::Q5K => {
            let (s, m) = k_scale(&b[4..], i / 32);
            half_at(b, 0) * f32::from(s) * q as f32 - half_at(b, 2) * f32::from(m)
        }
        Format::Q6K => half_at(b, 208) * f32::from(b[192 + i / 16] as i8) * (q - 32) as f32,
        Format::Iq4Nl => half_at(b, 0) * f32::from(IQ4_VALUES[q as usize]),
        Format::Iq4Xs => {
            half_at(b, 0) * (f32::from(iq4_xs_scale(b, i / 32)) - 32.0) * f32::from(IQ4_VALUES[q as usize])
        }
        Format::Mxfp4 => e8m0_half(b[0]) * f32::from(E2M1_VALUES[q as usize]),
        _ => unimplemented!(),
    }
}

/// Where a block holds its halves (scales and minima).
fn halves(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::Mxfp4 => &[],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        _ => &[],
    }
}

/// The first block that decodes to something that is not a finite number. Only floats, scales and minima are looked
/// at: codes are finite. MXFP4's scale of 255 is the NaN of its specification.
pub fn first_not_finite(format: Format, blocks: &[u8]) -> Option<usize> {
    // The exponent's bits are all set in what is infinite or NaN.
    let half = |b: &[u8], at: usize| b[at + 1] & 0x7C == 0x7C;
    let mut blocks = blocks.chunks_exact(format.block_bytes());
    match format {
        Format::F32 => blocks.position(|b| b[3] & 0x7F == 0x7F && b[2] & 0x80 != 0),
        Format::BF16 => blocks.position(|b| b[1] & 0x7F == 0x7F && b[0] & 0x80 != 0),
        Format::F16 => blocks.position(|b| half(b, 0)),
        Format::Mxfp4 => blocks.position(|b| b[0] == u8::MAX),
        _ => {
            let halves = halves(format);
            blocks.position(|b| halves.iter().any(|&at| half(b, at)))
        }
    }
}

/// Decodes whole blocks into `out`. Stops at the shorter of the two, in whole blocks.
pub fn dequantize(format: Format, blocks: &[u8], out: &mut [f32]) {
    let values = out.chunks_exact_mut(format.block_len());
    for (block, out) in blocks.chunks_exact(format.block_bytes()).zip(values) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = value(format, block, i);
        }
    }
}
