//! Families with recurrent layers against their references: see `goldens.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::run;

#[test]
fn mamba2() {
    run("mamba2", "");
}

#[test]
fn nemotron_h() {
    run("nemotron_h", "");
}

#[test]
fn nemotron_h_latent() {
    run("nemotron_h_latent", "");
}

#[test]
fn mlx_nemotron_h_2bit() {
    run("mlx_nemotron_h_2bit", "");
}

#[test]
fn mlx_nemotron_h_nvfp4() {
    run("mlx_nemotron_h_nvfp4", "");
}

#[test]
fn modelopt_nemotron_h() {
    run("modelopt_nemotron_h", "");
}

#[test]
fn gguf_nemotron_h() {
    run("gguf_nemotron_h", "model.gguf");
}

#[test]
fn gguf_nemotron_h_latent() {
    run("gguf_nemotron_h_latent", "model.gguf");
}

#[test]
fn gguf_mamba2() {
    run("gguf_mamba2", "model.gguf");
}

#[test]
fn qwen3_5_text() {
    run("qwen3_5_text", "");
}

#[test]
fn qwen3_5_moe_text() {
    run("qwen3_5_moe_text", "");
}

#[test]
fn mlx_qwen3_5_4bit() {
    run("mlx_qwen3_5_4bit", "");
}

#[test]
fn mlx_qwen3_5_nvfp4() {
    run("mlx_qwen3_5_nvfp4", "");
}

#[test]
fn mlx_qwen3_5_moe_4bit() {
    run("mlx_qwen3_5_moe_4bit", "");
}

#[test]
fn mlx_qwen3_5_moe_nvfp4() {
    run("mlx_qwen3_5_moe_nvfp4", "");
}

#[test]
fn qwen3_next() {
    run("qwen3_next", "");
}

#[test]
fn gguf_qwen3_5() {
    run("gguf_qwen3_5", "model.gguf");
}

#[test]
fn gguf_qwen3_5_moe() {
    run("gguf_qwen3_5_moe", "model.gguf");
}

#[test]
fn gguf_qwen3_next() {
    run("gguf_qwen3_next", "model.gguf");
}
