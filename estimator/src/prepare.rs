//! What no geometry changes: where the weights stand, and what a graph says of itself.

use crate::alike::{self, Classes};
use crate::error::PlanError;
use crate::folds::{Fold, folds};
use crate::groups::Groups;
use crate::lower::{Masks, Part};
use crate::plan::{Role, Segment, VectorPlace, View};
use crate::pool::{Pool, Slab};
use crate::vectors;
use plimsoll_kernels::ops::rope_kv::Keys;
use plimsoll_kernels::{AttentionShape, Profile};
use plimsoll_models::Model;
use plimsoll_models::graph::{Op, Rows, StateId, TensorId};
use rustc_hash::FxHashMap;
use std::sync::RwLock;

/// The weights of a model on a profile, placed, and the facts of its graph.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub groups: Groups,
    /// Windows of vectors.
    pub vectors: Vec<View>,
    pub vector_places: Vec<VectorPlace>,
    /// The buffers of the weights: the first of a plan.
    pub slabs: Vec<Slab>,
    /// Bytes of those.
    pub bytes: u64,
    /// The last of the largest of those.
    pub largest: Option<Slab>,
    /// Bytes of the matrices.
    pub matrix_bytes: u64,
    /// Bytes of the longest row.
    pub longest_row: u64,
    /// The most tokens of a step and the most logit rows whose tensors fit bindings and buffers: more are refused.
    pub most_rows: (u32, u32),
    pub facts: Facts,
    /// What has been found out of attention so far.
    pub masks: RwLock<Masks>,
}

impl Prepared {
    /// Places the weights of a model and reads its graph.
    pub fn new(model: &Model, profile: &Profile) -> Result<Self, PlanError> {
        let mut pool =
            Pool::new("weights", Segment::Weights, Role::Matrices, profile.limits.max_buffer_size, 0);
        let groups = Groups::place(model, profile, &mut pool)?;
        let mut slabs: Vec<Slab> = pool.slabs().collect();
        let matrix_bytes = slabs.iter().map(|b| b.bytes).fold(0, u64::saturating_add);
        let longest_row = groups.all.iter().map(|g| g.record.stride()).max().unwrap_or(0);
        let (vector_places, vectors) = vectors::place(model, profile, &mut slabs)?;
        let mut facts = Facts::new(model, profile, &groups, &vectors, &vector_places);
        for (index, part) in (0..).zip(&facts.parts) {
            facts.of_part[*part as usize].push(index);
        }
        let bytes = slabs.iter().map(|b| b.bytes).fold(0, u64::saturating_add);
        let most_rows = most_rows(model, profile, &facts);
        let largest = slabs.iter().max_by_key(|s| s.bytes).copied();
        Ok(Self {
            groups,
            vectors,
            vector_places,
            slabs,
            bytes,
            largest,
            matrix_bytes,
            longest_row,
            most_rows,
            facts,
            masks: RwLock::default(),
        })
    }
}

/// The most tokens and the most logit rows with which every tensor fits a binding and a buffer.
fn most_rows(model: &Model, profile: &Profile, facts: &Facts) -> (u32, u32) {
    let limits = &profile.limits;
    let have = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let (mut token, mut row) = (1u64, 1u64);
    for (tensor, alive) in model.graph.tensors.iter().zip(&facts.wide.alive) {
        let width = if alive.is_some() { u64::from(tensor.width) } else { 0 };
        match tensor.rows {
            Rows::Tokens => token = token.max(width),
            Rows::Choices(top) => token = token.max(width.saturating_mul(top.into())),
            Rows::LogitRows => row = row.max(width),
        }
    }
    let rows = |width: u64| u32::try_from(have / width.saturating_mul(4)).unwrap_or(u32::MAX);
    (rows(token), rows(row))
}

/// What a graph says of itself, whatever the step.
#[derive(Debug)]
pub(crate) struct Facts {
    /// In programs for many tokens.
    pub wide: Ops,
    /// In programs for few, where some ops are [folded](crate::folds) into others.
    pub narrow: Ops,
    /// What becomes of each op in those.
    pub folds: Vec<Fold>,
    /// The window of vectors each op looks at, as far as the graph is sound.
    pub windows: Vec<View>,
    /// What each op's lowering depends on.
    pub parts: Vec<Part>,
    /// The ops of each part.
    pub of_part: [Vec<u32>; Part::ALL.len()],
    /// Heads of every state and of every attention op; `None` for a recurrent state. Each once.
    pub shapes: Vec<Option<AttentionShape>>,
    /// Operations for a row of queries and a key of the dearest attention, where there is any.
    pub dearest: Option<u64>,
    /// The first op that writes each state's keys.
    writers: FxHashMap<StateId, u32>,
    /// The first contradiction, and the op at which it is found.
    fault: Option<(usize, PlanError)>,
}

