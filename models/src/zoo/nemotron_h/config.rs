//! Sizes of a nemotron_h model and how checkpoints spell them.

use crate::checkpoint::{Checkpoint, Source};
use crate::error::{ModelError, quoted};
use crate::graph::Groups;
use crate::zoo::dense::{epsilon, gguf_per_layer, gguf_size, gguf_vocab, metadata, missing};
use crate::zoo::fields::{Fields, Range, size};
use crate::zoo::llama::SILU;
use crate::zoo::mamba::{Mixer, dt_limit, switch};
use plimsoll_kernels::{AttentionShape, SsmShape};

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::zoo) struct Moe {
    pub experts: u32,
    pub top: u32,
    /// Width of an expert.
    pub width: u32,
    /// Width of the shared expert, where there is one.
    pub shared: Option<u32>,
    /// Width the experts see, where it is not the model's.
    pub latent: Option<u32>,
    pub groups: Option<Groups>,
    pub normalise: bool,
    pub scale: f32,
}

/// What a layer's mixer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Mamba,
    Attention(AttentionShape),
    Mlp(u32),
    Moe(Moe),
}

/// Everything but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub vocab: u32,
    pub hidden: u32,
    pub kinds: Vec<Kind>,
    /// Of the Mamba2 layers, where there are any.
    pub mamba: Option<Mixer>,
    pub eps: f32,
    pub context_max: u32,
    pub tied: bool,
    /// Biases of the attention's projections, and of the MLPs'.
    pub attention_bias: Option<bool>,
    pub mlp_bias: Option<bool>,
    /// Layers after the model's own that predict further tokens.
    pub extra_layers: u32,
    /// What the checkpoint wants the recurrent state kept in.
    pub state_dtype: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Letter {
    Mamba,
    Attention,
    Mlp,
    Moe,
}

/// The layers, from whichever list is there; `num_hidden_layers` may be left out.
fn letters(fields: &Fields<'_>) -> Result<Vec<Letter>, ModelError> {
    const KEYS: [&str; 3] = ["hybrid_override_pattern", "layers_block_type", "layer_types"];
    let mut found: Option<(&str, Vec<Letter>)> = None;
    for key in KEYS {
        let Some(value) = fields.get(key) else { continue };
        let names: Vec<String> = match value.as_str() {
            Some(pattern) => pattern.chars().map(String::from).collect(),
            None => fields.strings(key)?.unwrap_or_default().into_iter().map(str::to_owned).collect(),
        };
        let list = names
            .iter()
            .map(|name| match name.as_str() {
                "M" | "mamba" | "mamba2" | "linear_attention" => Ok(Letter::Mamba),
                "*" | "attention" | "full_attention" => Ok(Letter::Attention),
                "-" | "mlp" => Ok(Letter::Mlp),
                "E" | "moe" => Ok(Letter::Moe),
                other => Err(ModelError::field(
                    key,
                    "M, *, - and E, or mamba, attention, mlp and moe (linear_attention, full_attention)",
                    quoted(other),
                )),
            })
            .collect::<Result<Vec<_>, _>>()?;
        match &found {
            Some((first, other)) if *other != list => {
                return Err(ModelError::field(key, format!("the layers of {first}"), "others"));
            }
            Some(_) => {}
            None => found = Some((key, list)),
        }
    }
    let (key, list) =
        found.ok_or_else(|| ModelError::field(KEYS[0], "a letter for each layer", "nothing"))?;
    if fields.get("num_hidden_layers").is_some() {
        let layers = fields.size("num_hidden_layers", None)?;
        if layers as usize != list.len() {
            return Err(ModelError::field(
                key,
                format!("one for each of {layers} layers"),
                list.len().to_string(),
            ));
        }
    }
    if list.is_empty() {
        return Err(ModelError::field(key, "a letter for each layer", "none"));
    }
    Ok(list)
}

/// The one value under several names that must agree.
pub(in crate::zoo) fn one_of(
    fields: &Fields<'_>,
    keys: &[&str],
    default: Option<u32>,
) -> Result<u32, ModelError> {
    let mut found = None;
    for key in keys {
        if let Some(value) = fields.get(key) {
            let value = size(key, value)?;
            if found.is_some_and(|other| other != value) {
                return Err(ModelError::field(*key, "the same value in all spellings", value.to_string()));
            }
            found = Some(value);
        }
    }
    found.or(default).ok_or_else(|| missing(keys.first().copied().unwrap_or_default()))
}

