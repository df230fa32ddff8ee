//! nemotron_h: layers of one mixer each, `x + mixer(rms(x)·w)`: Mamba2, attention without positions, a squared-ReLU
//! MLP, or a mixture of such MLPs with a sigmoid router.

mod blocks;
mod config;
mod drafts;
mod gguf;

use config::{Config, Kind, from_config};
pub(super) use config::{MAX_EXPERTS, Moe, bounded, check_outer, moe_checked, one_of, shape_checked};

use super::Architecture;
use super::mamba::{Names, linear};
use super::weights::{ExpertNames, Weights};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{Activation, Attention, GraphBuilder, MatrixId, Router, Rows, Scoring, StateId, TensorId};
use crate::model::{Extras, Model, STATE_KEPT, State};
use plimsoll_kernels::AttentionShape;

/// The spelling of models whose layers have sizes of their own.
const PUZZLE: &str = "nemotron_h_puzzle";

/// The nemotron_h family.
pub struct NemotronH;

impl Architecture for NemotronH {
    fn name(&self) -> &'static str {
        "nemotron_h"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["nemotron_h_moe", PUZZLE]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let gguf = checkpoint.metadata().is_some();
        let config = if gguf {
            let arch = super::stated(checkpoint).unwrap_or_default();
            gguf::from_gguf(checkpoint, &arch)?
        } else {
            from_config(checkpoint)?
        };
        let w = Weights::new(checkpoint)?;
        let tables = Tables::of(&w, gguf);
        let mut builder = Builder { w, g: GraphBuilder::new(), config: &config, tables, states: vec![] };
        let logits = builder.build()?;
        let Builder { w, g, states, .. } = builder;
        let (matrices, vectors) = w.finish();
        let (draft, tensors) = drafts::drafts(checkpoint, &config)?;
        // Layers with sizes of their own are made of the same operations, but no run has been compared.
        let puzzle = super::stated(checkpoint).is_some_and(|stated| stated == PUZZLE);
        let estimate_only =
            puzzle.then(|| format!("{PUZZLE}: its logits have not been compared with a reference"));
        Ok(Model {
            name: checkpoint.name().to_owned(),
            architecture: self.name().to_owned(),
            vocab: config.vocab,
            hidden: config.hidden,
            context_max: config.context_max,
            layers: config.kinds.len() as u32,
            matrices,
            vectors,
            states,
            ropes: vec![],
            graph: g.finish(logits),
            notes: notes(&config),
            extras: Extras {
                estimate_only,
                draft,
                tensors,
                state_chunk: config.state_chunk,
                ..Extras::default()
            },
        })
    }
}

fn notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(dtype) = config.state_dtype.as_ref().filter(|dtype| *dtype != "float32") {
        let dtype = crate::error::quoted(dtype);
        notes.push(format!("the checkpoint asks for a recurrent state in {dtype}{STATE_KEPT}"));
    }
    notes.extend(config.mamba.and_then(|mixer| dt_note(mixer.dt_limit)));
    notes
}

/// What to say of bounds of Δ.
pub(super) fn dt_note(limit: Option<[f32; 2]>) -> Option<String> {
    limit.map(|[low, high]| {
        format!("time_step_limit [{low}, {high}] holds in prompts and in decoding; the reference clamps prompts only")
    })
}

/// Where a checkpoint keeps its tables and layers.
pub(super) struct Tables {
    gguf: bool,
    prefix: String,
    pub embedding: String,
    norm: String,
    head: String,
}

impl Tables {
    /// As the tensors have them; as published where there are none.
    pub(super) fn of(w: &Weights<'_>, gguf: bool) -> Self {
        if gguf {
            return Self {
                gguf,
                prefix: "blk".into(),
                embedding: "token_embd.weight".into(),
                norm: "output_norm.weight".into(),
                head: "output.weight".into(),
            };
        }
        let has = |name: &str| w.has(name, false);
        let prefix = ["backbone", "model.backbone", "model"]
            .into_iter()
            .find(|prefix| has(&format!("{prefix}.norm_f.weight")))
            .unwrap_or("backbone");
        let embedding = ["embeddings", "embed_tokens", "embedding"]
            .into_iter()
            .map(|name| format!("{prefix}.{name}.weight"))
            .find(|name| has(name))
            .unwrap_or_else(|| format!("{prefix}.embeddings.weight"));
        let head = if has("model.lm_head.weight") { "model.lm_head.weight" } else { "lm_head.weight" };
        Self {
            gguf,
            norm: format!("{prefix}.norm_f.weight"),
            prefix: format!("{prefix}.layers"),
            embedding,
            head: head.into(),
        }
    }

    /// Of the layers that draft, which have no tables of their own.
    fn drafts() -> Self {
        let none = String::new;
        Self { gguf: false, prefix: "mtp.layers".into(), embedding: none(), norm: none(), head: none() }
    }

