//! Rotary position embeddings: the frequencies of a model, computed once in f64 on the host.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How published configs stretch the frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Scaling {
    /// As trained.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths are divided by `factor`, short ones kept, those between blended.
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low` are long.
        low: f64,
        /// Wavelengths under `original / high` are short.
        high: f64,
        /// The context the model was first trained on.
        original: f64,
    },
    /// YaRN (arXiv 2309.00071): pairs that turn often within the first context are kept, those that hardly turn are
    /// divided by `factor`, those between blended along the pair's index; and the rotated values grow.
    Yarn {
        /// Divisor of the slow pairs.
        factor: f64,
        /// Turns within the first context above which a pair is kept.
        beta_fast: f64,
        /// Turns under which it is divided.
        beta_slow: f64,
        /// The context the model was first trained on.
        original: f64,
        /// The ends of the blend are whole indices: the first rounded down, the last up.
        truncate: bool,
        /// Factor of the rotated values; `0.1·ln(factor) + 1` where nothing states it.
        attention_factor: Option<f64>,
    },
}

/// The rotation of one kind of layer: pair `i` at position `t` turns by `t · frequencies[i]` and grows by `growth`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Radians per position of each rotated pair.
    pub frequencies: Vec<f64>,
    /// Factor of the rotated values, of queries and keys alike: scores grow by its square. 1 but for YaRN.
    pub growth: f64,
}

impl Rope {
    /// `theta^(−2i / rotated)` for the `rotated / 2` pairs of a head, scaled. The other channels of a larger head pass.
    pub fn new(theta: f64, rotated: u32, scaling: Scaling) -> Self {
        let frequencies = (0..rotated / 2).map(|i| scale(i, theta, rotated, scaling)).collect();
        Self { frequencies, growth: growth(scaling) }
    }

    /// Gemma 4's rotation of a share of a head: pairs span the whole head, as if all of it rotated, and so do the
    /// exponents, `theta^(−2i / head_dim)`; but only the first `turning` pairs turn.
    pub fn proportional(theta: f64, head_dim: u32, turning: u32, scaling: Scaling) -> Self {
        let turn = |i| if i < turning { scale(i, theta, head_dim, scaling) } else { 0.0 };
        Self { frequencies: (0..head_dim / 2).map(turn).collect(), growth: growth(scaling) }
    }

    /// Divides each frequency by a stored factor (GGUF's `rope_freqs.weight`).
    pub fn with_factors(mut self, factors: &[f32]) -> Self {
        for (f, &factor) in self.frequencies.iter_mut().zip(factors) {
            *f /= f64::from(factor);
        }
        self
    }

    /// Rotated pairs.
    pub fn pairs(&self) -> u32 {
        self.frequencies.len() as u32
    }

    /// Appends `[cos, sin]` of every pair at `position`, times the growth.
    pub fn fill(&self, position: u32, out: &mut Vec<[f32; 2]>) {
        out.extend(self.frequencies.iter().map(|f| {
            let (sin, cos) = (f64::from(position) * f).sin_cos();
            [(cos * self.growth) as f32, (sin * self.growth) as f32]
        }));
    }
}

/// The frequency of pair `i`.
fn scale(i: u32, theta: f64, rotated: u32, scaling: Scaling) -> f64 {
    let size = f64::from(rotated);
    let frequency = theta.powf(-2.0 * f64::from(i) / size);
    match scaling {
        Scaling::None => frequency,
        Scaling::Linear { factor } => frequency / factor,
        Scaling::Llama3 { factor, low, high, original } => {
            let wavelength = 2.0 * PI / frequency;
            if wavelength < original / high {
                frequency
            } else if wavelength > original / low {
                frequency / factor
            } else {
                let blend = (original / wavelength - low) / (high - low);
                (1.0 - blend) * frequency / factor + blend * frequency
            }
        }
        Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate, .. } => {
            // The index at which a pair turns `beta` times within the first context.
            let index = |beta: f64| size * (original / (2.0 * PI * beta)).ln() / (2.0 * theta.ln());
            let (first, last) = (index(beta_fast), index(beta_slow));
            let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
            let (first, last) = (first.max(0.0), last.min(size - 1.0));
            // Ends that meet make a step, not a division by nothing.
            let last = if last == first { first + 1e-3 } else { last };
            let divided = ((f64::from(i) - first) / (last - first)).clamp(0.0, 1.0);
            frequency * (1.0 - divided) + frequency / factor * divided
        }
    }
}

/// What a scaling does to the size of the rotated values.
fn growth(scaling: Scaling) -> f64 {
    match scaling {
        Scaling::Yarn { factor, attention_factor, .. } => {
            attention_factor.unwrap_or(if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 })
        }
        Scaling::None | Scaling::Linear { .. } | Scaling::Llama3 { .. } => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_has_three_ranges() {
        let plain = Rope::new(500_000.0, 128, Scaling::None);
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let scaled = Rope::new(500_000.0, 128, scaling);
        let ratio: Vec<f64> = plain.frequencies.iter().zip(&scaled.frequencies).map(|(a, b)| a / b).collect();
        assert!((ratio[0] - 1.0).abs() < 1e-12);
        assert!((ratio[63] - 8.0).abs() < 1e-12);
        assert!(ratio.iter().any(|r| *r > 1.01 && *r < 7.99));
        assert!(ratio.windows(2).all(|w| w[0] <= w[1] + 1e-12));
    }

    /// gpt-oss's own numbers.
    fn yarn(truncate: bool, attention_factor: Option<f64>) -> Rope {
        let (factor, beta_fast, beta_slow, original) = (32.0, 32.0, 1.0, 4096.0);
        let scaling = Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate, attention_factor };
        Rope::new(150_000.0, 64, scaling)
    }

    /// A pair's turns within the first context are `original·f/2π`, and their logarithm falls
    /// evenly with the index: the blend is even between the logarithms of the two betas. No index is computed.
    #[test]
    fn yarn_blends_by_the_logarithm_of_the_turns() {
        let (plain, rope) = (Rope::new(150_000.0, 64, Scaling::None), yarn(false, None));
        let mut between = 0;
        for (f, got) in plain.frequencies.iter().zip(&rope.frequencies) {
            let turns = (4096.0 * f / (2.0 * PI)).log2();
            let expected = match turns {
                t if t >= 5.0 => *f,
                t if t <= 0.0 => f / 32.0,
                t => {
                    between += 1;
                    f * (t / 5.0) + f / 32.0 * (1.0 - t / 5.0)
                }
            };
            assert!((got - expected).abs() < 1e-12 * f, "{got} is not {expected}");
        }
        assert!(between > 5);
        // 0.1·ln 32 + 1, written out.
        assert!((rope.growth - 1.346_573_590_279_973).abs() < 1e-12);
        let mut angles = Vec::new();
        rope.fill(0, &mut angles);
        assert!(angles.iter().all(|a| *a == [1.346_573_6, 0.0]));
        rope.fill(1, &mut angles);
        let [cos, sin] = angles[32];
        assert!((f64::from(cos) - 1.346_573_59 * 1f64.cos()).abs() < 1e-6);
        assert!((f64::from(sin) - 1.346_573_59 * 1f64.sin()).abs() < 1e-6);
    }

    /// The ends of the blend are 8.09 and 17.40 here: whole indices are 8 and 18.
    #[test]
    fn yarn_ends_may_be_whole_indices() {
        let plain = Rope::new(150_000.0, 64, Scaling::None);
        let shares = |rope: &Rope| -> Vec<f64> {
            let share = |(f, got): (&f64, &f64)| (1.0 - got / f) / (1.0 - 1.0 / 32.0);
            plain.frequencies.iter().zip(&rope.frequencies).map(share).collect()
        };
        let whole = shares(&yarn(true, None));
        for (i, share) in whole.iter().enumerate() {
            let expected = ((i as f64 - 8.0) / 10.0).clamp(0.0, 1.0);
            assert!((share - expected).abs() < 1e-12, "{i}: {share} is not {expected}");
        }
        let exact = shares(&yarn(false, None));
        assert!(exact[8] == 0.0 && exact[9] > 0.09 && exact[9] < 0.1 && exact[18] == 1.0);
        assert_eq!(yarn(true, Some(0.75)).growth, 0.75);
    }

    /// Three exponents of ten, and nothing behind: pair `i` is 10^(−2i/head) with theta 10.
    #[test]
    fn a_proportional_rope_spans_the_head() {
        let rope = Rope::proportional(10.0, 16, 3, Scaling::None);
        let expected = [1.0, 0.749_894_209_332_456, 0.562_341_325_190_349, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(rope.pairs(), 8);
        for (got, expected) in rope.frequencies.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-14, "{got} is not {expected}");
        }
        // The usual rotation of the first six channels has other exponents: 10^(−2i/6).
        let part = Rope::new(10.0, 6, Scaling::None);
        for (got, expected) in
            part.frequencies.iter().zip([1.0, 0.464_158_883_361_278, 0.215_443_469_003_188])
        {
            assert!((got - expected).abs() < 1e-14, "{got} is not {expected}");
        }
        let mut angles = Vec::new();
        rope.fill(1_000_000, &mut angles);
        assert!(angles[3..].iter().all(|a| *a == [1.0, 0.0]), "a pair that does not turn passes exactly");
    }
}
