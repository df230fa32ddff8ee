#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use crate::engine::harness::{self, Outcomes, prompt, request};
use crate::fake::{Fake, PAGE_BYTES, SNAPSHOT_BYTES, VOCAB, caching_plan, greedy};
use crate::{Cancel, Engine, FinishReason, Request};
use proptest::prelude::*;
use std::collections::HashMap;

/// Full attention alone; what else there may be is `1..=4` of [`caching_plan`].
const DENSE: u32 = 0;
/// Full attention and a recurrent layer.
const HYBRID: u32 = 2;

fn engine(kind: u32, context: u32, slots: u32, chunk: u32, snapshots: u32) -> Engine<Fake> {
    Engine::new(Fake::new(caching_plan(kind, context, slots, chunk, snapshots))).unwrap()
}

/// One step, after which the books are right and no page that others may read has been written.
fn one_step(engine: &mut Engine<Fake>, outcomes: &mut Outcomes) {
    let before = engine.pool().blocks();
    engine.stepper_mut().written.clear();
    harness::one_step(engine, outcomes);
    let after = engine.pool().blocks();
    for (_, page) in before.iter().filter(|(id, _)| after.contains_key(id)) {
        assert!(
            page.is_none_or(|page| !engine.stepper().written.contains(&page)),
            "a shared page is written"
        );
    }
    let stats = engine.cache_stats();
    assert!(stats.limit.is_none_or(|limit| stats.bytes <= limit), "{stats:?}");
    let snapshots = stats.snapshots * SNAPSHOT_BYTES;
    assert_eq!(
        stats.bytes,
        snapshots + if engine.plan().kv.kinds.is_empty() { 0 } else { stats.pages * PAGE_BYTES }
    );
}

fn drain(engine: &mut Engine<Fake>, outcomes: &mut Outcomes) {
    harness::drain_by(engine, outcomes, one_step);
}

/// Runs a request to its end: its tokens are those of a model that remembers nothing. Answers what was cached.
fn ask(engine: &mut Engine<Fake>, prompt: &[u32], max_new: u32) -> u32 {
    let id = engine.submit(request(prompt, max_new)).unwrap();
    let mut outcomes = Outcomes::new();
    drain(engine, &mut outcomes);
    let outcome = &outcomes[&id];
    assert_eq!(outcome.done, Some(FinishReason::Length));
    assert_eq!(outcome.tokens, greedy(prompt, max_new as usize));
    outcome.cached
}

#[test]
fn who_begins_alike_computes_the_rest() {
    let mut engine = engine(DENSE, 256, 1, 64, 0);
    let asked = prompt(1, 100);
    assert_eq!(ask(&mut engine, &asked, 5), 0);
    let steps = engine.stepper().steps;
    assert_eq!(ask(&mut engine, &asked, 5), 96);
    assert_eq!(engine.stepper().steps - steps, 5, "one for the last tokens of the prompt, and four");
    // The answer is part of the next prompt.
    let mut longer = asked.clone();
    longer.extend(greedy(&asked, 5));
    longer.extend(prompt(2, 60));
    assert_eq!(ask(&mut engine, &longer, 40), 96);
    longer.extend(greedy(&longer, 40));
    assert_eq!(ask(&mut engine, &longer, 1), 192, "of 205 tokens 204 were computed");
    let mut other = asked[..40].to_vec();
    other.extend(prompt(9, 50));
    assert_eq!(ask(&mut engine, &other, 3), 32);
    // Of whole pages the last is computed again: there must be logits.
    assert_eq!(ask(&mut engine, &asked[..96], 3), 64);
    assert_eq!(ask(&mut engine, &asked[..1], 3), 0);
    let stats = engine.cache_stats();
    assert_eq!((stats.lookups, stats.hits, stats.tokens_reused), (7, 5, 96 + 96 + 192 + 32 + 64));
    assert_eq!(stats.bytes, stats.pages * PAGE_BYTES);
}

#[test]
fn pages_are_shared_by_those_that_run_together() {
    let mut engine = engine(DENSE, 128, 3, 256, 0);
    let asked = prompt(3, 100);
    let mut outcomes = Outcomes::new();
    engine.submit(request(&asked, 28)).unwrap();
    one_step(&mut engine, &mut outcomes);
    let late = engine.submit(request(&asked, 20)).unwrap();
    let other = engine.submit(request(&prompt(4, 64), 20)).unwrap();
    one_step(&mut engine, &mut outcomes);
    assert_eq!((outcomes[&late].cached, outcomes[&other].cached), (96, 0));
    // Four pages, one more that is not shared, and three.
    assert_eq!(engine.pool().free_pages().collect::<Vec<_>>(), [12 - 4 - 1 - 3]);
    drain(&mut engine, &mut outcomes);
    assert_eq!(outcomes[&late].tokens, greedy(&asked, 20));
}

