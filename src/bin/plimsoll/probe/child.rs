//! One step, in a process of its own: the system may end it, and not the probe. Says on standard output what it has
//! reached, one JSON object a line; the last is the step.

use super::Args;
use super::parent::starved;
use super::record::{Anchor, Ended, Exceeded, Memory, Seen, Step};
use super::validate::{self, Trouble};
use crate::failure::Failure;
use crate::output;
use plimsoll::estimator::verdict::Broke;
use plimsoll::runtime::process::forget_peak;
use plimsoll::runtime::{MemoryReading, RuntimeError};
use plimsoll::{
    Admitted, Budget, Device, DeviceOptions, Error, Geometry, LoadProgress, MemoryPolicy, Opened, Plan,
    Refusal,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{BufRead, Read};
use std::time::{Duration, Instant};

/// What a parent asks for, on standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub context: u32,
    /// Not a step: what the model says at a small context, by the kernels for a device with the least abilities.
    pub reference: bool,
    /// What other runs said.
    pub anchors: Vec<Anchor>,
}

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// It is about to do this.
    At(String),
    /// All went well.
    Passed(Box<Step>),
    /// It did not.
    Ended(Box<Ended>),
}

fn say(line: &Line) -> Result<(), Failure> {
    let text = serde_json::to_string(line).map_err(std::io::Error::other)?;
    Ok(output::print(format_args!("{text}\n"))?)
}

/// The most bytes of an order.
const MOST_ORDER: u64 = 1 << 20;

/// Carries out the order on standard input.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut line = String::new();
    std::io::stdin().lock().take(MOST_ORDER).read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line)
        .map_err(|error| Failure::usage(format!("--child: expected an order on standard input: {error}")))?;
    // A parent that is gone closes the pipe: nobody would read the end, and the memory is somebody else's.
    let watch = std::thread::Builder::new().spawn(|| {
        let mut rest = String::new();
        let _ = std::io::stdin().lock().take(MOST_ORDER).read_line(&mut rest);
        std::process::exit(1);
    });
    let watched =
        watch.map(drop).map_err(|error| starved("a thread that watches for the probe's end", error));
    let mut stage = "opening";
    let done = match watched.map_err(Stop::from).and_then(|()| step(args, &order, &mut stage)) {
        Ok(step) => Line::Passed(Box::new(step)),
        Err(failure) => {
            let ended = Ended { stage: Some(stage.to_owned()), ..ended(order.context, &failure) };
            Line::Ended(Box::new(ended))
        }
    };
    say(&done)
}

/// Why a step stopped.
enum Stop {
    Wrong(String),
    /// With what the device said of its memory before the load.
    OutOfMemory(RuntimeError, Box<MemoryReading>),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Self {
        Stop::Failed(error.into())
    }
}

