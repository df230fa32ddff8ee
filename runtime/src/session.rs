//! Text in, text out: requests as prompts, answers as pieces of text that never split a character and never show a
//! stop string.

use crate::request::{Event, FinishReason, Request, RequestId, What, check_text};
use crate::sampler::SamplerOptions;
use crate::step::Stepper;
use crate::stop::StopStrings;
use crate::{Cancel, Engine, Refused, RuntimeError};
use plimsoll_estimator::Plan;
use plimsoll_models::Tokenizer;
use plimsoll_models::tokenizer::DecodeStream;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How a prompt is continued.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most new tokens; `None`: what is left of the context.
    pub max_new: Option<u32>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Texts that end the answer; none of them is shown. No empty ones.
    pub stop: Vec<String>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// Go on past the model's end-of-generation tokens.
    pub ignore_end: bool,
    /// Put the model's own tokens (BOS) around the prompt.
    pub add_special: bool,
    /// Read the texts of special tokens in the prompt as those tokens: for prompts made by a chat template.
    pub parse_special: bool,
    /// Leave special tokens out of the answer.
    pub skip_special: bool,
    /// Ends the answer, from any thread.
    pub cancel: Cancel,
}

impl Default for GenerateOptions {
    /// Greedy, to the end of the answer or of the context; the prompt is plain text.
    fn default() -> Self {
        Self {
            max_new: None,
            sampler: SamplerOptions::default(),
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            add_special: true,
            parse_special: false,
            skip_special: true,
            cancel: Cancel::new(),
        }
    }
}

impl GenerateOptions {
    /// Greedy, at most `max_new` tokens.
    pub fn greedy(max_new: u32) -> Self {
        Self { max_new: Some(max_new), ..Self::default() }
    }

    /// The request that continues `prompt` on a plan, checked as an engine would: nothing needs to be loaded to learn
    /// that a prompt is too long.
    ///
    /// # Errors
    /// [`Refused`] when it could never run there.
    pub fn request(&self, prompt: &[u32], tokenizer: &Tokenizer, plan: &Plan) -> Result<Request, Refused> {
        if self.stop.iter().any(String::is_empty) {
            let expected = "texts of at least one character";
            return Err(Refused::Option { option: "stop", expected, got: "an empty one".into() });
        }
        let context = plan.geometry.context;
        // One token even when the context is full: the refusal then says by how much the prompt is too long.
        let left = context.saturating_sub(u32::try_from(prompt.len()).unwrap_or(u32::MAX)).max(1);
        let ends = tokenizer.end_of_generation();
        let request = Request {
            prompt: prompt.to_vec(),
            max_new: self.max_new.unwrap_or(left),
            sampler: self.sampler.clone(),
            end_tokens: if self.ignore_end { Vec::new() } else { ends.iter().copied().collect() },
            stop_tokens: self.stop_tokens.clone(),
            cancel: self.cancel.clone(),
        };
        request.check(plan)?;
        Ok(request)
    }

    /// For prompts that a chat template wrote: they hold their special tokens.
    #[must_use]
    pub fn for_chat(mut self) -> Self {
        self.add_special = false;
        self.parse_special = true;
        self
    }
}

/// Something that happened to a request, as text.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Part of the prompt has been read.
    Prefill {
        /// Prompt tokens read.
        done: u32,
        /// Prompt tokens in all.
        total: u32,
        /// Those that were not computed, because an earlier sequence began with them.
        cached: u32,
    },
    /// A new token; its text may come with later ones.
    Token {
        /// Its id.
        id: u32,
        /// Its log-probability in the model's own distribution.
        logprob: f32,
    },
    /// Text to show.
    Text(String),
    /// The answer is complete.
    Done(FinishReason),
    /// A step failed.
    Failed(Arc<RuntimeError>),
}

/// The answer to one request, being put together.
struct Answer {
    decode: DecodeStream<'static>,
    stops: StopStrings,
}

