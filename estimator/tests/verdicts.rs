//! Verdicts: one byte decides, refusals are values, suggestions hold when tried.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Toy, open};
use plimsoll_estimator::report::Question;
use plimsoll_estimator::verdict::Broke;
use plimsoll_estimator::{
    Admitted, Budget, Geometry, Overhead, Plan, Pricer, Report, Solver, Verdict, admit,
};
use plimsoll_kernels::{AttentionShape, KvFormat, Limits, Profile};
use plimsoll_models::Model;
use plimsoll_models::model::State;
use proptest::prelude::*;

fn judge(model: &Model, geometry: &Geometry, bytes: u64) -> Verdict {
    let budget = Budget::flag(bytes, "flag --memory");
    admit(model, geometry, &Profile::webgpu_default(), Some(&budget), Overhead::default()).unwrap()
}

fn total(model: &Model, geometry: &Geometry) -> u64 {
    Plan::new(model, geometry, &Profile::webgpu_default()).unwrap().total()
}

#[test]
fn one_byte_under_the_plan_is_refused_and_every_suggestion_is_admitted() {
    for path in ["golden/llama", "golden/gemma3_text", "configs/llama-3.1-8b.json"] {
        let (_, model) = open(path);
        let geometry = Geometry { slots: 3, logit_rows: 3, ..Geometry::default_for(model.context_max) };
        let need = total(&model, &geometry);
        let Verdict::Admitted(admitted) = judge(&model, &geometry, need) else { panic!("{path}") };
        assert_eq!(admitted.plan().total(), need);
        assert!(!admitted.overridden());

        let Verdict::Refused(refusal) = judge(&model, &geometry, need - 1) else { panic!("{path}") };
        assert_eq!((refusal.broke, refusal.need, refusal.have), (Broke::Total, need, need - 1));
        assert_eq!(refusal.terms.iter().map(|t| t.1).sum::<u64>(), need);
        assert!(!refusal.nearest.is_empty(), "{path}");
        for suggestion in &refusal.nearest {
            let Verdict::Admitted(admitted) = judge(&model, &suggestion.geometry(), need - 1) else {
                panic!("{path}: {suggestion:?} was suggested and refused")
            };
            assert_eq!(admitted.plan().total(), suggestion.total);
        }
    }
}

#[test]
fn overhead_counts_against_the_budget() {
    let model = Toy::small().build();
    let geometry = Geometry { context: 64, ..Geometry::default_for(4096) };
    let need = total(&model, &geometry);
    let budget = Budget::flag(need + 9, "flag --memory");
    let profile = Profile::webgpu_default();
    let verdict = |bytes| {
        admit(&model, &geometry, &profile, Some(&budget), Overhead { bytes, measured: true }).unwrap()
    };
    assert!(matches!(verdict(9), Verdict::Admitted(_)));
    assert!(matches!(verdict(10), Verdict::Refused(_)));
}

#[test]
fn a_budget_below_the_weights_names_the_setting() {
    let (_, model) = open("configs/llama-3.1-8b.json");
    let verdict = judge(&model, &Geometry::default_for(8192), 1 << 20);
    let refusal = verdict.admitted().unwrap_err();
    assert!(refusal.nearest.is_empty());
    assert!(refusal.reason.contains("--memory") && refusal.reason.contains("below the weights"), "{refusal}");
}

