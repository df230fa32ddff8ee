//! `plimsoll bench --ceilings`: what the adapter does at best, and in which shape.

use super::Args;
use crate::args::reading;
use crate::bytes::grouped;
use crate::failure::Failure;
use crate::{output, show};
use plimsoll::estimator::cli;
use plimsoll::estimator::verdict::Lasts;
use plimsoll::runtime::lone::{CeilingReport, LoneKernel, Tried};
use plimsoll::{Budget, Device};
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

/// Measures and reports; no model is loaded.
pub fn run(args: &Args) -> Result<(), Failure> {
    let policy = args.machine.policy()?;
    let options = args.machine.options();
    // Only asked, and closed again: what is measured has the device for itself.
    let device = Device::open(&options)?;
    let (info, limits) = (device.info().clone(), device.profile().limits.clone());
    let (budget, cache_limit) = (policy.budget(reading(&device.memory())), policy.cache_limit());
    drop(device);
    if let Some(why) = budget.as_ref().and_then(over) {
        if !args.machine.insist {
            return Err(cli::Failure::Refused { reason: why, details: String::new() }.into());
        }
        output::note(format_args!("plimsoll: measuring all the same: {why}"));
    }
    let report = LoneKernel::open_as(&options).and_then(|device| device.ceiling_report())?;
    if args.output.json {
        let measures: serde_json::Map<String, Value> = MEASURES
            .iter()
            .zip(tried(&report))
            .map(|((key, ..), tried)| ((*key).to_owned(), json!({"best": tried.first(), "tried": tried})))
            .collect();
        return Ok(output::document(&json!({
            "schema": 1,
            "adapter": {"name": info.name, "backend": info.backend, "driver": info.driver_info},
            "budget": budget,
            "cache_limit": cache_limit,
            "ceilings": measures,
        }))?);
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

/// Why the buffers that are measured in are more than a budget has.
fn over(budget: &Budget) -> Option<String> {
    let need = LoneKernel::CEILING_BYTES;
    (need > budget.bytes).then(|| {
        let (need, have) = (grouped(need), grouped(budget.bytes));
        let (source, lasts) = (&budget.source, Lasts::of(LoneKernel::CEILING_BYTES, budget).says());
        format!("the buffers of --ceilings need {need} bytes, the budget has {have} ({source}); {lasts}")
    })
}