#[test]
fn retained_pages_are_free_pages_and_the_oldest_go_first() {
    let mut engine = engine(DENSE, 128, 2, 128, 0);
    for seed in 0..2 {
        ask(&mut engine, &prompt(seed, 127), 1);
    }
    assert_eq!(engine.cache_stats().pages, 6, "three whole pages each, of the eight there are");
    assert_eq!(ask(&mut engine, &prompt(0, 127), 1), 96);
    ask(&mut engine, &prompt(2, 127), 1);
    let stats = engine.cache_stats();
    assert_eq!((stats.pages, stats.evictions), (7, 2), "the end of the older one went");
    assert_eq!(ask(&mut engine, &prompt(1, 127), 1), 32, "its beginning is still there");
    // Whatever is retained, two that fill the pool are admitted at once.
    let mut outcomes = Outcomes::new();
    for seed in 5..7 {
        engine.submit(request(&prompt(seed, 120), 8)).unwrap();
    }
    one_step(&mut engine, &mut outcomes);
    assert_eq!(engine.running(), 2);
    drain(&mut engine, &mut outcomes);
}

#[test]
fn the_limit_is_in_bytes_and_holds_at_once() {
    let mut engine = engine(DENSE, 128, 2, 128, 0);
    let asked = prompt(1, 127);
    ask(&mut engine, &asked, 1);
    assert_eq!(engine.cache_stats().bytes, 3 * PAGE_BYTES);
    engine.set_cache_limit(Some(2 * PAGE_BYTES + 1));
    assert_eq!((engine.cache_stats().pages, engine.cache_stats().evictions), (2, 1));
    assert_eq!(ask(&mut engine, &asked, 1), 64);
    assert_eq!(engine.trim(), 2 * PAGE_BYTES);
    assert_eq!((engine.cache_stats().bytes, engine.trim()), (0, 0));
    assert_eq!((ask(&mut engine, &asked, 1), ask(&mut engine, &asked, 1)), (0, 64));
    let lookups = engine.cache_stats().lookups;
    engine.set_cache_limit(Some(0));
    assert_eq!(engine.cache_stats().bytes, 0);
    assert_eq!((ask(&mut engine, &asked, 1), ask(&mut engine, &asked, 1)), (0, 0));
    let stats = engine.cache_stats();
    assert_eq!((stats.bytes, stats.lookups, stats.limit), (0, lookups, Some(0)));
    engine.set_cache_limit(None);
    assert_eq!((ask(&mut engine, &asked, 1), ask(&mut engine, &asked, 1)), (0, 96));
}

#[test]
fn lowering_the_limit_to_nothing_spares_what_is_in_use() {
    let mut engine = engine(DENSE, 128, 2, 128, 0);
    let asked = prompt(1, 100);
    ask(&mut engine, &asked, 1);
    let mut outcomes = Outcomes::new();
    let id = engine.submit(request(&asked, 20)).unwrap();
    one_step(&mut engine, &mut outcomes);
    engine.set_cache_limit(Some(0));
    engine.trim();
    drain(&mut engine, &mut outcomes);
    assert_eq!((outcomes[&id].cached, &outcomes[&id].tokens), (96, &greedy(&asked, 20)));
    assert!(engine.pool().blocks().is_empty());
}

#[test]
fn nothing_is_kept_of_what_failed() {
    for kind in [DENSE, HYBRID] {
        let mut engine = engine(kind, 256, 2, 32, 4);
        let (asked, known) = (prompt(1, 130), prompt(7, 70));
        ask(&mut engine, &known, 1);
        let kept = engine.pool().blocks();
        // A step within the prompt, the first after it, a later one, and one whose numbers are none.
        for steps in [3, 5, 6, 9] {
            engine.stepper_mut().fail_at = Some(engine.stepper().steps + steps);
            engine.submit(request(&asked, 40)).unwrap();
            drain(&mut engine, &mut Outcomes::new());
            assert_eq!(engine.pool().blocks(), kept);
        }
        engine.stepper_mut().fail_at = None;
        engine.stepper_mut().poison = Some(0);
        engine.submit(request(&asked, 40)).unwrap();
        drain(&mut engine, &mut Outcomes::new());
        assert_eq!(engine.pool().blocks(), kept);
        engine.stepper_mut().poison = None;
        assert_eq!((ask(&mut engine, &asked, 3), ask(&mut engine, &asked, 3)), (0, 128));
        assert_eq!(ask(&mut engine, &known, 1), 64);
    }
}

