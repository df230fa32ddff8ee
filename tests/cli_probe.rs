//! The machine's ceiling as `plimsoll probe` finds it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::probe::*;
use commands::{code, document, golden, plimsoll, run, scratch, stderr};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_dry_run_and_the_preflight_load_nothing() {
    let dry = good(&["--dry-run", "--max", "160"]);
    let steps = dry["steps"].as_array().unwrap();
    assert_eq!(steps.iter().map(|s| s["context"].as_u64().unwrap()).collect::<Vec<_>>(), [64, 128, 160]);
    assert!(steps.is_sorted_by(|a, b| a["planned"].as_u64() < b["planned"].as_u64()), "{steps:?}");
    assert!(dry.get("runs").is_none());
    // The account of a step is a table.
    let args = ["probe", &golden(), "--chunk", "32", "--step", "64", "--max", "64", "--pause", "0", "-v"];
    let shown = run(&args);
    assert_eq!(code(&shown), 0, "{}", stderr(&shown));
    for wanted in ["term", "weights", "as planned", "process   resident", "driver    reserved"] {
        assert!(stderr(&shown).contains(wanted), "{wanted}: {}", stderr(&shown));
    }
    assert!(!stderr(&shown).contains('{'), "{}", stderr(&shown));

    let preflight = run(&["probe", "--preflight", "--json"]);
    assert_eq!(code(&preflight), 0, "{}", stderr(&preflight));
    let checks = document(&preflight)["preflight"].clone();
    let names: Vec<&str> = checks.as_array().unwrap().iter().map(|c| c["check"].as_str().unwrap()).collect();
    let checks_of_all = ["free memory", "swap", "other processes", "address space", "data size"];
    let operators = ["memory limit", "reserve", "retained"];
    // Between them stands a control group, where there is one.
    assert!(names.starts_with(&checks_of_all) && names.ends_with(&operators), "{names:?}");
    for check in checks.as_array().unwrap() {
        assert!(["ok", "fix", "ask"].contains(&check["state"].as_str().unwrap()), "{check}");
    }
    // A limit is seen, and asked about; a model's weights are held against what is free.
    let program = env!("CARGO_BIN_EXE_plimsoll");
    for (flag, check) in [("-v", "address space"), ("-d", "data size")] {
        let limited = format!("ulimit {flag} 8000000; exec {program} probe {} --preflight", golden());
        let limited = Command::new("sh").args(["-c", &limited]).output().unwrap();
        let text = String::from_utf8_lossy(&limited.stdout).into_owned();
        assert_eq!(code(&limited), 0, "{}", stderr(&limited));
        if cfg!(target_os = "linux") {
            let line = text.lines().find(|line| line.contains(check)).unwrap();
            assert!(line.contains("ask") && line.contains("8,192,000,000"), "{text}");
        }
        assert!(text.contains("model"), "{text}");
    }
}

/// What the environment asks is checked before a probe of hours, and shown.
#[test]
fn the_preflight_reads_the_operators_settings() {
    let with = |name: &str, value: &str| {
        plimsoll().args(["probe", "--preflight", "--json"]).env(name, value).output().unwrap()
    };
    for name in ["PLIMSOLL_MEMORY_LIMIT", "PLIMSOLL_RESERVE", "PLIMSOLL_CACHE_LIMIT"] {
        let wrong = with(name, "lots");
        assert_eq!(code(&wrong), 2, "{}", stderr(&wrong));
        assert!(stderr(&wrong).contains(name), "{}", stderr(&wrong));
    }
    for (name, check, state) in [
        ("PLIMSOLL_MEMORY_LIMIT", "memory limit", "ask"),
        ("PLIMSOLL_RESERVE", "reserve", "ask"),
        ("PLIMSOLL_CACHE_LIMIT", "retained", "ok"),
    ] {
        let checks = document(&with(name, "1MiB"))["preflight"].clone();
        let found = checks.as_array().unwrap().iter().find(|found| found["check"] == check).unwrap();
        let says = found["says"].as_str().unwrap();
        assert_eq!(found["state"], state, "{found}");
        assert!(says.contains("1,048,576") && says.contains(&format!("environment {name}")), "{says}");
    }
    let others = document(&run(&["probe", "--preflight", "--json"]))["preflight"][2].clone();
    if cfg!(target_os = "linux") {
        assert!(others["says"].as_str().unwrap().starts_with("of the machine"), "{others}");
    }
}

