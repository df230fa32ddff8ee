//! Sizes of the families and how checkpoints spell them.

use super::Family;
use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, quoted};
use crate::model::STATE_KEPT;
use crate::rope::Rope;
use crate::zoo::fields::{Fields, Range, shown};
use crate::zoo::llama::SILU;
use crate::zoo::nemotron_h::{MAX_EXPERTS, Moe, bounded, check_outer, moe_checked, one_of, shape_checked};
use crate::zoo::ropes::Spelling;
use plimsoll_kernels::{AttentionShape, DeltaShape};

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mixer {
    Attention,
    Delta,
}

/// The second half of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ffn {
    Dense(u32),
    Moe(Moe),
}

/// Sizes of the gated delta layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeltaSizes {
    pub shape: DeltaShape,
    pub taps: u32,
    /// Value heads take turns: see [`crate::graph::Delta::tiled`].
    pub tiled: bool,
}

/// Everything but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub vocab: u32,
    pub hidden: u32,
    pub layers: Vec<(Mixer, Ffn)>,
    pub shape: AttentionShape,
    /// Where any layer is one.
    pub delta: Option<DeltaSizes>,
    pub rope: Rope,
    pub eps: f32,
    pub context_max: u32,
    pub tied: bool,
    /// The attention projections have biases.
    pub biased: bool,
    /// Names stand one level deeper, as multimodal checkpoints have them.
    pub nested: bool,
    /// What a reader should know.
    pub notes: Vec<String>,
}

pub(super) fn from_config(checkpoint: &Checkpoint, family: Family) -> Result<Config, ModelError> {
    let fields = Fields::of(checkpoint)?;
    fields.activation("hidden_act", &SILU)?;
    if fields.get("sliding_window").is_some() && fields.flag("use_sliding_window", false)? {
        return Err(ModelError::unsupported("use_sliding_window", "this family with full attention is"));
    }
    let heads = fields.size("num_attention_heads", None)?;
    let hidden = fields.size("hidden_size", None)?;
    let plain = family == Family::Moe3;
    let head_dim = match fields.get("head_dim") {
        Some(_) => fields.size("head_dim", None)?,
        None if plain => hidden / heads,
        None => 256,
    };
    let shape =
        AttentionShape { heads, kv_heads: fields.size("num_key_value_heads", Some(heads))?, head_dim };
    let biased = fields.flag("attention_bias", false)?;
    if !plain {
        if biased {
            return Err(ModelError::unsupported("attention_bias", "gated attention without biases is"));
        }
        if !fields.flag("attn_output_gate", true)? {
            return Err(ModelError::unsupported("attn_output_gate false", "attention with a gate is"));
        }
    }
    let layers = layers(&fields, family)?;
    let delta = match layers.iter().any(|(mixer, _)| *mixer == Mixer::Delta) {
        true => Some(delta(&fields)?),
        false => None,
    };
    let spelling = Spelling {
        layer_type: "full_attention",
        old_theta: "rope_theta",
        default_theta: 10_000.0,
        head_dim,
        partial: if plain { None } else { Some(0.25) },
    };
    let config = Config {
        vocab: fields.size("vocab_size", None)?,
        hidden,
        layers,
        shape,
        delta,
        eps: fields.within("rms_norm_eps", Some(1e-6), Range::EPSILON)? as f32,
        context_max: fields.size("max_position_embeddings", Some(32_768))?,
        tied: fields.flag("tie_word_embeddings", false)?,
        biased,
        nested: fields.is_nested(),
        notes: notes(&fields),
        rope: {
            shape_checked(shape)?;
            spelling.rope(&fields)?
        },
    };
    config.checked()
}

fn notes(fields: &Fields<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(dtype) = fields.get("mamba_ssm_dtype").and_then(|v| v.as_str()).filter(|d| *d != "float32") {
        let dtype = quoted(dtype);
        notes.push(format!("the checkpoint asks for a recurrent state in {dtype}{STATE_KEPT}"));
    }
    notes
}

/// The layers: which attend, and which have experts.
fn layers(fields: &Fields<'_>, family: Family) -> Result<Vec<(Mixer, Ffn)>, ModelError> {
    let layers = fields.size("num_hidden_layers", None)?;
    bounded("layers", layers, 4096)?;
    let mixers = match family {
        Family::Moe3 => vec![Mixer::Attention; layers as usize],
        _ => mixers(fields, layers)?,
    };
    let sparse = sparse(fields, family, layers)?;
    let moe = if sparse.contains(&true) { Some(Ffn::Moe(moe(fields, family)?)) } else { None };
    let dense = match sparse.contains(&false) {
        true => Some(Ffn::Dense(fields.size("intermediate_size", None)?)),
        false => None,
    };
    let ffns = sparse.iter().map(|sparse| if *sparse { moe } else { dense });
    Ok(mixers.into_iter().zip(ffns.flatten()).collect())
}

