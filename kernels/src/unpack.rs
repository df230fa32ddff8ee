//! How a record's values are coded, and the WGSL that decodes them: one quants text and one scales text a format,
//! all with one signature.
//!
//! The unit is the *oct*: 8 consecutive values of a row. A value is `s.x·q·UNIT + s.y`, with
//!
//! ```wgsl
//! fn quants_of(row: u32, octs: u32, oct: u32) -> Oct        // q: values 0–3 and 4–7
//! fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32>   // s: the same for SCALE_OCTS neighbours
//! const UNIT: vec4<f32>                                     // powers of two: q may be left where it stands in its word
//! const HAS_OFFSET: bool                                    // whether s.y can be other than 0
//! ```
//!
//! Kernels whose lanes have rows of their own take a *chunk* of 4 octs at a time, and what is loaded once for a *span* of
//! 4 chunks (second planes, scales) is handed from chunk to chunk:
//!
//! ```wgsl
//! fn quant_span(row: u32, octs: u32, span: u32) -> QuantSpan          // of the span's first chunk
//! fn next_quants(v: QuantSpan) -> QuantSpan                           // of the chunk after it
//! fn codes_of(row: u32, chunk: u32, span: QuantSpan) -> Codes
//! fn oct_of(codes: Codes, o: u32) -> Oct                              // q of oct o of the chunk
//! fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan
//! fn next_scales(v: ScaleSpan) -> ScaleSpan
//! fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32>                   // s of octs 2·half and 2·half + 1
//! ```
//!
//! Where a row ends inside a chunk, what stands behind it is decoded like codes: it is what the buffer holds, never NaN
//! of a loaded matrix, and meets zeros of x.
//!
//! `row` is the word where the row begins, `octs` the octs of a row. Quants fill planes, each of a fixed number of
//! bits an oct; scales follow.

use crate::Format;
use crate::format::ScaleType;
use crate::shader::Source;

/// How codes stand in their planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quants {
    F32,
    F16,
    Bf16,
    Bits1,
    Bits2,
    Bits3,
    Bits4,
    Bits5,
    Bits6,
    /// Signed bytes.
    Bits8,
    Unsigned8,
    Iq4,
    E2m1,
    E4m3,
}

/// How scales stand after the planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// None: the values are floats.
    One,
    /// An f16 for 32 values.
    Half,
    /// An f16 and an f16 minimum for 32 values.
    HalfMin,
    /// 256 values: 16 bytes of a 4-bit scale and a 4-bit minimum, then f16 factors of both.
    K2,
    /// 256 values: 16 scales of 6 bits, then (after all blocks) an f16.
    K3,
    /// 256 values: f16 factors of scale and minimum, then 8 of each, 6 bits.
    K4,
    /// 256 values: 16 signed bytes, then (after all blocks) an f16.
    K6,
    /// 256 values: 8 scales of 6 bits and an f16.
    Iq4Xs,
    /// Half of a power of two for 32 values.
    E8m0,
    /// A power of two for 32 values.
    Power,
    /// Scale and offset for `group` values, side by side: a word if they are 16 bits.
    Affine { group: u8, scales: ScaleType },
    /// Half of an e4m3 for 16 values.
    E4m3,
    /// The same, then an f32 factor for the row.
    E4m3Row,
    /// An f32 factor for the row.
    Row,
}

impl Quants {
    /// Quarters of a word that each plane takes for an oct, low bits first.
    pub(crate) const fn planes(self) -> [u32; 2] {
        match self {
            Quants::F32 => [32, 0],
            Quants::F16 | Quants::Bf16 => [16, 0],
            Quants::Bits1 => [1, 0],
            Quants::Bits2 => [2, 0],
            Quants::Bits3 => [2, 1],
            Quants::Bits4 | Quants::Iq4 | Quants::E2m1 => [4, 0],
            Quants::Bits5 => [4, 1],
            Quants::Bits6 => [4, 2],
            Quants::Bits8 | Quants::Unsigned8 | Quants::E4m3 => [8, 0],
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Quants::F32 => include_str!("unpack/f32.wgsl"),
            Quants::F16 => include_str!("unpack/f16.wgsl"),
            Quants::Bf16 => include_str!("unpack/bf16.wgsl"),
            Quants::Bits1 => concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/bits1.wgsl")),
            Quants::Bits2 => concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/bits2.wgsl")),
            Quants::Bits3 => concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/bits3.wgsl")),
            Quants::Bits4 => concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/bits4.wgsl")),
            Quants::Bits5 => concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/bits5.wgsl")),
            Quants::Bits6 => concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/bits6.wgsl")),
            Quants::Bits8 => concat!(include_str!("unpack/signed.wgsl"), include_str!("unpack/bits8.wgsl")),
            Quants::Unsigned8 => {
                concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/unsigned8.wgsl"))
            }
            Quants::E4m3 => concat!(include_str!("unpack/from_e4m3.wgsl"), include_str!("unpack/e4m3.wgsl")),
            Quants::Iq4 => concat!(include_str!("unpack/bytes.wgsl"), include_str!("unpack/iq4.wgsl")),
            Quants::E2m1 => concat!(include_str!("unpack/signed.wgsl"), include_str!("unpack/e2m1.wgsl")),
        }
    }

