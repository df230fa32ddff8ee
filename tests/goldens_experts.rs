//! Families with experts and attention alone, and gemma4 against their references: see `goldens.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::{Golden, check, run, run_as_it_is};
use plimsoll_kernels::KvFormat;
use plimsoll_runtime::{DeviceOptions, Stepper};
use support::{Loaded, data, geometry, open};

#[test]
fn qwen3_moe() {
    run("qwen3_moe", "");
}

#[test]
fn mlx_qwen3_moe_4bit() {
    run("mlx_qwen3_moe_4bit", "");
}

#[test]
fn gguf_qwen3_moe() {
    run("gguf_qwen3_moe", "model.gguf");
}

#[test]
fn gpt_oss() {
    run("gpt_oss", "");
}

#[test]
fn gpt_oss_mxfp4() {
    run("gpt_oss_mxfp4", "");
}

#[test]
fn mlx_gpt_oss() {
    run("mlx_gpt_oss", "");
}

#[test]
fn gemma4_text_dense() {
    run("gemma4_text_dense", "");
}

#[test]
fn gemma4_text_moe() {
    run("gemma4_text_moe", "");
}

#[test]
fn gemma4_text_ple() {
    run("gemma4_text_ple", "");
}

#[test]
fn mlx_gemma4_nvfp4() {
    run("mlx_gemma4_nvfp4", "");
}

#[test]
fn mlx_gemma4_moe_nvfp4() {
    run("mlx_gemma4_moe_nvfp4", "");
}

#[test]
fn mlx_gemma4_ple_mxfp8() {
    run("mlx_gemma4_ple_mxfp8", "");
}

/// The vectors of this model fit one binding only just: with a smaller one they stand in two, and answer alike.
#[test]
fn vectors_in_two_windows() {
    let golden = Golden::new("gpt_oss", "");
    let (checkpoint, model) = open(&data(&golden.model));
    let (ids, expected) = golden.prompt(33);
    let small = geometry(64, 1, 4, KvFormat::F32, 4);
    let loaded = |options: &DeviceOptions| {
        let loaded = Loaded::new(&checkpoint, &model, options, &small);
        (loaded.runtime.plan().vectors.len(), loaded.runtime.plan().vectors[0].bytes, loaded)
    };
    let (windows, bytes, whole) = loaded(&DeviceOptions::default());
    assert_eq!(windows, 1);
    drop(whole);
    let (windows, _, mut cut) =
        loaded(&DeviceOptions { max_binding: Some(bytes - 4), ..DeviceOptions::default() });
    assert_eq!(windows, 2);
    check("vectors in two windows", &cut.feed(0, 0, &ids, 4), &expected);
}

#[test]
fn gguf_gemma4_dense() {
    run_as_it_is("gguf_gemma4_dense", "model.gguf");
}

#[test]
fn gguf_gemma4_moe() {
    run_as_it_is("gguf_gemma4_moe", "model.gguf");
}

#[test]
fn gguf_gemma4_ple() {
    run_as_it_is("gguf_gemma4_ple", "model.gguf");
}

#[test]
fn gguf_gpt_oss() {
    run("gguf_gpt_oss", "model.gguf");
}

#[test]
fn gguf_gpt_oss_mxfp4() {
    run_as_it_is("gguf_gpt_oss_mxfp4", "model.gguf");
}
