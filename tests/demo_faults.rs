//! One thing wrong at a time: the demo model is run by a runtime that is faulty on purpose, and the check that guards
//! the model (`tests/demo_model.rs`: logits after the five prompts) must fail, by as much as `demo-model/README.md`
//! says: it lists the faults with the largest change of any logit, as another engine measured it.
//!
//! Faults are edits of the model as data (the graph of a step is public) or, where that says it shorter, of the
//! weights it reads, or of the text of a kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod demo;
mod support;

use demo::{Prompt, engine, engine_with, path, prompts, push};
use half::bf16;
use plimsoll::{Checkpoint, Device, DeviceOptions, Model, Registry};
use plimsoll_kernels::Kernel;
use plimsoll_models::graph::{Attention, GatedNorm, Op, RopeId, Rotation, Router, Ssd, TensorId};
use plimsoll_models::model::State;
use plimsoll_models::rope::{Rope, Scaling};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use support::distance;

/// What the guard allows here: looser than in `demo_model.rs`, and still every fault fails it.
const GUARD: f64 = 1e-2;
/// How near the change is to the table's; its figures have two digits or three.
const NEAR: f64 = 0.1;

/// Rows of the table that no edit of a model or of its weights makes. The weights of fewer bits are no fault of a
/// runtime.
const NOT_HERE: [&str; 2] = ["3-bit weights", "2-bit weights"];

enum Fault {
    /// In what is made of a checkpoint.
    Graph(fn(&mut Model)),
    /// In what is read.
    Files(fn(&mut Files)),
    Both(fn(&mut Files), fn(&mut Model)),
    /// In the WGSL of a kernel; steps are of 64 tokens.
    Kernels(fn(&Kernel, String) -> String),
}
use Fault::{Both, Files as Weights, Graph, Kernels};

/// Tokens of a step for faults of kernels.
const STEP: u32 = 64;

/// A sequence that begins anew at every step of [`STEP`] tokens, as far as the state space is concerned.
fn forgets(kernel: &Kernel, wgsl: String) -> String {
    if !matches!(kernel, Kernel::Ssd(_)) {
        return wgsl;
    }
    let faulty = wgsl.replace("run.position > 0u", "run.position % 64u > 0u");
    assert_ne!(wgsl, faulty, "{} has no such line", kernel.name());
    faulty
}

fn silu_squared(kernel: &Kernel, wgsl: String) -> String {
    if !matches!(kernel, Kernel::Activate(_)) {
        return wgsl;
    }
    let faulty = wgsl.replace("max(x, 0.0)", "x / (1.0 + exp(min(-x, 80.0)))");
    assert_ne!(wgsl, faulty, "{} has no such line", kernel.name());
    faulty
}

const FAULTS: [(&str, Fault); 20] = [
    ("state lost every 64 tokens", Kernels(forgets)),
    ("correction bias ignored", Graph(|m| routers(m, |r| r.bias = None))),
    ("`routed_scaling_factor` 1.0 for 2.5", Graph(|m| routers(m, |r| r.scale = 1.0))),
    ("top-1 for top-2", Weights(|f| f.config["num_experts_per_tok"] = json!(1))),
    ("shared expert left out", Weights(|f| f.edit("shared_experts.down_proj.weight", |t| t.fill(0.0)))),
    ("routed experts left out", Weights(|f| f.edit_all(".experts.", "down_proj.weight", |t| t.fill(0.0)))),
    ("silu squared for relu squared", Kernels(silu_squared)),
    ("conv bias left out", Graph(no_conv_bias)),
    (
        "conv taps reversed",
        Weights(|f| f.edit("conv1d.weight", |t| t.chunks_mut(4).for_each(<[f32]>::reverse))),
    ),
    ("time step held to at least 0.001", Graph(|m| scans(m, |s| s.dt_limit = Some([1e-3, 1e6])))),
    ("time step held to at most 0.1", Graph(|m| scans(m, |s| s.dt_limit = Some([0.0, 0.1])))),
    ("D left out", Weights(|f| f.edit("mixer.D", |t| t.fill(0.0)))),
    ("`dt_bias` left out", Weights(|f| f.edit("mixer.dt_bias", |t| t.fill(0.0)))),
    ("gated norm over one group for two", Graph(|m| gated_norms(m, |n| n.groups = 1))),
    (
        "state groups interleaved (head h reads h % 2)",
        Both(interleave_groups, |m| gated_norms(m, |n| n.groups = 2)),
    ),
    ("RoPE added to the attention", Graph(rotate)),
    ("attention scale from `hidden_size`", Graph(|m| attentions(m, |a| a.scale = 192f32.sqrt().recip()))),
    ("attention sees only the last 64 tokens", Graph(window)),
    ("kv heads interleaved", Weights(interleave_heads)),
    ("`layer_norm_epsilon` 1e-2 for 1e-5", Graph(epsilon)),
];

