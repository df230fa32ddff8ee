//! Readings, ceilings and loads on the machine's adapter: what is read, when, and what is decided by it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_estimator::others::{Others, Replaced};
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::verdict::Lasts;
use plimsoll_estimator::{Admitted, Budget, Geometry, MemoryPolicy, Overhead, Plan, Refusal};
use plimsoll_kernels::Profile;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{Model, Registry};
use plimsoll_runtime::{
    Device, DeviceOptions, Engine, Refused, Request, Runtime, RuntimeError, Simulated, What,
};
use std::path::Path;
use std::sync::Arc;

struct Opened {
    checkpoint: Checkpoint,
    model: Model,
}

impl Opened {
    fn admit(
        &self,
        geometry: &Geometry,
        profile: &Profile,
        budget: Option<&Budget>,
    ) -> Result<Admitted, Box<Refusal>> {
        let verdict = plimsoll_estimator::admit(&self.model, geometry, profile, budget, Overhead::default());
        verdict.unwrap().admitted()
    }
}

fn opened() -> Opened {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden/llama");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    Opened { checkpoint, model }
}

/// A device whose free memory is what the test says.
fn device(feed: &Arc<Simulated>) -> Device {
    Device::open(&DeviceOptions::default()).unwrap().with_feed(Arc::clone(feed) as _)
}

fn geometry(context: u32) -> Geometry {
    Geometry { context, prefill_chunk: 16, ..Geometry::default_for(context) }
}

/// Asks for a context against what is free at this moment.
fn admit(
    opened: &Opened,
    device: &Device,
    policy: &MemoryPolicy,
    context: u32,
) -> Result<Admitted, Box<Refusal>> {
    let budget = policy.budget(device.memory().reading());
    opened.admit(&geometry(context), device.profile(), budget.as_ref())
}

fn load(opened: &Opened, device: Device, admitted: Admitted) -> Result<Engine<Runtime>, RuntimeError> {
    Engine::new(Runtime::load(device, &opened.model, &opened.checkpoint, admitted, &mut |_| ())?)
}

/// Frees everything of a load, and gives its device back.
fn unload(engine: Engine<Runtime>) -> Device {
    let device = engine.stepper().device().clone();
    drop(engine);
    device
}

