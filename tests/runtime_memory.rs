//! The first promise on whole models: what was priced is what is allocated, buffer by buffer, and nothing after the
//! load; and what happens when an allocation, a submit or a step does not come off.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_estimator::plan::When;
use plimsoll_estimator::{Admitted, Geometry};
use plimsoll_kernels::{KvFormat, StepShape};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{Model, ModelError};
use plimsoll_runtime::device::RESERVATION_SLACK;
use plimsoll_runtime::{
    Cancel, Device, DeviceOptions, LoadProgress, Runtime, RuntimeError, Sampling, SequenceInput, StepInput,
    StepOutput, Stepper, Wanted,
};
use support::{Loaded, admitted, check_books, data, deal, geometry, open};

const MODELS: [&str; 5] = [
    "golden/llama",
    "golden/qwen3",
    "golden/gemma3_text",
    "golden/gguf_llama/model.gguf",
    "golden/gguf_qwen3/model.gguf",
];

fn device() -> Device {
    Device::open(&DeviceOptions::default()).unwrap()
}

/// Ids that every vocabulary here has.
fn ids(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| 3 + i * 7 % 40).collect()
}

fn run(
    runtime: &mut Runtime,
    slot: u32,
    position: u32,
    ids: &[u32],
    sampling: Sampling,
    cancel: Option<&Cancel>,
) -> Result<StepOutput, RuntimeError> {
    let wanted = if sampling == Sampling::None { Wanted::None } else { Wanted::Last };
    let sequences = [SequenceInput { slot, position, ids, wanted }];
    runtime.step(&StepInput { sequences: &sequences, sampling, cancel })
}

#[test]
fn priced_is_allocated_and_nothing_is_allocated_after_the_load() {
    let device = device();
    let base = device.counters();
    for (i, path) in MODELS.iter().enumerate() {
        let (checkpoint, model) = open(&data(path));
        let kv = [KvFormat::F32, KvFormat::F16][i % 2];
        let geometry = geometry(96, 2, 24, kv, 3);
        let admitted = admitted(&model, &geometry, device.profile());
        let (total, peak) = (admitted.plan().total(), admitted.plan().load_peak());
        let created = device.totals().created;
        let mut runtime = Runtime::load(device.clone(), &model, &checkpoint, admitted, &mut |_| ()).unwrap();
        check_books(&runtime);
        deal(&mut runtime);
        let loaded = device.counters();
        let buffers = runtime.plan().buffers.len() as u64;
        assert_eq!(loaded.buffer_memory - base.buffer_memory, total as i64, "{path}");
        assert_eq!(loaded.buffers - base.buffers, buffers as i64, "{path}");
        assert!(device.totals().peak_bytes >= peak);
        let staging = device.totals().created - created - buffers;
        assert!((1..=2).contains(&staging), "{path}: {staging} buffers beyond the plan during the load");
        if let Some(reservation) = device.reservation() {
            // Small buffers share blocks, so a tiny model's reservation is a few blocks, whatever its sum.
            assert!(reservation.reserved <= total + RESERVATION_SLACK, "{path}: {reservation:?} for {total}");
        }

        let ids = ids(24);
        let kinds = [Sampling::None, Sampling::Greedy, Sampling::TopK, Sampling::Logits];
        for round in 0..6u32 {
            let sampling = kinds[round as usize % 4];
            run(&mut runtime, round % 2, 0, &ids[..4 + 4 * (round as usize % 6)], sampling, None).unwrap();
            for step in 0..8 {
                let sampling = kinds[step as usize % 4];
                run(&mut runtime, round % 2, 24 + step, &ids[..1], sampling, None).unwrap();
            }
            runtime.set_block_table(0, 1, &[0, 1]).unwrap();
            assert_eq!(device.counters(), loaded, "{path}: round {round}");
        }
        assert_eq!(device.totals().created, created + buffers + staging);
        runtime.unload();
        assert_eq!(device.counters(), base, "{path}: after the unload");
    }
}

/// The last row of a prompt, through a fresh load.
/// The staging of a load is an allocation too.
#[test]
fn a_limit_of_allocations_holds_for_the_load() {
    for (path, limit) in [("golden/qwen3_next", 64 << 10), ("golden/llama", 200_000)] {
        let options = DeviceOptions { max_allocation: Some(limit), ..DeviceOptions::default() };
        let device = Device::open(&options).unwrap();
        let (checkpoint, model) = open(&data(path));
        let admitted = admitted(&model, &geometry(64, 1, 16, KvFormat::F16, 1), device.profile());
        assert!(admitted.plan().staging_bytes <= limit);
        let mut runtime = Runtime::load(device, &model, &checkpoint, admitted, &mut |_| ()).unwrap();
        check_books(&runtime);
        deal(&mut runtime);
        run(&mut runtime, 0, 0, &ids(9), Sampling::Greedy, None).unwrap();
    }
}

