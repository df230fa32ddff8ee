//! Checkpoints, tokenizers, chat templates and the zoo of architectures
