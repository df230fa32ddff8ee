//! The kernels of a mixture of experts (router, sort, products, sum, activation) against their CPU twins, and the
//! products against MLX's own answers, on whatever adapter there is.
//!
//! Outputs start as NaNs, rows stand apart with NaNs between them, and what a kernel may not touch must be unchanged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../kernels/tests/rows/mod.rs"]
mod rows;

mod experts;
mod steps;

use experts::{MODELS, TOKENS, devices, poisoned, step_of, ways};
use plimsoll_kernels::ops::experts as products;
use plimsoll_kernels::ops::{activate, combine, expert_sort, gate};
use plimsoll_kernels::{Format, Profile, Record, Unit};
use plimsoll_runtime::lone::{Data, LoneKernel, POISON, floats, words};
use rows::random_rows;
use std::collections::HashSet;
use steps::Noise;

/// Formats that take turns where not every one is tried.
const TURNS: [Format; 5] = [Format::F32, Format::BF16, Format::Q4K, Format::Q8_0, Format::Mxfp4];

/// `rows` rows of noise, `stride` apart, NaNs between them.
fn spaced(noise: &mut Noise, rows: u32, width: u32, stride: u32) -> Vec<f32> {
    let mut all = poisoned(rows * stride);
    for row in all.chunks_exact_mut(stride as usize) {
        row[..width as usize].copy_from_slice(&noise.floats(width as usize));
    }
    all
}

/// A routing of `tokens` rows: `choose` gives the experts of a token.
fn routing_of(
    noise: &mut Noise,
    tokens: u32,
    top: u32,
    stride: u32,
    mut choose: impl FnMut(&mut Noise, u32) -> Vec<u32>,
) -> Vec<u32> {
    let mut all = vec![POISON; (tokens * stride) as usize];
    for (t, row) in (0..).zip(all.chunks_exact_mut(stride as usize)) {
        let ids = choose(noise, t);
        row[..top as usize].copy_from_slice(&ids);
        for weight in &mut row[top as usize..2 * top as usize] {
            *weight = noise.float().to_bits();
        }
    }
    all
}

/// `top` different experts of `experts`.
fn some(noise: &mut Noise, experts: u32, top: u32) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..experts).collect();
    (0..top as usize).for_each(|i| ids.swap(i, i + noise.below(experts as usize - i)));
    ids.truncate(top as usize);
    ids
}

// --- expert_sort ---

#[test]
fn choices_are_sorted_and_tiled() {
    let mut noise = Noise::new(3);
    let large = [(512, 22, 2048, 64), (1025, 1, 700, 8), (2000, 3, 300, 4)];
    let small =
        MODELS.into_iter().flat_map(|(x, top)| TOKENS.map(|t| (x, top, t, [1, 2, 4, 8, 16][t as usize % 5])));
    for (experts, top, tokens, tile) in small.chain(large) {
        let args =
            expert_sort::Args { experts, top, tile, routing_stride: 2 * top + 1, max_tokens: tokens + 3 };
        for alike in [false, true] {
            let routing = routing_of(&mut noise, tokens, top, args.routing_stride, |noise, _| {
                // All choices to the last experts, or to any.
                if alike { (experts - top..experts).collect() } else { some(noise, experts, top) }
            });
            let expected = expert_sort::twin(&args, tokens as usize, &routing);
            let (step, shape) = step_of(tokens);
            for lone in devices() {
                let [call] = <[_; 1]>::try_from(expert_sort::plan(lone.profile(), &args)).unwrap();
                let operands = [Data::U32(routing.clone()), Data::Poison(expert_sort::words(&args) as usize)];
                let got = words(&lone.run(&call, &step, &operands, &shape, None).unwrap()[0]);
                let what = format!("{args:?} of {tokens}");
                let list = expert_sort::list(&args) as usize;
                let (used, entries) = (4 + 4 * expected[0] as usize, (tokens * top) as usize);
                assert_eq!(got[..used], expected[..used], "{what}: header and tiles");
                assert!(got[used..list].iter().all(|w| *w == POISON), "{what}: tiles beyond the used ones");
                assert_eq!(got[list..list + entries], expected[list..list + entries], "{what}: list");
                assert!(got[list + entries..].iter().all(|w| *w == POISON), "{what}: list beyond the step");
            }
        }
    }
}

// --- experts ---

/// A stack of experts: its records, and its values.
struct Stack {
    records: Vec<u8>,
    values: Vec<f32>,
}

