//! What the tensors of a gpt-oss model are called.

use crate::zoo::in_layer;

/// Names of tensors, by what transformers calls them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub gguf: bool,
}

impl Names {
    /// A tensor of the whole model.
    pub(super) fn outer(&self, part: &str) -> String {
        match (self.gguf, part) {
            (false, "lm_head") => "lm_head.weight".to_owned(),
            (false, part) => format!("model.{part}.weight"),
            (true, "embed_tokens") => "token_embd.weight".to_owned(),
            (true, "norm") => "output_norm.weight".to_owned(),
            (true, "lm_head") => "output.weight".to_owned(),
            (true, part) => format!("{part}.weight"),
        }
    }

    /// A tensor of a layer, with what it ends in.
    pub(super) fn layer(&self, layer: u32, part: &str) -> String {
        if !self.gguf {
            return in_layer("model", layer, &[part]);
        }
        let (module, end) = part.rsplit_once('.').unwrap_or((part, ""));
        let (module, end) = match (module, end) {
            ("self_attn", "sinks") => ("attn_sinks", "weight"),
            // There is no such stack; the first of the two is what to ask for.
            ("mlp.experts", "gate_up_proj") => ("ffn_gate_exps", "weight"),
            ("input_layernorm", end) => ("attn_norm", end),
            ("post_attention_layernorm", end) => ("post_attention_norm", end),
            ("self_attn.q_proj", end) => ("attn_q", end),
            ("self_attn.k_proj", end) => ("attn_k", end),
            ("self_attn.v_proj", end) => ("attn_v", end),
            ("self_attn.o_proj", end) => ("attn_output", end),
            ("mlp.router", end) => ("ffn_gate_inp", end),
            ("mlp.experts.gate_proj", end) => ("ffn_gate_exps", end),
            ("mlp.experts.up_proj", end) => ("ffn_up_exps", end),
            ("mlp.experts.down_proj", end) => ("ffn_down_exps", end),
            other => other,
        };
        format!("blk.{layer}.{module}.{end}")
    }
}