/// An engine with a tokenizer.
///
/// ```no_run
/// # use plimsoll_runtime::{GenerateOptions, RuntimeError, Session, Stepper};
/// # fn example<S: Stepper>(mut session: Session<S>) -> Result<(), RuntimeError> {
/// for piece in session.generate("The capital of France is", &GenerateOptions::greedy(48))? {
///     print!("{}", piece?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Session<S: Stepper> {
    engine: Engine<S>,
    tokenizer: Arc<Tokenizer>,
    answers: HashMap<RequestId, Answer>,
    /// Events that a [`Generation`] saw and that were not its own.
    backlog: VecDeque<(RequestId, Progress)>,
}

impl<S: Stepper> Session<S> {
    /// A session on an engine.
    pub fn new(engine: Engine<S>, tokenizer: Arc<Tokenizer>) -> Self {
        Self { engine, tokenizer, answers: HashMap::new(), backlog: VecDeque::new() }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The engine below, for work in tokens.
    pub fn engine(&self) -> &Engine<S> {
        &self.engine
    }

    /// The engine below. Requests submitted there have no text; their events are not passed on.
    pub fn engine_mut(&mut self) -> &mut Engine<S> {
        &mut self.engine
    }

    /// What ran the requests. Those that are still here go on in it, without their text.
    pub fn into_engine(self) -> Engine<S> {
        self.engine
    }

    /// Continues a prompt; the text comes from the iterator. Dropping it ends the request.
    ///
    /// # Errors
    /// Those of [`Session::submit`], before anything is launched.
    pub fn generate(
        &mut self,
        prompt: &str,
        options: &GenerateOptions,
    ) -> Result<Generation<'_, S>, RuntimeError> {
        check_text(self.engine.plan().geometry.context, &self.tokenizer, prompt.len())?;
        let ids = self.tokenizer.encode(prompt, options.add_special, options.parse_special)?;
        self.generate_ids(&ids, options)
    }

    /// Continues token ids.
    ///
    /// # Errors
    /// As [`Session::generate`].
    pub fn generate_ids(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation<'_, S>, RuntimeError> {
        let request = self.submit(prompt, options)?;
        Ok(Generation {
            session: self,
            request,
            prompt: prompt.len(),
            cached: 0,
            tokens: Vec::new(),
            finish: None,
            ended: false,
            on_prefill: None,
        })
    }

    /// Accepts a request beside others; [`Session::step`] tells what becomes of it.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] when it can never run here; [`RuntimeError::Busy`] when too many wait.
    pub fn submit(&mut self, prompt: &[u32], options: &GenerateOptions) -> Result<RequestId, RuntimeError> {
        let request = options.request(prompt, &self.tokenizer, self.engine.plan())?;
        let id = self.engine.submit(request)?;
        let decode = self.tokenizer.shared_stream(options.skip_special);
        self.answers.insert(id, Answer { decode, stops: StopStrings::new(&options.stop) });
        Ok(id)
    }

    /// Ends a request before its time, without an event. `false` when it is not here (any more).
    pub fn end(&mut self, request: RequestId) -> bool {
        self.answers.remove(&request);
        self.backlog.retain(|(id, _)| *id != request);
        self.engine.end(request)
    }

    /// Whether there is nothing to do and nothing to tell.
    pub fn is_idle(&self) -> bool {
        self.engine.is_idle() && self.backlog.is_empty()
    }

    /// Runs one step and says what happened.
    pub fn step(&mut self) -> Vec<(RequestId, Progress)> {
        let mut news: Vec<_> = self.backlog.drain(..).collect();
        self.advance(&mut news);
        news
    }

