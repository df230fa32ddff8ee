//! What a tensor is for, by its name: the one place that knows the spellings of safetensors and of GGUF.

use serde::{Deserialize, Serialize};

/// What a tensor is for, as far as schemes of quantisation tell tensors apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Rows of tokens; the head too where that is tied.
    Embedding,
    /// Rows of tokens that the layers have of their own.
    LayerEmbedding,
    /// What makes logits.
    Head,
    /// Queries, perhaps with their gates.
    AttnQ,
    /// Keys.
    AttnK,
    /// Values.
    AttnV,
    /// Queries, keys and values in one tensor, also those of a linear attention.
    AttnQkv,
    /// The gate of an attention's output.
    AttnGate,
    /// What attention's output goes through.
    AttnOut,
    /// Multi-head latent attention: what makes queries and what makes latents.
    Latent,
    /// Multi-head latent attention: keys and values of all heads from the latent.
    LatentKv,
    /// Queries, keys, values and gates of a linear attention in one tensor.
    LinearQkvz,
    /// Decay and step of a linear attention.
    LinearStep,
    /// What goes into a state space or a short convolution.
    StateIn,
    /// What comes out of a recurrent layer.
    StateOut,
    /// Taps of a convolution.
    Conv,
    /// What chooses experts.
    Router,
    /// What weighs the shared expert: one row.
    SharedGate,
    /// The gate of an MLP.
    Gate,
    /// The other half.
    Up,
    /// Both in one tensor.
    GateUp,
    /// What an MLP's inner values go through.
    Down,
    /// From the hidden width to a latent that experts read, and back.
    ExpertLatent,
    /// What a layer does with its own embeddings.
    LayerInput,
    /// What makes all layers' own inputs.
    LayerInputs,
    /// Joins an embedding and a hidden state for a draft.
    DraftIn,
    /// A norm's weights.
    Norm,
    /// A bias of a linear layer.
    Bias,
    /// A bias of a router's choice.
    RouterBias,
    /// A parameter of a recurrence: decays, biases of steps, passes.
    Recurrence,
    /// Factors, scales and offsets beside packed codes, and of activations.
    Scale,
    /// Divisors of a rotation's frequencies.
    Rotation,
    /// Anything else.
    Other,
}

impl Role {
    /// Whether it is the weight of a linear layer in the layers' stack: what tools that pack "all linear layers but the
    /// head" pack, before their exceptions.
    pub const fn is_linear(self) -> bool {
        use Role::*;
        matches!(
            self,
            AttnQ
                | AttnK
                | AttnV
                | AttnQkv
                | AttnGate
                | AttnOut
                | Latent
                | LatentKv
                | LinearQkvz
                | LinearStep
                | StateIn
                | StateOut
                | Gate
                | Up
                | GateUp
                | Down
                | ExpertLatent
                | LayerInput
                | LayerInputs
                | DraftIn
        )
    }
}

/// What a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The layer, where the name has one.
    pub layer: Option<u32>,
    /// What it is for.
    pub role: Role,
    /// It is of experts: one of them, or a stack.
    pub expert: bool,
}

/// Reads a tensor's name.
pub fn named(name: &str) -> Named {
    // Most names have none of these beginnings, which takes one look to see.
    let maybe = name.as_bytes().windows(2).any(|two| matches!(two, b"xp" | b"sw" | b"sp"));
    let expert = maybe
        && [
            ".experts.",
            ".switch_mlp.",
            ".switch_glu.",
            "_exps",
            "sparse_moe.input_linear",
            "sparse_moe.output_linear",
        ]
        .iter()
        .any(|part| name.contains(part));
    let (layer, part) = numbered(name);
    Named { layer, role: role(part), expert }
}

/// The first number among a name's parts, and what follows it; all of the name where there is none.
fn numbered(name: &str) -> (Option<u32>, &str) {
    let mut start = 0;
    for part in name.split('.') {
        let end = start + part.len();
        if !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = part.parse()
        {
            return (Some(number), name.get(end + 1..).unwrap_or_default());
        }
        start = end + 1;
    }
    (None, name)
}

