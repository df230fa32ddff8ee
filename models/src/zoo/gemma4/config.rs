//! Sizes of a gemma4 text model and how configurations spell them.

use crate::error::{ModelError, quoted};
use crate::graph::Keys;
use crate::rope::{Rope, Scaling};
use crate::zoo::dense::{Defaults, Dense, rope_from_config};
use crate::zoo::fields::{Fields, Range, shown, size};
use crate::zoo::gemma3::layer_types;
use crate::zoo::ropes::Spelling;
use plimsoll_kernels::AttentionShape;

/// The experts beside each MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moe {
    pub experts: u32,
    pub top: u32,
    pub width: u32,
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layer {
    /// Attention over the window only.
    pub sliding: bool,
    pub shape: AttentionShape,
    pub keys: Keys,
    /// Which of the layers that keep keys and values it reads.
    pub state: u32,
    pub ffn: u32,
}

/// Everything but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub sizes: Dense,
    pub window: u32,
    pub layers: Vec<Layer>,
    /// Of the full layers, then of the sliding ones.
    pub ropes: Vec<Rope>,
    pub softcap: Option<f32>,
    /// Channels of the embedding each layer has of its own; 0 for none.
    pub own_embedding: u32,
    pub moe: Option<Moe>,
    /// For [`crate::model::Model::notes`].
    pub notes: Vec<String>,
}

/// Every sixth layer is full where nothing states it.
const PATTERN: u32 = 6;

pub(super) fn from_config(fields: &Fields<'_>) -> Result<Config, ModelError> {
    let defaults = Defaults { eps: Some(1e-6), context: Some(131_072), tied: true, ..Defaults::default() };
    let sizes = Dense::from_config(fields, &defaults)?;
    fields.activation("hidden_activation", &["gelu_pytorch_tanh", "gelu_new"])?;
    if fields.flag("attention_bias", false)? {
        return Err(ModelError::unsupported("attention_bias", "gemma4 without biases is"));
    }
    // "vision" concerns tokens of images alone.
    let key = "use_bidirectional_attention";
    if let Some(value) = fields.get(key)
        && !matches!((value.as_str(), value.as_bool()), (Some("vision"), _) | (_, Some(false)))
    {
        return Err(ModelError::unsupported(format!("{key} {}", shown(value)), "causal gemma4 is"));
    }
    let mut sliding = match fields.strings("layer_types")? {
        Some(types) => layer_types(&types, sizes.layers)?,
        None => (1..=sizes.layers).map(|i| !i.is_multiple_of(PATTERN)).collect(),
    };
    if let Some(last) = sliding.last_mut() {
        // Whatever the list says of it.
        *last = false;
    }
    let layers = layers(fields, &sizes, &sliding)?;
    let ropes = ropes(fields, &sizes, &layers)?;
    let key = "final_logit_softcapping";
    let softcap = fields.opt_within(key, Range::CAP)?;
    let own_embedding = count(fields, "hidden_size_per_layer_input")?;
    check_own_embedding("hidden_size_per_layer_input", own_embedding, sizes.layers)?;
    // Without embeddings of layers their vocabulary says nothing.
    fields.knows(&["vocab_size_per_layer_input"]);
    if own_embedding > 0 {
        let key = "vocab_size_per_layer_input";
        let own = fields.size(key, Some(sizes.vocab))?;
        if own != sizes.vocab {
            let expected = format!("the vocabulary, {}", sizes.vocab);
            return Err(ModelError::field(key, expected, own.to_string()));
        }
    }
    let (window, null) = fields.window(512)?;
    Ok(Config {
        window,
        layers,
        ropes,
        softcap: softcap.map(|cap| cap as f32),
        own_embedding,
        moe: moe(fields)?,
        notes: null.into_iter().collect(),
        sizes,
    })
}

