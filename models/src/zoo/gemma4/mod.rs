//! gemma4 text: plain norms around attention and MLP, values that may be keys, layers that share the keys and values of
//! earlier ones, an embedding for each layer, experts beside the MLP.

mod config;
mod gguf;
mod names;

use self::config::{Config, Layer, Moe, from_config};
use self::gguf::from_gguf;
use self::names::Names;
use super::Architecture;
use super::dense::Dense;
use super::fields::Fields;
use super::weights::{ExpertNames, GateUpNames, Weights};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{
    Activation, Attention, GraphBuilder, HeadNorm, Keys, Multiply, RopeId, Rotation, Router, Scoring,
    StateId, TensorId, VectorId,
};
use crate::model::{Model, State};

/// The gemma4 family, text models and the text half of multimodal ones.
pub struct Gemma4;

/// Rope of the full layers.
const FULL: RopeId = RopeId(0);
/// Rope of the sliding layers.
const SLIDING: RopeId = RopeId(1);

impl Architecture for Gemma4 {
    fn name(&self) -> &'static str {
        "gemma4"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["gemma4_text"]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let (config, names) = match checkpoint.metadata() {
            Some(_) => (from_gguf(checkpoint)?, Names::gguf()),
            None => {
                let fields = Fields::of(checkpoint)?;
                (from_config(&fields)?, Names::reference(checkpoint, &fields))
            }
        };
        let builder = Builder { names, w: Weights::new(checkpoint)?, g: GraphBuilder::new(), config };
        builder.build(checkpoint, self.name())
    }
}

struct Builder<'a> {
    names: Names,
    w: Weights<'a>,
    g: GraphBuilder,
    config: Config,
}