/// The tokens that follow a prompt.
fn answer(engine: &mut Engine<Runtime>, prompt: &[u32]) -> Vec<u32> {
    engine.submit(Request { prompt: prompt.to_vec(), max_new: 4, ..Default::default() }).unwrap();
    let mut tokens = Vec::new();
    while !engine.is_idle() {
        for event in engine.step() {
            match event.what {
                What::Token { id, .. } => tokens.push(id),
                What::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
    tokens
}

/// Bytes of this context's plan.
fn need(opened: &Opened, device: &Device, context: u32) -> u64 {
    opened.admit(&geometry(context), device.profile(), None).unwrap().plan().total()
}

/// What it holds while it is loaded.
fn peak(opened: &Opened, device: &Device, context: u32) -> u64 {
    opened.admit(&geometry(context), device.profile(), None).unwrap().plan().load_peak()
}

#[test]
fn the_ladder_is_refused_where_it_breaks_and_nothing_is_allocated_for_it() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(Some(1 << 40)));
    let mut device = device(&feed);
    let totals = [8192, 16_384, 32_768, 65_536].map(|context| need(&opened, &device, context));
    assert!(totals.is_sorted_by(|a, b| a < b), "{totals:?}");
    let policy = MemoryPolicy::default().with_memory(totals[2], "flag --memory").unwrap();
    for (context, total) in [8192, 16_384, 32_768].into_iter().zip(totals) {
        let admitted = admit(&opened, &device, &policy, context).unwrap();
        let engine = load(&opened, device, admitted).unwrap();
        assert_eq!(engine.stepper().device().totals().live_bytes, total, "context {context}");
        device = unload(engine);
        assert_eq!(device.totals().live, 0);
    }
    let before = device.totals();
    let refusal = admit(&opened, &device, &policy, 65_536).unwrap_err();
    assert_eq!((refusal.term, refusal.need, refusal.have), (Some(Segment::Kv), totals[3], totals[2]));
    assert!(refusal.reason.contains("kv (") && refusal.reason.contains("flag --memory"), "{refusal}");
    assert_eq!(device.totals(), before, "a refusal creates nothing");
}

#[test]
fn a_reading_that_falls_between_admission_and_load_refuses_the_load_before_it_allocates() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(Some(1 << 40)));
    let device = device(&feed);
    let total = need(&opened, &device, 256);
    let policy = MemoryPolicy::default().with_reserve(1000, "flag --reserve");
    let admitted = admit(&opened, &device, &policy, 256).unwrap();
    let before = device.totals();
    // Somebody takes all but the plan: the reserve is missing.
    feed.set(Some(total));
    let error = load(&opened, device.clone(), admitted.clone()).err().unwrap();
    let RuntimeError::NoRoom { need, have, then, lasts, .. } = &error else { panic!("{error}") };
    assert_eq!((*need, *have, *lasts), (total, total - 1000, Lasts::Reading));
    assert_eq!(*then, (1 << 40) - 1000);
    assert!(!error.is_permanent(), "{error}");
    assert!(error.to_string().contains("flag --reserve"), "{error}");
    assert_eq!(device.totals(), before);
    // It gives a little back, but not what the load holds beside the plan; then that too, and the same plan loads.
    let most = admitted.plan().load_peak();
    feed.set(Some(most + 999));
    let error = load(&opened, device.clone(), admitted.clone()).err().unwrap();
    let RuntimeError::NoRoom { need, have, lasts, .. } = &error else { panic!("{error}") };
    assert_eq!((*need, *have, *lasts), (most, most - 1, Lasts::Reading));
    assert_eq!(device.totals(), before);
    feed.set(Some(most + 1000));
    let engine = load(&opened, device, admitted).unwrap();
    assert_eq!(engine.stepper().device().totals().live_bytes, total);
}

#[test]
fn every_decision_reads_for_itself_and_a_change_is_told() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(Some(1 << 40)));
    let device = device(&feed);
    let policy = MemoryPolicy::default();
    let asked = feed.asked();
    let admitted = admit(&opened, &device, &policy, 256).unwrap();
    assert_eq!(feed.asked(), asked + 1, "the admission");
    let mut engine = load(&opened, device, admitted).unwrap();
    assert_eq!(feed.asked(), asked + 3, "the load's begin and end");
    assert_eq!(engine.stepper().memory_when_last_begun(), None);
    // Nothing is read while a sequence goes on: its pages are there.
    let first = answer(&mut engine, &[1, 2, 3]);
    assert_eq!(feed.asked(), asked + 4, "one prompt, one reading");
    // What is free falls to nothing: the plan has what it needs, so the answer is the same, and the fall is told.
    feed.set(Some(0));
    assert_eq!(answer(&mut engine, &[1, 2, 3]), first);
    assert_eq!(feed.asked(), asked + 5);
    let change = engine.stepper().memory_when_last_begun().unwrap();
    assert_eq!((change.difference(), change.is_large()), (Some(-(1i128 << 40)), true));
    feed.set(Some((1 << 40) + 5));
    assert_eq!(engine.stepper().memory_change().difference(), Some(5));
    feed.set(None);
    assert_eq!(engine.stepper().memory_change().difference(), None);
    // Long prompts are many steps and one beginning.
    feed.set(Some(1 << 40));
    let asked = feed.asked();
    answer(&mut engine, &[5; 60]);
    assert_eq!(feed.asked(), asked + 1);
}

