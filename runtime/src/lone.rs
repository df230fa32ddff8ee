//! One kernel by itself: what tests and benches run a [`Call`] with.
//!
//! Everything is made anew for a run: buffers, bind group, readback. Every operand stands in a buffer of its own
//! between two guards of [`POISON`]; a kernel that writes outside its view or into what it says it only reads
//! is an error of the run, not a wrong number later.
//!
//! The text is the kernel's own, on software drivers too, where an engine hides the parameters from the compiler
//! (`shader::opaque_params`): lavapipe then specialises it on the parameters of the call, which takes it seconds
//! instead of minutes for the blockwise kernels of GPUs. What is timed comes after that, at the first dispatch.

mod ceilings;
mod latencies;
mod shapes;

pub use ceilings::{CeilingReport, Ceilings, Tried};

use crate::books::Buffer;
use crate::point::Point;
use crate::{Device, DeviceOptions, RuntimeError};
use plimsoll_kernels::{Access, Call, Count, Kernel, Profile, StepShape};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A word that is a quiet NaN as f32 and no plausible integer: what untouched memory is filled with.
pub const POISON: u32 = 0x7FC0_DEAD;

/// Bytes of each guard: the offset alignment of bindings.
const GUARD: u64 = 256;

/// How to open the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Use subgroup operations where the adapter has them.
    pub subgroups: bool,
    /// Ask for WebGPU's default limits instead of the adapter's own.
    pub default_limits: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { subgroups: true, default_limits: true }
    }
}

/// The contents of an operand before the run.
#[derive(Clone, Debug)]
pub enum Data {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 32-bit words.
    U32(Vec<u32>),
    /// Bytes; a multiple of 4.
    Bytes(Vec<u8>),
    /// This many words of [`POISON`].
    Poison(usize),
}

impl Data {
    /// The bytes to upload.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Data::F32(v) => bytemuck::cast_slice(v).to_vec(),
            Data::U32(v) => bytemuck::cast_slice(v).to_vec(),
            Data::Bytes(v) => v.clone(),
            Data::Poison(words) => bytemuck::cast_slice(&vec![POISON; *words]).to_vec(),
        }
    }
}

/// The floats of a readback.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The words of a readback.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// An open device and the pipelines made on it so far.
pub struct LoneKernel {
    device: Device,
    pipelines: Mutex<HashMap<Kernel, Arc<Built>>>,
}

struct Built {
    layout: wgpu::BindGroupLayout,
    pipeline: wgpu::ComputePipeline,
}

/// A call bound to buffers.
struct Bound {
    built: Arc<Built>,
    group: wgpu::BindGroup,
    offsets: Vec<u32>,
    grid: [u32; 3],
    /// Each operand's buffer (ranges have none), its access and its bytes before the run.
    operands: Vec<(Access, Buffer, Vec<u8>)>,
    /// Parameters, range and step, which only the group knows.
    _words: [Buffer; 3],
}

impl LoneKernel {
    /// Opens the default adapter, as [`Device::open`] chooses it.
    ///
    /// # Errors
    /// [`RuntimeError::NoAdapter`], [`RuntimeError::Open`].
    pub fn open(options: Options) -> Result<Self, RuntimeError> {
        let options = DeviceOptions {
            subgroups: options.subgroups,
            webgpu_limits: options.default_limits,
            ..DeviceOptions::default()
        };
        Self::open_as(&options)
    }

    /// Opens a device of its own, as these options say, but for an operator's limits of a plan's buffers: what an adapter
    /// can do does not depend on them.
    ///
    /// # Errors
    /// [`RuntimeError::NoAdapter`], [`RuntimeError::Open`].
    pub fn open_as(options: &DeviceOptions) -> Result<Self, RuntimeError> {
        let options = DeviceOptions { max_allocation: None, max_binding: None, ..options.clone() };
        Ok(Self { device: Device::open(&options)?, pipelines: Mutex::default() })
    }

    /// The device that was opened, for whoever asks what is free beside it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What was opened.
    pub fn profile(&self) -> &Profile {
        self.device.profile()
    }

