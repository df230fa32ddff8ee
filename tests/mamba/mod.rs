//! Steps through a state space, for tests and benches of lone kernels: packed sequences, poisoned slots and columns.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod conv;

use crate::steps::{Noise, Run, assert_close, run, step_words};
use plimsoll_kernels::ops::ssd;
use plimsoll_kernels::{Kernel, Profile, Ssd, SsmShape, StepLayout, StepShape};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, POISON, floats};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// As the adapter is, without subgroups, at WebGPU's limits; cases take turns.
pub fn devices() -> MutexGuard<'static, [LoneKernel; 3]> {
    static DEVICES: LazyLock<Mutex<[LoneKernel; 3]>> = LazyLock::new(|| {
        let open =
            |subgroups, default_limits| LoneKernel::open(Options { subgroups, default_limits }).unwrap();
        Mutex::new([open(true, false), open(false, true), open(true, true)])
    });
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profile with each form, in blocks of these sizes, and the block (that of the first where there is none).
pub fn every_form(profile: &Profile, blocks: &[u32]) -> Vec<(Profile, u32)> {
    let mut forms = vec![(Ssd::Sequential, blocks[0])];
    for &block in blocks {
        forms.push((Ssd::Streaming { block }, block));
        forms.push((Ssd::Kernels { block }, block));
    }
    let with = |(form, block)| {
        let mut profile = profile.clone();
        profile.tuning.ssd = form;
        (profile, block)
    };
    forms.into_iter().map(with).collect()
}

/// The form that a plan made of the one that `profile` asks for: one that cannot hold a size gives way.
pub fn planned(profile: &Profile, args: &ssd::Args) -> Ssd {
    let stages = ssd::plan(profile, args);
    let Kernel::Ssd(variant) = &stages[0].call.kernel else { panic!("no kernel of a state space") };
    match variant.part {
        ssd::Part::Sequential => Ssd::Sequential,
        ssd::Part::Streaming => Ssd::Streaming { block: variant.block },
        _ => Ssd::Kernels { block: variant.block },
    }
}

/// The largest value that is written.
pub fn scale_of(values: &[f32]) -> f32 {
    values.iter().filter(|v| v.to_bits() != POISON).fold(0.0f32, |a, v| a.max(v.abs()))
}

/// A state space and the steps it is planned for.
#[derive(Clone)]
pub struct Layer {
    pub args: ssd::Args,
    pub layout: StepLayout,
    pub vectors: Vec<f32>,
}

impl Layer {
    /// With so many columns of poison beside those that are used.
    pub fn new(shape: SsmShape, max_tokens: u32, slots: u32, slack: u32) -> Self {
        let layout = StepLayout::new(max_tokens, 1, slots, &[3, max_tokens], &[], &[]).unwrap();
        let mut noise = Noise::new(u64::from(shape.heads));
        let heads = shape.heads;
        // a in −1.5..−0.05, D and the bias around 0.
        let mut vectors = vec![f32::from_bits(POISON); 2];
        vectors.extend(noise.floats(heads as usize).iter().map(|v| -0.775 + 0.725 * v));
        vectors.extend(noise.floats(2 * heads as usize));
        let args = ssd::Args {
            shape,
            xbc_stride: shape.channels() + slack,
            dt_column: 2,
            dt_stride: heads + 2 + slack,
            out_stride: shape.inner() + slack,
            a: 2,
            d: 2 + heads,
            dt_bias: 2 + 2 * heads,
            dt_limit: None,
            sequences: (1, layout.tiles[1]),
            first_slot: 0,
            slots,
            max_tokens,
        };
        Self { args, layout, vectors }
    }

    /// A step with noise for its activations. States of sequences that begin are poison, as are those of slots
    /// that are not in the step.
    pub fn step(&self, runs: &[Run], seed: u64) -> Step {
        let mut noise = Noise::new(seed);
        let args = &self.args;
        let tokens: u32 = runs.iter().map(|r| r.tokens).sum();
        let mut rows = |first: usize, columns: u32, stride: u32, scale: f32| {
            let mut values = vec![f32::from_bits(POISON); (tokens * stride) as usize];
            for row in values.chunks_mut(stride as usize) {
                let noise = noise.floats(columns as usize);
                row[first..first + noise.len()].iter_mut().zip(noise).for_each(|(v, n)| *v = n * scale);
            }
            values
        };
        let xbc = rows(0, args.shape.channels(), args.xbc_stride, 1.0);
        // Δ from 0.03 to 3.
        let dt = rows(args.dt_column as usize, args.shape.heads, args.dt_stride, 3.0);
        let size = (args.shape.inner() * args.shape.state) as usize;
        let mut states = vec![f32::from_bits(POISON); args.slots as usize * size];
        for run in runs.iter().filter(|r| r.first > 0) {
            if let Some(slot) = run.slot.checked_sub(args.first_slot).filter(|s| *s < args.slots) {
                states[slot as usize * size..][..size].copy_from_slice(&noise.floats(size));
            }
        }
        let (words, shape) = step_words(&self.layout, runs, 1);
        Step { layer: self.clone(), runs: runs.to_vec(), words, shape, xbc, dt, states }
    }

