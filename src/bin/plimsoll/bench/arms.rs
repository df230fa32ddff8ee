//! `plimsoll bench --sweep` and `--requests`: what is compared takes turns (A B A B …), so that whatever else the machine
//! does is in all of it, and its footprint stands beside its speed.

use super::requests::{self, Wish};
use super::stats::{Comparison, spread};
use super::sweep::Sweep;
use super::{Args, once, report, tokens};
use crate::args::GeometryArgs;
use crate::failure::Failure;
use crate::{load, output};
use indicatif::ProgressBar;
use plimsoll::runtime::pool::CacheStats;
use plimsoll::runtime::process::ProcessMemory;
use plimsoll::{CacheLimit, Engine, Geometry, Opened, Runtime};
use serde_json::{Value, json};
use std::time::Duration;

/// The fewest rounds of which ranges say something.
pub const FEWEST: u32 = 3;

/// One of those that take turns: what it is, and what was seen of it.
pub struct Arm {
    pub label: String,
    geometry: Geometry,
    pub cache_limit: CacheLimit,
    /// By measure, a value for each round.
    pub measures: [Vec<f64>; 2],
    /// Of the process after each turn, where the system says.
    pub resident: Vec<f64>,
    load_seconds: Vec<f64>,
    pub seen: Option<Seen>,
}

/// What the last turn left; it is the same after each.
pub struct Seen {
    pub planned: u64,
    pub allocated: u64,
    /// By the driver's allocator, where it says.
    pub reserved: Option<u64>,
    /// Lookups, hits, tokens and evictions of this turn alone, and what was retained at its end.
    pub cache: CacheStats,
    facts: Value,
}

/// What is run in a turn.
pub enum Workload {
    One { prompt: u32, new: u32 },
    Many(Vec<Wish>),
}

impl Workload {
    /// The names of the two measures, what people call them, and the digits that matter.
    pub fn measures(&self) -> [(&'static str, &'static str, usize); 2] {
        match self {
            Workload::One { .. } => [
                ("prefill_tokens_per_second", "prefill tokens/s", 2),
                ("decode_tokens_per_second", "decode tokens/s", 2),
            ],
            Workload::Many(_) => {
                [("tokens_per_second", "tokens/s", 2), ("first_token_seconds", "first token s", 4)]
            }
        }
    }

    /// Both measures of one turn from an empty cache.
    fn turn(&self, engine: &mut Engine<Runtime>) -> Result<[f64; 2], Failure> {
        match self {
            Workload::One { prompt, new } => {
                let times = once(engine, *prompt, *new)?;
                Ok([f64::from(*prompt) / times.prefill, f64::from(*new) / times.decode])
            }
            Workload::Many(wishes) => {
                let passed = requests::pass(engine, wishes)?;
                Ok([self.tokens() as f64 / passed.seconds, output::median(&passed.first_tokens)])
            }
        }
    }

    /// Of prompts and answers together, those found in the cache too: it is what was served.
    pub fn tokens(&self) -> u64 {
        match self {
            Workload::One { prompt, new } => u64::from(*prompt).saturating_add((*new).into()),
            Workload::Many(wishes) => wishes
                .iter()
                .map(|wish| (wish.prompt.len() as u64).saturating_add(wish.new.into()))
                .fold(0, u64::saturating_add),
        }
    }

    fn document(&self, args: &Args) -> Value {
        let requests = match self {
            Workload::One { .. } => 1,
            Workload::Many(wishes) => wishes.len(),
        };
        let seed = args.requests.map(|_| args.seed);
        json!({
            "requests": requests,
            "seed": seed,
            "longest_prompt": args.prompt_tokens,
            "most_new": args.new_tokens,
            "tokens": self.tokens(),
        })
    }
}

