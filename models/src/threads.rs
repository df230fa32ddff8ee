//! What is said where the system gives this process no further thread or process: which limit that is, as far as it can be
//! read.

use crate::limits;
use std::io;

/// So many below the limit it is named: threads of a driver that went down with what failed are gone from the books.
const NEAR: u64 = 64;
/// What may start threads past the limit: `CAP_SYS_ADMIN` and `CAP_SYS_RESOURCE`.
const EXEMPT: u64 = 1 << 21 | 1 << 24;

/// Why a thread or a process could not be started, with the limit that this user has reached, where it is one.
pub fn refused(source: io::Error) -> io::Error {
    match at_limit() {
        Some(limit) => io::Error::new(source.kind(), format!("{source}; {limit}")),
        None => source,
    }
}

/// The limit on this user's processes and threads (`ulimit -u`) in words, where it is reached or nearly so. Only Linux is
/// asked.
pub fn at_limit() -> Option<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let own = status(&read("/proc/self/status"))?;
    let others = || std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let statuses = others()
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|entry| status(&std::fs::read_to_string(entry.path().join("status")).ok()?));
    says(&limits::text(), own, statuses)
}

/// Starts a thread and waits for it, before somebody does who panics where there is none.
///
/// # Errors
/// [`crate::ModelError::Thread`].
#[cfg(feature = "hub")]
pub(crate) fn one(for_what: &'static str) -> Result<(), crate::ModelError> {
    let started = std::thread::Builder::new().spawn(|| ());
    let thread = started.map_err(|source| crate::ModelError::thread(for_what, source))?;
    let _ = thread.join();
    Ok(())
}

/// What of a process's status counts.
#[derive(Clone, Copy)]
struct Status {
    user: u64,
    threads: u64,
    capabilities: u64,
}

fn status(text: &str) -> Option<Status> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()
    };
    Some(Status {
        user: field("Uid:")?.parse().ok()?,
        threads: field("Threads:")?.parse().ok()?,
        capabilities: field("CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0),
    })
}

/// The same of the text of `/proc/self/limits`, and of all processes.
fn says(limits: &str, own: Status, all: impl Iterator<Item = Status>) -> Option<String> {
    let most = limits::soft(limits, "Max processes")?;
    if own.user == 0 || own.capabilities & EXEMPT != 0 {
        return None;
    }
    let there: u64 = all.filter(|other| other.user == own.user).map(|other| other.threads).sum();
    let near = most.saturating_sub(there) < NEAR;
    near.then(|| {
        format!("this user has {there} of the {most} processes and threads that it may have (ulimit -u)")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_limit_is_named_where_it_is_reached() {
        let limits = |most: &str| {
            format!("Max stack size   8   8   bytes\nMax processes      {most}    9    processes\n")
        };
        let of = |user, threads, capabilities| Status { user, threads, capabilities };
        let all = || [of(7, 3, 0), of(8, 500, 0), of(7, 20, 0)].into_iter();
        let said = |most: &str, own| says(&limits(most), own, all());
        let own = of(7, 3, 0);
        let words = said("24", own).unwrap();
        assert!(
            words.contains("has 23 of the 24 processes and threads that it may have (ulimit -u)"),
            "{words}"
        );
        assert!(said("3", own).is_some() && said("86", own).is_some());
        assert_eq!(said("87", own), None, "there is room");
        assert_eq!(said("unlimited", own), None);
        assert_eq!(says("", own, all()), None);
        // Nobody holds these to it.
        assert_eq!([said("3", of(0, 3, 0)), said("3", of(7, 3, 1 << 24))], [None, None]);

        let text = "Name:\tx\nUid:\t65534\t0\t0\t0\nThreads:\t5\nCapEff:\t000001ffffffffff\n";
        let read = status(text).unwrap();
        assert_eq!((read.user, read.threads, read.capabilities & EXEMPT), (65534, 5, EXEMPT));
        assert!(status("Name:\tx\n").is_none());
    }
}
