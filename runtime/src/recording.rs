//! Programs made ready to record: each dispatch knows its pipeline, its bind group and its offsets, so that a
//! step only walks a list.

use crate::buffers::Buffers;
use crate::pipelines::Pipelines;
use crate::point::Point;
use crate::profiler::Trace;
use crate::{Device, RuntimeError, Sampling};
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{ALIGN, Dispatch, Program, View, When};
use plimsoll_kernels::{Access, Count, StepShape};
use std::collections::HashMap;

/// One dispatch, bound.
struct Bound {
    pipeline: usize,
    group: usize,
    /// Dynamic offset of the parameters.
    params: u32,
    /// Whether a second dynamic offset names a KV range.
    range: bool,
}

/// Buffer, offset and size of a view.
type Bytes = (u32, u64, u64);

/// The programs of a plan, ready to record.
pub(crate) struct Recordings {
    groups: Vec<wgpu::BindGroup>,
    /// By program, then by dispatch, as in the plan.
    programs: Vec<Vec<Bound>>,
}

/// Where a recording stands: the next dispatch, and the next of its KV ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub dispatch: usize,
    pub range: u32,
}

impl Recordings {
    /// Binds every dispatch. Dispatches with the same layout and views share a bind group.
    ///
    /// # Errors
    /// [`RuntimeError::Plan`] when operands and views disagree, [`RuntimeError::Validation`] when wgpu refuses.
    pub fn new(
        device: &Device,
        plan: &Plan,
        buffers: &Buffers,
        pipelines: &Pipelines,
    ) -> Result<Self, RuntimeError> {
        let mut ids: HashMap<(usize, Vec<Bytes>), usize> = HashMap::new();
        let mut groups = Vec::new();
        let mut programs = Vec::new();
        for program in &plan.programs {
            let mut bound = Vec::new();
            for dispatch in &program.dispatches {
                let kernels = pipelines.all.len();
                let pipeline = pipelines.all.get(dispatch.kernel as usize).ok_or_else(|| {
                    RuntimeError::plan("kernel of a dispatch", format!("under {kernels}"), dispatch.kernel)
                })?;
                let views = dispatch.views.iter().map(|v| (v.buffer, v.offset, v.bytes)).collect();
                let key = (pipeline.layout, views);
                let group = match ids.get(&key) {
                    Some(&group) => group,
                    None => {
                        let layout = &pipelines.layouts[pipeline.layout];
                        groups.push(bind(device, plan, buffers, layout, &pipeline.operands, dispatch)?);
                        ids.insert(key, groups.len() - 1);
                        groups.len() - 1
                    }
                };
                let range = pipeline.operands.contains(&Access::Range);
                if dispatch.ranged && !range {
                    return Err(RuntimeError::plan(&dispatch.label, "a range operand", "none"));
                }
                bound.push(Bound {
                    pipeline: dispatch.kernel as usize,
                    group,
                    params: offset(dispatch.params)?,
                    range,
                });
            }
            programs.push(bound);
        }
        Ok(Self { groups, programs })
    }

    /// Bind groups there are.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Records dispatches of program `index` from `from` on until the work reaches `budget`; at least one. Answers
    /// where to go on, or `None` when the program is done. `trace` is told of each.
    #[allow(clippy::too_many_arguments)] // what a step is made of
    pub fn record(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        plan: &Plan,
        pipelines: &Pipelines,
        index: usize,
        from: Cursor,
        shape: &StepShape,
        sampling: Sampling,
        budget: u64,
        trace: &mut Trace,
    ) -> Result<Option<Cursor>, RuntimeError> {
        let (Some(program), Some(bound)) = (plan.programs.get(index), self.programs.get(index)) else {
            return Err(RuntimeError::plan("program", format!("under {}", plan.programs.len()), index));
        };
        let most = plan.profile.limits.max_compute_workgroups_per_dimension;
        let reach = ranges(plan, shape);
        let (mut work, mut last_pipeline, mut last_bound) = (0u64, usize::MAX, None);
        let dispatches = program.dispatches.iter().zip(bound).enumerate().skip(from.dispatch);
        trace.begin(pass);
        for (at, (dispatch, bound)) in dispatches {
            if !runs(dispatch.when, sampling, shape) {
                continue;
            }
            let workgroups = dispatch.workgroups.of(shape);
            if workgroups == 0 {
                continue;
            }
            let Some([x, y, z]) = Count::fold(workgroups, most) else {
                return Err(RuntimeError::plan(
                    format!("workgroups of {}", dispatch.label),
                    format!("at most {most} squared"),
                    workgroups,
                ));
            };
            let flops = plan.flops(dispatch, shape);
            let start = if at == from.dispatch { from.range } else { 0 };
            for range in start..if dispatch.ranged { reach } else { 1 } {
                let here = Cursor { dispatch: at, range };
                if work > 0 && (work.saturating_add(flops) > budget || trace.is_full()) {
                    return Ok(Some(here));
                }
                work = work.saturating_add(flops.max(1));
                let second = if dispatch.ranged { plan.ranges.first + range } else { plan.ranges.whole };
                let key = (bound.group, bound.params, if bound.range { offset(second)? } else { 0 });
                if last_pipeline != bound.pipeline {
                    pass.set_pipeline(&pipelines.all[bound.pipeline].raw);
                    last_pipeline = bound.pipeline;
                }
                if last_bound != Some(key) {
                    let offsets = [key.1, key.2];
                    let used = if bound.range { &offsets[..] } else { &offsets[..1] };
                    pass.set_bind_group(0, &self.groups[bound.group], used);
                    last_bound = Some(key);
                }
                pass.dispatch_workgroups(x, y, z);
                trace.dispatched(pass, here);
            }
        }
        Ok(None)
    }
}

