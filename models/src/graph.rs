//! The graph of one step: typed ops over named tensors with a symbolic token count. Written once per architecture;
//! it knows no GPU and no bytes.
//!
//! A step runs over `T` tokens of any mix of sequences. A tensor has a width and as many rows as the step has
//! tokens, or as it wants logits for.

use plimsoll_kernels::AttentionShape;
pub use plimsoll_kernels::ops::gate::Activation;
use serde::{Deserialize, Serialize};

/// A matrix of the model's weight table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MatrixId(pub u32);

/// A small vector (norm weight, bias) of the model's weight table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VectorId(pub u32);

/// A layer's memory between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateId(pub u32);

/// A rotary embedding of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RopeId(pub u32);

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorId(pub u32);

/// How many rows a tensor has in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One for each token.
    Tokens,
    /// One for each position whose logits are wanted.
    LogitRows,
}

/// An activation `[rows, width]`, f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// For people.
    pub name: String,
    /// Values of a row.
    pub width: u32,
    /// Rows.
    pub rows: Rows,
}

/// A head norm of queries or keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadNorm {
    /// Weight `[E]`.
    pub weight: VectorId,
    /// The weight is stored zero-centred: multiply by `1 + w`.
    pub plus_one: bool,
    /// Inside the root.
    pub eps: f32,
}

/// Rotation of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    /// Which angles.
    pub rope: RopeId,
    /// Pairs are neighbours instead of halves.
    pub interleaved: bool,
}

/// Attention over the sequence so far, this step's tokens included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Heads.
    pub shape: AttentionShape,
    /// Where keys and values live; its kind says full or sliding.
    pub state: StateId,
    /// Norm of each query head, before the rotation.
    pub q_norm: Option<HeadNorm>,
    /// Norm of each key head, before the rotation.
    pub k_norm: Option<HeadNorm>,
    /// Rotation of queries and keys.
    pub rotation: Option<Rotation>,
    /// Factor of the scores.
    pub scale: f32,
    /// `cap·tanh(score/cap)`.
    pub softcap: Option<f32>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `out[t] = scale · table[id_t]`.
    Embed {
        /// `[V, D]`.
        table: MatrixId,
        /// Factor.
        scale: f32,
        /// `[T, D]`.
        out: TensorId,
    },
    /// `out = x / sqrt(mean(x²) + eps) · w`, `w + 1` where `plus_one`; added to `out` where `accumulate`.
    RmsNorm {
        /// Input.
        x: TensorId,
        /// Weight.
        weight: VectorId,
        /// The weight is stored zero-centred.
        plus_one: bool,
        /// Inside the root.
        eps: f32,
        /// Output.
        out: TensorId,
        /// `out += …`: a post-norm joined with its residual.
        accumulate: bool,
    },
    /// `out = x·Wᵀ` with the rows of several matrices one below the other; added to `out` where `accumulate`.
    Linear {
        /// Input `[_, K]`.
        x: TensorId,
        /// `[N_i, K]` each; `Σ N_i` is the width of `out`.
        parts: Vec<MatrixId>,
        /// One for each part, or empty.
        bias: Vec<Option<VectorId>>,
        /// Output.
        out: TensorId,
        /// `out += …`.
        accumulate: bool,
    },
    /// Attention of stacked q, k, v `[T, (Hq + 2·Hk)·E]`; queries are rotated in place.
    Attention {
        /// Stacked queries, keys and values.
        qkv: TensorId,
        /// What it does.
        attention: Attention,
        /// `[T, Hq·E]`.
        out: TensorId,
    },
    /// `out = act(x[:, :F]) · x[:, F:]`.
    Gate {
        /// `[_, 2F]`.
        x: TensorId,
        /// Activation.
        activation: Activation,
        /// `[_, F]`.
        out: TensorId,
    },
    /// `to += x`.
    Add {
        /// Addend.
        x: TensorId,
        /// Sum.
        to: TensorId,
    },
    /// The rows whose logits are wanted.
    SelectRows {
        /// `[T, D]`.
        x: TensorId,
        /// `[R, D]`.
        out: TensorId,
    },
    /// `x = cap·tanh(x/cap)`.
    Softcap {
        /// In place.
        x: TensorId,
        /// Cap.
        cap: f32,
    },
}

impl Op {
    /// Tensors it reads. One it adds to, or changes in place, counts as read and written.
    pub fn reads(&self) -> Vec<TensorId> {
        match self {
            Op::Embed { .. } => vec![],
            Op::RmsNorm { x, out, accumulate, .. } | Op::Linear { x, out, accumulate, .. } => {
                if *accumulate {
                    vec![*x, *out]
                } else {
                    vec![*x]
                }
            }
            Op::Attention { qkv, .. } => vec![*qkv],
            Op::Gate { x, .. } | Op::SelectRows { x, .. } | Op::Softcap { x, .. } => vec![*x],
            Op::Add { x, to } => vec![*x, *to],
        }
    }