/// Ends of the names of what stands beside packed codes.
const SCALES: [&str; 13] = [
    "_scale",
    "_scale_2",
    "_scale_inv",
    "_scales",
    ".scales",
    ".biases",
    ".scale",
    "_global_scale",
    ".weight_shape",
    ".input_scale",
    ".k_scale",
    ".v_scale",
    "._amax",
];

/// The role of what follows the layer's number.
fn role(part: &str) -> Role {
    if part.ends_with("layer_scalar") || part.starts_with("layer_output_scale") {
        return Role::Other;
    }
    // A router's own scales are weights; the others stand beside codes.
    if part.starts_with("router.") && (part.ends_with("scale")) {
        return Role::Other;
    }
    if part.ends_with("e_score_correction_bias")
        || part.ends_with("expert_bias")
        || part.starts_with("exp_probs_b")
    {
        return Role::RouterBias;
    }
    if SCALES.iter().any(|end| part.ends_with(end)) {
        return Role::Scale;
    }
    let (module, end) = match part.rsplit_once('.') {
        Some((module, end @ ("weight" | "weight_packed" | "bias"))) => (module, end),
        _ => (part, ""),
    };
    let module = module.strip_suffix("_blocks").unwrap_or(module);
    let last = module.rsplit('.').next().unwrap_or(module);
    if end == "bias" && !matches!(last, "conv1d" | "ssm_conv1d" | "ssm_dt") || last.ends_with("_proj_bias") {
        return Role::Bias;
    }
    of_module(module, last)
}

