//! Products of every format, the embedding and the elementwise kernels by themselves, as `benches/figures` measures.
//!
//! `cargo bench --bench kernels_matrix [-- FILTER]`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod figures;

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Figures, Rate, Work};
use plimsoll_kernels::ops::{add, embed, gate, linear};
use plimsoll_kernels::{Format, Record, StepShape, Unit, step};
use plimsoll_runtime::lone::Data;

/// Step tables of `tokens` tokens with ids from 0.
fn step_of(tokens: u32) -> (Vec<u32>, StepShape) {
    let mut words = vec![0; step::HEADER_WORDS as usize];
    words[step::HEADER_TOKENS as usize] = tokens;
    words.extend(0..tokens);
    (words, StepShape { tokens, ..StepShape::default() })
}

fn product(figures: &Figures, format: Format, n: u32, k: u32, t: u32) -> Work {
    let record = Record::new(format, k).unwrap();
    // Every byte 0x11: small, normal scales in every format.
    let weights = vec![0x11; (record.stride() * u64::from(n)) as usize];
    let args = linear::Args {
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
    };
    let (step, shape) = step_of(t);
    let operands = vec![
        Data::Bytes(weights),
        Data::F32(vec![1.0; (t * k) as usize]),
        Data::Poison((t * n) as usize),
        Data::Poison(1),
    ];
    Work::new(linear::plan(figures.profile(), &args), operands, (&step, &shape))
}

fn matrix(c: &mut Criterion) {
    let figures = Figures::open("kernels_matrix");
    for format in Format::ALL {
        // Blocks of 128 and 256 do not divide 576.
        let narrow = if 576 % format.block_len() == 0 { 576 } else { 512 };
        for (n, k) in [(1536, narrow), (576, 1536), (4096, 4096)] {
            let name = format!("mat_vec/{format}/{n}x{k}");
            figures.measure(c, &name, || product(&figures, format, n, k, 1));
        }
    }
    for t in [2, 4, 8] {
        figures.measure(c, &format!("mat_vec/q4_k/2048x2048/t{t}"), || {
            product(&figures, Format::Q4K, 2048, 2048, t)
        });
    }
    for format in [Format::F32, Format::F16, Format::Q4_1, Format::Q4K, Format::Q6K, Format::Q8_0] {
        for (n, k, t) in [(1536, 512, 64), (576, 1536, 512), (2048, 2048, 64)] {
            let name = format!("mat_mat/{format}/{n}x{k}/t{t}");
            figures
                .measure(c, &name, || Work { rate: Rate::Operations, ..product(&figures, format, n, k, t) });
        }
    }
    for t in [1, 512] {
        let (step, shape) = step_of(t);
        let width = 1536;
        let values = |count: u32| Data::F32(vec![0.5; count as usize]);
        figures.measure(c, &format!("gate/silu/t{t}"), || {
            let activation = gate::Activation::Silu;
            let unit = Unit::Tokens;
            let args = gate::Args { activation, width, x_stride: 2 * width, out_stride: width, unit };
            let operands = vec![values(2 * width * t), values(width * t)];
            Work::new(gate::plan(figures.profile(), &args), operands, (&step, &shape))
        });
        figures.measure(c, &format!("add/t{t}"), || {
            let args = add::Args { width, x_stride: width, out_stride: width, unit: Unit::Tokens };
            let operands = vec![values(width * t), values(width * t)];
            Work::new(add::plan(figures.profile(), &args), operands, (&step, &shape))
        });
        figures.measure(c, &format!("embed/q6_k/t{t}"), || {
            let record = Record::new(Format::Q6K, width).unwrap();
            let args = embed::Args {
                format: Format::Q6K,
                width,
                first_row: 0,
                rows: 512,
                scale: 1.0,
                ids: step::HEADER_WORDS,
                out_stride: width,
            };
            let operands = vec![Data::Bytes(vec![0x11; record.stride() as usize * 512]), values(width * t)];
            Work::new(embed::plan(figures.profile(), &args), operands, (&step, &shape))
        });
    }
}

criterion_group!(benches, matrix);
criterion_main!(benches);
