//! Continuous batching: requests come and go, every step carries whoever has something to compute.
//!
//! The engine works in tokens; text is [`Session`](crate::session)'s affair. It owns the books of the page pool and
//! the only thing that runs steps, so two rules hold by construction: a sequence has all its pages before its first
//! step, and its pages come back on every way out.

use crate::pool::{Pool, Reserved, Slot};
use crate::request::{Event, FinishReason, Refused, Request, RequestId, What, check_room};
use crate::sampler::{Choice, Row, Sampler};
use crate::scheduler::shares;
use crate::step::{Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted};
use crate::{Cancel, RuntimeError};
use plimsoll_estimator::Plan;
use std::collections::VecDeque;
use std::sync::Arc;

mod cache;
mod feed;
mod handover;
pub use feed::Feed;
pub use handover::Handover;

/// Requests that may wait for a slot unless [`Engine::set_waiting_limit`] says otherwise.
pub const WAITING_LIMIT: usize = 1024;

/// A request that waits for room.
struct Waiting {
    id: RequestId,
    request: Request,
    sampler: Sampler,
    /// The prompt, and what was answered before the request lost its place.
    tokens: Vec<u32>,
}

/// A request that has its pages.
struct Running {
    id: RequestId,
    slot: Slot,
    /// Prompt and answer so far.
    tokens: Vec<u32>,
    /// How many of them have their keys and values in the pool and are in the slot's recurrent states.
    computed: usize,
    prompt: u32,
    /// Prompt tokens that were there already.
    cached: u32,
    /// Where steps must end so that a snapshot can be taken; the next is the last.
    marks: Vec<usize>,
    /// The pages of the prompt are known to others.
    shared: bool,
    request: Request,
    sampler: Sampler,
}

impl Running {
    fn pending(&self) -> u32 {
        (self.tokens.len() - self.computed) as u32
    }

    /// Most tokens of the next step.
    fn reach(&self) -> u32 {
        let mark = self.marks.last().map_or(usize::MAX, |&mark| mark);
        (self.tokens.len().min(mark) - self.computed) as u32
    }

    /// What becomes of a chosen token; the reason when it is the last.
    fn take(&mut self, choice: Choice, events: &mut Vec<Event>) -> Option<FinishReason> {
        if self.request.end_tokens.contains(&choice.id) {
            return Some(FinishReason::End(choice.id));
        }
        if self.request.stop_tokens.contains(&choice.id) {
            return Some(FinishReason::Stop(choice.id));
        }
        self.tokens.push(choice.id);
        let what = What::Token { id: choice.id, logprob: choice.logprob };
        events.push(Event { request: self.id, what });
        let made = self.tokens.len() - self.prompt as usize;
        (made >= self.request.max_new as usize).then_some(FinishReason::Length)
    }
}

/// Runs requests on a [`Stepper`].
pub struct Engine<S> {
    stepper: S,
    pool: Pool,
    waiting: VecDeque<Waiting>,
    waiting_limit: usize,
    running: Vec<Running>,
    next_id: u64,
    turn: usize,
}

impl<S: Stepper> Engine<S> {
    /// An engine with nothing to do.
    ///
    /// # Errors
    /// [`RuntimeError::Plan`] when a step of the plan has no room for a token, or for a logit row of every slot.
    pub fn new(stepper: S) -> Result<Self, RuntimeError> {
        let plan = stepper.plan();
        let geometry = &plan.geometry;
        if geometry.prefill_chunk == 0 {
            return Err(RuntimeError::plan("prefill chunk", "at least 1 token", 0));
        }
        if geometry.logit_rows < geometry.slots.min(geometry.prefill_chunk) {
            return Err(RuntimeError::plan("logit rows", "one for each slot", geometry.logit_rows));
        }
        let pool = Pool::of(plan);
        let engine = Self {
            stepper,
            pool,
            waiting: VecDeque::new(),
            waiting_limit: WAITING_LIMIT,
            running: Vec::new(),
            next_id: 0,
            turn: 0,
        };
        engine.tell("load", [None]);
        Ok(engine)
    }

    /// The plan that is being run.
    pub fn plan(&self) -> &Plan {
        self.stepper.plan()
    }

    /// What runs the steps.
    pub fn stepper(&self) -> &S {
        &self.stepper
    }

    /// What runs the steps, to be reconfigured between them.
    pub fn stepper_mut(&mut self) -> &mut S {
        &mut self.stepper
    }

    /// The books of the page pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Requests beyond this many that wait for a slot are [`RuntimeError::Busy`].
    pub fn set_waiting_limit(&mut self, limit: usize) {
        self.waiting_limit = limit;
    }

    /// Requests that have their pages.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait for room.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Accepts a request: it will complete, in turn, unless it is cancelled or a step of it fails.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] when it can never run here; [`RuntimeError::Busy`] when too many wait already.
    /// Nothing was launched in either case.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RuntimeError> {
        request.check(self.plan())?;
        let tokens = self.check_room(request.prompt.len(), request.max_new)?;
        let sampler = Sampler::new(request.sampler.clone(), &request.prompt)?;
        // A request that a free slot can take does not wait.
        let free = self.pool.free_slots();
        if self.waiting.len() >= self.waiting_limit.saturating_add(free) {
            let (waiting, limit) = (self.waiting.len(), self.waiting_limit);
            return Err(RuntimeError::Busy { waiting, limit, lacks: self.pool.room(tokens).err() });
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let tokens = request.prompt.clone();
        self.waiting.push_back(Waiting { id, request, sampler, tokens });
        Ok(id)
    }

