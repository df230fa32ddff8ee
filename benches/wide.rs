//! Layers of large models by themselves, one figure each and quickly: products of 4,096 to 8,192 values a side and
//! attention at long contexts, with their share of the ceilings measured in the same run. `benches/gpu_check.sh` runs it
//! where a new machine is looked at; the criterion benches look closer.
//!
//! `cargo bench --bench wide` prints one JSON document; `-- --quick` leaves out what takes a software driver minutes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "../tests/steps/mod.rs"]
mod steps;

use plimsoll_kernels::ops::{attention, linear};
use plimsoll_kernels::{Call, Format, KvFormat, Record, StepShape, Unit, step};
use plimsoll_runtime::lone::{Ceilings, Data, LoneKernel, Options};
use serde_json::{Value, json};
use steps::{Built, Case, run, shape};

/// Rounds, of which the best counts, and dispatches of a round.
const ROUNDS: (u32, u32) = (3, 3);

struct Bench {
    device: LoneKernel,
    ceilings: Ceilings,
    figures: Vec<Value>,
}

impl Bench {
    fn measure(
        &mut self,
        name: String,
        call: &Call,
        (words, step_shape): (&[u32], &StepShape),
        operands: &[Data],
        (range, kv): (Option<[u32; 4]>, u64),
    ) {
        let time = self.device.time(call, words, operands, step_shape, range, ROUNDS);
        let rows = call.rows.of(step_shape);
        let (bytes, flops) = (call.cost.bytes(rows, kv) as f64, call.cost.flops(rows, kv) as f64);
        self.figures.push(match time {
            Ok(time) => {
                let seconds = time.as_secs_f64();
                json!({
                    "name": name, "kernel": call.kernel.name(), "seconds": seconds,
                    "bytes_per_second": bytes / seconds, "flops_per_second": flops / seconds,
                    "fraction_of_read": bytes / seconds / self.ceilings.read,
                    "fraction_of_flops": flops / seconds / self.ceilings.flops,
                })
            }
            // A figure that an adapter cannot have is a figure of it too.
            Err(error) => json!({ "name": name, "kernel": call.kernel.name(), "error": error.to_string() }),
        });
        eprintln!("{}", self.figures.last().map_or(String::new(), Value::to_string));
    }

    /// `[t, k] × [n, k]ᵀ`.
    fn product(&mut self, format: Format, (n, k, t): (u32, u32, u32)) {
        let record = Record::new(format, k).unwrap();
        let bytes = record.stride() * u64::from(n);
        if bytes > self.device.profile().limits.max_storage_buffer_binding_size {
            return;
        }
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
        let mut words = vec![0; step::HEADER_WORDS as usize];
        words[step::HEADER_TOKENS as usize] = t;
        words.extend(0..t);
        let step_shape = StepShape { tokens: t, ..StepShape::default() };
        // Every byte 0x11: small, normal scales in every format.
        let operands = [
            Data::Bytes(vec![0x11; bytes as usize]),
            Data::F32(vec![1.0; (t * k) as usize]),
            Data::Poison((t * n) as usize),
            Data::Poison(1),
        ];
        let call = linear::plan(self.device.profile(), &args);
        let name = format!("product/{format}/{n}x{k}/t{t}");
        self.measure(name, &call, (&words, &step_shape), &operands, (None, 0));
    }

    /// `tokens` queries behind `first` keys.
    fn attention(&mut self, (heads, kv_heads, dim): (u32, u32, u32), first: u32, tokens: u32) {
        let decode = tokens == 1;
        for splits in if decode { &[1, 8][..] } else { &[1] } {
            let run = run(0, first, tokens);
            let case = Case {
                decode,
                splits: *splits,
                ..Case::new(shape(heads, kv_heads, dim), KvFormat::F16, &[run])
            };
            let built = Built::new(&case, 1);
            let args = built.args(0);
            let call = attention::plan(self.device.profile(), &args);
            let operands = [
                Data::F32(built.qkv.clone()),
                Data::U32(built.segment(&args)),
                Data::Poison(built.out_words()),
                Data::Poison(built.scratch_words()),
            ];
            let name = format!("attention/{heads}x{kv_heads}x{dim}/{tokens} at {first}/splits {splits}");
            let work = (Some([0, u32::MAX, 0, 0]), u64::from(first + tokens / 2));
            self.measure(name, &call, (&built.step, &built.step_shape), &operands, work);
        }
    }
}

fn main() {
    let quick = std::env::args().any(|a| a == "--quick");
    let device = LoneKernel::open(Options { default_limits: false, ..Options::default() }).unwrap();
    let ceilings = device.ceilings().unwrap();
    let mut bench = Bench { device, ceilings, figures: Vec::new() };
    let sides: &[(u32, u32)] =
        if quick { &[(4096, 4096)] } else { &[(4096, 4096), (14_336, 4096), (8192, 8192)] };
    for format in [Format::Q4_0, Format::Q4K, Format::Nvfp4, Format::Q8_0, Format::BF16] {
        for &(n, k) in sides {
            for t in if quick { &[1, 8][..] } else { &[1, 8, 512] } {
                bench.product(format, (n, k, *t));
            }
        }
        if quick {
            bench.product(format, (2048, 2048, 64));
        }
    }
    let depth = if quick { 4_095 } else { 32_767 };
    for heads in [(32, 8, 128), (24, 4, 256)] {
        bench.attention(heads, depth, 1);
        bench.attention(heads, depth - 63, if quick { 16 } else { 64 });
    }
    let profile = bench.device.profile();
    let document = json!({
        "adapter": profile.name,
        "quick": quick,
        "ceilings": {
            "read_bytes_per_second": bench.ceilings.read,
            "copy_bytes_per_second": bench.ceilings.copy,
            "flops_per_second": bench.ceilings.flops,
        },
        "figures": bench.figures,
    });
    println!("{document:#}");
}
