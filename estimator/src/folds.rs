//! Which products do the norm before them and the gate after them in their own dispatch, in programs for few tokens: a
//! dispatch costs what it costs however little it does, and in a decode step norms and gates do little.
//!
//! A norm is taken in by the product that alone reads it. Each workgroup of the product then norms the row for itself, so
//! that is worth it while the matrices are small ([`Tuning::norm_values`](plimsoll_kernels::Tuning)). A gate is done by
//! the product that alone is read by it, where both halves of the matrix are bound at once: that costs nothing.

use crate::groups::{Groups, pieces, stacks};
use crate::lower::NARROW;
use crate::plan::{VectorPlace, View};
use plimsoll_kernels::ops::{gate::Activation, linear};
use plimsoll_kernels::{Profile, Tuning};
use plimsoll_models::Model;
use plimsoll_models::graph::{MatrixId, Op, TensorId, VectorId};

/// What becomes of an op in a program for few tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Fold {
    /// Nothing.
    #[default]
    Stays,
    /// A product does it.
    Taken,
    /// A product that does others.
    Takes(Takes),
}

/// What a product does beside itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Takes {
    pub norm: Option<Norm>,
    pub gate: Option<Gate>,
}

/// A norm that is taken in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Norm {
    pub x: TensorId,
    pub weight: VectorId,
    pub plus_one: bool,
    pub eps: f32,
}

/// A gate that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gate {
    pub activation: Activation,
    pub out: TensorId,
}

/// The fold of each op of a sound graph.
pub(crate) fn folds(
    model: &Model,
    groups: &Groups,
    profile: &Profile,
    windows: &[View],
    places: &[VectorPlace],
) -> Vec<Fold> {
    let ops = &model.graph.ops;
    let finder = Finder { model, groups, profile, windows, places, uses: Uses::new(model) };
    let mut folds = vec![Fold::Stays; ops.len()];
    for (index, (label, op)) in ops.iter().enumerate() {
        let Op::Linear { .. } = op else { continue };
        let Ok(stacks) = stacks(model, label, op) else { continue };
        let norm = finder.norm(index, op, &stacks);
        let gate = finder.gate(index, op, &stacks);
        for at in [norm.map(|(at, _)| at), gate.map(|(at, _)| at)].into_iter().flatten() {
            folds[at] = Fold::Taken;
        }
        if norm.is_some() || gate.is_some() {
            let takes = Takes { norm: norm.map(|(_, norm)| norm), gate: gate.map(|(_, gate)| gate) };
            folds[index] = Fold::Takes(takes);
        }
    }
    folds
}

/// Who touches each tensor.
struct Uses {
    readers: Vec<Vec<usize>>,
    writers: Vec<Vec<usize>>,
}

impl Uses {
    fn new(model: &Model) -> Self {
        let tensors = model.graph.tensors.len();
        let mut this = Self { readers: vec![Vec::new(); tensors], writers: vec![Vec::new(); tensors] };
        let note = |of: &mut Vec<Vec<usize>>, id: TensorId, index: usize| {
            if let Some(at) = of.get_mut(id.0 as usize) {
                at.push(index);
            }
        };
        for (index, (_, op)) in model.graph.ops.iter().enumerate() {
            op.reads().into_iter().for_each(|id| note(&mut this.readers, id, index));
            op.writes().into_iter().for_each(|id| note(&mut this.writers, id, index));
        }
        // Sampling reads the logits.
        note(&mut this.readers, model.graph.logits, model.graph.ops.len());
        this
    }

    /// The one op that reads the tensor, and the one that writes it.
    fn only(&self, id: TensorId) -> Option<(usize, usize)> {
        let one = |of: &[Vec<usize>]| match of.get(id.0 as usize).map(Vec::as_slice) {
            Some([one]) => Some(*one),
            _ => None,
        };
        Some((one(&self.readers)?, one(&self.writers)?))
    }

