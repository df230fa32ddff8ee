//! What documents say of memory, and what settings of memory may be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{code, document, golden, good, plimsoll, run, scratch, speaking, stderr};
use serde_json::Value;

/// Bytes below a pointer.
fn bytes(document: &Value, pointer: &str) -> i64 {
    let found = document.pointer(pointer).unwrap_or_else(|| panic!("{pointer} in {document}"));
    found.as_i64().unwrap_or_else(|| panic!("{pointer}: {found}"))
}

fn telemetry_holds(document: &Value) {
    let telemetry = |name: &str| bytes(document, &format!("/telemetry/{name}"));
    let total = bytes(document, "/bytes/total");
    assert_eq!(bytes(document, "/telemetry/account/total/planned"), total);
    assert_eq!(bytes(document, "/telemetry/account/total/allocated"), total);
    let [active, retained, reserved] = ["active", "retained", "reserved"].map(telemetry);
    assert!(0 <= active && active + retained <= reserved && reserved <= total, "{}", document["telemetry"]);
    assert!(telemetry("peak_active") >= active && telemetry("peak_allocated") >= total);
}

#[test]
fn documents_have_what_is_held_and_what_came_back() {
    let model = speaking("memory-keys");
    for args in [
        vec!["run", &model, "-p", "Hello", "-n", "4", "--ignore-eos", "--context", "64", "--json"],
        vec!["bench", &model, "-p", "24", "-n", "2", "-r", "1", "--context", "64", "--json"],
    ] {
        let found = good(&args);
        telemetry_holds(&found);
        assert_eq!(
            (&found["freed"]["trim"]["by"], &found["freed"]["unload"]["by"]),
            (&"trim".into(), &"unload".into())
        );
        assert_eq!(bytes(&found, "/freed/trim/released"), bytes(&found, "/telemetry/retained"));
        assert_eq!(bytes(&found, "/freed/unload/released"), bytes(&found, "/bytes/total"));
        for by in ["trim", "unload"] {
            let freed = &found["freed"][by];
            for name in ["released", "reservation", "resident", "swap", "residue", "parts"] {
                assert!(freed.get(name).is_some(), "{name} in {freed}");
            }
            if let Some(residue) = freed["residue"].as_i64() {
                let parts = freed["parts"].as_array().unwrap();
                assert!(parts.iter().all(|part| part["place"].is_string()), "{freed}");
                assert_eq!(
                    parts.iter().map(|part| part["bytes"].as_i64().unwrap()).sum::<i64>(),
                    residue,
                    "{freed}"
                );
            }
        }
    }
    // A person is told the same in sentences, without what is negative.
    let shown = run(&["run", &model, "-p", "Hello", "-n", "4", "--context", "64", "-v"]);
    assert_eq!(code(&shown), 0, "{}", stderr(&shown));
    let said = stderr(&shown);
    // What was free, is free, and the difference, as the document's `free_memory` has them.
    let free = said.lines().find(|line| line.starts_with("free      ")).unwrap();
    assert!(
        free.contains(" after the load, ") && free.contains(" now, ") && free.contains(", by "),
        "{free}"
    );
    let unload = said.lines().find(|line| line.starts_with("unload released")).unwrap();
    let (_, places) = unload.split_once("residue").unwrap();
    if cfg!(target_os = "linux") {
        assert!(places.contains("the process is larger by") && !places.contains('-'), "{unload}");
    }
}

/// Every verb that loads says what came back, by one function.
#[test]
fn every_document_of_a_load_says_what_came_back() {
    let model = speaking("memory-freed");
    let (out, text) = (scratch("memory-freed-out").join("logits"), scratch("memory-freed-text").join("text"));
    std::fs::write(&text, "Hello, hello, hello, hello, hello.").unwrap();
    let (out, text) = (out.display().to_string(), text.display().to_string());
    for args in [
        vec!["chat", &model],
        vec!["perplexity", &model, "--file", &text, "--window", "16"],
        vec!["logits", &model, "--prompt", "Hello", "--out", &out],
        vec!["bench", &model, "--lengths", "8,16", "-n", "1", "-r", "1"],
    ] {
        let found = good(&[&args[..], &["--json"]].concat());
        assert_eq!(bytes(&found, "/freed/unload/released"), bytes(&found, "/bytes/total"), "{args:?}");
        assert_eq!(found["freed"]["trim"]["by"], "trim", "{args:?}");
    }
    // In words for people, too.
    for args in [vec!["chat", &model], vec!["logits", &model, "--prompt", "Hello", "--out", &out]] {
        let shown = run(&[&args[..], &["-v"]].concat());
        assert_eq!(code(&shown), 0, "{args:?}: {}", stderr(&shown));
        for begins in ["free      ", "trim released", "unload released"] {
            let said = stderr(&shown).lines().any(|line| line.starts_with(begins));
            assert!(said, "{args:?}: {begins}: {}", stderr(&shown));
        }
    }
}

