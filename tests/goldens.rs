//! Every family against logits of the public reference implementations (`tests/data/golden`): one-shot, chunked,
//! batched with another sequence, cached decode; on the adapter as it is, at WebGPU's default limits and without
//! subgroups. KV in f32; the tolerance is the references' own noise with room, 1e-3.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_kernels::KvFormat;
use plimsoll_runtime::{DeviceOptions, Wanted};
use support::{Loaded, Tensors, argmax, data, device_variants, distance, geometry, open};

const TOLERANCE: f32 = 1e-3;

struct Golden {
    model: String,
    expected: Tensors,
}

impl Golden {
    fn new(family: &str, file: &str) -> Self {
        Self {
            model: format!("golden/{family}/{file}"),
            expected: Tensors::read(&data(&format!("golden/{family}/expected.safetensors"))),
        }
    }

    /// Prompt lengths in the file.
    fn lengths(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> = self
            .expected
            .names()
            .filter_map(|n| n.strip_prefix("prompt.")?.strip_suffix(".input_ids")?.parse().ok())
            .collect();
        lengths.sort_unstable();
        lengths
    }

    fn prompt(&self, length: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        let ids = self.expected.ids(&format!("prompt.{length}.input_ids"));
        (ids, self.expected.rows(&format!("prompt.{length}.logits")))
    }
}

/// The last rows of what was computed against the rows that are known.
fn check(what: &str, got: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert!(got.len() >= expected.len(), "{what}: {} rows", got.len());
    for (i, (got, expected)) in got[got.len() - expected.len()..].iter().zip(expected).enumerate() {
        let distance = distance(got, expected);
        assert!(distance <= TOLERANCE, "{what}, row {i}: off by {distance}");
    }
}

fn run(family: &str, file: &str) {
    let golden = Golden::new(family, file);
    let (checkpoint, model) = open(&data(&golden.model));
    let lengths = golden.lengths();
    assert!(lengths.len() >= 3, "{lengths:?}");
    let longest = *lengths.last().unwrap() as u32;
    for (variant, options) in device_variants() {
        // All rows of the longest prompt in one step, beside a second sequence.
        let one_shot = geometry(longest + 16, 2, longest + 64, KvFormat::F32, longest + 64);
        let mut loaded = Loaded::new(&checkpoint, &model, &options, &one_shot);
        for &length in &lengths {
            let (ids, expected) = golden.prompt(length);
            for chunk in [length, 64, 7, 3, 1] {
                if chunk > length {
                    continue;
                }
                let rows = loaded.feed(0, 0, &ids, chunk);
                check(
                    &format!("{family}, {variant}, prompt {length} in chunks of {chunk}"),
                    &rows,
                    &expected,
                );
            }
        }
        batched(&golden, family, variant, &mut loaded, &lengths);
        for chunk in [64, 7, 3, 1] {
            decode(&golden, family, variant, &mut loaded, chunk);
        }

        // The same through a small plan: a window's ring wraps, and mat-vecs serve the chunks.
        if variant == "as it is" {
            let small = geometry(longest + 16, 2, 7, KvFormat::F32, 7);
            let mut loaded = Loaded::new(&checkpoint, &model, &options, &small);
            for &length in &lengths {
                let (ids, expected) = golden.prompt(length);
                let rows = loaded.feed(1, 0, &ids, 7);
                check(&format!("{family}, small plan, prompt {length}"), &rows, &expected);
            }
        }
    }
}

/// Two sequences of different lengths in the same steps, each as if it were alone.
fn batched(golden: &Golden, family: &str, variant: &str, loaded: &mut Loaded, lengths: &[usize]) {
    let (long, expected_long) = golden.prompt(lengths[lengths.len() - 1]);
    let (short, expected_short) = golden.prompt(lengths[lengths.len() / 2]);
    let (mut rows_long, mut rows_short) = (Vec::new(), Vec::new());
    let (mut at_long, mut at_short) = (0, 0);
    while at_long < long.len() || at_short < short.len() {
        let mut step = Vec::new();
        let next_long = (at_long + 60).min(long.len());
        let next_short = (at_short + 17).min(short.len());
        if next_short > at_short {
            step.push((1, at_short as u32, &short[at_short..next_short], Wanted::All));
        }
        if next_long > at_long {
            step.push((0, at_long as u32, &long[at_long..next_long], Wanted::All));
        }
        let mut rows = loaded.step(&step);
        rows_long.extend(rows.split_off(next_short - at_short));
        rows_short.extend(rows);
        (at_long, at_short) = (next_long, next_short);
    }
    check(&format!("{family}, {variant}, batched, the longer"), &rows_long, &expected_long);
    check(&format!("{family}, {variant}, batched, the shorter"), &rows_short, &expected_short);
}

/// Greedy decoding token by token after a prompt in chunks, beside a second sequence that decodes too: ids equal,
/// logits close.
fn decode(golden: &Golden, family: &str, variant: &str, loaded: &mut Loaded, chunk: usize) {
    let prompt = golden.expected.ids("decode.prompt_ids");
    let ids = golden.expected.ids("decode.token_ids");
    let expected = golden.expected.rows("decode.logits");
    let mut rows = vec![loaded.feed(0, 0, &prompt, chunk).pop().unwrap()];
    loaded.feed(1, 0, &prompt[..5], 5);
    for (i, &id) in ids.iter().enumerate() {
        assert_eq!(argmax(&rows[i]), id, "{family}, {variant}, chunks of {chunk}, decode step {i}");
        if i + 1 < ids.len() {
            let position = (prompt.len() + i) as u32;
            let step: &[(u32, u32, &[u32], Wanted)] = if i % 2 == 0 {
                &[(0, position, &[id], Wanted::Last)]
            } else {
                &[(1, 5 + i as u32 / 2, &[7], Wanted::None), (0, position, &[id], Wanted::Last)]
            };
            rows.extend(loaded.step(step));
        }
    }
    check(&format!("{family}, {variant}, chunks of {chunk}, decode"), &rows, &expected);
}

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
fn mlx_qwen3_5bit() {
    run("mlx_qwen3_5bit", "");
}

#[test]
fn mlx_llama_4bit() {
    run("mlx_llama_4bit", "");
}

#[test]
fn qwen3_moe() {
    run("qwen3_moe", "");
}

#[test]
fn mlx_qwen3_moe_4bit() {
    run("mlx_qwen3_moe_4bit", "");
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
fn mlx_gemma3_8bit() {
    run("mlx_gemma3_8bit", "");
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
