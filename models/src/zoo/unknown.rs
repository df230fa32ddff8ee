//! Keys of a configuration that look as if they cost memory, and that nothing here reads.
//!
//! A family asks for the keys that it knows. One that it does not know may stand for a cache, a state, more layers: that
//! is said, never guessed at.

use super::fields::Fields;
use crate::checkpoint::Checkpoint;

/// What parts of names stand for memory.
const BEARING: [&str; 24] = [
    "index_",
    "compress",
    "latent",
    "_lora_rank",
    "kv_shared",
    "per_layer",
    "mtp_",
    "nextn",
    "block_config",
    "indexer",
    "engram",
    "cla_",
    "memory_block",
    "_window",
    "window_",
    "_cache",
    "cache_",
    "_state",
    "state_",
    "num_experts",
    "_experts",
    "conv_",
    "memory",
    "draft",
];

/// Names with such parts that never do: of training, of generation, of how a kernel goes about it.
const HARMLESS: [&str; 29] = [
    "use_cache",
    "cache_implementation",
    "initializer_range",
    "output_hidden_states",
    "output_router_logits",
    "router_aux_loss_coef",
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "use_mamba_kernels",
    "mamba_conv_bias",
    "use_conv_bias",
    "conv_bias",
    "rescale_prenorm_residual",
    "time_step_limit",
    "residual_in_fp32",
    "conv_use_xavier_init",
    "vision_config",
    "audio_config",
    "num_nextn_predict_layers_bias",
    "moe_state_dtype",
    "window_attention_backend",
    "use_sliding_window",
    "_attn_implementation_autoset",
    "is_moe_experts",
    "norm_topk_prob",
    "tie_word_embeddings",
    "mtp_use_dedicated_embeddings",
    "sliding_window_attention_offset",
];

/// Keys that some family here reads, in every spelling.
const READ: [&str; 47] = [
    "kv_lora_rank",
    "q_lora_rank",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "max_window_layers",
    "num_kv_shared_layers",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "mtp_num_hidden_layers",
    "num_nextn_predict_layers",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "block_configs",
    "mtp_block_configs",
    "moe_latent_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts",
    "num_local_experts",
    "num_shared_experts",
    "moe_shared_expert_intermediate_size",
    "shared_expert_intermediate_size",
    "ssm_state_size",
    "state_size",
    "mamba_d_state",
    "mamba_d_conv",
    "conv_kernel",
    "conv_kernel_size",
    "linear_conv_kernel_dim",
    "mamba_ssm_cache_dtype",
    "mamba_ssm_dtype",
    "conv_L_cache",
    "first_k_dense_replace",
    "global_attn_every_n_layers",
    "interleave_moe_layer_step",
    "num_dense_layers",
    "use_expert_bias",
    "experts_implementation",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "num_attention_heads_per_layer",
    "enable_moe_block",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "use_bidirectional_attention",
    "moe_intermediate_size",
];

/// The keys, in order, of the text model and of the whole. Values that switch nothing on (`null`, `false`, 0, nothing) are
/// left out.
pub(super) fn memory_bearing(checkpoint: &Checkpoint) -> Vec<String> {
    let Ok(fields) = Fields::of(checkpoint) else { return Vec::new() };
    let mut found: Vec<String> = fields
        .entries()
        .filter(|(_, value)| match value {
            serde_json::Value::Null => false,
            serde_json::Value::Bool(on) => *on,
            serde_json::Value::Number(n) => n.as_f64() != Some(0.0),
            serde_json::Value::String(text) => !text.is_empty(),
            serde_json::Value::Array(list) => !list.is_empty(),
            serde_json::Value::Object(map) => !map.is_empty(),
        })
        .map(|(key, _)| key)
        .filter(|key| BEARING.iter().any(|part| key.contains(part)))
        .filter(|key| !HARMLESS.contains(key) && !READ.contains(key))
        // A name is a stranger's text.
        .map(|key| key.chars().take(80).collect())
        .collect();
    found.sort();
    found.dedup();
    found.truncate(32);
    found
}
