//! The first and the eighth promise over random geometries: whatever the context, slots, chunk, KV format, limits,
//! kernel variants and work budget, the device holds what was priced, buffer by buffer and by wgpu's own counters,
//! allocates nothing more in its steps, and answers what one undivided step answers.
//!
//! The geometries are random but the same in every run, so that the last check, that each kind of division did
//! occur, cannot depend on luck.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_estimator::error::Limit;
use plimsoll_estimator::{Geometry, Overhead, Plan, PlanError, Verdict, admit};
use plimsoll_kernels::{KvFormat, Limits, Profile};
use plimsoll_models::Model;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_runtime::{Device, DeviceOptions, Runtime, Wanted};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::cell::{Cell, RefCell};
use support::{Loaded, check_books, data, deal, distance, geometry, open};

/// Full attention, sliding windows, grouped formats, both containers.
const MODELS: [&str; 4] =
    ["golden/qwen3", "golden/gemma3_text", "golden/gguf_llama/model.gguf", "golden/gguf_qwen3/model.gguf"];

/// Most tokens of a sequence here: five pages and a part of one.
const LONGEST: u32 = 165;

/// How far a divided answer may be from the undivided one. KV in f32 leaves the rounding of sums in another order;
/// in f16 and q8_0 such a difference can also tip a key or a value to the next number that the format has.
fn tolerance(kv: KvFormat) -> f32 {
    match kv {
        KvFormat::F32 => 1e-4,
        KvFormat::F16 => 2e-3,
        KvFormat::Q8_0 => 2e-2,
    }
}

#[derive(Clone, Debug)]
struct Case {
    model: usize,
    geometry: Geometry,
    /// Largest binding and buffer, as powers of two; more where the plan needs more.
    binding: u32,
    buffer: u32,
    work_budget: Option<u64>,
    subgroups: bool,
    /// Kernel variants of a GPU, whatever the adapter is.
    as_gpu: bool,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let kv = prop_oneof![3 => Just(KvFormat::F32), 1 => Just(KvFormat::F16), 1 => Just(KvFormat::Q8_0)];
    let sizes = (2..=LONGEST, 1u32..=5, prop_oneof![1u32..=12, 13u32..=80], kv, 1u32..=40);
    let limits = (prop_oneof![13u32..=17, Just(27)], 0u32..=4);
    let budget = prop_oneof![Just(None), (14u32..=20).prop_map(|bits| Some(1 << bits))];
    let variants = (any::<bool>(), prop::bool::weighted(0.3));
    // More often the one with windows.
    let model = prop_oneof![2 => 0..MODELS.len(), 1 => Just(1)];
    (model, sizes, limits, budget, variants, any::<u64>()).prop_map(
        |(model, (context, slots, chunk, kv, rows), (binding, more), work_budget, variants, seed)| Case {
            model,
            geometry: geometry(context, slots, chunk, kv, rows.max(slots)),
            binding,
            buffer: binding + more,
            work_budget,
            subgroups: variants.0,
            as_gpu: variants.1,
            seed,
        },
    )
}

/// The plan under the smallest limits at or above those of the case that some plan keeps.
fn plan(case: &mut Case, model: &Model, device: &Profile) -> Plan {
    loop {
        let limits = Limits {
            max_storage_buffer_binding_size: 1 << case.binding,
            max_buffer_size: device.limits.max_buffer_size.min(1 << case.buffer),
            ..device.limits.clone()
        };
        let mut profile = Profile { limits, ..device.clone() };
        if case.as_gpu {
            let subgroups = device.subgroups.then_some(device.subgroup_size);
            profile.tuning = Profile::new("as a GPU", profile.limits.clone(), subgroups, false).tuning;
        }
        if let Some(budget) = case.work_budget {
            profile.work_budget = budget;
        }
        match Plan::new(model, &case.geometry, &profile) {
            Ok(plan) => return plan,
            Err(PlanError::Limit { limit: Limit::Allocation, .. }) if case.buffer < 30 => case.buffer += 1,
            Err(PlanError::Limit { .. }) if case.binding < 27 => {
                case.binding += 1;
                case.buffer = case.buffer.max(case.binding);
            }
            // Heads of 16 have no blocks of 32.
            Err(PlanError::KvFormat { .. }) => case.geometry.kv = KvFormat::F16,
            Err(other) => panic!("{case:?}: {other}"),
        }
    }
}

