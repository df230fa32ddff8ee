//! Mixed requests without end, on a hybrid and on a dense model: random lengths and samplers, cancelled and dropped
//! ones, ones that can never fit, submits, uploads and readbacks that fail, and devices that are lost. Nothing is allocated on the device after
//! the load, no page is lost, the process does not grow, and a sample of the answers is what a fresh engine gives.
//!
//! A few hundred requests; `PLIMSOLL_SOAK` says how many instead, and `PLIMSOLL_SOAK_SEED` which.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod support;

use plimsoll::Opened;
use plimsoll_kernels::KvFormat;
use plimsoll_runtime::faults::{Harm, Point};
use plimsoll_runtime::process::ProcessMemory;
use plimsoll_runtime::request::What;
use plimsoll_runtime::rng::Rng;
use plimsoll_runtime::{
    Cancel, Device, DeviceOptions, Engine, FinishReason, Request, RequestId, Runtime, RuntimeError,
    SamplerOptions,
};
use std::collections::HashMap;
use std::time::Instant;
use support::{admitted, data, geometry};

const CONTEXT: u32 = 96;
const REQUESTS: u64 = 300;
/// Answers that are compared with a fresh engine's.
const SAMPLE: u64 = 60;
/// What the process may grow by in the second half, whatever its length: far under what a page of 16 tokens for
/// each request would come to.
const GROWTH: u64 = 4 << 20;

fn engine(opened: &Opened, device: &Device) -> Engine<Runtime> {
    let admitted = admitted(&opened.model, &geometry(CONTEXT, 3, 16, KvFormat::F32, 3), device.profile());
    opened.load_engine(device.clone(), admitted, &mut |_| ()).unwrap()
}

