//! Schemes of quantisation by name.

use super::WeightsError;
use super::gguf::{self, Mix};
use plimsoll_kernels::Format;

/// How weights would be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// All in one type of floats.
    Plain(Format),
    /// One of GGUF's mixes.
    Gguf(Mix),
    /// As MLX's converter packs: bits and group; scales are in the model's type.
    Mlx {
        /// Bits of a code.
        bits: u8,
        /// Values that share a scale and an offset.
        group: u8,
    },
    /// As MLX's converter packs in one of the formats without offsets.
    MlxFloat(Format),
    /// modelopt's NVFP4.
    Nvfp4,
    /// modelopt's FP8, one factor for each linear layer.
    Fp8,
    /// MXFP4: experts of a mixture, linear layers of a dense model.
    Mxfp4,
}

const FLOATS: [&str; 3] = ["f32", "bf16", "f16"];
const OTHERS: [&str; 8] = [
    "mlx-4bit-g64",
    "mlx-8bit-g64",
    "mlx-{2,3,4,5,6,8}bit-g{32,64,128}",
    "mlx-mxfp4",
    "mlx-mxfp8",
    "mlx-nvfp4",
    "nvfp4",
    "mxfp4",
];

/// What `--weights` takes, for help texts: plain types, GGUF's mixes (each perhaps with `+imatrix`, `+old-qkv` or
/// `+new-qkv`), then the others. Names with braces stand for several.
pub const SCHEMES: [&str; 42] = {
    let mut all = ["fp8"; 42];
    let (mixes, mut i) = (gguf::names(), 0);
    while i < 41 {
        all[i] = if i < 3 {
            FLOATS[i]
        } else if i < 33 {
            mixes[i - 3]
        } else {
            OTHERS[i - 33]
        };
        i += 1;
    }
    all
};

impl Scheme {
    /// The scheme of a name, in upper or lower case.
    ///
    /// # Errors
    /// [`WeightsError::Unknown`].
    pub fn from_name(name: &str) -> Result<Self, WeightsError> {
        let text = name.trim().to_ascii_lowercase();
        let found = match text.as_str() {
            "f32" => Some(Scheme::Plain(Format::F32)),
            "f16" => Some(Scheme::Plain(Format::F16)),
            "bf16" => Some(Scheme::Plain(Format::BF16)),
            "nvfp4" => Some(Scheme::Nvfp4),
            "fp8" => Some(Scheme::Fp8),
            "mxfp4" => Some(Scheme::Mxfp4),
            other => match other.strip_prefix("mlx-") {
                Some(rest) => mlx(rest),
                None => Mix::from_name(other).map(Scheme::Gguf),
            },
        };
        found.ok_or_else(|| {
            let short: String = name.chars().take(60).collect();
            WeightsError::Unknown { scheme: short, known: SCHEMES.join(", ") }
        })
    }
}

/// What follows `mlx-`: `4bit`, `4bit-g32`, `mxfp4`.
fn mlx(rest: &str) -> Option<Scheme> {
    match rest {
        "mxfp4" => return Some(Scheme::MlxFloat(Format::Mxfp4)),
        "mxfp8" => return Some(Scheme::MlxFloat(Format::Mxfp8)),
        "nvfp4" => return Some(Scheme::MlxFloat(Format::Nvfp4)),
        _ => {}
    }
    let (bits, group) = match rest.split_once("-g") {
        Some((bits, group)) => (bits, group.parse().ok()?),
        None => (rest, 64),
    };
    let bits: u8 = bits.strip_suffix("bit")?.parse().ok()?;
    let known = matches!(bits, 2..=6 | 8) && matches!(group, 32 | 64 | 128);
    known.then_some(Scheme::Mlx { bits, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_listed_is_one() {
        for name in SCHEMES.iter().filter(|name| !name.contains('{')) {
            assert!(Scheme::from_name(name).is_ok(), "{name}");
        }
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                assert_eq!(
                    Scheme::from_name(&format!("mlx-{bits}bit-g{group}")),
                    Ok(Scheme::Mlx { bits, group })
                );
            }
        }
        assert_eq!(Scheme::from_name("mlx-4bit"), Ok(Scheme::Mlx { bits: 4, group: 64 }));
        assert_eq!(Scheme::from_name("Q4_K_M"), Scheme::from_name("q4_k_m"));
        for wrong in
            ["", "q4", "mlx-7bit", "mlx-4bit-g16", "mlx-4bit-g999", "q4_k_m+", "q4_k_m+x", "mlx-{2}bit"]
        {
            assert!(matches!(Scheme::from_name(wrong), Err(WeightsError::Unknown { .. })), "{wrong}");
        }
    }
}