/// Whole rows of logits by position of one sequence.
type Rows = Vec<Vec<f32>>;

/// A model, its undivided answers and the tokens they are of.
struct Subject {
    checkpoint: Checkpoint,
    model: Model,
    ids: [Vec<u32>; 2],
    whole: [Option<[Rows; 2]>; 3],
}

impl Subject {
    fn new(path: &str) -> Self {
        let (checkpoint, model) = open(&data(path));
        let ids =
            [5, 11].map(|step| (0..LONGEST).map(|i| 3 + i * i * step % 90 % (model.vocab - 3)).collect());
        Self { checkpoint, model, ids, whole: [None, None, None] }
    }

    /// All positions of both sequences, each in one step.
    fn whole(&mut self, kv: KvFormat) -> &[Rows; 2] {
        let Self { checkpoint, model, ids, whole } = self;
        whole[kv as usize].get_or_insert_with(|| {
            let geometry = geometry(LONGEST, 1, LONGEST, kv, LONGEST);
            let mut loaded = Loaded::new(checkpoint, model, &DeviceOptions::default(), &geometry);
            [0, 1].map(|i| loaded.feed(0, 0, &ids[i], LONGEST as usize))
        })
    }
}

/// Kinds of division that were met.
#[derive(Default)]
struct Met {
    shards: Cell<u32>,
    buffers: Cell<u32>,
    segments: Cell<u32>,
    sliding_segments: Cell<u32>,
    ranges: Cell<u32>,
    both: Cell<u32>,
    pieces: Cell<u32>,
    gpu: Cell<u32>,
    formats: [Cell<u32>; 3],
}

impl Met {
    fn count(&self, plan: &Plan) {
        let add = |cell: &Cell<u32>, met: bool| cell.set(cell.get() + u32::from(met));
        let cut = |window: bool| {
            let mut layers = plan.kv.layers.iter();
            layers.any(|l| plan.kv.kinds[l.kind as usize].window.is_some() == window && l.segments.len() > 1)
        };
        add(&self.shards, plan.groups.iter().any(|g| g.shards.len() > 1));
        add(&self.buffers, plan.buffers.iter().any(|b| b.name == "arena.1" || b.name == "kv.1"));
        add(&self.segments, cut(false));
        add(&self.sliding_segments, cut(true));
        add(&self.ranges, plan.ranges.count > 1);
        add(&self.both, plan.ranges.count > 1 && cut(false));
        let program = plan.programs.last().unwrap();
        add(&self.pieces, program.dispatches.len() > plan.programs[0].dispatches.len());
        add(&self.gpu, plan.profile.tuning.mat_mat_shared);
        add(&self.formats[plan.geometry.kv as usize], true);
    }

    fn all(&self) -> Vec<u32> {
        let kinds = [&self.shards, &self.buffers, &self.segments, &self.sliding_segments, &self.ranges];
        let others = [&self.both, &self.pieces, &self.gpu];
        kinds.into_iter().chain(others).chain(&self.formats).map(Cell::get).collect()
    }
}

