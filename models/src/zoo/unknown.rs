//! Keys of a configuration that look as if they cost memory, and that its family does not read.
//!
//! A family asks for the keys that it knows. One that it does not know may stand for a cache, a state, more layers, also
//! where another family knows it: that is said, never guessed at.

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
const HARMLESS: [&str; 30] = [
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
    "max_window_layers",
    "_attn_implementation_autoset",
    "is_moe_experts",
    "norm_topk_prob",
    "tie_word_embeddings",
    "mtp_use_dedicated_embeddings",
    "sliding_window_attention_offset",
];

/// Whether a name looks as if it stood for memory.
pub(super) fn bears(key: &str) -> bool {
    BEARING.iter().any(|part| key.contains(part)) && !HARMLESS.contains(&key)
}

/// The keys, in order, of the text model and of the whole, that the family which built a model of them did not ask for.
/// Values that switch nothing on (`null`, `false`, 0, nothing) are
/// left out.
pub(super) fn memory_bearing(checkpoint: &Checkpoint) -> Vec<String> {
    let Ok(fields) = Fields::aside(checkpoint) else { return Vec::new() };
    let unused = fields.get("use_sliding_window").is_some_and(|used| used.as_bool() == Some(false));
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
        .filter(|key| bears(key) && !checkpoint.asked().holds(key))
        // A window that is stated not to be used.
        .filter(|key| !(unused && *key == "sliding_window"))
        // A name is a stranger's text.
        .map(|key| key.chars().take(80).collect())
        .collect();
    found.sort();
    found.dedup();
    found.truncate(32);
    found
}
