//! Every fault at every point of a session of two requests, and of a third that waits, on a dense model and on a
//! hybrid: buffers, layouts, shader modules, pipelines, bindings, uploads, submits and readbacks that fail, and a
//! device that is lost just before each of them, during the load and during the steps; of the many of a load a sample.
//! And of prompts that find their beginnings kept, on a hybrid and with windows, where snapshots are taken and put back.
//!
//! After each: an error of the right type, exactly one last event a request, no token after it, balanced books, and
//! the next requests have the tokens that an engine has which nothing happened to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod support;

use plimsoll::Opened;
use plimsoll_estimator::{Admitted, Geometry, Priced};
use plimsoll_kernels::ops::scale;
use plimsoll_kernels::step::{HEADER_TOKENS, HEADER_WORDS};
use plimsoll_kernels::{KvFormat, Profile, StepShape, Unit};
use plimsoll_runtime::faults::{Harm, Point};
use plimsoll_runtime::lone::{Data, LoneKernel, Options};
use plimsoll_runtime::request::What;
use plimsoll_runtime::{
    Device, DeviceOptions, Engine, FinishReason, Request, RequestId, Runtime, RuntimeError,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use support::{admitted, data, geometry, open};

struct Case {
    name: &'static str,
    opened: Opened,
    admitted: Admitted,
    /// What is asked, one group after the other.
    groups: Vec<Vec<Request>>,
    /// Snapshots that a session takes.
    snapshots: u64,
    /// The answers of an engine that nothing happened to.
    answers: Vec<Vec<u32>>,
}

/// What became of a request.
#[derive(Default)]
struct Outcome {
    tokens: Vec<u32>,
    end: Option<Result<FinishReason, Arc<RuntimeError>>>,
}

fn prompt(length: u32, by: u32) -> Vec<u32> {
    (0..length).map(|i| 3 + (i * by) % 200).collect()
}

fn requests() -> Vec<Request> {
    // Two fill both slots, one over three steps, one over a step and a half; the third waits.
    let (first, second) = (prompt(19, 7), prompt(9, 11));
    vec![
        Request { prompt: first, max_new: 3, ..Request::default() },
        Request { prompt: second, max_new: 4, ..Request::default() },
        Request { prompt: prompt(4, 5), max_new: 2, ..Request::default() },
    ]
}

/// One that leaves more than a page, and two that begin with what it left and go on apart.
fn alike() -> Vec<Vec<Request>> {
    let of = |more: &[u32], max_new| {
        let prompt = [&prompt(35, 7)[..], more].concat();
        Request { prompt, max_new, ..Request::default() }
    };
    vec![vec![of(&[], 2)], vec![of(&[9, 8, 7], 2), of(&[5; 31], 2)]]
}

impl Case {
    fn new(name: &'static str, device: &Device) -> Self {
        // Steps are cut into several submits.
        let mut profile = device.profile().clone();
        profile.work_budget = 1 << 18;
        Self::of(name, device, &geometry(64, 2, 8, KvFormat::F32, 2), &profile, vec![requests()])
    }

    /// With snapshots, and prompts that find their beginnings.
    fn alike(name: &'static str, device: &Device) -> Self {
        let priced = Priced { snapshots: 2, ..Priced::default() };
        let geometry = Geometry { priced, ..geometry(96, 2, 32, KvFormat::F32, 2) };
        let case = Self::of(name, device, &geometry, device.profile(), alike());
        assert!(case.snapshots >= 2, "{name}: {} snapshots", case.snapshots);
        case
    }

    fn of(
        name: &'static str,
        device: &Device,
        geometry: &Geometry,
        profile: &Profile,
        groups: Vec<Vec<Request>>,
    ) -> Self {
        let (checkpoint, model) = open(&data(name));
        let admitted = admitted(&model, geometry, profile);
        let opened = Opened::of(checkpoint, model);
        let mut case = Self { name, opened, admitted, groups, snapshots: 0, answers: vec![] };
        let mut engine = case.load(device).unwrap();
        let outcomes = case.session(&mut engine);
        case.snapshots = engine.cache_stats().snapshots;
        // Whoever comes after the first group finds something.
        let later = case.groups[1..].iter().map(Vec::len).sum::<usize>();
        assert_eq!(engine.cache_stats().hits, later as u64, "{name}");
        case.answers = outcomes.into_values().map(|outcome| outcome.tokens).collect();
        let asked = case.groups.iter().flatten().map(|request| request.max_new as usize);
        assert_eq!(case.answers.iter().map(Vec::len).collect::<Vec<_>>(), asked.collect::<Vec<_>>());
        case
    }

    fn load(&self, device: &Device) -> Result<Engine<Runtime>, RuntimeError> {
        let (model, checkpoint) = (&self.opened.model, &self.opened.checkpoint);
        let runtime = Runtime::load(device.clone(), model, checkpoint, self.admitted.clone(), &mut |_| ())?;
        Engine::new(runtime)
    }

    /// Serves the requests, whatever happens, and sees to everything that holds whatever happens.
    fn session(&self, engine: &mut Engine<Runtime>) -> BTreeMap<RequestId, Outcome> {
        let device = engine.stepper().device().clone();
        let created = device.totals().created;
        let mut outcomes = BTreeMap::new();
        // Every session finds the same: what it leaves itself.
        engine.trim();
        for group in &self.groups {
            for request in group {
                outcomes.insert(engine.submit(request.clone()).unwrap(), Outcome::default());
            }
            self.drain(engine, &mut outcomes);
        }
        assert!(outcomes.values().all(|outcome| outcome.end.is_some()), "a request without a last event");
        assert!(engine.pool().is_idle());
        let kinds: Vec<u32> = engine.plan().kv.kinds.iter().map(|kind| kind.pages).collect();
        assert_eq!(engine.pool().free_pages().collect::<Vec<_>>(), kinds);
        let totals = device.totals();
        let buffers = &engine.plan().buffers;
        assert_eq!(totals.created, created, "{}: a buffer was created after the load", self.name);
        assert_eq!(totals.live, buffers.len() as u64);
        assert_eq!(totals.live_bytes, buffers.iter().map(|b| b.bytes).sum::<u64>());
        for (outcome, answer) in outcomes.values().zip(&self.answers) {
            assert!(answer.starts_with(&outcome.tokens), "{}: {:?}", self.name, outcome.tokens);
        }
        outcomes
    }

    /// Steps until nobody is left.
    fn drain(&self, engine: &mut Engine<Runtime>, outcomes: &mut BTreeMap<RequestId, Outcome>) {
        let mut steps = 0;
        while !engine.is_idle() {
            for event in engine.step() {
                let outcome = outcomes.get_mut(&event.request).unwrap();
                assert!(outcome.end.is_none(), "{}: news of a request that has ended", self.name);
                match event.what {
                    What::Prefill { .. } => {}
                    What::Token { id, .. } => outcome.tokens.push(id),
                    What::Done(reason) => outcome.end = Some(Ok(reason)),
                    What::Failed(error) => outcome.end = Some(Err(error)),
                }
            }
            engine.pool().check().unwrap();
            steps += 1;
            assert!(steps < 100, "{}: the engine does not come to an end", self.name);
        }
    }

    /// A session in which nothing happens.
    fn right(&self, engine: &mut Engine<Runtime>) {
        let outcomes = self.session(engine);
        assert!(self.is_right(&outcomes), "{}", self.name);
    }

    /// Whether every answer is whole, and the right one.
    fn is_right(&self, outcomes: &BTreeMap<RequestId, Outcome>) -> bool {
        let mut all = outcomes.values().zip(&self.answers);
        all.all(|(outcome, answer)| {
            &outcome.tokens == answer && matches!(outcome.end, Some(Ok(FinishReason::Length)))
        })
    }

    /// The errors of a session with a fault, of which there is at least one.
    fn wrong(&self, engine: &mut Engine<Runtime>) -> Vec<Arc<RuntimeError>> {
        let outcomes = self.session(engine);
        let errors: Vec<_> = outcomes.into_values().filter_map(|o| o.end.and_then(Result::err)).collect();
        assert!(!errors.is_empty(), "{}: a fault that nobody is told of", self.name);
        errors
    }
}

/// Whether an error is the one that this harm ought to give.
fn expected(point: Point, harm: Harm, error: &RuntimeError) -> bool {
    match (harm, point) {
        (Harm::Lose, _) => matches!(error, RuntimeError::DeviceLost { .. }),
        (_, Point::Buffer) => matches!(error, RuntimeError::OutOfMemory { .. }),
        (_, Point::Layout | Point::Module | Point::Pipeline | Point::BindGroup) => {
            matches!(error, RuntimeError::Validation { .. })
        }
        (_, Point::Submit) => matches!(error, RuntimeError::Submit { .. }),
        (_, Point::UploadMap) => {
            matches!(error, RuntimeError::Map { buffer, .. } if !buffer.starts_with("readback"))
        }
        (_, Point::ReadbackMap) => {
            matches!(error, RuntimeError::Map { buffer, .. } if buffer.starts_with("readback"))
        }
    }
}

fn fresh() -> Device {
    Device::open(&DeviceOptions::default()).unwrap()
}

/// Events of a kind that are all harmed, one by one, up to this many; of the hundreds of bindings and the like of a
/// load, these, and then every seventh: what follows one of them is what follows its neighbor.
const EACH: u64 = 12;

fn next(n: u64) -> u64 {
    if n < EACH { n + 1 } else { n + 7 }
}

/// Events that were harmed, and all of their kind.
#[derive(Clone, Copy, Debug, Default)]
struct Harmed {
    struck: u64,
    of: u64,
}

impl fmt::Display for Harmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.struck, self.of)
    }
}