/// What the ops of a program touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ops {
    /// First and last op that touch each tensor.
    pub alive: Vec<Option<(u32, u32)>>,
    /// When tensors begin to be alive and when they no longer are, in the order of the ops, those that end there first.
    pub changes: Vec<(u32, bool, u32)>,
    /// Which ops are lowered alike.
    pub classes: Classes,
}

impl Facts {
    fn new(
        model: &Model,
        profile: &Profile,
        groups: &Groups,
        vectors: &[View],
        places: &[VectorPlace],
    ) -> Self {
        let ops = &model.graph.ops;
        let readers = ops.iter().filter_map(|(_, op)| match op {
            Op::Attention { attention, .. } => Some(Some(attention.shape)),
            _ => None,
        });
        let mut shapes: Vec<Option<AttentionShape>> = Vec::new();
        for shape in model.states.iter().map(|s| s.attention().copied()).chain(readers) {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        // As the kernel counts its own: two products of every value, and the softmax of every head.
        let widths = shapes.iter().flatten().map(|s| 4 * u64::from(s.heads) * (u64::from(s.head_dim) + 1));
        let mut facts = Self {
            dearest: widths.max(),
            wide: Ops {
                alive: vec![None; model.graph.tensors.len()],
                changes: Vec::new(),
                classes: alike::classes(model, groups, vectors, places),
            },
            narrow: Ops::default(),
            folds: Vec::new(),
            windows: Vec::with_capacity(ops.len()),
            parts: ops.iter().map(|(_, op)| part(model, op)).collect(),
            of_part: std::array::from_fn(|_| Vec::new()),
            shapes,
            writers: FxHashMap::default(),
            fault: None,
        };
        for (index, (label, op)) in (0..).zip(ops) {
            if let Op::Attention { attention, .. } = op
                && attention.keys != Keys::Shared
            {
                facts.writers.entry(attention.state).or_insert(index);
            }
            let touched = facts.wide.touch(index, label, (op.reads(), op.writes()));
            match touched.and_then(|()| window(label, op, vectors, places)) {
                Ok(view) => facts.windows.push(view),
                Err(fault) => {
                    facts.fault = Some((index as usize, fault));
                    facts.narrow = facts.wide.clone();
                    return facts;
                }
            }
        }
        facts.folds = folds(model, groups, profile, vectors, places);
        let narrow =
            Ops::folded(model, &facts.folds, alike::folded(&facts.wide.classes, &facts.folds, places));
        for (part, fold) in facts.parts.iter_mut().zip(&facts.folds) {
            if *fold == Fold::Taken {
                *part = Part::Taken;
            }
        }
        match narrow {
            Ok(narrow) => facts.narrow = narrow,
            // Folds never read what nobody wrote; if they did, it is found here and not on a device.
            Err(fault) => facts.fault = Some((ops.len().saturating_sub(1), fault)),
        }
        facts.wide.finish(model);
        facts
    }

    /// Where the vectors of each class stand: those of programs for many tokens have the same numbers in those for few.
    pub fn places(&self) -> &Classes {
        &self.narrow.classes
    }

    /// What the ops of a program for few or for many tokens touch.
    pub fn ops(&self, narrow: bool) -> &Ops {
        if narrow { &self.narrow } else { &self.wide }
    }

    /// The contradiction found at this op.
    pub fn fault_at(&self, index: usize) -> Option<&PlanError> {
        self.fault.as_ref().filter(|(at, _)| *at == index).map(|(_, fault)| fault)
    }

    /// The first contradiction and its op.
    pub fn fault(&self) -> Option<(usize, &PlanError)> {
        self.fault.as_ref().map(|(at, fault)| (*at, fault))
    }

    /// Whether an op before this one writes the keys of a state.
    pub fn written_before(&self, state: StateId, op: u32) -> bool {
        self.writers.get(&state).is_some_and(|&writer| writer < op)
    }
}

impl Ops {
    /// Of a program in which ops are folded into others.
    fn folded(model: &Model, folds: &[Fold], classes: Classes) -> Result<Self, PlanError> {
        let alive = vec![None; model.graph.tensors.len()];
        let mut this = Self { alive, changes: Vec::new(), classes };
        for (index, ((label, op), fold)) in (0..).zip(model.graph.ops.iter().zip(folds)) {
            let (mut reads, mut writes) = (op.reads(), op.writes());
            match fold {
                Fold::Stays => {}
                Fold::Taken => continue,
                Fold::Takes(takes) => {
                    if let (Some(norm), Some(x)) = (takes.norm, reads.first_mut()) {
                        *x = norm.x;
                    }
                    if let Some(gate) = takes.gate {
                        writes = vec![gate.out];
                    }
                }
            }
            this.touch(index, label, (reads, writes))?;
        }
        this.finish(model);
        Ok(this)
    }

