//! Kernel variants chosen by a tuning: each gives what the references give, and one that does not fit is known by its plan
//! and never tried.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::{Golden, check};
use plimsoll::runtime::{Request, What};
use plimsoll::tuning::Planned;
use plimsoll::{Budget, Device, DeviceOptions, Engine, Geometry, Opened, Plan, Profile, Runtime};
use plimsoll_kernels::tuning::Field;
use plimsoll_kernels::{Delta, KvFormat, Ssd, Tuned, Tuning};
use plimsoll_runtime::Stepper;
use support::{Loaded, argmax, check_books, data, geometry, open};

/// Tokens of one greedy answer.
fn answer(engine: &mut Engine<Runtime>) -> Vec<u32> {
    engine.trim();
    let prompt = (0..90).map(|i| (i * 37 + 5) % 200).collect();
    engine.submit(Request { prompt, max_new: 12, ..Default::default() }).unwrap();
    let mut tokens = Vec::new();
    while !engine.is_idle() {
        for event in engine.step() {
            match event.what {
                What::Token { id, .. } => tokens.push(id),
                What::Failed(error) => panic!("{error}"),
                What::Prefill { .. } | What::Done(_) => {}
            }
        }
    }
    tokens
}

fn loaded(opened: &Opened, device: Device, geometry: &Geometry, budget: Option<&Budget>) -> Engine<Runtime> {
    let admitted = opened.admit(geometry, device.profile(), budget).unwrap();
    opened.load_engine(device, admitted, &mut |_| ()).unwrap()
}

/// A tuner that tried a candidate too large for its device left the device unusable for everything after it. Here a cap
/// just admits what is in force; candidates that need more are refused by their plans, with both numbers, and neither the
/// engine that is loaded meanwhile nor the device sees any of it.
#[test]
fn engine_bug_19_a_candidate_over_budget_is_skipped_by_its_plan() {
    let (checkpoint, model) = open(&data("golden/nemotron_h"));
    let opened = Opened::of(checkpoint, model);
    let geometry = geometry(256, 2, 128, KvFormat::F32, 2);
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let profile = device.profile().clone();
    let total = Plan::new(&opened.model, &geometry, &profile).unwrap().total();
    let cap = Budget::flag(total, "the cap of a test");
    let mut engine = loaded(&opened, device.clone(), &geometry, Some(&cap));
    let expected = answer(&mut engine);
    assert_eq!(expected.len(), 12);
    let state = || (device.totals(), device.submits(), device.counters(), device.buffers().len());
    let before = state();

    let (mut refused, mut may) = (Vec::new(), Vec::new());
    for field in Field::ALL {
        for candidate in opened.tuning_candidates(field, &geometry, &profile, Some(&cap)).unwrap() {
            match candidate.planned {
                Planned::Refused(refusal) => {
                    assert_eq!(refusal.have, total, "{refusal}");
                    assert!(refusal.need > total, "{refusal}");
                    // Without the cap it would have been planned, at the bytes that the refusal named.
                    let tuned = Tuned { tuning: candidate.tuning.clone(), source: String::new() };
                    let tuned = profile.clone().tuned(&tuned).unwrap();
                    assert_eq!(Plan::new(&opened.model, &geometry, &tuned).unwrap().total(), refusal.need);
                    refused.push((field, candidate.tuning));
                }
                Planned::Admitted(admitted) => {
                    assert!(admitted.plan().total() <= total);
                    may.push((field, candidate.tuning));
                }
                Planned::Same(_) => {}
                Planned::Impossible(error) => panic!("{field} {}: {error}", candidate.value),
            }
        }
    }
    let forms = |of: &[(Field, Tuning)]| -> Vec<Ssd> {
        of.iter().filter(|(field, _)| *field == Field::Ssd).map(|(_, tuning)| tuning.ssd).collect()
    };
    assert!(
        forms(&refused).iter().any(|ssd| matches!(ssd, Ssd::Kernels { .. })),
        "five kernels hand on more than this arena holds: {refused:?}"
    );
    assert!(may.len() > 3, "{may:?}");

    assert_eq!(state(), before, "planning asks nothing of the device");
    check_books(engine.stepper());
    assert_eq!(answer(&mut engine), expected, "the engine goes on as it was");
    // Nor can anybody load it by mistake: the runtime has only what was admitted.
    for (_, tuning) in &refused {
        let tuned = Tuned { tuning: tuning.clone(), source: "a candidate".to_owned() };
        let other = device.clone().with_tuning(tuned).unwrap();
        assert!(opened.admit(&geometry, other.profile(), Some(&cap)).is_err());
    }
    assert_eq!(device.totals(), before.0);
    assert_eq!(device.profile(), &profile, "a clone with other variants is another's");
    let kept = engine.into_stepper().unload();
    assert_eq!(kept.totals().live_bytes, 0);

    // A candidate that fits runs on the same device, and after it what was in force, as on a fresh one.
    let (_, tuning) = may.swap_remove(0);
    let tuned = Tuned { tuning, source: "a candidate".to_owned() };
    let other = device.clone().with_tuning(tuned.clone()).unwrap();
    assert_eq!((other.profile().tuned_by.as_str(), &other.options().tuning), ("a candidate", &Some(tuned)));
    let mut engine = loaded(&opened, other, &geometry, Some(&cap));
    assert_eq!(answer(&mut engine).len(), 12);
    check_books(engine.stepper());
    drop(engine.into_stepper().unload());
    let mut engine = loaded(&opened, device, &geometry, Some(&cap));
    assert_eq!(answer(&mut engine), expected);
    let fresh = Device::open(&DeviceOptions::default()).unwrap();
    let mut fresh = loaded(&opened, fresh, &geometry, Some(&cap));
    assert_eq!(answer(&mut fresh), expected);
}

