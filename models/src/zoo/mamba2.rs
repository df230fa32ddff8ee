//! mamba2: Mamba2 mixers and nothing else.

use super::Architecture;
use super::dense::{epsilon, gguf_size, gguf_vocab, metadata, missing};
use super::fields::{Fields, Range};
use super::llama::SILU;
use super::mamba::{Mixer, Names, chunk, dt_limit, switch};
use super::nemotron_h::{Tables, check_outer, dt_note, finish};
use super::weights::Weights;
use crate::checkpoint::{Checkpoint, Source};
use crate::error::ModelError;
use crate::graph::{GraphBuilder, StateId};
use crate::model::{Extras, Model};
use plimsoll_kernels::SsmShape;

/// The mamba2 family.
pub struct Mamba2;

/// These models have no position limit and state none; public converters write this length.
const CONTEXT: u32 = 1 << 20;

struct Config {
    vocab: u32,
    hidden: u32,
    layers: u32,
    context_max: u32,
    tied: bool,
    mixer: Mixer,
    chunk: Option<u32>,
}

impl Architecture for Mamba2 {
    fn name(&self) -> &'static str {
        "mamba2"
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let gguf = checkpoint.metadata().is_some();
        let config = if gguf { from_gguf(checkpoint)? } else { from_config(checkpoint)? };
        let Config { vocab, hidden, layers, mixer, .. } = config;
        check_outer(vocab, hidden, layers, mixer.eps)?;
        let mut w = Weights::new(checkpoint)?;
        let mut g = GraphBuilder::new();
        let tables = Tables::of(&w, gguf);
        let table = w.embedding(&tables.embedding, vocab, hidden)?;
        let x = g.embed(table, hidden, 1.0);
        for layer in 0..layers {
            g.scope(format!("layers.{layer}"));
            let norm = w.vector(&tables.layer_norm(layer), hidden)?;
            let h = g.rms_norm("norm", x, norm, false, mixer.eps);
            let names = if gguf { Names::gguf(layer) } else { Names::reference(&tables.mixer(layer)) };
            mixer.build(&mut w, &mut g, &names, StateId(layer), h, x)?;
        }
        let logits = finish(&mut w, &mut g, &tables, x, config.tied.then_some(table), vocab, mixer.eps)?;
        let (matrices, vectors) = w.finish();
        Ok(Model {
            name: checkpoint.name().to_owned(),
            architecture: self.name().to_owned(),
            vocab,
            hidden,
            context_max: config.context_max,
            layers,
            matrices,
            vectors,
            states: vec![mixer.state(); layers as usize],
            ropes: vec![],
            graph: g.finish(logits),
            notes: dt_note(mixer.dt_limit).into_iter().collect(),
            extras: Extras { state_chunk: config.chunk, ..Extras::default() },
        })
    }
}

fn from_config(checkpoint: &Checkpoint) -> Result<Config, ModelError> {
    let fields = Fields::of(checkpoint)?;
    let bare = checkpoint.source() == Source::Config;
    fields.activation("hidden_act", &SILU)?;
    let hidden = fields.size("hidden_size", None)?;
    let shape = SsmShape {
        heads: fields.size("num_heads", Some(128))?,
        head_dim: fields.size("head_dim", Some(64))?,
        state: fields.size("state_size", Some(128))?,
        groups: fields.size("n_groups", Some(8))?,
    };
    let mixer = Mixer {
        shape,
        taps: fields.size("conv_kernel", Some(4))?,
        eps: fields.within("layer_norm_epsilon", Some(1e-5), Range::EPSILON)? as f32,
        dt_limit: dt_limit(&fields)?,
        conv_bias: switch(&fields, &["use_conv_bias"])?.resolve(bare, true),
        proj_bias: switch(&fields, &["use_bias"])?.resolve(bare, false),
    }
    .checked()?;
    let expand = fields.float("expand", Some(2.0))?;
    // A product of a decimal fraction is off by its last bits.
    if (expand * f64::from(hidden) - f64::from(shape.inner())).abs() > 1e-6 * f64::from(hidden) {
        return Err(ModelError::field(
            "num_heads × head_dim",
            format!("expand × hidden_size, {expand} × {hidden}"),
            shape.inner().to_string(),
        ));
    }
    Ok(Config {
        vocab: fields.size("vocab_size", Some(32_768))?,
        hidden,
        layers: fields.size("num_hidden_layers", None)?,
        context_max: fields.size("max_position_embeddings", Some(CONTEXT))?,
        tied: fields.flag("tie_word_embeddings", false)?,
        mixer,
        chunk: chunk(&fields)?,
    })
}

fn from_gguf(checkpoint: &Checkpoint) -> Result<Config, ModelError> {
    let meta = metadata(checkpoint)?;
    let required = |name: &str| {
        let key = format!("mamba2.{name}");
        gguf_size(meta, &key)?.ok_or_else(|| missing(&key))
    };
    let eps = epsilon(meta, "mamba2")?;
    Ok(Config {
        vocab: gguf_vocab(meta, "mamba2")?,
        hidden: required("embedding_length")?,
        layers: required("block_count")?,
        context_max: gguf_size(meta, "mamba2.context_length")?.unwrap_or(CONTEXT),
        tied: checkpoint.tensor("output.weight").is_none(),
        mixer: Mixer::from_gguf(meta, "mamba2", eps)?,
        chunk: None,
    })
}
