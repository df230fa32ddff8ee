//! The end of a lowering: the arena is packed, every operand becomes a view, and every dispatch is held against the
//! limits.

use super::{Draft, Lowering, Operand, Tables};
use crate::arena::{Item, Place, pack};
use crate::error::{Limit, PlanError};
use crate::plan::{ALIGN, Dispatch, Program, View};
use plimsoll_kernels::{Access, Call, Profile};
use plimsoll_models::graph::Rows;

impl Lowering<'_> {
    /// Packs the arena and binds everything.
    pub(super) fn finish(
        self,
        tables: &mut Tables,
        name: &str,
        greedy: usize,
        top: usize,
    ) -> Result<(Program, Vec<u64>), PlanError> {
        let model = self.shared.model;
        let limits = &self.shared.profile.limits;
        let mut items = Vec::new();
        let mut names = Vec::new();
        for (tensor, alive) in model.graph.tensors.iter().zip(&self.alive) {
            let rows = match tensor.rows {
                Rows::Tokens => self.max_tokens,
                Rows::LogitRows => self.logit_rows(),
                Rows::Choices(top) => self.max_tokens.saturating_mul(top),
            };
            // A tensor that nothing touches needs no bytes; it keeps a place so that ids stay indices.
            let (first, last) = alive.unwrap_or((0, 0));
            let bytes = if alive.is_some() { u64::from(rows) * u64::from(tensor.width) * 4 } else { 0 };
            items.push(Item { bytes, first, last });
            names.push(tensor.name.clone());
        }
        let tensors = items.len();
        for (i, &(bytes, first, last)) in self.scratch.iter().enumerate() {
            // Sampling results outlive the op that makes them: they are copied out after the last dispatch.
            items.push(Item { bytes, first, last });
            names.push(format!("scratch {i}"));
        }
        for (item, name) in items.iter().zip(&names) {
            for (limit, have) in [
                (Limit::Binding, limits.max_storage_buffer_binding_size),
                (Limit::Allocation, limits.max_buffer_size),
            ] {
                if item.bytes > have {
                    return Err(PlanError::Limit { limit, name: name.clone(), need: item.bytes, have });
                }
            }
        }
        let max = limits.max_buffer_size / ALIGN * ALIGN;
        let (places, sizes) = pack(&items, max).map_err(|i| PlanError::Limit {
            limit: Limit::Allocation,
            name: names[i].clone(),
            need: items[i].bytes,
            have: max,
        })?;
        let view = |i: usize| {
            let Place { buffer, offset } = places[i];
            View { buffer: self.shared.arena_base + buffer, offset, bytes: items[i].bytes }
        };
        let mut dispatches = Vec::new();
        for draft in self.drafts {
            let Draft { label, when, call, operands, ranged } = draft;
            let views: Vec<View> = operands
                .iter()
                .map(|operand| match operand {
                    Operand::Tensor(id) => view(id.0 as usize),
                    Operand::Scratch(i) => view(tensors + i),
                    Operand::View(view) => *view,
                })
                .collect();
            check(&label, &call, &views, self.shared.profile)?;
            dispatches.push(Dispatch {
                label,
                when,
                kernel: tables.kernel(call.kernel),
                params: tables.params(call.params),
                views,
                ranged,
                workgroups: call.workgroups,
                rows: call.rows,
                cost: call.cost,
            });
        }
        let program = Program {
            name: name.to_owned(),
            max_tokens: self.max_tokens,
            dispatches,
            logits: view(model.graph.logits.0 as usize),
            greedy: view(tensors + greedy),
            top_k: view(tensors + top),
        };
        Ok((program, sizes))
    }
}

/// Holds a dispatch against the limits, and proves that nothing it writes overlaps what else it binds.
fn check(label: &str, call: &Call, views: &[View], profile: &Profile) -> Result<(), PlanError> {
    let limits = &profile.limits;
    let exceeds =
        |limit, need: u64, have: u64| PlanError::Limit { limit, name: label.to_owned(), need, have };
    let operands = call.kernel.operands();
    let storage: Vec<Access> = operands.iter().copied().filter(|a| *a != Access::Range).collect();
    if storage.len() != views.len() {
        return Err(PlanError::graph(label, "a kernel was given another number of operands than it has"));
    }
    // The step tables are a storage binding too.
    let bound = storage.len() as u64 + 1;
    if bound > u64::from(limits.max_storage_buffers_per_shader_stage) {
        return Err(exceeds(
            Limit::StorageBuffers,
            bound,
            limits.max_storage_buffers_per_shader_stage.into(),
        ));
    }
    if call.kernel.workgroup() > limits.max_compute_invocations_per_workgroup {
        return Err(exceeds(
            Limit::Invocations,
            call.kernel.workgroup().into(),
            limits.max_compute_invocations_per_workgroup.into(),
        ));
    }
    for (i, (a, access)) in views.iter().zip(&storage).enumerate() {
        if a.bytes > limits.max_storage_buffer_binding_size {
            return Err(exceeds(Limit::Binding, a.bytes, limits.max_storage_buffer_binding_size));
        }
        for (b, other) in views.iter().zip(&storage).skip(i + 1) {
            let writes = *access == Access::Write || *other == Access::Write;
            let overlap =
                a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
            if writes && overlap {
                return Err(PlanError::graph(label, "what it writes overlaps what it reads"));
            }
        }
    }
    Ok(())
}
