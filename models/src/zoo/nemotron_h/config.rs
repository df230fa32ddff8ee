//! Sizes of a nemotron_h model and how checkpoints spell them.

use super::blocks::Blocks;
use crate::checkpoint::{Checkpoint, Source};
use crate::error::{ModelError, quoted};
use crate::graph::Groups;
use crate::zoo::dense::missing;
use crate::zoo::fields::{Fields, Range, size};
use crate::zoo::llama::SILU;
use crate::zoo::mamba::{Mixer, chunk, dt_limit, switch};
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
    /// What each of those is made of, where the configuration says so.
    pub draft: Vec<Kind>,
    /// What the checkpoint wants the recurrent state kept in.
    pub state_dtype: Option<String>,
    /// Tokens of a chunk of the recurrence, where the configuration says so.
    pub state_chunk: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Letter {
    Mamba,
    Attention,
    Mlp,
    Moe,
}

impl Letter {
    /// What `key` calls a kind of layer.
    pub(super) fn of(key: &str, name: &str) -> Result<Self, ModelError> {
        match name {
            "M" | "mamba" | "mamba2" | "linear_attention" => Ok(Self::Mamba),
            "*" | "attention" | "full_attention" => Ok(Self::Attention),
            "-" | "mlp" => Ok(Self::Mlp),
            "E" | "moe" => Ok(Self::Moe),
            other => Err(ModelError::field(
                key,
                "M, *, - and E, or mamba, attention, mlp and moe (linear_attention, full_attention)",
                quoted(other),
            )),
        }
    }
}

/// The layers that a key lists, be it as one text of letters or as names.
fn listed(fields: &Fields<'_>, key: &str) -> Result<Option<Vec<Letter>>, ModelError> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    let names: Vec<String> = match value.as_str() {
        Some(pattern) => pattern.chars().map(String::from).collect(),
        None => fields.strings(key)?.unwrap_or_default().into_iter().map(str::to_owned).collect(),
    };
    names.iter().map(|name| Letter::of(key, name)).collect::<Result<_, _>>().map(Some)
}

