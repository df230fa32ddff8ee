//! Tokenizers: `tokenizer.json` and GGUF vocabularies, both as the `tokenizers` crate's types.
//!
//! Ids equal those of the model's published tokenizer. Decoding is ours: every token is bytes, so a stream never
//! splits a character (see [`DecodeStream`]). Vocabularies come from strangers; what is tolerated is listed here,
//! everything else is an error:
//!
//! * a token text that occurs twice: encoding gives the lowest id, each id decodes to its own text;
//! * merges naming tokens that do not exist can never apply and are dropped (GGUF); in tokenizer.json they are
//!   an error, as in the `tokenizers` crate;
//! * ids without a token (gaps) decode to nothing;
//! * text that a vocabulary cannot spell is an error of [`Tokenizer::encode`], never dropped silently.

mod decode;
mod gguf;
mod json;
mod pre;

pub use decode::DecodeStream;
pub(crate) use json::token_text;

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::limits;
use decode::Spelling;
use std::collections::BTreeSet;
use std::fmt;
use tokenizers::{
    AddedVocabulary, Model as _, OffsetReferential, OffsetType, PreTokenizer as _, Tokenizer as Pipeline,
};

/// More tokens than this are a damaged file: the largest published vocabularies have about 262,000.
const MAX_VOCABULARY: usize = 1 << 22;

/// Bytes of memory that a token of a GGUF vocabulary takes while a tokenizer is built: 470 of Gemma 3's 262,144 and 360 of
/// SmolLM2's 49,152, its merges and all, by the least `ulimit -d` that is enough.
const TOKEN_BYTES: usize = 512;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ordinary text, the result of merges.
    Ordinary,
    /// Text that is always cut out whole (`<think>` in some models).
    UserDefined,
    /// Control: cut out of text only when asked, left out of decoded text when asked.
    Special,
    /// No token has this id.
    Gap,
}

#[derive(Clone, Debug)]
struct Piece {
    text: Box<str>,
    kind: Kind,
}

/// A model's tokenizer.
#[derive(Clone)]
pub struct Tokenizer {
    pipeline: Pipeline,
    /// The added tokens when special ones are text like any other.
    literal: AddedVocabulary,
    pieces: Vec<Piece>,
    spelling: Spelling,
    /// Ids put before and after a text when special tokens are asked for.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    end_of_generation: BTreeSet<u32>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A vocabulary is megabytes; its size is what a reader of a log wants.
        f.debug_struct("Tokenizer")
            .field("tokens", &self.pieces.len())
            .field("spelling", &self.spelling)
            .field("prefix", &self.prefix)
            .field("suffix", &self.suffix)
            .field("end_of_generation", &self.end_of_generation)
            .finish_non_exhaustive()
    }
}

/// What the sources find out beside the pipeline.
struct Parts {
    pipeline: Pipeline,
    pieces: Vec<Piece>,
    spelling: Spelling,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Ids the files name as ends; the well-known texts are added to them.
    ends: BTreeSet<u32>,
}

/// Texts that end a turn or a document wherever they are added tokens. (`</s>` is not among them: it is an HTML tag
/// in some vocabularies, and where it ends a text the file says so by its id.)
const ENDS: [&str; 12] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
];

