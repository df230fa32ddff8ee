//! The end of a lowering: the arena is packed, every operand becomes a view, and every dispatch is held against the
//! limits.

use super::{Family, Lowering, Operand, Scratch, Tables};
use crate::arena::{Item, Place, pack, pack_sizes};
use crate::error::{Limit, PlanError};
use crate::plan::{ALIGN, Dispatch, Program, View, When};
use plimsoll_kernels::{Access, Call, Profile};
use plimsoll_models::graph::{Rows, TensorId};
use std::borrow::Cow;

/// A dispatch before the arena is packed.
pub(super) struct Draft<'a> {
    pub label: Cow<'a, str>,
    /// What follows the label.
    pub suffix: &'static str,
    pub when: When,
    pub call: Call,
    pub operands: Vec<Operand>,
    pub ranged: bool,
    /// The dispatches that this one stands for, where only their sum is asked for.
    pub family: Option<Family>,
}

/// The largest binding of a dispatch, whatever the rows: values of a token and of a logit row, and bytes of the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Widest {
    tokens: u64,
    logit_rows: u64,
    bytes: u64,
}

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
        let items = self.items(&self.scratch);
        let tensors = model.graph.tensors.len();
        let (places, sizes) = self.packed(&items, pack)?;
        let view = |i: usize| {
            let Place { buffer, offset } = places[i];
            View { buffer: self.shared.arena_base + buffer, offset, bytes: items[i].bytes }
        };
        let mut dispatches = Vec::new();
        for draft in self.drafts {
            let Draft { label, suffix, when, call, operands, ranged, .. } = draft;
            let label = format!("{label}{suffix}");
            let views: Vec<View> = operands
                .iter()
                .map(|operand| match operand {
                    Operand::Tensor(id) => view(id.0 as usize),
                    Operand::Scratch(i) => view(tensors + i),
                    Operand::View(view) => *view,
                })
                .collect();
            check(|| label.clone(), &call, &bound(&call), &views, self.shared.profile)?;
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

impl Lowering<'_> {
    /// Bytes that a tensor takes in this program; none where nothing touches it.
    pub(super) fn tensor_bytes(&self, index: usize) -> u64 {
        let id = TensorId(index as u32);
        if !self.ops().is_alive(id) {
            return 0;
        }
        u64::from(self.rows(id)).saturating_mul(u64::from(self.width(id)).saturating_mul(4))
    }

    /// What goes in the arena: every tensor (one that nothing touches has no bytes and keeps ids indices), then
    /// these scratches.
    fn items(&self, scratch: &[Scratch]) -> Vec<Item> {
        let alive = self.ops().alive.iter().enumerate();
        let tensors = alive.map(|(i, alive)| match alive {
            Some((first, last)) => Item { bytes: self.tensor_bytes(i).max(1), first: *first, last: *last },
            None => Item { bytes: 0, first: 0, last: 0 },
        });
        // Sampling results outlive the op that makes them: they are copied out after the last dispatch.
        let scratch = scratch.iter().map(|&(bytes, first, last)| Item { bytes, first, last });
        tensors.chain(scratch).collect()
    }

    /// The name of an item.
    fn item_name(&self, index: usize) -> String {
        let tensors = &self.shared.model.graph.tensors;
        match tensors.get(index) {
            Some(tensor) => tensor.name.clone(),
            None => format!("scratch {}", index - tensors.len()),
        }
    }

    /// That an item fits a binding and a buffer.
    fn expect_item(&self, index: usize, need: u64) -> Result<(), PlanError> {
        let limits = &self.shared.profile.limits;
        for (limit, have) in [
            (Limit::Binding, limits.max_storage_buffer_binding_size),
            (Limit::Allocation, limits.max_buffer_size),
        ] {
            if need > have {
                return Err(PlanError::Limit { limit, name: self.item_name(index), need, have });
            }
        }
        Ok(())
    }

    /// That every tensor fits a binding, before anything is made for tensors that do not: a step of a million tokens
    /// is a hundred thousand dispatches.
    pub(super) fn expect_room(&self) -> Result<(), PlanError> {
        (0..self.shared.model.graph.tensors.len()).try_for_each(|i| self.expect_item(i, self.tensor_bytes(i)))
    }

    /// Packs the arena in one way or another, for items that each fit.
    fn packed<T>(
        &self,
        items: &[Item],
        pack: impl FnOnce(&[Item], u64) -> Result<T, usize>,
    ) -> Result<T, PlanError> {
        items.iter().enumerate().try_for_each(|(i, item)| self.expect_item(i, item.bytes))?;
        let max = self.shared.profile.limits.max_buffer_size / ALIGN * ALIGN;
        pack(items, max).map_err(|i| PlanError::Limit {
            limit: Limit::Allocation,
            name: self.item_name(i),
            need: items[i].bytes,
            have: max,
        })
    }

    /// Bytes of each arena buffer, of a program with these scratches.
    pub(super) fn arena_of(&self, scratch: &[Scratch]) -> Result<Vec<u64>, PlanError> {
        self.packed(&self.items(scratch), pack_sizes)
    }

    /// The most bytes of tensors alive at one op: no packing takes less.
    pub(super) fn peak(&self) -> u64 {
        let (mut now, mut most) = (0u128, 0u128);
        for &(_, begins, tensor) in &self.ops().changes {
            let bytes = self.tensor_bytes(tensor as usize);
            now = if begins { now + u128::from(bytes) } else { now.saturating_sub(bytes.into()) };
            most = most.max(now);
        }
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    /// Holds the drafts against the limits as [`Lowering::finish`] does, before anything has a place: two operands share
    /// bytes if they are one. Answers the largest binding, the last of several.
    pub(super) fn held(&self, drafts: &[Draft<'_>]) -> Result<Option<(u64, usize)>, PlanError> {
        let tensors = self.shared.model.graph.tensors.len();
        let apart = |index: usize, bytes| View {
            // No plan has so many buffers.
            buffer: u32::MAX - index as u32,
            offset: 0,
            bytes,
        };
        let binding = self.shared.profile.limits.max_storage_buffer_binding_size;
        let mut largest: Option<(u64, usize)> = None;
        let mut views: Vec<View> = Vec::new();
        // The dispatch before, and whether it writes nothing but activations and scratch.
        let mut before: Option<&Draft<'_>> = None;
        let mut only_reads = false;
        // Of its kernel.
        let mut storage: Vec<Access> = Vec::new();
        for (i, draft) in drafts.iter().enumerate() {
            views.clear();
            views.extend(draft.operands.iter().map(|operand| match *operand {
                Operand::Tensor(id) => apart(id.0 as usize, self.tensor_bytes(id.0 as usize)),
                Operand::Scratch(i) => apart(tensors + i, self.scratch.get(i).map_or(0, |s| s.0)),
                Operand::View(view) => view,
            }));
            let bytes = views.iter().map(|v| v.bytes).max().unwrap_or(0);
            // Most dispatches of an op are one dispatch on another part of a buffer.
            if bytes > binding || !before.is_some_and(|before| before.binds_as(draft, only_reads)) {
                if before.is_none_or(|before| before.call.kernel != draft.call.kernel) {
                    storage = bound(&draft.call);
                }
                let label = || format!("{}{}", draft.label, draft.suffix);
                check(label, &draft.call, &storage, &views, self.shared.profile)?;
                only_reads = draft.only_reads(&storage);
            }
            before = Some(draft);
            if largest.is_none_or(|(most, _)| bytes >= most) {
                largest = Some((bytes, i));
            }
        }
        Ok(largest)
    }
}

impl Lowering<'_> {
    /// What the largest binding of a dispatch follows.
    pub(super) fn widest(&self, draft: &Draft<'_>) -> Widest {
        let mut widest = Widest::default();
        for operand in &draft.operands {
            match *operand {
                Operand::Tensor(id) => {
                    let width = u64::from(self.width(id));
                    let (side, width) = match self.tensor_rows(id) {
                        Rows::Tokens => (&mut widest.tokens, width),
                        Rows::Choices(top) => (&mut widest.tokens, width.saturating_mul(top.into())),
                        Rows::LogitRows => (&mut widest.logit_rows, width),
                    };
                    *side = width.max(*side);
                }
                Operand::Scratch(i) => {
                    widest.bytes = self.scratch.get(i).map_or(0, |s| s.0).max(widest.bytes);
                }
                Operand::View(view) => widest.bytes = view.bytes.max(widest.bytes),
            }
        }
        widest
    }
}

impl Widest {
    /// The bytes, in a program of so many tokens and logit rows. No tensor is past a binding there.
    pub fn bytes(&self, tokens: u32, logit_rows: u32) -> u64 {
        let of = |width: u64, rows: u32| width.saturating_mul(4).saturating_mul(rows.into());
        of(self.tokens, tokens).max(of(self.logit_rows, logit_rows)).max(self.bytes)
    }
}

impl Draft<'_> {
    /// Whether it writes no view: whatever its views, they overlap nothing that it writes.
    fn only_reads(&self, storage: &[Access]) -> bool {
        let writes = |(operand, access): (&Operand, &Access)| {
            matches!(operand, Operand::View(_)) && *access == Access::Write
        };
        !self.operands.iter().zip(storage).any(writes)
    }

    /// Whether another dispatch runs the same pipeline on the same operands, its views in other places where it
    /// `only_reads` them, else one view.
    fn binds_as(&self, other: &Self, only_reads: bool) -> bool {
        let alike = |(a, b): (&Operand, &Operand)| match (a, b) {
            (Operand::Tensor(a), Operand::Tensor(b)) => a == b,
            (Operand::Scratch(a), Operand::Scratch(b)) => a == b,
            (Operand::View(_), Operand::View(_)) => true,
            _ => false,
        };
        let views = || self.operands.iter().filter(|o| matches!(o, Operand::View(_))).count();
        (only_reads || views() <= 1)
            && self.call.kernel == other.call.kernel
            && self.operands.len() == other.operands.len()
            && self.operands.iter().zip(&other.operands).all(alike)
    }
}

