//! gpt-oss: attention with sinks on alternating layers, YaRN, a biased router, and experts with bounded gates whose
//! weights are published in MXFP4.

mod gguf;
mod names;

use self::gguf::from_gguf;
use self::names::Names;
use super::Architecture;
use super::dense::{Defaults, Dense, rope_from_config};
use super::fields::{Fields, Range};
use super::gemma3::layer_types;
use super::llama::{SILU, biases};
use super::nemotron_h::one_of;
use super::weights::{GateUpNames, Weights};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{
    Attention, ClampedGate, GraphBuilder, Op, RopeId, Rotation, Router, Rows, Scoring, StateId, TensorId,
};
use crate::model::{Model, State};
use crate::rope::Rope;

/// The gpt-oss family.
pub struct GptOss;

/// What bounds the gates where nothing states it.
const LIMIT: f64 = 7.0;
/// The factor inside the gates' sigmoid where nothing states it.
const ALPHA: f64 = 1.702;

struct Config {
    sizes: Dense,
    window: u32,
    /// Per layer: attention over the window only.
    sliding: Vec<bool>,
    rope: Rope,
    experts: u32,
    top: u32,
    limit: f32,
    alpha: f32,
    /// For [`Model::notes`].
    notes: Vec<String>,
}

impl Architecture for GptOss {
    fn name(&self) -> &'static str {
        "gpt_oss"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["gpt-oss"]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let gguf = checkpoint.metadata().is_some();
        let config = if gguf { from_gguf(checkpoint)? } else { from_config(&Fields::of(checkpoint)?)? };
        build(checkpoint, self.name(), &config, Names { gguf })
    }
}

fn from_config(fields: &Fields<'_>) -> Result<Config, ModelError> {
    let defaults = Defaults {
        vocab: Some(201_088),
        heads: Some(64),
        kv_heads: Some(8),
        head_dim: Some(64),
        eps: Some(1e-5),
        context: Some(131_072),
        tied: false,
    };
    let sizes = Dense::from_config(fields, &defaults)?;
    fields.activation("hidden_act", &SILU)?;
    if !fields.flag("attention_bias", true)? {
        return Err(ModelError::unsupported("gpt-oss without attention_bias", "with biases it is"));
    }
    let sliding = match fields.strings("layer_types")? {
        Some(types) => layer_types(&types, sizes.layers)?,
        // Alternating, a sliding one first.
        None => (0..sizes.layers).map(|i| i.is_multiple_of(2)).collect(),
    };
    let experts = one_of(fields, &["num_local_experts", "num_experts"], Some(128))?;
    let keys = ["num_experts_per_tok", "experts_per_token"];
    let top = one_of(fields, &keys, Some(4))?;
    check_experts(experts, top, sizes.ffn, keys[0], "experts × intermediate_size")?;
    let (window, null) = fields.window(128)?;
    Ok(Config {
        window,
        sliding,
        rope: rope_from_config(fields, "full_attention", "rope_theta", 150_000.0, sizes.shape.head_dim)?,
        experts,
        top,
        limit: fields.within("swiglu_limit", Some(LIMIT), Range::CAP)? as f32,
        alpha: fields.within("swiglu_alpha", Some(ALPHA), Range::FACTOR)? as f32,
        notes: null.into_iter().collect(),
        sizes,
    })
}

/// By the keys of how many are chosen, and of how many there are times their width.
fn check_experts(
    experts: u32,
    top: u32,
    width: u32,
    top_key: &str,
    size_key: &str,
) -> Result<(), ModelError> {
    if top > experts {
        return Err(ModelError::field(top_key, format!("at most the {experts} experts"), top.to_string()));
    }
    if u64::from(experts) * 2 * u64::from(width) >= 1 << 31 {
        return Err(ModelError::field(size_key, "under 2^30", format!("{experts} × {width}")));
    }
    Ok(())
}

