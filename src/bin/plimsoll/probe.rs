//! `plimsoll probe`: loads one context after the other, each larger, until the budget refuses one; what was planned,
//! allocated, reserved and resident at each, and whether the model still says the same.

use crate::account::{self, amount};
use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::failure::Failure;
use crate::{load, output};
use plimsoll::estimator::cli::bytes::{self, grouped};
use plimsoll::estimator::cli::estimate::warnings;
use plimsoll::runtime::process::forget_peak;
use plimsoll::runtime::{Account, Request, RuntimeError, What};
use plimsoll::{Device, Engine, Error, Geometry, Opened, Refusal, Runtime};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Tokens of the prompt that every step continues.
const PROMPT: u32 = 16;
/// Tokens that follow it.
const NEW: u32 = 8;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// Tokens by which the context grows
    #[arg(long, value_name = "TOKENS", default_value = "8192", value_parser = bytes::count)]
    pub step: u32,
    /// The first context [default: a step, or the last context where that is smaller]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count)]
    pub from: Option<u32>,
    /// The last context [default: the model's maximum]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count)]
    pub max: Option<u32>,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

/// A context that was loaded and answered.
#[derive(Serialize)]
struct Step {
    context: u32,
    /// Bytes of the plan.
    planned: u64,
    /// Bytes of the buffers.
    allocated: u64,
    /// Bytes that the driver took, where it says.
    reserved: Option<u64>,
    /// Resident bytes of the process, where the system says.
    process: Option<u64>,
    /// What the budget was.
    budget: Option<u64>,
    load_seconds: f64,
    account: Account,
}

/// Why there is no further step.
#[derive(Serialize)]
struct Ended {
    /// `maximum`, `refused`, or `failed`.
    why: &'static str,
    /// The context that was refused or failed, or the last one.
    context: u32,
    /// What of the verdict broke: `total`, `allocation`, ….
    broke: Option<&'static str>,
    /// What exceeded it.
    name: Option<String>,
    /// Bytes or another number that was needed.
    need: Option<u64>,
    /// What there was.
    have: Option<u64>,
    /// The need by segment.
    terms: Option<Value>,
    /// In a sentence.
    reason: String,
}

impl Ended {
    fn plain(why: &'static str, context: u32, reason: String) -> Self {
        Self { why, context, broke: None, name: None, need: None, have: None, terms: None, reason }
    }

    fn refused(context: u32, refusal: &Refusal) -> Self {
        let terms = refusal.terms.iter().map(|(segment, bytes)| (segment.name().to_owned(), json!(bytes)));
        Self {
            broke: Some(refusal.broke.name()),
            name: Some(refusal.name.clone()),
            need: Some(refusal.need),
            have: Some(refusal.have),
            terms: (!refusal.terms.is_empty()).then(|| Value::Object(terms.collect())),
            ..Self::plain("refused", context, refusal.to_string())
        }
    }
}

/// The first context and the last.
fn ends(args: &Args, opened: &Opened) -> Result<(u32, u32), Failure> {
    if args.geometry.context.is_some() {
        return Err(Failure::usage("--context: a probe tries many: give --from, --step and --max".into()));
    }
    let last = args.max.unwrap_or(opened.model.context_max);
    let first = args.from.unwrap_or(args.step.min(last));
    let least = PROMPT + NEW;
    if first < least || first > last {
        let (first, last) = (grouped(first.into()), grouped(last.into()));
        return Err(Failure::usage(format!(
            "--from: expected {least} tokens (the prompt of a step and its continuation) to --max {last}, got {first}"
        )));
    }
    Ok((first, last))
}

/// The contexts to try; the last is tried whether or not a step ends there.
fn contexts(first: u32, step: u32, last: u32) -> impl Iterator<Item = u32> {
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let context = next?;
        next = (context < last).then(|| context.saturating_add(step).min(last));
        Some(context)
    })
}

