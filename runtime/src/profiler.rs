//! Where a step's time goes: what the host spends on every step, always counted; and, where somebody asks, the time of
//! each dispatch.
//!
//! What measuring needs on the device (two small buffers and a set of queries, or an empty kernel) is made when it is
//! asked for, before any measured step, and stands in the books until it is given back. Nothing is made in a step.

use crate::books::Buffer;
use crate::point::Point;
use crate::recording::Cursor;
use crate::{Device, Runtime, RuntimeError, StepInput, transfer};
use plimsoll_estimator::Plan;
use plimsoll_kernels::StepShape;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Queries of the set: WebGPU's most. A submit holds one dispatch less.
const QUERIES: u32 = 4096;

/// Empty submits whose median is what one costs.
const EMPTY_SUBMITS: usize = 65;

/// How dispatches are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Timestamps of the device between the dispatches of a pass: a dispatch is what passes from the end of the one
    /// before it to its own end.
    Timestamps,
    /// Each dispatch submitted and waited for alone, less what an empty one takes.
    Alone,
}

/// What the host has spent on steps since the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Recording commands: from an empty list to a finished one.
    pub recording: Duration,
    /// Handing them over.
    pub submitting: Duration,
    /// Dispatches recorded.
    pub dispatches: u64,
    /// Lists handed over.
    pub submits: u64,
}

impl Spent {
    /// What was spent since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            recording: self.recording.saturating_sub(earlier.recording),
            submitting: self.submitting.saturating_sub(earlier.submitting),
            dispatches: self.dispatches.saturating_sub(earlier.dispatches),
            submits: self.submits.saturating_sub(earlier.submits),
        }
    }
}

/// One dispatch of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Its index in the program.
    pub dispatch: u32,
    /// Which KV range of it.
    pub range: u32,
    /// Seconds from the first dispatch of the step to its beginning, waiting between submits left out.
    pub start: f64,
    /// Seconds it took.
    pub seconds: f64,
    /// Bytes it moves, as planned.
    pub bytes: u64,
    /// Floating-point operations it does, as planned.
    pub flops: u64,
}

/// A profiled step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// Index in [`Plan::programs`].
    pub program: usize,
    /// What was in the step.
    pub shape: StepShape,
    /// KV tokens that a row sees on average.
    pub kv: u32,
    /// Every dispatch that ran, in order.
    pub samples: Vec<Sample>,
    /// From the beginning of the step to its result, measuring included.
    pub wall: Duration,
}

/// What a recording tells of the dispatches that it makes, and the stamps that it makes between them.
#[derive(Default)]
pub(crate) struct Trace {
    dispatches: u64,
    queries: Option<wgpu::QuerySet>,
    /// Of the commands being recorded: where each dispatch stands.
    made: Vec<Cursor>,
    kept: bool,
}

impl Trace {
    /// Before the first dispatch of a pass.
    pub fn begin(&mut self, pass: &mut wgpu::ComputePass<'_>) {
        if let Some(queries) = &self.queries {
            pass.write_timestamp(queries, 0);
        }
    }

    /// Whether another dispatch would find no query.
    pub fn is_full(&self) -> bool {
        self.queries.is_some() && self.made.len() + 1 >= QUERIES as usize
    }

    /// After a dispatch.
    pub fn dispatched(&mut self, pass: &mut wgpu::ComputePass<'_>, at: Cursor) {
        self.dispatches += 1;
        if self.kept {
            self.made.push(at);
        }
        if let Some(queries) = &self.queries {
            pass.write_timestamp(queries, self.made.len() as u32);
        }
    }
}

/// Counts always, and measures while somebody wants it.
#[derive(Default)]
pub(crate) struct Profiler {
    spent: Spent,
    pub trace: Trace,
    active: Option<Active>,
}

struct Active {
    means: Means,
    /// Of the step being run.
    kv: u32,
    samples: Vec<Sample>,
    at: f64,
    done: Vec<StepProfile>,
}

