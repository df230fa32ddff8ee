//! The Mamba2 mixer, which nemotron_h and mamba2 share.
//!
//! `z, xBC, dt = in_proj(h)`; `xBC = silu(conv(xBC))`; the selective state space over x, B, C and dt; then
//! `out_proj(norm(y·silu(z))·w)`, normed in each group by itself, joins the residual. (Gu and Dao, "Transformers are
//! SSMs", 2024; the gate goes before the norm as in the authors' code.)
//!
//! What GGUF does to the values, established from the text of llama.cpp's writer (`conversion/nemotron.py`, `granite.py`,
//! `mamba.py`) and reader (`src/models/nemotron-h.cpp`, `mamba2.cpp`), which agree; files written after it answer as their
//! sources (`tests/golden/hybrid_gguf.py`):
//!
//! | tensor | its values | here |
//! |---|---|---|
//! | `ssm_a` `[H, 1]` | `−exp(A_log)` | read as it is |
//! | `ssm_d` `[H, 1]`, `ssm_dt.bias` `[H]` | as published | |
//! | `ssm_conv1d` `[channels, taps]` | the dimension of 1 is gone | |
//! | `ssm_norm` `[groups, I / groups]` | as published | one vector |
//! | `ffn_up_exps`, `ffn_down_exps` | stacks `[E, rows, cols]` | |
//! | `exp_probs_b.bias` | `e_score_correction_bias` | |
//!
//! Layers have no list of kinds there: one with no KV heads and no feed-forward width is Mamba2. That writer gives every
//! layer with a width experts where any has, so it cannot write experts beside plain MLPs; a file that has both is read by
//! the tensors it has.

use super::dense::{gguf_size, missing};
use super::fields::{Fields, shown};
use super::weights::Weights;
use crate::checkpoint::gguf::Metadata;
use crate::checkpoint::number;
use crate::error::ModelError;
use crate::graph::{Conv, GatedNorm, GraphBuilder, Op, Rows, Ssd, StateId, TensorId};
use crate::model::{State, Transform};
use plimsoll_kernels::SsmShape;

/// Sizes of the mixer and what its configuration says of biases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mixer {
    pub shape: SsmShape,
    pub taps: u32,
    pub eps: f32,
    pub dt_limit: Option<[f32; 2]>,
    /// The convolution has a bias.
    pub conv_bias: Option<bool>,
    /// Both projections have one.
    pub proj_bias: Option<bool>,
}

/// Names of the mixer's tensors in one layer.
pub(super) struct Names {
    pub in_proj: String,
    pub conv: String,
    pub a: String,
    pub d: String,
    pub dt_bias: String,
    pub norm: String,
    pub out_proj: String,
    /// What is stored is the logarithm of −A.
    pub a_is_log: bool,
}

impl Names {
    /// Under `prefix`, as the reference implementations write them.
    pub(super) fn reference(prefix: &str) -> Self {
        Self {
            in_proj: format!("{prefix}.in_proj"),
            conv: format!("{prefix}.conv1d"),
            a: format!("{prefix}.A_log"),
            d: format!("{prefix}.D"),
            dt_bias: format!("{prefix}.dt_bias"),
            norm: format!("{prefix}.norm.weight"),
            out_proj: format!("{prefix}.out_proj"),
            a_is_log: true,
        }
    }

    /// Of GGUF, whose writers store A itself.
    pub(super) fn gguf(layer: u32) -> Self {
        let part = |name: &str| format!("blk.{layer}.{name}");
        Self {
            in_proj: part("ssm_in"),
            conv: part("ssm_conv1d"),
            a: part("ssm_a"),
            d: part("ssm_d"),
            dt_bias: part("ssm_dt.bias"),
            norm: part("ssm_norm.weight"),
            out_proj: part("ssm_out"),
            a_is_log: false,
        }
    }
}

