//! Readings of free memory: a value, where it comes from, when it was taken, and what it leaves out. No portable query
//! exists, and a number of unknown origin is worse than none, so the answer may be "unknown".

use crate::{cgroup, rlimit};
use plimsoll_estimator::{Reading, grouped};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

/// Where a reading comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum MemorySource {
    /// Vulkan's extension, device-local heaps: budget less usage.
    #[serde(rename = "VK_EXT_memory_budget")]
    VulkanBudget,
    /// `MemAvailable` of Linux: software drivers, and adapters that share the machine's memory.
    #[serde(rename = "/proc/meminfo")]
    MemInfo,
    /// The limit of a control group that this process is in (version 1), less what the group uses.
    #[serde(rename = "cgroup v1")]
    CgroupV1,
    /// The same in version 2.
    #[serde(rename = "cgroup v2")]
    CgroupV2,
    /// The limit on this process's addresses, less those it has and what a load takes beside its buffers.
    #[serde(rename = "ulimit -v")]
    AddressSpace,
    /// The limit on this process's data, in the same way.
    #[serde(rename = "ulimit -d")]
    DataSize,
    /// Metal's recommended working set less what is allocated.
    #[serde(rename = "recommendedMaxWorkingSetSize")]
    MetalWorkingSet,
    /// DXGI's local segment group: budget less usage.
    #[serde(rename = "QueryVideoMemoryInfo")]
    VideoMemoryInfo,
    /// A feed that somebody made up.
    #[serde(rename = "simulated")]
    Simulated,
    /// Nobody says.
    #[serde(rename = "unknown")]
    Unknown,
}

impl MemorySource {
    /// Whether it is a limit of this process and nobody else's.
    pub fn is_of_the_process(self) -> bool {
        matches!(self, Self::AddressSpace | Self::DataSize)
    }

    /// Whether it is a limit that somebody set, and no memory.
    fn is_limit(self) -> bool {
        self.is_of_the_process() || matches!(self, Self::CgroupV1 | Self::CgroupV2)
    }

    /// What its readings leave out already.
    fn excludes(self) -> &'static [&'static str] {
        match self {
            Self::VulkanBudget => &[
                "what this process holds on the device",
                "what the driver's budget keeps for other processes",
            ],
            Self::MemInfo => &["what every process holds, this one too", "swap"],
            Self::CgroupV1 | Self::CgroupV2 => &[
                "what every process of the group holds, this one too",
                "pages of files that were written and not saved",
                "swap",
            ],
            Self::AddressSpace | Self::DataSize => {
                &["what this process has: programs, drivers, threads and buffers"]
            }
            Self::MetalWorkingSet => &["what this process has allocated on the device"],
            Self::VideoMemoryInfo => &[
                "what this process holds of the local segments",
                "what the system's budget keeps for other processes",
            ],
            Self::Simulated | Self::Unknown => &[],
        }
    }
}

impl fmt::Display for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemorySource::VulkanBudget => "VK_EXT_memory_budget",
            MemorySource::MemInfo => "/proc/meminfo",
            MemorySource::CgroupV1 => "cgroup v1",
            MemorySource::CgroupV2 => "cgroup v2",
            MemorySource::AddressSpace => "ulimit -v",
            MemorySource::DataSize => "ulimit -d",
            MemorySource::MetalWorkingSet => "recommendedMaxWorkingSetSize",
            MemorySource::VideoMemoryInfo => "QueryVideoMemoryInfo",
            MemorySource::Simulated => "simulated",
            MemorySource::Unknown => "unknown",
        })
    }
}

/// What was free, of how much, when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryReading {
    /// Bytes that could be allocated; `None` when nobody says.
    pub available: Option<u64>,
    /// Bytes in all: the machine's, a heap's, or the limit.
    pub total: Option<u64>,
    /// Bytes for what a load takes beside its buffers, by measurements, of memory that the driver shares with this process,
    /// less what earlier loads of the process took of it and keep. They are not in `available`.
    pub beside: u64,
    /// Bytes of a limit that are in use.
    pub used: Option<u64>,
    /// Bytes of our buffers that are among those, and come back when they go.
    #[serde(skip)]
    pub(crate) ours: u64,
    /// Who says so.
    pub source: MemorySource,
    /// Which of several it is, where the source has several: the file with a group's limit.
    pub of: Option<String>,
    /// When.
    pub at: SystemTime,
    /// What the source left out of `available` already.
    pub excluded: Vec<String>,
}

