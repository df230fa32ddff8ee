//! What llama, qwen3 and gemma3 share: the sizes of a dense decoder-only transformer and how checkpoints spell them.

use super::fields::{Fields, Range, positive, size};
pub use super::ropes::rope_from_config;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::gguf::Metadata;
use crate::error::ModelError;
use crate::rope::{Rope, Scaling};
use plimsoll_kernels::AttentionShape;

/// Sizes of a dense transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// `V`.
    pub vocab: u32,
    /// `D`.
    pub hidden: u32,
    /// Layers.
    pub layers: u32,
    /// `F`.
    pub ffn: u32,
    /// Heads.
    pub shape: AttentionShape,
    /// Inside the root of every norm.
    pub eps: f32,
    /// Longest context.
    pub context_max: u32,
    /// The head reads the embedding table.
    pub tied: bool,
}

/// What a family's configuration class assumes where a file says nothing.
#[derive(Clone, Copy, Default)]
pub struct Defaults {
    /// Vocabulary.
    pub vocab: Option<u32>,
    /// Query heads.
    pub heads: Option<u32>,
    /// KV heads; query heads where `None`.
    pub kv_heads: Option<u32>,
    /// Head size; `hidden / heads` where `None`.
    pub head_dim: Option<u32>,
    /// Norm epsilon.
    pub eps: Option<f64>,
    /// Longest context.
    pub context: Option<u32>,
    /// Tied head.
    pub tied: bool,
}

impl Dense {
    /// From config.json.
    ///
    /// # Errors
    /// When a field is missing, of another kind, or the sizes contradict each other.
    pub fn from_config(fields: &Fields<'_>, defaults: &Defaults) -> Result<Self, ModelError> {
        let hidden = fields.size("hidden_size", None)?;
        let heads = fields.size("num_attention_heads", defaults.heads)?;
        let head_dim = match (fields.any(&["head_dim", "attention_head_dim"]), defaults.head_dim) {
            (Some(value), _) => size("head_dim", value)?,
            (None, Some(default)) => default,
            (None, None) => hidden / heads,
        };
        Self {
            vocab: fields.size("vocab_size", defaults.vocab)?,
            hidden,
            layers: fields.size("num_hidden_layers", None)?,
            ffn: fields.size("intermediate_size", None)?,
            shape: AttentionShape {
                heads,
                kv_heads: fields.size("num_key_value_heads", Some(defaults.kv_heads.unwrap_or(heads)))?,
                head_dim,
            },
            eps: fields.within("rms_norm_eps", defaults.eps, Range::EPSILON)? as f32,
            context_max: fields.size("max_position_embeddings", defaults.context)?,
            tied: fields.flag("tie_word_embeddings", defaults.tied)?,
        }
        .checked()
    }

    /// From GGUF metadata; the vocabulary is the tokenizer's where no key states it.
    ///
    /// # Errors
    /// When a key is missing, of another kind, or the sizes contradict each other.
    pub fn from_gguf(checkpoint: &Checkpoint, arch: &str) -> Result<Self, ModelError> {
        let meta = metadata(checkpoint)?;
        let key = |name: &str| format!("{arch}.{name}");
        let required = |name: &str| gguf_size(meta, &key(name))?.ok_or_else(|| missing(&key(name)));
        let hidden = required("embedding_length")?;
        let heads = required("attention.head_count")?;
        let head_dim = match gguf_size(meta, &key("attention.key_length"))? {
            Some(length) => length,
            None => hidden / heads,
        };
        for name in WITHOUT_KERNELS {
            if meta.opt_f64(&key(name))?.is_some_and(|value| value != 0.0) {
                return Err(ModelError::unsupported(key(name), "models without it are"));
            }
        }
        if meta.opt_bool(&key("attention.causal"))? == Some(false) {
            return Err(ModelError::unsupported("attention to later tokens", "causal attention is"));
        }
        if let Some(value) = gguf_size(meta, &key("attention.value_length"))?
            && value != head_dim
        {
            return Err(ModelError::unsupported(
                format!("value heads of {value} beside key heads of {head_dim}"),
                "heads of one size",
            ));
        }
        Self {
            vocab: gguf_vocab(meta, arch)?,
            hidden,
            layers: required("block_count")?,
            ffn: required("feed_forward_length")?,
            shape: AttentionShape {
                heads,
                kv_heads: gguf_size(meta, &key("attention.head_count_kv"))?.unwrap_or(heads),
                head_dim,
            },
            eps: epsilon(meta, arch)?,
            context_max: required("context_length")?,
            tied: checkpoint.tensor("output.weight").is_none(),
        }
        .checked()
    }

