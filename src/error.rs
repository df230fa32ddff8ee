//! The one error type of this crate.

use plimsoll_estimator::cli::model_code;
use plimsoll_estimator::verdict::Lasts;
use plimsoll_estimator::{PlanError, Refusal};
use plimsoll_models::ModelError;
use plimsoll_runtime::RuntimeError;
use thiserror::Error;

/// Everything that can go wrong between a path and an answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint, its tokenizer or its template.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The plan was refused: this geometry against this budget. Nothing has been allocated.
    #[error("refused: {0}")]
    Refused(#[from] Box<Refusal>),
    /// The architecture contradicts itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device, a step or a request.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The checkpoint has no tokenizer, or no chat template, and one is needed.
    #[error("{what} is needed, and {name} has none")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// The checkpoint.
        name: String,
    },
}

impl Error {
    /// Whether the same call fails for good, however often it is made: see [`RuntimeError::is_permanent`].
    pub fn is_permanent(&self) -> bool {
        match self {
            Error::Runtime(error) => error.is_permanent(),
            Error::Refused(refusal) => refusal.lasts == Lasts::Forever,
            Error::Model(error) => !error.is_exhaustion(),
            Error::Plan(_) | Error::Missing { .. } => true,
        }
    }

    /// The exit code of the command line: 2 usage, 3 refused, 4 cannot price (an unknown architecture, a missing
    /// field), 5 bad input file, 6 device error, or no
    /// memory or thread left.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Model(error) => model_code(error),
            Error::Refused(_) => 3,
            Error::Plan(_) => 4,
            Error::Runtime(error) => runtime_code(error),
            Error::Missing { .. } => 5,
        }
    }
}

fn runtime_code(error: &RuntimeError) -> u8 {
    match error {
        RuntimeError::Model(error) => model_code(error),
        // An operator's mistake, not the device's: the request is out of range, or longer than what was admitted.
        RuntimeError::Refused(refused) => match refused {
            plimsoll_runtime::Refused::TooLong { .. }
            | plimsoll_runtime::Refused::Text { .. }
            | plimsoll_runtime::Refused::Pool(_) => 3,
            plimsoll_runtime::Refused::EmptyPrompt => 5,
            _ => 2,
        },
        RuntimeError::NoAdapter { .. } => 6,
        RuntimeError::NoRoom { .. } => 3,
        RuntimeError::EstimateOnly { .. } => 4,
        RuntimeError::Step(shared) => runtime_code(shared),
        _ => 6,
    }
}
