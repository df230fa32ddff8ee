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
    let refused = run(&["bench", "--ceilings", "--memory", "64MiB", "--cache-limit", "1MiB", "--json"]);
    let said = document(&refused);
    assert_eq!((code(&refused), &said["ceilings"]), (3, &Value::Null));
    assert_eq!(bytes(&said, "/ceilings_not_measured/need"), 134_230_016);
    assert_eq!((bytes(&said, "/budget/bytes"), bytes(&said, "/cache_limit/bytes")), (64 << 20, 1 << 20));
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
