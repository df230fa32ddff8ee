//! The paged KV cache: how one page of one attention layer is laid out, and what it costs.
//!
//! A page holds [`PAGE`](crate::step::PAGE) tokens of one layer, head after head:
//!
//! ```text
//! f32, f16   per head: K [32, Ep] | V [32, Ep]
//! q8_0       per head: K codes [32, E] | V codes [32, E] | scales [32, E/32], K's in the low half of a word, V's in the high
//! ```
//!
//! `Ep` is the head size `E` rounded up to 8, so that every row is whole 16-byte words; the gap holds zeros.

use crate::step::PAGE;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the formats' own
pub enum KvFormat {
    F32,
    F16,
    Q8_0,
}

impl KvFormat {
    /// Every format, widest first.
    pub const ALL: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8_0 => "q8_0",
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttentionShape {
    /// `Hq`, query heads.
    pub heads: u32,
    /// `Hk`, key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// `E`, values of a head, of queries, keys and values alike.
    pub head_dim: u32,
}

impl AttentionShape {
    /// Query heads that share one KV head.
    pub const fn group(&self) -> u32 {
        self.heads / if self.kv_heads == 0 { 1 } else { self.kv_heads }
    }

    /// `Ep`, the head size rounded up to whole 8-value units.
    pub const fn padded(&self) -> u32 {
        self.head_dim.next_multiple_of(8)
    }

    /// Columns of the stacked q, k, v activations of one token: `(Hq + 2·Hk)·E`.
    pub const fn qkv_width(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// One page of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KvLayout {
    /// How it is stored.
    pub format: KvFormat,
    /// Key and value heads.
    pub kv_heads: u32,
    /// `E`.
    pub head_dim: u32,
}

impl KvLayout {
    /// The layout, or `None` when the format cannot hold heads of this size (`q8_0` needs whole blocks of 32).
    pub fn new(format: KvFormat, shape: &AttentionShape) -> Option<Self> {
        (format != KvFormat::Q8_0 || shape.head_dim.is_multiple_of(32)).then_some(Self {
            format,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        })
    }

    /// 32-bit words of one row of one head: K or V codes of one token, without scales.
    pub const fn row_words(&self) -> u32 {
        match self.format {
            KvFormat::F32 => self.head_dim.next_multiple_of(8),
            KvFormat::F16 => self.head_dim.next_multiple_of(8) / 2,
            KvFormat::Q8_0 => self.head_dim / 4,
        }
    }

    /// Words of the scales of one token and head (K and V share a word).
    pub const fn scale_words(&self) -> u32 {
        match self.format {
            KvFormat::Q8_0 => self.head_dim / 32,
            KvFormat::F32 | KvFormat::F16 => 0,
        }
    }

    /// Words of one head of a page.
    pub const fn head_words(&self) -> u32 {
        PAGE * (2 * self.row_words() + self.scale_words())
    }

    /// Bytes of one page of one layer.
    pub const fn page_bytes(&self) -> u64 {
        self.kv_heads as u64 * self.head_words() as u64 * 4
    }

    /// Bytes of one token of one layer: `Hk·(E_k·size + E_v·size)` for heads of whole 8-value units.
    pub const fn token_bytes(&self) -> u64 {
        self.page_bytes() / PAGE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_closed_forms() {
        let shape = AttentionShape { heads: 24, kv_heads: 4, head_dim: 256 };
        let bytes = |format| KvLayout::new(format, &shape).map(|l| l.token_bytes());
        assert_eq!(bytes(KvFormat::F32), Some(4 * 2 * 256 * 4));
        assert_eq!(bytes(KvFormat::F16), Some(4 * 2 * 256 * 2));
        assert_eq!(bytes(KvFormat::Q8_0), Some(4 * 2 * (256 / 32) * 34));
        let odd = AttentionShape { heads: 2, kv_heads: 1, head_dim: 5 };
        assert_eq!(KvLayout::new(KvFormat::Q8_0, &odd), None);
        assert_eq!(KvLayout::new(KvFormat::F16, &odd).map(|l| l.token_bytes()), Some(2 * 8 * 2));
    }
}
