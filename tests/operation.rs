//! Reports against other engines in operation, each tried here. Which test is which report's:
//!
//! | report | tests |
//! |---|---|
//! | 01, one buffer above the device's limit | `report_01_…` here; the price: `estimator/tests/bug_reports.rs` |
//! | 03, a fit that failed and a load that went on | `report_03_…` here and in `runtime/tests/memory_limits.rs` |
//! | 04, an image that nobody priced | the price alone, `estimator/tests/bug_reports.rs`: towers are not run |
//! | 06, stale readings, retries of what is refused | `report_06_…` twice in `runtime/tests/memory_limits.rs` |
//! | 07, an unknown architecture becomes a guess | `report_07_…` here; the price: `estimator/tests/bug_reports.rs` |
//! | 09, caches that nobody priced | `report_09_…` here; every order of events: `runtime/src/engine/cache_tests.rs` |
//! | 10, states multiplied by drafts | the price alone, `estimator/tests/bug_reports.rs`: nothing is drafted |
//! | 12, more slots than states | `report_12_…` here; the price: `estimator/tests/bug_reports.rs` |
//! | 14, memory that devices do not give back | `report_14_…` here and in `runtime/tests/memory_limits.rs` |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod commands;
mod support;

use commands::{code, document, golden, good, plimsoll, run, scratch, speaking, stderr};
use plimsoll::runtime::process::ProcessMemory;
use plimsoll::runtime::{Request, What};
use plimsoll::{Device, DeviceOptions, Engine, Geometry, Runtime};
use plimsoll_kernels::KvFormat;
use serde_json::json;
use support::{admitted, data, geometry};

/// A prompt in one chunk needs one buffer that is larger than the device gives: it is refused for that limit although
/// all memory would do, nothing is launched, and what is offered in its place runs.
#[test]
fn report_01_one_buffer_above_the_limit_is_refused_and_a_smaller_chunk_runs() {
    let prompt =
        ["-p", "40", "-n", "2", "-r", "1", "--context", "4096", "--max-allocation", "2MiB", "--json"];
    let at = |chunk: &str| run(&[&["bench", &golden(), "--chunk", chunk], &prompt[..]].concat());
    let refused = at("4096");
    assert_eq!(code(&refused), 3, "{}", stderr(&refused));
    let report = document(&refused);
    let refusal = &report["refusal"];
    assert!(["allocation", "binding"].contains(&refusal["broke"].as_str().unwrap()), "{refusal}");
    assert_eq!(refusal["have"], 2 << 20);
    assert!(refusal["need"].as_u64() > refusal["have"].as_u64(), "{refusal}");
    let nearest = refusal["nearest"].as_array().unwrap();
    let smaller = nearest.iter().find(|near| near["context"] == 4096).expect("the context can be had");
    let chunk = smaller["prefill_chunk"].to_string();
    let runs = at(&chunk);
    assert_eq!(code(&runs), 0, "{chunk}: {}", stderr(&runs));
    assert_eq!(document(&runs)["bytes"]["total"], smaller["total"]);
}

/// A refusal ends the launch: no device memory, no token, an exit code and a typed reason.
#[test]
fn report_03_a_refusal_ends_every_verb_that_would_load() {
    let model = speaking("report-03");
    let same = ["--context", "96", "--chunk", "16", "--json"];
    let verbs =
        [vec!["run", "-p", "Hi", "-n", "4"], vec!["bench", "-p", "8", "-n", "1", "-r", "1"], vec!["chat"]];
    let bench = good(&[&[verbs[1][0], &model], &verbs[1][1..], &same].concat());
    let tenth_less = (bench["bytes"]["total"].as_u64().unwrap() / 10 * 9).to_string();
    for args in verbs {
        let limited = [&[args[0], &model, "--memory", &tenth_less], &args[1..], &same].concat();
        let output = run(&limited);
        assert_eq!(code(&output), 3, "{args:?}: {}", stderr(&output));
        let report = document(&output);
        assert_eq!(report["refusal"]["broke"], "total", "{report}");
        assert!(report.get("allocated").is_none() && report.get("text").is_none(), "{report}");
    }
}

/// What cannot be priced is another thing than what does not fit, for every verb, and no number is made up.
#[test]
fn report_07_what_cannot_be_priced_is_no_refusal_in_any_verb() {
    let folder = scratch("report-07");
    std::fs::copy(data("golden/llama/model.safetensors"), folder.join("model.safetensors")).unwrap();
    let config = json!({"model_type": "rwkv7", "architectures": ["Rwkv7ForCausalLM"], "hidden_size": 64});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let path = folder.display().to_string();
    for verb in [
        vec!["run", "-p", "x"],
        vec!["bench", "-p", "8", "-n", "1"],
        vec!["probe", "--max", "64"],
        vec!["estimate"],
    ] {
        let output = plimsoll().args([verb[0], &path]).args(&verb[1..]).output().unwrap();
        assert_eq!(code(&output), 4, "{verb:?}: {}", stderr(&output));
        let said = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("rwkv7") && !said.contains("NaN") && !said.contains("undefined"), "{said}");
    }
}

