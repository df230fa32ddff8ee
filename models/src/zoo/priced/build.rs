//! From a spec to a model.

use super::{Attention, Experts, Ffn, LatentAttention, Layer, Mixer, Spec, Stacks};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{
    Activation, GraphBuilder, HeadNorm, MatrixId, Op, Router, Rows, Scoring, StateId, TensorId, VectorId,
};
use crate::model::{Beside, Extras, Model, State};
use crate::zoo::beside;
use crate::zoo::in_layer;
use crate::zoo::llama::biases;
use crate::zoo::mamba;
use crate::zoo::weights::{ExpertNames, GateUpNames, Weights};
use plimsoll_kernels::RecurrentShape;

/// Heads of latent attention that are worked on at a time.
const HEADS: u32 = 16;

struct Builder<'s, 'c> {
    spec: &'s Spec,
    w: Weights<'c>,
    g: GraphBuilder,
    states: Vec<State>,
}

/// The model of a spec.
pub(super) fn build(checkpoint: &Checkpoint, spec: &Spec) -> Result<Model, ModelError> {
    let sizes = &spec.sizes;
    let (vocab, hidden) = (sizes.vocab, sizes.hidden);
    let (w, g) = (Weights::new(checkpoint)?, GraphBuilder::new());
    let mut b = Builder { spec, w, g, states: Vec::new() };
    let table = b.w.embedding(&format!("{}.embed_tokens.weight", spec.names.prefix), vocab, hidden)?;
    let x = b.g.embed(table, hidden, 1.0);
    for (index, layer) in spec.layers.iter().enumerate() {
        b.g.scope(format!("layers.{index}"));
        b.layer(index, layer, x)?;
    }
    b.g.scope("");
    let rows = b.g.select_rows(x);
    let norm = b.w.vector(&format!("{}.{}.weight", spec.names.prefix, spec.names.last), hidden)?;
    let h = b.g.rms_norm("output_norm", rows, norm, false, sizes.eps);
    let head = b.w.head(sizes.tied.then_some(table), spec.names.head, vocab, hidden)?;
    let logits = b.g.linear("logits", h, &[head], vocab);
    let Builder { w, g, states, .. } = b;
    let (matrices, vectors) = w.finish();
    let (draft, tensors) = drafts(checkpoint, spec)?;
    let why = format!("{}: {}", spec.architecture, spec.why);
    Ok(Model {
        name: checkpoint.name().to_owned(),
        architecture: spec.architecture.to_owned(),
        vocab,
        hidden,
        context_max: sizes.context_max,
        layers: sizes.layers,
        matrices,
        vectors,
        states,
        ropes: vec![],
        graph: g.finish(logits),
        notes: spec.notes.clone(),
        extras: Extras {
            estimate_only: Some(why),
            draft,
            tensors,
            state_chunk: spec.state_chunk,
            ..Extras::default()
        },
    })
}

/// What layers that draft tokens keep, and their tensors: each is a layer with a projection `[D, 2·D]`, three norms, and
/// an embedding and a head of its own.
fn drafts(checkpoint: &Checkpoint, spec: &Spec) -> Result<(Vec<State>, Vec<Beside>), ModelError> {
    let hidden = spec.sizes.hidden;
    let mut b = Builder { spec, w: Weights::bare(checkpoint)?, g: GraphBuilder::new(), states: Vec::new() };
    let x = b.g.tensor("x", hidden, Rows::Tokens);
    for (number, layer) in spec.drafts.iter().enumerate() {
        let index = spec.layers.len() + number;
        b.layer(index, layer, x)?;
        let at = |part: &str| format!("{}.layers.{index}.{part}", spec.names.prefix);
        b.w.parameter(&at("eh_proj.weight"), hidden, hidden.saturating_mul(2))?;
        b.w.embedding(&at("embed_tokens.weight"), spec.sizes.vocab, hidden)?;
        b.w.parameter(&at("shared_head.head.weight"), spec.sizes.vocab, hidden)?;
        for norm in ["enorm", "hnorm", "shared_head.norm"] {
            b.w.vector(&at(&format!("{norm}.weight")), hidden)?;
        }
    }
    let (matrices, vectors) = b.w.finish();
    Ok((b.states, beside::drafted(&matrices, &vectors)))
}

impl Builder<'_, '_> {
    fn name(&self, layer: usize, part: &str) -> String {
        in_layer(self.spec.names.prefix, layer, &[part])
    }

    fn weight(&self, layer: usize, module: &str) -> String {
        in_layer(self.spec.names.prefix, layer, &[module, ".weight"])
    }

    fn norm(&mut self, layer: usize, part: &str) -> Result<VectorId, ModelError> {
        let name = self.weight(layer, part);
        self.w.vector(&name, self.spec.sizes.hidden)
    }