/// Applies `edit` to every op, and sees that it took at least one.
fn ops(model: &mut Model, mut edit: impl FnMut(&mut Op) -> bool) {
    let edited = model.graph.ops.iter_mut().filter_map(|(_, op)| edit(op).then_some(())).count();
    assert!(edited > 0, "no op was edited");
}

macro_rules! every {
    ($name:ident, $part:ty, $pattern:pat => $field:expr) => {
        fn $name(model: &mut Model, edit: fn(&mut $part)) {
            ops(model, |op| {
                let $pattern = op else { return false };
                edit($field);
                true
            });
        }
    };
}
every!(routers, Router, Op::Route { router, .. } => router);
every!(scans, Ssd, Op::Ssd { ssd, .. } => ssd);
every!(gated_norms, GatedNorm, Op::GatedNorm { norm, .. } => norm);
every!(attentions, Attention, Op::Attention { attention, .. } => attention);

fn no_conv_bias(model: &mut Model) {
    ops(model, |op| {
        let Op::Conv { conv, .. } = op else { return false };
        conv.bias.take().is_some()
    });
}

fn rotate(model: &mut Model) {
    let rope = RopeId(model.ropes.len() as u32);
    model.ropes.push(Rope::new(10_000.0, 64, Scaling::None));
    ops(model, |op| {
        let Op::Attention { attention, .. } = op else { return false };
        attention.rotation = Some(Rotation { rope, interleaved: false });
        true
    });
}

fn window(model: &mut Model) {
    for state in &mut model.states {
        if let State::KvFull { shape } = *state {
            *state = State::KvSliding { shape, window: 64 };
        }
    }
}

fn epsilon(model: &mut Model) {
    ops(model, |op| match op {
        Op::RmsNorm { eps, .. } | Op::GatedNorm { norm: GatedNorm { eps, .. }, .. } => {
            *eps = 1e-2;
            true
        }
        _ => false,
    });
}

const HEADS: usize = 8;
const GROUPS: usize = 2;
const STATE: usize = 32;
/// Columns of the heads; of a gate as many.
const INNER: usize = 256;

/// Each head gets a group of its own: B and C of the group that the faulty runtime would read.
fn interleave_groups(files: &mut Files) {
    files.config["n_groups"] = json!(HEADS);
    let own =
        |first: usize| (0..HEADS).flat_map(move |h| (0..STATE).map(move |n| first + h % GROUPS * STATE + n));
    // x, then B, then C.
    let channels = move |first: usize| {
        let (b, c) = (first + INNER, first + INNER + GROUPS * STATE);
        (first..b).chain(own(b)).chain(own(c)).collect::<Vec<_>>()
    };
    files.rows("conv1d.weight", &channels(0));
    files.rows("conv1d.bias", &channels(0));
    let dt = 2 * INNER + 2 * GROUPS * STATE;
    let rows: Vec<usize> = (0..INNER).chain(channels(INNER)).chain(dt..dt + HEADS).collect();
    files.rows("mixer.in_proj.weight", &rows);
}

