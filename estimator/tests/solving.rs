//! What rises with what, and the inverse solve held against the forward model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::hybrid::Hybrid;
use common::{Toy, open};
use plimsoll_estimator::budget::Setting;
use plimsoll_estimator::report::Question;
use plimsoll_estimator::verdict::{Broke, admit};
use plimsoll_estimator::{
    Budget, Geometry, Overhead, Plan, PlanError, Pricer, Reading, Report, Solver, Verdict,
};
use plimsoll_kernels::{AttentionShape, KvFormat, Limits, Profile};
use plimsoll_models::Model;
use plimsoll_models::graph::{Op, Rows};
use plimsoll_models::model::State;
use proptest::prelude::*;
use std::time::Instant;

/// Full attention, sliding beside full, sliding alone, a hybrid, and no attention at all.
fn models() -> Vec<(&'static str, Model)> {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 32 };
    let full = State::KvFull { shape };
    let sliding = |window| State::KvSliding { shape, window };
    let toy = |states: Vec<State>| Toy { shape, states, ..Toy::small() }.build();
    vec![
        ("full", toy(vec![full; 3])),
        ("mixed", toy(vec![full, sliding(40), sliding(40)])),
        ("sliding", toy(vec![sliding(100), sliding(40)])),
        ("hybrid", Hybrid::small().build()),
        ("recurrent", open("configs/mamba2-130m-hf.json").1),
    ]
}

fn geometry(context: u32, slots: u32, prefill_chunk: u32, kv: KvFormat) -> Geometry {
    Geometry { context, slots, prefill_chunk, kv, logit_rows: slots, ..Geometry::default_for(4096) }
}

