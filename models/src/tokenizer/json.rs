//! tokenizer.json, with what tokenizer_config.json, generation_config.json and config.json say about its ends.
//!
//! The file is checked before the `tokenizers` crate sees it, because that crate trusts its own files: a merge of
//! tokens whose join is in no vocabulary, for one, writes past a buffer there.

use super::decode::Spelling;
use super::{Kind, MAX_VOCABULARY, Parts, Piece, Tokenizer};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::json as file;
use crate::error::{ModelError, quoted};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::tokenizer::{Encoding, Token};
use tokenizers::{Model as _, Tokenizer as Pipeline};

/// The largest published tokenizer.json have about 35 MB.
const MAX_BYTES: u64 = 256 << 20;

/// Stands for the text when the post-processor is asked what it puts around one.
const TEXT: u32 = u32::MAX;

pub(super) fn from_side_files(checkpoint: &Checkpoint) -> Result<Option<Tokenizer>, ModelError> {
    let files = checkpoint.side();
    let Some((path, bytes)) = files.read("tokenizer.json", MAX_BYTES)? else { return Ok(None) };
    let config = files.json("tokenizer_config.json", file::MAX_CONFIG_BYTES)?;
    let sides =
        Sides { tokenizer: config, generation: checkpoint.generation_config(), model: checkpoint.config() };
    build(&bytes, &path, &sides).map(Some)
}

pub(super) fn from_bytes(bytes: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, ModelError> {
    let config = config.map(|c| file::parse(c, Path::new("tokenizer_config.json"))).transpose()?;
    let sides = Sides { tokenizer: config, generation: None, model: None };
    build(bytes, Path::new("tokenizer.json"), &sides)
}

/// The files beside tokenizer.json.
struct Sides<'a> {
    tokenizer: Option<Value>,
    generation: Option<&'a Value>,
    model: Option<&'a Value>,
}

fn build(bytes: &[u8], path: &Path, sides: &Sides<'_>) -> Result<Tokenizer, ModelError> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| ModelError::corrupt(path, "file", "UTF-8", "other bytes"))?;
    let stated = {
        let json: Value = file::from_str(text, path)?;
        check(&json)?
    };
    let parse = || Pipeline::from_bytes(text.as_bytes());
    // A second net under the checks: whatever that crate still asserts is this file's error, not our abort.
    let parsed = catch_unwind(AssertUnwindSafe(parse)).map_err(|_| {
        ModelError::tokenizer("tokenizer.json", "a file the tokenizers crate can build", "a panic in it")
    })?;
    let mut pipeline =
        parsed.map_err(|e| ModelError::corrupt(path, "tokenizer", "a valid tokenizer", e.to_string()))?;
    // Cutting and padding are the caller's business.
    let truncation = pipeline.with_truncation(None).map(|_| ());
    truncation.map_err(|e| ModelError::tokenizer("truncation", "none", e.to_string()))?;
    pipeline.with_padding(None);

    for (content, id) in &stated.added {
        if pipeline.token_to_id(content) != Some(*id) {
            let got = format!("{:?}", pipeline.token_to_id(content));
            return Err(ModelError::tokenizer(
                format!("added token {}", quoted(content)),
                format!("id {id}"),
                got,
            ));
        }
    }
    let pieces = pieces(&pipeline)?;
    let (mut prefix, suffix) = around(&pipeline)?;
    let bos = named(sides, &pipeline, "bos_token", "bos_token_id");
    let eos = named(sides, &pipeline, "eos_token", "eos_token_id");
    // An explicit rule beats the post-processor, as in the reference library.
    match (sides.tokenizer.as_ref().and_then(|c| c.get("add_bos_token")).and_then(Value::as_bool), bos) {
        (Some(true), Some(bos)) if prefix.first() != Some(&bos) => prefix.insert(0, bos),
        (Some(false), Some(bos)) => prefix.retain(|&id| id != bos),
        _ => {}
    }
    let ends = ends(sides, pieces.len());
    Tokenizer::new(Parts { pipeline, pieces, spelling: stated.spelling, prefix, suffix, bos, eos, ends })
}

/// What the file itself says, once it has been found consistent.
struct Stated {
    spelling: Spelling,
    added: Vec<(String, u32)>,
}

fn wrong(place: impl Into<String>, expected: &str, got: impl Into<String>) -> ModelError {
    ModelError::tokenizer(place, expected, got)
}

fn check(json: &Value) -> Result<Stated, ModelError> {
    let model = json.get("model").unwrap_or(&Value::Null);
    match model.get("type").and_then(Value::as_str) {
        // Files from before the field existed are BPE when they have merges.
        Some("BPE") => check_bpe(model)?,
        None if model.get("merges").is_some() => check_bpe(model)?,
        Some("Unigram") => check_unigram(model)?,
        other => {
            return Err(ModelError::unsupported(
                format!("tokenizer model {}", quoted(other.unwrap_or("without a type"))),
                "known are BPE and Unigram",
            ));
        }
    }
    let mut added = Vec::new();
    for (i, token) in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let place = || format!("added_tokens[{i}]");
        let content = token
            .get("content")
            .and_then(Value::as_str)
            .ok_or_else(|| wrong(place(), "a content", "none"))?;
        let id = check_id(token.get("id").unwrap_or(&Value::Null), place)?;
        if !content.is_empty() {
            added.push((content.to_owned(), id));
        }
    }
    check_templates(json.get("post_processor").unwrap_or(&Value::Null), 0)?;
    Ok(Stated { spelling: spelling(json.get("decoder").unwrap_or(&Value::Null))?, added })
}

