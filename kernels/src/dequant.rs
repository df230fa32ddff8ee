//! Values of checkpoint rows, straight from the formats' definitions: what records and kernels are held against.
//!
//! Block structures are those of the public `ggml` library (`ggml-common.h`), MXFP4's those of the OCP microscaling
//! specification 1.0 with doubled element values and halved scales. Affine blocks are those of MLX's `quantize`, e4m3 is
//! the `E4M3` of the OCP 8-bit floating point specification 1.0 (no infinities, two NaNs).

use crate::Format;
use crate::format::ScaleType;
use half::{bf16, f16};

/// Element values of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Doubled element values of e2m1.
pub const E2M1_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the scale that an e8m0 byte states: `2^(e − 128)`.
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// The scale that an e8m0 byte states: `2^(e − 127)`, or NaN.
pub fn e8m0(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0040_0000),
        u8::MAX => f32::NAN,
        _ => f32::from_bits(u32::from(e) << 23),
    }
}

/// The value of an e4m3 code: sign, 4 bits of exponent, 3 of mantissa; 0x7F and 0xFF are NaN.
pub fn e4m3(code: u8) -> f32 {
    let magnitude = match (code >> 3 & 15, code & 7) {
        (15, 7) => f32::NAN,
        (0, mantissa) => f32::from(mantissa) / 512.0,
        _ => f32::from_bits((u32::from(code & 0x7F) << 20) + (120 << 23)),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Whether an e4m3 code is a NaN.
const fn e4m3_nan(code: u8) -> bool {
    code & 0x7F == 0x7F
}

/// Scale and offset of an affine block, which end it.
fn affine(scales: ScaleType, b: &[u8]) -> (f32, f32) {
    let two = &b[b.len().saturating_sub(2 * scales.bytes())..];
    let bf16_at = |at: usize| bf16::from_le_bytes([two[at], two[at + 1]]).to_f32();
    let f32_at = |at: usize| f32::from_le_bytes([two[at], two[at + 1], two[at + 2], two[at + 3]]);
    match scales {
        ScaleType::F32 => (f32_at(0), f32_at(4)),
        ScaleType::F16 => (half_at(two, 0), half_at(two, 2)),
        ScaleType::BF16 => (bf16_at(0), bf16_at(2)),
    }
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
        Format::Affine { bits, .. } => {
            let (bits, at) = (usize::from(bits), i * usize::from(bits));
            let next = b.get(at / 8 + 1).copied().unwrap_or_default();
            let pair = u16::from_le_bytes([b[at / 8], next]) >> (at % 8);
            (pair & ((1 << bits) - 1)) as u8
        }
        Format::Nvfp4 | Format::Nvfp4Scaled => b[i / 2] >> (4 * (i % 2)) & 15,
        Format::Mxfp8 | Format::Fp8 => b[i],
    }
}

/// Value `i` of one block (of `block_bytes` bytes) of a row with `factor`, which other formats do not look at.
fn value(format: Format, b: &[u8], factor: f32, i: usize) -> f32 {
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
        Format::Affine { scales, .. } => {
            let (scale, offset) = affine(scales, b);
            scale * q as f32 + offset
        }
        Format::Mxfp8 => e8m0(b[32]) * e4m3(q as u8),
        Format::Nvfp4 => e4m3(b[8]) * 0.5 * f32::from(E2M1_VALUES[q as usize]),
        // Both scales first: MLX and modelopt round that way.
        Format::Nvfp4Scaled => e4m3(b[8]) * factor * 0.5 * f32::from(E2M1_VALUES[q as usize]),
        Format::Fp8 => e4m3(q as u8) * factor,
    }
}

/// Where a block holds its halves (scales and minima).
fn halves(format: Format) -> &'static [usize] {
    match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        _ => &[],
    }
}