    /// `x += layer(x)`.
    fn layer(&mut self, index: usize, layer: &Layer, x: TensorId) -> Result<(), ModelError> {
        let eps = self.spec.sizes.eps;
        let [before, after] = self.spec.names.norms;
        let norm = self.norm(index, before)?;
        let h = self.g.rms_norm("attn_norm", x, norm, false, eps);
        let (to, add) = self.destination(layer.sandwich.is_some(), "mixed", x);
        self.mixer(index, &layer.mixer, h, to, add)?;
        if let Some([post, _]) = layer.sandwich {
            let norm = self.norm(index, post)?;
            self.g.rms_norm_add("post_norm", to, norm, false, eps, x);
        }
        if layer.ffn.is_empty() {
            return Ok(());
        }
        let norm = self.norm(index, after)?;
        let h = self.g.rms_norm("ffn_norm", x, norm, false, eps);
        let (to, add) = self.destination(layer.sandwich.is_some(), "ffn", x);
        for (number, ffn) in layer.ffn.iter().enumerate() {
            // The first may begin a tensor; the others add to it.
            self.ffn(index, ffn, h, to, add || number > 0)?;
        }
        if let Some([_, post]) = layer.sandwich {
            let norm = self.norm(index, post)?;
            self.g.rms_norm_add("post_ffn_norm", to, norm, false, eps, x);
        }
        Ok(())
    }

    /// Where a part of a layer goes, and whether it is added there: to the residual, or into a tensor of its own that a
    /// norm reads first.
    fn destination(&mut self, apart: bool, name: &str, x: TensorId) -> (TensorId, bool) {
        if !apart {
            return (x, true);
        }
        (self.g.tensor(name, self.spec.sizes.hidden, Rows::Tokens), false)
    }

    fn project(
        &mut self,
        label: &str,
        x: TensorId,
        (matrix, bias): (MatrixId, Option<VectorId>),
        out: TensorId,
        accumulate: bool,
    ) {
        let op = Op::Linear { x, parts: vec![matrix], bias: biases(&[bias]), out, accumulate };
        self.g.push(label, op);
    }

    fn matrix(
        &mut self,
        layer: usize,
        part: &str,
        rows: u32,
        cols: u32,
        biased: bool,
    ) -> Result<(MatrixId, Option<VectorId>), ModelError> {
        let matrix = self.w.matrix(&self.weight(layer, part), rows, cols)?;
        let bias = if biased {
            Some(self.w.vector(&self.name(layer, &format!("{part}.bias")), rows)?)
        } else {
            None
        };
        Ok((matrix, bias))
    }

    /// An operation without a kernel.
    fn priced(
        &mut self,
        label: &str,
        reads: &[TensorId],
        matrices: &[MatrixId],
        width: u32,
        scratch: u64,
    ) -> TensorId {
        let out = self.g.tensor(label, width, Rows::Tokens);
        let (reads, matrices) = (reads.to_vec(), matrices.to_vec());
        self.g.push(label, Op::Priced { reads, matrices, out, scratch });
        out
    }

    fn mixer(
        &mut self,
        layer: usize,
        mixer: &Mixer,
        h: TensorId,
        to: TensorId,
        add: bool,
    ) -> Result<(), ModelError> {
        let state = StateId(self.states.len() as u32);
        match mixer {
            Mixer::Attention(attention) => {
                self.states.push(attention.state());
                self.attention(layer, attention, state, h, to, add)
            }
            Mixer::Latent(attention) => {
                self.states.push(State::KvLatent { latent: attention.latent });
                self.latent(layer, attention, h, to, add)
            }
            Mixer::Mamba { mixer, prefix } => {
                self.states.push(mixer.state());
                let names = mamba::Names::reference(&self.name(layer, prefix));
                mixer.build(&mut self.w, &mut self.g, &names, state, h, to)
            }
            Mixer::ShortConv { taps, bias } => {
                let hidden = self.spec.sizes.hidden;
                let shape = RecurrentShape { values: 0, channels: hidden, taps: *taps };
                self.states.push(State::Recurrent { shape });
                let width = hidden.saturating_mul(3);
                let (into, into_bias) = self.matrix(layer, "conv.in_proj", width, hidden, *bias)?;
                let projected = self.g.tensor("in_proj", width, Rows::Tokens);
                self.project("in_proj", h, (into, into_bias), projected, false);
                self.w.conv(&self.name(layer, "conv.conv.weight"), hidden, *taps)?;
                if *bias {
                    self.w.vector(&self.name(layer, "conv.conv.bias"), hidden)?;
                }
                let mixed = self.priced("short_conv", &[projected], &[], hidden, 0);
                let out = self.matrix(layer, "conv.out_proj", hidden, hidden, *bias)?;
                self.project("out_proj", mixed, out, to, add);
                Ok(())
            }
        }
    }

