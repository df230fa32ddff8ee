//! Checkpoints: GGUF, safetensors (one file or shards) and bare configurations, headers only.
//!
//! Opening a checkpoint maps its files, reads their headers and checks that every tensor lies where the header
//! says. Weights are touched when [`Checkpoint::data`] is asked for them. Every length is compared with the file
//! before it is believed, so damage is an error in milliseconds, never a large allocation or a panic.
//!
//! ```no_run
//! use plimsoll_models::checkpoint::Checkpoint;
//! let checkpoint = Checkpoint::open("model.gguf".as_ref())?;
//! for tensor in checkpoint.tensors() {
//!     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.dtype);
//! }
//! # Ok::<(), plimsoll_models::ModelError>(())
//! ```

pub(crate) mod bytes;
mod files;
pub mod gguf;
pub(crate) mod json;
#[cfg(unix)]
pub mod lost_pages;
pub(crate) mod open;
mod repeated;
pub(crate) mod safetensors;
mod side;

use crate::error::ModelError;
use crate::text::is_printable;
use bytes::FileBytes;
use plimsoll_kernels::Format;
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub(crate) use side::SideFiles;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What kind of files a checkpoint came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// One GGUF file, or the parts of a split one.
    Gguf,
    /// safetensors, with the config.json beside it where there is one.
    Safetensors,
    /// A config.json alone: it can be priced, not run.
    Config,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Gguf => "gguf",
            Source::Safetensors => "safetensors",
            Source::Config => "config",
        })
    }
}

/// How a tensor's values are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DType {
    /// A format that kernels exist for.
    Weight(Format),
    /// Anything else, by its lower-case name (`iq1_s`, `i32`, `u8`, …): it can be listed and sized, not run.
    Other(String),
}

impl DType {
    /// The format, when kernels exist for it.
    pub fn format(&self) -> Option<Format> {
        match self {
            DType::Weight(format) => Some(*format),
            DType::Other(_) => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DType::Weight(format) => f.write_str(&format.name()),
            DType::Other(name) => f.write_str(name),
        }
    }
}

/// Where a tensor's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which of the checkpoint's files.
    file: usize,
    /// Byte offset in that file.
    pub(crate) start: u64,
}

/// One tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// Dimensions, outermost first (GGUF's order reversed): `[rows, columns]` for a matrix.
    pub shape: Vec<u64>,
    /// How values are stored.
    pub dtype: DType,
    /// Bytes in the file.
    pub bytes: u64,
    pub(crate) place: Place,
}

impl TensorInfo {
    /// How many values. Readers checked that the product fits.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Keys of a configuration that somebody knows.
#[derive(Debug, Default)]
pub(crate) struct Asked(Mutex<HashSet<String>>);

impl Asked {
    /// Keeps a key in mind.
    pub(crate) fn note(&self, key: &str) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !keys.contains(key) {
            keys.insert(key.to_owned());
        }
    }

    /// Whether anybody has asked for the key.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

/// An opened checkpoint. Cheap to clone: the maps are shared.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    source: Source,
    name: String,
    pub(crate) path: PathBuf,
    side: SideFiles,
    config: Option<Value>,
    generation_config: Option<Value>,
    hf_quant_config: Option<Value>,
    preprocessor_config: Option<Value>,
    metadata: Option<gguf::Metadata>,
    files: Vec<Arc<FileBytes>>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    listed: Option<Arc<Listed>>,
    stated_bytes: Option<u64>,
    notes: Vec<String>,
    asked: Arc<Asked>,
    pub(crate) read: BytesRead,
}

/// What was read to open a checkpoint: headers, configurations and indices, never weights as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesRead {
    /// Bytes of headers and configurations in files that are here.
    pub local: u64,
    /// Bytes that came over the network, with what a header's last piece brought of the data behind it.
    pub network: u64,
    /// Bytes of what earlier readings kept.
    pub cache: u64,
    /// Requests that were sent.
    pub requests: u64,
}

/// Names of tensors whose files are not here: an index without its shards.
#[derive(Debug, Default)]
struct Listed {
    names: HashSet<String>,
    /// Those that a family has read.
    read: Mutex<HashSet<String>>,
}

impl Listed {
    fn of(names: impl Iterator<Item = String>) -> Self {
        Self { names: names.collect(), read: Mutex::default() }
    }
}