/// A turn of a conversation goes on from what is cached of the one before, and that may end exactly where the slot's last
/// sequence did: at whole pages. It is a prompt that begins all the same.
#[test]
fn a_prompt_whose_cached_beginning_ends_where_the_last_one_did_reads_too() {
    let opened = opened();
    // With three of its answer's four tokens computed, 29 and 61 end at whole pages.
    for length in [29_u32, 30, 61, 62] {
        let feed = Arc::new(Simulated::new(Some(1 << 40)));
        let device = device(&feed);
        let admitted = admit(&opened, &device, &MemoryPolicy::default(), 256).unwrap();
        let mut engine = load(&opened, device, admitted).unwrap();
        let mut talk: Vec<u32> = (0..length).map(|i| 3 + i * 7 % 40).collect();
        let said = answer(&mut engine, &talk);
        talk.extend(said.into_iter().chain([5, 9]));
        feed.set(Some(1 << 20));
        let (asked, hits) = (feed.asked(), engine.cache_stats().hits);
        answer(&mut engine, &talk);
        let change = engine.stepper().memory_when_last_begun().unwrap();
        assert_eq!(change.now.available, Some(1 << 20), "{length} tokens");
        assert_eq!(feed.asked(), asked + 1, "{length} tokens");
        assert_eq!(engine.cache_stats().hits, hits + 1, "{length} tokens: the beginning was known");
    }
}

/// A feed of 70, 48, 14, 1.9, 71: each asked once, and what failed at the fourth is no word against the fifth. Here in
/// parts of a plan that is loaded for real where it is admitted.
#[test]
fn report_06_decisions_follow_the_reading_of_their_moment() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(None));
    let mut device = device(&feed);
    let total = need(&opened, &device, 512);
    let policy = MemoryPolicy::default().with_memory(total, "slice").unwrap();
    let most = peak(&opened, &device, 512);
    for (percent, fits) in [(102, true), (70, false), (20, false), (3, false), (104, true)] {
        feed.set(Some(most / 100 * percent + percent));
        let before = device.totals();
        match admit(&opened, &device, &policy, 512) {
            Ok(admitted) => {
                assert!(fits, "{percent} %");
                device = unload(load(&opened, device, admitted).unwrap());
            }
            Err(error) => {
                assert_eq!((fits, error.lasts), (false, Lasts::Reading), "{percent} %: {error}");
                assert_eq!(device.totals(), before);
            }
        }
    }
    // A larger model in the place of the one that is there: it is credited when it is asked for, and by the time it is
    // loaded the other has gone.
    let (small, large) = (need(&opened, &device, 512), need(&opened, &device, 1024));
    let all = peak(&opened, &device, 1024) + small / 2;
    feed.set(Some(all));
    let free = MemoryPolicy::default();
    let admitted = admit(&opened, &device, &free, 512).unwrap();
    let resident = load(&opened, device.clone(), admitted).unwrap();
    feed.set(Some(all - small));
    let beside = admit(&opened, &device, &free, 1024).unwrap_err();
    assert_eq!(beside.lasts, Lasts::Reading);
    let replaced = Replaced { name: "resident".into(), bytes: small };
    let others = Others { replaced: vec![replaced], ..Others::default() };
    let budget = free.budget_beside(device.memory().reading(), &others);
    let credited = opened.admit(&geometry(1024), device.profile(), budget.as_ref()).unwrap();
    // Too early: it is still there.
    let early = load(&opened, device.clone(), credited.clone()).err().unwrap();
    assert!(matches!(early, RuntimeError::NoRoom { .. }), "{early}");
    unload(resident);
    feed.set(Some(all));
    assert_eq!(load(&opened, device, credited).unwrap().stepper().device().totals().live_bytes, large);
}