    fn attention(
        &mut self,
        layer: usize,
        a: &Attention,
        state: StateId,
        h: TensorId,
        to: TensorId,
        add: bool,
    ) -> Result<(), ModelError> {
        let names = self.spec.names;
        let (hidden, eps, shape) = (self.spec.sizes.hidden, self.spec.sizes.eps, a.shape);
        let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let part = |name: &str| format!("{}.{name}", names.attention);
        let rows = if a.fused {
            vec![("qkv_proj", shape.qkv_width())]
        } else {
            vec![("q_proj", queries), ("k_proj", keys), ("v_proj", keys)]
        };
        let mut all = Vec::new();
        for (name, rows) in rows {
            all.push(self.matrix(layer, &part(name), rows, hidden, a.qkv_bias)?);
        }
        let (parts, bias): (Vec<MatrixId>, Vec<Option<VectorId>>) = all.into_iter().unzip();
        let qkv = self.g.tensor("qkv", shape.qkv_width(), Rows::Tokens);
        self.g.push("qkv", Op::Linear { x: h, parts, bias: biases(&bias), out: qkv, accumulate: false });
        let scale = (1.0 / f64::from(shape.head_dim).sqrt()) as f32;
        let mut attention = crate::graph::Attention::plain(shape, state, scale);
        if a.head_norms {
            let [q, k] = names.head_norms;
            let mut norm = |name: &str| {
                let name = self.name(layer, &part(&format!("{name}.weight")));
                Ok::<_, ModelError>(HeadNorm {
                    weight: self.w.vector(&name, shape.head_dim)?,
                    plus_one: false,
                    eps,
                })
            };
            (attention.q_norm, attention.k_norm) = (Some(norm(q)?), Some(norm(k)?));
        }
        let mut attended = self.g.attention(qkv, attention);
        if a.gated {
            let gate = self.matrix(layer, &part("gate_proj"), queries, hidden, false)?;
            let gates = self.g.tensor("gate", queries, Rows::Tokens);
            self.project("gate", h, gate, gates, false);
            attended = self.priced("gated", &[attended, gates], &[], queries, 0);
        }
        let out = self.matrix(layer, &part(names.output), hidden, queries, a.output_bias)?;
        self.project("attn_output", attended, out, to, add);
        Ok(())
    }

    /// Multi-head latent attention, absorbed: a query of `rank + rope` values a head meets the latents themselves, and
    /// what comes out is of `rank` values a head, which the value half of `kv_b` turns into the head's own. Both exist
    /// for a group of heads at a time; no keys or values of single heads, and no scores, are ever written.
    fn latent(
        &mut self,
        layer: usize,
        a: &LatentAttention,
        h: TensorId,
        to: TensorId,
        add: bool,
    ) -> Result<(), ModelError> {
        let hidden = self.spec.sizes.hidden;
        let l = a.latent;
        let (heads, key) = (l.heads, l.nope.saturating_add(l.rope));
        let part = |name: &str| format!("self_attn.{name}");
        let queries = heads.saturating_mul(key);
        let query = match a.query_rank {
            None => {
                let matrix = self.matrix(layer, &part("q_proj"), queries, hidden, false)?;
                let out = self.g.tensor("q", queries, Rows::Tokens);
                self.project("q", h, matrix, out, false);
                out
            }
            Some(rank) => {
                let down = self.matrix(layer, &part("q_a_proj"), rank, hidden, false)?;
                let norm = self.w.vector(&self.name(layer, &part("q_a_layernorm.weight")), rank)?;
                let up = self.matrix(layer, &part("q_b_proj"), queries, rank, false)?;
                let low = self.g.tensor("q_a", rank, Rows::Tokens);
                self.project("q_a", h, down, low, false);
                let low = self.g.rms_norm("q_a_norm", low, norm, false, self.spec.sizes.eps);
                let out = self.g.tensor("q", queries, Rows::Tokens);
                self.project("q", low, up, out, false);
                out
            }
        };
        let kv = self.matrix(layer, &part("kv_a_proj_with_mqa"), l.width(), hidden, false)?;
        self.w.vector(&self.name(layer, &part("kv_a_layernorm.weight")), l.rank)?;
        let rows = heads.saturating_mul(l.nope.saturating_add(l.value));
        let absorbed = self.matrix(layer, &part("kv_b_proj"), rows, l.rank, false)?;
        let latent = self.g.tensor("kv_a", l.width(), Rows::Tokens);
        self.project("kv_a", h, kv, latent, false);
        // Absorbed queries and what they see, of a group of heads at a time.
        let each = u64::from(l.width()) + u64::from(l.rank);
        let scratch = 4 * u64::from(heads.min(HEADS)) * each;
        let reads = [query, latent];
        let width = heads.saturating_mul(l.value);
        let values = self.priced("latent_attention", &reads, &[absorbed.0], width, scratch);
        let out = self.matrix(layer, &part("o_proj"), hidden, heads.saturating_mul(l.value), false)?;
        self.project("attn_output", values, out, to, add);
        Ok(())
    }

