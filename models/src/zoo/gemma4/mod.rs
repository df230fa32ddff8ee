//! gemma4 text: plain norms around attention and MLP, values that may be keys, layers that share the keys and values of
//! earlier ones, an embedding for each layer, experts beside the MLP.

mod config;

use self::config::{Config, Layer, Moe, from_config};
use super::Architecture;
use super::dense::Dense;
use super::fields::Fields;
use super::weights::{GateUpNames, Weights};
use crate::checkpoint::{Checkpoint, Source};
use crate::error::ModelError;
use crate::graph::{
    Activation, Attention, GraphBuilder, HeadNorm, Keys, Multiply, RopeId, Rotation, Router, Scoring,
    StateId, TensorId,
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
        if checkpoint.metadata().is_some() {
            return Err(ModelError::unsupported("gemma4 in GGUF", "safetensors and MLX's form are"));
        }
        let fields = Fields::of(checkpoint)?;
        let config = from_config(&fields)?;
        let builder = Builder {
            prefix: prefix(checkpoint, &fields),
            w: Weights::new(checkpoint)?,
            g: GraphBuilder::new(),
            config,
        };
        builder.build(checkpoint, self.name())
    }
}

/// What the names of the text model's tensors begin with.
fn prefix(checkpoint: &Checkpoint, fields: &Fields<'_>) -> &'static str {
    const MLX: &str = "language_model.model.";
    const NESTED: &str = "model.language_model.";
    if checkpoint.source() == Source::Config {
        return match (fields.is_nested(), fields.get("quantization")) {
            (true, Some(_)) => MLX,
            (true, None) => NESTED,
            (false, _) => "model.",
        };
    }
    let there = |prefix: &&str| checkpoint.tensor(&format!("{prefix}embed_tokens.weight")).is_some();
    [NESTED, MLX].into_iter().find(there).unwrap_or("model.")
}

struct Builder<'a> {
    prefix: &'static str,
    w: Weights<'a>,
    g: GraphBuilder,
    config: Config,
}

