//! What the tensors of a gemma4 model are called.

use crate::checkpoint::{Checkpoint, Source};
use crate::zoo::fields::Fields;

/// Names of tensors, by what transformers calls them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    gguf: bool,
    prefix: &'static str,
}

impl Names {
    /// Of a GGUF file.
    pub(super) fn gguf() -> Self {
        Self { gguf: true, prefix: "" }
    }

    /// As the tensors have them; as published where there are none.
    pub(super) fn reference(checkpoint: &Checkpoint, fields: &Fields<'_>) -> Self {
        const MLX: &str = "language_model.model.";
        const NESTED: &str = "model.language_model.";
        let there = |prefix: &&str| checkpoint.names_tensor(&format!("{prefix}embed_tokens.weight"));
        let prefix = match (checkpoint.source(), fields.is_nested(), fields.get("quantization")) {
            _ if checkpoint.has_list() => [NESTED, MLX].into_iter().find(there).unwrap_or("model."),
            (Source::Config, true, Some(_)) => MLX,
            (Source::Config, true, None) => NESTED,
            (Source::Config, false, _) => "model.",
            _ => [NESTED, MLX].into_iter().find(there).unwrap_or("model."),
        };
        Self { gguf: false, prefix }
    }

    /// Whether they are those of a GGUF file.
    pub(super) fn is_gguf(&self) -> bool {
        self.gguf
    }

    /// Where a file states the size of the embeddings that layers have of their own.
    pub(super) fn own_embedding_key(&self) -> &'static str {
        if self.gguf { "gemma4.embedding_length_per_layer_input" } else { "hidden_size_per_layer_input" }
    }

    /// A tensor of the whole model.
    pub(super) fn outer(&self, part: &str) -> String {
        if !self.gguf {
            return match part {
                "lm_head" => "lm_head.weight".to_owned(),
                part => format!("{}{part}.weight", self.prefix),
            };
        }
        let part = match part {
            "embed_tokens" => "token_embd",
            "norm" => "output_norm",
            "lm_head" => "output",
            "embed_tokens_per_layer" => "per_layer_token_embd",
            "per_layer_model_projection" => "per_layer_model_proj",
            "per_layer_projection_norm" => "per_layer_proj_norm",
            other => other,
        };
        format!("{part}.weight")
    }

    /// A tensor of a layer, whatever it ends in.
    pub(super) fn bare(&self, layer: u32, part: &str) -> String {
        if !self.gguf {
            return format!("{}layers.{layer}.{part}", self.prefix);
        }
        // The router's scales are called after the matrices beside them.
        let part = match part {
            "layer_scalar" => "layer_output_scale.weight",
            "router.scale" => "ffn_gate_inp.scale",
            "router.per_expert_scale" => "ffn_down_exps.scale",
            "experts.gate_up_proj" => "ffn_gate_up_exps.weight",
            "experts.down_proj" => "ffn_down_exps.weight",
            other => other,
        };
        format!("blk.{layer}.{part}")
    }

    /// The weight of a module of a layer.
    pub(super) fn layer(&self, layer: u32, part: &str) -> String {
        if !self.gguf {
            return format!("{}.weight", self.bare(layer, part));
        }
        let part = match part {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.o_proj" => "attn_output",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "post_attention_layernorm" => "post_attention_norm",
            "pre_feedforward_layernorm" => "ffn_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            "post_feedforward_layernorm" => "post_ffw_norm",
            "post_feedforward_layernorm_1" => "post_ffw_norm_1",
            "pre_feedforward_layernorm_2" => "pre_ffw_norm_2",
            "post_feedforward_layernorm_2" => "post_ffw_norm_2",
            "router.proj" => "ffn_gate_inp",
            "experts.switch_glu.gate_proj" => "ffn_gate_exps",
            "experts.switch_glu.up_proj" => "ffn_up_exps",
            "experts.switch_glu.down_proj" => "ffn_down_exps",
            "per_layer_input_gate" => "inp_gate",
            "per_layer_projection" => "proj",
            "post_per_layer_input_norm" => "post_norm",
            other => other,
        };
        format!("blk.{layer}.{part}.weight")
    }
}
