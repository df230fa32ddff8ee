//! What becomes of requests when the device below them is lost, and of the engine's own affairs when another engine
//! takes its place.

use super::Engine;
use crate::RuntimeError;
use crate::request::{Event, What};
use crate::step::Stepper;
use std::sync::Arc;

/// What is left of an engine when it goes: no id that it gave out is given out again, and as many requests may wait.
#[derive(Clone, Copy, Debug)]
pub struct Handover {
    next_id: u64,
    waiting_limit: usize,
}

impl<S: Stepper> Engine<S> {
    /// Ends every request, running or waiting, with this error: one event for each, in the order in which they came.
    pub fn fail_all(&mut self, error: &Arc<RuntimeError>) -> Vec<Event> {
        let mut events = Vec::new();
        self.retire(&mut events, |_, _| Some(What::Failed(Arc::clone(error))));
        let told = |w: super::Waiting| Event { request: w.id, what: What::Failed(Arc::clone(error)) };
        events.extend(self.waiting.drain(..).map(told));
        events.sort_by_key(|event| event.request);
        events
    }

    /// What the engine that takes this one's place goes on with.
    pub fn handover(&self) -> Handover {
        Handover { next_id: self.next_id, waiting_limit: self.waiting_limit }
    }

    /// Goes on where another engine ended.
    pub fn take_over(&mut self, from: Handover) {
        self.next_id = self.next_id.max(from.next_id);
        self.waiting_limit = from.waiting_limit;
    }

    /// What ran the steps. Requests that are still here end without an event; [`Engine::fail_all`] tells them.
    pub fn into_stepper(self) -> S {
        self.stepper
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::fake::{Fake, greedy, plan};
    use crate::pool::NoRoom;
    use crate::request::{Request, RequestId};

    fn request(length: u32, max_new: u32) -> Request {
        Request { prompt: (0..length).map(|i| i % 90).collect(), max_new, ..Request::default() }
    }

    fn last_events(events: &[Event]) -> Vec<(RequestId, bool)> {
        let lost = |what: &What| match what {
            What::Failed(error) => Some(!error.device_is_usable()),
            What::Done(_) => Some(false),
            _ => None,
        };
        events.iter().filter_map(|e| lost(&e.what).map(|lost| (e.request, lost))).collect()
    }

    #[test]
    fn with_the_device_everybody_goes_at_once_and_nobody_twice() {
        let mut engine = Engine::new(Fake::new(plan(128, 2, 16, 2))).unwrap();
        let ids: Vec<RequestId> = (0..5).map(|i| engine.submit(request(20 + i, 9)).unwrap()).collect();
        // Room for two; the first step has no room for the second's whole prompt.
        engine.step();
        engine.stepper_mut().lost = true;
        let events = engine.step();
        assert_eq!(last_events(&events), ids.iter().map(|&id| (id, true)).collect::<Vec<_>>());
        assert!(events.iter().all(|e| !matches!(e.what, What::Token { .. })));
        assert!(engine.is_idle() && engine.pool().is_idle());
        engine.pool().check().unwrap();
        assert!(engine.step().is_empty());

        // Who comes later learns it at the next step.
        let late = engine.submit(request(3, 2)).unwrap();
        assert_eq!(last_events(&engine.step()), [(late, true)]);

        engine.set_waiting_limit(3);
        let mut next = Engine::new(Fake::new(plan(128, 2, 16, 2))).unwrap();
        next.take_over(engine.handover());
        let id = next.submit(request(20, 9)).unwrap();
        assert!(id > late && !ids.contains(&id));
        assert_eq!(next.waiting_limit, 3);
        let mut tokens = Vec::new();
        while !next.is_idle() {
            tokens.extend(next.step().into_iter().filter_map(|e| match e.what {
                What::Token { id, .. } => Some(id),
                _ => None,
            }));
        }
        assert_eq!(tokens, greedy(&request(20, 9).prompt, 9));
    }

    #[test]
    fn who_is_busy_says_what_there_is_too_little_of() {
        let mut tight = plan(128, 3, 16, 3);
        // Four pages hold the whole context; a second sequence of that length finds one.
        tight.kv.kinds[0].pages = 5;
        let mut engine = Engine::new(Fake::new(tight)).unwrap();
        engine.set_waiting_limit(0);
        engine.submit(request(100, 9)).unwrap();
        engine.step();
        // Two slots are free, so two may come; the third learns what they all wait for.
        let waiting = [engine.submit(request(90, 9)).unwrap(), engine.submit(request(3, 2)).unwrap()];
        let busy = engine.submit(request(90, 9)).unwrap_err();
        let lacks = NoRoom::Pages { kind: 0, need: 4, free: 1 };
        let RuntimeError::Busy { waiting: 2, limit: 0, lacks: Some(got) } = busy else { panic!("{busy}") };
        assert_eq!(got, lacks);
        assert!(
            !busy.is_permanent() && busy.to_string().contains("4 pages are needed, 1 are free"),
            "{busy}"
        );
        let Err(busy) = engine.feed(99) else { panic!("there is no room") };
        assert!(matches!(busy, RuntimeError::Busy { lacks: Some(got), .. } if got == lacks), "{busy}");

        // What can never fit says so for good, however much is free.
        let refused = engine.submit(request(128, 1)).unwrap_err();
        assert!(matches!(refused, RuntimeError::Refused(_)) && refused.is_permanent());
        // A request is not passed over by a smaller one that came later.
        let mut ended = Vec::new();
        while !engine.is_idle() {
            ended.extend(last_events(&engine.step()).into_iter().map(|(id, _)| id));
            engine.pool().check().unwrap();
        }
        assert!(ended.ends_with(&[waiting[1], waiting[0]]) || ended.ends_with(&waiting));
        assert_eq!(ended.len(), 3);
        assert!(engine.pool().is_idle());
        assert!(RuntimeError::Step(Arc::new(refused)).is_permanent());
    }
}
