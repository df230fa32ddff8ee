//! GGUF vocabularies turned into `tokenizers` types.
//!
//! `tokenizer.ggml.model` "gpt2" is byte-level BPE with merges; "llama" is SentencePiece, which merges the pair
//! whose *result* has the highest score first and falls back to bytes; "gemma4" spells like the latter and has the
//! former's list of merges.

use super::decode::{Spelling, byte_token};
use super::pre::PreTokenizer;
use super::{Kind, MAX_VOCABULARY, Parts, Piece, Tokenizer};
use crate::checkpoint::gguf::Metadata;
use crate::error::{ModelError, quoted};
use std::collections::{BTreeSet, HashMap};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};
use tokenizers::{AddedToken, Tokenizer as Pipeline};

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// The specification's token types.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

struct Vocabulary<'a> {
    texts: Vec<&'a str>,
    types: Vec<TokenType>,
    /// Text → id: the lowest of those that have it, of "gemma4" the highest. Published files of that have three texts
    /// twice, "#" among them, whose place is behind, with the other characters.
    ids: HashMap<&'a str, u32>,
}

/// Tokens of a vocabulary, as many as are there; 0 without one.
pub(super) fn tokens(meta: &Metadata) -> Result<usize, ModelError> {
    Ok(meta.opt_array(TOKENS)?.map_or(0, |array| array.len()))
}

pub(super) fn from_metadata(meta: &Metadata) -> Result<Option<Tokenizer>, ModelError> {
    let model = match meta.opt_str("tokenizer.ggml.model")? {
        None | Some("none" | "no_vocab") => return Ok(None),
        Some(model) => model,
    };
    if !matches!(model, "gpt2" | "llama" | "gemma4") {
        return Err(ModelError::unsupported(
            format!("tokenizer model {}", quoted(model)),
            "known are \"gpt2\" (byte-level BPE), \"llama\" (SentencePiece) and \"gemma4\" (its spelling, with merges)",
        ));
    }
    let vocabulary = Vocabulary::read(meta, model == "gemma4")?;
    let (mut pipeline, spelling, adds_bos) = match model {
        "gpt2" => byte_level(meta, &vocabulary)?,
        "gemma4" => sentence(meta, &vocabulary, listed_merges(meta, &vocabulary)?, false)?,
        _ => sentence(meta, &vocabulary, ranked_merges(meta, &vocabulary)?, true)?,
    };
    pipeline
        .add_tokens(vocabulary.added())
        .map_err(|e| ModelError::tokenizer(TOKENS, "added tokens that can be matched", e.to_string()))?;

    let sentence_default =
        |id: u64| (model == "llama" && (id as usize) < vocabulary.texts.len()).then_some(id as u32);
    let bos = vocabulary.id(meta, "tokenizer.ggml.bos_token_id")?.or(sentence_default(1));
    let eos = vocabulary.id(meta, "tokenizer.ggml.eos_token_id")?.or(sentence_default(2));
    let prefix = around(meta, "tokenizer.ggml.add_bos_token", adds_bos, bos)?;
    let suffix = around(meta, "tokenizer.ggml.add_eos_token", false, eos)?;
    let mut ends = BTreeSet::new();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(vocabulary.id(meta, key)?);
    }
    let pieces = vocabulary.pieces();
    Tokenizer::new(Parts { pipeline, pieces, spelling, prefix, suffix, bos, eos, ends }).map(Some)
}

/// The special token that goes before or after a text, if any does.
fn around(meta: &Metadata, key: &str, default: bool, id: Option<u32>) -> Result<Vec<u32>, ModelError> {
    let asked = meta.opt_bool(key)?;
    if asked == Some(true) && id.is_none() {
        return Err(ModelError::field(key, "the id of the token to add", "none"));
    }
    Ok(if asked.unwrap_or(default) { id.into_iter().collect() } else { Vec::new() })
}

