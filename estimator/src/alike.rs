//! Ops that are lowered alike: with the same parameters and the same scratch, and bindings of the same sizes.
//!
//! Layers of a model differ in little but where their weights and their states stand, and a stack of experts is a
//! thousand dispatches in each of them.

use crate::folds::{Fold, Takes};
use crate::groups::{Groups, stacks};
use crate::plan::{VectorPlace, View};
use plimsoll_kernels::Record;
use plimsoll_kernels::ops::gate::Activation;
use plimsoll_models::Model;
use plimsoll_models::graph::{Attention, HeadNorm, Op, Rows, StateId, TensorId, VectorId};
use plimsoll_models::model::State;
use rustc_hash::FxHashMap;

/// All that the lowering of an op with matrices looks at, but for the numbers of a step and where its vectors stand.
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
    vectors: Vec<Len>,
}

/// Values of a vector, and which vector of the op is the first that is the same one.
type Len = (Option<u32>, usize);

/// Vectors of an op, beyond which it has no class.
const MOST_VECTORS: usize = 24;

/// Values by which a product reads the weight of a norm that it takes in.
pub(crate) const QUAD: u32 = 4;

/// A stack of matrices, and whether it has a bias.
#[derive(PartialEq, Eq, Hash)]
struct Stack {
    record: Record,
    rows: u32,
    /// First row, rows and bytes of each shard.
    shards: Vec<(u32, u32, u64)>,
    bias: bool,
}

/// The classes of a model's ops.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    /// Of each op with matrices, a state or attention.
    ops: Vec<Option<Class>>,
    /// Where the vectors of a class stand.
    places: Vec<Vec<u32>>,
    /// Classes of each kind.
    kinds: Vec<u32>,
}

impl Classes {
    /// The class of an op; ops of one class are lowered alike, attention where the pages of its layers are cut alike.
    pub fn of(&self, op: usize) -> Option<Class> {
        *self.ops.get(op)?
    }

    /// Where the vectors of a class stand: the word of each vector of [`Op::vectors`],
    /// and of the norm that is taken in the fourth of it.
    pub fn places(&self, class: u32) -> &[u32] {
        self.places.get(class as usize).map_or(&[], Vec::as_slice)
    }

    /// Classes of these places, of no ops.
    #[cfg(test)]
    pub fn of_places(places: Vec<Vec<u32>>) -> Self {
        Self { places, ..Self::default() }
    }

    /// Whether a kind has more than one class.
    pub fn are_many(&self, kind: u32) -> bool {
        self.kinds.get(kind as usize).is_some_and(|classes| *classes > 1)
    }
}

/// Ops of one kind bind alike; those of one class have the same parameters too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    /// Ops that differ in nothing but where their weights, vectors and states stand have one number.
    pub kind: u32,
    /// Those among them whose vectors stand at the same words have one number.
    pub class: u32,
}

/// Kinds of attention by the widths they read and write.
type Attentions = FxHashMap<(u32, u32, bool, u64), Vec<(u32, Attention, Vec<Len>)>>;

