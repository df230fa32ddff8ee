//! What the adapter can do at best: the figures benches divide by.

use super::latencies::READ_BACK;
use super::shapes::{Chains, Memory};
use super::{LoneKernel, pipeline, what};
use crate::RuntimeError;
use crate::books::Buffer;
use crate::point::Point;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The best of several shapes, measured on the open device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ceilings {
    /// Bytes read a second.
    pub read: f64,
    /// Bytes read and written a second by a copy (a byte copied counts twice).
    pub copy: f64,
    /// f32 operations a second of chained multiply-adds (one counts twice).
    pub flops: f64,
}

impl Ceilings {
    /// The better of two measurements, figure by figure.
    #[must_use]
    pub fn or_better(&self, other: &Self) -> Self {
        Self {
            read: self.read.max(other.read),
            copy: self.copy.max(other.copy),
            flops: self.flops.max(other.flops),
        }
    }
}

/// A shape of a kernel, and what it reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// In words.
    pub shape: String,
    /// Bytes or operations a second, or seconds.
    pub value: f64,
}

/// Everything that was tried, the best of each first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CeilingReport {
    /// Bytes read a second.
    pub read: Vec<Tried>,
    /// Bytes read and written a second by a copy.
    pub copy: Vec<Tried>,
    /// f32 operations a second.
    pub flops: Vec<Tried>,
    /// Seconds of a dispatch among others in a pass.
    pub dispatch: Vec<Tried>,
    /// Seconds of a submit that is waited for.
    pub submit: Vec<Tried>,
    /// Seconds from a submit to 4 KiB that the host can read.
    pub readback: Vec<Tried>,
}

impl CeilingReport {
    /// The best of each.
    pub fn ceilings(&self) -> Ceilings {
        let best = |tried: &[Tried]| tried.first().map_or(0.0, |best| best.value);
        Ceilings { read: best(&self.read), copy: best(&self.copy), flops: best(&self.flops) }
    }
}

/// Bytes of the buffer that is read: larger than a CPU's caches, smaller than the default binding limit.
pub(super) const BYTES: u64 = 64 << 20;

/// What a timed submit lasts at least, so that what a submit costs is little of it.
const LEAST: Duration = Duration::from_millis(20);
/// The most dispatches of a timed pass.
const MOST: u32 = 256;
/// Timed rounds of a shape; one that is not near the best after two has no more.
const ROUNDS: u32 = 9;

/// A kernel of a ceiling, ready to be recorded.
pub(super) struct Ready {
    pub pipeline: wgpu::ComputePipeline,
    pub group: wgpu::BindGroup,
    pub groups: u32,
}

impl LoneKernel {
    /// Bytes of the buffers that ceilings are measured in, and what latencies are measured in beside them.
    pub const CEILING_BYTES: u64 = 2 * BYTES + 3 * READ_BACK;

    /// Measures the ceilings of reading, copying and multiply-adds; seconds on a software driver.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`] where the device has less than [`LoneKernel::CEILING_BYTES`],
    /// [`RuntimeError::DeviceLost`], [`RuntimeError::Validation`] with what else wgpu refuses.
    pub fn ceilings(&self) -> Result<Ceilings, RuntimeError> {
        Ok(self.rates()?.ceilings())
    }

    /// The same with every shape that was tried, and what dispatches, submits and readbacks cost.
    ///
    /// # Errors
    /// As [`LoneKernel::ceilings`].
    pub fn ceiling_report(&self) -> Result<CeilingReport, RuntimeError> {
        let mut report = self.rates()?;
        self.latencies(&mut report)?;
        Ok(report)
    }