#[test]
fn what_was_computed_of_a_cancelled_request_is_kept_and_no_more() {
    let mut engine = engine(DENSE, 256, 1, 50, 0);
    let (asked, cancel) = (prompt(1, 200), Cancel::new());
    let mut outcomes = Outcomes::new();
    engine.submit(Request { cancel: cancel.clone(), ..request(&asked, 5) }).unwrap();
    one_step(&mut engine, &mut outcomes);
    one_step(&mut engine, &mut outcomes);
    // The third writes, and is not counted.
    engine.stepper_mut().cancel_in_step = Some(cancel);
    drain(&mut engine, &mut outcomes);
    assert_eq!(ask(&mut engine, &asked, 5), 96);
    // One that was dropped counts alike.
    let dropped = engine.submit(request(&prompt(2, 90), 5)).unwrap();
    one_step(&mut engine, &mut outcomes);
    assert!(engine.end(dropped));
    assert_eq!(ask(&mut engine, &prompt(2, 90), 5), 32);
}

#[test]
fn a_lost_device_takes_everything_with_it() {
    let mut engine = engine(HYBRID, 128, 2, 64, 2);
    ask(&mut engine, &prompt(1, 100), 1);
    engine.submit(request(&prompt(1, 100), 5)).unwrap();
    engine.submit(request(&prompt(2, 100), 5)).unwrap();
    let mut outcomes = Outcomes::new();
    one_step(&mut engine, &mut outcomes);
    engine.stepper_mut().lost = true;
    drain(&mut engine, &mut outcomes);
    assert!(outcomes.values().all(|outcome| outcome.failed.is_some()));
    assert!(engine.pool().blocks().is_empty());
    assert_eq!(engine.cache_stats().bytes, 0);
}

#[test]
fn without_snapshots_states_and_windows_are_computed_again() {
    for kind in 1..=4 {
        let mut engine = engine(kind, 256, 2, 64, 0);
        let asked = prompt(1, 100);
        assert_eq!((ask(&mut engine, &asked, 5), ask(&mut engine, &asked, 5)), (0, 0));
        let stats = engine.cache_stats();
        assert_eq!((stats.lookups, stats.pages, stats.bytes), (0, 0, 0));
    }
}

#[test]
fn with_snapshots_they_are_not() {
    for kind in 1..=4 {
        let mut engine = engine(kind, 256, 1, 64, 1);
        let mut asked = prompt(1, 100);
        assert_eq!((ask(&mut engine, &asked, 5), ask(&mut engine, &asked, 5)), (0, 96), "kind {kind}");
        // A conversation goes on; one snapshot is enough for it.
        for _ in 0..3 {
            let before = asked.len() as u32 - 1;
            asked.extend(greedy(&asked, 5));
            asked.extend(prompt(2, 35));
            assert_eq!(ask(&mut engine, &asked, 5), before / 32 * 32, "kind {kind}");
        }
        // Another one takes it: nothing of the first can be used, so its pages are as if never there.
        assert_eq!(ask(&mut engine, &prompt(5, 70), 5), 0);
        assert_eq!(ask(&mut engine, &asked, 5), 0, "kind {kind}");
        assert_eq!(engine.cache_stats().snapshots, 1);
        assert_eq!(engine.pool().blocks().len(), asked.len() / 32);
    }
}

#[test]
fn where_others_were_alike_a_snapshot_is_taken_for_those_to_come() {
    let mut engine = engine(HYBRID, 256, 2, 64, 4);
    let with = |seed| [prompt(1, 70), prompt(seed, 60)].concat();
    assert_eq!(ask(&mut engine, &with(2), 3), 0);
    assert_eq!(ask(&mut engine, &with(3), 3), 0, "64 tokens are alike, but no snapshot is there");
    assert_eq!(ask(&mut engine, &with(4), 3), 64);
    assert_eq!(ask(&mut engine, &with(2), 3), 128);
}

