//! What documents say of memory, and what settings of memory may be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{code, document, golden, good, plimsoll, run, speaking, stderr};
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
    let unload = said.lines().find(|line| line.starts_with("unload released")).unwrap();
    let (_, places) = unload.split_once("residue").unwrap();
    if cfg!(target_os = "linux") {
        assert!(places.contains("the process is larger by") && !places.contains('-'), "{unload}");
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
