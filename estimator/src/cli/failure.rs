//! How a verb ends when it does not end well: a message, a document where `--json` asked for one, an exit code.

use super::output;
use crate::error::PlanError;
use plimsoll_models::ModelError;
use plimsoll_models::error::{HubReason, exhausted};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The file beside config.json in which NVIDIA's tools describe packed weights.
const SECOND: &str = "hf_quant_config.json";

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line, or an environment variable.
    #[error("{0}")]
    Usage(String),
    /// The checkpoint.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// What a file of the checkpoint says, and which file that is.
    #[error("{}: {error}", file.display())]
    Stated {
        /// The file.
        file: PathBuf,
        /// What is wrong, with its key.
        error: ModelError,
    },
    /// The architecture contradicts itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Refused, and a document that says so has been shown where one was asked for.
    #[error("refused: {reason}")]
    Refused {
        /// The reason, in a sentence.
        reason: String,
        /// Tables under it; may be empty.
        details: String,
    },
    /// Weights without the file that says what they are.
    #[error("no config.json beside {}", .0.display())]
    NoConfig(PathBuf),
    /// A file of the user's.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// "read", "score" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nobody reads what is written any more.
    #[error("standard output was closed")]
    Closed,
    /// Standard input is no text.
    #[error("standard input: {0}")]
    Text(io::Error),
    /// Standard output or input fails otherwise.
    #[error("standard input or output: {0}")]
    Standard(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            io::ErrorKind::InvalidData => Failure::Text(error),
            _ => Failure::Standard(error),
        }
    }
}

impl Failure {
    /// A file of the user's that cannot be read or written.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Failure::File { action, path: path.to_owned(), source }
    }

    /// What is wrong with a checkpoint, by the file that says it, where the error is of a value in a file and does not name
    /// one. `described` is the file that says what the model is.
    pub fn of_checkpoint(error: ModelError, described: PathBuf) -> Self {
        let key = match &error {
            ModelError::Field { key, .. } => key,
            ModelError::Unsupported { what, .. } => what,
            ModelError::Shape { name, .. } => name,
            ModelError::Tokenizer { place, .. } => place,
            _ => return Failure::Model(error),
        };
        // The second file that speaks of packed weights goes by its name in keys.
        let second = key.starts_with(SECOND) && described.ends_with("config.json");
        let file = if second { described.with_file_name(SECOND) } else { described };
        Failure::Stated { file, error }
    }

    /// The exit code: 2 usage (also what cannot be written), 3 refused, 4 cannot price, 5 bad input file, 6 no
    /// memory, thread or open file left.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Model(error) | Failure::Stated { error, .. } => model_code(error),
            Failure::Plan(_) | Failure::NoConfig(_) => 4,
            Failure::Refused { .. } => 3,
            // No fault of the file or the stream.
            Failure::File { source, .. } | Failure::Standard(source) if exhausted(source) => 6,
            Failure::File { action: "read" | "score", .. } | Failure::Text(_) => 5,
            // The place the user named, or the stream, cannot be written.
            Failure::File { .. } | Failure::Standard(_) => 2,
            Failure::Closed => 0,
        }
    }

    /// Says it, and answers the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        if let Failure::Refused { reason, details } = self {
            // A refusal has its own document.
            output::note(format_args!("plimsoll: refused: {reason}"));
            if !json && !details.is_empty() {
                output::note(format_args!("{details}"));
            }
        } else if !matches!(self, Failure::Closed) {
            say(&self.to_string(), self.code(), json);
        }
        ExitCode::from(self.code())
    }
}

/// Says what went wrong, in a document too where one was asked for.
pub fn say(message: &str, code: u8, json: bool) {
    output::note(format_args!("plimsoll: {message}"));
    if json {
        // There is nobody left to tell if this fails too.
        let _ = output::document(&failed(message, code));
    }
}

fn failed(message: &str, code: u8) -> serde_json::Value {
    let verdict = (code == 4).then_some("cannot_price");
    json!({"schema": 1, "verdict": verdict, "error": {"exit_code": code, "message": message}})
}

/// Says what is wrong with the command line's flags, in a document too where one was asked for, and ends; or shows the help
/// or version that was asked for. `document` says that there is one without `--json`.
pub fn end_of_usage(error: &clap::Error, document: bool) -> ! {
    let asked = || std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json");
    if error.use_stderr() && (document || asked()) {
        let text = error.to_string();
        // The hints and usage that follow are for people.
        let said = text.split("\n\n").next().unwrap_or(&text).trim();
        // Nobody is left to tell if this fails.
        let _ = output::document(&failed(said.strip_prefix("error: ").unwrap_or(said), 2));
    }
    error.exit()
}

/// The exit code of a checkpoint's error: 4 where something is missing or unknown, so that nothing can be priced; 5 where
/// a file is wrong; 6 where the machine has no memory or thread for it.
pub fn model_code(error: &ModelError) -> u8 {
    match error {
        error if error.is_exhaustion() => 6,
        ModelError::UnknownArchitecture { .. } | ModelError::Unsupported { .. } => 4,
        ModelError::Field { got, .. } if got == "nothing" => 4,
        // The name, or what was asked of a name that has no weights here.
        ModelError::Hub { reason: HubReason::Name, .. } | ModelError::NotDownloaded { .. } => 2,
        _ => 5,
    }
}
