//! The tensor types of the GGUF specification: numbers, names and block sizes.

use plimsoll_kernels::Format;
use std::borrow::Cow;

/// What a tensor type number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GgmlType {
    /// A format that kernels exist for.
    Known(Format),
    /// A format we can size but not run: name, values in a block, bytes of a block.
    Named(&'static str, u64, u64),
}

impl GgmlType {
    /// The type with this number, or `None` when the number was never given or was withdrawn.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        use GgmlType::{Known, Named};
        Some(match number {
            0 => Known(Format::F32),
            1 => Known(Format::F16),
            2 => Known(Format::Q4_0),
            3 => Known(Format::Q4_1),
            6 => Known(Format::Q5_0),
            7 => Known(Format::Q5_1),
            8 => Known(Format::Q8_0),
            9 => Named("q8_1", 32, 36),
            10 => Known(Format::Q2K),
            11 => Known(Format::Q3K),
            12 => Known(Format::Q4K),
            13 => Known(Format::Q5K),
            14 => Known(Format::Q6K),
            15 => Named("q8_k", 256, 292),
            16 => Named("iq2_xxs", 256, 66),
            17 => Named("iq2_xs", 256, 74),
            18 => Named("iq3_xxs", 256, 98),
            19 => Named("iq1_s", 256, 50),
            20 => Known(Format::Iq4Nl),
            21 => Named("iq3_s", 256, 110),
            22 => Named("iq2_s", 256, 82),
            23 => Known(Format::Iq4Xs),
            24 => Named("i8", 1, 1),
            25 => Named("i16", 1, 2),
            26 => Named("i32", 1, 4),
            27 => Named("i64", 1, 8),
            28 => Named("f64", 1, 8),
            29 => Named("iq1_m", 256, 56),
            30 => Known(Format::BF16),
            34 => Named("tq1_0", 256, 54),
            35 => Named("tq2_0", 256, 66),
            39 => Known(Format::Mxfp4),
            40 => Named("nvfp4", 64, 36),
            41 => Named("q1_0", 128, 18),
            _ => return None,
        })
    }

    pub(super) fn name(self) -> Cow<'static, str> {
        match self {
            GgmlType::Known(format) => format.name(),
            GgmlType::Named(name, ..) => Cow::Borrowed(name),
        }
    }

    /// Values in one block.
    pub(super) fn block_len(self) -> u64 {
        match self {
            GgmlType::Known(format) => format.block_len() as u64,
            GgmlType::Named(_, len, _) => len,
        }
    }

    /// Bytes of one block.
    pub(super) fn block_bytes(self) -> u64 {
        match self {
            GgmlType::Known(format) => format.block_bytes() as u64,
            GgmlType::Named(.., bytes) => bytes,
        }
    }
}
