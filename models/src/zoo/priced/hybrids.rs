//! Attention beside something recurrent: granitemoehybrid (Mamba2) and lfm2 (short convolutions).

use super::deepseek::{MAX_EXPERTS, bounded};
use super::dense::{configured, count};
use super::{Attention, Experts, Ffn, Layer, Mixer, Names, Spec, Stacks, UNCOMPARED, build::build};
use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, quoted};
use crate::model::Model;
use crate::zoo::Architecture;
use crate::zoo::dense::{Defaults, Dense};
use crate::zoo::fields::{Fields, shown};
use crate::zoo::llama::SILU;
use crate::zoo::mamba;
use plimsoll_kernels::SsmShape;

/// Granite 4 hybrids.
pub struct GraniteHybrid;

/// LFM2, dense and of experts.
pub struct Lfm2;

/// The kind of every layer, one for each.
fn kinds<'a>(fields: &Fields<'a>, keys: &[&str], layers: u32) -> Result<Vec<&'a str>, ModelError> {
    let key = keys.iter().find(|key| fields.get(key).is_some()).copied().unwrap_or(keys[0]);
    let missing = || ModelError::field(key, format!("{layers} kinds of layers"), "nothing");
    let kinds = fields.strings(key)?.ok_or_else(missing)?;
    if kinds.len() != layers as usize {
        return Err(ModelError::field(key, format!("{layers} kinds of layers"), kinds.len().to_string()));
    }
    Ok(kinds)
}

fn unknown(kind: &str) -> ModelError {
    let expected = "attention and the family's other mixer are";
    ModelError::unsupported(format!("a layer of {}", quoted(kind)), expected)
}

impl Architecture for GraniteHybrid {
    fn name(&self) -> &'static str {
        "granitemoehybrid"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["granitemoehybrid"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        fields.activation("hidden_act", &SILU)?;
        let defaults = Defaults { eps: Some(1e-6), context: Some(2048), tied: true, ..Defaults::default() };
        let sizes = Dense::from_config(&fields, &defaults)?;
        let experts = match fields.get("num_local_experts") {
            None => None,
            Some(value) if value.as_u64() == Some(0) => None,
            Some(_) => {
                let count =
                    bounded("num_local_experts", fields.size("num_local_experts", None)?, MAX_EXPERTS)?;
                Some(Ffn::Experts(Experts {
                    count,
                    top: bounded("num_experts_per_tok", fields.size("num_experts_per_tok", None)?, count)?,
                    width: sizes.ffn,
                    router: "block_sparse_moe.router.layer",
                    router_bias: None,
                    stacks: Stacks::Stacked {
                        names: [
                            "block_sparse_moe.input_linear.weight",
                            "block_sparse_moe.output_linear.weight",
                        ],
                        transposed: false,
                    },
                    shared: None,
                }))
            }
        };
        fields.stated("num_local_experts")?;
        let shared = fields.size("shared_intermediate_size", None)?;
        let names = ["shared_mlp.input_linear", "shared_mlp.output_linear"];
        let shared = Ffn::Fused { width: bounded("shared_intermediate_size", shared, 1 << 26)?, names };
        let ffn: Vec<Ffn> = experts.into_iter().chain([shared]).collect();
        let bias = fields.flag("attention_bias", false)?;
        let attention = Attention { qkv_bias: bias, output_bias: bias, ..Attention::plain(sizes.shape) };
        let mut layers = Vec::new();
        for kind in kinds(&fields, &["layer_types", "layers_block_type"], sizes.layers)? {
            let mixer = match kind {
                "attention" => Mixer::Attention(attention),
                "mamba" => Mixer::Mamba { mixer: granite_mamba(&fields, &sizes)?, prefix: "mamba" },
                other => return Err(unknown(other)),
            };
            layers.push(Layer { mixer, ffn: ffn.clone(), sandwich: None });
        }
        let spec = Spec {
            architecture: self.name(),
            why: UNCOMPARED,
            names: Names::LLAMA.found(checkpoint, false),
            layers,
            notes: vec![],
            drafts: vec![],
            state_chunk: mamba::chunk(&fields)?,
            sizes,
        };
        build(checkpoint, &spec)
    }
}

fn granite_mamba(fields: &Fields<'_>, sizes: &Dense) -> Result<mamba::Mixer, ModelError> {
    let heads = fields.size("mamba_n_heads", Some(128))?;
    let head_dim = match fields.get("mamba_d_head").and_then(|v| v.as_str()) {
        // Whatever makes the heads as wide as the expansion.
        Some("auto") => {
            (f64::from(sizes.hidden) * fields.float("mamba_expand", Some(2.0))? / f64::from(heads)) as u32
        }
        _ => fields.size("mamba_d_head", Some(64))?,
    };
    let shape = SsmShape {
        heads,
        head_dim,
        state: fields.size("mamba_d_state", Some(256))?,
        groups: fields.size("mamba_n_groups", Some(1))?,
    };
    mamba::Mixer {
        shape,
        taps: fields.size("mamba_d_conv", Some(4))?,
        eps: sizes.eps,
        dt_limit: None,
        conv_bias: Some(fields.flag("mamba_conv_bias", true)?),
        proj_bias: Some(fields.flag("mamba_proj_bias", false)?),
    }
    .checked()
}

