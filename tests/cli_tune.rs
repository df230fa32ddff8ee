//! `plimsoll bench --tune`: plans, skips, measures, keeps; and what loads make of what was kept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{code, document, golden, plimsoll, run, scratch, stderr};
use plimsoll::tuning::{Identity, Measured, Store};
use plimsoll::{Device, DeviceOptions};
use plimsoll_kernels::Tuning;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Output;

/// With a cache folder.
fn cached(cache: &Path, args: &[&str]) -> Output {
    plimsoll().args(args).env("PLIMSOLL_CACHE", cache).output().unwrap()
}

fn good(cache: &Path, args: &[&str]) -> Value {
    let output = cached(cache, args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    document(&output)
}

fn files(cache: &Path) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(cache.join("tuning")) else { return Vec::new() };
    folder.map(|file| file.unwrap().path()).collect()
}

/// Keeps variants for the default adapter, as `--tune` does.
fn keep(cache: &Path, change: impl Fn(&mut Tuning)) -> PathBuf {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let mut tuning = device.profile().tuning.clone();
    change(&mut tuning);
    let measured = Measured {
        model: "a test".to_owned(),
        prompt_tokens: 1,
        new_tokens: 1,
        rounds: 3,
        unix_seconds: 0,
        against: "nothing".to_owned(),
        prefill_ratio: 1.0,
        decode_ratio: 1.0,
    };
    let identity = Identity::of(device.info(), device.profile());
    Store::new(cache).save(&identity, &tuning, &measured).unwrap()
}

fn candidates<'a>(tuned: &'a Value, field: &str) -> Vec<&'a Value> {
    let fields = tuned["fields"].as_array().unwrap();
    let of = fields.iter().find(|of| of["field"] == field).unwrap_or_else(|| panic!("{field} in {tuned}"));
    of["candidates"].as_array().unwrap().iter().collect()
}

