//! From a checkpoint to a loaded plan: budget, verdict, progress.

use crate::args::{MachineArgs, Output, reading};
use crate::failure::Failure;
use crate::show;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use plimsoll::estimator::cli::estimate::{Warned, note_warnings, warnings};
use plimsoll::estimator::cli::{self, output};
use plimsoll::estimator::snapshot_bytes;
use plimsoll::runtime::request::{self, check_ids, check_room};
use plimsoll::runtime::{Freed, MemoryChange, RuntimeError};
use plimsoll::{
    Admitted, Budget, CacheLimit, Device, DeviceOptions, Engine, Error, GenerateOptions, Geometry,
    LoadProgress, Opened, Plan, Profile, Runtime, Session, Tokenizer,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A device with a plan that may be loaded on it.
pub struct Ready {
    pub device: Device,
    pub admitted: Admitted,
    /// The most that is kept without being live.
    pub cache_limit: CacheLimit,
}

/// Opens the adapter and asks for admission. A refusal brings its tables; with `--json` its document is shown.
pub fn admit(
    opened: &Opened,
    geometry: &Geometry,
    machine: &MachineArgs,
    out: &Output,
) -> Result<Ready, Failure> {
    admit_as(opened, geometry, machine, &machine.options(), out)
}

/// The same on an adapter that is opened as `options` say.
pub fn admit_as(
    opened: &Opened,
    geometry: &Geometry,
    machine: &MachineArgs,
    options: &DeviceOptions,
    out: &Output,
) -> Result<Ready, Failure> {
    runs(opened)?;
    // A wrong setting is said before anything is opened.
    machine.policy()?;
    admit_on(machine.adapter.open(options)?, opened, geometry, machine, out)
}

/// The same on a device that is open, with the kernel variants that it was given.
pub fn admit_on(
    device: Device,
    opened: &Opened,
    geometry: &Geometry,
    machine: &MachineArgs,
    out: &Output,
) -> Result<Ready, Failure> {
    let policy = machine.policy()?;
    let budget = policy.budget(reading(&device.memory()));
    let cache_limit = policy.cache_limit();
    let each = snapshot_bytes(&opened.model, geometry);
    cache_limit.keeps(geometry.priced.snapshots, each).map_err(Failure::usage)?;
    let profile = device.profile();
    machine.limits.note(&profile.limits, &profile.name);
    let warnings = note_warnings(&opened.model, geometry);
    let admitted = match judge(opened, geometry, profile, budget.clone(), machine.insist) {
        Err(Error::Refused(refusal)) => {
            let (report, _) = opened.estimate(geometry, profile, budget.as_ref())?;
            if out.json {
                output::document(&Warned { document: &report, warnings: &warnings, cache_limit })?;
            }
            let details = show::refusal(&report);
            return Err(cli::Failure::Refused { reason: refusal.to_string(), details }.into());
        }
        other => other?,
    };
    if out.verbose > 0 {
        output::note(format_args!(
            "{}",
            show::plan(admitted.plan(), &device, admitted.budget(), &cache_limit)
        ));
    }
    if out.verbose > 1 {
        output::note(format_args!("{}", admitted.plan()));
    }
    Ok(Ready { device, admitted, cache_limit })
}

/// Whether the model can be run, and not only priced.
pub fn runs(opened: &Opened) -> Result<(), RuntimeError> {
    match &opened.model.extras.estimate_only {
        Some(why) => Err(RuntimeError::EstimateOnly { why: why.clone() }),
        None => Ok(()),
    }
}

/// Admits a geometry, also against the budget's advice where somebody insists, and says so.
pub fn judge(
    opened: &Opened,
    geometry: &Geometry,
    profile: &Profile,
    budget: Option<Budget>,
    insist: bool,
) -> Result<Admitted, Error> {
    match opened.admit(geometry, profile, budget.as_ref()) {
        Err(Error::Refused(refusal)) => {
            // A plan that breaks the adapter's limits cannot be insisted on.
            match Plan::new(&opened.model, geometry, profile).ok().filter(|_| insist) {
                Some(plan) => {
                    output::note(format_args!("plimsoll: loading all the same: {refusal}"));
                    Ok(Admitted::insist(plan, budget))
                }
                None => Err(Error::Refused(refusal)),
            }
        }
        other => other,
    }
}

/// Whether `ids` and `new` tokens after them can run in a geometry: what the engine would say, before the device is
/// opened.
pub fn check(opened: &Opened, geometry: &Geometry, ids: &[u32], new: u32) -> Result<(), RuntimeError> {
    check_ids(opened.model.vocab, ids)?;
    check_length(geometry, ids.len(), new)
}

/// Whether the tokens that answers end at are the model's, before the device is opened.
pub fn check_stops(opened: &Opened, options: &GenerateOptions) -> Result<(), RuntimeError> {
    request::check_stops(opened.model.vocab, &options.stop_tokens)?;
    Ok(())
}

/// Whether a prompt and what follows it fit the context.
pub fn check_length(geometry: &Geometry, prompt: usize, max_new: u32) -> Result<(), RuntimeError> {
    check_room(geometry.context, prompt, max_new)?;
    Ok(())
}

/// Whether a text could fit the context, before it is tokenized.
pub fn check_text(geometry: &Geometry, tokenizer: &Tokenizer, text: &str) -> Result<(), RuntimeError> {
    request::check_text(geometry.context, tokenizer, text.len())?;
    Ok(())
}

/// Two bars on standard error while a plan is loaded.
struct Bars {
    pipelines: ProgressBar,
    weights: ProgressBar,
}

impl Bars {
    fn new() -> Self {
        let bar = |template: &str| {
            let bar = ProgressBar::no_length();
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        };
        Self {
            pipelines: bar("pipelines {wide_bar} {pos}/{len}"),
            weights: bar("weights   {wide_bar} {binary_bytes}/{binary_total_bytes}  {msg}"),
        }
    }

    fn show(&self, progress: LoadProgress<'_>) {
        let (bar, done, total) = match progress {
            LoadProgress::Pipelines { done, total } => (&self.pipelines, done as u64, total as u64),
            LoadProgress::Weights { tensor, tensor_done, tensor_total, done, total } => {
                let of = BinaryBytes(tensor_total);
                self.weights.set_message(format!("{tensor} {}/{of}", BinaryBytes(tensor_done)));
                (&self.weights, done, total)
            }
        };
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

impl Ready {
    /// Loads it for text. Answers how long that took, too.
    pub fn session(self, opened: &Opened) -> Result<(Session, Duration), Failure> {
        let tokenizer = opened.tokenizer()?;
        let (engine, time) = self.engine(opened)?;
        Ok((Session::new(engine, tokenizer), time))
    }

    /// Loads it for tokens.
    pub fn engine(self, opened: &Opened) -> Result<(Engine<Runtime>, Duration), Failure> {
        let start = Instant::now();
        let bars = Bars::new();
        let mut engine =
            opened.load_engine(self.device, self.admitted, &mut |progress| bars.show(progress))?;
        engine.set_cache_limit(self.cache_limit.bytes);
        Ok((engine, start.elapsed()))
    }
}

/// A bar on standard error for the tokens of a prompt.
pub fn prefill_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("prompt    {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar
}

/// What documents say at the end of a verb: of the machine, of what the operator asked of it, of the plan on it, and of
/// what came back when all of it was given back, which `-v` says in words.
pub fn end(engine: Engine<Runtime>, machine: &MachineArgs, out: &Output) -> Result<Value, Failure> {
    let when_begun = engine.stepper().memory_when_last_begun().cloned();
    let document = end_told(engine, machine, out)?;
    tell_change(when_begun.as_ref());
    Ok(document)
}

/// The same where it has been told already how free memory changed.
pub fn end_told(engine: Engine<Runtime>, machine: &MachineArgs, out: &Output) -> Result<Value, Failure> {
    let mut document = facts(&engine, machine)?;
    let change = engine.stepper().memory_change();
    document["free_memory"] = json!(change);
    let [trim, unload] = unload(engine);
    if out.verbose > 0 {
        output::note(format_args!("free      {change}\n{trim}\n{unload}"));
    }
    document["freed"] = json!({ "trim": trim, "unload": unload });
    Ok(document)
}

/// Says it where free memory was much another when the last prompt began than after the load: what is loaded has what it
/// needs, but others may not, nor the next load. Answers whether it was.
pub fn tell_change(when_begun: Option<&MemoryChange>) -> bool {
    let said = when_begun.and_then(changed);
    if let Some(said) = &said {
        output::note(format_args!("{said}"));
    }
    said.is_some()
}

fn changed(change: &MemoryChange) -> Option<String> {
    change.is_large().then(|| format!("plimsoll: free memory has changed much since the load: {change}"))
}

/// The same of an engine that goes on.
pub fn facts(engine: &Engine<Runtime>, machine: &MachineArgs) -> Result<Value, Failure> {
    let runtime = engine.stepper();
    let (plan, device) = (engine.plan(), runtime.device());
    let snapshot = plan.snapshots.iter().flatten().map(|piece| piece.bytes).sum();
    let budget: Option<&Budget> = runtime.admitted().budget();
    Ok(json!({
        "model": {"name": plan.model.name, "architecture": plan.model.architecture},
        "adapter": {"name": device.info().name, "backend": device.info().backend, "driver": device.info().driver_info},
        "tuning": {"source": plan.profile.tuned_by, "values": plan.profile.tuning},
        "geometry": plan.geometry,
        "bytes": plimsoll::estimator::report::bytes(plan),
        "allocated": {"bytes": device.totals().live_bytes, "buffers": device.totals().live},
        "account": runtime.account(),
        "telemetry": engine.telemetry(),
        "budget": budget,
        "cache_limit": machine.policy()?.cache_limit(),
        "cache": engine.cache_stats(),
        "free_memory": runtime.memory_change(),
        "overridden": runtime.admitted().overridden(),
        "warnings": warnings(plan.model.context_max, snapshot, &plan.geometry),
    }))
}

/// What was resolved of every limit for what is loaded, in a line.
pub fn limits(engine: &Engine<Runtime>, cache: &CacheLimit) -> String {
    show::limits(&engine.plan().profile.limits, engine.stepper().admitted().budget(), cache)
}

/// Gives everything back: what is retained, then the model. Answers what came of either.
pub fn unload(mut engine: Engine<Runtime>) -> [Freed; 2] {
    let trimmed = engine.trim_reported();
    [trimmed, engine.into_stepper().unload_reported().1]
}

/// Logit rows a step so that scoring many positions is fast and their bytes stay moderate.
pub fn scoring_rows(opened: &Opened, geometry: &Geometry) -> u32 {
    const BYTES: u64 = 32 << 20;
    let fit = BYTES / (u64::from(opened.model.vocab.max(1)) * 4);
    let most = u64::from(geometry.prefill_chunk.min(geometry.context)).max(1);
    u32::try_from(fit.clamp(1, most)).unwrap_or(1).max(geometry.slots)
}

#[cfg(test)]
mod tests {
    use super::changed;
    use plimsoll::runtime::{MemoryChange, MemoryFeed, Simulated};

    #[test]
    fn a_large_change_is_told_and_a_small_one_not() {
        let feed = Simulated::new(Some(1600));
        let then = feed.read();
        for (now, told) in [(1600, false), (1501, false), (1500, true), (1700, true), (0, true)] {
            feed.set(Some(now));
            let said = changed(&MemoryChange { then: then.clone(), now: feed.read() });
            assert_eq!(said.is_some(), told, "{now}");
        }
        feed.set(Some(0));
        let said = changed(&MemoryChange { then, now: feed.read() });
        let words =
            "free memory has changed much since the load: 1,600 after the load, 0 now, -1,600, by simulated";
        assert!(said.is_some_and(|said| said.ends_with(words)));
    }
}
