//! Attention, rope with the KV write, norm and top-k by themselves: time of a dispatch, bytes and operations a second,
//! and what part that is of the read bandwidth and the multiply-add rate measured on the same device in the same run.
//!
//! `cargo bench --bench kernels_attention [-- FILTER]`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "../tests/steps/mod.rs"]
mod steps;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_kernels::ops::{attention, attention_merge, rms_norm, rope_kv, top_k};
use plimsoll_kernels::{Call, KvFormat, Profile, StepLayout, StepShape, Unit};
use plimsoll_runtime::lone::{Ceilings, Data, LoneKernel, Options};
use std::time::{Duration, Instant};
use steps::{Built, Case, Noise, run, shape, step_words};

struct Bench {
    device: LoneKernel,
    ceilings: Ceilings,
}

/// A dispatch with what it needs.
struct Work<'a> {
    call: &'a Call,
    step: &'a [u32],
    operands: &'a [Data],
    step_shape: &'a StepShape,
    range: Option<[u32; 4]>,
    /// KV tokens a row sees on average.
    kv: u64,
}

/// Seconds that all threads of this process have run: what a software driver spends, however busy the machine is.
fn cpu_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum::<f64>() / 1e9
}

impl Bench {
    fn open() -> Self {
        let device = LoneKernel::open(Options { default_limits: false, ..Options::default() }).unwrap();
        let ceilings = device.ceilings().unwrap();
        println!(
            "{}: read {:.1} GB/s, {:.1} GFLOP/s",
            device.profile().name,
            ceilings.read / 1e9,
            ceilings.flops / 1e9
        );
        Self { device, ceilings }
    }

    fn measure(&self, c: &mut Criterion, name: &str, work: &Work) {
        // Criterion filters what it measures itself, which the line below is not.
        if std::env::args().skip(1).any(|arg| !arg.starts_with('-') && !name.contains(&arg)) {
            return;
        }
        let rows = work.call.rows.of(work.step_shape);
        let (bytes, flops) = (work.call.cost.bytes(rows, work.kv), work.call.cost.flops(rows, work.kv));
        let time = |rounds, reps| {
            let Work { call, step, operands, step_shape, range, .. } = work;
            self.device.time(call, step, operands, step_shape, *range, (rounds, reps)).unwrap()
        };
        let start = Instant::now();
        time(1, 1);
        let first = start.elapsed();
        let (busy, reps) = (cpu_seconds(), 3);
        let best = time(5, reps).as_secs_f64();
        let busy = (cpu_seconds() - busy) / (f64::from(reps * 5 + 1));
        println!(
            "{name}: {} made in {first:.0?}, {:.1} us ({:.1} us of CPU), {:.2} GB/s ({:.0} % of reading), {:.2} GFLOP/s ({:.0} % of multiply-adds)",
            work.call.kernel.name(),
            best * 1e6,
            busy * 1e6,
            bytes as f64 / best / 1e9,
            100.0 * bytes as f64 / best / self.ceilings.read,
            flops as f64 / best / 1e9,
            100.0 * flops as f64 / best / self.ceilings.flops,
        );
        let mut group = c.benchmark_group("kernels_attention");
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function(name, |b| b.iter_custom(|n| time(1, n as u32) * n as u32));
        group.finish();
    }
}

/// Decode of one token and a prefill chunk, deep in a sequence, of small and larger heads.
fn attentions(bench: &Bench, c: &mut Criterion) {
    for (name, heads) in
        [("9x3x64", shape(9, 3, 64)), ("24x4x256", shape(24, 4, 256)), ("4x1x256", shape(4, 1, 256))]
    {
        for format in KvFormat::ALL {
            for (kind, first, tokens) in [("decode", 1023, 1), ("prefill", 448, 64)] {
                let decode = kind == "decode";
                for splits in if decode { &[1, 8][..] } else { &[1] } {
                    let case = Case {
                        decode,
                        splits: *splits,
                        ..Case::new(heads, format, &[run(0, first, tokens)])
                    };
                    let built = Built::new(&case, 1);
                    let args = built.args(0);
                    let operands = [
                        Data::F32(built.qkv.clone()),
                        Data::U32(built.segment(&args)),
                        Data::Poison(built.out_words()),
                        Data::Poison(built.scratch_words()),
                    ];
                    // The form with workgroup memory, where the adapter's own is another.
                    let own = bench.device.profile();
                    let plain = Profile { subgroups: false, ..own.clone() };
                    let calls = [own, &plain].map(|profile| attention::plan(profile, &args));
                    let forms = if calls[0].kernel == calls[1].kernel { 1 } else { 2 };
                    for (call, form) in calls.iter().zip(["", "_shared"]).take(forms) {
                        let work = Work {
                            call,
                            step: &built.step,
                            operands: &operands,
                            step_shape: &built.step_shape,
                            range: Some([0, u32::MAX, 0, 0]),
                            kv: u64::from(first + tokens / 2),
                        };
                        bench.measure(c, &format!("attention_{name}_{format}_{kind}_{splits}{form}"), &work);
                    }
                }
            }
        }
    }
    let case =
        Case { decode: true, splits: 8, ..Case::new(shape(24, 4, 256), KvFormat::F16, &[run(0, 99, 1)]) };
    let built = Built::new(&case, 1);
    let call = attention_merge::plan(bench.device.profile(), &built.merge());
    let operands = [Data::F32(vec![1.0; built.scratch_words()]), Data::Poison(built.out_words())];
    let work = Work {
        call: &call,
        step: &built.step,
        operands: &operands,
        step_shape: &built.step_shape,
        range: None,
        kv: 0,
    };
    bench.measure(c, "attention_merge_24x256_8", &work);
}

