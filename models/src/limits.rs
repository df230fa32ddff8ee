//! The limits that a shell sets this process (`ulimit`), where they can be read: on Linux.

use std::io;

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

/// The limits on memory in such a text that are set, in words.
fn memory(limits: &str) -> Vec<String> {
    let named = [("ulimit -v", "Max address space"), ("ulimit -d", "Max data size")];
    let set = named.into_iter().filter_map(|(name, line)| Some((name, soft(limits, line)?)));
    set.map(|(name, bytes)| format!("{name} of {bytes} bytes")).collect()
}

/// Whether so many bytes of memory can be had now. Collections end the process where they get none, and a limit of the shell
/// (`ulimit -v`, `-d`) may be why: whoever is about to take a lot asks first.
///
/// # Errors
/// [`io::ErrorKind::OutOfMemory`], with how many.
pub fn room(bytes: usize) -> io::Result<()> {
    let mut held = Vec::<u8>::new();
    // Looked at, so that no compiler finds out that nobody needs it.
    match std::hint::black_box(&mut held).try_reserve_exact(bytes) {
        Ok(()) => Ok(()),
        Err(_) => {
            let why = match memory(&text()) {
                set if set.is_empty() => "the system gives no more".to_owned(),
                set => format!("{} gives no more", set.join(" or ")),
            };
            let why = format!("no memory: about {bytes} bytes are needed, and {why}");
            Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_set_are_named() {
        let text =
            "Max data size  8192000  unlimited  bytes\nMax address space  unlimited  unlimited  bytes\n";
        assert_eq!(memory(text), ["ulimit -d of 8192000 bytes"]);
        assert!(memory("").is_empty());
    }

    #[test]
    fn what_can_be_had_is_and_what_cannot_is_an_error() {
        assert!(room(0).is_ok() && room(1 << 20).is_ok());
        for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
            let error = room(bytes).map_err(|error| (error.kind(), error.to_string()));
            let said = |why: String| why.contains(&bytes.to_string()) && why.ends_with("gives no more");
            assert!(error.is_err_and(|(kind, why)| kind == io::ErrorKind::OutOfMemory && said(why)));
        }
    }
}
