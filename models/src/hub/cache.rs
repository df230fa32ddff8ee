//! What was read of the hub, kept by commit: what a commit holds never changes.

use std::path::{Path, PathBuf};

/// One repository's folder of the cache, or none.
#[derive(Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
    /// Nothing is taken from it, and all that is read replaces what it has.
    pub(super) fresh: bool,
}

impl Cache {
    pub(super) fn new(root: Option<&Path>, endpoint: &str, repository: &str) -> Self {
        let plain = |text: &str| -> String {
            text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
        };
        let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
        // Owner and name are parts of paths already.
        let folder = root.map(|root| root.join("hub").join(plain(host)).join(repository));
        Self { folder, fresh: false }
    }

    /// Where it is.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        self.folder.clone()
    }

    /// A kept file.
    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.folder.as_ref().filter(|_| !self.fresh)?.join(key);
        // Nothing else ends by itself.
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
        if is_file { std::fs::read(path).ok() } else { None }
    }

    /// Keeps a file, whole or not at all. A cache that cannot be written is none.
    pub(super) fn put(&self, key: &str, bytes: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(&folder.join(key), bytes) {
            tracing::warn!(%error, cache = %folder.display(), "cannot keep what was read");
        }
    }

    /// The beginning of a file, with the size of the whole.
    pub(super) fn head(&self, key: &str) -> Option<(u64, Vec<u8>)> {
        let mut bytes = self.get(key)?;
        let total = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
        bytes.drain(..8);
        (bytes.len() as u64 <= total).then_some((total, bytes))
    }

    /// Keeps the beginning of a file.
    pub(super) fn put_head(&self, key: &str, total: u64, head: &[u8]) {
        if self.folder.is_some() {
            self.put(key, &[&total.to_le_bytes(), head].concat());
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let part = path.with_file_name(name);
    let done = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    done
}
