//! Several headers at the same time.

use crate::error::{HubReason, ModelError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Headers that are read at the same time.
const AT_ONCE: usize = 8;

/// Does the same to several files, some at once; the results in their order, or the first error by it.
pub(super) fn at_once<T: Send>(
    files: &[String],
    work: impl Fn(&str) -> Result<T, ModelError> + Sync,
) -> Result<Vec<T>, ModelError> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<T, ModelError>>>> = files.iter().map(|_| Mutex::new(None)).collect();
    let some = || {
        while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < files.len()) {
            let result = work(&files[at]);
            let failed = result.is_err();
            *done[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            if failed {
                next.store(files.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(files.len()) {
            // Where there are no threads for it, fewer do all of it, or this one does.
            if std::thread::Builder::new().spawn_scoped(scope, some).is_err() {
                break;
            }
        }
        some();
    });
    let mut results = Vec::with_capacity(files.len());
    let mut skipped = false;
    for slot in done {
        match slot.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(result) => results.push(result?),
            None => skipped = true,
        }
    }
    // One that was not begun stands before the error that ended the rest only in theory; the error was met above.
    if skipped {
        Err(ModelError::hub("headers", HubReason::Connection, "not all were read"))
    } else {
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn many_at_once_keep_their_order_and_end_at_an_error() {
        let files: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        let same = at_once(&files, |file| Ok(file.to_owned())).unwrap();
        assert_eq!(same, files);
        let failed = at_once(&files, |file| match file {
            "7" => Err(ModelError::hub(file, HubReason::Timeout, "")),
            other => Ok(other.to_owned()),
        });
        assert!(failed.unwrap_err().to_string().starts_with("7: "));
        assert!(at_once(&[], |_| Ok(())).unwrap().is_empty());
    }
}
