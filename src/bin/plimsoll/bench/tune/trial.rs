//! One set of kernel variants: whether it may be tried, what it measured, and what that shows.

use super::Bench;
use crate::bench::once;
use crate::bench::stats::Comparison;
use crate::failure::Failure;
use crate::load;
use crate::output::{self, median};
use indicatif::ProgressBar;
use plimsoll::kernels::Tuned;
use plimsoll::runtime::RuntimeError;
use plimsoll::{Engine, Error, Runtime};

/// After the first round, what has less than this part of the rate in force is not run again.
const HOPELESS: f64 = 0.5;

/// What became of a candidate.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It may be loaded; with measurements, it was.
    Planned,
    /// No kernel of the model differs from what is in force, or from an earlier candidate.
    Same,
    /// Its plan does not fit, or there is none. Never tried.
    Skipped { need: Option<u64>, have: Option<u64>, why: String },
    /// Less than half of the rate in force in the first round.
    Slow,
    /// The device would not make it, although the plan fits.
    Failed(String),
}

/// One set of variants.
pub struct Trial {
    /// For people: the value of the field.
    pub label: String,
    pub tuned: Tuned,
    pub planned_bytes: Option<u64>,
    pub outcome: Outcome,
    /// Tokens a second by round: prefill, decode.
    pub rates: [Vec<f64>; 2],
}

impl Trial {
    pub fn new(label: String, tuned: Tuned, outcome: Outcome) -> Self {
        Self { label, tuned, planned_bytes: None, outcome, rates: [Vec::new(), Vec::new()] }
    }

    /// Whether its turn comes.
    pub fn runs(&self) -> bool {
        matches!(self.outcome, Outcome::Planned)
    }

    /// Prefill and decode against another's that ran in as many rounds.
    pub fn against(&self, base: &Self) -> Option<[Comparison; 2]> {
        let whole = self.runs() && !self.rates[0].is_empty() && self.rates[0].len() == base.rates[0].len();
        let of = |at: usize| Comparison::of(&self.rates[at], &base.rates[at]);
        whole.then(|| [of(0), of(1)])
    }
}

/// Better at one of the two, and not worse at the other, as far as ranges show.
pub fn better(compared: &[Comparison; 2]) -> bool {
    let shown = |higher: bool| compared.iter().any(|c| !c.overlap && (c.ratio > 1.0) == higher);
    shown(true) && !shown(false)
}

