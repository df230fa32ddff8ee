//! What the system says of this process's memory. A software driver's device memory is part of it.

use serde::Serialize;

/// A number of bytes and who says so; `None` where nobody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Who says so, or `unknown`.
    pub source: &'static str,
}

impl Figure {
    /// A figure by this source, if it has one.
    pub fn new(bytes: Option<u64>, source: &'static str) -> Self {
        Self { bytes, source: if bytes.is_some() { source } else { "unknown" } }
    }
}

/// The memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// In memory now, pages of mapped files that are in memory included.
    pub resident: Figure,
    /// The most that ever was, or since [`forget_peak`].
    pub peak: Figure,
    /// Swapped out now.
    pub swap: Figure,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const SOURCE: &str = "/proc/self/status";

impl ProcessMemory {
    /// Reads it now.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn take() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let figure = |name| Figure::new(line(&status, name), SOURCE);
        Self { resident: figure("VmRSS:"), peak: figure("VmHWM:"), swap: figure("VmSwap:") }
    }

    /// Reads it now.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn take() -> Self {
        let resident = memory_stats::memory_stats().and_then(|stats| u64::try_from(stats.physical_mem).ok());
        let unknown = Figure::new(None, "unknown");
        Self { resident: Figure::new(resident, "memory-stats"), peak: unknown, swap: unknown }
    }
}

/// What the system tells apart within the resident memory of this process, where it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Pages of mapped files that are in memory: checkpoints, libraries, a driver's cache of shaders.
    pub files: Option<u64>,
    /// The heap of the C library, without what it has mapped for large blocks and for the arenas of other threads.
    pub heap: Option<u64>,
    /// Those arenas: a driver's compiler, which runs in threads of its own, leaves them large and full of holes.
    pub arenas: Option<u64>,
}

impl Parts {
    /// Reads them now. Costs a walk over the mappings of the process: milliseconds for each GiB of it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn take() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let files = line(&read("/proc/self/status"), "RssFile:");
        let smaps = read("/proc/self/smaps");
        Self { files, heap: heap(&smaps), arenas: arenas(&smaps) }
    }

    /// Nobody tells.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn take() -> Self {
        Self::default()
    }
}

/// Resident bytes of the heap by the text of `/proc/self/smaps`; 0 where there is a text and no heap in it.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn heap(smaps: &str) -> Option<u64> {
    if smaps.is_empty() {
        return None;
    }
    match smaps.split_once("[heap]\n") {
        None => Some(0),
        Some((_, of_heap)) => line(of_heap, "Rss:"),
    }
}

/// What glibc reserves for a heap of another thread, and aligns it by, on machines of 64 bits (`HEAP_MAX_SIZE` of its
/// `malloc/arena.c`). What is in use is at its beginning; the rest may not be touched.
#[cfg(any(target_os = "linux", target_os = "android", test))]
const ARENA: u64 = 64 << 20;

/// Resident bytes of the heaps of other threads by the text of `/proc/self/smaps`, which names none: a mapping of no
/// file that begins at a multiple of [`ARENA`] and is followed by one up to the next that nobody may touch.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn arenas(smaps: &str) -> Option<u64> {
    let (mut sum, mut last) = (None, None);
    let mut resident = 0;
    for text in smaps.lines() {
        if let Some(rest) = text.strip_prefix("Rss:") {
            resident =
                rest.trim().strip_suffix("kB").and_then(|n| n.trim_end().parse::<u64>().ok()).unwrap_or(0);
        }
        let Some((start, end, access)) = mapping(text) else { continue };
        let all = sum.get_or_insert(0_u64);
        if let Some((first, next)) = last
            && (access, start) == ("---p", next)
            && end == first + ARENA
        {
            *all = all.saturating_add(resident.saturating_mul(1024));
        }
        let begins = access == "rw-p" && start % ARENA == 0 && start < u64::MAX - ARENA;
        last = begins.then_some((start, end));
        resident = 0;
    }
    sum
}

