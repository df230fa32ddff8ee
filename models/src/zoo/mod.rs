//! The zoo: one folder-mate file per family, behind one trait, in a registry that strangers can extend.
//!
//! To add a family from your own crate, implement [`Architecture`], and register it:
//!
//! ```
//! use plimsoll_models::graph::GraphBuilder;
//! use plimsoll_models::zoo::{Architecture, Registry, fields::Fields, weights::Weights};
//! use plimsoll_models::{Checkpoint, Model, ModelError};
//!
//! /// The smallest family: an embedding and a tied head.
//! struct Bigram;
//! impl Architecture for Bigram {
//!     fn name(&self) -> &'static str { "bigram" }
//!     fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
//!         let fields = Fields::of(checkpoint)?;
//!         let (vocab, hidden) = (fields.size("vocab_size", None)?, fields.size("hidden_size", None)?);
//!         let mut weights = Weights::new(checkpoint)?;
//!         let table = weights.matrix("embed.weight", vocab, hidden)?;
//!         let mut g = GraphBuilder::new();
//!         let x = g.embed(table, hidden, 1.0);
//!         let rows = g.select_rows(x);
//!         let logits = g.linear("logits", rows, &[table], vocab);
//!         let (matrices, vectors) = weights.finish();
//!         Ok(Model {
//!             name: checkpoint.name().to_owned(), architecture: self.name().to_owned(), vocab, hidden,
//!             context_max: 2048, layers: 0, matrices, vectors, states: vec![], ropes: vec![],
//!             graph: g.finish(logits), notes: vec![], extras: Default::default(),
//!         })
//!     }
//! }
//! let mut registry = Registry::standard();
//! registry.register(Box::new(Bigram));
//! let config = br#"{"model_type": "bigram", "vocab_size": 100, "hidden_size": 8}"#;
//! let model = registry.build(&Checkpoint::from_config_bytes(config, "tiny")?)?;
//! assert_eq!(model.parameters(), 800);
//! # Ok::<(), ModelError>(())
//! ```

mod account;
mod beside;
pub mod dense;
pub mod fields;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod llama;
mod mamba;
mod mamba2;
mod nemotron_h;
mod packed;
mod priced;
mod quantization;
mod qwen3;
mod qwen_moe;
pub mod ropes;
mod unknown;
pub mod weights;

pub use gemma3::Gemma3;
pub use gemma4::Gemma4;
pub use gpt_oss::GptOss;
pub use llama::Llama;
pub use mamba2::Mamba2;
pub use nemotron_h::NemotronH;
pub use priced::{
    Afmoe, DeepSeek, GraniteHybrid, Lfm2, Llama4, Mistral, Mistral4, Phi3, Qwen2, Qwen3Vl, Qwen3VlMoe,
};
pub use qwen_moe::{Qwen3Moe, Qwen3Next, Qwen35, Qwen35Moe};
pub use qwen3::Qwen3;

use crate::checkpoint::{Checkpoint, Source};
use crate::error::ModelError;
use crate::model::Model;
use fields::Fields;

/// A family of models: the one thing to implement to add one.
pub trait Architecture: Send + Sync {
    /// The registry's name of the family, e.g. `qwen3`.
    fn name(&self) -> &'static str;

    /// What checkpoints call it: `model_type` of config.json, or `general.architecture` of GGUF. By default its name.
    fn spellings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether this family can read the checkpoint. By default: it says one of the spellings, or the name.
    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        stated(checkpoint).is_some_and(|s| s == self.name() || self.spellings().contains(&s.as_str()))
    }

    /// Reads the configuration, checks every tensor the model needs, and builds the graph of one step.
    ///
    /// # Errors
    /// A missing or contradictory field, a missing tensor, a wrong shape, a format without kernels.
    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError>;
}

/// Families, in the order they are asked.
pub struct Registry {
    families: Vec<Box<dyn Architecture>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::standard()
    }
}

impl Registry {
    /// The families of this crate.
    pub fn standard() -> Self {
        Self {
            families: vec![
                Box::new(Llama),
                Box::new(Qwen3),
                Box::new(Gemma3),
                Box::new(Gemma4),
                Box::new(GptOss),
                Box::new(NemotronH),
                Box::new(Mamba2),
                Box::new(Qwen3Moe),
                Box::new(Qwen35),
                Box::new(Qwen35Moe),
                Box::new(Qwen3Next),
                // Priced, not run.
                Box::new(DeepSeek),
                Box::new(Mistral),
                Box::new(Mistral4),
                Box::new(Qwen2),
                Box::new(Qwen3Vl),
                Box::new(Qwen3VlMoe),
                Box::new(Phi3),
                Box::new(Llama4),
                Box::new(GraniteHybrid),
                Box::new(Lfm2),
                Box::new(Afmoe),
            ],
        }
    }

