//! The files beside the weights: tokenizer, template, settings of generation. They lie in a directory, or came into
//! memory with the weights.

use super::json;
use crate::error::ModelError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where they are.
#[derive(Clone, Debug)]
pub(crate) enum SideFiles {
    /// There are none: GGUF carries its own, and a checkpoint in memory has what it was given.
    None,
    /// In this directory.
    Directory(PathBuf),
    /// In memory, by name.
    Memory(Arc<BTreeMap<String, Vec<u8>>>),
}

impl SideFiles {
    /// Those of a checkpoint that was opened by a path: beside a file, or in the directory.
    pub(super) fn of(path: &Path) -> Self {
        let directory = if path.is_dir() { Some(path) } else { path.parent() };
        directory.map_or(SideFiles::None, |d| SideFiles::Directory(d.to_owned()))
    }

    /// A file of at most `limit` bytes, with its path for messages; `None` where there is none.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<(PathBuf, Vec<u8>)>, ModelError> {
        match self {
            SideFiles::None => Ok(None),
            SideFiles::Directory(directory) => {
                let path = directory.join(name);
                if !path.is_file() {
                    return Ok(None);
                }
                let bytes = json::read_bytes(&path, limit)?;
                Ok(Some((path, bytes)))
            }
            SideFiles::Memory(files) => Ok(files.get(name).map(|bytes| (PathBuf::from(name), bytes.clone()))),
        }
    }

    /// The same, parsed.
    pub(crate) fn json(&self, name: &str, limit: u64) -> Result<Option<Value>, ModelError> {
        self.read(name, limit)?.map(|(path, bytes)| json::parse(&bytes, &path)).transpose()
    }
}