/// During the load: everything is freed, and the device serves the next load, unless it was lost.
fn of_load(case: &Case, point: Point, harm: Harm) -> Harmed {
    let mut device = fresh();
    let (mut n, mut struck) = (1, 0);
    loop {
        let base = device.counters();
        device.faults().order(point, harm, n);
        let loaded = case.load(&device);
        if device.faults().armed() {
            // There is no such event: this load is a good one, after all the bad ones on this device.
            let of = n - device.faults().ahead(point, harm);
            device.faults().disarm();
            case.right(&mut loaded.unwrap());
            return Harmed { struck, of };
        }
        let error = loaded.err().unwrap_or_else(|| panic!("{}: {point:?} {n}: loaded", case.name));
        assert!(expected(point, harm, &error), "{}: {point:?} {n}: {error}", case.name);
        assert_eq!(error.device_is_usable(), harm == Harm::Fail);
        assert_eq!((device.totals().live, device.totals().live_bytes), (0, 0), "{point:?} {n}");
        match harm {
            Harm::Fail => assert_eq!(device.counters(), base, "{}: {point:?} {n}", case.name),
            Harm::Lose => {
                let again = case.load(&device).err().unwrap();
                assert!(matches!(again, RuntimeError::DeviceLost { .. }), "{again}");
                device = fresh();
            }
        }
        if struck == 0 {
            case.right(&mut case.load(&device).unwrap());
        }
        (n, struck) = (next(n), struck + 1);
    }
}