fn profile(binding: u64) -> Profile {
    let limits = Limits {
        max_storage_buffer_binding_size: binding,
        max_buffer_size: 2 * binding,
        ..Limits::webgpu_default()
    };
    Profile::new("test", limits, None, false)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn totals_rise(
        which in 0usize..5, pages in 1u32..120, slots in 1u32..9, chunk in 1u32..300,
        kv in prop::sample::select(&KvFormat::ALL), depth in 0u32..4,
        binding in prop::sample::select(&[1u64 << 20, 1 << 22, 128 << 20]),
    ) {
        let (name, model) = &models()[which];
        let profile = profile(binding);
        let pricer = Pricer::new(model, &profile);
        let base = Geometry { draft_depth: depth, ..geometry(pages * 32, slots, chunk, kv) };
        let total = |geometry: &Geometry| pricer.price(geometry).map(|price| price.total());
        let Ok(here) = total(&base) else { return Ok(()) };

        // A page more costs more, whoever looks back at everything; past every window nothing more but tables.
        if let Ok(next) = total(&Geometry { context: base.context + 32, ..base.clone() }) {
            let beyond = base.context >= (100 + chunk - 1).next_multiple_of(32);
            match *name {
                "full" | "mixed" | "hybrid" => prop_assert!(next > here, "{} {:?}", name, base),
                "sliding" if !beyond => prop_assert!(next > here, "{} {:?}", name, base),
                "sliding" => prop_assert!(next >= here && next - here <= 256, "{} {}", here, next),
                _ => prop_assert_eq!(next, here, "{}", name),
            }
        }
        if let Ok(next) = total(&Geometry { slots: slots + 1, logit_rows: slots + 1, ..base.clone() }) {
            prop_assert!(next > here, "{} {:?}", name, base);
        }
        if let Ok(next) = total(&Geometry { draft_depth: depth + 1, ..base.clone() }) {
            let recurrent = matches!(*name, "hybrid" | "recurrent");
            prop_assert!(if recurrent { next > here } else { next == here }, "{} {:?}", name, base);
        }
    }

    #[test]
    fn a_longer_chunk_never_costs_less(
        which in 0usize..5, slots in 1u32..9, chunk in 1u32..40, kv in prop::sample::select(&KvFormat::ALL),
    ) {
        let (name, model) = &models()[which];
        let profile = profile(128 << 20);
        let pricer = Pricer::new(model, &profile);
        // Chunks as people choose them: tensors are padded to 256 bytes, so neighbours may cost the same.
        let at = |units: u32| pricer.price(&geometry(4096, slots, units * 32, kv)).map(|price| price.total());
        let (Ok(here), Ok(next)) = (at(chunk), at(chunk + 1)) else { return Ok(()) };
        prop_assert!(next >= here, "{} slots {} chunk {}: {} then {}", name, slots, chunk * 32, here, next);
    }

    /// Each answer fits, and one unit more does not.
    #[test]
    fn answers_hold_and_are_the_largest(
        which in 0usize..5, slots in 1u32..5, pages in 1u32..100, chunk in 1u32..200, part in 1u64..300,
        overhead in 0u64..5000, binding in prop::sample::select(&[1u64 << 20, 128 << 20]),
    ) {
        let (_, model) = &models()[which];
        let profile = profile(binding);
        let pricer = Pricer::new(model, &profile);
        let base = geometry(pages * 32, slots, chunk, KvFormat::F16);
        let Ok(price) = pricer.price(&base) else { return Ok(()) };
        let budget = Budget::flag(price.total() / 100 * part, "test");
        let overhead = Overhead { bytes: overhead, measured: true };
        let solver = Solver { pricer: &pricer, budget: Some(&budget), overhead, company: None };
        // The forward model, by itself.
        let fits = |geometry: &Geometry| {
            let plan = Plan::new(model, geometry, &profile);
            plan.is_ok_and(|plan| plan.total() + overhead.bytes <= budget.bytes)
        };
        prop_assert_eq!(solver.fits(&base).is_some(), fits(&base));

        let longest = solver.longest(&base).next_multiple_of(32);
        if let Some(best) = solver.largest_context(&base) {
            prop_assert!(fits(&best) && best.context <= longest);
            let next = Geometry { context: best.context + 32, ..best.clone() };
            prop_assert!(best.context == longest || !fits(&next), "{:?}", best);
        } else {
            let least = Geometry { context: 32, ..base.clone() };
            prop_assert!(!fits(&least));
        }
        if let Some(best) = solver.largest_slots(&base) {
            let next = Geometry { slots: best.slots + 1, logit_rows: best.slots + 1, ..base.clone() };
            prop_assert!(fits(&best) && (best.slots == 4096 || !fits(&next)), "{:?}", best);
        }
        if let Some(best) = solver.largest_chunk(&base) {
            prop_assert!(fits(&best) && best.prefill_chunk <= base.context.next_multiple_of(32));
            let next = Geometry { prefill_chunk: best.prefill_chunk + 1, ..base.clone() };
            prop_assert!(best.prefill_chunk == base.context.next_multiple_of(32) || !fits(&next), "{:?}", best);
        }
        let frontier = solver.frontier(&base);
        for point in &frontier.points {
            let at = |context: u32| Geometry { context, slots: point.slots, logit_rows: point.slots, ..base.clone() };
            let plan = Plan::new(model, &at(point.context), &profile).unwrap();
            prop_assert_eq!(plan.total(), point.total);
            prop_assert!(fits(&at(point.context)));
            prop_assert!(point.context == longest || !fits(&at(point.context + 32)), "{:?}", point);
        }
        prop_assert!(frontier.points.windows(2).all(|w| w[1].slots == 2 * w[0].slots && w[1].context <= w[0].context));
    }

    /// Where a reading below the ceiling binds, by the load's peak or by the total, each answer is admitted, and one unit more
    /// is refused.
    #[test]
    fn answers_are_admitted_where_a_reading_binds(
        which in 0usize..5, slots in 1u32..4, pages in 1u32..60, chunk in 1u32..200, part in 60u64..260,
        held in 0u64..40_000, reserved in 0u64..40_000, measured in 0u64..5000, above in 0u64..3,
    ) {
        let (_, model) = &models()[which];
        let profile = profile(128 << 20);
        let pricer = Pricer::new(model, &profile);
        let base = geometry(pages * 32, slots, chunk, KvFormat::F16);
        let Ok(price) = pricer.price(&base) else { return Ok(()) };
        let overhead = Overhead { bytes: measured, measured: true };
        // The reading holds a part of the load's peak; the ceiling is that, a little more, or far more.
        let room = (price.total() + price.staging) / 100 * part;
        let reserve = Setting { bytes: reserved, name: "reserve".into() };
        let reading = Reading::now(room + reserved + held, "card");
        let ceiling = room + held + above * above * price.staging;
        let mut budget = Budget::resolve_beside(Some((ceiling, "ceiling")), Some(reading), Some(&reserve)).unwrap();
        budget.others = held;
        budget.bytes = budget.bytes.saturating_sub(held);
        prop_assert_eq!(budget.load_room(), Some(room));
        let solver = Solver { pricer: &pricer, budget: Some(&budget), overhead, company: None };
        let admitted = |geometry: &Geometry| {
            let verdict = admit(model, geometry, &profile, Some(&budget), overhead).unwrap();
            matches!(verdict, Verdict::Admitted(_))
        };
        // The forward model, by itself.
        let loads = |geometry: &Geometry| Plan::new(model, geometry, &profile).is_ok_and(|plan| {
            plan.total() + overhead.bytes <= budget.bytes && plan.load_peak() + overhead.bytes <= room
        });
        prop_assert_eq!((solver.fits(&base).is_some(), admitted(&base)), (loads(&base), loads(&base)));

        let longest = solver.longest(&base).next_multiple_of(32);
        match solver.largest_context(&base) {
            Some(best) => {
                let next = Geometry { context: best.context + 32, ..best.clone() };
                prop_assert!(admitted(&best) && loads(&best) && (best.context >= longest || !admitted(&next)), "{:?}", best);
            }
            None => {
                let least = Geometry { context: 32, ..base.clone() };
                prop_assert!(!admitted(&least), "{:?}", least);
            }
        }
        match solver.largest_slots(&base) {
            Some(best) => {
                let next = Geometry { slots: best.slots + 1, logit_rows: best.slots + 1, ..base.clone() };
                prop_assert!(admitted(&best) && (best.slots == 4096 || !admitted(&next)), "{:?}", best);
            }
            None => {
                let least = Geometry { slots: 1, logit_rows: 1, ..base.clone() };
                prop_assert!(!admitted(&least), "{:?}", least);
            }
        }
        match solver.largest_chunk(&base) {
            Some(best) => {
                let next = Geometry { prefill_chunk: best.prefill_chunk + 1, ..base.clone() };
                let whole = best.prefill_chunk == base.context.next_multiple_of(32);
                prop_assert!(admitted(&best) && (whole || !admitted(&next)), "{:?}", best);
            }
            None => {
                let least = Geometry { prefill_chunk: 1, ..base.clone() };
                prop_assert!(!admitted(&least), "{:?}", least);
            }
        }
        for point in &solver.frontier(&base).points {
            let at = |context: u32| Geometry { context, slots: point.slots, logit_rows: point.slots, ..base.clone() };
            prop_assert!(admitted(&at(point.context)), "{:?}", point);
            prop_assert!(point.context >= longest || !admitted(&at(point.context + 32)), "{:?}", point);
        }
        if let Verdict::Refused(refusal) = admit(model, &base, &profile, Some(&budget), overhead).unwrap() {
            prop_assert!(matches!(refusal.broke, Broke::Total | Broke::LoadPeak), "{:?}", refusal);
            for near in &refusal.nearest {
                prop_assert!(admitted(&near.geometry()), "{:?}", near);
            }
        }
        let (checkpoint, _) = open("configs/mamba2-130m-hf.json");
        let question = Question {
            checkpoint: &checkpoint, model, geometry: &base, profile: &profile, budget: Some(&budget), overhead, company: None,
        };
        for rung in &Report::priced(&pricer, &question).unwrap().ladder {
            let fits = admitted(&Geometry { context: rung.context, ..base.clone() });
            prop_assert_eq!(rung.verdict == "fits", fits, "{:?}", rung);
        }
    }

    /// Numbers at the ends of their types are priced or refused, whatever the model.
    #[test]
    fn no_geometry_overflows(
        which in 0usize..5,
        numbers in prop::array::uniform6(prop_oneof![
            any::<u32>(), Just(u32::MAX), Just(u32::MAX - 31), Just(1 << 31), Just(1 << 30), Just(1 << 20), Just(1 << 16), Just(0), 1u32..64
        ]),
        endless in any::<bool>(),
    ) {
        let (_, model) = &models()[which];
        let mut profile = Profile::webgpu_default();
        if endless {
            profile.limits.max_buffer_size = u64::MAX;
            profile.limits.max_storage_buffer_binding_size = u64::MAX;
        }
        let [context, slots, prefill_chunk, logit_rows, draft_depth, snapshots] = numbers;
        let mut asked = Geometry { context, slots, prefill_chunk, logit_rows, draft_depth, ..Geometry::default_for(4096) };
        asked.priced.snapshots = snapshots;
        let pricer = Pricer::new(model, &profile);
        let priced = pricer.price(&asked);
        prop_assert!(matches!(
            priced,
            Ok(_) | Err(PlanError::Geometry { .. } | PlanError::Limit { .. } | PlanError::KvFormat { .. })
        ), "{:?}", priced);
        let budget = Budget::flag(1 << 30, "test");
        let solver = Solver { pricer: &pricer, budget: Some(&budget), overhead: Overhead::default(), company: None };
        prop_assert_eq!(solver.fits(&asked).is_some(), priced.is_ok_and(|p| p.total() <= 1 << 30));
    }

    /// Models with fields at the ends of their types are refused by name.
    #[test]
    fn no_model_overflows(
        field in 0usize..12, value in prop_oneof![Just(u32::MAX), Just(1 << 31), Just(1 << 24), any::<u32>()],
        hybrid in any::<bool>(),
    ) {
        let mut model = if hybrid { Hybrid::small().build() } else { Toy::small().build() };
        let last = model.graph.tensors.len() - 1;
        match field {
            0 => model.vocab = value,
            1 => model.hidden = value,
            2 => model.matrices[1].rows = value,
            3 => model.matrices[1].cols = value,
            4 => model.matrices[0].experts = value,
            5 => model.graph.tensors[1].width = value,
            6 => model.graph.tensors[last].width = value,
            7 => model.vectors[0].len = value,
            8 => model.graph.tensors[1].rows = Rows::Choices(value),
            9 => for state in &mut model.states {
                match state {
                    State::KvFull { shape } | State::KvSliding { shape, .. } => shape.head_dim = value,
                    State::Recurrent { shape } => shape.values = value,
                    _ => {}
                }
            },
            10 => for state in &mut model.states {
                match state {
                    State::KvFull { shape } | State::KvSliding { shape, .. } => shape.kv_heads = value,
                    State::Recurrent { shape } => shape.channels = value,
                    _ => {}
                }
            },
            _ => for (_, op) in &mut model.graph.ops {
                match op {
                    Op::Attention { attention, .. } => attention.shape.heads = value,
                    Op::Ssd { ssd, .. } => ssd.shape.state = value,
                    Op::Route { router, .. } => router.top = value,
                    _ => {}
                }
            },
        }
        let profile = Profile::webgpu_default();
        let pricer = Pricer::new(&model, &profile);
        let asked = geometry(4096, 2, 64, KvFormat::F16);
        let (price, plan) = (pricer.price(&asked), pricer.plan(&asked));
        prop_assert_eq!(price.map(|p| p.total()), plan.map(|p| p.total()));
        let _ = plimsoll_estimator::admit(&model, &asked, &profile, None, Overhead::default());
    }
}