/// The first line of a mapping of no file: where it begins, where it ends, and who may touch it.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn mapping(text: &str) -> Option<(u64, u64, &str)> {
    let mut words = text.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end, access) = (number(start)?, number(end)?, words.next()?);
    // Offset, device and inode; a name, if there is one, is that of a file or of something that is no arena.
    (access.len() == 4 && words.nth(3).is_none_or(|name| name.starts_with("[anon")))
        .then_some((start, end, access))
}

/// Forgets the peak so far, where Linux lets a process do that. Answers whether it worked: else a peak would be that of
/// all the time before.
pub fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// A line of `/proc/self/status`, in bytes.
pub(crate) fn line(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_status() {
        let status = "Name:\tx\nVmHWM:\t    1204 kB\nVmRSS:\t     900 kB\nVmData:\t 5 pages\n";
        assert_eq!(line(status, "VmHWM:"), Some(1204 * 1024));
        assert_eq!(line(status, "VmSwap:"), None);
        assert_eq!(line(status, "VmData:"), None);
    }

    #[test]
    fn the_heap_is_one_of_the_mappings() {
        let other = "7f00-7f08 rw-p 0 00:00 0 \nSize: 32 kB\nRss: 28 kB\n";
        let smaps =
            format!("{other}55aa-55bb rw-p 0 00:00 0     [heap]\nSize: 132 kB\nRss:    96 kB\n{other}");
        assert_eq!(heap(&smaps), Some(96 * 1024));
        assert_eq!(heap(other), Some(0));
        assert_eq!(heap(""), None);
    }

    #[test]
    fn heaps_of_other_threads_are_where_they_begin_and_end() {
        let map = |range: &str, access: &str, name: &str, kb: u32| {
            format!("{range} {access} 00000000 00:00 0 {name}\nSize: 8 kB\nRss:   {kb} kB\nPss: 1 kB\n")
        };
        let arena = map("7f0000000000-7f0000021000", "rw-p", "", 100)
            + &map("7f0000021000-7f0004000000", "---p", "", 0);
        let named = map("7f0008000000-7f0008021000", "rw-p", "[anon: glibc: malloc arena]", 7)
            + &map("7f0008021000-7f000c000000", "---p", "", 0);
        // A stack with its guard, a file, and what is aligned by chance.
        let stack = map("7f1000000000-7f1000001000", "---p", "", 0)
            + &map("7f1000001000-7f1000801000", "rw-p", "", 9);
        let file = map("7f2000000000-7f2000021000", "rw-p", "/usr/lib/x.so", 9)
            + &map("7f2000021000-7f2004000000", "---p", "/usr/lib/x.so", 0);
        let chance = map("7f3000000000-7f3000100000", "rw-p", "", 9)
            + &map("7f3000100000-7f3000101000", "r--p", "", 0);
        assert_eq!(arenas(&[&arena[..], &stack, &file, &named, &chance].concat()), Some(107 * 1024));
        assert_eq!(arenas(&(stack + &file + &chance)), Some(0));
        assert_eq!(arenas(""), None);
    }

    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    #[test]
    fn the_heap_of_another_thread_is_seen() {
        let before = arenas(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default());
        // Blocks below the size from which glibc maps each by itself.
        let thread =
            std::thread::spawn(|| (0..200).map(|at| vec![at as u8 + 1; 100_000]).collect::<Vec<_>>());
        let held = thread.join().unwrap_or_default();
        let after = arenas(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default());
        let grown = after.unwrap_or(0).saturating_sub(before.unwrap_or(0));
        assert!(grown >= 19_000_000, "{grown} of {} blocks", held.len());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_somewhere() {
        let memory = ProcessMemory::take();
        assert!(memory.resident.bytes > Some(0) && memory.peak.bytes >= memory.resident.bytes);
        assert_eq!(memory.resident.source, SOURCE);
        assert_eq!(Figure::new(None, SOURCE).source, "unknown");
    }
}
