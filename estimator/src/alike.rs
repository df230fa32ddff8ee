//! Ops that are lowered alike: with the same parameters and the same scratch, and bindings of the same sizes.
//!
//! Layers of a model differ in little but where their weights and their states stand, and a stack of experts is a
//! thousand dispatches in each of them.

use crate::groups::{Groups, stacks};
use crate::plan::{VectorPlace, View};
use plimsoll_kernels::Record;
use plimsoll_models::Model;
use plimsoll_models::graph::{Attention, Op, Rows, TensorId, VectorId};
use rustc_hash::FxHashMap;

/// All that the lowering of an op with matrices looks at, but for the numbers of a step.
#[derive(PartialEq, Eq, Hash)]
struct Reads {
    /// Width and rows of each tensor, and the first of them that is the same one.
    tensors: Vec<(u32, Rows, usize)>,
    accumulate: bool,
    /// Experts of a stack; none where the matrices are of a linear layer.
    experts: Option<u32>,
    stacks: Vec<Stack>,
    /// Bytes of the window of vectors.
    window: u64,
}

/// A stack of matrices and the place and length of its bias.
#[derive(PartialEq, Eq, Hash)]
struct Stack {
    record: Record,
    rows: u32,
    /// First row, rows and bytes of each shard.
    shards: Vec<(u32, u32, u64)>,
    bias: Option<(u32, u32)>,
}

/// The class of each op: ops of one class are lowered alike, attention where the pages of its layers are cut alike.
/// Ops of class 0 are each of their own.
pub(crate) fn classes(model: &Model, groups: &Groups, vectors: &[View], places: &[VectorPlace]) -> Vec<u32> {
    let place = |id: VectorId| places.get(id.0 as usize).copied().unwrap_or_default();
    let window = |op: &Op| {
        let window = op.vectors().first().map_or(0, |id| place(*id).window);
        vectors.get(window as usize).map_or(0, |view| view.bytes)
    };
    let tensor = |id: TensorId| model.graph.tensors.get(id.0 as usize);
    let mut attention: FxHashMap<Vec<u64>, Vec<(u32, Attention)>> = FxHashMap::default();
    let mut reads: FxHashMap<Reads, u32> = FxHashMap::default();
    let mut next = 0;
    let mut class = |label: &str, op: &Op| match op {
        Op::Attention { qkv, attention: this, out } => {
            // Ops of one class have all of these; most of other classes do not, so few are compared.
            let mut key = [*qkv, *out].map(|id| tensor(id).map_or(0, |t| t.width.into())).to_vec();
            key.push(window(op));
            key.extend(op.vectors().into_iter().map(|id| u64::from(place(id).word)));
            let alike = attention.entry(key).or_default();
            let state = |a: &Attention| model.states.get(a.state.0 as usize);
            let same = |other: &Attention| {
                // The words of vectors are in the key.
                let moved = Attention { state: other.state, ..this.clone() };
                moved == *other && state(this) == state(other)
            };
            if let Some((class, _)) = alike.iter().find(|(_, other)| same(other)) {
                return *class;
            }
            next += 1;
            alike.push((next, this.clone()));
            next
        }
        Op::Linear { .. } | Op::Experts { .. } => {
            match of_matrices(model, groups, label, op, place, window(op)) {
                Some(key) => *reads.entry(key).or_insert_with(|| {
                    next += 1;
                    next
                }),
                None => 0,
            }
        }
        _ => 0,
    };
    model.graph.ops.iter().map(|(label, op)| class(label, op)).collect()
}

/// What stands for an op with matrices; none where something is missing, which its lowering says.
fn of_matrices(
    model: &Model,
    groups: &Groups,
    label: &str,
    op: &Op,
    place: impl Fn(VectorId) -> VectorPlace,
    window: u64,
) -> Option<Reads> {
    let (ids, biases, accumulate, experts) = match op {
        Op::Linear { x, bias, out, accumulate, .. } => (vec![*x, *out], bias.clone(), *accumulate, None),
        Op::Experts { x, routing, experts, bias, out } => {
            let count = model.matrix(*experts)?.experts;
            (vec![*x, *routing, *out], vec![*bias], false, Some(count))
        }
        _ => return None,
    };
    let tensors = ids.iter().map(|id| {
        let tensor = model.graph.tensors.get(id.0 as usize)?;
        Some((tensor.width, tensor.rows, ids.iter().position(|other| other == id)?))
    });
    let stack = |(i, parts): (usize, Vec<_>)| {
        let group = groups.get(&parts)?;
        let bias = match biases.get(i).copied().flatten() {
            Some(id) => Some((place(id).word, model.vector(id)?.len)),
            None => None,
        };
        let shards = group.shards.iter().map(|s| (s.first_row, s.rows, s.view.bytes)).collect();
        Some(Stack { record: group.record, rows: group.rows, shards, bias })
    };
    Some(Reads {
        tensors: tensors.collect::<Option<_>>()?,
        accumulate,
        experts,
        stacks: stacks(model, label, op).ok()?.into_iter().enumerate().map(stack).collect::<Option<_>>()?,
        window,
    })
}