/// How the kernel of a dispatch uses what it binds as storage, but for the step tables.
fn bound(call: &Call) -> Vec<Access> {
    let mut operands = call.kernel.operands();
    operands.retain(|access| *access != Access::Range);
    operands
}

/// Holds a dispatch against the limits, and proves that nothing it writes overlaps what else it binds.
fn check(
    label: impl Fn() -> String,
    call: &Call,
    storage: &[Access],
    views: &[View],
    profile: &Profile,
) -> Result<(), PlanError> {
    let limits = &profile.limits;
    let exceeds = |limit, need: u64, have: u64| PlanError::Limit { limit, name: label(), need, have };
    if storage.len() != views.len() {
        return Err(PlanError::graph(&label(), "a kernel was given another number of operands than it has"));
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
    for (i, (a, access)) in views.iter().zip(storage).enumerate() {
        if a.bytes > limits.max_storage_buffer_binding_size {
            return Err(exceeds(Limit::Binding, a.bytes, limits.max_storage_buffer_binding_size));
        }
        for (b, other) in views.iter().zip(storage).skip(i + 1) {
            let writes = *access == Access::Write || *other == Access::Write;
            let overlap = a.buffer == b.buffer
                && a.offset < b.offset.saturating_add(b.bytes)
                && b.offset < a.offset.saturating_add(a.bytes);
            if writes && overlap {
                return Err(PlanError::graph(&label(), "what it writes overlaps what it reads"));
            }
        }
    }
    Ok(())
}
