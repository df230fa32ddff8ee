//! What a shell allows a process is a budget like any other. Drivers and allocators crash where it is used up, so nothing
//! is begun that would do so: from no room for anything to enough of it there are refusals, and then answers.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{code, document, good, scratch, speaking, stderr};
use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// Bytes below a pointer.
fn bytes(document: &Value, pointer: &str) -> i64 {
    document.pointer(pointer).and_then(Value::as_i64).unwrap_or_else(|| panic!("{pointer}: {document}"))
}

/// Kilobytes with which a driver's threads run.
const LEAST_STACK: u64 = 64;

fn under(flag: &str, kilobytes: u64, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    let script = format!("ulimit {flag} {kilobytes} && exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_plimsoll")]).args(args);
    for name in ["PLIMSOLL_MEMORY_LIMIT", "PLIMSOLL_RESERVE", "PLIMSOLL_CACHE_LIMIT"] {
        command.env_remove(name);
    }
    command.env("PLIMSOLL_CACHE", "").stdin(Stdio::null()).output().unwrap()
}

/// The kilobytes with which the plan of `args` and its load just fit.
fn least(flag: &str, args: &[&str]) -> u64 {
    // More cores have more threads, and take more before anything is loaded.
    let enough = [400_000, 1_200_000, 2_400_000, 4_800_000, 9_600_000];
    let (enough, found) = enough
        .into_iter()
        .map(|kilobytes| (kilobytes, under(flag, kilobytes, args)))
        .find(|(_, output)| code(output) == 0)
        .expect("there is a limit that is enough");
    let found = document(&found);
    let source = format!("ulimit {flag} of {} bytes, less ", plimsoll_estimator::grouped(enough * 1024));
    assert!(found["budget"]["source"].as_str().unwrap().starts_with(&source), "{}", found["budget"]);
    let spare = u64::try_from(bytes(&found, "/budget/bytes") - bytes(&found, "/bytes/load_peak")).unwrap();
    enough - spare / 1024
}

/// Memory that cannot be had is an error by its name, before a collection that gets none ends the process.
#[test]
fn no_memory_is_an_answer() {
    let gemma = support::data("../../.cache/models/gemma-3-270m-q4_k_m.gguf");
    let gemma = gemma.exists().then(|| gemma.display().to_string());
    let demo = ["estimate", "--context", "64"].map(str::to_owned).to_vec();
    let asked = gemma
        .iter()
        .flat_map(|model| [vec!["inspect".to_owned(), model.clone()], vec!["run".into(), model.clone()]]);
    for args in asked.chain([demo]) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // With 1 the system ends the process before it begins.
        for megabytes in [2, 4, 12, 32, 80, 100, 110, 120, 130, 140] {
            let output = under("-d", megabytes * 1024, &args);
            let (code, said) = (code(&output), stderr(&output));
            assert!([0, 6].contains(&code), "{args:?} with {megabytes} MiB: {code} {said}");
            assert_eq!(code == 6, said.contains("ulimit -d"), "{args:?} {megabytes}: {said}");
        }
    }
}

/// The command line's own work has its stack; what a driver's threads get is the shell's word.
#[test]
fn a_stack_of_any_size_is_an_answer() {
    let model = speaking("ulimit-stack");
    let args = ["run", &model, "-p", "Hello", "-n", "2", "--context", "64"];
    // In kilobytes: too small, enough, more than any address space. With 16 the system ends some processes before they begin.
    for (kilobytes, expected) in [(32, 6), (63, 6), (LEAST_STACK, 0), (512, 0), (1 << 40, 6)] {
        for (args, expected) in [(&args[..], expected), (&["devices"], expected), (&["inspect", &model], 0)] {
            let output = under("-s", kilobytes, args);
            assert_eq!(code(&output), expected, "-s {kilobytes} {args:?}: {}", stderr(&output));
            assert_eq!(stderr(&output).contains("ulimit -s"), expected == 6, "{}", stderr(&output));
        }
    }
}

fn every_limit_is_an_answer(flag: &str) {
    let model = speaking(&format!("ulimit{flag}"));
    let args = ["run", &model, "-p", "Hello", "-n", "4", "--ignore-eos", "--context", "64", "--json"];
    let (least, name) = (least(flag, &args), format!("ulimit {flag}"));
    // With 2 MB to spare it runs, and with too little it is refused.
    let runs = under(flag, least + 2000, &args);
    assert_eq!(code(&runs), 0, "{}", stderr(&runs));
    assert_eq!(document(&runs)["overridden"], false);
    let refused = under(flag, least - 2000, &args);
    assert_eq!(code(&refused), 3, "{}", stderr(&refused));
    // What it allows, what was left out of it, and that a limit of this process does not change by waiting.
    let limit = format!("({name} of {} bytes, less ", plimsoll_estimator::grouped((least - 2000) * 1024));
    for part in [&limit, " in use and ", " for what a load takes beside its buffers", "; permanent: "] {
        assert!(stderr(&refused).contains(part), "{part}: {}", stderr(&refused));
    }
    for step in 1..12 {
        let output = under(flag, least * step / 12, &args);
        assert!([3, 6].contains(&code(&output)), "{step}: {}", stderr(&output));
        assert!(stderr(&output).contains(&name), "{step}: {}", stderr(&output));
    }
}