/// Query head `h` stands where it meets key head `h % 2`, in the projections of queries and outputs alike.
fn interleave_heads(files: &mut Files) {
    const HEAD: usize = 64;
    let moved: Vec<usize> = [0, 2, 1, 3].iter().flat_map(|h| h * HEAD..(h + 1) * HEAD).collect();
    files.rows("q_proj.weight", &moved);
    files.edit("o_proj.weight", |values| {
        for row in values.chunks_mut(moved.len()) {
            let old = row.to_vec();
            row.iter_mut().zip(&moved).for_each(|(v, &from)| *v = old[from]);
        }
    });
}

/// The checkpoint's files, open for edits.
#[derive(Clone)]
struct Files {
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<f32>)>,
}

impl Files {
    fn read() -> Self {
        let bytes = std::fs::read(path("plimsoll-demo/model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let data = view.data();
            let values = match view.dtype() {
                Dtype::F32 => data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
                Dtype::BF16 => {
                    data.chunks(2).map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect()
                }
                other => panic!("{name}: {other:?}"),
            };
            (name, (view.dtype(), view.shape().to_vec(), values))
        });
        let config = std::fs::read(path("plimsoll-demo/config.json")).unwrap();
        Self { config: serde_json::from_slice(&config).unwrap(), tensors: tensors.collect() }
    }

    /// Edits every tensor whose name ends so.
    fn edit(&mut self, end: &str, edit: impl Fn(&mut [f32])) {
        self.edit_all("", end, edit);
    }

    fn edit_all(&mut self, holds: &str, end: &str, edit: impl Fn(&mut [f32])) {
        let found = self.tensors.iter_mut().filter(|(name, _)| name.contains(holds) && name.ends_with(end));
        let edited = found.map(|(_, (_, _, values))| edit(values)).count();
        assert!(edited > 0, "no tensor {holds}…{end}");
    }

    /// Makes every tensor whose name ends so of these of its rows.
    fn rows(&mut self, end: &str, rows: &[usize]) {
        for (_, shape, values) in
            self.tensors.iter_mut().filter(|(name, _)| name.ends_with(end)).map(|(_, t)| t)
        {
            let width = shape[1..].iter().product::<usize>();
            *values = rows.iter().flat_map(|&row| values[row * width..][..width].to_vec()).collect();
            shape[0] = rows.len();
        }
    }

    fn checkpoint(&self) -> Checkpoint {
        let packed = |dtype: &Dtype, values: &[f32]| -> Vec<u8> {
            match dtype {
                Dtype::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            }
        };
        let bytes: Vec<Vec<u8>> =
            self.tensors.values().map(|(dtype, _, values)| packed(dtype, values)).collect();
        let views = self.tensors.iter().zip(&bytes).map(|((name, (dtype, shape, _)), bytes)| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        let config = self.config.to_string();
        let files = vec![("model.safetensors".to_owned(), file)];
        Checkpoint::from_safetensors_bytes(None, files, Some(config.as_bytes()), "faulty").unwrap()
    }
}

/// The model with or without a fault, and its checkpoint.
fn model(files: &Files, fault: Option<&Fault>) -> (Checkpoint, Model) {
    let mut files = files.clone();
    if let Some(Weights(edit) | Both(edit, _)) = fault {
        edit(&mut files);
    }
    let checkpoint = files.checkpoint();
    let mut model = Registry::standard().build(&checkpoint).unwrap();
    if let Some(Graph(edit) | Both(_, edit)) = fault {
        edit(&mut model);
    }
    (checkpoint, model)
}

/// The logits after each prompt, of the model with or without a fault.
fn run(device: &Device, files: &Files, prompts: &[Prompt], fault: Option<&Fault>) -> Vec<Vec<f32>> {
    let (checkpoint, model) = model(files, fault);
    let mut engine = match fault {
        Some(&Kernels(edit)) => {
            device.faults().mutate(Some(Box::new(edit)));
            let engine = engine_with(device, &model, &checkpoint, STEP);
            device.faults().mutate(None);
            engine
        }
        _ => engine(device, &model, &checkpoint),
    };
    prompts.iter().map(|p| push(&mut engine.feed(p.ids.len()).unwrap(), &p.ids)).collect()
}

/// The table of the demo model's README: fault, and largest change of any logit.
fn table() -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(path("README.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| fault |")).skip(3);
    let rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        (cells[1].to_owned(), cells[4].parse().unwrap())
    });
    rows.collect()
}

