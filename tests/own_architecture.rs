//! How to add an architecture from your own crate: implement one trait, register it, and the estimator and the
//! runtime know it. The family here is a toy: one attention layer without rope between two gated MLPs.
//!
//! What an architecture does:
//!
//! 1. *claims* a checkpoint, by default by its `model_type` (config.json) or `general.architecture` (GGUF);
//! 2. reads its sizes, with errors that name the field;
//! 3. lists its weights: [`Weights`] checks that each tensor is there, in the shape the model needs;
//! 4. writes the graph of one step: ops over activations with a symbolic token count. No GPU, no bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_estimator::{Geometry, Plan};
use plimsoll_kernels::{AttentionShape, KvFormat, Profile};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{Activation, Attention, GraphBuilder, StateId};
use plimsoll_models::model::State;
use plimsoll_models::zoo::fields::Fields;
use plimsoll_models::zoo::weights::Weights;
use plimsoll_models::{Architecture, Model, ModelError, Registry};
use plimsoll_runtime::{DeviceOptions, Wanted};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use support::{Loaded, distance, geometry};

/// The family.
struct Sandwich;

const EPS: f32 = 1e-5;

impl Architecture for Sandwich {
    fn name(&self) -> &'static str {
        "sandwich"
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let fields = Fields::of(checkpoint)?;
        let (vocab, hidden) = (fields.size("vocab_size", None)?, fields.size("hidden_size", None)?);
        let ffn = fields.size("intermediate_size", None)?;
        let heads = fields.size("num_attention_heads", None)?;
        let shape = AttentionShape { heads, kv_heads: 1, head_dim: hidden / heads };

        let mut weights = Weights::new(checkpoint)?;
        let mut g = GraphBuilder::new();
        let table = weights.matrix("embed", vocab, hidden)?;
        let x = g.embed(table, hidden, 1.0);
        let mlp = |g: &mut GraphBuilder, weights: &mut Weights<'_>, name: &str| -> Result<(), ModelError> {
            g.scope(name);
            let norm = weights.vector(&format!("{name}.norm"), hidden)?;
            let gate = weights.matrix(&format!("{name}.gate"), ffn, hidden)?;
            let up = weights.matrix(&format!("{name}.up"), ffn, hidden)?;
            let down = weights.matrix(&format!("{name}.down"), hidden, ffn)?;
            let h = g.rms_norm("norm", x, norm, false, EPS);
            let h = g.linear("gate_up", h, &[gate, up], 2 * ffn);
            let h = g.gate(h, Activation::Silu);
            g.linear_add("down", h, &[down], x);
            Ok(())
        };
        mlp(&mut g, &mut weights, "bread")?;
        g.scope("filling");
        let qkv = weights.matrix("filling.qkv", shape.qkv_width(), hidden)?;
        let qkv = g.linear("qkv", x, &[qkv], shape.qkv_width());
        let attended =
            g.attention(qkv, Attention::plain(shape, StateId(0), 1.0 / (shape.head_dim as f32).sqrt()));
        let out = weights.matrix("filling.out", hidden, hidden)?;
        g.linear_add("out", attended, &[out], x);
        mlp(&mut g, &mut weights, "crust")?;
        g.scope("");
        let rows = g.select_rows(x);
        let logits = g.linear("logits", rows, &[table], vocab);

        let (matrices, vectors) = weights.finish();
        Ok(Model {
            name: checkpoint.name().to_owned(),
            architecture: self.name().to_owned(),
            vocab,
            hidden,
            context_max: 256,
            layers: 1,
            matrices,
            vectors,
            states: vec![State::KvFull { shape }],
            ropes: vec![],
            graph: g.finish(logits),
            notes: vec![],
            extras: Default::default(),
        })
    }
}

const VOCAB: usize = 50;
const HIDDEN: usize = 24;
const FFN: usize = 40;
const HEADS: usize = 3;
const HEAD: usize = HIDDEN / HEADS;

type Table = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Weights from a small generator.
fn random_weights() -> Table {
    let mut state = 7u64;
    let mut tensor = |shape: &[usize], scale: f32| {
        let values = (0..shape.iter().product::<usize>())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * scale
            })
            .collect();
        (shape.to_vec(), values)
    };
    let mut table = Table::new();
    table.insert("embed".into(), tensor(&[VOCAB, HIDDEN], 2.0));
    for part in ["bread", "crust"] {
        table.insert(format!("{part}.norm"), tensor(&[HIDDEN], 2.0));
        table.insert(format!("{part}.gate"), tensor(&[FFN, HIDDEN], 0.6));
        table.insert(format!("{part}.up"), tensor(&[FFN, HIDDEN], 0.6));
        table.insert(format!("{part}.down"), tensor(&[HIDDEN, FFN], 0.6));
    }
    table.insert("filling.qkv".into(), tensor(&[(HEADS + 2) * HEAD, HIDDEN], 0.8));
    table.insert("filling.out".into(), tensor(&[HIDDEN, HIDDEN], 0.8));
    table
}

