//! The text half of multimodal checkpoints, towers in the file, against their references: see `goldens.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::run;

#[test]
fn qwen3_5_vision() {
    run("qwen3_5_vision", "");
}

#[test]
fn qwen3_5_moe_vision() {
    run("qwen3_5_moe_vision", "");
}

#[test]
fn gemma4_vision() {
    run("gemma4_vision", "");
}

#[test]
fn gemma4_vision_bidir() {
    run("gemma4_vision_bidir", "");
}

#[test]
fn gemma3_vision() {
    run("gemma3_vision", "");
}