/// What flags forbid together.
fn check(args: &Args) -> Result<(), Failure> {
    let Some(sweep) = &args.sweep else { return Ok(()) };
    let name = sweep.setting.name();
    if args.repetitions < FEWEST {
        return Err(Failure::usage(format!(
            "--repetitions: a sweep compares ranges: expected at least {FEWEST}, got {}",
            args.repetitions
        )));
    }
    if sweep.is_given(&args.geometry) {
        return Err(Failure::usage(format!("--sweep {name}: --{name} is given, too: leave one of them out")));
    }
    let limit = args.machine.policy()?.cache_limit();
    if !sweep.setting.is_of_the_plan() && limit.bytes.is_some() {
        return Err(Failure::usage(format!(
            "--sweep {name}: {} is set, too: leave one of them out",
            limit.source
        )));
    }
    Ok(())
}

/// The arms of a sweep, or the only one there is.
fn arms(args: &Args, opened: &Opened) -> Result<Vec<Arm>, Failure> {
    let tokens = tokens("--prompt-tokens", args.prompt_tokens, args.new_tokens)?;
    let limit = args.machine.policy()?.cache_limit();
    // Where many requests come, what one of them needs is not the context of a service.
    let wanted = args.requests.is_none().then_some(tokens);
    let arm = |label: &str, asked: &GeometryArgs, cache_limit: CacheLimit| -> Result<Arm, Failure> {
        let geometry = asked.resolve(&opened.model, wanted);
        load::check_length(&geometry, args.prompt_tokens as usize, tokens - args.prompt_tokens)?;
        let label = label.to_owned();
        Ok(Arm {
            label,
            geometry,
            cache_limit,
            measures: [Vec::new(), Vec::new()],
            resident: Vec::new(),
            load_seconds: Vec::new(),
            seen: None,
        })
    };
    let Some(sweep) = &args.sweep else { return Ok(vec![arm("as asked", &args.geometry, limit)?]) };
    let of = |value: &super::sweep::Arm| {
        let asked = sweep.geometry(&args.geometry, value);
        arm(&value.label, &asked, value.cache_limit().unwrap_or_else(|| limit.clone()))
    };
    sweep.arms.iter().map(of).collect()
}

/// Asks the budget, as it is now, whether an arm's plan may be loaded.
fn admit(args: &Args, opened: &Opened, arm: &Arm) -> Result<load::Ready, Failure> {
    let ready = load::admit(opened, &arm.geometry, &args.machine, &args.output).inspect_err(|_| {
        if let Some(Sweep { setting, .. }) = &args.sweep {
            output::note(format_args!("plimsoll: --sweep {}: the arm {}:", setting.name(), arm.label));
        }
    })?;
    Ok(load::Ready { cache_limit: arm.cache_limit.clone(), ..ready })
}

