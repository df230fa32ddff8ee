//! Where a checkpoint keeps its template, and the one tag that is not Jinja.

use super::MAX_SOURCE_BYTES;
use crate::checkpoint::{Checkpoint, SideFiles, gguf, json};
use crate::error::ModelError;
use crate::tokenizer::token_text;
use serde_json::Value;
use std::collections::BTreeMap;

/// A template and the special tokens it may name.
pub(super) struct Found {
    pub source: String,
    pub tokens: BTreeMap<&'static str, String>,
}

const TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

pub(super) fn find(checkpoint: &Checkpoint) -> Result<Option<Found>, ModelError> {
    if let Some(metadata) = checkpoint.metadata() {
        return from_gguf(metadata);
    }
    from_side_files(checkpoint.side())
}

fn from_gguf(metadata: &gguf::Metadata) -> Result<Option<Found>, ModelError> {
    let Some(source) = metadata.opt_str("tokenizer.chat_template")? else { return Ok(None) };
    let texts = metadata.opt_array("tokenizer.ggml.tokens")?;
    let mut tokens = BTreeMap::new();
    let keys = ["bos_token_id", "eos_token_id", "padding_token_id", "unknown_token_id"];
    for (name, key) in TOKENS.into_iter().zip(keys) {
        if let (Some(id), Some(texts)) = (metadata.opt_u64(&format!("tokenizer.ggml.{key}"))?, texts)
            && let Some(text) = usize::try_from(id).ok().and_then(|id| texts.strings().ok()?.nth(id))
        {
            tokens.insert(name, text?.to_owned());
        }
    }
    Ok(Some(Found { source: source.to_owned(), tokens }))
}

fn from_side_files(files: &SideFiles) -> Result<Option<Found>, ModelError> {
    let config = files.json("tokenizer_config.json", json::MAX_CONFIG_BYTES)?;
    let source = if let Some((jinja, bytes)) = files.read("chat_template.jinja", MAX_SOURCE_BYTES as u64)? {
        let text = String::from_utf8(bytes);
        Some(text.map_err(|_| ModelError::corrupt(&jinja, "file", "UTF-8", "other bytes"))?)
    } else {
        let file = files.json("chat_template.json", json::MAX_CONFIG_BYTES)?;
        let template =
            [file.as_ref(), config.as_ref()].into_iter().flatten().find_map(|j| j.get("chat_template"));
        template.map(choose).transpose()?.flatten()
    };
    let tokens = TOKENS
        .into_iter()
        .filter_map(|name| Some((name, token_text(config.as_ref()?, name)?.to_owned())))
        .collect();
    Ok(source.map(|source| Found { source, tokens }))
}

/// One template, or a list of named ones of which "default" is taken, else the first.
fn choose(template: &Value) -> Result<Option<String>, ModelError> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    match template {
        Value::Null => Ok(None),
        Value::String(source) => Ok(Some(source.clone())),
        Value::Array(list) => {
            let named = list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            Ok(named.or(list.first()).and_then(|t| t.get("template")).and_then(text))
        }
        _ => Err(ModelError::field("chat_template", "a text or a list of named texts", "another value")),
    }
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, which the reference library adds to mark what the assistant
/// wrote, by an `if` that is always taken. Whitespace control stays as it is.
pub(super) fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let word_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        for (word, replacement) in [("generation", "if true"), ("endgeneration", "endif")] {
            if let Some(after) = tag[word_at..].strip_prefix(word)
                && after.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
            {
                out.push_str(&tag[..word_at]);
                out.push_str(replacement);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_become_ifs() {
        let source =
            "a{%- generation -%}b{%endgeneration%}c{% set generation = 1 %}{{ generation }}{% generation";
        let adapted = "a{%- if true -%}b{%endif%}c{% set generation = 1 %}{{ generation }}{% generation";
        assert_eq!(without_generation_blocks(source), adapted);
    }
}
