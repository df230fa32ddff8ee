//! Where checkpoints keep the tensors.

use super::Family;
use super::config::Config;
use super::gguf;
use crate::checkpoint::Checkpoint;
use crate::zoo::fields::Fields;
use crate::zoo::in_layer;
use crate::zoo::weights::Weights;

/// Names of a checkpoint's tensors.
pub(super) struct Names {
    /// What the names of the text model begin with.
    prefix: String,
    /// The head that is not tied.
    pub head: String,
    /// Norm weights, zero-centred as published, have had 1 added, as MLX's converter and GGUF's writers do (but for
    /// the gated norm).
    pub one_is_added: bool,
    /// Decay rates are stored as the logarithms of their negatives.
    pub a_is_log: bool,
    /// GGUF's names; and whether they are those of qwen3_moe.
    gguf: Option<bool>,
}

/// The stacks of a layer's experts.
pub(super) struct Stacks {
    /// Gates and ups in one tensor.
    pub gate_up: String,
    /// Gates, ups and downs in one tensor each; MLX and GGUF name them so.
    pub parts: [String; 3],
    /// Downs in one tensor, as published.
    pub down: Option<String>,
    /// What the names of single experts begin with.
    pub separate: Option<String>,
}

/// Published; published beside a vision tower; by MLX's converter.
const PREFIXES: [&str; 3] = ["model", "model.language_model", MLX];
const MLX: &str = "language_model.model";
const PARTS: [&str; 3] = ["gate", "up", "down"];

impl Names {
    /// As the tensors have them; as published, or as MLX would, where there are none.
    pub(super) fn of(checkpoint: &Checkpoint, w: &Weights<'_>, config: &Config, family: Family) -> Self {
        if checkpoint.metadata().is_some() {
            return Self {
                prefix: "blk".to_owned(),
                head: "output.weight".to_owned(),
                one_is_added: true,
                a_is_log: false,
                gguf: Some(family == Family::Moe3),
            };
        }
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
        Self { prefix: prefix.to_owned(), head: head.to_owned(), one_is_added, a_is_log: true, gguf: None }
    }

    /// Whether they are GGUF's.
    pub(super) fn are_gguf(&self) -> bool {
        self.gguf.is_some()
    }

    /// The weight of a module of the whole.
    pub(super) fn outer(&self, module: &str) -> String {
        match self.gguf.and_then(|plain| gguf::tensor(module, plain)) {
            Some(tensor) => tensor.to_owned(),
            None => format!("{}.{module}.weight", self.prefix),
        }
    }

    /// The weight of a module of a layer.
    pub(super) fn layer(&self, layer: u32, module: &str) -> String {
        match self.gguf.and_then(|plain| gguf::tensor(module, plain)) {
            Some(tensor) => format!("blk.{layer}.{tensor}"),
            None => in_layer(&self.prefix, layer, &[module, ".weight"]),
        }
    }

    /// A parameter of a layer that is no module's weight.
    pub(super) fn parameter(&self, layer: u32, name: &str) -> String {
        match self.gguf {
            Some(_) => self.layer(layer, name),
            None => in_layer(&self.prefix, layer, &[name]),
        }
    }

    /// The biases of a delta layer's decays.
    pub(super) fn dt_bias(&self, layer: u32, w: &Weights<'_>) -> String {
        let other = format!("blk.{layer}.ssm_dt");
        match self.gguf {
            Some(_) if w.has(&other, false) => other,
            _ => self.parameter(layer, "linear_attn.dt_bias"),
        }
    }

    /// The experts of a layer.
    pub(super) fn stacks(&self, layer: u32) -> Stacks {
        if self.gguf.is_some() {
            return Stacks {
                gate_up: format!("blk.{layer}.ffn_gate_up_exps.weight"),
                parts: PARTS.map(|part| format!("blk.{layer}.ffn_{part}_exps.weight")),
                down: None,
                separate: None,
            };
        }
        let module = format!("{}.layers.{layer}.mlp", self.prefix);
        Stacks {
            gate_up: format!("{module}.experts.gate_up_proj"),
            parts: PARTS.map(|part| format!("{module}.switch_mlp.{part}_proj.weight")),
            down: Some(format!("{module}.experts.down_proj")),
            separate: Some(format!("{module}.experts")),
        }
    }
}

impl Stacks {
    /// The tensor of one expert's gates (0), ups (1) or downs (2); where none is stored by itself, the stack.
    pub(super) fn one(&self, expert: u32, part: usize) -> String {
        match &self.separate {
            Some(prefix) => format!("{prefix}.{expert}.{}_proj.weight", PARTS[part]),
            None => self.parts[part].clone(),
        }
    }
}
