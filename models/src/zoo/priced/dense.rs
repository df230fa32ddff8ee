//! Dense transformers: mistral, qwen2, phi3, qwen3_vl.

use super::{Attention, Ffn, Layer, MLP, Mixer, Names, Spec, UNCOMPARED, build::build};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::model::Model;
use crate::zoo::Architecture;
use crate::zoo::dense::{Defaults, Dense};
use crate::zoo::fields::{Fields, interval_note, size};
use crate::zoo::llama::SILU;
use serde_json::Value;

/// Mistral and Ministral, also inside Mistral 3's wrapper.
pub struct Mistral;

/// Qwen2 and Qwen2.5.
pub struct Qwen2;

/// Phi-3 and Phi-4.
pub struct Phi3;

/// The text model of Qwen3-VL.
pub struct Qwen3Vl;

/// Whether a configuration (and no GGUF file, whose names are others) states one of `names`.
pub(super) fn configured(checkpoint: &Checkpoint, names: &[&str]) -> bool {
    checkpoint.metadata().is_none()
        && crate::zoo::stated(checkpoint).is_some_and(|s| names.contains(&s.as_str()))
}

/// The window of each layer: `layer_types` where it is there, else `otherwise` of the layer's number.
pub(super) fn windows(
    fields: &Fields<'_>,
    layers: u32,
    window: Option<u32>,
    otherwise: impl Fn(u32) -> bool,
) -> Result<Vec<Option<u32>>, ModelError> {
    let Some(kinds) = fields.strings("layer_types")? else {
        return Ok((0..layers).map(|layer| window.filter(|_| otherwise(layer))).collect());
    };
    if kinds.len() != layers as usize {
        let expected = format!("{layers} layer types");
        return Err(ModelError::field("layer_types", expected, kinds.len().to_string()));
    }
    let one = |kind: &str| match kind {
        "full_attention" => Ok(None),
        "sliding_attention" | "chunked_attention" => window
            .map(Some)
            .ok_or_else(|| ModelError::field("sliding_window", "a number of tokens", "nothing")),
        other => Err(ModelError::unsupported(
            format!("a layer of {}", crate::error::quoted(other)),
            "full_attention and sliding_attention are",
        )),
    };
    kinds.into_iter().map(one).collect()
}

/// What is to be told of an interval that is stated beside a list of the layers, where any of them slides.
pub(super) fn interval_told(
    fields: &Fields<'_>,
    key: &str,
    every: u32,
    list: &str,
    windows: &[Option<u32>],
) -> Option<String> {
    let slides = windows.iter().any(Option::is_some) && fields.get(key).is_some();
    slides.then(|| interval_note(key, every, list, windows.iter().map(Option::is_some))).flatten()
}

/// A number of layers that may be 0.
pub(super) fn count(fields: &Fields<'_>, key: &str, default: u64) -> Result<u64, ModelError> {
    match fields.get(key) {
        None => Ok(default),
        Some(value) => value
            .as_u64()
            .ok_or_else(|| ModelError::field(key, "a number of layers", crate::zoo::fields::shown(value))),
    }
}

/// A window that may be absent; 0 is none.
pub(super) fn window(fields: &Fields<'_>, key: &str) -> Result<Option<u32>, ModelError> {
    match fields.get(key) {
        None => Ok(None),
        Some(Value::Number(n)) if n.as_u64() == Some(0) => Ok(None),
        Some(value) => size(key, value).map(Some),
    }
}

/// Layers of attention and one MLP.
fn layers(windows: Vec<Option<u32>>, attention: Attention, ffn: &Ffn) -> Vec<Layer> {
    let layer = |window| Layer {
        mixer: Mixer::Attention(Attention { window, ..attention }),
        ffn: vec![ffn.clone()],
        sandwich: None,
    };
    windows.into_iter().map(layer).collect()
}

impl Architecture for Mistral {
    fn name(&self) -> &'static str {
        "mistral"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["mistral", "ministral", "ministral3"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        let defaults =
            Defaults { kv_heads: Some(8), eps: Some(1e-6), context: Some(131_072), ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        // Published files state it, mostly as null; versions of the class disagree on what its absence means.
        if fields.model_type() == Some("mistral") && fields.get("layer_types").is_none() {
            fields.stated("sliding_window")?;
        }
        let window = window(&fields, "sliding_window")?;
        let windows = windows(&fields, sizes.layers, window, |_| true)?;
        let ffn = Ffn::Gated { width: sizes.ffn, names: MLP };
        let spec = Spec {
            architecture: self.name(),
            why: UNCOMPARED,
            names: Names::LLAMA.found(checkpoint, fields.is_nested()),
            layers: layers(windows, Attention::plain(sizes.shape), &ffn),
            notes: vec![],
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}

impl Architecture for Qwen2 {
    fn name(&self) -> &'static str {
        "qwen2"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["qwen2"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        let defaults = Defaults { eps: Some(1e-6), context: Some(32_768), ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        let slides = fields.flag("use_sliding_window", false)?;
        let window = window(&fields, "sliding_window")?.filter(|_| slides);
        // The first so many layers see everything.
        let full = match fields.get("max_window_layers").filter(|_| window.is_some()) {
            Some(value) if value.as_u64() != Some(0) => size("max_window_layers", value)?,
            Some(_) => 0,
            None => 28,
        };
        let windows = windows(&fields, sizes.layers, window, |layer| layer >= full)?;
        let ffn = Ffn::Gated { width: sizes.ffn, names: MLP };
        let attention = Attention { qkv_bias: true, ..Attention::plain(sizes.shape) };
        let spec = Spec {
            architecture: self.name(),
            why: UNCOMPARED,
            names: Names::LLAMA.found(checkpoint, fields.is_nested()),
            layers: layers(windows, attention, &ffn),
            notes: vec![],
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}

impl Architecture for Phi3 {
    fn name(&self) -> &'static str {
        "phi3"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["phi3"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        let defaults = Defaults { eps: Some(1e-5), context: Some(4096), ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        let window = window(&fields, "sliding_window")?;
        let windows = windows(&fields, sizes.layers, window, |_| true)?;
        let ffn = Ffn::Fused { width: sizes.ffn, names: ["mlp.gate_up_proj", "mlp.down_proj"] };
        let attention = Attention { fused: true, ..Attention::plain(sizes.shape) };
        let spec = Spec {
            architecture: self.name(),
            why: UNCOMPARED,
            names: Names::LLAMA.found(checkpoint, false),
            layers: layers(windows, attention, &ffn),
            notes: vec![],
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}

impl Architecture for Qwen3Vl {
    fn name(&self) -> &'static str {
        "qwen3_vl"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["qwen3_vl", "qwen3_vl_text"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        let defaults =
            Defaults { head_dim: Some(128), eps: Some(1e-6), context: Some(128_000), ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        let ffn = Ffn::Gated { width: sizes.ffn, names: MLP };
        let bias = fields.flag("attention_bias", false)?;
        let attention = Attention {
            head_norms: true,
            qkv_bias: bias,
            output_bias: bias,
            ..Attention::plain(sizes.shape)
        };
        let names = Names { prefix: "model.language_model", ..Names::LLAMA };
        let spec = Spec {
            architecture: self.name(),
            why: "its tower and its three-part positions are not built",
            names: Names { head: "lm_head.weight", ..names.found(checkpoint, false) },
            layers: layers(vec![None; sizes.layers as usize], attention, &ffn),
            notes: vec![],
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}
