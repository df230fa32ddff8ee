//! gemma3 text: four norms a layer, head norms, sliding layers between full ones, scaled and tied embeddings,
//! GELU-gated MLP.

use super::Architecture;
use super::dense::{Defaults, Dense, gguf_size, metadata, rope_from_config, rope_from_gguf};
use super::fields::{Fields, Range, interval_note, shown, size};
use super::weights::Weights;
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::graph::{Activation, Attention, GraphBuilder, HeadNorm, RopeId, Rotation, StateId};
use crate::model::{Model, State};
use crate::rope::{Rope, Scaling};

/// The gemma3 family, text models and the text half of multimodal ones.
pub struct Gemma3;

/// Rope of the full layers.
const FULL: RopeId = RopeId(0);
/// Rope of the sliding layers.
const SLIDING: RopeId = RopeId(1);
/// Base of the sliding layers' rope where nothing states it.
const LOCAL_THETA: f64 = 10_000.0;
/// Every sixth layer is full where nothing states it.
const PATTERN: u32 = 6;

struct Config {
    sizes: Dense,
    window: u32,
    /// Per layer: attention over the window only.
    sliding: Vec<bool>,
    scale: f64,
    ropes: Vec<Rope>,
    softcap: Option<f32>,
    /// Norm weights are stored zero-centred (GGUF writers add the one).
    plus_one: bool,
    /// For [`Model::notes`].
    notes: Vec<String>,
}

impl Architecture for Gemma3 {
    fn name(&self) -> &'static str {
        "gemma3"
    }

    fn spellings(&self) -> &'static [&'static str] {
        &["gemma3_text"]
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let config = if checkpoint.metadata().is_some() {
            from_gguf(checkpoint)?
        } else {
            from_config(&Fields::of(checkpoint)?)?
        };
        build(checkpoint, self.name(), config)
    }
}

fn from_config(fields: &Fields<'_>) -> Result<Config, ModelError> {
    // Published files may leave all of these to the configuration class.
    let defaults = Defaults {
        vocab: Some(262_208),
        heads: Some(8),
        kv_heads: Some(4),
        head_dim: Some(256),
        eps: Some(1e-6),
        context: Some(131_072),
        tied: true,
    };
    let sizes = Dense::from_config(fields, &defaults)?;
    fields.activation("hidden_activation", &["gelu_pytorch_tanh", "gelu_new"])?;
    if fields.flag("use_bidirectional_attention", false)? {
        return Err(ModelError::unsupported("use_bidirectional_attention", "causal gemma3 is"));
    }
    if fields.flag("attention_bias", false)? {
        return Err(ModelError::unsupported("attention_bias", "gemma3 without biases is"));
    }
    if fields.get("attn_logit_softcapping").is_some() {
        return Err(ModelError::unsupported("attn_logit_softcapping", "gemma3 without it is, as published"));
    }
    let head_dim = sizes.shape.head_dim;
    // A list goes before an interval, which must be one all the same.
    let mut intervals = Vec::new();
    for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
        if let Some(value) = fields.get(key) {
            intervals.push((key, size(key, value)?));
        }
    }
    let (sliding, mut notes) = match fields.strings("layer_types")? {
        Some(types) => {
            let listed = layer_types(&types, sizes.layers)?;
            let note = |&(key, every)| interval_note(key, every, "layer_types", listed.iter().copied());
            let notes: Vec<String> = intervals.iter().filter_map(note).collect();
            (listed, notes)
        }
        None if intervals.iter().any(|(_, every)| *every != intervals[0].1) => {
            let expected = format!("the same value in all spellings, {}", intervals[0].1);
            return Err(ModelError::field(intervals[1].0, expected, intervals[1].1.to_string()));
        }
        None => (pattern(sizes.layers, intervals.first().map_or(PATTERN, |(_, every)| *every)), vec![]),
    };
    let key = "query_pre_attn_scalar";
    let query_scalar = fields.within(key, Some(256.0), Range::SCALAR)?;
    // The multimodal class does not apply the cap, the text-only class does.
    let key = "final_logit_softcapping";
    let softcap = if fields.is_nested() { None } else { fields.opt_within(key, Range::CAP)? };
    // Only the full layers are scaled; an old-style `rope_scaling` says nothing of the sliding ones.
    let full = rope_from_config(fields, "full_attention", "rope_theta", 1_000_000.0, head_dim)?;
    let local = match fields.get("rope_parameters").and_then(|p| p.get("sliding_attention")) {
        Some(_) => {
            rope_from_config(fields, "sliding_attention", "rope_local_base_freq", LOCAL_THETA, head_dim)?
        }
        None => {
            let theta = fields.within("rope_local_base_freq", Some(LOCAL_THETA), Range::THETA)?;
            Rope::new(theta, head_dim, Scaling::None)
        }
    };
    let (window, null) = fields.window(4096)?;
    notes.extend(null);
    Ok(Config {
        window,
        sliding,
        scale: query_scalar.powf(-0.5),
        ropes: vec![full, local],
        softcap: softcap.map(|cap| cap as f32),
        plus_one: true,
        notes,
        sizes,
    })
}

