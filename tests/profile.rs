//! Profiles: every dispatch of a step is in them once, with the plan's bytes and operations, whichever way they are
//! measured; and measuring leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{code, good, plimsoll, run, scratch, stderr};
use plimsoll_estimator::plan::When;
use plimsoll_kernels::KvFormat;
use plimsoll_runtime::profiler::{Method, StepProfile};
use plimsoll_runtime::{DeviceOptions, RuntimeError, Sampling, SequenceInput, StepInput, Stepper, Wanted};
use serde_json::{Value, json};
use std::collections::HashSet;
use support::{Loaded, data, geometry, open};

fn step(loaded: &mut Loaded, position: u32, ids: &[u32]) {
    let sequences = [SequenceInput { slot: 0, position, ids, wanted: Wanted::Last }];
    loaded
        .runtime
        .step(&StepInput { sequences: &sequences, sampling: Sampling::Greedy, cancel: None })
        .unwrap();
}

/// Holds a step's profile against the plan: each dispatch that runs in a greedy step, once and in order.
fn check(loaded: &Loaded, profile: &StepProfile, kv: u32) {
    let plan = loaded.runtime.plan();
    let program = &plan.programs[profile.program];
    let runs: Vec<u32> = (0..)
        .zip(&program.dispatches)
        .filter(|(_, d)| d.when != When::TopK && d.workgroups.of(&profile.shape) > 0)
        .map(|(index, _)| index)
        .collect();
    assert!(runs.len() > 10);
    assert_eq!(profile.samples.iter().map(|s| s.dispatch).collect::<Vec<_>>(), runs);
    assert!(profile.samples.iter().all(|s| s.range == 0), "one range reaches");
    assert_eq!(profile.kv, kv);
    let sums = profile.samples.iter().fold((0, 0), |sum, s| (sum.0 + s.bytes, sum.1 + s.flops));
    assert_eq!(sums, plan.work(&profile.shape, kv));
    let seconds: f64 = profile.samples.iter().map(|s| s.seconds).sum();
    assert!(0.0 < seconds && seconds <= profile.wall.as_secs_f64(), "{seconds} of {:?}", profile.wall);
    let mut at = 0.0;
    for sample in &profile.samples {
        assert!(sample.seconds >= 0.0 && (sample.start - at).abs() < 1e-9);
        at += sample.seconds;
    }
}

#[test]
fn every_dispatch_is_there_once_whichever_way() {
    let (checkpoint, model) = open(&data("golden/llama"));
    let options = DeviceOptions { timestamps: true, ..DeviceOptions::default() };
    let mut loaded = Loaded::new(&checkpoint, &model, &options, &geometry(64, 1, 16, KvFormat::F16, 1));
    let mut methods = vec![Method::Alone];
    if loaded.runtime.device().takes_timestamps() {
        methods.push(Method::Timestamps);
    }
    step(&mut loaded, 0, &[3; 12]);
    let before = loaded.runtime.device().totals();
    let names: Vec<_> = loaded.runtime.device().buffers();
    for method in methods {
        loaded.runtime.start_profile(method).unwrap();
        let made = loaded.runtime.device().totals();
        for (position, ids) in [(0, vec![3; 12]), (12, vec![5]), (13, vec![7])] {
            step(&mut loaded, position, &ids);
        }
        assert_eq!(
            loaded.runtime.device().totals().created,
            made.created,
            "{method:?}: nothing is made in a step"
        );
        let (steps, empty) = loaded.runtime.take_profile();
        assert_eq!(empty.is_some(), method == Method::Alone);
        assert_eq!(steps.len(), 3);
        // Twelve rows that see 1 to 12 tokens, 6 on average; then one each.
        for (profile, kv) in steps.iter().zip([6, 13, 14]) {
            check(&loaded, profile, kv);
        }
        assert!(loaded.runtime.take_profile().0.is_empty(), "they are handed out once");
        loaded.runtime.stop_profile();
        let after = loaded.runtime.device().totals();
        assert_eq!((after.live, after.live_bytes), (before.live, before.live_bytes), "{method:?}");
        assert_eq!(loaded.runtime.device().buffers(), names);
    }
    let spent = loaded.runtime.spent();
    step(&mut loaded, 14, &[9]);
    let spent = loaded.runtime.spent().since(&spent);
    assert_eq!(spent.submits, 1, "a decode step is one submit");
    assert!(spent.dispatches > 10 && spent.recording.as_nanos() > 0);
    assert!(loaded.runtime.take_profile().0.is_empty(), "nobody measures");
}