fn stack(format: Format, rows: u32, k: u32, seed: u64) -> Stack {
    let record = Record::new(format, k).unwrap();
    let mut records = vec![0; record.stride() as usize * rows as usize];
    record.repack(&random_rows(format, rows as usize, k, seed), &mut records).unwrap();
    let mut values = vec![0.0; (rows * k) as usize];
    let stored = records.chunks_exact(record.stride() as usize);
    stored.zip(values.chunks_exact_mut(k as usize)).for_each(|(row, to)| record.decode(row, to));
    Stack { records, values }
}

fn product(
    format: Format,
    experts: u32,
    top: u32,
    n: u32,
    k: u32,
    tile: Option<u32>,
    max_tokens: u32,
) -> products::Args {
    products::Args {
        format,
        experts,
        first_expert: 0,
        shard_experts: experts,
        n,
        k,
        first_row: 0,
        rows: n,
        x_stride: k,
        x_choices: false,
        out_stride: n + 2,
        top,
        routing_stride: 2 * top + 1,
        bias: None,
        tile,
        max_tokens,
    }
}

/// Runs a product over shards of `shard` experts and pieces of `piece` rows, and compares after each dispatch: what it
/// computes within rounding, everything else unchanged.
fn check_product(
    lone: &LoneKernel,
    profile: &Profile,
    whole: &products::Args,
    stack: &Stack,
    routing: &[u32],
    (shard, piece): (u32, u32),
) {
    let tokens = routing.len() as u32 / whole.routing_stride;
    let (step, shape) = step_of(tokens);
    let mut noise = Noise::new(u64::from(whole.k + tokens));
    let choices = tokens * whole.top;
    let rows = if whole.x_choices { choices } else { tokens };
    let x = spaced(&mut noise, rows, whole.k, whole.x_stride);
    let vectors = noise.floats((whole.bias.unwrap_or(0) + whole.experts * whole.n) as usize);
    let who = match whole.tile {
        None => routing.to_vec(),
        Some(tile) => {
            let &products::Args { experts, top, routing_stride, max_tokens, .. } = whole;
            let args = expert_sort::Args { experts, top, tile, routing_stride, max_tokens };
            let call = &expert_sort::plan(profile, &args)[0];
            let operands = [Data::U32(routing.to_vec()), Data::Poison(expert_sort::words(&args) as usize)];
            words(&lone.run(call, &step, &operands, &shape, None).unwrap()[0])
        }
    };
    let stride = stack.records.len() / (whole.experts * whole.n) as usize;
    let mut out = poisoned(choices * whole.out_stride);
    for first_expert in (0..whole.experts).step_by(shard as usize) {
        for first_row in (0..whole.n).step_by(piece as usize) {
            let args = products::Args {
                first_expert,
                shard_experts: shard.min(whole.experts - first_expert),
                first_row,
                rows: piece.min(whole.n - first_row),
                ..whole.clone()
            };
            let call = products::plan(profile, &args);
            let what = format!("{}, {tokens} tokens, {args:?}", call.kernel.name());
            let begin = (first_expert * whole.n) as usize;
            let end = begin + (args.shard_experts * whole.n) as usize;
            let values = &stack.values[begin * whole.k as usize..end * whole.k as usize];
            let mut expected = out.clone();
            products::twin(&args, tokens as usize, values, &x, &vectors, routing, &mut expected);
            let operands = [
                Data::Bytes(stack.records[begin * stride..end * stride].to_vec()),
                Data::F32(x.clone()),
                Data::F32(out.clone()),
                Data::F32(vectors.clone()),
                Data::U32(who.clone()),
            ];
            let got =
                lone.run(&call, &step, &operands, &shape, None).unwrap_or_else(|e| panic!("{what}: {e}"));
            let got = floats(&got[0]);
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                if expected.to_bits() == out[i].to_bits() {
                    assert_eq!(
                        got.to_bits(),
                        expected.to_bits(),
                        "{what}: value {i} is not of this dispatch"
                    );
                    continue;
                }
                // Sums of f32 in any order: a few units in the last place of the sum of magnitudes.
                let (choice, n) = (i as u32 / whole.out_stride, i as u32 % whole.out_stride);
                let expert =
                    routing[(choice / whole.top * whole.routing_stride + choice % whole.top) as usize];
                let row = if whole.x_choices { choice } else { choice / whole.top };
                let x = &x[(row * whole.x_stride) as usize..][..whole.k as usize];
                let w = &stack.values[((expert * whole.n + n) * whole.k) as usize..][..whole.k as usize];
                let size: f32 = w.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
                let bound = 1e-5 * (size + 1e-3 * expected.abs()) + 1e-6;
                assert!(
                    (got - expected).abs() <= bound,
                    "{what}: ({choice}, {n}): {got}, not {expected} ± {bound}"
                );
            }
            out = got;
        }
    }
    let written = out
        .chunks(whole.out_stride as usize)
        .all(|row| row[..whole.n as usize].iter().all(|v| v.is_finite()));
    assert!(written, "{whole:?}: a row of a choice was left out");
}