    /// Pipelines made so far.
    pub fn pipelines(&self) -> usize {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Runs `call` once on copies of `operands` (in the kernel's order, without its `Range`) and answers with the
    /// bytes of each operand it writes, in order.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] for operands that do not fit the kernel, [`RuntimeError::OutOfMemory`],
    /// [`RuntimeError::DeviceLost`], [`RuntimeError::Validation`] for whatever else wgpu refuses, [`RuntimeError::Stray`] for bytes that changed although the kernel may not change them.
    pub fn run(
        &self,
        call: &Call,
        step_words: &[u32],
        operands: &[Data],
        shape: &StepShape,
        range: Option<[u32; 4]>,
    ) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let kernel = call.kernel.name();
        let bound = self.bind(call, step_words, operands, shape, range)?;
        let total: u64 = bound.operands.iter().map(|(_, buffer, _)| buffer.bytes()).sum();
        let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
        let readback = self.device.create_buffer("readback", total, usage, false)?;
        self.submit(&kernel, |encoder| {
            record(encoder, &bound, 1);
            let mut at = 0;
            for (_, buffer, _) in &bound.operands {
                encoder.copy_buffer_to_buffer(buffer.raw(), 0, readback.raw(), at, buffer.bytes());
                at += buffer.bytes();
            }
        })?;
        readback.raw().map_async(wgpu::MapMode::Read, .., |_| {});
        self.device.wait_idle()?;
        let view = readback.raw().get_mapped_range(..).map_err(|error| unmapped(&readback, &error))?;
        let mut written = Vec::new();
        let mut at = 0usize;
        for (index, (access, buffer, before)) in bound.operands.iter().enumerate() {
            let end = at + buffer.bytes() as usize;
            let after = &view[at..end];
            at = end;
            let inner = GUARD as usize..after.len() - GUARD as usize;
            if let Some(byte) = (0..after.len()).find(|&i| after[i] != before[i] && !inner.contains(&i)) {
                return Err(stray(&kernel, index, byte, "outside its view"));
            }
            if *access == Access::Write {
                written.push(after[inner].to_vec());
            } else if let Some(byte) = (0..after.len()).find(|&i| after[i] != before[i]) {
                return Err(stray(&kernel, index, byte, "in an operand that is only read"));
            }
        }
        Ok(written)
    }

    /// The wall time of one dispatch: the best of `rounds` submits of `reps` dispatches each, after a warm-up.
    ///
    /// # Errors
    /// As [`LoneKernel::run`].
    pub fn time(
        &self,
        call: &Call,
        step_words: &[u32],
        operands: &[Data],
        shape: &StepShape,
        range: Option<[u32; 4]>,
        (rounds, reps): (u32, u32),
    ) -> Result<Duration, RuntimeError> {
        let kernel = call.kernel.name();
        let bound = self.bind(call, step_words, operands, shape, range)?;
        let mut best = Duration::MAX;
        for round in 0..=rounds {
            let reps = if round == 0 { 1 } else { reps.max(1) };
            let start = Instant::now();
            self.submit(&kernel, |encoder| record(encoder, &bound, reps))?;
            self.device.wait_idle()?;
            if round > 0 {
                best = best.min(start.elapsed() / reps);
            }
        }
        Ok(best)
    }

    /// Hands over what `record` records.
    fn submit(
        &self,
        kernel: &str,
        record: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<(), RuntimeError> {
        let mut encoder = self.device.encoder(kernel);
        record(&mut encoder);
        self.device.submit(encoder.finish()).map(drop)
    }

    /// The pipeline of a call, made at its first use.
    fn build(&self, call: &Call) -> Result<Arc<Built>, RuntimeError> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = pipelines.get(&call.kernel) {
            return Ok(built.clone());
        }
        let name = call.kernel.name();
        let built = self.device.create(
            Point::Pipeline,
            || what(&name),
            |device| {
                let storage = |read_only| wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                };
                let uniform = |bytes: u64| wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Uniform,
                    has_dynamic_offset: true,
                    min_binding_size: NonZeroU64::new(bytes),
                };
                let mut types = vec![uniform(call.params.len() as u64 * 4), storage(true)];
                types.extend(call.kernel.operands().into_iter().map(|access| match access {
                    Access::Read => storage(true),
                    Access::ReadArena | Access::Write => storage(false),
                    Access::Range => uniform(16),
                }));
                let entries: Vec<_> = (0u32..)
                    .zip(types)
                    .map(|(binding, ty)| wgpu::BindGroupLayoutEntry {
                        binding,
                        visibility: wgpu::ShaderStages::COMPUTE,
                        ty,
                        count: None,
                    })
                    .collect();
                let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                    label: Some(&name),
                    entries: &entries,
                });
                pipeline(device, &name, call.kernel.wgsl(), layout)
            },
        )?;
        let built = Arc::new(built);
        pipelines.insert(call.kernel.clone(), built.clone());
        Ok(built)
    }

    /// Uploads everything a call needs.
    fn bind(
        &self,
        call: &Call,
        step_words: &[u32],
        operands: &[Data],
        shape: &StepShape,
        range: Option<[u32; 4]>,
    ) -> Result<Bound, RuntimeError> {
        let kernel = call.kernel.name();
        let mismatch =
            |what, expected: u64, got: u64| RuntimeError::input(format!("{kernel}: {what}"), expected, got);
        let accesses = call.kernel.operands();
        let ranges = accesses.iter().filter(|a| **a == Access::Range).count();
        if accesses.len() - ranges != operands.len() {
            return Err(mismatch("operands", (accesses.len() - ranges) as u64, operands.len() as u64));
        }
        if ranges != usize::from(range.is_some()) {
            return Err(mismatch("ranges", ranges as u64, u64::from(range.is_some())));
        }
        let max = self.profile().limits.max_compute_workgroups_per_dimension;
        let count = call.workgroups.of(shape);
        let grid = Count::fold(count, max)
            .ok_or_else(|| mismatch("workgroups", u64::from(max) * u64::from(max), count))?;
        let built = self.build(call)?;
        // Uniforms stand after a poisoned block, so that the dynamic offset matters.
        let params =
            self.upload("params", &guarded(bytemuck::cast_slice(&call.params)), wgpu::BufferUsages::UNIFORM)?;
        let range = self.upload(
            "range",
            &guarded(bytemuck::cast_slice(&range.unwrap_or_default())),
            wgpu::BufferUsages::UNIFORM,
        )?;
        let step = if step_words.is_empty() { vec![POISON] } else { step_words.to_vec() };
        let step = self.upload("step", bytemuck::cast_slice(&step), wgpu::BufferUsages::STORAGE)?;
        let mut bound = Vec::new();
        let mut data = operands.iter();
        for access in accesses.iter().filter(|a| **a != Access::Range) {
            let bytes = data.next().map(Data::bytes).unwrap_or_default();
            if bytes.is_empty() || !bytes.len().is_multiple_of(4) {
                return Err(mismatch("bytes of an operand, a multiple of", 4, bytes.len() as u64));
            }
            let bytes = guarded(&bytes);
            bound.push((*access, self.upload("operand", &bytes, wgpu::BufferUsages::STORAGE)?, bytes));
        }
        let mut offsets = vec![GUARD as u32];
        let mut entries =
            vec![view(&params, 0, call.params.len() as u64 * 4), step.raw().as_entire_binding()];
        let mut next = bound.iter();
        for access in &accesses {
            if *access == Access::Range {
                offsets.push(GUARD as u32);
                entries.push(view(&range, 0, 16));
            } else if let Some((_, buffer, _)) = next.next() {
                entries.push(view(buffer, GUARD, buffer.bytes() - 2 * GUARD));
            }
        }
        let entries: Vec<_> = (0u32..)
            .zip(entries)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let group = self.device.create(
            Point::BindGroup,
            || what(&kernel),
            |device| {
                device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some(&kernel),
                    layout: &built.layout,
                    entries: &entries,
                })
            },
        )?;
        Ok(Bound { built, group, offsets, grid, operands: bound, _words: [params, range, step] })
    }

    /// A buffer of these bytes, a multiple of 4.
    fn upload(&self, name: &str, bytes: &[u8], usage: wgpu::BufferUsages) -> Result<Buffer, RuntimeError> {
        let usage = usage | wgpu::BufferUsages::COPY_SRC;
        let buffer = self.device.create_buffer(name, bytes.len() as u64, usage, true)?;
        let mut view = buffer.raw().get_mapped_range_mut(..).map_err(|error| unmapped(&buffer, &error))?;
        view.slice(..).copy_from_slice(bytes);
        drop(view);
        buffer.raw().unmap();
        Ok(buffer)
    }
}