    /// Tensors it writes.
    pub fn writes(&self) -> Vec<TensorId> {
        match self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Gate { out, .. }
            | Op::SelectRows { out, .. } => vec![*out],
            Op::Attention { qkv, out, .. } => vec![*qkv, *out],
            Op::Add { to, .. } => vec![*to],
            Op::Softcap { x, .. } => vec![*x],
        }
    }
}

/// The ops of one step, in order. The last tensor written with [`Rows::LogitRows`] named by `logits` is the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Activations.
    pub tensors: Vec<Tensor>,
    /// Ops with a label each, for people and profiles.
    pub ops: Vec<(String, Op)>,
    /// `[R, V]`.
    pub logits: TensorId,
}

/// Builds a [`Graph`]. Labels take the current scope: `layers.3.mlp.gate_up`.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    tensors: Vec<Tensor>,
    ops: Vec<(String, Op)>,
    scope: String,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the part of the model that follows.
    pub fn scope(&mut self, name: impl Into<String>) {
        self.scope = name.into();
    }

    /// A new activation.
    pub fn tensor(&mut self, name: &str, width: u32, rows: Rows) -> TensorId {
        let id = TensorId(self.tensors.len() as u32);
        self.tensors.push(Tensor { name: self.label(name), width, rows });
        id
    }

    /// Appends an op.
    pub fn push(&mut self, name: &str, op: Op) {
        let label = self.label(name);
        self.ops.push((label, op));
    }

    /// The width of an activation.
    pub fn width(&self, id: TensorId) -> u32 {
        self.tensors.get(id.0 as usize).map_or(0, |t| t.width)
    }

    fn rows(&self, id: TensorId) -> Rows {
        self.tensors.get(id.0 as usize).map_or(Rows::Tokens, |t| t.rows)
    }

    fn label(&self, name: &str) -> String {
        if self.scope.is_empty() { name.to_owned() } else { format!("{}.{name}", self.scope) }
    }

    /// `scale · table[ids]`, `[T, width]`.
    pub fn embed(&mut self, table: MatrixId, width: u32, scale: f32) -> TensorId {
        let out = self.tensor("embed", width, Rows::Tokens);
        self.push("embed", Op::Embed { table, scale, out });
        out
    }

    /// A norm into a new tensor.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: TensorId,
        weight: VectorId,
        plus_one: bool,
        eps: f32,
    ) -> TensorId {
        let (width, rows) = (self.width(x), self.rows(x));
        let out = self.tensor(name, width, rows);
        self.push(name, Op::RmsNorm { x, weight, plus_one, eps, out, accumulate: false });
        out
    }

    /// `to += norm(x)`.
    pub fn rms_norm_add(
        &mut self,
        name: &str,
        x: TensorId,
        weight: VectorId,
        plus_one: bool,
        eps: f32,
        to: TensorId,
    ) {
        self.push(name, Op::RmsNorm { x, weight, plus_one, eps, out: to, accumulate: true });
    }

    /// `x·Wᵀ` into a new tensor of `width` columns.
    pub fn linear(&mut self, name: &str, x: TensorId, parts: &[MatrixId], width: u32) -> TensorId {
        let rows = self.rows(x);
        let out = self.tensor(name, width, rows);
        self.push(name, Op::Linear { x, parts: parts.to_vec(), bias: vec![], out, accumulate: false });
        out
    }

    /// `to += x·Wᵀ`.
    pub fn linear_add(&mut self, name: &str, x: TensorId, parts: &[MatrixId], to: TensorId) {
        self.push(name, Op::Linear { x, parts: parts.to_vec(), bias: vec![], out: to, accumulate: true });
    }

    /// Attention into a new tensor.
    pub fn attention(&mut self, qkv: TensorId, attention: Attention) -> TensorId {
        let out = self.tensor("attention", attention.shape.heads * attention.shape.head_dim, Rows::Tokens);
        self.push("attention", Op::Attention { qkv, attention, out });
        out
    }

    /// A gated activation into a new tensor of half the width.
    pub fn gate(&mut self, x: TensorId, activation: Activation) -> TensorId {
        let (width, rows) = (self.width(x) / 2, self.rows(x));
        let out = self.tensor("gate", width, rows);
        self.push("gate", Op::Gate { x, activation, out });
        out
    }

    /// The rows whose logits are wanted.
    pub fn select_rows(&mut self, x: TensorId) -> TensorId {
        let width = self.width(x);
        let out = self.tensor("select_rows", width, Rows::LogitRows);
        self.push("select_rows", Op::SelectRows { x, out });
        out
    }

    /// `x = cap·tanh(x/cap)`.
    pub fn softcap(&mut self, x: TensorId, cap: f32) {
        self.push("softcap", Op::Softcap { x, cap });
    }

    /// The graph whose result is `logits`.
    pub fn finish(self, logits: TensorId) -> Graph {
        Graph { tensors: self.tensors, ops: self.ops, logits }
    }
}