    fn rates(&self) -> Result<CeilingReport, RuntimeError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let (a, b) = (self.buffer(BYTES, usage)?, self.buffer(BYTES, usage)?);
        let rate = |amount: u64, time: Duration| amount as f64 / time.as_secs_f64();
        let mut report = CeilingReport::default();
        for shape in Memory::ALL {
            let ready = self.ready(&shape.wgsl(), shape.groups(), &a, &b)?;
            let (tried, bytes) =
                if shape.copy { (&mut report.copy, 2 * BYTES) } else { (&mut report.read, BYTES) };
            let known = least(tried, bytes);
            let time = self.best(known, |encoder, times| dispatch(encoder, &ready, times))?;
            tried.push(Tried { shape: shape.name(), value: rate(bytes, time) });
        }
        let time = self.best(f64::MAX, |encoder, times| {
            for _ in 0..times {
                encoder.copy_buffer_to_buffer(a.raw(), 0, b.raw(), 0, BYTES);
            }
        })?;
        report.copy.push(Tried { shape: "copy_buffer_to_buffer".to_owned(), value: rate(2 * BYTES, time) });
        for shape in Chains::ALL {
            let ready = self.ready(&shape.wgsl(), shape.groups(), &a, &b)?;
            let known = least(&report.flops, shape.flops());
            let time = self.best(known, |encoder, times| dispatch(encoder, &ready, times))?;
            report.flops.push(Tried { shape: shape.name(), value: rate(shape.flops(), time) });
        }
        for tried in [&mut report.read, &mut report.copy, &mut report.flops] {
            tried.sort_by(|a, b| b.value.total_cmp(&a.value));
        }
        Ok(report)
    }

    pub(super) fn buffer(&self, bytes: u64, usage: wgpu::BufferUsages) -> Result<Buffer, RuntimeError> {
        self.device.create_buffer("ceiling", bytes, usage, false)
    }

    /// The least time of one of the things that `record` puts into a list as often as it is told; as many are timed
    /// together as make a submit that lasts. What takes more than twice `known` seconds is soon given up.
    fn best(
        &self,
        known: f64,
        record: impl Fn(&mut wgpu::CommandEncoder, u32),
    ) -> Result<Duration, RuntimeError> {
        let (mut best, mut times) = (Duration::MAX, 1);
        for round in 0..=ROUNDS {
            let start = Instant::now();
            self.submit("ceiling", |encoder| record(encoder, times))?;
            self.device.wait_idle()?;
            let time = start.elapsed() / times;
            // The first compiles.
            if round == 1 {
                let enough = LEAST.as_nanos() / time.as_nanos().max(1);
                times = u32::try_from(enough).unwrap_or(MOST).clamp(1, MOST);
            }
            if round > 0 {
                best = best.min(time);
            }
            if round >= 2 && best.as_secs_f64() > 2.0 * known {
                break;
            }
        }
        Ok(best)
    }

    /// Compiles a kernel that has two buffers, the first only read, and binds them.
    pub(super) fn ready(
        &self,
        wgsl: &str,
        groups: u32,
        a: &Buffer,
        b: &Buffer,
    ) -> Result<Ready, RuntimeError> {
        let name = "ceiling";
        self.device.create(
            Point::Pipeline,
            || what(name),
            |device| {
                let entries = [0, 1].map(|binding| wgpu::BindGroupLayoutEntry {
                    binding,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer {
                        ty: wgpu::BufferBindingType::Storage { read_only: binding == 0 },
                        has_dynamic_offset: false,
                        min_binding_size: None,
                    },
                    count: None,
                });
                let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                    label: Some(name),
                    entries: &entries,
                });
                let built = pipeline(device, name, wgsl.to_owned(), layout);
                let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some(name),
                    layout: &built.layout,
                    entries: &[
                        wgpu::BindGroupEntry { binding: 0, resource: a.raw().as_entire_binding() },
                        wgpu::BindGroupEntry { binding: 1, resource: b.raw().as_entire_binding() },
                    ],
                });
                Ready { pipeline: built.pipeline, group, groups }
            },
        )
    }
}

/// Seconds that the best so far would take for `amount`.
fn least(tried: &[Tried], amount: u64) -> f64 {
    tried.iter().map(|tried| amount as f64 / tried.value).fold(f64::MAX, f64::min)
}

/// A pass of `times` dispatches.
pub(super) fn dispatch(encoder: &mut wgpu::CommandEncoder, ready: &Ready, times: u32) {
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&ready.pipeline);
    pass.set_bind_group(0, &ready.group, &[]);
    for _ in 0..times {
        pass.dispatch_workgroups(ready.groups, 1, 1);
    }
}