impl<'a> Vocabulary<'a> {
    fn read(meta: &'a Metadata, last: bool) -> Result<Self, ModelError> {
        let array = meta.array(TOKENS)?;
        let count = array.len();
        if count == 0 || count > MAX_VOCABULARY {
            return Err(ModelError::field(
                TOKENS,
                format!("1 to {MAX_VOCABULARY} tokens"),
                count.to_string(),
            ));
        }
        let texts = array.strings()?.collect::<Result<Vec<_>, _>>()?;
        let types = match meta.opt_array("tokenizer.ggml.token_type")? {
            None => vec![TokenType::Normal; count],
            Some(array) => {
                same_length("tokenizer.ggml.token_type", array.len(), count)?;
                array
                    .i64s()?
                    .into_iter()
                    .enumerate()
                    .map(|(i, t)| token_type(i, t))
                    .collect::<Result<_, _>>()?
            }
        };
        let mut ids = HashMap::with_capacity(count);
        for (id, &text) in texts.iter().enumerate() {
            let chosen = ids.entry(text).or_insert(id as u32);
            if last {
                *chosen = id as u32;
            }
        }
        Ok(Vocabulary { texts, types, ids })
    }

    /// The id under a key; it must be one of the vocabulary's.
    fn id(&self, meta: &Metadata, key: &str) -> Result<Option<u32>, ModelError> {
        match meta.opt_u64(key)? {
            None => Ok(None),
            Some(id) if id < self.texts.len() as u64 => Ok(Some(id as u32)),
            Some(id) => {
                Err(ModelError::field(key, format!("an id below {}", self.texts.len()), id.to_string()))
            }
        }
    }

    fn kind(&self, id: usize) -> Kind {
        match self.types.get(id) {
            Some(TokenType::Control | TokenType::Unknown) => Kind::Special,
            Some(TokenType::UserDefined) => Kind::UserDefined,
            _ => Kind::Ordinary,
        }
    }

    fn pieces(&self) -> Vec<Piece> {
        self.texts
            .iter()
            .enumerate()
            .map(|(id, &text)| Piece { text: text.into(), kind: self.kind(id) })
            .collect()
    }

    /// Tokens that are cut out of text before anything else.
    fn added(&self) -> Vec<AddedToken> {
        let mut added = Vec::new();
        for (id, &text) in self.texts.iter().enumerate() {
            let kind = self.kind(id);
            if kind != Kind::Ordinary && !text.is_empty() && self.ids.get(text) == Some(&(id as u32)) {
                added.push(AddedToken::from(text, kind == Kind::Special).normalized(false));
            }
        }
        added
    }

    /// Text → id for the model. It has every token, so that added ones keep their ids.
    fn model_ids(&self) -> impl Iterator<Item = (String, u32)> {
        self.ids.iter().filter(|(text, _)| !text.is_empty()).map(|(&text, &id)| (text.to_owned(), id))
    }
}

fn same_length(key: &str, len: usize, tokens: usize) -> Result<(), ModelError> {
    if len == tokens {
        return Ok(());
    }
    Err(ModelError::field(key, format!("one entry for each of the {tokens} tokens"), len.to_string()))
}

fn token_type(index: usize, number: i64) -> Result<TokenType, ModelError> {
    Ok(match number {
        0 | 1 => TokenType::Normal,
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => {
            return Err(ModelError::field(
                format!("tokenizer.ggml.token_type[{index}]"),
                "a token type (0 to 6)",
                number.to_string(),
            ));
        }
    })
}

fn build(builder: tokenizers::models::bpe::BpeBuilder) -> Result<BPE, ModelError> {
    builder.build().map_err(|e| ModelError::tokenizer(TOKENS, "a vocabulary with its merges", e.to_string()))
}

fn with_normalizer(pipeline: &mut Pipeline, normalizer: Option<NormalizerWrapper>) -> Result<(), ModelError> {
    pipeline
        .with_normalizer(normalizer)
        .map(|_| ())
        .map_err(|e| ModelError::tokenizer("normalizer", "one that fits the vocabulary", e.to_string()))
}