fn from_gguf(checkpoint: &Checkpoint) -> Result<Config, ModelError> {
    let meta = metadata(checkpoint)?;
    let sizes = Dense::from_gguf(checkpoint, "gemma3")?;
    let head_dim = sizes.shape.head_dim;
    let full = rope_from_gguf(checkpoint, "gemma3", 1_000_000.0, head_dim)?;
    let key = "gemma3.rope.freq_base_swa";
    let local = Range::THETA.check(key, meta.opt_f64(key)?.unwrap_or(LOCAL_THETA))?;
    let window = gguf_size(meta, "gemma3.attention.sliding_window")?
        .ok_or_else(|| ModelError::field("gemma3.attention.sliding_window", "a window", "nothing"))?;
    let key = "gemma3.final_logit_softcapping";
    let softcap = meta.opt_f64(key)?.map(|cap| Range::CAP.check(key, cap)).transpose()?;
    // The format has no key for the query scalar: the 27B model (62 layers) uses hidden / heads, others the head size.
    let query_scalar =
        if sizes.layers == 62 { f64::from(sizes.hidden / sizes.shape.heads) } else { f64::from(head_dim) };
    Ok(Config {
        window,
        sliding: pattern(sizes.layers, PATTERN),
        scale: query_scalar.powf(-0.5),
        ropes: vec![full, Rope::new(local, head_dim, Scaling::None)],
        softcap: softcap.map(|cap| cap as f32),
        plus_one: false,
        notes: vec![],
        sizes,
    })
}

/// Layer `i` is full where `(i + 1) % every == 0`.
fn pattern(layers: u32, every: u32) -> Vec<bool> {
    (1..=layers).map(|i| !i.is_multiple_of(every)).collect()
}

pub(super) fn layer_types(types: &[&str], layers: u32) -> Result<Vec<bool>, ModelError> {
    if types.len() != layers as usize {
        return Err(ModelError::field(
            "layer_types",
            format!("one for each of {layers} layers"),
            types.len().to_string(),
        ));
    }
    let one = |kind: &&str| match *kind {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => {
            Err(ModelError::field("layer_types", "sliding_attention or full_attention", shown(&other.into())))
        }
    };
    types.iter().map(one).collect()
}

/// Tensor names.
struct Names {
    gguf: bool,
    prefix: &'static str,
}

impl Names {
    fn of(checkpoint: &Checkpoint) -> Self {
        let prefixes = ["model.", "language_model.model.", "model.language_model."];
        let there = |prefix: &&str| checkpoint.names_tensor(&format!("{prefix}embed_tokens.weight"));
        Self {
            gguf: checkpoint.metadata().is_some(),
            prefix: prefixes.into_iter().find(there).unwrap_or("model."),
        }
    }

    fn outer(&self, hf: &str, gguf: &str) -> String {
        if self.gguf { format!("{gguf}.weight") } else { format!("{}{hf}.weight", self.prefix) }
    }

    fn layer(&self, layer: u32, hf: &str, gguf: &str) -> String {
        if self.gguf {
            format!("blk.{layer}.{gguf}.weight")
        } else {
            format!("{}layers.{layer}.{hf}.weight", self.prefix)
        }
    }
}