    fn advance(&mut self, news: &mut Vec<(RequestId, Progress)>) {
        for Event { request, what } in self.engine.step() {
            // An answer that a stop string ended has no further news.
            let Some(answer) = self.answers.get_mut(&request) else { continue };
            let mut tell = |progress| news.push((request, progress));
            match what {
                What::Prefill { done, total, cached } => tell(Progress::Prefill { done, total, cached }),
                What::Token { id, logprob } => {
                    tell(Progress::Token { id, logprob });
                    let text = answer.decode.push(id).unwrap_or_default();
                    let passed = answer.stops.push(&text);
                    if !passed.text.is_empty() {
                        tell(Progress::Text(passed.text));
                    }
                    if let Some(stop) = passed.stopped {
                        tell(Progress::Done(FinishReason::StopString(stop)));
                        self.answers.remove(&request);
                        self.engine.end(request);
                    }
                }
                What::Done(reason) => {
                    let mut rest = answer.stops.push(&answer.decode.finish().unwrap_or_default());
                    rest.text.push_str(&answer.stops.finish());
                    if !rest.text.is_empty() {
                        tell(Progress::Text(rest.text));
                    }
                    let reason = rest.stopped.map_or(reason, FinishReason::StopString);
                    tell(Progress::Done(reason));
                    self.answers.remove(&request);
                }
                What::Failed(error) => {
                    tell(Progress::Failed(error));
                    self.answers.remove(&request);
                }
            }
        }
    }
}

/// Told how much of the prompt has been read: `(tokens, of)`.
pub type OnPrefill<'s> = Box<dyn FnMut(u32, u32) + 's>;

/// One answer, as it is generated: an iterator over pieces of text.
pub struct Generation<'s, S: Stepper> {
    session: &'s mut Session<S>,
    request: RequestId,
    prompt: usize,
    cached: usize,
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
    ended: bool,
    on_prefill: Option<OnPrefill<'s>>,
}

impl<'s, S: Stepper> Generation<'s, S> {
    /// Calls back after each step over the prompt.
    #[must_use]
    pub fn on_prefill(mut self, callback: impl FnMut(u32, u32) + 's) -> Self {
        self.on_prefill = Some(Box::new(callback));
        self
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt
    }

    /// Tokens of the prompt that were not computed, because an earlier sequence began with them; known from the first
    /// step on.
    pub fn cached_tokens(&self) -> usize {
        self.cached
    }

    /// The new tokens so far. The last of them may be part of a stop string.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Why it ended; `None` while it goes on, and after an error.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The whole answer at once.
    ///
    /// # Errors
    /// The first of any step.
    pub fn text(&mut self) -> Result<String, RuntimeError> {
        self.collect()
    }

    /// Takes in one event of this request: a piece to hand out, if it is one.
    fn take(&mut self, progress: Progress) -> Option<Result<String, RuntimeError>> {
        match progress {
            Progress::Prefill { done, total, cached } => {
                self.cached = cached as usize;
                if let Some(callback) = &mut self.on_prefill {
                    callback(done, total);
                }
                None
            }
            Progress::Token { id, .. } => {
                self.tokens.push(id);
                None
            }
            Progress::Text(text) => Some(Ok(text)),
            Progress::Done(reason) => {
                self.finish = Some(reason);
                self.ended = true;
                None
            }
            Progress::Failed(error) => {
                self.ended = true;
                Some(Err(Arc::try_unwrap(error).unwrap_or_else(RuntimeError::Step)))
            }
        }
    }
}

impl<S: Stepper> Iterator for Generation<'_, S> {
    type Item = Result<String, RuntimeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = None;
        while !self.ended && piece.is_none() {
            let mut news = Vec::new();
            self.session.advance(&mut news);
            for (request, progress) in news {
                if request == self.request {
                    // A step has at most one piece of a request, and its end may come with it.
                    let taken = self.take(progress);
                    piece = merge(piece, taken);
                } else {
                    self.session.backlog.push_back((request, progress));
                }
            }
        }
        piece
    }
}

fn merge(
    before: Option<Result<String, RuntimeError>>,
    after: Option<Result<String, RuntimeError>>,
) -> Option<Result<String, RuntimeError>> {
    match (before, after) {
        (Some(Ok(mut text)), Some(Ok(more))) => {
            text.push_str(&more);
            Some(Ok(text))
        }
        (before, None) => before,
        (_, after) => after,
    }
}

impl<S: Stepper> Drop for Generation<'_, S> {
    fn drop(&mut self) {
        if !self.ended {
            self.session.end(self.request);
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
