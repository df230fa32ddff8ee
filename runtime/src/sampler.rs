//! Choosing a token from a row of logits.
//!
//! The stages, in this order; each sees what the one before left:
//!
//! 1. **repetition penalty** `r` over the last `n` tokens, prompt included: the logit of every id among them is
//!    divided by `r` where positive and multiplied where not (Keskar et al., CTRL, section 4.1); once, however often
//!    the id occurs;
//! 2. **temperature 0** ends here: the largest logit, of equal ones the lower id;
//! 3. **top-k**: the `k` largest, ties to the lower id;
//! 4. **top-p**: the fewest of the largest whose probabilities reach `p` (Holtzman et al., nucleus sampling);
//! 5. **min-p**: those at least `min_p` times as probable as the most probable;
//! 6. **temperature** `t`: one draw from `exp(logit / t)` over what is left.
//!
//! Probabilities of stages 4 and 5 are those at temperature 1. Sums are f64, from the largest down. Draws are those
//! of [`Rng`]: token `i` of a seed uses draw `i`.

use crate::rng::Rng;
use crate::step::{Candidates, Sampling};
use crate::{Refused, RuntimeError};
use plimsoll_estimator::plan::TOP_K;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// 0 takes the largest logit; 1 samples the model's own distribution. Finite, at least 0.
    pub temperature: f32,
    /// Keep this many of the largest; 0 keeps all.
    pub top_k: u32,
    /// Keep the largest that reach this probability; in `(0, 1]`, 1 keeps all.
    pub top_p: f32,
    /// Keep those at least this fraction of the largest probability; in `[0, 1]`, 0 keeps all.
    pub min_p: f32,
    /// Finite and above 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// How many tokens back the penalty looks; 0 switches it off.
    pub repetition_window: u32,
    /// The same seed, logits and options choose the same tokens.
    pub seed: u64,
}

impl Default for SamplerOptions {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: 64,
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// Checks every option.
    ///
    /// # Errors
    /// [`Refused::Option`] names the first that is out of range.
    pub fn validate(&self) -> Result<(), Refused> {
        let check = |option: &'static str, value: f32, good: bool, expected: &'static str| {
            if good { Ok(()) } else { Err(Refused::Option { option, expected, got: value.to_string() }) }
        };
        let (t, r) = (self.temperature, self.repetition_penalty);
        check("temperature", t, t.is_finite() && t >= 0.0, "a finite number from 0 up")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "a number above 0 and up to 1")?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number from 0 to 1")?;
        check("repetition_penalty", r, r.is_finite() && r > 0.0, "a finite number above 0")
    }

    /// The least that must be read back of a row to choose from it.
    pub fn needs(&self) -> Sampling {
        if self.penalises() {
            Sampling::Logits
        } else if self.temperature == 0.0 || self.top_k == 1 {
            Sampling::Greedy
        } else if (1..=TOP_K).contains(&self.top_k) {
            Sampling::TopK
        } else {
            Sampling::Logits
        }
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 && self.repetition_window > 0
    }
}

/// What was read back of one row.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// The largest logits.
    Candidates(&'a Candidates),
    /// All of them.
    Logits(&'a [f32]),
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Its id.
    pub id: u32,
    /// Its log-probability in the model's own distribution, before any stage.
    pub logprob: f32,
}

type Candidate = (u32, f32);

/// Larger logits first, ties to the lower id: a total order, since NaN never gets here.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    rng: Rng,
    recent: VecDeque<u32>,
}

impl Sampler {
    /// A sampler for a sequence that begins with `prompt`.
    ///
    /// # Errors
    /// As [`SamplerOptions::validate`].
    pub fn new(options: SamplerOptions, prompt: &[u32]) -> Result<Self, Refused> {
        options.validate()?;
        let mut sampler = Self { rng: Rng::new(options.seed), recent: VecDeque::new(), options };
        for &id in prompt {
            sampler.remember(id);
        }
        Ok(sampler)
    }

    /// The least that must be read back of a row.
    pub fn needs(&self) -> Sampling {
        self.options.needs()
    }

    /// Chooses the next token, and remembers it.
    ///
    /// # Errors
    /// [`RuntimeError::Logits`] when a logit is NaN or +∞, or none is finite: never a token;
    /// [`RuntimeError::Input`] when less was read back than [`Sampler::needs`] says.
    pub fn choose(&mut self, row: Row<'_>) -> Result<Choice, RuntimeError> {
        let (mut candidates, log_sum_exp) = match row {
            Row::Candidates(row) => {
                let known = row.best.iter().map(|c| c.1);
                // The largest comes first; the others may be −∞.
                let top = known.clone().next().is_none_or(f32::is_finite);
                if top && row.log_sum_exp.is_finite() && known.clone().all(|l| !l.is_nan()) {
                    (row.best.clone(), f64::from(row.log_sum_exp))
                } else {
                    return Err(RuntimeError::Logits { got: bad(known.chain([row.log_sum_exp])) });
                }
            }
            Row::Logits(row) => {
                ((0..).zip(row.iter().copied()).collect::<Vec<Candidate>>(), log_sum_exp(row)?)
            }
        };
        if let (Row::Candidates(_), Sampling::Logits) = (row, self.needs()) {
            return Err(RuntimeError::input("row to sample", "all logits", "the largest only"));
        }
        let logit_of = |id: u32| match row {
            Row::Candidates(row) => row.best.iter().find(|c| c.0 == id).map(|c| c.1),
            Row::Logits(row) => row.get(id as usize).copied(),
        };
        if self.options.penalises() {
            self.penalise(&mut candidates);
        }
        let draw = self.rng.next_f64();
        let id = if self.options.temperature == 0.0 || self.options.top_k == 1 {
            candidates.iter().min_by(|a, b| order(a, b)).map(|c| c.0)
        } else {
            self.keep_top_k(&mut candidates);
            self.keep_top_p(&mut candidates);
            self.keep_min_p(&mut candidates);
            self.draw(&candidates, draw)
        };
        let chosen = id.and_then(|id| Some((id, logit_of(id)?)));
        let (id, logit) = chosen.ok_or_else(|| RuntimeError::input("row to sample", "logits", "none"))?;
        self.remember(id);
        Ok(Choice { id, logprob: (f64::from(logit) - log_sum_exp) as f32 })
    }