impl MemoryReading {
    /// A reading taken now; of nobody's where there are no values `(available, total)`.
    pub fn new(values: Option<(u64, u64)>, source: MemorySource) -> Self {
        let source = if values.is_some() { source } else { MemorySource::Unknown };
        let (available, total) = values.unzip();
        let excluded = source.excludes().iter().map(|&text| text.to_owned()).collect();
        let at = SystemTime::now();
        Self { available, total, beside: 0, used: None, ours: 0, source, of: None, at, excluded }
    }

    /// The source and which of several; of a limit how much it allows in all and how much of that is in use; and what was
    /// left out of it for a load.
    pub fn named(&self) -> String {
        let mut name = self.source.to_string();
        if let Some(of) = &self.of {
            name = format!("{name} {of}");
        }
        let beside = format!("{} for what a load takes beside its buffers", grouped(self.beside));
        match (self.used, self.total) {
            (Some(used), Some(total)) => {
                format!("{name} of {} bytes, less {} in use and {beside}", grouped(total), grouped(used))
            }
            _ if self.beside > 0 => format!("{name}, less {beside}"),
            _ => name,
        }
    }

    /// As a reading to hold plans against. `None` when it says nothing.
    pub fn reading(&self) -> Option<Reading> {
        let taken = self.at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let (bytes, excluded) = (self.available?, self.excluded.clone());
        // A limit of this process alone has nobody else in it, who could go; only our own buffers can.
        let most = if self.source.is_of_the_process() {
            Some(bytes.saturating_add(self.ours))
        } else {
            self.total.map(|total| total.saturating_sub(rlimit::beside(self.source)))
        };
        let (source, beside) = (self.named(), self.beside);
        Some(Reading { bytes, total: most, beside, source, taken, excluded })
    }

    /// With so many bytes of our buffers on the device among what is in use.
    pub(crate) fn with_ours(self, ours: u64) -> Self {
        Self { ours, ..self }
    }

    /// Leaves out what a load takes beside its buffers, of any source that has to give it.
    fn less_beside(mut self) -> Self {
        let Some(available) = self.available else { return self };
        if self.source.is_limit() {
            self.used = self.total.map(|total| total.saturating_sub(available));
        }
        self.beside = rlimit::still_beside(self.source);
        self.available = Some(available.saturating_sub(self.beside));
        if self.beside > 0 {
            let bytes = grouped(self.beside);
            self.excluded
                .push(format!("{bytes} bytes for what a load takes beside its buffers, by measurements"));
        }
        self
    }

    /// Reads the machine's free memory now: what Linux says is available, or what a control group or a limit of this process
    /// leaves of it; of each less what a load takes beside its buffers.
    fn machine(root: &Path) -> Self {
        let values = std::fs::read_to_string(root.join("proc/meminfo")).ok();
        let values = values.and_then(|text| parse_mem_info(&text));
        let machine = Self::new(values, MemorySource::MemInfo);
        let rooms = rlimit::rooms(root).into_iter();
        let limits = rooms.map(|room| Self::new(Some((room.left, room.limit)), room.source).less_beside());
        let least = |one: Self, other: Self| match (one.available, other.available) {
            (Some(has), Some(leaves)) if has <= leaves => one,
            _ => other,
        };
        limits.fold(Self::group(root, machine).less_beside(), least)
    }

    /// The machine, or what a control group leaves of it.
    fn group(root: &Path, machine: Self) -> Self {
        match cgroup::tightest(root) {
            Some(room) if machine.available.is_none_or(|available| room.available < available) => {
                let source = if room.version == 1 { MemorySource::CgroupV1 } else { MemorySource::CgroupV2 };
                let total = room.limit.min(machine.total.unwrap_or(u64::MAX));
                let of = Some(room.file.display().to_string());
                Self { of, ..Self::new(Some((room.available, total)), source) }
            }
            _ => machine,
        }
    }