    /// Sizes that contradict each other, or are beyond anything real, are found before anything is planned.
    pub(super) fn checked(self) -> Result<Self, ModelError> {
        let AttentionShape { heads, kv_heads, head_dim } = self.shape;
        for (key, value, most) in [
            ("layers", self.layers, MAX_LAYERS),
            ("attention heads", heads, 1 << 16),
            ("KV heads", kv_heads, 1 << 16),
            ("head size", head_dim, 1 << 16),
            ("hidden size", self.hidden, 1 << 24),
            ("feed-forward width", self.ffn, 1 << 26),
            ("vocabulary", self.vocab, 1 << 28),
        ] {
            if value == 0 || value > most {
                return Err(ModelError::field(key, format!("1 to {most}"), value.to_string()));
            }
        }
        if !head_dim.is_multiple_of(2) {
            return Err(ModelError::field(
                "head size",
                "an even number, to rotate pairs",
                head_dim.to_string(),
            ));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::field(
                "KV heads",
                format!("a divisor of the {heads} query heads"),
                kv_heads.to_string(),
            ));
        }
        if u64::from(heads + 2 * kv_heads) * u64::from(head_dim) >= 1 << 26 {
            return Err(ModelError::field(
                "heads × head size",
                "under 2^26",
                format!("{} × {head_dim}", heads + 2 * kv_heads),
            ));
        }
        Ok(self)
    }
}

/// The GGUF metadata of a checkpoint.
///
/// # Errors
/// When it is none of GGUF.
pub fn metadata(checkpoint: &Checkpoint) -> Result<&Metadata, ModelError> {
    checkpoint.metadata().ok_or_else(|| ModelError::field("GGUF metadata", "a header", "nothing"))
}

/// Keys of GGUF metadata that make another function of a dense model than the one that is built here; zero is nothing.
const WITHOUT_KERNELS: [&str; 6] = [
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "embedding_scale",
    "logit_scale",
    "residual_scale",
];

/// What GGUF metadata add inside the root of norms.
///
/// # Errors
/// When it is missing or none.
pub fn epsilon(meta: &Metadata, arch: &str) -> Result<f32, ModelError> {
    let key = format!("{arch}.attention.layer_norm_rms_epsilon");
    Range::EPSILON.check(&key, meta.f64(&key)?).map(|eps| eps as f32)
}

/// A size of GGUF metadata that may be absent. A per-layer array counts when all its entries are equal.
///
/// # Errors
/// When it is something else.
pub fn gguf_size(meta: &Metadata, key: &str) -> Result<Option<u32>, ModelError> {
    use crate::checkpoint::gguf::Value;
    let value = match meta.get(key)? {
        None => return Ok(None),
        Some(Value::Array(array)) => {
            let all = array.u64s()?;
            match all.split_first() {
                Some((first, rest)) if rest.iter().all(|v| v == first) => *first,
                _ => {
                    return Err(ModelError::unsupported(
                        format!("{key} that differs between layers"),
                        "one value for all layers",
                    ));
                }
            }
        }
        Some(_) => meta.u64(key)?,
    };
    bounded(key, value).map(Some)
}

/// The vocabulary of GGUF metadata: the tokenizer's where no key states it.
///
/// # Errors
/// When neither is there, or both are and differ.
pub fn gguf_vocab(meta: &Metadata, arch: &str) -> Result<u32, ModelError> {
    let key = format!("{arch}.vocab_size");
    let tokens = meta.opt_array("tokenizer.ggml.tokens")?.map(|a| a.len() as u64);
    let stated = gguf_size(meta, &key)?.map(u64::from);
    if let (Some(tokens), Some(stated)) = (tokens, stated)
        && tokens != stated
    {
        return Err(ModelError::field(
            key,
            format!("{tokens}, the tokenizer's vocabulary"),
            stated.to_string(),
        ));
    }
    bounded("tokenizer.ggml.tokens", stated.or(tokens).ok_or_else(|| missing("tokenizer.ggml.tokens"))?)
}

/// A value for each of `layers` layers: an array's, or one number for all. `None` when the key is absent.
///
/// # Errors
/// When it is something else, or an array of another length.
pub fn gguf_per_layer(meta: &Metadata, key: &str, layers: u32) -> Result<Option<Vec<u32>>, ModelError> {
    use crate::checkpoint::gguf::Value;
    let all = match meta.get(key)? {
        None => return Ok(None),
        Some(Value::Array(array)) => array.u64s()?,
        Some(_) => vec![meta.u64(key)?; layers as usize],
    };
    if all.len() != layers as usize {
        return Err(ModelError::field(
            key,
            format!("one for each of {layers} layers"),
            all.len().to_string(),
        ));
    }
    all.into_iter().map(|n| if n == 0 { Ok(0) } else { bounded(key, n) }).collect::<Result<_, _>>().map(Some)
}