    fn remember(&mut self, id: u32) {
        if self.options.penalises() {
            if self.recent.len() >= self.options.repetition_window as usize {
                self.recent.pop_front();
            }
            self.recent.push_back(id);
        }
    }

    fn penalise(&self, candidates: &mut [Candidate]) {
        let mut ids: Vec<u32> = self.recent.iter().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            // Full rows are in id order here.
            if let Some((_, logit)) = candidates.get_mut(id as usize) {
                let penalty = self.options.repetition_penalty;
                let penalised = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                // A penalty near zero or without bound must not leave the numbers.
                *logit = penalised.clamp(f32::MIN, f32::MAX);
            }
        }
    }

    fn keep_top_k(&self, candidates: &mut Vec<Candidate>) {
        match self.options.top_k as usize {
            0 => {}
            k => {
                let k = k.min(candidates.len());
                sort_largest(candidates, k);
                candidates.truncate(k);
            }
        }
    }

    fn keep_top_p(&self, candidates: &mut Vec<Candidate>) {
        if self.options.top_p >= 1.0 {
            return;
        }
        let top = largest(candidates);
        let total: f64 = candidates.iter().map(|c| weight(c.1, top, 1.0)).sum();
        let wanted = f64::from(self.options.top_p) * total;
        // Few candidates usually suffice: sort more of them only as they are needed.
        let mut sorted = 64.min(candidates.len());
        loop {
            sort_largest(candidates, sorted);
            let mut sum = 0.0;
            let reached = candidates.iter().take(sorted).position(|c| {
                sum += weight(c.1, top, 1.0);
                sum >= wanted
            });
            match reached {
                Some(last) => return candidates.truncate(last + 1),
                None if sorted == candidates.len() => return,
                None => sorted = sorted.saturating_mul(8).min(candidates.len()),
            }
        }
    }

    fn keep_min_p(&self, candidates: &mut Vec<Candidate>) {
        if self.options.min_p > 0.0 {
            let (top, least) = (largest(candidates), f64::from(self.options.min_p));
            candidates.retain(|c| weight(c.1, top, 1.0) >= least);
        }
    }

    fn draw(&self, candidates: &[Candidate], draw: f64) -> Option<u32> {
        let (top, t) = (largest(candidates), f64::from(self.options.temperature));
        let total: f64 = candidates.iter().map(|c| weight(c.1, top, t)).sum();
        let mut left = draw * total;
        let mut last = None;
        for &(id, logit) in candidates {
            let weight = weight(logit, top, t);
            if weight > 0.0 {
                last = Some(id);
                if left < weight {
                    break;
                }
                left -= weight;
            }
        }
        last
    }
}

fn weight(logit: f32, top: f32, temperature: f64) -> f64 {
    ((f64::from(logit) - f64::from(top)) / temperature).exp()
}

fn largest(candidates: &[Candidate]) -> f32 {
    candidates.iter().map(|c| c.1).fold(f32::NEG_INFINITY, f32::max)
}

/// Puts the `n` largest first, in order.
fn sort_largest(candidates: &mut [Candidate], n: usize) {
    if n > 0 && n < candidates.len() {
        candidates.select_nth_unstable_by(n - 1, order);
    }
    if let Some(head) = candidates.get_mut(..n) {
        head.sort_unstable_by(order);
    }
}

/// `ln Σ exp(logit)` of a row, summed in f64.
///
/// # Errors
/// [`RuntimeError::Logits`] when a logit is NaN or +∞, or none is finite.
pub fn log_sum_exp(row: &[f32]) -> Result<f64, RuntimeError> {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| weight(logit, top, 1.0)).sum();
    let result = f64::from(top) + sum.ln();
    // A NaN anywhere is in the sum; an infinite maximum is in the result.
    if result.is_finite() { Ok(result) } else { Err(RuntimeError::Logits { got: bad(row.iter().copied()) }) }
}

/// The number that spoils a row.
fn bad(row: impl Iterator<Item = f32>) -> f32 {
    row.fold(
        f32::NEG_INFINITY,
        |worst, logit| {
            if worst.is_nan() || logit.is_nan() { f32::NAN } else { worst.max(logit) }
        },
    )
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
