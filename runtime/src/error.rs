//! The one error type of this crate: what failed, where, what was expected and what was there.

use crate::account::Account;
use crate::memory::MemorySource;
use crate::pool::NoRoom;
use crate::request::Refused;
use plimsoll_estimator::grouped;
use plimsoll_estimator::verdict::Lasts;
use plimsoll_kernels::TuningError;
use plimsoll_models::ModelError;
use std::sync::Arc;
use thiserror::Error;

/// Everything that can go wrong between an admitted plan and its tokens.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// No adapter answers to the name or index, or there is none at all.
    #[error("no adapter {wanted}; there {}", present(found))]
    NoAdapter {
        /// What was asked for.
        wanted: String,
        /// Names of the adapters there are.
        found: Vec<String>,
    },
    /// The plan is a price: something in it has no kernels.
    #[error("this can be priced and not run: {why}")]
    EstimateOnly {
        /// What cannot.
        why: String,
    },
    /// The adapter gives less than the plan or the options need.
    #[error("adapter {adapter}: {limit}: expected at least {expected}, got {got}")]
    Limit {
        /// The adapter's name.
        adapter: String,
        /// WebGPU's name of the limit.
        limit: &'static str,
        /// What is needed.
        expected: u64,
        /// What there is.
        got: u64,
    },
    /// The adapter would not open.
    #[error("adapter {adapter} would not open: {reason}")]
    Open {
        /// The adapter's name.
        adapter: String,
        /// Its reason.
        reason: String,
    },
    /// A limit on this process is too small for a driver to start; it would crash, so nothing was opened.
    #[error(
        "{by} leaves {} of its {} bytes, and opening an adapter takes about {}, most of them for the stacks and heaps of \
         threads; nothing was opened",
        grouped(*have), grouped(*limit), grouped(*need)
    )]
    Confined {
        /// Which limit.
        by: MemorySource,
        /// Bytes that opening takes.
        need: u64,
        /// Those that are left.
        have: u64,
        /// The limit.
        limit: u64,
    },
    /// A limit on stacks that a driver's threads cannot have, or cannot do with; nothing was opened.
    #[error(
        "ulimit -s gives each of a driver's {threads} threads a stack of {} bytes, and {why}; nothing was opened",
        grouped(*limit)
    )]
    Stacks {
        /// The limit.
        limit: u64,
        /// Threads of the driver's, at least.
        threads: u64,
        /// Why it cannot be.
        why: String,
    },
    /// Kernel variants that the adapter cannot have.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// The system gives this process no threads to work with.
    #[error("no threads to work with: {reason}")]
    Workers {
        /// Its reason.
        reason: String,
    },
    /// Less memory is free than when the plan was admitted, and too little for it; nothing was allocated.
    #[error(
        "the plan needs {need} bytes and there are {have} now ({source_of}); there were {then} when it was admitted; {}",
        lasts.says()
    )]
    NoRoom {
        /// Bytes of the plan.
        need: u64,
        /// The budget now.
        have: u64,
        /// The budget that it was admitted against.
        then: u64,
        /// Where the budget of now is from.
        source_of: String,
        /// Whether another reading may allow it.
        lasts: Lasts,
    },
    /// The device could not create a buffer; everything created with it has been freed.
    #[error("out of device memory: {} ({live} bytes were live)", asked(buffer, *bytes))]
    OutOfMemory {
        /// The buffer's name in the plan, or what else was to be made.
        buffer: String,
        /// Its size; 0 of what is no buffer, whose size only the driver knows.
        bytes: u64,
        /// Bytes of our buffers that existed at that moment.
        live: u64,
    },
    /// The device is gone; it must be opened again.
    #[error("the device was lost: {reason}")]
    DeviceLost {
        /// The driver's reason.
        reason: String,
    },
    /// The engine was taken down while the request was there.
    #[error("the model was unloaded")]
    Unloaded,
    /// wgpu refused something we built: a bug of ours or of a third party's kernel.
    #[error("{what} was refused: {reason}")]
    Validation {
        /// A pipeline, a buffer, a submit.
        what: String,
        /// wgpu's reason.
        reason: String,
    },
    /// A submit failed; its results were discarded.
    #[error("submit {submit} failed: {reason}")]
    Submit {
        /// Submits since the device was opened.
        submit: u64,
        /// Why.
        reason: String,
    },
    /// A mapped buffer could not be read or written.
    #[error("buffer {buffer} could not be mapped: {reason}")]
    Map {
        /// The buffer's name.
        buffer: String,
        /// Why.
        reason: String,
    },
    /// The flag was raised; no token of the step counts.
    #[error("cancelled")]
    Cancelled,
    /// A step or a call that does not fit the plan.
    #[error("{what}: expected {expected}, got {got}")]
    Input {
        /// Which argument.
        what: String,
        /// What would have been accepted.
        expected: String,
        /// What was given.
        got: String,
    },
    /// A fed sequence cannot go on: a step over it failed, and what its recurrent layers hold is unknown since.
    #[error("the sequence was lost after {tokens} tokens with the step that failed; it must be fed again")]
    SequenceLost {
        /// Tokens it had taken before that step.
        tokens: u32,
    },
    /// The plan contradicts itself or the model.
    #[error("plan: {what}: expected {expected}, got {got}")]
    Plan {
        /// Which part.
        what: String,
        /// What would have been right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A row of logits is not made of numbers; no token was chosen from it.
    #[error("logits: expected finite numbers, got {got}")]
    Logits {
        /// The number that spoils it: NaN, or the largest.
        got: f32,
    },
    /// A lone kernel changed bytes that it may not change.
    #[error("kernel {kernel}, operand {operand}: byte {byte} changed {place}")]
    Stray {
        /// The kernel's name.
        kernel: String,
        /// Index of the operand.
        operand: usize,
        /// Byte, relative to the operand's first.
        byte: i64,
        /// Where that is.
        place: &'static str,
    },
    /// The request can never run on this engine; nothing was launched.
    #[error("refused: {0}")]
    Refused(#[from] Refused),
    /// The request would fit, but not now; it may be tried again.
    #[error("busy: {}{waiting} requests are waiting, at most {limit} may", lacking(lacks))]
    Busy {
        /// Requests that wait.
        waiting: usize,
        /// The most that may.
        limit: usize,
        /// What there is too little of for it now: slots, or pages of a kind, with what it needs and what is free.
        /// `None` where there would be room if those before it did not come first.
        lacks: Option<NoRoom>,
    },
    /// What a load allocated is not what was planned: a defect of this crate. Everything has been freed.
    #[error("what is allocated is not what was planned: {}", .0.disagreement())]
    Account(Box<Account>),
    /// A step failed; the error is shared by the requests that were in it.
    #[error(transparent)]
    Step(Arc<RuntimeError>),
    /// The checkpoint does not hold what the model needs.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl RuntimeError {
    /// An [`Input`](RuntimeError::Input) error.
    pub(crate) fn input(what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        Self::Input { what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }

    /// A [`Plan`](RuntimeError::Plan) error.
    pub(crate) fn plan(what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        Self::Plan { what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }

    /// Whether the same call fails for good, however often and however late it is made: what asks for too much, what
    /// contradicts itself, what no kernel serves. Everything else may be tried again: once others have gone, once the
    /// device has been opened again, or as it is.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Refused(_)
            | Self::EstimateOnly { .. }
            | Self::Limit { .. }
            | Self::Confined { .. }
            | Self::Stacks { .. }
            | Self::Tuning(_)
            // The threads of a process are started once.
            | Self::Workers { .. }
            | Self::NoAdapter { .. }
            | Self::Validation { .. }
            | Self::Input { .. }
            | Self::Plan { .. }
            | Self::Logits { .. }
            | Self::Stray { .. }
            | Self::Account(_)
            => true,
            Self::Model(error) => !error.is_exhaustion(),
            Self::Busy { .. }
            | Self::Cancelled
            | Self::Open { .. }
            | Self::OutOfMemory { .. }
            | Self::DeviceLost { .. }
            | Self::Unloaded
            | Self::Submit { .. }
            | Self::Map { .. }
            | Self::SequenceLost { .. } => false,
            Self::NoRoom { lasts, .. } => *lasts == Lasts::Forever,
            Self::Step(shared) => shared.is_permanent(),
        }
    }

    /// Whether the device can still be used: after a lost device nothing but opening it again helps.
    pub fn device_is_usable(&self) -> bool {
        match self {
            Self::DeviceLost { .. } => false,
            Self::Step(shared) => shared.device_is_usable(),
            _ => true,
        }
    }
}

fn asked(what: &str, bytes: u64) -> String {
    if bytes == 0 { what.to_owned() } else { format!("buffer {what} of {bytes} bytes") }
}

fn lacking(lacks: &Option<NoRoom>) -> String {
    lacks.map_or_else(String::new, |lacks| format!("{lacks}; "))
}

fn present(found: &[String]) -> String {
    match found {
        [] => "are none".to_owned(),
        [one] => format!("is {one}"),
        many => format!("are {}", many.join(", ")),
    }
}