fn last_row(device: &Device, model: &Model, checkpoint: &Checkpoint, admitted: &Admitted) -> StepOutput {
    let mut runtime =
        Runtime::load(device.clone(), model, checkpoint, admitted.clone(), &mut |_| ()).unwrap();
    deal(&mut runtime);
    run(&mut runtime, 0, 0, &ids(9), Sampling::Logits, None).unwrap()
}

#[test]
fn engine_bug_18_every_failed_allocation_frees_everything_and_the_next_load_answers() {
    let (device, (checkpoint, model)) = (device(), open(&data("golden/llama")));
    let admitted = admitted(&model, &geometry(32, 1, 16, KvFormat::F16, 1), device.profile());
    let expected = last_row(&device, &model, &checkpoint, &admitted);
    let base = device.counters();
    let mut failures = 0;
    for n in 1.. {
        device.faults().fail_buffer(n);
        match Runtime::load(device.clone(), &model, &checkpoint, admitted.clone(), &mut |_| ()) {
            Err(RuntimeError::OutOfMemory { buffer, bytes, .. }) => {
                let planned = admitted.plan().buffers.get(n as usize - 1);
                match planned {
                    Some(planned) => assert_eq!((buffer, bytes), (planned.name.clone(), planned.bytes)),
                    None => assert!(buffer.starts_with("staging"), "{buffer}"),
                }
                assert_eq!(device.totals().live, 0);
                assert_eq!(device.counters(), base, "after failure {n}");
                failures += 1;
            }
            Err(other) => panic!("{other}"),
            Ok(_) => break,
        }
    }
    device.faults().fail_buffer(0);
    assert!(failures > admitted.plan().buffers.len());
    assert_eq!(last_row(&device, &model, &checkpoint, &admitted), expected);
}

/// A model whose prefill is cut into many submits.
fn cut(device: &Device, model: &Model, checkpoint: &Checkpoint, geometry: &Geometry) -> Runtime {
    let mut profile = device.profile().clone();
    profile.work_budget = 1 << 18;
    let admitted = admitted(model, geometry, &profile);
    let mut runtime = Runtime::load(device.clone(), model, checkpoint, admitted, &mut |_| ()).unwrap();
    deal(&mut runtime);
    runtime
}

#[test]
fn engine_bug_18_every_failed_submit_is_an_error_without_tokens_and_the_same_step_works_after() {
    let (device, (checkpoint, model)) = (device(), open(&data("golden/gemma3_text")));
    let geometry = geometry(64, 2, 40, KvFormat::F32, 1);
    let mut whole = Loaded::new(&checkpoint, &model, &DeviceOptions::default(), &geometry).runtime;
    let ids = ids(40);
    let expected = run(&mut whole, 0, 0, &ids, Sampling::Logits, None).unwrap();
    drop(whole);

    let mut runtime = cut(&device, &model, &checkpoint, &geometry);
    let before = device.submits();
    let got = run(&mut runtime, 0, 0, &ids, Sampling::Logits, None).unwrap();
    let submits = device.submits() - before;
    assert!(submits > 4, "{submits} submits");
    close(&got, &expected);

    for k in 1..=submits {
        device.faults().fail_submit(k);
        let error = run(&mut runtime, 0, 0, &ids, Sampling::Logits, None).unwrap_err();
        assert!(matches!(error, RuntimeError::Submit { .. }), "{error}");
        assert_eq!(run(&mut runtime, 0, 0, &ids, Sampling::Logits, None).unwrap(), got, "after {k}");
    }

    // A decode step is one submit whatever the budget.
    let before = device.submits();
    run(&mut runtime, 0, 40, &[5], Sampling::Greedy, None).unwrap();
    assert_eq!(device.submits() - before, 1);
}

fn close(got: &StepOutput, expected: &StepOutput) {
    let (StepOutput::Logits { values: got, .. }, StepOutput::Logits { values: expected, .. }) =
        (got, expected)
    else {
        panic!("{got:?}")
    };
    // Matrices cut into other pieces may be summed by other variants.
    assert!(support::distance(got, expected) < 1e-4);
}