#[test]
fn limits_refuse_too_and_suggest_what_fits() {
    // Logit rows of a large vocabulary in one binding: 512 × 100,000 × 4 bytes exceed 128 MiB.
    let model = Toy { vocab: 100_000, ..Toy::small() }.build();
    let geometry = Geometry { logit_rows: 512, context: 1024, ..Geometry::default_for(4096) };
    let verdict = judge(&model, &geometry, 1 << 40);
    let refusal = verdict.admitted().unwrap_err();
    assert_eq!((refusal.broke, refusal.need, refusal.have), (Broke::Binding, 512 * 100_000 * 4, 128 << 20));
    for suggestion in &refusal.nearest {
        assert!(matches!(judge(&model, &suggestion.geometry(), 1 << 40), Verdict::Admitted(_)));
    }
    assert!(!refusal.nearest.is_empty());

    let q8 = Geometry { kv: KvFormat::Q8_0, ..Geometry::default_for(4096) };
    let refusal = judge(&Toy::small().build(), &q8, 1 << 40).admitted().unwrap_err();
    assert_eq!(refusal.broke, Broke::KvFormat);
    // Nothing but the format has to change.
    assert_eq!(refusal.nearest[0].geometry(), Geometry { kv: KvFormat::F16, ..q8 });
}

/// Snapshots are only kept for later: fewer of them are offered before anything that answers need, as many as fit.
#[test]
fn fewer_snapshots_are_offered_first() {
    let (_, model) = open("golden/nemotron_h");
    let with = |snapshots| {
        let mut geometry = Geometry { context: 64, ..Geometry::default_for(model.context_max) };
        geometry.priced.snapshots = snapshots;
        geometry
    };
    for (asked, room) in [(1000, 17), (1000, 0), (1, 0), (1000, 999)] {
        let budget = total(&model, &with(room));
        let refusal = judge(&model, &with(asked), budget).admitted().unwrap_err();
        assert_eq!(refusal.nearest[0].geometry(), with(room), "{asked}");
        for suggestion in &refusal.nearest {
            let admitted = judge(&model, &suggestion.geometry(), budget).admitted().unwrap();
            assert_eq!(admitted.plan().total(), suggestion.total);
        }
    }
    // Where even none of them is too much, the smallest that fits has none.
    let least = total(&model, &Geometry { context: 32, prefill_chunk: 1, logit_rows: 1, ..with(0) });
    let refusal = judge(&model, &with(1000), least).admitted().unwrap_err();
    assert_eq!(refusal.nearest.iter().map(|near| near.priced.snapshots).max(), Some(0), "{refusal}");
    assert!(refusal.to_string().ends_with("permanent: asked again, the answer is the same"), "{refusal}");
}

#[test]
fn insisting_is_marked() {
    let model = Toy::small().build();
    let plan = Plan::new(&model, &Geometry::default_for(4096), &Profile::webgpu_default()).unwrap();
    assert!(Admitted::insist(plan, None).overridden());
}

#[test]
fn the_largest_context_is_the_largest() {
    let (_, model) = open("golden/llama");
    let profile = Profile::webgpu_default();
    let geometry = Geometry { context: 64, prefill_chunk: 32, ..Geometry::default_for(512) };
    let budget = Budget::flag(total(&model, &Geometry { context: 320, ..geometry.clone() }), "test");
    let pricer = Pricer::new(&model, &profile);
    let solver =
        Solver { pricer: &pricer, budget: Some(&budget), overhead: Overhead::default(), company: None };
    let best = solver.largest_context(&geometry).unwrap();
    assert_eq!(best.context, 320);
    assert!(solver.fits(&best).is_some());
    assert!(solver.fits(&Geometry { context: 352, ..geometry }).is_none());
}

