//! These families from GGUF metadata, and what public writers do to the values.
//!
//! Established from the text of llama.cpp's writer (`conversion/qwen.py`, `conversion/base.py`, names by gguf-py's
//! `tensor_mapping.py`) and reader (`src/models/qwen3moe.cpp`, `qwen3next.cpp`, `qwen35.cpp`, `qwen35moe.cpp`), which
//! agree; Ollama's writer (`convert_qwen3next.go`) does the same to the values. A float64 forward pass written after that
//! reader answers files written after that writer as the reference answers their sources (`tests/golden/qwen_gguf.py`).
//!
//! | tensor | its values | here |
//! |---|---|---|
//! | norms of qwen3next, qwen35 and qwen35moe, but for the gated one | `1 + w` | no 1 is added |
//! | norms of qwen3moe | as published | |
//! | `ssm_a` `[Hv]` | `−exp(A_log)` | read as it is |
//! | `ssm_dt.bias` `[Hv]`; Ollama's `ssm_dt` | `dt_bias` | |
//! | `ssm_conv1d` `[channels, taps]` | the dimension of 1 is gone | |
//! | `attn_q` of gated attention | as published: each head has its query, then its gate | rows are gathered |
//! | qwen3next's `attn_qkv` and `attn_gate` | all q, k and v; all z | read whole |
//! | qwen3next's `ssm_in`, in older files instead | as published, grouped by key heads | rows are gathered |
//! | qwen3next's `ssm_ba` | as published, grouped by key heads | rows are gathered |
//! | `ffn_*_exps` | stacks `[E, rows, cols]`; gates and ups perhaps in one, gates first | |
//! | `ffn_gate_inp_shexp` | `[1, D]`; `[D]` once the quantiser has rewritten it | either is one row |
//! | `rope.dimension_sections` | the pairs of time, height, width, and 0 | without effect on text |
//! | draft layers | the last `nextn_predict_layers` of the blocks | left out |
//!
//! No rows are permuted for the rope: halves of the first `rope.dimension_count` channels turn.
//!
//! In qwen35 and qwen35moe, value heads come to take turns: head `k·R + r` of the `Hg × R` that checkpoints group by key
//! heads stands at `r·Hg + k`, in the rows of v in `attn_qkv`, in `attn_gate`, `ssm_alpha`, `ssm_beta`, `ssm_a` and
//! `ssm_dt.bias`, in the channels of v in `ssm_conv1d` and in the columns of `ssm_out`. There they stay, and head `h`
//! reads key head `h mod Hg`: columns cannot be put back in a quantised file, where blocks of 256 weights span heads of 128.
//!
//! `norm_topk_prob` is not written, and the reader always normalises: so does this, unless a file states otherwise.
//! Layers are all of one kind there: experts in each of the mixtures, none in qwen35.

use super::Family;
use super::config::{Config, DeltaSizes, Ffn, Mixer};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::gguf::Metadata;
use crate::error::ModelError;
use crate::zoo::dense::{epsilon, gguf_per_layer, gguf_size, gguf_vocab, metadata, missing, rope_from_gguf};
use crate::zoo::nemotron_h::{Moe, bounded, shape_checked};
use plimsoll_kernels::{AttentionShape, DeltaShape};

/// One file's metadata, by the names after the architecture's.
struct Keys<'a> {
    meta: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn opt(&self, name: &str) -> Result<Option<u32>, ModelError> {
        gguf_size(self.meta, &self.key(name))
    }

    fn required(&self, name: &str) -> Result<u32, ModelError> {
        self.opt(name)?.ok_or_else(|| missing(&self.key(name)))
    }

    /// Refuses a stated value other than those that mean nothing.
    fn only(&self, name: &str, known: &[f64], what: &str) -> Result<(), ModelError> {
        match self.meta.opt_f64(&self.key(name))? {
            Some(value) if !known.contains(&value) => {
                Err(ModelError::unsupported(format!("{} {value}", self.key(name)), what))
            }
            _ => Ok(()),
        }
    }
}