    /// All ops have been touched.
    fn finish(&mut self, model: &Model) {
        // The logits are sampled after the last op.
        if let Some(Some((_, last))) = self.alive.get_mut(model.graph.logits.0 as usize) {
            *last = model.graph.ops.len() as u32;
        }
        for (i, alive) in (0..).zip(&self.alive) {
            let Some((first, last)) = *alive else { continue };
            self.changes.extend([(first, true, i), (last.saturating_add(1), false, i)]);
        }
        self.changes.sort_unstable();
    }

    /// Records which tensors the op keeps alive, and that everything it reads was written.
    fn touch(
        &mut self,
        index: u32,
        label: &str,
        (reads, writes): (Vec<TensorId>, Vec<TensorId>),
    ) -> Result<(), PlanError> {
        for id in reads {
            match self.alive.get_mut(id.0 as usize) {
                Some(Some((_, last))) => *last = index,
                Some(None) => return Err(PlanError::graph(label, "a tensor is read before it is written")),
                None => return Err(PlanError::graph(label, "no such tensor")),
            }
        }
        for id in writes {
            let alive =
                self.alive.get_mut(id.0 as usize).ok_or_else(|| PlanError::graph(label, "no such tensor"))?;
            let first = alive.map_or(index, |(first, _)| first);
            *alive = Some((first, index));
        }
        Ok(())
    }

    /// Whether any op touches the tensor.
    pub fn is_alive(&self, id: TensorId) -> bool {
        matches!(self.alive.get(id.0 as usize), Some(Some(_)))
    }
}

/// The window of the op's vectors. An op without any looks where it may.
fn window(label: &str, op: &Op, vectors: &[View], places: &[VectorPlace]) -> Result<View, PlanError> {
    let place = |id: plimsoll_models::graph::VectorId| {
        let place = places.get(id.0 as usize).map(|place| place.window);
        place.ok_or_else(|| PlanError::graph(label, "no such vector"))
    };
    let mut windows = op.vectors().into_iter().map(place);
    let window = windows.next().transpose()?.unwrap_or(0);
    for other in windows {
        if other? != window {
            return Err(PlanError::graph(label, "vectors of one op stand in different windows"));
        }
    }
    let view = vectors.get(window as usize).copied();
    view.ok_or_else(|| PlanError::graph(label, "no such window of vectors"))
}

/// What the lowering of an op depends on beside the most tokens of a step.
fn part(model: &Model, op: &Op) -> Part {
    let rows = |id: &TensorId| {
        matches!(model.graph.tensors.get(id.0 as usize).map(|t| t.rows), Some(Rows::LogitRows))
    };
    match op {
        Op::Attention { .. } => Part::Attention,
        Op::Conv { .. } | Op::Ssd { .. } | Op::Delta { .. } => Part::Recurrent,
        // Nothing but the number of their workgroups and the bytes that they bind follows the rows.
        Op::RmsNorm { .. }
        | Op::Multiply { .. }
        | Op::Scale { .. }
        | Op::GatedNorm { .. }
        | Op::Activate { .. }
        | Op::Route { .. }
        | Op::Combine { .. }
        | Op::Gate { .. }
        | Op::ClampedGate { .. }
        | Op::Add { .. }
        | Op::Softcap { .. } => Part::Fixed,
        Op::Embed { .. } => Part::Rows,
        _ if op.reads().iter().chain(&op.writes()).any(rows) => Part::Rows,
        _ => Part::Tokens,
    }
}
