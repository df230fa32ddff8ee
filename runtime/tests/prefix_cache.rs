//! What is kept of earlier sequences serves those that begin alike, and nobody can tell: on a real device, for full
//! attention, windows, recurrent states and all of them together, a prompt that finds its beginning has the logits of
//! one that is computed from its first token on.
//!
//! Bit for bit where the steps end at the same tokens: which kernel computes a row, and in what order it sums, depends
//! on how many tokens the step has, so a prompt that is cut elsewhere is rounded elsewhere, cache or none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_estimator::{Geometry, Overhead, Plan, Priced, Verdict, admit};
use plimsoll_kernels::KvFormat;
use plimsoll_models::Registry;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_runtime::request::What;
use plimsoll_runtime::{
    Device, DeviceOptions, Engine, Request, Runtime, RuntimeError, Sampling, StepInput, StepOutput, Stepper,
    Telemetry, Usage,
};
use std::path::Path;

/// Rows of another split are rounded otherwise; the goldens themselves are held to ten times that.
const ROUNDING: f32 = 1e-4;

/// A runtime whose every row is looked at.
struct Watched {
    runtime: Runtime,
    rows: Vec<Vec<f32>>,
}

impl Stepper for Watched {
    fn plan(&self) -> &Plan {
        self.runtime.plan()
    }

    fn set_block_table(&mut self, kind: u32, slot: u32, pages: &[u32]) -> Result<(), RuntimeError> {
        self.runtime.set_block_table(kind, slot, pages)
    }

    fn telemetry(&self, usage: Usage, requests: [usize; 2]) -> Option<Telemetry> {
        self.runtime.telemetry(usage, requests)
    }

    fn begin(&mut self, slot: u32) {
        self.runtime.begin(slot);
    }

    fn snapshot(&mut self, slot: u32, position: u32, index: u32) -> Result<(), RuntimeError> {
        self.runtime.snapshot(slot, position, index)
    }

    fn restore(&mut self, index: u32, slot: u32, position: u32) -> Result<(), RuntimeError> {
        self.runtime.restore(index, slot, position)
    }

    fn step(&mut self, input: &StepInput<'_>) -> Result<StepOutput, RuntimeError> {
        let sampling = if input.logit_rows() == 0 { Sampling::None } else { Sampling::Logits };
        let output = self.runtime.step(&StepInput { sampling, ..*input })?;
        if let StepOutput::Logits { vocab, values } = &output {
            self.rows.extend(values.chunks(*vocab as usize).map(<[f32]>::to_vec));
        }
        Ok(output)
    }
}

fn engine(family: &str, chunk: u32, kv: KvFormat, snapshots: u32) -> Engine<Watched> {
    engine_on(&DeviceOptions::default(), family, chunk, kv, snapshots)
}

fn engine_on(
    options: &DeviceOptions,
    family: &str,
    chunk: u32,
    kv: KvFormat,
    snapshots: u32,
) -> Engine<Watched> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden").join(family);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    let device = Device::open(options).unwrap();
    let geometry = Geometry {
        context: 256,
        slots: 2,
        prefill_chunk: chunk,
        kv,
        logit_rows: 2,
        draft_depth: 0,
        priced: Priced { snapshots, ..Priced::default() },
    };
    let admitted = match admit(&model, &geometry, device.profile(), None, Overhead::default()).unwrap() {
        Verdict::Admitted(admitted) => admitted,
        Verdict::Refused(refusal) => panic!("{refusal}"),
    };
    let runtime = Runtime::load(device, &model, &checkpoint, admitted, &mut |_| ()).unwrap();
    Engine::new(Watched { runtime, rows: Vec::new() }).unwrap()
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

/// Largest absolute difference; NaN counts as infinite.
fn distance(got: &[f32], expected: &[f32]) -> f32 {
    let each = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    each.fold(0.0, |most, d| if d.is_nan() { f32::INFINITY } else { most.max(d) })
}

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 1 + (seed * 131 + i * 29 + i * i * 3) % 250).collect()
}

/// Rows of a request's answer, and how many tokens of its prompt were there.
fn ask(engine: &mut Engine<Watched>, prompt: &[u32], max_new: u32) -> (Vec<Vec<f32>>, u32) {
    engine.stepper_mut().rows.clear();
    engine.submit(Request { prompt: prompt.to_vec(), max_new, ..Default::default() }).unwrap();
    let mut known = 0;
    while !engine.is_idle() {
        for event in engine.step() {
            match event.what {
                What::Prefill { cached, .. } => known = cached,
                What::Failed(error) => panic!("{error}"),
                What::Token { .. } | What::Done(_) => {}
            }
        }
        engine.pool().check().unwrap();
    }
    (std::mem::take(&mut engine.stepper_mut().rows), known)
}

fn exact(family: &str, snapshots: u32) {
    for (chunk, kv) in [(32, KvFormat::F32), (32, KvFormat::F16), (96, KvFormat::F32)] {
        exact_on(&DeviceOptions::default(), family, snapshots, chunk, kv);
    }
}

