//! A model whose layers have heads of different numbers and sizes, values that are keys, keys that layers share, sinks,
//! partial rotations and clamped gates, run against plain f64: what gemma4, gpt-oss and qwen3_5 have between them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_kernels::{AttentionShape, KvFormat};
use plimsoll_models::Model;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{
    Attention, ClampedGate, GraphBuilder, HeadNorm, Keys, RopeId, Rotation, StateId, VectorId,
};
use plimsoll_models::model::State;
use plimsoll_models::rope::{Rope, Scaling};
use plimsoll_models::zoo::weights::Weights;
use plimsoll_runtime::Wanted;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use support::{Loaded, device_variants, distance, geometry};

const VOCAB: usize = 50;
const HIDDEN: usize = 24;
const FFN: usize = 20;
const WINDOW: u32 = 7;
const EPS: f32 = 1e-5;
const LOCAL: AttentionShape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 8 };
const GLOBAL: AttentionShape = AttentionShape { heads: 3, kv_heads: 1, head_dim: 16 };

/// A layer of attention and a gated MLP.
#[derive(Clone, Copy)]
struct Layer {
    shape: AttentionShape,
    /// 0, sliding; 1, full.
    state: u32,
    keys: Keys,
    q_norm: bool,
    k_norm: bool,
    v_norm: bool,
    sinks: bool,
    rope: Option<u32>,
    interleaved: bool,
}

fn layers() -> [Layer; 5] {
    let local = Layer {
        shape: LOCAL,
        state: 0,
        keys: Keys::Own,
        q_norm: true,
        k_norm: false,
        v_norm: true,
        sinks: true,
        rope: Some(0),
        interleaved: true,
    };
    let global = Layer {
        shape: GLOBAL,
        state: 1,
        keys: Keys::Values,
        q_norm: true,
        k_norm: true,
        v_norm: true,
        sinks: false,
        rope: Some(1),
        interleaved: false,
    };
    let shared = Layer { keys: Keys::Shared, k_norm: false, v_norm: false, ..local };
    let wide = AttentionShape { heads: 6, ..GLOBAL };
    [
        local,
        global,
        shared,
        // More query heads than the layer that wrote, and nothing done to them.
        Layer {
            shape: wide,
            keys: Keys::Shared,
            q_norm: false,
            k_norm: false,
            v_norm: false,
            rope: None,
            ..global
        },
        Layer { shape: wide, keys: Keys::Shared, k_norm: false, v_norm: false, sinks: true, ..global },
    ]
}

/// The first half of the small heads; YaRN and Gemma 4's share of the large ones.
fn ropes() -> [Rope; 2] {
    let scaling = Scaling::Yarn {
        factor: 4.0,
        beta_fast: 8.0,
        beta_slow: 1.0,
        original: 64.0,
        truncate: false,
        attention_factor: None,
    };
    [Rope::new(100.0, 4, Scaling::None), Rope::proportional(1000.0, 16, 6, scaling)]
}

type Table = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Weights from a small generator.
fn weights() -> Table {
    let mut state = 11u64;
    let mut table = Table::new();
    let mut tensor = |name: String, shape: &[usize], scale: f32| {
        let values = (0..shape.iter().product::<usize>())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * scale
            })
            .collect();
        table.insert(name, (shape.to_vec(), values));
    };
    tensor("embed".into(), &[VOCAB, HIDDEN], 2.0);
    for (i, layer) in layers().iter().enumerate() {
        let size = layer.shape.head_dim as usize;
        tensor(format!("{i}.norm"), &[HIDDEN], 2.0);
        tensor(format!("{i}.qkv"), &[layer.keys.width(&layer.shape) as usize, HIDDEN], 0.8);
        tensor(format!("{i}.q_norm"), &[size], 3.0);
        tensor(format!("{i}.k_norm"), &[size], 3.0);
        tensor(format!("{i}.sinks"), &[layer.shape.heads as usize], 4.0);
        tensor(format!("{i}.o"), &[HIDDEN, layer.shape.heads as usize * size], 0.6);
        tensor(format!("{i}.gate_up"), &[2 * FFN, HIDDEN], 0.9);
        tensor(format!("{i}.down"), &[HIDDEN, FFN], 0.4);
    }
    table
}

fn checkpoint(table: &Table) -> Checkpoint {
    let bytes: BTreeMap<&String, Vec<u8>> =
        table.iter().map(|(name, (_, v))| (name, v.iter().flat_map(|f| f.to_le_bytes()).collect())).collect();
    let views = table
        .iter()
        .map(|(name, (shape, _))| (name, TensorView::new(Dtype::F32, shape.clone(), &bytes[name]).unwrap()));
    let files = vec![("model.safetensors".to_owned(), safetensors::serialize(views, None).unwrap())];
    Checkpoint::from_safetensors_bytes(None, files, Some(b"{\"model_type\": \"mixed\"}"), "mixed").unwrap()
}