/// A reserve is the operator's word, and a probe does not step past it unless it is told to.
#[test]
fn the_reserve_holds_unless_somebody_insists() {
    let flags = ["--max", "64", "--pause", "0", "--reserve", "9000TB"];
    let dry = good(&[&flags[..], &["--dry-run"]].concat());
    let output = probe(&flags);
    let found = document(&output);
    let run = &found["runs"][0];
    if run["ended"]["why"] == "maximum" {
        return; // No reading, so nothing to leave anybody.
    }
    assert_eq!(code(&output), 3, "not even the first step: {}", stderr(&output));
    assert_eq!(dry["steps"][0]["past_ceiling"], true, "{dry}");
    assert_eq!((&run["ended"]["why"], &run["ended"]["gate"]), (&json!("refused"), &json!("budget")), "{run}");
    assert!(run["ended"]["reason"].as_str().unwrap().contains("by flag --reserve"), "{run}");
    let past = good(&[&flags[..], &["--insist"]].concat());
    let step = &past["runs"][0]["steps"][0];
    assert_eq!(step["exceeded"]["have"], 0, "{step}");
}

/// The end of what was asked is not the end of the machine.
#[test]
fn a_probe_that_ends_at_its_maximum_found_no_ceiling() {
    let flags = ["--max", "128", "--pause", "0"];
    let found = good(&flags);
    assert_eq!(
        (&found["runs"][0]["ceiling_found"], &found["runs"][0]["ceiling"]["gate"]),
        (&json!(false), &Value::Null)
    );
    let dry = good(&[&flags[..], &["--dry-run"]].concat());
    let memory = dry["steps"][0]["planned"].to_string();
    let limited = good(&[&flags[..], &["--memory", &memory]].concat());
    assert_eq!(limited["runs"][0]["ceiling_found"], true);
    let shown = plimsoll()
        .env("PLIMSOLL_CACHE_LIMIT", "3MiB")
        .env("PLIMSOLL_MEMORY_LIMIT", "2048TiB")
        .args(["probe", &golden(), "--chunk", "32", "--step", "64", "--max", "64", "--pause", "0"])
        .args(["--cache-limit", "5MiB"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    // What was resolved of the limits, as the document has it: of the two for retained memory the smaller, and of what was
    // asked and read both and which it is.
    let mut lines = text.lines();
    let (limits, why) = (lines.next().unwrap(), lines.next().unwrap());
    let cache = "retained at most 3,145,728 bytes (3.00 MiB), environment PLIMSOLL_CACHE_LIMIT";
    assert!(limits.starts_with("limits    budget ") && limits.contains(cache), "{text}");
    assert!(why.contains(" is below ") && why.contains("PLIMSOLL_MEMORY_LIMIT"), "{text}");
    assert!(code(&shown) == 0 && text.contains("NO CEILING FOUND up to --max"), "{text}");
}

/// What drivers compile is in no rate, and is told.
#[test]
fn compiling_is_apart_from_every_rate() {
    let found = good(&["--max", "128", "--pause", "0"]);
    for step in found["runs"][0]["steps"].as_array().unwrap() {
        let of = |name: &str| step[name].as_f64().unwrap();
        assert!(of("compile_seconds") > 0.0 && of("warm_up_seconds") > 0.0, "{step}");
        let rate = step["allocated"].as_f64().unwrap() / (of("load_seconds") + of("fill_seconds"));
        assert!((of("bytes_per_second") / rate - 1.0).abs() < 1e-6, "{rate} {step}");
        // A software driver compiles for longer than a tiny prompt takes.
        assert!(
            64.0 / of("prefill_tokens_per_second") < of("compile_seconds") + of("warm_up_seconds"),
            "{step}"
        );
    }
}

#[test]
fn the_operators_ceiling_is_found_at_both_rates() {
    let dry = good(&["--dry-run", "--max", "192"]);
    let planned: Vec<u64> =
        dry["steps"].as_array().unwrap().iter().map(|step| step["planned"].as_u64().unwrap()).collect();
    let memory = planned[1].to_string();
    let found = good(&["--memory", &memory, "--pause", "0", "--pause", "1s", "--max", "192"]);
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| &run["rate"]).collect::<Vec<_>>(), ["fast", "slow"]);
    for run in runs {
        assert_eq!(contexts(run), [64, 128]);
        let ended = &run["ended"];
        assert_eq!((&ended["why"], &ended["context"]), (&json!("refused"), &json!(192)));
        assert_eq!((&ended["gate"], &ended["broke"]), (&json!("budget"), &json!("total")));
        assert_eq!((&ended["need"], &ended["have"]), (&json!(planned[2]), &json!(planned[1])));
        let terms = ended["terms"].as_object().unwrap();
        assert_eq!(terms.values().filter_map(Value::as_u64).sum::<u64>(), planned[2]);
        let ceiling = &run["ceiling"];
        assert_eq!((&ceiling["context"], &ceiling["within_budget"]), (&json!(128), &json!(128)));
        assert!(ceiling["under"].as_str().unwrap().contains("flag --memory"), "{ceiling}");
        for (step, planned) in run["steps"].as_array().unwrap().iter().zip(&planned) {
            assert_eq!((&step["planned"], &step["allocated"]), (&json!(planned), &json!(planned)));
            assert_eq!(step["account"]["others"], 0);
            assert!(step["filled"].as_u64().unwrap() > 0 && step["bytes_per_second"].as_f64().unwrap() > 0.0);
            // The whole context has been run, and held against the reference and a second computation.
            let checked = &step["checked"];
            assert_eq!((&checked["mode"], &checked["tokens"]), (&json!("full"), &step["context"]));
            assert!(!checked["references"].as_array().unwrap().is_empty(), "{checked}");
            assert!(checked["drift"].as_f64() <= checked["tolerance"].as_f64(), "{checked}");
            if cfg!(target_os = "linux") {
                assert!(step["resident"].as_u64().unwrap() > *planned);
                assert_eq!(step["seen"]["rates_valid"], true, "{step}");
                assert!(step["seen"]["least_available"].as_u64() > Some(0), "{step}");
            }
        }
    }
    // The slow run waited before each of its steps, and its rate says so.
    let rate = |run: &Value| run["ceiling"]["run_bytes_per_second"].as_f64().unwrap();
    assert!(rate(&runs[1]) < planned[1] as f64, "{}", rate(&runs[1]));

    // With the override the ceiling is stepped past, and said to be.
    let past = good(&["--memory", &memory, "--insist", "--pause", "0", "--max", "192"]);
    let run = &past["runs"][0];
    assert_eq!((contexts(run), &run["ended"]["why"]), (vec![64, 128, 192], &json!("maximum")));
    let exceeded = &run["steps"][2]["exceeded"];
    assert_eq!((&exceeded["need"], &exceeded["have"]), (&json!(planned[2]), &json!(planned[1])));
    assert_eq!(run["ceiling"]["within_budget"], 128);
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_the_system_is_a_result() {
    // Slots make a step large at once; the first fits with the driver's own needs, and a later one cannot.
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let model = golden();
    let kilobytes = 6_000_000_u64;
    let probe = |pause: &str| {
        let command = format!(
            "ulimit -v {kilobytes}; exec {program} probe {model} --chunk 32 --json --pause {pause} --slots 4 \
             --from 64 --step 4000000 --max 8000064 --validate prefix --floor 1%"
        );
        Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).output().unwrap()
    };
    // A log's step is a step under one limit of data.
    let log = std::env::temp_dir().join(format!("plimsoll-data-{}", std::process::id()));
    let _ = std::fs::remove_file(&log);
    for (limit, key) in [("ulimit -d 4000000;", json!(4_096_000_000_u64)), ("", Value::Null)] {
        let command = format!(
            "{limit} exec {program} probe {model} --chunk 32 --json --pause 0 --from 64 --max 64 --log {}",
            log.display()
        );
        let output = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let found = document(&output);
        assert_eq!(found["limits"]["data_size"], key);
        assert_eq!(found["runs"][0]["from_log"], json!([]), "{found}");
        let differ = found["log_not_used"].as_array().unwrap();
        assert!(differ.iter().all(|of| of["differ"] == json!(["limits.data_size"])), "{differ:?}");
        assert_eq!(differ.is_empty(), !limit.is_empty());
        let under = found["runs"][0]["ceiling"]["under"].as_str().unwrap();
        assert_eq!(under.contains("ulimit -d"), !limit.is_empty(), "{under}");
    }
    std::fs::remove_file(&log).unwrap();
    for pause in ["0", "1s"] {
        let output = probe(pause);
        assert_eq!(code(&output), 0, "{} {}", stderr(&output), String::from_utf8_lossy(&output.stdout));
        let found = document(&output);
        assert_eq!(found["limits"]["address_space"], kilobytes * 1024);
        let run = &found["runs"][0];
        assert_eq!(contexts(run), [64], "{run}");
        let ended = &run["ended"];
        assert!(["out-of-memory", "killed"].contains(&ended["why"].as_str().unwrap()), "{ended}");
        assert_eq!(ended["gate"], "physical-memory");
        assert!(["loading", "touching"].contains(&ended["stage"].as_str().unwrap()), "{ended}");
        let under = run["ceiling"]["under"].as_str().unwrap();
        assert!(under.contains("ulimit -v") && under.contains("6,144,000,000"), "{under}");
        assert_eq!(run["steps"][0]["checked"]["mode"], "prefix");
    }
}

