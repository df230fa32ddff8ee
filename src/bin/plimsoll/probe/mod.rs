//! `plimsoll probe`: the real ceiling of this machine for a model. Loads one context after the other, each larger and each
//! in a process of its own, writes every byte of it, has the model read and write across all of it, and compares what it
//! says; until a limit or a wrong answer ends it.

mod args;
mod child;
mod identity;
mod parent;
mod plausible;
mod preflight;
mod record;
mod report;
mod validate;

pub use args::Args;

use crate::account::table_of;
use crate::bytes::{grouped, human};
use crate::failure::Failure;
use crate::{load, output, show};
use args::contexts;
use child::Order;
use parent::Watch;
use plausible::Bounds;
use plimsoll::estimator::cli::estimate::warnings;
use plimsoll::estimator::snapshot_bytes;
use plimsoll::kernels::Limits;
use plimsoll::runtime::adapters::AdapterKind;
use plimsoll::runtime::host::{self, HostMemory};
use plimsoll::{Budget, CacheLimit, Geometry, Opened, Plan, Profile};
use record::{Anchor, Ended, Event, Foreign, Log, Step};
use report::Run;
use serde_json::{Value, json};
use std::time::Duration;

/// Growth of swap that is no growth: others on the machine are swapped out, too.
const SWAP_NOISE: u64 = 1 << 20;

/// What a probe knows before its first step.
struct Probe<'a> {
    args: &'a Args,
    opened: Opened,
    profile: Profile,
    adapter: Value,
    /// Whether the device takes its memory from the machine's.
    shared: bool,
    ceiling: Option<(u64, String)>,
    /// What was resolved of the limit of retained memory.
    cache_limit: Value,
    /// What was resolved of every limit, for people.
    resolved: String,
    /// Bytes left to others, and the setting that says so.
    reserve: Option<(u64, String)>,
    /// What the operator's word amounts to now: no step goes past it, unless there is `--insist`.
    word: Option<Budget>,
    geometry: Geometry,
    first: u32,
    last: u32,
    watch: Watch,
    /// The machine's own limits, in words.
    limits: String,
    /// Other processes' limits and the machine's, for the log's key.
    total: Option<u64>,
    address_space: Option<u64>,
    data_size: Option<u64>,
    /// The limit of a control group.
    group: Option<u64>,
}

/// What was resolved of the operator's limits, and of several for memory which it is and why.
fn resolved(limits: &Limits, budget: Option<&Budget>, cache: &CacheLimit) -> String {
    let why = budget.map_or(String::new(), |budget| format!("          {}\n", budget.why));
    format!("{}\n{why}", show::limits(limits, budget, cache))
}

