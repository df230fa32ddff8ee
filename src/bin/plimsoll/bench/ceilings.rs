//! What the adapter does at best: `plimsoll bench --ceilings`, which asks for nothing else, and what the figures of a model
//! are a part of. Either is measured on a device of its own, when no other is open, and only where there is room for it.

use super::Args;
use crate::args::{MachineArgs, reading};
use crate::bytes::grouped;
use crate::failure::Failure;
use crate::load::Ready;
use crate::{output, show};
use plimsoll::estimator::cli;
use plimsoll::estimator::verdict::Lasts;
use plimsoll::runtime::RuntimeError;
use plimsoll::runtime::lone::{CeilingReport, Ceilings, LoneKernel, Tried};
use plimsoll::{Budget, DeviceOptions};
use serde::Serialize;
use serde_json::{Value, json};

/// What is measured: its name in documents, in words, its unit and what makes the unit of a value.
const MEASURES: [(&str, &str, &str, f64); 6] = [
    ("read", "reading", "GB/s", 1e-9),
    ("copy", "copying (a byte counts twice)", "GB/s", 1e-9),
    ("flops", "multiply-adds, f32", "GFLOP/s", 1e-9),
    ("dispatch", "a dispatch in a pass", "µs", 1e6),
    ("submit", "a submit, waited for", "µs", 1e6),
    ("readback", "4 KiB read back", "µs", 1e6),
];

fn tried(report: &CeilingReport) -> [&[Tried]; 6] {
    [&report.read, &report.copy, &report.flops, &report.dispatch, &report.submit, &report.readback]
}

/// Why there are no ceilings beside the figures of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unmeasured {
    /// In a sentence, with the numbers.
    pub why: String,
    /// Bytes that measuring takes.
    pub need: u64,
    /// Bytes that there were for it; `None` where only the driver knows.
    pub have: Option<u64>,
}

/// A device of its own, what is free beside it, and what speaks against measuring there.
struct Room {
    device: LoneKernel,
    budget: Option<Budget>,
    over: Option<Unmeasured>,
}

/// Opens a device to measure on and weighs the buffers of it, which nobody's plan has: by a reading that the device has
/// taken its part of already. Every measurement of ceilings begins here.
fn room(machine: &MachineArgs) -> Result<Room, Failure> {
    let policy = machine.policy()?;
    let device = LoneKernel::open_as(&machine.options())?;
    let budget = policy.budget(reading(&device.device().memory()));
    let over = budget.as_ref().and_then(|budget| over(budget, 0));
    Ok(Room { device, budget, over })
}

/// The ceilings of the adapter beside the figures of a model, while no other device is open. The figures are worth having
/// without them, so that nothing that is too little for them is a failure; and who insisted did so on the model.
pub fn beside(machine: &MachineArgs) -> Result<Result<Ceilings, Unmeasured>, Failure> {
    let found = room(machine).and_then(|room| match room.over {
        Some(over) => Ok(Err(over)),
        None => Ok(Ok(room.device.ceilings()?)),
    });
    found.or_else(|failure| lacking(&failure).map(Err).ok_or(failure))
}

/// The same before a plan is loaded, where there is room for both; the plan's own device is opened again after it.
pub fn before(
    ready: Ready,
    machine: &MachineArgs,
    options: &DeviceOptions,
) -> Result<(Ready, Result<Ceilings, Unmeasured>), Failure> {
    let budget = machine.policy()?.budget(reading(&ready.device.memory()));
    let plan = ready.admitted.plan().total();
    if let Some(over) = budget.as_ref().and_then(|budget| over(budget, plan)) {
        return Ok((ready, Err(over)));
    }
    let Ready { device, admitted, cache_limit } = ready;
    drop(device);
    let found = beside(machine)?;
    Ok((Ready { device: machine.adapter.open(options)?, admitted, cache_limit }, found))
}

/// What a failure says of memory alone.
fn lacking(failure: &Failure) -> Option<Unmeasured> {
    let Failure::Plimsoll(plimsoll::Error::Runtime(error)) = failure else { return None };
    let (need, have) = match error {
        RuntimeError::Confined { need, have, .. } => (*need, Some(*have)),
        // It was open before.
        RuntimeError::OutOfMemory { .. } | RuntimeError::Open { .. } => (LoneKernel::CEILING_BYTES, None),
        _ => return None,
    };
    Some(Unmeasured { why: error.to_string(), need, have })
}

