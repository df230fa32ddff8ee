//! `plimsoll bench --profile`: where the time of prefill and decode goes, kernel by kernel, against the ceilings of the
//! adapter in the same run.

mod measure;
mod page;
mod rows;
mod text;

use super::ceilings::{self, Unmeasured};
use super::{Args, tokens};
use crate::failure::Failure;
use crate::{load, output};
use plimsoll::runtime::lone::Ceilings;
use plimsoll::runtime::profiler::Method;
use plimsoll::{DeviceOptions, Plan};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Flags of `--profile`.
#[derive(Debug, clap::Args)]
pub struct ProfileArgs {
    /// Instead of rates, where the time goes: every kernel's calls, time, bytes and operations, and the part of the
    /// adapter's ceiling that it reaches, for prefill and decode apart
    #[arg(long, conflicts_with_all = ["lengths", "requests", "sweep"])]
    pub profile: bool,
    /// How --profile measures: timestamps of the device where it takes them and they add up, or each dispatch alone
    #[arg(long, value_enum, value_name = "METHOD", default_value_t, requires = "profile")]
    pub profile_by: By,
    /// Writes the profile as one page of HTML, with a timeline
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub html: Option<PathBuf>,
    /// Prints the profile as Markdown
    #[arg(long, requires = "profile", conflicts_with = "json")]
    pub markdown: bool,
}

/// How dispatches are to be timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Timestamps where they add up to the time of the step, else alone
    #[default]
    Auto,
    /// Timestamps, or nothing
    Timestamps,
    /// Each dispatch submitted and waited for alone
    Alone,
}

/// What was measured.
pub struct Profile<'p> {
    pub plan: &'p Plan,
    pub adapter: &'p str,
    /// What was resolved of every limit, in a line.
    pub limits: String,
    pub method: Method,
    /// Why it is that one, in words.
    pub why: String,
    /// Seconds of an empty submit, where that was subtracted from every dispatch.
    pub empty: Option<f64>,
    /// Bytes on the device that only measuring took.
    pub own_bytes: u64,
    pub ceilings: Result<Ceilings, Unmeasured>,
    pub rounds: u32,
    /// Prefill and decode.
    pub phases: [measure::Phase; 2],
}

/// Measures and reports.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(file) = &args.profile.html {
        output::writable(file)?;
    }
    let opened = args.model.open()?;
    if let Some(file) = &args.profile.html {
        output::spares("--html", file, &opened.checkpoint.files())?;
    }
    let tokens = tokens("--prompt-tokens", args.prompt_tokens, args.new_tokens)?;
    let geometry = args.geometry.resolve(&opened.model, Some(tokens));
    load::check_length(&geometry, args.prompt_tokens as usize, tokens - args.prompt_tokens)?;
    let options =
        DeviceOptions { timestamps: args.profile.profile_by != By::Alone, ..args.machine.options() };
    let ready = load::admit_as(&opened, &geometry, &args.machine, &options, &args.output)?;
    // Before and after: what else the machine does comes and goes. Not before the plan is admitted: a refusal allocates
    // nothing.
    let (ready, before) = ceilings::before(ready, &args.machine, &options)?;
    let (mut engine, _) = ready.engine(&opened)?;
    let measured = measure::all(&mut engine, args)?;
    let plan = engine.plan().clone();
    let adapter = engine.stepper().device().info().name.clone();
    let limits = load::limits(&engine, &args.machine.policy()?.cache_limit());
    let mut document = load::end(engine, &args.machine, &args.output)?;
    let profile = Profile {
        plan: &plan,
        adapter: &adapter,
        limits,
        method: measured.method,
        why: measured.why,
        empty: measured.empty,
        own_bytes: measured.own_bytes,
        ceilings: match (before, ceilings::beside(&args.machine)?) {
            (Ok(before), Ok(after)) => Ok(before.or_better(&after)),
            (before, after) => before.or(after),
        },
        rounds: args.repetitions,
        phases: measured.phases,
    };
    if let Some(file) = &args.profile.html {
        output::file(file, page::page(&profile).as_bytes())?;
    }
    if args.output.json {
        document["schema"] = json!(1);
        document["profile"] = facts(&profile);
        return Ok(output::document(&document)?);
    }
    Ok(output::print(format_args!("{}", text::report(&profile, args.profile.markdown)))?)
}

/// The profile as documents have it.
fn facts(profile: &Profile<'_>) -> Value {
    let measured = profile.ceilings.as_ref().ok();
    let phases: serde_json::Map<String, Value> = profile
        .phases
        .iter()
        .map(|phase| {
            let rows: Vec<Value> = rows::of(profile.plan, phase)
                .iter()
                .map(|row| {
                    let share = row.share(measured);
                    json!({
                        "kernel": row.kernel,
                        "op": row.op,
                        "calls": row.calls,
                        "seconds": row.seconds,
                        "bytes": row.bytes,
                        "flops": row.flops,
                        "bound": share.map(|s| s.bound.name()),
                        "fraction_of_ceiling": share.map(|s| s.fraction),
                    })
                })
                .collect();
            let total = rows::total(profile.plan, phase);
            let planned = phase.planned(profile.plan);
            let cpu = phase.plain;
            let value = json!({
                "tokens": phase.tokens(),
                "steps": phase.steps.len(),
                "programs": phase.programs(profile.plan),
                "kernels": rows,
                "calls": total.calls,
                "bytes": total.bytes,
                "flops": total.flops,
                "planned_bytes": planned.0,
                "planned_flops": planned.1,
                "dispatch_seconds": total.seconds,
                "wall_seconds": phase.plain_wall,
                "profiled_wall_seconds": phase.profiled_wall,
                "dispatch_fraction_of_wall": total.seconds / phase.plain_wall,
                "recording_seconds_per_dispatch": cpu.recording.as_secs_f64() / cpu.dispatches.max(1) as f64,
                "recording_seconds": cpu.recording.as_secs_f64(),
                "submitting_seconds": cpu.submitting.as_secs_f64(),
                "submits": cpu.submits,
            });
            (phase.name.to_owned(), value)
        })
        .collect();
    json!({
        "method": profile.method,
        "why": profile.why,
        "empty_submit_seconds": profile.empty,
        "own_bytes": profile.own_bytes,
        "rounds": profile.rounds,
        "ceilings": measured.map(|ceilings| json!({
            "read_bytes_per_second": ceilings.read,
            "flops_per_second": ceilings.flops,
        })),
        "ceilings_not_measured": profile.ceilings.as_ref().err(),
        "phases": phases,
    })
}