impl Mixer {
    /// From GGUF's `ssm.*` keys.
    pub(super) fn from_gguf(meta: &Metadata, arch: &str, eps: f32) -> Result<Self, ModelError> {
        let required = |name: &str| {
            let key = format!("{arch}.ssm.{name}");
            gguf_size(meta, &key)?.ok_or_else(|| missing(&key))
        };
        // The public writer stores the number of heads under this name.
        let (heads, inner) = (required("time_step_rank")?, required("inner_size")?);
        if !inner.is_multiple_of(heads) {
            return Err(ModelError::field(
                format!("{arch}.ssm.inner_size"),
                format!("a multiple of the {heads} heads"),
                inner.to_string(),
            ));
        }
        let groups = gguf_size(meta, &format!("{arch}.ssm.group_count"))?.unwrap_or(1);
        let shape = SsmShape { heads, head_dim: inner / heads, state: required("state_size")?, groups };
        let taps = required("conv_kernel")?;
        Self { shape, taps, eps, dt_limit: None, conv_bias: None, proj_bias: None }.checked()
    }

    /// Sizes that contradict each other, or are beyond anything real, are found before anything is planned.
    pub(super) fn checked(self) -> Result<Self, ModelError> {
        let SsmShape { heads, head_dim, state, groups } = self.shape;
        for (key, value, most) in [
            ("mamba heads", heads, 1 << 16),
            ("mamba head size", head_dim, 1 << 12),
            ("state size", state, 1 << 12),
            ("convolution taps", self.taps, 64),
        ] {
            if value == 0 || value > most {
                return Err(ModelError::field(key, format!("1 to {most}"), value.to_string()));
            }
        }
        if self.taps < 2 {
            return Err(ModelError::field("convolution taps", "2 or more", self.taps.to_string()));
        }
        if groups == 0 || !heads.is_multiple_of(groups) {
            return Err(ModelError::field(
                "n_groups",
                format!("a divisor of the {heads} mamba heads"),
                groups.to_string(),
            ));
        }
        let inner = u64::from(heads) * u64::from(head_dim);
        let channels = inner + 2 * u64::from(groups) * u64::from(state);
        if inner + channels >= 1 << 26 || inner * u64::from(state) >= 1 << 30 {
            return Err(ModelError::field(
                "heads × head size × state",
                "under 2^30 values, and channels under 2^26",
                format!("{heads} × {head_dim} × {state}, {channels} channels"),
            ));
        }
        Ok(self)
    }

    /// What a layer keeps.
    pub(super) fn state(&self) -> State {
        State::Recurrent { shape: self.shape.recurrent(self.taps) }
    }

    /// Rows of `in_proj`: z, then x, B and C, then dt.
    fn projected(&self) -> u32 {
        self.shape.inner() + self.shape.channels() + self.shape.heads
    }

    /// `to += mixer(h)`.
    pub(super) fn build(
        &self,
        w: &mut Weights<'_>,
        g: &mut GraphBuilder,
        names: &Names,
        state: StateId,
        h: TensorId,
        to: TensorId,
    ) -> Result<(), ModelError> {
        let (inner, channels, heads) = (self.shape.inner(), self.shape.channels(), self.shape.heads);
        let (width, hidden) = (self.projected(), g.width(h));
        let weight = |name: &str| format!("{name}.weight");
        let bias = |name: &str| format!("{name}.bias");

        let matrix = w.matrix(&weight(&names.in_proj), width, hidden)?;
        let in_bias = w.bias("use_bias", self.proj_bias, &bias(&names.in_proj), width)?;
        let projected = g.tensor("in_proj", width, Rows::Tokens);
        linear(g, "in_proj", h, &[(matrix, in_bias)], projected, false);

        let conv = Conv {
            column: inner,
            weight: w.conv(&weight(&names.conv), channels, self.taps)?,
            bias: w.bias("use_conv_bias", self.conv_bias, &bias(&names.conv), channels)?,
            state,
        };
        let xbc = g.conv(projected, channels, conv);
        let transform = if names.a_is_log { Transform::NegExp } else { Transform::None };
        let ssd = Ssd {
            shape: self.shape,
            dt_column: inner + channels,
            a: w.vector_as(&names.a, heads, transform)?,
            d: w.vector(&names.d, heads)?,
            dt_bias: w.vector(&names.dt_bias, heads)?,
            dt_limit: self.dt_limit,
            state,
        };
        let y = g.ssd(xbc, projected, ssd);
        let norm = GatedNorm {
            gate_column: 0,
            weight: w.grouped_vector(&names.norm, self.shape.groups, inner / self.shape.groups)?,
            groups: self.shape.groups,
            eps: self.eps,
            gate_first: true,
        };
        g.gated_norm(y, projected, norm);

        let matrix = w.matrix(&weight(&names.out_proj), hidden, inner)?;
        let out_bias = w.bias("use_bias", self.proj_bias, &bias(&names.out_proj), hidden)?;
        linear(g, "out_proj", y, &[(matrix, out_bias)], to, true);
        Ok(())
    }
}

