//! The graph of one step: typed ops over named tensors with a symbolic token count. Written once per architecture;
//! it knows no GPU and no bytes.
//!
//! A step runs over `T` tokens of any mix of sequences. A tensor has a width and as many rows as the step has
//! tokens, or as it wants logits for.

mod builder;
mod uses;

pub use builder::GraphBuilder;
pub use plimsoll_kernels::ops::gate::Activation;
pub use plimsoll_kernels::ops::rope_kv::Keys;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Value heads take turns: head `h` uses key head `h mod Hg`. Else those of a key head stand together, and `h` uses
    /// `h / (Hv/Hg)`.
    #[serde(default)]
    pub tiled: bool,
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
    /// `[X]`: the weight of a chosen expert is multiplied by its own, after the normalisation.
    pub expert_scale: Option<VectorId>,
    /// Factor of the logits before they become scores.
    pub logit_scale: f32,
}

impl Router {
    /// The `top` best of all, normalised, without corrections or factors.
    pub fn plain(top: u32, scoring: Scoring) -> Self {
        Self {
            top,
            scoring,
            bias: None,
            groups: None,
            normalise: true,
            scale: 1.0,
            expert_scale: None,
            logit_scale: 1.0,
        }
    }
}

/// A gated activation with bounds: see the kernel `clamped_gate`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClampedGate {
    /// Gates are at most this, ups within ± this; positive.
    pub limit: f32,
    /// Factor inside the sigmoid.
    pub alpha: f32,
    /// Gates stand at even columns and ups at odd ones; else in the first and in the second half.
    pub interleaved: bool,
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
    /// `out = x / sqrt(mean(x²) + eps) · w`, `w + 1` where `plus_one`; added to `out` where `accumulate`. Where the
    /// weight is shorter than a row, each group of as many channels is normed by itself.
    RmsNorm {
        /// Input.
        x: TensorId,
        /// Weight: one value for each channel, or for each channel of a group.
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
    /// Attention of stacked q, k, v `[T, (Hq + 2·Hk)·E]`, or of fewer columns: see [`Keys`]. Queries are rotated in
    /// place.
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
    /// `out = (up + 1)·gate·sigmoid(alpha·gate)` of bounded gates and ups.
    ClampedGate {
        /// `[_, 2F]`.
        x: TensorId,
        /// What it does.
        gate: ClampedGate,
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
        /// `[X·N]`, a bias for each row of the stack.
        bias: Option<VectorId>,
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
    /// An operation that no kernel does: its output and its scratch are priced, and a plan with one is never run. It
    /// stands where a family is priced before it can be run, so that liveness and peaks are those of a real step.
    Priced {
        /// What it would read.
        reads: Vec<TensorId>,
        /// Matrices it would read.
        matrices: Vec<MatrixId>,
        /// What it would write.
        out: TensorId,
        /// Bytes of scratch it would need for each row of `out`.
        scratch: u64,
    },
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
