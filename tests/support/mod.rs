//! What integration tests share: opening models under `tests/data`, loading them on the machine's adapter, and
//! forwards through page tables that are shuffled on purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use plimsoll_estimator::{Geometry, Overhead, Plan, Verdict, admit};
use plimsoll_kernels::{KvFormat, Profile};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{Model, Registry};
use plimsoll_runtime::{
    Device, DeviceOptions, Runtime, Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted,
};
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

pub fn open(path: &Path) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

/// The ways a device is opened: as it is, at WebGPU's default limits, and without subgroups.
pub fn device_variants() -> Vec<(&'static str, DeviceOptions)> {
    vec![
        ("as it is", DeviceOptions::default()),
        ("WebGPU limits", DeviceOptions { webgpu_limits: true, ..DeviceOptions::default() }),
        ("no subgroups", DeviceOptions { subgroups: false, ..DeviceOptions::default() }),
    ]
}

pub fn geometry(context: u32, slots: u32, prefill_chunk: u32, kv: KvFormat, logit_rows: u32) -> Geometry {
    Geometry { context, slots, prefill_chunk, kv, logit_rows, draft_depth: 0, priced: Default::default() }
}

pub fn admitted(model: &Model, geometry: &Geometry, profile: &Profile) -> plimsoll_estimator::Admitted {
    match admit(model, geometry, profile, None, Overhead::default()).unwrap() {
        Verdict::Admitted(admitted) => admitted,
        Verdict::Refused(refusal) => panic!("{refusal}"),
    }
}

/// A loaded model whose slots have block tables of their own, dealt in an order that is no identity.
pub struct Loaded {
    pub runtime: Runtime,
}

impl Loaded {
    pub fn new(checkpoint: &Checkpoint, model: &Model, options: &DeviceOptions, geometry: &Geometry) -> Self {
        let device = Device::open(options).unwrap();
        let admitted = admitted(model, geometry, device.profile());
        let mut runtime = Runtime::load(device, model, checkpoint, admitted, &mut |_| ()).unwrap();
        deal(&mut runtime);
        check_books(&runtime);
        Self { runtime }
    }

    /// One step of several sequences: `(slot, position, ids, wanted)`.
    pub fn step(&mut self, sequences: &[(u32, u32, &[u32], Wanted)]) -> Vec<Vec<f32>> {
        let sequences: Vec<SequenceInput<'_>> = sequences
            .iter()
            .map(|&(slot, position, ids, wanted)| SequenceInput { slot, position, ids, wanted })
            .collect();
        let rows: u32 = sequences.iter().map(|s| s.wanted.rows(s.ids.len() as u32)).sum();
        let sampling = if rows == 0 { Sampling::None } else { Sampling::Logits };
        let input = StepInput { sequences: &sequences, sampling, cancel: None };
        match self.runtime.step(&input).unwrap() {
            StepOutput::None => Vec::new(),
            StepOutput::Logits { vocab, values } => {
                values.chunks(vocab as usize).map(<[f32]>::to_vec).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// The logits of every new token of one sequence, fed in chunks.
    pub fn feed(&mut self, slot: u32, start: u32, ids: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        let mut rows = Vec::new();
        let mut position = start;
        for part in ids.chunks(chunk) {
            rows.extend(self.step(&[(slot, position, part, Wanted::All)]));
            position += part.len() as u32;
        }
        rows
    }
}

/// Gives every slot all the pages it may hold, in an order that differs from slot to slot.
pub fn deal(runtime: &mut Runtime) {
    let plan = runtime.plan().clone();
    for (kind, pages) in plan.kv.kinds.iter().enumerate() {
        let mut all: Vec<u32> = (0..pages.pages).collect();
        // A fixed shuffle: multiplicative steps over the pages.
        let n = all.len();
        let mut state = 12345u32;
        for i in (1..n).rev() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            all.swap(i, (state >> 8) as usize % (i + 1));
        }
        for slot in 0..plan.geometry.slots {
            let from = (slot * pages.pages_per_slot) as usize;
            let table = &all[from..from + pages.pages_per_slot as usize];
            runtime.set_block_table(kind as u32, slot, table).unwrap();
        }
    }
}

/// Priced = allocated, buffer by buffer, by our books and by wgpu's own counters.
pub fn check_books(runtime: &Runtime) {
    let plan: &Plan = runtime.plan();
    let mut held: Vec<(String, u64)> =
        runtime.device().buffers().into_iter().map(|e| (e.name.to_string(), e.bytes)).collect();
    let mut priced: Vec<(String, u64)> = plan.buffers.iter().map(|b| (b.name.clone(), b.bytes)).collect();
    held.sort();
    priced.sort();
    assert_eq!(held, priced);
}

pub struct Tensors(HashMap<String, (Vec<usize>, Vec<f32>)>);

impl Tensors {
    /// Every tensor of a file, integers and floats alike, as f32 (ids are small).
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let words = view.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            let values = match view.dtype() {
                safetensors::Dtype::F32 => words.map(f32::from_le_bytes).collect(),
                safetensors::Dtype::I32 => words.map(|b| i32::from_le_bytes(b) as f32).collect(),
                _ => Vec::new(),
            };
            (name, (view.shape().to_vec(), values))
        });
        Self(tensors.collect())
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.0[name].1.iter().map(|&v| v as u32).collect()
    }

    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let (shape, values) = &self.0[name];
        values.chunks(shape[1]).map(<[f32]>::to_vec).collect()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Largest absolute difference; NaN counts as infinite.
pub fn distance(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, d| if d.is_nan() { f32::INFINITY } else { most.max(d) })
}

pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best as u32
}
