//! Steps through a causal convolution, for tests of the lone kernel.

use crate::steps::{Noise, Run, assert_close, run, step_words};
use plimsoll_kernels::ops::conv;
use plimsoll_kernels::{Profile, StepLayout};
use plimsoll_runtime::lone::{Data, LoneKernel, POISON, floats};

/// To compare values that may be poison.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A convolution and a step through it.
#[derive(Clone)]
pub struct Conv {
    pub args: conv::Args,
    pub runs: Vec<Run>,
    pub layout: StepLayout,
    pub x: Vec<f32>,
    pub tails: Vec<f32>,
    pub vectors: Vec<f32>,
}

impl Conv {
    /// Steps through a convolution of so many channels and taps.
    pub fn new(channels: u32, taps: u32, runs: &[Run], slots: u32) -> Self {
        let tokens: u32 = runs.iter().map(|r| r.tokens).sum();
        let layout = StepLayout::new(tokens + 3, 1, slots, &[2, tokens + 3], &[], &[]).unwrap();
        let mut noise = Noise::new(u64::from(channels * 10 + taps));
        let args = conv::Args {
            channels,
            taps,
            column: 5,
            x_stride: channels + 9,
            out_stride: channels + 2,
            weight: 3,
            bias: taps.is_multiple_of(2).then_some(3 + channels * taps),
            positions: layout.positions,
            token_slots: layout.token_slots,
            sequences: (1, layout.tiles[1]),
            first_slot: 0,
            slots,
            max_tokens: tokens + 3,
        };
        let past = (taps - 1) as usize;
        let size = past * channels as usize;
        // Tails of sequences that begin are poison, as are those of slots that are not in the step.
        let mut tails = vec![f32::from_bits(POISON); (slots as usize * size).max(1)];
        for run in runs {
            let real = (run.first as usize).min(past);
            let tail = &mut tails[run.slot as usize * size..][..size];
            tail[(past - real) * channels as usize..]
                .copy_from_slice(&noise.floats(real * channels as usize));
        }
        let mut x = vec![f32::from_bits(POISON); (tokens * args.x_stride) as usize];
        for row in x.chunks_mut(args.x_stride as usize) {
            row[5..5 + channels as usize].copy_from_slice(&noise.floats(channels as usize));
        }
        let vectors = noise.floats((3 + channels * (taps + 1)) as usize);
        Self { args, runs: runs.to_vec(), layout, x, tails, vectors }
    }

    /// Some tokens of a step of one sequence.
    pub fn part(&self, first: u32, tokens: u32) -> Self {
        let whole = self.runs[0];
        let rows = (first * self.args.x_stride) as usize..((first + tokens) * self.args.x_stride) as usize;
        let runs = vec![run(whole.slot, whole.first + first, tokens)];
        Self { runs, x: self.x[rows].to_vec(), ..self.clone() }
    }

    /// What comes out, and the tails that are left.
    pub fn on_device(&self, device: &LoneKernel, profile: &Profile) -> (Vec<f32>, Vec<f32>) {
        let (step, step_shape) = step_words(&self.layout, &self.runs, 1);
        let tokens: u32 = self.runs.iter().map(|r| r.tokens).sum();
        let x = Data::F32(self.x.clone());
        let tails = Data::F32(self.tails.clone());
        let out = Data::Poison((tokens * self.args.out_stride) as usize);
        let operands = [x.clone(), tails.clone(), out, Data::F32(self.vectors.clone())];
        let written =
            device.run(&conv::plan(profile, &self.args), &step, &operands, &step_shape, None).unwrap();
        let out = floats(&written[0]);
        if self.args.taps == 1 {
            return (out, self.tails.clone());
        }
        let call = conv::tail(profile, &self.args);
        let written = device.run(&call, &step, &[x, tails], &step_shape, None).unwrap();
        (out, floats(&written[0]))
    }

    /// Against the twin.
    pub fn check(&self, device: &LoneKernel, profile: &Profile) {
        let (step, step_shape) = step_words(&self.layout, &self.runs, 1);
        let mut out = vec![f32::from_bits(POISON); (step_shape.tokens * self.args.out_stride) as usize];
        let mut tails = self.tails.clone();
        conv::twin(&self.args, &step, &self.x, &tails, &self.vectors, &mut out);
        if self.args.taps > 1 {
            conv::tail_twin(&self.args, &step, &self.x, &mut tails);
        }
        let (got, left) = self.on_device(device, profile);
        let what = format!(
            "{} channels, {} taps, slots {}+",
            self.args.channels, self.args.taps, self.args.first_slot
        );
        // At most nine products of at most 1.
        assert_close(&got, &out, 2e-6, &what);
        assert_eq!(bits(&left), bits(&tails), "{what}: tails");
    }
}