fn build(
    checkpoint: &Checkpoint,
    architecture: &str,
    config: &Config,
    names: Names,
) -> Result<Model, ModelError> {
    let Dense { vocab, hidden, layers, shape, eps, tied, context_max, .. } = config.sizes;
    let mut w = Weights::new(checkpoint)?;
    let mut g = GraphBuilder::new();
    let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);

    let table = w.embedding(&names.outer("embed_tokens"), vocab, hidden)?;
    let x = g.embed(table, hidden, 1.0);
    for layer in 0..layers {
        g.scope(format!("layers.{layer}"));
        let name = |part: &str| names.layer(layer, part);
        let norm = w.vector(&name("input_layernorm.weight"), hidden)?;
        let h = g.rms_norm("attn_norm", x, norm, false, eps);
        let (mut parts, mut bias) = (Vec::new(), Vec::new());
        for (part, rows) in [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)] {
            parts.push(w.matrix(&name(&format!("self_attn.{part}.weight")), rows, hidden)?);
            bias.push(Some(w.vector(&name(&format!("self_attn.{part}.bias")), rows)?));
        }
        let qkv = g.tensor("qkv", shape.qkv_width(), Rows::Tokens);
        g.push("qkv", Op::Linear { x: h, parts, bias: biases(&bias), out: qkv, accumulate: false });
        let attention = Attention {
            rotation: Some(Rotation { rope: RopeId(0), interleaved: false }),
            sinks: Some(w.vector(&name("self_attn.sinks"), shape.heads)?),
            ..Attention::plain(shape, StateId(layer), (1.0 / f64::from(shape.head_dim).sqrt()) as f32)
        };
        let attended = g.attention(qkv, attention);
        let o = w.matrix(&name("self_attn.o_proj.weight"), hidden, queries)?;
        let bias = vec![Some(w.vector(&name("self_attn.o_proj.bias"), hidden)?)];
        g.push("attn_output", Op::Linear { x: attended, parts: vec![o], bias, out: x, accumulate: true });

        let norm = w.vector(&name("post_attention_layernorm.weight"), hidden)?;
        let h = g.rms_norm("ffn_norm", x, norm, false, eps);
        experts(&mut w, &mut g, config, |part| names.layer(layer, &format!("mlp.{part}")), h, x)?;
    }
    g.scope("");
    let rows = g.select_rows(x);
    let norm = w.vector(&names.outer("norm"), hidden)?;
    let h = g.rms_norm("output_norm", rows, norm, false, eps);
    let head = w.head(tied.then_some(table), &names.outer("lm_head"), vocab, hidden)?;
    let logits = g.linear("logits", h, &[head], vocab);

    let (matrices, vectors) = w.finish();
    let window = config.window;
    let state = |s: &bool| if *s { State::KvSliding { shape, window } } else { State::KvFull { shape } };
    Ok(Model {
        name: checkpoint.name().to_owned(),
        architecture: architecture.to_owned(),
        vocab,
        hidden,
        context_max,
        layers,
        matrices,
        vectors,
        states: config.sliding.iter().map(state).collect(),
        ropes: vec![config.rope.clone()],
        graph: g.finish(logits),
        notes: config.notes.clone(),
        extras: Default::default(),
    })
}

/// The experts of `h`, added to `x`.
fn experts(
    w: &mut Weights<'_>,
    g: &mut GraphBuilder,
    config: &Config,
    name: impl Fn(&str) -> String,
    h: TensorId,
    x: TensorId,
) -> Result<(), ModelError> {
    let Dense { hidden, ffn, .. } = config.sizes;
    let count = config.experts;
    let router = w.parameter(&name("router.weight"), count, hidden)?;
    let bias = vec![Some(w.vector(&name("router.bias"), count)?)];
    let logits = g.tensor("router", count, Rows::Tokens);
    g.push("router", Op::Linear { x: h, parts: vec![router], bias, out: logits, accumulate: false });
    // A softmax of the chosen alone is one of all, divided by the sum of the chosen.
    let routing = g.route(logits, Router::plain(config.top, Scoring::Softmax));

    let fused = name("experts.gate_up_proj");
    let split = [name("experts.gate_proj.weight"), name("experts.up_proj.weight")];
    let split = [split[0].as_str(), split[1].as_str()];
    let names = GateUpNames { fused: &fused, transposed: true, split, separate: None };
    let gate_up = w.gate_up(&names, count, ffn, hidden)?;
    let apart = [name("experts.gate_proj.bias"), name("experts.up_proj.bias")];
    let apart = gate_up.split.then_some([apart[0].as_str(), apart[1].as_str()]);
    let bias = w.gate_up_bias(&name("experts.gate_up_proj_bias"), apart, count, ffn)?;
    let up = g.experts_biased("experts_gate_up", h, routing, gate_up.matrix, Some(bias), 2 * ffn);
    let gate = ClampedGate { limit: config.limit, alpha: config.alpha, interleaved: !gate_up.split };
    let gated = g.clamped_gate(up, gate);

    let down = if gate_up.split { "experts.down_proj.weight" } else { "experts.down_proj" };
    let bias = if gate_up.split { "experts.down_proj.bias" } else { "experts.down_proj_bias" };
    // Only where gates and ups are neighbours are matrices stored the other way round.
    let down = w.stack(&name(down), !gate_up.split, count, hidden, ffn)?;
    let bias = w.stacked_vector(&name(bias), count, hidden)?;
    let down = g.experts_biased("experts_down", gated, routing, down, Some(bias), hidden);
    g.combine_add(down, routing, x);
    Ok(())
}