/// Measures and reports; no model is loaded.
pub fn run(args: &Args) -> Result<(), Failure> {
    let cache_limit = args.machine.policy()?.cache_limit();
    let Room { device, budget, over } = room(&args.machine)?;
    let (info, limits) = (device.device().info().clone(), device.profile().limits.clone());
    let document = |measured: Value, over: Option<&Unmeasured>| {
        json!({
            "schema": 1,
            "adapter": {"name": info.name, "backend": info.backend, "driver": info.driver_info},
            "budget": budget,
            "cache_limit": cache_limit,
            "ceilings": measured,
            "ceilings_not_measured": over,
        })
    };
    if let Some(over) = over {
        let why = &over.why;
        if !args.machine.insist {
            if args.output.json {
                output::document(&document(Value::Null, Some(&over)))?;
            }
            let why = over.why;
            return Err(cli::Failure::Refused { reason: why, details: String::new() }.into());
        }
        output::note(format_args!("plimsoll: measuring all the same: {why}"));
    }
    let report = device.ceiling_report()?;
    if args.output.json {
        let measures: serde_json::Map<String, Value> = MEASURES
            .iter()
            .zip(tried(&report))
            .map(|((key, ..), tried)| ((*key).to_owned(), json!({"best": tried.first(), "tried": tried})))
            .collect();
        return Ok(output::document(&document(Value::Object(measures), None))?);
    }
    let mut table = show::table(&["ceiling", "best", "unit", "shape", "of", "least of them"], &[1, 4, 5]);
    for ((_, words, unit, factor), tried) in MEASURES.iter().zip(tried(&report)) {
        let shown =
            |tried: Option<&Tried>| tried.map_or(String::new(), |t| format!("{:.2}", t.value * factor));
        table.add_row([
            (*words).to_owned(),
            shown(tried.first()),
            (*unit).to_owned(),
            tried.first().map_or(String::new(), |best| best.shape.clone()),
            tried.len().to_string(),
            shown(tried.last()),
        ]);
    }
    Ok(output::print(format_args!(
        "{} ({}, {})\n{}\n{table}\n",
        info.name,
        info.backend,
        info.driver_info,
        show::limits(&limits, budget.as_ref(), &cache_limit)
    ))?)
}

/// Why the buffers that are measured in are more than a budget has beside a plan.
fn over(budget: &Budget, plan: u64) -> Option<Unmeasured> {
    let (need, have) = (LoneKernel::CEILING_BYTES, budget.bytes.saturating_sub(plan));
    (need > have).then(|| {
        let (source, lasts) = (&budget.source, Lasts::of(need.saturating_add(plan), budget).says());
        let beside = if plan == 0 { String::new() } else { format!(" beside the plan's {}", grouped(plan)) };
        let why = format!(
            "the buffers that ceilings are measured in (bench --ceilings) need {} bytes{beside}, the budget has {} \
             ({source}); {lasts}",
            grouped(need),
            grouped(budget.bytes)
        );
        Unmeasured { why, need, have: Some(have) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_weighed_beside_a_plan() {
        let need = LoneKernel::CEILING_BYTES;
        let budget = |bytes| Budget::flag(bytes, "flag --memory");
        assert_eq!(over(&budget(need), 0), None);
        assert_eq!(over(&budget(need + 1000), 1000), None);
        let have = |over: Option<Unmeasured>| over.map(|over| (over.need, over.have, over.why));
        let (of, has, why) = have(over(&budget(need - 1), 0)).unwrap_or_default();
        assert_eq!((of, has), (need, Some(need - 1)));
        assert!(
            why.contains("134,230,016") && why.contains("flag --memory") && why.contains("; permanent"),
            "{why}"
        );
        let (_, has, why) = have(over(&budget(need), 1000)).unwrap_or_default();
        assert!(has == Some(need - 1000) && why.contains("beside the plan's 1,000"), "{why}");
        // An insisted plan may be more than there is.
        assert_eq!(have(over(&budget(5), 1000)).unwrap_or_default().1, Some(0));
    }
}
