//! Which files on disk a checkpoint is made of: what nothing may be written over.

use super::bytes::FileBytes;
use super::open::{CONFIG, INDEX, SINGLE};
use super::{Checkpoint, SideFiles};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What lies beside weights and belongs to them, read by a price or not.
const BESIDE: [&str; 15] = [
    CONFIG,
    INDEX,
    SINGLE,
    "generation_config.json",
    "hf_quant_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

impl Checkpoint {
    /// The files that are here of it: weights in one file or several, what describes them, and what of a tokenizer and a
    /// template lies beside them; of a directory also weights that were not read. None of a checkpoint in memory or
    /// elsewhere.
    pub fn files(&self) -> Vec<PathBuf> {
        let mapped = self.files.iter().filter_map(|file| match &**file {
            FileBytes::Mapped(mapped) => Some(mapped.path().to_owned()),
            FileBytes::Owned(_) | FileBytes::Remote { .. } => None,
        });
        let mut all: Vec<PathBuf> = mapped.chain([self.path.clone(), self.stated_in()]).collect();
        if let SideFiles::Directory(folder) = &self.side {
            all.extend(BESIDE.map(|name| folder.join(name)));
        }
        if self.path.is_dir() {
            let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
            all.extend(entries.map(|entry| entry.path()).filter(|path| is_weights(path)));
        }
        all.retain(|path| path.is_file());
        all.sort();
        all.dedup();
        all
    }
}

fn is_weights(path: &Path) -> bool {
    matches!(path.extension().and_then(OsStr::to_str), Some("safetensors" | "gguf" | "bin"))
}
