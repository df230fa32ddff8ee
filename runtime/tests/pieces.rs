//! Loads of matrices that the checkpoint keeps in pieces: stacks of experts, parts of fused tensors, vectors of any
//! shape; and what is said of those that do not fit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod toy;

use plimsoll_estimator::plan::Role;
use plimsoll_kernels::Format;
use plimsoll_models::Model;
use plimsoll_models::model::{Piece, ScaleForm, Transform};
use plimsoll_runtime::{Device, DeviceOptions};
use toy::*;

fn device() -> Device {
    Device::open(&DeviceOptions::default()).unwrap()
}

/// A staging buffer of two or three rows: pieces are cut wherever it is full.
const STAGING: u64 = 512;

#[test]
fn experts_stored_one_by_one_are_stacked_in_the_order_of_the_model() {
    let device = device();
    let (experts, rows, cols) = (5, 6, 20);
    // The file has them in another order, in three shards of the checkpoint.
    let tensors: Vec<Stored> = [3, 0, 4, 2, 1]
        .map(|e| stored(&format!("e{e}"), "BF16", &[rows, cols], bf16s(&values(rows * cols, e))))
        .into();
    let pieces = (0..experts).map(|e| piece(&[&format!("e{e}")], 0, rows as u32)).collect();
    let model = model(vec![matrix(Format::BF16, cols as u32, experts as u32, pieces)], vec![]);
    let expected: Vec<f32> = (0..experts).flat_map(|e| values(rows * cols, e)).collect();
    let checkpoint = sharded(&tensors, 3);
    // Shards end between experts and, to be sure, within one.
    for cut in [12, 16, 30] {
        let plan = plan(device.profile(), &model, cut, STAGING, Role::Arena);
        assert_eq!(decoded(&device, &model, &checkpoint, &plan, 0), expected, "cut after {cut}");
    }
}

#[test]
fn leading_dimensions_are_rows_and_a_fused_tensor_is_cut() {
    let device = device();
    let all = values(4 * 6 * 10, 1);
    let convolution = values(12 * 4, 2);
    let checkpoint = checkpoint(&[
        stored("stack", "F32", &[4, 6, 10], f32s(&all)),
        stored("conv", "F32", &[12, 1, 4], f32s(&convolution)),
    ]);
    let model = model(
        vec![
            matrix(Format::F32, 10, 1, vec![piece(&["stack"], 0, 5)]),
            matrix(Format::F32, 10, 1, vec![piece(&["stack"], 20, 4), piece(&["stack"], 5, 15)]),
            matrix(Format::F32, 4, 1, vec![piece(&["conv"], 0, 12)]),
        ],
        vec![],
    );
    let plan = plan(device.profile(), &model, 8, STAGING, Role::Arena);
    let of = |index| decoded(&device, &model, &checkpoint, &plan, index);
    assert_eq!(of(0), all[..50]);
    assert_eq!(of(1), [&all[200..], &all[50..200]].concat());
    assert_eq!(of(2), convolution);
}