/// What was resolved of the limits stands in every report of rates, asked for or not.
#[test]
fn reports_for_people_echo_the_limits() {
    let model = golden();
    let small =
        ["-p", "8", "-n", "1", "-r", "3", "--context", "64", "--memory", "1GB", "--cache-limit", "64kB"];
    for more in [&[][..], &["--sweep", "chunk=16,32"], &["--requests", "2"], &["--tune", "--dry-run"]] {
        let shown = run(&[&["bench", &model], &small[..], more].concat());
        assert_eq!(code(&shown), 0, "{more:?}: {}", stderr(&shown));
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("limits ")).unwrap_or_else(|| panic!("{text}"));
        for part in
            ["1,000,000,000 bytes", "flag --memory", "64,000 bytes", "flag --cache-limit", "a buffer "]
        {
            assert!(line.contains(part), "{more:?}: {part}: {line}");
        }
    }
}

/// The operator's word holds for what is measured without a model, too.
#[test]
fn ceilings_keep_the_operators_limits() {
    let refused = run(&["bench", "--ceilings", "--memory", "64MiB"]);
    assert_eq!(code(&refused), 3, "{}", stderr(&refused));
    for part in ["--ceilings", "134,230,016", "67,108,864", "flag --memory", "; permanent"] {
        assert!(stderr(&refused).contains(part), "{part}: {}", stderr(&refused));
    }
    for name in ["PLIMSOLL_MEMORY_LIMIT", "PLIMSOLL_CACHE_LIMIT"] {
        let junk = plimsoll().args(["bench", "--ceilings"]).env(name, "junk").output().unwrap();
        assert_eq!(code(&junk), 2, "{}", stderr(&junk));
        assert!(stderr(&junk).contains(name), "{}", stderr(&junk));
    }
}

/// What is kept nothing of is not paid for.
#[test]
fn snapshots_and_a_cache_limit_that_keeps_none_are_a_usage_error() {
    let model = support::data("golden/nemotron_h").display().to_string();
    let bench = ["bench", &model, "-p", "8", "-n", "1", "-r", "1", "--context", "64", "--snapshots", "4"];
    let output = run(&[&bench[..], &["--cache-limit", "0"]].concat());
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("--snapshots 4: flag --cache-limit is 0"), "{}", stderr(&output));
    let output = plimsoll().args(bench).env("PLIMSOLL_CACHE_LIMIT", "0").output().unwrap();
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("PLIMSOLL_CACHE_LIMIT"), "{}", stderr(&output));
}

/// Nor for snapshots that a limit could hold none of, or not all.
#[test]
fn snapshots_beyond_the_cache_limit_are_a_usage_error() {
    let limited = |limit: &str| {
        let bench = ["bench", "-p", "8", "-n", "1", "-r", "1", "--context", "64", "--snapshots", "2"];
        run(&[&bench[..], &["--cache-limit", limit]].concat())
    };
    for limit in ["1", "149503", "149504", "299007"] {
        let output = limited(limit);
        assert_eq!(code(&output), 2, "{limit}: {}", stderr(&output));
        for part in ["--snapshots 2", "299,008", "149,504 each", "flag --cache-limit"] {
            assert!(stderr(&output).contains(part), "{limit}: {part}: {}", stderr(&output));
        }
    }
    assert_eq!(code(&limited("299008")), 0);
}

/// A model whose pages hold all it keeps takes none: that is said, to people and in the document.
#[test]
fn snapshots_that_a_model_does_not_need_are_told() {
    let found = run(&[
        "bench",
        &golden(),
        "-p",
        "8",
        "-n",
        "1",
        "-r",
        "1",
        "--context",
        "64",
        "--snapshots",
        "3",
        "--json",
    ]);
    assert_eq!(code(&found), 0, "{}", stderr(&found));
    assert!(stderr(&found).contains("--snapshots 3 changes nothing"), "{}", stderr(&found));
    let warnings = document(&found)["warnings"].clone();
    assert!(warnings[0].as_str().unwrap().contains("--snapshots 3 changes nothing"), "{warnings}");
}