/// Sorts the ops of a model.
pub(crate) fn classes(model: &Model, groups: &Groups, vectors: &[View], places: &[VectorPlace]) -> Classes {
    let place = |id: VectorId| places.get(id.0 as usize).copied().unwrap_or_default();
    let tensor = |id: TensorId| model.graph.tensors.get(id.0 as usize);
    // Attention by the widths it reads and writes, so that few are compared.
    let mut attention: Attentions = FxHashMap::default();
    let mut reads: FxHashMap<Reads, u32> = FxHashMap::default();
    let mut states: Vec<(u32, Reads, Option<&State>, Op)> = Vec::new();
    let mut kinds = 0;
    let mut kind_of = |label: &str, op: &Op, ids: &[VectorId]| {
        let window = ids.first().map_or(0, |id| place(*id).window);
        let window = vectors.get(window as usize).map_or(0, |view| view.bytes);
        let len = |id: &VectorId| {
            let first = ids.iter().position(|other| other == id).unwrap_or(0);
            (model.vector(*id).map(|v| v.len), first)
        };
        let lens = || ids.iter().map(len).collect::<Vec<Len>>();
        match op {
            Op::Attention { attention: this, qkv, out } => {
                let width = |id: TensorId| tensor(id).map_or(0, |t| t.width);
                let key = (width(*qkv), width(*out), qkv == out, window);
                let alike = attention.entry(key).or_default();
                let (this, lens) = (nowhere(this), lens());
                let state = |a: &Attention| model.states.get(a.state.0 as usize);
                let same = |other: &Attention| {
                    let moved = Attention { state: other.state, ..this.clone() };
                    moved == *other && state(&this) == state(other)
                };
                if let Some((kind, ..)) = alike.iter().find(|(_, other, of)| *of == lens && same(other)) {
                    return Some(*kind);
                }
                kinds += 1;
                alike.push((kinds, this, lens));
                Some(kinds)
            }
            Op::Conv { .. } | Op::Ssd { .. } | Op::Delta { .. } => {
                let key = of_tensors(model, op, window, lens())?;
                let (state, this) = stateless(op)?;
                let state = model.states.get(state.0 as usize);
                let alike = |(_, reads, of, other): &&_| (reads, of, other) == (&key, &state, &this);
                if let Some((kind, ..)) = states.iter().find(alike) {
                    return Some(*kind);
                }
                kinds += 1;
                states.push((kinds, key, state, this));
                Some(kinds)
            }
            Op::Linear { .. } | Op::Experts { .. } => {
                let key = of_matrices(model, groups, label, op, window, lens())?;
                Some(*reads.entry(key).or_insert_with(|| {
                    kinds += 1;
                    kinds
                }))
            }
            _ => None,
        }
    };
    let mut found = Classes::default();
    let mut known: FxHashMap<(u32, Vec<u32>), u32> = FxHashMap::default();
    for (label, op) in &model.graph.ops {
        let ids = op.vectors();
        let kind = if ids.len() > MOST_VECTORS { None } else { kind_of(label, op, &ids) };
        let Some(kind) = kind else {
            found.ops.push(None);
            continue;
        };
        let words: Vec<u32> = ids.iter().map(|id| place(*id).word).collect();
        let class = *known.entry((kind, words)).or_insert_with_key(|(_, words)| {
            if found.kinds.len() <= kind as usize {
                found.kinds.resize(kind as usize + 1, 0);
            }
            found.kinds[kind as usize] += 1;
            found.places.push(words.clone());
            found.places.len() as u32 - 1
        });
        found.ops.push(Some(Class { kind, class }));
    }
    found
}

/// What tells products apart that take others in, beside what tells them apart alone.
type Taking = (u32, Option<(bool, u32)>, Option<Activation>);

/// The classes where ops are folded into others: products that take others in are alike where they are so alone and take
/// in the same. The numbers of the others stay.
pub(crate) fn folded(classes: &Classes, folds: &[Fold], places: &[VectorPlace]) -> Classes {
    let mut found = classes.clone();
    let mut kinds: FxHashMap<Taking, u32> = FxHashMap::default();
    let mut known: FxHashMap<(u32, u32, Option<u32>), u32> = FxHashMap::default();
    for (op, fold) in folds.iter().enumerate() {
        let (Some(class), Fold::Takes(Takes { norm, gate })) = (classes.of(op), fold) else { continue };
        let taking = (class.kind, norm.map(|n| (n.plus_one, n.eps.to_bits())), gate.map(|g| g.activation));
        let kind = *kinds.entry(taking).or_insert_with(|| {
            found.kinds.push(0);
            found.kinds.len() as u32 - 1
        });
        // Kernels read the weight of a norm by fours.
        let quad = norm.and_then(|n| places.get(n.weight.0 as usize)).map(|place| place.word / QUAD);
        let class = *known.entry((kind, class.class, quad)).or_insert_with(|| {
            found.kinds[kind as usize] += 1;
            let places = classes.places(class.class).iter().copied().chain(quad).collect();
            found.places.push(places);
            found.places.len() as u32 - 1
        });
        found.ops[op] = Some(Class { kind, class });
    }
    found
}