/// The best of those that are better than what is in force.
pub fn best(base: &Trial, candidates: &[Trial]) -> Option<usize> {
    let gains = candidates.iter().enumerate().filter_map(|(at, trial)| {
        let compared = trial.against(base).filter(better)?;
        Some((at, compared[0].ratio * compared[1].ratio))
    });
    gains.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

/// What a failure says of a candidate alone; `None` where it is of more than that.
fn outcome_of(failure: &Failure) -> Option<Outcome> {
    let skipped = |need: u64, have: u64, why: String| {
        Some(Outcome::Skipped { need: Some(need), have: Some(have), why })
    };
    match failure {
        Failure::Plimsoll(Error::Refused(refusal)) => {
            skipped(refusal.need, refusal.have, refusal.reason.clone())
        }
        Failure::Plimsoll(Error::Runtime(error)) => match error {
            RuntimeError::NoRoom { need, have, .. } => skipped(*need, *have, error.to_string()),
            // Nothing is left of a load that failed, and the device goes on.
            RuntimeError::OutOfMemory { .. } | RuntimeError::Validation { .. } => {
                Some(Outcome::Failed(error.to_string()))
            }
            _ => None,
        },
        _ => None,
    }
}

impl Bench<'_> {
    /// Rounds in which what is in force and every candidate that may be loaded take turns, one plan at a time.
    pub fn turns(
        &self,
        base: &mut Trial,
        candidates: &mut [Trial],
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        for round in 0..self.args.repetitions {
            self.turn(base, self.args.machine.insist)?;
            bar.inc(1);
            for trial in candidates.iter_mut().filter(|trial| trial.runs()) {
                // Nobody insists on a candidate.
                if let Err(failure) = self.turn(trial, false) {
                    let Some(outcome) = outcome_of(&failure) else {
                        output::note(format_args!("plimsoll: --tune: {}:", trial.tuned.source));
                        return Err(failure);
                    };
                    trial.outcome = outcome;
                    continue;
                }
                let slow = |at: usize| median(&trial.rates[at]) < HOPELESS * median(&base.rates[at]);
                if round == 0 && (slow(0) || slow(1)) {
                    trial.outcome = Outcome::Slow;
                }
                bar.inc(1);
            }
        }
        Ok(())
    }

    /// Asks the budget as it is now, loads, lets one turn pass uncounted, measures one, and frees all of it again.
    fn turn(&self, trial: &mut Trial, insist: bool) -> Result<(), Failure> {
        let (prompt, new) = (self.args.prompt_tokens, self.args.new_tokens);
        let mut engine = self.load(trial, insist)?;
        let times = once(&mut engine, prompt, new).and_then(|_| once(&mut engine, prompt, new));
        trial.planned_bytes = Some(engine.plan().total());
        drop(load::unload(engine));
        let times = times?;
        for (rates, (tokens, seconds)) in
            trial.rates.iter_mut().zip([(prompt, times.prefill), (new, times.decode)])
        {
            rates.push(f64::from(tokens) / seconds);
        }
        Ok(())
    }

    fn load(&self, trial: &Trial, insist: bool) -> Result<Engine<Runtime>, Failure> {
        let device = self.device.clone().with_tuning(trial.tuned.clone())?;
        let policy = self.args.machine.policy()?;
        let budget = policy.budget(plimsoll::reading(&device.memory()));
        let admitted = load::judge(self.opened, &self.geometry, device.profile(), budget, insist)?;
        let ready = load::Ready { device, admitted, cache_limit: policy.cache_limit() };
        Ok(ready.engine(self.opened)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll::Profile;

    fn trial(prefill: [f64; 3], decode: [f64; 3]) -> Trial {
        let tuned = Tuned { tuning: Profile::webgpu_default().tuning, source: String::new() };
        let rates = [prefill.to_vec(), decode.to_vec()];
        Trial { rates, ..Trial::new(String::new(), tuned, Outcome::Planned) }
    }

    #[test]
    fn only_what_is_shown_to_be_better_is_kept() {
        let base = trial([10.0, 11.0, 12.0], [5.0, 5.5, 6.0]);
        let alike = trial([11.0, 13.0, 12.0], [5.0, 6.5, 7.0]);
        let traded = trial([20.0, 21.0, 22.0], [4.0, 4.1, 4.2]);
        let decodes = trial([10.0, 11.0, 12.0], [6.5, 7.0, 7.5]);
        let more = trial([10.0, 11.0, 12.0], [8.0, 9.0, 10.0]);
        let short = Trial { rates: [vec![99.0], vec![99.0]], ..trial([0.0; 3], [0.0; 3]) };
        let slow = Trial { outcome: Outcome::Slow, ..trial([99.0; 3], [99.0; 3]) };
        let skipped = Outcome::Skipped { need: Some(2), have: Some(1), why: String::new() };
        let skipped = Trial { outcome: skipped, ..trial([99.0; 3], [99.0; 3]) };
        let all = [alike, traded, decodes, more, short, slow, skipped];
        assert_eq!(best(&base, &all), Some(3));
        assert_eq!(best(&base, &all[..3]), Some(2));
        assert_eq!(best(&base, &all[..2]), None, "ranges that overlap, and what is paid for elsewhere");
        assert_eq!(best(&base, &all[4..]), None, "not measured to the end");
        assert_eq!(best(&base, &[]), None);
    }
}