/// A linear layer of parts with perhaps a bias each, into `out`.
pub(super) fn linear(
    g: &mut GraphBuilder,
    name: &str,
    x: TensorId,
    parts: &[(crate::graph::MatrixId, Option<crate::graph::VectorId>)],
    out: TensorId,
    accumulate: bool,
) {
    let bias = if parts.iter().all(|p| p.1.is_none()) { vec![] } else { parts.iter().map(|p| p.1).collect() };
    g.push(name, Op::Linear { x, parts: parts.iter().map(|p| p.0).collect(), bias, out, accumulate });
}

/// Bounds of Δ: `time_step_limit`, where it binds. Absent and (0, ∞), however the infinity is spelled, are no bounds.
/// `time_step_min`, `time_step_max` and `time_step_floor` speak of training and have no effect.
///
/// A checkpoint that states finite bounds means them everywhere, so they hold in prompts and in decoding alike. (The
/// reference implementation clamps its chunked prompt pass only and so disagrees with itself.)
pub(super) fn dt_limit(fields: &Fields<'_>) -> Result<Option<[f32; 2]>, ModelError> {
    const KEY: &str = "time_step_limit";
    let Some(value) = fields.get(KEY) else { return Ok(None) };
    let wrong = || ModelError::field(KEY, "two numbers, 0 ≤ low < high", shown(value));
    let [low, high] = value.as_array().map(Vec::as_slice).ok_or_else(wrong)? else { return Err(wrong()) };
    let (low, high) = (number(low).ok_or_else(wrong)?, number(high).ok_or_else(wrong)?);
    if !(low.is_finite() && low >= 0.0 && low < high && low < f64::from(f32::MAX)) {
        return Err(wrong());
    }
    if low == 0.0 && high == f64::INFINITY {
        return Ok(None);
    }
    // Shaders have no infinity; Δ cannot pass the largest number anyway.
    Ok(Some([low as f32, high.min(f64::from(f32::MAX)) as f32]))
}

/// Tokens of a chunk of the recurrence, where the configuration states them: the first name before the second, as engines
/// ask. Nothing here is chunked by it.
///
/// # Errors
/// When it is no size.
pub(super) fn chunk(fields: &Fields<'_>) -> Result<Option<u32>, ModelError> {
    let key = ["mamba_chunk_size", "chunk_size"].into_iter().find(|key| fields.get(key).is_some());
    key.map(|key| fields.size(key, None)).transpose()
}

/// The value of a switch under its names.
///
/// # Errors
/// When one is no switch, or two contradict each other: readers obey one each, and would read different models.
pub(super) fn switch(fields: &Fields<'_>, keys: &[&str]) -> Result<Switch, ModelError> {
    let mut stated: Option<(&str, bool)> = None;
    for key in keys.iter().filter(|key| fields.get(key).is_some()) {
        let value = fields.flag(key, false)?;
        match stated {
            Some((first, other)) if other != value => {
                return Err(ModelError::field(*key, format!("{other}, as {first} says"), value.to_string()));
            }
            _ => stated = Some((key, value)),
        }
    }
    Ok(Switch(stated.map(|(_, value)| value)))
}

/// What a configuration says of a bias, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Switch(Option<bool>);

impl Switch {
    /// For [`Weights::bias`]: where nothing is said the tensors tell, and where there are none the default.
    pub(super) fn resolve(self, bare: bool, default: bool) -> Option<bool> {
        self.0.or(bare.then_some(default))
    }
}