enum Means {
    Timestamps { resolved: Buffer, read: Buffer, seconds_per_tick: f64 },
    Alone { empty: Duration },
}

impl Means {
    fn new(device: &Device, method: Method) -> Result<Self, RuntimeError> {
        match method {
            Method::Timestamps => {
                let bytes = u64::from(QUERIES) * 8;
                let (resolve, read) = (
                    wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                    wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
                );
                Ok(Self::Timestamps {
                    resolved: device.create_buffer("profile.resolved", bytes, resolve, false)?,
                    read: device.create_buffer("profile.read", bytes, read, false)?,
                    seconds_per_tick: f64::from(device.raw().1.get_timestamp_period()) * 1e-9,
                })
            }
            Method::Alone => Ok(Self::Alone { empty: empty_submit(device)? }),
        }
    }
}

/// The median time of a submit of one dispatch of a kernel that does nothing, waited for.
fn empty_submit(device: &Device) -> Result<Duration, RuntimeError> {
    let pipeline = device.create(
        Point::Pipeline,
        || "a kernel that does nothing".to_owned(),
        |d| {
            let text = "@compute @workgroup_size(1) fn main() {}";
            let module = d.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some("empty"),
                source: wgpu::ShaderSource::Wgsl(text.into()),
            });
            d.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some("empty"),
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: Default::default(),
                cache: None,
            })
        },
    )?;
    let mut times = Vec::with_capacity(EMPTY_SUBMITS);
    for _ in 0..EMPTY_SUBMITS {
        let begun = Instant::now();
        let mut encoder = device.encoder("empty");
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        let commands = encoder.finish();
        let submitted = device.submit(commands)?;
        device.wait(&submitted)?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times.get(EMPTY_SUBMITS / 2).copied().unwrap_or_default())
}

impl Profiler {
    /// Whether every dispatch has a submit of its own.
    pub fn alone(&self) -> bool {
        matches!(&self.active, Some(Active { means: Means::Alone { .. }, .. }))
    }

    /// A step begins whose rows see `kv` tokens on average.
    pub fn begin(&mut self, input: &StepInput<'_>) {
        // What a step left that failed.
        self.trace.made.clear();
        self.trace.dispatches = 0;
        if let Some(active) = &mut self.active {
            active.kv = mean_kv(input);
            active.samples.clear();
            active.at = 0.0;
        }
    }

