//! Storage formats of weights as checkpoints hold them: names, block sizes and bytes.
//!
//! Packed safetensors (MLX, NVFP4, FP8) hold the codes, the scales and the offsets of a matrix in tensors of their own,
//! the *planes*. [`Format::planes`] gives the bytes of a row in each; [`gather`] joins them into a row of blocks (codes,
//! then scale, then offset), and from there on they are formats like any other.
//!
//! A *block* is the smallest run of consecutive values of a row that can be decoded by itself. Block sizes are
//! those of the GGUF specification (`ggml-common.h` of the public `ggml` library names the same structures).

use crate::RecordError;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// How affine scales and offsets are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the formats' own
pub enum ScaleType {
    F32,
    F16,
    BF16,
}

impl ScaleType {
    /// Every type.
    pub const ALL: [ScaleType; 3] = [ScaleType::F32, ScaleType::F16, ScaleType::BF16];

    /// Bytes of a scale.
    pub const fn bytes(self) -> usize {
        match self {
            ScaleType::F32 => 4,
            ScaleType::F16 | ScaleType::BF16 => 2,
        }
    }
}

/// How the values of one tensor are stored in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the formats' own
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    #[serde(rename = "q2_k")]
    Q2K,
    #[serde(rename = "q3_k")]
    Q3K,
    #[serde(rename = "q4_k")]
    Q4K,
    #[serde(rename = "q5_k")]
    Q5K,
    #[serde(rename = "q6_k")]
    Q6K,
    Iq4Nl,
    Iq4Xs,
    /// 32 values in a byte each of two e2m1 codes, low nibbles first, after a power of two. The sequential order of MLX
    /// and OCP checkpoints is turned into this one as it is gathered.
    Mxfp4,
    /// MLX: `group` values of `bits` bits (1 to 6, or 8) as a little-endian bit stream, then scale and offset:
    /// `value = code · scale + offset`. Scales may be negative.
    Affine {
        bits: u8,
        /// 32, 64 or 128.
        group: u8,
        scales: ScaleType,
    },
    /// 32 values of e4m3 and a power of two.
    Mxfp8,
    /// 16 values of e2m1 and an e4m3 scale.
    Nvfp4,
    /// The same with a factor for each row, which ends the row (f32).
    Nvfp4Scaled,
    /// e4m3 and a factor for each row, which ends the row (f32).
    Fp8,
}

const fn affine(bits: u8, group: u8, scales: ScaleType) -> Format {
    Format::Affine { bits, group, scales }
}

