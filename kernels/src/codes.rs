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
    if let Some(bits) = format.stream_bits() {
        return streams(bits, (blocks, format.block_bytes()), (out, len));
    }
    let blocks = blocks.chunks_exact(format.block_bytes().max(1));
    if len == SMALL {
        for (block, out) in blocks.zip(out.as_chunks_mut::<SMALL>().0) {
            small(format, block, out);
        }
    } else {
        for (block, out) in blocks.zip(out.as_chunks_mut::<LARGE>().0) {
            large(format, block, out);
        }
    }
}

/// Blocks that begin with codes of `bits`, one behind the other; those of nothing else are one block.
fn streams(bits: usize, (blocks, block_bytes): (&[u8], usize), (out, len): (&mut [u8], usize)) {
    let bytes = len * bits / 8;
    let (block_bytes, bytes, len) = match block_bytes == bytes {
        true => (blocks.len(), blocks.len(), out.len()),
        false => (block_bytes, bytes, len),
    };
    let blocks = blocks.chunks_exact(block_bytes.max(1)).map(|block| block.get(..bytes).unwrap_or_default());
    let both = blocks.zip(out.chunks_exact_mut(len.max(1)));
    match bits {
        1 => both.for_each(|(bytes, out)| {
            for (byte, out) in bytes.iter().zip(out.as_chunks_mut::<8>().0) {
                *out = bits_of(*byte).to_le_bytes();
            }
        }),
        2 => both.for_each(|(bytes, out)| narrow::<2>(bytes, out)),
        3 => both.for_each(|(bytes, out)| narrow::<3>(bytes, out)),
        4 => both.for_each(|(bytes, out)| {
            for (byte, out) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = [byte & 15, byte >> 4];
            }
        }),
        5 => both.for_each(|(bytes, out)| narrow::<5>(bytes, out)),
        6 => both.for_each(|(bytes, out)| narrow::<6>(bytes, out)),
        8 => both.for_each(|(bytes, out)| out.copy_from_slice(bytes)),
        // No format has codes of another width.
        _ => {}
    }
}

/// Codes of `BITS` bits, of which eight are as many bytes: halved until each stands in a byte of its own.
fn narrow<const BITS: usize>(bytes: &[u8], out: &mut [u8]) {
    // The low codes of every lane; what is above them goes to the lane's upper half.
    let low =
        |lane: u32, bits: usize| (0..64 / lane).fold(0, |all, i| all | ((1u64 << bits) - 1) << (lane * i));
    let masks = [low(64, 4 * BITS), low(32, 2 * BITS), low(16, BITS)];
    for (bytes, out) in bytes.as_chunks::<BITS>().0.iter().zip(out.as_chunks_mut::<8>().0) {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(bytes);
        let mut codes = u64::from_le_bytes(word);
        for ((mask, lane), bits) in masks.into_iter().zip([32, 16, 8]).zip([4 * BITS, 2 * BITS, BITS]) {
            codes = codes & mask | (codes >> bits & mask) << lane;
        }
        *out = codes.to_le_bytes();
    }
}

/// Bit i of a byte as byte i.
fn bits_of(byte: u8) -> u64 {
    let bits = (u64::from(byte) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    // What is not 0 reaches the top of its byte.
    (bits + 0x7F7F_7F7F_7F7F_7F7F) >> 7 & 0x0101_0101_0101_0101
}

/// Nibbles of 32 values: low ones are values 0–15, high ones 16–31.
fn nibbles(q: &[u8; SMALL / 2], out: &mut [u8; SMALL]) {
    const LOW: u64 = 0x0F0F_0F0F_0F0F_0F0F;
    let (low, high) = out.as_chunks_mut::<8>().0.split_at_mut(2);
    for ((q, low), high) in q.as_chunks::<8>().0.iter().zip(low).zip(high) {
        let q = u64::from_le_bytes(*q);
        *low = (q & LOW).to_le_bytes();
        *high = (q >> 4 & LOW).to_le_bytes();
    }
}

/// A block of 32 values, whose codes end it.
fn small(format: Format, b: &[u8], out: &mut [u8; SMALL]) {
    if format == Format::Q8_0 {
        *out = b.last_chunk().copied().unwrap_or_default();
        return;
    }
    let fifths = match format {
        Format::Q4_0 | Format::Iq4Nl | Format::Q4_1 | Format::Mxfp4 => None,
        Format::Q5_0 => b[2..].first_chunk::<4>(),
        Format::Q5_1 => b[4..].first_chunk::<4>(),
        _ => return one_by_one(format, b, out),
    };
    if let Some(q) = b.last_chunk() {
        nibbles(q, out);
    }
    for (bits, out) in fifths.into_iter().flatten().zip(out.as_chunks_mut::<8>().0) {
        *out = (u64::from_le_bytes(*out) | bits_of(*bits) << 4).to_le_bytes();
    }
}

/// A block of 256 values.
fn large(format: Format, b: &[u8], out: &mut [u8; LARGE]) {
    /// `out[i] |= (q[i] >> shift & mask) << to`, eight at a time.
    fn add(q: &[u8], (shift, mask, to): (usize, u64, usize), out: &mut [u8]) {
        let mask = mask * 0x0101_0101_0101_0101;
        for (q, out) in q.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
            let codes = (u64::from_le_bytes(*q) >> shift & mask) << to;
            *out = (u64::from_le_bytes(*out) | codes).to_le_bytes();
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
        Format::Iq4Xs => b[8..].as_chunks().0.iter().zip(runs).for_each(|(q, (_, out))| nibbles(q, out)),
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
