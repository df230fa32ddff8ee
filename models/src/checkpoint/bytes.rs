//! The bytes of one file: a read-only memory map, a buffer in memory, or what was read of a file elsewhere.

use crate::error::ModelError;
use memmap2::Mmap;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Read-only bytes of one checkpoint file.
#[derive(Debug)]
pub(crate) enum FileBytes {
    /// A file mapped into memory: pages are read when touched.
    Mapped(MappedFile),
    /// A buffer, for files that arrive by other ways than a path.
    Owned(Vec<u8>),
    #[cfg_attr(not(feature = "hub"), allow(dead_code))]
    /// The beginning of a file that lies elsewhere, and ranges of it that were read besides.
    Remote {
        /// The first bytes.
        head: Vec<u8>,
        /// Other ranges: offset, bytes.
        ranges: Vec<(u64, Vec<u8>)>,
        /// Bytes of the whole file.
        total: u64,
    },
}

/// A map, and how its file was when it was made.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
    file: File,
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl MappedFile {
    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
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
        // SAFETY: the map is read-only and private to this value. Another process may still write to the file or shorten
        // it: what is read then is any bytes, which is why nothing is taken for loaded before `unchanged`, and pages that
        // are gone end the process (see `lost_pages`). Reading tens of gigabytes into memory instead would double the
        // footprint this project exists to bound.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| ModelError::io("map", path, e))?;
        let modified = meta.modified().ok();
        Ok(FileBytes::Mapped(MappedFile { map, file, path: path.to_owned(), modified }))
    }

    /// Whether the file that is mapped is as it was: as long, and written to no later.
    ///
    /// # Errors
    /// [`ModelError::Changed`].
    pub(crate) fn unchanged(&self) -> Result<(), ModelError> {
        let FileBytes::Mapped(MappedFile { map, file, path, modified }) = self else { return Ok(()) };
        let meta = file.metadata().map_err(|e| ModelError::io("read", path, e))?;
        if meta.len() == map.len() as u64 && meta.modified().ok() == *modified {
            return Ok(());
        }
        Err(ModelError::Changed { path: path.clone() })
    }

    /// Bytes of the whole file, wherever it lies. What this derefs to may be less of it.
    pub(crate) fn total(&self) -> u64 {
        match self {
            FileBytes::Remote { total, .. } => *total,
            here => here.len() as u64,
        }
    }

    /// `len` bytes at an offset; `None` where they are not here.
    pub(crate) fn at(&self, start: u64, len: u64) -> Option<&[u8]> {
        fn slice(bytes: &[u8], start: u64, len: u64) -> Option<&[u8]> {
            let start = usize::try_from(start).ok()?;
            bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)
        }
        let found = slice(self, start, len);
        match self {
            FileBytes::Remote { ranges, .. } if found.is_none() => {
                ranges.iter().find_map(|(from, bytes)| slice(bytes, start.checked_sub(*from)?, len))
            }
            _ => found,
        }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(mapped) => &mapped.map,
            FileBytes::Owned(bytes) => bytes,
            FileBytes::Remote { head, .. } => head,
        }
    }
}
