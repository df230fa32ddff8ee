//! Both forms of the gated delta rule on the device against the CPU twins, and the twins against each other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod steps;

use plimsoll_kernels::ops::delta::{self, Args, Operand};
use plimsoll_kernels::{Access, Delta, DeltaShape, Kernel, Limits, Profile, StepLayout, StepShape};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, POISON, floats};
use std::sync::{LazyLock, Mutex, MutexGuard};
use steps::{Noise, Run, assert_close, run, step_words};

const FORMS: [Delta; 3] = [Delta::Sequential, Delta::Blocks { block: 16 }, Delta::Blocks { block: 32 }];

/// At WebGPU's default limits without subgroups and with them, and as is (the adapter's own limits).
fn devices() -> MutexGuard<'static, [LoneKernel; 3]> {
    static DEVICES: LazyLock<Mutex<[LoneKernel; 3]>> = LazyLock::new(|| {
        Mutex::new([(false, true), (true, true), (true, false)].map(|(subgroups, default_limits)| {
            LoneKernel::open(Options { subgroups, default_limits }).unwrap()
        }))
    });
    DEVICES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What the device is planned with: every form, as the driver it is and as a GPU.
fn profiles(device: &LoneKernel) -> Vec<Profile> {
    let own = device.profile();
    let subgroups = own.subgroups.then_some(own.subgroup_size);
    let gpu = Profile::new("as a GPU", own.limits.clone(), subgroups, false);
    [own.clone(), gpu]
        .into_iter()
        .flat_map(|profile| {
            FORMS.map(|delta| {
                let mut profile = profile.clone();
                profile.tuning.delta = delta;
                profile
            })
        })
        .collect()
}

const fn shape(heads: u32, key_heads: u32, key_dim: u32, value_dim: u32) -> DeltaShape {
    DeltaShape { heads, key_heads, key_dim, value_dim }
}

/// A layer and a step through it.
struct Case {
    args: delta::Args,
    step: Vec<u32>,
    step_shape: StepShape,
    qkv: Vec<f32>,
    ab: Vec<f32>,
    vectors: Vec<f32>,
    /// Slots bound; what no run continues is poison, also the slots of runs from position 0.
    states: Vec<f32>,
    out_words: usize,
}

impl Case {
    /// Runs through slots of which `first_slot..first_slot + slots` are bound.
    fn new(shape: DeltaShape, runs: &[Run], (first_slot, slots): (u32, u32), seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        let tokens: u32 = runs.iter().map(|r| r.tokens).sum();
        let all_slots = runs.iter().map(|r| r.slot).max().unwrap() + 1;
        // Room for more than is used, so that steps of every size may go in blocks.
        let most = tokens.max(9) + 2;
        let layout = StepLayout::new(most, 1, all_slots, &[3, most], &[], &[]).unwrap();
        let (step, step_shape) = step_words(&layout, runs, 1);
        let slack = 3;
        let (heads, ab_stride) = (shape.heads, 2 * shape.heads + 2);
        let args = delta::Args {
            shape,
            tiled: false,
            qkv_stride: shape.channels() + slack,
            a_column: heads + 1,
            b_column: 0,
            ab_stride,
            out_stride: shape.inner() + slack,
            a: 2,
            dt_bias: heads + 5,
            eps: 1e-6,
            sequences: (1, layout.tiles[1]),
            first_slot,
            slots,
            max_tokens: most,
        };
        let mut vectors = noise.floats(2 * heads as usize + 6);
        for a in &mut vectors[2..2 + heads as usize] {
            // -exp(A_log): from slow decay to nothing left.
            *a = -(*a * 3.0).exp();
        }
        let values = shape.recurrent(1).values as usize;
        let mut states = vec![f32::from_bits(POISON); slots as usize * values];
        for run in runs.iter().filter(|r| r.first > 0 && r.slot >= first_slot) {
            if let Some(state) = states.chunks_mut(values).nth((run.slot - first_slot) as usize) {
                state.copy_from_slice(&noise.floats(values));
            }
        }
        let mut qkv = noise.floats((tokens * args.qkv_stride) as usize);
        let ab = noise.floats((tokens * ab_stride) as usize).into_iter().map(|v| v * 4.0).collect();
        // Keys and queries of any length, one of nearly none.
        for (i, row) in qkv.chunks_mut(args.qkv_stride as usize).enumerate() {
            let factor = if i % 7 == 3 { 1e-4 } else { (i % 5) as f32 + 0.1 };
            row[..(2 * shape.key_heads * shape.key_dim) as usize].iter_mut().for_each(|v| *v *= factor);
        }
        let out_words = (tokens * args.out_stride) as usize;
        Self { args, step, step_shape, qkv, ab, vectors, states, out_words }
    }