/// The embeddings of all layers are one row of the device's.
pub(super) fn check_own_embedding(key: &str, size: u32, layers: u32) -> Result<(), ModelError> {
    if u64::from(size) * u64::from(layers) >= 1 << 26 {
        let got = format!("{size} × {layers}");
        return Err(ModelError::field(format!("{key} × layers"), "under 2^26", got));
    }
    Ok(())
}

/// A count that may be zero, as it is where nothing states it.
fn count(fields: &Fields<'_>, key: &str) -> Result<u32, ModelError> {
    match fields.get(key) {
        None => Ok(0),
        Some(value) if value.as_u64() == Some(0) => Ok(0),
        Some(value) => size(key, value),
    }
}

fn moe(fields: &Fields<'_>) -> Result<Option<Moe>, ModelError> {
    if !fields.flag("enable_moe_block", false)? {
        fields.knows(&["num_experts", "moe_intermediate_size", "expert_intermediate_size"]);
        return Ok(None);
    }
    let either = |keys: [&'static str; 2]| {
        fields.size(keys.into_iter().find(|key| fields.get(key).is_some()).unwrap_or(keys[0]), None)
    };
    let moe = Moe {
        experts: fields.size("num_experts", None)?,
        top: either(["top_k_experts", "num_experts_per_tok"])?,
        width: either(["moe_intermediate_size", "expert_intermediate_size"])?,
    };
    moe.checked("top_k_experts", "num_experts × moe_intermediate_size").map(Some)
}

impl Moe {
    /// By the keys of how many are chosen, and of how many there are times their width.
    pub(super) fn checked(self, top: &str, size: &str) -> Result<Self, ModelError> {
        if self.top > self.experts {
            let expected = format!("at most the {} experts", self.experts);
            return Err(ModelError::field(top, expected, self.top.to_string()));
        }
        if u64::from(self.experts) * 2 * u64::from(self.width) >= 1 << 31 {
            let got = format!("{} × {}", self.experts, self.width);
            return Err(ModelError::field(size, "under 2^30", got));
        }
        Ok(self)
    }
}

/// A layer of which it is not yet known whose keys and values it reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub sliding: bool,
    pub shape: AttentionShape,
    /// Its keys serve as its values, if it has any.
    pub values_are_keys: bool,
    pub ffn: u32,
}

/// How many layers have keys and values of their own where the last `sharing` have none.
pub(super) fn own_layers(key: &str, layers: u32, sharing: u32) -> Result<u32, ModelError> {
    let own = layers.checked_sub(sharing).filter(|&own| own > 0);
    own.ok_or_else(|| ModelError::field(key, format!("under the {layers} layers"), sharing.to_string()))
}

/// The first `own` layers keep keys and values; each of the others reads those of the last before it of its kind.
pub(super) fn share(key: &str, all: &[Alone], own: u32) -> Result<Vec<Layer>, ModelError> {
    let mut layers: Vec<Layer> = Vec::new();
    for (layer, &Alone { sliding, shape, values_are_keys, ffn }) in (0u32..).zip(all) {
        check_shape(layer, shape)?;
        let (state, keys) = if layer < own {
            (layer, if values_are_keys { Keys::Values } else { Keys::Own })
        } else {
            let like = |l: &Layer| l.sliding == sliding && l.keys != Keys::Shared && l.shape == shape;
            let state = layers.iter().rposition(like).ok_or_else(|| {
                let expected = format!("a layer before layer {layer} whose keys and values it can share");
                ModelError::field(key, expected, (all.len() as u64 - u64::from(own)).to_string())
            })?;
            (state as u32, Keys::Shared)
        };
        layers.push(Layer { sliding, shape, keys, state, ffn });
    }
    Ok(layers)
}