fn rows(bench: &Bench, c: &mut Criterion) {
    let profile = bench.device.profile();
    let mut noise = Noise::new(1);
    for (width, tokens) in [(576, 1), (576, 256), (5120, 64)] {
        let layout = StepLayout::new(tokens, 1, 1, &[], &[], &[]).unwrap();
        let (step, step_shape) = step_words(&layout, &[run(0, 0, tokens)], 1);
        let args = rms_norm::Args {
            width,
            groups: 1,
            x_stride: width,
            out_stride: width,
            eps: 1e-5,
            weight: 0,
            plus_one: false,
            accumulate: false,
            unit: Unit::Tokens,
        };
        let call = rms_norm::plan(profile, &args);
        let size = (width * tokens) as usize;
        let operands =
            [Data::F32(noise.floats(size)), Data::Poison(size), Data::F32(noise.floats(width as usize))];
        let work = Work {
            call: &call,
            step: &step,
            operands: &operands,
            step_shape: &step_shape,
            range: None,
            kv: 0,
        };
        bench.measure(c, &format!("rms_norm_{tokens}x{width}"), &work);
    }
    for format in KvFormat::ALL {
        for tokens in [1, 128] {
            let heads = shape(16, 8, 128);
            let built = Built::new(&Case::new(heads, format, &[run(0, 0, tokens)]), 1);
            let pairs = heads.head_dim / 2;
            let mut step = built.step.clone();
            let table = step.len() as u32;
            step.extend(noise.floats((tokens * pairs * 2) as usize).iter().map(|v| v.to_bits()));
            let norm = Some(rope_kv::HeadNorm { weight: 0, plus_one: false, eps: 1e-6 });
            let args = rope_kv::Args {
                shape: heads,
                kv: built.kv,
                place: built.args(0).place,
                q_norm: norm,
                k_norm: norm,
                v_norm: None,
                keys: rope_kv::Keys::Own,
                rope: Some(rope_kv::Rope { table, pairs, interleaved: false }),
                rotate_queries: true,
                positions: built.layout.positions,
                token_slots: built.layout.token_slots,
                qkv_stride: built.qkv_stride,
            };
            let call = rope_kv::plan(profile, &args);
            let operands = [
                Data::F32(built.qkv.clone()),
                Data::U32(built.pool.clone()),
                Data::F32(noise.floats(heads.head_dim as usize)),
            ];
            let work = Work {
                call: &call,
                step: &step,
                operands: &operands,
                step_shape: &built.step_shape,
                range: None,
                kv: 0,
            };
            bench.measure(c, &format!("rope_kv_16x8x128_{format}_{tokens}"), &work);
        }
    }
    for (vocab, k) in [(49_152, 1), (49_152, 40), (262_144, 1), (262_144, 64)] {
        let layout = StepLayout::new(1, 1, 1, &[], &[], &[]).unwrap();
        let (step, step_shape) = step_words(&layout, &[run(0, 0, 1)], 1);
        let args = top_k::Args { vocab, stride: vocab, k };
        let [first, second] = top_k::plan(profile, &args).unwrap();
        let scratch = top_k::scratch_words(vocab, k, 1) as usize;
        let logits = [Data::F32(noise.floats(vocab as usize)), Data::Poison(scratch)];
        let written = bench.device.run(&first, &step, &logits, &step_shape, None).unwrap();
        let pairs = [Data::Bytes(written[0].clone()), Data::Poison(top_k::out_words(k) as usize)];
        for (stage, call, operands) in [("blocks", &first, &logits), ("merge", &second, &pairs)] {
            let work = Work { call, step: &step, operands, step_shape: &step_shape, range: None, kv: 0 };
            bench.measure(c, &format!("top_k_{vocab}_{k}_{stage}"), &work);
        }
    }
}

fn benches(c: &mut Criterion) {
    let bench = Bench::open();
    rows(&bench, c);
    attentions(&bench, c);
}

criterion_group!(kernels, benches);
criterion_main!(kernels);
