//! `plimsoll bench` as an instrument: arms that take turns, settings that are swept, requests of a service. Nothing here
//! is held against a clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{code, golden, good, plimsoll, run, stderr};
use serde_json::{Value, json};

fn column(document: &Value, pointer: &str) -> Vec<Value> {
    let arms = document["arms"].as_array().unwrap();
    arms.iter()
        .map(|arm| arm.pointer(pointer).unwrap_or_else(|| panic!("{pointer} in {arm}")).clone())
        .collect()
}

/// Median, least, most and all of `rounds`, in order.
fn is_a_spread(spread: &Value, rounds: usize) {
    let number = |key: &str| spread[key].as_f64().unwrap();
    assert_eq!(spread["all"].as_array().unwrap().len(), rounds);
    assert!(0.0 < number("min") && number("min") <= number("median") && number("median") <= number("max"));
}

#[test]
fn a_conversation_has_one_footprint_at_every_cache_limit() {
    let sweep = "cache-limit=0,1MiB,64MiB,none";
    let args = ["bench", "--sweep", sweep, "-p", "40", "-n", "3", "-r", "3", "--snapshots", "2", "--json"];
    let bench = good(&args);
    assert_eq!((&bench["schema"], &bench["sweep"]), (&json!(1), &json!("cache-limit")));
    let values = ["0", "1MiB", "64MiB", "none"];
    assert_eq!(column(&bench, "/value"), values);
    assert_eq!(bench["order"], json!([values, values, values].concat()));
    let limits = [json!(0), json!(1 << 20), json!(64 << 20), Value::Null];
    assert_eq!(column(&bench, "/cache_limit/bytes"), limits, "what was resolved is echoed");
    assert_eq!(column(&bench, "/cache/limit"), limits, "and was in force");
    for source in column(&bench, "/cache_limit/source") {
        assert_eq!(source, "flag --sweep cache-limit");
    }
    let totals = column(&bench, "/bytes/total");
    assert!(totals[0].as_u64().unwrap() > 0);
    for same in ["/bytes/total", "/footprint/planned_bytes", "/footprint/allocated_bytes"] {
        assert_eq!(column(&bench, same), vec![totals[0].clone(); 4], "{same}");
    }
    let reserved = column(&bench, "/footprint/reserved_bytes");
    assert_eq!(reserved, vec![reserved[0].clone(); 4], "one plan, loaded once");
    let retained: Vec<u64> =
        column(&bench, "/footprint/retained_bytes").iter().map(|bytes| bytes.as_u64().unwrap()).collect();
    assert_eq!(retained[0], 0, "0 keeps nothing");
    assert!(retained[1] <= 1 << 20 && 0 < retained[2] && retained[2] == retained[3], "{retained:?}");
    for arm in bench["arms"].as_array().unwrap() {
        is_a_spread(&arm["prefill_tokens_per_second"], 3);
        is_a_spread(&arm["decode_tokens_per_second"], 3);
        is_a_spread(&arm["footprint"]["resident_bytes"], 3);
    }
    let comparisons = bench["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 3);
    for (comparison, value) in comparisons.iter().zip(&values[1..]) {
        assert_eq!((&comparison["value"], &comparison["against"]), (&json!(value), &json!("0")));
        let decode = &comparison["decode_tokens_per_second"];
        is_a_spread(&decode["ratio_by_round"], 3);
        let overlaps = decode["ranges_overlap"].as_bool().unwrap();
        let verdict = decode["verdict"].as_str().unwrap();
        assert_eq!(overlaps, verdict == "no difference shown: the ranges overlap", "{decode}");
    }
}

#[test]
fn shared_beginnings_are_found_as_the_limit_allows() {
    // Full attention and no windows: pages alone are enough.
    let model = golden();
    let args = ["bench", &model, "--sweep", "cache-limit=0,none", "--requests", "16", "-p", "64", "-n", "2"];
    let args = [&args[..], &["-r", "3", "--context", "512", "--slots", "2", "--json"]].concat();
    let bench = good(&args);
    assert_eq!(bench["workload"]["requests"], 16);
    assert!(bench["workload"]["tokens"].as_u64().unwrap() > 16 * 2);
    let [off, on] = ["hits", "tokens_reused"].map(|key| column(&bench, &format!("/cache/{key}")));
    assert_eq!((&off[0], &on[0]), (&json!(0), &json!(0)), "nothing is kept, nothing is found");
    assert!(off[1].as_u64() > Some(0) && on[1].as_u64() >= off[1].as_u64(), "{off:?} {on:?}");
    assert_eq!(column(&bench, "/cache/lookups")[1], 16, "of one turn alone");
    let retained = column(&bench, "/footprint/retained_bytes");
    assert!(retained[0] == 0 && retained[1].as_u64() > Some(0));
    let totals = column(&bench, "/bytes/total");
    assert_eq!(totals[0], totals[1], "retained pages lie in the plan's");
    for arm in bench["arms"].as_array().unwrap() {
        is_a_spread(&arm["tokens_per_second"], 3);
        is_a_spread(&arm["first_token_seconds"], 3);
    }
    let again = good(&args);
    assert_eq!(again["workload"], bench["workload"], "a seed is a workload");
    assert_eq!(column(&again, "/cache"), column(&bench, "/cache"));
}

#[test]
fn settings_of_the_plan_are_loaded_in_turn() {
    let model = golden();
    let bench = good(&[
        "bench",
        &model,
        "--sweep",
        "chunk=8,32",
        "-p",
        "20",
        "-n",
        "2",
        "-r",
        "3",
        "--cache-limit",
        "1kB",
        "--json",
    ]);
    assert_eq!(bench["order"], json!(["8", "32", "8", "32", "8", "32"]));
    assert_eq!(column(&bench, "/geometry/prefill_chunk"), [8, 32]);
    let totals: Vec<_> = column(&bench, "/bytes/total").iter().map(|t| t.as_u64().unwrap()).collect();
    assert!(totals[0] < totals[1], "{totals:?}");
    assert_eq!(column(&bench, "/allocated/bytes"), totals, "one plan at a time");
    assert_eq!(column(&bench, "/cache_limit/bytes"), [1000, 1000]);
    assert_eq!(bench["memory_policy"]["cache"]["bytes"], 1000);
    for loads in column(&bench, "/load_seconds") {
        assert_eq!(loads.as_array().unwrap().len(), 3);
    }
    // One arm that does not fit: before anything is loaded, and it is named.
    let sweep =
        ["bench", &model, "--sweep", "context=64,8192", "-p", "20", "-n", "2", "-r", "3", "--chunk", "32"];
    let total = totals[1] * 2;
    let output = run(&[&sweep[..], &["--memory", &total.to_string()]].concat());
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("the arm 8192"), "{}", stderr(&output));
}

