//! What an operator may ask of memory, and how it is resolved and told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::open;
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::policy::{CACHE_VARIABLE, MEMORY_VARIABLE, RESERVE_VARIABLE};
use plimsoll_estimator::verdict::{Broke, Lasts};
use plimsoll_estimator::{Budget, Geometry, MemoryPolicy, Overhead, Reading, Verdict, admit};
use plimsoll_kernels::{Limits, Profile};
use serde_json::{Value, json};
use std::process::Command;

/// Exit code, document and words of an estimate of a small model.
fn estimate(variables: &[(&str, &str)], args: &[&str]) -> (i32, Value, String) {
    let config = common::data("configs/smollm2-135m.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"));
    for name in [MEMORY_VARIABLE, RESERVE_VARIABLE, CACHE_VARIABLE] {
        command.env_remove(name);
    }
    let output =
        command.arg(config).args(args).arg("--json").envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    let document = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), document, said)
}

#[test]
fn what_is_no_amount_is_an_error_of_its_setting() {
    let settings =
        [("--memory", MEMORY_VARIABLE), ("--reserve", RESERVE_VARIABLE), ("--cache-limit", CACHE_VARIABLE)];
    let junk = ["", "lots", "-1", "-1GiB", "1e9", "0x10", "1.2.3GB", "18446744073709551616", "99999999TiB"];
    for (flag, variable) in settings {
        for text in junk {
            // A flag's text is clap's to refuse, a variable's ours.
            let (code, _, said) = estimate(&[], &[flag, text]);
            assert!(code == 2 && said.contains(flag), "{flag} {text:?}: {code}, {said}");
            let (code, document, said) = estimate(&[(variable, text)], &[]);
            assert!(code == 2 && said.contains(variable), "{variable}={text:?}: {code}, {said}");
            assert_eq!(document["error"]["exit_code"], 2);
        }
        // Nothing is a limit of what is kept and a reserve, and no ceiling.
        let expected = if flag == "--memory" { 2 } else { 0 };
        for (variables, args) in [(&[][..], &[flag, "0"][..]), (&[(variable, "0")], &[])] {
            let (code, _, said) = estimate(variables, args);
            assert_eq!(code, expected, "{flag} 0: {said}");
            assert!(code == 0 || said.contains(if args.is_empty() { variable } else { flag }), "{said}");
        }
    }
}

#[test]
fn both_values_which_won_and_why_are_in_the_document() {
    let device = ["--device", "nvidia-rtx-4090-24"];
    let (code, document, said) = estimate(&[], &device);
    assert_eq!(code, 0, "{said}");
    let derived = document["budget"]["bytes"].as_u64().unwrap();
    assert_eq!(document["budget"]["won"], "derived");
    assert_eq!(
        (&document["budget"]["requested"], &document["budget"]["reserve"]),
        (&Value::Null, &Value::Null)
    );
    // The smaller wins, and the other is still told.
    let (_, under, _) =
        estimate(&[(MEMORY_VARIABLE, "8GiB")], &[&device[..], &["--memory", "4GiB"]].concat());
    assert_eq!(
        (&under["budget"]["won"], &under["budget"]["bytes"]),
        (&json!("requested"), &json!(4u64 << 30))
    );
    assert_eq!(under["budget"]["derived"], derived);
    assert_eq!(under["budget"]["setting"], "flag --memory");
    let (_, over, _) = estimate(&[(MEMORY_VARIABLE, "900GiB")], &device);
    assert_eq!((&over["budget"]["won"], &over["budget"]["bytes"]), (&json!("derived"), &json!(derived)));
    assert_eq!(over["budget"]["requested"], 900u64 << 30);
    let why = over["budget"]["why"].as_str().unwrap();
    assert!(why.contains("966,367,641,600") && why.contains(MEMORY_VARIABLE), "{why}");
    // A reserve is of the reading, and not of the ceiling.
    let (_, left, _) =
        estimate(&[(RESERVE_VARIABLE, "1GiB")], &[&device[..], &["--reserve", "2GiB"]].concat());
    assert_eq!(left["budget"]["bytes"], derived - (2 << 30));
    assert_eq!(left["budget"]["reserve"], json!({"bytes": 2u64 << 30, "name": "flag --reserve"}));
    let (_, alone, _) = estimate(&[], &["--memory", "4GiB", "--reserve", "2GiB"]);
    assert_eq!(alone["budget"]["bytes"], 4u64 << 30);
    // Everybody can see what was resolved for what is kept.
    assert_eq!(document["cache_limit"]["bytes"], Value::Null);
    assert!(document["cache_limit"]["source"].as_str().unwrap().starts_with("default"));
    let (_, none, _) = estimate(&[(CACHE_VARIABLE, "1GiB")], &["--cache-limit", "0"]);
    assert_eq!(none["cache_limit"], json!({"bytes": 0, "source": "flag --cache-limit"}));
}