    /// Whether an op after `from` and before `to` writes the tensor.
    fn written_between(&self, id: TensorId, from: usize, to: usize) -> bool {
        self.writers.get(id.0 as usize).is_none_or(|at| at.iter().any(|&op| op > from && op < to))
    }
}

struct Finder<'a> {
    model: &'a Model,
    groups: &'a Groups,
    profile: &'a Profile,
    windows: &'a [View],
    places: &'a [VectorPlace],
    uses: Uses,
}

impl Finder<'_> {
    fn width(&self, id: TensorId) -> u32 {
        self.model.graph.tensors.get(id.0 as usize).map_or(0, |t| t.width)
    }

    fn rows_alike(&self, a: TensorId, b: TensorId) -> bool {
        let rows = |id: TensorId| self.model.graph.tensors.get(id.0 as usize).map(|t| t.rows);
        rows(a) == rows(b)
    }

    /// The norm that the product of this index can take in, and where it stands.
    fn norm(&self, index: usize, op: &Op, stacks: &[Vec<MatrixId>]) -> Option<(usize, Norm)> {
        let Op::Linear { x, bias, out, .. } = op else { return None };
        let (reader, writer) = self.uses.only(*x)?;
        let (_, before) = self.model.graph.ops.get(writer)?;
        let Op::RmsNorm { x: from, weight, plus_one, eps, out: normed, accumulate: false } = before else {
            return None;
        };
        let width = self.width(*from);
        let place = *self.places.get(weight.0 as usize)?;
        let window = self.windows.get(place.window as usize)?;
        // As its own dispatch sees it: the window of the biases, the first where there are none.
        let mut biases = bias.iter().flatten().map(|id| self.places.get(id.0 as usize).map(|at| at.window));
        let here = biases.next().unwrap_or(Some(0)) == Some(place.window);
        let values = stacks.iter().map(|parts| {
            let rows = self.groups.get(parts).map_or(u32::MAX, |group| group.rows);
            u64::from(rows) * u64::from(width)
        });
        let Tuning { norm_values, .. } = self.profile.tuning;
        let takes = (reader, normed) == (index, x)
            && writer < index
            && from != out
            && self.rows_alike(*from, *x)
            && self.rows_alike(*from, *out)
            && !self.uses.written_between(*from, writer, index)
            && self.model.vector(*weight).is_some_and(|vector| vector.len == width)
            && place.word.is_multiple_of(4)
            && window.bytes.is_multiple_of(16)
            && here
            && values.sum::<u64>() <= u64::from(norm_values)
            && linear::takes(self.profile, NARROW, width, width);
        let norm = Norm { x: *from, weight: *weight, plus_one: *plus_one, eps: *eps };
        takes.then_some((writer, norm))
    }

    /// The gate that the product of this index can do, and where it stands.
    fn gate(&self, index: usize, op: &Op, stacks: &[Vec<MatrixId>]) -> Option<(usize, Gate)> {
        let Op::Linear { x, out: both, accumulate: false, .. } = op else { return None };
        let (reader, writer) = self.uses.only(*both)?;
        let (_, after) = self.model.graph.ops.get(reader)?;
        let Op::Gate { x: gated, activation, out } = after else { return None };
        let [parts] = stacks else { return None };
        let group = self.groups.get(parts)?;
        let [shard] = group.shards.as_slice() else { return None };
        let flops = 2 * u64::from(group.record.cols()) * u64::from(NARROW);
        let most = (self.profile.work_budget / flops.max(1)).max(1);
        // Nothing else may stand in what the gate writes.
        let only = self.uses.writers.get(out.0 as usize)?;
        let takes = (writer, gated) == (index, both)
            && reader > index
            && only.as_slice() == [reader]
            && out != x
            && self.rows_alike(*both, *out)
            && self.rows_alike(*both, *x)
            && self.width(*both) == self.width(*out).saturating_mul(2)
            && group.rows == self.width(*both)
            && pieces(shard, &group.record, most).len() == 1
            && linear::takes(self.profile, NARROW, self.width(*x), self.width(*x));
        takes.then_some((reader, Gate { activation: *activation, out: *out }))
    }
}