#[test]
fn the_report_has_every_field_of_schema_1() {
    let (checkpoint, model) = open("configs/gemma-3-270m.json");
    let profile = Profile::webgpu_default();
    let geometry = Geometry { slots: 2, logit_rows: 2, ..Geometry::default_for(model.context_max) };
    let budget = Budget::flag(1 << 29, "flag --memory");
    let ask = |budget| Question {
        checkpoint: &checkpoint,
        model: &model,
        geometry: &geometry,
        profile: &profile,
        budget,
        overhead: Overhead::default(),
        company: None,
    };
    let (report, _) = Report::new(&ask(Some(&budget))).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    for pointer in [
        "/schema",
        "/model/name",
        "/model/architecture",
        "/model/source",
        "/model/parameters",
        "/model/checkpoint_bytes",
        "/model/checkpoint_bytes_by_part/text",
        "/model/checkpoint_bytes_by_part/vision",
        "/model/checkpoint_bytes_by_part/draft",
        "/model/checkpoint_bytes_by_part/other",
        "/model/layers/attention_full",
        "/model/layers/attention_sliding",
        "/model/layers/recurrent",
        "/model/layers/stateless",
        "/geometry/context",
        "/geometry/slots",
        "/geometry/prefill_chunk",
        "/geometry/kv",
        "/geometry/weights",
        "/geometry/images",
        "/geometry/draft_depth",
        "/geometry/page",
        "/bytes/weights",
        "/bytes/kv",
        "/bytes/recurrent",
        "/bytes/activations",
        "/bytes/io",
        "/bytes/retained",
        "/bytes/total",
        "/bytes/load_peak",
        "/bytes/kv_by_kind/full",
        "/bytes/kv_by_kind/sliding",
        "/bytes/kv_by_kind/mla",
        "/exact/weights",
        "/overhead/bytes",
        "/overhead/source",
        "/kv_bytes_per_token",
        "/recurrent_bytes_per_slot",
        "/largest_allocation/name",
        "/largest_allocation/bytes",
        "/largest_binding/bytes",
        "/budget/bytes",
        "/budget/source",
        "/budget/requested",
        "/budget/derived",
        "/verdict",
        "/refusal",
        "/ladder/0/context",
        "/ladder/0/total",
        "/ladder/0/verdict",
        "/levers/0/change",
        "/levers/0/saves",
    ] {
        assert!(json.pointer(pointer).is_some(), "{pointer} is missing");
    }
    assert_eq!(json["model"]["source"], "config");
    assert_eq!(json["verdict"], "refused");
    assert_eq!(json["refusal"]["broke"], "total");
    assert_eq!(json["geometry"]["kv"], "f16");
    let parts = &json["bytes"];
    let sum: u64 = ["weights", "kv", "recurrent", "activations", "io", "retained"]
        .iter()
        .map(|k| parts[*k].as_u64().unwrap())
        .sum();
    assert_eq!(parts["total"].as_u64().unwrap(), sum);
    let totals: Vec<u64> = report.ladder.iter().map(|r| r.total.unwrap()).collect();
    assert!(totals.windows(2).all(|w| w[0] < w[1]));
    assert!(report.levers.windows(2).all(|w| w[0].saves >= w[1].saves));
    let (report, _) = Report::new(&ask(None)).unwrap();
    assert_eq!((report.verdict.as_str(), report.budget), ("no_budget", None));
}

#[test]
fn a_checkpoint_is_split_by_who_reads_its_tensors() {
    let (_, text) = open("golden/llama");
    let names = [
        "vision_tower.patch.weight",
        "multi_modal_projector.linear.weight",
        "mtp.layers.0.norm.weight",
        "rotary.inv_freq",
    ];
    let file = std::fs::read(common::data("golden/llama/model.safetensors")).unwrap();
    let mut tensors = String::new();
    for (i, name) in names.iter().enumerate() {
        let (start, end) = (i * (i + 1) / 2 * 4, (i + 1) * (i + 2) / 2 * 4);
        tensors += &format!(
            "{name:?}:{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}},",
            i + 1
        );
    }
    let header = format!("{{{}}}", tensors.trim_end_matches(','));
    let mut more = (header.len() as u64).to_le_bytes().to_vec();
    more.extend_from_slice(header.as_bytes());
    more.extend_from_slice(&[0; 40]);
    let config = std::fs::read(common::data("golden/llama/config.json")).unwrap();
    let files = vec![("a.safetensors".to_owned(), file), ("b.safetensors".to_owned(), more)];
    let checkpoint =
        plimsoll_models::Checkpoint::from_safetensors_bytes(None, files, Some(&config), "llama").unwrap();
    let model = plimsoll_models::Registry::standard().build(&checkpoint).unwrap();
    let geometry = Geometry::default_for(512);
    let profile = Profile::webgpu_default();
    let ask = |geometry, profile| Question {
        checkpoint: &checkpoint,
        model: &model,
        geometry,
        profile,
        budget: None,
        overhead: Overhead::default(),
        company: None,
    };
    let (report, _) = Report::new(&ask(&geometry, &profile)).unwrap();
    let parts = &report.model.checkpoint_bytes_by_part;
    assert_eq!((parts.text, parts.vision, parts.draft, parts.other), (4 * text.parameters(), 12, 12, 16));
    assert_eq!(report.model.checkpoint_bytes, checkpoint.checkpoint_bytes());

    // What the model is does not depend on whether a plan was possible.
    let limits = Limits { max_storage_buffer_binding_size: 256, ..Limits::webgpu_default() };
    let (refused, _) = Report::new(&ask(&geometry, &Profile::new("tiny", limits, None, false))).unwrap();
    assert_eq!((refused.verdict.as_str(), &refused.bytes), ("refused", &None));
    assert_eq!(refused.model, report.model);
    assert_eq!(refused.model.layers.attention_full, 3);
}