#[test]
fn a_ceiling_below_the_weights_is_refused_by_its_settings_name() {
    for (variables, args, name) in [
        (&[][..], &["--memory", "1MiB"][..], "flag --memory"),
        (&[(MEMORY_VARIABLE, "1MiB")], &[], MEMORY_VARIABLE),
        (&[(RESERVE_VARIABLE, "999GiB")], &["--device", "nvidia-rtx-4090-24"], RESERVE_VARIABLE),
    ] {
        let (code, document, said) = estimate(variables, args);
        assert_eq!((code, &document["refusal"]["term"]), (3, &json!("weights")), "{said}");
        assert!(said.contains(name) && said.contains("below the weights alone"), "{said}");
    }
}

fn roomy() -> Profile {
    let limits = Limits {
        max_buffer_size: 1 << 40,
        max_storage_buffer_binding_size: 1 << 40,
        ..Limits::webgpu_default()
    };
    Profile::new("roomy", limits, None, false)
}

#[test]
fn every_rung_of_the_ladder_costs_more_and_the_first_over_the_budget_names_its_term() {
    // A dense model, a hybrid and one with sliding windows.
    for name in ["configs/qwen3-30b-a3b.json", "configs/qwen3.5-27b.json", "configs/gpt-oss-20b.json"] {
        let (_, model) = open(name);
        let at = |context| Geometry { context, ..Geometry::default_for(131_072) };
        let total = |context| match admit(&model, &at(context), &roomy(), None, Overhead::default()).unwrap()
        {
            Verdict::Admitted(admitted) => admitted.plan().total(),
            Verdict::Refused(refusal) => panic!("{name}: {refusal}"),
        };
        let totals = [8192, 16_384, 32_768, 65_536].map(total);
        assert!(totals.is_sorted_by(|a, b| a < b), "{name}: {totals:?}");
        // A budget for the third rung and not for the fourth.
        let policy = MemoryPolicy::default().with_memory(totals[2] + 1, "flag --memory").unwrap();
        let budget = policy.budget(Some(Reading::now(1 << 40, "machine"))).unwrap();
        for (context, total) in [8192, 16_384, 32_768].into_iter().zip(totals) {
            let verdict = admit(&model, &at(context), &roomy(), Some(&budget), Overhead::default()).unwrap();
            assert_eq!(verdict.admitted().unwrap().plan().total(), total);
        }
        let verdict = admit(&model, &at(65_536), &roomy(), Some(&budget), Overhead::default()).unwrap();
        let refusal = verdict.admitted().unwrap_err();
        assert_eq!((refusal.term, refusal.need), (Some(Segment::Kv), totals[3]), "{name}");
        assert!(refusal.reason.contains("kv (") && refusal.reason.contains("flag --memory"), "{refusal}");
        // The machine has enough: it is the operator who would have to change his mind.
        assert_eq!(refusal.lasts, Lasts::Forever);
    }
}

#[test]
fn a_refusal_by_a_reading_lasts_as_long_as_the_reading() {
    let (_, model) = open("configs/smollm2-135m.json");
    let geometry = Geometry { context: 2048, ..Geometry::default_for(8192) };
    let judge = |policy: &MemoryPolicy, free: u64| {
        let budget = policy.budget(Some(Reading::now(free, "feed")));
        admit(&model, &geometry, &roomy(), budget.as_ref(), Overhead::default()).unwrap().admitted()
    };
    let (open, tight) = (1u64 << 40, 1u64 << 20);
    let free = MemoryPolicy::default();
    let plan = judge(&free, open).unwrap();
    let (need, peak) = (plan.plan().total(), plan.plan().load_peak());
    let fits = MemoryPolicy::default().with_memory(need, "flag --memory").unwrap();
    let never = MemoryPolicy::default().with_memory(need - 1, "flag --memory").unwrap();
    for (policy, free, lasts) in [
        (&free, tight, Lasts::Reading),
        (&fits, tight, Lasts::Reading),
        (&never, tight, Lasts::Forever),
        (&never, open, Lasts::Forever),
    ] {
        assert_eq!(judge(policy, free).unwrap_err().lasts, lasts, "{policy:?} at {free}");
    }
    // All of the machine less the reserve is the most that there will ever be.
    let (machine, set) = (2 * need, |bytes| MemoryPolicy::default().with_reserve(bytes, "flag --reserve"));
    for (reserve, total, lasts) in [
        (need, Some(machine), Lasts::Reading),
        (need + 1, Some(machine), Lasts::Forever),
        (1 << 40, Some(machine), Lasts::Forever),
        (1 << 40, None, Lasts::Reading),
        (0, Some(need - 1), Lasts::Forever),
    ] {
        let budget = set(reserve).budget(Some(Reading { total, ..Reading::now(tight, "feed") }));
        let verdict = admit(&model, &geometry, &roomy(), budget.as_ref(), Overhead::default()).unwrap();
        assert_eq!(verdict.admitted().unwrap_err().lasts, lasts, "{reserve} of {total:?}");
    }
    // Who was asked for beside it is there whenever the same is asked.
    let mut beside =
        set(0).budget(Some(Reading { total: Some(need), ..Reading::now(need, "feed") })).unwrap();
    beside.others = 1;
    assert_eq!(Lasts::of(need, &beside), Lasts::Forever);
    beside.others = 0;
    assert_eq!(Lasts::of(need, &beside), Lasts::Reading);
    // What lasts as long as a reading is gone with it; what is for good is not.
    assert!(judge(&fits, open).is_ok() && judge(&free, peak).is_ok());
}