    /// Ends a request before its time, without an event. `false` when it is not here (any more).
    pub fn end(&mut self, id: RequestId) -> bool {
        let ended = self.end_quietly(id);
        if ended {
            self.tell("request", [Some(id.0)]);
        }
        ended
    }

    fn end_quietly(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.running.iter().position(|r| r.id == id) {
            let ended = self.running.remove(at);
            leave(&mut self.pool, &ended);
            return true;
        }
        let before = self.waiting.len();
        self.waiting.retain(|w| w.id != id);
        self.waiting.len() < before
    }

    /// Ends every request, without events.
    pub fn end_all(&mut self) {
        let waited = self.waiting.drain(..).map(|waiting| waiting.id);
        let ids: Vec<RequestId> = self.running.iter().map(|running| running.id).chain(waited).collect();
        for ended in self.running.drain(..) {
            leave(&mut self.pool, &ended);
        }
        self.tell("request", ids.into_iter().map(|id| Some(id.0)));
    }

    /// Runs one step and says what happened. With nothing to do, nothing happens.
    ///
    /// A step that fails is reported to every request that was in it, and those have ended; the others, and the
    /// engine, go on. Where the device was lost, every request has ended with that error, those that wait too.
    pub fn step(&mut self) -> Vec<Event> {
        let events = self.step_quietly();
        self.tell_of_ends(&events);
        events
    }

    fn step_quietly(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.sweep(&mut events);
        self.admit(&mut events);
        if self.running.is_empty() {
            return events;
        }
        let pending: Vec<u32> = self.running.iter().map(Running::reach).collect();
        let room = self.stepper.plan().geometry.prefill_chunk;
        let shares = shares(&pending, room, self.turn);
        self.turn = (self.turn + (room as usize).min(pending.len())) % pending.len();
        match self.launch(&shares) {
            Ok(output) => self.distribute(&shares, &output, &mut events),
            // Only a step that one request has to itself listens to its flag: the next sweep finds it raised. Where it
            // does not, the request goes on.
            Err(RuntimeError::Cancelled) if shares.iter().filter(|&&n| n > 0).count() == 1 => {
                self.rewind(&shares);
            }
            Err(error) => {
                let error = Arc::new(error);
                tracing::warn!(%error, "step failed");
                if !error.device_is_usable() {
                    // Nobody gets another token from it: those that were not in the step are told now, not when
                    // their turn comes. What was kept went with it.
                    events.append(&mut self.fail_all(&error));
                    self.pool.trim();
                    return events;
                }
                self.retire(&mut events, |i, _| (shares[i] > 0).then(|| What::Failed(Arc::clone(&error))));
            }
        }
        events
    }

    /// Has the sequences of a step that did not end well wait for their turn to be read again, where a recurrent state is
    /// all that is left of their tokens: the pages they have filled may be others' by now, and are not written twice.
    fn rewind(&mut self, shares: &[u32]) {
        if self.plan().recurrent.layers.is_empty() {
            return;
        }
        let mut index = 0;
        let (pool, waiting) = (&mut self.pool, &mut self.waiting);
        let lost = self.running.extract_if(.., |_| {
            index += 1;
            shares[index - 1] > 0
        });
        for Running { id, slot, request, sampler, tokens, .. } in lost {
            pool.release(slot);
            waiting.push_front(Waiting { id, request, sampler, tokens });
        }
    }

    /// Sees to the requests whose flag is up.
    fn sweep(&mut self, events: &mut Vec<Event>) {
        self.waiting.retain(|w| {
            let stays = !w.request.cancel.is_cancelled();
            if !stays {
                events.push(Event { request: w.id, what: What::Done(FinishReason::Cancelled) });
            }
            stays
        });
        self.retire(events, |_, r| {
            r.request.cancel.is_cancelled().then_some(What::Done(FinishReason::Cancelled))
        });
    }

    /// Removes the running requests that `verdict` has a last event for; their pages are free.
    fn retire(
        &mut self,
        events: &mut Vec<Event>,
        mut verdict: impl FnMut(usize, &mut Running) -> Option<What>,
    ) {
        let mut index = 0;
        let pool = &mut self.pool;
        self.running.retain_mut(|running| {
            let last = verdict(index, running);
            index += 1;
            match last {
                None => true,
                Some(what) => {
                    match what {
                        What::Failed(_) => _ = pool.discard(running.slot),
                        _ => leave(pool, running),
                    }
                    events.push(Event { request: running.id, what });
                    false
                }
            }
        });
    }

