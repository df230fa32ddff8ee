//! One repository: its commit, its files, and which of them are the checkpoint.

use super::Opening;
use super::at_once::at_once;
use super::cache::Cache;
use super::client::Client;
use super::name::{HubName, is_file, quoted_path};
use super::options::HubOptions;
use crate::checkpoint::bytes::FileBytes;
use crate::checkpoint::json::MAX_CONFIG_BYTES;
use crate::checkpoint::open::{self, CONFIG, INDEX, SINGLE};
use crate::checkpoint::safetensors::{Index, LENGTH_FIELD, MAX_HEADER, MAX_INDEX_BYTES};
use crate::checkpoint::{BytesRead, Checkpoint, gguf};
use crate::error::{HubReason, ModelError, quoted};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files beside the weights that say something about memory.
const BESIDE: [&str; 3] = ["generation_config.json", "hf_quant_config.json", "preprocessor_config.json"];
/// GGUF's tensors that are read for what they say, not for what they weigh.
const SPOKEN: &str = "rope_freqs.weight";
/// A list of files: a hundred bytes each.
const MAX_LIST_BYTES: u64 = 32 << 20;
/// The first piece of a safetensors file; the rest of its header, whose length that states, is read exactly.
const FIRST_PIECE: u64 = 64 << 10;
/// The first piece of a GGUF, whose header says nowhere how long it is; the next ones double what there is.
const GGUF_PIECE: u64 = 512 << 10;
/// No piece is larger.
const MAX_PIECE: u64 = 4 << 20;
/// Headers of GGUFs hold vocabularies of some ten megabytes.
const MAX_GGUF_HEADER: u64 = 128 << 20;
/// Shards of one checkpoint that are believed.
const MAX_SHARDS: usize = 4096;

/// A commit of a repository.
struct Repository<'a> {
    name: &'a HubName,
    options: &'a HubOptions,
    client: Client<'a>,
    cache: Cache,
    cached: AtomicU64,
    /// Whether anything came from the cache, be it nothing but the name of an empty file.
    from_cache: AtomicBool,
    commit: String,
    files: BTreeSet<String>,
}

pub(super) fn open(name: &HubName, options: &HubOptions, fresh: bool) -> Result<Checkpoint, Opening> {
    let client = Client::new(options);
    let mut cache = Cache::new(options.cache.as_deref(), &options.endpoint, &name.repository());
    cache.fresh = fresh;
    let (commit, files) = (String::new(), BTreeSet::new());
    let (cached, from_cache) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut repository = Repository { name, options, client, cache, cached, from_cache, commit, files };
    let opened = repository.resolve().and_then(|()| repository.checkpoint());
    let (cached, (requests, network)) = (repository.cached.into_inner(), repository.client.counts());
    match opened {
        Ok(mut checkpoint) => {
            checkpoint.read = BytesRead { local: 0, network, cache: cached, requests };
            Ok(checkpoint)
        }
        Err(error) => {
            let folder = repository.cache.folder().filter(|_| repository.from_cache.into_inner());
            Err(Opening { error, from_cache: folder })
        }
    }
}

