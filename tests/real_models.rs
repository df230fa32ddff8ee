//! Two real models against exact (f64) references: greedy ids, logits of the first steps, perplexity of the first
//! window. Needs the files that `make models` fetches, and so the feature `real-models` that `make test` turns on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_kernels::KvFormat;
use plimsoll_models::tokenizer::Tokenizer;
use plimsoll_runtime::device::{RESERVATION_SLACK, SMALL_BLOCK};
use plimsoll_runtime::{DeviceOptions, Stepper, Wanted};
use serde_json::Value;
use std::path::PathBuf;
use support::{Loaded, argmax, data, geometry, open};

/// Largest difference to a reference logit, and the gap under which two best logits count as equal.
const TOLERANCE: f64 = 2e-3;

fn file(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/models").join(name);
    assert!(path.is_file(), "{} is missing: run `make models`", path.display());
    path
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn reference(name: &str) -> Value {
    let bytes = std::fs::read(data(&format!("real_models/{name}.json"))).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn run(name: &str) {
    let reference = reference(name);
    let path = file(reference["model"]["file"].as_str().unwrap());
    let (checkpoint, model) = open(&path);
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap();

    // Chunks of 128: the long prompt and the perplexity window need several, and sliding windows wrap.
    let geometry = geometry(768, 1, 128, KvFormat::F32, 8);
    let mut loaded = Loaded::new(&checkpoint, &model, &DeviceOptions::default(), &geometry);
    let exact_bytes = loaded.runtime.plan().total();
    let before = loaded.runtime.device().counters();

    for case in reference["cases"].as_array().unwrap() {
        greedy(name, case, &tokenizer, &mut loaded);
    }
    perplexity(name, &reference["perplexity"], &tokenizer, &mut loaded);

    let after = loaded.runtime.device().counters();
    assert_eq!(before, after, "something was allocated after the load");
    reservation(name, &loaded, exact_bytes);
}

fn greedy(name: &str, case: &Value, tokenizer: &Tokenizer, loaded: &mut Loaded) {
    let what = format!("{name}, {}", case["name"]);
    let prompt = tokenizer.encode(case["prompt"].as_str().unwrap(), true, false).unwrap();
    assert_eq!(prompt, ids(&case["prompt_ids"]), "{what}: prompt");
    let exact = &case["exact_f64"];
    let expected = ids(&exact["output_ids"]);
    let gaps = floats(&exact["top1_minus_top2_gap_per_step"]);

    let mut position = 0u32;
    let mut row = Vec::new();
    for part in prompt.chunks(128) {
        row = loaded.step(&[(0, position, part, Wanted::Last)]).pop().unwrap();
        position += part.len() as u32;
    }
    for (i, &id) in expected.iter().enumerate() {
        if let Some(step) = exact["first8"].get(i) {
            for candidate in step["top5"].as_array().unwrap() {
                let id = candidate["id"].as_u64().unwrap() as usize;
                let off = (f64::from(row[id]) - candidate["logit"].as_f64().unwrap()).abs();
                assert!(off <= TOLERANCE, "{what}, step {i}: logit of {id} is off by {off}");
            }
        }
        if gaps[i] < TOLERANCE {
            assert!(i > 0, "{what}: nothing was compared");
            break;
        }
        assert_eq!(argmax(&row), id, "{what}, step {i}");
        row = loaded.step(&[(0, position, &[id], Wanted::Last)]).pop().unwrap();
        position += 1;
    }
}

/// The first window: its second half scored against the reference's running value.
fn perplexity(name: &str, reference: &Value, tokenizer: &Tokenizer, loaded: &mut Loaded) {
    let all = tokenizer.encode(reference["text"].as_str().unwrap(), true, false).unwrap();
    assert_eq!(all, ids(&reference["token_ids"]), "{name}: tokens of the perplexity text");
    let window = &all[..512];
    // The first half is context; the logits at positions 256 to 510 score tokens 257 to 511.
    for (i, part) in window[..256].chunks(128).enumerate() {
        loaded.step(&[(0, i as u32 * 128, part, Wanted::None)]);
    }
    let mut nll = Vec::new();
    for (i, part) in window[256..511].chunks(8).enumerate() {
        let start = 256 + i * 8;
        let rows = loaded.step(&[(0, start as u32, part, Wanted::All)]);
        for (row, &next) in rows.iter().zip(&window[start + 1..]) {
            let most = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
            let sum: f64 = row.iter().map(|&v| (f64::from(v) - most).exp()).sum();
            nll.push(most + sum.ln() - f64::from(row[next as usize]));
        }
    }
    assert_eq!(nll.len(), 255);
    let exact = &reference["exact_f64"];
    for (got, expected) in nll.iter().zip(floats(&exact["nll_first_chunk_first8"])) {
        assert!((got - expected).abs() < 2.0 * TOLERANCE, "{name}: {got} for {expected}");
    }
    let perplexity = (nll.iter().sum::<f64>() / nll.len() as f64).exp();
    let expected = floats(&exact["running_ppl"])[0];
    assert!((perplexity / expected - 1.0).abs() < 1e-3, "{name}: perplexity {perplexity} for {expected}");
}

/// The driver's reservation is exact: every buffer of 4 MiB and more to the byte, and whole 4 MiB blocks, one for each
/// of at most three memory types, for the small ones together.
fn reservation(name: &str, loaded: &Loaded, planned: u64) {
    let Some(reservation) = loaded.runtime.device().reservation() else { return };
    let buffers = &loaded.runtime.plan().buffers;
    let large: u64 = buffers.iter().map(|b| b.bytes).filter(|&bytes| bytes >= SMALL_BLOCK).sum();
    let rest = reservation.reserved.checked_sub(large).unwrap();
    assert!(
        rest.is_multiple_of(SMALL_BLOCK) && (1..=3).contains(&(rest / SMALL_BLOCK)),
        "{name}: planned {planned}, of it {large} in large buffers, reserved {}",
        reservation.reserved
    );
    assert!(reservation.reserved - planned <= RESERVATION_SLACK, "{name}");
}

#[test]
fn smollm2() {
    run("smollm2");
}

#[test]
fn gemma3_270m() {
    run("gemma3-270m");
}

/// Far too little memory ends with the table, and with nothing on the device: not even the adapter's budget matters.
#[test]
fn a_mebibyte_is_refused_with_every_term() {
    for name in ["smollm2", "gemma3-270m"] {
        let path = file(reference(name)["model"]["file"].as_str().unwrap());
        for verb in [&["run", "--prompt", "x"][..], &["estimate"]] {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"));
            command.args(verb).arg(&path).args(["--memory", "1MiB"]).env_remove("PLIMSOLL_MEMORY_LIMIT");
            let output = command.output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert_eq!(output.status.code(), Some(3), "{said}");
            for part in ["weights", "kv", "activations", "io", "total", "1,048,576", "--memory"] {
                assert!(said.contains(part), "{name} {verb:?}: no {part} in {said}");
            }
        }
    }
}
