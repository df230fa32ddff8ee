//! Products of every format, the embedding and the elementwise kernels by themselves: time of a dispatch, bytes and
//! operations a second, and what part that is of the read bandwidth and the multiply-add rate measured on the same
//! device in the same run.
//!
//! `cargo bench --bench kernels_matrix [-- FILTER]`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_kernels::ops::{add, embed, gate, linear};
use plimsoll_kernels::{Call, Format, Record, StepShape, Unit, step};
use plimsoll_runtime::lone::{Ceilings, Data, LoneKernel, Options};
use std::time::Duration;

struct Bench {
    device: LoneKernel,
    ceilings: Ceilings,
    /// Only names that contain it run; criterion's own filter would still pay for the preparation.
    filter: Option<String>,
}

/// A dispatch with what it needs.
struct Work {
    call: Call,
    step: Vec<u32>,
    operands: Vec<Data>,
    shape: StepShape,
}

impl Bench {
    fn open() -> Self {
        let device = LoneKernel::open(Options { default_limits: false, ..Options::default() }).unwrap();
        let ceilings = device.ceilings().unwrap();
        println!(
            "{}: read {:.1} GB/s, copy {:.1} GB/s, {:.1} GFLOP/s",
            device.profile().name,
            ceilings.read / 1e9,
            ceilings.copy / 1e9,
            ceilings.flops / 1e9
        );
        let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
        Self { device, ceilings, filter }
    }

    fn measure(
        &self,
        c: &mut Criterion,
        name: &str,
        throughput: fn(u64, u64) -> Throughput,
        work: impl Fn() -> Work,
    ) {
        if self.filter.as_ref().is_some_and(|f| !name.contains(f.as_str())) {
            return;
        }
        let Work { call, step, operands, shape } = work();
        let rows = call.rows.of(&shape);
        let (bytes, flops) = (call.cost.bytes(rows, 0), call.cost.flops(rows, 0));
        let time =
            |rounds, reps| self.device.time(&call, &step, &operands, &shape, None, (rounds, reps)).unwrap();
        let best = time(5, 5).as_secs_f64();
        println!(
            "{name}: {} {:.1} us, {:.2} GB/s ({:.0} % of reading), {:.2} GFLOP/s ({:.0} % of multiply-adds)",
            call.kernel.name(),
            best * 1e6,
            bytes as f64 / best / 1e9,
            100.0 * bytes as f64 / best / self.ceilings.read,
            flops as f64 / best / 1e9,
            100.0 * flops as f64 / best / self.ceilings.flops
        );
        let mut group = c.benchmark_group("matrix");
        group.throughput(throughput(bytes, flops));
        group.bench_function(name, |b| {
            // One round: its buffers are made before the clock starts.
            b.iter_custom(|iterations| time(1, iterations as u32) * iterations as u32);
        });
        group.finish();
    }
}

/// Step tables of `tokens` tokens with ids from 0.
fn step_of(tokens: u32) -> (Vec<u32>, StepShape) {
    let mut words = vec![0; step::HEADER_WORDS as usize];
    words[step::HEADER_TOKENS as usize] = tokens;
    words.extend(0..tokens);
    (words, StepShape { tokens, ..StepShape::default() })
}

fn product(bench: &Bench, format: Format, n: u32, k: u32, t: u32) -> Work {
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
    Work { call: linear::plan(bench.device.profile(), &args), step, operands, shape }
}

fn matrix(c: &mut Criterion) {
    let bench = Bench::open();
    let bytes = |bytes, _| Throughput::Bytes(bytes);
    let flops = |_, flops| Throughput::Elements(flops);
    for format in Format::ALL {
        // Blocks of 128 and 256 do not divide 576.
        let narrow = if 576 % format.block_len() == 0 { 576 } else { 512 };
        for (n, k) in [(1536, narrow), (576, 1536), (4096, 4096)] {
            let name = format!("mat_vec/{format}/{n}x{k}");
            bench.measure(c, &name, bytes, || product(&bench, format, n, k, 1));
        }
    }
    for t in [2, 4, 8] {
        bench.measure(c, &format!("mat_vec/q4_k/2048x2048/t{t}"), bytes, || {
            product(&bench, Format::Q4K, 2048, 2048, t)
        });
    }
    for format in [Format::F32, Format::F16, Format::Q4_1, Format::Q4K, Format::Q6K, Format::Q8_0] {
        for (n, k, t) in [(1536, 512, 64), (576, 1536, 512), (2048, 2048, 64)] {
            let name = format!("mat_mat/{format}/{n}x{k}/t{t}");
            bench.measure(c, &name, flops, || product(&bench, format, n, k, t));
        }
    }
    for t in [1, 512] {
        let (step, shape) = step_of(t);
        let width = 1536;
        let values = |count: u32| Data::F32(vec![0.5; count as usize]);
        bench.measure(c, &format!("gate/silu/t{t}"), bytes, || {
            let activation = gate::Activation::Silu;
            let unit = Unit::Tokens;
            let args = gate::Args { activation, width, x_stride: 2 * width, out_stride: width, unit };
            Work {
                call: gate::plan(bench.device.profile(), &args),
                step: step.clone(),
                operands: vec![values(2 * width * t), values(width * t)],
                shape: shape.clone(),
            }
        });
        bench.measure(c, &format!("add/t{t}"), bytes, || {
            let args = add::Args { width, x_stride: width, out_stride: width, unit: Unit::Tokens };
            Work {
                call: add::plan(bench.device.profile(), &args),
                step: step.clone(),
                operands: vec![values(width * t), values(width * t)],
                shape: shape.clone(),
            }
        });
        bench.measure(c, &format!("embed/q6_k/t{t}"), bytes, || {
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
            Work {
                call: embed::plan(bench.device.profile(), &args),
                step: step.clone(),
                operands: vec![Data::Bytes(vec![0x11; record.stride() as usize * 512]), values(width * t)],
                shape: shape.clone(),
            }
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = matrix
}
criterion_main!(benches);