/// `layer_types`, or every `full_attention_interval`-th attends; a file that has both must mean the same by them,
/// because readers obey one each.
fn mixers(fields: &Fields<'_>, layers: u32) -> Result<Vec<Mixer>, ModelError> {
    const LIST: &str = "layer_types";
    const INTERVAL: &str = "full_attention_interval";
    let by_interval = |interval: u32| -> Vec<Mixer> {
        (1..=layers)
            .map(|n| if n.is_multiple_of(interval) { Mixer::Attention } else { Mixer::Delta })
            .collect()
    };
    let Some(names) = fields.strings(LIST)? else {
        return Ok(by_interval(fields.size(INTERVAL, Some(4))?));
    };
    let list = names
        .iter()
        .map(|name| match *name {
            "full_attention" => Ok(Mixer::Attention),
            "linear_attention" => Ok(Mixer::Delta),
            other => Err(ModelError::field(LIST, "full_attention and linear_attention", quoted(other))),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if list.len() != layers as usize {
        let expected = format!("one for each of {layers} layers");
        return Err(ModelError::field(LIST, expected, list.len().to_string()));
    }
    if fields.get(INTERVAL).is_some() {
        let interval = fields.size(INTERVAL, None)?;
        if by_interval(interval) != list {
            return Err(ModelError::field(INTERVAL, format!("the layers of {LIST}"), interval.to_string()));
        }
    }
    Ok(list)
}

/// Which layers have experts.
fn sparse(fields: &Fields<'_>, family: Family, layers: u32) -> Result<Vec<bool>, ModelError> {
    const DENSE: &str = "mlp_only_layers";
    let dense: Vec<u64> = match fields.get(DENSE) {
        None => vec![],
        Some(value) => {
            let list = value.as_array().and_then(|list| list.iter().map(serde_json::Value::as_u64).collect());
            list.ok_or_else(|| ModelError::field(DENSE, "a list of layers", shown(value)))?
        }
    };
    let step = match family {
        Family::Dense35 => return Ok(vec![false; layers as usize]),
        Family::Moe35 if !dense.is_empty() => {
            return Err(ModelError::unsupported(DENSE, "this family with experts in every layer is"));
        }
        Family::Moe35 => 1,
        Family::Moe3 | Family::Next => fields.size("decoder_sparse_step", Some(1))?,
    };
    Ok((0..layers).map(|layer| !dense.contains(&layer.into()) && (layer + 1).is_multiple_of(step)).collect())
}

fn moe(fields: &Fields<'_>, family: Family) -> Result<Moe, ModelError> {
    let normalise = match family {
        Family::Moe3 => fields.flag("norm_topk_prob", false)?,
        Family::Next => fields.flag("norm_topk_prob", true)?,
        // Always, and a file that denies it is another model.
        _ => {
            if !fields.flag("norm_topk_prob", true)? {
                return Err(ModelError::unsupported(
                    "norm_topk_prob false",
                    "this family normalises weights",
                ));
            }
            true
        }
    };
    let shared = match family {
        Family::Moe3 => None,
        _ => Some(fields.size("shared_expert_intermediate_size", Some(512))?),
    };
    Ok(Moe {
        experts: one_of(fields, &["num_experts", "num_local_experts"], None)?,
        top: fields.size("num_experts_per_tok", None)?,
        width: fields.size("moe_intermediate_size", None)?,
        shared,
        latent: None,
        groups: None,
        normalise,
        scale: 1.0,
    })
}

fn delta(fields: &Fields<'_>) -> Result<DeltaSizes, ModelError> {
    let shape = DeltaShape {
        heads: fields.size("linear_num_value_heads", None)?,
        key_heads: fields.size("linear_num_key_heads", None)?,
        key_dim: fields.size("linear_key_head_dim", None)?,
        value_dim: fields.size("linear_value_head_dim", None)?,
    };
    let taps = fields.size("linear_conv_kernel_dim", Some(4))?;
    DeltaSizes { shape, taps, tiled: false }.checked(&[
        "linear_num_value_heads",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ])
}

impl DeltaSizes {
    /// Checks the sizes; `keys` are the fields of value heads, key heads, the sizes of both, and the taps.
    pub(super) fn checked<K: AsRef<str>>(self, keys: &[K; 5]) -> Result<Self, ModelError> {
        let Self { shape, taps, .. } = self;
        let [heads, key_heads, key_dim, value_dim, taps_key] = keys.each_ref().map(AsRef::as_ref);
        bounded(heads, shape.heads, 1 << 12)?;
        bounded(key_heads, shape.key_heads, 1 << 12)?;
        bounded(key_dim, shape.key_dim, 1 << 12)?;
        bounded(value_dim, shape.value_dim, 1 << 12)?;
        if !(2..=64).contains(&taps) {
            return Err(ModelError::field(taps_key, "2 to 64", taps.to_string()));
        }
        if !shape.heads.is_multiple_of(shape.key_heads) {
            let expected = format!("a divisor of the {} value heads", shape.heads);
            return Err(ModelError::field(key_heads, expected, shape.key_heads.to_string()));
        }
        let inner = u64::from(shape.inner());
        if u64::from(shape.channels()) >= 1 << 26 || inner * u64::from(shape.key_dim) >= 1 << 30 {
            return Err(ModelError::field(
                "value heads × key size × value size",
                "under 2^30",
                format!("{} × {} × {}", shape.heads, shape.key_dim, shape.value_dim),
            ));
        }
        Ok(self)
    }
}

impl Config {
    /// Sizes that contradict each other, or are beyond anything real, are found before anything is planned.
    pub(super) fn checked(self) -> Result<Self, ModelError> {
        check_outer(self.vocab, self.hidden, self.layers.len() as u32, self.eps)?;
        let mut experts = 0;
        for (_, ffn) in &self.layers {
            match ffn {
                Ffn::Dense(width) => bounded("intermediate_size", *width, 1 << 24)?,
                Ffn::Moe(moe) => {
                    moe_checked(moe, self.hidden)?;
                    experts += u64::from(moe.experts);
                }
            }
        }
        if experts > MAX_EXPERTS {
            let expected = format!("at most {MAX_EXPERTS}");
            return Err(ModelError::field("experts of all layers", expected, experts.to_string()));
        }
        Ok(self)
    }
}