/// During the steps: who was in the step is told, the engine goes on, or is recovered. Every `each`-th event is harmed.
fn of_steps(
    case: &Case,
    engine: &mut Option<Engine<Runtime>>,
    (point, harm): (Point, Harm),
    each: usize,
) -> Harmed {
    let (mut struck, mut unheard) = (0, 0);
    for n in (1..).step_by(each) {
        let mut running = engine.take().unwrap();
        let faults = running.stepper().device().clone();
        faults.faults().order(point, harm, n);
        if harm == Harm::Fail && n == 1 {
            // That nothing is left of an order that was carried out.
            assert!(faults.faults().armed());
        }
        let created = faults.totals().created;
        let mut outcomes = None;
        if !IN_STEPS.contains(&point) {
            case.right(&mut running);
        } else {
            outcomes = Some(case.session(&mut running));
        }
        if faults.faults().armed() {
            let of = n - faults.faults().ahead(point, harm);
            faults.faults().disarm();
            case.right(&mut running);
            *engine = Some(running);
            // A request does without its snapshot, and whoever would have found it without that.
            let snapshots = if (point, harm) == (Point::Submit, Harm::Fail) { case.snapshots } else { 0 };
            assert!(unheard <= snapshots && (each > 1 || unheard == snapshots), "{}: {unheard}", case.name);
            return Harmed { struck, of };
        }
        struck += 1;
        let outcomes = outcomes.unwrap_or_else(|| panic!("{point:?} during a step"));
        let errors: Vec<_> = outcomes.values().filter_map(|o| o.end.as_ref()?.as_ref().err()).collect();
        if errors.is_empty() {
            assert!(case.is_right(&outcomes), "{}: {point:?} {n}: nobody was told", case.name);
            unheard += 1;
            *engine = Some(running);
            continue;
        }
        assert!(
            errors.iter().all(|e| expected(point, harm, e)),
            "{}: {point:?} {n}: {}",
            case.name,
            errors[0]
        );
        assert_eq!(faults.totals().created, created);
        *engine = Some(match harm {
            // One device for all of them.
            Harm::Fail => {
                assert!(errors[0].device_is_usable());
                running
            }
            Harm::Lose => {
                let ids = running.submit(case.groups[0][0].clone()).unwrap();
                let recovered = case.opened.recover(running, None, &mut |_| ()).unwrap();
                assert!(recovered.reopened);
                assert_eq!(faults.totals().live, 0, "{}: {point:?} {n}", case.name);
                // The one that had not been told.
                let [told] = &recovered.ended[..] else { panic!("{:?}", recovered.ended) };
                assert_eq!(told.request, ids);
                assert!(matches!(&told.what, What::Failed(e) if !e.device_is_usable()));
                recovered.engine
            }
        });
        case.right(engine.as_mut().unwrap());
    }
    Harmed::default()
}