/// The role of a module by its path in a layer and the last part of that.
fn of_module(module: &str, last: &str) -> Role {
    let within = |part: &str| module.split('.').any(|p| p == part);
    match last {
        "embed_tokens" | "embeddings" | "embedding" | "token_embd" | "wte" => Role::Embedding,
        "embed_tokens_per_layer" | "per_layer_token_embd" => Role::LayerEmbedding,
        "lm_head" | "output" | "shared_head_head" => Role::Head,
        "head" if within("shared_head") => Role::Head,
        "q_proj" | "attn_q" => Role::AttnQ,
        "k_proj" | "attn_k" => Role::AttnK,
        "v_proj" | "attn_v" => Role::AttnV,
        "qkv_proj" | "in_proj_qkv" | "attn_qkv" => Role::AttnQkv,
        "in_proj_z" | "attn_gate" => Role::AttnGate,
        "gate_proj" if within("self_attn") => Role::AttnGate,
        "o_proj" | "attn_output" => Role::AttnOut,
        "out_proj" if within("self_attn") => Role::AttnOut,
        "q_a_proj" | "q_b_proj" | "kv_a_proj_with_mqa" | "attn_q_a" | "attn_q_b" | "attn_kv_a_mqa" => {
            Role::Latent
        }
        "kv_b_proj" | "attn_kv_b" | "attn_k_b" | "attn_v_b" => Role::LatentKv,
        "in_proj_qkvz" => Role::LinearQkvz,
        "in_proj_a" | "in_proj_b" | "in_proj_ba" | "ssm_alpha" | "ssm_beta" | "ssm_ba" => Role::LinearStep,
        "in_proj" | "ssm_in" => Role::StateIn,
        "out_proj" | "ssm_out" => Role::StateOut,
        "conv1d" | "ssm_conv1d" | "conv" => Role::Conv,
        "gate" | "router" | "ffn_gate_inp" => Role::Router,
        "proj" | "layer" if within("router") => Role::Router,
        "shared_expert_gate" | "ffn_gate_inp_shexp" => Role::SharedGate,
        "gate_proj" | "w1" | "ffn_gate" | "ffn_gate_exps" | "ffn_gate_shexp" => Role::Gate,
        "up_proj" | "w3" | "fc1" | "up" | "ffn_up" | "ffn_up_exps" | "ffn_up_shexp" => Role::Up,
        "gate_up_proj" | "input_linear" | "ffn_gate_up_exps" => Role::GateUp,
        "down_proj" | "w2" | "fc2" | "down" | "output_linear" | "ffn_down" | "ffn_down_exps"
        | "ffn_down_shexp" => Role::Down,
        "fc1_latent_proj" | "fc2_latent_proj" | "ffn_latent_down" | "ffn_latent_up" => Role::ExpertLatent,
        "per_layer_input_gate" | "per_layer_projection" | "inp_gate" | "proj" => Role::LayerInput,
        "per_layer_model_projection" | "per_layer_model_proj" => Role::LayerInputs,
        "eh_proj" | "fc" => Role::DraftIn,
        "A_log" | "D" | "dt_bias" | "ssm_a" | "ssm_d" | "ssm_dt" => Role::Recurrence,
        "rope_freqs" | "rope_factors_long" | "rope_factors_short" => Role::Rotation,
        _ if last.contains("norm") => Role::Norm,
        _ => Role::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_say_the_same() {
        for (reference, gguf, role) in [
            ("model.embed_tokens.weight", "token_embd.weight", Role::Embedding),
            ("lm_head.weight", "output.weight", Role::Head),
            ("model.norm.weight", "output_norm.weight", Role::Norm),
            ("model.layers.7.self_attn.q_proj.weight", "blk.7.attn_q.weight", Role::AttnQ),
            ("model.layers.7.self_attn.q_norm.weight", "blk.7.attn_q_norm.weight", Role::Norm),
            ("model.layers.7.self_attn.o_proj.weight", "blk.7.attn_output.weight", Role::AttnOut),
            ("model.layers.7.self_attn.o_proj.bias", "blk.7.attn_output.bias", Role::Bias),
            ("model.layers.7.self_attn.qkv_proj.weight", "blk.7.attn_qkv.weight", Role::AttnQkv),
            ("model.layers.7.linear_attn.in_proj_z.weight", "blk.7.attn_gate.weight", Role::AttnGate),
            ("model.layers.7.linear_attn.out_proj.weight", "blk.7.ssm_out.weight", Role::StateOut),
            ("model.layers.7.linear_attn.conv1d.weight", "blk.7.ssm_conv1d.weight", Role::Conv),
            ("model.layers.7.linear_attn.A_log", "blk.7.ssm_a", Role::Recurrence),
            ("model.layers.7.linear_attn.dt_bias", "blk.7.ssm_dt.bias", Role::Recurrence),
            ("model.layers.7.mlp.gate.weight", "blk.7.ffn_gate_inp.weight", Role::Router),
            (
                "model.layers.7.mlp.shared_expert_gate.weight",
                "blk.7.ffn_gate_inp_shexp.weight",
                Role::SharedGate,
            ),
            ("model.layers.7.mlp.experts.gate_up_proj", "blk.7.ffn_gate_up_exps.weight", Role::GateUp),
            ("model.layers.7.mlp.experts.gate_up_proj_bias", "blk.7.ffn_gate_exps.bias", Role::Bias),
            ("model.layers.7.mlp.experts.down_proj_blocks", "blk.7.ffn_down_exps.weight", Role::Down),
            ("backbone.layers.7.mixer.in_proj.weight", "blk.7.ssm_in.weight", Role::StateIn),
            ("backbone.layers.7.mixer.switch_mlp.fc1.weight", "blk.7.ffn_up_exps.weight", Role::Up),
            (
                "backbone.layers.7.mixer.gate.e_score_correction_bias",
                "blk.7.exp_probs_b.bias",
                Role::RouterBias,
            ),
            ("model.layers.7.self_attn.kv_b_proj.weight", "blk.7.attn_k_b.weight", Role::LatentKv),
            ("model.layers.7.self_attn.q_a_proj.weight", "blk.7.attn_q_a.weight", Role::Latent),
            ("model.layers.7.layer_scalar", "blk.7.layer_output_scale.weight", Role::Other),
            ("model.language_model.layers.7.router.proj.weight", "blk.7.ffn_gate_inp.weight", Role::Router),
        ] {
            assert_eq!(named(reference).role, role, "{reference}");
            assert_eq!(named(gguf).role, role, "{gguf}");
            assert_eq!(named(reference).layer, named(gguf).layer, "{reference}");
        }
        assert!(named("model.layers.0.mlp.experts.3.up_proj.weight").expert);
        assert!(named("blk.0.ffn_up_exps.weight").expert);
        assert!(!named("model.layers.0.mlp.shared_expert.up_proj.weight").expert);
        assert_eq!(named("model.layers.0.mlp.up_proj.weight_scale_inv").role, Role::Scale);
        assert_eq!(named("model.layers.0.mlp.experts.down_proj_scales").role, Role::Scale);
    }
}
