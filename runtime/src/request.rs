//! What is asked of the engine, what it answers, and why it may decline.

use crate::pool::NoRoom;
use crate::sampler::SamplerOptions;
use crate::{Cancel, RuntimeError};
use plimsoll_estimator::{Plan, grouped};
use plimsoll_models::Tokenizer;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// A prompt to be continued.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids, at least one, each under the vocabulary.
    pub prompt: Vec<u32>,
    /// Most new tokens, at least one. Room for all of them is reserved before the first step.
    pub max_new: u32,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// The model's end-of-generation tokens: choosing one ends the request with [`FinishReason::End`].
    pub end_tokens: Vec<u32>,
    /// Tokens that end the request with [`FinishReason::Stop`].
    pub stop_tokens: Vec<u32>,
    /// Ends the request with [`FinishReason::Cancelled`], looked at before every step, and between the submits of
    /// a step that this request has to itself.
    pub cancel: Cancel,
}

impl Request {
    /// Whether an engine on this plan would accept it; it may be asked before anything is loaded.
    ///
    /// # Errors
    /// [`Refused`], as [`Engine::submit`](crate::Engine::submit) would answer.
    pub fn check(&self, plan: &Plan) -> Result<(), Refused> {
        check_ids(plan.model.vocab, &self.prompt)?;
        check_stops(plan.model.vocab, &self.stop_tokens)?;
        if self.max_new == 0 {
            return Err(Refused::NothingToDo);
        }
        check_room(plan.geometry.context, self.prompt.len(), self.max_new)?;
        self.sampler.validate()
    }
}

/// Whether a prompt is tokens of the model, at least one.
///
/// # Errors
/// [`Refused::EmptyPrompt`], [`Refused::UnknownToken`].
pub fn check_ids(vocab: u32, ids: &[u32]) -> Result<(), Refused> {
    if ids.is_empty() {
        return Err(Refused::EmptyPrompt);
    }
    match ids.iter().position(|&id| id >= vocab) {
        Some(position) => Err(Refused::UnknownToken { position, id: ids[position], vocab }),
        None => Ok(()),
    }
}

/// Whether tokens that end an answer are the model's: others never come.
///
/// # Errors
/// [`Refused::UnknownStop`].
pub fn check_stops(vocab: u32, ids: &[u32]) -> Result<(), Refused> {
    let unknown = ids.iter().find(|&&id| id >= vocab);
    unknown.map_or(Ok(()), |&id| Err(Refused::UnknownStop { id, vocab }))
}

/// Whether the admitted context holds so many tokens: how many they are together.
///
/// # Errors
/// [`Refused::TooLong`].
pub fn check_room(context: u32, prompt: usize, max_new: u32) -> Result<u32, Refused> {
    let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
    match prompt.checked_add(max_new) {
        Some(tokens) if tokens <= context => Ok(tokens),
        _ => Err(Refused::TooLong { prompt, max_new, context }),
    }
}

/// Texts up to so many bytes are always tokenized: that takes no time, and what a normalizer takes out of a text, or what
/// the vocabulary does not know in one piece, is more bytes than tokens have.
const LEAST_TEXT: u64 = 1 << 20;

/// The most bytes of a text that a context is asked about: as many as its tokens have if each is the longest of the
/// vocabulary, and 1 MiB at least.
pub fn most_text(context: u32, tokenizer: &Tokenizer) -> u64 {
    u64::from(context).saturating_mul(tokenizer.longest_token() as u64).max(LEAST_TEXT)
}

/// Whether a text of so many bytes could fit a context. It is asked before the text is tokenized, which takes a hundred times
/// its memory.
///
/// # Errors
/// [`Refused::Text`].
pub fn check_text(context: u32, tokenizer: &Tokenizer, bytes: usize) -> Result<(), Refused> {
    // The vocabulary is looked through only where that can matter.
    if bytes as u64 <= LEAST_TEXT {
        return Ok(());
    }
    let most = most_text(context, tokenizer);
    if bytes as u64 > most { Err(Refused::Text { most, context }) } else { Ok(()) }
}

/// A request of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It has its `max_new` tokens.
    Length,
    /// The model chose this end-of-generation token; it is not among the tokens.
    End(u32),
    /// The model chose this stop token; it is not among the tokens.
    Stop(u32),
    /// A stop string appeared: its index.
    StopString(usize),
    /// Its flag was raised.
    Cancelled,
}

impl FinishReason {
    /// One word: `length`, `eos`, `stop` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::End(_) => "eos",
            FinishReason::Stop(_) | FinishReason::StopString(_) => "stop",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that happened to a request. [`What::Done`] and [`What::Failed`] are its last events.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which.
    pub request: RequestId,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum What {
    /// Part of the prompt has been read.
    Prefill {
        /// Prompt tokens read.
        done: u32,
        /// Prompt tokens in all.
        total: u32,
        /// Those that were not computed, because an earlier sequence began with them.
        cached: u32,
    },
    /// A new token.
    Token {
        /// Its id.
        id: u32,
        /// Its log-probability in the model's own distribution.
        logprob: f32,
    },
    /// It ended.
    Done(FinishReason),
    /// A step it was part of failed; its pages are free again. The error is shared by every request of the step.
    Failed(Arc<RuntimeError>),
}

/// Why a request can never run on this engine, however long it waits. Nothing was launched.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// There is nothing to continue.
    #[error("the prompt has no tokens, and this model does not add one")]
    EmptyPrompt,
    /// No token was asked for.
    #[error("no new tokens were asked for: expected at least 1")]
    NothingToDo,
    /// The sequence does not fit the admitted context.
    #[error(
        "{prompt} prompt tokens and {max_new} new ones make {}, the context holds {context}",
        u64::from(*prompt) + u64::from(*max_new)
    )]
    TooLong {
        /// Prompt tokens.
        prompt: u32,
        /// New tokens asked for.
        max_new: u32,
        /// Tokens of the admitted context.
        context: u32,
    },
    /// The text is longer than any that fits the admitted context; it was not tokenized.
    #[error(
        "the text has more than {} bytes, the most that is read for a context of {context}: expected a shorter text or a \
         larger context",
        grouped(*most)
    )]
    Text {
        /// The most bytes that are read.
        most: u64,
        /// Tokens of the admitted context.
        context: u32,
    },
    /// An id the model does not have.
    #[error("token {position} has id {id}, the vocabulary has {vocab}")]
    UnknownToken {
        /// Index in the prompt.
        position: usize,
        /// The id.
        id: u32,
        /// `V`.
        vocab: u32,
    },
    /// A token to stop at that the model does not have: it would never stop there.
    #[error("stop token {id}: the vocabulary has {vocab} tokens, the first of them is 0")]
    UnknownStop {
        /// The id.
        id: u32,
        /// `V`.
        vocab: u32,
    },
    /// A sampling option out of range.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// Which.
        option: &'static str,
        /// What would have been accepted.
        expected: &'static str,
        /// What was given.
        got: String,
    },
    /// The KV pool is too small for it even when empty.
    #[error(transparent)]
    Pool(#[from] NoRoom),
}