#[test]
fn a_device_that_was_not_opened_for_timestamps_says_so() {
    let (checkpoint, model) = open(&data("golden/llama"));
    let small = geometry(32, 1, 8, KvFormat::F16, 1);
    let mut loaded = Loaded::new(&checkpoint, &model, &DeviceOptions::default(), &small);
    assert!(!loaded.runtime.device().takes_timestamps());
    let before = loaded.runtime.device().totals().live_bytes;
    let refused = loaded.runtime.start_profile(Method::Timestamps).unwrap_err();
    assert!(matches!(refused, RuntimeError::Validation { .. }), "{refused}");
    assert_eq!(loaded.runtime.device().totals().live_bytes, before);
    step(&mut loaded, 0, &[3, 4]);
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

#[test]
fn the_command_accounts_for_every_call() {
    let page = scratch("profile").join("profile.html");
    let args =
        ["bench", "--profile", "-p", "20", "-n", "3", "-r", "1", "--json", "--html", page.to_str().unwrap()];
    let document = good(&args);
    assert_eq!(document["schema"], 1);
    let profile = &document["profile"];
    assert!(["timestamps", "alone"].contains(&profile["method"].as_str().unwrap()));
    assert_eq!(profile["empty_submit_seconds"].is_null(), profile["method"] == "timestamps");
    for (name, steps, tokens) in [("prefill", 1, 20), ("decode", 3, 3)] {
        let phase = &profile["phases"][name];
        assert_eq!((number(phase, "steps"), number(phase, "tokens")), (steps, tokens), "{name}");
        let rows = phase["kernels"].as_array().unwrap();
        let keys: HashSet<_> =
            rows.iter().map(|row| (row["kernel"].to_string(), row["op"].to_string())).collect();
        assert!(rows.len() > 10 && keys.len() == rows.len());
        for sum in ["calls", "bytes", "flops"] {
            assert_eq!(rows.iter().map(|row| number(row, sum)).sum::<u64>(), number(phase, sum), "{sum}");
        }
        for row in rows {
            assert_eq!(number(row, "calls") % steps, 0, "every step does the same: {row}");
            let (seconds, fraction) = (row["seconds"].as_f64().unwrap(), &row["fraction_of_ceiling"]);
            assert!(seconds == 0.0 || fraction.as_f64().is_some_and(|f| f >= 0.0), "{row}");
        }
        assert_eq!((&phase["bytes"], &phase["flops"]), (&phase["planned_bytes"], &phase["planned_flops"]));
        for positive in
            ["dispatch_seconds", "wall_seconds", "profiled_wall_seconds", "recording_seconds_per_dispatch"]
        {
            assert!(phase[positive].as_f64().unwrap() > 0.0, "{positive}");
        }
    }
    check_page(&std::fs::read_to_string(page).unwrap(), profile);
}

/// The values of an attribute, in order.
fn values<'p>(page: &'p str, attribute: &str) -> Vec<&'p str> {
    let start = format!(" {attribute}=\"");
    page.split(&start).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn check_page(page: &str, profile: &Value) {
    assert!(page.starts_with("<!doctype html>\n<html lang=\"en\">") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none';"));
    assert!(page.contains("@media(prefers-color-scheme:dark)"));
    let quiet = page.to_lowercase();
    for outside in
        ["http:", "https:", " src=", "@import", "url(", "<script", "<iframe", " onload=", " onerror="]
    {
        assert!(!quiet.contains(outside), "{outside}");
    }
    assert_eq!(values(page, "href"), ["data:,"]);
    assert!(!page.chars().any(|c| c.is_control() && c != '\n'));
    let ids = values(page, "id");
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "{ids:?}");
    for named in values(page, "aria-labelledby").iter().flat_map(|ids| ids.split(' ')) {
        assert!(ids.contains(&named), "{named}");
    }
    balanced(page);
    let pictures: Vec<&str> =
        page.split("<svg ").skip(1).map(|s| s.split("</svg>").next().unwrap()).collect();
    let tables: Vec<&str> =
        page.split("<table>").skip(1).map(|t| t.split("</table>").next().unwrap()).collect();
    assert_eq!((pictures.len(), tables.len()), (2, 2));
    for ((picture, table), name) in pictures.into_iter().zip(tables).zip(["prefill", "decode"]) {
        let phase = &profile["phases"][name];
        assert!(picture.contains("role=\"img\"") && picture.contains("<desc id="));
        // The step, its layers, its dispatches: at least one block for every call of a step.
        let calls = number(phase, "calls") / number(phase, "steps");
        assert!(picture.matches("<rect").count() as u64 > calls, "{name}");
        assert!(table.trim_start().starts_with("<caption>"));
        let rows = phase["kernels"].as_array().unwrap();
        assert_eq!(table.matches("<th scope=\"row\">").count(), rows.len() + 1, "each kernel, and the total");
        assert!(table.matches("<th scope=\"col\">").count() > 5 && !table.contains("<th>"));
        for row in rows {
            assert!(
                table.contains(row["kernel"].as_str().unwrap())
                    && table.contains(row["op"].as_str().unwrap())
            );
        }
    }
}

