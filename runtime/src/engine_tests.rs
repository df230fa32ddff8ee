#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::harness::{Outcome, drain, one_step, prompt, request};
use super::*;
use crate::SamplerOptions;
use crate::fake::{Fake, VOCAB, greedy, logits, plan, recurrent_plan};
use crate::pool::NoRoom;
use proptest::prelude::*;
use std::collections::HashMap;

fn engine(context: u32, slots: u32, chunk: u32) -> Engine<Fake> {
    Engine::new(Fake::new(plan(context, slots, chunk, slots))).unwrap()
}

/// What a plan of the fake keeps: keys and values, those and a recurrent state, or only the latter.
fn keeping(kind: u32, context: u32, slots: u32, chunk: u32) -> Engine<Fake> {
    match kind {
        0 => engine(context, slots, chunk),
        kind => Engine::new(Fake::new(recurrent_plan(context, slots, chunk, kind == 1))).unwrap(),
    }
}

fn run_one(engine: &mut Engine<Fake>, request: Request) -> Outcome {
    let id = engine.submit(request).unwrap();
    let mut outcomes = HashMap::new();
    drain(engine, &mut outcomes);
    outcomes.remove(&id).unwrap()
}

#[test]
fn a_prompt_is_continued_to_its_length() {
    let mut engine = engine(256, 1, 16);
    let outcome = run_one(&mut engine, request(prompt(1, 37), 20));
    assert_eq!(outcome.tokens, greedy(&prompt(1, 37), 20));
    assert_eq!(outcome.done, Some(FinishReason::Length));
    // 3 steps for the prompt, the last of which chooses the first token.
    assert_eq!(engine.stepper().steps, 3 + 19);
    assert_eq!(engine.stepper().last_sampling, Sampling::Greedy);
}

#[test]
fn end_and_stop_tokens_end_it_and_are_not_passed_on() {
    let all = greedy(&prompt(2, 5), 12);
    let at = (1..12).find(|&i| !all[..i].contains(&all[i])).unwrap();
    let mut engine = engine(64, 1, 8);
    let ended = run_one(&mut engine, Request { end_tokens: vec![all[at]], ..request(prompt(2, 5), 12) });
    assert_eq!((ended.tokens, ended.done), (all[..at].to_vec(), Some(FinishReason::End(all[at]))));
    let stopped = run_one(&mut engine, Request { stop_tokens: vec![all[at]], ..request(prompt(2, 5), 12) });
    assert_eq!((stopped.tokens, stopped.done), (all[..at].to_vec(), Some(FinishReason::Stop(all[at]))));
}

#[test]
fn what_can_never_run_is_refused_before_anything_is_launched() {
    let mut engine = engine(64, 2, 8);
    let refused = |engine: &mut Engine<Fake>, request| match engine.submit(request) {
        Err(RuntimeError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&mut engine, request(vec![], 1)), Refused::EmptyPrompt);
    assert_eq!(refused(&mut engine, request(vec![1], 0)), Refused::NothingToDo);
    let too_long = Refused::TooLong { prompt: 60, max_new: 5, context: 64 };
    assert_eq!(refused(&mut engine, request(prompt(0, 60), 5)), too_long);
    let huge = Refused::TooLong { prompt: 1, max_new: u32::MAX, context: 64 };
    assert_eq!(refused(&mut engine, request(vec![1], u32::MAX)), huge);
    let unknown = Refused::UnknownToken { position: 1, id: VOCAB, vocab: VOCAB };
    assert_eq!(refused(&mut engine, request(vec![0, VOCAB], 1)), unknown);
    let sampler = SamplerOptions { top_p: f32::NAN, ..Default::default() };
    let why = refused(&mut engine, Request { sampler, ..request(vec![1], 1) });
    assert!(matches!(why, Refused::Option { option: "top_p", .. }), "{why}");
    assert_eq!(engine.stepper().steps, 0);
    assert!(engine.is_idle());
    // Exactly the context fits.
    assert_eq!(run_one(&mut engine, request(prompt(0, 60), 4)).tokens.len(), 4);
}