/// Logits of a model under every candidate that changes its plan, against the reference: prompts in chunks, and greedy
/// decoding.
fn every_candidate(family: &str, fields: &[Field], profile: &Profile) -> usize {
    let golden = Golden::new(family, "");
    let (checkpoint, model) = open(&data(&golden.model));
    let longest = *golden.lengths().last().unwrap();
    let (ids, expected) = golden.prompt(longest);
    let (prompt, next) = (golden.expected.ids("decode.prompt_ids"), golden.expected.ids("decode.token_ids"));
    let decoded = golden.expected.rows("decode.logits");
    let geometry = geometry(longest as u32 + 16, 2, 64, KvFormat::F32, 64);
    let opened = Opened::of(checkpoint, model);
    let mut ran = 0;
    for &field in fields {
        for candidate in opened.tuning_candidates(field, &geometry, profile, None).unwrap() {
            let what = format!("{family}, {field} {}", candidate.value);
            match candidate.planned {
                Planned::Same(_) => continue,
                Planned::Admitted(_) => {}
                Planned::Refused(error) => panic!("{what}: {error}"),
                Planned::Impossible(error) => panic!("{what}: {error}"),
            }
            let tuned = Tuned { tuning: candidate.tuning, source: what.clone() };
            let options = DeviceOptions { tuning: Some(tuned), ..DeviceOptions::default() };
            let mut loaded = Loaded::new(&opened.checkpoint, &opened.model, &options, &geometry);
            assert_eq!(loaded.runtime.plan().profile.tuned_by, what);
            check(&what, &loaded.feed(0, 0, &ids, 64), &expected);
            let mut row = loaded.feed(1, 0, &prompt, 64).pop().unwrap();
            let mut rows = Vec::new();
            for (i, &id) in next.iter().enumerate() {
                assert_eq!(argmax(&row), id, "{what}, decode step {i}");
                rows.push(row);
                row = loaded.feed(1, (prompt.len() + i) as u32, &[id], 1).pop().unwrap();
            }
            check(&format!("{what}, decode"), &rows, &decoded);
            ran += 1;
        }
    }
    ran
}

/// What an adapter could be tuned to from where it is.
#[test]
fn every_candidate_for_products_and_rows_gives_the_references_logits() {
    let profile = Device::open(&DeviceOptions::default()).unwrap().profile().clone();
    let products = [Field::MatMatShared, Field::Reduce, Field::MatVecWorkgroup, Field::MatVecRows];
    assert!(every_candidate("qwen3", &products, &profile) >= 4);
    assert!(every_candidate("qwen3", &[Field::NormValues], &profile) >= 1, "with norms of their own");
    assert!(every_candidate("qwen3", &[Field::RowWorkgroup], &profile) >= 3);
}

#[test]
fn every_candidate_for_attention_gives_the_references_logits() {
    let profile = Device::open(&DeviceOptions::default()).unwrap().profile().clone();
    assert!(every_candidate("qwen3", &[Field::AttentionWorkgroup, Field::AttentionFill], &profile) >= 4);
}

#[test]
fn every_candidate_for_recurrent_layers_gives_the_references_logits() {
    let profile = Device::open(&DeviceOptions::default()).unwrap().profile().clone();
    assert!(every_candidate("mamba2", &[Field::Ssd], &profile) >= 3);
    // Lanes of their rows are those of the state's, too.
    assert!(every_candidate("mamba2", &[Field::RowWorkgroup], &profile) >= 3);
    assert!(every_candidate("qwen3_5_text", &[Field::Delta, Field::RowWorkgroup], &profile) >= 3);
}

/// And from the variants of a GPU: what one would be tuned to, on the adapter at hand.
#[test]
fn every_candidate_from_a_gpus_row_gives_the_references_logits() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let subgroups = device.profile().facts().subgroup_size;
    let row = Profile::new("as a GPU", device.profile().limits.clone(), subgroups, false);
    let tuned = Tuned { tuning: row.tuning, source: "as a GPU".to_owned() };
    let profile = device.profile().clone().tuned(&tuned).unwrap();
    assert!(
        every_candidate("llama", &[Field::Reduce, Field::MatVecWorkgroup, Field::MatVecRows], &profile) >= 6
    );
}

/// Options that no adapter can have are refused before anything is made of them.
#[test]
fn nonsense_is_refused_when_a_device_is_opened() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let mut tuned = Tuned { tuning: device.profile().tuning.clone(), source: "a test".to_owned() };
    tuned.tuning.delta = Delta::Blocks { block: 7 };
    let error = device.clone().with_tuning(tuned.clone()).unwrap_err();
    assert!(error.to_string().contains("delta") && error.is_permanent(), "{error}");
    let options = DeviceOptions { tuning: Some(tuned), ..DeviceOptions::default() };
    assert_eq!(Device::open(&options).unwrap_err().to_string(), error.to_string());
}