fn step(args: &Args, order: &Order, stage: &mut &'static str) -> Result<Step, Stop> {
    let mut reach = |at: &'static str| {
        *stage = at;
        say(&Line::At(at.to_owned()))
    };
    reach("opening")?;
    let policy = args.machine.policy()?;
    let opened = args.model.open()?;
    let mut options = args.machine.options();
    let mut geometry =
        Geometry { context: order.context, ..args.geometry.resolve(&opened.model, Some(order.context)) };
    if order.reference {
        options = DeviceOptions { subgroups: false, webgpu_limits: true, ..options };
        geometry.prefill_chunk = geometry.prefill_chunk.min(64);
    }
    // A reference has nothing that was chosen for speed.
    let device =
        if order.reference { Device::open(&options)? } else { args.machine.adapter.open(&options)? };
    reach("admitting")?;
    let before = device.memory();
    let budget = policy.budget(plimsoll::reading(&before));
    let word = if args.machine.insist { None } else { word(&policy, budget.as_ref()) };
    let (admitted, exceeded) = admit(&opened, &geometry, &device, budget, word.as_ref())?;
    let planned = admitted.plan().total();

    reach("loading")?;
    forget_peak();
    let start = Instant::now();
    let mut compiling = Compiling::default();
    let out_of_memory = |error: Error| match error {
        Error::Runtime(error @ RuntimeError::OutOfMemory { .. }) => {
            Stop::OutOfMemory(error, Box::new(before))
        }
        other => Stop::Failed(other.into()),
    };
    let loaded = opened.load_engine(device.clone(), admitted, &mut |progress| compiling.see(progress));
    let mut engine = loaded.map_err(out_of_memory)?;
    engine.set_cache_limit(policy.cache_limit().bytes);
    let (whole, compile_time) = (start.elapsed(), compiling.time);
    let load_time = whole.saturating_sub(compile_time);
    let created = device.totals().created;
    reach("touching")?;
    let filling = Instant::now();
    let filled = engine.stepper_mut().fill(u64::from(order.context))?;
    let fill_time = filling.elapsed();

    reach("validating")?;
    let tolerance = args.tolerance.unwrap_or_else(|| validate::tolerance(geometry.kv, &opened.model));
    let tokens = args.validate.tokens(order.context);
    let warming = Instant::now();
    validate::warm_up(&mut engine, tokens)?;
    let warm_up_time = warming.elapsed();
    let said = match validate::run(&mut engine, args.validate, tokens, &order.anchors, tolerance) {
        Ok(said) => said,
        Err(Trouble::Wrong(what)) => return Err(Stop::Wrong(what)),
        Err(Trouble::Failed(error)) => return Err(error.into()),
    };
    let account = engine.stepper().account();
    account.check().map_err(RuntimeError::Account)?;
    if device.totals().created != created {
        let made = device.totals().created - created;
        return Err(Stop::Wrong(format!("{made} buffers were created after the load")));
    }
    let after = device.memory();
    Ok(Step {
        context: order.context,
        planned,
        allocated: account.total.allocated,
        reserved: account.reserved.figure.bytes,
        filled,
        resident: account.process.resident.bytes,
        peak: account.process.peak.bytes,
        process_swap: account.process.swap.bytes,
        device: Memory { available: after.available, total: after.total, source: after.source.to_string() },
        budget: engine.stepper().admitted().budget().cloned(),
        exceeded,
        load_seconds: load_time.as_secs_f64(),
        compile_seconds: compile_time.as_secs_f64(),
        fill_seconds: fill_time.as_secs_f64(),
        warm_up_seconds: warm_up_time.as_secs_f64(),
        bytes_per_second: account.total.allocated as f64 / (load_time + fill_time).as_secs_f64().max(1e-9),
        prefill_tokens_per_second: said.prefill_tokens_per_second,
        decode_tokens_per_second: said.decode_tokens_per_second,
        checked: said.checked,
        tokens: said.tokens,
        anchors: said.anchors,
        account: json!(account),
        seen: Seen::default(),
    })
}

/// What the compiling of pipelines takes of a load.
#[derive(Default)]
struct Compiling {
    since: Option<Instant>,
    time: Duration,
}

impl Compiling {
    fn see(&mut self, progress: LoadProgress<'_>) {
        if let LoadProgress::Pipelines { .. } = progress {
            self.time = self.since.get_or_insert_with(Instant::now).elapsed();
        }
    }
}

/// What the operator said of memory, apart from what was only read of the machine: a ceiling, and a reserve, which is one
/// on the reading. A probe steps past the rest.
pub fn word(policy: &MemoryPolicy, budget: Option<&Budget>) -> Option<Budget> {
    match (policy.reserve(), policy.memory()) {
        (Some(reserve), _) if reserve.bytes > 0 => budget.cloned(),
        (_, Some(ceiling)) => Some(Budget::flag(ceiling.bytes, &ceiling.name)),
        _ => None,
    }
}

/// Admits a geometry, past what was derived of the machine: what it really does is what a probe is for. The operator's
/// `word` holds, which there is none of with `--insist`, and a plan that breaks the adapter's limits cannot be made.
fn admit(
    opened: &Opened,
    geometry: &Geometry,
    device: &Device,
    budget: Option<Budget>,
    word: Option<&Budget>,
) -> Result<(Admitted, Option<Exceeded>), Failure> {
    let profile = device.profile();
    let refusal = match opened.admit(geometry, profile, budget.as_ref()) {
        Ok(admitted) => return Ok((admitted, None)),
        Err(Error::Refused(refusal)) if matches!(refusal.broke, Broke::Total | Broke::LoadPeak) => refusal,
        Err(other) => return Err(other.into()),
    };
    if word.is_some() {
        opened.admit(geometry, profile, word)?;
    }
    let exceeded = Exceeded {
        need: refusal.need,
        have: refusal.have,
        source: budget.as_ref().map_or_else(String::new, |budget| budget.source.clone()),
    };
    let plan = Plan::new(&opened.model, geometry, profile)?;
    Ok((Admitted::insist(plan, budget), Some(exceeded)))
}

