//! Products on whatever adapter there is, held against their CPU twins: what the tests of kernels that read matrices share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

#[path = "../../kernels/tests/rows/mod.rs"]
mod rows;

use plimsoll_kernels::ops::linear;
use plimsoll_kernels::{Call, Format, Profile, Record, StepShape, Unit, step};
use plimsoll_runtime::lone::{Data, LoneKernel, Options, POISON, floats};
use rows::random_rows;
use std::sync::OnceLock;

/// Sizes around what kernels take at a time.
pub const ODD: [u32; 9] = [1, 2, 7, 31, 32, 33, 63, 64, 65];

pub fn lone(subgroups: bool) -> &'static LoneKernel {
    static WITH: OnceLock<LoneKernel> = OnceLock::new();
    static WITHOUT: OnceLock<LoneKernel> = OnceLock::new();
    let cell = if subgroups { &WITH } else { &WITHOUT };
    cell.get_or_init(|| LoneKernel::open(Options { subgroups, default_limits: true }).unwrap())
}

/// The tuning of a GPU on the open device: the other half of the variants.
pub fn as_gpu(lone: &LoneKernel) -> Profile {
    let p = lone.profile();
    Profile::new("as a GPU", p.limits.clone(), p.subgroups.then_some(p.subgroup_size), false)
}

/// Every way of running that the adapter offers: device and profile.
pub fn ways() -> Vec<(&'static LoneKernel, Profile)> {
    let mut ways = Vec::new();
    for lone in [lone(true), lone(false)] {
        ways.push((lone, lone.profile().clone()));
        ways.push((lone, as_gpu(lone)));
    }
    ways
}

/// Pseudo-random floats in ±1.
pub fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// `rows` rows of noise, `stride` apart, NaNs between them.
pub fn spaced(rows: u32, width: u32, stride: u32, seed: u64) -> Vec<f32> {
    let mut all = vec![f32::from_bits(POISON); (rows * stride) as usize];
    for (row, values) in all.chunks_exact_mut(stride as usize).enumerate() {
        values[..width as usize].copy_from_slice(&noise(width as usize, seed + row as u64));
    }
    all
}

pub fn records(format: Format, n: u32, k: u32, seed: u64) -> Vec<u8> {
    let record = Record::new(format, k).unwrap();
    let mut packed = vec![0; record.stride() as usize * n as usize];
    record.repack(&random_rows(format, n as usize, k, seed), &mut packed).unwrap();
    packed
}

/// Step tables with only a header.
pub fn header(tokens: u32, logit_rows: u32) -> Vec<u32> {
    let mut words = vec![POISON; step::HEADER_WORDS as usize];
    words[step::HEADER_TOKENS as usize] = tokens;
    words[step::HEADER_LOGIT_ROWS as usize] = logit_rows;
    words
}

pub fn shape(tokens: u32, logit_rows: u32) -> StepShape {
    StepShape { tokens, logit_rows, ..StepShape::default() }
}

pub fn product(format: Format, n: u32, k: u32, t: u32) -> linear::Args {
    linear::Args {
        format,
        n,
        k,
        x_stride: k,
        out_stride: n,
        out_column: 0,
        accumulate: false,
        bias: None,
        unit: Unit::Tokens,
        max_rows: t,
        norm: None,
        gate: None,
    }
}

/// Runs a product for `t` rows and compares: every value within rounding, everything else untouched.
pub fn check_product(lone: &LoneKernel, call: &Call, args: &linear::Args, t: u32) -> Vec<u8> {
    let sides = if args.gate.is_some() { 2 } else { 1 };
    let weights = records(args.format, sides * args.n, args.k, u64::from(args.n * 131 + args.k));
    let x = spaced(t, args.k, args.x_stride, 7);
    check_product_of(lone, call, args, t, &weights, &x)
}

