//! How a verb ends when it does not end well: a message, a document where `--json` asked for one, an exit code.

use crate::account;
use plimsoll::Error;
use plimsoll::estimator::cli;
use plimsoll::estimator::cli::output;
use plimsoll::estimator::grouped;
use plimsoll::runtime::{Account, RuntimeError, host};
use serde_json::json;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What any command line has: usage, files, streams, refusals.
    #[error(transparent)]
    Cli(#[from] cli::Failure),
    /// The library.
    #[error(transparent)]
    Plimsoll(#[from] plimsoll::Error),
    /// A step of a probe gave a wrong answer, or could not be run.
    #[error("{reason}")]
    Probe {
        /// Which, and what was wrong.
        reason: String,
        /// The exit code.
        code: u8,
    },
    /// What the document that was shown says already.
    #[error(transparent)]
    Shown(Box<Failure>),
    /// No message of a conversation had an answer; each failure has been shown.
    #[error("none of the messages ({messages}) was answered")]
    Unanswered {
        /// How many there were.
        messages: usize,
        /// The exit code of the last failure.
        code: u8,
    },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Cli(error.into())
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

/// Whether the system gave this process no memory or thread for something of the model's.
fn is_exhaustion(error: &Error) -> bool {
    match error {
        Error::Model(error) | Error::Runtime(RuntimeError::Model(error)) => error.is_exhaustion(),
        _ => false,
    }
}

/// The limits on this process's memory, to stand behind what there was none for.
fn limits_of_the_process() -> String {
    let limits = [("ulimit -v", host::address_space()), ("ulimit -d", host::data_size())];
    let set = limits.into_iter().filter_map(|(name, limit)| Some((name, limit?)));
    set.map(|(name, limit)| format!("; {name} is {} bytes", grouped(limit))).collect()
}

impl Failure {
    /// The command line, or an environment variable.
    pub fn usage(what: String) -> Self {
        cli::Failure::Usage(what).into()
    }

    /// A file of the user's.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        cli::Failure::file(action, path, source).into()
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Cli(failure) => failure.code(),
            Failure::Plimsoll(error) => error.exit_code(),
            Failure::Shown(failure) => failure.code(),
            Failure::Unanswered { code, .. } | Failure::Probe { code, .. } => *code,
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
            Failure::Shown(failure) => failure.message(),
            Failure::Plimsoll(error) if is_exhaustion(error) => format!("{self}{}", limits_of_the_process()),
            _ => self.to_string(),
        }
    }

    /// The account that does not agree, where that is what failed.
    fn account(&self) -> Option<&Account> {
        match self {
            Failure::Plimsoll(Error::Runtime(RuntimeError::Account(account))) => Some(account),
            Failure::Shown(failure) => failure.account(),
            _ => None,
        }
    }

    /// Says it, and answers the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        match self {
            Failure::Cli(failure) => return failure.report(json),
            // A conversation has its own document.
            Failure::Unanswered { .. } | Failure::Shown(_) => {
                output::note(format_args!("plimsoll: {}", self.message()));
            }
            // The account is the message's table, and the document's.
            Failure::Plimsoll(Error::Runtime(RuntimeError::Account(account))) if json => {
                output::note(format_args!("plimsoll: {}", self.message()));
                let error = json!({"exit_code": self.code(), "message": self.message()});
                let _ = output::document(
                    &json!({"schema": 1, "verdict": null, "error": error, "account": account}),
                );
            }
            Failure::Plimsoll(_) | Failure::Probe { .. } => cli::say(&self.message(), self.code(), json),
        }
        if let Some(account) = self.account() {
            output::note(format_args!("{}", account::table(account)));
        }
        ExitCode::from(self.code())
    }
}
