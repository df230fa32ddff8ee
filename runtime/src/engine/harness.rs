//! What tests of the engine share: prompts, steps after which the books are right, and what became of each request.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::fake::{Fake, VOCAB};
use crate::{Engine, Event, FinishReason, Request, RequestId, RuntimeError, What};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (seed * 31 + i * 7 + i * i) % VOCAB).collect()
}

pub(super) fn request(prompt: impl AsRef<[u32]>, max_new: u32) -> Request {
    Request { prompt: prompt.as_ref().to_vec(), max_new, ..Default::default() }
}

/// What a request has been told.
#[derive(Default, Debug)]
pub(super) struct Outcome {
    pub tokens: Vec<u32>,
    /// Tokens of the prompt that were there already.
    pub cached: u32,
    pub done: Option<FinishReason>,
    pub failed: Option<Arc<RuntimeError>>,
}

pub(super) type Outcomes = HashMap<RequestId, Outcome>;

pub(super) fn one_step(engine: &mut Engine<Fake>, outcomes: &mut Outcomes) {
    for Event { request, what } in engine.step() {
        let outcome = outcomes.entry(request).or_default();
        assert!(outcome.done.is_none() && outcome.failed.is_none(), "an event after the last one");
        match what {
            What::Prefill { done, total, cached } => {
                assert!(cached < done && done <= total);
                outcome.cached = cached;
            }
            What::Token { id, logprob } => {
                assert!(logprob <= 0.0);
                outcome.tokens.push(id);
            }
            What::Done(reason) => outcome.done = Some(reason),
            What::Failed(error) => outcome.failed = Some(error),
        }
    }
    engine.pool().check().unwrap();
}

/// Steps until there is nothing to do; then every page is free.
pub(super) fn drain_by(
    engine: &mut Engine<Fake>,
    outcomes: &mut Outcomes,
    step: impl Fn(&mut Engine<Fake>, &mut Outcomes),
) {
    for _ in 0..10_000 {
        if engine.is_idle() {
            engine.pool().check().unwrap();
            assert!(engine.pool().is_idle(), "nothing leaks");
            let all: Vec<u32> = engine.plan().kv.kinds.iter().map(|kind| kind.pages).collect();
            assert_eq!(engine.pool().free_pages().collect::<Vec<_>>(), all, "nothing leaks");
            return;
        }
        step(engine, outcomes);
    }
    panic!("never idle");
}

pub(super) fn drain(engine: &mut Engine<Fake>, outcomes: &mut Outcomes) {
    drain_by(engine, outcomes, one_step);
}
