//! What the golden tests share: one directory of `tests/data/golden` through every split, limit and variant.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use crate::support::{Loaded, Tensors, argmax, data, device_variants, distance, geometry, open};
use plimsoll_kernels::KvFormat;
use plimsoll_models::{Checkpoint, Model};
use plimsoll_runtime::{DeviceOptions, Wanted};

const TOLERANCE: f32 = 1e-3;

pub struct Golden {
    pub model: String,
    pub expected: Tensors,
}

impl Golden {
    pub fn new(family: &str, file: &str) -> Self {
        Self {
            model: format!("golden/{family}/{file}"),
            expected: Tensors::read(&data(&format!("golden/{family}/expected.safetensors"))),
        }
    }

    /// Prompt lengths in the file.
    pub fn lengths(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> = self
            .expected
            .names()
            .filter_map(|n| n.strip_prefix("prompt.")?.strip_suffix(".input_ids")?.parse().ok())
            .collect();
        lengths.sort_unstable();
        lengths
    }

    pub fn prompt(&self, length: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        let ids = self.expected.ids(&format!("prompt.{length}.input_ids"));
        (ids, self.expected.rows(&format!("prompt.{length}.logits")))
    }
}

/// The last rows of what was computed against the rows that are known.
pub fn check(what: &str, got: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert!(got.len() >= expected.len(), "{what}: {} rows", got.len());
    for (i, (got, expected)) in got[got.len() - expected.len()..].iter().zip(expected).enumerate() {
        let distance = distance(got, expected);
        assert!(distance <= TOLERANCE, "{what}, row {i}: off by {distance}");
    }
}

pub fn run(family: &str, file: &str) {
    run_on(family, file, &device_variants());
}

/// A checkpoint whose graph and formats another golden has too: what is its own, the loader, needs one device.
pub fn run_as_it_is(family: &str, file: &str) {
    run_on(family, file, &device_variants()[..1]);
}

fn run_on(family: &str, file: &str, variants: &[(&'static str, DeviceOptions)]) {
    let golden = Golden::new(family, file);
    let (checkpoint, model) = open(&data(&golden.model));
    run_model(family, &checkpoint, &model, &golden, variants);
}

/// A checkpoint that the test made itself, against what another one's file expects; on the adapter as it is.
pub fn run_made(what: &str, checkpoint: &Checkpoint, model: &Model, golden: &Golden) {
    run_model(what, checkpoint, model, golden, &device_variants()[..1]);
}

fn run_model(
    family: &str,
    checkpoint: &Checkpoint,
    model: &Model,
    golden: &Golden,
    variants: &[(&'static str, DeviceOptions)],
) {
    let lengths = golden.lengths();
    assert!(lengths.len() >= 3, "{lengths:?}");
    let longest = *lengths.last().unwrap() as u32;
    for &(variant, ref options) in variants {
        // All rows of the longest prompt in one step, beside a second sequence.
        let one_shot = geometry(longest + 16, 2, longest + 64, KvFormat::F32, longest + 64);
        let mut loaded = Loaded::new(checkpoint, model, options, &one_shot);
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
        batched(golden, family, variant, &mut loaded, &lengths);
        for chunk in [64, 7, 3, 1] {
            decode(golden, family, variant, &mut loaded, chunk);
        }

        // The same through a small plan: a window's ring wraps, and mat-vecs serve the chunks.
        if variant == "as it is" {
            let small = geometry(longest + 16, 2, 7, KvFormat::F32, 7);
            let mut loaded = Loaded::new(checkpoint, model, options, &small);
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