    /// States and outputs of a twin: recurrent, or in blocks.
    fn expected(&self, block: Option<usize>) -> [Vec<f32>; 2] {
        let mut states = self.states.clone();
        let mut out = vec![f32::from_bits(POISON); self.out_words];
        let Self { args, step, qkv, ab, vectors, .. } = self;
        match block {
            None => delta::recurrent(args, step, qkv, ab, vectors, &mut states, &mut out),
            Some(block) => delta::chunked(args, block, step, qkv, ab, vectors, &mut states, &mut out),
        }
        [states, out]
    }

    /// States and outputs of the stages of a plan, and the kernel they use.
    fn on_device(&self, device: &LoneKernel, profile: &Profile) -> ([Vec<f32>; 2], Kernel) {
        let words = delta::scratch_words(profile, &self.args) as usize;
        let mut states = Data::F32(self.states.clone());
        let mut out = Data::Poison(self.out_words);
        let mut scratch = Data::Poison(words.max(1));
        let mut kernel = None;
        for stage in delta::plan(profile, &self.args) {
            let operands: Vec<Data> = stage
                .operands
                .iter()
                .map(|operand| match operand {
                    Operand::Qkv => Data::F32(self.qkv.clone()),
                    Operand::Ab => Data::F32(self.ab.clone()),
                    Operand::States => states.clone(),
                    Operand::Out => out.clone(),
                    Operand::Vectors => Data::F32(self.vectors.clone()),
                    Operand::Scratch => scratch.clone(),
                })
                .collect();
            let written = device.run(&stage.call, &self.step, &operands, &self.step_shape, None).unwrap();
            let mut written = written.into_iter().map(Data::Bytes);
            let accesses = stage.call.kernel.operands();
            for (operand, _) in stage.operands.iter().zip(accesses).filter(|(_, a)| *a == Access::Write) {
                match operand {
                    Operand::States => states = written.next().unwrap(),
                    Operand::Out => out = written.next().unwrap(),
                    _ => scratch = written.next().unwrap(),
                }
            }
            kernel = Some(stage.call.kernel);
        }
        let values = [states, out].map(|data| match data {
            Data::Bytes(bytes) => floats(&bytes),
            _ => panic!("nothing was written"),
        });
        (values, kernel.unwrap())
    }
}

/// Rounding only: values are at most 1, states a few units.
const TOLERANCE: f32 = 2e-6;

/// Every form that a device gets against the recurrent twin; a kernel is run on the first device that plans it, which
/// is the one that allows the least.
fn check(case: &Case, what: &str) {
    check_within(case, TOLERANCE, what);
}

fn check_within(case: &Case, tolerance: f32, what: &str) {
    let [states, out] = case.expected(None);
    let mut seen = Vec::new();
    for device in devices().iter() {
        for profile in profiles(device) {
            if seen.contains(&delta::plan(&profile, &case.args)[0].call.kernel) {
                continue;
            }
            let ([got_states, got_out], kernel) = case.on_device(device, &profile);
            let what = format!("{what}, {}", kernel.name());
            assert_close(&got_out, &out, tolerance, &what);
            assert_close(&got_states, &states, tolerance, &format!("{what}, states"));
            seen.push(kernel);
        }
    }
}

/// Warm and cold, at odd positions, slots out of order, lengths that are multiples of nothing.
const PACKED: [Run; 6] =
    [run(3, 17, 1), run(0, 0, 21), run(5, 1, 2), run(1, 0, 1), run(2, 333, 38), run(6, 64, 16)];

/// What most tests use, so that a device builds its pipelines once; columns are no multiple of a slice.
const SMALL: DeltaShape = shape(4, 2, 32, 40);

