//! Scoring text: negative log-likelihood and perplexity.

use crate::sampler::log_sum_exp;
use crate::step::Stepper;
use crate::{Engine, RuntimeError};

/// The score of some tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// `Σ −ln p(token)`, in nats.
    pub nll: f64,
    /// Tokens scored.
    pub tokens: u64,
}

impl Score {
    /// Mean negative log-likelihood of a token; `None` when none was scored.
    pub fn mean_nll(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.nll / self.tokens as f64)
    }

    /// `exp` of the mean; `None` when none was scored.
    pub fn perplexity(&self) -> Option<f64> {
        self.mean_nll().map(f64::exp)
    }

    /// Both together.
    pub fn add(&mut self, other: Score) {
        self.nll += other.nll;
        self.tokens += other.tokens;
    }
}

/// `−ln p(target)` under a row of logits, in f64.
///
/// # Errors
/// [`RuntimeError::Logits`] when the row is not made of numbers or gives the target no probability;
/// [`RuntimeError::Input`] when there is no such token.
pub fn nll(logits: &[f32], target: u32) -> Result<f64, RuntimeError> {
    let logit = *logits
        .get(target as usize)
        .ok_or_else(|| RuntimeError::input("token to score", format!("under {}", logits.len()), target))?;
    let nll = log_sum_exp(logits)? - f64::from(logit);
    if nll.is_finite() { Ok(nll) } else { Err(RuntimeError::Logits { got: logit }) }
}

/// Cuts a text into windows of `window` tokens for scoring: a tail shorter than a window is dropped, and `bos`, for
/// models that begin with one, replaces the first token of each. The second half of each is scored: tokens
/// `window/2 + 1..window`, each from the logits before it.
pub fn windows(ids: &[u32], window: usize, bos: Option<u32>) -> impl Iterator<Item = Vec<u32>> {
    ids.chunks_exact(window.max(1)).map(move |chunk| {
        let mut ids = chunk.to_vec();
        if let (Some(first), Some(bos)) = (ids.first_mut(), bos) {
            *first = bos;
        }
        ids
    })
}

/// The first token of a window that is scored.
pub fn window_from(window: usize) -> usize {
    window / 2 + 1
}

impl<S: Stepper> Engine<S> {
    /// Scores `ids[from..]`, each from the logits after the token before it; `from` is at least 1.
    ///
    /// # Errors
    /// As [`Feed::push`](crate::Feed::push) and [`nll`].
    pub fn score(&mut self, ids: &[u32], from: usize) -> Result<Score, RuntimeError> {
        let mut score = Score::default();
        // Nothing follows the last token.
        let fed = ids.len().saturating_sub(1);
        let from = from.max(1);
        if from > fed {
            return Ok(score);
        }
        self.feed(fed)?.push(&ids[..fed], from - 1, |i, logits| {
            score.add(Score { nll: nll(logits, ids[i + 1])?, tokens: 1 });
            Ok(())
        })?;
        Ok(score)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_score_of_known_probabilities() {
        let logits: Vec<f32> = [0.5_f32, 0.25, 0.25].iter().map(|p| p.ln() + 3.0).collect();
        assert!((nll(&logits, 0).unwrap() - 2_f64.ln()).abs() < 1e-6);
        assert!((nll(&logits, 2).unwrap() - 4_f64.ln()).abs() < 1e-6);
        assert!(nll(&logits, 3).is_err());
        assert!(nll(&[0.0, f32::NAN], 0).is_err());
        assert!(nll(&[0.0, f32::NEG_INFINITY], 1).is_err());
        let mut score = Score::default();
        assert_eq!(score.perplexity(), None);
        score.add(Score { nll: 2.0 * 3_f64.ln(), tokens: 2 });
        assert!((score.perplexity().unwrap() - 3.0).abs() < 1e-12);
    }

    #[test]
    fn windows_drop_the_tail_and_begin_as_the_model_does() {
        let ids: Vec<u32> = (10..21).collect();
        let cut = |bos| windows(&ids, 4, bos).collect::<Vec<_>>();
        assert_eq!(cut(None), [[10, 11, 12, 13], [14, 15, 16, 17]]);
        assert_eq!(cut(Some(1)), [[1, 11, 12, 13], [1, 15, 16, 17]]);
        assert_eq!(window_from(512), 257);
        assert_eq!(windows(&ids[..3], 4, None).count(), 0);
    }
}
