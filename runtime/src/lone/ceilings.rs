//! What the adapter can do at best: the figures benches divide by.

use super::LoneKernel;
use crate::RuntimeError;
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

/// Bytes of the buffer that is read: larger than a CPU's caches, smaller than the default binding limit.
const BYTES: u64 = 64 << 20;
/// Bytes of the buffer that is written.
const OUT_BYTES: u64 = BYTES;

/// Every shape sums `PER` 16-byte words an invocation (or copies them), neighbours reading neighbours.
fn memory_wgsl(workgroup: u32, per: u32, copy: bool) -> String {
    let body = if copy { "b[i] = a[i];" } else { "sum = sum ^ a[i];" };
    let end = if copy { "" } else { "if (sum.x == 0x12345u && sum.y == 0x54321u) { b[0] = sum; }" };
    format!(
        "@group(0) @binding(0) var<storage, read_write> a: array<vec4<u32>>;
         @group(0) @binding(1) var<storage, read_write> b: array<vec4<u32>>;
         @compute @workgroup_size({workgroup})
         fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) l: u32) {{
             var sum = vec4<u32>(0u);
             let first = w.x * {workgroup}u * {per}u + l;
             for (var j = 0u; j < {per}u; j++) {{ let i = first + j * {workgroup}u; {body} }}
             {end}
         }}"
    )
}

/// `chains` independent accumulators of vec4, 256 multiply-adds each.
fn flops_wgsl(workgroup: u32, chains: u32) -> String {
    let declare: String = (0..chains).map(|c| format!("var s{c} = vec4<f32>(x + {c}.0);\n")).collect();
    let step: String = (0..chains).map(|c| format!("s{c} = fma(s{c}, k, m);\n")).collect();
    let sum: String = (0..chains).map(|c| format!(" + s{c}")).collect();
    format!(
        "@group(0) @binding(0) var<storage, read_write> a: array<vec4<f32>>;
         @group(0) @binding(1) var<storage, read_write> b: array<vec4<f32>>;
         @compute @workgroup_size({workgroup})
         fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
             let x = f32(g.x);
             let k = a[0];
             let m = a[1];
             {declare}
             for (var j = 0u; j < 256u; j++) {{ {step} }}
             b[g.x] = vec4<f32>(0.0){sum};
         }}"
    )
}

impl LoneKernel {
    /// Measures the ceilings; a few seconds on a software driver.
    ///
    /// # Errors
    /// [`RuntimeError::Validation`], with what wgpu refuses.
    pub fn ceilings(&self) -> Result<Ceilings, RuntimeError> {
        #[allow(clippy::disallowed_methods)] // no plan has a lone kernel's buffers
        let buffer = |bytes| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("ceiling"),
                size: bytes,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let (a, b) = (buffer(BYTES), buffer(OUT_BYTES));
        let rate = |amount: u64, time: Duration| amount as f64 / time.as_secs_f64();
        let mut best = Ceilings::default();
        for (workgroup, per) in [(8, 64), (64, 16), (256, 4)] {
            let groups = (BYTES / 16) as u32 / workgroup / per;
            let read = self.time_text(&memory_wgsl(workgroup, per, false), groups, &a, &b)?;
            let copy = self.time_text(&memory_wgsl(workgroup, per, true), groups, &a, &b)?;
            best.read = best.read.max(rate(BYTES, read));
            best.copy = best.copy.max(rate(2 * BYTES, copy));
        }
        for (workgroup, chains) in [(8, 4), (32, 8), (256, 8)] {
            let invocations = 65_536;
            let time = self.time_text(&flops_wgsl(workgroup, chains), invocations / workgroup, &a, &b)?;
            best.flops = best.flops.max(rate(u64::from(invocations) * u64::from(chains) * 4 * 256 * 2, time));
        }
        Ok(best)
    }

    fn time_text(
        &self,
        wgsl: &str,
        groups: u32,
        a: &wgpu::Buffer,
        b: &wgpu::Buffer,
    ) -> Result<Duration, RuntimeError> {
        let name = "ceiling";
        let (pipeline, group) = self.checked(name, || {
            let entries = [0, 1].map(|binding| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: false },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            });
            let layout = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: Some(name),
                entries: &entries,
            });
            let built = self.pipeline(name, wgsl.to_owned(), layout);
            let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(name),
                layout: &built.layout,
                entries: &[
                    wgpu::BindGroupEntry { binding: 0, resource: a.as_entire_binding() },
                    wgpu::BindGroupEntry { binding: 1, resource: b.as_entire_binding() },
                ],
            });
            (built.pipeline, group)
        })?;
        let mut best = Duration::MAX;
        for round in 0..5 {
            let start = Instant::now();
            let mut encoder = self.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(groups, 1, 1);
            drop(pass);
            self.checked(name, || self.queue.submit([encoder.finish()]))?;
            self.wait(name)?;
            if round > 0 {
                best = best.min(start.elapsed());
            }
        }
        Ok(best)
    }
}
