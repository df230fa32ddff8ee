//! What took turns, as a table for people.

use super::Args;
use super::arms::{Arm, Workload, comparisons};
use super::stats::{range, shown};
use crate::output::{self, median};
use crate::{load, show};
use plimsoll::estimator::cli::bytes::{grouped, human};
use plimsoll::{CacheLimit, Engine, Runtime};
use std::fmt::Write;

/// The curve, then each arm against the first.
pub fn text(args: &Args, arms: &[Arm], workload: &Workload, engine: Option<&Engine<Runtime>>) -> String {
    let mut text = String::new();
    if let Some(engine) = engine {
        let plan = engine.plan();
        let device = engine.stepper().device().info().name.clone();
        let (model, variants) = (&plan.model, &plan.profile.tuned_by);
        let _ = write!(
            text,
            "{} ({}) on {device}; kernel variants: {variants}; ",
            model.name, model.architecture
        );
    }
    let _ = match workload {
        Workload::One { prompt, new } => write!(text, "prompt {prompt}, {new} new tokens"),
        Workload::Many(wishes) => write!(
            text,
            "{} of up to {} + {} tokens, seed {}, {} in all",
            output::count(wishes.len(), "request"),
            args.prompt_tokens,
            args.new_tokens,
            args.seed,
            grouped(workload.tokens())
        ),
    };
    let _ = writeln!(text, "; {}, arms in turn", output::count(args.repetitions as usize, "round"));
    if let Some((engine, arm)) = engine.zip(arms.last()) {
        // What is retained may be what the arms differ in, and is in the table then.
        let alike = arms.iter().all(|other| other.cache_limit == arm.cache_limit);
        let own = CacheLimit { bytes: None, source: "as each arm says".into() };
        let _ = writeln!(text, "{}", load::limits(engine, if alike { &arm.cache_limit } else { &own }));
    }
    let measures = workload.measures();
    let name = args.sweep.as_ref().map_or("", |sweep| sweep.setting.name());
    let header = [
        name,
        measures[0].1,
        measures[1].1,
        "planned",
        "allocated",
        "reserved",
        "resident",
        "retained",
        "hits",
        "reused",
    ];
    let mut table = show::table(&header, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let unknown = || "unknown".to_owned();
    for arm in arms {
        let Some(seen) = &arm.seen else { continue };
        let resident = match arm.resident.is_empty() {
            true => unknown(),
            false => human(median(&arm.resident) as u64),
        };
        table.add_row([
            arm.label.clone(),
            shown(&arm.measures[0], measures[0].2),
            shown(&arm.measures[1], measures[1].2),
            grouped(seen.planned),
            grouped(seen.allocated),
            seen.reserved.map_or_else(unknown, grouped),
            resident,
            grouped(seen.cache.bytes),
            format!("{}/{}", seen.cache.hits, seen.cache.lookups),
            grouped(seen.cache.tokens_reused),
        ]);
    }
    let _ = writeln!(text, "{table}");
    for (arm, seen) in comparisons(arms) {
        for ((_, measure, _), comparison) in measures.iter().zip(&seen) {
            let (least, most) = range(&comparison.rounds);
            let _ = writeln!(
                text,
                "{name} {} against {}: {measure} x{:.3} (by round {least:.3}–{most:.3}): {}",
                arm.label,
                arms[0].label,
                comparison.ratio,
                comparison.verdict()
            );
        }
    }
    let _ = write!(
        text,
        "medians (least–most); retained, hits and reused are of one turn, which begins with nothing retained; retained\n\
         lies in the plan's own bytes"
    );
    text
}
