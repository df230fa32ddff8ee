//! llama: pre-norm, grouped-query attention with rope over the whole head, SiLU-gated MLP.

use super::Architecture;
use super::dense::{Defaults, Dense, rope_from_config, rope_from_gguf};
use super::fields::Fields;
use super::weights::Weights;
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{
    Activation, Attention, GraphBuilder, HeadNorm, MatrixId, Op, RopeId, Rotation, Rows, StateId, VectorId,
};
use crate::model::{Model, State};
use crate::rope::Rope;

/// The llama family.
pub struct Llama;

impl Architecture for Llama {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let (sizes, rope, interleaved, biased) = if checkpoint.metadata().is_some() {
            let sizes = Dense::from_gguf(checkpoint, "llama")?;
            let rope = rope_from_gguf(checkpoint, "llama", 10_000.0, sizes.shape.head_dim)?;
            // llama's GGUF writers store q and k rows for neighbouring pairs.
            (sizes, rope, true, checkpoint.tensor("blk.0.attn_q.bias").is_some())
        } else {
            let fields = Fields::of(checkpoint)?;
            let defaults = Defaults { eps: Some(1e-6), context: Some(2048), ..Defaults::default() };
            let sizes = Dense::from_config(&fields, &defaults)?;
            fields.activation("hidden_act", &SILU)?;
            if fields.flag("mlp_bias", false)? {
                return Err(ModelError::unsupported("mlp_bias", "llama MLPs without bias are"));
            }
            let rope =
                rope_from_config(&fields, "full_attention", "rope_theta", 10_000.0, sizes.shape.head_dim)?;
            (sizes, rope, false, fields.flag("attention_bias", false)?)
        };
        if checkpoint.tensor("blk.0.ffn_gate_inp.weight").is_some() {
            return Err(ModelError::unsupported("a llama with experts", "dense llama models are"));
        }
        build(checkpoint, self.name(), sizes, rope, Options { interleaved, biased, head_norms: false })
    }
}

/// Names of the activation of llama-shaped MLPs.
pub(super) const SILU: [&str; 2] = ["silu", "swish"];

/// What sets the llama-shaped families apart.
pub(super) struct Options {
    /// Rope turns neighbouring pairs.
    pub interleaved: bool,
    /// The attention projections have biases.
    pub biased: bool,
    /// Queries and keys are normed per head.
    pub head_norms: bool,
}

/// Tensor names of a llama-shaped checkpoint.
struct Names {
    gguf: bool,
}

impl Names {
    fn outer(&self, hf: &'static str, gguf: &'static str) -> &'static str {
        if self.gguf { gguf } else { hf }
    }

    fn layer(&self, layer: u32, hf: &str, gguf: &str, kind: &str) -> String {
        if self.gguf {
            format!("blk.{layer}.{gguf}.{kind}")
        } else {
            format!("model.layers.{layer}.{hf}.{kind}")
        }
    }
}