/// What a device has, less the reserve, must hold the load too; a ceiling is for what is there after it.
#[test]
fn a_load_must_fit_in_what_is_left_of_a_device() {
    let estimate = |reserve: u64| {
        let config = common::data("configs/llama-3.1-8b.json");
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"));
        for name in [MEMORY_VARIABLE, RESERVE_VARIABLE, CACHE_VARIABLE] {
            command.env_remove(name);
        }
        let reserve = reserve.to_string();
        let device = ["--device", "rtx 4060 ti", "--context", "7680", "--json", "--reserve", &reserve];
        let output = command.arg(config).args(device).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), document)
    };
    let (code, document) = estimate(0);
    assert_eq!(code, 0);
    let number = |at: &str| document.pointer(at).and_then(Value::as_u64).unwrap();
    let [has, total, peak] = ["/budget/derived", "/bytes/total", "/bytes/load_peak"].map(number);
    assert!(total < peak && peak < has);
    assert_eq!(estimate(has - peak).0, 0);
    for reserve in [has - peak + 1, has - total] {
        let (code, document) = estimate(reserve);
        let refusal = &document["refusal"];
        assert_eq!(
            (code, &refusal["broke"], &refusal["need"]),
            (3, &json!("load_peak"), &json!(peak)),
            "{refusal}"
        );
        assert_eq!(refusal["have"], has - reserve);
        let check = document["checks"].as_array().unwrap().iter().find(|c| c["what"] == "load peak").unwrap();
        assert_eq!((&check["have"], &check["ok"]), (&json!(has - reserve), &json!(false)));
        assert!(!refusal["nearest"].as_array().unwrap().is_empty(), "{refusal}");
    }
    let (code, document) = estimate(has - total + 1);
    assert_eq!((code, &document["refusal"]["broke"]), (3, &json!("total")));
}

/// The same of an adapter's reading, by which models are admitted.
#[test]
fn a_reading_must_hold_the_load_and_a_ceiling_need_not() {
    let (_, model) = open("configs/smollm2-135m.json");
    let profile = Profile::webgpu_default();
    let geometry = Geometry::default_for(2048);
    let plan = plimsoll_estimator::Plan::new(&model, &geometry, &profile).unwrap();
    let (total, peak) = (plan.total(), plan.load_peak());
    assert!(total < peak);
    let judge = |geometry: &Geometry, ceiling: Option<u64>, bytes: u64| {
        let reading = Reading { total: Some(u64::MAX), ..Reading::now(bytes, "feed") };
        let budget = Budget::resolve(ceiling.map(|bytes| (bytes, "flag --memory")), Some(reading));
        admit(&model, geometry, &profile, budget.as_ref(), Overhead::default()).unwrap()
    };
    assert!(matches!(judge(&geometry, None, peak), Verdict::Admitted(_)));
    assert!(matches!(judge(&geometry, Some(total), peak), Verdict::Admitted(_)));
    for ceiling in [None, Some(total), Some(peak)] {
        let Verdict::Refused(refusal) = judge(&geometry, ceiling, peak - 1) else { panic!("{ceiling:?}") };
        assert_eq!((refusal.broke, refusal.need, refusal.have), (Broke::LoadPeak, peak, peak - 1));
        // More may be free later, and the ceiling has nothing against it.
        assert_eq!(refusal.lasts, Lasts::Reading, "{ceiling:?}");
        assert!(!refusal.nearest.is_empty());
        for near in &refusal.nearest {
            assert!(matches!(judge(&near.geometry(), ceiling, peak - 1), Verdict::Admitted(_)), "{near:?}");
        }
    }
}
