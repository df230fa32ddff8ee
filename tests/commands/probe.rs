//! A small probe of the tiny random model.

use super::{code, document, golden, plimsoll, stderr};
use serde_json::Value;
use std::process::Output;

/// Flags of a small probe of the tiny random model.
pub fn flags(more: &[&str]) -> Vec<String> {
    let model = golden();
    let step = if more.contains(&"--step") { &[][..] } else { &["--step", "64"] };
    [&["probe", &model, "--chunk", "32", "--json"], step, more]
        .concat()
        .into_iter()
        .map(String::from)
        .collect()
}

pub fn probe(more: &[&str]) -> Output {
    plimsoll().args(flags(more)).output().unwrap()
}

/// The document of a probe that ends as it should.
pub fn good(more: &[&str]) -> Value {
    let output = probe(more);
    assert_eq!(code(&output), 0, "{more:?}: {} {}", stderr(&output), String::from_utf8_lossy(&output.stdout));
    document(&output)
}

pub fn contexts(run: &Value) -> Vec<u64> {
    run["steps"].as_array().unwrap().iter().map(|step| step["context"].as_u64().unwrap()).collect()
}
