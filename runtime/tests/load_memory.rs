//! What a load holds at its peak, on the device by the books and on the host by an allocator that counts: what the plan
//! says, however large the checkpoint is, however it is stored, in memory or in mapped files.
//!
//! One test, so that nothing else allocates meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod toy;

use plimsoll_estimator::plan::Role;
use plimsoll_kernels::Format;
use plimsoll_kernels::format::ScaleType;
use plimsoll_models::Model;
use plimsoll_models::model::ScaleForm;
use plimsoll_runtime::{Device, DeviceOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use toy::*;

/// The system's allocator, with a count of what is held and the most that was.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn more(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every call is the system's own, which keeps the contract; beside it only counters move.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: passed on as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on as it came.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may exist while one is copied to the other.
        more(size);
        // SAFETY: passed on as it came.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        moved
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const STAGING: u64 = 1 << 20;

/// Experts one by one, each in a tensor of its own, in shards of the checkpoint.
fn separate() -> (Model, Vec<Stored>) {
    let (experts, rows, cols) = (64, 64, 512);
    let mut tensors = Vec::new();
    let mut matrices = Vec::new();
    for layer in 0..4 {
        let mut pieces = Vec::new();
        for e in 0..experts {
            let name = format!("layer{layer}.expert{e}");
            tensors.push(stored(&name, "BF16", &[rows, cols], bf16s(&values(rows * cols, e))));
            pieces.push(piece(&[&name], 0, rows as u32));
        }
        matrices.push(matrix(Format::BF16, cols as u32, experts as u32, pieces));
    }
    (model(matrices, vec![]), tensors)
}

/// Stacks in planes: affine codes with scales and offsets, NVFP4 with a factor for each expert.
fn packed() -> (Model, Vec<Stored>) {
    let (experts, rows, cols) = (64, 128, 512);
    let all = experts * rows;
    let (mut tensors, mut matrices) = (Vec::new(), Vec::new());
    for layer in 0..4 {
        let name = |part: &str| format!("layer{layer}.{part}");
        let groups = bf16s(&vec![0.5; all * cols / 64]);
        tensors.push(stored(&name("w"), "U32", &[experts, rows, cols / 8], vec![0x5A; all * cols / 2]));
        tensors.push(stored(&name("s"), "BF16", &[experts, rows, cols / 64], groups.clone()));
        tensors.push(stored(&name("b"), "BF16", &[experts, rows, cols / 64], groups));
        let affine = Format::Affine { bits: 4, group: 64, scales: ScaleType::BF16 };
        let pieces = vec![piece(&[&name("w"), &name("s"), &name("b")], 0, all as u32)];
        matrices.push(matrix(affine, cols as u32, experts as u32, pieces));

        tensors.push(stored(&name("n"), "U8", &[experts, rows, cols / 2], vec![0xA5; all * cols / 2]));
        tensors.push(stored(&name("e"), "F8_E4M3", &[experts, rows, cols / 16], vec![0x38; all * cols / 16]));
        tensors.push(stored(&name("f"), "F32", &[experts], f32s(&vec![0.25; experts])));
        let piece = |e: usize| {
            let planes = piece(&[&name("n"), &name("e")], (e * rows) as u32, rows as u32);
            scaled(planes, &name("f"), Some(e as u32), ScaleForm::Times)
        };
        let pieces = (0..experts).map(piece).collect();
        matrices.push(matrix(Format::Nvfp4Scaled, cols as u32, experts as u32, pieces));
    }
    (model(matrices, vec![]), tensors)
}

#[test]
fn a_load_holds_what_the_plan_says_and_no_second_copy_of_anything() {
    // The first load of a process sets up threads and the graphics stack's own tables.
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let (warm, tensors) = (model(vec![], vec![]), checkpoint(&[stored("x", "F32", &[1], f32s(&[1.0]))]));
    let plan_of = |model: &Model| plan(device.profile(), model, u32::MAX, STAGING, Role::Matrices);
    drop(load(&device, &warm, &tensors, plan_of(&warm)).unwrap());

    let [separate, packed] = [separate(), packed()];
    let files = std::env::temp_dir().join(format!("plimsoll-load-memory-{}", std::process::id()));
    let cases = [
        ("separate experts", &separate.0, sharded(&separate.1, 5)),
        ("packed stacks", &packed.0, sharded(&packed.1, 3)),
        ("separate experts in files", &separate.0, in_files(&separate.1, 5, &files.join("separate"))),
        ("packed stacks in files", &packed.0, in_files(&packed.1, 3, &files.join("packed"))),
    ];
    drop((separate.1, packed.1));
    for (name, model, checkpoint) in cases {
        let device = Device::open(&DeviceOptions::default()).unwrap();
        let plan = plan_of(model);
        let weights = plan.buffers[0].bytes;
        // A second copy of a quarter of it would show.
        assert!(weights >= 4 * plan.load_host(), "{name}: {weights} bytes");
        let (peak, total, most) = (plan.load_peak(), plan.total(), plan.load_host());
        let before = HELD.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let runtime = load(&device, model, &checkpoint, plan).unwrap();
        let host = PEAK.load(Ordering::Relaxed) - before;
        assert_eq!((device.totals().peak_bytes, device.totals().live_bytes), (peak, total), "{name}");
        assert!(host as u64 <= most, "{name}: {host} bytes on the host at the peak, expected at most {most}");
        drop(runtime);
    }
    std::fs::remove_dir_all(&files).unwrap();
}
