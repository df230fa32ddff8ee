//! Keys of a configuration that look as if they cost memory, and that its family does not read.
//!
//! A family asks for the keys that it knows. One that it does not know may stand for a cache, a state, more layers, also
//! where another family knows it: that is said, never guessed at.

mod gguf;

use super::fields::Fields;
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::model::{Model, State, Stated};

/// What parts of names stand for memory.
const BEARING: &[&str] = &[
    "index_",
    "compress",
    "latent",
    "lora_rank",
    "adapter_rank",
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
    "shared_expert",
    "first_k_dense",
    "moe_layer_freq",
    "attn_output_gate",
    "use_mla",
    "mlp_bias",
    "medusa",
    "n_mtp",
    "swa_layers",
    "conv_",
    "memory",
    "draft",
    // Which layers are of which kind.
    "layer_types",
    "block_type",
    "hybrid",
    "layer_pattern",
    "attention_pattern",
    "attention_interval",
    "every_n_layers",
    "attn_layer",
    "layer_period",
    "layer_offset",
    "layer_indices",
    // Recurrences.
    "mamba",
    "ssm_",
    "linear_num_",
    "linear_key_",
    "linear_value_",
    "linear_attn",
    "lru_",
    "rnn_",
    "ttt_",
    "recurrent",
    // Heads, and what stands beside the tokens of a context.
    "head_dim",
    "head_size",
    "kv_heads",
    "key_value_heads",
    "heads_per_layer",
    "multi_query",
    "attention_chunk",
    "meta_tokens",
    // More tables of embeddings.
    "embedding_size",
    "extra_embed",
    "altup",
    "laurel",
    // Other stacks of layers.
    "cross_attention",
    "encoder",
    "decoder_layers",
    "lookahead",
    "vision_config",
    "vision_tower",
    "audio_config",
    "audio_tower",
    "speech",
];

/// Names with such parts that never do: of training, of generation, of how a kernel goes about it.
const HARMLESS: &[&str] = &[
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
    "mamba_proj_bias",
    "mamba_hidden_act",
    "mamba_chunk_size",
    "mamba_expand",
    "use_conv_bias",
    "conv_bias",
    "rescale_prenorm_residual",
    "time_step_limit",
    "residual_in_fp32",
    "conv_use_xavier_init",
    "encoder_no_repeat_ngram_size",
    "tie_encoder_decoder",
    "num_nextn_predict_layers_bias",
    "moe_state_dtype",
    "window_attention_backend",
    "use_sliding_window",
    "max_window_layers",
    "_attn_implementation_autoset",
    "is_moe_experts",
    "moe_shared_expert_overlap",
    "norm_topk_prob",
    "tie_word_embeddings",
    "num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "sliding_window_attention_offset",
];

/// The list of what each layer is, which newer writers add to every configuration.
const LAYERS: &str = "layer_types";

/// Every how many layers have experts.
const FREQUENCY: &str = "moe_layer_freq";

/// Whether a name looks as if it stood for memory: by a part of it, or as a number of layers of some kind.
pub(super) fn bears(key: &str) -> bool {
    let layers =
        key.strip_prefix("num_").or(key.strip_prefix("n_")).is_some_and(|of| of.ends_with("_layers"));
    (layers || BEARING.iter().any(|part| key.contains(part))) && !HARMLESS.contains(&key)
}

/// What other engines read of the configuration. Reading it here does not make it known to the family.
pub(super) fn stated(checkpoint: &Checkpoint) -> Stated {
    if checkpoint.metadata().is_some() {
        return Stated::default();
    }
    let Ok(fields) = Fields::aside(checkpoint) else { return Stated::default() };
    let text = |key: &str| fields.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
    let number = |key: &str| fields.get(key).and_then(serde_json::Value::as_u64);
    let kinds = fields.get(LAYERS).and_then(serde_json::Value::as_array);
    Stated {
        mamba_ssm_dtype: text("mamba_ssm_dtype"),
        mamba_ssm_cache_dtype: text("mamba_ssm_cache_dtype"),
        sliding_window_pattern: number("sliding_window_pattern")
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| *n > 0),
        lists_windows: kinds.is_some_and(|kinds| kinds.iter().any(|kind| *kind == "sliding_attention")),
        nested: fields.is_nested(),
    }
}

/// The keys, in order, of the text model and of the whole, that the family which built a model of them did not ask for.
/// Values that switch nothing on (`null`, `false`, 0, nothing) are left out.
pub(super) fn memory_bearing(checkpoint: &Checkpoint) -> Vec<String> {
    if let Some(meta) = checkpoint.metadata() {
        return gguf::memory_bearing(meta, &super::stated(checkpoint).unwrap_or_default());
    }
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
        // Held against the price by [`layers`].
        .filter(|key| *key != LAYERS)
        // That every layer has experts.
        .filter(|key| *key != FREQUENCY || fields.get(key).and_then(serde_json::Value::as_u64) != Some(1))
        // A window that is stated not to be used.
        .filter(|key| !(unused && *key == "sliding_window"))
        .map(shown)
        .collect();
    found.sort();
    found.dedup();
    found.truncate(32);
    found
}

/// A name, which is a stranger's text: as it stands where it is nothing but a name.
fn shown(key: &str) -> String {
    let plain = key.len() <= 80 && key.chars().all(|c| c.is_ascii_graphic());
    if plain { key.to_owned() } else { crate::error::quoted(key) }
}

/// Holds the list of layers against the states that are priced, where the family that built the model did not ask for it:
/// such a family prices all layers alike, whatever the list says.
///
/// # Errors
/// [`ModelError::Unsupported`] for a layer of another kind than the priced one; [`ModelError::Field`] when it is no list of
/// as many names as there are layers.
pub(super) fn layers(checkpoint: &Checkpoint, model: &Model) -> Result<(), ModelError> {
    let Ok(fields) = Fields::aside(checkpoint) else { return Ok(()) };
    if checkpoint.asked().holds(LAYERS) || model.states.len() != model.layers as usize {
        return Ok(());
    }
    let Some(kinds) = fields.strings(LAYERS)? else { return Ok(()) };
    if kinds.len() != model.states.len() {
        let expected = format!("one for each of {} layers", model.layers);
        return Err(ModelError::field(LAYERS, expected, kinds.len().to_string()));
    }
    for (layer, (kind, state)) in kinds.into_iter().zip(&model.states).enumerate() {
        let (known, priced): (&[&str], _) = match state {
            State::KvFull { .. } | State::KvLatent { .. } => {
                (&["full_attention", "attention", "global_attention"], "full attention")
            }
            State::KvSliding { .. } => (&["sliding_attention", "chunked_attention"], "a window"),
            State::Recurrent { .. } => (&["linear_attention", "mamba", "mamba2"], "a recurrence"),
        };
        if !known.contains(&kind) {
            return Err(ModelError::unsupported(
                format!("{LAYERS} with {} as layer {layer}", crate::error::quoted(kind)),
                format!("in that layer {} has {priced}", model.architecture),
            ));
        }
    }
    Ok(())
}
