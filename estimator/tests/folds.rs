//! Norms and gates that products do in their own dispatch, and all that keeps them from it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::check::check_plan;
use common::open;
use plimsoll_estimator::{Geometry, Plan};
use plimsoll_kernels::{Kernel, Limits, Profile};
use plimsoll_models::Model;
use plimsoll_models::graph::{Op, TensorId};

fn model() -> Model {
    open("configs/smollm2-135m.json").1
}

fn profile() -> Profile {
    Profile::new(
        "cpu",
        Limits { max_storage_buffer_binding_size: 1 << 27, ..Limits::webgpu_default() },
        Some((8, 8)),
        true,
    )
}

/// Dispatches of the first and of the last program that do a norm, that do a gate, and all.
fn folded(model: &Model, profile: &Profile) -> [[usize; 3]; 2] {
    let geometry = Geometry { prefill_chunk: 64, ..Geometry::default_for(256) };
    let plan = Plan::new(model, &geometry, profile).unwrap();
    check_plan(model, &plan);
    let count = |index: usize| {
        let dispatches = &plan.programs[index].dispatches;
        let vec = |of: fn(&plimsoll_kernels::ops::mat_vec::Variant) -> bool| {
            let is = |kernel: &Kernel| matches!(kernel, Kernel::MatVec(variant) if of(variant));
            dispatches.iter().filter(|d| is(&plan.kernels[d.kernel as usize])).count()
        };
        [vec(|v| v.normed), vec(|v| v.gate.is_some()), dispatches.len()]
    };
    [count(0), count(plan.programs.len() - 1)]
}

/// The index of the op with this label.
fn at(model: &Model, label: &str) -> usize {
    model.graph.ops.iter().position(|(l, _)| l == label).unwrap_or_else(|| panic!("no {label}"))
}

/// The labels of a norm before a product and of a gate.
fn labels(model: &Model) -> [String; 2] {
    let of = |test: fn(&Op) -> bool| {
        let found = model.graph.ops.iter().find(|(label, op)| label.contains("layers.1.") && test(op));
        found.unwrap().0.clone()
    };
    [of(|op| matches!(op, Op::RmsNorm { .. })), of(|op| matches!(op, Op::Gate { .. }))]
}

#[test]
fn few_tokens_save_three_dispatches_a_layer() {
    let (model, profile) = (model(), profile());
    let [few, many] = folded(&model, &profile);
    // Both norms of 30 layers; the last norm stands before a product with 28 million values.
    assert_eq!(few[..2], [60, 30]);
    assert_eq!(many[..2], [0, 0]);
    let mut apart = profile.clone();
    apart.tuning.norm_values = 0;
    let [alone, _] = folded(&model, &apart);
    assert_eq!(alone[..2], [0, 30]);
    assert_eq!(alone[2], few[2] + 60);
    assert!(many[2] >= few[2] + 90, "{few:?} {many:?}");
}

#[test]
fn a_gpu_folds_with_and_without_subgroups() {
    for subgroups in [None, Some((32, 32)), Some((4, 64))] {
        let profile = Profile::new("gpu", profile().limits, subgroups, false);
        assert_eq!(folded(&model(), &profile)[0][..2], [60, 30], "{subgroups:?}");
    }
    // A workgroup of one subgroup that shares K keeps its sums apart.
    let four = Profile::new("cpu", profile().limits, Some((4, 4)), true);
    assert_eq!(folded(&model(), &four)[0][..2], [0, 0]);
}

/// The model after a change, against the counts of the whole.
fn after(change: impl FnOnce(&mut Model)) -> [usize; 2] {
    let mut model = model();
    change(&mut model);
    let [[norms, gates, _], _] = folded(&model, &profile());
    [norms, gates]
}

#[test]
fn a_norm_that_others_need_stays() {
    let [norm, _] = labels(&model());
    // Another op reads what it wrote.
    let read_again = after(|model| {
        let index = at(model, &norm);
        let Op::RmsNorm { x, out, .. } = model.graph.ops[index].1 else { panic!() };
        let last = model.graph.ops.len() - 1;
        let width = model.graph.tensors[x.0 as usize].width;
        assert_eq!(width, model.graph.tensors[out.0 as usize].width);
        model.graph.ops.insert(last.min(index + 3), ("again".into(), Op::Add { x: out, to: x }));
    });
    assert_eq!(read_again, [59, 30]);
    // What it read is changed before the product runs.
    let changed = after(|model| {
        let index = at(model, &norm);
        let Op::RmsNorm { x, .. } = model.graph.ops[index].1 else { panic!() };
        model.graph.ops.insert(index + 1, ("changed".into(), Op::Scale { x, factor: 2.0, vector: None }));
    });
    assert_eq!(changed, [59, 30]);
}

#[test]
fn a_product_into_what_its_norm_reads_takes_nothing_in() {
    let [norm, _] = labels(&model());
    let onto = after(|model| {
        let index = at(model, &norm);
        let Op::RmsNorm { x: from, weight, plus_one, eps, .. } = model.graph.ops[index].1 else { panic!() };
        // The attention's output product, of a square matrix, after a norm of the sum that it adds to.
        let (label, _) = model.graph.ops[index..]
            .iter()
            .find(|(_, op)| matches!(op, Op::Linear { accumulate: true, .. }))
            .cloned()
            .unwrap();
        let to = at(model, &label);
        let normed = TensorId(model.graph.tensors.len() as u32);
        let tensor = model.graph.tensors[from.0 as usize].clone();
        model.graph.tensors.push(tensor);
        let Op::Linear { x, .. } = &mut model.graph.ops[to].1 else { panic!() };
        *x = normed;
        let op = Op::RmsNorm { x: from, weight, plus_one, eps, out: normed, accumulate: false };
        model.graph.ops.insert(to, ("once more".into(), op));
    });
    assert_eq!(onto, [60, 30]);
}

#[test]
fn a_gate_that_others_need_stays() {
    let [_, gate] = labels(&model());
    let read_again = after(|model| {
        let index = at(model, &gate);
        let Op::Gate { x, activation, .. } = model.graph.ops[index].1 else { panic!() };
        let out = TensorId(model.graph.tensors.len() as u32);
        let Op::Gate { out: other, .. } = model.graph.ops[index].1 else { panic!() };
        let tensor = model.graph.tensors[other.0 as usize].clone();
        model.graph.tensors.push(tensor);
        model.graph.ops.insert(index + 1, ("again".into(), Op::Gate { x, activation, out }));
    });
    assert_eq!(read_again, [60, 29]);
}

#[test]
fn a_matrix_in_two_bindings_does_no_gate() {
    let mut profile = profile();
    // A gate_up of SmolLM2 is 3,072 × 576 in bf16.
    profile.limits.max_storage_buffer_binding_size = 3 << 20;
    profile.limits.max_buffer_size = 1 << 28;
    let [[norms, gates, _], _] = folded(&model(), &profile);
    assert_eq!(gates, 0);
    // Each piece of a matrix takes the norm in.
    assert!(norms > 60, "{norms}");
}