impl Format {
    /// Every format, in a fixed order; of the affine ones as many as have each width, each group and each type of scale.
    pub const ALL: [Format; 28] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Mxfp4,
        affine(1, 128, ScaleType::BF16),
        affine(2, 64, ScaleType::BF16),
        affine(3, 32, ScaleType::F32),
        affine(4, 32, ScaleType::F16),
        affine(4, 64, ScaleType::BF16),
        affine(5, 128, ScaleType::F32),
        affine(6, 64, ScaleType::F16),
        affine(8, 64, ScaleType::BF16),
        Format::Mxfp8,
        Format::Nvfp4,
        Format::Nvfp4Scaled,
        Format::Fp8,
    ];

    /// Every format there is: those of [`Format::ALL`] that are not affine, then all affine ones.
    pub fn every() -> impl Iterator<Item = Format> {
        let bits = [1, 2, 3, 4, 5, 6, 8].into_iter();
        let groups = bits.flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
        let affine =
            groups.flat_map(|(bits, group)| ScaleType::ALL.map(|scales| affine(bits, group, scales)));
        Format::ALL.into_iter().filter(|format| !matches!(format, Format::Affine { .. })).chain(affine)
    }

    /// The format of that [`Format::name`].
    pub fn from_name(name: &str) -> Option<Format> {
        Format::every().find(|format| format.name() == name)
    }

    /// Whether it is one of [`Format::every`]: a checkpoint may state any width and group. Of what is not, no row has a
    /// size.
    pub const fn is_known(self) -> bool {
        match self {
            Format::Affine { bits, group, .. } => matches!(bits, 1..=6 | 8) && matches!(group, 32 | 64 | 128),
            _ => true,
        }
    }

    /// Bits of a code where codes of a block are one little-endian bit stream from its first byte on.
    pub(crate) const fn stream_bits(self) -> Option<usize> {
        match self {
            Format::Affine { bits, .. } => Some(bits as usize),
            Format::Nvfp4 | Format::Nvfp4Scaled => Some(4),
            Format::Mxfp8 | Format::Fp8 => Some(8),
            _ => None,
        }
    }

    /// Values in one block; every row is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => 32,
            Format::Iq4Nl | Format::Mxfp4 => 32,
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => 256,
            Format::Affine { group, .. } => group as usize,
            Format::Mxfp8 => 32,
            Format::Nvfp4 | Format::Nvfp4Scaled => 16,
            Format::Fp8 => 1,
        }
    }

    /// Bytes of one block in the checkpoint.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 | Format::Iq4Nl => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q2K => 84,
            Format::Q3K => 110,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
            Format::Iq4Xs => 136,
            Format::Mxfp4 => 17,
            Format::Affine { bits, group, scales } => group as usize / 8 * bits as usize + 2 * scales.bytes(),
            Format::Mxfp8 => 33,
            Format::Nvfp4 | Format::Nvfp4Scaled => 9,
            Format::Fp8 => 1,
        }
    }

    /// Bytes that end a row after its blocks: the row's own factor.
    pub const fn row_tail(self) -> usize {
        match self {
            Format::Nvfp4Scaled | Format::Fp8 => 4,
            _ => 0,
        }
    }

    /// Bytes of a row of `cols` values in the checkpoint, or `None` when `cols` is not a whole number of blocks,
    /// the product overflows, or there is no such format.
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        if !self.is_known() || !cols.is_multiple_of(block) {
            return None;
        }
        (cols / block).checked_mul(self.block_bytes() as u64)?.checked_add(self.row_tail() as u64)
    }

    /// Bytes of a row of `cols` values in each of the tensors that packed safetensors keep it in: codes, scales, offsets.
    /// `None` for formats that have no such form, or when `cols` is not a whole number of blocks. Row factors are not
    /// planes.
    pub fn planes(self, cols: u64) -> Option<Vec<u64>> {
        let blocks = self.row_bytes(cols).map(|_| cols / self.block_len() as u64)?;
        match self {
            Format::Affine { bits, group, scales } => {
                let scale = blocks * scales.bytes() as u64;
                Some(vec![blocks * u64::from(group) / 8 * u64::from(bits), scale, scale])
            }
            Format::Mxfp4 => Some(vec![16 * blocks, blocks]),
            Format::Mxfp8 => Some(vec![32 * blocks, blocks]),
            Format::Nvfp4 | Format::Nvfp4Scaled => Some(vec![8 * blocks, blocks]),
            Format::Fp8 => Some(vec![blocks]),
            _ => None,
        }
    }

    /// Whether values are plain floats (no blocks, no scales).
    pub const fn is_float(self) -> bool {
        matches!(self, Format::F32 | Format::F16 | Format::BF16)
    }

    /// The lower-case name used on the command line and in reports, e.g. `q4_k`, `affine4_g64_bf16`.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::BF16 => "bf16",
            Format::Q4_0 => "q4_0",
            Format::Q4_1 => "q4_1",
            Format::Q5_0 => "q5_0",
            Format::Q5_1 => "q5_1",
            Format::Q8_0 => "q8_0",
            Format::Q2K => "q2_k",
            Format::Q3K => "q3_k",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
            Format::Iq4Nl => "iq4_nl",
            Format::Iq4Xs => "iq4_xs",
            Format::Mxfp4 => "mxfp4",
            Format::Affine { bits, group, scales } => {
                let scales = match scales {
                    ScaleType::F32 => "f32",
                    ScaleType::F16 => "f16",
                    ScaleType::BF16 => "bf16",
                };
                return Cow::Owned(format!("affine{bits}_g{group}_{scales}"));
            }
            Format::Mxfp8 => "mxfp8",
            Format::Nvfp4 => "nvfp4",
            Format::Nvfp4Scaled => "nvfp4_scaled",
            Format::Fp8 => "fp8",
        })
    }
}