/// Everything but the tensors, from GGUF metadata.
pub(super) fn from_gguf(checkpoint: &Checkpoint, arch: &str, family: Family) -> Result<Config, ModelError> {
    let keys = Keys { meta: metadata(checkpoint)?, arch };
    let hidden = keys.required("embedding_length")?;
    let blocks = keys.required("block_count")?;
    bounded("layers", blocks, 4096)?;
    let extra = keys.meta.opt_u64(&keys.key("nextn_predict_layers"))?.unwrap_or(0);
    let layers = u64::from(blocks).checked_sub(extra).filter(|&n| n > 0).ok_or_else(|| {
        ModelError::field(keys.key("nextn_predict_layers"), format!("under {blocks}"), extra.to_string())
    })? as usize;
    let plain = family == Family::Moe3;
    let mixers = if plain { vec![Mixer::Attention; layers] } else { mixers(&keys, blocks, layers)? };
    let shape = heads(&keys, hidden, blocks, &mixers)?;
    shape_checked(shape)?;
    keys.only("attention.scale", &[0.0], "1/√(head size) is")?;
    sections(&keys)?;
    let delta = if mixers.contains(&Mixer::Delta) { Some(delta(&keys, family)?) } else { None };
    let ffn = match family {
        Family::Dense35 => Ffn::Dense(keys.required("feed_forward_length")?),
        Family::Moe3 | Family::Moe35 | Family::Next => Ffn::Moe(moe(&keys, family)?),
    };
    let bias = |layer: usize| checkpoint.tensor(&format!("blk.{layer}.attn_q.bias")).is_some();
    let biased = (0..layers).any(bias);
    if biased && !plain {
        return Err(ModelError::unsupported("attn_q.bias", "gated attention without biases is"));
    }
    Config {
        vocab: gguf_vocab(keys.meta, arch)?,
        hidden,
        layers: mixers.into_iter().map(|mixer| (mixer, ffn)).collect(),
        shape,
        delta,
        eps: epsilon(keys.meta, arch)?,
        context_max: keys.required("context_length")?,
        tied: checkpoint.tensor("output.weight").is_none(),
        biased,
        nested: false,
        notes: vec![],
        rope: rope_from_gguf(checkpoint, arch, 10_000.0, shape.head_dim)?,
    }
    .checked()
}

/// Which layers attend: a list of those that do not, or every `full_attention_interval`-th. Draft layers may be listed.
fn mixers(keys: &Keys<'_>, blocks: u32, layers: usize) -> Result<Vec<Mixer>, ModelError> {
    let list = keys.key("attention.recurrent_layers");
    let recurrent: Vec<bool> = match keys.meta.opt_array(&list)? {
        Some(array) => {
            let flags = array.bools().or_else(|_| {
                let numbers = array.u64s()?;
                Ok::<_, ModelError>(numbers.iter().map(|n| *n != 0).collect())
            })?;
            if flags.len() != blocks as usize && flags.len() != layers {
                let expected = format!("one for each of {blocks} layers");
                return Err(ModelError::field(list, expected, flags.len().to_string()));
            }
            flags
        }
        None => {
            let interval = keys.opt("full_attention_interval")?.unwrap_or(4);
            (1..=layers as u64).map(|n| !n.is_multiple_of(u64::from(interval))).collect()
        }
    };
    let mixer = |recurrent: bool| if recurrent { Mixer::Delta } else { Mixer::Attention };
    Ok(recurrent.into_iter().take(layers).map(mixer).collect())
}

/// The heads, which may be listed for each layer, with anything for those that do not attend.
fn heads(keys: &Keys<'_>, hidden: u32, blocks: u32, mixers: &[Mixer]) -> Result<AttentionShape, ModelError> {
    let of_attending = |name: &str| -> Result<Option<u32>, ModelError> {
        let key = keys.key(name);
        let Some(all) = gguf_per_layer(keys.meta, &key, blocks)? else { return Ok(None) };
        let mut attending = all.iter().zip(mixers).filter(|(_, m)| **m == Mixer::Attention).map(|(n, _)| *n);
        let Some(first) = attending.next() else { return Ok(all.into_iter().find(|n| *n > 0)) };
        if first == 0 || attending.any(|n| n != first) {
            let expected = "one number above 0 for all layers that attend";
            return Err(ModelError::field(key, expected, format!("{all:?}")));
        }
        Ok(Some(first))
    };
    let key = "attention.head_count";
    let heads = of_attending(key)?.ok_or_else(|| missing(&keys.key(key)))?;
    let kv_heads = of_attending("attention.head_count_kv")?.unwrap_or(heads);
    let head_dim = match keys.opt("attention.key_length")? {
        Some(length) => length,
        None => hidden / heads.max(1),
    };
    if let Some(value) = keys.opt("attention.value_length")?
        && value != head_dim
    {
        return Err(ModelError::unsupported(
            format!("value heads of {value} beside key heads of {head_dim}"),
            "heads of one size",
        ));
    }
    Ok(AttentionShape { heads, kv_heads, head_dim })
}

/// Pairs of time, height and width: any division turns a text token alike, so only their form is looked at.
fn sections(keys: &Keys<'_>) -> Result<(), ModelError> {
    let key = keys.key("rope.dimension_sections");
    let Some(array) = keys.meta.opt_array(&key)? else { return Ok(()) };
    match array.u64s()?.len() {
        3 | 4 => Ok(()),
        other => Err(ModelError::field(key, "three or four numbers of pairs", other.to_string())),
    }
}