impl Checkpoint {
    /// Opens a `.gguf` file, a `.safetensors` file, a `config.json`, or a directory with config.json and
    /// safetensors (one file or an index), exactly one `.gguf`, or config.json alone.
    ///
    /// A split GGUF is opened by any of its parts. Where a directory has `model.safetensors` and an index, the single
    /// file is taken.
    ///
    /// # Errors
    /// [`ModelError::Io`] when a file cannot be read; [`ModelError::Corrupt`] and [`ModelError::Field`] when what
    /// it says cannot be true.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        open::open(path)
    }

    /// A GGUF file that is already in memory.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_gguf_bytes(bytes: Vec<u8>, name: &str) -> Result<Self, ModelError> {
        open::gguf(vec![(PathBuf::from(name), Arc::new(FileBytes::Owned(bytes)))])
    }

    /// safetensors files that are already in memory, by file name. With an index, tensors are taken as it says.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_safetensors_bytes(
        index: Option<&[u8]>,
        files: Vec<(String, Vec<u8>)>,
        config: Option<&[u8]>,
        name: &str,
    ) -> Result<Self, ModelError> {
        let files =
            files.into_iter().map(|(name, bytes)| (name, Arc::new(FileBytes::Owned(bytes)))).collect();
        open::safetensors_in_memory(index, files, config, name)
    }

    /// A configuration that is already in memory.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn from_config_bytes(bytes: &[u8], name: &str) -> Result<Self, ModelError> {
        let path = Path::new(name);
        let config = open::config_object(bytes, path)?;
        Ok(Checkpoint::in_memory(Source::Config, name, Some(config)))
    }

    /// Puts files beside a checkpoint in memory that a directory would have: `tokenizer.json`,
    /// `tokenizer_config.json`, `generation_config.json`, `chat_template.jinja`. They replace what was there.
    ///
    /// # Errors
    /// When generation_config.json is not JSON; the others are read when they are asked for.
    pub fn with_side_files(mut self, files: Vec<(String, Vec<u8>)>) -> Result<Self, ModelError> {
        self.side = SideFiles::Memory(Arc::new(files.into_iter().collect()));
        open::add_side_files(&mut self)?;
        Ok(self)
    }

    /// A checkpoint that no path leads to: what lies in the working directory is not beside it.
    fn in_memory(source: Source, name: &str, config: Option<open::Config>) -> Self {
        let new = Checkpoint::new(source, name.to_owned(), Path::new(name), config);
        Checkpoint { side: SideFiles::None, ..new }
    }

    fn new(source: Source, name: String, path: &Path, config: Option<open::Config>) -> Self {
        let (config, note) = config.map_or((None, None), |config| (Some(config.value), config.note));
        Checkpoint {
            source,
            // It is one line wherever it is shown.
            name: name
                .chars()
                .map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER })
                .take(256)
                .collect(),
            path: path.to_owned(),
            side: if source == Source::Gguf { SideFiles::None } else { SideFiles::of(path) },
            config,
            generation_config: None,
            hf_quant_config: None,
            preprocessor_config: None,
            metadata: None,
            files: Vec::new(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
            listed: None,
            stated_bytes: None,
            notes: Vec::from_iter(note),
            asked: Arc::default(),
            read: BytesRead::default(),
        }
    }

    /// What kind of files it came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// GGUF's `general.name`, or the name of the directory or file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files (tokenizer, templates) that belong to this checkpoint.
    pub(crate) fn side(&self) -> &SideFiles {
        &self.side
    }

    /// config.json, an object. Non-finite numbers are the strings "Infinity", "-Infinity" and "NaN": see [`number`].
    pub fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// The keys of config.json that a family has asked for.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// generation_config.json, where there is one.
    pub fn generation_config(&self) -> Option<&Value> {
        self.generation_config.as_ref()
    }

    /// hf_quant_config.json, in which NVIDIA's tools describe packed weights beside config.json, where there is one.
    pub fn hf_quant_config(&self) -> Option<&Value> {
        self.hf_quant_config.as_ref()
    }

    /// preprocessor_config.json, which says how images are scaled before a tower reads them, where there is one.
    pub fn preprocessor_config(&self) -> Option<&Value> {
        self.preprocessor_config.as_ref()
    }

    /// GGUF metadata.
    pub fn metadata(&self) -> Option<&gguf::Metadata> {
        self.metadata.as_ref()
    }

    /// The tensors, in the order of the file (of shards: by file name, then by position).
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|&i| self.tensors.get(i))
    }

    /// The tensor with this name, or an error naming it.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`].
    pub fn require(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        self.tensor(name)
            .ok_or_else(|| ModelError::MissingTensor { name: name.to_owned(), path: self.path.clone() })
    }

    /// A tensor's bytes as stored, straight from the memory map. Their address need not be aligned. A file that another
    /// process writes to has other bytes a moment later: see [`Checkpoint::unchanged`].
    ///
    /// # Errors
    /// When `tensor` belongs to another checkpoint; [`ModelError::Changed`] when its file has been written to since it was
    /// opened; [`ModelError::NotDownloaded`] when only headers were read.
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8], ModelError> {
        let file = self.files.get(tensor.place.file);
        file.map_or(Ok(()), |file| file.unchanged())?;
        if let Some(bytes) = file.and_then(|file| file.at(tensor.place.start, tensor.bytes)) {
            return Ok(bytes);
        }
        let name = format!("tensor {}", tensor.name);
        if file.is_some_and(|file| matches!(**file, FileBytes::Remote { .. })) {
            return Err(ModelError::NotDownloaded { name, path: self.path.clone() });
        }
        Err(ModelError::corrupt(&self.path, name, "a tensor of this checkpoint", "another's"))
    }

    /// Whether all files are as they were when they were opened: to be asked when everything has been read of them.
    ///
    /// # Errors
    /// [`ModelError::Changed`].
    pub fn unchanged(&self) -> Result<(), ModelError> {
        self.files.iter().try_for_each(|file| file.unchanged())
    }

    /// Whether the weights can be read, and not only what headers say of them.
    pub fn has_data(&self) -> bool {
        self.source != Source::Config && !self.files.iter().any(|f| matches!(**f, FileBytes::Remote { .. }))
    }

    /// What was read to open it.
    pub fn bytes_read(&self) -> BytesRead {
        self.read
    }

    /// Whether an index without its shards names the tensor; `None` where there is no such index.
    pub fn lists(&self, tensor: &str) -> Option<bool> {
        Some(self.listed.as_ref()?.names.contains(tensor))
    }

    /// The same, for who reads the tensor if it is there.
    pub(crate) fn take(&self, tensor: &str) -> bool {
        let Some(listed) = self.listed.as_ref().filter(|listed| listed.names.contains(tensor)) else {
            return false;
        };
        let mut read = listed.read.lock().unwrap_or_else(PoisonError::into_inner);
        if !read.contains(tensor) {
            read.insert(tensor.to_owned());
        }
        true
    }

    /// The names that were taken.
    pub(crate) fn taken(&self) -> HashSet<String> {
        let read =
            self.listed.as_ref().map(|listed| listed.read.lock().unwrap_or_else(PoisonError::into_inner));
        read.map(|read| read.clone()).unwrap_or_default()
    }

    /// The names of all tensors, be they here or in an index without its shards.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let listed = self.listed.iter().flat_map(|listed| listed.names.iter().map(String::as_str));
        self.tensors.iter().map(|tensor| tensor.name.as_str()).chain(listed)
    }

    /// Whether a tensor of this name is among them.
    pub(crate) fn names_tensor(&self, tensor: &str) -> bool {
        self.by_name.contains_key(tensor) || self.lists(tensor) == Some(true)
    }

    /// Whether there is an index without its shards.
    pub(crate) fn has_list(&self) -> bool {
        self.listed.is_some()
    }

    /// Bytes of all tensors as an index states them, to compare with.
    pub fn stated_bytes(&self) -> Option<u64> {
        self.stated_bytes
    }

    /// What of its files was not there or not read, where it was opened without.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The file whose values say what the model is: config.json, or the GGUF file.
    pub fn stated_in(&self) -> PathBuf {
        let other = |extension: &str| self.path.extension().is_some_and(|e| e == extension);
        let index = self.path.to_str().is_some_and(|path| path.ends_with(".safetensors.index.json"));
        match &self.side {
            SideFiles::Directory(folder) if self.path.is_dir() || index || !other("json") => {
                folder.join(open::CONFIG)
            }
            _ => self.path.clone(),
        }
    }

    /// Bytes of all tensors together.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// The same checkpoint as its configuration and the names of its tensors: for what is priced and not read.
    pub(crate) fn by_names(&self) -> Self {
        Self {
            source: Source::Config,
            stated_bytes: Some(self.checkpoint_bytes()),
            listed: Some(Arc::new(Listed::of(self.tensors.iter().map(|t| t.name.clone())))),
            files: Vec::new(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
            ..self.clone()
        }
    }

    fn add_tensors(&mut self, tensors: Vec<TensorInfo>) -> Result<(), ModelError> {
        for tensor in tensors {
            let name = tensor.name.clone();
            if self.by_name.insert(name, self.tensors.len()).is_some() {
                let place = format!("tensor {}", crate::error::quoted(&tensor.name));
                return Err(ModelError::corrupt(
                    &self.path,
                    place,
                    "every tensor name once",
                    "the name again",
                ));
            }
            self.tensors.push(tensor);
        }
        Ok(())
    }
}

/// A number of a config.json, also a non-finite one however the file spells it: bare `Infinity`, `-Infinity` and
/// `NaN` and `{"__float__": "Infinity"}` are all read as strings of that name.
pub fn number(value: &Value) -> Option<f64> {
    json::number(value)
}
