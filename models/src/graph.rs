//! The graph of one step: typed ops over named tensors with a symbolic token count. Written once per architecture;
//! it knows no GPU and no bytes.
//!
//! A step runs over `T` tokens of any mix of sequences. A tensor has a width and as many rows as the step has
//! tokens, or as it wants logits for.

pub use plimsoll_kernels::ops::gate::Activation;
pub use plimsoll_kernels::ops::route::{Groups, Scoring};
use plimsoll_kernels::{AttentionShape, DeltaShape, SsmShape};
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
    /// So many for each token: one for each expert it chose. Row `t·n + i` is choice `i` of token `t`.
    Choices(u32),
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
    /// Norm of each value head, without a weight: its epsilon.
    pub v_norm: Option<f32>,
    /// Where keys and values come from.
    pub keys: Keys,
    /// A score for each query head, `[Hq]`, that stands beside the keys' and has no value.
    pub sinks: Option<VectorId>,
}

impl Attention {
    /// Attention without norms, rotation, cap or sinks, over keys and values of its own.
    pub fn plain(shape: AttentionShape, state: StateId, scale: f32) -> Self {
        Self {
            shape,
            state,
            q_norm: None,
            k_norm: None,
            rotation: None,
            scale,
            softcap: None,
            v_norm: None,
            keys: Keys::Own,
            sinks: None,
        }
    }
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// From their own columns: stacked q, k, v.
    #[default]
    Own,
    /// Values are the keys before their norm and rotation: stacked q, k.
    Values,
    /// From the state, which another layer wrote in this step: q alone.
    Shared,
}

impl Keys {
    /// Columns of the stacked projection.
    pub fn width(self, shape: &AttentionShape) -> u32 {
        match self {
            Keys::Own => shape.qkv_width(),
            Keys::Values => (shape.heads + shape.kv_heads) * shape.head_dim,
            Keys::Shared => shape.heads * shape.head_dim,
        }
    }
}

/// A causal convolution over the tokens of each sequence, channel by channel, and SiLU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv {
    /// First column of the input.
    pub column: u32,
    /// Weight `[C, taps]`; the last tap meets the token itself.
    pub weight: VectorId,
    /// Bias `[C]`.
    pub bias: Option<VectorId>,
    /// Whose tail holds the last `taps − 1` inputs.
    pub state: StateId,
}

/// A selective state space (Mamba2): `h ← exp(Δ·a)·h + Δ·x⊗B`, `y = h·C + D·x`, with
/// `Δ = softplus(dt + dt_bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ssd {
    /// Sizes.
    pub shape: SsmShape,
    /// First column of dt `[H]`.
    pub dt_column: u32,
    /// `[H]`, negative.
    pub a: VectorId,
    /// `[H]`.
    pub d: VectorId,
    /// `[H]`.
    pub dt_bias: VectorId,
    /// Bounds of Δ, where the checkpoint states any that bind.
    pub dt_limit: Option<[f32; 2]>,
    /// Where `h` lives.
    pub state: StateId,
}

/// A gated delta rule: see the kernel `delta`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Sizes.
    pub shape: DeltaShape,
    /// First column of the decay's input `[Hv]`.
    pub a_column: u32,
    /// First column of β's input `[Hv]`.
    pub b_column: u32,
    /// `[Hv]`, negative.
    pub a: VectorId,
    /// `[Hv]`.
    pub dt_bias: VectorId,
    /// Added to the sum of squares of q and k before the root.
    pub eps: f32,
    /// Where `S` lives.
    pub state: StateId,
}

/// A product with another tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Multiply {
    /// First column of the other.
    pub column: u32,
    /// Activation.
    pub activation: Option<Activation>,
    /// The activation is of the other; else of `x`.
    pub of_by: bool,
    /// The other has one value a row.
    pub broadcast: bool,
}

