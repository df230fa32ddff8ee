//! Every family against logits of the public reference implementations (`tests/data/golden`): one-shot, chunked,
//! batched with another sequence, cached decode; on the adapter as it is, at WebGPU's default limits and without
//! subgroups. KV in f32; the tolerance is the references' own noise with room, 1e-3.
//!
//! Other families are in `goldens_hybrids.rs` and `goldens_experts.rs`: a software driver keeps the code of every
//! pipeline a process ever had, and runs out of room for it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::{Golden, run};
use plimsoll_kernels::KvFormat;
use plimsoll_runtime::DeviceOptions;
use support::{Loaded, data, distance, geometry, open};

#[test]
fn llama() {
    run("llama", "");
}

#[test]
fn qwen3() {
    run("qwen3", "");
}

#[test]
fn gemma3_text() {
    run("gemma3_text", "");
}

#[test]
fn gguf_llama() {
    run("gguf_llama", "model.gguf");
}

#[test]
fn gguf_qwen3() {
    run("gguf_qwen3", "model.gguf");
}

#[test]
fn mlx_qwen3_5bit() {
    run("mlx_qwen3_5bit", "");
}

#[test]
fn mlx_llama_4bit() {
    run("mlx_llama_4bit", "");
}

#[test]
fn mlx_gemma3_8bit() {
    run("mlx_gemma3_8bit", "");
}

/// KV in fewer bits moves the logits by what the format rounds away, and no further: the largest distance to the
/// references, whose KV is f32, on models whose heads have blocks of 32. A value of f16 is off by up to 2^-12 of
/// itself, one of q8_0 by up to 1/254 of the largest of its block, which is twenty to thirty times as much.
const ROUNDED: [(KvFormat, f32); 2] = [(KvFormat::F16, 6e-3), (KvFormat::Q8_0, 0.15)];

#[test]
fn keys_and_values_in_fewer_bits_stay_near_the_references() {
    for (family, file) in [("qwen3", ""), ("gguf_qwen3", "model.gguf")] {
        let golden = Golden::new(family, file);
        let (checkpoint, model) = open(&data(&golden.model));
        let longest = *golden.lengths().last().unwrap();
        let (ids, expected) = golden.prompt(longest);
        for (kv, tolerance) in ROUNDED {
            let geometry = geometry(longest as u32 + 16, 2, 48, kv, 48);
            let mut loaded = Loaded::new(&checkpoint, &model, &DeviceOptions::default(), &geometry);
            let rows = loaded.feed(1, 0, &ids, 48);
            let off: Vec<f32> = rows[rows.len() - expected.len()..]
                .iter()
                .zip(&expected)
                .map(|(got, expected)| distance(got, expected))
                .collect();
            let most = off.iter().copied().fold(0.0, f32::max);
            assert!(most <= tolerance, "{family}, {kv}: off by {most}");
            // The format is really in use: the last row, which sees the most keys, is not exact.
            assert!(*off.last().unwrap() > 1e-6, "{family}, {kv}: {off:?}");
        }
    }
}