    /// Loads by chunks.
    const fn chunk_text(self) -> &'static str {
        match self {
            Quants::F32 => include_str!("unpack/chunk_f32.wgsl"),
            Quants::F16 | Quants::Bf16 => include_str!("unpack/chunk_halves.wgsl"),
            Quants::Bits1 => include_str!("unpack/chunk_bits1.wgsl"),
            Quants::Bits2 => include_str!("unpack/chunk_bits2.wgsl"),
            Quants::Bits3 => include_str!("unpack/chunk_bits3.wgsl"),
            Quants::Bits4 | Quants::Iq4 | Quants::E2m1 => include_str!("unpack/chunk_nibbles.wgsl"),
            Quants::Bits5 => include_str!("unpack/chunk_bits5.wgsl"),
            Quants::Bits6 => include_str!("unpack/chunk_bits6.wgsl"),
            Quants::Bits8 | Quants::Unsigned8 | Quants::E4m3 => include_str!("unpack/chunk_bytes.wgsl"),
        }
    }
}

impl Scales {
    const fn text(self) -> &'static str {
        match self {
            Scales::One => include_str!("unpack/scale_one.wgsl"),
            Scales::Half => include_str!("unpack/scale_half.wgsl"),
            Scales::HalfMin => include_str!("unpack/scale_half_min.wgsl"),
            Scales::K2 => include_str!("unpack/scale_k2.wgsl"),
            Scales::K3 => include_str!("unpack/scale_k3.wgsl"),
            Scales::K4 => include_str!("unpack/scale_k4.wgsl"),
            Scales::K6 => include_str!("unpack/scale_k6.wgsl"),
            Scales::Iq4Xs => include_str!("unpack/scale_iq4_xs.wgsl"),
            Scales::E8m0 => include_str!("unpack/scale_e8m0.wgsl"),
            Scales::Power => include_str!("unpack/scale_power.wgsl"),
            Scales::Affine { scales: ScaleType::F32, .. } => include_str!("unpack/scale_affine_f32.wgsl"),
            Scales::Affine { scales: ScaleType::F16, .. } => include_str!("unpack/scale_affine_f16.wgsl"),
            Scales::Affine { scales: ScaleType::BF16, .. } => include_str!("unpack/scale_affine_bf16.wgsl"),
            Scales::E4m3 => {
                concat!(
                    include_str!("unpack/from_e4m3.wgsl"),
                    include_str!("unpack/scale_e4m3.wgsl"),
                    include_str!("unpack/scale_e4m3_block.wgsl")
                )
            }
            Scales::E4m3Row => {
                concat!(
                    include_str!("unpack/from_e4m3.wgsl"),
                    include_str!("unpack/scale_e4m3_row.wgsl"),
                    include_str!("unpack/scale_e4m3_block.wgsl")
                )
            }
            Scales::Row => include_str!("unpack/scale_row.wgsl"),
        }
    }

    /// Loads by spans.
    const fn span_text(self) -> &'static str {
        match self {
            Scales::One => include_str!("unpack/span_one.wgsl"),
            Scales::Half => include_str!("unpack/span_half.wgsl"),
            Scales::HalfMin => include_str!("unpack/span_half_min.wgsl"),
            Scales::K2 => include_str!("unpack/span_k2.wgsl"),
            Scales::K3 => include_str!("unpack/span_k3.wgsl"),
            Scales::K4 => include_str!("unpack/span_k4.wgsl"),
            Scales::K6 => include_str!("unpack/span_k6.wgsl"),
            Scales::Iq4Xs => include_str!("unpack/span_iq4_xs.wgsl"),
            Scales::E8m0 => include_str!("unpack/span_e8m0.wgsl"),
            Scales::Power => include_str!("unpack/span_power.wgsl"),
            Scales::Affine { scales: ScaleType::F32, .. } => include_str!("unpack/span_affine_f32.wgsl"),
            Scales::Affine { .. } => include_str!("unpack/span_affine.wgsl"),
            Scales::E4m3 | Scales::E4m3Row => include_str!("unpack/span_e4m3.wgsl"),
            Scales::Row => include_str!("unpack/span_row.wgsl"),
        }
    }

    /// Octs that share a scale.
    pub(crate) const fn octs(self) -> u32 {
        match self {
            Scales::K2 | Scales::K3 | Scales::K6 | Scales::E4m3 | Scales::E4m3Row => 2,
            Scales::Affine { group, .. } => group as u32 / 8,
            _ => 4,
        }
    }
}