/// The layers, from whichever list is there; `num_hidden_layers` may be left out.
fn letters(fields: &Fields<'_>, blocks: Option<&Blocks<'_>>) -> Result<Vec<Letter>, ModelError> {
    const KEYS: [&str; 3] = ["hybrid_override_pattern", "layers_block_type", "layer_types"];
    let mut found: Option<(&str, Vec<Letter>)> = match blocks {
        Some(blocks) => Some((blocks.key, blocks.letters()?)),
        None => None,
    };
    for key in KEYS {
        let Some(list) = listed(fields, key)? else { continue };
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
    let blocks = Blocks::of(&fields, "block_configs")?;
    let letters = letters(&fields, blocks.as_ref())?;
    let has = |letter: Letter| letters.contains(&letter);
    let hidden = fields.size("hidden_size", None)?;
    let eps_key = ["layer_norm_epsilon", "norm_eps", "rms_norm_eps"]
        .into_iter()
        .find(|key| fields.get(key).is_some())
        .unwrap_or("layer_norm_epsilon");
    let eps = fields.within(eps_key, Some(1e-5), Range::EPSILON)? as f32;
    let mamba = if has(Letter::Mamba) { Some(mixer(&fields, bare, eps)?) } else { None };
    let kinds = kinds(&fields, &letters, blocks.as_ref())?;
    let extra_layers = count(&fields, "num_nextn_predict_layers", 0)?;
    // Of the experts that are there.
    fields.knows(&["moe_shared_expert_intermediate_size"]);
    fields.knows(&["mtp_block_configs", "mtp_hybrid_override_pattern", "mtp_layers_block_type"]);
    let draft = if extra_layers > 0 { draft(&fields)? } else { vec![] };
    let bias = |key| Ok::<_, ModelError>(switch(&fields, &[key])?.resolve(bare, false));
    let mlp_bias = bias("mlp_bias")?;
    if mlp_bias == Some(true) && has(Letter::Moe) {
        return Err(ModelError::unsupported("mlp_bias with experts", "experts without biases are"));
    }
    let state_dtype = fields.any(&["mamba_ssm_cache_dtype", "mamba_ssm_dtype"]);
    Config {
        vocab: fields.size("vocab_size", Some(131_072))?,
        hidden,
        kinds,
        mamba,
        eps,
        context_max: fields.size("max_position_embeddings", Some(4096))?,
        tied: fields.flag("tie_word_embeddings", false)?,
        attention_bias: bias("attention_bias")?,
        mlp_bias,
        extra_layers,
        draft,
        state_dtype: state_dtype.and_then(|v| v.as_str()).map(str::to_owned),
        state_chunk: chunk(&fields)?,
    }
    .checked()
}

/// What each of some layers is: as the model has it, or as their own blocks do.
fn kinds(
    fields: &Fields<'_>,
    letters: &[Letter],
    blocks: Option<&Blocks<'_>>,
) -> Result<Vec<Kind>, ModelError> {
    let kind = |fields: &Fields<'_>, letter: Letter| {
        Ok::<_, ModelError>(match letter {
            Letter::Mamba => Kind::Mamba,
            Letter::Attention => Kind::Attention(attention(fields)?),
            Letter::Mlp => Kind::Mlp(fields.size("intermediate_size", None)?),
            Letter::Moe => Kind::Moe(moe(fields)?),
        })
    };
    let Some(blocks) = blocks else {
        return letters.iter().map(|letter| kind(fields, *letter)).collect();
    };
    let sizes = blocks.sizes()?;
    letters.iter().zip(&sizes).map(|(letter, sizes)| kind(&Fields::over(sizes), *letter)).collect()
}

/// What a stack of layers that draft is made of. Nothing where no field says so.
fn draft(fields: &Fields<'_>) -> Result<Vec<Kind>, ModelError> {
    let blocks = Blocks::of(fields, "mtp_block_configs")?;
    let mut letters = blocks.as_ref().map(Blocks::letters).transpose()?;
    for key in ["mtp_hybrid_override_pattern", "mtp_layers_block_type"] {
        let Some(list) = listed(fields, key)?.filter(|list| !list.is_empty()) else { continue };
        if letters.as_ref().is_some_and(|other| *other != list) {
            return Err(ModelError::field(
                key,
                "the layers of the other lists of layers that draft",
                "others",
            ));
        }
        letters = Some(list);
    }
    kinds(fields, &letters.unwrap_or_default(), blocks.as_ref())
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

pub(super) fn bounded_layers(layers: u32) -> Result<u32, ModelError> {
    if layers <= MAX_LAYERS {
        return Ok(layers);
    }
    Err(ModelError::field("layers", format!("1 to {MAX_LAYERS}"), layers.to_string()))
}

pub(super) const MAX_LAYERS: u32 = 4096;
/// More layers that draft than any model has.
const MAX_DRAFTS: u64 = 256;
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
    pub(super) fn checked(self) -> Result<Self, ModelError> {
        check_outer(self.vocab, self.hidden, self.kinds.len() as u32, self.eps)?;
        let mut experts = 0;
        let drafts = u64::from(self.extra_layers).saturating_mul(self.draft.len() as u64);
        if drafts > MAX_DRAFTS {
            let expected = format!("at most {MAX_DRAFTS} layers that draft");
            return Err(ModelError::field("num_nextn_predict_layers", expected, drafts.to_string()));
        }
        if self.mamba.is_none() && self.draft.contains(&Kind::Mamba) {
            return Err(ModelError::unsupported(
                "layers that draft with a recurrent state beside a model without one",
                "those of the model's own kinds are",
            ));
        }
        for kind in self.kinds.iter().chain(&self.draft) {
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
