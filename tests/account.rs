//! Predicted against actual: a load whose buffers are not the plan's is an error that says so and leaves nothing, and the
//! command line shows both sides of every term.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::*;
use plimsoll::runtime::account::Term;
use plimsoll::{Device, DeviceOptions, Runtime};
use plimsoll_kernels::KvFormat;
use plimsoll_runtime::RuntimeError;
use serde_json::{Value, json};
use support::{admitted, data, geometry, open};

const SEGMENTS: [&str; 6] = ["weights", "kv", "recurrent", "activations", "io", "retained"];

fn device() -> Device {
    Device::open(&DeviceOptions::default()).unwrap()
}

#[test]
fn a_buffer_of_another_size_is_an_error_and_leaves_nothing() {
    let (device, (checkpoint, model)) = (device(), open(&data("golden/llama")));
    let admitted = admitted(&model, &geometry(32, 1, 16, KvFormat::F16, 1), device.profile());
    let plan = admitted.plan().clone();
    let base = device.counters();
    let load = || Runtime::load(device.clone(), &model, &checkpoint, admitted.clone(), &mut |_| ());
    let mut wrong = 0;
    for n in 1.. {
        device.faults().enlarge_buffer(n, 512);
        let error = match load() {
            Err(error) => error,
            Ok(_) => break,
        };
        let RuntimeError::Account(account) = &error else { panic!("buffer {n}: {error}") };
        assert_eq!(account.check().unwrap_err(), *account);
        let off: Vec<&Term> = account.terms.iter().filter(|term| !term.agrees()).collect();
        assert_eq!(off.len(), 1, "{account:?}");
        assert_eq!(off[0].allocated, off[0].planned + 512);
        let said = error.to_string();
        match plan.buffers.get(n as usize - 1) {
            Some(planned) => {
                assert_eq!(off[0].term, planned.segment.name());
                let [difference] = &account.differences[..] else { panic!("{account:?}") };
                assert_eq!((&difference.buffer, difference.term), (&planned.name, off[0].term));
                assert_eq!(difference.planned, Some(planned.bytes));
                assert_eq!(difference.allocated, Some(planned.bytes + 512));
                assert!(said.contains(&planned.name), "{said}");
            }
            None => {
                assert_eq!((off[0].term, off[0].planned), ("staging", plan.staging_bytes));
                assert_eq!(account.total.planned, plan.load_peak());
            }
        }
        assert!(said.contains(off[0].term), "{said}");
        assert_eq!(plimsoll::Error::from(error).exit_code(), 6);
        assert_eq!(device.totals().live, 0, "after buffer {n}");
        assert_eq!(device.counters(), base, "after buffer {n}");
        wrong += 1;
    }
    device.faults().enlarge_buffer(0, 0);
    assert!((1..=2).contains(&(wrong - plan.buffers.len())), "{wrong} of {} and staging", plan.buffers.len());

    let runtime = load().unwrap();
    let account = runtime.account();
    account.check().unwrap();
    assert_eq!((account.total.planned, account.total.allocated), (plan.total(), plan.total()));
    if let Some(counted) = account.counted.bytes {
        assert_eq!(counted, plan.total());
        assert_eq!(account.base.bytes, Some(base.buffer_memory as u64));
    }
    if let Some(reserved) = account.reserved.figure.bytes {
        assert!(reserved <= plan.total() + account.base.bytes.unwrap_or(0) + account.reserved.slack);
    }
}

/// Loads on one device have accounts of their own.
#[test]
fn each_load_answers_for_its_own_buffers() {
    let (device, (checkpoint, model)) = (device(), open(&data("golden/llama")));
    let load = |context| {
        let admitted = admitted(&model, &geometry(context, 1, 16, KvFormat::F16, 1), device.profile());
        Runtime::load(device.clone(), &model, &checkpoint, admitted, &mut |_| ()).unwrap()
    };
    let (first, second) = (load(32), load(96));
    let (one, other) = (first.account(), second.account());
    assert!(one.agrees() && other.agrees());
    assert!(one.total.planned < other.total.planned);
    assert_eq!((one.others, other.others), (other.total.allocated, one.total.allocated));
    drop(second);
    assert_eq!(first.account().others, 0);
    assert!(first.account().agrees());
}

/// Both sides of every term, and their sums; answers the bytes planned.
fn agrees(account: &Value) -> u64 {
    let terms = account["terms"].as_array().unwrap();
    let names: Vec<&str> = terms.iter().map(|term| term["term"].as_str().unwrap()).collect();
    assert_eq!(names[..6], SEGMENTS);
    assert_eq!(names[6..], ["staging", "unplanned"]);
    for term in terms {
        assert!(term["planned"].is_u64(), "{term}");
        assert_eq!(term["planned"], term["allocated"], "{term}");
    }
    let sum: u64 = terms.iter().map(|term| term["planned"].as_u64().unwrap()).sum();
    assert_eq!((&account["total"]["planned"], &account["total"]["allocated"]), (&json!(sum), &json!(sum)));
    assert_eq!(account["differences"], json!([]));
    for figure in [&account["base"], &account["counted"], &account["reserved"]] {
        assert!(figure["source"].is_string() && (figure["bytes"].is_u64() || figure["bytes"].is_null()));
    }
    if cfg!(target_os = "linux") {
        for figure in ["resident", "peak", "swap"] {
            let figure = &account["process"][figure];
            assert!(figure["bytes"].is_u64() && figure["source"] == "/proc/self/status", "{figure}");
        }
    }
    sum
}

#[test]
fn run_and_bench_show_what_was_planned_and_what_is_there() {
    let verbs: [&[&str]; 3] = [
        &["run", "-p", "Ahoy", "-n", "2"],
        &["bench", "-p", "8", "-n", "2", "-r", "1"],
        &["bench", "--lengths", "4,8", "-n", "1", "-r", "1"],
    ];
    for verb in verbs {
        let with = |more: &[&str]| run(&[verb, &["--context", "128", "--chunk", "32"], more].concat());
        let output = with(&["--json", "-v"]);
        assert_eq!(code(&output), 0, "{verb:?}: {}", stderr(&output));
        let shown = document(&output);
        let sum = agrees(&shown["account"]);
        assert_eq!(shown["bytes"]["total"], sum, "{verb:?}");
        for segment in SEGMENTS {
            let terms = shown["account"]["terms"].as_array().unwrap();
            let term = terms.iter().find(|term| term["term"] == segment).unwrap();
            assert_eq!(term["planned"], shown["bytes"][segment], "{verb:?}");
        }
        // For people, and of `run` on request only.
        let plain = with(&[]);
        let (out, said) = (String::from_utf8_lossy(&plain.stdout).into_owned(), stderr(&plain));
        let table = "as planned";
        assert_eq!(out.contains(table), verb[0] == "bench", "{out}");
        assert!(!said.contains(table), "{said}");
        if verb[0] == "run" {
            let said = stderr(&with(&["-v"]));
            for word in [table, "planned", "allocated", "driver", "process"] {
                assert!(said.contains(word), "{word}: {said}");
            }
        }
    }
}