    /// The norm before a layer's mixer.
    pub(super) fn layer_norm(&self, layer: u32) -> String {
        let name = if self.gguf { "attn_norm" } else { "norm" };
        format!("{}.{layer}.{name}.weight", self.prefix)
    }

    /// What the names of a layer's mixer begin with.
    pub(super) fn mixer(&self, layer: u32) -> String {
        format!("{}.{layer}.mixer", self.prefix)
    }

    /// A part of a layer's mixer.
    fn part(&self, layer: u32, reference: &str, gguf: &str) -> String {
        if self.gguf { format!("blk.{layer}.{gguf}") } else { format!("{}.{reference}", self.mixer(layer)) }
    }
}

/// The final norm and the head, `tied` to the embedding or not.
pub(super) fn finish(
    w: &mut Weights<'_>,
    g: &mut GraphBuilder,
    tables: &Tables,
    x: TensorId,
    tied: Option<MatrixId>,
    vocab: u32,
    eps: f32,
) -> Result<TensorId, ModelError> {
    g.scope("");
    let rows = g.select_rows(x);
    let norm = w.vector(&tables.norm, g.width(x))?;
    let h = g.rms_norm("output_norm", rows, norm, false, eps);
    let head = w.head(tied, &tables.head, vocab, g.width(x))?;
    Ok(g.linear("logits", h, &[head], vocab))
}

struct Builder<'a> {
    w: Weights<'a>,
    g: GraphBuilder,
    config: &'a Config,
    tables: Tables,
    states: Vec<State>,
}