/// Measures all of them in turn, and reports.
pub fn run(args: &Args) -> Result<(), Failure> {
    check(args)?;
    let opened = args.model.open()?;
    let mut arms = arms(args, &opened)?;
    let workload = match requests::asked(args, opened.model.vocab) {
        Some(wishes) => Workload::Many(wishes),
        None => Workload::One { prompt: args.prompt_tokens, new: args.new_tokens },
    };
    let reloads = args.sweep.as_ref().is_some_and(|sweep| sweep.setting.is_of_the_plan());
    if reloads {
        // All of them, before the first is loaded: an arm that is refused is no surprise after an hour.
        for arm in &arms {
            admit(args, &opened, arm)?;
        }
    }
    let bar = ProgressBar::new(u64::from(args.repetitions).saturating_mul(arms.len() as u64));
    let mut order = Vec::new();
    let mut engine: Option<Engine<Runtime>> = None;
    for _ in 0..args.repetitions {
        for arm in &mut arms {
            let kept = if reloads { None } else { engine.take() };
            // One plan at a time: what the last arm had goes before the budget is asked for this one.
            drop(engine.take());
            let mut now = match kept {
                Some(engine) => engine,
                None => loaded(args, &opened, arm, &workload)?,
            };
            turn(args, arm, &mut now, &workload)?;
            order.push(arm.label.clone());
            engine = Some(now);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if args.output.json {
        return Ok(output::document(&document(args, &arms, &workload, &order)?)?);
    }
    Ok(output::print(format_args!("{}\n", report::text(args, &arms, &workload, engine.as_ref())))?)
}

/// Loads an arm's plan and lets one turn pass uncounted: the first touches pages for the first time.
fn loaded(
    args: &Args,
    opened: &Opened,
    arm: &mut Arm,
    workload: &Workload,
) -> Result<Engine<Runtime>, Failure> {
    let (mut engine, time): (_, Duration) = admit(args, opened, arm)?.engine(opened)?;
    arm.load_seconds.push(time.as_secs_f64());
    workload.turn(&mut engine)?;
    Ok(engine)
}

fn turn(
    args: &Args,
    arm: &mut Arm,
    engine: &mut Engine<Runtime>,
    workload: &Workload,
) -> Result<(), Failure> {
    engine.set_cache_limit(arm.cache_limit.bytes);
    engine.trim();
    let before = engine.cache_stats();
    let measured = workload.turn(engine)?;
    for (all, value) in arm.measures.iter_mut().zip(measured) {
        all.push(value);
    }
    let after = engine.cache_stats();
    arm.resident.extend(ProcessMemory::take().resident.bytes.map(|bytes| bytes as f64));
    let runtime = engine.stepper();
    let mut facts = load::facts(engine, &args.machine)?;
    facts["cache_limit"] = json!(arm.cache_limit);
    arm.seen = Some(Seen {
        planned: engine.plan().total(),
        allocated: runtime.device().totals().live_bytes,
        reserved: runtime.account().reserved.figure.bytes,
        cache: CacheStats {
            lookups: after.lookups.saturating_sub(before.lookups),
            hits: after.hits.saturating_sub(before.hits),
            tokens_reused: after.tokens_reused.saturating_sub(before.tokens_reused),
            evictions: after.evictions.saturating_sub(before.evictions),
            ..after
        },
        facts,
    });
    Ok(())
}

fn document(args: &Args, arms: &[Arm], workload: &Workload, order: &[String]) -> Result<Value, Failure> {
    let of = |arm: &Arm| {
        let mut document = json!({});
        if let Some(seen) = &arm.seen {
            document = seen.facts.clone();
            document["cache"] = json!(seen.cache);
            document["footprint"] = json!({
                "planned_bytes": seen.planned,
                "allocated_bytes": seen.allocated,
                "reserved_bytes": seen.reserved,
                "resident_bytes": (!arm.resident.is_empty()).then(|| spread(&arm.resident)),
                "retained_bytes": seen.cache.bytes,
            });
        }
        document["value"] = json!(arm.label);
        document["load_seconds"] = json!(arm.load_seconds);
        for ((name, _, _), values) in workload.measures().iter().zip(&arm.measures) {
            document[*name] = spread(values);
        }
        document
    };
    let comparisons = comparisons(arms).into_iter().map(|(arm, seen)| {
        let mut document = json!({"value": arm.label, "against": arms[0].label});
        for ((name, _, _), comparison) in workload.measures().iter().zip(&seen) {
            document[*name] = comparison.document();
        }
        document
    });
    Ok(json!({
        "schema": 1,
        "sweep": args.sweep.as_ref().map(|sweep| sweep.setting.name()),
        "workload": workload.document(args),
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "repetitions": args.repetitions,
        "memory_policy": args.machine.policy()?,
        "order": order,
        "arms": arms.iter().map(of).collect::<Vec<_>>(),
        "comparisons": comparisons.collect::<Vec<_>>(),
    }))
}

/// Every arm but the first, against the first.
pub fn comparisons(arms: &[Arm]) -> Vec<(&Arm, [Comparison; 2])> {
    let Some((base, others)) = arms.split_first() else { return Vec::new() };
    let of = |at: usize, arm: &Arm| Comparison::of(&arm.measures[at], &base.measures[at]);
    others.iter().map(|arm| (arm, [of(0, arm), of(1, arm)])).collect()
}