fn layers(fields: &Fields<'_>, sizes: &Dense, sliding: &[bool]) -> Result<Vec<Layer>, ModelError> {
    let tied_values = fields.flag("attention_k_eq_v", false)?;
    let wide = fields.flag("use_double_wide_mlp", false)?;
    let key = "num_kv_shared_layers";
    let own = own_layers(key, sizes.layers, count(fields, key)?)?;
    let mut all = Vec::new();
    for (layer, &sliding) in (0..sizes.layers).zip(sliding) {
        let mut shape = sizes.shape;
        if !sliding {
            shape.head_dim = fields.size("global_head_dim", Some(shape.head_dim))?;
            if tied_values {
                shape.kv_heads = fields.size("num_global_key_value_heads", Some(shape.kv_heads))?;
            }
        }
        override_shape(fields, layer, &mut shape)?;
        let ffn = if wide && layer >= own { sizes.ffn.saturating_mul(2) } else { sizes.ffn };
        all.push(Alone { sliding, shape, values_are_keys: tied_values && !sliding, ffn });
    }
    share(key, &all, own)
}

/// `per_layer_config`: sizes of single layers by their number, which newer files have in place of `global_…`.
fn override_shape(fields: &Fields<'_>, layer: u32, shape: &mut AttentionShape) -> Result<(), ModelError> {
    let Some(all) = fields.get("per_layer_config") else { return Ok(()) };
    let Some(entry) = all.get(layer.to_string()).filter(|v| !v.is_null()) else { return Ok(()) };
    let place = format!("per_layer_config.{layer}");
    let entry = entry.as_object().ok_or_else(|| ModelError::field(&place, "an object", shown(entry)))?;
    for (key, value) in entry {
        let place = format!("{place}.{key}");
        match key.as_str() {
            "head_dim" => shape.head_dim = size(&place, value)?,
            "num_key_value_heads" => shape.kv_heads = size(&place, value)?,
            other => {
                return Err(ModelError::unsupported(
                    format!("per_layer_config of {}", quoted(other)),
                    "of head_dim and num_key_value_heads it is",
                ));
            }
        }
    }
    Ok(())
}

fn check_shape(layer: u32, shape: AttentionShape) -> Result<(), ModelError> {
    let AttentionShape { heads, kv_heads, head_dim } = shape;
    let key = |what: &str| format!("{what} of layer {layer}");
    if !head_dim.is_multiple_of(2) || head_dim > 1 << 16 {
        return Err(ModelError::field(key("head size"), "an even number up to 65536", head_dim.to_string()));
    }
    if heads == 0 || !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of the {heads} query heads");
        return Err(ModelError::field(key("KV heads"), expected, kv_heads.to_string()));
    }
    if (u64::from(heads) + 2 * u64::from(kv_heads)) * u64::from(head_dim) >= 1 << 26 {
        let got = format!("{} × {head_dim}", u64::from(heads) + 2 * u64::from(kv_heads));
        return Err(ModelError::field(key("heads × head size"), "under 2^26", got));
    }
    Ok(())
}

fn ropes(fields: &Fields<'_>, sizes: &Dense, layers: &[Layer]) -> Result<Vec<Rope>, ModelError> {
    let head_dim = |sliding: bool| {
        let mut of = layers.iter().filter(|l| l.sliding == sliding).map(|l| l.shape.head_dim);
        let first = of.next().unwrap_or(sizes.shape.head_dim);
        match of.find(|size| *size != first) {
            None => Ok(first),
            Some(other) => Err(ModelError::unsupported(
                format!("heads of {first} and of {other} in layers of one kind"),
                "one size for each kind is",
            )),
        }
    };
    let (full, local) = (head_dim(false)?, head_dim(true)?);
    let ropes = match fields.get("rope_parameters") {
        None => vec![
            Rope::proportional(1_000_000.0, full, full / 8, Scaling::None),
            Rope::new(10_000.0, local, Scaling::None),
        ],
        Some(_) => {
            let spelling = Spelling {
                layer_type: "full_attention",
                old_theta: "rope_theta",
                default_theta: 1_000_000.0,
                head_dim: full,
                partial: Some(1.0),
            };
            let local =
                rope_from_config(fields, "sliding_attention", "rope_local_base_freq", 10_000.0, local)?;
            vec![spelling.rope(fields)?, local]
        }
    };
    Ok(ropes)
}
