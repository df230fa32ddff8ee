//! Requests of odd lengths that come, go and are cancelled on a real device with hardly any room: whoever completes has
//! the tokens it has alone, and the books are balanced after.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_kernels::KvFormat;
use plimsoll_runtime::request::What;
use plimsoll_runtime::rng::Rng;
use plimsoll_runtime::{
    Cancel, Device, DeviceOptions, Engine, FinishReason, Request, RequestId, Runtime, RuntimeError,
    SamplerOptions,
};
use std::collections::HashMap;
use support::{admitted, data, geometry, open};

fn engine(path: &str, device: &Device, context: u32, slots: u32, chunk: u32) -> Engine<Runtime> {
    let (checkpoint, model) = open(&data(path));
    let geometry = geometry(context, slots, chunk, KvFormat::F32, slots);
    let admitted = admitted(&model, &geometry, device.profile());
    Engine::new(Runtime::load(device.clone(), &model, &checkpoint, admitted, &mut |_| ()).unwrap()).unwrap()
}

/// What became of a request.
#[derive(Default, Debug)]
struct Outcome {
    tokens: Vec<u32>,
    done: Option<FinishReason>,
}

fn one_step(engine: &mut Engine<Runtime>, outcomes: &mut HashMap<RequestId, Outcome>) {
    for event in engine.step() {
        let outcome = outcomes.entry(event.request).or_default();
        assert!(outcome.done.is_none(), "news of a request that has ended");
        match event.what {
            What::Prefill { .. } => {}
            What::Token { id, .. } => outcome.tokens.push(id),
            What::Done(reason) => outcome.done = Some(reason),
            What::Failed(error) => panic!("{error}"),
        }
    }
}

fn balanced(engine: &Engine<Runtime>) {
    assert!(engine.is_idle());
    assert_eq!(engine.pool().free_slots(), engine.plan().geometry.slots as usize);
    let all: Vec<u32> = engine.plan().kv.kinds.iter().map(|kind| kind.pages).collect();
    assert_eq!(engine.pool().free_pages().collect::<Vec<_>>(), all);
}

/// How tokens are chosen: greedily, from the largest few, or from all logits.
fn sampler(way: u64, seed: u64) -> SamplerOptions {
    match way {
        0 => SamplerOptions::default(),
        1 => SamplerOptions { temperature: 0.9, top_k: 7, seed, ..Default::default() },
        _ => {
            SamplerOptions { temperature: 0.9, top_k: 7, repetition_penalty: 1.2, seed, ..Default::default() }
        }
    }
}

#[test]
fn traffic_in_a_tiny_context_loses_nothing() {
    const CONTEXT: u32 = 41;
    let device = Device::open(&DeviceOptions::default()).unwrap();
    for path in ["golden/gguf_llama/model.gguf", "golden/gemma3_text"] {
        let mut alone = engine(path, &device, CONTEXT, 1, 64);
        let mut engine = engine(path, &device, CONTEXT, 3, 7);
        let live = device.totals().live_bytes;
        let mut rng = Rng::new(9);
        let mut pick = |most: u64| rng.next_u64() % most;
        let (mut asked, mut outcomes) = (Vec::new(), HashMap::new());
        for round in 0..60 {
            if round < 40 && pick(3) > 0 {
                let length = [1, 2, 7, 8, 9, 31, 32, 33, 40][pick(9) as usize];
                let prompt: Vec<u32> = (0..length).map(|_| 3 + pick(200) as u32).collect();
                let room = CONTEXT - length;
                let request = Request {
                    prompt,
                    max_new: 1 + pick(room.min(9).into()) as u32,
                    sampler: sampler(pick(3), round),
                    cancel: Cancel::new(),
                    ..Request::default()
                };
                let id = engine.submit(request.clone()).unwrap();
                asked.push((id, request, false));
            }
            if !asked.is_empty() && pick(6) == 0 {
                let which = pick(asked.len() as u64) as usize;
                let (id, request, ended) = &mut asked[which];
                if pick(2) == 0 {
                    request.cancel.cancel();
                } else {
                    // A second time there is nothing to end.
                    *ended |= engine.end(*id);
                    assert!(!engine.end(*id));
                }
            }
            one_step(&mut engine, &mut outcomes);
        }
        while !engine.is_idle() {
            one_step(&mut engine, &mut outcomes);
        }
        balanced(&engine);
        assert!(asked.len() > 15);
        let mut completed = 0;
        for (id, request, ended) in asked {
            let together = outcomes.remove(&id).unwrap_or_default();
            let cancelled = request.cancel.is_cancelled();
            match together.done {
                Some(FinishReason::Length) => completed += 1,
                Some(FinishReason::Cancelled) => assert!(cancelled),
                None => assert!(ended, "{request:?} never ended"),
                other => panic!("{other:?}"),
            }
            let only = alone.submit(Request { cancel: Cancel::new(), ..request.clone() }).unwrap();
            let mut by_itself = HashMap::new();
            while !alone.is_idle() {
                one_step(&mut alone, &mut by_itself);
            }
            let by_itself = by_itself.remove(&only).unwrap().tokens;
            assert!(by_itself.starts_with(&together.tokens), "{request:?}: {by_itself:?}, {together:?}");
            if together.done == Some(FinishReason::Length) {
                assert_eq!(by_itself, together.tokens, "{request:?}");
            }
        }
        assert!(completed > 8, "{completed}");
        balanced(&alone);
        assert_eq!(device.totals().live_bytes, live, "nothing was allocated on the way");
        // A prompt that fills the context leaves no room for an answer.
        let full = Request { prompt: vec![3; CONTEXT as usize], max_new: 1, ..Request::default() };
        assert!(matches!(engine.submit(full), Err(RuntimeError::Refused(_))));
    }
}

/// With the same seed, candidates from the device and whole rows of logits choose the same tokens.
#[test]
fn top_k_of_the_device_chooses_what_whole_rows_choose() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let mut engine = engine("golden/gguf_llama/model.gguf", &device, 64, 2, 16);
    for top_k in [2, 5, 40, 64] {
        let options =
            SamplerOptions { temperature: 1.3, top_k, seed: u64::from(top_k), ..Default::default() };
        let request = Request { prompt: vec![7, 9, 11], max_new: 20, sampler: options, ..Request::default() };
        let mut ask = |company: bool| {
            let mut outcomes = HashMap::new();
            let id = engine.submit(request.clone()).unwrap();
            if company {
                // It needs all logits, so the step reads back whole rows for both.
                let all = SamplerOptions { temperature: 1.0, ..Default::default() };
                engine.submit(Request { sampler: all, ..request.clone() }).unwrap();
            }
            while !engine.is_idle() {
                one_step(&mut engine, &mut outcomes);
            }
            outcomes.remove(&id).unwrap().tokens
        };
        assert_eq!(ask(false), ask(true), "top-k {top_k}");
    }
}
