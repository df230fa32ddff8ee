//! Checkpoints, tokenizers, chat templates and the zoo of architectures

pub mod chat;
pub mod checkpoint;
pub mod error;
pub mod tokenizer;

pub use chat::{ChatTemplate, Message, RenderOptions};
pub use checkpoint::Checkpoint;
pub use error::ModelError;
pub use tokenizer::Tokenizer;
