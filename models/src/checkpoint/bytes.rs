//! The bytes of one file: a read-only memory map, or a buffer in memory.

use crate::error::ModelError;
use memmap2::Mmap;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;

/// Read-only bytes of one checkpoint file.
#[derive(Debug)]
pub(crate) enum FileBytes {
    /// A file mapped into memory: pages are read when touched.
    Mapped(Mmap),
    /// A buffer, for files that arrive by other ways than a path.
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps a regular file. Directories, pipes and devices are refused before they are opened.
    pub(crate) fn map(path: &Path) -> Result<Self, ModelError> {
        let meta = std::fs::metadata(path).map_err(|e| ModelError::io("open", path, e))?;
        if !meta.is_file() {
            return Err(ModelError::corrupt(path, "file type", "a regular file", "something else"));
        }
        let file = File::open(path).map_err(|e| ModelError::io("open", path, e))?;
        if meta.len() == 0 {
            return Ok(FileBytes::Owned(Vec::new()));
        }
        // SAFETY: the map is read-only and private to this value. A file that another process truncates while it
        // is mapped faults on access; every tool that maps weights shares that hazard, and reading tens of
        // gigabytes into memory instead would double the footprint this project exists to bound.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| ModelError::io("map", path, e))?;
        Ok(FileBytes::Mapped(map))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(map) => map,
            FileBytes::Owned(bytes) => bytes,
        }
    }
}