#[test]
fn a_corrupted_kernel_fails_its_step() {
    let corrupt = |order: &str, more: &[&str]| {
        let mut command = plimsoll();
        command.args(flags(&[&["--max", "64", "--pause", "0"], more].concat()));
        let output = command.env("PLIMSOLL_FAULT_MUTATION", order).output().unwrap();
        (code(&output), document(&output))
    };
    // Sums of a subgroup that are none. The reference's kernels use no subgroups, and see it.
    let (code, found) = corrupt("=subgroupAdd(=subgroupMax(", &[]);
    let run = &found["runs"][0];
    assert_eq!(
        (code, &run["ended"]["why"], &run["ended"]["gate"]),
        (6, &json!("wrong"), &Value::Null),
        "{run}"
    );
    assert!(run["ceiling"].is_null() && contexts(run).is_empty());
    let reason = run["ended"]["reason"].as_str().unwrap();
    assert!(reason.contains("deviations apart"), "{reason}");
    assert!(found["error"]["message"].as_str().unwrap().contains("context 64"), "{found}");
    // An order that changes nothing.
    let (code, found) = corrupt("no such kernel=a=b", &[]);
    assert_eq!((code, contexts(&found["runs"][0])), (0, vec![64]));
}

#[cfg(target_os = "linux")]
#[test]
fn a_step_that_somebody_kills_is_a_result_and_no_ceiling_of_memory() {
    let folder = scratch("probe-kill");
    let log = folder.join("log.jsonl");
    let name = log.display().to_string();
    let mut command = plimsoll();
    command.args(flags(&["--max", "4096", "--step", "2048", "--from", "64", "--pause", "0", "--log", &name]));
    let parent = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Once the first step is in the log, the next one's process is killed.
    let start = Instant::now();
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "no second step");
        std::thread::sleep(Duration::from_millis(2));
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let second = text.contains("\"passed\"") && text.contains("\"begun\":{\"context\":2112}");
        let child = std::fs::read_to_string(&children).unwrap_or_default();
        if let (true, Some(pid)) = (second, child.split_whitespace().next()) {
            assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
            break;
        }
    }
    let output = parent.wait_with_output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let found = document(&output);
    let run = &found["runs"][0];
    assert_eq!(contexts(run), [64]);
    let ended = &run["ended"];
    assert_eq!(
        (&ended["why"], &ended["signal"], &ended["context"]),
        (&json!("killed"), &json!(9), &json!(2112))
    );
    assert_eq!(ended["gate"], Value::Null, "{ended}");
    assert_eq!(run["ceiling"]["context"], 64);
    // That says nothing of the step: the probe that is started again takes it again.
    let again = good(&["--max", "4096", "--step", "2048", "--from", "64", "--pause", "0", "--log", &name]);
    let run = &again["runs"][0];
    assert_eq!((contexts(run), &run["resumed"]), (vec![64, 2112, 4096], &json!(1)), "{run}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_probe_that_is_told_to_end_takes_its_step_with_it() {
    let folder = scratch("probe-term");
    let log = folder.join("log.jsonl");
    let name = log.display().to_string();
    let mut command = plimsoll();
    command.args(flags(&["--max", "4096", "--step", "2048", "--from", "64", "--pause", "0", "--log", &name]));
    let mut parent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = "\"begun\":{\"context\":2112}";
    let start = Instant::now();
    let wait = |what: &str, until: &mut dyn FnMut() -> bool| {
        while !until() {
            assert!(start.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let mut step = String::new();
    wait("no second step", &mut || {
        step = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
        std::fs::read_to_string(&log).unwrap_or_default().contains(begun) && !step.is_empty()
    });
    assert!(Command::new("kill").args(["-TERM", &parent.id().to_string()]).status().unwrap().success());
    parent.wait().unwrap();
    wait("its step goes on without it", &mut || !std::path::Path::new(&format!("/proc/{step}")).exists());
    // What was begun is tried once more, and what was done is not.
    let again = good(&["--max", "2112", "--step", "2048", "--from", "64", "--pause", "0", "--log", &name]);
    assert_eq!((contexts(&again["runs"][0]), &again["runs"][0]["resumed"]), (vec![64, 2112], &json!(1)));
}

#[test]
fn the_floor_and_the_time_hold() {
    if cfg!(target_os = "linux") {
        let output = probe(&["--max", "64", "--pause", "0", "--floor", "99.9%"]);
        assert_eq!(code(&output), 3, "{}", stderr(&output));
        let found = document(&output);
        let run = &found["runs"][0];
        assert_eq!(
            (&run["ended"]["why"], &run["ended"]["gate"]),
            (&json!("floor"), &json!("physical-memory"))
        );
        assert!(run["ceiling"].is_null() && run["ended"]["have"].as_u64() < run["ended"]["need"].as_u64());
    }
    let output = probe(&["--max", "64", "--pause", "0", "--step-time", "1ms"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let found = document(&output);
    assert_eq!(found["runs"][0]["ended"]["why"], "time");
    for (flag, value) in
        [("--floor", "100%"), ("--pause", "1 week"), ("--step-time", "-1s"), ("--tolerance", "0")]
    {
        let output = probe(&[&format!("{flag}={value}")]);
        assert_eq!(code(&output), 2);
        assert!(stderr(&output).contains(flag), "{}", stderr(&output));
    }
}