/// Builds a llama-shaped model.
pub(super) fn build(
    checkpoint: &Checkpoint,
    architecture: &str,
    sizes: Dense,
    rope: Rope,
    options: Options,
) -> Result<Model, ModelError> {
    let Dense { vocab, hidden, layers, ffn, shape, eps, .. } = sizes;
    let names = Names { gguf: checkpoint.metadata().is_some() };
    let mut w = Weights::new(checkpoint)?;
    let mut g = GraphBuilder::new();
    let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);

    let table = w.embedding(names.outer("model.embed_tokens.weight", "token_embd.weight"), vocab, hidden)?;
    let x = g.embed(table, hidden, 1.0);
    for layer in 0..layers {
        g.scope(format!("layers.{layer}"));
        let norm = w.vector(&names.layer(layer, "input_layernorm", "attn_norm", "weight"), hidden)?;
        let h = g.rms_norm("attn_norm", x, norm, false, eps);

        let mut projection = |hf: &str,
                              gguf: &str,
                              rows: u32,
                              cols: u32|
         -> Result<(MatrixId, Option<VectorId>), ModelError> {
            let matrix = w.matrix(&names.layer(layer, hf, gguf, "weight"), rows, cols)?;
            let bias = if options.biased {
                let name = names.layer(layer, hf, gguf, "bias");
                // GGUF files may leave out the output bias.
                if w.has(&name, true) || !names.gguf { Some(w.vector(&name, rows)?) } else { None }
            } else {
                None
            };
            Ok((matrix, bias))
        };
        let q = projection("self_attn.q_proj", "attn_q", queries, hidden)?;
        let k = projection("self_attn.k_proj", "attn_k", keys, hidden)?;
        let v = projection("self_attn.v_proj", "attn_v", keys, hidden)?;
        let o = projection("self_attn.o_proj", "attn_output", hidden, queries)?;
        let qkv = g.tensor("qkv", shape.qkv_width(), Rows::Tokens);
        g.push(
            "qkv",
            Op::Linear {
                x: h,
                parts: vec![q.0, k.0, v.0],
                bias: biases(&[q.1, k.1, v.1]),
                out: qkv,
                accumulate: false,
            },
        );

        let mut head_norm = |hf: &str, gguf: &str| -> Result<Option<HeadNorm>, ModelError> {
            if !options.head_norms {
                return Ok(None);
            }
            let weight = w.vector(&names.layer(layer, hf, gguf, "weight"), shape.head_dim)?;
            Ok(Some(HeadNorm { weight, plus_one: false, eps }))
        };
        let attention = Attention {
            q_norm: head_norm("self_attn.q_norm", "attn_q_norm")?,
            k_norm: head_norm("self_attn.k_norm", "attn_k_norm")?,
            rotation: Some(Rotation { rope: RopeId(0), interleaved: options.interleaved }),
            ..Attention::plain(shape, StateId(layer), (1.0 / f64::from(shape.head_dim).sqrt()) as f32)
        };
        let attended = g.attention(qkv, attention);
        g.push(
            "attn_output",
            Op::Linear { x: attended, parts: vec![o.0], bias: biases(&[o.1]), out: x, accumulate: true },
        );

        let norm = w.vector(&names.layer(layer, "post_attention_layernorm", "ffn_norm", "weight"), hidden)?;
        let h = g.rms_norm("ffn_norm", x, norm, false, eps);
        let gate = w.matrix(&names.layer(layer, "mlp.gate_proj", "ffn_gate", "weight"), ffn, hidden)?;
        let up = w.matrix(&names.layer(layer, "mlp.up_proj", "ffn_up", "weight"), ffn, hidden)?;
        let down = w.matrix(&names.layer(layer, "mlp.down_proj", "ffn_down", "weight"), hidden, ffn)?;
        let gate_up = g.linear("gate_up", h, &[gate, up], 2 * ffn);
        let h = g.gate(gate_up, Activation::Silu);
        g.linear_add("down", h, &[down], x);
    }
    g.scope("");
    let rows = g.select_rows(x);
    let norm = w.vector(names.outer("model.norm.weight", "output_norm.weight"), hidden)?;
    let h = g.rms_norm("output_norm", rows, norm, false, eps);
    let name = names.outer("lm_head.weight", "output.weight");
    let head = w.head(sizes.tied.then_some(table), name, vocab, hidden)?;
    let logits = g.linear("logits", h, &[head], vocab);

    let (matrices, vectors) = w.finish();
    Ok(Model {
        name: checkpoint.name().to_owned(),
        architecture: architecture.to_owned(),
        vocab,
        hidden,
        context_max: sizes.context_max,
        layers,
        matrices,
        vectors,
        states: vec![State::KvFull { shape }; layers as usize],
        ropes: vec![rope],
        graph: g.finish(logits),
        notes: vec![],
        extras: Default::default(),
    })
}

pub(super) fn biases(all: &[Option<VectorId>]) -> Vec<Option<VectorId>> {
    if all.iter().all(Option::is_none) { Vec::new() } else { all.to_vec() }
}
