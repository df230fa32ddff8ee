//! The threads that pack weights and compile pipelines side by side: those of rayon, which panics at the first use when the
//! system gives it none (a limit on processes or on addresses), so they are asked for before.

use crate::RuntimeError;
use plimsoll_models::threads::at_limit;
use std::error::Error;
use std::sync::OnceLock;

/// Starts the threads, once a process.
///
/// # Errors
/// [`RuntimeError::Workers`], every time, where they could not be started.
pub(crate) fn start() -> Result<(), RuntimeError> {
    static FAILED: OnceLock<Option<String>> = OnceLock::new();
    let failed = FAILED.get_or_init(|| {
        let started = rayon::ThreadPoolBuilder::new().build_global();
        // Without a source it says that they are there already.
        let limit = || at_limit().map_or_else(String::new, |limit| format!("; {limit}"));
        started.err().and_then(|e| e.source().map(|source| format!("{source}{}", limit())))
    });
    failed.as_ref().map_or(Ok(()), |reason| Err(RuntimeError::Workers { reason: reason.clone() }))
}