/// A recurrent op but for which tensors, vectors and state it has, and its state.
fn stateless(op: &Op) -> Option<(StateId, Op)> {
    let mut op = op.clone();
    let state = match &mut op {
        Op::Conv { x, conv, out } => {
            (*x, *out, conv.weight) = (TensorId(0), TensorId(0), VectorId(0));
            conv.bias = conv.bias.map(|_| VectorId(0));
            &mut conv.state
        }
        Op::Ssd { xbc, dt, ssd, out } => {
            (*xbc, *dt, *out) = (TensorId(0), TensorId(0), TensorId(0));
            (ssd.a, ssd.d, ssd.dt_bias) = (VectorId(0), VectorId(0), VectorId(0));
            &mut ssd.state
        }
        Op::Delta { qkv, ab, delta, out } => {
            (*qkv, *ab, *out) = (TensorId(0), TensorId(0), TensorId(0));
            (delta.a, delta.dt_bias) = (VectorId(0), VectorId(0));
            &mut delta.state
        }
        _ => return None,
    };
    let of = std::mem::replace(state, StateId(0));
    Some((of, op))
}

/// What the lowering of an op without matrices looks at of its tensors.
fn of_tensors(model: &Model, op: &Op, window: u64, vectors: Vec<Len>) -> Option<Reads> {
    let ids: Vec<TensorId> = op.reads().into_iter().chain(op.writes()).collect();
    let tensors = widths(model, &ids)?;
    Some(Reads { tensors, accumulate: false, experts: None, stacks: Vec::new(), window, vectors })
}

/// Width and rows of tensors, and the first of them that is the same one.
fn widths(model: &Model, ids: &[TensorId]) -> Option<Vec<(u32, Rows, usize)>> {
    let of = |id: &TensorId| {
        let tensor = model.graph.tensors.get(id.0 as usize)?;
        Some((tensor.width, tensor.rows, ids.iter().position(|other| other == id)?))
    };
    ids.iter().map(of).collect()
}

/// Attention but for which vectors it reads.
fn nowhere(attention: &Attention) -> Attention {
    let norm = |norm: Option<HeadNorm>| norm.map(|norm| HeadNorm { weight: VectorId(0), ..norm });
    Attention {
        q_norm: norm(attention.q_norm),
        k_norm: norm(attention.k_norm),
        sinks: attention.sinks.map(|_| VectorId(0)),
        ..attention.clone()
    }
}

/// What stands for an op with matrices; none where something is missing, which its lowering says.
fn of_matrices(
    model: &Model,
    groups: &Groups,
    label: &str,
    op: &Op,
    window: u64,
    vectors: Vec<Len>,
) -> Option<Reads> {
    let (ids, biases, accumulate, experts) = match op {
        Op::Linear { x, bias, out, accumulate, .. } => (vec![*x, *out], bias.clone(), *accumulate, None),
        Op::Experts { x, routing, experts, bias, out } => {
            let count = model.matrix(*experts)?.experts;
            (vec![*x, *routing, *out], vec![*bias], false, Some(count))
        }
        _ => return None,
    };
    let stack = |(i, parts): (usize, Vec<_>)| {
        let group = groups.get(&parts)?;
        let bias = biases.get(i).copied().flatten().is_some();
        let shards = group.shards.iter().map(|s| (s.first_row, s.rows, s.view.bytes)).collect();
        Some(Stack { record: group.record, rows: group.rows, shards, bias })
    };
    Some(Reads {
        tensors: widths(model, &ids)?,
        accumulate,
        experts,
        stacks: stacks(model, label, op).ok()?.into_iter().enumerate().map(stack).collect::<Option<_>>()?,
        window,
        vectors,
    })
}