impl Architecture for Lfm2 {
    fn name(&self) -> &'static str {
        "lfm2"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["lfm2", "lfm2_moe"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        let sparse = fields.get("num_experts").is_some();
        let defaults = Defaults {
            // The width follows from another key in the dense ones.
            eps: Some(fields.float("norm_eps", Some(1e-5))?),
            context: Some(128_000),
            // Either name; the newer files have the usual one.
            tied: fields.flag("tie_embedding", fields.flag("tie_word_embeddings", true)?)?,
            ..Defaults::default()
        };
        let sizes = Dense {
            ffn: if sparse { ffn(&fields)? } else { adjusted(&fields)? },
            ..dense(&fields, &defaults)?
        };
        let names = ["feed_forward.w1", "feed_forward.w3", "feed_forward.w2"];
        let mlp = Ffn::Gated { width: sizes.ffn, names };
        let experts = if sparse { Some(lfm2_experts(&fields)?) } else { None };
        if sparse {
            fields.stated("num_dense_layers")?;
        }
        let dense = if sparse { count(&fields, "num_dense_layers", 0)? } else { 0 };
        let attention = Attention { head_norms: true, ..Attention::plain(sizes.shape) };
        let taps = bounded("conv_L_cache", fields.size("conv_L_cache", Some(3))?, 64)?;
        let bias = fields.flag("conv_bias", false)?;
        let mut layers = Vec::new();
        for (index, attends) in lfm2_kinds(&fields, sizes.layers)?.into_iter().enumerate() {
            let mixer = if attends { Mixer::Attention(attention) } else { Mixer::ShortConv { taps, bias } };
            let chosen = experts.clone().filter(|_| index as u64 >= dense);
            layers.push(Layer { mixer, ffn: vec![chosen.unwrap_or_else(|| mlp.clone())], sandwich: None });
        }
        let names = Names {
            output: "out_proj",
            head_norms: ["q_layernorm", "k_layernorm"],
            norms: ["operator_norm", "ffn_norm"],
            last: "embedding_norm",
            ..Names::LLAMA
        };
        let spec = Spec {
            architecture: self.name(),
            why: "gated short convolutions have no kernel",
            names: names.found(checkpoint, false),
            layers,
            notes: vec![],
            drafts: vec![],
            state_chunk: None,
            sizes,
        };
        build(checkpoint, &spec)
    }
}

/// The sizes, whatever the width is called.
fn dense(fields: &Fields<'_>, defaults: &Defaults) -> Result<Dense, ModelError> {
    let hidden = fields.size("hidden_size", None)?;
    let heads = fields.size("num_attention_heads", None)?;
    Dense {
        vocab: fields.size("vocab_size", None)?,
        hidden,
        layers: fields.size("num_hidden_layers", None)?,
        ffn: 1,
        shape: plimsoll_kernels::AttentionShape {
            heads,
            kv_heads: fields.size("num_key_value_heads", Some(heads))?,
            head_dim: fields.size("head_dim", Some((hidden / heads).max(1)))?,
        },
        eps: defaults.eps.unwrap_or(1e-5) as f32,
        context_max: fields.size("max_position_embeddings", defaults.context)?,
        tied: defaults.tied,
    }
    .checked()
}

fn ffn(fields: &Fields<'_>) -> Result<u32, ModelError> {
    let key = if fields.get("block_ff_dim").is_some() { "block_ff_dim" } else { "intermediate_size" };
    bounded(key, fields.size(key, None)?, 1 << 26)
}

/// `block_auto_adjust_ff_dim`: two thirds, times a factor, rounded up to a multiple.
fn adjusted(fields: &Fields<'_>) -> Result<u32, ModelError> {
    let stated = ffn(fields)?;
    if !fields.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(stated);
    }
    let factor = fields.float("block_ffn_dim_multiplier", Some(1.0))?;
    let multiple = u64::from(fields.size("block_multiple_of", Some(256))?);
    let width = (factor * (2.0 * f64::from(stated) / 3.0).floor()).floor();
    if !(1.0..=f64::from(1u32 << 26)).contains(&width) {
        return Err(ModelError::field("block_ffn_dim_multiplier", "a width of 1 to 2^26", width.to_string()));
    }
    let width = (width as u64).next_multiple_of(multiple);
    u32::try_from(width)
        .map_err(|_| ModelError::field("block_multiple_of", "a width under 2^32", width.to_string()))
}

fn lfm2_experts(fields: &Fields<'_>) -> Result<Ffn, ModelError> {
    let count = bounded("num_experts", fields.size("num_experts", None)?, MAX_EXPERTS)?;
    let bias = fields.flag("use_expert_bias", true)?;
    Ok(Ffn::Experts(Experts {
        count,
        top: bounded("num_experts_per_tok", fields.size("num_experts_per_tok", None)?, count)?,
        width: fields.size("moe_intermediate_size", None)?,
        router: "feed_forward.gate",
        router_bias: bias.then_some("feed_forward.expert_bias"),
        stacks: Stacks::Separate("feed_forward.experts", ["w1", "w3", "w2"]),
        shared: None,
    }))
}

/// Whether each layer attends.
fn lfm2_kinds(fields: &Fields<'_>, layers: u32) -> Result<Vec<bool>, ModelError> {
    if let (None, Some(list)) = (fields.get("layer_types"), fields.get("full_attn_idxs")) {
        let expected =
            || ModelError::field("full_attn_idxs", format!("numbers of layers under {layers}"), shown(list));
        let mut kinds = vec![false; layers as usize];
        for index in list.as_array().ok_or_else(expected)? {
            let index = index.as_u64().and_then(|i| usize::try_from(i).ok());
            *index.and_then(|i| kinds.get_mut(i)).ok_or_else(expected)? = true;
        }
        return Ok(kinds);
    }
    let one = |kind: &str| match kind {
        "full_attention" => Ok(true),
        "conv" => Ok(false),
        other => Err(unknown(other)),
    };
    kinds(fields, &["layer_types"], layers)?.into_iter().map(one).collect()
}