/// The first block that decodes to something that is not a finite number, be it a NaN, an infinity or too large for f32.
/// Factors of rows are not looked at: [`first_row_not_finite`] does. MXFP4's scale of 255 is the NaN of its
/// specification.
pub fn first_not_finite(format: Format, blocks: &[u8]) -> Option<usize> {
    if !format.is_known() {
        return None;
    }
    // The exponent's bits are all set in what is infinite or NaN.
    let half = |b: &[u8], at: usize| b[at + 1] & 0x7C == 0x7C;
    // What only great scales can pass.
    let overflows = |b: &[u8]| (0..format.block_len()).any(|i| !value(format, b, 1.0, i).is_finite());
    let all = blocks;
    let mut blocks = blocks.chunks_exact(format.block_bytes());
    match format {
        Format::F32 => first(all, |b| u32::from_le_bytes(*b) & 0x7F80_0000 == 0x7F80_0000),
        Format::BF16 => first(all, |b| u16::from_le_bytes(*b) & 0x7F80 == 0x7F80),
        Format::F16 => first(all, |b| u16::from_le_bytes(*b) & 0x7C00 == 0x7C00),
        // 6·2^125 and 448·2^119 are still f32.
        Format::Mxfp4 => blocks.position(|b| b[0] == u8::MAX || b[0] > 252 && overflows(b)),
        Format::Mxfp8 => blocks.position(|b| {
            b[32] == u8::MAX || b[..32].iter().any(|c| e4m3_nan(*c)) || b[32] > 246 && overflows(b)
        }),
        Format::Nvfp4 | Format::Nvfp4Scaled => blocks.position(|b| e4m3_nan(b[8])),
        Format::Fp8 => first(all, |[b]| e4m3_nan(*b)),
        Format::Affine { bits, scales, .. } => {
            let codes = ((1u32 << bits) - 1) as f32;
            blocks.position(|b| {
                let (scale, offset) = affine(scales, b);
                !(scale.abs() * codes + offset.abs()).is_finite() && overflows(b)
            })
        }
        _ => {
            let halves = halves(format);
            blocks.position(|b| halves.iter().any(|&at| half(b, at)))
        }
    }
}

/// The first of these blocks that is bad. Many are looked at before the next may be left out: compilers turn that into
/// vector code, and next to no weights are bad.
fn first<const BYTES: usize>(blocks: &[u8], bad: impl Fn(&[u8; BYTES]) -> bool) -> Option<usize> {
    const MANY: usize = 256;
    let (blocks, _) = blocks.as_chunks::<BYTES>();
    let many = blocks.chunks(MANY).position(|many| many.iter().fold(false, |any, b| any | bad(b)))?;
    blocks.iter().skip(many * MANY).position(bad).map(|at| many * MANY + at)
}

/// The first of whole rows of `cols` values that has something that is not a finite number: [`first_not_finite`] for rows,
/// with their factors.
pub fn first_row_not_finite(format: Format, cols: u32, rows: &[u8]) -> Option<usize> {
    let bytes = format.row_bytes(u64::from(cols)).and_then(|b| usize::try_from(b).ok()).filter(|b| *b > 0)?;
    if format.row_tail() == 0 {
        return first_not_finite(format, rows).map(|block| block * format.block_bytes() / bytes);
    }
    // The largest value that a row may hold before its factor.
    let most = if format == Format::Fp8 { 448.0 } else { 6.0 * 448.0 };
    let mut values = vec![0.0; cols as usize];
    rows.chunks_exact(bytes).position(|row| {
        let (blocks, factor) = split(format, row);
        first_not_finite(format, blocks).is_some()
            || !(factor * most).is_finite() && {
                decode(format, blocks, factor, &mut values);
                values.iter().any(|v| !v.is_finite())
            }
    })
}

/// The blocks of a row and its factor; 1 where rows have none.
fn split(format: Format, row: &[u8]) -> (&[u8], f32) {
    match row.split_last_chunk() {
        Some((blocks, factor)) if format.row_tail() > 0 => (blocks, f32::from_le_bytes(*factor)),
        _ => (row, 1.0),
    }
}

fn decode(format: Format, blocks: &[u8], factor: f32, out: &mut [f32]) {
    let values = out.chunks_exact_mut(format.block_len());
    for (block, out) in blocks.chunks_exact(format.block_bytes()).zip(values) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = value(format, block, factor, i);
        }
    }
}

/// Decodes whole blocks into `out`, without the factors of rows: [`dequantize_rows`] has them. Stops at the shorter of the
/// two, in whole blocks.
pub fn dequantize(format: Format, blocks: &[u8], out: &mut [f32]) {
    if format.is_known() {
        decode(format, blocks, 1.0, out);
    }
}

/// Decodes whole rows of `cols` values into `out`. Stops at the shorter of the two, in whole rows; `cols` that are not
/// whole blocks decode to nothing.
pub fn dequantize_rows(format: Format, cols: u32, rows: &[u8], out: &mut [f32]) {
    let bytes = format.row_bytes(u64::from(cols)).and_then(|b| usize::try_from(b).ok());
    let (Some(bytes @ 1..), cols @ 1..) = (bytes, cols as usize) else { return };
    for (row, out) in rows.chunks_exact(bytes).zip(out.chunks_exact_mut(cols)) {
        let (blocks, factor) = split(format, row);
        decode(format, blocks, factor, out);
    }
}
