//! What the small binary answers: its documents, its reports for people, and the flags that those print.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

#[path = "binary.rs"]
mod binary;

use serde_json::Value;
use std::process::Output;

/// A published configuration.
pub fn config(name: &str) -> String {
    format!("{}/../tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"))
}

pub fn run(args: &[&str]) -> Output {
    let output = binary::run(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    output
}

/// The exit code, the document, and the words on standard error.
pub fn ask(args: &[&str]) -> (i32, Value, String) {
    let output = run(&[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"));
    (output.status.code().unwrap(), document, said)
}

/// The exit code and the report for people.
pub fn text(args: &[&str]) -> (i32, String) {
    let output = run(args);
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Arguments with the flags that a report prints in place of their own.
pub fn with(args: &[&str], flags: &str) -> Vec<String> {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let given: Vec<&str> = flags.iter().copied().filter(|flag| flag.starts_with("--")).collect();
    let mut left = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if given.contains(arg) { rest.next().map(drop).unwrap_or_default() } else { left.push(*arg) }
    }
    left.into_iter().chain(flags).map(str::to_owned).collect()
}

/// The flags of the line that begins so.
pub fn flags_of(report: &str) -> String {
    let line = report.lines().find_map(|line| line.strip_prefix("nearest:"));
    line.unwrap_or_else(|| panic!("no nearest in {report}")).to_owned()
}