/// Numbers at the end of their types are refused like any other, in little time and little memory.
#[test]
fn geometries_without_measure_are_refused() {
    let (checkpoint, model) = open("golden/llama");
    let base = Geometry::default_for(model.context_max);
    let mut geometries = Vec::new();
    for (context, slots, prefill_chunk) in [
        (1 << 30, 1, 512),
        (1 << 30, 1, 100_000),
        (u32::MAX - 31, 1, 512),
        (u32::MAX, 1 << 16, 1),
        (u32::MAX, u32::MAX, u32::MAX),
    ] {
        geometries.push(Geometry { context, slots, prefill_chunk, logit_rows: slots, ..base.clone() });
    }
    let mut profile = Profile::webgpu_default();
    profile.limits.max_buffer_size = u64::MAX;
    for profile in [&Profile::webgpu_default(), &profile] {
        for geometry in &geometries {
            let budget = Budget::flag(1 << 20, "test");
            let budget = Some(&budget);
            let question = Question {
                checkpoint: &checkpoint,
                model: &model,
                geometry,
                profile,
                budget,
                overhead: Overhead::default(),
                company: None,
            };
            let (report, verdict) = Report::new(&question).unwrap();
            let Verdict::Refused(refusal) = verdict else { panic!("{geometry:?} was admitted") };
            assert!(!refusal.reason.is_empty());
            // The model is what it is, whether a plan could be made or not.
            assert_eq!(report.model.layers.attention_full, model.layers);
            for suggestion in &refusal.nearest {
                assert!(suggestion.total <= 1 << 20 && suggestion.context <= geometry.context);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn suggestions_hold_for_any_budget(
        slots in 1u32..5, context in 32u32..4096, chunk in 1u32..300, part in 1u64..100,
        window in prop::option::of(1u32..200), binding in prop::sample::select(&[1u64 << 19, 128 << 20]),
    ) {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 32 };
        let mut states = vec![State::KvFull { shape }];
        states.extend(window.map(|window| State::KvSliding { shape, window }));
        let model = Toy { shape, states, ..Toy::small() }.build();
        let limits = Limits { max_storage_buffer_binding_size: binding, ..Limits::webgpu_default() };
        let profile = Profile::new("test", limits, None, false);
        let geometry = Geometry { context, slots, prefill_chunk: chunk, kv: KvFormat::F32, logit_rows: slots, draft_depth: 0, priced: Default::default() };
        let full = total(&model, &geometry);
        let budget = Budget::flag(full * part / 100, "test");
        let judge = |g: &Geometry| admit(&model, g, &profile, Some(&budget), Overhead::default()).unwrap();
        if let Verdict::Refused(refusal) = judge(&geometry) {
            for suggestion in &refusal.nearest {
                let verdict = judge(&suggestion.geometry());
                prop_assert!(matches!(verdict, Verdict::Admitted(_)), "{:?}", suggestion);
            }
        }
    }
}