#[test]
fn every_fault_of_the_table_is_made() {
    let made: BTreeSet<&str> = FAULTS.iter().map(|(name, _)| *name).chain(NOT_HERE).collect();
    let listed = table();
    assert_eq!(made, listed.keys().map(String::as_str).collect());
    assert_eq!(made.len(), 22);
}

/// The edits of the weights meet the tensors that they are meant for.
#[test]
fn edits_change_what_they_name() {
    let sound = Files::read();
    for (name, fault) in &FAULTS {
        let (Weights(edit) | Both(edit, _)) = fault else { continue };
        let mut files = sound.clone();
        edit(&mut files);
        let changed = sound.tensors.iter().filter(|(name, t)| files.tensors[*name] != **t).count();
        let expected = match *name {
            "top-1 for top-2" => 0,
            // Eight experts in each of four layers.
            "routed experts left out" => 32,
            "state groups interleaved (head h reads h % 2)" => 3 * 4,
            "kv heads interleaved" => 2 * 2,
            _ => 4,
        };
        assert_eq!(changed, expected, "{name}");
        assert_eq!(files.config != sound.config, fault_of_config(name), "{name}");
    }
    let rewritten = sound.checkpoint();
    for tensor in plimsoll::demo_checkpoint().unwrap().tensors() {
        let same = rewritten.require(&tensor.name).unwrap();
        assert_eq!((&same.shape, &same.dtype, same.bytes), (&tensor.shape, &tensor.dtype, tensor.bytes));
    }
}

/// The edits of the graph meet ops, and leave the rest as it is.
#[test]
fn edits_of_the_graph_are_edits() {
    let files = Files::read();
    let (_, sound) = model(&files, None);
    for (name, fault) in &FAULTS {
        let (_, faulty) = model(&files, Some(fault));
        let Graph(_) = fault else { continue };
        assert_ne!(sound, faulty, "{name}");
        assert_eq!((&sound.matrices, &sound.vectors), (&faulty.matrices, &faulty.vectors), "{name}");
        assert_eq!(faulty.graph.ops.len(), sound.graph.ops.len(), "{name}");
    }
}

fn fault_of_config(name: &str) -> bool {
    name.starts_with("top-1") || name.starts_with("state groups")
}

#[test]
fn the_guard_sees_every_fault() {
    let (files, prompts, table) = (Files::read(), prompts("bf16"), table());
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let guard = |rows: &[Vec<f32>]| prompts.iter().zip(rows).map(|(p, row)| p.off(row)).fold(0.0, f64::max);
    let sound = run(&device, &files, &prompts, None);
    let off = guard(&sound);
    assert!(off < GUARD / 10.0, "without a fault: off by {off}");
    for (name, fault) in &FAULTS {
        let rows = run(&device, &files, &prompts, Some(fault));
        let off = guard(&rows);
        assert!(off > GUARD, "{name}: nobody would notice ({off})");
        let change = sound.iter().zip(&rows).map(|(a, b)| f64::from(distance(a, b))).fold(0.0, f64::max);
        let listed = table[*name];
        assert!((change / listed - 1.0).abs() <= NEAR, "{name}: a change of {change}, listed is {listed}");
    }
}