const LIMIT: f32 = 1.5;
const ALPHA: f32 = 1.702;
const SCALE: f32 = 0.4;

fn model(checkpoint: &Checkpoint) -> Model {
    let (vocab, hidden, ffn) = (VOCAB as u32, HIDDEN as u32, FFN as u32);
    let mut w = Weights::new(checkpoint).unwrap();
    let mut g = GraphBuilder::new();
    let table = w.matrix("embed", vocab, hidden).unwrap();
    let x = g.embed(table, hidden, 1.0);
    for (i, layer) in layers().into_iter().enumerate() {
        g.scope(format!("layers.{i}"));
        let shape = layer.shape;
        let norm = w.vector(&format!("{i}.norm"), hidden).unwrap();
        let h = g.rms_norm("norm", x, norm, false, EPS);
        let width = layer.keys.width(&shape);
        let qkv = g.linear("qkv", h, &[w.matrix(&format!("{i}.qkv"), width, hidden).unwrap()], width);
        let mut vector = |wanted: bool, name: &str, len: u32| -> Option<VectorId> {
            wanted.then(|| w.vector(&format!("{i}.{name}"), len).unwrap())
        };
        let norm =
            |weight: Option<VectorId>| weight.map(|weight| HeadNorm { weight, plus_one: false, eps: EPS });
        let attention = Attention {
            q_norm: norm(vector(layer.q_norm, "q_norm", shape.head_dim)),
            k_norm: norm(vector(layer.k_norm, "k_norm", shape.head_dim)),
            v_norm: layer.v_norm.then_some(EPS),
            rotation: layer.rope.map(|rope| Rotation { rope: RopeId(rope), interleaved: false }),
            keys: layer.keys,
            sinks: vector(layer.sinks, "sinks", shape.heads),
            ..Attention::plain(shape, StateId(layer.state), SCALE)
        };
        let h = g.attention(qkv, attention);
        let o = w.matrix(&format!("{i}.o"), hidden, shape.heads * shape.head_dim).unwrap();
        g.linear_add("o", h, &[o], x);
        let gate_up = w.matrix(&format!("{i}.gate_up"), 2 * ffn, hidden).unwrap();
        let down = w.matrix(&format!("{i}.down"), hidden, ffn).unwrap();
        let h = g.linear("gate_up", x, &[gate_up], 2 * ffn);
        let h = g.clamped_gate(h, ClampedGate { limit: LIMIT, alpha: ALPHA, interleaved: layer.interleaved });
        g.linear_add("down", h, &[down], x);
    }
    g.scope("");
    let rows = g.select_rows(x);
    let logits = g.linear("logits", rows, &[table], vocab);
    let (matrices, vectors) = w.finish();
    Model {
        name: "mixed".into(),
        architecture: "mixed".into(),
        vocab,
        hidden,
        context_max: 256,
        layers: 5,
        matrices,
        vectors,
        states: vec![State::KvSliding { shape: LOCAL, window: WINDOW }, State::KvFull { shape: GLOBAL }],
        ropes: ropes().into(),
        notes: vec![],
        extras: Default::default(),
        graph: g.finish(logits),
    }
}

/// `x / sqrt(mean(x²) + eps)`, times a weight.
fn normed(x: &[f64], weight: Option<&[f32]>) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
    (0..x.len()).map(|i| x[i] * scale * weight.map_or(1.0, |w| f64::from(w[i]))).collect()
}

fn rotated(x: &[f64], rope: &Rope, position: usize) -> Vec<f64> {
    let (mut y, pairs) = (x.to_vec(), rope.frequencies.len());
    for (i, frequency) in rope.frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        y[i] = rope.growth * (x[i] * cos - x[i + pairs] * sin);
        y[i + pairs] = rope.growth * (x[i + pairs] * cos + x[i] * sin);
    }
    y
}