/// What happens in steps.
const IN_STEPS: [Point; 3] = [Point::UploadMap, Point::Submit, Point::ReadbackMap];

/// The steps alone, of a session in which snapshots are taken and put back.
fn with_snapshots(name: &'static str) {
    let device = fresh();
    let case = Case::alike(name, &device);
    let mut engine = Some(case.load(&device).unwrap());
    println!("{name}, {} snapshots and prompts that find them:", case.snapshots);
    // A lost device is opened and loaded again each time, so that only some of these are tried.
    for (harm, each) in [(Harm::Fail, 1), (Harm::Lose, 3)] {
        for point in IN_STEPS {
            let harmed = of_steps(&case, &mut engine, (point, harm), each);
            println!("  {harm:?} {point:?}: {harmed} of the steps");
            let most = harmed.of.div_ceil(each as u64);
            assert!(harmed.struck == most && harmed.of >= 6, "{name}: {point:?}: {harmed}");
        }
    }
}

#[test]
fn hybrid_with_snapshots() {
    with_snapshots("golden/nemotron_h");
}

#[test]
fn windows_with_snapshots() {
    with_snapshots("golden/gemma3_text");
}

fn matrix(name: &'static str) {
    let device = fresh();
    let case = Case::new(name, &device);
    let (mut sum, mut table) = (0, Vec::new());
    let mut engine = Some(case.load(&device).unwrap());
    for harm in [Harm::Fail, Harm::Lose] {
        for point in Point::ALL {
            let harmed = [of_load(&case, point, harm), of_steps(&case, &mut engine, (point, harm), 1)];
            table.push(format!("{harm:?} {point:?}: {} of the load, {} of the steps", harmed[0], harmed[1]));
            let counts = harmed.map(|harmed| harmed.struck);
            assert_eq!(harmed[1].struck, harmed[1].of, "{name}: {point:?}");
            sum += counts[0] + counts[1];
            match point {
                Point::ReadbackMap => assert_eq!(counts[0], 0),
                _ => assert!(counts[0] > 0, "{name}: {point:?} never happened"),
            }
            let in_steps = IN_STEPS.contains(&point);
            assert_eq!(counts[1] >= 4, in_steps, "{name}: {point:?}: {counts:?}");
        }
    }

    // While nobody is there; the next finds out.
    let mut engine = engine.unwrap();
    let lost = engine.stepper().device().clone();
    lost.lose();
    let errors = case.wrong(&mut engine);
    assert_eq!(errors.len(), 3);
    assert!(errors.iter().all(|e| matches!(**e, RuntimeError::DeviceLost { .. })));
    let mut recovered = case.opened.recover(engine, None, &mut |_| ()).unwrap();
    assert!(recovered.reopened && recovered.ended.is_empty());
    case.right(&mut recovered.engine);
    // In the last moment: what is taken down is taken down all the same.
    let (engine, last) = (recovered.engine, recovered.reopened);
    let device = engine.stepper().device().clone();
    device.lose();
    drop(engine);
    assert_eq!((device.totals().live, last), (0, true));
    println!("{name}: {} faults\n  {}", sum + 2, table.join("\n  "));
}