/// Joins the planes of one row into its blocks: `planes` as [`Format::planes`] has them, `factor` for formats whose rows
/// end in one. Writes every byte of `row`, which is [`Format::row_bytes`] long.
///
/// # Errors
/// [`RecordError`] when `row` is not whole blocks, or `planes` are not those of as many blocks.
pub fn gather(format: Format, planes: &[&[u8]], factor: f32, row: &mut [u8]) -> Result<(), RecordError> {
    let (len, size, got) = (format.block_len(), format.block_bytes(), row.len() as u64);
    let blocks = row.len().checked_sub(format.row_tail()).filter(|bytes| bytes.is_multiple_of(size));
    let Some(blocks) = blocks.map(|bytes| bytes / size).filter(|_| format.is_known()) else {
        return Err(RecordError::Row { format, got });
    };
    let expected = format.planes((blocks * len) as u64).unwrap_or_default();
    if expected.is_empty() || planes.len() != expected.len() {
        return Err(RecordError::Planes { format, expected: expected.len(), got: planes.len() });
    }
    for (plane, (expected, bytes)) in expected.into_iter().zip(planes).enumerate() {
        let got = bytes.len() as u64;
        if got != expected {
            return Err(RecordError::Plane { format, plane, expected, got });
        }
    }
    let (codes, tail) = row.split_at_mut(blocks * size);
    match (format, planes) {
        (Format::Mxfp4, [codes_of, scales]) => {
            let codes_of = codes_of.chunks_exact(16).zip(*scales);
            for (block, (from, scale)) in codes.chunks_exact_mut(size).zip(codes_of) {
                block[0] = *scale;
                sequential_to_halves(from, &mut block[1..]);
            }
        }
        // Blocks without scales are the plane itself.
        (_, [only]) => codes.copy_from_slice(only),
        _ => {
            for (i, mut block) in codes.chunks_exact_mut(size).enumerate() {
                for plane in planes {
                    let bytes = plane.len() / blocks;
                    let (to, rest) = block.split_at_mut(bytes);
                    to.copy_from_slice(&plane[i * bytes..][..bytes]);
                    block = rest;
                }
            }
        }
    }
    if !tail.is_empty() {
        tail.copy_from_slice(&factor.to_le_bytes());
    }
    Ok(())
}

/// 32 nibbles, two consecutive ones a byte, to bytes of which the low nibbles are the first 16 and the high ones the others.
fn sequential_to_halves(from: &[u8], to: &mut [u8]) {
    let nibble = |i: usize| from[i / 2] >> (4 * (i % 2)) & 15;
    for (i, to) in to.iter_mut().enumerate() {
        *to = nibble(i) | nibble(i + 16) << 4;
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(Format::Q4K.row_bytes(512), Some(288));
        assert_eq!(Format::Q4K.row_bytes(500), None);
        assert_eq!(Format::F16.row_bytes(5), Some(10));
        assert_eq!(Format::F32.row_bytes(u64::MAX), None);
        assert_eq!(Format::Nvfp4Scaled.row_bytes(32), Some(22));
        assert_eq!(Format::Fp8.row_bytes(5), Some(9));
        assert_eq!(affine(3, 64, ScaleType::BF16).row_bytes(128), Some(2 * (24 + 4)));
    }

    /// A checkpoint states widths and groups; those that nothing can read have no sizes, and stop nothing.
    #[test]
    fn unknown_affine_formats_have_no_rows() {
        for (bits, group) in [(0, 64), (7, 64), (9, 64), (4, 0), (4, 16), (4, 96), (255, 255)] {
            let format = affine(bits, group, ScaleType::F16);
            assert!(!format.is_known());
            assert_eq!(format.row_bytes(0), None);
            assert_eq!(format.planes(0), None);
            assert!(matches!(gather(format, &[], 0.0, &mut []), Err(RecordError::Row { .. })));
            assert_eq!(crate::Record::new(format, 768), None);
            let mut out = [0.5; 2];
            crate::dequant::dequantize(format, &[0; 64], &mut out);
            assert_eq!(crate::dequant::first_not_finite(format, &[0xFF; 64]), None);
        }
    }

    #[test]
    fn names_are_unambiguous() {
        let mut names = std::collections::HashSet::new();
        for format in Format::every() {
            assert!(format.is_known());
            assert!(names.insert(format.name()), "{format}");
            assert_eq!(Format::from_name(&format.to_string()), Some(format));
        }
        assert_eq!(names.len(), 20 + 7 * 3 * 3);
        assert!(Format::ALL.into_iter().all(|format| names.contains(&format.name())));
        for name in
            ["", "affine4", "affine04_g64_bf16", "affine7_g64_bf16", "affine4_g64_bf16 ", "AFFINE4_G64_BF16"]
        {
            assert_eq!(Format::from_name(name), None, "{name}");
        }
    }
}