/// Slots 0 to 7: slots 4 and 7 belong to nobody.
const ALL: (u32, u32) = (0, 8);

#[test]
fn twins_agree() {
    for (shape, runs) in [
        (shape(4, 2, 5, 3), &PACKED[..]),
        (shape(3, 3, 17, 24), &[run(0, 0, 100)]),
        (shape(8, 1, 1, 1), &[run(1, 5, 33)]),
    ] {
        let case = Case::new(shape, runs, ALL, 5);
        let [states, out] = case.expected(None);
        for block in [1, 2, 7, 16, 64, 1000] {
            let [other_states, other] = case.expected(Some(block));
            // Both are f64 inside: what differs is the last bit of an f32.
            assert_close(&other, &out, 1e-6, &format!("{shape:?}, blocks of {block}"));
            assert_close(&other_states, &states, 1e-6, &format!("{shape:?}, blocks of {block}, states"));
        }
    }
}

#[test]
fn one_token_by_hand() {
    // S = [[2], [-1]], decay e^(-ln 2 · softplus(0)) = 2^(-ln 2), β = 1/2, k along (3, 4), q along (0, 1).
    let mut case = Case::new(shape(1, 1, 2, 1), &[run(0, 9, 1)], (0, 1), 1);
    case.args.eps = 0.0;
    case.qkv[..5].copy_from_slice(&[0.0, 2.0, 3.0, 4.0, 7.0]);
    let args = &case.args;
    case.ab[args.a_column as usize] = -1.0;
    case.ab[args.b_column as usize] = 0.0;
    case.vectors[args.a as usize] = -(2.0f32.ln());
    case.vectors[args.dt_bias as usize] = 1.0;
    case.states = vec![2.0, -1.0];
    let fade = 2.0f32.powf(-(2.0f32.ln()));
    let d = 0.5 * (7.0 - fade * (0.6 * 2.0 - 0.8));
    let states = vec![fade * 2.0 + 0.6 * d, -fade + 0.8 * d];
    let mut out = vec![f32::from_bits(POISON); case.out_words];
    out[0] = states[1] / 2.0f32.sqrt();
    let [twin_states, twin_out] = case.expected(None);
    assert_close(&twin_out, &out, 1e-6, "the twin");
    assert_close(&twin_states, &states, 1e-6, "the twin's states");
    check(&case, "one token by hand");
}

#[test]
fn lengths_around_the_blocks() {
    for tokens in [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 100, 257] {
        // From nothing, and continued at an odd position.
        let runs = [run(0, 0, tokens), run(1, 37, tokens)];
        check(&Case::new(SMALL, &runs, (0, 2), u64::from(tokens)), &format!("{tokens} tokens"));
    }
}

#[test]
fn packed_sequences_of_every_size() {
    for shape in [
        shape(2, 1, 128, 128),
        shape(1, 1, 16, 256),
        shape(3, 1, 40, 33),
        shape(14, 2, 17, 19),
        shape(8, 1, 33, 16),
        shape(6, 2, 65, 34),
        shape(1, 1, 1, 1),
    ] {
        check(&Case::new(shape, &PACKED, ALL, 11), &format!("{shape:?}"));
    }
}

/// Moves value head `h` of `Hg × R` to where it stands when heads take turns: from `k·R + r` to `r·Hg + k`.
fn take_turns(shape: DeltaShape, heads: &[f32]) -> Vec<f32> {
    let size = heads.len() / shape.heads as usize;
    let each = (shape.heads / shape.key_heads) as usize;
    let from = |h: usize| h % shape.key_heads as usize * each + h / shape.key_heads as usize;
    (0..shape.heads as usize).flat_map(|h| heads[from(h) * size..][..size].to_vec()).collect()
}