#[test]
fn dense() {
    matrix("golden/llama");
}

#[test]
fn hybrid() {
    matrix("golden/nemotron_h");
}

/// A device is opened again for no lesser reason than its loss, and the budget is asked anew.
#[test]
fn a_sound_device_is_kept_and_a_budget_that_shrank_refuses() {
    let device = fresh();
    let case = Case::new("golden/llama", &device);
    let mut engine = case.load(&device).unwrap();
    device.faults().fail_submit(1);
    case.wrong(&mut engine);
    let waits = engine.submit(requests().remove(0)).unwrap();
    let before = device.submits();
    let mut recovered = case.opened.recover(engine, None, &mut |_| ()).unwrap();
    assert!(!recovered.reopened);
    assert!(recovered.engine.stepper().device().submits() > before, "it is another device");
    assert!(matches!(&recovered.ended[..], [event] if event.request == waits));
    case.right(&mut recovered.engine);

    device.lose();
    let total = case.admitted.plan().total();
    let Err(error) = case.opened.recover(recovered.engine, Some((total - 1, "a test")), &mut |_| ()) else {
        panic!("that is too little")
    };
    assert!(error.is_permanent() && matches!(error, plimsoll::Error::Refused(_)), "{error}");
    assert_eq!(device.totals().live, 0);
}

/// What tests and benchmarks measure on has the same errors as a load: a buffer that cannot be had is named, not what
/// would have been bound to it; then the device goes on, and nothing is left on it.
#[test]
fn a_lone_kernel_says_what_it_lacks() {
    let lone = LoneKernel::open(Options::default()).unwrap();
    let device = lone.device();
    for nth in [1, 2] {
        device.faults().fail_buffer(nth);
        let Err(RuntimeError::OutOfMemory { buffer, bytes, live }) = lone.ceilings() else { panic!("{nth}") };
        assert_eq!((buffer.as_str(), bytes, live), ("ceiling", 64 << 20, (nth - 1) * (64 << 20)));
        assert_eq!(device.totals().live, 0);
    }
    let args = scale::Args { factor: 2.0, vector: None, width: 8, stride: 8, unit: Unit::Tokens };
    let call = scale::plan(lone.profile(), &args);
    let operands = [Data::F32(vec![1.5; 8]), Data::F32(vec![0.0])];
    let shape = StepShape { tokens: 1, ..StepShape::default() };
    let mut step = vec![0; HEADER_WORDS as usize];
    step[HEADER_TOKENS as usize] = 1;
    let run = || lone.run(&call, &step, &operands, &shape, None);
    let good = run().unwrap();
    // Parameters, range, step, both operands, what is read back.
    for nth in 1..=6 {
        device.faults().fail_buffer(nth);
        assert!(matches!(run(), Err(RuntimeError::OutOfMemory { .. })), "{nth}");
        assert_eq!((device.totals().live, run().unwrap()), (0, good.clone()), "{nth}");
    }
    device.lose();
    assert!(matches!(run(), Err(RuntimeError::DeviceLost { .. })));
}