    fn ffn(
        &mut self,
        layer: usize,
        ffn: &Ffn,
        h: TensorId,
        to: TensorId,
        add: bool,
    ) -> Result<(), ModelError> {
        let hidden = self.spec.sizes.hidden;
        match ffn {
            Ffn::Gated { width, names } => self.gated(layer, *width, names, h, to, add),
            Ffn::Fused { width, names: [gate_up, down] } => {
                let both = width.saturating_mul(2);
                let gate_up = self.matrix(layer, gate_up, both, hidden, false)?;
                let inner = self.g.tensor("gate_up", both, Rows::Tokens);
                self.project("gate_up", h, gate_up, inner, false);
                let inner = self.g.gate(inner, Activation::Silu);
                let down = self.matrix(layer, down, hidden, *width, false)?;
                self.project("down", inner, down, to, add);
                Ok(())
            }
            Ffn::Experts(experts) => self.experts(layer, experts, h, to, add),
        }
    }

    fn gated(
        &mut self,
        layer: usize,
        width: u32,
        [gate, up, down]: &[&str; 3],
        h: TensorId,
        to: TensorId,
        add: bool,
    ) -> Result<(), ModelError> {
        let hidden = self.spec.sizes.hidden;
        let gate = self.matrix(layer, gate, width, hidden, false)?.0;
        let up = self.matrix(layer, up, width, hidden, false)?.0;
        let inner = self.g.linear("gate_up", h, &[gate, up], width.saturating_mul(2));
        let inner = self.g.gate(inner, Activation::Silu);
        let down = self.matrix(layer, down, hidden, width, false)?;
        self.project("down", inner, down, to, add);
        Ok(())
    }

    fn experts(
        &mut self,
        layer: usize,
        e: &Experts,
        h: TensorId,
        to: TensorId,
        add: bool,
    ) -> Result<(), ModelError> {
        let hidden = self.spec.sizes.hidden;
        let router = self.w.parameter(&self.name(layer, &format!("{}.weight", e.router)), e.count, hidden)?;
        let logits = self.g.linear("router", h, &[router], e.count);
        let mut plan = Router::plain(e.top, Scoring::Sigmoid);
        if let Some(bias) = e.router_bias {
            plan.bias = Some(self.w.vector(&self.name(layer, bias), e.count)?);
        }
        let routing = self.g.route(logits, plan);
        let (gate_up, down) = match e.stacks {
            Stacks::Separate(folder, parts) => {
                let prefix = self.name(layer, folder);
                let stack = |part: &str| format!("{prefix}.{part}.weight");
                let one = |x: u32, part: usize| format!("{prefix}.{x}.{}.weight", parts[part]);
                let down = |x: u32| one(x, 2);
                let (fused, halves) = (stack("gate_up_proj"), [stack(parts[0]), stack(parts[1])]);
                let names = GateUpNames {
                    fused: &fused,
                    transposed: false,
                    split: [&halves[0], &halves[1]],
                    separate: Some(&one),
                };
                let gate_up = self.w.gate_up(&names, e.count, e.width, hidden)?.matrix;
                let stacked = [stack(parts[2])];
                let names = ExpertNames { stacked: &stacked, separate: Some(&down) };
                (gate_up, self.w.experts(&names, e.count, hidden, e.width)?)
            }
            Stacks::Stacked { names: [gate_up, down], transposed } => {
                let [gate_up, down] = [gate_up, down].map(|part| self.name(layer, part));
                let both = e.width.saturating_mul(2);
                let gate_up = self.w.stack(&gate_up, transposed, e.count, both, hidden)?;
                (gate_up, self.w.stack(&down, transposed, e.count, hidden, e.width)?)
            }
        };
        let inner = self.g.experts("experts_gate_up", h, routing, gate_up, e.width.saturating_mul(2));
        let inner = self.g.gate(inner, Activation::Silu);
        let outer = self.g.experts("experts_down", inner, routing, down, hidden);
        self.g.push("combine", Op::Combine { x: outer, routing, out: to, accumulate: add });
        if let Some((width, names)) = &e.shared {
            self.gated(layer, *width, names, h, to, true)?;
        }
        Ok(())
    }
}
