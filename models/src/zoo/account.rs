//! The account of a model that was built: what of its checkpoint no layer reads.
//!
//! A family asks for the tensors it needs, and would never notice those it has no use for: layers past the number that
//! the configuration states, biases that it denies, norms that another family has. Each is another model than the
//! checkpoint's. So what is left over must be known to say nothing of the text model, or the checkpoint is refused.

use super::fields::Fields;
use crate::checkpoint::{Checkpoint, Source};
use crate::error::ModelError;
use crate::model::Model;
use std::collections::HashSet;

/// Ends of names that say nothing of the weights, in every family: scales and ranges of activations and of KV caches,
/// which stay floats here; what packers note beside a matrix; rotations that a configuration states.
const SIDE: [&str; 17] = [
    ".input_scale",
    ".input_scale_2",
    ".input_global_scale",
    ".input_zero_point",
    ".input_amax",
    ".input_quantizer._amax",
    ".output_scale",
    ".output_quantizer._amax",
    ".weight_quantizer._amax",
    ".weight_shape",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".prob_scale",
    ".prob_output_scale",
    ".rotary_emb.inv_freq",
    ".attn_rot_embd.weight",
];

/// GGUF's divisors of frequencies, which rotations have read.
const DIVISORS: &str = "rope_freqs.weight";

/// Parts of a layer that are there and unused where it shares the keys and values of an earlier one.
const SHARED: [&str; 7] = [
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.k_norm",
    "self_attn.v_norm",
    "attn_k",
    "attn_v",
    "attn_k_norm",
];

/// Checks that nothing of the text model was left unread.
///
/// The text model's layers are those that stand beside one that is read: `model.layers.7` beside `model.layers.0`, and
/// not `model.visual.blocks.7`. Of other tensors (towers, layers that predict further tokens, tables of their own) only
/// a bias or a factor of something that is read counts as a part of it; of GGUF's, all. Answers the others.
///
/// # Errors
/// [`ModelError::Field`], which names the first such tensor.
pub(super) fn check<'c>(checkpoint: &'c Checkpoint, model: &Model) -> Result<Vec<&'c str>, ModelError> {
    // A configuration alone has no tensors, and the sets below are not made for nothing.
    if checkpoint.names().next().is_none() {
        return Ok(Vec::new());
    }
    let matrices = model.matrices.iter().flat_map(|m| m.source.tensors());
    // Of an index without its shards, what was taken, under whichever of its names.
    let taken = checkpoint.taken();
    let read: HashSet<&str> = match checkpoint.has_list() {
        true => taken.iter().map(String::as_str).collect(),
        false => matrices.chain(model.vectors.iter().flat_map(|v| v.tensors())).collect(),
    };
    let stacks: HashSet<&str> =
        read.iter().filter_map(|name| numbered(name)).map(|(stack, ..)| stack).collect();
    let drafts = drafts(checkpoint);
    let mut first: Option<(u32, &str)> = None;
    let mut left = Vec::new();
    for tensor in checkpoint.names().filter(|name| !read.contains(name)) {
        if SIDE.iter().any(|end| tensor.ends_with(end)) {
            continue;
        }
        let found = match numbered(tensor).filter(|(stack, ..)| stacks.contains(stack)) {
            Some((_, layer, _)) if layer >= model.layers && layer - model.layers < drafts => None,
            Some((stack, layer, part)) if !shares(model, &read, stack, layer, part) => Some((layer, tensor)),
            Some(_) => None,
            // GGUF has no towers: a file is a text model.
            None if checkpoint.source() == Source::Gguf => (tensor != DIVISORS).then_some((0, tensor)),
            None if belongs(tensor, &read) => Some((0, tensor)),
            None => {
                // A head that is the embedding over again is no other weight.
                if !tensor.split('.').any(|part| part == "lm_head") {
                    left.push(tensor);
                }
                None
            }
        };
        if let Some(found) = found
            && first.is_none_or(|first| found < first)
        {
            first = Some(found);
        }
    }
    let Some((layer, name)) = first else {
        left.sort_unstable();
        return Ok(left);
    };
    let key = format!("tensor {}", crate::error::quoted(name));
    Err(if layer >= model.layers {
        let expected = format!("one of the {} layers that the checkpoint states", model.layers);
        ModelError::field(key, expected, format!("one of layer {layer}, counted from 0"))
    } else {
        let expected = format!("a part that this configuration of {} has", model.architecture);
        ModelError::field(key, expected, "one that nothing reads")
    })
}