    /// Reads the adapter's free memory now.
    pub(crate) fn take(adapter: &wgpu::Adapter) -> Self {
        let info = adapter.get_info();
        // A software driver's "usage" is the whole machine's, and where it lacks the extension its heap is a fixed
        // fiction: for these, and for adapters without memory of their own, the machine is the better witness.
        let shared = matches!(info.device_type, wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu);
        match info.backend {
            wgpu::Backend::Metal => Self::new(metal(adapter), MemorySource::MetalWorkingSet),
            wgpu::Backend::Dx12 => Self::new(dxgi(adapter), MemorySource::VideoMemoryInfo),
            wgpu::Backend::Vulkan if !shared => Self::new(vulkan(adapter), MemorySource::VulkanBudget),
            _ if shared => Self::machine(Path::new("/")),
            _ => Self::new(None, MemorySource::Unknown),
        }
    }
}

/// `(available, total)` in bytes from the text of `/proc/meminfo`.
fn parse_mem_info(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        let (number, unit) = line.trim().split_once(' ')?;
        (unit.trim() == "kB").then(|| number.parse::<u64>().ok()?.checked_mul(1024))?
    };
    Some((field("MemAvailable")?, field("MemTotal")?))
}

/// `(available, total)` of the device-local heaps.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
fn vulkan(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use ash::vk;
    // SAFETY: the handle is only read from, and lives as long as the guard.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    if !hal.physical_device_capabilities().supports_extension(ash::ext::memory_budget::NAME) {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance, and the chained structure to an extension it has.
    unsafe {
        instance.get_physical_device_memory_properties2(hal.raw_physical_device(), &mut properties);
    }
    let memory = properties.memory_properties;
    let mut sums = None;
    for (heap, at) in memory.memory_heaps.iter().take(memory.memory_heap_count as usize).zip(0usize..) {
        if heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL) {
            let used = budget.heap_usage.get(at).copied().unwrap_or(0);
            let may = budget.heap_budget.get(at).copied().unwrap_or(0);
            let (available, total) = sums.unwrap_or((0, 0));
            sums = Some((available + may.saturating_sub(used), total + heap.size));
        }
    }
    sums
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
fn vulkan(_: &wgpu::Adapter) -> Option<(u64, u64)> {
    None
}

/// What is left of the recommended working set, and the set.
#[cfg(target_vendor = "apple")]
fn metal(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use objc2_metal::MTLDevice;
    // SAFETY: the device is only asked for two numbers, while the guard lives.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = hal.raw_device();
    let total = device.recommendedMaxWorkingSetSize();
    Some((total.saturating_sub(device.currentAllocatedSize() as u64), total))
}

#[cfg(not(target_vendor = "apple"))]
fn metal(_: &wgpu::Adapter) -> Option<(u64, u64)> {
    None
}

/// What is left of the budget of the local segment group, and the budget.
#[cfg(target_os = "windows")]
fn dxgi(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use windows::Win32::Graphics::Dxgi::DXGI_MEMORY_SEGMENT_GROUP_LOCAL;
    // SAFETY: the adapter is only asked for its memory, while the guard lives.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    let info = hal.raw_adapter().query_video_memory_info(DXGI_MEMORY_SEGMENT_GROUP_LOCAL).ok()?;
    Some((info.Budget.saturating_sub(info.CurrentUsage), info.Budget))
}