/// What a model's figures are a part of is measured beside no plan, and left out with the reason where it has no room.
fn a_bench_has_its_figures_without_room_for_ceilings(flag: &str) {
    let model = speaking(&format!("ulimit-bench{flag}"));
    let bench = ["bench", &model, "-p", "8", "-n", "1", "-r", "1", "--context", "64", "--json"];
    let (least, name) = (least(flag, &bench), format!("ulimit {flag}"));
    let at = |kilobytes: u64, args: &[&str]| {
        let output = under(flag, kilobytes, args);
        assert_eq!(code(&output), 0, "{kilobytes}: {}", stderr(&output));
        output
    };
    let without = document(&at(least + 2000, &bench));
    assert!(without["decode_tokens_per_second"]["median"].as_f64().unwrap() > 0.0);
    for key in ["ceilings", "prefill_fraction_of_flops", "decode_fraction_of_read"] {
        assert!(without[key].is_null(), "{key}: {}", without[key]);
    }
    let reason = &without["ceilings_not_measured"];
    assert!(reason["have"].as_u64().unwrap() < reason["need"].as_u64().unwrap(), "{reason}");
    assert!(reason["why"].as_str().unwrap().contains(&name), "{reason}");
    let profile = document(&at(least + 2000, &[&bench[..], &["--profile"]].concat()));
    assert!(profile["profile"]["ceilings"].is_null(), "{profile}");
    assert!(profile["profile"]["ceilings_not_measured"]["why"].as_str().unwrap().contains(&name));
    let said = at(least + 2000, &bench[..bench.len() - 1]);
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(text.contains("ceilings of this adapter were not measured: "), "{text}");
    // Whether there is room or not, the figures are there; and with enough of it, all of them.
    let measured = [80_000, 160_000, 240_000, 480_000].map(|more| {
        let document = document(&at(least + more, &bench));
        let measured = document["ceilings"]["read_bytes_per_second"].as_f64().is_some();
        assert_eq!(measured, document["ceilings_not_measured"].is_null(), "{document}");
        measured
    });
    assert!(measured[3], "{measured:?}");
    for step in 9..12 {
        let output = under(flag, least * step / 12, &bench);
        assert!([3, 6].contains(&code(&output)), "{step}: {}", stderr(&output));
        assert!(stderr(&output).contains(&name), "{step}: {}", stderr(&output));
    }
}

#[test]
fn a_bench_has_its_figures_under_a_limit_on_addresses() {
    a_bench_has_its_figures_without_room_for_ceilings("-v");
}

#[test]
fn a_bench_has_its_figures_under_a_limit_on_data() {
    a_bench_has_its_figures_without_room_for_ceilings("-d");
}

/// What the adapter does at best is measured in buffers, and they are weighed like a load's.
#[test]
fn ceilings_are_refused_where_their_buffers_have_no_room() {
    for (flag, kilobytes) in [("-v", 900_000), ("-d", 200_000), ("-d", 8000)] {
        let output = under(flag, kilobytes, &["bench", "--ceilings"]);
        assert!([3, 6].contains(&code(&output)), "{flag} {kilobytes}: {}", stderr(&output));
        assert!(stderr(&output).contains(&format!("ulimit {flag}")), "{}", stderr(&output));
    }
}

/// A driver that gets nothing says nothing, which is no word about drivers.
#[test]
fn no_adapter_is_found_missing_where_a_limit_hides_it() {
    for (flag, kilobytes) in [("-d", 8000), ("-v", 400_000)] {
        let output = under(flag, kilobytes, &["devices"]);
        assert_eq!(code(&output), 6, "{flag}: {}", stderr(&output));
        assert!(stderr(&output).contains(&format!("ulimit {flag}")), "{}", stderr(&output));
    }
    assert_eq!(code(&under("-d", 4_000_000, &["devices"])), 0);
}