/// What is to be said of a head that is there though the configuration says that there is none.
pub(super) fn head_note(checkpoint: &Checkpoint, model: &Model) -> Option<String> {
    use crate::graph::Op;
    // As these families have it where nothing states it.
    let tied = matches!(model.architecture.as_str(), "gemma3" | "gemma4");
    let tied = Fields::of(checkpoint).ok()?.flag("tie_word_embeddings", tied).ok()?;
    if !tied || checkpoint.source() != Source::Safetensors {
        return None;
    }
    let head = model.graph.ops.iter().find_map(|(_, op)| match op {
        Op::Linear { parts, out, .. } if *out == model.graph.logits => model.matrix(*parts.first()?),
        _ => None,
    })?;
    let table = model.graph.ops.iter().find_map(|(_, op)| match op {
        Op::Embed { table, .. } => model.matrix(*table),
        _ => None,
    })?;
    let (head, table) = (head.source.name(), table.source.name());
    (head != table).then(|| {
        format!(
            "tie_word_embeddings holds, but {head} is there and differs from {table}: it makes the logits"
        )
    })
}

/// A name with a number among its parts: what is before the number, the number, what follows.
fn numbered(name: &str) -> Option<(&str, u32, &str)> {
    let mut start = 0;
    for part in name.split('.') {
        let end = start + part.len();
        if part.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = part.parse()
        {
            return Some((&name[..start], number, name.get(end + 1..).unwrap_or_default()));
        }
        start = end + 1;
    }
    None
}

/// Layers after the model's own that predict further tokens, as the checkpoint counts them.
pub(super) fn drafts(checkpoint: &Checkpoint) -> u32 {
    if let Some(meta) = checkpoint.metadata() {
        let arch = super::stated(checkpoint).unwrap_or_default();
        let stated = meta.opt_u64(&format!("{arch}.nextn_predict_layers")).ok().flatten();
        return stated.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    }
    let Ok(fields) = Fields::aside(checkpoint) else { return 0 };
    // Of a family that does not know them they are told among what is not priced.
    let known = |key: &&str| checkpoint.asked().holds(key);
    let mut keys = ["num_nextn_predict_layers", "mtp_num_hidden_layers"].into_iter().filter(known);
    let stated = keys.find_map(|key| fields.get(key)).and_then(|v| v.as_u64());
    stated.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

/// Whether `part` is of the keys and values of a layer that reads another's.
fn shares(model: &Model, read: &HashSet<&str>, stack: &str, layer: u32, part: &str) -> bool {
    let of = |part: &str, name: &str| name.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
    let kept = ["self_attn.k_proj.", "attn_k."].map(|part| format!("{stack}{layer}.{part}"));
    model.architecture == "gemma4"
        && layer < model.layers
        && SHARED.iter().any(|shared| of(shared, part))
        && !read.iter().any(|name| kept.iter().any(|kept| name.starts_with(kept.as_str())))
}

/// Whether a tensor is a bias or a factor of a matrix that is read.
fn belongs(name: &str, read: &HashSet<&str>) -> bool {
    let Some((module, part)) = name.rsplit_once('.') else { return false };
    matches!(
        part,
        "bias" | "biases" | "scale" | "scales" | "weight_scale" | "weight_scale_2" | "weight_scale_inv"
    ) && read.contains(format!("{module}.weight").as_str())
}
