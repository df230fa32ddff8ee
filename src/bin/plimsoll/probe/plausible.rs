//! What of a log's record can be: a log is a file that anybody may have changed, and what it says is gone on from.

use super::SWAP_NOISE;
use super::record::{Anchor, Checked, Ended, Exceeded, Seen, Step};
use super::validate;
use crate::bytes::grouped;
use plimsoll::Budget;

/// What a step may say, by what is known of it before it is run.
pub struct Bounds {
    /// Bytes of its plan.
    pub planned: u64,
    /// Bytes of the machine, where somebody says.
    pub machine: Option<u64>,
    /// The operator's ceiling, and what is left to others.
    pub requested: Option<u64>,
    pub reserve: Option<u64>,
    /// How it is checked: the mode, the tokens of the first pass, and the most that is rounding.
    pub mode: &'static str,
    pub tokens: u32,
    pub tolerance: f64,
    /// Tokens that there are.
    pub vocab: u32,
}

/// More than any machine has: a byte for each attosecond, a token a nanosecond, a step of a century.
const MOST_BYTES: f64 = 1e18;
const MOST_TOKENS: f64 = 1e9;
const MOST_SECONDS: f64 = 3.2e9;

/// Why a log has a step end.
const WHY: [&str; 7] = ["refused", "wrong", "out-of-memory", "killed", "floor", "time", "failed"];
const GATES: [&str; 4] = ["budget", "working-set", "allocation", "physical-memory"];

/// A figure is none of those that are expected.
fn unless(
    is: bool,
    name: &str,
    expected: impl FnOnce() -> String,
    got: impl FnOnce() -> String,
) -> Option<String> {
    (!is).then(|| format!("{name}: expected {}, got {}", expected(), got()))
}

/// More than there can be of it.
fn over(name: &str, got: Option<u64>, most: Option<u64>, of: &str) -> Option<String> {
    let (got, most) = got.zip(most)?;
    unless(got <= most, name, || format!("at most {}, {of}", grouped(most)), || grouped(got))
}

fn not_from_0(name: &str, got: f64, most: f64) -> Option<String> {
    unless((0.0..=most).contains(&got), name, || format!("a number from 0 to {most:e}"), || got.to_string())
}

impl Step {
    /// What of a record cannot be.
    pub fn impossible(&self, of: &Bounds) -> Option<String> {
        self.figures(of)
            .or_else(|| self.memory(of))
            .or_else(|| self.checked(of))
            .or_else(|| self.seen.impossible())
    }

    fn figures(&self, of: &Bounds) -> Option<String> {
        let figures = [
            ("load_seconds", self.load_seconds, MOST_SECONDS),
            ("compile_seconds", self.compile_seconds, MOST_SECONDS),
            ("fill_seconds", self.fill_seconds, MOST_SECONDS),
            ("warm_up_seconds", self.warm_up_seconds, MOST_SECONDS),
            ("bytes_per_second", self.bytes_per_second, MOST_BYTES),
            ("prefill_tokens_per_second", self.prefill_tokens_per_second, MOST_TOKENS),
            ("decode_tokens_per_second", self.decode_tokens_per_second, MOST_TOKENS),
        ];
        let at = || {
            format!(
                "{}, the bytes of the plan at context {}",
                grouped(of.planned),
                grouped(self.context.into())
            )
        };
        let planned = |name, got| unless(got == of.planned, name, at, || grouped(got));
        let rate = self.allocated as f64 / (self.load_seconds + self.fill_seconds).max(1e-9);
        let is_rate = (self.bytes_per_second - rate).abs() <= rate * 1e-6;
        let wrong = figures.into_iter().find_map(|(name, figure, most)| not_from_0(name, figure, most));
        wrong
            .or_else(|| planned("planned", self.planned))
            .or_else(|| planned("allocated", self.allocated))
            .or_else(|| over("filled", Some(self.filled), Some(of.planned), "the plan's"))
            .or_else(|| {
                let expected = || format!("{rate:e}, the bytes by the time they took");
                unless(is_rate, "bytes_per_second", expected, || self.bytes_per_second.to_string())
            })
    }

    fn memory(&self, of: &Bounds) -> Option<String> {
        let most = Some(MOST_BYTES as u64);
        let any = [
            ("reserved", self.reserved),
            ("process_swap", self.process_swap),
            ("device.available", self.device.available),
            ("device.total", self.device.total),
            ("seen.swap_growth", self.seen.swap_growth),
        ];
        let wrong =
            any.into_iter().find_map(|(name, got)| over(name, got, most, "more than any machine has"));
        wrong
            .or_else(|| over("resident", self.resident, self.peak, "the process's peak"))
            .or_else(|| over("peak", self.peak, of.machine, "all of the machine"))
            .or_else(|| {
                over("seen.least_available", self.seen.least_available, of.machine, "all of the machine")
            })
            .or_else(|| {
                over("device.available", self.device.available, self.device.total, "the device's total")
            })
            .or_else(|| {
                let machine = of.machine.filter(|_| self.device.source == "/proc/meminfo");
                over("device.total", self.device.total, machine, "all of the machine")
            })
            .or_else(|| self.budget.as_ref().and_then(|budget| of.budget(budget)))
            .or_else(|| {
                let Exceeded { need, have, .. } = self.exceeded.as_ref()?;
                let is = *need >= self.planned && have < need;
                unless(
                    is,
                    "exceeded",
                    || "more than the plan, for which there is too little".to_owned(),
                    || format!("{} of {}", grouped(*need), grouped(*have)),
                )
            })
    }

