//! Checkpoints, tokenizers, chat templates and the zoo of architectures

pub mod checkpoint;
pub mod error;
pub mod tokenizer;

pub use checkpoint::Checkpoint;
pub use error::ModelError;
pub use tokenizer::Tokenizer;
