//! qwen3_moe, qwen3_5, qwen3_5_moe and qwen3_next: pre-norm layers of grouped-query attention or a gated delta rule,
//! then a SiLU-gated MLP or a mixture of them.
//!
//! qwen3_moe is qwen3 with experts. The others share more: norms stored zero-centred, attention whose output is gated
//! by a sigmoid, rope over the first part of a head, the gated delta rule (Yang, Kautz and Hatamizadeh, "Gated Delta
//! Networks", 2024) in most layers, and an expert that every token sees, behind a gate of its own.

mod config;
mod gguf;
mod names;

use super::Architecture;
use super::mamba::linear;
use super::nemotron_h::Moe;
use super::weights::{ExpertNames, GateUpNames, Weights};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{
    Activation, Attention, Conv, Delta, GatedNorm, GraphBuilder, HeadNorm, MatrixId, Multiply, RopeId,
    Rotation, Router, Rows, Scoring, StateId, TensorId,
};
use crate::model::{Model, State, Transform};
use config::{Config, DeltaSizes, Ffn, Mixer, from_config};
use gguf::from_gguf;
use names::Names;

/// The qwen3_moe family.
pub struct Qwen3Moe;

/// The qwen3_5 family: the text model of its checkpoints.
pub struct Qwen35;

/// The qwen3_5_moe family: the text model of its checkpoints.
pub struct Qwen35Moe;

/// The qwen3_next family.
pub struct Qwen3Next;

impl Architecture for Qwen3Moe {
    fn name(&self) -> &'static str {
        "qwen3_moe"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["qwen3moe"]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        build(checkpoint, self.name(), Family::Moe3)
    }
}

impl Architecture for Qwen35 {
    fn name(&self) -> &'static str {
        "qwen3_5"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["qwen3_5_text", "qwen35"]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        build(checkpoint, self.name(), Family::Dense35)
    }
}

impl Architecture for Qwen35Moe {
    fn name(&self) -> &'static str {
        "qwen3_5_moe"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["qwen3_5_moe_text", "qwen35moe"]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        build(checkpoint, self.name(), Family::Moe35)
    }
}

impl Architecture for Qwen3Next {
    fn name(&self) -> &'static str {
        "qwen3_next"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["qwen3next"]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        build(checkpoint, self.name(), Family::Next)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Moe3,
    Dense35,
    Moe35,
    Next,
}

fn build(checkpoint: &Checkpoint, architecture: &str, family: Family) -> Result<Model, ModelError> {
    let config = match checkpoint.metadata() {
        Some(_) => from_gguf(checkpoint, &super::stated(checkpoint).unwrap_or_default(), family)?,
        None => from_config(checkpoint, family)?,
    };
    let w = Weights::new(checkpoint)?;
    let names = Names::of(checkpoint, &w, &config, family);
    let plus_one = family != Family::Moe3 && !names.one_is_added;
    let mut builder = Builder { w, g: GraphBuilder::new(), config: &config, names, family, plus_one };
    let logits = builder.build()?;
    let Builder { w, g, .. } = builder;
    let (matrices, vectors) = w.finish();
    let states = config.layers.iter().map(|(mixer, _)| match (mixer, config.delta) {
        (Mixer::Delta, Some(delta)) => State::Recurrent { shape: delta.shape.recurrent(delta.taps) },
        _ => State::KvFull { shape: config.shape },
    });
    Ok(Model {
        name: checkpoint.name().to_owned(),
        architecture: architecture.to_owned(),
        vocab: config.vocab,
        hidden: config.hidden,
        context_max: config.context_max,
        layers: config.layers.len() as u32,
        matrices,
        vectors,
        states: states.collect(),
        ropes: vec![config.rope.clone()],
        graph: g.finish(logits),
        notes: config.notes.clone(),
        extras: Default::default(),
    })
}

struct Builder<'a> {
    w: Weights<'a>,
    g: GraphBuilder,
    config: &'a Config,
    names: Names,
    family: Family,
    /// Norm weights are stored zero-centred.
    plus_one: bool,
}

