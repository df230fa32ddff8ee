//! Layers with sizes of their own, as `nemotron_h_puzzle` has them: `block_configs` says for each layer what it is and
//! what of the model's sizes is another there, above all the width of experts and how many of them a token visits.

use super::config::{Letter, MAX_LAYERS};
use crate::error::{ModelError, quoted};
use crate::zoo::fields::{Fields, shown};
use serde_json::{Map, Value};

/// The sizes that one layer may have otherwise than the rest.
const SIZES: [&str; 17] = [
    "attention_head_dim",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_key_value_heads",
    "num_local_experts",
    "routed_scaling_factor",
    "topk_group",
];

/// A list of layers with their own sizes.
pub(super) struct Blocks<'a> {
    /// The field that lists them.
    pub key: &'static str,
    list: Vec<&'a Map<String, Value>>,
    fields: Fields<'a>,
}

impl<'a> Blocks<'a> {
    /// The list that a field has; an empty one is none.
    ///
    /// # Errors
    /// When it is another thing than a list of objects, or longer than any model.
    pub(super) fn of(fields: &Fields<'a>, key: &'static str) -> Result<Option<Self>, ModelError> {
        let Some(value) = fields.get(key) else { return Ok(None) };
        fields.knows(&SIZES);
        let list: Option<Vec<_>> =
            value.as_array().and_then(|all| all.iter().map(Value::as_object).collect());
        match list {
            Some(list) if list.is_empty() => Ok(None),
            Some(list) if list.len() <= MAX_LAYERS as usize => Ok(Some(Self { key, list, fields: *fields })),
            Some(list) => {
                Err(ModelError::field(key, format!("at most {MAX_LAYERS} blocks"), list.len().to_string()))
            }
            None => Err(ModelError::field(key, "an object for each layer", shown(value))),
        }
    }

    /// What each block is.
    ///
    /// # Errors
    /// When one says nothing, or nothing known.
    pub(super) fn letters(&self) -> Result<Vec<Letter>, ModelError> {
        let letter = |block: &&Map<String, Value>| {
            let kind = block.get("block_type").and_then(Value::as_str);
            let kind = kind.ok_or_else(|| ModelError::field(self.key, "a block_type in each", "none"))?;
            Letter::of(self.key, kind)
        };
        self.list.iter().map(letter).collect()
    }

    /// The model's sizes as each block has them.
    ///
    /// # Errors
    /// When a block says something that changes a layer in a way that is not built: a window, another recurrent state.
    pub(super) fn sizes(&self) -> Result<Vec<Value>, ModelError> {
        let given = SIZES.iter().filter_map(|key| Some(((*key).to_owned(), self.fields.get(key)?.clone())));
        let model: Map<String, Value> = given.collect();
        let one = |block: &&Map<String, Value>| {
            let mut sizes = model.clone();
            for (key, value) in block.iter().filter(|(_, value)| !value.is_null()) {
                if SIZES.contains(&key.as_str()) {
                    sizes.insert(key.clone(), value.clone());
                } else if key != "block_type" && self.fields.get(key) != Some(value) {
                    return Err(ModelError::unsupported(
                        format!("{} with {} of its own", self.key, quoted(key)),
                        "widths, heads and experts of single layers are",
                    ));
                }
            }
            Ok(Value::Object(sizes))
        };
        self.list.iter().map(one).collect()
    }
}
