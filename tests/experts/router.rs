//! The router against its CPU twin: ids are the same, weights up to rounding.

use super::{MODELS, TOKENS, poisoned, step_of, ways};
use crate::steps::Noise;
use plimsoll_kernels::Profile;
use plimsoll_kernels::ops::route;
use plimsoll_runtime::lone::{Data, LoneKernel, POISON, words};
use std::collections::HashSet;

fn router(experts: u32, top: u32) -> route::Args {
    route::Args {
        experts,
        top,
        scoring: route::Scoring::Sigmoid,
        bias: None,
        groups: None,
        normalise: true,
        scale: 1.0,
        expert_scale: None,
        logit_scale: 1.0,
        logits_stride: experts + 3,
        routing_stride: 2 * top + 1,
    }
}

/// Runs a router; ids must be the twin's, weights too up to rounding.
fn check_route(lone: &LoneKernel, profile: &Profile, args: &route::Args, logits: &[f32], vectors: &[f32]) {
    let tokens = logits.len() as u32 / args.logits_stride;
    let (step, shape) = step_of(tokens);
    let call = route::plan(profile, args);
    let mut expected = vec![POISON; (tokens * args.routing_stride) as usize];
    let operands = [Data::F32(logits.to_vec()), Data::U32(expected.clone()), Data::F32(vectors.to_vec())];
    route::twin(args, tokens as usize, logits, vectors, &mut expected);
    let got = words(&lone.run(&call, &step, &operands, &shape, None).unwrap()[0]);
    let top = args.top as usize;
    let rows = got.chunks(args.routing_stride as usize).zip(expected.chunks(args.routing_stride as usize));
    for (t, (got, expected)) in rows.enumerate() {
        let what = format!("{}, token {t} of {args:?}", call.kernel.name());
        let ids: HashSet<u32> = got[..top].iter().copied().collect();
        assert!(ids.len() == top && ids.iter().all(|id| *id < args.experts), "{what}: {:?}", &got[..top]);
        assert_eq!(got[..top], expected[..top], "{what}");
        for i in top..2 * top {
            let [got, expected] = [got, expected].map(|w| f32::from_bits(w[i]));
            let close =
                (got - expected).abs() <= 3e-6 * expected.abs() || (got.is_nan() && expected.is_nan());
            assert!(close, "{what}: weight {i} is {got:e}, not {expected:e}");
        }
        assert_eq!(got[2 * top..], expected[2 * top..], "{what}: beyond the routing");
    }
}

/// Whether no two scores that the choice hangs on, nor of two groups, are so close that rounding could turn them around.
fn is_clear(args: &route::Args, logits: &[f32], vectors: &[f32]) -> bool {
    let apart = |mut scores: Vec<f64>, best: usize| {
        scores.sort_by(|a, b| b.total_cmp(a));
        let mut pairs = scores.windows(2).take(best);
        pairs.all(|w| w[0] - w[1] > 2e-6 * w[1].abs().max(w[0].abs()))
    };
    let logits: Vec<f64> = logits.iter().map(|l| f64::from(*l * args.logit_scale)).collect();
    let most = logits.iter().fold(f64::MIN, |m, l| m.max(*l));
    let sum: f64 = logits.iter().map(|l| (l - most).exp()).sum();
    let biased: Vec<f64> = (0..args.experts as usize)
        .map(|i| {
            let l = logits[i];
            let score = match args.scoring {
                route::Scoring::Sigmoid => 1.0 / (1.0 + (-l).exp()),
                route::Scoring::Softmax => (l - most).exp() / sum,
            };
            score + args.bias.map_or(0.0, |at| f64::from(vectors[at as usize + i]))
        })
        .collect();
    let groups = args.groups.map_or(Vec::new(), |g| {
        let best = |group: &[f64]| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group.iter().take(2).sum::<f64>()
        };
        biased.chunks((args.experts / g.count) as usize).map(best).collect()
    });
    // With groups the chosen may be any.
    let best = if groups.is_empty() { args.top as usize } else { biased.len() };
    apart(biased, best) && apart(groups, usize::MAX)
}

/// Logits of `tokens` tokens whose choice does not hang on rounding.
fn clear_logits(noise: &mut Noise, args: &route::Args, tokens: u32, vectors: &[f32]) -> Vec<f32> {
    let mut all = poisoned(tokens * args.logits_stride);
    // Thousands of sigmoids near 1 cannot be apart.
    let most = if args.experts > 1000 { 1.5 } else { 6.0 };
    for row in all.chunks_exact_mut(args.logits_stride as usize) {
        let row = &mut row[..args.experts as usize];
        let tries = (0..1000).any(|_| {
            row.iter_mut().for_each(|l| *l = most * noise.float());
            is_clear(args, row, vectors)
        });
        assert!(tries, "no clear logits for {args:?}");
    }
    all
}