fn build(checkpoint: &Checkpoint, architecture: &str, config: Config) -> Result<Model, ModelError> {
    let Config { sizes, window, sliding, scale, ropes, softcap, plus_one, notes: told } = config;
    let Dense { vocab, hidden, layers, ffn, shape, eps, .. } = sizes;
    let names = Names::of(checkpoint);
    let mut w = Weights::new(checkpoint)?;
    let mut g = GraphBuilder::new();
    let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);

    let table = w.embedding(&names.outer("embed_tokens", "token_embd"), vocab, hidden)?;
    let x = g.embed(table, hidden, f64::from(hidden).sqrt() as f32);
    for (layer, &is_sliding) in (0..layers).zip(&sliding) {
        g.scope(format!("layers.{layer}"));
        let norm = w.vector(&names.layer(layer, "input_layernorm", "attn_norm"), hidden)?;
        let h = g.rms_norm("attn_norm", x, norm, plus_one, eps);
        let q = w.matrix(&names.layer(layer, "self_attn.q_proj", "attn_q"), queries, hidden)?;
        let k = w.matrix(&names.layer(layer, "self_attn.k_proj", "attn_k"), keys, hidden)?;
        let v = w.matrix(&names.layer(layer, "self_attn.v_proj", "attn_v"), keys, hidden)?;
        let qkv = g.linear("qkv", h, &[q, k, v], shape.qkv_width());
        let mut head_norm = |hf: &str, gguf: &str| -> Result<Option<HeadNorm>, ModelError> {
            let weight = w.vector(&names.layer(layer, hf, gguf), shape.head_dim)?;
            Ok(Some(HeadNorm { weight, plus_one, eps }))
        };
        let attention = Attention {
            q_norm: head_norm("self_attn.q_norm", "attn_q_norm")?,
            k_norm: head_norm("self_attn.k_norm", "attn_k_norm")?,
            rotation: Some(Rotation { rope: if is_sliding { SLIDING } else { FULL }, interleaved: false }),
            ..Attention::plain(shape, StateId(layer), scale as f32)
        };
        let h = g.attention(qkv, attention);
        let o = w.matrix(&names.layer(layer, "self_attn.o_proj", "attn_output"), hidden, queries)?;
        let h = g.linear("attn_output", h, &[o], hidden);
        let norm =
            w.vector(&names.layer(layer, "post_attention_layernorm", "post_attention_norm"), hidden)?;
        g.rms_norm_add("post_attention_norm", h, norm, plus_one, eps, x);

        let norm = w.vector(&names.layer(layer, "pre_feedforward_layernorm", "ffn_norm"), hidden)?;
        let h = g.rms_norm("ffn_norm", x, norm, plus_one, eps);
        let gate = w.matrix(&names.layer(layer, "mlp.gate_proj", "ffn_gate"), ffn, hidden)?;
        let up = w.matrix(&names.layer(layer, "mlp.up_proj", "ffn_up"), ffn, hidden)?;
        let down = w.matrix(&names.layer(layer, "mlp.down_proj", "ffn_down"), hidden, ffn)?;
        let gate_up = g.linear("gate_up", h, &[gate, up], 2 * ffn);
        let h = g.gate(gate_up, Activation::GeluTanh);
        let h = g.linear("down", h, &[down], hidden);
        let norm = w.vector(&names.layer(layer, "post_feedforward_layernorm", "post_ffw_norm"), hidden)?;
        g.rms_norm_add("post_ffw_norm", h, norm, plus_one, eps, x);
    }
    g.scope("");
    let rows = g.select_rows(x);
    let norm = w.vector(&names.outer("norm", "output_norm"), hidden)?;
    let h = g.rms_norm("output_norm", rows, norm, plus_one, eps);
    let name = if names.gguf { "output.weight" } else { "lm_head.weight" };
    let head = w.head(sizes.tied.then_some(table), name, vocab, hidden)?;
    let logits = g.linear("logits", h, &[head], vocab);
    if let Some(cap) = softcap {
        g.softcap(logits, cap);
    }

    let (matrices, vectors) = w.finish();
    let state = |s: &bool| if *s { State::KvSliding { shape, window } } else { State::KvFull { shape } };
    Ok(Model {
        name: checkpoint.name().to_owned(),
        architecture: architecture.to_owned(),
        vocab,
        hidden,
        context_max: sizes.context_max,
        layers,
        matrices,
        vectors,
        states: sliding.iter().map(state).collect(),
        ropes,
        graph: g.finish(logits),
        notes: told,
        extras: Default::default(),
    })
}