#[test]
fn reports_and_plans_come_back_from_json() {
    let (checkpoint, model) = open("configs/nemotron-3-nano-30b-a3b.json");
    let profile = Profile::webgpu_default();
    let budget = Budget::flag(80 << 30, "flag --memory");
    for (slots, budget) in [(1, Some(&budget)), (2000, Some(&budget)), (1, None)] {
        let geometry =
            Geometry { slots, logit_rows: 1, draft_depth: 1, ..Geometry::default_for(model.context_max) };
        let question = Question {
            checkpoint: &checkpoint,
            model: &model,
            geometry: &geometry,
            profile: &profile,
            budget,
            overhead: Overhead::default(),
            company: None,
        };
        let (report, _) = Report::new(&question).unwrap();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        assert_eq!(report.frontier.points.is_empty(), budget.is_none());
    }
    let plan = Plan::new(&model, &Geometry::default_for(4096), &profile).unwrap();
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
}

/// Far too large is found out by what is too large, not by making it.
#[test]
fn geometries_without_measure_are_answered_at_once() {
    let (checkpoint, model) = open("configs/llama-3.1-8b.json");
    let base = Geometry::default_for(model.context_max);
    let budget = Budget::flag(48 << 30, "flag --memory");
    for (context, slots, prefill_chunk) in [
        (1 << 30, 1, 512),
        (8192, 65_536, 512),
        (1 << 30, 65_536, 1 << 20),
        (1 << 30, 1, 1 << 20),
        (131_072, 1, 1 << 20),
    ] {
        let geometry = Geometry { context, slots, prefill_chunk, logit_rows: slots, ..base.clone() };
        for budget in [Some(&budget), None] {
            let profile = Profile::webgpu_default();
            let question = Question {
                checkpoint: &checkpoint,
                model: &model,
                geometry: &geometry,
                profile: &profile,
                budget,
                overhead: Overhead::default(),
                company: None,
            };
            let begin = Instant::now();
            let (report, _) = Report::new(&question).unwrap();
            eprintln!("{context} × {slots}, {prefill_chunk}, {}: {:?}", budget.is_some(), begin.elapsed());
            assert_eq!(report.verdict, "refused");
        }
    }
}