/// The same model in plain f64, token by token: what the runtime must answer.
fn reference(table: &Table, ids: &[u32]) -> Vec<Vec<f32>> {
    let times = |name: String, x: &[f64]| -> Vec<f64> {
        let rows = table[&name].1.chunks(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
    };
    let add = |x: &mut [f64], y: Vec<f64>| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    let ropes = ropes();
    // Of each state: of each token, of each KV head, key and value.
    type Cell = (Vec<f64>, Vec<f64>);
    let mut past: [Vec<Vec<Cell>>; 2] = [Vec::new(), Vec::new()];
    let mut logits = Vec::new();
    for (position, &id) in ids.iter().enumerate() {
        let row = &table["embed"].1[id as usize * HIDDEN..][..HIDDEN];
        let mut x: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
        for (i, layer) in layers().iter().enumerate() {
            let AttentionShape { heads, kv_heads, head_dim } = layer.shape;
            let (heads, kv_heads, size) = (heads as usize, kv_heads as usize, head_dim as usize);
            let vector = |name: &str| &table[&format!("{i}.{name}")].1[..];
            let qkv = times(format!("{i}.qkv"), &normed(&x, Some(vector("norm"))));
            let head = |at: usize| qkv[at * size..][..size].to_vec();
            let prepared = |x: Vec<f64>, norm: bool, name: &str| {
                let x = if norm { normed(&x, Some(vector(name))) } else { x };
                match layer.rope {
                    Some(rope) => rotated(&x, &ropes[rope as usize], position),
                    None => x,
                }
            };
            let state = &mut past[layer.state as usize];
            if layer.keys != Keys::Shared {
                let cells = (0..kv_heads).map(|k| {
                    let key = head(heads + k);
                    let value =
                        if layer.keys == Keys::Values { key.clone() } else { head(heads + kv_heads + k) };
                    let value = if layer.v_norm { normed(&value, None) } else { value };
                    (prepared(key, layer.k_norm, "k_norm"), value)
                });
                state.push(cells.collect());
            }
            let first = if layer.state == 0 { (position + 1).saturating_sub(WINDOW as usize) } else { 0 };
            let mut attended = Vec::new();
            for h in 0..heads {
                let q = prepared(head(h), layer.q_norm, "q_norm");
                let cells: Vec<&Cell> = state[first..].iter().map(|c| &c[h * kv_heads / heads]).collect();
                let mut weights: Vec<f64> = cells
                    .iter()
                    .map(|(k, _)| (q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * f64::from(SCALE)).exp())
                    .collect();
                let sink = if layer.sinks { f64::from(vector("sinks")[h]).exp() } else { 0.0 };
                let sum = weights.iter().sum::<f64>() + sink;
                weights.iter_mut().for_each(|w| *w /= sum);
                attended.extend(
                    (0..size).map(|e| weights.iter().zip(&cells).map(|(w, (_, v))| w * v[e]).sum::<f64>()),
                );
            }
            add(&mut x, times(format!("{i}.o"), &attended));
            let gate_up = times(format!("{i}.gate_up"), &x);
            let h: Vec<f64> = (0..FFN)
                .map(|f| {
                    let (g, up) = if layer.interleaved { (2 * f, 2 * f + 1) } else { (f, FFN + f) };
                    let (limit, alpha) = (f64::from(LIMIT), f64::from(ALPHA));
                    let (g, up) = (gate_up[g].min(limit), gate_up[up].clamp(-limit, limit));
                    (up + 1.0) * g / (1.0 + (-alpha * g).exp())
                })
                .collect();
            add(&mut x, times(format!("{i}.down"), &h));
        }
        logits.push(times("embed".into(), &x).iter().map(|&v| v as f32).collect());
    }
    logits
}

#[test]
fn mixed_heads_answer_as_plain_arithmetic_does() {
    let table = weights();
    let checkpoint = checkpoint(&table);
    let model = model(&checkpoint);
    let ids: Vec<u32> = (0..48u32).map(|i| (i * i + 3 * i + 1) % VOCAB as u32).collect();
    let expected = reference(&table, &ids);
    for (name, options) in device_variants() {
        // One load a device: each slot takes the prompt in chunks of its own, then all go on together.
        let chunks = [20, 7, 1];
        let mut loaded = Loaded::new(&checkpoint, &model, &options, &geometry(96, 3, 20, KvFormat::F32, 20));
        for (slot, chunk) in (0..).zip(chunks) {
            let rows = loaded.feed(slot, 0, &ids[..40], chunk);
            for (i, (got, expected)) in rows.iter().zip(&expected).enumerate() {
                let off = distance(got, expected);
                assert!(off < 1e-3, "{name}, chunks of {chunk}, position {i}: off by {off}");
            }
        }
        for position in 40..48 {
            let id = [ids[position]];
            let step = [0, 1, 2].map(|slot| (slot, position as u32, &id[..], Wanted::Last));
            for (row, chunk) in loaded.step(&step).iter().zip(chunks) {
                let off = distance(row, &expected[position]);
                assert!(off < 1e-3, "{name}, decoding at {position} after chunks of {chunk}: off by {off}");
            }
        }
    }
}
