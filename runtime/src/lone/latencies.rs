//! What a dispatch, a submit and a readback cost apart from the work in them.

use super::LoneKernel;
use super::ceilings::{CeilingReport, Tried, dispatch};
use crate::RuntimeError;
use crate::books::Buffer;
use std::time::{Duration, Instant};

/// Dispatches of a pass whose time is shared among them.
const DISPATCHES: u32 = 512;
/// Rounds of which the least disturbed counts.
const ROUNDS: u32 = 24;
/// Bytes read back.
pub(super) const READ_BACK: u64 = 4096;

/// A kernel that does nothing, or as little as there is to wait for.
fn wgsl(workgroup: u32, body: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read> a: array<u32>;
         @group(0) @binding(1) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size({workgroup})
         fn main(@builtin(global_invocation_id) g: vec3<u32>) {{ {body} }}"
    )
}

impl LoneKernel {
    /// Adds them to a report, the least of each first.
    pub(super) fn latencies(&self, report: &mut CeilingReport) -> Result<(), RuntimeError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let (a, b) = (self.buffer(READ_BACK, usage)?, self.buffer(READ_BACK, usage)?);
        let read = self.buffer(READ_BACK, wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ)?;
        let seconds =
            |shape: &str, time: Duration| Tried { shape: shape.to_owned(), value: time.as_secs_f64() };
        let writes = "b[g.x] = a[g.x];";
        for (workgroup, body, name) in [
            (1, "", "empty, 1 invocation"),
            (8, "", "empty, 8 invocations"),
            (64, "", "empty, 64 invocations"),
            (8, writes, "8 invocations that write what the one before wrote"),
        ] {
            let ready = self.ready(&wgsl(workgroup, body), 1, &a, &b)?;
            let [one, many] = [1, DISPATCHES].map(|n| self.least(|encoder| dispatch(encoder, &ready, n)));
            let each = many?.saturating_sub(one?) / (DISPATCHES - 1);
            report.dispatch.push(seconds(name, each));
        }
        let empty = self.ready(&wgsl(8, ""), 1, &a, &b)?;
        let full = self.ready(&wgsl(64, writes), (READ_BACK / 4 / 64) as u32, &a, &b)?;
        report.submit.push(seconds("no commands", self.least(|_| {})?));
        report.submit.push(seconds("one empty dispatch", self.least(|e| dispatch(e, &empty, 1))?));
        for (name, ready) in [("copied", None), ("written by a kernel, then copied", Some(&full))] {
            let time = self.read_back(&read, |encoder| {
                if let Some(ready) = ready {
                    dispatch(encoder, ready, 1);
                }
                encoder.copy_buffer_to_buffer(b.raw(), 0, read.raw(), 0, READ_BACK);
            })?;
            report.readback.push(seconds(name, time));
        }
        for tried in [&mut report.dispatch, &mut report.submit, &mut report.readback] {
            tried.sort_by(|a, b| a.value.total_cmp(&b.value));
        }
        Ok(())
    }

    /// The least time of a submit, recording included.
    fn least(&self, record: impl Fn(&mut wgpu::CommandEncoder)) -> Result<Duration, RuntimeError> {
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            self.submit("ceiling", &record)?;
            self.device.wait_idle()?;
            best = best.min(start.elapsed());
        }
        Ok(best)
    }

    /// The least time from recording to bytes that the host has looked at.
    fn read_back(
        &self,
        read: &Buffer,
        record: impl Fn(&mut wgpu::CommandEncoder),
    ) -> Result<Duration, RuntimeError> {
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            self.submit("ceiling", &record)?;
            read.raw().map_async(wgpu::MapMode::Read, .., |_| {});
            self.device.wait_idle()?;
            let view = read.raw().get_mapped_range(..).map_err(|error| super::unmapped(read, &error))?;
            std::hint::black_box(view.iter().fold(0u8, |sum, byte| sum ^ byte));
            let time = start.elapsed();
            drop(view);
            read.raw().unmap();
            best = best.min(time);
        }
        Ok(best)
    }
}