impl Repository<'_> {
    fn error(&self, reason: HubReason, detail: impl Into<String>) -> ModelError {
        ModelError::hub(self.name.to_string(), reason, detail)
    }

    /// Finds the commit and its files. A commit that was asked for by its hash, and is known, needs no request.
    fn resolve(&mut self) -> Result<(), ModelError> {
        let revision = self.name.revision();
        let reference = format!("refs/{}", revision.replace('/', "--"));
        let known = if is_commit(revision) {
            Some(revision.to_owned())
        } else if self.options.offline {
            self.cache
                .get(&reference)
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .filter(|c| is_commit(c))
        } else {
            None
        };
        if let Some(commit) = known
            && let Some(bytes) = self.cached(&format!("{commit}/list.json"))
        {
            return self.take_list(&bytes);
        }
        if self.options.offline {
            return Err(self.error(HubReason::Offline, ""));
        }
        let (endpoint, repository) = (&self.options.endpoint, self.name.repository());
        let url = format!("{endpoint}/api/models/{repository}/revision/{}", revision.replace('/', "%2F"));
        let bytes = self.client.whole(&url, &self.name.to_string(), MAX_LIST_BYTES)?;
        self.take_list(&bytes)?;
        self.cache.put(&format!("{}/list.json", self.commit), &bytes);
        self.cache.put(&reference, self.commit.as_bytes());
        Ok(())
    }

    fn take_list(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        #[derive(serde::Deserialize)]
        struct List {
            sha: String,
            #[serde(default)]
            siblings: Vec<File>,
        }
        #[derive(serde::Deserialize)]
        struct File {
            rfilename: String,
        }
        let list: List = serde_json::from_slice(bytes)
            .map_err(|error| self.error(HubReason::Malformed, format!("its list of files: {error}")))?;
        let asked = self.name.revision();
        if !is_commit(&list.sha) || (is_commit(asked) && list.sha != asked) {
            return Err(self.error(HubReason::Malformed, format!("commit {}", quoted(&list.sha))));
        }
        self.commit = list.sha;
        // A name that leads elsewhere is no file that anything asks for.
        self.files = list.siblings.into_iter().map(|f| f.rfilename).filter(|f| is_file(f)).collect();
        Ok(())
    }

    /// What the cache has, counted.
    fn cached(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = self.cache.get(key)?;
        self.count(&bytes);
        Some(bytes)
    }

    fn count(&self, cached: &[u8]) {
        self.cached.fetch_add(cached.len() as u64, Ordering::Relaxed);
        self.from_cache.store(true, Ordering::Relaxed);
    }

    fn url(&self, file: &str) -> String {
        let (endpoint, repository) = (&self.options.endpoint, self.name.repository());
        format!("{endpoint}/{repository}/resolve/{}/{}", self.commit, quoted_path(file))
    }

    /// What a file is called in messages.
    fn subject(&self, file: &str) -> String {
        format!("hf:{}/{file}", self.name.repository())
    }

    fn has(&self, file: &str) -> bool {
        self.files.contains(file)
    }

    /// A whole small file.
    fn whole(&self, file: &str, limit: u64) -> Result<Vec<u8>, ModelError> {
        let key = format!("{}/files/{file}", self.commit);
        if let Some(bytes) = self.cached(&key).filter(|bytes| bytes.len() as u64 <= limit) {
            return Ok(bytes);
        }
        self.online(file)?;
        let bytes = self.client.whole(&self.url(file), &self.subject(file), limit)?;
        self.cache.put(&key, &bytes);
        Ok(bytes)
    }

    /// A configuration, which is one: errors call it by where it lies, and not by the checkpoint's name.
    fn config(&self, file: &str) -> Result<Vec<u8>, ModelError> {
        let bytes = self.whole(file, MAX_CONFIG_BYTES)?;
        open::config_object(&bytes, Path::new(&self.subject(file)))?;
        Ok(bytes)
    }

    fn online(&self, file: &str) -> Result<(), ModelError> {
        if self.options.offline {
            return Err(ModelError::hub(self.subject(file), HubReason::Offline, ""));
        }
        Ok(())
    }

    /// Reads on at the end of the beginning of a file, until `len` bytes or the whole of it are here.
    fn extend(&self, file: &str, head: &mut Head, len: u64) -> Result<(), ModelError> {
        let (url, subject) = (self.url(file), self.subject(file));
        while (head.bytes.len() as u64) < head.total.map_or(len, |total| total.min(len)) {
            self.online(file)?;
            let here = head.bytes.len() as u64;
            let piece = self.client.range(&url, &subject, here, (len - here).min(MAX_PIECE))?;
            if head.total.is_some_and(|total| total != piece.total) {
                let detail = format!("{} bytes long, then {}", head.total.unwrap_or(0), piece.total);
                return Err(ModelError::hub(subject, HubReason::Malformed, detail));
            }
            head.total = Some(piece.total);
            if piece.bytes.is_empty() && here < piece.total {
                return Err(ModelError::hub(subject, HubReason::Malformed, "an empty answer"));
            }
            head.bytes.extend_from_slice(&piece.bytes);
            head.new = true;
            if head.bytes.len() as u64 >= piece.total {
                break;
            }
        }
        Ok(())
    }

    /// What the cache has of a file's beginning.
    fn kept_head(&self, file: &str) -> Head {
        match self.cache.head(&self.head_key(file)) {
            Some((total, bytes)) => {
                self.count(&bytes);
                Head { bytes, total: Some(total), new: false }
            }
            None => Head { bytes: Vec::new(), total: None, new: false },
        }
    }

    fn head_key(&self, file: &str) -> String {
        format!("{}/heads/{file}", self.commit)
    }

    fn keep(&self, file: &str, head: &Head) {
        if head.new {
            self.cache.put_head(&self.head_key(file), head.total.unwrap_or(0), &head.bytes);
        }
    }

    /// A safetensors file's header; the reader judges it.
    fn safetensors(&self, file: &str) -> Result<Arc<FileBytes>, ModelError> {
        let mut head = self.kept_head(file);
        self.extend(file, &mut head, FIRST_PIECE)?;
        if let Some(field) = head.bytes.first_chunk::<8>() {
            let length = u64::from_le_bytes(*field);
            if length <= MAX_HEADER {
                self.extend(file, &mut head, LENGTH_FIELD + length)?;
            }
        }
        self.keep(file, &head);
        Ok(Arc::new(head.into_bytes()))
    }

    /// A GGUF's header, and what its spoken tensors say.
    fn gguf(&self, file: &str) -> Result<(Arc<FileBytes>, gguf::Metadata), ModelError> {
        let path = PathBuf::from(self.subject(file));
        let mut head = self.kept_head(file);
        let mut wanted = GGUF_PIECE;
        loop {
            self.extend(file, &mut head, wanted)?;
            let (total, new) = (head.total, head.new);
            let bytes = Arc::new(head.into_bytes());
            let here = bytes.len() as u64;
            match gguf::read(&bytes, &path, 0) {
                Err(ModelError::NotDownloaded { .. }) if here < bytes.total() && here < MAX_GGUF_HEADER => {
                    head = Head { bytes: taken(bytes), total, new };
                    wanted = here.saturating_add(here.clamp(GGUF_PIECE, MAX_PIECE));
                }
                Err(ModelError::NotDownloaded { .. }) => {
                    let expected = format!("a header of at most {MAX_GGUF_HEADER} bytes");
                    return Err(ModelError::corrupt(&path, "header", expected, "more"));
                }
                Err(error) => return Err(error),
                Ok(header) => {
                    let spoken = header.tensors.iter().find(|t| t.name == SPOKEN && t.bytes <= FIRST_PIECE);
                    let spoken = spoken.map(|tensor| (tensor.place.start, tensor.bytes));
                    let metadata = header.metadata.clone();
                    drop(header);
                    head = Head { bytes: bytes.to_vec(), total, new };
                    self.keep(file, &head);
                    let ranges = match spoken {
                        Some((start, len)) if bytes.at(start, len).is_none() => {
                            vec![(start, self.part(file, start, len)?)]
                        }
                        _ => Vec::new(),
                    };
                    let total = head.total.unwrap_or(0);
                    return Ok((Arc::new(FileBytes::Remote { head: head.bytes, ranges, total }), metadata));
                }
            }
        }
    }

    /// Some bytes in the middle of a file.
    fn part(&self, file: &str, start: u64, len: u64) -> Result<Vec<u8>, ModelError> {
        let key = format!("{}/parts/{file}-{start}-{len}", self.commit);
        if let Some(bytes) = self.cached(&key).filter(|bytes| bytes.len() as u64 == len) {
            return Ok(bytes);
        }
        self.online(file)?;
        let piece = self.client.range(&self.url(file), &self.subject(file), start, len)?;
        if piece.bytes.len() as u64 != len {
            let detail = format!("{} of {len} bytes at {start}", piece.bytes.len());
            return Err(ModelError::hub(self.subject(file), HubReason::Malformed, detail));
        }
        self.cache.put(&key, &piece.bytes);
        Ok(piece.bytes)
    }

    /// The checkpoint that the name means.
    fn checkpoint(&self) -> Result<Checkpoint, ModelError> {
        let chosen = match self.name.file.as_deref() {
            Some(file) if self.has(file) => file.to_owned(),
            Some(word) => self.gguf_with(word)?,
            None => return self.whole_repository(),
        };
        let (folder, base) = chosen.rsplit_once('/').map_or(("", chosen.as_str()), |(f, b)| (f, b));
        let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        match base.rsplit_once('.').map(|(_, extension)| extension) {
            Some("gguf") => self.ggufs(&chosen),
            Some("safetensors") => self.tensors(&folder, None, vec![base.to_owned()]),
            Some("json") if base.ends_with(".safetensors.index.json") => self.indexed(&folder, base),
            Some("json") => {
                let bytes = self.config(&chosen)?;
                let called = if base == CONFIG { &self.name.name } else { base };
                self.with_beside(&folder, Checkpoint::from_config_bytes(&bytes, called)?)
            }
            _ => Err(self.error(HubReason::Name, "expected a .gguf, .safetensors or .json file")),
        }
    }

    fn whole_repository(&self) -> Result<Checkpoint, ModelError> {
        if self.has(SINGLE) {
            return self.tensors("", None, vec![SINGLE.to_owned()]);
        }
        if self.has(INDEX) {
            return self.indexed("", INDEX);
        }
        match self.model_ggufs().as_slice() {
            [one] => return self.ggufs(one),
            [] => {}
            many => {
                let detail = format!("which of {}? name one after a ':'", listed(many));
                return Err(self.error(HubReason::Name, detail));
            }
        }
        if self.has(CONFIG) {
            let bytes = self.config(CONFIG)?;
            return self.with_beside("", Checkpoint::from_config_bytes(&bytes, &self.name.name)?);
        }
        Err(self.error(HubReason::NotFound, "neither config.json nor a GGUF is in it"))
    }

    /// The GGUFs that are models: of a split one the first part, and no towers of their own.
    fn model_ggufs(&self) -> Vec<&str> {
        let model = |file: &&String| {
            let base = file.rsplit('/').next().unwrap_or_default();
            let first = open::part_number(Path::new(base)).is_none_or(|n| n == 1);
            base.ends_with(".gguf") && first && !base.starts_with("mmproj")
        };
        self.files.iter().filter(model).map(String::as_str).collect()
    }

    /// The one GGUF whose name has this word: `Q4_K_M`.
    fn gguf_with(&self, word: &str) -> Result<String, ModelError> {
        let lower = word.to_ascii_lowercase();
        let has_word = |file: &&&str| {
            let name = file.to_ascii_lowercase();
            let edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
            name.match_indices(&lower).any(|(at, hit)| {
                edge(name[..at].chars().last()) && edge(name[at + hit.len()..].chars().next())
            })
        };
        let all = self.model_ggufs();
        match all.iter().filter(has_word).copied().collect::<Vec<_>>().as_slice() {
            [one] => Ok((*one).to_owned()),
            [] if all.is_empty() => Err(self.error(HubReason::NotFound, format!("no file {}", quoted(word)))),
            [] => Err(self
                .error(HubReason::NotFound, format!("no file {}; there are {}", quoted(word), listed(&all)))),
            many => Err(self.error(HubReason::Name, format!("{} is in {}", quoted(word), listed(many)))),
        }
    }

    fn ggufs(&self, file: &str) -> Result<Checkpoint, ModelError> {
        let (folder, base) = file.rsplit_once('/').map_or(("", file), |(f, b)| (f, b));
        let path = PathBuf::from(self.subject(file));
        let (first, metadata) = self.gguf(file)?;
        let names = open::part_names(base, &path, &metadata)?;
        let parts: Vec<String> = names
            .into_iter()
            .map(|name| if folder.is_empty() { name } else { format!("{folder}/{name}") })
            .collect();
        self.check_files(parts.iter().map(String::as_str))?;
        let heads =
            at_once(
                &parts,
                |part| {
                    if part == file { Ok(Arc::clone(&first)) } else { Ok(self.gguf(part)?.0) }
                },
            )?;
        let subjects = parts.iter().map(|part| PathBuf::from(self.subject(part)));
        open::gguf(subjects.zip(heads).collect())
    }

    fn indexed(&self, folder: &str, base: &str) -> Result<Checkpoint, ModelError> {
        let bytes = self.whole(&format!("{folder}{base}"), MAX_INDEX_BYTES)?;
        let index = Index::parse(&bytes, Path::new(&self.subject(base)))?;
        self.tensors(folder, Some(&bytes), index.files.into_keys().collect())
    }

    fn tensors(
        &self,
        folder: &str,
        index: Option<&[u8]>,
        shards: Vec<String>,
    ) -> Result<Checkpoint, ModelError> {
        let files: Vec<String> = shards.iter().map(|shard| format!("{folder}{shard}")).collect();
        self.check_files(files.iter().map(String::as_str))?;
        let config = format!("{folder}{CONFIG}");
        let config = if self.has(&config) { Some(self.config(&config)?) } else { None };
        let heads = at_once(&files, |file| self.safetensors(file))?;
        let heads = shards.into_iter().zip(heads).collect();
        let opened = open::safetensors_in_memory(index, heads, config.as_deref(), &self.name.name)?;
        self.with_beside(folder, opened)
    }

    /// Puts the small files beside a checkpoint that belong to it.
    fn with_beside(&self, folder: &str, checkpoint: Checkpoint) -> Result<Checkpoint, ModelError> {
        let mut files = Vec::new();
        for name in BESIDE {
            let file = format!("{folder}{name}");
            if self.has(&file) {
                files.push((name.to_owned(), self.whole(&file, MAX_CONFIG_BYTES)?));
            }
        }
        let mut checkpoint = checkpoint.with_side_files(files)?;
        checkpoint.path = PathBuf::from(self.name.to_string());
        Ok(checkpoint)
    }

    /// Whether the repository has all these files, and not too many.
    fn check_files<'f>(&self, files: impl ExactSizeIterator<Item = &'f str>) -> Result<(), ModelError> {
        if files.len() > MAX_SHARDS {
            return Err(self.error(HubReason::Malformed, format!("{} shards", files.len())));
        }
        match files.into_iter().find(|file| !self.has(file)) {
            Some(file) => Err(self.error(HubReason::NotFound, format!("no file {}", quoted(file)))),
            None => Ok(()),
        }
    }
}