impl Builder<'_> {
    fn build(&mut self) -> Result<TensorId, ModelError> {
        let Config { vocab, hidden, tied, .. } = *self.config;
        let table = self.w.embedding(&self.names.outer("embed_tokens"), vocab, hidden)?;
        let x = self.g.embed(table, hidden, 1.0);
        for (layer, (mixer, ffn)) in (0u32..).zip(&self.config.layers) {
            self.g.scope(format!("layers.{layer}"));
            let h = self.norm("attn_norm", &self.names.layer(layer, "input_layernorm"), x)?;
            match (mixer, self.config.delta) {
                (Mixer::Delta, Some(delta)) => self.delta(layer, delta, h, x)?,
                _ => self.attention(layer, h, x)?,
            }
            let h = self.norm("ffn_norm", &self.names.layer(layer, "post_attention_layernorm"), x)?;
            match ffn {
                Ffn::Dense(width) => self.mlp(layer, "mlp", "", *width, None, h, x)?,
                Ffn::Moe(moe) => self.moe(layer, moe, h, x)?,
            }
        }
        self.g.scope("");
        let rows = self.g.select_rows(x);
        let h = self.norm("output_norm", &self.names.outer("norm"), rows)?;
        let head = self.w.head(tied.then_some(table), &self.names.head, vocab, hidden)?;
        Ok(self.g.linear("logits", h, &[head], vocab))
    }

    fn norm(&mut self, label: &str, name: &str, x: TensorId) -> Result<TensorId, ModelError> {
        let weight = self.w.vector(name, self.g.width(x))?;
        Ok(self.g.rms_norm(label, x, weight, self.plus_one, self.config.eps))
    }

    fn attention(&mut self, layer: u32, h: TensorId, x: TensorId) -> Result<(), ModelError> {
        let (shape, hidden, eps, biased) =
            (self.config.shape, self.config.hidden, self.config.eps, self.config.biased);
        let (size, queries, keys) =
            (shape.head_dim, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let part = |name: &str| self.names.layer(layer, &format!("self_attn.{name}"));
        let mut project = |name: &str, rows: u32, cols: u32| {
            let matrix = self.w.matrix(&part(name), rows, cols)?;
            let bias = part(name).replace(".weight", ".bias");
            let bias = if biased { Some(self.w.vector(&bias, rows)?) } else { None };
            Ok::<_, ModelError>((matrix, bias))
        };
        let k = project("k_proj", keys, hidden)?;
        let v = project("v_proj", keys, hidden)?;
        let o = project("o_proj", hidden, queries)?;
        let (q, gate) = match self.family {
            Family::Moe3 => (project("q_proj", queries, hidden)?, None),
            _ => {
                // Each head has its rows of the query, then those of its gate.
                let mut half = |label: &str, second: u32| {
                    let runs: Vec<_> = (0..shape.heads)
                        .map(|head| (2 * head + second) * size..(2 * head + second + 1) * size)
                        .collect();
                    self.w.rows(&part("q_proj"), label, 2 * queries, hidden, &runs)
                };
                ((half("queries", 0)?, None), Some(half("gates", 1)?))
            }
        };
        let mut head_norm = |name: &str| {
            let weight = self.w.vector(&part(name), size)?;
            Ok::<_, ModelError>(Some(HeadNorm { weight, plus_one: self.plus_one, eps }))
        };
        let attention = Attention {
            q_norm: head_norm("q_norm")?,
            k_norm: head_norm("k_norm")?,
            rotation: Some(Rotation { rope: RopeId(0), interleaved: false }),
            ..Attention::plain(shape, StateId(layer), (1.0 / f64::from(size).sqrt()) as f32)
        };
        let g = &mut self.g;
        let qkv = g.tensor("qkv", shape.qkv_width(), Rows::Tokens);
        linear(g, "qkv", h, &[q, k, v], qkv, false);
        let attended = g.attention(qkv, attention);
        if let Some(gate) = gate {
            let gate = g.linear("attn_gate", h, &[gate], queries);
            g.multiply("attn_gated", attended, gate, by_sigmoid(false));
        }
        linear(g, "attn_output", attended, &[o], x, true);
        Ok(())
    }

    fn delta(&mut self, layer: u32, sizes: DeltaSizes, h: TensorId, x: TensorId) -> Result<(), ModelError> {
        let DeltaSizes { shape, taps, tiled } = sizes;
        let hidden = self.config.hidden;
        let (inner, channels, heads) = (shape.inner(), shape.channels(), shape.heads);
        let state = StateId(layer);
        let [qkv, z, b, a] = self.delta_projections(layer, sizes)?;
        let part = |name: &str| self.names.layer(layer, &format!("linear_attn.{name}"));
        let conv =
            Conv { column: 0, weight: self.w.conv(&part("conv1d"), channels, taps)?, bias: None, state };
        let decay = if self.names.a_is_log { Transform::NegExp } else { Transform::None };
        let delta = Delta {
            shape,
            a_column: heads,
            b_column: 0,
            a: self.w.vector_as(&self.names.parameter(layer, "linear_attn.A_log"), heads, decay)?,
            dt_bias: self.w.vector(&self.names.dt_bias(layer, &self.w), heads)?,
            eps: 1e-6,
            state,
            tiled,
        };
        let norm = GatedNorm {
            gate_column: 0,
            weight: self.w.vector(&part("norm"), shape.value_dim)?,
            groups: heads,
            eps: self.config.eps,
            gate_first: false,
        };
        let out = self.w.matrix(&part("out_proj"), hidden, inner)?;
        let g = &mut self.g;
        let projected = g.linear("in_proj_qkv", h, &[qkv], channels);
        let mixed = g.conv(projected, channels, conv);
        let ab = g.linear("in_proj_ba", h, &[b, a], 2 * heads);
        let y = g.delta(mixed, ab, delta);
        let gate = g.linear("in_proj_z", h, &[z], inner);
        g.gated_norm(y, gate, norm);
        g.linear_add("out_proj", y, &[out], x);
        Ok(())
    }

    /// The projections to q, k and v side by side, to z, b and a.
    fn delta_projections(&mut self, layer: u32, sizes: DeltaSizes) -> Result<[MatrixId; 4], ModelError> {
        let shape = sizes.shape;
        let hidden = self.config.hidden;
        let (inner, channels, heads) = (shape.inner(), shape.channels(), shape.heads);
        let name = |part: &str| self.names.layer(layer, &format!("linear_attn.{part}"));
        let mut whole = |part: &str, rows: u32| self.w.matrix(&name(part), rows, hidden);
        if self.family != Family::Next {
            return Ok([
                whole("in_proj_qkv", channels)?,
                whole("in_proj_z", inner)?,
                whole("in_proj_b", heads)?,
                whole("in_proj_a", heads)?,
            ]);
        }
        // Each key head has its rows of q, k, v and z one after the other, v and z of all value heads it serves; and so
        // for b and a.
        let served = heads / shape.key_heads;
        let (key, value) = (shape.key_dim, served * shape.value_dim);
        let runs = |stride: u32, from: u32, rows: u32| {
            (0..shape.key_heads).map(move |head| head * stride + from..head * stride + from + rows)
        };
        // GGUF's writers take the larger of the two apart; those of older files did not.
        let [qkv, z] = if self.names.are_gguf() && self.w.has(&name("in_proj_qkv"), false) {
            [
                self.w.matrix(&name("in_proj_qkv"), channels, hidden)?,
                self.w.matrix(&name("in_proj_z"), inner, hidden)?,
            ]
        } else {
            let (stride, qkvz) = (2 * key + 2 * value, name("in_proj_qkvz"));
            let [q, k] = [0, key].map(|from| runs(stride, from, key));
            let qkv: Vec<_> = q.chain(k).chain(runs(stride, 2 * key, value)).collect();
            let z: Vec<_> = runs(stride, 2 * key + value, value).collect();
            let mut rows = |part: &str, runs: &[_]| self.w.rows(&qkvz, part, channels + inner, hidden, runs);
            [rows("qkv", &qkv)?, rows("z", &z)?]
        };
        let ba = name("in_proj_ba");
        let mut rows = |part: &str, from: u32| {
            let runs: Vec<_> = runs(2 * served, from, served).collect();
            self.w.rows(&ba, part, 2 * heads, hidden, &runs)
        };
        Ok([qkv, z, rows("b", 0)?, rows("a", served)?])
    }

    /// `to += down(silu(gate(h))·up(h))`, perhaps times the sigmoid of the one value a token has in `scale`.
    #[allow(clippy::too_many_arguments)] // one call each for two kinds of MLP, whose names differ
    fn mlp(
        &mut self,
        layer: u32,
        module: &str,
        label: &str,
        width: u32,
        scale: Option<TensorId>,
        h: TensorId,
        to: TensorId,
    ) -> Result<(), ModelError> {
        let hidden = self.config.hidden;
        let mut part = |name: &str, rows: u32, cols: u32| {
            self.w.matrix(&self.names.layer(layer, &format!("{module}.{name}_proj")), rows, cols)
        };
        let (gate, up) = (part("gate", width, hidden)?, part("up", width, hidden)?);
        let down = part("down", hidden, width)?;
        let g = &mut self.g;
        let inner = g.linear(&format!("{label}gate_up"), h, &[gate, up], 2 * width);
        let inner = g.gate(inner, Activation::Silu);
        if let Some(scale) = scale {
            // A factor of each token passes through the matrix.
            g.multiply(&format!("{label}scaled"), inner, scale, by_sigmoid(true));
        }
        g.linear_add(&format!("{label}down"), inner, &[down], to);
        Ok(())
    }

    fn moe(&mut self, layer: u32, moe: &Moe, h: TensorId, x: TensorId) -> Result<(), ModelError> {
        let hidden = self.config.hidden;
        let gate = self.w.matrix(&self.names.layer(layer, "mlp.gate"), moe.experts, hidden)?;
        let logits = self.g.linear("router", h, &[gate], moe.experts);
        let router = Router { normalise: moe.normalise, ..Router::plain(moe.top, Scoring::Softmax) };
        let routing = self.g.route(logits, router);

        let stacks = self.names.stacks(layer);
        let one_by_one = stacks.separate.is_some();
        let half = |expert: u32, part: usize| stacks.one(expert, part);
        let half: Option<&dyn Fn(u32, usize) -> String> = if one_by_one { Some(&half) } else { None };
        let names = GateUpNames {
            fused: &stacks.gate_up,
            transposed: false,
            split: [&stacks.parts[0], &stacks.parts[1]],
            separate: half,
        };
        let gate_up = self.w.gate_up(&names, moe.experts, moe.width, hidden)?.matrix;
        let all: Vec<String> = stacks.down.iter().chain([&stacks.parts[2]]).cloned().collect();
        let one = |expert: u32| stacks.one(expert, 2);
        let one: Option<&dyn Fn(u32) -> String> = if one_by_one { Some(&one) } else { None };
        let names = ExpertNames { stacked: &all, separate: one };
        let down = self.w.experts(&names, moe.experts, hidden, moe.width)?;
        let inner = self.g.experts("experts_gate_up", h, routing, gate_up, 2 * moe.width);
        let inner = self.g.gate(inner, Activation::Silu);
        let outer = self.g.experts("experts_down", inner, routing, down, hidden);
        self.g.combine_add(outer, routing, x);

        if let Some(width) = moe.shared {
            let gate = self.w.row(&self.names.layer(layer, "mlp.shared_expert_gate"), hidden)?;
            let scale = self.g.linear("shared_gate", h, &[gate], 1);
            self.mlp(layer, "mlp.shared_expert", "shared_", width, Some(scale), h, x)?;
        }
        Ok(())
    }
}

/// `x·sigmoid(by)`.
fn by_sigmoid(broadcast: bool) -> Multiply {
    Multiply { column: 0, activation: Some(Activation::Sigmoid), of_by: true, broadcast }
}