fn checkpoint(table: &Table) -> Checkpoint {
    let bytes: BTreeMap<&String, Vec<u8>> =
        table.iter().map(|(name, (_, v))| (name, v.iter().flat_map(|f| f.to_le_bytes()).collect())).collect();
    let views = table
        .iter()
        .map(|(name, (shape, _))| (name, TensorView::new(Dtype::F32, shape.clone(), &bytes[name]).unwrap()));
    let file = safetensors::serialize(views, None).unwrap();
    let config = serde_json::json!({
        "model_type": "sandwich", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_attention_heads": HEADS,
    });
    let files = vec![("model.safetensors".to_owned(), file)];
    Checkpoint::from_safetensors_bytes(None, files, Some(config.to_string().as_bytes()), "sandwich").unwrap()
}

/// The same model in plain f64: what the runtime must answer.
fn reference(table: &Table, ids: &[u32]) -> Vec<Vec<f32>> {
    let matrix = |name: &str| &table[name].1;
    let times = |name: &str, x: &[f64]| -> Vec<f64> {
        matrix(name)
            .chunks(x.len())
            .map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    };
    let mlp = |name: &str, x: &mut [f64]| {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / HIDDEN as f64;
        let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
        let norm = matrix(&format!("{name}.norm"));
        let h: Vec<f64> = x.iter().zip(norm).map(|(v, w)| v * scale * f64::from(*w)).collect();
        let gate = times(&format!("{name}.gate"), &h);
        let up = times(&format!("{name}.up"), &h);
        let h: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        for (x, d) in x.iter_mut().zip(times(&format!("{name}.down"), &h)) {
            *x += d;
        }
    };
    let mut past: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
    let mut logits = Vec::new();
    for &id in ids {
        let row = &matrix("embed")[id as usize * HIDDEN..][..HIDDEN];
        let mut x: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
        mlp("bread", &mut x);
        let qkv = times("filling.qkv", &x);
        past.push((qkv[HEADS * HEAD..][..HEAD].to_vec(), qkv[(HEADS + 1) * HEAD..].to_vec()));
        let mut attended = Vec::new();
        for head in 0..HEADS {
            let q = &qkv[head * HEAD..][..HEAD];
            let scores: Vec<f64> = past
                .iter()
                .map(|(k, _)| q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() / (HEAD as f64).sqrt())
                .collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            attended.extend(
                (0..HEAD).map(|e| weights.iter().zip(&past).map(|(w, (_, v))| w / sum * v[e]).sum::<f64>()),
            );
        }
        for (x, d) in x.iter_mut().zip(times("filling.out", &attended)) {
            *x += d;
        }
        mlp("crust", &mut x);
        logits.push(times("embed", &x).iter().map(|&v| v as f32).collect());
    }
    logits
}

#[test]
fn a_family_from_outside_is_estimated_and_run() {
    let mut registry = Registry::standard();
    registry.register(Box::new(Sandwich));
    let table = random_weights();
    let checkpoint = checkpoint(&table);
    let model = registry.build(&checkpoint).unwrap();

    let asked = Geometry { context: 64, ..Geometry::default_for(model.context_max) };
    let plan = Plan::new(&model, &asked, &Profile::webgpu_default()).unwrap();
    assert_eq!(plan.segment_bytes(plimsoll_estimator::plan::Segment::Kv), 64 * 2 * HEAD as u64 * 2);

    let ids: Vec<u32> = (0..45u32).map(|i| (i * i + 3) % VOCAB as u32).collect();
    let expected = reference(&table, &ids);
    let geometry = geometry(64, 1, 20, KvFormat::F32, 20);
    let mut loaded = Loaded::new(&checkpoint, &model, &DeviceOptions::default(), &geometry);
    for (what, chunk) in [("in chunks", 20), ("in small chunks", 3)] {
        let rows = loaded.feed(0, 0, &ids, chunk);
        for (i, (got, expected)) in rows.iter().zip(&expected).enumerate() {
            let off = distance(got, expected);
            assert!(off < 1e-3, "{what}, position {i}: off by {off}");
        }
    }
    let row = loaded.step(&[(0, 45, &[5], Wanted::Last)]).pop().unwrap();
    let mut longer = ids.clone();
    longer.push(5);
    assert!(distance(&row, reference(&table, &longer).last().unwrap()) < 1e-3);
}

#[test]
fn a_missing_tensor_of_a_family_from_outside_is_named() {
    let mut table = random_weights();
    table.remove("crust.up");
    let error = Sandwich.build(&checkpoint(&table)).unwrap_err();
    assert!(error.to_string().contains("crust.up is missing"), "{error}");
}
