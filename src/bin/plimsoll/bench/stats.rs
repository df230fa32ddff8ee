//! Medians with their ranges, and what two of them allow to be said.

use crate::output::median;
use serde_json::{Value, json};

/// The smallest and the largest.
pub fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v)))
}

/// Some measurements and their median.
pub fn spread(values: &[f64]) -> Value {
    let (least, most) = range(values);
    json!({"median": median(values), "min": least, "max": most, "all": values})
}

/// `12.3 (11.9–13.1)`.
pub fn shown(values: &[f64], digits: usize) -> String {
    let (least, most) = range(values);
    format!("{:.digits$} ({least:.digits$}–{most:.digits$})", median(values))
}

/// One arm's measurements against another's, taken in turn.
pub struct Comparison {
    /// Median over the other's median.
    pub ratio: f64,
    /// Round by round: what drifts slower than a round is in both.
    pub rounds: Vec<f64>,
    /// Whether the ranges have a point in common. Then nothing is shown by the medians.
    pub overlap: bool,
}

impl Comparison {
    pub fn of(arm: &[f64], base: &[f64]) -> Self {
        let ((least, most), (base_least, base_most)) = (range(arm), range(base));
        Self {
            ratio: median(arm) / median(base),
            rounds: arm.iter().zip(base).map(|(a, b)| a / b).collect(),
            overlap: least <= base_most && base_least <= most,
        }
    }

    /// What it shows, in words.
    pub fn verdict(&self) -> &'static str {
        match self.overlap {
            true => "no difference shown: the ranges overlap",
            false if self.ratio > 1.0 => "higher",
            false => "lower",
        }
    }

    pub fn document(&self) -> Value {
        json!({
            "ratio": self.ratio,
            "ratio_by_round": spread(&self.rounds),
            "ranges_overlap": self.overlap,
            "verdict": self.verdict(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_show_nothing() {
        let base = [10.0, 12.0, 11.0];
        for (arm, overlap, verdict) in [
            ([12.0, 14.0, 13.0], true, "no difference shown: the ranges overlap"),
            ([9.0, 13.0, 20.0], true, "no difference shown: the ranges overlap"),
            ([12.1, 14.0, 13.0], false, "higher"),
            ([9.9, 1.0, 3.0], false, "lower"),
        ] {
            let seen = Comparison::of(&arm, &base);
            assert_eq!((seen.overlap, seen.verdict()), (overlap, verdict), "{arm:?}");
        }
        let seen = Comparison::of(&[20.0, 24.0, 22.0], &base);
        assert_eq!((seen.ratio, seen.rounds), (2.0, vec![2.0; 3]));
        assert_eq!(shown(&base, 1), "11.0 (10.0–12.0)");
    }
}