/// Row lengths of a format: awkward ones.
fn lengths(format: Format) -> [u32; 2] {
    match format.block_len() {
        1 => [5, 50],
        block if block < 256 => [(3 * block) as u32, (5 * block) as u32],
        _ => [256, 768],
    }
}

#[test]
fn products_of_every_format() {
    let mut noise = Noise::new(4);
    for (index, format) in Format::ALL.into_iter().enumerate() {
        let (experts, top, tokens) = (6, 2, 41);
        for (lone, profile) in [ways().remove(0), ways().remove(1)] {
            let sorted = products::tile(&profile, experts, top, tokens);
            // The routing itself, tiles for a mat-vec, and the tiles of the adapter's mat-mat.
            for (j, tile) in [None, Some(2), Some(sorted)].into_iter().enumerate() {
                let k = lengths(format)[(index + j) % 2];
                let args = product(format, experts, top, 37, k, tile, tokens);
                let args = products::Args { bias: (j > 0).then_some(3), x_choices: j == 2, ..args };
                let stack = stack(format, experts * args.n, k, 100 + index as u64);
                let routing = routing_of(&mut noise, tokens, top, args.routing_stride, |noise, _| {
                    some(noise, experts, top)
                });
                check_product(lone, &profile, &args, &stack, &routing, (experts, args.n));
            }
        }
    }
}

/// The rest of the formats, whose reading is that of a matrix: chosen rows and tiles, once each.
#[test]
fn products_of_every_width_and_group() {
    let mut noise = Noise::new(6);
    let (lone, profile) = ways().remove(0);
    let (experts, top, tokens) = (3, 2, 9);
    let rest: Vec<Format> = Format::every().filter(|format| !Format::ALL.contains(format)).collect();
    assert!(rest.len() > 50, "{}", rest.len());
    for (index, format) in (0..).zip(rest) {
        for tile in [None, Some(products::tile(&profile, experts, top, tokens))] {
            let args = product(format, experts, top, 5, lengths(format)[0], tile, tokens);
            let stack = stack(format, experts * args.n, args.k, 300 + index);
            let routing = routing_of(&mut noise, tokens, top, args.routing_stride, |noise, _| {
                some(noise, experts, top)
            });
            check_product(lone, &profile, &args, &stack, &routing, (experts, args.n));
        }
    }
}

#[test]
fn products_of_every_model_and_way() {
    let mut noise = Noise::new(5);
    for (i, (experts, top)) in MODELS.into_iter().enumerate() {
        let format = TURNS[i % TURNS.len()];
        let (n, k) = (35, lengths(format)[0]);
        let stack = stack(format, experts * n, k, 7 + u64::from(experts));
        for (lone, profile) in ways() {
            for (j, tokens) in TOKENS.into_iter().enumerate() {
                let tile = (tokens > 8).then(|| products::tile(&profile, experts, top, tokens));
                let args = product(format, experts, top, n, k, tile, tokens);
                let args = products::Args {
                    x_choices: j % 2 == 1,
                    x_stride: if j % 3 == 1 { k.next_multiple_of(4) + 4 } else { k + 1 },
                    bias: (j % 3 == 2).then_some(1),
                    // A plan made for more tokens than the step has.
                    max_tokens: if j % 3 == 0 { tokens + 5 } else { tokens },
                    ..args
                };
                let routing = routing_of(&mut noise, tokens, top, args.routing_stride, |noise, _| {
                    some(noise, experts, top)
                });
                // Whole, and in three shards of pieces that are multiples of nothing.
                check_product(lone, &profile, &args, &stack, &routing, (experts, n));
                if j % 2 == 0 {
                    check_product(lone, &profile, &args, &stack, &routing, (experts.div_ceil(3), 19));
                }
            }
        }
    }
}

#[test]
fn all_tokens_to_one_expert() {
    let mut noise = Noise::new(6);
    let (experts, top, n, k) = (64, 1, 67, 96);
    let stack = stack(Format::Q8_0, experts * n, k, 9);
    for (lone, profile) in ways() {
        for tokens in [5, 9, 65, 130] {
            for only in [0, 30, 63] {
                let tile = (tokens > 8).then(|| products::tile(&profile, experts, top, tokens));
                let args = product(Format::Q8_0, experts, top, n, k, tile, tokens);
                let routing = routing_of(&mut noise, tokens, top, args.routing_stride, |_, _| vec![only]);
                check_product(lone, &profile, &args, &stack, &routing, (40, n));
            }
        }
    }
}

