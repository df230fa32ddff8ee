//! Products in place, with a number and with another tensor, on the device against the CPU twins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod steps;

use plimsoll_kernels::ops::gate::Activation;
use plimsoll_kernels::ops::{multiply, scale};
use plimsoll_kernels::{StepLayout, StepShape, Unit};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, floats};
use steps::{Noise, assert_close, run, step_words};

/// Widths around the 256 values of a workgroup, with rows and what stands between them.
const SIZES: [(u32, u32, u32); 6] =
    [(1, 0, 3), (5, 2, 1), (255, 1, 2), (256, 0, 2), (257, 3, 2), (700, 4, 33)];

/// A step with `rows` rows of `unit`, and another number of every other unit.
fn step_of(rows: u32, unit: Unit) -> (Vec<u32>, StepShape) {
    let (tokens, logit_rows) = match unit {
        Unit::LogitRows => (rows + 1, rows),
        Unit::Choices(top) => (rows / top, 1),
        _ => (rows, rows + 1),
    };
    let layout = StepLayout::new(tokens, logit_rows, 1, &[], &[], &[]).unwrap();
    step_words(&layout, &[run(0, 0, tokens)], logit_rows)
}

fn units(rows: u32) -> Vec<Unit> {
    let mut units = vec![Unit::Tokens, Unit::LogitRows];
    if rows.is_multiple_of(3) {
        units.push(Unit::Choices(3));
    }
    units
}

#[test]
fn products_with_numbers() {
    let device = LoneKernel::open(Options::default()).unwrap();
    let mut noise = Noise::new(3);
    for (width, slack, rows) in SIZES {
        for unit in units(rows) {
            for (factor, vector) in [(-2.5, None), (1.0, Some(4)), (0.125, Some(0))] {
                let args = scale::Args { factor, vector, width, stride: width + slack, unit };
                let (step, step_shape) = step_of(rows, unit);
                let x = noise.floats((rows * args.stride) as usize);
                let vectors = vec![3.0, f32::NAN, f32::NAN, f32::NAN, -0.75];
                let mut expected = x.clone();
                scale::twin(&args, rows as usize, &mut expected, &vectors);
                assert_eq!(expected[0], x[0] * factor * vector.map_or(1.0, |at| vectors[at as usize]));
                let call = scale::plan(device.profile(), &args);
                let operands = [Data::F32(x), Data::F32(vectors)];
                let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
                let what = format!("{} of {rows} x {width}, {unit:?}", call.kernel.name());
                // The gaps between rows stay: they are the same on both sides.
                assert_close(&floats(&written[0]), &expected, 1e-6, &what);
            }
        }
    }
}

#[test]
fn products_with_tensors() {
    let device = LoneKernel::open(Options::default()).unwrap();
    let mut noise = Noise::new(4);
    let activations = [
        None,
        Some(Activation::Silu),
        Some(Activation::GeluTanh),
        Some(Activation::ReluSquared),
        Some(Activation::Sigmoid),
    ];
    for activation in activations {
        for (of_by, broadcast) in [(false, false), (true, false), (false, true), (true, true)] {
            for (width, slack, rows) in SIZES {
                for unit in units(rows) {
                    let columns = if broadcast { 1 } else { width };
                    let args = multiply::Args {
                        activation,
                        of_by,
                        broadcast,
                        width,
                        x_stride: width + slack,
                        by_column: 2,
                        by_stride: columns + 2 + slack,
                        unit,
                    };
                    let (step, step_shape) = step_of(rows, unit);
                    let mut values = |n: u32| -> Vec<f32> {
                        noise.floats(n as usize).into_iter().map(|v| v * 4.0).collect()
                    };
                    let (x, mut by) = (values(rows * args.x_stride), values(rows * args.by_stride));
                    // Where exponentials end.
                    by[2] = 200.0;
                    let mut expected = x.clone();
                    multiply::twin(&args, rows as usize, &mut expected, &by);
                    // Near its zeros an activation is small beside what it is of: errors count against the product.
                    let peak = |v: &[f32]| v.iter().fold(1.0, |m: f32, v| m.max(v.abs()));
                    let largest = peak(&expected).max(peak(&x) * peak(&by));
                    let call = multiply::plan(device.profile(), &args);
                    let operands = [Data::F32(x), Data::F32(by)];
                    let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
                    let what = format!("{} of {rows} x {width}, {unit:?}", call.kernel.name());
                    let got: Vec<f32> = floats(&written[0]).iter().map(|v| v / largest).collect();
                    let expected: Vec<f32> = expected.iter().map(|v| v / largest).collect();
                    assert_close(&got, &expected, 2e-6, &what);
                }
            }
        }
    }
}

#[test]
fn sides_by_hand() {
    let (x, by) = (vec![2.0, -1.0, 3.0], vec![-4.0, 5.0, 0.5]);
    let args = multiply::Args {
        activation: Some(Activation::ReluSquared),
        of_by: true,
        broadcast: false,
        width: 3,
        x_stride: 3,
        by_column: 0,
        by_stride: 3,
        unit: Unit::Tokens,
    };
    let twin = |args: &multiply::Args| {
        let mut out = x.clone();
        multiply::twin(args, 1, &mut out, &by);
        out
    };
    assert_eq!(twin(&args), [0.0, -25.0, 0.75]);
    assert_eq!(twin(&multiply::Args { of_by: false, ..args.clone() }), [-16.0, 0.0, 4.5]);
    assert_eq!(twin(&multiply::Args { broadcast: true, activation: None, ..args }), [-8.0, 4.0, -12.0]);
}