/// Seven distinct prompts, each longer than the last, leave no more than the plan has, at every step; the limit of what is
/// kept is never exceeded on the way to it.
#[test]
fn report_09_distinct_prompts_stay_within_the_plan_and_the_limit_at_every_step() {
    for (family, snapshots) in [("golden/nemotron_h", 4), ("golden/llama", 0)] {
        let opened = plimsoll::open(data(family)).unwrap();
        let device = Device::open(&DeviceOptions::default()).unwrap();
        let mut geometry = Geometry { prefill_chunk: 64, ..geometry(1024, 2, 64, KvFormat::F16, 2) };
        geometry.priced.snapshots = snapshots;
        let admitted = admitted(&opened.model, &geometry, device.profile());
        let planned = admitted.plan().total();
        let mut engine = opened.load_engine(device.clone(), admitted, &mut |_| ()).unwrap();
        let whole = engine.usage().reserved;
        for limit in [None, Some(whole / 5), Some(0)] {
            engine.set_cache_limit(limit);
            for (seed, length) in [16, 32, 64, 128, 256, 512, 1000].into_iter().enumerate() {
                let prompt = (0..length).map(|at| 1 + (at * 37 + seed as u32 * 101) % 250).collect();
                engine.submit(Request { prompt, max_new: 3, ..Request::default() }).unwrap();
                while !engine.is_idle() {
                    for event in engine.step() {
                        assert!(!matches!(event.what, What::Failed(_)), "{event:?}");
                    }
                    let (kept, usage) = (engine.cache_stats(), engine.usage());
                    assert!(kept.bytes <= limit.unwrap_or(whole), "{kept:?} of {limit:?}");
                    assert!(usage.active + usage.retained <= usage.reserved, "{usage:?}");
                    assert_eq!((usage.reserved, device.totals().live_bytes), (whole, planned));
                    engine.pool().check().unwrap();
                }
            }
            // A part may be less than the first snapshot takes: then nothing is kept.
            assert!(engine.cache_stats().bytes > 0 || limit.is_some(), "{family}, {limit:?}");
            assert!(engine.cache_stats().bytes == 0 || limit != Some(0), "{family}, {limit:?}");
        }
    }
}

/// A thousand slots of a hybrid are answered before anything is launched, with as many as there is room for; those run.
#[test]
fn report_12_too_many_slots_are_answered_without_a_launch() {
    let model = data("golden/nemotron_h").display().to_string();
    let flags = ["-p", "8", "-n", "1", "-r", "1", "--context", "64", "--memory", "8MiB", "--json"];
    let with = |slots: &str| run(&[&["bench", &model, "--slots", slots], &flags[..]].concat());
    let refused = with("1024");
    assert_eq!(code(&refused), 3, "{}", stderr(&refused));
    let refusal = document(&refused)["refusal"].clone();
    let nearest = refusal["nearest"].as_array().unwrap();
    let fewer = nearest.iter().find(|near| near["context"] == 64 && near["slots"].as_u64() < Some(1024));
    let slots = fewer.unwrap_or_else(|| panic!("{refusal}"))["slots"].as_u64().unwrap();
    assert_eq!(code(&with(&slots.to_string())), 0, "{slots}");
}

/// Devices with 67 MB each, opened and closed: after each everything is where it was, by wgpu's counters and, within
/// what a driver's compiler leaves, by the system.
#[test]
fn report_14_devices_that_are_opened_again_and_again_give_back_what_they_had() {
    let (checkpoint, model) = support::open(&data("golden/llama"));
    let mut resident = Vec::new();
    for _ in 0..12 {
        let device = Device::open(&DeviceOptions::default()).unwrap();
        let admitted = admitted(&model, &geometry(65_536, 2, 16, KvFormat::F32, 2), device.profile());
        assert!(admitted.plan().total() >= 67_000_000, "{}", admitted.plan().total());
        let base = device.counters();
        let runtime = Runtime::load(device, &model, &checkpoint, admitted, &mut |_| ()).unwrap();
        let mut engine = Engine::new(runtime).unwrap();
        let filled = engine.stepper_mut().fill(1).unwrap();
        assert!(filled > 60_000_000, "{filled}");
        let (device, freed) = engine.into_stepper().unload_reported();
        assert!(freed.released >= 67_000_000, "{freed}");
        assert_eq!((device.totals().live, device.counters()), (0, base));
        drop(device);
        resident.push(ProcessMemory::take().resident.bytes.unwrap_or(0));
    }
    println!("resident after each device: {resident:?}");
    let (early, last) = (resident[3], resident[11]);
    assert!(last <= early + 67_000_000, "eight devices more left as much as one holds: {resident:?}");
}
