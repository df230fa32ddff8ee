//! What `--tune` found, as a table and as a document.

use super::trial::{Outcome, Trial, better};
use super::{Bench, Found, Round};
use crate::args::reading;
use crate::bench::stats::{Comparison, shown, spread};
use crate::failure::Failure;
use crate::{output, show};
use plimsoll::estimator::cli::bytes::grouped;
use plimsoll::kernels::tuning::table;
use serde_json::{Value, json};
use std::fmt::Write;

/// `x1.042`, with a mark where ranges overlap.
fn ratio(comparison: &Comparison) -> String {
    format!("x{:.3}{}", comparison.ratio, if comparison.overlap { " ~" } else { "" })
}

/// What came of a candidate, in words.
fn verdict(trial: &Trial, base: &Trial, kept: bool) -> String {
    match &trial.outcome {
        Outcome::Planned => match trial.against(base) {
            None => "planned".to_owned(),
            Some(compared) => {
                let ratios = format!("prefill {}, decode {}", ratio(&compared[0]), ratio(&compared[1]));
                let what = match (kept, better(&compared), compared.iter().all(|c| c.overlap)) {
                    (true, ..) => "kept",
                    (_, true, _) => "better",
                    (_, _, true) => "no difference shown",
                    _ => "not better",
                };
                format!("{what}: {ratios}")
            }
        },
        Outcome::Same => "the same kernels as another".to_owned(),
        Outcome::Skipped { need: Some(need), have: Some(have), .. } => {
            format!("skipped by its plan: it needs {}, there are {}", grouped(*need), grouped(*have))
        }
        Outcome::Skipped { why, .. } => format!("skipped by its plan: {why}"),
        Outcome::Slow => "less than half as fast in the first round".to_owned(),
        Outcome::Failed(why) => format!("failed: {why}"),
    }
}

fn rates(trial: &Trial) -> [String; 2] {
    let of = |rates: &Vec<f64>| if rates.is_empty() { String::new() } else { shown(rates, 2) };
    [of(&trial.rates[0]), of(&trial.rates[1])]
}

/// For people.
pub fn text(bench: &Bench<'_>, found: &Found) -> String {
    let (args, model) = (bench.args, &bench.opened.model);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} ({}) on {}; prompt {}, {} new tokens; {} a field, candidates in turn; at the beginning: {}",
        model.name,
        model.architecture,
        bench.device.info().name,
        args.prompt_tokens,
        args.new_tokens,
        output::count(args.repetitions as usize, "round"),
        found.start.source
    );
    let _ = writeln!(text, "{}", bench.limits);
    let header = ["field", "value", "prefill tokens/s", "decode tokens/s", "planned", ""];
    let mut table = show::table(&header, &[2, 3, 4]);
    for round in &found.rounds {
        let [prefill, decode] = rates(&round.base);
        let of_base = round.base.planned_bytes.map_or_else(String::new, grouped);
        let base = format!("{} (in force)", round.before);
        table.add_row([round.field.name().to_owned(), base, prefill, decode, of_base, String::new()]);
        for (at, trial) in round.candidates.iter().enumerate() {
            let [prefill, decode] = rates(trial);
            let bytes = trial.planned_bytes.map_or_else(String::new, grouped);
            let verdict = verdict(trial, &round.base, round.kept == Some(at));
            table.add_row([String::new(), trial.label.clone(), prefill, decode, bytes, verdict]);
        }
    }
    let _ = writeln!(text, "{table}");
    let _ = writeln!(text, "medians (least–most); ~: the ranges overlap, so nothing is shown");
    if let Some(compared) = last(found) {
        let _ = writeln!(
            text,
            "all that was kept, against the beginning, measured once more: prefill {}, decode {}",
            ratio(&compared[0]),
            ratio(&compared[1])
        );
    }
    let _ = match &found.saved {
        Some(path) => write!(text, "saved: {} (used from now on; --no-tuning goes without)", path.display()),
        None if args.tune.dry_run => write!(text, "planned only: nothing was loaded, nothing is saved"),
        None => write!(text, "nothing is saved: {}", why(found)),
    };
    text
}

fn last(found: &Found) -> Option<[Comparison; 2]> {
    let [start, end] = found.last.as_ref()?;
    end.against(start)
}

fn why(found: &Found) -> &'static str {
    match (found.last.is_some(), last(found)) {
        (false, _) => "no candidate was shown to be better than what is in force",
        (true, Some(compared)) if better(&compared) => "there is no folder for it",
        (true, _) => "measured once more, it was not shown to be better",
    }
}

fn of_trial(trial: &Trial, base: Option<&Trial>) -> Value {
    let mut document = json!({
        "value": trial.label,
        "tuning": trial.tuned.tuning,
        "planned_bytes": trial.planned_bytes,
    });
    let state = match &trial.outcome {
        Outcome::Planned if trial.rates[0].is_empty() => "planned",
        Outcome::Planned => "measured",
        Outcome::Same => "same_kernels",
        Outcome::Skipped { need, have, why } => {
            document["refusal"] = json!({"need": need, "have": have, "reason": why});
            "skipped"
        }
        Outcome::Slow => "slow",
        Outcome::Failed(why) => {
            document["error"] = json!(why);
            "failed"
        }
    };
    document["state"] = json!(state);
    if !trial.rates[0].is_empty() {
        document["prefill_tokens_per_second"] = spread(&trial.rates[0]);
        document["decode_tokens_per_second"] = spread(&trial.rates[1]);
    }
    if let Some(compared) = base.and_then(|base| trial.against(base)) {
        let [prefill, decode] = &compared;
        document["against"] = json!({
            "prefill_tokens_per_second": prefill.document(),
            "decode_tokens_per_second": decode.document(),
            "better": better(&compared),
        });
    }
    document
}

/// For programs.
pub fn document(bench: &Bench<'_>, found: &Found) -> Result<Value, Failure> {
    let args = bench.args;
    let of_round = |round: &Round| {
        let of = |trial: &Trial| of_trial(trial, Some(&round.base));
        json!({
            "field": round.field,
            "in_force": of_trial(&round.base, None),
            "candidates": round.candidates.iter().map(of).collect::<Vec<_>>(),
            "kept": round.kept.and_then(|at| round.candidates.get(at)).map(|trial| &trial.label),
        })
    };
    let last = found
        .last
        .as_ref()
        .map(|[start, end]| json!({"before": of_trial(start, None), "found": of_trial(end, Some(start))}));
    let info = bench.device.info();
    let policy = args.machine.policy()?;
    Ok(json!({
        "schema": 1,
        "model": {"name": bench.opened.model.name, "architecture": bench.opened.model.architecture},
        "adapter": {"name": info.name, "backend": info.backend, "driver": info.driver_info},
        "identity": found.identity,
        "table_row": table::look_up(&bench.device.profile().facts()),
        "geometry": bench.geometry,
        "planned_bytes": found.planned,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "repetitions": args.repetitions,
        "memory_policy": policy,
        "budget": policy.budget(reading(&bench.device.memory())),
        "cache_limit": policy.cache_limit(),
        "dry_run": args.tune.dry_run,
        "tuning": {"source": found.start.source, "values": found.start.tuning},
        "fields": found.rounds.iter().map(of_round).collect::<Vec<_>>(),
        "found": found.end.tuning,
        "last": last,
        "saved": found.saved.as_ref().map(|path| path.display().to_string()),
        "live_bytes": bench.device.totals().live_bytes,
    }))
}