#[test]
fn stacks_stored_inputs_by_outputs_are_transposed() {
    let device = device();
    let (experts, outputs, inputs) = (3, 22, 12);
    for format in [Format::F32, Format::BF16] {
        let all = values(experts * inputs * outputs, 5);
        let (dtype, bytes) = if format == Format::F32 { ("F32", f32s(&all)) } else { ("BF16", bf16s(&all)) };
        let tensor = |bytes| checkpoint(&[stored("t", dtype, &[experts, inputs, outputs], bytes)]);
        let part = |first, rows| Piece { transposed: true, ..piece(&["t"], first, rows) };
        // Cut within a matrix, across two, and in the other order.
        let model = model(
            vec![
                matrix(format, inputs as u32, 3, vec![part(0, 66)]),
                matrix(format, inputs as u32, 1, vec![part(40, 26), part(0, 40)]),
            ],
            vec![],
        );
        let row = |r: usize| {
            let (matrix, column) = (r / outputs, r % outputs);
            (0..inputs).map(move |k| (matrix * inputs + k) * outputs + column)
        };
        let of = |rows: std::ops::Range<usize>| rows.flat_map(row).map(|i| all[i]).collect::<Vec<f32>>();
        let planned = plan(device.profile(), &model, 16, STAGING, Role::Arena);
        let checkpoint = tensor(bytes.clone());
        assert_eq!(decoded(&device, &model, &checkpoint, &planned, 0), of(0..66));
        assert_eq!(decoded(&device, &model, &checkpoint, &planned, 1), [of(40..66), of(0..40)].concat());
        // Everything in one batch.
        let whole = plan(device.profile(), &model, u32::MAX, 1 << 20, Role::Arena);
        assert_eq!(decoded(&device, &model, &checkpoint, &whole, 1), [of(40..66), of(0..40)].concat());

        // Column 7 of the second matrix is row 29.
        let (mut spoilt, size) = (bytes.clone(), format.block_bytes());
        let at = ((inputs + 3) * outputs + 7) * size;
        spoilt[at..at + size].fill(0xFF);
        let error = load(&device, &model, &tensor(spoilt), whole.clone()).unwrap_err().to_string();
        assert!(error.contains("tensor t, row 29:"), "{error}");
        let other = toy::checkpoint(&[stored("t", dtype, &[experts, outputs, inputs], bytes)]);
        let error = load(&device, &model, &other, whole).unwrap_err().to_string();
        assert!(error.contains("tensor t") && error.contains("[3, 22, 12]"), "{error}");
    }
}

#[test]
fn vectors_are_transformed_on_their_way_whatever_their_shape() {
    let device = device();
    let (a, b) = ([-1.5_f32, 0.0, 2.0, 0.25, 1.0, -3.0], [0.5_f32, 8.0]);
    let checkpoint =
        checkpoint(&[stored("a", "BF16", &[2, 1, 3], bf16s(&a)), stored("b", "F32", &[2], f32s(&b))]);
    let vectors =
        vec![vector("a", 6, Format::BF16, Transform::NegExp), vector("b", 2, Format::F32, Transform::None)];
    let model = model(vec![], vectors);
    let plan = plan(device.profile(), &model, 1, STAGING, Role::Arena);
    let read = read(&device, &model, &checkpoint, plan, 1);
    let got: Vec<f32> = bytemuck::pod_collect_to_vec(&read[..32]);
    for (got, &stored) in got.iter().zip(&a) {
        let expected = -f64::from(stored).exp();
        assert!((f64::from(*got) - expected).abs() <= 1e-6 * expected.abs(), "{got} is not {expected}");
    }
    assert_eq!(got[6..], b);
}

/// The error of a load, which must be one before any buffer is created where `early`.
fn refusal(device: &Device, model: &Model, tensors: &[Stored], early: bool) -> String {
    let before = device.totals();
    let plan = plan(device.profile(), model, 4, STAGING, Role::Matrices);
    let error = load(device, model, &checkpoint(tensors), plan).unwrap_err();
    assert_eq!(device.totals().live, 0);
    assert_eq!(device.totals() == before, early, "{error}");
    error.to_string()
}

