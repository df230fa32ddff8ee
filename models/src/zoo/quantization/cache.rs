//! Formats of keys and values, which configurations state beside those of weights.

use crate::checkpoint::Checkpoint;
use crate::zoo::fields::{Fields, shown};
use serde_json::Value;

/// What is to be told of a format for keys and values that a configuration states beside that of its weights: the type
/// that they are priced in is whoever asks' choice.
pub(in crate::zoo) fn cache_note(checkpoint: &Checkpoint) -> Option<String> {
    let fields = Fields::of(checkpoint).ok()?;
    let of = |key: &'static str, block: &Value| {
        ["kv_cache_scheme", "kv_cache_quant_algo"].into_iter().find_map(|name| {
            let value = block.get(name).filter(|v| !v.is_null())?;
            let bits = value.get("num_bits").and_then(Value::as_u64).map(|bits| format!("{bits} bits"));
            let said = bits.unwrap_or_else(|| shown(value));
            Some(format!(
                "{key}.{name} asks for keys and values of {said}, which is not followed: they are priced in the type that \
                 is asked for"
            ))
        })
    };
    let blocks = ["quantization", "quantization_config", "compression_config"];
    let own = blocks.into_iter().find_map(|key| of(key, fields.get(key)?));
    own.or_else(|| {
        let file = checkpoint.hf_quant_config()?;
        of("hf_quant_config.json", file.get("quantization").unwrap_or(file))
    })
}