#[test]
fn what_fits_but_not_now_waits_and_then_is_busy() {
    let mut engine = engine(64, 2, 8);
    engine.set_waiting_limit(1);
    let mut outcomes = HashMap::new();
    for i in 0..3 {
        engine.submit(request(prompt(i, 3), 4)).unwrap();
    }
    // Both slots are free: it is those before it that it waits for.
    assert!(matches!(
        engine.submit(request(prompt(9, 3), 4)),
        Err(RuntimeError::Busy { waiting: 3, limit: 1, lacks: None })
    ));
    one_step(&mut engine, &mut outcomes);
    assert_eq!((engine.running(), engine.waiting()), (2, 1));
    let busy = engine.submit(request(prompt(9, 3), 4)).unwrap_err();
    let RuntimeError::Busy { waiting: 1, limit: 1, lacks: Some(NoRoom::Slots { slots: 2 }) } = busy else {
        panic!("{busy}")
    };
    assert_eq!(busy.to_string(), "busy: all 2 slots are taken; 1 requests are waiting, at most 1 may");
    assert!(!busy.is_permanent());
    drain(&mut engine, &mut outcomes);
    assert!(outcomes.values().all(|o| o.done == Some(FinishReason::Length)));
    engine.submit(request(prompt(9, 3), 4)).unwrap();
}

#[test]
fn those_that_generate_are_not_held_up_by_a_long_prompt() {
    let mut engine = engine(512, 2, 8);
    let mut outcomes = HashMap::new();
    let short = engine.submit(request(prompt(1, 2), 30)).unwrap();
    one_step(&mut engine, &mut outcomes);
    engine.submit(request(prompt(2, 200), 1)).unwrap();
    for n in 2..=20 {
        one_step(&mut engine, &mut outcomes);
        assert_eq!(outcomes[&short].tokens.len(), n);
    }
}

#[test]
fn cancelling_works_while_waiting_while_running_and_inside_a_step() {
    let mut engine = engine(128, 1, 8);
    let mut outcomes = HashMap::new();
    let flags = [Cancel::new(), Cancel::new(), Cancel::new()];
    let ids: Vec<RequestId> = (0..3)
        .map(|i| {
            let cancel = flags[i].clone();
            engine.submit(Request { cancel, ..request(prompt(i as u32, 40), 9) }).unwrap()
        })
        .collect();
    one_step(&mut engine, &mut outcomes);
    flags[1].cancel();
    one_step(&mut engine, &mut outcomes);
    assert_eq!(outcomes[&ids[1]].done, Some(FinishReason::Cancelled));
    flags[0].cancel();
    one_step(&mut engine, &mut outcomes);
    assert_eq!(outcomes[&ids[0]].done, Some(FinishReason::Cancelled));
    engine.stepper_mut().cancel_in_step = Some(flags[2].clone());
    drain(&mut engine, &mut outcomes);
    assert_eq!(outcomes[&ids[2]].done, Some(FinishReason::Cancelled));
    assert!(outcomes[&ids[2]].tokens.is_empty());
    let next = run_one(&mut engine, request(prompt(5, 9), 5));
    assert_eq!(next.tokens, greedy(&prompt(5, 9), 5));
}

#[test]
fn a_failed_step_fails_its_requests_and_nobody_else() {
    let mut engine = engine(128, 2, 8);
    let mut outcomes = HashMap::new();
    let ids: Vec<_> = (0..3).map(|i| engine.submit(request(prompt(i, 20), 6)).unwrap()).collect();
    engine.stepper_mut().fail_at = Some(4);
    drain(&mut engine, &mut outcomes);
    for id in &ids[..2] {
        let failed = outcomes[id].failed.as_ref().unwrap();
        assert!(matches!(**failed, RuntimeError::Submit { .. }) && failed.device_is_usable());
    }
    assert_eq!(outcomes[&ids[2]].tokens, greedy(&prompt(2, 20), 6));
}

#[test]
fn a_lost_device_ends_everything_with_an_error() {
    let mut engine = engine(128, 2, 8);
    let mut outcomes = HashMap::new();
    for i in 0..5 {
        engine.submit(request(prompt(i, 20), 6)).unwrap();
    }
    one_step(&mut engine, &mut outcomes);
    engine.stepper_mut().lost = true;
    drain(&mut engine, &mut outcomes);
    assert_eq!(outcomes.len(), 5);
    assert!(outcomes.values().all(|o| o.failed.as_ref().is_some_and(|e| !e.device_is_usable())));
}