pub(super) fn from_config(checkpoint: &Checkpoint) -> Result<Config, ModelError> {
    let fields = Fields::of(checkpoint)?;
    let bare = checkpoint.source() == Source::Config;
    fields.activation("mlp_hidden_act", &["relu2", "squared_relu"])?;
    fields.activation("mamba_hidden_act", &SILU)?;
    if fields.get("sliding_window").is_some() {
        return Err(ModelError::unsupported("sliding_window", "nemotron_h with full attention is"));
    }
    let letters = letters(&fields)?;
    let has = |letter: Letter| letters.contains(&letter);
    let hidden = fields.size("hidden_size", None)?;
    let eps_key = ["layer_norm_epsilon", "norm_eps", "rms_norm_eps"]
        .into_iter()
        .find(|key| fields.get(key).is_some())
        .unwrap_or("layer_norm_epsilon");
    let eps = fields.within(eps_key, Some(1e-5), Range::EPSILON)? as f32;
    let mamba = if has(Letter::Mamba) { Some(mixer(&fields, bare, eps)?) } else { None };
    let attention = if has(Letter::Attention) { Some(attention(&fields)?) } else { None };
    let moe = if has(Letter::Moe) { Some(moe(&fields)?) } else { None };
    let ffn = if has(Letter::Mlp) { Some(fields.size("intermediate_size", None)?) } else { None };
    let kinds = letters.iter().map(|letter| match letter {
        Letter::Mamba => Some(Kind::Mamba),
        Letter::Attention => attention.map(Kind::Attention),
        Letter::Mlp => ffn.map(Kind::Mlp),
        Letter::Moe => moe.map(Kind::Moe),
    });
    let bias = |key| Ok::<_, ModelError>(switch(&fields, &[key])?.resolve(bare, false));
    let mlp_bias = bias("mlp_bias")?;
    if mlp_bias == Some(true) && has(Letter::Moe) {
        return Err(ModelError::unsupported("mlp_bias with experts", "experts without biases are"));
    }
    let state_dtype = fields.any(&["mamba_ssm_cache_dtype", "mamba_ssm_dtype"]);
    Config {
        vocab: fields.size("vocab_size", Some(131_072))?,
        hidden,
        kinds: kinds.flatten().collect(),
        mamba,
        eps,
        context_max: fields.size("max_position_embeddings", Some(4096))?,
        tied: fields.flag("tie_word_embeddings", false)?,
        attention_bias: bias("attention_bias")?,
        mlp_bias,
        extra_layers: count(&fields, "num_nextn_predict_layers", 0)?,
        state_dtype: state_dtype.and_then(|v| v.as_str()).map(str::to_owned),
    }
    .checked()
}

/// A count that may be zero.
pub(in crate::zoo) fn count(fields: &Fields<'_>, key: &str, default: u32) -> Result<u32, ModelError> {
    match fields.get(key) {
        None => Ok(default),
        Some(value) if value.as_u64() == Some(0) => Ok(0),
        Some(value) => size(key, value),
    }
}

fn mixer(fields: &Fields<'_>, bare: bool, eps: f32) -> Result<Mixer, ModelError> {
    // `expand` says nothing: the inner width is heads × head size.
    let shape = SsmShape {
        heads: fields.size("mamba_num_heads", None)?,
        head_dim: fields.size("mamba_head_dim", None)?,
        state: one_of(fields, &["ssm_state_size", "mamba_state_dim"], None)?,
        groups: one_of(fields, &["n_groups", "mamba_n_groups", "mamba_num_groups"], Some(8))?,
    };
    Mixer {
        shape,
        taps: one_of(fields, &["conv_kernel", "mamba_d_conv"], Some(4))?,
        eps,
        dt_limit: dt_limit(fields)?,
        conv_bias: switch(fields, &["use_conv_bias"])?.resolve(bare, true),
        proj_bias: switch(fields, &["use_bias", "mamba_proj_bias"])?.resolve(bare, false),
    }
    .checked()
}

fn attention(fields: &Fields<'_>) -> Result<AttentionShape, ModelError> {
    let heads = fields.size("num_attention_heads", None)?;
    Ok(AttentionShape {
        heads,
        kv_heads: fields.size("num_key_value_heads", Some(heads))?,
        head_dim: one_of(fields, &["head_dim", "attention_head_dim"], Some(128))?,
    })
}

fn moe(fields: &Fields<'_>) -> Result<Moe, ModelError> {
    let count_groups = fields.size("n_group", Some(1))?;
    let shared = count(fields, "n_shared_experts", 1)?;
    let latent = match fields.get("moe_latent_size") {
        None => None,
        Some(value) if value.as_u64() == Some(0) => None,
        Some(value) => Some(size("moe_latent_size", value)?),
    };
    Ok(Moe {
        experts: one_of(fields, &["n_routed_experts", "num_experts", "num_local_experts"], None)?,
        top: fields.size("num_experts_per_tok", None)?,
        width: fields.size("moe_intermediate_size", None)?,
        shared: match shared {
            0 => None,
            _ => Some(fields.size("moe_shared_expert_intermediate_size", None)?),
        },
        latent,
        groups: match count_groups {
            1 => None,
            count => Some(Groups { count, keep: fields.size("topk_group", Some(1))? }),
        },
        normalise: fields.flag("norm_topk_prob", true)?,
        scale: fields.within("routed_scaling_factor", Some(1.0), Range::FACTOR)? as f32,
    })
}

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
        state_dtype: None,
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