/// Probes.
pub fn run(args: &Args) -> Result<(), Failure> {
    let ceiling = args.machine.ceiling()?;
    let opened = args.model.open()?;
    let (first, last) = ends(args, &opened)?;
    let geometry = args.geometry.resolve(&opened.model, Some(first));
    load::runs(&opened)?;
    let device = Device::open(&args.machine.options())?;
    let adapter = json!({"name": device.info().name, "backend": device.info().backend});
    let told = warnings(opened.model.context_max, &Geometry { context: last, ..geometry.clone() });
    told.iter().for_each(|warning| output::note(format_args!("plimsoll: {warning}")));
    let mut steps: Vec<Step> = Vec::new();
    let mut said: Option<Vec<u32>> = None;
    let mut failure = None;
    let mut ended = Ended::plain("maximum", last, format!("{} tokens are the most", grouped(last.into())));
    for context in contexts(first, args.step, last) {
        let geometry = Geometry { context, ..geometry.clone() };
        match step(&opened, &device, &geometry, ceiling.as_ref(), args, &mut said) {
            Ok(step) => {
                if !args.output.json {
                    output::print(format_args!("{}\n", line(&step)))?;
                }
                if args.output.verbose > 0 {
                    output::note(format_args!("{}", account::table(&step.account)));
                }
                steps.push(step);
            }
            Err(Failure::Plimsoll(Error::Refused(refusal))) => {
                ended = Ended::refused(context, &refusal);
                break;
            }
            Err(error) => {
                ended = Ended::plain("failed", context, error.message());
                failure = Some(error);
                break;
            }
        }
    }
    if args.output.json {
        let mut document = json!({
            "schema": 1,
            "model": {"name": opened.model.name, "architecture": opened.model.architecture},
            "adapter": adapter,
            "geometry": geometry_document(&geometry),
            "from": first,
            "step": args.step,
            "max": last,
            "steps": steps,
            "ended": ended,
            "warnings": told,
        });
        if let Some(failure) = &failure {
            document["error"] = json!({"exit_code": failure.code(), "message": failure.message()});
        }
        output::document(&document)?;
    } else if failure.is_none() {
        let (at, reason) = (grouped(ended.context.into()), &ended.reason);
        let what = ended.broke.map_or(ended.why.to_owned(), |broke| format!("{} ({broke})", ended.why));
        output::print(format_args!("context {at}: {what}: {reason}\n"))?;
    }
    match failure {
        // Its document has been shown.
        Some(error) if args.output.json => Err(Failure::Shown(Box::new(error))),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// One context: admitted, loaded, asked, accounted for, and unloaded.
fn step(
    opened: &Opened,
    device: &Device,
    geometry: &Geometry,
    ceiling: Option<&(u64, String)>,
    args: &Args,
    said: &mut Option<Vec<u32>>,
) -> Result<Step, Failure> {
    let requested = ceiling.map(|(bytes, setting)| (*bytes, setting.as_str()));
    // What is free changes while a probe runs; asking for the counters lets the device let go of the step before.
    device.counters();
    forget_peak();
    let budget = plimsoll::budget(requested, &device.memory());
    let have = budget.as_ref().map(|budget| budget.bytes);
    let admitted = load::judge(opened, geometry, device.profile(), budget, args.machine.insist)?;
    let ready = load::Ready { device: device.clone(), admitted };
    let (mut engine, time) = ready.engine(opened)?;
    let tokens = continuation(&mut engine)?;
    let account = engine.stepper().account();
    account.check().map_err(RuntimeError::Account)?;
    let first = said.get_or_insert_with(|| tokens.clone());
    if *first != tokens {
        return Err(RuntimeError::Input {
            what: format!("continuation at context {}", geometry.context),
            expected: format!("{first:?}, as at the first"),
            got: format!("{tokens:?}"),
        }
        .into());
    }
    Ok(Step {
        context: geometry.context,
        planned: account.total.planned,
        allocated: account.total.allocated,
        reserved: account.reserved.figure.bytes,
        process: account.process.resident.bytes,
        budget: have,
        load_seconds: time.as_secs_f64(),
        account,
    })
}

/// The most probable tokens after a fixed prompt.
fn continuation(engine: &mut Engine<Runtime>) -> Result<Vec<u32>, Failure> {
    let vocab = engine.plan().model.vocab.max(1);
    // Any ids will do, as long as they are the same at every step.
    let prompt = (0..PROMPT).map(|i| i.wrapping_mul(7919).wrapping_add(11) % vocab).collect();
    engine.submit(Request { prompt, max_new: NEW, ..Default::default() })?;
    let mut tokens = Vec::new();
    while !engine.is_idle() {
        for event in engine.step() {
            match event.what {
                What::Token { id, .. } => tokens.push(id),
                What::Failed(error) => {
                    return Err(Arc::try_unwrap(error).unwrap_or_else(RuntimeError::Step).into());
                }
                What::Prefill { .. } | What::Done(_) => {}
            }
        }
    }
    Ok(tokens)
}

/// What is the same at every step.
fn geometry_document(geometry: &Geometry) -> Value {
    let mut document = json!(geometry);
    if let Some(fields) = document.as_object_mut() {
        fields.remove("context");
    }
    document
}

fn line(step: &Step) -> String {
    format!(
        "context {}: planned {}, allocated {}, reserved {}, process {}, loaded in {:.2} s",
        grouped(step.context.into()),
        grouped(step.planned),
        grouped(step.allocated),
        step.reserved.map_or("unknown".to_owned(), grouped),
        amount(step.process),
        step.load_seconds,
    )
}

#[cfg(test)]
mod tests {
    use super::contexts;

    #[test]
    fn the_last_context_is_always_tried() {
        let all = |first, step, last| contexts(first, step, last).collect::<Vec<_>>();
        assert_eq!(all(100, 100, 300), [100, 200, 300]);
        assert_eq!(all(100, 100, 250), [100, 200, 250]);
        assert_eq!(all(64, 8192, 64), [64]);
        assert_eq!(all(u32::MAX - 1, 8, u32::MAX), [u32::MAX - 1, u32::MAX]);
    }
}
