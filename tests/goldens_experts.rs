//! Families with experts and attention alone, and gemma4 against their references: see `goldens.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::{run, run_as_it_is};

#[test]
fn qwen3_moe() {
    run("qwen3_moe", "");
}

#[test]
fn mlx_qwen3_moe_4bit() {
    run("mlx_qwen3_moe_4bit", "");
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