#[test]
fn rows_that_are_not_numbers_fail_their_request_only() {
    for sampler in [SamplerOptions::default(), SamplerOptions { temperature: 1.0, ..Default::default() }] {
        let mut engine = engine(128, 2, 8);
        let mut outcomes = HashMap::new();
        engine.stepper_mut().poison = Some(1);
        let ok = engine.submit(request(prompt(0, 5), 6)).unwrap();
        let bad = engine.submit(Request { sampler, ..request(prompt(1, 5), 6) }).unwrap();
        drain(&mut engine, &mut outcomes);
        assert_eq!(outcomes[&ok].tokens, greedy(&prompt(0, 5), 6));
        assert!(outcomes[&bad].tokens.is_empty());
        let error = outcomes[&bad].failed.as_ref().unwrap();
        assert!(matches!(**error, RuntimeError::Logits { got } if got.is_nan()), "{error}");
    }
}

#[test]
fn requests_ended_from_outside_give_their_pages_back() {
    let mut engine = engine(128, 1, 8);
    let first = engine.submit(request(prompt(0, 20), 6)).unwrap();
    let second = engine.submit(request(prompt(1, 20), 6)).unwrap();
    engine.step();
    assert!(engine.end(first) && engine.end(second) && !engine.end(first));
    assert!(engine.is_idle() && engine.pool().is_idle());
    engine.submit(request(prompt(0, 20), 6)).unwrap();
    engine.step();
    engine.end_all();
    assert!(engine.is_idle() && engine.pool().is_idle());
}

#[test]
fn plans_without_room_for_a_row_of_each_slot_are_errors() {
    assert!(matches!(Engine::new(Fake::new(plan(64, 3, 8, 2))), Err(RuntimeError::Plan { .. })));
}