impl Format {
    pub(crate) const fn quants(self) -> Quants {
        match self {
            Format::F32 => Quants::F32,
            Format::F16 => Quants::F16,
            Format::BF16 => Quants::Bf16,
            Format::Q2K => Quants::Bits2,
            Format::Q3K => Quants::Bits3,
            Format::Q4_0 | Format::Q4_1 | Format::Q4K => Quants::Bits4,
            Format::Q5_0 | Format::Q5_1 | Format::Q5K => Quants::Bits5,
            Format::Q6K => Quants::Bits6,
            Format::Q8_0 => Quants::Bits8,
            Format::Iq4Nl | Format::Iq4Xs => Quants::Iq4,
            Format::Mxfp4 | Format::Nvfp4 | Format::Nvfp4Scaled => Quants::E2m1,
            Format::Mxfp8 | Format::Fp8 => Quants::E4m3,
            Format::Affine { bits: 1, .. } => Quants::Bits1,
            Format::Affine { bits: 2, .. } => Quants::Bits2,
            Format::Affine { bits: 3, .. } => Quants::Bits3,
            Format::Affine { bits: 4, .. } => Quants::Bits4,
            Format::Affine { bits: 5, .. } => Quants::Bits5,
            Format::Affine { bits: 6, .. } => Quants::Bits6,
            Format::Affine { .. } => Quants::Unsigned8,
        }
    }

    pub(crate) const fn scales(self) -> Scales {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => Scales::One,
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl => Scales::Half,
            Format::Q4_1 | Format::Q5_1 => Scales::HalfMin,
            Format::Q2K => Scales::K2,
            Format::Q3K => Scales::K3,
            Format::Q4K | Format::Q5K => Scales::K4,
            Format::Q6K => Scales::K6,
            Format::Iq4Xs => Scales::Iq4Xs,
            Format::Mxfp4 => Scales::E8m0,
            Format::Mxfp8 => Scales::Power,
            Format::Affine { group, scales, .. } => Scales::Affine { group, scales },
            Format::Nvfp4 => Scales::E4m3,
            Format::Nvfp4Scaled => Scales::E4m3Row,
            Format::Fp8 => Scales::Row,
        }
    }

    /// What is subtracted from a code (as the WGSL decodes it) before it is scaled.
    pub(crate) const fn bias(self) -> u32 {
        match self {
            Format::Q3K => 4,
            Format::Q4_0 => 8,
            Format::Q5_0 => 16,
            Format::Q6K => 32,
            // Table formats decode to value + 127, which is never negative.
            Format::Iq4Nl | Format::Iq4Xs => 127,
            _ => 0,
        }
    }

    /// Whether codes are scaled at all.
    pub(crate) fn has_scale(self) -> bool {
        self.scales() != Scales::One
    }

    /// Whether values have an offset besides their scale.
    pub(crate) const fn has_offset(self) -> bool {
        self.bias() != 0
            || matches!(self.scales(), Scales::HalfMin | Scales::K2 | Scales::K4 | Scales::Affine { .. })
    }
}

/// Appends the unpackers of `format`, which read the matrix as `w: array<u32>`.
pub(crate) fn unpackers(source: Source, format: Format) -> Source {
    by_octs(source.text(include_str!("unpack/words_single.wgsl")), format)
}

/// Appends the unpackers of `format` and those by chunks, which read the matrix as `w: array<vec4<u32>>`.
pub(crate) fn chunk_unpackers(source: Source, format: Format) -> Source {
    let [first, second] = format.quants().planes();
    // Whether whole blocks are whole quads of words before a plane.
    let aligned = |quarters: u32| (format.block_len() as u32 / 8 * quarters).is_multiple_of(16);
    let source = source
        .text(include_str!("unpack/words_quad.wgsl"))
        .flag("SECOND_ALIGNED", aligned(first))
        .flag("SCALES_ALIGNED", aligned(first + second));
    by_octs(source, format).text(format.quants().chunk_text()).text(format.scales().span_text())
}

/// Appends the same, and `quad_of(codes: Codes, quad: u32) -> vec4<f32>`: q of four values of a chunk.
pub(crate) fn quad_unpackers(source: Source, format: Format) -> Source {
    let quad = match format.quants() {
        Quants::F32 => include_str!("unpack/quad_f32.wgsl"),
        _ => include_str!("unpack/quad.wgsl"),
    };
    chunk_unpackers(source, format).text(quad)
}

fn by_octs(source: Source, format: Format) -> Source {
    let [first, second] = format.quants().planes();
    source
        .constant("SECOND_PLANE", first)
        .constant("SCALES", first + second)
        .constant("BIAS", format.bias())
        .constant("SCALE_OCTS", format.scales().octs())
        .flag("HAS_OFFSET", format.has_offset())
        .text(include_str!("unpack/oct.wgsl"))
        .text(format.quants().text())
        .text(format.scales().text())
}