/// Feeds the first `lengths` tokens of both sequences, the second only where there is a slot for it, in steps of
/// random sizes, together or by turns, and compares every row that a step gives.
fn compare(case: &Case, subject: &mut Subject, runtime: Runtime) -> Result<Runtime, TestCaseError> {
    let kv = case.geometry.kv;
    let (context, slots) = (case.geometry.context, case.geometry.slots);
    let whole = subject.whole(kv).clone();
    let mut state = case.seed | 1;
    let mut below = |bound: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % bound.max(1)
    };
    let mut loaded = Loaded { runtime };
    // The last slot first, so that slot numbers and order in the step differ.
    let slot = [slots - 1, 0];
    let ends = [context, if slots > 1 { 1 + below(context) } else { 0 }];
    let mut at = [0u32; 2];
    while at != ends {
        let mut room = case.geometry.prefill_chunk.max(slots);
        let mut rows = case.geometry.logit_rows;
        let mut step = Vec::new();
        for i in 0..2 {
            let most = (ends[i] - at[i]).min(room);
            if most == 0 || (below(3) == 0 && ends[1 - i] > at[1 - i] && i == 0) {
                continue;
            }
            // Often as much as there is room for, sometimes a single token.
            let take = [most, most, 1, 1 + below(most)][below(4) as usize];
            let wanted = if take <= rows {
                Wanted::All
            } else if rows > 0 {
                Wanted::Last
            } else {
                Wanted::None
            };
            room -= take;
            rows -= wanted.rows(take);
            step.push((i, at[i], take, wanted));
            at[i] += take;
        }
        let input: Vec<(u32, u32, &[u32], Wanted)> = step
            .iter()
            .map(|&(i, at, take, wanted)| {
                (slot[i], at, &subject.ids[i][at as usize..][..take as usize], wanted)
            })
            .collect();
        let mut got = loaded.step(&input).into_iter();
        for &(i, at, take, wanted) in &step {
            for position in at + take - wanted.rows(take)..at + take {
                let off = distance(&got.next().unwrap(), &whole[i][position as usize]);
                prop_assert!(off <= tolerance(kv), "sequence {}, position {}: off by {}", i, position, off);
            }
        }
    }
    Ok(loaded.runtime)
}

#[test]
fn any_geometry_is_allocated_as_priced_and_answers_alike() {
    let devices = [true, false]
        .map(|subgroups| Device::open(&DeviceOptions { subgroups, ..DeviceOptions::default() }).unwrap());
    let subjects = MODELS.map(|path| RefCell::new(Subject::new(path)));
    let met = Met::default();
    let config = Config { cases: 20, failure_persistence: None, max_shrink_iters: 40, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let check = |mut case: Case| {
        let device = &devices[usize::from(!case.subgroups)];
        let subject = &mut *subjects[case.model].borrow_mut();
        let plan = plan(&mut case, &subject.model, device.profile());
        met.count(&plan);
        let (base, created) = (device.counters(), device.totals().created);

        let admitted =
            match admit(&subject.model, &case.geometry, &plan.profile, None, Overhead::default()).unwrap() {
                Verdict::Admitted(admitted) => admitted,
                Verdict::Refused(refusal) => panic!("{refusal}"),
            };
        prop_assert_eq!(admitted.plan(), &plan, "a plan is a function of what it is made from");
        let runtime =
            Runtime::load(device.clone(), &subject.model, &subject.checkpoint, admitted, &mut |_| ());
        let mut runtime = runtime.map_err(|e| TestCaseError::fail(e.to_string()))?;
        check_books(&runtime);
        deal(&mut runtime);
        let (loaded, totals) = (device.counters(), device.totals());
        prop_assert_eq!(loaded.buffer_memory - base.buffer_memory, plan.total() as i64);
        prop_assert_eq!(loaded.buffers - base.buffers, plan.buffers.len() as i64);
        prop_assert_eq!(totals.live_bytes, plan.total());
        // Beyond the plan: the staging of the load, in at most two halves.
        prop_assert!((1..=2).contains(&(totals.created - created - plan.buffers.len() as u64)));

        let runtime = compare(&case, subject, runtime)?;
        prop_assert_eq!(device.counters(), loaded, "something was allocated after the load");
        prop_assert_eq!(device.totals().created, totals.created);
        runtime.unload();
        prop_assert_eq!(device.counters(), base, "something outlived the unload");
        Ok(())
    };
    // What chance seldom brings: the rings of a window in several segments, and ranges of full attention too.
    let geometry = geometry(LONGEST, 5, 12, KvFormat::F32, 5);
    let (binding, buffer, work_budget) = (13, 16, Some(1 << 14));
    let rings =
        Case { model: 1, geometry, binding, buffer, work_budget, subgroups: true, as_gpu: false, seed: 1 };
    check(rings).unwrap();
    match runner.run(&cases(), check) {
        Ok(()) => assert!(met.all().iter().all(|&n| n > 0), "divisions that never occurred: {:?}", met.all()),
        Err(TestError::Fail(reason, case)) => panic!("{reason}: {case:#?}"),
        Err(abort) => panic!("{abort}"),
    }
}