    /// Gives slots and pages to those that wait, first come first served: one that is passed over could starve.
    fn admit(&mut self, events: &mut Vec<Event>) {
        while let Some(Waiting { id, request, sampler, tokens }) = self.waiting.pop_front() {
            // Checked at submission: the sum fits the context.
            let prompt = request.prompt.len() as u32;
            let _span =
                tracing::debug_span!("admit", request = id.0, prompt, max_new = request.max_new).entered();
            match self.take_slot(prompt.saturating_add(request.max_new), &tokens) {
                Ok(Some(Reserved { slot, cached, alike, .. })) => {
                    let marks = self.marks(tokens.len(), cached, alike);
                    let (computed, cached) = (cached as usize, cached.min(prompt));
                    let shared = false;
                    self.running.push(Running {
                        id,
                        slot,
                        tokens,
                        computed,
                        prompt,
                        cached,
                        marks,
                        shared,
                        request,
                        sampler,
                    });
                }
                Ok(None) => return self.waiting.push_front(Waiting { id, request, sampler, tokens }),
                Err(error) => events.push(Event { request: id, what: What::Failed(Arc::new(error)) }),
            }
        }
    }

    fn launch(&mut self, shares: &[u32]) -> Result<StepOutput, RuntimeError> {
        let mut sequences = Vec::with_capacity(self.running.len());
        let mut sampling = Sampling::None;
        let mut flags: Vec<&Cancel> = Vec::new();
        for (running, &share) in self.running.iter().zip(shares).filter(|(_, share)| **share > 0) {
            let completes = share == running.pending();
            if completes {
                sampling = wider(sampling, running.sampler.needs());
            }
            flags.push(&running.request.cancel);
            sequences.push(SequenceInput {
                slot: running.slot.index(),
                position: running.computed as u32,
                ids: &running.tokens[running.computed..running.computed + share as usize],
                wanted: if completes { Wanted::Last } else { Wanted::None },
            });
        }
        let cancel = if let [only] = flags[..] { Some(only) } else { None };
        let input = StepInput { sequences: &sequences, sampling, cancel };
        let rows = input.logit_rows() as usize;
        let output = self.stepper.step(&input)?;
        let got = match &output {
            StepOutput::None => 0,
            StepOutput::Candidates(rows) => rows.len(),
            StepOutput::Logits { vocab, values } => values.len() / (*vocab).max(1) as usize,
        };
        if got == rows { Ok(output) } else { Err(RuntimeError::input("rows read back", rows, got)) }
    }

    /// Hands the rows of a step to the sequences that wanted them.
    fn distribute(&mut self, shares: &[u32], output: &StepOutput, events: &mut Vec<Event>) {
        let vocab = self.stepper.plan().model.vocab;
        let mut row = 0;
        let mut news = Vec::new();
        let mut ends = Vec::new();
        self.retire(&mut ends, |i, running| {
            let share = shares[i];
            if share == 0 {
                return None;
            }
            let completes = share == running.pending();
            let in_prompt = running.computed < running.prompt as usize;
            running.computed += share as usize;
            if in_prompt {
                // One that was rewound may read its answer along.
                let (done, total) = ((running.computed as u32).min(running.prompt), running.prompt);
                let cached = running.cached;
                news.push(Event { request: running.id, what: What::Prefill { done, total, cached } });
            }
            if !completes {
                return None;
            }
            let read = row_of(output, row);
            row += 1;
            match read.and_then(|read| running.sampler.choose(read)) {
                Ok(choice) if choice.id < vocab => running.take(choice, &mut news).map(What::Done),
                Ok(choice) => {
                    let expected = format!("an id under {vocab}");
                    Some(What::Failed(Arc::new(RuntimeError::input("sampled token", expected, choice.id))))
                }
                Err(error) => Some(What::Failed(Arc::new(error))),
            }
        });
        events.append(&mut news);
        events.append(&mut ends);
        self.settle();
    }

    /// Whether the context and the pool hold so many tokens.
    fn check_room(&self, prompt: usize, max_new: u32) -> Result<u32, Refused> {
        let tokens = check_room(self.plan().geometry.context, prompt, max_new)?;
        self.pool.could_hold(tokens)?;
        Ok(tokens)
    }
}

/// Gives back the slot of a request that ends well; what it has computed may serve others.
fn leave(pool: &mut Pool, ended: &Running) {
    pool.share(ended.slot, &ended.tokens[..ended.computed]);
    pool.release(ended.slot);
}

/// What serves both.
fn wider(a: Sampling, b: Sampling) -> Sampling {
    let width = |s| match s {
        Sampling::None => 0,
        Sampling::Greedy => 1,
        Sampling::TopK => 2,
        Sampling::Logits => 3,
    };
    if width(a) < width(b) { b } else { a }
}

fn row_of(output: &StepOutput, row: usize) -> Result<Row<'_>, RuntimeError> {
    let found = match output {
        StepOutput::None => None,
        StepOutput::Candidates(rows) => rows.get(row).map(Row::Candidates),
        StepOutput::Logits { vocab, values } => {
            let width = *vocab as usize;
            values.get(row * width..(row + 1) * width).map(Row::Logits)
        }
    };
    found.ok_or_else(|| RuntimeError::input("rows read back", "one for each sequence", row))
}

#[cfg(test)]
mod harness;
#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