/// "gpt2": merges as listed, the pre-tokenizer as named.
fn byte_level(
    meta: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<(Pipeline, Spelling, bool), ModelError> {
    let pre = PreTokenizer::named(meta.opt_str("tokenizer.ggml.pre")?.unwrap_or("default"))?;
    let merges = listed_merges(meta, vocabulary)?;
    let bpe = build(
        BPE::builder()
            .vocab_and_merges(vocabulary.model_ids().collect::<Vocab>(), merges)
            .ignore_merges(pre.ignore_merges),
    )?;
    let mut pipeline = Pipeline::new(bpe);
    with_normalizer(&mut pipeline, pre.normalizer())?;
    pipeline.with_pre_tokenizer(Some(pre.build()?));
    Ok((pipeline, Spelling::ByteLevel, pre.adds_bos))
}

/// The merges a file lists, those that can apply.
fn listed_merges(meta: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Merges, ModelError> {
    let mut merges = Vec::new();
    let mut joined = String::new();
    for (i, merge) in meta.array(MERGES)?.strings()?.enumerate() {
        let merge = merge?;
        let bad =
            || ModelError::field(format!("{MERGES}[{i}]"), "two tokens with a space between", quoted(merge));
        // A token may begin with the separator itself, so the search starts after the first character.
        let first = merge.chars().next().map(char::len_utf8).ok_or_else(bad)?;
        let at = first + merge.get(first..).and_then(|rest| rest.find(' ')).ok_or_else(bad)?;
        let (left, right) = (&merge[..at], &merge[at + 1..]);
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        // A merge of or to something that is no token can never apply.
        if [left, right, joined.as_str()].iter().all(|t| !t.is_empty() && vocabulary.ids.contains_key(t)) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}

/// The merges of SentencePiece: every way to put a token together from two others, ranked by the token's score. Ties go
/// to the longer left part, which is the leftmost choice where candidates overlap.
fn ranked_merges(meta: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Merges, ModelError> {
    let scores = meta.array(SCORES)?;
    same_length(SCORES, scores.len(), vocabulary.texts.len())?;
    let scores = scores.f32s()?;
    // Control, unknown and byte tokens never come out of text by merging.
    let mergeable = |id: u32| {
        use TokenType::{Normal, Unused, UserDefined};
        matches!(vocabulary.types.get(id as usize), Some(Normal | UserDefined | Unused))
    };
    let part = |text: &str| vocabulary.ids.get(text).is_some_and(|&id| mergeable(id));

    let mut ranked = Vec::new();
    let mut budget = MAX_MERGE_BYTES;
    for (id, &text) in vocabulary.texts.iter().enumerate() {
        if !mergeable(id as u32) || vocabulary.ids.get(text) != Some(&(id as u32)) {
            continue;
        }
        // Trying every cut of a token costs its length squared; a hostile one could be the whole file.
        let cost = (text.len() as u64).saturating_mul(text.len() as u64);
        budget = budget.checked_sub(cost).ok_or_else(|| {
            ModelError::field(
                format!("{TOKENS}[{id}]"),
                "tokens of sane length",
                format!("{} bytes", text.len()),
            )
        })?;
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if part(left) && part(right) {
                ranked.push((scores[id], left, right));
            }
        }
    }
    ranked.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then_with(|| b.1.len().cmp(&a.1.len())).then_with(|| b.2.len().cmp(&a.2.len()))
    });
    Ok(ranked.iter().map(|(_, left, right)| ((*left).to_owned(), (*right).to_owned())).collect())
}

/// "llama" and "gemma4": text with `▁` for spaces, and bytes for what has no token. Whether a space goes before a text
/// that the file says nothing of is `prefix`.
fn sentence(
    meta: &Metadata,
    vocabulary: &Vocabulary<'_>,
    merges: Merges,
    prefix: bool,
) -> Result<(Pipeline, Spelling, bool), ModelError> {
    let mut builder = BPE::builder()
        .vocab_and_merges(vocabulary.model_ids().collect::<Vocab>(), merges)
        .byte_fallback(vocabulary.texts.iter().any(|t| byte_token(t).is_some()))
        .fuse_unk(true);
    let unknown = vocabulary.id(meta, "tokenizer.ggml.unknown_token_id")?;
    if let Some(text) = unknown.and_then(|id| vocabulary.texts.get(id as usize)).filter(|t| !t.is_empty()) {
        builder = builder.unk_token((*text).to_owned());
    }
    let mut pipeline = Pipeline::new(build(builder)?);

    let prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(prefix);
    let mut steps = Vec::new();
    if prefix {
        steps.push(NormalizerWrapper::Prepend(Prepend::new("▁".to_owned())));
    }
    let escape = Replace::new(" ", "▁")
        .map_err(|e| ModelError::tokenizer("normalizer", "a valid pattern", e.to_string()))?;
    steps.push(NormalizerWrapper::Replace(escape));
    with_normalizer(&mut pipeline, Some(NormalizerWrapper::Sequence(Sequence::new(steps))))?;
    Ok((pipeline, Spelling::Sentence { strip: prefix }, true))
}

/// Sum of squared token lengths that merges are derived for; real vocabularies need about 3·10⁷.
const MAX_MERGE_BYTES: u64 = 1 << 32;
