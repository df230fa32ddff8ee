//! How a verb ends when it does not end well: a message, a document where `--json` asked for one, an exit code.

use crate::output;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thiserror::Error;

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// The command line, or an environment variable.
    #[error("{0}")]
    Usage(String),
    /// The library.
    #[error(transparent)]
    Plimsoll(#[from] plimsoll::Error),
    /// Refused, and the table or the document has been shown.
    #[error("{0}")]
    Refused(String),
    /// A file of the user's.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// "read" or "write".
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

    fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Plimsoll(error) => error.exit_code(),
            Failure::Refused(_) => 3,
            Failure::File { action: "read", .. } | Failure::Text(_) => 5,
            // The place the user named, or the stream, cannot be written.
            Failure::File { .. } | Failure::Standard(_) => 2,
            Failure::Closed => 0,
        }
    }

    /// Says it, and answers the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        let code = self.code();
        if !matches!(self, Failure::Closed) {
            output::note(format_args!("plimsoll: {self}"));
            // A refusal has its own document.
            if json && !matches!(self, Failure::Refused(_)) {
                let verdict = (code == 4).then_some("cannot_price");
                let document = json!({"schema": 1, "verdict": verdict, "error": {"exit_code": code, "message": self.to_string()}});
                // There is nobody left to tell if this fails too.
                let _ = output::document(&document);
            }
        }
        ExitCode::from(code)
    }
}
