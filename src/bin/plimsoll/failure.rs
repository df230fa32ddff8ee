//! How a verb ends when it does not end well: a message, a document where `--json` asked for one, an exit code.

use crate::output;
use plimsoll::Error;
use plimsoll::runtime::RuntimeError;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line, or an environment variable.
    #[error("{0}")]
    Usage(String),
    /// The library.
    #[error(transparent)]
    Plimsoll(#[from] plimsoll::Error),
    /// Refused, and a document that says so has been shown where one was asked for.
    #[error("refused: {reason}")]
    Refused {
        /// The reason, in a sentence.
        reason: String,
        /// Tables under it; may be empty.
        details: String,
    },
    /// No message of a conversation had an answer; each failure has been shown.
    #[error("none of the messages ({messages}) was answered")]
    Unanswered {
        /// How many there were.
        messages: usize,
        /// The exit code of the last failure.
        code: u8,
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

macro_rules! from_library {
    ($($error:path),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Failure::Plimsoll(error.into())
            }
        }
    )*};
}
from_library!(plimsoll::models::ModelError, plimsoll::estimator::PlanError, plimsoll::runtime::RuntimeError);

impl Failure {
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Failure::File { action, path: path.to_owned(), source }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Plimsoll(error) => error.exit_code(),
            Failure::Refused { .. } => 3,
            Failure::Unanswered { code, .. } => *code,
            Failure::NoConfig(_) => 4,
            Failure::File { action: "read" | "score", .. } | Failure::Text(_) => 5,
            // The place the user named, or the stream, cannot be written.
            Failure::File { .. } | Failure::Standard(_) => 2,
            Failure::Closed => 0,
        }
    }

    /// What is said of it. "refused:" is the word for exit code 3 alone: a bad option is an error of the usage.
    pub fn message(&self) -> String {
        match self {
            Failure::Plimsoll(Error::Runtime(RuntimeError::Refused(why))) if self.code() != 3 => {
                why.to_string()
            }
            Failure::Plimsoll(Error::Missing { what: "a chat template", .. }) => {
                format!("{self}: use `run`, without --chat")
            }
            _ => self.to_string(),
        }
    }

    /// Says it, and answers the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        let code = self.code();
        if !matches!(self, Failure::Closed) {
            let message = self.message();
            output::note(format_args!("plimsoll: {message}"));
            // Refusals and conversations have their own documents.
            let shown = match self {
                Failure::Refused { details, .. } => {
                    if !json && !details.is_empty() {
                        output::note(format_args!("{details}"));
                    }
                    true
                }
                Failure::Unanswered { .. } => true,
                _ => false,
            };
            if json && !shown {
                let verdict = (code == 4).then_some("cannot_price");
                let document = json!({"schema": 1, "verdict": verdict, "error": {"exit_code": code, "message": message}});
                // There is nobody left to tell if this fails too.
                let _ = output::document(&document);
            }
        }
        ExitCode::from(code)
    }
}