#[test]
fn heads_that_take_turns_are_the_same_heads_in_another_order() {
    for shape in [SMALL, shape(6, 3, 32, 40)] {
        let grouped = Case::new(shape, &PACKED, ALL, 31);
        let mut tiled = Case::new(shape, &PACKED, ALL, 31);
        tiled.args.tiled = true;
        let Args { a, dt_bias, a_column, b_column, ab_stride, out_stride, .. } = grouped.args;
        let heads = shape.heads as usize;
        let reorder = |row: &mut [f32], at: u32, len: usize| {
            let place = &mut row[at as usize..][..len];
            let moved = take_turns(shape, place);
            place.copy_from_slice(&moved);
        };
        let (keys, inner) = (2 * shape.key_heads * shape.key_dim, shape.inner() as usize);
        tiled.qkv.chunks_mut(tiled.args.qkv_stride as usize).for_each(|row| reorder(row, keys, inner));
        for row in tiled.ab.chunks_mut(ab_stride as usize) {
            reorder(row, a_column, heads);
            reorder(row, b_column, heads);
        }
        reorder(&mut tiled.vectors, a, heads);
        reorder(&mut tiled.vectors, dt_bias, heads);
        let values = shape.recurrent(1).values as usize;
        tiled.states.chunks_mut(values).for_each(|state| reorder(state, 0, values));

        let [mut states, mut out] = grouped.expected(None);
        states.chunks_mut(values).for_each(|state| reorder(state, 0, values));
        out.chunks_mut(out_stride as usize).for_each(|row| reorder(row, 0, inner));
        for block in [None, Some(7)] {
            let [got_states, got] = tiled.expected(block);
            assert_close(&got, &out, 1e-6, &format!("{shape:?}"));
            assert_close(&got_states, &states, 1e-6, &format!("{shape:?}, states"));
        }
        check(&tiled, &format!("{shape:?}, in turns"));
    }
}

#[test]
fn sixty_four_heads_of_the_largest_size() {
    check(&Case::new(shape(64, 16, 256, 256), &[run(0, 3, 10)], (0, 1), 3), "64 heads of 256 x 256");
}

#[test]
fn slots_that_are_not_bound_leave() {
    // The pool in two bindings: each leaves the other's sequences, outputs and states alone.
    let shape = SMALL;
    for (first, slots) in [(0, 3), (3, 5), (2, 1), (8, 2)] {
        let case = Case::new(shape, &PACKED, (first, slots), 2);
        check(&case, &format!("slots {first}+{slots}"));
        let whole = Case::new(shape, &PACKED, ALL, 2);
        let written = case.expected(None)[1].iter().filter(|v| v.to_bits() != POISON).count();
        let tokens: u32 =
            PACKED.iter().filter(|r| (first..first + slots).contains(&r.slot)).map(|r| r.tokens).sum();
        assert_eq!(written, (tokens * shape.inner()) as usize);
        assert!(whole.out_words > written);
    }
}

#[test]
fn chunks_equal_one_shot() {
    let shape = SMALL;
    let whole = Case::new(shape, &[run(0, 0, 100)], (0, 1), 9);
    let [states, out] = whole.expected(None);
    let mut seen = Vec::new();
    for device in devices().iter() {
        for profile in profiles(device) {
            let kernel = delta::plan(&profile, &whole.args)[0].call.kernel.clone();
            if seen.contains(&kernel) {
                continue;
            }
            seen.push(kernel);
            // Every chunk starts from what the device left before.
            let mut carried = whole.states.clone();
            let mut first = 0;
            for tokens in [1, 16, 5, 33, 7, 38] {
                let mut chunk = Case::new(shape, &[run(0, first, tokens)], (0, 1), 9);
                chunk.vectors = whole.vectors.clone();
                chunk.qkv = whole.qkv[(first * whole.args.qkv_stride) as usize..].to_vec();
                chunk.ab = whole.ab[(first * whole.args.ab_stride) as usize..].to_vec();
                chunk.states = carried;
                let ([left, got], kernel) = chunk.on_device(device, &profile);
                let expected = &out[(first * whole.args.out_stride) as usize..][..got.len()];
                assert_close(&got, expected, TOLERANCE, &format!("{tokens} at {first}, {}", kernel.name()));
                carried = left;
                first += tokens;
            }
            assert_close(&carried, &states, TOLERANCE, "states after all chunks");
        }
    }
}