#[test]
fn tables_say_what_is_shown_and_what_is_not() {
    let args = ["bench", &golden(), "--sweep", "cache-limit=0,1MiB", "-p", "16", "-n", "2", "-r", "3"];
    let output = run(&args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in ["cache-limit", "decode tokens/s", "retained", "3 rounds, arms in turn", "1MiB against 0"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for line in text.lines().filter(|line| line.contains(" against ")) {
        let verdicts = ["no difference shown: the ranges overlap", "higher", "lower"];
        assert!(verdicts.iter().any(|verdict| line.ends_with(verdict)), "{line}");
    }
    // Without a sweep there is one arm, and nothing to compare it with.
    let one = good(&["bench", &golden(), "--requests", "3", "-p", "16", "-n", "2", "-r", "1", "--json"]);
    assert_eq!((&one["sweep"], &one["comparisons"]), (&Value::Null, &json!([])));
    assert_eq!(one["arms"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_swept_is_a_usage_error_that_names_it() {
    let model = golden();
    for (sweep, more, name) in [
        ("cache-limit", vec![], "--sweep"),
        ("cash=0,1", vec![], "cash"),
        ("cache-limit=0", vec![], "cache-limit"),
        ("cache-limit=0,0B", vec![], "cache-limit"),
        ("cache-limit=0,-5", vec![], "cache-limit"),
        ("cache-limit=0,many", vec![], "cache-limit"),
        ("cache-limit=0,99999999999GiB", vec![], "cache-limit"),
        ("chunk=0,8", vec![], "chunk"),
        ("kv=f16,f8", vec![], "kv"),
        ("cache-limit=0,1", vec!["-r", "2"], "--repetitions"),
        ("cache-limit=0,1", vec!["--cache-limit", "1MiB"], "--cache-limit"),
        ("chunk=8,16", vec!["--chunk", "8"], "--chunk"),
        ("chunk=8,16", vec!["--lengths", "8"], "--lengths"),
    ] {
        let output = run(&[&["bench", &model, "-p", "8", "-n", "1", "--sweep", sweep], &more[..]].concat());
        assert_eq!(code(&output), 2, "{sweep} {more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(name), "{sweep} {more:?}: {}", stderr(&output));
    }
    let mut command = plimsoll();
    command.args(["bench", &model, "-p", "8", "-n", "1", "--sweep", "cache-limit=0,1MiB"]);
    let output = command.env("PLIMSOLL_CACHE_LIMIT", "1kB").output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("PLIMSOLL_CACHE_LIMIT"), "{}", stderr(&output));
    let seed = run(&["bench", &model, "--seed", "1"]);
    assert_eq!(code(&seed), 2, "a seed is of --requests: {}", stderr(&seed));
}

#[test]
fn rates_are_measured_and_allocated_is_priced() {
    let bench = good(&["bench", &golden(), "-p", "20", "-n", "4", "-r", "3", "--json", "--chunk", "16"]);
    for rate in ["prefill_tokens_per_second", "decode_tokens_per_second"] {
        let number = |key: &str| bench[rate][key].as_f64().unwrap();
        assert!(
            0.0 < number("min") && number("min") <= number("median") && number("median") <= number("max")
        );
        assert_eq!(bench[rate]["all"].as_array().unwrap().len(), 3);
    }
    assert_eq!(bench["bytes"]["total"], bench["allocated"]["bytes"]);
    for key in ["prefill_fraction_of_flops", "decode_fraction_of_read"] {
        let fraction = bench[key].as_f64().unwrap();
        assert!(fraction > 0.0 && fraction < 1.5, "{key}: {fraction}");
    }
    for key in ["read_bytes_per_second", "copy_bytes_per_second", "flops_per_second"] {
        assert!(bench["ceilings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(code(&run(&["bench", &golden(), "--memory", "1kB"])), 3);
}