    fn checked(&self, of: &Bounds) -> Option<String> {
        let Checked { mode, tokens, references, recomputed, drift, tolerance } = &self.checked;
        let decoded = validate::decoded(of.tokens);
        let prompt = of.tokens - decoded;
        let wrong = unless(mode == of.mode, "checked.mode", || of.mode.to_owned(), || mode.clone());
        let text = |number: &dyn std::fmt::Display| number.to_string();
        wrong
            .or_else(|| unless(*tokens == of.tokens, "checked.tokens", || text(&of.tokens), || text(tokens)))
            .or_else(|| {
                let same = *tolerance == of.tolerance;
                unless(same, "checked.tolerance", || text(&of.tolerance), || text(tolerance))
            })
            .or_else(|| not_from_0("checked.drift", *drift, of.tolerance))
            .or_else(|| {
                let is = !references.is_empty() && references.iter().all(|&position| position < prompt);
                let expected = || format!("positions under {prompt}, one at least");
                unless(is, "checked.references", expected, || format!("{references:?}"))
            })
            .or_else(|| {
                let is = recomputed[..] == [of.tokens - 1];
                let expected = || format!("position {}", of.tokens - 1);
                unless(is, "checked.recomputed", expected, || format!("{recomputed:?}"))
            })
            .or_else(|| {
                let is = self.tokens.len() == decoded as usize && self.tokens.iter().all(|&id| id < of.vocab);
                let expected = || format!("the {decoded} that were decoded, under {}", of.vocab);
                unless(is, "tokens", expected, || format!("{:?}", self.tokens))
            })
            .or_else(|| Anchor::none_or_impossible(&self.anchors))
            .or_else(|| {
                let is = self.anchors.iter().all(|anchor| anchor.position < prompt && anchor.best < of.vocab);
                let expected = || format!("positions under {prompt} and tokens under {}", of.vocab);
                unless(is, "anchors", expected, || "others".to_owned())
            })
    }
}

impl Bounds {
    /// What of a budget cannot be: it is what the operator asked, or less.
    fn budget(&self, budget: &Budget) -> Option<String> {
        let said = |bytes: Option<u64>| bytes.map_or("none".to_owned(), grouped);
        let same = |name, got: Option<u64>, expected: Option<u64>| {
            unless(got == expected, name, || said(expected), || said(got))
        };
        let derived = budget.derived.as_ref();
        let reserve = budget.reserve.as_ref().map(|reserve| reserve.bytes);
        same("budget.requested", budget.requested, self.requested)
            // Where nothing is read there is nothing to leave of it.
            .or_else(|| derived.and_then(|_| same("budget.reserve", reserve, self.reserve)))
            .or_else(|| {
                let most = [self.requested, derived.map(|reading| reading.bytes)].into_iter().flatten().min();
                over("budget.bytes", Some(budget.bytes), Some(most.unwrap_or(0)), "what was asked and read")
            })
            .or_else(|| {
                let derived = derived?;
                over("budget.derived.bytes", Some(derived.bytes), derived.total, "the reading's total")
            })
            .or_else(|| {
                let machine =
                    self.machine.filter(|_| derived.is_some_and(|from| from.source == "/proc/meminfo"));
                over(
                    "budget.derived.total",
                    derived.and_then(|from| from.total),
                    machine,
                    "all of the machine",
                )
            })
    }
}

impl Ended {
    /// What of a record of an end cannot be.
    pub fn impossible(&self) -> Option<String> {
        let known = |name, got: &str, known: &[&str]| {
            unless(known.contains(&got), name, || format!("one of {}", known.join(", ")), || got.to_owned())
        };
        known("why", &self.why, &WHY)
            .or_else(|| self.gate.as_deref().and_then(|gate| known("gate", gate, &GATES)))
            .or_else(|| {
                let code = self.exit_code?;
                unless((2..=6).contains(&code), "exit_code", || "2 to 6".to_owned(), || code.to_string())
            })
            .or_else(|| {
                let is = (self.why == "killed") == self.signal.is_some();
                unless(
                    is,
                    "signal",
                    || "that of a process that was killed".to_owned(),
                    || format!("{:?}", self.signal),
                )
            })
            .or_else(|| self.seen.impossible())
    }
}

impl Seen {
    fn impossible(&self) -> Option<String> {
        let swapped = self.swap_growth.is_some_and(|growth| growth > SWAP_NOISE);
        not_from_0("seen.seconds", self.seconds, MOST_SECONDS).or_else(|| {
            let is = !(swapped && self.rates_valid);
            unless(is, "seen.rates_valid", || "false where swap grew".to_owned(), || "true".to_owned())
        })
    }
}

impl Anchor {
    /// What of those of one run cannot be: there is one at least.
    pub fn none_or_impossible(all: &[Self]) -> Option<String> {
        let none = all.is_empty().then(|| "anchors: expected one at least, got none".to_owned());
        none.or_else(|| all.iter().find_map(Self::impossible))
    }

    /// What of it cannot be.
    fn impossible(&self) -> Option<String> {
        let figures = self.sample.iter().chain([&self.log_sum_exp, &self.deviation]);
        let sound = self.deviation >= 0.0 && figures.into_iter().all(|figure| figure.is_finite());
        (!sound).then(|| format!("anchors: position {}: expected finite numbers", self.position))
    }
}