#[test]
fn decays_and_lengths_without_bounds() {
    // Decays of 1 and of nothing side by side, keys of length 0, 1e-12 and 1e25, gates far out.
    let shape = SMALL;
    let mut case = Case::new(shape, &[run(0, 7, 70), run(1, 0, 40)], (0, 2), 21);
    for (i, row) in case.ab.chunks_mut(case.args.ab_stride as usize).enumerate() {
        row.iter_mut().for_each(|v| *v *= [0.1, 30.0, 3000.0][i % 3]);
    }
    for (i, row) in case.qkv.chunks_mut(case.args.qkv_stride as usize).enumerate() {
        row[..2 * 2 * 32].iter_mut().for_each(|v| *v *= [1.0, 0.0, 1e-12, 1e25][i % 4]);
    }
    check(&case, "far out");
    // Equal keys and β of 1: every block's triangle is full of ones.
    let mut case = Case::new(shape, &[run(0, 7, 70)], (0, 1), 22);
    let stride = case.args.qkv_stride as usize;
    let first = case.qkv[..stride].to_vec();
    for row in case.qkv.chunks_mut(stride) {
        row[2 * 32..4 * 32].copy_from_slice(&first[2 * 32..4 * 32]);
    }
    for row in case.ab.chunks_mut(case.args.ab_stride as usize) {
        row[..4].fill(40.0);
        row[5..9].fill(-60.0);
    }
    // Nothing decays, so the roundings of all steps add up: 70 of 2^-24 of states up to 2.
    check_within(&case, 1e-5, "equal keys");
}

#[test]
fn a_budget_splits_heads_and_columns() {
    let shape = SMALL;
    let case = Case::new(shape, &PACKED, ALL, 4);
    let [states, out] = case.expected(None);
    let device = &devices()[1];
    for profile in profiles(device) {
        let whole = delta::plan(&profile, &case.args);
        assert_eq!(whole.len(), 1);
        let most = u64::from(case.args.max_tokens);
        let all = whole[0].call.cost.flops(most, 0);
        for share in [2, 5] {
            let mut profile = profile.clone();
            profile.work_budget = all / share;
            let stages = delta::plan(&profile, &case.args);
            assert!(stages.len() as u64 >= share, "{} stages", stages.len());
            assert!(stages.iter().all(|s| s.call.cost.flops(most, 0) <= profile.work_budget));
            let sum: u64 = stages.iter().map(|s| s.call.cost.flops(most, 0)).sum();
            assert_eq!(sum, all, "every head and column is in one stage");
            let ([got_states, got], kernel) = case.on_device(device, &profile);
            assert_close(&got, &out, TOLERANCE, &kernel.name());
            assert_close(&got_states, &states, TOLERANCE, &kernel.name());
        }
        // Never less than a workgroup for each sequence.
        let stages = delta::plan(&Profile { work_budget: 0, ..profile }, &case.args);
        assert!(stages.iter().all(|s| s.call.workgroups.per == 1));
    }
}

#[test]
fn every_legal_size_is_planned() {
    for default_limits in [true, false] {
        let mut limits = Limits::webgpu_default();
        if !default_limits {
            limits.max_compute_workgroup_storage_size = 32 << 10;
        }
        for (cpu, delta) in [false, true].into_iter().flat_map(|cpu| FORMS.map(|form| (cpu, form))) {
            let mut profile = Profile::new("any", limits.clone(), None, cpu);
            profile.tuning.delta = delta;
            for key_dim in [1, 16, 31, 64, 100, 128, 192, 255, 256] {
                for value_dim in [1, 16, 31, 64, 100, 128, 192, 255, 256] {
                    let args = Case::new(shape(2, 1, 1, 1), &[run(0, 0, 64)], (0, 1), 1).args;
                    let args = delta::Args { shape: shape(64, 8, key_dim, value_dim), ..args };
                    let stages = delta::plan(&profile, &args);
                    assert_eq!(delta::scratch_words(&profile, &args), 0);
                    for stage in &stages {
                        assert!(stage.call.kernel.workgroup() <= 256);
                    }
                    let Kernel::DeltaBlocks(variant) = &stages[0].call.kernel else { continue };
                    assert!(delta != Delta::Sequential);
                    // Slices cover the columns, and none is empty.
                    let slices = value_dim.div_ceil(variant.columns);
                    assert!(variant.columns.is_multiple_of(4) && (slices - 1) * variant.columns < value_dim);
                }
            }
        }
    }
}
