//! The one error type of this crate: what went wrong, where, what was expected and what was there.

use crate::text::printable;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Everything that can go wrong between a path and a model description.
///
/// Nothing here is a panic: files, vocabularies, configurations and templates come from strangers.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system refused a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: "open", "map", "read", …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The system gives this process no further thread.
    #[error("no thread for {for_what}: {source}")]
    Thread {
        /// What was to run on it.
        for_what: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file's bytes contradict its format.
    #[error("{}: {place}: expected {expected}, got {got}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in the file: a byte offset, a key, a tensor.
        place: String,
        /// What the format asks for there.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A file was written to or shortened while it was read.
    #[error("{}: it was changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A metadata key or a configuration field is missing or of the wrong kind or value.
    #[error("{key}: expected {expected}, got {got}")]
    Field {
        /// The key, e.g. `llama.block_count` or `rope_scaling.factor`.
        key: String,
        /// What was expected.
        expected: String,
        /// What is there ("nothing" when the key is missing).
        got: String,
    },
    /// The model needs a tensor that the checkpoint does not have.
    #[error("tensor {name} is missing from {}", path.display())]
    MissingTensor {
        /// The tensor's name.
        name: String,
        /// The checkpoint.
        path: PathBuf,
    },
    /// A tensor has another shape than the model needs.
    #[error("tensor {name}: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// The shape the model needs, outermost first.
        expected: Vec<u64>,
        /// The shape in the checkpoint, outermost first.
        got: Vec<u64>,
    },
    /// Something well-formed that this version cannot do.
    #[error("{what} is not supported: {detail}")]
    Unsupported {
        /// What it is, e.g. `architecture "gptj"`.
        what: String,
        /// Why, or what is supported instead.
        detail: String,
    },
    /// No family of the registry claims the checkpoint: it can be neither priced nor run.
    #[error("cannot price architecture {stated:?}: known are {known}")]
    UnknownArchitecture {
        /// What the checkpoint says it is.
        stated: String,
        /// Names of the known families.
        known: String,
    },
    /// A vocabulary contradicts itself or the tokenizer could not use it.
    #[error("tokenizer: {place}: expected {expected}, got {got}")]
    Tokenizer {
        /// Where: a key, an id, a merge.
        place: String,
        /// What was expected.
        expected: String,
        /// What is there.
        got: String,
    },
    /// Only headers of the checkpoint were read: it can be priced, not run.
    #[error("{name}: only the headers of {} were read: download its files and name their path", path.display())]
    NotDownloaded {
        /// The tensor, or the part of a header.
        name: String,
        /// The checkpoint.
        path: PathBuf,
    },
    /// A checkpoint on the hub could not be read.
    #[error("{subject}: {reason}{}", detail_of(detail))]
    Hub {
        /// What was asked for: a name, a file, a variable.
        subject: String,
        /// What kind of failure it is.
        reason: HubReason,
        /// What the server or the connection said; may be empty.
        detail: String,
    },
    /// A chat template does not parse, asked to fail, or ran past its limits.
    #[error("chat template: {reason}")]
    Template {
        /// The reason, with the line where the engine knows it.
        reason: String,
    },
}

/// Why a checkpoint on the hub could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HubReason {
    /// The name or a variable of the environment cannot be meant so, or leaves open which file is meant.
    #[error("cannot tell what is meant")]
    Name,
    /// No such repository, revision or file.
    #[error("not found")]
    NotFound,
    /// The repository is gated or private or does not exist, or the token is not accepted.
    #[error("access denied: it is gated or private or does not exist, and HF_TOKEN says who asks")]
    Denied,
    /// The server asks to come back later, and was asked often enough.
    #[error("the server asks to wait")]
    RateLimited,
    /// No answer in time, however often it was asked.
    #[error("no answer in time")]
    Timeout,
    /// No connection, one that broke, or a server at fault, however often it was asked.
    #[error("the connection or the server failed")]
    Connection,
    /// An answer that contradicts what was asked for.
    #[error("the server's answer is not what was asked for")]
    Malformed,
    /// What the cache has contradicts itself, and the network is not to be used.
    #[error("what the cache has is damaged: delete it, or let it be read anew without HF_HUB_OFFLINE")]
    Cache,
    /// The network is not to be used, and the cache does not have it.
    #[error("not in the cache, and HF_HUB_OFFLINE forbids to ask")]
    Offline,
}

fn detail_of(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({})", shortened(detail)) }
}

impl ModelError {
    /// Whether the input file (and not the machine or the request) is to blame.
    pub fn is_bad_input(&self) -> bool {
        !matches!(
            self,
            ModelError::Io { .. }
                | ModelError::Thread { .. }
                | ModelError::Unsupported { .. }
                | ModelError::Hub { .. }
                | ModelError::NotDownloaded { .. }
        )
    }

    /// Whether the machine has too little left for it, memory, threads or open files: no fault of any file's, and another time there
    /// may be enough.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            ModelError::Thread { .. } => true,
            ModelError::Io { source, .. } => exhausted(source),
            _ => false,
        }
    }

    /// No thread, with the limit on them where that is why.
    pub(crate) fn thread(for_what: &'static str, source: io::Error) -> Self {
        ModelError::Thread { for_what, source: crate::threads::refused(source) }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        ModelError::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn corrupt(
        path: &Path,
        place: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        ModelError::Corrupt {
            path: path.to_owned(),
            place: place.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    pub(crate) fn field(key: impl Into<String>, expected: impl Into<String>, got: impl Into<String>) -> Self {
        ModelError::Field { key: key.into(), expected: expected.into(), got: got.into() }
    }

    pub(crate) fn tokenizer(
        place: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        ModelError::Tokenizer { place: place.into(), expected: expected.into(), got: got.into() }
    }

    pub(crate) fn template(reason: impl Into<String>) -> Self {
        ModelError::Template { reason: reason.into() }
    }

    #[cfg(feature = "hub")]
    pub(crate) fn hub(subject: impl Into<String>, reason: HubReason, detail: impl Into<String>) -> Self {
        ModelError::Hub { subject: subject.into(), reason, detail: detail.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>, detail: impl Into<String>) -> Self {
        ModelError::Unsupported { what: what.into(), detail: detail.into() }
    }
}

/// A value of JSON for an error message: a text in one pair of quotes, and all else as JSON has it.
pub(crate) fn shown(value: &Value) -> String {
    const LIMIT: usize = 80;
    let text = match value {
        Value::String(text) => return quoted(text),
        other => other.to_string(),
    };
    let end = if text.chars().count() > LIMIT { "…" } else { "" };
    text.chars().take(LIMIT).map(printable).collect::<String>() + end
}

/// A stranger's text, made short and printable enough for an error message.
pub(crate) fn quoted(text: &str) -> String {
    const LIMIT: usize = 80;
    if text.chars().count() <= LIMIT {
        format!("{text:?}")
    } else {
        format!("{:?}…", text.chars().take(LIMIT).collect::<String>())
    }
}

/// A message from elsewhere, cut where it stops being one.
pub(crate) fn shortened(text: &str) -> String {
    const LIMIT: usize = 400;
    match text.char_indices().nth(LIMIT) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// Whether an operation failed because this process or the machine has too little left: memory, or room for open files.
pub fn exhausted(error: &io::Error) -> bool {
    // ENFILE and EMFILE, for which the standard library has no kind.
    let files = cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24));
    files || error.kind() == io::ErrorKind::OutOfMemory
}