/// In one format, with one chunk, on a device that is opened in one way.
fn exact_on(options: &DeviceOptions, family: &str, snapshots: u32, chunk: u32, kv: KvFormat) {
    let asked = prompt(1, 150);
    // Goes on from the first, where its last whole page ended, with an answer of its own.
    let longer = [&asked[..], &prompt(2, 40)].concat();
    let mut cold = engine_on(options, family, chunk, kv, snapshots);
    cold.set_cache_limit(Some(0));
    let mut warm = engine_on(options, family, chunk, kv, snapshots);
    let allocated = |engine: &Engine<Watched>| engine.stepper().runtime.account().total;
    let before = allocated(&warm);
    let (expected, expected_longer) = (ask(&mut cold, &asked, 6).0, ask(&mut cold, &longer, 6).0);
    let mut found = Vec::new();
    for (what, prompt, expected) in [
        ("the first", &asked, &expected),
        ("the same again", &asked, &expected),
        ("one that goes on", &longer, &expected_longer),
        ("the first again", &asked, &expected),
    ] {
        let (rows, known) = ask(&mut warm, prompt, 6);
        found.push(known);
        assert_eq!(rows.len(), expected.len());
        for (row, (got, expected)) in rows.iter().zip(expected).enumerate() {
            let what = format!("{family}, chunks of {chunk}, {}, {what}, row {row}", kv.name());
            if chunk == 32 {
                let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert!(bits(got) == bits(expected), "{what}: off by {}", distance(got, expected));
            }
            assert!(distance(got, expected) <= ROUNDING, "{what}: {}", distance(got, expected));
            assert_eq!(argmax(got), argmax(expected), "{what}");
        }
        // Somebody else leaves other things in the slots.
        ask(&mut warm, &prompt_of_another(), 2);
    }
    assert_eq!(found, [0, 128, 128, 128], "{family}, chunks of {chunk}");
    let stats = warm.cache_stats();
    assert!(stats.bytes > 0 && stats.hits >= 3, "{stats:?}");
    // What was planned is what is allocated, then as now.
    warm.stepper().runtime.account().check().unwrap();
    assert_eq!(allocated(&warm), before);
}

fn prompt_of_another() -> Vec<u32> {
    prompt(77, 61)
}

#[test]
fn full_attention() {
    exact("llama", 0);
}

#[test]
fn windows() {
    exact("gemma3_text", 4);
}

#[test]
fn windows_of_other_heads() {
    exact("gpt_oss", 4);
}

#[test]
fn recurrent_states_beside_attention() {
    exact("nemotron_h", 4);
    exact("qwen3_5_text", 4);
}

#[test]
fn recurrent_states_alone() {
    exact("mamba2", 4);
}

/// Eight bits a number, whose blocks are written once and read by those that begin alike, of full attention, of windows
/// and beside recurrent states.
#[test]
fn keys_and_values_of_eight_bits() {
    for (family, snapshots) in [("qwen3", 0), ("gpt_oss", 4), ("qwen3_5_text", 4)] {
        exact_on(&DeviceOptions::default(), family, snapshots, 32, KvFormat::Q8_0);
    }
}

/// With other kernels, and with buffers cut otherwise.
#[test]
fn devices_without_subgroups_or_with_the_least_limits() {
    for options in [
        DeviceOptions { subgroups: false, ..DeviceOptions::default() },
        DeviceOptions { webgpu_limits: true, ..DeviceOptions::default() },
    ] {
        for (family, snapshots, kv) in [
            ("llama", 0, KvFormat::F16),
            ("gemma3_text", 4, KvFormat::F32),
            ("qwen3_5_text", 4, KvFormat::Q8_0),
        ] {
            exact_on(&options, family, snapshots, 32, kv);
        }
    }
}

/// Two at once: one that begins with what is there, and one that does not.
#[test]
fn company_takes_nothing_from_it() {
    for (family, snapshots) in [("llama", 0), ("nemotron_h", 4), ("gemma3_text", 4)] {
        let mut engine = engine(family, 64, KvFormat::F32, snapshots);
        let (asked, other) = (prompt(1, 100), prompt(5, 90));
        let tokens = |rows: &[Vec<f32>]| rows.iter().map(|row| argmax(row) as u32).collect::<Vec<_>>();
        engine.set_cache_limit(Some(0));
        let alone = [&asked, &other].map(|prompt| tokens(&ask(&mut engine, prompt, 8).0));
        engine.set_cache_limit(None);
        ask(&mut engine, &asked, 1);
        let ids = [&asked, &other].map(|prompt| {
            engine.submit(Request { prompt: prompt.clone(), max_new: 8, ..Default::default() }).unwrap()
        });
        let mut got = [Vec::new(), Vec::new()];
        while !engine.is_idle() {
            for event in engine.step() {
                let at = ids.iter().position(|id| *id == event.request).unwrap();
                match event.what {
                    What::Token { id, .. } => got[at].push(id),
                    What::Failed(error) => panic!("{error}"),
                    What::Prefill { cached, .. } => assert_eq!(cached, [96, 0][at], "{family}"),
                    What::Done(_) => {}
                }
            }
            engine.pool().check().unwrap();
        }
        assert_eq!(got, alone, "{family}");
    }
}

/// A model that would need snapshots and has none computes everything again, and is right.
#[test]
fn without_snapshots_nothing_is_found() {
    let mut engine = engine("nemotron_h", 32, KvFormat::F32, 0);
    let asked = prompt(1, 100);
    let first = ask(&mut engine, &asked, 4);
    assert_eq!(ask(&mut engine, &asked, 4), first);
    assert_eq!((first.1, engine.cache_stats().bytes), (0, 0));
}
