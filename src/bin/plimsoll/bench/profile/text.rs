//! The profile for people, in a terminal or as Markdown.

use super::Profile;
use super::measure::Phase;
use super::rows::{self, Bound, Row};
use crate::show;
use plimsoll::estimator::cli::bytes::{grouped, human};
use plimsoll::runtime::lone::Ceilings;
use plimsoll::runtime::profiler::Method;
use std::fmt::Write;

/// The columns of a phase; the first two are words.
pub const HEADER: [&str; 10] =
    ["kernel", "op", "calls/step", "ms/step", "%", "MB/step", "GB/s", "GFLOP/s", "bound", "% of it"];

/// The cells of a row, a step.
pub fn cells(row: &Row, steps: usize, all: f64, ceilings: Option<&Ceilings>) -> [String; 10] {
    let steps = steps.max(1) as f64;
    let rate = |amount: u64| match row.seconds > 0.0 {
        true => format!("{:.2}", amount as f64 / row.seconds / 1e9),
        false => String::new(),
    };
    let share = row.share(ceilings);
    [
        row.kernel.clone(),
        row.op.clone(),
        decimal(row.calls as f64 / steps),
        format!("{:.3}", 1e3 * row.seconds / steps),
        format!("{:.1}", 100.0 * row.seconds / all.max(f64::MIN_POSITIVE)),
        format!("{:.2}", row.bytes as f64 / steps / 1e6),
        rate(row.bytes),
        rate(row.flops),
        share
            .map_or("", |s| match s.bound {
                Bound::Read => "read",
                Bound::Flops => "FMA",
            })
            .to_owned(),
        share.map_or(String::new(), |s| format!("{:.0}", 100.0 * s.fraction)),
    ]
}

/// Whole numbers without a point.
fn decimal(value: f64) -> String {
    if value.fract() == 0.0 { grouped(value as u64) } else { format!("{value:.1}") }
}

/// How it was measured.
pub fn method(profile: &Profile<'_>) -> String {
    match (profile.method, profile.empty) {
        (Method::Timestamps, _) => format!("Measured by {}.", profile.why),
        (Method::Alone, empty) => format!(
            "Measured alone: each dispatch is submitted and waited for by itself, less the {:.1} µs of an empty one ({}).",
            1e6 * empty.unwrap_or_default(),
            profile.why
        ),
    }
}

/// What of a step's time the dispatches are, and what the host does.
pub fn accounts(profile: &Profile<'_>, phase: &Phase) -> Vec<String> {
    let (total, steps) = (rows::total(profile.plan, phase), phase.steps.len().max(1) as f64);
    let per_step = |seconds: f64| 1e3 * seconds / steps;
    let cpu = phase.plain;
    vec![
        format!(
            "A step takes {:.3} ms as users have it ({:.2} tokens/s), {:.3} ms while it is measured; its dispatches are \
             {:.3} ms, {:.0} % of the former.",
            per_step(phase.plain_wall),
            phase.tokens() as f64 / phase.plain_wall,
            per_step(phase.profiled_wall),
            per_step(total.seconds),
            100.0 * total.seconds / phase.plain_wall
        ),
        format!(
            "The host records a dispatch in {:.2} µs ({:.3} ms a step) and hands a step over in {:.3} ms ({} submits a \
             step).",
            1e6 * cpu.recording.as_secs_f64() / cpu.dispatches.max(1) as f64,
            per_step(cpu.recording.as_secs_f64()),
            per_step(cpu.submitting.as_secs_f64()),
            decimal(cpu.submits as f64 / steps)
        ),
    ]
}

/// What a phase is.
pub fn title(phase: &Phase) -> String {
    let kv = phase.steps.last().map_or(0, |step| step.shape.kv_max);
    let steps = crate::output::count(phase.steps.len(), "step");
    format!(
        "{}: {} tokens in {steps}, up to position {}",
        phase.name,
        grouped(phase.tokens()),
        grouped(kv.into())
    )
}

/// What was measured, on what.
pub fn head(profile: &Profile<'_>) -> Vec<String> {
    let (plan, g) = (profile.plan, &profile.plan.geometry);
    vec![
        format!(
            "{} ({}) on {}: context {}, chunk {}, KV {}; the least disturbed of {}; kernel variants: {}",
            plan.model.name,
            plan.model.architecture,
            profile.adapter,
            g.context,
            g.prefill_chunk,
            g.kv,
            crate::output::count(profile.rounds as usize, "round"),
            plan.profile.tuned_by
        ),
        profile.limits.clone(),
        format!("{} Measuring took {} of the device for itself.", method(profile), human(profile.own_bytes)),
        match &profile.ceilings {
            Ok(ceilings) => format!(
                "Ceilings of this adapter in this run: reading {:.1} GB/s, multiply-adds {:.1} GFLOP/s.",
                ceilings.read / 1e9,
                ceilings.flops / 1e9
            ),
            Err(unmeasured) => format!("Ceilings of this adapter were not measured: {}.", unmeasured.why),
        },
    ]
}

/// The whole report.
pub fn report(profile: &Profile<'_>, markdown: bool) -> String {
    let mut out = String::new();
    let gap = if markdown { "\n" } else { "" };
    for line in head(profile) {
        let _ = writeln!(out, "{line}{gap}");
    }
    for phase in &profile.phases {
        let total = rows::total(profile.plan, phase);
        let all = rows::of(profile.plan, phase);
        let steps = phase.steps.len();
        let lines = all
            .iter()
            .chain([&total])
            .map(|row| cells(row, steps, total.seconds, profile.ceilings.as_ref().ok()));
        if markdown {
            let _ = writeln!(out, "## {}\n\n| {} |", title(phase), HEADER.join(" | "));
            let _ = writeln!(out, "|---|---|{}", "---:|".repeat(HEADER.len() - 2));
            for line in lines {
                let _ = writeln!(out, "| {} |", line.map(|cell| cell.replace('|', "\\|")).join(" | "));
            }
            let _ = writeln!(out);
        } else {
            let mut table = show::table(&HEADER, &[2, 3, 4, 5, 6, 7, 9]);
            for line in lines {
                table.add_row(line);
            }
            let _ = writeln!(out, "\n{}\n{table}", title(phase));
        }
        for line in accounts(profile, phase) {
            let _ = writeln!(out, "{line}{gap}");
        }
    }
    out
}
