//! Kernels that a test changes on their way to the device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod toy;

use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{Dispatch, Role, When};
use plimsoll_kernels::ops::softcap;
use plimsoll_kernels::{Kernel, Unit};
use plimsoll_runtime::{Device, DeviceOptions, RuntimeError};
use toy::*;

/// A plan that caps its logits, all of which are zero.
fn plan(device: &Device) -> Plan {
    let model = model(vec![], vec![]);
    let mut plan = toy::plan(device.profile(), &model, 1, 512, Role::Matrices);
    let args = softcap::Args { width: 100, stride: 100, cap: 30.0, unit: Unit::LogitRows };
    let call = softcap::plan(device.profile(), &args);
    plan.params.push(call.params);
    plan.buffers[plan.params_buffer as usize].bytes = 512;
    plan.kernels.push(call.kernel);
    let logits = plan.programs[0].logits;
    plan.programs[0].dispatches.push(Dispatch {
        label: "cap".into(),
        when: When::Logits,
        kernel: 0,
        params: 1,
        views: vec![logits],
        ranged: false,
        workgroups: call.workgroups,
        rows: call.rows,
        cost: call.cost,
    });
    plan
}

#[test]
fn a_mutation_changes_the_kernels_of_later_loads_and_of_no_other() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let (model, checkpoint) = (model(vec![], vec![]), checkpoint(&[stored("x", "F32", &[1], f32s(&[1.0]))]));
    let load = || load(&device, &model, &checkpoint, plan(&device));
    let mut before = load().unwrap();
    assert_eq!(step(&mut before, 0, 0, &[1]).unwrap(), [0.0; 100]);

    device.faults().mutate(Some(Box::new(|kernel: &Kernel, wgsl: String| {
        assert_eq!(kernel.name(), "softcap");
        let wrong = wgsl.replace("p.cap * ", "7.0 + p.cap * ");
        assert_ne!(wrong, wgsl);
        wrong
    })));
    let mut mutated = load().unwrap();
    assert_eq!(step(&mut mutated, 0, 0, &[1]).unwrap(), [7.0; 100]);
    assert_eq!(step(&mut before, 0, 0, &[1]).unwrap(), [0.0; 100]);

    device.faults().mutate(Some(Box::new(|_: &Kernel, _: String| "no shader".into())));
    let error = load().unwrap_err();
    assert!(matches!(&error, RuntimeError::Validation { what, .. } if what == "kernel softcap"), "{error}");

    device.faults().mutate(None);
    assert_eq!(step(&mut load().unwrap(), 0, 0, &[1]).unwrap(), [0.0; 100]);
}