fn delta(keys: &Keys<'_>, family: Family) -> Result<DeltaSizes, ModelError> {
    // The number of heads goes by this name, the key's size by that of the state.
    let (heads, inner) = (keys.required("ssm.time_step_rank")?, keys.required("ssm.inner_size")?);
    if !inner.is_multiple_of(heads) {
        let expected = format!("a multiple of the {heads} value heads");
        return Err(ModelError::field(keys.key("ssm.inner_size"), expected, inner.to_string()));
    }
    let shape = DeltaShape {
        heads,
        key_heads: keys.required("ssm.group_count")?,
        key_dim: keys.required("ssm.state_size")?,
        value_dim: inner / heads,
    };
    // Ollama's writer states what both public readers otherwise take from the architecture.
    let stated = keys.meta.opt_bool(&keys.key("ssm.v_head_reordered"))?;
    let tiled = stated.unwrap_or(family != Family::Next);
    let names = ["time_step_rank", "group_count", "state_size", "inner_size", "conv_kernel"];
    let names = names.map(|name| keys.key(&format!("ssm.{name}")));
    DeltaSizes { shape, taps: keys.required("ssm.conv_kernel")?, tiled }.checked(&names)
}

fn moe(keys: &Keys<'_>, family: Family) -> Result<Moe, ModelError> {
    keys.only("expert_gating_func", &[0.0, 1.0], "1, the softmax, is")?;
    keys.only("expert_weights_scale", &[0.0, 1.0], "experts without a factor are")?;
    keys.only("expert_group_count", &[0.0, 1.0], "experts in one group are")?;
    let flag = |name: &str| keys.meta.opt_bool(&keys.key(name));
    let normalise = flag("expert_weights_norm")?.or(flag("norm_top_k_prob")?).unwrap_or(true);
    if !normalise && family == Family::Moe35 {
        return Err(ModelError::unsupported("norm_top_k_prob false", "this family normalises weights"));
    }
    let top = keys.required("expert_used_count")?;
    let width = match (keys.opt("expert_feed_forward_length")?, keys.opt("feed_forward_length")?) {
        (Some(width), _) => width,
        (None, Some(all)) => all / top,
        (None, None) => return Err(missing(&keys.key("expert_feed_forward_length"))),
    };
    let shared = match family {
        Family::Moe3 => None,
        _ => Some(match keys.opt("expert_shared_feed_forward_length")? {
            Some(width) => width,
            None => keys.required("feed_forward_length")?,
        }),
    };
    let experts = keys.required("expert_count")?;
    Ok(Moe { experts, top, width, shared, latent: None, groups: None, normalise, scale: 1.0 })
}

/// The tensor of a module, by the published names of modules in a layer; `None` for names that no file has.
pub(super) fn tensor(module: &str, plain: bool) -> Option<&'static str> {
    Some(match module {
        "embed_tokens" => "token_embd.weight",
        "norm" => "output_norm.weight",
        "input_layernorm" => "attn_norm.weight",
        "post_attention_layernorm" if plain => "ffn_norm.weight",
        "post_attention_layernorm" => "post_attention_norm.weight",
        "self_attn.q_proj" => "attn_q.weight",
        "self_attn.k_proj" => "attn_k.weight",
        "self_attn.v_proj" => "attn_v.weight",
        "self_attn.o_proj" => "attn_output.weight",
        "self_attn.q_norm" => "attn_q_norm.weight",
        "self_attn.k_norm" => "attn_k_norm.weight",
        "linear_attn.in_proj_qkv" => "attn_qkv.weight",
        "linear_attn.in_proj_z" => "attn_gate.weight",
        "linear_attn.in_proj_b" => "ssm_beta.weight",
        "linear_attn.in_proj_a" => "ssm_alpha.weight",
        "linear_attn.in_proj_qkvz" => "ssm_in.weight",
        "linear_attn.in_proj_ba" => "ssm_ba.weight",
        "linear_attn.conv1d" => "ssm_conv1d.weight",
        "linear_attn.A_log" => "ssm_a",
        "linear_attn.dt_bias" => "ssm_dt.bias",
        "linear_attn.norm" => "ssm_norm.weight",
        "linear_attn.out_proj" => "ssm_out.weight",
        "mlp.gate_proj" => "ffn_gate.weight",
        "mlp.up_proj" => "ffn_up.weight",
        "mlp.down_proj" => "ffn_down.weight",
        "mlp.gate" => "ffn_gate_inp.weight",
        "mlp.shared_expert_gate" => "ffn_gate_inp_shexp.weight",
        "mlp.shared_expert.gate_proj" => "ffn_gate_shexp.weight",
        "mlp.shared_expert.up_proj" => "ffn_up_shexp.weight",
        "mlp.shared_expert.down_proj" => "ffn_down_shexp.weight",
        _ => return None,
    })
}