#[test]
fn a_policy_survives_reloads_of_the_process() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(Some(1 << 40)));
    let mut device = device(&feed);
    let ceiling = need(&opened, &device, 256);
    let policy = MemoryPolicy::default()
        .with_memory(ceiling, "flag --memory")
        .unwrap()
        .with_reserve(10, "flag --reserve")
        .with_cache_limit(0, "flag --cache-limit");
    for free in [1 << 40, 1 << 30, 1 << 35] {
        feed.set(Some(free));
        let refusal = admit(&opened, &device, &policy, 512).unwrap_err();
        assert!(refusal.reason.contains("flag --memory"), "{refusal}");
        let admitted = admit(&opened, &device, &policy, 256).unwrap();
        let budget = admitted.budget().unwrap();
        // The settings are what they were; the reading is not.
        assert_eq!((budget.requested, budget.reserve.as_ref()), (Some(ceiling), policy.reserve()));
        assert_eq!(budget.derived.as_ref().map(|reading| reading.bytes), Some(free));
        assert_eq!(policy.cache_limit().bytes, Some(0));
        let engine = load(&opened, device, admitted).unwrap();
        assert_eq!(engine.stepper().device().totals().live_bytes, ceiling);
        device = unload(engine);
        assert_eq!(device.totals().live, 0);
    }
}

/// A sweep stalled for good because what could never run was tried again and again. Here the type says it: what is
/// refused is not asked again, what waits may be.
#[test]
fn report_06_a_refusal_is_not_retried_and_a_wait_is() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(Some(1 << 40)));
    let device = device(&feed);
    let ceiling = need(&opened, &device, 256);
    let policy = MemoryPolicy::default().with_memory(ceiling, "flag --memory").unwrap();
    let never = admit(&opened, &device, &policy, 512).unwrap_err();
    assert_eq!(never.lasts, Lasts::Forever);
    let admitted = admit(&opened, &device, &policy, 256).unwrap();
    let mut engine = load(&opened, device, admitted).unwrap();
    let long = Request { prompt: vec![1; 250], max_new: 100, ..Default::default() };
    let refused = engine.submit(long).unwrap_err();
    assert!(matches!(refused, RuntimeError::Refused(Refused::TooLong { .. })), "{refused}");
    assert!(refused.is_permanent());
    // A slot is taken by one who only waits.
    engine.submit(Request { prompt: vec![1; 8], max_new: 8, ..Default::default() }).unwrap();
    engine.step();
    let Err(busy) = engine.feed(16) else { panic!("there is one slot") };
    assert!(!busy.is_permanent(), "{busy}");
}

/// A fit that said no in a warning, and a server that went on with what did not fit.
#[test]
fn report_03_what_does_not_fit_is_not_loaded_whatever_else_is_asked() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(Some(1 << 40)));
    let device = device(&feed);
    let total = need(&opened, &device, 512);
    let policy = MemoryPolicy::default().with_memory(total / 10 * 9, "flag --memory").unwrap();
    let before = device.totals();
    // There is no key for the runtime: a refusal has no plan that could be loaded.
    let error = admit(&opened, &device, &policy, 512).unwrap_err();
    assert_eq!(error.broke, plimsoll_estimator::verdict::Broke::Total);
    assert_eq!((device.totals(), before.created), (before, 0));
    // Who insists is believed, also at load, and every report says so.
    let plan = Plan::new(&opened.model, &geometry(512), device.profile()).unwrap();
    let budget = policy.budget(device.memory().reading());
    feed.set(Some(0));
    let engine = load(&opened, device, Admitted::insist(plan, budget)).unwrap();
    assert!(engine.stepper().admitted().overridden());
}

/// Devices whose memory was never given back: after each of 20 loads everything is where it was.
#[test]
fn report_14_twenty_loads_give_back_what_they_took() {
    let opened = opened();
    let feed = Arc::new(Simulated::new(Some(1 << 40)));
    let mut device = device(&feed);
    let policy = MemoryPolicy::default();
    let base = device.counters();
    let mut first = None;
    for round in 0..20 {
        let admitted = admit(&opened, &device, &policy, 256).unwrap();
        let mut engine = load(&opened, device, admitted).unwrap();
        let tokens = answer(&mut engine, &[1, 2, 3]);
        assert_eq!(*first.get_or_insert_with(|| tokens.clone()), tokens, "round {round}");
        device = unload(engine);
        assert_eq!((device.totals().live, device.totals().live_bytes), (0, 0), "round {round}");
        assert_eq!(device.counters(), base, "round {round}");
    }
}