#[test]
fn a_fed_sequence_shows_the_logits_that_were_asked_for() {
    let mut engine = Engine::new(Fake::new(plan(128, 1, 16, 4))).unwrap();
    let ids = prompt(3, 50);
    let mut feed = engine.feed(60).unwrap();
    let mut seen = vec![];
    feed.push(&ids[..30], 20, |i, row| {
        assert_eq!(row, logits(&ids[..=i]));
        seen.push(i);
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, (20..30).collect::<Vec<_>>());
    feed.push(&ids[30..], 19, |i, row| {
        assert_eq!((i, row), (19, &logits(&ids)[..]));
        Ok(())
    })
    .unwrap();
    assert_eq!(feed.length(), 50);
    let too_long = feed.push(&ids[..11], 0, |_, _| Ok(()));
    assert!(matches!(too_long, Err(RuntimeError::Refused(Refused::TooLong { .. }))));
    drop(feed);
    assert!(engine.pool().is_idle());
    assert!(matches!(engine.feed(129), Err(RuntimeError::Refused(_))));
    engine.submit(request(prompt(0, 20), 6)).unwrap();
    engine.step();
    assert!(matches!(engine.feed(1), Err(RuntimeError::Busy { .. })));
}

#[test]
fn a_score_is_the_sum_over_its_tokens() {
    let mut engine = Engine::new(Fake::new(plan(128, 1, 16, 4))).unwrap();
    let ids = prompt(4, 33);
    let score = engine.score(&ids, 17).unwrap();
    let nll = (17..33).map(|i| crate::evaluate::nll(&logits(&ids[..i]), ids[i]).unwrap());
    assert_eq!(score.tokens, 16);
    assert!((score.nll - nll.sum::<f64>()).abs() < 1e-9);
    assert_eq!(engine.score(&ids[..1], 1).unwrap().tokens, 0);
    assert!(engine.pool().is_idle());
}

#[test]
fn recurrent_states_follow_chunks_company_and_the_reuse_of_slots() {
    for kind in [1, 2] {
        let mut engine = keeping(kind, 256, 3, 16);
        let mut outcomes = HashMap::new();
        // One decodes while others read in chunks, and five requests share three slots.
        let first = engine.submit(request(prompt(1, 3), 30)).unwrap();
        one_step(&mut engine, &mut outcomes);
        let lengths = [100, 33, 1, 70];
        let others: Vec<_> =
            lengths.iter().map(|&n| engine.submit(request(prompt(n, n), 12)).unwrap()).collect();
        drain(&mut engine, &mut outcomes);
        assert_eq!(outcomes[&first].tokens, greedy(&prompt(1, 3), 30), "kind {kind}");
        for (id, n) in others.iter().zip(lengths) {
            assert_eq!(outcomes[id].tokens, greedy(&prompt(n, n), 12), "kind {kind}, prompt of {n}");
        }
    }
}

#[test]
fn a_plan_without_any_keys_and_values_has_slots_and_nothing_else() {
    let mut engine = keeping(2, 64, 2, 8);
    assert_eq!(engine.pool().free_pages().len(), 0);
    assert_eq!(run_one(&mut engine, request(prompt(1, 60), 4)).tokens, greedy(&prompt(1, 60), 4));
    // The context still bounds what can be asked for.
    let long = engine.submit(request(prompt(1, 60), 5));
    assert!(matches!(long, Err(RuntimeError::Refused(Refused::TooLong { .. }))));
    let ids: Vec<_> = (0..3).map(|i| engine.submit(request(prompt(i, 5), 5)).unwrap()).collect();
    let mut outcomes = HashMap::new();
    one_step(&mut engine, &mut outcomes);
    assert_eq!((engine.running(), engine.waiting(), engine.pool().free_slots()), (2, 1, 0));
    drain(&mut engine, &mut outcomes);
    assert!((0..).zip(&ids).all(|(i, id)| outcomes[id].tokens == greedy(&prompt(i, 5), 5)));
}

#[test]
fn what_survives_a_step_that_did_not_end_well_is_read_again_from_the_start() {
    for kind in [0, 1, 2] {
        // In the middle of the prompt, at its end, and among the answer.
        for (at, steps) in [(2, 13), (3, 14), (5, 14)] {
            let mut engine = keeping(kind, 128, 2, 16);
            engine.stepper_mut().cancel_at = Some(at);
            let outcome = run_one(&mut engine, request(prompt(3, 40), 9));
            assert_eq!(outcome.tokens, greedy(&prompt(3, 40), 9), "kind {kind}, step {at}");
            assert_eq!(outcome.done, Some(FinishReason::Length));
            // 3 steps for the prompt and 8 for the answer. Keys and values are written once more where they were; a
            // state is made again from all tokens.
            let steps = if kind == 0 { 12 } else { steps };
            assert_eq!(engine.stepper().steps, steps, "kind {kind}, step {at}");
        }
    }
}

#[test]
fn cancelled_and_failed_requests_leave_nothing_in_their_slots() {
    for kind in [1, 2] {
        let mut engine = keeping(kind, 128, 1, 8);
        let mut outcomes = HashMap::new();
        // Cancelled between two chunks of its prompt, inside a chunk, and failed while it answers.
        let flags = [Cancel::new(), Cancel::new()];
        let ids: Vec<RequestId> = flags
            .iter()
            .map(|flag| engine.submit(Request { cancel: flag.clone(), ..request(prompt(1, 40), 9) }).unwrap())
            .collect();
        let failing = engine.submit(request(prompt(2, 10), 9)).unwrap();
        let last = engine.submit(request(prompt(4, 20), 9)).unwrap();
        one_step(&mut engine, &mut outcomes);
        one_step(&mut engine, &mut outcomes);
        flags[0].cancel();
        one_step(&mut engine, &mut outcomes);
        engine.stepper_mut().cancel_in_step = Some(flags[1].clone());
        one_step(&mut engine, &mut outcomes);
        // The sweep of the next step ends it, and the next request reads its first chunk.
        let now = engine.stepper().steps;
        engine.stepper_mut().fail_at = Some(now + 4);
        drain(&mut engine, &mut outcomes);
        for id in ids {
            assert_eq!(outcomes[&id].done, Some(FinishReason::Cancelled));
            assert!(outcomes[&id].tokens.is_empty());
        }
        assert!(outcomes[&failing].failed.is_some());
        assert_eq!(outcomes[&failing].tokens, greedy(&prompt(2, 10), 2));
        assert_eq!(outcomes[&last].tokens, greedy(&prompt(4, 20), 9), "kind {kind}");
    }
}

#[test]
fn a_failed_step_costs_those_that_were_not_in_it_nothing() {
    for kind in [1, 2] {
        // Room for one token a step: three requests take turns, so two are never in the step that fails.
        let mut engine = Engine::new(Fake::new(recurrent_plan(64, 3, 1, kind == 1))).unwrap();
        let ids: Vec<_> = (0..3).map(|i| engine.submit(request(prompt(i, 4), 6)).unwrap()).collect();
        engine.stepper_mut().fail_at = Some(11);
        let mut outcomes = HashMap::new();
        drain(&mut engine, &mut outcomes);
        assert_eq!(outcomes.values().filter(|o| o.failed.is_some()).count(), 1);
        for (i, id) in (0..).zip(&ids).filter(|(_, id)| outcomes[id].failed.is_none()) {
            assert_eq!(outcomes[id].tokens, greedy(&prompt(i, 4), 6), "kind {kind}");
        }
    }
}

#[test]
fn a_fed_sequence_outlives_a_failed_step_only_without_recurrent_layers() {
    for kind in [0, 1, 2] {
        let mut engine = keeping(kind, 128, 16, 16);
        let ids = prompt(3, 40);
        engine.stepper_mut().fail_at = Some(2);
        let mut feed = engine.feed(40).unwrap();
        let failed = feed.push(&ids, 40, |_, _| Ok(()));
        assert!(matches!(failed, Err(RuntimeError::Submit { .. })));
        assert_eq!(feed.length(), 16);
        for _ in 0..2 {
            let mut seen = 0;
            let more = feed.push(&ids[16..17], 0, |_, row| {
                seen += 1;
                assert_eq!(row, logits(&ids[..17]));
                Ok(())
            });
            if kind == 0 {
                more.unwrap();
                assert_eq!((seen, feed.length()), (1, 17));
                break;
            }
            let error = more.unwrap_err();
            assert!(matches!(error, RuntimeError::SequenceLost { tokens: 16 }), "{error}");
            assert!(seen == 0 && error.device_is_usable());
        }
        drop(feed);
        // Neither a new sequence nor an error of who looks at the logits is affected.
        let mut feed = engine.feed(40).unwrap();
        let seen = feed.push(&ids[..20], 19, |_, _| Err(RuntimeError::Cancelled));
        assert!(matches!(seen, Err(RuntimeError::Cancelled)));
        feed.push(&ids[20..], 19, |i, row| {
            assert_eq!((i, row), (19, &logits(&ids)[..]));
            Ok(())
        })
        .unwrap();
    }
}

#[derive(Clone, Debug)]
struct Job {
    arrives: usize,
    prompt: Vec<u32>,
    max_new: u32,
    sampler: SamplerOptions,
    cancelled_at: Option<usize>,
}

fn job() -> impl Strategy<Value = Job> {
    let sampler = prop_oneof![
        Just(SamplerOptions::default()),
        (any::<u64>(), 1_u32..64).prop_map(|(seed, top_k)| SamplerOptions {
            temperature: 0.8,
            top_k,
            seed,
            ..Default::default()
        }),
        any::<u64>().prop_map(|seed| SamplerOptions {
            temperature: 1.2,
            top_p: 0.9,
            repetition_penalty: 1.3,
            seed,
            ..Default::default()
        }),
    ];
    let cancel = prop::option::weighted(0.2, 0_usize..20);
    (0_usize..12, prop::collection::vec(0..VOCAB, 1..90), 1_u32..12, sampler, cancel).prop_map(
        |(arrives, prompt, max_new, sampler, cancelled_at)| Job {
            arrives,
            prompt,
            max_new,
            sampler,
            cancelled_at,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever shares a step with it, a request gets the tokens it gets alone; and no page is ever lost.
    #[test]
    fn company_changes_no_token_and_loses_no_page(
        jobs in prop::collection::vec(job(), 1..7),
        slots in 1_u32..5,
        chunk in 1_u32..40,
        fail_at in prop::option::weighted(0.3, 1_u64..30),
        cancel_at in prop::option::weighted(0.3, 1_u64..30),
        kind in 0_u32..3,
    ) {
        let mut engine = keeping(kind, 128, slots, chunk);
        (engine.stepper_mut().fail_at, engine.stepper_mut().cancel_at) = (fail_at, cancel_at);
        let mut outcomes = HashMap::new();
        let mut ids = HashMap::new();
        let flags: Vec<Cancel> = jobs.iter().map(|_| Cancel::new()).collect();
        for now in 0..20 {
            for (i, job) in jobs.iter().enumerate() {
                if job.arrives == now {
                    let sampler = job.sampler.clone();
                    let cancel = flags[i].clone();
                    let request = Request { sampler, cancel, ..request(job.prompt.clone(), job.max_new) };
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
            let together = &outcomes[&ids[&i]];
            let alone = run_one(&mut self::engine(128, 1, 128), Request {
                sampler: job.sampler.clone(),
                ..request(job.prompt.clone(), job.max_new)
            });
            prop_assert!(alone.tokens.starts_with(&together.tokens));
            match (together.done, &together.failed) {
                (Some(FinishReason::Length), None) => prop_assert_eq!(&together.tokens, &alone.tokens),
                (Some(FinishReason::Cancelled), None) => prop_assert!(job.cancelled_at.is_some()),
                (None, Some(_)) => prop_assert!(fail_at.is_some() || cancel_at.is_some()),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
