//! The kernels of a mixture of experts by themselves, as `benches/figures` measures.
//!
//! The shapes are those of models with 128 experts of which 6 are chosen, at a fraction of their width, so that a run
//! takes seconds on a software driver; the router and the sort also have 512 of which 22.
//!
//! `cargo bench --bench kernels_experts [-- FILTER]`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod figures;

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Figures, Rate, Work};
use plimsoll_kernels::ops::{activate, combine, expert_sort, experts, gate, route};
use plimsoll_kernels::{Call, Format, Profile, Record, StepShape, Unit, step};
use plimsoll_runtime::lone::Data;

fn measure(
    figures: &Figures,
    c: &mut Criterion,
    name: &str,
    tokens: u32,
    work: impl Fn() -> (Call, Vec<Data>),
) {
    figures.measure(c, name, || {
        let (call, operands) = work();
        let mut words = vec![0; step::HEADER_WORDS as usize];
        words[step::HEADER_TOKENS as usize] = tokens;
        let shape = StepShape { tokens, ..StepShape::default() };
        let rate = if tokens == 1 { Rate::Bytes } else { Rate::Operations };
        Work { rate, ..Work::new(call, operands, (&words, &shape)) }
    });
}

/// Ids that fall on all experts about alike, different for each token, and equal weights.
fn routing(experts: u32, top: u32, tokens: u32) -> Vec<u32> {
    let ids = |t: u32| (0..top).map(move |i| (t * 37 + i * (experts / top)) % experts);
    (0..tokens).flat_map(|t| ids(t).chain((0..top).map(|_| 0.5f32.to_bits()))).collect()
}

fn sort_args(experts: u32, top: u32, tokens: u32, tile: u32) -> expert_sort::Args {
    expert_sort::Args { experts, top, tile, routing_stride: 2 * top, max_tokens: tokens }
}

fn product(
    profile: &Profile,
    format: Format,
    experts: u32,
    top: u32,
    (n, k): (u32, u32),
    tokens: u32,
) -> (Call, Vec<Data>) {
    let record = Record::new(format, k).unwrap();
    let tile = (tokens > 8).then(|| experts::tile(profile, experts, top, tokens));
    let args = experts::Args {
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
        out_stride: n,
        top,
        routing_stride: 2 * top,
        bias: None,
        tile,
        max_tokens: tokens,
    };
    let routing = routing(experts, top, tokens);
    let who = tile.map_or(routing.clone(), |tile| {
        expert_sort::twin(&sort_args(experts, top, tokens, tile), tokens as usize, &routing)
    });
    let operands = vec![
        // Every byte 0x11: small, normal scales in every format.
        Data::Bytes(vec![0x11; record.stride() as usize * (experts * n) as usize]),
        Data::F32(vec![1.0; (tokens * k) as usize]),
        Data::Poison((tokens * top * n) as usize),
        Data::Poison(1),
        Data::U32(who),
    ];
    (experts::plan(profile, &args), operands)
}

fn mixture(c: &mut Criterion) {
    let figures = Figures::open("kernels_experts");
    let profile = figures.profile();
    for format in [Format::F16, Format::Q8_0, Format::Q4K, Format::Mxfp4] {
        for (tokens, name) in [(1, "decode"), (512, "prefill")] {
            measure(&figures, c, &format!("{name}/{format}/128of6/464x768"), tokens, || {
                product(profile, format, 128, 6, (464, 768), tokens)
            });
        }
    }
    // So few rows an expert that tiles are a mat-vec's.
    measure(&figures, c, "prefill/q8_0/512of22/128x256/t16", 16, || {
        product(profile, Format::Q8_0, 512, 22, (128, 256), 16)
    });
    for (x, top) in [(128, 6), (512, 22)] {
        for tokens in [1, 512] {
            measure(&figures, c, &format!("route/{x}of{top}/t{tokens}"), tokens, || {
                let args = route::Args {
                    experts: x,
                    top,
                    scoring: route::Scoring::Sigmoid,
                    bias: Some(0),
                    groups: None,
                    normalise: true,
                    scale: 2.5,
                    expert_scale: None,
                    logit_scale: 1.0,
                    logits_stride: x,
                    routing_stride: 2 * top,
                };
                let logits = (0..tokens * x).map(|i| (i * 7919 % 1009) as f32 / 200.0 - 2.5).collect();
                let operands = vec![
                    Data::F32(logits),
                    Data::Poison((tokens * 2 * top) as usize),
                    Data::F32(vec![0.1; x as usize]),
                ];
                (route::plan(profile, &args), operands)
            });
        }
        for tokens in [512, 2048] {
            measure(&figures, c, &format!("sort/{x}of{top}/t{tokens}"), tokens, || {
                let args = sort_args(x, top, tokens, experts::tile(profile, x, top, tokens));
                let operands = vec![
                    Data::U32(routing(x, top, tokens)),
                    Data::Poison(expert_sort::words(&args) as usize),
                ];
                (expert_sort::plan(profile, &args).remove(0), operands)
            });
        }
    }
    for tokens in [1, 512] {
        let (width, top) = (768, 6);
        measure(&figures, c, &format!("combine/t{tokens}"), tokens, || {
            let args = combine::Args {
                width,
                top,
                x_stride: width,
                routing_stride: 2 * top,
                out_stride: width,
                accumulate: true,
            };
            let values = |count: u32| Data::F32(vec![0.5; count as usize]);
            let operands = vec![
                values(tokens * top * width),
                Data::U32(routing(128, top, tokens)),
                values(tokens * width),
            ];
            (combine::plan(profile, &args), operands)
        });
        measure(&figures, c, &format!("activate/relu_squared/t{tokens}"), tokens, || {
            let activation = gate::Activation::ReluSquared;
            let args = activate::Args { activation, width, stride: width, unit: Unit::Choices(top) };
            (activate::plan(profile, &args), vec![Data::F32(vec![0.5; (tokens * top * width) as usize])])
        });
    }
}

criterion_group!(benches, mixture);
criterion_main!(benches);