impl Builder<'_> {
    fn outer(&self, part: &str) -> String {
        format!("{}{part}.weight", self.prefix)
    }

    /// A tensor of a layer, whatever it ends in.
    fn bare(&self, layer: u32, part: &str) -> String {
        format!("{}layers.{layer}.{part}", self.prefix)
    }

    fn named(&self, layer: u32, part: &str) -> String {
        format!("{}.weight", self.bare(layer, part))
    }

    fn norm(&mut self, layer: u32, part: &str, x: TensorId) -> Result<TensorId, ModelError> {
        let Dense { hidden, eps, .. } = self.config.sizes;
        let weight = self.w.vector(&self.named(layer, part), hidden)?;
        Ok(self.g.rms_norm(part, x, weight, false, eps))
    }

    fn norm_add(&mut self, layer: u32, part: &str, x: TensorId, to: TensorId) -> Result<(), ModelError> {
        let Dense { hidden, eps, .. } = self.config.sizes;
        let weight = self.w.vector(&self.named(layer, part), hidden)?;
        self.g.rms_norm_add(part, x, weight, false, eps, to);
        Ok(())
    }

    fn build(mut self, checkpoint: &Checkpoint, architecture: &str) -> Result<Model, ModelError> {
        let Dense { vocab, hidden, layers, eps, tied, context_max, .. } = self.config.sizes;
        let table = self.w.embedding(&self.outer("embed_tokens"), vocab, hidden)?;
        let x = self.g.embed(table, hidden, f64::from(hidden).sqrt() as f32);
        let own = self.own_embeddings(x)?;
        for (number, layer) in (0..).zip(self.config.layers.clone()) {
            self.g.scope(format!("layers.{number}"));
            self.attention(number, &layer, x)?;
            self.feed_forward(number, &layer, x)?;
            if let Some(own) = own {
                self.own_embedding(number, own, x)?;
            }
            let scalar = self.w.vector(&self.bare(number, "layer_scalar"), 1)?;
            self.g.scale("layer_scalar", x, 1.0, Some(scalar));
        }
        self.g.scope("");
        let rows = self.g.select_rows(x);
        let norm = self.w.vector(&self.outer("norm"), hidden)?;
        let h = self.g.rms_norm("output_norm", rows, norm, false, eps);
        let head = self.w.head(tied.then_some(table), "lm_head.weight", vocab, hidden)?;
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
            notes: vec![],
        })
    }

    fn attention(&mut self, number: u32, layer: &Layer, x: TensorId) -> Result<(), ModelError> {
        let Dense { hidden, eps, .. } = self.config.sizes;
        let Layer { shape, keys, sliding, state, .. } = *layer;
        let h = self.norm(number, "input_layernorm", x)?;
        let (queries, rows) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let mut parts = vec![self.w.matrix(&self.named(number, "self_attn.q_proj"), queries, hidden)?];
        if keys != Keys::Shared {
            parts.push(self.w.matrix(&self.named(number, "self_attn.k_proj"), rows, hidden)?);
        }
        if keys == Keys::Own {
            parts.push(self.w.matrix(&self.named(number, "self_attn.v_proj"), rows, hidden)?);
        }
        let qkv = self.g.linear("qkv", h, &parts, keys.width(&shape));
        let mut head_norm = |part: &str| -> Result<Option<HeadNorm>, ModelError> {
            let weight =
                self.w.vector(&format!("{}layers.{number}.{part}.weight", self.prefix), shape.head_dim)?;
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
        let o = self.w.matrix(&self.named(number, "self_attn.o_proj"), hidden, queries)?;
        let h = self.g.linear("attn_output", h, &[o], hidden);
        self.norm_add(number, "post_attention_layernorm", h, x)
    }

    fn feed_forward(&mut self, number: u32, layer: &Layer, x: TensorId) -> Result<(), ModelError> {
        let hidden = self.config.sizes.hidden;
        let ffn = layer.ffn;
        let h = self.norm(number, "pre_feedforward_layernorm", x)?;
        let gate = self.w.matrix(&self.named(number, "mlp.gate_proj"), ffn, hidden)?;
        let up = self.w.matrix(&self.named(number, "mlp.up_proj"), ffn, hidden)?;
        let down = self.w.matrix(&self.named(number, "mlp.down_proj"), hidden, ffn)?;
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
        let weight = self.w.vector(&self.bare(number, "router.scale"), hidden)?;
        let h = self.g.rms_norm("router_norm", x, weight, false, eps);
        let proj = self.w.parameter(&self.named(number, "router.proj"), experts, hidden)?;
        let logits = self.g.linear("router", h, &[proj], experts);
        let own = self.w.vector(&self.bare(number, "router.per_expert_scale"), experts)?;
        let router = Router {
            expert_scale: Some(own),
            logit_scale: f64::from(hidden).powf(-0.5) as f32,
            ..Router::plain(top, Scoring::Softmax)
        };
        let routing = self.g.route(logits, router);

        let h = self.norm(number, "pre_feedforward_layernorm_2", x)?;
        let fused = self.bare(number, "experts.gate_up_proj");
        let gate = self.named(number, "experts.switch_glu.gate_proj");
        let up = self.named(number, "experts.switch_glu.up_proj");
        let names = GateUpNames { fused: &fused, transposed: false, split: [&gate, &up] };
        let gate_up = self.w.gate_up(&names, experts, width, hidden)?;
        let down = match gate_up.split {
            true => self.named(number, "experts.switch_glu.down_proj"),
            false => self.bare(number, "experts.down_proj"),
        };
        let down = self.w.stack(&down, false, experts, hidden, width)?;
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
            return Ok(None);
        }
        let all = layers * size;
        self.g.scope("own_embeddings");
        let table = self.w.embedding(&self.outer("embed_tokens_per_layer"), vocab, all)?;
        let out = self.g.embed(table, all, f64::from(size).sqrt() as f32);
        let proj = self.w.matrix(&self.outer("per_layer_model_projection"), all, hidden)?;
        let context = self.g.linear("projection", x, &[proj], all);
        let norm = self.w.vector(&self.outer("per_layer_projection_norm"), size)?;
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
        let gate = self.w.matrix(&self.named(number, "per_layer_input_gate"), size, hidden)?;
        let proj = self.w.matrix(&self.named(number, "per_layer_projection"), hidden, size)?;
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
