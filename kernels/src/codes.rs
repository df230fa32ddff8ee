//! Codes of whole rows at once, a byte each: what [`dequant::code`] says of one value, in loops over whole blocks that
//! compilers turn into vector code. Loads unpack every weight of a model by it.

use crate::{Format, dequant};

/// Values of the blocks that are taken apart by one of the loops below.
const SMALL: usize = 32;
const LARGE: usize = 256;

/// Writes the codes of a row, blocks without the factor of the row, into `out`; what `out` holds beyond them becomes
/// zero.
pub(crate) fn of_row(format: Format, blocks: &[u8], out: &mut [u8]) {
    let len = format.block_len();
    let used = (blocks.len() / format.block_bytes().max(1) * len).min(out.len());
    let (out, rest) = out.split_at_mut(used);
    rest.fill(0);
    let blocks = blocks.chunks_exact(format.block_bytes().max(1));
    if let Some(bits) = format.stream_bits() {
        let bytes = len * bits / 8;
        for (block, out) in blocks.zip(out.chunks_exact_mut(len)) {
            stream(bits, block.get(..bytes).unwrap_or_default(), out);
        }
    } else if len == SMALL {
        for (block, out) in blocks.zip(out.as_chunks_mut::<SMALL>().0) {
            small(format, block, out);
        }
    } else {
        for (block, out) in blocks.zip(out.as_chunks_mut::<LARGE>().0) {
            large(format, block, out);
        }
    }
}

/// A block of `bits` a code, one behind the other.
fn stream(bits: usize, bytes: &[u8], out: &mut [u8]) {
    match bits {
        8 => out.copy_from_slice(bytes),
        4 => {
            for (byte, out) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = [byte & 15, byte >> 4];
            }
        }
        _ => {
            let mask = (1u64 << bits) - 1;
            // Eight codes of n bits are n bytes.
            for (bytes, out) in bytes.chunks_exact(bits).zip(out.as_chunks_mut::<8>().0) {
                let mut word = [0; 8];
                word[..bits].copy_from_slice(bytes);
                let word = u64::from_le_bytes(word);
                *out = std::array::from_fn(|i| (word >> (i * bits) & mask) as u8);
            }
        }
    }
}

/// Nibbles of 32 values: low ones are values 0–15, high ones 16–31.
fn nibbles(q: &[u8], out: &mut [u8; SMALL]) {
    let (low, high) = out.split_at_mut(SMALL / 2);
    for ((q, low), high) in q.iter().zip(low).zip(high) {
        (*low, *high) = (q & 15, q >> 4);
    }
}

/// A block of 32 values.
fn small(format: Format, b: &[u8], out: &mut [u8; SMALL]) {
    let fifth = |bits: &[u8], out: &mut [u8; SMALL]| {
        for (bits, out) in bits.iter().zip(out.as_chunks_mut::<8>().0) {
            *out = std::array::from_fn(|i| out[i] | (bits >> i & 1) << 4);
        }
    };
    match format {
        Format::Q4_0 | Format::Iq4Nl => nibbles(&b[2..], out),
        Format::Q4_1 => nibbles(&b[4..], out),
        Format::Mxfp4 => nibbles(&b[1..], out),
        Format::Q8_0 => out.copy_from_slice(&b[2..2 + SMALL]),
        Format::Q5_0 => {
            nibbles(&b[6..], out);
            fifth(&b[2..6], out);
        }
        Format::Q5_1 => {
            nibbles(&b[8..], out);
            fifth(&b[4..8], out);
        }
        _ => one_by_one(format, b, out),
    }
}

/// A block of 256 values.
fn large(format: Format, b: &[u8], out: &mut [u8; LARGE]) {
    /// `out[i] |= (q[i] >> shift & mask) << to`.
    fn add(q: &[u8], (shift, mask, to): (usize, u8, u8), out: &mut [u8]) {
        for (q, out) in q.iter().zip(out) {
            *out |= (q >> shift & mask) << to;
        }
    }
    out.fill(0);
    // Runs of 32 values, and what each takes of the bytes of 32 that it shares with others.
    let runs = out.as_chunks_mut::<32>().0.iter_mut().enumerate();
    match format {
        Format::Q2K => runs.for_each(|(i, out)| add(&b[16 + 32 * (i / 4)..], (2 * (i % 4), 3, 0), out)),
        Format::Q3K => runs.for_each(|(i, out)| {
            add(&b[32 + 32 * (i / 4)..], (2 * (i % 4), 3, 0), out);
            add(b, (i, 1, 2), out);
        }),
        Format::Q4K => runs.for_each(|(i, out)| add(&b[16 + 32 * (i / 2)..], (4 * (i % 2), 15, 0), out)),
        Format::Q5K => runs.for_each(|(i, out)| {
            add(&b[48 + 32 * (i / 2)..], (4 * (i % 2), 15, 0), out);
            add(&b[16..], (i, 1, 4), out);
        }),
        Format::Q6K => runs.for_each(|(i, out)| {
            add(&b[64 * (i / 4) + 32 * (i % 2)..], (4 * (i / 2 % 2), 15, 0), out);
            add(&b[128 + 32 * (i / 4)..], (2 * (i % 4), 3, 4), out);
        }),
        Format::Iq4Xs => runs.for_each(|(i, out)| nibbles(&b[8 + 16 * i..], out)),
        _ => one_by_one(format, b, out),
    }
}

/// What no loop above knows.
fn one_by_one(format: Format, b: &[u8], out: &mut [u8]) {
    out.iter_mut().enumerate().for_each(|(i, out)| *out = dequant::code(format, b, i));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_their_values_one_by_one() {
        for format in Format::ALL.into_iter().filter(|f| !f.is_float()) {
            let (len, bytes) = (format.block_len(), format.block_bytes());
            let mut seed = 1u32;
            let row: Vec<u8> = (0..3 * bytes)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                })
                .collect();
            let mut codes = vec![0xAA; 3 * len + 5];
            of_row(format, &row, &mut codes);
            for (i, &got) in codes.iter().enumerate() {
                let expected =
                    if i < 3 * len { dequant::code(format, &row[i / len * bytes..], i % len) } else { 0 };
                assert_eq!(got, expected, "value {i} of {format}");
            }
        }
    }
}
