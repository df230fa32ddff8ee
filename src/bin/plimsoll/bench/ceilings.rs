//! `plimsoll bench --ceilings`: what the adapter does at best, and in which shape.

use super::Args;
use crate::failure::Failure;
use crate::{output, show};
use plimsoll::Device;
use plimsoll::runtime::lone::{CeilingReport, LoneKernel, Tried};
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
    let options = args.machine.options();
    let info = Device::open(&options)?.info().clone();
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
    Ok(output::print(format_args!("{} ({}, {})\n{table}\n", info.name, info.backend, info.driver_info))?)
}