/// KV ranges in reach of the step.
fn ranges(plan: &Plan, shape: &StepShape) -> u32 {
    shape.kv_max.div_ceil(plan.ranges.tokens.max(1)).clamp(1, plan.ranges.count.max(1))
}

fn runs(when: When, sampling: Sampling, shape: &StepShape) -> bool {
    match when {
        When::Always => true,
        When::Logits => shape.logit_rows > 0,
        When::Greedy => shape.logit_rows > 0 && sampling == Sampling::Greedy,
        When::TopK => shape.logit_rows > 0 && sampling == Sampling::TopK,
    }
}

fn offset(slot: u32) -> Result<u32, RuntimeError> {
    slot.checked_mul(ALIGN as u32).ok_or_else(|| {
        RuntimeError::plan("a parameter slot", format!("under {}", u32::MAX / ALIGN as u32), slot)
    })
}

fn bind(
    device: &Device,
    plan: &Plan,
    buffers: &Buffers,
    layout: &wgpu::BindGroupLayout,
    operands: &[Access],
    dispatch: &Dispatch,
) -> Result<wgpu::BindGroup, RuntimeError> {
    let storage = operands.iter().filter(|a| **a != Access::Range).count();
    if storage != dispatch.views.len() {
        return Err(RuntimeError::plan(
            format!("views of {}", dispatch.label),
            storage,
            dispatch.views.len(),
        ));
    }
    let part = |buffer, offset, bytes| -> Result<wgpu::BindingResource<'_>, RuntimeError> {
        Ok(wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: buffers.get(buffer)?.raw(),
            offset,
            size: std::num::NonZeroU64::new(bytes),
        }))
    };
    let params = || part(plan.params_buffer, 0, ALIGN);
    let mut resources = vec![params()?, part(plan.step_buffer, 0, plan.step.words * 4)?];
    let mut views = dispatch.views.iter();
    for access in operands {
        resources.push(match (access, views.as_slice()) {
            (Access::Range, _) => params()?,
            (_, [view, ..]) => {
                views.next();
                part(view.buffer, view.offset, view.bytes)?
            }
            (_, []) => return Err(RuntimeError::plan(&dispatch.label, "a view for each operand", "fewer")),
        });
    }
    let entries: Vec<wgpu::BindGroupEntry<'_>> =
        (0..).zip(resources).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
    let descriptor = wgpu::BindGroupDescriptor { label: Some(&dispatch.label), layout, entries: &entries };
    device.create(
        Point::BindGroup,
        || format!("the bindings of {}", dispatch.label),
        |d| d.create_bind_group(&descriptor),
    )
}

/// The view and the bytes of a row that a step reads back.
pub(crate) fn result(plan: &Plan, program: &Program, sampling: Sampling) -> Option<(View, u64)> {
    let pair = 8;
    match sampling {
        Sampling::None => None,
        Sampling::Greedy => Some((program.greedy, 2 * pair)),
        Sampling::TopK => Some((program.top_k, (u64::from(plan.top_k()) + 1) * pair)),
        Sampling::Logits => Some((program.logits, u64::from(plan.model.vocab) * 4)),
    }
}