/// A part of a buffer, bound.
fn view(buffer: &Buffer, offset: u64, bytes: u64) -> wgpu::BindingResource<'_> {
    let size = NonZeroU64::new(bytes);
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: buffer.raw(), offset, size })
}

fn pipeline(device: &wgpu::Device, name: &str, wgsl: String, layout: wgpu::BindGroupLayout) -> Built {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(name),
        source: wgpu::ShaderSource::Wgsl(wgsl.into()),
    });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(name),
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    Built { layout, pipeline }
}

fn record(encoder: &mut wgpu::CommandEncoder, bound: &Bound, reps: u32) {
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&bound.built.pipeline);
    pass.set_bind_group(0, &bound.group, &bound.offsets);
    for _ in 0..reps {
        pass.dispatch_workgroups(bound.grid[0], bound.grid[1], bound.grid[2]);
    }
}

/// `bytes` between two guards.
fn guarded(bytes: &[u8]) -> Vec<u8> {
    let guard = vec![POISON; GUARD as usize / 4];
    [bytemuck::cast_slice(&guard), bytes, bytemuck::cast_slice(&guard)].concat()
}

/// What errors call a kernel.
fn what(kernel: &str) -> String {
    format!("kernel {kernel}")
}

fn unmapped(buffer: &Buffer, error: &wgpu::MapRangeError) -> RuntimeError {
    RuntimeError::Map { buffer: buffer.name().to_owned(), reason: format!("{error:?}") }
}

fn stray(kernel: &str, operand: usize, byte: usize, place: &'static str) -> RuntimeError {
    RuntimeError::Stray { kernel: kernel.to_owned(), operand, byte: byte as i64 - GUARD as i64, place }
}
