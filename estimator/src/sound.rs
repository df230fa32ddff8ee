//! Sizes that no model has and that arithmetic on 32-bit dimensions does not bear: refused before anything is placed.

use crate::error::PlanError;
use plimsoll_models::Model;
use plimsoll_models::graph::Op;
use plimsoll_models::model::State;

/// Widest row of activations, in values; the widest vocabularies have under 2¹⁹.
const WIDEST: u64 = 1 << 24;
/// Values of the largest matrix.
const LARGEST: u64 = 1 << 48;
/// Values of a recurrent state.
const STATE: u64 = 1 << 30;
/// Experts, heads, taps: anything counted.
const MOST: u64 = 1 << 16;

/// That every dimension of a model is one that kernels and plans can count with.
///
/// # Errors
/// [`PlanError::Graph`] names the dimension.
pub(crate) fn check(model: &Model) -> Result<(), PlanError> {
    let within = |at: &str, what: &str, factors: &[u32], most: u64| {
        let product = factors.iter().fold(1u128, |all, &f| all.saturating_mul(f.into()));
        if product <= u128::from(most) {
            return Ok(());
        }
        Err(PlanError::graph(at, format!("{what} of {product}, past {most}")))
    };
    within("the model", "a vocabulary", &[model.vocab], WIDEST)?;
    for matrix in &model.matrices {
        let at = || matrix.source.name().to_string();
        if u64::from(matrix.cols) > WIDEST || u64::from(matrix.rows) * u64::from(matrix.cols) > LARGEST {
            within(&at(), "rows", &[matrix.cols], WIDEST)?;
            within(&at(), "a matrix", &[matrix.rows, matrix.cols], LARGEST)?;
        }
    }
    for tensor in &model.graph.tensors {
        within(&tensor.name, "rows", &[tensor.width], WIDEST)?;
        if let plimsoll_models::graph::Rows::Choices(top) = tensor.rows {
            within(&tensor.name, "choices", &[top], MOST)?;
            within(&tensor.name, "rows of choices", &[tensor.width, top], u64::from(u32::MAX) / 2)?;
        }
    }
    let heads = |at: &str, shape: &plimsoll_kernels::AttentionShape| {
        within(at, "heads", &[shape.heads.max(shape.kv_heads)], MOST)?;
        within(at, "a head", &[shape.head_dim], MOST)?;
        within(at, "queries", &[shape.heads.max(shape.kv_heads), shape.head_dim], WIDEST)
    };
    for (index, state) in model.states.iter().enumerate() {
        let at = format!("state {index}");
        match state {
            State::KvFull { shape } | State::KvSliding { shape, .. } => heads(&at, shape)?,
            State::KvLatent { latent } => {
                within(&at, "heads", &[latent.heads], MOST)?;
                within(&at, "a latent", &[latent.width()], WIDEST)?;
            }
            State::Recurrent { shape } => {
                within(&at, "a state", &[shape.values], STATE)?;
                within(&at, "channels", &[shape.channels], WIDEST)?;
                within(&at, "taps", &[shape.taps], MOST)?;
                within(&at, "a tail", &[shape.channels, shape.taps], STATE)?;
            }
        }
    }
    for (label, op) in &model.graph.ops {
        match op {
            Op::Attention { attention, .. } => heads(label, &attention.shape)?,
            Op::Ssd { ssd, .. } => {
                let s = &ssd.shape;
                within(label, "heads", &[s.heads.max(s.groups)], MOST)?;
                within(label, "an inner row", &[s.heads, s.head_dim], WIDEST)?;
                within(label, "keys", &[s.groups, s.state], WIDEST)?;
                within(label, "a state", &[s.heads, s.head_dim, s.state], STATE)?;
            }
            Op::Delta { delta, .. } => {
                let s = &delta.shape;
                within(label, "heads", &[s.heads.max(s.key_heads)], MOST)?;
                within(label, "an inner row", &[s.heads, s.value_dim], WIDEST)?;
                within(label, "keys", &[s.key_heads, s.key_dim], WIDEST)?;
                within(label, "a state", &[s.heads, s.key_dim, s.value_dim], STATE)?;
            }
            Op::Route { router, .. } => within(label, "choices", &[router.top], MOST)?,
            _ => {}
        }
    }
    Ok(())
}
