//! A request is given up after every number of steps, in each of the ways there are: its flag, the engine's and the
//! session's `end`, an iterator that is dropped. Its pages are free at once, who shares the steps gets the same answer
//! as ever, and so does whoever gets its slot next.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use plimsoll::{Device, Opened, Session};
use plimsoll_kernels::KvFormat;
use plimsoll_runtime::request::What;
use plimsoll_runtime::{
    Cancel, DeviceOptions, Engine, FinishReason, GenerateOptions, Progress, Request, RequestId, Runtime,
};
use std::collections::BTreeMap;
use support::{admitted, data, geometry, open};

#[derive(Clone, Copy, Debug)]
enum Way {
    Flag,
    End,
}

type Outcomes = BTreeMap<RequestId, (Vec<u32>, Option<FinishReason>)>;

fn one_step(engine: &mut Engine<Runtime>, outcomes: &mut Outcomes) {
    for event in engine.step() {
        let (tokens, end) = outcomes.entry(event.request).or_default();
        assert_eq!(*end, None, "news of a request that has ended");
        match event.what {
            What::Prefill { .. } => {}
            What::Token { id, .. } => tokens.push(id),
            What::Done(reason) => *end = Some(reason),
            What::Failed(error) => panic!("{error}"),
        }
    }
    engine.pool().check().unwrap();
}

fn prompts() -> [Vec<u32>; 2] {
    let prompt = |length: u32, by: u32| (0..length).map(|i| 3 + (i * by) % 200).collect();
    [prompt(19, 7), prompt(11, 11)]
}

fn request(prompt: &[u32]) -> Request {
    Request { prompt: prompt.to_vec(), max_new: 5, cancel: Cancel::new(), ..Request::default() }
}

/// Both requests to their end: the answers, and the steps it took.
fn both(engine: &mut Engine<Runtime>) -> (Vec<Vec<u32>>, usize) {
    let (mut outcomes, mut steps) = (Outcomes::new(), 0);
    let ids = prompts().map(|prompt| engine.submit(request(&prompt)).unwrap());
    while !engine.is_idle() {
        one_step(engine, &mut outcomes);
        steps += 1;
    }
    assert!(engine.pool().is_idle());
    (ids.iter().map(|id| outcomes.remove(id).unwrap().0).collect(), steps)
}

#[test]
fn given_up_after_every_step() {
    for name in ["golden/nemotron_h", "golden/gemma3_text"] {
        let device = Device::open(&DeviceOptions::default()).unwrap();
        let (checkpoint, model) = open(&data(name));
        let admitted = admitted(&model, &geometry(64, 2, 8, KvFormat::F32, 2), device.profile());
        let runtime = Runtime::load(device.clone(), &model, &checkpoint, admitted, &mut |_| ()).unwrap();
        let mut engine = Engine::new(runtime).unwrap();
        let totals = device.totals();
        let (answers, steps) = both(&mut engine);
        assert!(steps > 5);
        for given_up in 0..2 {
            for (after, way) in (0..steps).flat_map(|after| [(after, Way::Flag), (after, Way::End)]) {
                let place = format!("{name}: request {given_up} after {after} steps by {way:?}");
                let mut outcomes = Outcomes::new();
                let asked = prompts().map(|prompt| request(&prompt));
                let ids = asked.clone().map(|request| engine.submit(request).unwrap());
                (0..after).for_each(|_| one_step(&mut engine, &mut outcomes));
                let ended = outcomes.get(&ids[given_up]).is_some_and(|(_, end)| end.is_some());
                match way {
                    Way::Flag => asked[given_up].cancel.cancel(),
                    Way::End => assert_eq!(engine.end(ids[given_up]), !ended, "{place}"),
                }
                while !engine.is_idle() {
                    one_step(&mut engine, &mut outcomes);
                }
                let (tokens, end) = outcomes.remove(&ids[given_up]).unwrap_or_default();
                assert!(answers[given_up].starts_with(&tokens), "{place}");
                let expected = match way {
                    _ if ended => Some(FinishReason::Length),
                    Way::Flag => Some(FinishReason::Cancelled),
                    Way::End => None,
                };
                assert_eq!(end, expected, "{place}");
                let other = 1 - given_up;
                let got = outcomes.remove(&ids[other]).unwrap();
                assert_eq!(got, (answers[other].clone(), Some(FinishReason::Length)), "{place}");
                assert!(engine.pool().is_idle(), "{place}");
            }
            assert_eq!(both(&mut engine).0, answers);
        }
        assert_eq!(device.totals(), totals);
    }
}

#[test]
fn sessions_that_are_left_in_the_middle() {
    let opened: Opened = plimsoll::open(commands::speaking("left")).unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let geometry = geometry(64, 2, 8, KvFormat::F32, 2);
    let admitted = opened.admit(&geometry, device.profile(), None).unwrap();
    let mut session: Session = opened.load(device, admitted, &mut |_| ()).unwrap();
    let options = GenerateOptions { ignore_end: true, skip_special: false, ..GenerateOptions::greedy(9) };
    let (left, stays) = ("a prompt of three steps", "another one");
    let whole = session.generate(left, &options).unwrap().text().unwrap();
    let other = session.generate(stays, &options).unwrap().text().unwrap();

    for pieces in 0..9 {
        let ids = session.tokenizer().encode(stays, true, false).unwrap();
        let beside = session.submit(&ids, &options).unwrap();
        let mut generation = session.generate(left, &options).unwrap();
        let begun: String = generation.by_ref().take(pieces).map(Result::unwrap).collect();
        assert!(whole.starts_with(&begun));
        drop(generation);
        session.engine().pool().check().unwrap();
        // What the dropped one saw of the other was kept for it.
        let mut text = String::new();
        let mut ends = 0;
        while !session.is_idle() {
            for (id, progress) in session.step() {
                assert_eq!((id, ends), (beside, 0), "after {pieces} pieces");
                match progress {
                    Progress::Text(more) => text.push_str(&more),
                    Progress::Done(_) => ends += 1,
                    Progress::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
        }
        assert_eq!((&text, ends), (&other, 1));
        assert!(session.engine().pool().is_idle());
    }
    for steps in 0..12 {
        let ids = session.tokenizer().encode(left, true, false).unwrap();
        let id = session.submit(&ids, &options).unwrap();
        let ended = (0..steps).flat_map(|_| session.step()).any(|(_, p)| matches!(p, Progress::Done(_)));
        assert_eq!(session.end(id), !ended, "after {steps} steps");
        assert!(!session.end(id) && session.is_idle() && session.step().is_empty());
        session.engine().pool().check().unwrap();
        assert!(session.engine().pool().is_idle());
    }
    assert_eq!(session.generate(left, &options).unwrap().text().unwrap(), whole);
}
