//! What the tests of row-wise kernels share: devices, profiles and a step.
#![allow(dead_code)]

use crate::steps::{run, step_words};
use plimsoll_kernels::{Profile, StepLayout, StepShape};
use plimsoll_runtime::lone::{LoneKernel, Options};
use std::sync::{LazyLock, Mutex, MutexGuard};

/// Two devices at WebGPU's default limits: with subgroups where the adapter has them, and without.
pub fn devices() -> MutexGuard<'static, [LoneKernel; 2]> {
    static DEVICES: LazyLock<Mutex<[LoneKernel; 2]>> = LazyLock::new(|| {
        Mutex::new(
            [true, false]
                .map(|subgroups| LoneKernel::open(Options { subgroups, ..Options::default() }).unwrap()),
        )
    });
    DEVICES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The device's profile, and what a GPU gets: the plain profile, or with subgroups a number of lanes that is no power
/// of two.
pub fn profiles(device: &LoneKernel) -> [Profile; 2] {
    let plain = device.profile().clone();
    let mut wide = Profile::webgpu_default();
    if plain.subgroups {
        wide.tuning = plimsoll_kernels::Tuning { row_workgroup: 96, ..plain.tuning.clone() };
    }
    [plain, wide]
}

/// A step of one sequence with so many tokens and logit rows.
pub fn rows_step(tokens: u32, logit_rows: u32) -> (Vec<u32>, StepShape) {
    let layout = StepLayout::new(tokens, logit_rows, 1, &[], &[], &[]).unwrap();
    step_words(&layout, &[run(0, 0, tokens)], logit_rows)
}
