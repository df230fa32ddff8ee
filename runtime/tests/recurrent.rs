//! Plans with recurrent state, made by hand: what is created and zeroed, which steps are right, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod toy;

use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{
    Buffer, RecurrentLayer, RecurrentPlan, RecurrentSegment, Role, Segment, View,
};
use plimsoll_kernels::RecurrentShape;
use plimsoll_models::graph::StateId;
use plimsoll_runtime::{
    Cancel, Device, DeviceOptions, Runtime, RuntimeError, SequenceInput, StepInput, Stepper, Wanted,
};
use toy::*;

fn device() -> Device {
    Device::open(&DeviceOptions::default()).unwrap()
}

const SHAPE: RecurrentShape = RecurrentShape { values: 96, channels: 40, taps: 4 };
/// The buffer of states and tails.
const STATES: usize = 7;

/// A plan whose one layer keeps states of two slots in two segments.
fn plan(device: &Device) -> Plan {
    let model = model(vec![], vec![]);
    let mut plan = toy::plan(device.profile(), &model, 1, 512, Role::Matrices);
    let segment = |first: u32| RecurrentSegment {
        first,
        places: 1,
        states: View { buffer: STATES as u32, offset: 1024 * u64::from(first), bytes: SHAPE.state_bytes() },
        tails: View {
            buffer: STATES as u32,
            offset: 1024 * u64::from(first) + 512,
            bytes: SHAPE.tail_bytes(),
        },
    };
    let layer = RecurrentLayer { state: StateId(0), shape: SHAPE, segments: vec![segment(0), segment(1)] };
    plan.recurrent = RecurrentPlan { copies: 1, layers: vec![layer] };
    let name = "recurrent.0".into();
    plan.buffers.push(Buffer { name, segment: Segment::Recurrent, role: Role::Recurrent, bytes: 2048 });
    plan
}

#[test]
fn recurrent_buffers_stand_in_the_books_and_begin_as_zeros() {
    let device = device();
    let (model, checkpoint) = (model(vec![], vec![]), checkpoint(&[stored("x", "F32", &[1], f32s(&[1.0]))]));
    let planned = plan(&device);
    assert_eq!(planned.segment_bytes(Segment::Recurrent), 2048);
    let runtime = load(&device, &model, &checkpoint, planned.clone()).unwrap();
    let held: Vec<(String, u64)> = device.buffers().into_iter().map(|e| (e.name, e.bytes)).collect();
    let expected: Vec<(String, u64)> = planned.buffers.iter().map(|b| (b.name.clone(), b.bytes)).collect();
    assert_eq!(held, expected);
    assert_eq!(device.totals().peak_bytes, planned.load_peak());
    drop(runtime);
    assert_eq!(read(&device, &model, &checkpoint, planned.clone(), STATES), [0; 2048]);
    for n in 1..=planned.buffers.len() as u64 {
        device.faults().fail_buffer(n);
        assert!(load(&device, &model, &checkpoint, planned.clone()).is_err());
        assert_eq!(device.totals().live, 0);
    }
}

#[test]
fn states_without_a_place_are_refused_before_anything_is_created() {
    let device = device();
    let (model, checkpoint) = (model(vec![], vec![]), checkpoint(&[stored("x", "F32", &[1], f32s(&[1.0]))]));
    let edits: [fn(&mut Plan); 8] = [
        |p| p.recurrent.layers[0].segments[1].states.offset = 2048,
        |p| p.recurrent.layers[0].segments[1].tails.buffer = 99,
        |p| p.recurrent.layers[0].segments[0].states.bytes -= 4,
        |p| p.recurrent.layers[0].segments[0].tails.bytes -= 4,
        |p| p.recurrent.layers[0].segments[1].first = 0,
        |p| p.recurrent.layers[0].segments.truncate(1),
        |p| p.recurrent.copies = 0,
        |p| p.recurrent.copies = 2,
    ];
    for edit in edits {
        let mut plan = plan(&device);
        edit(&mut plan);
        let error = load(&device, &model, &checkpoint, plan).unwrap_err();
        assert!(matches!(error, RuntimeError::Plan { .. }), "{error}");
        assert_eq!(device.totals().created, 0);
    }
}