    /// Adds a family; it is asked before those already there.
    pub fn register(&mut self, family: Box<dyn Architecture>) {
        self.families.insert(0, family);
    }

    /// Names of the families.
    pub fn names(&self) -> Vec<&'static str> {
        self.families.iter().map(|f| f.name()).collect()
    }

    /// The model of a checkpoint.
    ///
    /// # Errors
    /// [`ModelError::UnknownArchitecture`] when no family claims it, else what the family found;
    /// [`ModelError::Field`] when tensors of the text model are left that nothing reads.
    pub fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        named(checkpoint)?;
        let family = self.families.iter().find(|f| f.claims(checkpoint)).ok_or_else(|| {
            ModelError::UnknownArchitecture {
                // A name of a megabyte says no more than its beginning.
                stated: stated(checkpoint)
                    .map_or_else(|| "nothing".to_owned(), |name| name.chars().take(80).collect()),
                known: self.names().join(", "),
            }
        })?;
        let packed = quantization::Quantization::of(checkpoint)?;
        let priced = packed.priced;
        // What no kernel reads is priced by the configuration, and by which tensors there are.
        let names =
            priced.filter(|_| checkpoint.source() == Source::Safetensors).map(|_| checkpoint.by_names());
        let checkpoint = names.as_ref().unwrap_or(checkpoint);
        let mut model = family.build(checkpoint)?;
        model.extras.stated = unknown::stated(checkpoint);
        model.notes.extend(checkpoint.notes().iter().cloned());
        if checkpoint.source() == Source::Config {
            model.notes.extend(packed.missed(&model)?);
            model.notes.extend(weights::dtype_note(checkpoint)?);
        }
        model.notes.extend(packed.note);
        if let Some(why) = priced {
            model.extras.estimate_only.get_or_insert_with(|| why.to_owned());
            model.extras.nearest_weights = true;
            model.notes.push(why.to_owned());
        }
        beside::fill(checkpoint, &mut model)?;
        unknown::layers(checkpoint, &model)?;
        model.notes.extend(quantization::cache_note(checkpoint));
        let unread = unknown::memory_bearing(checkpoint);
        if !unread.is_empty() {
            model.notes.push(format!("not priced, and may cost memory: {}", unread.join(", ")));
        }
        let left = account::check(checkpoint, &model)?;
        model.notes.extend(beside::left_out(checkpoint, &model, &left));
        model.notes.extend(account::head_note(checkpoint, &model));
        Ok(model)
    }
}

/// That what the checkpoint says it is, if it says anything, is a name.
fn named(checkpoint: &Checkpoint) -> Result<(), ModelError> {
    if let Some(meta) = checkpoint.metadata() {
        return meta.opt_str("general.architecture").map(|_| ());
    }
    let value = Fields::of(checkpoint).ok().and_then(|fields| fields.get("model_type"));
    match value.filter(|value| !value.is_string()) {
        Some(value) => Err(ModelError::field("model_type", "the name of a family", fields::shown(value))),
        None => Ok(()),
    }
}

/// What the checkpoint says it is.
pub fn stated(checkpoint: &Checkpoint) -> Option<String> {
    if let Some(meta) = checkpoint.metadata() {
        return meta.opt_str("general.architecture").ok().flatten().map(str::to_owned);
    }
    Fields::of(checkpoint).ok()?.model_type().map(str::to_owned)
}

/// `{prefix}.layers.{layer}.` and these parts, in one allocation: a large model has a thousand such names, and a formatter
/// grows each several times.
fn in_layer(prefix: &str, layer: impl std::fmt::Display, parts: &[&str]) -> String {
    use std::fmt::Write;
    let rest: usize = parts.iter().map(|part| part.len()).sum();
    let mut name = String::with_capacity(prefix.len() + ".layers.4294967295.".len() + rest);
    name.push_str(prefix);
    name.push_str(".layers.");
    // Strings take whatever is written.
    let _ = write!(name, "{layer}");
    name.push('.');
    parts.iter().for_each(|part| name.push_str(part));
    name
}
