//! What every bench of kernels measures: the time of a dispatch, its bytes and operations a second, and what part that
//! is of the read bandwidth and the multiply-add rate measured on the same device in the same run. A line a figure, and
//! criterion's own sampling after it.
//!
//! `cargo bench --bench NAME [-- FILTER]` measures the names that contain FILTER; a name begins with its bench's.
//!
//! `PLIMSOLL_FIGURES=FILE` appends a JSON line with the adapter and its ceilings, then one a figure: what
//! `benches/regress.py` reads. `PLIMSOLL_FIGURES_ONLY=1` leaves criterion's sampling out.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use criterion::{Criterion, Throughput};
use plimsoll_kernels::{Call, Profile, StepShape};
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::lone::{Ceilings, Data, LoneKernel, Options};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a layer is best told by; criterion's throughput.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    Bytes,
    Operations,
    Tokens,
}

/// One dispatch, or those of a layer one after another, with what they need.
pub struct Work {
    /// Each with its operands; they are timed one by one.
    pub stages: Vec<(Call, Vec<Data>)>,
    pub step: Vec<u32>,
    pub shape: StepShape,
    pub range: Option<[u32; 4]>,
    /// KV tokens a row sees on average.
    pub kv: u64,
    /// Operations that count, where the forms of a layer do different ones; else those of the stages.
    pub flops: Option<u64>,
    pub rate: Rate,
    /// Rounds, of which the best counts, and dispatches of a round.
    pub timing: (u32, u32),
}

impl Work {
    pub fn new(call: Call, operands: Vec<Data>, (step, shape): (&[u32], &StepShape)) -> Self {
        Self::of(vec![(call, operands)], (step, shape))
    }

    pub fn of(stages: Vec<(Call, Vec<Data>)>, (step, shape): (&[u32], &StepShape)) -> Self {
        Self {
            stages,
            step: step.to_vec(),
            shape: shape.clone(),
            range: None,
            kv: 0,
            flops: None,
            rate: Rate::Bytes,
            timing: (5, 5),
        }
    }

    fn kernel(&self) -> String {
        let told = self.stages.chunk_by(|(a, _), (b, _)| a.kernel == b.kernel).map(|same| {
            let name = same[0].0.kernel.name();
            if same.len() == 1 { name } else { format!("{} × {name}", same.len()) }
        });
        told.collect::<Vec<_>>().join(" + ")
    }

    /// Bytes and operations of all stages.
    fn cost(&self) -> (u64, u64) {
        let one = |(call, _): &(Call, Vec<Data>)| {
            let rows = call.rows.of(&self.shape);
            (call.cost.bytes(rows, self.kv), call.cost.flops(rows, self.kv))
        };
        let (bytes, flops) = self.stages.iter().map(one).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        (bytes, self.flops.unwrap_or(flops))
    }
}

/// What was measured of a [`Work`].
pub struct Figure {
    pub name: String,
    pub kernel: String,
    /// From nothing to a first result: shaders, pipelines, buffers.
    pub made: Duration,
    pub seconds: f64,
    /// What the threads of this process ran for one dispatch: what a software driver spends, however busy the machine
    /// is. Nothing where the system does not tell, or the dispatch was too short for its clock.
    pub cpu_seconds: Option<f64>,
    pub tokens: u32,
    pub bytes: f64,
    pub flops: f64,
    /// Fractions of the ceilings.
    pub of_read: f64,
    pub of_flops: f64,
}

impl Figure {
    fn line(&self, rate: Rate) -> String {
        let Self { name, kernel, made, seconds, .. } = self;
        let tokens = match rate {
            Rate::Tokens => format!(", {:.0} tokens/s", f64::from(self.tokens) / seconds),
            _ => String::new(),
        };
        let cpu = self.cpu_seconds.map_or(String::new(), |cpu| {
            format!(" ({:.1} us of CPU, {:.2} GFLOP/s a core)", cpu * 1e6, self.flops / cpu / 1e9)
        });
        format!(
            "{name}: {kernel} made in {made:.0?}, {:.1} us{cpu}{tokens}, {:.2} GB/s ({:.0} % of reading), {:.2} GFLOP/s \
             ({:.0} % of multiply-adds)",
            seconds * 1e6,
            self.bytes / seconds / 1e9,
            100.0 * self.of_read,
            self.flops / seconds / 1e9,
            100.0 * self.of_flops,
        )
    }
}

/// A device with its ceilings, and where figures go.
pub struct Figures {
    bench: &'static str,
    device: LoneKernel,
    ceilings: Ceilings,
    filter: Option<String>,
    file: Option<File>,
    only: bool,
}

impl Figures {
    /// Of the bench of this name, which is also criterion's group.
    pub fn open(bench: &'static str) -> Self {
        let figures = Self::open_quietly(bench);
        let Ceilings { read, copy, flops } = figures.ceilings;
        println!(
            "{}: read {:.1} GB/s, copy {:.1} GB/s, {:.1} GFLOP/s",
            figures.profile().name,
            read / 1e9,
            copy / 1e9,
            flops / 1e9
        );
        figures
    }

