//! The layers after a model's own that draft tokens: one stack for each further token, which begins with two norms and a
//! projection `[D, 2·D]` of an embedding beside what the model ended with, and ends with a norm. They share the
//! embedding and the head, and are laid out in `mtp.layers.*`, stack after stack.

use super::config::Config;
use super::{Builder, Tables};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{GraphBuilder, Rows};
use crate::model::{Beside, State};
use crate::zoo::beside;
use crate::zoo::weights::Weights;

/// What layers that draft keep, and their tensors, as the configuration alone implies them.
pub(super) fn drafts(
    checkpoint: &Checkpoint,
    config: &Config,
) -> Result<(Vec<State>, Vec<Beside>), ModelError> {
    if config.draft.is_empty() {
        return Ok((vec![], vec![]));
    }
    let (w, g) = (Weights::bare(checkpoint)?, GraphBuilder::new());
    let tables = Tables::drafts();
    let mut b = Builder { w, g, config, tables, states: vec![] };
    let hidden = config.hidden;
    let x = b.g.tensor("x", hidden, Rows::Tokens);
    let mut layer = 0;
    for _ in 0..config.extra_layers {
        for (index, kind) in config.draft.iter().enumerate() {
            let at = |part: &str| format!("mtp.layers.{layer}.{part}.weight");
            if index == 0 {
                b.w.vector(&at("enorm"), hidden)?;
                b.w.vector(&at("hnorm"), hidden)?;
                b.w.parameter(&at("eh_proj"), hidden, hidden.saturating_mul(2))?;
            }
            b.layer(layer, kind, x)?;
            if index + 1 == config.draft.len() {
                b.w.vector(&at("final_layernorm"), hidden)?;
            }
            layer += 1;
        }
    }
    let (matrices, vectors) = b.w.finish();
    Ok((b.states, beside::drafted(&matrices, &vectors)))
}