/// A step that wants nothing of these sequences: slot, position, tokens.
fn run(
    runtime: &mut Runtime,
    sequences: &[(u32, u32, usize)],
    cancel: Option<&Cancel>,
) -> Result<(), RuntimeError> {
    let ids = [5; 8];
    let sequences: Vec<SequenceInput<'_>> = sequences
        .iter()
        .map(|&(slot, position, tokens)| SequenceInput {
            slot,
            position,
            ids: &ids[..tokens],
            wanted: Wanted::None,
        })
        .collect();
    runtime.step(&StepInput { sequences: &sequences, cancel, ..Default::default() }).map(drop)
}

#[test]
fn a_state_goes_on_where_it_stands_or_begins_anew() {
    let device = device();
    let (model, checkpoint) = (model(vec![], vec![]), checkpoint(&[stored("x", "F32", &[1], f32s(&[1.0]))]));
    let mut runtime = load(&device, &model, &checkpoint, plan(&device)).unwrap();
    let refused = |runtime: &mut Runtime, sequences: &[(u32, u32, usize)], expected: &str| {
        let before = device.submits();
        let error = run(runtime, sequences, None).unwrap_err();
        assert!(matches!(error, RuntimeError::Input { .. }));
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(device.submits(), before, "nothing runs");
    };
    refused(
        &mut runtime,
        &[(0, 1, 1)],
        "position of slot 0: expected 0: its recurrent state is unknown, got 1",
    );
    run(&mut runtime, &[(0, 0, 3), (1, 0, 2)], None).unwrap();
    run(&mut runtime, &[(1, 2, 1)], None).unwrap();
    // Again, ahead, and behind; a slot that is right does not make up for another.
    refused(
        &mut runtime,
        &[(1, 2, 1)],
        "position of slot 1: expected 0 or 3, where its recurrent state stands, got 2",
    );
    refused(&mut runtime, &[(1, 4, 1)], "0 or 3");
    refused(&mut runtime, &[(0, 3, 1), (1, 1, 2)], "position of slot 1");
    run(&mut runtime, &[(0, 3, 1), (1, 3, 2)], None).unwrap();
    // What is refused for other reasons, or cancelled before it began, has changed nothing.
    refused(&mut runtime, &[(2, 3, 1)], "slot");
    refused(&mut runtime, &[(0, 4, 0)], "at least one");
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(matches!(run(&mut runtime, &[(0, 4, 1)], Some(&cancel)), Err(RuntimeError::Cancelled)));
    run(&mut runtime, &[(0, 4, 1)], None).unwrap();
    // A new sequence begins in the same slot.
    run(&mut runtime, &[(0, 0, 2)], None).unwrap();
    refused(&mut runtime, &[(0, 5, 1)], "0 or 2");
    // After a failure nobody knows, but the slots that were not in the step.
    for fail in [|d: &Device| d.faults().fail_submit(1), |d: &Device| d.faults().fail_map(1)] {
        run(&mut runtime, &[(0, 0, 2), (1, 0, 5)], None).unwrap();
        fail(&device);
        assert!(run(&mut runtime, &[(0, 2, 1)], None).is_err());
        refused(&mut runtime, &[(0, 2, 1)], "expected 0: its recurrent state is unknown");
        run(&mut runtime, &[(1, 5, 1)], None).unwrap();
        run(&mut runtime, &[(0, 0, 4)], None).unwrap();
        run(&mut runtime, &[(0, 4, 1)], None).unwrap();
    }
    // A result that cannot be read is a failure too, though the step has run.
    step(&mut runtime, 0, 5, &[1]).unwrap();
    device.faults().fail_map(2);
    assert!(matches!(step(&mut runtime, 0, 6, &[1]), Err(RuntimeError::Map { .. })));
    refused(&mut runtime, &[(0, 6, 1)], "unknown");
    refused(&mut runtime, &[(0, 7, 1)], "unknown");
}

#[test]
fn steps_of_plans_without_recurrent_layers_may_be_run_again() {
    let device = device();
    let (model, checkpoint) = (model(vec![], vec![]), checkpoint(&[stored("x", "F32", &[1], f32s(&[1.0]))]));
    let plan = toy::plan(device.profile(), &model, 1, 512, Role::Matrices);
    let mut runtime = load(&device, &model, &checkpoint, plan).unwrap();
    for sequence in [(0, 7, 1), (0, 7, 1), (0, 3, 4)] {
        run(&mut runtime, &[sequence], None).unwrap();
    }
    // Up to the plan's context, which is nobody's but the plan's: the model was made for less.
    assert_eq!(runtime.plan().geometry.context, 64);
    run(&mut runtime, &[(0, 63, 1)], None).unwrap();
    assert!(run(&mut runtime, &[(0, 63, 2)], None).is_err());
}
