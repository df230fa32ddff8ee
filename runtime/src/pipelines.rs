//! From kernels to pipelines: explicit layouts, modules inside validation scopes, compiled side by side.

use crate::point::Point;
use crate::{Device, RuntimeError};
use plimsoll_kernels::{Access, Kernel};
use rayon::prelude::*;

/// A compiled kernel.
pub(crate) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub operands: Vec<Access>,
    /// Index in [`Pipelines::layouts`]. Kernels with the same operands share it, and so bind groups.
    pub layout: usize,
}

/// The kernels of a plan, by index.
pub(crate) struct Pipelines {
    pub all: Vec<Pipeline>,
    pub layouts: Vec<wgpu::BindGroupLayout>,
}

impl Pipelines {
    /// Compiles the kernels.
    ///
    /// # Errors
    /// [`RuntimeError::Validation`] naming the kernel.
    pub fn compile(
        device: &Device,
        kernels: &[Kernel],
        done: impl Fn(usize) + Sync,
    ) -> Result<Self, RuntimeError> {
        crate::workers::start()?;
        let operands: Vec<Vec<Access>> = kernels.iter().map(Kernel::operands).collect();
        let mut signatures: Vec<&[Access]> = Vec::new();
        let layout_of: Vec<usize> = operands
            .iter()
            .map(|o| {
                signatures.iter().position(|s| s == o).unwrap_or_else(|| {
                    signatures.push(o);
                    signatures.len() - 1
                })
            })
            .collect();
        let layouts = signatures
            .iter()
            .map(|signature| {
                let entries = entries(signature);
                let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
                device.create(
                    Point::Layout,
                    || format!("the layout of operands {signature:?}"),
                    |d| d.create_bind_group_layout(&descriptor),
                )
            })
            .collect::<Result<Vec<_>, _>>()?;
        let compiled = std::sync::atomic::AtomicUsize::new(0);
        // Error scopes belong to a thread, so each kernel is compiled within its own.
        let raw = kernels
            .par_iter()
            .zip(&layout_of)
            .map(|(kernel, &layout)| {
                let pipeline = compile(device, kernel, layouts.get(layout));
                done(compiled.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1);
                pipeline
            })
            .collect::<Result<Vec<_>, _>>()?;
        let all = raw
            .into_iter()
            .zip(operands.clone())
            .zip(layout_of)
            .map(|((raw, operands), layout)| Pipeline { raw, operands, layout })
            .collect();
        Ok(Self { all, layouts })
    }
}

fn compile(
    device: &Device,
    kernel: &Kernel,
    layout: Option<&wgpu::BindGroupLayout>,
) -> Result<wgpu::ComputePipeline, RuntimeError> {
    let name = kernel.name();
    let what = || format!("kernel {name}");
    let wgsl = kernel.wgsl();
    let wgsl = if device.profile().cpu { plimsoll_kernels::shader::opaque_params(&wgsl) } else { wgsl };
    let wgsl = device.faults().mutated(kernel, wgsl);
    let module = device.create(Point::Module, what, |d| {
        d.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(&name),
            source: wgpu::ShaderSource::Wgsl(wgsl.into()),
        })
    })?;
    device.create(Point::Pipeline, what, |d| {
        let layout = d.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&name),
            bind_group_layouts: &[layout],
            immediate_size: 0,
        });
        d.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &[],
                // Kernels write workgroup memory before they read it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        })
    })
}

/// Binding 0 the parameters, 1 the step tables, then the operands.
fn entries(operands: &[Access]) -> Vec<wgpu::BindGroupLayoutEntry> {
    let uniform = (wgpu::BufferBindingType::Uniform, true);
    let storage = |read_only| (wgpu::BufferBindingType::Storage { read_only }, false);
    let operands = operands.iter().map(|access| match access {
        Access::Read => storage(true),
        Access::ReadArena | Access::Write => storage(false),
        Access::Range => uniform,
    });
    (0..)
        .zip([uniform, storage(true)].into_iter().chain(operands))
        .map(|(binding, (ty, has_dynamic_offset))| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
            count: None,
        })
        .collect()
}