    /// Reads out the queries of the pass that was recorded.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let (Some(queries), Some(Active { means: Means::Timestamps { resolved, read, .. }, .. })) =
            (&self.trace.queries, &self.active)
        else {
            return;
        };
        if self.trace.made.is_empty() {
            return;
        }
        let used = self.trace.made.len() as u32 + 1;
        encoder.resolve_query_set(queries, 0..used, resolved.raw(), 0);
        encoder.copy_buffer_to_buffer(resolved.raw(), 0, read.raw(), 0, u64::from(used) * 8);
    }

    /// Commands were recorded and handed over.
    pub fn submitted(&mut self, recording: Duration, submitting: Duration) {
        self.spent.recording += recording;
        self.spent.submitting += submitting;
        self.spent.submits += 1;
        self.spent.dispatches += std::mem::take(&mut self.trace.dispatches);
    }

    /// Waits for commands that began to be recorded at `begun`, and notes what their dispatches took. Does nothing while
    /// nobody measures.
    pub fn collect(
        &mut self,
        device: &Device,
        plan: &Plan,
        (program, shape): (usize, &StepShape),
        submitted: &wgpu::SubmissionIndex,
        begun: Instant,
    ) -> Result<(), RuntimeError> {
        let (Some(active), made) = (&mut self.active, &mut self.trace.made) else { return Ok(()) };
        if made.is_empty() {
            return device.wait(submitted);
        }
        let mut times: Vec<f64> = match &active.means {
            Means::Timestamps { read, seconds_per_tick, .. } => {
                let bytes = (made.len() as u64 + 1) * 8;
                transfer::read(device, read, bytes, submitted, |bytes| {
                    let ticks: Vec<u64> = bytes
                        .chunks_exact(8)
                        .filter_map(|b| b.try_into().ok().map(u64::from_le_bytes))
                        .collect();
                    let passed = ticks.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
                    passed.map(|ticks| ticks as f64 * seconds_per_tick).collect()
                })?
            }
            Means::Alone { empty } => {
                device.wait(submitted)?;
                vec![begun.elapsed().saturating_sub(*empty).as_secs_f64()]
            }
        };
        times.resize(made.len(), 0.0);
        for (at, seconds) in made.drain(..).zip(times) {
            let dispatch = plan.programs.get(program).and_then(|p| p.dispatches.get(at.dispatch));
            let (bytes, flops) = dispatch.map_or((0, 0), |d| {
                let kv = if d.ranged {
                    let before = u64::from(at.range).saturating_mul(plan.ranges.tokens.into());
                    u64::from(active.kv).saturating_sub(before).min(plan.ranges.tokens.into())
                } else {
                    active.kv.into()
                };
                let rows = d.rows.of(shape);
                (d.cost.bytes(rows, kv), d.cost.flops(rows, kv))
            });
            let (dispatch, range, start) = (at.dispatch as u32, at.range, active.at);
            active.samples.push(Sample { dispatch, range, start, seconds, bytes, flops });
            active.at += seconds;
        }
        Ok(())
    }

    /// A step is done that began at `begun`.
    pub fn done(&mut self, plan: &Plan, shape: &StepShape, begun: Instant) {
        let Some(active) = &mut self.active else { return };
        let program = plan.programs.iter().position(|p| shape.tokens <= p.max_tokens).unwrap_or_default();
        active.done.push(StepProfile {
            program,
            shape: shape.clone(),
            kv: active.kv,
            samples: std::mem::take(&mut active.samples),
            wall: begun.elapsed(),
        });
    }
}

/// KV tokens that a row of a step sees on average, itself included, rounded down.
fn mean_kv(input: &StepInput<'_>) -> u32 {
    let (mut rows, mut seen) = (0u64, 0u64);
    for sequence in input.sequences {
        let n = sequence.ids.len() as u64;
        rows += n;
        // The first row sees `position + 1`, the last `position + n`.
        seen += n * u64::from(sequence.position) + n * (n + 1) / 2;
    }
    u32::try_from(seen / rows.max(1)).unwrap_or(u32::MAX)
}

impl Runtime {
    /// What the host has spent on steps since the load.
    pub fn spent(&self) -> Spent {
        self.profiler.spent
    }

    /// Measures every dispatch of the steps that follow. What is needed on the device is made now, beside the plan's
    /// buffers, and is in the books; [`Runtime::stop_profile`] gives it back.
    ///
    /// # Errors
    /// [`RuntimeError`] of a device that cannot make it, or was not opened for timestamps.
    pub fn start_profile(&mut self, method: Method) -> Result<(), RuntimeError> {
        self.stop_profile();
        let means = Means::new(&self.device, method)?;
        let queries = match method {
            Method::Timestamps => Some(self.device.query_set("profile", QUERIES)?),
            Method::Alone => None,
        };
        self.profiler.trace =
            Trace { queries, kept: true, made: Vec::with_capacity(QUERIES as usize), dispatches: 0 };
        self.profiler.active = Some(Active { means, kv: 0, samples: Vec::new(), at: 0.0, done: Vec::new() });
        Ok(())
    }

    /// The steps measured since the last call, and what an empty submit takes where that was subtracted.
    pub fn take_profile(&mut self) -> (Vec<StepProfile>, Option<Duration>) {
        let Some(active) = &mut self.profiler.active else { return (Vec::new(), None) };
        let empty = match active.means {
            Means::Alone { empty } => Some(empty),
            Means::Timestamps { .. } => None,
        };
        (std::mem::take(&mut active.done), empty)
    }

    /// Measures no longer, and frees what that took.
    pub fn stop_profile(&mut self) {
        self.profiler.active = None;
        self.profiler.trace = Trace::default();
    }
}