    /// The device against the twin.
    pub fn check(&self, device: &LoneKernel, profile: &Profile, runs: &[Run], what: &str) {
        self.step(runs, 7).check(device, profile, what);
    }
}

/// A step through a layer.
#[derive(Clone)]
pub struct Step {
    pub layer: Layer,
    pub runs: Vec<Run>,
    pub words: Vec<u32>,
    pub shape: StepShape,
    pub xbc: Vec<f32>,
    pub dt: Vec<f32>,
    pub states: Vec<f32>,
}

impl Step {
    /// Some tokens of a step of one sequence, through `layer`.
    pub fn part(&self, layer: &Layer, first: u32, tokens: u32) -> Self {
        let whole = self.runs[0];
        let runs = vec![run(whole.slot, whole.first + first, tokens)];
        let rows = |values: &[f32], stride: u32| {
            values[(first * stride) as usize..((first + tokens) * stride) as usize].to_vec()
        };
        let (words, shape) = step_words(&layer.layout, &runs, 1);
        let xbc = rows(&self.xbc, layer.args.xbc_stride);
        let dt = rows(&self.dt, layer.args.dt_stride);
        Self { layer: layer.clone(), runs, words, shape, xbc, dt, states: self.states.clone() }
    }

    /// Outputs and states of the token-sequential twin.
    pub fn expected(&self) -> (Vec<f32>, Vec<f32>) {
        let args = &self.layer.args;
        let mut out = vec![f32::from_bits(POISON); (self.shape.tokens * args.out_stride) as usize];
        let mut states = self.states.clone();
        ssd::recurrent(args, &self.words, &self.xbc, &self.dt, &mut states, &self.layer.vectors, &mut out);
        (out, states)
    }

    /// The operands of a stage.
    pub fn operands(&self, stage: &ssd::Stage, [states, out, scratch]: [&Data; 3]) -> Vec<Data> {
        let data = |operand: &ssd::Operand| match operand {
            ssd::Operand::Xbc => Data::F32(self.xbc.clone()),
            ssd::Operand::Dt => Data::F32(self.dt.clone()),
            ssd::Operand::Vectors => Data::F32(self.layer.vectors.clone()),
            ssd::Operand::States => states.clone(),
            ssd::Operand::Out => out.clone(),
            ssd::Operand::Scratch => scratch.clone(),
        };
        stage.operands.iter().map(data).collect()
    }

    /// Outputs, states, and the words of scratch that were bound.
    pub fn on_device(&self, device: &LoneKernel, profile: &Profile) -> (Vec<f32>, Vec<f32>, u64) {
        let args = &self.layer.args;
        let words = ssd::scratch_words(profile, args);
        let mut states = Data::F32(self.states.clone());
        let mut out = Data::Poison((self.shape.tokens * args.out_stride) as usize);
        let mut scratch = Data::Poison(words as usize);
        for stage in ssd::plan(profile, args) {
            let operands = self.operands(&stage, [&states, &out, &scratch]);
            let written = device.run(&stage.call, &self.words, &operands, &self.shape, None).unwrap();
            let mut written = written.into_iter().map(Data::Bytes);
            let accesses = stage.call.kernel.operands();
            for (operand, access) in stage.operands.iter().zip(accesses) {
                if access == plimsoll_kernels::Access::Write {
                    match operand {
                        ssd::Operand::States => states = written.next().unwrap(),
                        ssd::Operand::Out => out = written.next().unwrap(),
                        ssd::Operand::Scratch => scratch = written.next().unwrap(),
                        _ => panic!("{operand:?} is not written"),
                    }
                }
            }
        }
        let values = |data: Data| match data {
            Data::Bytes(bytes) => floats(&bytes),
            Data::F32(values) => values,
            _ => panic!("nothing was written"),
        };
        (values(out), values(states), words)
    }

    /// The device against the twin, within 2e-5 of the largest value: f32 sums of up to a few hundred terms in another
    /// order, and exponentials of differences of sums, against f64.
    pub fn check(&self, device: &LoneKernel, profile: &Profile, what: &str) {
        let (out, states) = self.expected();
        let (got, left, _) = self.on_device(device, profile);
        let what =
            format!("{what}: {:?}, {:?}, {:?}", self.layer.args.shape, profile.tuning.ssd, self.runs.len());
        assert_close(&got, &out, 2e-5 * scale_of(&out), &what);
        assert_close(&left, &states, 2e-5 * scale_of(&states), &format!("{what}, states"));
    }
}
