//! What a probe found, for people and for programs.

use super::record::{Ended, Step};
use crate::account::amount;
use crate::bytes::{grouped, human};
use serde::Serialize;
use std::time::Duration;

/// A run at one pause.
#[derive(Serialize)]
pub struct Run {
    pub pause_seconds: f64,
    /// `fast` without a pause, `slow` with one of a second or more.
    pub rate: &'static str,
    pub steps: Vec<Step>,
    pub ended: Ended,
    /// Whether a limit ended it. Where `--max` did, or a failure, the largest context is not the machine's ceiling.
    pub ceiling_found: bool,
    pub ceiling: Option<Ceiling>,
    /// Steps that were not run again, since the log has them.
    pub resumed: usize,
    /// Which they are: contexts whose figures are of an earlier probe, that of the end where it is one of them.
    pub from_log: Vec<u32>,
}

/// The largest context that went well, with the rate and the limit it was measured under.
#[derive(Serialize)]
pub struct Ceiling {
    pub context: u32,
    pub planned: u64,
    /// The rate within its step, and that of all steps with their pauses.
    pub bytes_per_second: f64,
    pub run_bytes_per_second: f64,
    /// Which limit gated; none where `--max` came first.
    pub gate: Option<String>,
    /// The limit, with its number.
    pub under: String,
    /// The largest context that the budget alone would have allowed.
    pub within_budget: Option<u32>,
}

impl Run {
    /// Of steps that went well and the end that followed.
    pub fn new(pause: Duration, steps: Vec<Step>, ended: Ended, from_log: Vec<u32>, limits: &str) -> Self {
        let ceiling = steps.last().map(|last| {
            let bytes = steps.iter().map(|step| step.allocated).fold(0, u64::saturating_add);
            let seconds: f64 =
                steps.iter().map(|step| step.load_seconds + step.fill_seconds + pause.as_secs_f64()).sum();
            Ceiling {
                context: last.context,
                planned: last.planned,
                bytes_per_second: last.bytes_per_second,
                run_bytes_per_second: bytes as f64 / seconds.max(1e-9),
                gate: ended.gate.clone(),
                under: under(last, &ended, limits),
                within_budget: steps.iter().rev().find(|step| step.exceeded.is_none()).map(|s| s.context),
            }
        });
        let rate = match pause {
            Duration::ZERO => "fast",
            long if long >= Duration::from_secs(1) => "slow",
            _ => "between",
        };
        Self {
            pause_seconds: pause.as_secs_f64(),
            rate,
            ceiling_found: ceiling.is_some() && ended.gate.is_some(),
            steps,
            ended,
            ceiling,
            resumed: from_log.len(),
            from_log,
        }
    }

    /// Whether it came to nothing, and the exit code: an error of a device or a file is one whatever was found before, and a
    /// limit is a result; but where nothing went well before it, nothing has been found.
    pub fn failed(&self) -> Option<(String, u8)> {
        let Ended { why, context, reason, exit_code, .. } = &self.ended;
        let error = matches!(why.as_str(), "wrong" | "failed");
        let code = match (error, self.ceiling.is_none()) {
            (true, _) => exit_code.unwrap_or(6),
            (false, false) => return None,
            (false, true) if self.ended.is_foreign() => 6,
            (false, true) => 3,
        };
        let none = if error { "" } else { "no step went well: " };
        Some((format!("{none}context {}: {reason}", grouped((*context).into())), code))
    }

    /// The label of a run.
    pub fn label(&self) -> String {
        format!("{} (pause {} s)", self.rate, self.pause_seconds)
    }

    /// The end and the ceiling, in two lines.
    pub fn summary(&self) -> String {
        let ended = &self.ended;
        let broke = ended.broke.as_ref().map_or(String::new(), |broke| format!(" ({broke})"));
        let gate = ended.gate.as_ref().map_or(String::new(), |gate| format!(" [{gate}]"));
        let at = grouped(ended.context.into());
        let log = from_log(ended.why != "maximum" && self.from_log.contains(&ended.context));
        let end = format!("context {at}{log}: {}{broke}{gate}: {}", ended.why, ended.reason);
        let label = self.label();
        match &self.ceiling {
            None => format!("{end}\n{label}: no ceiling: no step went well\n"),
            Some(ceiling) => {
                let (context, planned) = (grouped(ceiling.context.into()), amount(Some(ceiling.planned)));
                let within = match ceiling.within_budget {
                    Some(within) if within == ceiling.context => String::new(),
                    Some(within) => format!("; within the budget {}", grouped(within.into())),
                    None => "; within the budget none".to_owned(),
                };
                let what = match (self.ceiling_found, ended.why.as_str()) {
                    (true, _) => "ceiling",
                    (false, "maximum") => "NO CEILING FOUND up to --max, the machine may do more:",
                    (false, _) => "NO CEILING FOUND, no limit ended it: the last that went well is",
                };
                format!(
                    "{end}\n{label}: {what} {context} tokens, planned {planned}, {} in the step, {} in the run, \
                     measured under {}{within}\n",
                    per_second(ceiling.bytes_per_second),
                    per_second(ceiling.run_bytes_per_second),
                    ceiling.under,
                )
            }
        }
    }
}

fn per_second(rate: f64) -> String {
    // The cast saturates.
    format!("{}/s", human(rate as u64))
}

/// The limit that a ceiling was measured under.
fn under(last: &Step, ended: &Ended, limits: &str) -> String {
    let budget = last
        .budget
        .as_ref()
        .map(|budget| format!("a budget of {} by {}", grouped(budget.bytes), budget.source));
    let device = || {
        let total = last.device.total.map_or("unknown".to_owned(), grouped);
        format!("a device with {total} by {}", last.device.source)
    };
    match ended.gate.as_deref() {
        Some("budget") => budget.unwrap_or_else(device),
        Some("allocation") => {
            format!("{} of one buffer", ended.have.map_or("the driver's most".to_owned(), grouped))
        }
        Some("working-set") => device(),
        Some(_) => limits.to_owned(),
        None => format!("no limit that was reached ({limits})"),
    }
}

/// What marks a result that is not of this probe.
fn from_log(is: bool) -> &'static str {
    if is { " (from the log)" } else { "" }
}

/// A step in a line; `recorded`: an earlier probe's.
pub fn line(step: &Step, recorded: bool) -> String {
    let checked = &step.checked;
    let past = step.exceeded.as_ref().map_or(String::new(), |past| {
        format!(", past the budget of {} by {}", grouped(past.have), past.source)
    });
    let swap = match step.seen.swap_growth {
        Some(growth) if !step.seen.rates_valid => {
            format!(", swap grew by {}: rates are not valid", human(growth))
        }
        _ => String::new(),
    };
    format!(
        "context {}{}: planned {}, allocated {}, reserved {}, process {}, {} in {:.2} s, {:.0} and {:.1} tokens/s, \
         compiled in {:.2} s apart from that, {} tokens right within {:.1e} of {:.2}{past}{swap}",
        grouped(step.context.into()),
        from_log(recorded),
        grouped(step.planned),
        grouped(step.allocated),
        step.reserved.map_or("unknown".to_owned(), grouped),
        amount(step.resident),
        per_second(step.bytes_per_second),
        step.load_seconds + step.fill_seconds,
        step.prefill_tokens_per_second,
        step.decode_tokens_per_second,
        step.compile_seconds + step.warm_up_seconds,
        grouped(checked.tokens.into()),
        checked.drift,
        checked.tolerance,
    )
}