/// The same of given weights and rows of x.
pub fn check_product_of(
    lone: &LoneKernel,
    call: &Call,
    args: &linear::Args,
    t: u32,
    weights: &[u8],
    x: &[f32],
) -> Vec<u8> {
    let what = format!("{} n {} k {} t {t}", call.kernel.name(), args.n, args.k);
    let biases = args.bias.unwrap_or(0) + 2 * args.n;
    let weighed = args.norm.map_or(0, |norm| norm.weight + args.k);
    let vectors = noise(biases.max(weighed).next_multiple_of(4) as usize, 3);
    let mut expected = vec![f32::from_bits(POISON); (t * args.out_stride) as usize];
    if args.accumulate {
        for row in expected.chunks_exact_mut(args.out_stride as usize) {
            row[args.out_column as usize..][..args.n as usize].copy_from_slice(&noise(args.n as usize, 5));
        }
    }
    let before = expected.clone();
    linear::twin(args, t as usize, weights, x, &vectors, &mut expected);
    let operands = [
        Data::Bytes(weights.to_vec()),
        Data::F32(x.to_vec()),
        Data::F32(before.clone()),
        Data::F32(vectors.clone()),
    ];
    let got = lone
        .run(call, &header(t, 0), &operands, &shape(t, 0), None)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let record = Record::new(args.format, args.k).unwrap();
    let mut w = vec![0.0; args.k as usize];
    for (i, (got, expected)) in floats(&got[0]).iter().zip(&expected).enumerate() {
        let (row, column) = (i as u32 / args.out_stride, i as u32 % args.out_stride);
        if column < args.out_column || column >= args.out_column + args.n {
            assert_eq!(
                got.to_bits(),
                before[i].to_bits(),
                "{what}: ({row}, {column}) is not of this product"
            );
            continue;
        }
        // Sums of f32 in any order: a few units in the last place of the sum of magnitudes.
        let stride = record.stride() as usize;
        let x = taken_in(args, &x[(row * args.x_stride) as usize..][..args.k as usize], &vectors);
        let mut side = |n: u32| {
            record.decode(&weights[n as usize * stride..][..stride], &mut w);
            let size: f32 = w.iter().zip(&x).map(|(w, x)| (w * x).abs()).sum();
            let dot: f32 = w.iter().zip(&x).map(|(w, x)| w * x).sum();
            (dot + args.bias.map_or(0.0, |at| vectors[(at + n) as usize]), 1e-5 * size)
        };
        let n = column - args.out_column;
        let (_, off) = side(n);
        let off = match args.gate {
            None => off,
            // No activation is steeper than 1.2 here, nor further from zero than its argument.
            Some(_) => {
                let ((gate, gate_off), (up, up_off)) = (side(n), side(args.n + n));
                1.2 * (gate_off * (up.abs() + up_off) + up_off * gate.abs()) + 1e-6 * expected.abs()
            }
        };
        let bound = off
            + 1e-8 * expected.abs()
            + if args.bias.is_some() || args.accumulate || args.gate.is_some() { 1e-6 } else { 0.0 };
        assert!(
            (got - expected).abs() <= bound,
            "{what}: ({row}, {column}): {got} is not {expected} ± {bound}"
        );
    }
    got.concat()
}

/// A row of x after the norm on its way in.
fn taken_in(args: &linear::Args, x: &[f32], vectors: &[f32]) -> Vec<f32> {
    let Some(norm) = args.norm else { return x.to_vec() };
    let mean = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(norm.eps)).sqrt();
    let weight = vectors[norm.weight as usize..].iter().map(|w| w + if norm.plus_one { 1.0 } else { 0.0 });
    x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale * f64::from(w)) as f32).collect()
}

/// Two row lengths of a format: an odd number of blocks, and whatever else is awkward.
pub fn lengths(format: Format) -> [u32; 2] {
    match format.block_len() {
        1 => [5, 10],
        256 => [256, 768],
        len => [3 * len as u32, (352 / len as u32).max(5) * len as u32],
    }
}