/// Probes.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.child {
        return child::run(args);
    }
    if args.preflight {
        return preflight::run(args);
    }
    let probe = Probe::new(args)?;
    if !args.output.json {
        output::print(format_args!("{}", probe.resolved))?;
    }
    if args.dry_run {
        return probe.dry_run();
    }
    let mut log = Log::open(args.log.as_deref())?;
    let told = [probe.warnings(), log.warnings()].concat();
    told.iter().for_each(|warning| output::note(format_args!("plimsoll: {warning}")));
    let keys: Vec<Value> =
        args.pause.iter().map(|&pause| Some(pause)).chain([None]).map(|pause| probe.key(pause)).collect();
    probe.believe(&log, &keys)?;
    let foreign = log.foreign(&keys);
    if let (Some(path), false) = (&args.log, foreign.is_empty()) {
        for Foreign { entries, differ } in &foreign {
            output::note(format_args!(
                "plimsoll: {}: {} of another measurement, not used: not the same {}",
                path.display(),
                output::count(*entries, "entrie"),
                differ.join(", ")
            ));
        }
    }
    let mut runs = Vec::new();
    // What is known to be right, by position: every step is held against all of it.
    let mut anchors = Vec::new();
    let mut begun = false;
    for &pause in &args.pause {
        let run = probe.run(pause, &mut log, &mut anchors, &mut begun)?;
        if !args.output.json {
            output::print(format_args!("{}", run.summary()))?;
        }
        runs.push(run);
    }
    let failed = runs.iter().find_map(Run::failed).map(|(reason, code)| Failure::Probe { reason, code });
    if args.output.json {
        let mut document = probe.document();
        document["runs"] = json!(runs);
        document["log_not_used"] = json!(foreign);
        document["warnings"] = json!(told);
        if let Some(failure) = &failed {
            document["error"] = json!({"exit_code": failure.code(), "message": failure.message()});
        }
        output::document(&document)?;
    }
    match failed {
        // Its document has been shown.
        Some(error) if args.output.json => Err(Failure::Shown(Box::new(error))),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl<'a> Probe<'a> {
    fn new(args: &'a Args) -> Result<Self, Failure> {
        let (policy, ceiling) = (args.machine.policy()?, args.machine.ceiling()?);
        let opened = args.model.open()?;
        let (first, last) = args.ends(&opened)?;
        let geometry = args.geometry.resolve(&opened.model, Some(first));
        let each = snapshot_bytes(&opened.model, &geometry);
        policy.cache_limit().keeps(geometry.priced.snapshots, each).map_err(Failure::usage)?;
        load::runs(&opened)?;
        // Only asked, and closed again: a step has the device for itself.
        let device = args.machine.open()?;
        let budget = policy.budget(plimsoll::reading(&device.memory()));
        let info = device.info();
        let memory = HostMemory::take();
        let (address_space, data_size) = (host::address_space(), host::data_size());
        let floor = memory.total.map(|total| args.floor(total)).transpose()?;
        let mut limits = format!("a machine with {}", memory.total.map_or("unknown".to_owned(), grouped));
        if let Some(floor) = floor {
            limits += &format!(", a floor of {}", grouped(floor));
        }
        let group = host::group();
        if let Some(group) = &group {
            limits += &format!(", a control group of {} by {}", grouped(group.limit), group.file.display());
        }
        let shell = [("an address space", "ulimit -v", address_space), ("data", "ulimit -d", data_size)];
        let mut of_shell = Vec::new();
        for (what, name, bytes) in shell {
            let Some(bytes) = bytes else { continue };
            limits += &format!(", {what} of {} by {name}", grouped(bytes));
            of_shell.push(name);
        }
        let shell = (!of_shell.is_empty()).then(|| of_shell.join(" and "));
        Ok(Self {
            args,
            ceiling,
            cache_limit: json!(policy.cache_limit()),
            resolved: resolved(&device.profile().limits, budget.as_ref(), &policy.cache_limit()),
            word: child::word(&policy, budget.as_ref()),
            reserve: policy.reserve().map(|reserve| (reserve.bytes, reserve.name.clone())),
            first,
            last,
            geometry,
            profile: device.profile().clone(),
            adapter: json!({"name": info.name, "backend": info.backend, "driver": info.driver_info}),
            shared: matches!(info.kind, AdapterKind::Cpu | AdapterKind::Integrated),
            watch: Watch { floor, time: args.step_time, swap: memory.swap_used, shell },
            limits,
            total: memory.total,
            address_space,
            data_size,
            group: group.map(|group| group.limit),
            opened,
        })
    }

    fn warnings(&self) -> Vec<String> {
        let last = Geometry { context: self.last, ..self.geometry.clone() };
        warnings(self.opened.model.context_max, snapshot_bytes(&self.opened.model, &last), &last)
    }

    fn at(&self, context: u32) -> Geometry {
        Geometry { context, ..self.geometry.clone() }
    }

    /// What is the same at every step.
    fn document(&self) -> Value {
        let mut geometry = json!(self.geometry);
        if let Some(fields) = geometry.as_object_mut() {
            fields.remove("context");
        }
        json!({
            "schema": 1,
            "model": {"name": self.opened.model.name, "architecture": self.opened.model.architecture},
            "adapter": self.adapter,
            "geometry": geometry,
            "from": self.first,
            "step": self.args.step,
            "max": self.last,
            "floor": self.watch.floor,
            "limits": {"memory": self.ceiling, "reserve": self.reserve, "cache": self.cache_limit,
                "address_space": self.address_space, "data_size": self.data_size, "group": self.group, "machine": self.total},
        })
    }

    /// What a recorded result is a result for: everything that could make another of it.
    fn key(&self, pause: Option<Duration>) -> Value {
        let checkpoint = &self.opened.checkpoint;
        let path = checkpoint.path();
        let program = std::env::current_exe().map(|path| identity::of(&path)).unwrap_or_default();
        let bytes = checkpoint.tensors().map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
        let document = self.document();
        json!({
            "model": document["model"],
            "path": path.canonicalize().unwrap_or(path.to_owned()),
            "bytes": bytes,
            "files": identity::files(path),
            "program": {"version": env!("CARGO_PKG_VERSION"), "file": program},
            "adapter": self.adapter,
            "geometry": document["geometry"],
            "limits": document["limits"],
            "profile": json!(self.profile).to_string(),
            "floor": self.watch.floor,
            "insist": self.args.machine.insist,
            "validate": self.args.validate.name(),
            "tolerance": self.args.tolerance.map(|most| most.to_string()),
            // No fractions: what is written must be read again as the same.
            "pause_ms": pause.map(|pause| pause.as_millis().to_string()),
        })
    }

    /// The steps and their bytes.
    fn dry_run(&self) -> Result<(), Failure> {
        let mut steps = Vec::new();
        for context in contexts(self.first, self.args.step, self.last) {
            let (step, text) = match Plan::new(&self.opened.model, &self.at(context), &self.profile) {
                Ok(plan) => {
                    let (total, peak) = (plan.total(), plan.load_peak());
                    let over = self.word.as_ref().filter(|word| total > word.bytes);
                    let past = over.map_or(String::new(), |word| format!(", past the {}", word.source));
                    (
                        json!({"context": context, "planned": total, "load_peak": peak, "past_ceiling": over.is_some()}),
                        format!(
                            "planned {} ({}), load peak {}{past}",
                            grouped(total),
                            human(total),
                            grouped(peak)
                        ),
                    )
                }
                Err(why) => {
                    let why = why.to_string();
                    (json!({"context": context, "impossible": why}), format!("impossible: {why}"))
                }
            };
            if !self.args.output.json {
                output::print(format_args!("context {}: {text}\n", grouped(context.into())))?;
            }
            steps.push(step);
        }
        if self.args.output.json {
            let mut document = self.document();
            document["dry_run"] = json!(true);
            document["steps"] = json!(steps);
            output::document(&document)?;
        }
        Ok(())
    }

    /// All steps at one pause.
    fn run(
        &self,
        pause: Duration,
        log: &mut Log,
        anchors: &mut Vec<Anchor>,
        begun: &mut bool,
    ) -> Result<Run, Failure> {
        let key = self.key(Some(pause));
        let (mut steps, mut from_log) = (Vec::new(), Vec::new());
        let mut ended = None;
        if anchors.is_empty() {
            match self.reference(log)? {
                Ok(said) => *anchors = said,
                Err(why) => ended = Some(why),
            }
        }
        for context in contexts(self.first, self.args.step, self.last) {
            if ended.is_some() {
                break;
            }
            let result = match recorded(log, &key, context) {
                Some(result) => {
                    from_log.push(context);
                    result
                }
                None => {
                    if std::mem::replace(begun, true) {
                        std::thread::sleep(pause);
                    }
                    self.step(context, &key, log, anchors)?
                }
            };
            match result {
                Ok(step) => {
                    self.show(&step, from_log.contains(&context))?;
                    let swapped = self.watch.swapped(&step.seen);
                    anchors.extend(step.anchors.iter().cloned());
                    if swapped {
                        let growth = step.seen.swap_growth.unwrap_or(0);
                        let reason = format!("swap grew by {}: there is no memory for more", grouped(growth));
                        let seen = step.seen.clone();
                        ended = Some(Ended {
                            seen,
                            ..Ended::plain("swap", context, Some("physical-memory"), reason)
                        });
                    } else {
                        steps.push(step);
                    }
                }
                Err(why) => ended = Some(why),
            }
        }
        let ended = ended.unwrap_or_else(|| {
            let most = format!("{} tokens are the most", grouped(self.last.into()));
            Ended::plain("maximum", self.last, None, most)
        });
        Ok(Run::new(pause, steps, ended, from_log, &self.limits))
    }

    /// What the log says of these measurements has to be what can be: all of it, before anything is measured.
    fn believe(&self, log: &Log, keys: &[Value]) -> Result<(), Failure> {
        for (line, event) in keys.iter().flat_map(|key| log.under(key)) {
            let wrong = match event {
                Event::Begun { .. } => None,
                Event::Reference { anchors } => Anchor::none_or_impossible(anchors),
                Event::Ended(ended) => ended.impossible(),
                Event::Passed(step) => {
                    let context = step.context;
                    match Plan::new(&self.opened.model, &self.at(context), &self.profile) {
                        Ok(plan) => step.impossible(&self.bounds(context, &plan)),
                        Err(why) => Some(format!("context {context}: it has no plan: {why}")),
                    }
                }
            };
            if let Some(why) = wrong {
                return Err(log.impossible(line, &why));
            }
        }
        Ok(())
    }

    /// What a step at a context may say.
    fn bounds(&self, context: u32, plan: &Plan) -> Bounds {
        let (mode, kv) = (self.args.validate, self.geometry.kv);
        let own = || validate::tolerance(kv, &self.opened.model);
        Bounds {
            planned: plan.total(),
            machine: host::installed(),
            requested: self.ceiling.as_ref().map(|(bytes, _)| *bytes),
            reserve: self.reserve.as_ref().map(|(bytes, _)| *bytes),
            mode: mode.name(),
            tokens: mode.tokens(context),
            tolerance: self.args.tolerance.unwrap_or_else(own),
            vocab: plan.model.vocab,
        }
    }

    fn show(&self, step: &Step, recorded: bool) -> Result<(), Failure> {
        if !self.args.output.json {
            output::print(format_args!("{}\n", report::line(step, recorded)))?;
        }
        if self.args.output.verbose > 0 {
            output::note(format_args!("{}", table_of(&step.account)));
        }
        Ok(())
    }

    /// What the model says at the first positions, by other kernels than a step's: what a step is held against must not be
    /// wrong with it.
    fn reference(&self, log: &mut Log) -> Result<Result<Vec<Anchor>, Ended>, Failure> {
        let key = self.key(None);
        let known = log.under(&key).find_map(|(_, event)| match event {
            Event::Reference { anchors } => Some(anchors.clone()),
            _ => None,
        });
        if let Some(anchors) = known {
            return Ok(Ok(anchors));
        }
        let context = self.first.min(validate::REFERENCE);
        let order = Order { context, reference: true, anchors: Vec::new() };
        match self.watch.run(&order)? {
            Ok(step) => {
                log.write(&key, Event::Reference { anchors: step.anchors.clone() })?;
                Ok(Ok(step.anchors))
            }
            Err(why) => Ok(Err(Ended { reason: format!("the reference: {}", why.reason), ..why })),
        }
    }

    /// One step that has not been tried yet, or did not come to its end.
    fn step(
        &self,
        context: u32,
        key: &Value,
        log: &mut Log,
        anchors: &[Anchor],
    ) -> Result<Result<Step, Ended>, Failure> {
        log.write(key, Event::Begun { context })?;
        let result = match self.floor(context) {
            Some(below) => Err(below),
            None => self.watch.run(&Order { context, reference: false, anchors: anchors.to_vec() })?,
        };
        let event = match &result {
            Ok(step) => Event::Passed(Box::new(step.clone())),
            Err(ended) => Event::Ended(Box::new(ended.clone())),
        };
        log.write(key, event)?;
        Ok(result)
    }

    /// Whether a step would leave less than the floor, where the plan alone says so.
    fn floor(&self, context: u32) -> Option<Ended> {
        let (floor, available) = (self.watch.floor?, HostMemory::take().available?);
        let need = match Plan::new(&self.opened.model, &self.at(context), &self.profile) {
            Ok(plan) if self.shared => plan.load_peak(),
            // A device with memory of its own takes little of the machine's; an impossible plan takes nothing.
            _ => 0,
        };
        let left = available.saturating_sub(need);
        (left < floor).then(|| self.watch.below(context, left))
    }
}

/// What a log says of a step under a key.
fn recorded(log: &Log, key: &Value, context: u32) -> Option<Result<Step, Ended>> {
    let mut begun = 0;
    for (_, event) in log.under(key) {
        match event {
            Event::Begun { context: at } if *at == context => begun += 1,
            Event::Passed(step) if step.context == context => return Some(Ok(Step::clone(step))),
            // Ended from outside: that is no answer, and the step is tried again.
            Event::Ended(ended) if ended.context == context && ended.is_foreign() => begun = 0,
            Event::Ended(ended) if ended.context == context => return Some(Err(Ended::clone(ended))),
            _ => {}
        }
    }
    if begun == 1 {
        let at = grouped(context.into());
        output::note(format_args!("plimsoll: context {at} was begun and has no end: once more"));
    }
    if begun < 2 {
        return None;
    }
    let reason = format!("begun {begun} times and never ended: the probe or its machine went down with it");
    Some(Err(Ended::plain("lost", context, Some("physical-memory"), reason)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_step_that_takes_the_machine_down_twice_is_not_tried_a_third_time() {
        let (mut log, key) = (Log::open(None).unwrap(), json!(1));
        assert!(recorded(&log, &key, 64).is_none());
        log.write(&key, Event::Begun { context: 64 }).unwrap();
        assert!(recorded(&log, &key, 64).is_none());
        log.write(&key, Event::Begun { context: 64 }).unwrap();
        log.write(&json!(2), Event::Begun { context: 64 }).unwrap();
        assert_eq!(recorded(&log, &key, 64).unwrap().unwrap_err().why, "lost");
        assert!(recorded(&log, &key, 128).is_none() && recorded(&log, &json!(2), 64).is_none());
        // What somebody else ended is tried again.
        let foreign = Ended { signal: Some(15), ..Ended::plain("killed", 64, None, String::new()) };
        log.write(&key, Event::Ended(Box::new(foreign))).unwrap();
        assert!(recorded(&log, &key, 64).is_none());
        let ended = Ended::plain("time", 64, None, String::new());
        log.write(&key, Event::Ended(Box::new(ended.clone()))).unwrap();
        assert_eq!(recorded(&log, &key, 64).unwrap().unwrap_err(), ended);
    }
}