#[test]
fn a_prefill_is_cancelled_between_submits_and_can_be_run_again() {
    let (device, (checkpoint, model)) = (device(), open(&data("golden/gemma3_text")));
    let mut runtime = cut(&device, &model, &checkpoint, &geometry(64, 2, 40, KvFormat::F32, 1));
    let ids = ids(40);
    let before = device.submits();
    let expected = run(&mut runtime, 0, 0, &ids, Sampling::Logits, None).unwrap();
    let all = device.submits() - before;

    let cancel = Cancel::new();
    let start = device.submits();
    let (watched, raised) = (device.clone(), cancel.clone());
    let watcher = std::thread::spawn(move || {
        while watched.submits() < start + 2 {
            std::thread::yield_now();
        }
        raised.cancel();
    });
    let error = run(&mut runtime, 0, 0, &ids, Sampling::Logits, Some(&cancel)).unwrap_err();
    watcher.join().unwrap();
    assert!(matches!(error, RuntimeError::Cancelled), "{error}");
    let made = device.submits() - start;
    assert!((2..all).contains(&made), "{made} of {all} submits");
    assert_eq!(run(&mut runtime, 0, 0, &ids, Sampling::Logits, None).unwrap(), expected);
}

/// Attention and the delta rule: a prefill is as many submits as its work asks for, whatever its plan's dispatches hold.
#[test]
fn engine_bug_05_a_prefill_is_cut_into_submits_of_the_work_budget() {
    for path in ["golden/gemma3_text", "golden/qwen3_5_text"] {
        let (device, (checkpoint, model)) = (device(), open(&data(path)));
        let mut runtime = cut(&device, &model, &checkpoint, &geometry(64, 2, 40, KvFormat::F32, 1));
        let before = device.submits();
        run(&mut runtime, 0, 0, &ids(40), Sampling::Logits, None).unwrap();
        let submits = device.submits() - before;
        let plan = runtime.plan();
        // Without what goes by tiles, which is more: no more than what was done.
        let shape = StepShape { tokens: 40, logit_rows: 1, tiles: vec![0; 8], kv_max: 40 };
        let always = plan.program(40).unwrap().dispatches.iter().filter(|d| d.when == When::Always);
        let flops: Vec<u64> = always.map(|dispatch| plan.flops(dispatch, &shape)).collect();
        let most = flops.iter().copied().max().unwrap().max(plan.profile.work_budget);
        let asked = flops.iter().sum::<u64>() / most;
        assert!(asked > 4 && submits >= asked, "{path}: {submits} submits, {asked} at least");
    }
}

#[test]
fn candidates_are_the_largest_logits_of_the_row() {
    let (checkpoint, model) = open(&data("golden/qwen3"));
    let geometry = geometry(64, 2, 16, KvFormat::F32, 1);
    let mut runtime = Loaded::new(&checkpoint, &model, &DeviceOptions::default(), &geometry).runtime;
    for length in [1, 5, 16] {
        let ids = ids(length);
        let StepOutput::Logits { values, .. } =
            run(&mut runtime, 1, 0, &ids, Sampling::Logits, None).unwrap()
        else {
            panic!()
        };
        let mut order: Vec<(u32, f32)> = (0u32..).zip(values.iter().copied()).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let most = f64::from(order[0].1);
        let sum: f64 = values.iter().map(|&v| (f64::from(v) - most).exp()).sum();
        for (sampling, k) in [(Sampling::Greedy, 1), (Sampling::TopK, runtime.plan().top_k() as usize)] {
            let StepOutput::Candidates(rows) = run(&mut runtime, 1, 0, &ids, sampling, None).unwrap() else {
                panic!()
            };
            let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
            assert_eq!(row.best, order[..k]);
            assert!((f64::from(row.log_sum_exp) - most - sum.ln()).abs() < 1e-4);
        }
    }
}

/// Somebody writes to the weights while they are read: the load fails, nothing of it stays, and the file as it is then loads.
#[test]
fn weights_that_are_written_to_while_they_are_read_do_not_load() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("written-to");
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(data("golden/llama").join(file), folder.join(file)).unwrap();
    }
    let weights = folder.join("model.safetensors");
    // Of another time than what is written next, wherever times are coarse.
    let file = std::fs::File::options().write(true).open(&weights).unwrap();
    file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60)).unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let load = |write: bool| {
        let (checkpoint, model) = open(&folder);
        let admitted = admitted(&model, &geometry(64, 1, 16, KvFormat::F32, 1), device.profile());
        Runtime::load(device.clone(), &model, &checkpoint, admitted, &mut |progress| {
            if let (true, LoadProgress::Weights { .. }) = (write, progress) {
                // The same bytes, later: that it was written to is enough.
                let bytes = std::fs::read(&weights).unwrap();
                let mut file = std::fs::File::options().write(true).open(&weights).unwrap();
                std::io::Write::write_all(&mut file, &bytes).unwrap();
            }
        })
        .map(drop)
    };
    match load(true) {
        Err(RuntimeError::Model(ModelError::Changed { path })) => assert_eq!(path, weights),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.totals().live, 0);
    load(false).unwrap();
}
