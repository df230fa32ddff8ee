//! What the tests of a mixture of experts share: devices, and steps of some tokens.

mod mlx;
mod router;

use plimsoll_kernels::step::{HEADER_TOKENS, HEADER_WORDS};
use plimsoll_kernels::{Profile, StepShape};
use plimsoll_runtime::lone::{LoneKernel, Options, POISON};
use std::sync::OnceLock;

/// Experts and how many are chosen, as models have them.
pub const MODELS: [(u32, u32); 7] = [(128, 6), (256, 8), (512, 22), (40, 8), (8, 2), (3, 3), (1, 1)];
/// Tokens of a step.
pub const TOKENS: [u32; 7] = [1, 2, 7, 8, 9, 33, 130];

/// The adapter at WebGPU's default limits, without subgroups, and as it is.
pub fn devices() -> &'static [LoneKernel; 3] {
    static DEVICES: OnceLock<[LoneKernel; 3]> = OnceLock::new();
    DEVICES.get_or_init(|| {
        [(true, true), (false, true), (true, false)].map(|(subgroups, default_limits)| {
            LoneKernel::open(Options { subgroups, default_limits }).unwrap()
        })
    })
}

/// Every way of running that the adapter offers: its own tuning, and that of a GPU.
pub fn ways() -> Vec<(&'static LoneKernel, Profile)> {
    let mut ways = Vec::new();
    for lone in devices() {
        let p = lone.profile();
        ways.push((lone, p.clone()));
        let subgroups = p.subgroups.then_some(p.subgroup_size);
        ways.push((lone, Profile::new("as a GPU", p.limits.clone(), subgroups, false)));
    }
    ways.truncate(5); // the last one is the second with other limits
    ways
}

pub fn step_of(tokens: u32) -> (Vec<u32>, StepShape) {
    let mut words = vec![POISON; HEADER_WORDS as usize];
    words[HEADER_TOKENS as usize] = tokens;
    (words, StepShape { tokens, ..StepShape::default() })
}

pub fn poisoned(count: u32) -> Vec<f32> {
    vec![f32::from_bits(POISON); count as usize]
}