    /// Without a line on standard output.
    pub fn open_quietly(bench: &'static str) -> Self {
        let device = LoneKernel::open(Options { default_limits: false, ..Options::default() }).unwrap();
        let ceilings = device.ceilings().unwrap();
        let file = std::env::var_os("PLIMSOLL_FIGURES").map(PathBuf::from).map(|path| {
            let opened = OpenOptions::new().create(true).append(true).open(&path);
            opened.unwrap_or_else(|e| panic!("PLIMSOLL_FIGURES={}: {e}", path.display()))
        });
        let only = std::env::var_os("PLIMSOLL_FIGURES_ONLY").is_some();
        let figures = Self { bench, device, ceilings, filter: filter(std::env::args().skip(1)), file, only };
        figures.append(&json!({
            "bench": bench,
            "adapter": figures.profile().name,
            "ceilings": { "read": ceilings.read, "copy": ceilings.copy, "flops": ceilings.flops },
        }));
        figures
    }

    pub fn device(&self) -> &LoneKernel {
        &self.device
    }

    pub fn profile(&self) -> &Profile {
        self.device.profile()
    }

    pub fn ceilings(&self) -> &Ceilings {
        &self.ceilings
    }

    /// Prints a figure, then lets criterion sample. Work that nobody asked for is not made.
    pub fn measure(&self, c: &mut Criterion, name: &str, work: impl FnOnce() -> Work) {
        if !self.wanted(name) {
            return;
        }
        let work = work();
        let figure = self.take(name, &work).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{}", figure.line(work.rate));
        if self.only {
            return;
        }
        let mut group = c.benchmark_group(self.bench);
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_secs(1))
            .throughput(match work.rate {
                Rate::Bytes => Throughput::Bytes(figure.bytes as u64),
                Rate::Operations => Throughput::Elements(figure.flops as u64),
                Rate::Tokens => Throughput::Elements(figure.tokens.into()),
            });
        group.bench_function(name, |b| {
            // One round: its buffers are made before the clock starts.
            b.iter_custom(|n| self.time(&work, (1, n as u32)).unwrap() * n as u32);
        });
        group.finish();
    }

    pub fn wanted(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|f| format!("{}/{name}", self.bench).contains(f.as_str()))
    }

    /// Measures, and appends to the file of figures.
    ///
    /// # Errors
    /// As [`LoneKernel::time`]: an adapter may be too small for a dispatch.
    pub fn take(&self, name: &str, work: &Work) -> Result<Figure, RuntimeError> {
        let start = Instant::now();
        self.warm(work)?;
        let made = start.elapsed();
        // What else timing costs (buffers, the dispatch that warms up) is measured by itself and taken off.
        let before = cpu_seconds();
        self.warm(work)?;
        let warm = cpu_seconds();
        let seconds = self.time(work, work.timing)?.as_secs_f64();
        let cpu = before.zip(warm).zip(cpu_seconds()).map(|((before, warm), after)| {
            ((after - warm) - (warm - before)) / (f64::from(work.timing.0) * f64::from(work.timing.1))
        });
        let (bytes, flops) = work.cost();
        let (bytes, flops) = (bytes as f64, flops as f64);
        let figure = Figure {
            name: name.to_owned(),
            kernel: work.kernel(),
            made,
            seconds,
            cpu_seconds: cpu.filter(|cpu| *cpu > 0.0),
            tokens: work.shape.tokens,
            bytes,
            flops,
            of_read: bytes / seconds / self.ceilings.read,
            of_flops: flops / seconds / self.ceilings.flops,
        };
        self.append(&json!({
            "bench": self.bench, "name": name, "kernel": figure.kernel, "seconds": seconds,
            "cpu_seconds": figure.cpu_seconds, "bytes": bytes, "flops": flops,
            "of_read": figure.of_read, "of_flops": figure.of_flops,
        }));
        Ok(figure)
    }

    /// Makes what a work needs and runs it once.
    fn warm(&self, work: &Work) -> Result<(), RuntimeError> {
        for (call, operands) in &work.stages {
            self.device.time(call, &work.step, operands, &work.shape, work.range, (0, 1))?;
        }
        Ok(())
    }

    fn time(&self, work: &Work, timing: (u32, u32)) -> Result<Duration, RuntimeError> {
        let one = |(call, operands): &(Call, Vec<Data>)| {
            self.device.time(call, &work.step, operands, &work.shape, work.range, timing)
        };
        work.stages.iter().map(one).sum()
    }

    fn append(&self, line: &Value) {
        if let Some(mut file) = self.file.as_ref() {
            file.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
    }
}

/// Criterion's FILTER among the arguments: the first that is neither an option nor an option's value.
fn filter(arguments: impl Iterator<Item = String>) -> Option<String> {
    const VALUED: [&str; 13] = [
        "--save-baseline",
        "--baseline",
        "--baseline-lenient",
        "--load-baseline",
        "--color",
        "--sample-size",
        "--warm-up-time",
        "--measurement-time",
        "--nresamples",
        "--noise-threshold",
        "--confidence-level",
        "--significance-level",
        "--profile-time",
    ];
    let mut value = false;
    for argument in arguments {
        if !value && !argument.starts_with('-') {
            return Some(argument);
        }
        value = !value && VALUED.contains(&argument.as_str());
    }
    None
}

/// Seconds that all threads of this process have run, where the system says.
pub fn cpu_seconds() -> Option<f64> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let times = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    times.reduce(|a, b| a + b).map(|nanoseconds| nanoseconds / 1e9)
}
