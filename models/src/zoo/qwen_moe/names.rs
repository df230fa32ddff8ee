//! Where checkpoints keep the tensors.

use super::config::Config;
use crate::checkpoint::Checkpoint;
use crate::zoo::fields::Fields;
use crate::zoo::weights::Weights;

/// Names of a checkpoint's tensors.
pub(super) struct Names {
    /// What the names of the text model begin with.
    prefix: String,
    /// The head that is not tied.
    pub head: String,
    /// Norm weights, zero-centred as published, have had 1 added, as MLX's converter does (but for the gated norm).
    pub one_is_added: bool,
}

/// Published; published beside a vision tower; by MLX's converter.
const PREFIXES: [&str; 3] = ["model", "model.language_model", MLX];
const MLX: &str = "language_model.model";

impl Names {
    /// As the tensors have them; as published, or as MLX would, where there are none.
    pub(super) fn of(checkpoint: &Checkpoint, w: &Weights<'_>, config: &Config) -> Self {
        let converted = Fields::of(checkpoint).is_ok_and(|fields| fields.get("quantization").is_some());
        let absent = match (config.nested, converted) {
            (false, _) => PREFIXES[0],
            (true, false) => PREFIXES[1],
            (true, true) => MLX,
        };
        let embedding = |prefix: &str| format!("{prefix}.embed_tokens.weight");
        let found = PREFIXES.into_iter().find(|prefix| w.has(&embedding(prefix), false));
        let prefix = found.unwrap_or(absent);
        let head = if prefix == MLX { "language_model.lm_head.weight" } else { "lm_head.weight" };
        // The converter moves the last dimension of convolutions, and tells by it what it has met before.
        let conv = (0..config.layers.len()).find_map(|layer| {
            checkpoint.tensor(&format!("{prefix}.layers.{layer}.linear_attn.conv1d.weight"))
        });
        let one_is_added = match conv {
            Some(conv) => matches!(conv.shape.as_slice(), [_, _, 1]),
            None => converted || prefix == MLX,
        };
        Self { prefix: prefix.to_owned(), head: head.to_owned(), one_is_added }
    }

    /// The weight of a module of the whole.
    pub(super) fn outer(&self, module: &str) -> String {
        format!("{}.{module}.weight", self.prefix)
    }

    /// A module of a layer.
    pub(super) fn module(&self, layer: u32, module: &str) -> String {
        format!("{}.layers.{layer}.{module}", self.prefix)
    }

    /// The weight of a module of a layer.
    pub(super) fn layer(&self, layer: u32, module: &str) -> String {
        format!("{}.weight", self.module(layer, module))
    }
}