/// Loses the device below everybody, tells them, and goes on with another.
fn lose(
    opened: &Opened,
    mut engine: Engine<Runtime>,
    live: &mut HashMap<RequestId, (Request, Outcome)>,
) -> (Engine<Runtime>, Vec<RequestId>) {
    engine.stepper().device().lose();
    let ended = one_step(&mut engine, live);
    assert_eq!(ended.len(), live.len(), "whoever is there is told");
    let recovered = opened.recover(engine, None, &mut |_| ()).unwrap();
    assert!(recovered.reopened && recovered.ended.is_empty());
    (recovered.engine, ended)
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[derive(Default)]
struct Outcome {
    tokens: Vec<u32>,
    end: Option<End>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum End {
    Complete,
    Cancelled,
    Failed,
    Dropped,
    Lost,
}

fn one_step(
    engine: &mut Engine<Runtime>,
    live: &mut HashMap<RequestId, (Request, Outcome)>,
) -> Vec<RequestId> {
    let mut ended = Vec::new();
    for event in engine.step() {
        // Whoever was dropped or has ended is not here any more.
        let (_, outcome) = live.get_mut(&event.request).expect("news of a request that is not here");
        assert!(outcome.end.is_none(), "news of a request that has ended");
        outcome.end = match event.what {
            What::Prefill { .. } => continue,
            What::Token { id, .. } => {
                outcome.tokens.push(id);
                continue;
            }
            What::Done(FinishReason::Length) => Some(End::Complete),
            What::Done(FinishReason::Cancelled) => Some(End::Cancelled),
            What::Done(other) => panic!("{other:?}"),
            What::Failed(error) => {
                assert!(!error.is_permanent(), "{error}");
                if error.device_is_usable() {
                    assert!(
                        matches!(*error, RuntimeError::Submit { .. } | RuntimeError::Map { .. }),
                        "{error}"
                    );
                    Some(End::Failed)
                } else {
                    Some(End::Lost)
                }
            }
        };
        ended.push(event.request);
    }
    engine.pool().check().unwrap();
    ended
}

fn random_request(pick: &mut impl FnMut(u64) -> u64) -> Request {
    // One in eight is long, and one in some of these too long.
    let most = if pick(8) == 0 { CONTEXT.into() } else { 24 };
    let length = 1 + pick(most);
    let max_new = 1 + pick(12);
    let sampler = match pick(3) {
        0 => SamplerOptions { temperature: 0.9, top_k: 7, seed: pick(1 << 30), ..Default::default() },
        1 => SamplerOptions { repetition_penalty: 1.2, ..Default::default() },
        _ => SamplerOptions::default(),
    };
    let prompt = (0..length).map(|_| 3 + pick(200) as u32).collect();
    Request { prompt, max_new: max_new as u32, sampler, cancel: Cancel::new(), ..Request::default() }
}

/// Least squares of `(requests, bytes)`: bytes a request.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
    let (over, under) =
        points.iter().fold((0.0, 0.0), |(o, u), p| (o + (p.0 - x) * (p.1 - y), u + (p.0 - x) * (p.0 - x)));
    if under > 0.0 { over / under } else { 0.0 }
}

fn soak(name: &str) {
    let (requests, seed) = (setting("PLIMSOLL_SOAK", REQUESTS), setting("PLIMSOLL_SOAK_SEED", 6));
    let opened = plimsoll::open(data(name)).unwrap();
    let mut device = Device::open(&DeviceOptions::default()).unwrap();
    let mut engine = engine(&opened, &device);
    engine.set_waiting_limit(6);
    let mut loaded = (device.totals(), device.counters());
    let mut rng = Rng::new(seed);
    let mut pick = move |most: u64| rng.next_u64() % most;
    let (mut live, mut sample) = (HashMap::new(), Vec::new());
    let mut ends: HashMap<End, u64> = HashMap::new();
    let (mut asked, mut refused, mut busy, mut faults, mut steps, mut tokens) =
        (0, 0, 0, 0_u64, 0_u64, 0_u64);
    let (every, mut resident) = ((requests / 40).max(1), Vec::new());
    let start = Instant::now();
    // In the first half: what a driver keeps of devices that are gone is not what the second half is about.
    let (mut lost, mut next_loss) = (0, 1 + pick(requests / 10 + 1));
    while asked < requests || !engine.is_idle() {
        if asked < requests && pick(2) == 0 {
            let request = random_request(&mut pick);
            let fits = request.prompt.len() as u32 + request.max_new <= CONTEXT;
            match engine.submit(request.clone()) {
                Ok(id) => {
                    assert!(fits);
                    live.insert(id, (request, Outcome::default()));
                    asked += 1;
                    if asked % every == 0 {
                        let bytes = ProcessMemory::take().resident.bytes.unwrap_or(0);
                        resident.push((asked as f64, bytes as f64));
                    }
                }
                Err(error) if error.is_permanent() => {
                    assert!(!fits, "{error}");
                    refused += 1;
                }
                Err(error) => {
                    assert!(matches!(error, RuntimeError::Busy { lacks: Some(_), .. }), "{error}");
                    busy += 1;
                }
            }
        }
        let mut ended = Vec::new();
        if asked >= next_loss && next_loss < requests / 2 && !live.is_empty() {
            device.faults().disarm();
            (engine, ended) = lose(&opened, engine, &mut live);
            device = engine.stepper().device().clone();
            // On another device as on the first: everything that a load takes, and nothing more.
            assert_eq!(device.totals().live_bytes, loaded.0.live_bytes);
            loaded = (device.totals(), device.counters());
            (lost, next_loss) = (lost + 1, asked + 1 + pick(requests / 5));
        }
        if ended.is_empty() && !live.is_empty() && pick(12) == 0 {
            // In order: what a map's order is differs from run to run.
            let mut ids: Vec<RequestId> = live.keys().copied().collect();
            ids.sort();
            let id = ids[pick(ids.len() as u64) as usize];
            let (request, outcome) = live.get_mut(&id).unwrap();
            if pick(2) == 0 {
                request.cancel.cancel();
            } else {
                assert!(engine.end(id) && !engine.end(id));
                outcome.end = Some(End::Dropped);
                ended.push(id);
            }
        }
        if pick(25) == 0 {
            let points = [Point::Submit, Point::UploadMap, Point::ReadbackMap];
            device.faults().order(points[pick(3) as usize], Harm::Fail, 1 + pick(3));
            faults += 1;
        }
        ended.extend(one_step(&mut engine, &mut live));
        steps += 1;
        for id in ended {
            let (request, outcome) = live.remove(&id).unwrap();
            *ends.entry(outcome.end.unwrap()).or_default() += 1;
            tokens += outcome.tokens.len() as u64;
            if has_tokens(&outcome) && pick(requests) < SAMPLE {
                sample.push((request, outcome));
            }
        }
    }
    device.faults().disarm();
    let seconds = start.elapsed().as_secs_f64();
    assert!(live.is_empty(), "{} requests without an end", live.len());
    assert_eq!(ends.values().sum::<u64>(), requests);
    assert!(engine.pool().is_idle());
    let kinds: Vec<u32> = engine.plan().kv.kinds.iter().map(|kind| kind.pages).collect();
    assert_eq!(engine.pool().free_pages().collect::<Vec<_>>(), kinds, "pages were lost");
    assert_eq!((device.totals(), device.counters()), loaded, "something was allocated after the load");

    let mut fresh = self::engine(&opened, &device);
    let compared = sample.len();
    for (request, outcome) in sample {
        let request = Request { cancel: Cancel::new(), ..request };
        let id = fresh.submit(request.clone()).unwrap();
        let mut alone = HashMap::from([(id, (request, Outcome::default()))]);
        while !fresh.is_idle() {
            one_step(&mut fresh, &mut alone);
        }
        let (request, alone) = alone.remove(&id).unwrap();
        assert!(alone.tokens.starts_with(&outcome.tokens), "seed {seed}: {request:?}");
        assert_eq!(outcome.end == Some(End::Complete), outcome.tokens == alone.tokens, "seed {seed}");
    }

    let later = &resident[resident.len() / 2..];
    let (first, last) = (later[0].1, later[later.len() - 1].1);
    println!(
        "{name}, seed {seed}: {requests} requests ({ends:?}; refused {refused}, busy {busy} times), {faults} faults \
         ordered, {lost} devices lost, {steps} steps, {tokens} tokens, {seconds:.1} s; {compared} answers compared; resident {first:.0} \
         bytes at half, {last:.0} at the end, slope over the second half {:.1} bytes a request",
        slope(later)
    );
    assert!(last <= first + GROWTH as f64, "the process grew by {} bytes", last - first);
    assert!(compared as u64 >= SAMPLE / 4 && refused > 0 && busy > 0 && faults > 0 && lost > 0);
    for end in [End::Complete, End::Cancelled, End::Failed, End::Dropped, End::Lost] {
        assert!(ends.contains_key(&end), "none was {end:?}");
    }
}

/// Whether there is something to compare.
fn has_tokens(outcome: &Outcome) -> bool {
    !outcome.tokens.is_empty()
}

#[test]
fn mixed_traffic_leaves_nothing_behind() {
    // One after the other: they share the process whose memory is looked at.
    for name in ["golden/nemotron_h", "golden/llama"] {
        soak(name);
    }
}