/// A refusal tells people too whether there is any use in asking again.
#[test]
fn refusals_say_how_long_they_hold() {
    let of = |more: &[&str]| run(&[&["bench", &golden(), "-p", "8", "-n", "1"], more].concat());
    let forbidden = of(&["--memory", "1000"]);
    assert_eq!(code(&forbidden), 3);
    assert!(stderr(&forbidden).contains("; permanent: asked again"), "{}", stderr(&forbidden));
    // More than there is, whoever goes.
    let impossible = of(&["--reserve", "9000TB"]);
    assert_eq!(code(&impossible), 3);
    assert!(stderr(&impossible).contains("; permanent: asked again"), "{}", stderr(&impossible));
    // Room for the model, and for what its load takes beside its buffers, is all that is left of the machine, and that
    // others have.
    let total = good(&["devices", "--json"])["adapters"][0]["adapter"]["memory"]["total"].as_u64().unwrap();
    let busy = of(&["--reserve", &(total - ((64 + 320) << 20)).to_string()]);
    assert_eq!(code(&busy), 3);
    assert!(stderr(&busy).contains("; not permanent: it may be asked again"), "{}", stderr(&busy));
}

/// What a shell allows a process is a budget like any other. Drivers and allocators crash where it is used up, so nothing
/// is begun that would do so: from no room for anything to enough of it there are refusals, and then answers.
#[cfg(target_os = "linux")]
mod ulimit {
    use super::*;
    use std::process::{Command, Output, Stdio};

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

    /// The kilobytes with which the plan of `args` just fits.
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
        let spare = u64::try_from(bytes(&found, "/budget/bytes") - bytes(&found, "/bytes/total")).unwrap();
        enough - spare / 1024
    }

    /// The command line's own work has its stack; what a driver's threads get is the shell's word.
    #[test]
    fn a_stack_of_any_size_is_an_answer() {
        let model = speaking("ulimit-stack");
        let args = ["run", &model, "-p", "Hello", "-n", "2", "--context", "64"];
        // In kilobytes: too small, enough, more than any address space.
        for (kilobytes, expected) in [(16, 6), (32, 6), (63, 6), (LEAST_STACK, 0), (512, 0), (1 << 40, 6)] {
            for (args, expected) in
                [(&args[..], expected), (&["devices"], expected), (&["inspect", &model], 0)]
            {
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
        let output = under(flag, least + 2000, &[&bench[..], &["--sweep", "context=64,128"]].concat());
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
        // An estimate has no reading, and the same keys.
        let found = good(&["estimate", &model, "--memory", "1GB", "--json"]);
        let budget = &found["budget"];
        assert_eq!((&budget["derived"], &budget["others"]), (&Value::Null, &0.into()), "{budget}");
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
        for part in [
            "ulimit -d of 256,000,000 bytes",
            "335,544,320",
            "the budget is below the weights",
            "; permanent",
        ] {
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
}

/// What is no amount is an error that names its setting, in every verb that loads; nothing is opened for it.
#[test]
fn what_is_no_amount_is_a_usage_error_of_its_setting() {
    let model = golden();
    let junk = [
        "",
        " ",
        "-",
        "-1",
        "-0",
        "+5",
        "junk",
        "GiB",
        "NaN",
        "inf",
        "0x10",
        "1e9",
        "１２",
        "5🦀",
        "18446744073709551616",
        "99999999999GiB",
        "1__0 0",
    ];
    for verb in [&["bench", "-p", "8", "-n", "1"][..], &["probe", "--dry-run", "--max", "64"]] {
        for name in ["memory", "reserve", "cache-limit"] {
            let flag = format!("--{name}");
            let variable = match name {
                "memory" => "PLIMSOLL_MEMORY_LIMIT",
                "reserve" => "PLIMSOLL_RESERVE",
                _ => "PLIMSOLL_CACHE_LIMIT",
            };
            for text in junk.iter().chain((name == "memory").then_some(&"0")) {
                let of = |by: &str, command: &mut std::process::Command| {
                    let output = command.args([verb[0], &model]).args(&verb[1..]).output().unwrap();
                    assert_eq!(code(&output), 2, "{by} {text:?}: {}", stderr(&output));
                    assert!(stderr(&output).contains(by), "{text:?}: {}", stderr(&output));
                };
                of(variable, plimsoll().env(variable, text));
                let output = plimsoll()
                    .args([verb[0], &model])
                    .args(&verb[1..])
                    .arg(format!("{flag}={text}"))
                    .output();
                let output = output.unwrap();
                assert_eq!(code(&output), 2, "{flag} {text:?}: {}", stderr(&output));
                assert!(stderr(&output).contains(&flag), "{text:?}: {}", stderr(&output));
            }
        }
    }
}

/// What an adapter can do at best is measured beside the plan, and needs no buffer that the operator forbids the plan.
#[test]
fn a_limit_of_buffers_is_the_plans_and_not_the_benchs() {
    let limited =
        ["--max-allocation", "1MiB", "--max-binding", "512KiB", "--context", "64", "--chunk", "16", "--json"];
    let output = run(&[&["bench", &golden(), "-p", "8", "-n", "1", "-r", "1"], &limited[..]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    telemetry_holds(&document(&output));
}