/// More than any model has, and few enough to keep something for each.
const MAX_LAYERS: u32 = 4096;

/// How many layers GGUF metadata state.
pub(super) fn gguf_layers(meta: &Metadata, arch: &str) -> Result<u32, ModelError> {
    let key = format!("{arch}.block_count");
    let layers = gguf_size(meta, &key)?.ok_or_else(|| missing(&key))?;
    if layers > MAX_LAYERS {
        return Err(ModelError::field(key, format!("1 to {MAX_LAYERS}"), layers.to_string()));
    }
    Ok(layers)
}

fn bounded(key: &str, value: u64) -> Result<u32, ModelError> {
    u32::try_from(value)
        .ok()
        .filter(|&n| n > 0 && n < 1 << 31)
        .ok_or_else(|| ModelError::field(key, "an integer from 1 to 2147483647", value.to_string()))
}

pub(super) fn missing(key: &str) -> ModelError {
    ModelError::field(key, "a value", "nothing")
}

/// How a GGUF model's rotation is scaled, by name.
///
/// # Errors
/// When there are numbers of a scaling whose name is missing.
pub(super) fn scaling_type<'m>(meta: &'m Metadata, arch: &str) -> Result<Option<&'m str>, ModelError> {
    let key = format!("{arch}.rope.scaling.type");
    let stated = meta.opt_str(&key)?;
    for number in ["rope.scaling.factor", "rope.scale_linear"] {
        let number = format!("{arch}.{number}");
        let factor = meta.opt_f64(&number)?;
        // Writers say 0 or 1 for none.
        if stated.is_none() && factor.is_some_and(|factor| factor != 0.0 && factor != 1.0) {
            let expected = format!("a name, since there is {number}");
            return Err(ModelError::field(key, expected, "nothing"));
        }
    }
    Ok(stated)
}

/// The rotation of a GGUF model: base, linear factor, stored divisors.
///
/// # Errors
/// When a key or `rope_freqs.weight` is malformed.
pub fn rope_from_gguf(
    checkpoint: &Checkpoint,
    arch: &str,
    default_theta: f64,
    head_dim: u32,
) -> Result<Rope, ModelError> {
    let meta = metadata(checkpoint)?;
    let base = format!("{arch}.rope.freq_base");
    let theta = Range::THETA.check(&base, meta.opt_f64(&base)?.unwrap_or(default_theta))?;
    let rotated = gguf_size(meta, &format!("{arch}.rope.dimension_count"))?.unwrap_or(head_dim);
    if rotated > head_dim || !rotated.is_multiple_of(2) {
        return Err(ModelError::field(
            format!("{arch}.rope.dimension_count"),
            format!("an even number up to the head size {head_dim}"),
            rotated.to_string(),
        ));
    }
    let scaling = match scaling_type(meta, arch)? {
        None | Some("none") => Scaling::None,
        Some("linear") => {
            let key = format!("{arch}.rope.scaling.factor");
            Scaling::Linear { factor: Range::STRETCH.check(&key, meta.f64(&key)?)? }
        }
        Some(other) => {
            return Err(ModelError::unsupported(
                format!("rope scaling {}", crate::error::quoted(other)),
                "none and linear are, and stored divisors",
            ));
        }
    };
    let rope = Rope::new(theta, rotated, scaling);
    match checkpoint.tensor("rope_freqs.weight") {
        None => Ok(rope),
        Some(info) => {
            let expected = vec![u64::from(rope.pairs())];
            if info.shape != expected {
                return Err(ModelError::Shape { name: info.name.clone(), expected, got: info.shape.clone() });
            }
            if info.dtype.format() != Some(plimsoll_kernels::Format::F32) {
                return Err(ModelError::unsupported(
                    format!("tensor rope_freqs.weight in format {}", info.dtype),
                    "f32 is",
                ));
            }
            let factors: Vec<f32> = checkpoint
                .data(info)?
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            for &factor in &factors {
                // Up to 1e30, for pairs that are not to turn.
                positive("rope_freqs.weight", factor.into())?;
            }
            Ok(rope.with_factors(&factors))
        }
    }
}
