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
}

impl Parts {
    /// Reads them now. Costs a walk over the mappings of the process: milliseconds for each GiB of it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn take() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let files = line(&read("/proc/self/status"), "RssFile:");
        Self { files, heap: heap(&read("/proc/self/smaps")) }
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

/// Forgets the peak so far, where Linux lets a process do that. Answers whether it worked: else a peak would be that of
/// all the time before.
pub fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// A line of `/proc/self/status`, in bytes.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn line(status: &str, name: &str) -> Option<u64> {
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

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_somewhere() {
        let memory = ProcessMemory::take();
        assert!(memory.resident.bytes > Some(0) && memory.peak.bytes >= memory.resident.bytes);
        assert_eq!(memory.resident.source, SOURCE);
        assert_eq!(Figure::new(None, SOURCE).source, "unknown");
    }
}
