//! Checkpoints, tokenizers, chat templates and the zoo of architectures

pub mod chat;
pub mod checkpoint;
pub mod error;
pub mod graph;
#[cfg(feature = "hub")]
pub mod hub;
pub mod limits;
pub mod model;
pub mod rope;
pub mod text;
pub mod threads;
pub mod tokenizer;
pub mod zoo;

pub use chat::{ChatTemplate, Message, RenderOptions};
pub use checkpoint::Checkpoint;
pub use error::ModelError;
pub use model::Model;
pub use tokenizer::Tokenizer;
pub use zoo::{Architecture, Registry};
