//! The machine a process runs on: its free memory, its swap, who else is there, and the limit on this process's own
//! addresses. Only Linux is asked; elsewhere the answers are unknown.

use serde::Serialize;

/// Memory of the machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostMemory {
    /// Bytes that a new process could have without anything being swapped out.
    pub available: Option<u64>,
    /// Bytes in all.
    pub total: Option<u64>,
    /// Bytes of swap in use.
    pub swap_used: Option<u64>,
    /// Bytes of swap in all.
    pub swap_total: Option<u64>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Bytes of it in memory.
    pub resident: u64,
}

impl HostMemory {
    /// Reads it now.
    pub fn take() -> Self {
        std::fs::read_to_string("/proc/meminfo").map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Of the text of `/proc/meminfo`.
    fn parse(text: &str) -> Self {
        let field = |name| kilobytes(text, name);
        let swap_total = field("SwapTotal:");
        let swap_used = swap_total.zip(field("SwapFree:")).map(|(all, free)| all.saturating_sub(free));
        Self { available: field("MemAvailable:"), total: field("MemTotal:"), swap_used, swap_total }
    }
}

/// Bytes of address space that this process may have (`ulimit -v`); `None` where it is not limited or nobody says.
pub fn address_space() -> Option<u64> {
    parse_address_space(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

/// The soft limit in the text of `/proc/self/limits`.
fn parse_address_space(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The largest processes other than this one, largest first; empty where nobody says.
pub fn largest(most: usize) -> Vec<Process> {
    let own = std::process::id();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<Process> = pids
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != own)
        .filter_map(|pid| process(pid, &std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?))
        .collect();
    all.sort_by_key(|process| std::cmp::Reverse(process.resident));
    all.truncate(most);
    all
}

/// A process by the text of its `status`; the kernel's own have no memory.
fn process(pid: u32, status: &str) -> Option<Process> {
    let name = status.lines().find_map(|line| line.strip_prefix("Name:"))?.trim().to_owned();
    Some(Process { pid, name, resident: kilobytes(status, "VmRSS:")? })
}

/// The bytes in a line `name  123 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let text = "MemTotal: 100 kB\nMemAvailable:  60 kB\nSwapTotal:  50 kB\nSwapFree:  20 kB\n";
        let [available, total, swap] = [60, 100, 50].map(|kb: u64| Some(kb * 1024));
        let memory = HostMemory { available, total, swap_used: Some(30 * 1024), swap_total: swap };
        assert_eq!(HostMemory::parse(text), memory);
        assert_eq!(
            HostMemory::parse("MemTotal: 99999999999999999999 kB\nSwapTotal: x kB\n"),
            HostMemory::default()
        );

        let limits =
            |soft| format!("Limit  Soft Limit\nMax address space         {soft}   unlimited   bytes\n");
        assert_eq!(parse_address_space(&limits("2147483648")), Some(2_147_483_648));
        assert_eq!(parse_address_space(&limits("unlimited")), None);
        assert_eq!(parse_address_space(""), None);

        let status = "Name:\tcargo\nVmRSS:\t 12 kB\n";
        assert_eq!(process(7, status), Some(Process { pid: 7, name: "cargo".into(), resident: 12 * 1024 }));
        assert_eq!(process(2, "Name:\tkthreadd\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory_and_others_on_it() {
        let memory = HostMemory::take();
        assert!(memory.available > Some(0) && memory.available <= memory.total);
        assert!(largest(3).iter().all(|process| process.pid != std::process::id()));
    }
}