/// A norm with a gate, over groups of channels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatedNorm {
    /// First column of the gate.
    pub gate_column: u32,
    /// Weight: one value for each channel, or for each channel of a group (then shared by the groups).
    pub weight: VectorId,
    /// Groups, each normed by itself.
    pub groups: u32,
    /// Inside the root.
    pub eps: f32,
    /// `norm(x·silu(gate))·w`; else `norm(x)·w·silu(gate)`.
    pub gate_first: bool,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Router {
    /// `Top`.
    pub top: u32,
    /// Scores from logits.
    pub scoring: Scoring,
    /// `[X]`, added to the scores for the choice alone.
    pub bias: Option<VectorId>,
    /// Only experts of the best groups stand for choice.
    pub groups: Option<Groups>,
    /// The chosen scores are divided by their sum.
    pub normalise: bool,
    /// Factor of the weights.
    pub scale: f32,
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
    /// Convolution and SiLU, `[T, C]`; keeps the tail of each sequence.
    Conv {
        /// `[T, ≥ column + C]`.
        x: TensorId,
        /// What it does.
        conv: Conv,
        /// `[T, C]`.
        out: TensorId,
    },
    /// Selective state space; keeps the state of each sequence.
    Ssd {
        /// x, B and C side by side `[T, H·P + 2·G·N]`.
        xbc: TensorId,
        /// `[T, ≥ dt_column + H]`.
        dt: TensorId,
        /// What it does.
        ssd: Ssd,
        /// `[T, H·P]`.
        out: TensorId,
    },
    /// Gated delta rule; keeps the state of each sequence.
    Delta {
        /// q, k and v side by side `[T, 2·Hg·Ek + Hv·Ev]`.
        qkv: TensorId,
        /// Inputs of decay and β.
        ab: TensorId,
        /// What it does.
        delta: Delta,
        /// `[T, Hv·Ev]`.
        out: TensorId,
    },
    /// `x = x·act(by)` or `x = act(x)·by`.
    Multiply {
        /// In place.
        x: TensorId,
        /// The other.
        by: TensorId,
        /// What it does.
        multiply: Multiply,
    },
    /// `x = factor·x`, times the one value of a vector.
    Scale {
        /// In place.
        x: TensorId,
        /// Factor.
        factor: f32,
        /// `[1]`.
        vector: Option<VectorId>,
    },
    /// Gated norm, in place.
    GatedNorm {
        /// `[T, W]`.
        x: TensorId,
        /// `[T, ≥ gate_column + W]`.
        gate: TensorId,
        /// What it does.
        norm: GatedNorm,
    },
    /// `x = act(x)`.
    Activate {
        /// In place.
        x: TensorId,
        /// Activation.
        activation: Activation,
    },
    /// The experts of each token and their weights.
    Route {
        /// `[T, X]`.
        logits: TensorId,
        /// How they are chosen.
        router: Router,
        /// `[T, 2·Top]`: ids (as bits), then weights.
        out: TensorId,
    },
    /// Each chosen expert's matrix times its token's row (`x` has a row a token) or its own (`x` has a row a choice).
    Experts {
        /// `[T, K]`, or `[T·Top, K]` as [`Rows::Choices`].
        x: TensorId,
        /// Who goes where.
        routing: TensorId,
        /// The stack.
        experts: MatrixId,
        /// `[T·Top, N]` as [`Rows::Choices`].
        out: TensorId,
    },
    /// `out[t] = Σ_i weight[t, i]·x[t·Top + i]`, added to `out` where `accumulate`.
    Combine {
        /// `[T·Top, D]`.
        x: TensorId,
        /// The weights.
        routing: TensorId,
        /// `[T, D]`.
        out: TensorId,
        /// `out += …`.
        accumulate: bool,
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
            Op::Combine { x, routing, out, accumulate } => {
                let mut all = vec![*x, *routing];
                if *accumulate {
                    all.push(*out);
                }
                all
            }
            Op::RmsNorm { x, out, accumulate, .. } | Op::Linear { x, out, accumulate, .. } => {
                if *accumulate {
                    vec![*x, *out]
                } else {
                    vec![*x]
                }
            }
            Op::Attention { qkv, .. } => vec![*qkv],
            Op::Gate { x, .. }
            | Op::SelectRows { x, .. }
            | Op::Softcap { x, .. }
            | Op::Conv { x, .. }
            | Op::Scale { x, .. }
            | Op::Activate { x, .. } => vec![*x],
            Op::Ssd { xbc, dt, .. } => vec![*xbc, *dt],
            Op::Delta { qkv, ab, .. } => vec![*qkv, *ab],
            Op::Multiply { x, by, .. } => vec![*x, *by],
            Op::GatedNorm { x, gate, .. } => vec![*x, *gate],
            Op::Route { logits, .. } => vec![*logits],
            Op::Experts { x, routing, .. } => vec![*x, *routing],
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
            | Op::SelectRows { out, .. }
            | Op::Conv { out, .. }
            | Op::Ssd { out, .. }
            | Op::Delta { out, .. }
            | Op::Route { out, .. }
            | Op::Experts { out, .. }
            | Op::Combine { out, .. } => vec![*out],
            Op::GatedNorm { x, .. }
            | Op::Activate { x, .. }
            | Op::Multiply { x, .. }
            | Op::Scale { x, .. } => vec![*x],
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

    /// A convolution of `channels` columns into a new tensor.
    pub fn conv(&mut self, x: TensorId, channels: u32, conv: Conv) -> TensorId {
        let out = self.tensor("conv", channels, Rows::Tokens);
        self.push("conv", Op::Conv { x, conv, out });
        out
    }

    /// A selective state space into a new tensor.
    pub fn ssd(&mut self, xbc: TensorId, dt: TensorId, ssd: Ssd) -> TensorId {
        let out = self.tensor("ssd", ssd.shape.heads * ssd.shape.head_dim, Rows::Tokens);
        self.push("ssd", Op::Ssd { xbc, dt, ssd, out });
        out
    }

    /// A gated delta rule into a new tensor.
    pub fn delta(&mut self, qkv: TensorId, ab: TensorId, delta: Delta) -> TensorId {
        let out = self.tensor("delta", delta.shape.inner(), Rows::Tokens);
        self.push("delta", Op::Delta { qkv, ab, delta, out });
        out
    }

    /// A product with another tensor, in place.
    pub fn multiply(&mut self, name: &str, x: TensorId, by: TensorId, multiply: Multiply) {
        self.push(name, Op::Multiply { x, by, multiply });
    }

    /// `x = factor·x`.
    pub fn scale(&mut self, name: &str, x: TensorId, factor: f32, vector: Option<VectorId>) {
        self.push(name, Op::Scale { x, factor, vector });
    }

    /// A gated norm, in place.
    pub fn gated_norm(&mut self, x: TensorId, gate: TensorId, norm: GatedNorm) {
        self.push("gated_norm", Op::GatedNorm { x, gate, norm });
    }

    /// `x = act(x)`.
    pub fn activate(&mut self, x: TensorId, activation: Activation) {
        self.push("activate", Op::Activate { x, activation });
    }

    /// The experts of each token.
    pub fn route(&mut self, logits: TensorId, router: Router) -> TensorId {
        let out = self.tensor("routing", 2 * router.top, Rows::Tokens);
        self.push("route", Op::Route { logits, router, out });
        out
    }

    /// Each chosen expert's product, of `width` columns, into a new tensor of a row a choice.
    pub fn experts(
        &mut self,
        name: &str,
        x: TensorId,
        routing: TensorId,
        experts: MatrixId,
        width: u32,
    ) -> TensorId {
        let top = self.width(routing) / 2;
        let out = self.tensor(name, width, Rows::Choices(top));
        self.push(name, Op::Experts { x, routing, experts, out });
        out
    }

    /// `to += Σ weight·x` over the choices of each token.
    pub fn combine_add(&mut self, x: TensorId, routing: TensorId, to: TensorId) {
        self.push("combine", Op::Combine { x, routing, out: to, accumulate: true });
    }

    /// `Σ weight·x` over the choices of each token, into a new tensor.
    pub fn combine(&mut self, x: TensorId, routing: TensorId) -> TensorId {
        let width = self.width(x);
        let out = self.tensor("combine", width, Rows::Tokens);
        self.push("combine", Op::Combine { x, routing, out, accumulate: false });
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
