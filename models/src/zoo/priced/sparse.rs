//! Transformers of experts: llama4, afmoe and qwen3_vl_moe.

use super::deepseek::{MAX_EXPERT_WIDTH, MAX_EXPERTS, PARTS, bounded, stacks};
use super::dense::{configured, count, interval_told, window, windows};
use super::{Attention, Experts, Ffn, Layer, MLP, Mixer, Names, Spec, Stacks, UNCOMPARED, build::build};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::model::Model;
use crate::zoo::Architecture;
use crate::zoo::dense::{Defaults, Dense};
use crate::zoo::fields::{Fields, shown};
use crate::zoo::llama::SILU;

/// Llama 4's text model.
pub struct Llama4;

/// AFMoE (Trinity).
pub struct Afmoe;

/// The text model of Qwen3-VL with experts.
pub struct Qwen3VlMoe;

impl Architecture for Llama4 {
    fn name(&self) -> &'static str {
        "llama4"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["llama4", "llama4_text"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        let defaults = Defaults { eps: Some(1e-5), context: Some(131_072), ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        fields.stated("attention_chunk_size")?;
        fields.stated("intermediate_size_mlp")?;
        let chunk = window(&fields, "attention_chunk_size")?;
        // Every fourth layer has no rotation and sees everything.
        let full = numbers(&fields, "no_rope_layers", sizes.layers)?;
        let every =
            bounded("no_rope_layer_interval", fields.size("no_rope_layer_interval", Some(4))?, 1 << 12)?;
        let slides = |layer: u32| match &full {
            Some(list) => list.get(layer as usize).is_some_and(|&rotated| rotated != 0),
            None => !(layer + 1).is_multiple_of(every),
        };
        let windows = windows(&fields, sizes.layers, chunk, slides)?;
        let kept = if fields.get("layer_types").is_some() { "layer_types" } else { "no_rope_layers" };
        let beaten = interval_told(&fields, "no_rope_layer_interval", every, kept, &windows);
        let step = fields.size("interleave_moe_layer_step", Some(1))?;
        let listed = list(&fields, "moe_layers")?;
        let sparse = |layer: u32| match &listed {
            Some(list) => list.contains(&u64::from(layer)),
            None => (layer + 1).is_multiple_of(step),
        };
        let count = bounded("num_local_experts", fields.size("num_local_experts", None)?, MAX_EXPERTS)?;
        let experts = Experts {
            count,
            top: bounded("num_experts_per_tok", fields.size("num_experts_per_tok", Some(1))?, count)?,
            width: sizes.ffn,
            router: "feed_forward.router",
            router_bias: None,
            stacks: Stacks::Stacked {
                names: ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"],
                transposed: true,
            },
            shared: Some((
                sizes.ffn,
                [
                    "feed_forward.shared_expert.gate_proj",
                    "feed_forward.shared_expert.up_proj",
                    "feed_forward.shared_expert.down_proj",
                ],
            )),
        };
        let dense = Ffn::Gated {
            width: bounded(
                "intermediate_size_mlp",
                fields.size("intermediate_size_mlp", Some(sizes.ffn))?,
                1 << 26,
            )?,
            names: ["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"],
        };
        let attention = Attention::plain(sizes.shape);
        let layer = |(index, window)| Layer {
            mixer: Mixer::Attention(Attention { window, ..attention }),
            ffn: vec![if sparse(index) { Ffn::Experts(experts.clone()) } else { dense.clone() }],
            sandwich: None,
        };
        let slides = windows.iter().any(Option::is_some);
        let note = "chunks of attention are priced as windows of the same length";
        let spec = Spec {
            architecture: self.name(),
            why: "attention in chunks has no kernel",
            names: Names::LLAMA.found(checkpoint, fields.is_nested()),
            layers: (0..).zip(windows).map(layer).collect(),
            notes: slides.then(|| note.to_owned()).into_iter().chain(beaten).collect(),
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}

/// A list of whole numbers that may be absent.
fn list(fields: &Fields<'_>, key: &str) -> Result<Option<Vec<u64>>, ModelError> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    let all = value.as_array().and_then(|all| all.iter().map(|v| v.as_u64()).collect::<Option<Vec<u64>>>());
    all.map(Some).ok_or_else(|| ModelError::field(key, "a list of whole numbers", shown(value)))
}

/// One number for each layer; an empty list is none.
fn numbers(fields: &Fields<'_>, key: &str, layers: u32) -> Result<Option<Vec<u64>>, ModelError> {
    match list(fields, key)? {
        Some(all) if all.is_empty() => Ok(None),
        Some(all) if all.len() != layers as usize => {
            Err(ModelError::field(key, format!("one for each of {layers} layers"), all.len().to_string()))
        }
        other => Ok(other),
    }
}

impl Architecture for Afmoe {
    fn name(&self) -> &'static str {
        "afmoe"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["afmoe"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        let defaults = Defaults { eps: Some(1e-5), context: Some(16_384), ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        let every = bounded(
            "global_attn_every_n_layers",
            fields.size("global_attn_every_n_layers", Some(4))?,
            1 << 12,
        )?;
        fields.stated("sliding_window")?;
        fields.stated("num_dense_layers")?;
        if fields.get("layer_types").is_none() {
            fields.stated("global_attn_every_n_layers")?;
        }
        let window = window(&fields, "sliding_window")?;
        let windows = windows(&fields, sizes.layers, window, |layer| !(layer + 1).is_multiple_of(every))?;
        let beaten = interval_told(&fields, "global_attn_every_n_layers", every, "layer_types", &windows);
        let dense = count(&fields, "num_dense_layers", 1)?;
        let width = fields.size("moe_intermediate_size", None)?;
        let shared = match fields.get("num_shared_experts") {
            Some(value) if value.as_u64() == Some(0) => None,
            _ => Some(bounded("num_shared_experts", fields.size("num_shared_experts", Some(1))?, 64)?),
        };
        let count = bounded("num_experts", fields.size("num_experts", None)?, MAX_EXPERTS)?;
        let experts = Ffn::Experts(Experts {
            count,
            top: bounded("num_experts_per_tok", fields.size("num_experts_per_tok", None)?, count)?,
            width,
            router: "mlp.router.gate",
            router_bias: Some("mlp.expert_bias"),
            stacks: Stacks::Separate("mlp.experts", PARTS),
            shared: shared.map(|n| {
                let names = [
                    "mlp.shared_experts.gate_proj",
                    "mlp.shared_experts.up_proj",
                    "mlp.shared_experts.down_proj",
                ];
                (width.saturating_mul(n), names)
            }),
        });
        let mlp = Ffn::Gated { width: sizes.ffn, names: MLP };
        let attention = Attention { head_norms: true, gated: true, ..Attention::plain(sizes.shape) };
        let layer = |(index, window): (u64, Option<u32>)| Layer {
            mixer: Mixer::Attention(Attention { window, ..attention }),
            ffn: vec![if index < dense { mlp.clone() } else { experts.clone() }],
            sandwich: Some(["post_attention_layernorm", "post_mlp_layernorm"]),
        };
        let names = Names { norms: ["input_layernorm", "pre_mlp_layernorm"], ..Names::LLAMA };
        let spec = Spec {
            architecture: self.name(),
            why: UNCOMPARED,
            names: names.found(checkpoint, false),
            layers: (0..).zip(windows).map(layer).collect(),
            notes: beaten.into_iter().collect(),
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}

impl Architecture for Qwen3VlMoe {
    fn name(&self) -> &'static str {
        "qwen3_vl_moe"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["qwen3_vl_moe", "qwen3_vl_moe_text"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        // The class says one thing of each where it is absent, and the published files another.
        for key in
            ["num_key_value_heads", "moe_intermediate_size", "num_experts_per_tok", "tie_word_embeddings"]
        {
            fields.stated(key)?;
        }
        let defaults = Defaults { eps: Some(1e-6), context: Some(128_000), ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        let step = fields.size("decoder_sparse_step", Some(1))?;
        let dense = list(&fields, "mlp_only_layers")?.unwrap_or_default();
        let key = if fields.get("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
        let count = bounded(key, fields.size(key, None)?, MAX_EXPERTS)?;
        // Published checkpoints have stacks of inputs by outputs.
        let stored = Stacks::Stacked {
            names: ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            transposed: true,
        };
        let experts = Ffn::Experts(Experts {
            count,
            top: bounded("num_experts_per_tok", fields.size("num_experts_per_tok", None)?, count)?,
            width: bounded(
                "moe_intermediate_size",
                fields.size("moe_intermediate_size", None)?,
                MAX_EXPERT_WIDTH,
            )?,
            router: "mlp.gate",
            router_bias: None,
            stacks: stacks(checkpoint, sizes.hidden, stored),
            shared: None,
        });
        let mlp = Ffn::Gated { width: sizes.ffn, names: MLP };
        let bias = fields.flag("attention_bias", false)?;
        let attention = Attention {
            head_norms: true,
            qkv_bias: bias,
            output_bias: bias,
            ..Attention::plain(sizes.shape)
        };
        let layer = |index: u32| {
            let sparse = !dense.contains(&index.into()) && (index + 1).is_multiple_of(step);
            Layer {
                mixer: Mixer::Attention(attention),
                ffn: vec![if sparse { experts.clone() } else { mlp.clone() }],
                sandwich: None,
            }
        };
        let names = Names { prefix: "model.language_model", ..Names::LLAMA };
        let spec = Spec {
            architecture: self.name(),
            why: "its tower and its three-part positions are not built",
            names: Names { head: "lm_head.weight", ..names.found(checkpoint, false) },
            layers: (0..sizes.layers).map(layer).collect(),
            notes: vec![],
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}
