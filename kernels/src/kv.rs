//! The paged KV cache: how one page of one attention layer is laid out, and what it costs.
//!
//! A page holds [`PAGE`] tokens of one layer, head after head:
//!
//! ```text
//! f32, f16   per head: K [32, Ep] | V [32, Ep]
//! q8_0       per head: K codes [32, E] | V codes [32, E] | scales [32, E/32], K's in the low half of a word, V's in the high
//! ```
//!
//! `Ep` is the head size `E` rounded up to 8, so that every row is whole 16-byte words; the gap holds zeros.

use crate::step::PAGE;
use half::f16;
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

    /// Words of one page of one layer.
    pub const fn page_words(&self) -> u32 {
        self.kv_heads * self.head_words()
    }

    /// Stores one token of one head in a page, as the kernels do: keys and values are clamped to the range of f16
    /// where that is the type, `q8_0` codes are `round(x·127/amax)` with `amax/127` rounded to f16, and the gap
    /// behind the head size is zero. `page` is [`KvLayout::page_words`] long, `token` counts within it; `key` and
    /// `value` hold `E` values.
    pub fn store(&self, page: &mut [u32], head: u32, token: u32, key: &[f32], value: &[f32]) {
        let head = &mut page[(head * self.head_words()) as usize..][..self.head_words() as usize];
        let row = self.row_words() as usize;
        let at = token as usize * row;
        let (keys, rest) = head.split_at_mut(PAGE as usize * row);
        let (values, scales) = rest.split_at_mut(PAGE as usize * row);
        for (half, x, words) in [(0, key, &mut keys[at..at + row]), (1, value, &mut values[at..at + row])] {
            match self.format {
                KvFormat::F32 => {
                    words.fill(0);
                    for (word, x) in words.iter_mut().zip(x) {
                        *word = x.to_bits();
                    }
                }
                KvFormat::F16 => {
                    for (word, pair) in words.iter_mut().zip((0..).step_by(2)) {
                        let bits = |i: usize| u32::from(to_f16(x.get(i).copied().unwrap_or(0.0)).to_bits());
                        *word = bits(pair) | bits(pair + 1) << 16;
                    }
                }
                KvFormat::Q8_0 => {
                    for (block, x) in x.chunks(32).enumerate() {
                        let largest = x.iter().fold(0f32, |a, v| a.max(v.abs()));
                        let inverse = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
                        let scale = u32::from(to_f16(largest / 127.0).to_bits());
                        let word = &mut scales[(token * self.scale_words()) as usize + block];
                        *word = *word & (0xffff_0000u32 >> (16 * half)) | scale << (16 * half);
                        for (word, x) in words[block * 8..].iter_mut().zip(x.chunks(4)) {
                            let code = |v: &f32| (v * inverse).round_ties_even() as i8 as u8;
                            *word = x.iter().rev().fold(0, |w, v| w << 8 | u32::from(code(v)));
                        }
                    }
                }
            }
        }
    }

    /// The `E` values of one token of one head of a page: its key, or its value.
    pub fn load(&self, page: &[u32], head: u32, token: u32, value: bool) -> Vec<f32> {
        let head = &page[(head * self.head_words()) as usize..][..self.head_words() as usize];
        let row = self.row_words() as usize;
        let words = &head[(token as usize + if value { PAGE as usize } else { 0 }) * row..][..row];
        let half = |word: u32, high: bool| {
            f16::from_bits(if high { word >> 16 } else { word & 0xffff } as u16).to_f32()
        };
        let scales = &head[2 * PAGE as usize * row..];
        (0..self.head_dim as usize)
            .map(|i| match self.format {
                KvFormat::F32 => f32::from_bits(words[i]),
                KvFormat::F16 => half(words[i / 2], i % 2 == 1),
                KvFormat::Q8_0 => {
                    let scale = half(scales[(token * self.scale_words()) as usize + i / 32], value);
                    scale * f32::from((words[i / 4] >> (8 * (i % 4))) as u8 as i8)
                }
            })
            .collect()
    }

    /// Bytes of one page of one layer.
    pub const fn page_bytes(&self) -> u64 {
        self.page_words() as u64 * 4
    }

    /// Bytes of one token of one layer: `Hk·(E_k·size + E_v·size)` for heads of whole 8-value units.
    pub const fn token_bytes(&self) -> u64 {
        self.page_bytes() / PAGE as u64
    }
}

/// The nearest f16, at most ±65,504: a stored infinity would turn whole rows into NaN.
fn to_f16(value: f32) -> f16 {
    f16::from_f32(value.clamp(-65_504.0, 65_504.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_rows_load_back() {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 64 };
        for (format, relative) in [(KvFormat::F32, 0.0), (KvFormat::F16, 4.9e-4), (KvFormat::Q8_0, 4.3e-3)] {
            let Some(layout) = KvLayout::new(format, &shape) else { continue };
            let mut page = vec![0x7fc0_0000; layout.page_words() as usize];
            let row = |seed: usize| -> Vec<f32> {
                (0..64).map(|i| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0).collect()
            };
            for head in 0..2 {
                for token in 0..PAGE {
                    let seed = (head * PAGE + token) as usize;
                    layout.store(&mut page, head, token, &row(seed), &row(seed + 7));
                }
            }
            for head in 0..2 {
                for token in 0..PAGE {
                    let seed = (head * PAGE + token) as usize;
                    for (value, expected) in [(false, row(seed)), (true, row(seed + 7))] {
                        for (got, x) in layout.load(&page, head, token, value).iter().zip(expected) {
                            assert!((got - x).abs() <= relative * 1.02, "{format} {got} {x}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn f16_never_stores_an_infinity() {
        let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 5 };
        let layout = KvLayout { format: KvFormat::F16, kv_heads: 1, head_dim: 5 };
        assert_eq!(KvLayout::new(KvFormat::F16, &shape), Some(layout));
        let mut page = vec![u32::MAX; layout.page_words() as usize];
        layout.store(&mut page, 0, 3, &[1e9, -1e9, 70_000.0, 1.0, 2.0], &[0.0; 5]);
        assert_eq!(layout.load(&page, 0, 3, false), [65_504.0, -65_504.0, 65_504.0, 1.0, 2.0]);
        assert_eq!(page[3 * 4 + 2] >> 16, 0, "the gap is zero");
    }

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