fn check_id(value: &Value, place: impl Fn() -> String) -> Result<u32, ModelError> {
    match value.as_u64() {
        Some(id) if id < MAX_VOCABULARY as u64 => Ok(id as u32),
        _ => Err(ModelError::tokenizer(
            place(),
            format!("an id below {MAX_VOCABULARY}"),
            quoted(&value.to_string()),
        )),
    }
}

/// Every special token that a template puts around the text must be described beside it.
fn check_templates(processor: &Value, depth: usize) -> Result<(), ModelError> {
    // Parsing bounded the depth; sequences of sequences have no use.
    if depth > 4 {
        return Err(wrong("post_processor", "at most 4 nested sequences", "more"));
    }
    for inner in processor.get("processors").and_then(Value::as_array).into_iter().flatten() {
        check_templates(inner, depth + 1)?;
    }
    let described = processor.get("special_tokens").and_then(Value::as_object);
    for key in ["single", "pair"] {
        for piece in processor.get(key).and_then(Value::as_array).into_iter().flatten() {
            let id = piece.get("SpecialToken").and_then(|t| t.get("id")).and_then(Value::as_str);
            if let Some(id) = id
                && described.is_none_or(|d| !d.contains_key(id))
            {
                return Err(wrong(
                    format!("post_processor.{key}"),
                    "tokens of its special_tokens",
                    quoted(id),
                ));
            }
        }
    }
    Ok(())
}

fn check_bpe(model: &Value) -> Result<(), ModelError> {
    let empty = |key: &str| model.get(key).is_none_or(|v| v.is_null() || v.as_str() == Some(""));
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if !empty(key) {
            return Err(ModelError::unsupported(
                format!("tokenizer model with a {key}"),
                "no language model uses one",
            ));
        }
    }
    if model.get("dropout").is_some_and(|d| !d.is_null() && d.as_f64() != Some(0.0)) {
        return Err(ModelError::unsupported("tokenizer model with dropout", "ids would be random"));
    }
    let vocabulary = model
        .get("vocab")
        .and_then(Value::as_object)
        .ok_or_else(|| wrong("model.vocab", "an object", "none"))?;
    let mut owners: HashMap<u32, &str> = HashMap::with_capacity(vocabulary.len());
    for (token, id) in vocabulary {
        let id = check_id(id, || format!("model.vocab {}", quoted(token)))?;
        if let Some(other) = owners.insert(id, token) {
            return Err(wrong(
                format!("model.vocab {}", quoted(token)),
                "an id of its own",
                format!("{id}, which is also {}", quoted(other)),
            ));
        }
    }
    if let Some(unknown) = model.get("unk_token").and_then(Value::as_str)
        && !vocabulary.contains_key(unknown)
    {
        return Err(wrong("model.unk_token", "a token of the vocabulary", quoted(unknown)));
    }
    let mut joined = String::new();
    for (i, merge) in model.get("merges").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let pair = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let place = || format!("model.merges[{i}]");
        let (left, right) = pair.ok_or_else(|| wrong(place(), "two tokens", quoted(&merge.to_string())))?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for token in [left, right, &joined] {
            if !vocabulary.contains_key(token) {
                return Err(wrong(place(), "tokens of the vocabulary", quoted(token)));
            }
        }
    }
    Ok(())
}

fn check_unigram(model: &Value) -> Result<(), ModelError> {
    let vocabulary = model
        .get("vocab")
        .and_then(Value::as_array)
        .ok_or_else(|| wrong("model.vocab", "an array", "none"))?;
    if vocabulary.is_empty() || vocabulary.len() > MAX_VOCABULARY {
        let expected = format!("1 to {MAX_VOCABULARY} tokens");
        return Err(ModelError::tokenizer("model.vocab", expected, vocabulary.len().to_string()));
    }
    let mut seen = BTreeSet::new();
    for (i, entry) in vocabulary.iter().enumerate() {
        let place = || format!("model.vocab[{i}]");
        let text = match entry.as_array().map(Vec::as_slice) {
            Some([Value::String(text), Value::Number(_)]) => text,
            _ => return Err(wrong(place(), "a text and a score", quoted(&entry.to_string()))),
        };
        if text.is_empty() || !seen.insert(text.as_str()) {
            return Err(wrong(place(), "a text of its own", quoted(text)));
        }
    }
    match model.get("unk_id").filter(|u| !u.is_null()) {
        Some(unknown) if unknown.as_u64().is_none_or(|u| u >= vocabulary.len() as u64) => {
            Err(wrong("model.unk_id", "an id of the vocabulary", quoted(&unknown.to_string())))
        }
        _ => Ok(()),
    }
}

