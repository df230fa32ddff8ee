//! The passes: each round once as users have it, for what a step takes, and once measured, for what is in it.

use super::By;
use crate::bench::Args;
use crate::failure::Failure;
use crate::output;
use indicatif::ProgressBar;
use plimsoll::runtime::profiler::{Method, Spent, StepProfile};
use plimsoll::runtime::{Request, RuntimeError, What};
use plimsoll::{Engine, Plan, Runtime};
use std::sync::Arc;
use std::time::Instant;

/// Prefill or decode: the least disturbed of the rounds.
pub struct Phase {
    pub name: &'static str,
    /// Every step of the measured pass.
    pub steps: Vec<StepProfile>,
    /// Seconds of the same steps as users have them.
    pub plain_wall: f64,
    /// What the host spent on those.
    pub plain: Spent,
    /// Seconds of the measured ones.
    pub profiled_wall: f64,
}

/// Everything that was seen.
pub struct Measured {
    pub method: Method,
    pub why: String,
    pub empty: Option<f64>,
    pub own_bytes: u64,
    pub phases: [Phase; 2],
}

/// One of both phases of a pass.
#[derive(Default)]
struct Part {
    wall: f64,
    spent: Spent,
    steps: Vec<StepProfile>,
}

impl Part {
    fn dispatches(&self) -> f64 {
        self.steps.iter().flat_map(|step| &step.samples).map(|sample| sample.seconds).sum()
    }
}

impl Phase {
    /// Tokens of all steps.
    pub fn tokens(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.shape.tokens)).sum()
    }

    /// Bytes and operations of these steps as the plan has them.
    pub fn planned(&self, plan: &Plan) -> (u64, u64) {
        self.steps.iter().map(|step| plan.work(&step.shape, step.kv)).fold((0, 0), |sum, step| {
            (u64::saturating_add(sum.0, step.0), u64::saturating_add(sum.1, step.1))
        })
    }

    /// The programs that ran, by name, in the plan's order.
    pub fn programs<'p>(&self, plan: &'p Plan) -> Vec<&'p str> {
        let ran = |index: &usize| self.steps.iter().any(|step| step.program == *index);
        (0..).zip(&plan.programs).filter(|(index, _)| ran(index)).map(|(_, p)| p.name.as_str()).collect()
    }
}

/// One prompt and what follows it.
fn pass(engine: &mut Engine<Runtime>, prompt: u32, new: u32) -> Result<[Part; 2], Failure> {
    // The same prompt again would be found and not be computed.
    engine.trim();
    engine.stepper_mut().take_profile();
    let vocab = engine.plan().model.vocab.max(1);
    let ids = (0..prompt).map(|i| i.wrapping_mul(7919).wrapping_add(11) % vocab).collect();
    engine.submit(Request { prompt: ids, max_new: new.saturating_add(1), ..Default::default() })?;
    let mut parts = [Part::default(), Part::default()];
    let mut phase = 0;
    while !engine.is_idle() {
        let (spent, begun) = (engine.stepper().spent(), Instant::now());
        let events = engine.step();
        let part = &mut parts[phase];
        part.wall += begun.elapsed().as_secs_f64();
        let now = engine.stepper().spent().since(&spent);
        part.spent.recording += now.recording;
        part.spent.submitting += now.submitting;
        part.spent.dispatches += now.dispatches;
        part.spent.submits += now.submits;
        part.steps.extend(engine.stepper_mut().take_profile().0);
        for event in events {
            match event.what {
                What::Token { .. } => phase = 1,
                What::Failed(error) => {
                    return Err(Arc::try_unwrap(error).unwrap_or_else(RuntimeError::Step).into());
                }
                What::Prefill { .. } | What::Done(_) => {}
            }
        }
    }
    Ok(parts)
}

/// Whether timestamps account for the steps that they were taken in: their sum is most of the time that the host saw
/// pass, and not more than it.
fn add_up(parts: &[Part; 2]) -> (bool, String) {
    let fractions = parts.each_ref().map(|part| part.dispatches() / part.wall.max(1e-9));
    let good = fractions.iter().all(|f| (0.3..=1.01).contains(f));
    let [prefill, decode] = fractions.map(|f| 100.0 * f);
    (
        good,
        format!(
            "their sum is {prefill:.0} % of the prefill and {decode:.0} % of the decode they were taken in"
        ),
    )
}

/// Begins to measure, by timestamps if these are wanted, there and right.
fn begin(engine: &mut Engine<Runtime>, args: &Args) -> Result<(Method, String), Failure> {
    let by = args.profile.profile_by;
    if by == By::Alone {
        engine.stepper_mut().start_profile(Method::Alone)?;
        return Ok((Method::Alone, "as asked".to_owned()));
    }
    let stepper = engine.stepper_mut();
    let mut why = "the adapter takes no timestamps between dispatches".to_owned();
    if stepper.device().takes_timestamps() {
        stepper.start_profile(Method::Timestamps)?;
        let (good, told) = add_up(&pass(engine, args.prompt_tokens, args.new_tokens)?);
        why = format!("timestamps of the device: {told}");
        if good || by == By::Timestamps {
            return Ok((Method::Timestamps, why));
        }
    } else if by == By::Timestamps {
        return Err(Failure::usage(format!("--profile-by timestamps: {why}")));
    }
    output::note(format_args!("plimsoll: {why}: each dispatch is timed alone"));
    engine.stepper_mut().start_profile(Method::Alone)?;
    Ok((Method::Alone, why))
}

/// Rounds of a plain and a measured pass.
pub fn all(engine: &mut Engine<Runtime>, args: &Args) -> Result<Measured, Failure> {
    let (prompt, new) = (args.prompt_tokens, args.new_tokens);
    let bar = ProgressBar::new(2 * u64::from(args.repetitions) + 2);
    pass(engine, prompt, new)?;
    bar.inc(1);
    let (method, why) = begin(engine, args)?;
    bar.inc(1);
    let mut best: [[Option<Part>; 2]; 2] = Default::default();
    let (mut empty, mut own_bytes) = (None, 0);
    for _ in 0..args.repetitions {
        for measured in [false, true] {
            let before = engine.stepper().device().totals().live_bytes;
            match measured {
                true => engine.stepper_mut().start_profile(method)?,
                false => engine.stepper_mut().stop_profile(),
            }
            let after = engine.stepper().device().totals().live_bytes;
            if measured {
                own_bytes = after.saturating_sub(before);
                empty = engine.stepper_mut().take_profile().1;
            }
            let kept = &mut best[usize::from(measured)];
            for (kept, part) in kept.iter_mut().zip(pass(engine, prompt, new)?) {
                if kept.as_ref().is_none_or(|kept| part.wall < kept.wall) {
                    *kept = Some(part);
                }
            }
            bar.inc(1);
        }
    }
    engine.stepper_mut().stop_profile();
    bar.finish_and_clear();
    let [plain, measured] = best.map(|parts| parts.map(Option::unwrap_or_default));
    let [prefill, decode] = plain;
    let [measured_prefill, measured_decode] = measured;
    let phase = |name, plain: Part, measured: Part| Phase {
        name,
        steps: measured.steps,
        plain_wall: plain.wall,
        plain: plain.spent,
        profiled_wall: measured.wall,
    };
    let phases = [phase("prefill", prefill, measured_prefill), phase("decode", decode, measured_decode)];
    Ok(Measured { method, why, empty: empty.map(|e| e.as_secs_f64()), own_bytes, phases })
}