#[test]
fn pieces_that_do_not_fit_their_tensors_are_refused_by_name() {
    let device = device();
    let good = || {
        let experts = vec![piece(&["e0"], 0, 6), piece(&["e1"], 0, 6)];
        let vectors = vec![vector("v", 6, Format::F32, Transform::None)];
        model(vec![matrix(Format::F32, 10, 2, experts)], vectors)
    };
    let tensors = || {
        vec![
            stored("e0", "F32", &[6, 10], f32s(&values(60, 0))),
            stored("e1", "F32", &[6, 10], f32s(&values(60, 1))),
            stored("v", "F32", &[6], f32s(&values(6, 1))),
        ]
    };
    type Change = fn(&mut Model, &mut Vec<Stored>);
    let cases: [(Change, &[&str]); 12] = [
        (|_, t| drop(t.remove(1)), &["tensor e1 is missing"]),
        (|_, t| t[1] = stored("e1", "BF16", &[6, 10], bf16s(&values(60, 1))), &["tensor e1", "f32", "bf16"]),
        (|_, t| t[1].2 = vec![10, 6], &["tensor e1", "[6, 10]", "[10, 6]"]),
        (|_, t| t[1].2 = vec![60], &["tensor e1", "[6, 10]", "[60]"]),
        (
            |_, t| t[1] = stored("e1", "F32", &[5, 10], f32s(&values(50, 1))),
            &["tensor e1", "[6, 10]", "[5, 10]"],
        ),
        // Rows that no matrix takes: this is the checkpoint of another model.
        (
            |_, t| t[0] = stored("e0", "F32", &[7, 10], f32s(&values(70, 1))),
            &["tensor e0", "[6, 10]", "[7, 10]"],
        ),
        (|m, _| m.matrices[0].source.pieces[1].first_row = 1, &["tensor e1", "[7, 10]", "[6, 10]"]),
        (|m, _| m.matrices[0].source.pieces[1].first_row = u32::MAX, &["tensor e1", "[6, 10]"]),
        (|m, _| drop(m.matrices[0].source.pieces.pop()), &["tensor e0", "expected 12, got 6"]),
        (
            |m, _| m.matrices[0].source.pieces[1].transposed = true,
            &["tensor e1", "expected shape [10, 6]", "[6, 10]"],
        ),
        (|m, _| m.matrices[0].experts = 5, &["experts of tensor e0", "got 5"]),
        (|_, t| t[2].2 = vec![3, 2, 1], &[]),
    ];
    for (change, expected) in cases {
        let (mut model, mut tensors) = (good(), tensors());
        change(&mut model, &mut tensors);
        if expected.is_empty() {
            let plan = plan(device.profile(), &model, 4, STAGING, Role::Matrices);
            load(&device, &model, &checkpoint(&tensors), plan).unwrap();
            continue;
        }
        let error = refusal(&device, &model, &tensors, true);
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    }
    let beside = vec![scaled(piece(&["e0"], 0, 6), "v", Some(0), ScaleForm::Times), piece(&["e1"], 0, 6)];
    let mut model = good();
    model.matrices = vec![matrix(Format::F32, 10, 2, beside)];
    let error = refusal(&device, &model, &tensors(), true);
    assert!(error.contains("tensor v") && error.contains("no factor beside f32"), "{error}");
    let mut short = tensors();
    short[2] = stored("v", "F32", &[5], f32s(&values(5, 0)));
    let error = refusal(&device, &good(), &short, true);
    assert!(error.contains("tensor v") && error.contains("[6]") && error.contains("[5]"), "{error}");
}

#[test]
fn what_is_not_finite_is_refused_by_tensor_and_place() {
    let device = device();
    let model = model(
        vec![
            matrix(Format::F32, 10, 2, vec![piece(&["e0"], 0, 6), piece(&["e1"], 0, 6)]),
            matrix(Format::F32, 10, 1, vec![piece(&["fused"], 0, 3)]),
            matrix(Format::F32, 10, 1, vec![piece(&["fused"], 3, 9)]),
        ],
        vec![vector("v", 6, Format::F32, Transform::None), vector("a", 6, Format::F32, Transform::NegExp)],
    );
    let cases: [(&str, usize, f32, &str); 7] = [
        ("e1", 57, f32::NAN, "tensor e1, row 5"),
        ("e0", 0, f32::INFINITY, "tensor e0, row 0"),
        ("fused", 29, f32::NEG_INFINITY, "tensor fused, row 2"),
        ("fused", 85, f32::NAN, "tensor fused, row 8"),
        ("v", 4, f32::NAN, "tensor v, value 4"),
        ("a", 2, f32::NAN, "tensor a, value 2"),
        // Finite, but not its exponential.
        ("a", 3, 89.0, "tensor a, value 3: expected one that stays finite under NegExp, got -inf"),
    ];
    for (name, at, value, expected) in cases {
        let tensors: Vec<Stored> = [("e0", 60), ("e1", 60), ("fused", 120), ("v", 6), ("a", 6)]
            .map(|(tensor, count)| {
                let mut values = values(count, 0);
                if tensor == name {
                    values[at] = value;
                }
                let shape: &[usize] = if count == 6 { &[6] } else { &[count / 10, 10] };
                stored(tensor, "F32", shape, f32s(&values))
            })
            .into();
        let error = refusal(&device, &model, &tensors, false);
        assert!(error.contains(expected), "{error}");
    }
}