impl Tokenizer {
    /// The checkpoint's tokenizer: GGUF's own vocabulary, or tokenizer.json beside the weights. `None` when it has
    /// none.
    ///
    /// # Errors
    /// When the vocabulary contradicts itself or needs something that is not supported.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Self>, ModelError> {
        match checkpoint.metadata() {
            Some(metadata) => {
                let needed = gguf::tokens(metadata)?.saturating_mul(TOKEN_BYTES);
                let room = limits::room(needed);
                room.map_err(|error| ModelError::io("build the tokenizer of", checkpoint.path(), error))?;
                Tokenizer::from_gguf(metadata)
            }
            None => json::from_side_files(checkpoint),
        }
    }

    /// A tokenizer.json that is already in memory, with its tokenizer_config.json where there is one.
    ///
    /// # Errors
    /// As [`Tokenizer::from_checkpoint`].
    pub fn from_json(tokenizer: &[u8], config: Option<&[u8]>) -> Result<Self, ModelError> {
        json::from_bytes(tokenizer, config)
    }

    /// A GGUF vocabulary. `None` when the file has none.
    ///
    /// # Errors
    /// As [`Tokenizer::from_checkpoint`].
    pub fn from_gguf(metadata: &crate::checkpoint::gguf::Metadata) -> Result<Option<Self>, ModelError> {
        gguf::from_metadata(metadata)
    }

    fn new(parts: Parts) -> Result<Self, ModelError> {
        let Parts { pipeline, pieces, spelling, prefix, suffix, bos, eos, mut ends } = parts;
        ends.extend(eos);
        for &id in prefix.iter().chain(&suffix).chain(&bos).chain(&ends) {
            if pieces.get(id as usize).is_none_or(|p| p.kind == Kind::Gap) {
                let expected = format!("an id of the {} tokens", pieces.len());
                return Err(ModelError::tokenizer("special token id", expected, id.to_string()));
            }
        }
        for (id, piece) in pieces.iter().enumerate() {
            if matches!(piece.kind, Kind::Special | Kind::UserDefined) && ENDS.contains(&&*piece.text) {
                ends.insert(id as u32);
            }
        }
        let mut literal = pipeline.get_added_vocabulary().clone();
        literal.set_encode_special_tokens(true);
        Ok(Tokenizer {
            pipeline,
            literal,
            pieces,
            spelling,
            prefix,
            suffix,
            bos,
            eos,
            end_of_generation: ends,
        })
    }

    /// The ids of a text.
    ///
    /// `add_special` puts the model's BOS (and EOS, where the model has that rule) around it. With `parse_special`
    /// the texts of special tokens become those tokens; without, they are text like any other, so that a user's
    /// `<|im_end|>` ends nothing. User-defined tokens are always recognised.
    ///
    /// # Errors
    /// When the vocabulary cannot spell the text.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, ModelError> {
        let failed =
            |e: tokenizers::Error| ModelError::tokenizer("text", "text it can encode", e.to_string());
        let added = if parse_special { self.pipeline.get_added_vocabulary() } else { &self.literal };
        let mut pieces = added.extract_and_normalize(self.pipeline.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.pipeline.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        let model = self.pipeline.get_model();
        pieces
            .tokenize(|piece| {
                let tokens = model.tokenize(piece.get())?;
                // The model drops characters that it has no token for; a prompt must not change silently.
                let covered: usize = tokens.last().map_or(0, |t| t.offsets.1);
                if covered != piece.get().len() {
                    return Err(format!("no tokens for part of {}", crate::error::quoted(piece.get())).into());
                }
                Ok(tokens)
            })
            .map_err(failed)?;
        let mut ids = if add_special { self.prefix.clone() } else { Vec::new() };
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            ids.extend(tokens.iter().flatten().map(|t| t.id));
        }
        if add_special {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Every id after which generation stops: EOS, ends of turns, and the lists of generation_config.json.
    pub fn end_of_generation(&self) -> &BTreeSet<u32> {
        &self.end_of_generation
    }

    /// Whether `add_special` puts BOS first.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some() && self.prefix.first().copied() == self.bos
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// A token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`); `None` for ids without a token.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).filter(|p| p.kind != Kind::Gap).map(|p| &*p.text)
    }

    /// The most bytes of text that one token stands for, by the vocabulary's spelling; at least 1.
    pub fn longest_token(&self) -> usize {
        let spelled = |piece: &Piece| match (self.spelling, piece.kind) {
            // A character for each byte.
            (Spelling::ByteLevel, Kind::Ordinary) => piece.text.chars().count(),
            _ => piece.text.len(),
        };
        let tokens = self.pieces.iter().filter(|piece| piece.kind != Kind::Gap);
        tokens.map(spelled).max().unwrap_or(0).max(1)
    }

    /// Whether an id is a control token: no text of its own.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.get(id as usize).is_some_and(|p| p.kind == Kind::Special)
    }

    fn is_added(&self, id: u32) -> bool {
        self.pieces.get(id as usize).is_some_and(|p| matches!(p.kind, Kind::Special | Kind::UserDefined))
    }
}