#[test]
fn every_tile_of_every_body() {
    let mut noise = Noise::new(7);
    let (experts, top, n, k) = (5, 2, 70, 64);
    let stack = stack(Format::Mxfp4, experts * n, k, 11);
    for (lone, profile) in ways() {
        // What `tile` answers from one token to thousands.
        let tiles: HashSet<u32> =
            [1, 2, 3, 5, 9, 17, 33, 65, 129, 2048].map(|t| products::tile(&profile, experts, top, t)).into();
        assert!(tiles.len() > 2, "{tiles:?}");
        for tile in tiles {
            for tokens in [1, tile / 2 + 1, 3 * tile] {
                let args = product(Format::Mxfp4, experts, top, n, k, Some(tile), tokens);
                let args = products::Args { x_stride: k, ..args };
                let routing = routing_of(&mut noise, tokens, top, args.routing_stride, |noise, _| {
                    some(noise, experts, top)
                });
                check_product(lone, &profile, &args, &stack, &routing, (experts, n));
            }
        }
    }
}

// --- combine and activate ---

#[test]
fn answers_are_summed_by_weight() {
    let mut noise = Noise::new(8);
    for (lone, profile) in ways() {
        for (width, top, tokens, accumulate) in [
            (1, 1, 1, false),
            (255, 6, 2, true),
            (256, 22, 33, false),
            (257, 3, 130, true),
            (2688, 8, 2, false),
        ] {
            let (x_stride, routing_stride, out_stride) = (width + 3, 2 * top + 1, width + 1);
            let args = combine::Args { width, top, x_stride, routing_stride, out_stride, accumulate };
            let x = spaced(&mut noise, tokens * top, width, x_stride);
            let routing =
                routing_of(&mut noise, tokens, top, routing_stride, |noise, _| some(noise, 64, top));
            let out = if accumulate {
                spaced(&mut noise, tokens, width, out_stride)
            } else {
                poisoned(tokens * out_stride)
            };
            let mut expected = out.clone();
            combine::twin(&args, tokens as usize, &x, &routing, &mut expected);
            let (step, shape) = step_of(tokens);
            let operands = [Data::F32(x), Data::U32(routing), Data::F32(out)];
            let got = lone.run(&combine::plan(&profile, &args), &step, &operands, &shape, None).unwrap();
            for (i, (got, expected)) in floats(&got[0]).iter().zip(&expected).enumerate() {
                // Every term is below 1.
                let bound = 1e-6 * (top + 1) as f32;
                let same = got.to_bits() == expected.to_bits() || (got - expected).abs() <= bound;
                assert!(same, "{args:?}, value {i}: {got:e}, not {expected:e}");
            }
        }
    }
}

#[test]
fn activations_in_place() {
    let mut noise = Noise::new(9);
    let (lone, profile) = ways().remove(0);
    for (tokens, top, width) in [(1, 1, 1), (2, 3, 255), (33, 2, 257)] {
        let (stride, rows) = (width + 3, tokens * top);
        let mut x = spaced(&mut noise, rows, width, stride);
        for (i, v) in x.iter_mut().enumerate() {
            *v *= [1.0, 10.0, 100.0, 1e4, 1e-3, 0.1, 1e15][i % 7];
        }
        for activation in [gate::Activation::Silu, gate::Activation::GeluTanh, gate::Activation::ReluSquared]
        {
            let unit = if top == 1 { Unit::Tokens } else { Unit::Choices(top) };
            let args = activate::Args { activation, width, stride, unit };
            let mut expected = x.clone();
            activate::twin(&args, rows as usize, &mut expected);
            let (step, shape) = step_of(tokens);
            let call = activate::plan(&profile, &args);
            let got = lone.run(&call, &step, &[Data::F32(x.clone())], &shape, None).unwrap();
            for (i, (got, expected)) in floats(&got[0]).iter().zip(&expected).enumerate() {
                // Where 1 + tanh cancels, what is left is as exact as f32 near 1.
                let bound = 1e-6 * x[i].abs() + 2e-5 * expected.abs() + 1e-30;
                let same = got.to_bits() == expected.to_bits() || (got - expected).abs() <= bound;
                assert!(same, "{activation:?} of {}: {got:e}, not {expected:e}", x[i]);
            }
        }
    }
}
