//! What a name says of packed weights where no file does: a configuration that was published with a hf_quant_config.json
//! beside it, and stands alone, reads as if its weights were plain.
//!
//! One such family has a published rule, and is priced by it: NVIDIA's NVFP4 of Nemotron 3 (the report of Nemotron 3 Nano,
//! section 4, and the `exclude_modules` of its checkpoint) keeps attention, the Mamba layer before each attention layer,
//! convolutions, routers, embeddings and the head plain. Of any other the price is the configuration's own, and says so.

use super::{Pattern, Quantization, Scheme};
use crate::checkpoint::{Checkpoint, Source};
use crate::zoo::fields::Fields;
use plimsoll_kernels::Format;
use serde_json::Value;

/// Formats that are stated in names.
const NAMES: [&str; 16] = [
    "nvfp4", "mxfp4", "mxfp8", "fp8", "awq", "gptq", "w4a16", "w8a16", "w8a8", "int4", "int8", "4bit",
    "4-bit", "8bit", "8-bit", "bnb",
];

/// What the name of a bare configuration says of its weights.
pub(super) fn of(checkpoint: &Checkpoint, fields: &Fields<'_>) -> Quantization {
    let name = checkpoint.name().to_ascii_lowercase();
    let said = NAMES.into_iter().find(|format| name.contains(format));
    let Some(format) = said.filter(|_| checkpoint.source() == Source::Config) else {
        return Quantization::default();
    };
    let upper = format.to_ascii_uppercase();
    let nemotron = fields.model_type().is_some_and(|family| family.starts_with("nemotron_h"));
    if let (true, "nvfp4", Some(wide)) = (nemotron, format, wide_layers(fields)) {
        let layers = wide.iter().map(|layer| Pattern::Glob(format!("*.layers.{layer}.mixer")));
        let named = ["*lm_head", "mtp*", "*.conv1d"].map(|glob| Pattern::Glob(glob.to_owned()));
        return Quantization {
            ignored: layers.chain(named).collect(),
            rules: vec![(Pattern::Linear, Scheme::Packed(Format::Nvfp4Scaled))],
            note: Some(
                "the name says NVFP4, and no quantization_config or hf_quant_config.json says of which weights: priced as \
                 NVIDIA publishes this family, with attention, the Mamba layer before each, convolutions, routers, \
                 embeddings and the head plain"
                    .to_owned(),
            ),
            ..Quantization::default()
        };
    }
    Quantization {
        note: Some(format!(
            "the name says {upper}, and no quantization_config or hf_quant_config.json says of which weights: priced plain, \
             as config.json states"
        )),
        ..Quantization::default()
    }
}

/// Attention layers and those just before one; `None` where the layers are not told.
fn wide_layers(fields: &Fields<'_>) -> Option<Vec<usize>> {
    let attention: Vec<bool> = match fields.any(&["hybrid_override_pattern", "layers_block_type"])? {
        Value::String(pattern) => pattern.chars().filter(|c| *c != '|').map(|c| c == '*').collect(),
        Value::Array(kinds) => kinds.iter().map(|kind| kind == "attention").collect(),
        _ => return None,
    };
    let wide = |at: &usize| attention.get(*at) == Some(&true) || attention.get(at + 1) == Some(&true);
    Some((0..attention.len()).filter(wide).collect())
}
