//! Gated activations over rows of tokens, of logits and of choices, on the device against the CPU twins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod steps;

use plimsoll_kernels::ops::{clamped_gate, gate};
use plimsoll_kernels::step::{HEADER_LOGIT_ROWS, HEADER_TOKENS, HEADER_WORDS};
use plimsoll_kernels::{Call, StepShape, Unit};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, POISON, floats};
use std::sync::{LazyLock, Mutex, MutexGuard};
use steps::Noise;

/// A device at WebGPU's limits, one as it is, and one without subgroups.
fn devices() -> MutexGuard<'static, Vec<LoneKernel>> {
    static DEVICES: LazyLock<Mutex<Vec<LoneKernel>>> = LazyLock::new(|| {
        let ways = [(true, true), (true, false), (false, true)];
        let open =
            |(subgroups, default_limits)| LoneKernel::open(Options { subgroups, default_limits }).unwrap();
        Mutex::new(ways.map(open).into())
    });
    DEVICES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Rows of each unit, in a step of `count` of what the header counts for it and more of the other.
fn units(count: u32) -> [(Unit, u32, Vec<u32>, StepShape); 4] {
    [Unit::Tokens, Unit::LogitRows, Unit::Choices(1), Unit::Choices(4)].map(|unit| {
        let (tokens, logit_rows) =
            if unit == Unit::LogitRows { (count + 5, count) } else { (count, count + 5) };
        let mut step = vec![POISON; HEADER_WORDS as usize];
        step[HEADER_TOKENS as usize] = tokens;
        step[HEADER_LOGIT_ROWS as usize] = logit_rows;
        let shape = StepShape { tokens, logit_rows, tiles: vec![], kv_max: tokens };
        (unit, if unit == Unit::Choices(4) { 4 * count } else { count }, step, shape)
    })
}

/// Runs a gate on rows with two more behind them that are nobody's, and holds what it wrote to the twin.
#[allow(clippy::too_many_arguments)]
fn check(
    call: &Call,
    step: &[u32],
    shape: &StepShape,
    rows: u32,
    strides: (u32, u32),
    scale: f32,
    twin: impl Fn(&[f32], &mut [f32]),
    within: f32,
) {
    let mut noise = Noise::new(u64::from(rows + strides.0));
    let x: Vec<f32> = noise.floats(((rows + 2) * strides.0) as usize).iter().map(|v| v * scale).collect();
    let poison = vec![f32::from_bits(POISON); ((rows + 2) * strides.1) as usize];
    let mut expected = poison.clone();
    twin(&x, &mut expected);
    for device in devices().iter() {
        let operands = [Data::F32(x.clone()), Data::F32(poison.clone())];
        let got = device.run(call, step, &operands, shape, None).unwrap();
        for (i, (got, expected)) in floats(&got[0]).iter().zip(&expected).enumerate() {
            let same = got.to_bits() == expected.to_bits()
                || (got - expected).abs() <= within * expected.abs().max(1e-2);
            assert!(same, "{} of {rows} rows, value {i}: {got} is not {expected}", call.kernel.name());
        }
    }
}

#[test]
fn gates_over_tokens_logits_and_choices() {
    for (count, width) in [(1, 1), (3, 70), (9, 300)] {
        for (unit, rows, step, shape) in units(count) {
            for activation in [gate::Activation::Silu, gate::Activation::Sigmoid] {
                let (x_stride, out_stride) = (2 * width + 3, width + 1);
                let args = gate::Args { activation, width, x_stride, out_stride, unit };
                let twin = |x: &[f32], out: &mut [f32]| gate::twin(&args, rows as usize, x, out);
                let profile = devices()[0].profile().clone();
                let call = gate::plan(&profile, &args);
                check(&call, &step, &shape, rows, (x_stride, out_stride), 4.0, twin, 5e-6);
            }
        }
    }
}

#[test]
fn clamped_gates_in_halves_and_interleaved() {
    for (count, width) in [(1, 1), (3, 70), (9, 300)] {
        for (unit, rows, step, shape) in units(count) {
            for interleaved in [false, true] {
                let (x_stride, out_stride) = (2 * width + 3, width + 1);
                // Inputs to ±12: many are beyond the limit of either sign.
                let (limit, alpha) = (7.0, 1.702);
                let args =
                    clamped_gate::Args { width, x_stride, out_stride, interleaved, limit, alpha, unit };
                let twin = |x: &[f32], out: &mut [f32]| clamped_gate::twin(&args, rows as usize, x, out);
                let profile = devices()[0].profile().clone();
                let call = clamped_gate::plan(&profile, &args);
                check(&call, &step, &shape, rows, (x_stride, out_stride), 12.0, twin, 5e-6);
            }
        }
    }
}

/// With alpha ln 3 a gate of 1 has a sigmoid of 3/4, one of 2 of 9/10, and one of −1 of 1/4.
#[test]
fn a_clamped_gate_has_these_values() {
    let pairs = [(1.0, 0.0), (9.0, 1.0), (-1.0, 9.0), (1.0, -9.0), (-100.0, 1.0), (-1e30, 2.0)];
    let expected = [0.75, 3.6, -0.75, -0.75, 0.0, 0.0];
    let width = pairs.len() as u32;
    for interleaved in [false, true] {
        let x: Vec<f32> = if interleaved {
            pairs.iter().flat_map(|(g, up)| [*g, *up]).collect()
        } else {
            pairs.iter().map(|p| p.0).chain(pairs.iter().map(|p| p.1)).collect()
        };
        let args = clamped_gate::Args {
            width,
            x_stride: 2 * width,
            out_stride: width,
            interleaved,
            limit: 2.0,
            alpha: 3f32.ln(),
            unit: Unit::Tokens,
        };
        let [(_, _, step, shape), ..] = units(1);
        let devices = devices();
        let call = clamped_gate::plan(devices[0].profile(), &args);
        let operands = [Data::F32(x), Data::Poison(width as usize)];
        let got = floats(&devices[0].run(&call, &step, &operands, &shape, None).unwrap()[0]);
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 2e-6, "{got} is not {expected}");
        }
    }
}