/// Which of the two ways of spelling text the decoder undoes.
fn spelling(decoder: &Value) -> Result<Spelling, ModelError> {
    let kind = |v: &Value| v.get("type").and_then(Value::as_str).unwrap_or("none").to_owned();
    let unsupported = |name: &str| {
        ModelError::unsupported(
            format!("tokenizer decoder {}", quoted(name)),
            "known are ByteLevel, Metaspace and sequences of Replace, ByteFallback, Fuse, Strip and Metaspace",
        )
    };
    match kind(decoder).as_str() {
        "ByteLevel" => Ok(Spelling::ByteLevel),
        "Metaspace" => {
            let keeps = decoder.get("prepend_scheme").and_then(Value::as_str) == Some("never")
                || decoder.get("add_prefix_space").and_then(Value::as_bool) == Some(false);
            Ok(Spelling::Sentence { strip: !keeps })
        }
        "Sequence" => {
            let steps =
                decoder.get("decoders").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let mut strip = false;
            for step in steps {
                match kind(step).as_str() {
                    "ByteLevel" if steps.len() == 1 => return Ok(Spelling::ByteLevel),
                    "Replace" | "ByteFallback" | "Fuse" => {}
                    "Strip" => strip |= step.get("start").and_then(Value::as_u64) == Some(1),
                    "Metaspace" => strip |= spelling(step)? == Spelling::Sentence { strip: true },
                    other => return Err(unsupported(other)),
                }
            }
            Ok(Spelling::Sentence { strip })
        }
        other => Err(unsupported(other)),
    }
}

/// All tokens by id, with gaps where no id is given.
fn pieces(pipeline: &Pipeline) -> Result<Vec<Piece>, ModelError> {
    let added = pipeline.get_added_vocabulary().get_added_tokens_decoder();
    let vocabulary = pipeline.get_model().get_vocab();
    let last = vocabulary.values().chain(added.keys()).copied().max();
    let count = last.map_or(0, |id| id as usize + 1);
    if count == 0 || count > MAX_VOCABULARY {
        return Err(ModelError::tokenizer(
            "vocabulary",
            format!("1 to {MAX_VOCABULARY} ids"),
            count.to_string(),
        ));
    }
    let mut pieces = vec![Piece { text: "".into(), kind: Kind::Gap }; count];
    for (text, id) in vocabulary {
        pieces[id as usize] = Piece { text: text.into(), kind: Kind::Ordinary };
    }
    for (&id, token) in added {
        let kind = if token.special { Kind::Special } else { Kind::UserDefined };
        pieces[id as usize] = Piece { text: token.content.as_str().into(), kind };
    }
    Ok(pieces)
}

/// The ids that the post-processor puts before and after a text.
fn around(pipeline: &Pipeline) -> Result<(Vec<u32>, Vec<u32>), ModelError> {
    let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
    let process = || pipeline.post_process(text, None, true);
    let broken = |got: String| ModelError::tokenizer("post_processor", "special tokens around one text", got);
    let encoding = catch_unwind(AssertUnwindSafe(process))
        .map_err(|_| broken("a template that names a token it does not have".into()))?
        .map_err(|e| broken(e.to_string()))?;
    let ids = encoding.get_ids();
    let at =
        ids.iter().position(|&id| id == TEXT).ok_or_else(|| broken("a template without the text".into()))?;
    let (before, after) = (ids[..at].to_vec(), ids[at + 1..].to_vec());
    if after.contains(&TEXT) {
        return Err(broken("the text twice".into()));
    }
    Ok((before, after))
}

/// A special token by its text in tokenizer_config.json, or by its id in the model's configuration.
fn named(sides: &Sides<'_>, pipeline: &Pipeline, text_key: &str, id_key: &str) -> Option<u32> {
    let by_text =
        sides.tokenizer.as_ref().and_then(|c| token_text(c, text_key)).and_then(|t| pipeline.token_to_id(t));
    // Where a list of ids is given, the first is the main one.
    by_text.or_else(|| configured(sides, id_key).next())
}

/// A token's text: a string, or an object with a content.
pub(crate) fn token_text<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    let token = config.get(key)?;
    token.as_str().or_else(|| token.get("content").and_then(Value::as_str))
}

/// The ids under a key, from generation_config.json, then config.json, then its text part.
fn configured<'a>(sides: &'a Sides<'_>, key: &'a str) -> impl Iterator<Item = u32> + 'a {
    let parts = [sides.generation, sides.model, sides.model.and_then(|m| m.get("text_config"))];
    parts.into_iter().flatten().filter_map(move |part| part.get(key)).flat_map(|value| {
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        list.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok())
    })
}

/// Ids that end generation. Configurations shared between models may name ids this vocabulary lacks: they are ends
/// that never come.
fn ends(sides: &Sides<'_>, count: usize) -> BTreeSet<u32> {
    configured(sides, "eos_token_id").filter(|&id| (id as usize) < count).collect()
}
