//! Sizes of a nemotron_h model in GGUF metadata.

use super::config::{Config, Kind, Moe, bounded_layers};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::Groups;
use crate::zoo::dense::{epsilon, gguf_per_layer, gguf_size, gguf_vocab, metadata, missing};
use crate::zoo::fields::Range;
use crate::zoo::mamba::Mixer;
use plimsoll_kernels::AttentionShape;

/// From GGUF metadata. There is no list of layers: those with KV heads attend, those with a feed-forward width have an
/// MLP, or experts where a router is among the tensors, and the others are Mamba2.
pub(super) fn from_gguf(checkpoint: &Checkpoint, arch: &str) -> Result<Config, ModelError> {
    let meta = metadata(checkpoint)?;
    let key = |name: &str| format!("{arch}.{name}");
    let opt = |name: &str| gguf_size(meta, &key(name));
    let required = |name: &str| opt(name)?.ok_or_else(|| missing(&key(name)));
    let blocks = bounded_layers(required("block_count")?)?;
    let per_layer = |name: &str| gguf_per_layer(meta, &key(name), blocks);
    let each = |name: &str| per_layer(name)?.ok_or_else(|| missing(&key(name)));
    // Public writers count the layers that predict further tokens among the blocks.
    let extra = meta.opt_u64(&key("nextn_predict_layers"))?.unwrap_or(0);
    let layers = u64::from(blocks).checked_sub(extra).filter(|&n| n > 0).ok_or_else(|| {
        ModelError::field(key("nextn_predict_layers"), format!("under {blocks}"), extra.to_string())
    })? as u32;
    let hidden = required("embedding_length")?;
    let (kv_heads, heads, ffn) =
        (each("attention.head_count_kv")?, each("attention.head_count")?, each("feed_forward_length")?);
    let head_dim = opt("attention.key_length")?;
    if opt("attention.value_length")?.is_some_and(|value| head_dim != Some(value)) {
        return Err(ModelError::unsupported(
            "value heads of another size than key heads",
            "heads of one size",
        ));
    }
    let eps = epsilon(meta, arch)?;
    if let Some(scale) = meta.opt_f64(&key("attention.scale"))?
        && scale != 0.0
    {
        return Err(ModelError::unsupported(key("attention.scale"), "1/√(head size) is"));
    }
    let moe = GgufMoe::read(checkpoint, arch, blocks)?;
    let mut kinds = Vec::new();
    for layer in 0..layers {
        let at = layer as usize;
        kinds.push(match (kv_heads[at], ffn[at]) {
            (0, 0) => Kind::Mamba,
            (kv_heads, 0) => {
                let heads = heads[at];
                let head_dim = head_dim.or(hidden.checked_div(heads)).unwrap_or(0);
                Kind::Attention(AttentionShape { heads, kv_heads, head_dim })
            }
            (0, width) if checkpoint.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some() => {
                Kind::Moe(moe.layer(arch, at, width)?)
            }
            (0, width) => Kind::Mlp(width),
            (kv, width) => {
                return Err(ModelError::field(
                    key("feed_forward_length"),
                    format!("0 for layer {layer}, which has {kv} KV heads"),
                    width.to_string(),
                ));
            }
        });
    }
    let mamba = match kinds.contains(&Kind::Mamba) {
        true => Some(Mixer::from_gguf(meta, arch, eps)?),
        false => None,
    };
    Config {
        vocab: gguf_vocab(meta, arch)?,
        hidden,
        kinds,
        mamba,
        eps,
        context_max: required("context_length")?,
        tied: checkpoint.tensor("output.weight").is_none(),
        attention_bias: None,
        mlp_bias: None,
        extra_layers: extra as u32,
        draft: vec![],
        state_dtype: None,
        state_chunk: None,
    }
    .checked()
}

/// The `expert_*` keys, some of which may differ from layer to layer.
struct GgufMoe {
    experts: Option<u32>,
    top: Option<Vec<u32>>,
    width: Option<Vec<u32>>,
    shared: Option<u32>,
    latent: Option<u32>,
    groups: Option<Groups>,
    normalise: bool,
    scale: f32,
}

impl GgufMoe {
    fn read(checkpoint: &Checkpoint, arch: &str, blocks: u32) -> Result<Self, ModelError> {
        let meta = metadata(checkpoint)?;
        let key = |name: &str| format!("{arch}.{name}");
        let zero_is_none = |name: &str| match meta.opt_u64(&key(name))? {
            None | Some(0) => Ok(None),
            Some(_) => gguf_size(meta, &key(name)),
        };
        // 2 is the sigmoid; the public reader of these models takes it for granted.
        match meta.opt_u64(&key("expert_gating_func"))? {
            None | Some(0 | 2) => {}
            Some(other) => {
                return Err(ModelError::unsupported(
                    format!("{} {other}", key("expert_gating_func")),
                    "2, the sigmoid, is",
                ));
            }
        }
        let scale = meta.opt_f64(&key("expert_weights_scale"))?.filter(|s| *s != 0.0).unwrap_or(1.0);
        let groups = zero_is_none("expert_group_count")?.filter(|n| *n > 1);
        let keep = zero_is_none("expert_group_used_count")?;
        Ok(Self {
            experts: zero_is_none("expert_count")?,
            top: gguf_per_layer(meta, &key("expert_used_count"), blocks)?,
            width: gguf_per_layer(meta, &key("expert_feed_forward_length"), blocks)?,
            shared: match meta.opt_u64(&key("expert_shared_count"))? {
                Some(0) => None,
                _ => zero_is_none("expert_shared_feed_forward_length")?,
            },
            latent: zero_is_none("moe_latent_size")?,
            groups: groups.map(|count| Groups { count, keep: keep.unwrap_or(1) }),
            normalise: meta.opt_bool(&key("expert_weights_norm"))?.unwrap_or(false),
            scale: Range::FACTOR.check(&key("expert_weights_scale"), scale)? as f32,
        })
    }

    fn layer(&self, arch: &str, at: usize, ffn: u32) -> Result<Moe, ModelError> {
        let of = |list: &Option<Vec<u32>>| list.as_ref().and_then(|l| l.get(at).copied()).filter(|n| *n > 0);
        Ok(Moe {
            experts: self.experts.ok_or_else(|| missing(&format!("{arch}.expert_count")))?,
            top: of(&self.top).ok_or_else(|| missing(&format!("{arch}.expert_used_count")))?,
            width: of(&self.width).unwrap_or(ffn),
            shared: self.shared,
            latent: self.latent,
            groups: self.groups,
            normalise: self.normalise,
            scale: self.scale,
        })
    }
}
