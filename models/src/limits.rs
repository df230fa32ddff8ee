//! The limits that a shell sets this process (`ulimit`), where they can be read: on Linux.

/// `/proc/self/limits`; empty where there is no such file.
pub fn text() -> String {
    std::fs::read_to_string("/proc/self/limits").unwrap_or_default()
}

/// The soft limit of that name in such a text, in the unit it has there; `None` where there is none.
///
/// ```
/// use plimsoll_models::limits::soft;
/// let text = "Max data size  unlimited  unlimited  bytes\nMax stack size  8388608  unlimited  bytes\n";
/// assert_eq!((soft(text, "Max stack size"), soft(text, "Max data size")), (Some(8 << 20), None));
/// ```
pub fn soft(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The limit on a stack (`ulimit -s`): of the first thread, and in the C library of every other that does not ask for one.
/// `None` where there is none.
pub fn stack() -> Option<u64> {
    soft(&text(), "Max stack size")
}