/// Every element that is opened is closed, and the inner before the outer.
fn balanced(page: &str) {
    let mut open = Vec::new();
    let body = page.split_once("<html").unwrap().1;
    for tag in format!("<html{body}").split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name.to_owned()));
        } else if !tag.ends_with('/') && !["meta", "link"].contains(&name) {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn dispatches_alone_and_markdown() {
    let args = ["bench", "--profile", "--profile-by", "alone", "--markdown", "-p", "9", "-n", "2", "-r", "1"];
    let output = plimsoll().args(args).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("Measured alone: each dispatch is submitted and waited for by itself, less the "),
        "{text}"
    );
    for phase in ["\n## prefill: 9 tokens in 1 step", "\n## decode: 2 tokens in 2 steps"] {
        assert!(text.contains(phase), "{text}");
    }
    let tables = text.lines().filter(|line| line.starts_with("| "));
    let columns: HashSet<usize> = tables.map(|line| line.matches(" |").count()).collect();
    assert_eq!(columns.len(), 1, "{text}");
}

#[test]
fn ceilings_are_the_best_of_what_was_tried() {
    let document = good(&["bench", "--ceilings", "--memory", "1GB", "--cache-limit", "64kB", "--json"]);
    assert_eq!(document["budget"]["requested"], 1_000_000_000, "{}", document["budget"]);
    assert_eq!(document["cache_limit"]["bytes"], 64_000);
    assert_eq!(document["schema"], 1);
    assert!(document["adapter"]["name"].is_string());
    for (name, high) in [
        ("read", true),
        ("copy", true),
        ("flops", true),
        ("dispatch", false),
        ("submit", false),
        ("readback", false),
    ] {
        let ceiling = &document["ceilings"][name];
        let tried: Vec<f64> =
            ceiling["tried"].as_array().unwrap().iter().map(|t| t["value"].as_f64().unwrap()).collect();
        assert!(tried.len() >= 2, "{name}: several shapes");
        assert!(tried.iter().all(|v| v.is_finite() && *v >= 0.0), "{name}: {tried:?}");
        let best = if high { f64::max } else { f64::min };
        assert_eq!(ceiling["best"]["value"], json!(tried.iter().copied().reduce(best).unwrap()), "{name}");
        assert!(ceiling["best"]["shape"].as_str().is_some_and(|shape| !shape.is_empty()));
    }
}

#[test]
fn flags_that_contradict_are_usage() {
    for args in [
        &["--profile", "--sweep", "chunk=8,16"][..],
        &["--profile", "--lengths", "5,6"],
        &["--profile", "--requests", "4"],
        &["--profile", "--ceilings"],
        &["--html", "page.html"],
        &["--markdown"],
        &["--profile-by", "alone"],
        &["--profile", "--markdown", "--json"],
        &["--profile", "--profile-by", "guess"],
        &["--ceilings", "-p", "5"],
        &["--ceilings", "model.gguf"],
        &["--profile", "--html", "/nowhere/at/all.html"],
    ] {
        let output = run(&[&["bench"], args].concat());
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
    }
}