#[test]
fn routers_of_every_model() {
    let mut noise = Noise::new(1);
    for (lone, profile) in ways() {
        for (i, (experts, top)) in MODELS.into_iter().chain([(4096, 64)]).enumerate() {
            for (j, scoring) in [route::Scoring::Sigmoid, route::Scoring::Softmax].into_iter().enumerate() {
                let plain = route::Args { scoring, scale: 1.5, ..router(experts, top) };
                let biased = route::Args {
                    bias: Some(5),
                    normalise: false,
                    expert_scale: Some(5),
                    logit_scale: 0.3,
                    ..plain.clone()
                };
                for (k, args) in [plain, biased].into_iter().enumerate() {
                    let vectors: Vec<f32> = noise.floats(5 + experts as usize);
                    let tokens = TOKENS[(i + 3 * j + 2 * k) % TOKENS.len()].min(33);
                    let logits = clear_logits(&mut noise, &args, tokens, &vectors);
                    check_route(lone, &profile, &args, &logits, &vectors);
                }
            }
        }
    }
}

#[test]
fn groups_limit_the_choice_whatever_the_signs() {
    let mut noise = Noise::new(2);
    for (lone, profile) in ways() {
        for (experts, top, count, keep) in
            [(256, 8, 8, 4), (128, 6, 4, 1), (40, 8, 40, 9), (8, 2, 2, 1), (6, 6, 3, 3), (512, 22, 64, 16)]
        {
            for scoring in [route::Scoring::Sigmoid, route::Scoring::Softmax] {
                let groups = Some(route::Groups { count, keep });
                let args = route::Args { scoring, groups, bias: Some(0), ..router(experts, top) };
                // Every biased score is negative: a mask of zeros would choose what is masked.
                let vectors: Vec<f32> = noise.floats(experts as usize).iter().map(|v| v - 3.0).collect();
                let logits = clear_logits(&mut noise, &args, 7, &vectors);
                check_route(lone, &profile, &args, &logits, &vectors);
            }
        }
    }
}

#[test]
fn equal_scores_go_to_the_smaller_id() {
    for (lone, profile) in ways() {
        for (experts, top) in MODELS {
            let args = router(experts, top);
            let mut logits = vec![0.25; 3 * args.logits_stride as usize];
            // Saturated: sigmoids of 1 and, far below, of nearly nothing.
            logits[args.logits_stride as usize..].iter_mut().step_by(3).for_each(|l| *l = 40.0);
            logits[2 * args.logits_stride as usize..].fill(-0.0);
            check_route(lone, &profile, &args, &logits, &[0.0]);
            let grouped = route::Args { groups: Some(route::Groups { count: 1, keep: 1 }), ..args };
            check_route(lone, &profile, &grouped, &logits, &[0.0]);
        }
    }
}

#[test]
fn ids_are_experts_whatever_the_logits() {
    for (lone, profile) in ways() {
        for scoring in [route::Scoring::Sigmoid, route::Scoring::Softmax] {
            for (experts, top) in [(40, 8), (3, 3), (128, 6)] {
                let args = route::Args { scoring, normalise: false, ..router(experts, top) };
                let stride = args.logits_stride as usize;
                let mut logits = vec![f32::NAN; 4 * stride];
                // All NaN; all but one; all −∞; some −∞ and huge ones.
                logits[stride + 1] = 0.5;
                logits[2 * stride..3 * stride].fill(f32::NEG_INFINITY);
                for (i, l) in logits[3 * stride..].iter_mut().enumerate() {
                    *l = if i % 2 == 0 { f32::NEG_INFINITY } else { -(i as f32) };
                }
                let (step, shape) = step_of(4);
                let operands = [
                    Data::F32(logits.clone()),
                    Data::Poison(4 * args.routing_stride as usize),
                    Data::Poison(1),
                ];
                let call = route::plan(&profile, &args);
                let got = words(&lone.run(&call, &step, &operands, &shape, None).unwrap()[0]);
                for row in got.chunks(args.routing_stride as usize) {
                    let ids: HashSet<u32> = row[..top as usize].iter().copied().collect();
                    assert!(ids.len() == top as usize && ids.iter().all(|id| *id < experts), "{row:?}");
                }
                let spoilt = &got[..2 * top as usize][top as usize..];
                assert!(spoilt.iter().all(|w| f32::from_bits(*w).is_nan()), "a NaN is seen: {spoilt:?}");
            }
        }
    }
}
