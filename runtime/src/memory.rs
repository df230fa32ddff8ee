//! Readings of free memory: a value, where it comes from, and when it was taken. No portable query exists, and a
//! number of unknown origin is worse than none, so the answer may be "unknown".

use serde::Serialize;
use std::fmt;
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
    /// Metal's recommended working set less what is allocated.
    #[serde(rename = "recommendedMaxWorkingSetSize")]
    MetalWorkingSet,
    /// DXGI's local segment group: budget less usage.
    #[serde(rename = "QueryVideoMemoryInfo")]
    VideoMemoryInfo,
    /// Nobody says.
    #[serde(rename = "unknown")]
    Unknown,
}

impl fmt::Display for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemorySource::VulkanBudget => "VK_EXT_memory_budget",
            MemorySource::MemInfo => "/proc/meminfo",
            MemorySource::MetalWorkingSet => "recommendedMaxWorkingSetSize",
            MemorySource::VideoMemoryInfo => "QueryVideoMemoryInfo",
            MemorySource::Unknown => "unknown",
        })
    }
}

/// What was free, of how much, when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryReading {
    /// Bytes that could be allocated; `None` when nobody says.
    pub available: Option<u64>,
    /// Bytes in all.
    pub total: Option<u64>,
    /// Who says so.
    pub source: MemorySource,
    /// When.
    pub at: SystemTime,
}

impl MemoryReading {
    fn new(values: Option<(u64, u64)>, source: MemorySource) -> Self {
        let source = if values.is_some() { source } else { MemorySource::Unknown };
        let (available, total) = values.unzip();
        Self { available, total, source, at: SystemTime::now() }
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
            _ if shared => Self::new(mem_info(), MemorySource::MemInfo),
            _ => Self::new(None, MemorySource::Unknown),
        }
    }
}

fn mem_info() -> Option<(u64, u64)> {
    parse_mem_info(&std::fs::read_to_string("/proc/meminfo").ok()?)
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
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes_or_not_at_all() {
        let text = "MemTotal:       16303168 kB\nMemFree:          512000 kB\nMemAvailable:    8151584 kB\n";
        assert_eq!(parse_mem_info(text), Some((8_151_584 * 1024, 16_303_168 * 1024)));
        assert_eq!(parse_mem_info("MemTotal: 12 kB\n"), None);
        assert_eq!(parse_mem_info("MemTotal: 12 kB\nMemAvailable: 5 pages\n"), None);
        assert_eq!(parse_mem_info("MemTotal: 12 kB\nMemAvailable: -5 kB\n"), None);
    }
}
