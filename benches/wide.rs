//! Layers of large models by themselves, one figure each and quickly: products of 4,096 to 8,192 values a side and
//! attention at long contexts, with their share of the ceilings measured in the same run. `benches/gpu_check.sh` runs it
//! where a new machine is looked at; the criterion benches look closer.
//!
//! `cargo bench --bench wide [-- FILTER]` prints one JSON document; `-- --quick` leaves out what takes a software driver
//! minutes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod figures;
#[path = "../tests/steps/mod.rs"]
mod steps;

use figures::{Figures, Work};
use plimsoll_kernels::ops::{attention, linear};
use plimsoll_kernels::{Format, KvFormat, Record, StepShape, Unit, step};
use plimsoll_runtime::lone::Data;
use serde_json::{Value, json};
use steps::{Built, Case, run, shape};

struct Bench {
    figures: Figures,
    measured: Vec<Value>,
}

impl Bench {
    fn measure(&mut self, name: &str, work: Work) {
        if !self.figures.wanted(name) {
            return;
        }
        let kernel = work.stages[0].0.kernel.name();
        let figure = self.figures.take(name, &Work { timing: (3, 3), ..work });
        self.measured.push(match figure {
            Ok(figure) => json!({
                "name": name, "kernel": kernel, "seconds": figure.seconds,
                "bytes_per_second": figure.bytes / figure.seconds, "flops_per_second": figure.flops / figure.seconds,
                "fraction_of_read": figure.of_read, "fraction_of_flops": figure.of_flops,
            }),
            // A figure that an adapter cannot have is a figure of it too.
            Err(error) => json!({ "name": name, "kernel": kernel, "error": error.to_string() }),
        });
        eprintln!("{}", self.measured.last().map_or(String::new(), Value::to_string));
    }

    /// `[t, k] × [n, k]ᵀ`.
    fn product(&mut self, format: Format, (n, k, t): (u32, u32, u32)) {
        let record = Record::new(format, k).unwrap();
        let bytes = record.stride() * u64::from(n);
        if bytes > self.figures.profile().limits.max_storage_buffer_binding_size {
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
        let operands = vec![
            Data::Bytes(vec![0x11; bytes as usize]),
            Data::F32(vec![1.0; (t * k) as usize]),
            Data::Poison((t * n) as usize),
            Data::Poison(1),
        ];
        let call = linear::plan(self.figures.profile(), &args);
        let work = Work::new(call, operands, (&words, &step_shape));
        self.measure(&format!("product/{format}/{n}x{k}/t{t}"), work);
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
            let call = attention::plan(self.figures.profile(), &args);
            let operands = vec![
                Data::F32(built.qkv.clone()),
                Data::U32(built.segment(&args)),
                Data::Poison(built.out_words()),
                Data::Poison(built.scratch_words()),
            ];
            let name = format!("attention/{heads}x{kv_heads}x{dim}/{tokens} at {first}/splits {splits}");
            let work = Work {
                range: Some([0, u32::MAX, 0, 0]),
                kv: u64::from(first + tokens / 2),
                ..Work::new(call, operands, (&built.step, &built.step_shape))
            };
            self.measure(&name, work);
        }
    }
}

fn main() {
    let quick = std::env::args().any(|a| a == "--quick");
    // Standard output is the document's.
    let mut bench = Bench { figures: Figures::open_quietly("wide"), measured: Vec::new() };
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
    let ceilings = bench.figures.ceilings();
    let document = json!({
        "adapter": bench.figures.profile().name,
        "quick": quick,
        "ceilings": {
            "read_bytes_per_second": ceilings.read,
            "copy_bytes_per_second": ceilings.copy,
            "flops_per_second": ceilings.flops,
        },
        "figures": bench.measured,
    });
    println!("{document:#}");
}