/// The beginning of a file, as far as it was read.
struct Head {
    bytes: Vec<u8>,
    total: Option<u64>,
    /// Whether part of it came over the network.
    new: bool,
}

impl Head {
    fn into_bytes(self) -> FileBytes {
        FileBytes::Remote { head: self.bytes, ranges: Vec::new(), total: self.total.unwrap_or(0) }
    }
}

/// The bytes of a head that nobody else holds.
fn taken(bytes: Arc<FileBytes>) -> Vec<u8> {
    match Arc::try_unwrap(bytes) {
        Ok(FileBytes::Remote { head, .. }) => head,
        Ok(FileBytes::Owned(bytes)) => bytes,
        Ok(mapped @ FileBytes::Mapped(_)) => mapped.to_vec(),
        Err(shared) => shared.to_vec(),
    }
}

/// Some names in a sentence.
fn listed(names: &[&str]) -> String {
    const MOST: usize = 12;
    let more = if names.len() > MOST { format!(" and {} more", names.len() - MOST) } else { String::new() };
    format!("{}{more}", names[..names.len().min(MOST)].join(", "))
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_forty_digits() {
        assert!(is_commit("0123456789abcdef0123456789abcdef01234567"));
        for text in ["main", "0123456789ABCDEF0123456789abcdef01234567", ""] {
            assert!(!is_commit(text));
        }
    }
}