/// What the first load took beside its buffers stays with the process and is not looked for again by the next one: a
/// later point of a sweep is not refused, for good at that, where the first one ran.
fn a_sweep_runs_where_its_largest_point_does(flag: &str) {
    let model = speaking(&format!("ulimit-sweep{flag}"));
    let bench = ["bench", &model, "-p", "8", "-n", "2", "-r", "3", "--json"];
    let least = least(flag, &[&bench[..], &["--context", "128"]].concat());
    // A driver that was opened twice has some MB more than one that was opened once; a compiler takes tens.
    let output = under(flag, least + 8000, &[&bench[..], &["--sweep", "context=64,128"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let found = document(&output);
    assert_eq!(found["arms"].as_array().map(Vec::len), Some(2), "{found}");
}

#[test]
fn a_sweep_runs_under_a_limit_on_addresses() {
    a_sweep_runs_where_its_largest_point_does("-v");
}

#[test]
fn a_sweep_runs_under_a_limit_on_data() {
    a_sweep_runs_where_its_largest_point_does("-d");
}

/// What was left out of a reading for a load is one figure, and what others hold another.
#[test]
fn a_budget_says_what_was_left_out_of_its_reading() {
    let model = speaking("ulimit-beside");
    let args = ["run", &model, "-p", "Hello", "-n", "2", "--context", "64", "--json"];
    let found = document(&under("-d", 4_000_000, &args));
    let budget = &found["budget"];
    assert_eq!(budget["derived"]["beside"], 335_544_320, "{budget}");
    assert_eq!(budget["others"], 0, "{budget}");
    assert!(budget.get("beside").is_none(), "{budget}");
    // An estimate has no reading.
    let found = good(&["estimate", &model, "--memory", "1GB", "--json"]);
    let budget = &found["budget"];
    assert_eq!(budget["derived"], Value::Null, "{budget}");
    assert!(budget.get("beside").is_none(), "{budget}");
}

/// What is free of a limit is what a load finds, after the driver has taken its part.
#[test]
fn devices_show_what_a_load_finds() {
    let model = speaking("ulimit-devices");
    let args = ["run", &model, "-p", "Hello", "-n", "2", "--context", "64", "--json"];
    for flag in ["-v", "-d"] {
        let listed = document(&under(flag, 4_800_000, &["devices", "--json"]));
        let found = document(&under(flag, 4_800_000, &args));
        let memory = &listed["adapters"][0]["adapter"]["memory"];
        let derived = &found["budget"]["derived"];
        assert_eq!(memory["beside"], derived["beside"], "{memory}");
        let (shown, had) = (memory["available"].as_u64().unwrap(), derived["bytes"].as_u64().unwrap());
        // The model's own few bytes of the host are between them.
        assert!(shown.abs_diff(had) < 64 << 20, "{flag}: {memory} {derived}");
        let text = under(flag, 4_800_000, &["devices"]);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(text.contains(&format!("ulimit {flag} of 4,915,200,000 bytes")), "{text}");
    }
}

/// The template's thread has a large stack: whether it is counted must not be chance.
#[test]
fn a_conversation_has_one_verdict() {
    let model = speaking("ulimit-chat");
    let ask = |kilobytes| code(&under("-d", kilobytes, &["chat", &model, "--context", "64", "-n", "2"]));
    for kilobytes in [350_000, 500_000, 650_000, 2_400_000] {
        let first = ask(kilobytes);
        assert!([0, 3, 6].contains(&first), "{kilobytes}: {first}");
        for _ in 0..4 {
            assert_eq!(ask(kilobytes), first, "{kilobytes}");
        }
    }
    assert_eq!(ask(200_000), 6);
}

/// Where there is nothing left for buffers, the limit is not said to be below what it is above.
#[test]
fn a_refusal_under_a_limit_says_what_is_so() {
    let output = under("-d", 250_000, &["run", "-n", "1", "--prompt", "hi"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    for part in
        ["ulimit -d of 256,000,000 bytes", "335,544,320", "the budget is below the weights", "; permanent"]
    {
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
    // The template's thread has a stack that is more than all of it.
    let output = under("-d", 250_000, &["run", "-n", "1", "--prompt", "hi", "--chat"]);
    assert_eq!(code(&output), 6, "{}", stderr(&output));
    assert!(stderr(&output).contains("ulimit -d is 256,000,000 bytes"), "{}", stderr(&output));
}

/// Where nothing can be opened, nothing is read either: the allocator aborts where it gets no more.
#[test]
fn nothing_is_read_where_nothing_can_be_opened() {
    let demo: &[&[&str]] =
        &[&["run", "-p", "a"], &["chat"], &["bench"], &["perplexity", "--file", "/dev/null"]];
    for kilobytes in [5_000, 12_000, 20_000] {
        for args in demo {
            let output = under("-d", kilobytes, args);
            assert_eq!(code(&output), 6, "{args:?} {kilobytes}: {}", stderr(&output));
            assert!(stderr(&output).contains("nothing was opened"), "{}", stderr(&output));
        }
    }
}

/// That there is no memory for a file is not the file's fault.
#[test]
fn a_file_that_cannot_be_mapped_is_not_a_bad_one() {
    let file = scratch("ulimit-map").join("model.safetensors");
    std::fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    std::fs::write(file.with_file_name("config.json"), "{}").unwrap();
    let output = under("-v", 500_000, &["inspect", file.to_str().unwrap()]);
    assert_eq!(code(&output), 6, "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot map"), "{}", stderr(&output));
}

#[test]
fn every_limit_on_addresses_is_an_answer() {
    every_limit_is_an_answer("-v");
}

#[test]
fn every_limit_on_data_is_an_answer() {
    every_limit_is_an_answer("-d");
}