fn bounded_layers(layers: u32) -> Result<u32, ModelError> {
    if layers <= MAX_LAYERS {
        return Ok(layers);
    }
    Err(ModelError::field("layers", format!("1 to {MAX_LAYERS}"), layers.to_string()))
}

const MAX_LAYERS: u32 = 4096;
/// Published models stay under 2^16.
pub(in crate::zoo) const MAX_EXPERTS: u64 = 1 << 18;

/// Checks what every family has.
pub(in crate::zoo) fn check_outer(vocab: u32, hidden: u32, layers: u32, eps: f32) -> Result<(), ModelError> {
    for (key, value, most) in
        [("layers", layers, MAX_LAYERS), ("hidden size", hidden, 1 << 20), ("vocabulary", vocab, 1 << 28)]
    {
        if value == 0 || value > most {
            return Err(ModelError::field(key, format!("1 to {most}"), value.to_string()));
        }
    }
    Range::EPSILON.check("norm epsilon", eps.into())?;
    Ok(())
}

impl Config {
    /// Sizes that contradict each other, or are beyond anything real, are found before anything is planned.
    fn checked(self) -> Result<Self, ModelError> {
        check_outer(self.vocab, self.hidden, self.kinds.len() as u32, self.eps)?;
        let mut experts = 0;
        for kind in &self.kinds {
            match kind {
                Kind::Mamba => {}
                Kind::Attention(shape) => shape_checked(*shape)?,
                Kind::Mlp(width) => bounded("feed-forward width", *width, 1 << 24)?,
                Kind::Moe(moe) => {
                    moe_checked(moe, self.hidden)?;
                    experts += u64::from(moe.experts);
                }
            }
        }
        if experts > MAX_EXPERTS {
            return Err(ModelError::field(
                "experts of all layers",
                format!("at most {MAX_EXPERTS}"),
                experts.to_string(),
            ));
        }
        Ok(self)
    }
}

pub(in crate::zoo) fn bounded(key: &str, value: u32, most: u32) -> Result<(), ModelError> {
    if value > 0 && value <= most {
        return Ok(());
    }
    Err(ModelError::field(key, format!("1 to {most}"), value.to_string()))
}

/// Checks the heads of an attention layer.
pub(in crate::zoo) fn shape_checked(shape: AttentionShape) -> Result<(), ModelError> {
    let AttentionShape { heads, kv_heads, head_dim } = shape;
    bounded("attention heads", heads, 1 << 16)?;
    bounded("KV heads", kv_heads, 1 << 16)?;
    bounded("head size", head_dim, 1 << 16)?;
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
    Ok(())
}

/// Checks a mixture of experts.
pub(in crate::zoo) fn moe_checked(moe: &Moe, hidden: u32) -> Result<(), ModelError> {
    bounded("experts", moe.experts, 1 << 12)?;
    bounded("expert width", moe.width, 1 << 20)?;
    if let Some(shared) = moe.shared {
        bounded("shared expert width", shared, 1 << 24)?;
    }
    if let Some(latent) = moe.latent {
        bounded("moe_latent_size", latent, 1 << 20)?;
    }
    // Together with the other bounds: the weights of all layers are counted in 64 bits.
    let rows = u64::from(moe.experts) * u64::from(moe.width.max(moe.latent.unwrap_or(hidden)));
    if rows >= 1 << 28 {
        return Err(ModelError::field("experts × width", "under 2^28", rows.to_string()));
    }
    let candidates = match moe.groups {
        None => moe.experts,
        Some(Groups { count, keep }) => {
            // A group is scored by its two best experts.
            if !moe.experts.is_multiple_of(count) || moe.experts / count < 2 {
                return Err(ModelError::field(
                    "n_group",
                    format!("a divisor of the {} experts that leaves two in each", moe.experts),
                    count.to_string(),
                ));
            }
            if keep == 0 || keep > count {
                return Err(ModelError::field("topk_group", format!("1 to {count}"), keep.to_string()));
            }
            moe.experts / count * keep
        }
    };
    if moe.top == 0 || moe.top > candidates {
        return Err(ModelError::field(
            "num_experts_per_tok",
            format!("1 to {candidates}, the experts that stand for choice"),
            moe.top.to_string(),
        ));
    }
    Ok(())
}