#[cfg(not(target_os = "windows"))]
fn dxgi(_: &wgpu::Adapter) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes_or_not_at_all() {
        let text = "MemTotal:       16303168 kB\nMemFree:          512000 kB\nMemAvailable:    8151584 kB\n";
        assert_eq!(parse_mem_info(text), Some((8_151_584 * 1024, 16_303_168 * 1024)));
        assert_eq!(parse_mem_info("MemTotal: 12 kB\n"), None);
        assert_eq!(parse_mem_info("MemTotal: 12 kB\nMemAvailable: 5 pages\n"), None);
        assert_eq!(parse_mem_info("MemTotal: 12 kB\nMemAvailable: -5 kB\n"), None);
        assert_eq!(parse_mem_info("MemTotal: 12 kB\nMemAvailable: 99999999999999999999 kB\n"), None);
        assert_eq!(parse_mem_info("MemTotal: 12 kB\nMemAvailable: 18446744073709551615 kB\n"), None);
    }

    #[test]
    fn the_machine_is_what_a_group_leaves_of_it() {
        const TOUCHED: u64 = 320 << 20;
        let root = std::env::temp_dir().join(format!("plimsoll-machine-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let read = || MemoryReading::machine(&root);
        assert_eq!((read().available, read().source), (None, MemorySource::Unknown));
        assert_eq!(read().excluded, Vec::<String>::new(), "of no reading nothing is known");
        write("proc/meminfo", "MemTotal: 1600000 kB\nMemAvailable: 800000 kB\n");
        assert_eq!((read().available, read().total), (Some(819_200_000 - TOUCHED), Some(1_638_400_000)));
        let left_out = "less 335,544,320 for what a load takes beside its buffers";
        assert_eq!((read().named(), read().of), (format!("/proc/meminfo, {left_out}"), None));
        // What it can ever be has a load's part left out as well.
        assert_eq!(read().reading().unwrap().total, Some(1_638_400_000 - TOUCHED));
        write("proc/self/mountinfo", "29 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
        write("proc/self/cgroup", "0::/job\n");
        write("cg/job/memory.max", "377487360");
        write("cg/job/memory.current", "32000000");
        let limited = read();
        assert_eq!((limited.available, limited.total), (Some(345_487_360 - TOUCHED), Some(377_487_360)));
        assert_eq!((limited.beside, limited.used), (TOUCHED, Some(32_000_000)));
        assert_eq!(
            limited.named(),
            "cgroup v2 /cg/job/memory.max of 377,487,360 bytes, less 32,000,000 in use and 335,544,320 for what a load \
             takes beside its buffers"
        );
        assert_eq!(limited.reading().unwrap().total, Some(377_487_360 - TOUCHED));
        assert!(limited.excluded.iter().any(|text| text.contains("group")), "{:?}", limited.excluded);
        // A group that has more left than the machine limits nothing.
        write("cg/job/memory.max", "1000000000");
        assert_eq!((read().available, read().source), (Some(819_200_000 - TOUCHED), MemorySource::MemInfo));
        // What it leaves may be less than a load takes: then there is nothing.
        write("cg/job/memory.max", "60000000");
        assert_eq!((read().available, read().reading().unwrap().total), (Some(0), Some(0)));
        // Nor has the machine more than the shell allows this process, of which a load takes a part beside its buffers.
        write("cg/job/memory.max", "max");
        write("proc/self/status", "VmSize: 100000 kB\nVmData: 50000 kB\n");
        let limits = |space: &str, data: &str| {
            let lines = [("address space", space), ("data size", data)];
            let lines = lines.map(|(name, soft)| format!("Max {name}    {soft}   unlimited   bytes\n"));
            write("proc/self/limits", &lines.concat());
            (read().available, read().source)
        };
        assert_eq!(limits("unlimited", "unlimited").1, MemorySource::MemInfo);
        assert_eq!(
            limits("512000000", "unlimited"),
            (Some(409_600_000 - (256 << 20)), MemorySource::AddressSpace)
        );
        assert_eq!(read().total, Some(512_000_000));
        assert!(read().excluded.iter().any(|what| what.contains("268,435,456")), "{:?}", read().excluded);
        // Nobody else is in it, who could go: only our own buffers can.
        let reading = read().reading().unwrap();
        assert_eq!(reading.total, Some(reading.bytes));
        assert_eq!(read().with_ours(5).reading().unwrap().total, Some(reading.bytes + 5));
        assert_eq!(limits("512000000", "400000000"), (Some(348_800_000 - TOUCHED), MemorySource::DataSize));
        // Where there is nothing left, it still says of what, and why.
        assert_eq!(limits("unlimited", "256000000"), (Some(0), MemorySource::DataSize));
        assert_eq!(
            read().named(),
            "ulimit -d of 256,000,000 bytes, less 51,200,000 in use and 335,544,320 for what a load takes beside its \
             buffers"
        );
        assert_eq!(limits("1", "unlimited"), (Some(0), MemorySource::AddressSpace));
        assert_eq!(limits("9223372036854775807", "unlimited").1, MemorySource::MemInfo);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