#[test]
fn a_snapshot_that_is_not_taken_costs_nobody_anything() {
    let mut engine = engine(HYBRID, 256, 1, 64, 2);
    engine.stepper_mut().fail_snapshots = true;
    let asked = prompt(1, 100);
    assert_eq!((ask(&mut engine, &asked, 5), ask(&mut engine, &asked, 5)), (0, 0));
    assert_eq!((engine.cache_stats().bytes, engine.pool().blocks().len()), (0, 0));
    engine.stepper_mut().fail_snapshots = false;
    // One that is larger than the limit is not taken either, and steps are not cut for it.
    engine.set_cache_limit(Some(SNAPSHOT_BYTES - 1));
    let steps = engine.stepper().steps;
    ask(&mut engine, &asked, 1);
    assert_eq!((engine.cache_stats().bytes, engine.stepper().steps - steps), (0, 2));
    engine.set_cache_limit(Some(SNAPSHOT_BYTES + 3 * PAGE_BYTES));
    assert_eq!((ask(&mut engine, &asked, 1), ask(&mut engine, &asked, 1)), (0, 96));
    assert_eq!(engine.cache_stats().bytes, SNAPSHOT_BYTES + 3 * PAGE_BYTES);
}

#[derive(Clone, Debug)]
struct Job {
    arrives: usize,
    /// Which beginning, how much of it, and what comes after.
    stem: (u32, usize, Vec<u32>),
    max_new: u32,
    cancelled_at: Option<usize>,
}

fn job() -> impl Strategy<Value = Job> {
    let stem = (0_u32..3, 1_usize..110, prop::collection::vec(0..VOCAB, 0..50));
    let cancel = prop::option::weighted(0.2, 0_usize..40);
    (0_usize..40, stem, 1_u32..40, cancel).prop_map(|(arrives, stem, max_new, cancelled_at)| Job {
        arrives,
        stem,
        max_new,
        cancelled_at,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever is kept, and whatever gives way: every request gets the tokens of a cold run, the books are right after
    /// every step, what is retained is within the limit, and no shared page is ever written.
    #[test]
    fn what_is_kept_changes_no_token(
        jobs in prop::collection::vec(job(), 1..14),
        slots in 1_u32..5,
        chunk in 1_u32..90,
        kind in 0_u32..5,
        snapshots in 0_u32..4,
        limits in prop::collection::vec((0_usize..50, prop::option::of(0_u64..10 * PAGE_BYTES)), 0..3),
        trims in prop::collection::vec(0_usize..50, 0..2),
        fail_at in prop::option::weighted(0.3, 1_u64..60),
        cancel_at in prop::option::weighted(0.3, 1_u64..60),
    ) {
        let mut engine = engine(kind, 224, slots, chunk, snapshots);
        (engine.stepper_mut().fail_at, engine.stepper_mut().cancel_at) = (fail_at, cancel_at);
        let prompts: Vec<Vec<u32>> =
            jobs.iter().map(|job| [&prompt(job.stem.0, 110)[..job.stem.1], &job.stem.2].concat()).collect();
        let flags: Vec<Cancel> = jobs.iter().map(|_| Cancel::new()).collect();
        let (mut outcomes, mut ids) = (Outcomes::new(), HashMap::new());
        for now in 0..50 {
            for (_, limit) in limits.iter().filter(|(at, _)| *at == now) {
                engine.set_cache_limit(*limit);
                engine.pool().check().unwrap();
            }
            if trims.contains(&now) {
                engine.trim();
                engine.pool().check().unwrap();
                prop_assert_eq!(engine.cache_stats().bytes, 0);
            }
            for (i, job) in jobs.iter().enumerate() {
                if job.arrives == now {
                    let cancel = flags[i].clone();
                    let request = Request { cancel, ..request(&prompts[i], job.max_new) };
                    ids.insert(i, engine.submit(request).unwrap());
                }
                if job.cancelled_at == Some(now) {
                    flags[i].cancel();
                }
            }
            one_step(&mut engine, &mut outcomes);
        }
        drain(&mut engine, &mut outcomes);
        for (i, job) in jobs.iter().enumerate() {
            let outcome = &outcomes[&ids[&i]];
            let cold = greedy(&prompts[i], job.max_new as usize);
            prop_assert!(cold.starts_with(&outcome.tokens));
            match (outcome.done, outcome.failed.is_some()) {
                (Some(FinishReason::Length), false) => prop_assert_eq!(&outcome.tokens, &cold),
                (Some(FinishReason::Cancelled), false) => prop_assert!(job.cancelled_at.is_some()),
                (None, true) => prop_assert!(fail_at.is_some() || cancel_at.is_some()),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
