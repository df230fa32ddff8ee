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
}

/// A stack of matrices, and whether it has a bias.
#[derive(PartialEq, Eq, Hash)]
struct Stack {
    record: Record,
    rows: u32,
    /// First row, rows and bytes of each shard.
    shards: Vec<(u32, u32, u64)>,
    bias: bool,
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
type Attentions = FxHashMap<(u32, u32, bool, u64), Vec<(u32, Attention)>>;

/// The class of each op with matrices or attention: ops of one are lowered alike, attention where the pages of its
/// layers are cut alike.
pub(crate) fn classes(
    model: &Model,
    groups: &Groups,
    vectors: &[View],
    places: &[VectorPlace],
) -> Vec<Option<Class>> {
    let place = |id: VectorId| places.get(id.0 as usize).copied().unwrap_or_default();
    let window = |op: &Op| {
        let window = op.vectors().first().map_or(0, |id| place(*id).window);
        vectors.get(window as usize).map_or(0, |view| view.bytes)
    };
    let tensor = |id: TensorId| model.graph.tensors.get(id.0 as usize);
    // Attention by the widths it reads and writes, so that few are compared.
    let mut attention: Attentions = FxHashMap::default();
    let mut reads: FxHashMap<Reads, u32> = FxHashMap::default();
    let mut classes: FxHashMap<(u32, Vec<(u32, u32)>), u32> = FxHashMap::default();
    let mut states: Vec<(u32, Reads, Option<&State>, Op)> = Vec::new();
    let mut kinds = 0;
    let mut kind_of = |label: &str, op: &Op| match op {
        Op::Attention { qkv, attention: this, out } => {
            let width = |id: TensorId| tensor(id).map_or(0, |t| t.width);
            let key = (width(*qkv), width(*out), qkv == out, window(op));
            let alike = attention.entry(key).or_default();
            let this = nowhere(this);
            let state = |a: &Attention| model.states.get(a.state.0 as usize);
            let same = |other: &Attention| {
                let moved = Attention { state: other.state, ..this.clone() };
                moved == *other && state(&this) == state(other)
            };
            if let Some((kind, _)) = alike.iter().find(|(_, other)| same(other)) {
                return Some(*kind);
            }
            kinds += 1;
            alike.push((kinds, this));
            Some(kinds)
        }
        Op::Conv { .. } | Op::Ssd { .. } | Op::Delta { .. } => {
            let key = of_tensors(model, op, window(op))?;
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
            let key = of_matrices(model, groups, label, op, window(op))?;
            Some(*reads.entry(key).or_insert_with(|| {
                kinds += 1;
                kinds
            }))
        }
        _ => None,
    };
    let mut class = |label: &str, op: &Op| {
        let kind = kind_of(label, op)?;
        let stands = |id: VectorId| (place(id).word, model.vector(id).map_or(0, |v| v.len));
        let words = op.vectors().into_iter().map(stands).collect();
        let next = classes.len() as u32;
        Some(Class { kind, class: *classes.entry((kind, words)).or_insert(next) })
    };
    model.graph.ops.iter().map(|(label, op)| class(label, op)).collect()
}

/// What tells products apart that take others in, beside what tells them apart alone.
type Taking = (u32, Option<(bool, u32)>, Option<Activation>);

/// The classes where ops are folded into others: products that take others in are alike where they are so alone and take
/// in the same.
pub(crate) fn folded(
    classes: &[Option<Class>],
    folds: &[Fold],
    places: &[VectorPlace],
) -> Vec<Option<Class>> {
    let most = |of: fn(&Class) -> u32| classes.iter().flatten().map(of).max().unwrap_or(0) + 1;
    let (first_kind, first_class) = (most(|c| c.kind), most(|c| c.class));
    let mut kinds: FxHashMap<Taking, u32> = FxHashMap::default();
    let mut known: FxHashMap<(u32, u32, Option<u32>), u32> = FxHashMap::default();
    let mut class = |(class, fold): (&Option<Class>, &Fold)| {
        let (class, Fold::Takes(Takes { norm, gate })) = ((*class)?, fold) else { return *class };
        let taking = (class.kind, norm.map(|n| (n.plus_one, n.eps.to_bits())), gate.map(|g| g.activation));
        let next = first_kind + kinds.len() as u32;
        let kind = *kinds.entry(taking).or_insert(next);
        let word = norm.and_then(|n| places.get(n.weight.0 as usize)).map(|place| place.word);
        let next = first_class + known.len() as u32;
        Some(Class { kind, class: *known.entry((kind, class.class, word)).or_insert(next) })
    };
    classes.iter().zip(folds).map(&mut class).collect()
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
fn of_tensors(model: &Model, op: &Op, window: u64) -> Option<Reads> {
    let ids: Vec<TensorId> = op.reads().into_iter().chain(op.writes()).collect();
    let tensors = widths(model, &ids)?;
    Some(Reads { tensors, accumulate: false, experts: None, stacks: Vec::new(), window })
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
fn of_matrices(model: &Model, groups: &Groups, label: &str, op: &Op, window: u64) -> Option<Reads> {
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
    })
}
