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
}

/// The rotation of one kind of layer: pair `i` at position `t` turns by `t · frequencies[i]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Radians per position of each rotated pair.
    pub frequencies: Vec<f64>,
}

impl Rope {
    /// `theta^(−2i / rotated)` for the `rotated / 2` pairs of a head, scaled.
    pub fn new(theta: f64, rotated: u32, scaling: Scaling) -> Self {
        let base = (0..rotated / 2).map(|i| theta.powf(-2.0 * f64::from(i) / f64::from(rotated)));
        Self { frequencies: base.map(|f| scale(f, scaling)).collect() }
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

    /// Appends `[cos, sin]` of every pair at `position`.
    pub fn fill(&self, position: u32, out: &mut Vec<[f32; 2]>) {
        out.extend(self.frequencies.iter().map(|f| {
            let (sin, cos) = (f64::from(position) * f).sin_cos();
            [cos as f32, sin as f32]
        }));
    }
}

fn scale(frequency: f64, scaling: Scaling) -> f64 {
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
}
