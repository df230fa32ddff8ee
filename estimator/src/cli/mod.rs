//! The command line of estimates: `plimsoll-estimate`, and the verb `estimate` of `plimsoll`. Feature `cli`.
//!
//! Results go to standard output, progress and messages to standard error; `--json` prints one document and nothing
//! else. Exit codes: 0 done or fits, 2 usage, 3 refused, 4 cannot price, 5 bad input file, 6 no
//! memory or thread left.

pub mod args;
mod beside;
mod effect;
pub mod estimate;
mod failure;
pub mod fleet;
pub mod modes;
pub mod output;
pub mod peer_args;
pub mod show;
mod stack;

pub use crate::bytes;
pub use failure::{Failure, end_of_usage, model_code, say};
pub use stack::with_stack;