#[test]
fn a_dry_run_plans_and_loads_nothing() {
    let cache = scratch("tune-dry");
    let base = good(&cache, &["bench", "--tune", "--dry-run", "-p", "64", "-n", "4", "--json"]);
    let source = base["tuning"]["source"].as_str().unwrap();
    assert!(source.starts_with("table row "), "{source}");
    let total = base["planned_bytes"].as_u64().unwrap();
    let memory = total.to_string();
    let args = ["bench", "--tune", "--dry-run", "-p", "64", "-n", "4", "--memory", &memory, "--json"];
    let tuned = good(&cache, &args);
    assert_eq!(tuned["tuning"], base["tuning"]);
    assert_eq!((&tuned["planned_bytes"], &tuned["live_bytes"]), (&json!(total), &json!(0)));
    assert_eq!(tuned["fields"].as_array().unwrap().len(), 10);
    let kernels: Vec<&Value> = candidates(&tuned, "ssd")
        .into_iter()
        .filter(|candidate| candidate["value"].as_str().unwrap().starts_with("kernels"))
        .collect();
    assert!(!kernels.is_empty());
    for candidate in kernels {
        assert_eq!(candidate["state"], "skipped", "{candidate}");
        assert_eq!(candidate["refusal"]["have"], total);
        assert!(candidate["refusal"]["need"].as_u64().unwrap() > total, "{candidate}");
        assert_eq!(candidate["planned_bytes"], Value::Null);
    }
    for field in ["mat_vec_rows", "row_workgroup", "delta"] {
        for candidate in candidates(&tuned, field) {
            let state = candidate["state"].as_str().unwrap();
            assert!(["planned", "same_kernels", "skipped"].contains(&state), "{candidate}");
            assert_eq!(candidate["prefill_tokens_per_second"], Value::Null);
            assert!(field != "delta" || state == "same_kernels", "the model has no such layer");
        }
    }
    assert_eq!((&tuned["saved"], &tuned["last"]), (&Value::Null, &Value::Null));
    assert!(files(&cache).is_empty());
    // For people, too.
    let output = cached(&cache, &args[..args.len() - 1]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["kernels 64", "skipped by its plan: it needs", "nothing was loaded", source] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn candidates_take_turns_and_what_does_not_fit_is_skipped() {
    let cache = scratch("tune-turns");
    let base =
        good(&cache, &["bench", "--tune", "--dry-run", "-p", "40", "-n", "2", "--only", "ssd", "--json"]);
    let memory = base["planned_bytes"].to_string();
    let args = ["bench", "--tune", "--only", "ssd,mat-vec-workgroup", "-p", "40", "-n", "2", "-r", "3"];
    let tuned = good(&cache, &[&args[..], &["--memory", &memory, "--json"]].concat());
    assert_eq!(tuned["live_bytes"], 0, "everything was unloaded");
    let mut measured = 0;
    for field in ["ssd", "mat_vec_workgroup"] {
        for candidate in candidates(&tuned, field) {
            let rounds = candidate["prefill_tokens_per_second"]["all"].as_array().map(Vec::len);
            match candidate["state"].as_str().unwrap() {
                "measured" => {
                    measured += 1;
                    assert_eq!(rounds, Some(3), "{candidate}");
                    assert!(candidate["planned_bytes"].as_u64() <= base["planned_bytes"].as_u64());
                    assert!(candidate["against"]["better"].is_boolean());
                }
                "slow" => assert_eq!(rounds, Some(1), "{candidate}"),
                "skipped" => assert!(rounds.is_none() && candidate["refusal"]["need"].is_u64()),
                "same_kernels" => assert_eq!(rounds, None),
                other => panic!("{other}: {candidate}"),
            }
        }
    }
    assert!(measured > 0, "{tuned}");
    let skipped = candidates(&tuned, "ssd").iter().filter(|c| c["state"] == "skipped").count();
    assert!(skipped > 0, "five kernels do not fit beside the base plan");
    // Kept if and only if the last comparison shows it.
    let better = tuned["last"]["found"]["against"]["better"] == true;
    assert_eq!(tuned["saved"].is_string(), better, "{tuned}");
    assert_eq!(files(&cache).len(), usize::from(better));
}

/// Tiles through workgroup memory are what a software driver is worst at, and registers what GPUs are: whoever has the
/// wrong one kept is led away from it. On an adapter where tiles are right there is nothing to find.
#[test]
fn what_is_kept_is_used_until_something_better_is() {
    let cache = scratch("tune-kept");
    let file = keep(&cache, |tuning| tuning.mat_mat_shared = true);
    assert_eq!(files(&cache), std::slice::from_ref(&file));
    let source = format!("file {}", file.display());
    let devices = good(&cache, &["devices", "--json"]);
    let listed = devices["adapters"].as_array().unwrap();
    assert!(listed.iter().any(|device| device["profile"]["tuned_by"] == source.as_str()), "{listed:?}");
    let short = ["bench", &golden(), "--requests", "1", "-p", "8", "-n", "2", "-r", "1", "--json"];
    let bench = good(&cache, &short)["arms"][0].take();
    assert_eq!(
        (&bench["tuning"]["source"], &bench["tuning"]["values"]["mat_mat_shared"]),
        (&json!(source), &json!(true))
    );
    let plain = good(&cache, &[&short[..], &["--no-tuning"]].concat())["arms"][0].take();
    assert!(plain["tuning"]["source"].as_str().unwrap().starts_with("table row "), "{plain}");
    let plain = good(&cache, &[&short[..], &["--no-subgroups"]].concat())["arms"][0].take();
    assert!(plain["tuning"]["source"].as_str().unwrap().starts_with("table row "), "another way to open it");

    let device = Device::open(&DeviceOptions::default()).unwrap();
    if !device.profile().cpu {
        return;
    }
    drop(device);
    // The machine may be busy with other things, which come and go.
    let tune = ["bench", "--tune", "--only", "mat-mat-shared", "-p", "96", "-n", "4", "-r", "3", "--json"];
    let tuned = (0..3).map(|_| good(&cache, &tune)).find(|tuned| tuned["saved"].is_string());
    let tuned = tuned.expect("registers are several times as fast");
    assert_eq!(tuned["tuning"]["source"], source);
    assert_eq!(tuned["saved"], file.display().to_string());
    assert_eq!(
        (&tuned["found"]["mat_mat_shared"], &tuned["fields"][0]["kept"]),
        (&json!(false), &json!("false"))
    );
    assert!(tuned["last"]["found"]["against"]["prefill_tokens_per_second"]["ratio"].as_f64() > Some(1.0));
    assert_eq!(files(&cache), [file], "replaced, and nothing beside it");
    let bench = good(&cache, &short)["arms"][0].take();
    assert_eq!(
        (&bench["tuning"]["source"], &bench["tuning"]["values"]["mat_mat_shared"]),
        (&json!(source), &json!(false))
    );
}

#[test]
fn a_file_that_is_not_to_be_used_is_named_and_everything_goes_on() {
    let cache = scratch("tune-hostile");
    let file = keep(&cache, |tuning| tuning.mat_vec_rows = 64);
    let text = std::fs::read_to_string(&file).unwrap();
    let run_with = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = cached(
            &cache,
            &["bench", &golden(), "--requests", "1", "-p", "8", "-n", "2", "-r", "1", "--json"],
        );
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(document(&output)["arms"][0]["tuning"]["source"].as_str().unwrap().starts_with("table row "));
        stderr(&output)
    };
    let name = file.display().to_string();
    for (spoilt, why) in [
        (String::new(), "malformed"),
        (
            text.replace("\"mat_vec_rows\": 64", "\"mat_vec_rows\": 63"),
            "mat_vec_rows: expected a power of two",
        ),
        (text.replace("\"driver_info\": \"", "\"driver_info\": \"older "), "driver_info"),
    ] {
        assert_ne!(spoilt, text);
        let said = run_with(&spoilt);
        assert!(said.contains(&name) && said.contains(why), "{why}: {said}");
    }
    // Whoever asks for none of it hears nothing of it.
    let quiet = cached(&cache, &["devices", "--json", "--no-tuning"]);
    assert!(!stderr(&quiet).contains(&name), "{}", stderr(&quiet));
}

#[test]
fn what_cannot_be_tuned_is_a_usage_error_that_names_it() {
    let model = golden();
    for (args, named) in [
        (vec!["--tune", "-r", "2"], "--repetitions"),
        (vec!["--tune", "--only", "mat_mat"], "mat_mat_shared"),
        (vec!["--only", "ssd"], "--tune"),
        (vec!["--dry-run"], "--tune"),
        (vec!["--tune", "--sweep", "chunk=8,16"], "--sweep"),
        (vec!["--tune", "--profile"], "--profile"),
    ] {
        let output = run(&[&["bench", model.as_str(), "-p", "8", "-n", "1"], &args[..]].concat());
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(named), "{args:?}: {}", stderr(&output));
    }
    // What is in force must fit, like any load.
    let output = run(&["bench", &model, "--tune", "-p", "8", "-n", "1", "--memory", "1kB", "--json"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
}