/// What there is to say of a step that stopped.
fn ended(context: u32, stop: &Stop) -> Ended {
    match stop {
        Stop::Wrong(what) => Ended::plain("wrong", context, None, what.clone()),
        Stop::OutOfMemory(error, before) => Ended {
            exit_code: Some(6),
            ..Ended::plain("out-of-memory", context, Some(gate(error, before)), error.to_string())
        },
        Stop::Failed(Failure::Plimsoll(Error::Refused(refusal))) => refused(context, refusal),
        Stop::Failed(failure) => {
            let message = failure.message();
            // Drivers say so in their own words where it is not a buffer that they have no memory for.
            let memory = failure.code() == 6 && message.to_lowercase().contains("memory");
            let (why, gate) =
                if memory { ("out-of-memory", Some("physical-memory")) } else { ("failed", None) };
            Ended { exit_code: Some(failure.code()), ..Ended::plain(why, context, gate, message) }
        }
    }
}

/// What a refusal is.
pub fn refused(context: u32, refusal: &Refusal) -> Ended {
    let terms = refusal.terms.iter().map(|(segment, bytes)| (segment.name().to_owned(), json!(bytes)));
    let gate = match refusal.broke {
        Broke::Total | Broke::LoadPeak => Some("budget"),
        Broke::Allocation | Broke::Binding => Some("allocation"),
        Broke::Limit | Broke::KvFormat | Broke::Geometry => None,
    };
    Ended {
        broke: Some(refusal.broke.name().to_owned()),
        name: Some(refusal.name.clone()),
        need: Some(refusal.need),
        have: Some(refusal.have),
        terms: (!refusal.terms.is_empty()).then(|| Value::Object(terms.collect())),
        ..Ended::plain("refused", context, gate, refusal.to_string())
    }
}

/// Which limit a driver's refusal came from. What is no buffer (`bytes` 0) is a device or a pipeline, which no limit of one
/// allocation stands against.
fn gate(error: &RuntimeError, before: &MemoryReading) -> &'static str {
    use plimsoll::runtime::MemorySource::{MetalWorkingSet, VideoMemoryInfo, VulkanBudget};
    let set = matches!(before.source, MetalWorkingSet | VideoMemoryInfo | VulkanBudget);
    match (error, before.available) {
        // Nothing else was there, and there was room for it: the driver does not give that much at once.
        (RuntimeError::OutOfMemory { bytes, live: 0, .. }, Some(available))
            if *bytes > 0 && *bytes <= available =>
        {
            "allocation"
        }
        (RuntimeError::OutOfMemory { bytes, live, .. }, Some(available))
            if set && live.saturating_add(*bytes) > available =>
        {
            "working-set"
        }
        _ => "physical-memory",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll::runtime::MemorySource;

    #[test]
    fn what_is_no_buffer_meets_no_limit_of_one_allocation() {
        let of = |bytes, live, source| {
            let error = RuntimeError::OutOfMemory { buffer: "x".into(), bytes, live };
            gate(&error, &MemoryReading::new(Some((1000, 2000)), source))
        };
        assert_eq!(of(0, 0, MemorySource::MemInfo), "physical-memory");
        assert_eq!(of(0, 0, MemorySource::VulkanBudget), "physical-memory");
        assert_eq!(of(1000, 0, MemorySource::MemInfo), "allocation");
        assert_eq!(of(1001, 0, MemorySource::MemInfo), "physical-memory");
        assert_eq!(of(500, 501, MemorySource::VulkanBudget), "working-set");
        assert_eq!(of(500, 501, MemorySource::MemInfo), "physical-memory");
    }
}