impl Builder<'_> {
    fn build(&mut self) -> Result<TensorId, ModelError> {
        let Config { vocab, hidden, eps, tied, .. } = *self.config;
        let table = self.w.embedding(&self.tables.embedding, vocab, hidden)?;
        let x = self.g.embed(table, hidden, 1.0);
        for (layer, kind) in (0u32..).zip(&self.config.kinds) {
            self.g.scope(format!("layers.{layer}"));
            self.layer(layer, kind, x)?;
        }
        finish(&mut self.w, &mut self.g, &self.tables, x, tied.then_some(table), vocab, eps)
    }

    /// `x += mixer(norm(x))`.
    fn layer(&mut self, layer: u32, kind: &Kind, x: TensorId) -> Result<(), ModelError> {
        let Config { hidden, eps, mlp_bias, .. } = *self.config;
        let norm = self.w.vector(&self.tables.layer_norm(layer), hidden)?;
        let h = self.g.rms_norm("norm", x, norm, false, eps);
        match kind {
            Kind::Mamba => self.mamba(layer, h, x),
            Kind::Attention(shape) => self.attention(layer, *shape, h, x),
            Kind::Mlp(width) => {
                let names = [("up_proj", "ffn_up"), ("down_proj", "ffn_down")];
                self.mlp(layer, "", names, *width, mlp_bias, h, x)
            }
            Kind::Moe(moe) => self.moe(layer, moe, h, x),
        }
    }

    fn state(&mut self, state: State) -> StateId {
        self.states.push(state);
        StateId(self.states.len() as u32 - 1)
    }

    fn mamba(&mut self, layer: u32, h: TensorId, x: TensorId) -> Result<(), ModelError> {
        let mixer =
            self.config.mamba.ok_or_else(|| ModelError::field("mamba_num_heads", "a size", "nothing"))?;
        let names =
            if self.tables.gguf { Names::gguf(layer) } else { Names::reference(&self.tables.mixer(layer)) };
        let state = self.state(mixer.state());
        mixer.build(&mut self.w, &mut self.g, &names, state, h, x)
    }

    fn attention(
        &mut self,
        layer: u32,
        shape: AttentionShape,
        h: TensorId,
        x: TensorId,
    ) -> Result<(), ModelError> {
        let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let hidden = self.config.hidden;
        let state = self.state(State::KvFull { shape });
        let mut project = |reference: &str, gguf: &str, rows: u32, cols: u32| {
            let name = self.tables.part(layer, reference, gguf);
            let matrix = self.w.matrix(&format!("{name}.weight"), rows, cols)?;
            let bias =
                self.w.bias("attention_bias", self.config.attention_bias, &format!("{name}.bias"), rows)?;
            Ok::<_, ModelError>((matrix, bias))
        };
        let q = project("q_proj", "attn_q", queries, hidden)?;
        let k = project("k_proj", "attn_k", keys, hidden)?;
        let v = project("v_proj", "attn_v", keys, hidden)?;
        let o = project("o_proj", "attn_output", hidden, queries)?;
        let g = &mut self.g;
        let qkv = g.tensor("qkv", shape.qkv_width(), Rows::Tokens);
        linear(g, "qkv", h, &[q, k, v], qkv, false);
        // No positions: the Mamba2 layers carry the order. `rope_theta` in configurations has no effect.
        let scale = (1.0 / f64::from(shape.head_dim).sqrt()) as f32;
        let attended = g.attention(qkv, Attention::plain(shape, state, scale));
        linear(g, "attn_output", attended, &[o], x, true);
        Ok(())
    }

    /// `to += down(relu(up(h))²)`.
    #[allow(clippy::too_many_arguments)] // one call each for two kinds of MLP, whose names differ
    fn mlp(
        &mut self,
        layer: u32,
        label: &str,
        [up, down]: [(&str, &str); 2],
        width: u32,
        bias: Option<bool>,
        h: TensorId,
        to: TensorId,
    ) -> Result<(), ModelError> {
        let hidden = self.config.hidden;
        let mut part = |(reference, gguf): (&str, &str), rows: u32, cols: u32| {
            let name = self.tables.part(layer, reference, gguf);
            let matrix = self.w.matrix(&format!("{name}.weight"), rows, cols)?;
            let bias = self.w.bias("mlp_bias", bias, &format!("{name}.bias"), rows)?;
            Ok::<_, ModelError>((matrix, bias))
        };
        let (up, down) = (part(up, width, hidden)?, part(down, hidden, width)?);
        let g = &mut self.g;
        let inner = g.tensor(&format!("{label}up"), width, Rows::Tokens);
        linear(g, &format!("{label}up"), h, &[up], inner, false);
        g.activate(inner, Activation::ReluSquared);
        linear(g, &format!("{label}down"), inner, &[down], to, true);
        Ok(())
    }

    fn moe(&mut self, layer: u32, moe: &Moe, h: TensorId, x: TensorId) -> Result<(), ModelError> {
        let hidden = self.config.hidden;
        let name = |reference: &str, gguf: &str| self.tables.part(layer, reference, gguf);
        let gate = self.w.parameter(&name("gate.weight", "ffn_gate_inp.weight"), moe.experts, hidden)?;
        let correction =
            self.w.vector(&name("gate.e_score_correction_bias", "exp_probs_b.bias"), moe.experts)?;
        let logits = self.g.linear("router", h, &[gate], moe.experts);
        let router = Router {
            bias: Some(correction),
            groups: moe.groups,
            normalise: moe.normalise,
            scale: moe.scale,
            ..Router::plain(moe.top, Scoring::Sigmoid)
        };
        let routing = self.g.route(logits, router);

        let seen = moe.latent.unwrap_or(hidden);
        let input = match moe.latent {
            None => h,
            Some(latent) => {
                let down = name("fc1_latent_proj.weight", "ffn_latent_down.weight");
                let down = self.w.matrix(&down, latent, hidden)?;
                self.g.linear("latent_down", h, &[down], latent)
            }
        };
        let up = self.stack(layer, moe.experts, ("fc1", "up", "ffn_up_exps"), moe.width, seen)?;
        let down = self.stack(layer, moe.experts, ("fc2", "down", "ffn_down_exps"), seen, moe.width)?;
        let inner = self.g.experts("experts_up", input, routing, up, moe.width);
        self.g.activate(inner, Activation::ReluSquared);
        let outer = self.g.experts("experts_down", inner, routing, down, seen);
        match moe.latent {
            None => self.g.combine_add(outer, routing, x),
            Some(latent) => {
                let combined = self.g.combine(outer, routing);
                let name = self.tables.part(layer, "fc2_latent_proj.weight", "ffn_latent_up.weight");
                let up = self.w.matrix(&name, hidden, latent)?;
                self.g.linear_add("latent_up", combined, &[up], x);
            }
        }
        let shared =
            [("shared_experts.up_proj", "ffn_up_shexp"), ("shared_experts.down_proj", "ffn_down_shexp")];
        match moe.shared {
            Some(width) => self.mlp(layer, "shared_", shared, width, None, h, x),
            None => {
                let name = self.tables.part(layer, shared[0].0, shared[0].1);
                if self.w.has(&format!("{name}.weight"), false) {
                    return Err(ModelError::field("n_shared_experts", "1, as its tensors are there", "0"));
                }
                Ok(())
            }
        }
    }

    /// A stack of experts by its MLX, reference and GGUF names.
    fn stack(
        &mut self,
        layer: u32,
        experts: u32,
        (mlx, reference, gguf): (&str, &str, &str),
        rows: u32,
        cols: u32,
    ) -> Result<MatrixId, ModelError> {
        if self.tables.gguf {
            let stacked = [format!("blk.{layer}.{gguf}.weight")];
            return self.w.experts(&ExpertNames { stacked: &stacked, separate: None }, experts, rows, cols);
        }
        let mixer = self.tables.mixer(layer);
        let stacked =
            [format!("{mixer}.switch_mlp.{mlx}.weight"), format!("{mixer}.experts.{reference}_proj")];
        let separate = |expert: u32| format!("{mixer}.experts.{expert}.{reference}_proj.weight");
        self.w.experts(&ExpertNames { stacked: &stacked, separate: Some(&separate) }, experts, rows, cols)
    }
}
