//! The machine a process runs on: its free memory, its swap, who else is there, and the limit on this process's own
//! addresses. Only Linux is asked; elsewhere the answers are unknown.

use crate::cgroup;
use plimsoll_models::limits;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Memory of the machine at one moment, as far as this process may have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostMemory {
    /// Bytes that a new process could have without anything being swapped out, or less where a control group leaves less.
    pub available: Option<u64>,
    /// Bytes in all, or the limit of that group.
    pub total: Option<u64>,
    /// Bytes of swap in use.
    pub swap_used: Option<u64>,
    /// Bytes of swap in all.
    pub swap_total: Option<u64>,
}

/// What a control group limits this process to, and all others in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Bytes that it may hold.
    pub limit: u64,
    /// Bytes that it does not hold yet; pages of files count as not held, since they are dropped first.
    pub available: u64,
    /// The file with the limit.
    pub file: PathBuf,
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
        let read = std::fs::read_to_string("/proc/meminfo");
        read.map_or_else(|_| Self::default(), |text| Self::parse(&text)).within(group().as_ref())
    }

    /// As far as a group leaves it. The group with the least room is the one that counts, and a limit above the machine's
    /// memory is none.
    fn within(self, group: Option<&Group>) -> Self {
        let Some(group) = group else { return self };
        let least = |own: Option<u64>, of_group: u64| Some(own.map_or(of_group, |own| own.min(of_group)));
        Self {
            available: least(self.available, group.available),
            total: least(self.total, group.limit),
            ..self
        }
    }

    /// Of the text of `/proc/meminfo`.
    fn parse(text: &str) -> Self {
        let field = |name| kilobytes(text, name);
        let swap_total = field("SwapTotal:");
        let swap_used = swap_total.zip(field("SwapFree:")).map(|(all, free)| all.saturating_sub(free));
        Self { available: field("MemAvailable:"), total: field("MemTotal:"), swap_used, swap_total }
    }
}

/// Bytes of the machine, whatever a group leaves of them.
pub fn installed() -> Option<u64> {
    HostMemory::parse(&std::fs::read_to_string("/proc/meminfo").ok()?).total
}

/// The control group that leaves this process least, where one limits it to less than the machine has.
pub fn group() -> Option<Group> {
    let machine = installed();
    let room = cgroup::tightest(Path::new("/"))?;
    let limits = machine.is_none_or(|machine| room.limit < machine);
    limits.then_some(Group { limit: room.limit, available: room.available, file: room.file })
}

/// How many processes the system has ended for want of memory since it started; `None` where nobody says.
pub fn out_of_memory_kills() -> Option<u64> {
    parse_kills(&std::fs::read_to_string("/proc/vmstat").ok()?)
}

/// The count in the text of `/proc/vmstat`.
fn parse_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Bytes of address space that this process may have (`ulimit -v`); `None` where it is not limited or nobody says.
pub fn address_space() -> Option<u64> {
    limits::soft(&limits::text(), "Max address space")
}

/// Bytes of data that this process may have (`ulimit -d`), likewise.
pub fn data_size() -> Option<u64> {
    limits::soft(&limits::text(), "Max data size")
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

        assert_eq!(parse_kills("nr_free_pages 7\noom_kill 8\noom_kill_x 9\n"), Some(8));
        assert_eq!(parse_kills("oom_kill many\n"), None);
        assert_eq!(parse_kills(""), None);

        let status = "Name:\tcargo\nVmRSS:\t 12 kB\n";
        assert_eq!(process(7, status), Some(Process { pid: 7, name: "cargo".into(), resident: 12 * 1024 }));
        assert_eq!(process(2, "Name:\tkthreadd\n"), None);
    }

    #[test]
    fn a_group_that_leaves_less_is_what_there_is() {
        let machine = HostMemory { available: Some(50), total: Some(100), ..HostMemory::default() };
        let group = |limit, available| Group { limit, available, file: PathBuf::new() };
        let within = |machine: HostMemory, group: Option<Group>| {
            let memory = machine.within(group.as_ref());
            (memory.available, memory.total)
        };
        assert_eq!(within(machine, None), (Some(50), Some(100)));
        assert_eq!(within(machine, Some(group(40, 30))), (Some(30), Some(40)));
        // The group has room, and the machine has none.
        assert_eq!(within(machine, Some(group(90, 80))), (Some(50), Some(90)));
        assert_eq!(within(HostMemory::default(), Some(group(40, 30))), (Some(30), Some(40)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory_and_others_on_it() {
        let memory = HostMemory::take();
        assert!(memory.available > Some(0) && memory.available <= memory.total);
        assert!(largest(3).iter().all(|process| process.pid != std::process::id()));
    }
}
