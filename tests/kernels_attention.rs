//! Attention over pages and the merge of its splits, on the device against the CPU twins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod steps;

use plimsoll_kernels::KvFormat;
use plimsoll_kernels::step::PAGE;
use plimsoll_runtime::lone::{LoneKernel, Options};
use std::sync::{LazyLock, Mutex, MutexGuard};
use steps::{Built, Case, assert_close, run, shape};

/// One device at WebGPU's default limits; cases take turns so that a software driver is not measured against itself.
fn device() -> MutexGuard<'static, LoneKernel> {
    static DEVICE: LazyLock<Mutex<LoneKernel>> =
        LazyLock::new(|| Mutex::new(LoneKernel::open(Options::default()).unwrap()));
    DEVICE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Rounding only: values are at most 1, sums are of at most a few hundred keys.
const TOLERANCE: f32 = 1e-5;

fn check(case: &Case, what: &str) {
    let built = Built::new(case, 7);
    let device = device();
    let got = built.on_device(&device, device.profile());
    assert_close(&got, &built.expected(), TOLERANCE, what);
}

#[test]
fn ragged_batches_of_every_format() {
    let runs = [run(2, 40, 1), run(0, 0, 7), run(1, 31, 34), run(3, 95, 2)];
    for format in KvFormat::ALL {
        check(&Case::new(shape(6, 2, 64), format, &runs), &format!("ragged {format}"));
    }
}
