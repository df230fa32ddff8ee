//! The same of GGUF's keys, which have names of their own.

use crate::checkpoint::gguf::{Metadata, Value};

/// What parts of names stand for memory, behind the name of the architecture.
const BEARING: &[&str] = &[
    "expert_count",
    "expert_shared_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_chunk_feed_forward_length",
    "leading_dense_block_count",
    "every_n_layers",
    "interleave_moe",
    "sliding_window",
    "shared_kv_layers",
    "kv_shared",
    "kv_lora_rank",
    "q_lora_rank",
    "indexer",
    "full_attention_interval",
    "recurrent_layers",
    "ssm.",
    "wkv",
    "kda.",
    "shortconv",
    "nextn_predict_layers",
    "per_layer_input",
    "altup",
    "laurel",
    "latent",
    "decoder_block_count",
    "deepstack",
    "cross_attention",
    "key_length",
    "value_length",
    "head_count",
];

/// Names with such parts that never do: of how states are computed.
const HARMLESS: &[&str] = &["ssm.dt_b_c_rms"];

/// The keys, in order, of this architecture that nobody asked for, of values that switch anything on.
pub(super) fn memory_bearing(meta: &Metadata, architecture: &str) -> Vec<String> {
    let bears = |name: &str| BEARING.iter().any(|part| name.contains(part)) && !HARMLESS.contains(&name);
    let on = |key: &str| match meta.look(key) {
        Ok(Some(Value::Unsigned(0) | Value::Signed(0) | Value::Bool(false)) | None) => false,
        Ok(Some(Value::Float(number))) => number != 0.0,
        Ok(Some(Value::Str(text))) => !text.is_empty(),
        Ok(Some(Value::Array(list))) => !list.is_empty(),
        // What is no text may be anything.
        Ok(Some(_)) | Err(_) => true,
    };
    let own = |key: &&str| {
        let name = key.strip_prefix(architecture).and_then(|rest| rest.strip_prefix('.'));
        name.is_some_and(bears)
    };
    let unread = meta.keys().filter(own).filter(|key| !meta.asked().holds(key) && on(key));
    unread.take(32).map(super::shown).collect()
}