impl Builder<'_> {
    fn norm(&mut self, layer: u32, part: &str, x: TensorId) -> Result<TensorId, ModelError> {
        let Dense { hidden, eps, .. } = self.config.sizes;
        let weight = self.w.vector(&self.names.layer(layer, part), hidden)?;
        Ok(self.g.rms_norm(part, x, weight, false, eps))
    }

    fn norm_add(&mut self, layer: u32, part: &str, x: TensorId, to: TensorId) -> Result<(), ModelError> {
        let Dense { hidden, eps, .. } = self.config.sizes;
        let weight = self.w.vector(&self.names.layer(layer, part), hidden)?;
        self.g.rms_norm_add(part, x, weight, false, eps, to);
        Ok(())
    }

    /// Factors that GGUF files may lack, as their public reader lets them: of every layer, or of none.
    fn scalars(&mut self, layer: u32, part: &str, len: u32) -> Result<Option<VectorId>, ModelError> {
        let name = self.names.bare(layer, part);
        let mut layers = 0..self.config.sizes.layers;
        if self.names.is_gguf() && !layers.any(|layer| self.w.has(&self.names.bare(layer, part), false)) {
            return Ok(None);
        }
        self.w.vector(&name, len).map(Some)
    }

    fn build(mut self, checkpoint: &Checkpoint, architecture: &str) -> Result<Model, ModelError> {
        let Dense { vocab, hidden, layers, eps, tied, context_max, .. } = self.config.sizes;
        let table = self.w.embedding(&self.names.outer("embed_tokens"), vocab, hidden)?;
        let x = self.g.embed(table, hidden, f64::from(hidden).sqrt() as f32);
        let own = self.own_embeddings(x)?;
        for (number, layer) in (0..).zip(self.config.layers.clone()) {
            self.g.scope(format!("layers.{number}"));
            self.attention(number, &layer, x)?;
            self.feed_forward(number, &layer, x)?;
            if let Some(own) = own {
                self.own_embedding(number, own, x)?;
            }
            if let Some(scalar) = self.scalars(number, "layer_scalar", 1)? {
                self.g.scale("layer_scalar", x, 1.0, Some(scalar));
            }
        }
        self.g.scope("");
        let rows = self.g.select_rows(x);
        let norm = self.w.vector(&self.names.outer("norm"), hidden)?;
        let h = self.g.rms_norm("output_norm", rows, norm, false, eps);
        let head = self.w.head(tied.then_some(table), &self.names.outer("lm_head"), vocab, hidden)?;
        let logits = self.g.linear("logits", h, &[head], vocab);
        if let Some(cap) = self.config.softcap {
            self.g.softcap(logits, cap);
        }

        let window = self.config.window;
        let keeps = self.config.layers.iter().filter(|layer| layer.keys != Keys::Shared);
        let states = keeps.map(|&Layer { sliding, shape, .. }| match sliding {
            true => State::KvSliding { shape, window },
            false => State::KvFull { shape },
        });
        let (matrices, vectors) = self.w.finish();
        Ok(Model {
            name: checkpoint.name().to_owned(),
            architecture: architecture.to_owned(),
            vocab,
            hidden,
            context_max,
            layers,
            matrices,
            vectors,
            states: states.collect(),
            ropes: self.config.ropes,
            graph: self.g.finish(logits),
            notes: self.config.notes,
            extras: Default::default(),
        })
    }

    fn attention(&mut self, number: u32, layer: &Layer, x: TensorId) -> Result<(), ModelError> {
        let Dense { hidden, eps, .. } = self.config.sizes;
        let Layer { shape, keys, sliding, state, .. } = *layer;
        let h = self.norm(number, "input_layernorm", x)?;
        let (queries, rows) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let mut parts =
            vec![self.w.matrix(&self.names.layer(number, "self_attn.q_proj"), queries, hidden)?];
        if keys != Keys::Shared {
            parts.push(self.w.matrix(&self.names.layer(number, "self_attn.k_proj"), rows, hidden)?);
        }
        if keys == Keys::Own {
            parts.push(self.w.matrix(&self.names.layer(number, "self_attn.v_proj"), rows, hidden)?);
        }
        let qkv = self.g.linear("qkv", h, &parts, keys.width(&shape));
        let mut head_norm = |part: &str| -> Result<Option<HeadNorm>, ModelError> {
            let weight = self.w.vector(&self.names.layer(number, part), shape.head_dim)?;
            Ok(Some(HeadNorm { weight, plus_one: false, eps }))
        };
        let q_norm = head_norm("self_attn.q_norm")?;
        let (k_norm, v_norm) = match keys {
            Keys::Shared => (None, None),
            Keys::Own | Keys::Values => (head_norm("self_attn.k_norm")?, Some(eps)),
        };
        let attention = Attention {
            q_norm,
            k_norm,
            v_norm,
            keys,
            rotation: Some(Rotation { rope: if sliding { SLIDING } else { FULL }, interleaved: false }),
            // The norms of queries and keys take the place of a factor.
            ..Attention::plain(shape, StateId(state), 1.0)
        };
        let h = self.g.attention(qkv, attention);
        let o = self.w.matrix(&self.names.layer(number, "self_attn.o_proj"), hidden, queries)?;
        let h = self.g.linear("attn_output", h, &[o], hidden);
        self.norm_add(number, "post_attention_layernorm", h, x)
    }

    fn feed_forward(&mut self, number: u32, layer: &Layer, x: TensorId) -> Result<(), ModelError> {
        let hidden = self.config.sizes.hidden;
        let ffn = layer.ffn;
        let h = self.norm(number, "pre_feedforward_layernorm", x)?;
        let gate = self.w.matrix(&self.names.layer(number, "mlp.gate_proj"), ffn, hidden)?;
        let up = self.w.matrix(&self.names.layer(number, "mlp.up_proj"), ffn, hidden)?;
        let down = self.w.matrix(&self.names.layer(number, "mlp.down_proj"), hidden, ffn)?;
        let gate_up = self.g.linear("gate_up", h, &[gate, up], 2 * ffn);
        let h = self.g.gate(gate_up, Activation::GeluTanh);
        let mut h = self.g.linear("down", h, &[down], hidden);
        if let Some(moe) = self.config.moe {
            h = self.norm(number, "post_feedforward_layernorm_1", h)?;
            let experts = self.experts(number, moe, x)?;
            self.norm_add(number, "post_feedforward_layernorm_2", experts, h)?;
        }
        self.norm_add(number, "post_feedforward_layernorm", h, x)
    }

    /// The experts of the residual `x`, which the router sees before the block's own norm.
    fn experts(&mut self, number: u32, moe: Moe, x: TensorId) -> Result<TensorId, ModelError> {
        let Dense { hidden, eps, .. } = self.config.sizes;
        let Moe { experts, top, width } = moe;
        // A norm without a weight, then a factor for each channel: the same as a norm with that weight.
        let weight = self.w.vector(&self.names.bare(number, "router.scale"), hidden)?;
        let h = self.g.rms_norm("router_norm", x, weight, false, eps);
        let proj = self.w.parameter(&self.names.layer(number, "router.proj"), experts, hidden)?;
        let logits = self.g.linear("router", h, &[proj], experts);
        let router = Router {
            expert_scale: self.scalars(number, "router.per_expert_scale", experts)?,
            logit_scale: f64::from(hidden).powf(-0.5) as f32,
            ..Router::plain(top, Scoring::Softmax)
        };
        let routing = self.g.route(logits, router);

        let h = self.norm(number, "pre_feedforward_layernorm_2", x)?;
        // Quantised checkpoints may have them one by one; newer ones have no `moe` in the names.
        let module = ["moe.experts", "experts"]
            .into_iter()
            .find(|module| self.w.has(&self.names.layer(number, &format!("{module}.0.down_proj")), false))
            .unwrap_or("experts");
        let part = |expert: u32, name: &str| self.names.layer(number, &format!("{module}.{expert}.{name}"));
        let one = |expert: u32, half: usize| part(expert, ["gate_proj", "up_proj"][half]);
        let one_by_one = !self.names.is_gguf();
        let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"]
            .map(|part| self.names.layer(number, &format!("experts.switch_glu.{part}")));
        let names = GateUpNames {
            fused: &self.names.bare(number, "experts.gate_up_proj"),
            transposed: false,
            split: [&gate, &up],
            separate: one_by_one.then_some(&one),
        };
        let gate_up = self.w.gate_up(&names, experts, width, hidden)?;
        let stacked = [self.names.bare(number, "experts.down_proj"), down];
        let one = |expert: u32| part(expert, "down_proj");
        let names = ExpertNames { stacked: &stacked, separate: one_by_one.then_some(&one) };
        let down = self.w.experts(&names, experts, hidden, width)?;
        let h = self.g.experts("experts_gate_up", h, routing, gate_up.matrix, 2 * width);
        let h = self.g.gate(h, Activation::GeluTanh);
        let h = self.g.experts("experts_down", h, routing, down, hidden);
        Ok(self.g.combine(h, routing))
    }

    /// The embeddings of all layers: a table's, plus what a projection makes of the model's own; by layer side by side.
    fn own_embeddings(&mut self, x: TensorId) -> Result<Option<TensorId>, ModelError> {
        let Dense { vocab, hidden, layers, eps, .. } = self.config.sizes;
        let size = self.config.own_embedding;
        if size == 0 {
            let of_layer = self.names.layer(0, "per_layer_input_gate");
            let unread = [self.names.outer("embed_tokens_per_layer"), of_layer];
            return match unread.iter().find(|name| self.w.has(name, false)) {
                None => Ok(None),
                Some(name) => {
                    let expected = format!("a size, as there is {name}");
                    Err(ModelError::field(self.names.own_embedding_key(), expected, "none"))
                }
            };
        }
        let all = layers * size;
        self.g.scope("own_embeddings");
        let table = self.w.embedding(&self.names.outer("embed_tokens_per_layer"), vocab, all)?;
        let out = self.g.embed(table, all, f64::from(size).sqrt() as f32);
        let proj = self.w.matrix(&self.names.outer("per_layer_model_projection"), all, hidden)?;
        let context = self.g.linear("projection", x, &[proj], all);
        let norm = self.w.vector(&self.names.outer("per_layer_projection_norm"), size)?;
        // The projection has a factor of hidden^-½ before the norm, which leaves of it only that eps weighs more.
        let eps = (f64::from(eps) * f64::from(hidden)) as f32;
        self.g.rms_norm_add("norm", context, norm, false, eps, out);
        self.g.scale("scale", out, std::f32::consts::FRAC_1_SQRT_2, None);
        Ok(Some(out))
    }

    /// `x += norm(proj(gelu(gate(x))·own))`.
    fn own_embedding(&mut self, number: u32, own: TensorId, x: TensorId) -> Result<(), ModelError> {
        let hidden = self.config.sizes.hidden;
        let size = self.config.own_embedding;
        let gate = self.w.matrix(&self.names.layer(number, "per_layer_input_gate"), size, hidden)?;
        let proj = self.w.matrix(&self.names.layer(number, "per_layer_projection"), hidden, size)?;
        let h = self.g.linear("own_gate", x, &[gate], size);
        let multiply = Multiply {
            column: number * size,
            activation: Some(Activation::GeluTanh),
            of_by: false,
            broadcast: false,
        };
        self.g.multiply("own_multiply", h, own, multiply);
        let h = self.g.linear("own_projection", h, &[proj], hidden);
        self.norm_add(number, "post_per_layer_input_norm", h, x)
    }
}
