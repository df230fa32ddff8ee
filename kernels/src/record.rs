//! Device records: each row of a matrix as one fixed-stride run of bytes, quants first, then scales.
//!
//! Rows are cut into *octs* of 8 values (the last one of a row of floats or e4m3 is filled up with zeros). The codes of all
//! octs come first, as one or two planes of 32-bit words, then the scales, then the factor of the row if there is one (in
//! a word of its own), exactly as many bytes as the checkpoint has but for the padding of the row to 16 bytes. The module `unpack` states each plane; the WGSL unpackers beside it
//! read what [`Record::repack`] writes.

use crate::dequant::{self, IQ4_VALUES};
use crate::format::ScaleType;
use crate::unpack::{Quants, Scales};
use crate::{Format, codes};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// Values of an oct.
pub const OCT: u32 = 8;

/// What is wrong with bytes given for repacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The checkpoint bytes are not whole rows.
    #[error("rows of {format}: expected a multiple of {expected} bytes, got {got}")]
    Rows {
        /// Format.
        format: Format,
        /// Bytes of a row.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// The bytes are not those of whole blocks, or the format does not exist.
    #[error("a row of {format}: {got} bytes are not whole blocks")]
    Row {
        /// Format.
        format: Format,
        /// Bytes given.
        got: u64,
    },
    /// A row has another number of planes, or none at all.
    #[error("planes of {format}: expected {expected}, got {got}")]
    Planes {
        /// Format.
        format: Format,
        /// Planes of a row.
        expected: usize,
        /// Planes given.
        got: usize,
    },
    /// A plane does not hold what the row holds.
    #[error("plane {plane} of a row of {format}: expected {expected} bytes, got {got}")]
    Plane {
        /// Format.
        format: Format,
        /// Which: 0 codes, 1 scales, 2 offsets.
        plane: usize,
        /// Bytes of the row in it.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// The destination does not hold as many records as there are rows.
    #[error("records of {format}: expected {expected} bytes, got {got}")]
    Records {
        /// Format.
        format: Format,
        /// Bytes of the records of all rows.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
}

/// The device form of the rows of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    format: Format,
    cols: u32,
}

impl Record {
    /// The record of rows of `cols` values, or `None` when they are not whole blocks, when there are none, or when a
    /// record would pass 2³⁰ words.
    pub fn new(format: Format, cols: u32) -> Option<Self> {
        let bytes = format.row_bytes(u64::from(cols))?;
        (cols > 0 && bytes < 1 << 32).then_some(Self { format, cols })
    }

    /// How values are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Values of a row.
    pub fn cols(&self) -> u32 {
        self.cols
    }

    /// Octs of a row.
    pub fn octs(&self) -> u32 {
        self.cols.div_ceil(OCT)
    }

    /// Bytes between rows on the device: a multiple of 16.
    pub fn stride(&self) -> u64 {
        let at = self.scales_word() as u64 * 4;
        let blocks = self.blocks() as u64;
        let bytes = match self.format.scales() {
            Scales::One => at,
            Scales::E8m0 | Scales::Power | Scales::E4m3 => at + blocks,
            Scales::Half => at + 2 * blocks,
            Scales::HalfMin => at + 4 * blocks,
            Scales::Iq4Xs => at + 8 * blocks,
            Scales::K3 => at + 14 * blocks,
            Scales::K4 => at + 16 * blocks,
            Scales::K6 => at + 18 * blocks,
            Scales::K2 => at + 20 * blocks,
            Scales::Affine { scales, .. } => at + 2 * scales.bytes() as u64 * blocks,
            Scales::E4m3Row | Scales::Row => self.factor_word() as u64 * 4 + 4,
        };
        bytes.next_multiple_of(16)
    }

    /// Rows whose bytes are a whole number of 256: shards are multiples of this many rows.
    pub fn rows_per_shard_unit(&self) -> u32 {
        // The stride is a multiple of 16, so at most 16 rows are needed.
        256 / (256u64.min(1 << self.stride().trailing_zeros())) as u32
    }

    /// Word where the second plane begins.
    fn second_plane(&self) -> usize {
        (self.octs() * self.format.quants().planes()[0] / 4) as usize
    }

    /// Word where the scales begin.
    fn scales_word(&self) -> usize {
        let [first, second] = self.format.quants().planes();
        (self.octs() * (first + second) / 4) as usize
    }

    /// Blocks of a row.
    fn blocks(&self) -> usize {
        self.cols as usize / self.format.block_len()
    }

    /// Word of the factor of a row that has one.
    fn factor_word(&self) -> usize {
        let scales = if self.format.scales() == Scales::E4m3Row { self.blocks().div_ceil(4) } else { 0 };
        self.scales_word() + scales
    }

    /// Turns whole checkpoint rows into records. Writes every byte of `dst`.
    ///
    /// # Errors
    /// [`RecordError`] when `rows` is not whole rows or `dst` not as many records.
    pub fn repack(&self, rows: &[u8], dst: &mut [u8]) -> Result<(), RecordError> {
        let format = self.format;
        let row_bytes = format.row_bytes(u64::from(self.cols)).unwrap_or(0).max(1);
        let got = rows.len() as u64;
        if !got.is_multiple_of(row_bytes) {
            return Err(RecordError::Rows { format, expected: row_bytes, got });
        }
        let expected = got / row_bytes * self.stride();
        if dst.len() as u64 != expected {
            return Err(RecordError::Records { format, expected, got: dst.len() as u64 });
        }
        let mut words = vec![0u32; (self.stride() / 4) as usize];
        let mut row_codes = vec![0u8; if format.is_float() { 0 } else { (self.octs() * OCT) as usize }];
        let rows = rows.chunks_exact(row_bytes as usize);
        for (row, dst) in rows.zip(dst.chunks_exact_mut(self.stride() as usize)) {
            words.fill(0);
            if format.is_float() {
                // Floats stay as they are; the words after them are the zeros of the last oct and the padding.
                let (values, rest) = dst.split_at_mut(row.len());
                values.copy_from_slice(row);
                rest.fill(0);
                continue;
            }
            let (blocks, _) = row.split_at(self.blocks() * format.block_bytes());
            codes::of_row(format, blocks, &mut row_codes);
            self.pack_codes(&row_codes, &mut words);
            self.pack_scales(row, &mut words);
            for (word, dst) in words.iter().zip(dst.chunks_exact_mut(4)) {
                dst.copy_from_slice(&word.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Puts the codes of a row, a byte each, where the planes have them.
    fn pack_codes(&self, codes: &[u8], words: &mut [u32]) {
        let quants = self.format.quants();
        if quants.planes()[0] == OCT {
            for (word, four) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*four);
            }
            return;
        }
        let (first, second) = words.split_at_mut(self.second_plane());
        match quants {
            Quants::Bits1 => plane::<32>(codes, 0, first),
            Quants::Bits2 | Quants::Bits3 => plane::<16>(codes, 0, first),
            _ => plane::<8>(codes, 0, first),
        }
        match quants {
            Quants::Bits3 => plane::<32>(codes, 2, second),
            Quants::Bits5 => plane::<32>(codes, 4, second),
            Quants::Bits6 => plane::<16>(codes, 4, second),
            _ => {}
        }
    }

    /// Puts the scales of a row, and its factor, behind the codes.
    fn pack_scales(&self, row: &[u8], words: &mut [u32]) {
        let pair = |b: &[u8], i: usize| u32::from(b[i]) | u32::from(b[i + 1]) << 8;
        let word = |b: &[u8], i: usize| pair(b, i) | pair(b, i + 2) << 16;
        let blocks = self.blocks();
        let (row, tail) = row.split_at(blocks * self.format.block_bytes());
        if !tail.is_empty() {
            words[self.factor_word()] = word(tail, 0);
        }
        if self.format.scales() == Scales::Row {
            return;
        }
        let words = &mut words[self.scales_word()..];
        // Blocks with their numbers, and what each adds to the words.
        let all = (0..).zip(row.chunks_exact(self.format.block_bytes()));
        let bytes = |words: &mut [u32], at: usize| {
            all.clone().for_each(|(block, b)| words[block / 4] |= u32::from(b[at]) << (8 * (block % 4)));
        };
        match self.format.scales() {
            Scales::One | Scales::Row => {}
            Scales::Power => bytes(words, 32),
            Scales::E4m3 | Scales::E4m3Row => bytes(words, 8),
            Scales::E8m0 => bytes(words, 0),
            Scales::Affine { scales: ScaleType::F32, .. } => {
                for ((_, b), words) in all.zip(words.as_chunks_mut::<2>().0) {
                    let ends = b.len() - 8;
                    *words = [word(b, ends), word(b, ends + 4)];
                }
            }
            Scales::Affine { scales: ScaleType::F16 | ScaleType::BF16, .. } => {
                all.zip(words).for_each(|((_, b), w)| *w = word(b, b.len() - 4));
            }
            Scales::Half => {
                all.for_each(|(block, b)| words[block / 2] |= pair(b, 0) << (16 * (block % 2)));
            }
            Scales::HalfMin => all.zip(words).for_each(|((_, b), w)| *w = word(b, 0)),
            Scales::K2 => {
                for ((_, b), words) in all.zip(words.as_chunks_mut::<5>().0) {
                    *words = std::array::from_fn(|i| word(b, if i < 4 { 4 * i } else { 80 }));
                }
            }
            Scales::K3 => {
                let (groups, factors) = words.split_at_mut(3 * blocks);
                for ((block, b), words) in all.zip(groups.as_chunks_mut::<3>().0) {
                    for group in 0..16 {
                        let scale = u32::from(dequant::q3_scale(&b[96..], group));
                        words[group / 8] |= (scale & 15) << (4 * (group % 8));
                        words[2] |= scale >> 4 << (2 * group);
                    }
                    factors[block / 2] |= pair(b, 108) << (16 * (block % 2));
                }
            }
            Scales::K4 => {
                for ((_, b), words) in all.zip(words.as_chunks_mut::<4>().0) {
                    words[0] = word(b, 0);
                    for group in 0..8 {
                        let (scale, low) = dequant::k_scale(&b[4..], group);
                        let (scale, low) = (u32::from(scale), u32::from(low));
                        words[1 + group / 4] |= (scale & 15 | (low & 15) << 4) << (8 * (group % 4));
                        words[3] |= (scale >> 4 | low >> 4 << 2) << (4 * group);
                    }
                }
            }
            Scales::K6 => {
                let (groups, factors) = words.split_at_mut(4 * blocks);
                for ((block, b), words) in all.zip(groups.as_chunks_mut::<4>().0) {
                    *words = std::array::from_fn(|i| word(b, 192 + 4 * i));
                    factors[block / 2] |= pair(b, 208) << (16 * (block % 2));
                }
            }
            Scales::Iq4Xs => {
                for ((_, b), words) in all.zip(words.as_chunks_mut::<2>().0) {
                    words[1] = pair(b, 0);
                    for group in 0..8 {
                        let scale = u32::from(dequant::iq4_xs_scale(b, group));
                        words[0] |= (scale & 15) << (4 * group);
                        words[1] |= scale >> 4 << (16 + 2 * group);
                    }
                }
            }
        }
    }

    /// Decodes one record into its `cols` values, by the words the kernels read. What is missing of `record` reads
    /// as zero.
    pub fn decode(&self, record: &[u8], out: &mut [f32]) {
        let word = |at: usize| {
            let bytes = record.get(4 * at..4 * at + 4).and_then(|b| b.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        for (i, out) in out.iter_mut().enumerate().take(self.cols as usize) {
            let code = self.code(&word, i);
            *out = match self.format {
                Format::F32 => f32::from_bits(code),
                Format::F16 => f16::from_bits(code as u16).to_f32(),
                Format::BF16 => bf16::from_bits(code as u16).to_f32(),
                Format::Q8_0 => self.scale(&word, i / 8).0 * f32::from(code as u8 as i8),
                Format::Mxfp8 | Format::Fp8 => self.scale(&word, i / 8).0 * dequant::e4m3(code as u8),
                _ => {
                    let (scale, low) = self.scale(&word, i / 8);
                    scale * (code as i32 - self.format.bias() as i32) as f32 - low
                }
            };
        }
    }

    /// The code of value `i` of a row, decoded as the WGSL does (before UNIT), two's complement; the bits of a float.
    fn code(&self, word: &impl Fn(usize) -> u32, i: usize) -> u32 {
        let (oct, second) = (i / 8, self.second_plane());
        // The field of value i % 8 in a word that gathers as `pack_codes` does.
        let field = |w: u32, mask: u32| w >> (8 * (i % 4) + 4 * (i % 8 / 4)) & mask;
        let nibble = || field(word(oct), 15);
        match self.format.quants() {
            Quants::F32 => word(i),
            Quants::F16 | Quants::Bf16 => word(i / 2) >> (16 * (i % 2)) & 0xFFFF,
            Quants::Bits8 | Quants::Unsigned8 | Quants::E4m3 => word(i / 4) >> (8 * (i % 4)) & 0xFF,
            Quants::Bits1 => field(word(oct / 4) >> (oct % 4), 1),
            Quants::Bits2 => field(word(oct / 2) >> (2 * (oct % 2)), 3),
            Quants::Bits3 => {
                field(word(oct / 2) >> (2 * (oct % 2)), 3)
                    | field(word(second + oct / 4) >> (oct % 4), 1) << 2
            }
            Quants::Bits4 => nibble(),
            Quants::Bits5 => nibble() | field(word(second + oct / 4) >> (oct % 4), 1) << 4,
            Quants::Bits6 => nibble() | field(word(second + oct / 2) >> (2 * (oct % 2)), 3) << 4,
            Quants::Iq4 => (i32::from(IQ4_VALUES[nibble() as usize]) + 127) as u32,
            Quants::E2m1 => i32::from(dequant::E2M1_VALUES[nibble() as usize]) as u32,
        }
    }

    /// Scale and minimum of an oct, the factor of the row in them.
    fn scale(&self, word: &impl Fn(usize) -> u32, oct: usize) -> (f32, f32) {
        let half = |w: u32, which: usize| f16::from_bits((w >> (16 * which)) as u16).to_f32();
        let at = self.scales_word();
        let (block, big, blocks) = (oct / 4, oct / 32, self.cols as usize / 256);
        let (group, fine) = (oct / 4 % 8, oct / 2 % 16);
        let byte = |block: usize| (word(at + block / 4) >> (8 * (block % 4))) as u8;
        match self.format.scales() {
            Scales::One => (1.0, 0.0),
            Scales::Row => (f32::from_bits(word(self.factor_word())), 0.0),
            Scales::E8m0 => (dequant::e8m0_half(byte(block)), 0.0),
            Scales::Power => (dequant::e8m0(byte(block)), 0.0),
            Scales::E4m3 => (dequant::e4m3(byte(oct / 2)) * 0.5, 0.0),
            Scales::E4m3Row => {
                let factor = f32::from_bits(word(self.factor_word()));
                (dequant::e4m3(byte(oct / 2)) * factor * 0.5, 0.0)
            }
            Scales::Affine { group, scales } => {
                let group = oct / (usize::from(group) / 8);
                let upper = |w: u32| f32::from_bits(w & 0xFFFF_0000);
                match scales {
                    ScaleType::F32 => {
                        let both = [word(at + 2 * group), word(at + 2 * group + 1)].map(f32::from_bits);
                        (both[0], -both[1])
                    }
                    ScaleType::F16 => (half(word(at + group), 0), -half(word(at + group), 1)),
                    ScaleType::BF16 => (upper(word(at + group) << 16), -upper(word(at + group))),
                }
            }
            Scales::Half => (half(word(at + block / 2), block % 2), 0.0),
            Scales::HalfMin => (half(word(at + block), 0), -half(word(at + block), 1)),
            Scales::K2 => {
                let packed = word(at + 5 * big + fine / 4) >> (8 * (fine % 4));
                let factor = word(at + 5 * big + 4);
                (half(factor, 0) * (packed & 15) as f32, half(factor, 1) * (packed >> 4 & 15) as f32)
            }
            Scales::K3 => {
                let low = word(at + 3 * big + fine / 8) >> (4 * (fine % 8)) & 15;
                let high = word(at + 3 * big + 2) >> (2 * fine) & 3;
                let d = half(word(at + 3 * blocks + big / 2), big % 2);
                (d * ((low | high << 4) as f32 - 32.0), 0.0)
            }
            Scales::K4 => {
                let at = at + 4 * big;
                let both = word(at + 1 + group / 4) >> (8 * (group % 4));
                let high = word(at + 3) >> (4 * group);
                let (scale, low) = (both & 15 | (high & 3) << 4, both >> 4 & 15 | (high >> 2 & 3) << 4);
                (half(word(at), 0) * scale as f32, half(word(at), 1) * low as f32)
            }
            Scales::K6 => {
                let packed = (word(at + 4 * big + fine / 4) >> (8 * (fine % 4))) as u8 as i8;
                (half(word(at + 4 * blocks + big / 2), big % 2) * f32::from(packed), 0.0)
            }
            Scales::Iq4Xs => {
                let second = word(at + 2 * big + 1);
                let scale = word(at + 2 * big) >> (4 * group) & 15 | (second >> (16 + 2 * group) & 3) << 4;
                (half(second, 0) * (scale as f32 - 32.0), 0.0)
            }
        }
    }
}

/// The bits of codes from `shift` on that a plane holds, so many that `CODES` of them fill a word. Byte b of a word gathers
/// what values b and b + 4 of an oct contribute, and octs that share a word are as many bits apart.
fn plane<const CODES: usize>(codes: &[u8], shift: u32, words: &mut [u32]) {
    let bits = 32 / CODES as u32;
    let mask = ((1 << bits) - 1) * 0x0101_0101_0101_0101;
    for (word, codes) in words.iter_mut().zip(codes.as_chunks::<CODES>().0) {
        let mut gathered = 0;
        for (i, oct) in (0..).zip(codes.as_chunks::<8>().0) {
            let oct = u64::from_le_bytes(*oct) >> shift & mask;
            gathered |= ((oct | oct >> 28) as u32) << (bits * i);
        }
        *word = gathered;
    }
}
