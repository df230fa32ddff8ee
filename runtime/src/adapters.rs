//! The adapters of this machine: what they are, what they give, and which one is meant.

use crate::memory::MemoryReading;
use crate::{RuntimeError, rlimit};
use plimsoll_kernels::{Facts, Limits, Profile, Tuned};
use serde::Serialize;
use std::str::FromStr;

/// The environment variable that names an adapter when nothing else does.
pub const ADAPTER_VARIABLE: &str = "PLIMSOLL_ADAPTER";

/// Which adapter is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// What `PLIMSOLL_ADAPTER` says; else the best GPU, else a software driver.
    #[default]
    Default,
    /// The adapter at this place of [`adapters`].
    Index(usize),
    /// The first adapter whose name, driver or backend contains this, in any case.
    Name(String),
}

impl FromStr for AdapterChoice {
    type Err = std::convert::Infallible;

    /// Digits are an index, anything else a name, nothing the default.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        Ok(match text.parse() {
            _ if text.is_empty() => AdapterChoice::Default,
            Ok(index) => AdapterChoice::Index(index),
            Err(_) => AdapterChoice::Name(text.to_owned()),
        })
    }
}

/// What an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the machine's memory.
    Integrated,
    /// A GPU behind a hypervisor.
    Virtual,
    /// Not stated.
    Other,
    /// A software driver.
    Cpu,
}

impl From<wgpu::DeviceType> for AdapterKind {
    fn from(kind: wgpu::DeviceType) -> Self {
        match kind {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Other => AdapterKind::Other,
            wgpu::DeviceType::Cpu => AdapterKind::Cpu,
        }
    }
}

/// An adapter, without opening it.
#[derive(Clone, Debug, Serialize)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// The driver's name.
    pub driver: String,
    /// The driver's version.
    pub driver_info: String,
    /// What it is.
    pub kind: AdapterKind,
    /// The most it gives.
    pub limits: Limits,
    /// Smallest and largest subgroup; `None` when it has no subgroup operations.
    pub subgroup_size: Option<(u32, u32)>,
    /// WebGPU and wgpu features by name.
    pub features: Vec<String>,
    /// Its free memory.
    pub memory: MemoryReading,
}

/// How an adapter is used: less than it gives, when asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Which adapter.
    pub adapter: AdapterChoice,
    /// Use subgroup operations where there are any.
    pub subgroups: bool,
    /// Use no more than WebGPU's default limits.
    pub webgpu_limits: bool,
    /// The most bytes of one buffer.
    pub max_allocation: Option<u64>,
    /// The most bytes of one storage binding.
    pub max_binding: Option<u64>,
    /// Be able to take timestamps between dispatches, where the adapter can: for profiles.
    pub timestamps: bool,
    /// Kernel variants other than those that the table has for the adapter. [`Device::open`](crate::Device::open) refuses
    /// what the adapter cannot have.
    pub tuning: Option<Tuned>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            adapter: AdapterChoice::Default,
            subgroups: true,
            webgpu_limits: false,
            max_allocation: None,
            max_binding: None,
            timestamps: false,
            tuning: None,
        }
    }
}

impl AdapterInfo {
    pub(crate) fn of(adapter: &wgpu::Adapter) -> Self {
        let info = adapter.get_info();
        let features = adapter.features();
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        Self {
            name: info.name,
            backend: info.backend.to_string(),
            driver: info.driver,
            driver_info: info.driver_info,
            kind: info.device_type.into(),
            limits: limits(&adapter.limits()),
            subgroup_size: subgroups.then_some((info.subgroup_min_size, info.subgroup_max_size)),
            features: features.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect(),
            memory: MemoryReading::take(adapter),
        }
    }

    /// What a plan may assume when the adapter is opened with these options, with the variants that the table has for it.
    pub fn profile(&self, options: &DeviceOptions) -> Profile {
        let mut limits = self.limits.clone();
        if options.webgpu_limits {
            let default = Limits::webgpu_default();
            limits = Limits {
                max_buffer_size: limits.max_buffer_size.min(default.max_buffer_size),
                max_storage_buffer_binding_size: limits
                    .max_storage_buffer_binding_size
                    .min(default.max_storage_buffer_binding_size),
                max_storage_buffers_per_shader_stage: limits
                    .max_storage_buffers_per_shader_stage
                    .min(default.max_storage_buffers_per_shader_stage),
                max_compute_workgroup_storage_size: limits
                    .max_compute_workgroup_storage_size
                    .min(default.max_compute_workgroup_storage_size),
                max_compute_invocations_per_workgroup: limits
                    .max_compute_invocations_per_workgroup
                    .min(default.max_compute_invocations_per_workgroup),
                max_compute_workgroups_per_dimension: limits
                    .max_compute_workgroups_per_dimension
                    .min(default.max_compute_workgroups_per_dimension),
            };
        }
        let cap = |limit: &mut u64, most: Option<u64>| *limit = (*limit).min(most.unwrap_or(u64::MAX));
        cap(&mut limits.max_buffer_size, options.max_allocation);
        cap(&mut limits.max_storage_buffer_binding_size, options.max_binding);
        // A binding never reaches past its buffer.
        cap(&mut limits.max_storage_buffer_binding_size, Some(limits.max_buffer_size));
        let subgroups = self.subgroup_size.filter(|_| options.subgroups);
        let has = |feature: &str| self.features.iter().any(|name| name == feature);
        let facts = Facts {
            limits,
            subgroup_size: subgroups,
            cpu: self.kind == AdapterKind::Cpu,
            f16: has("shader_f16"),
            cooperative_matrix: has("experimental_cooperative_matrix"),
        };
        Profile::of(&self.name, facts)
    }

    fn answers_to(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        [&self.name, &self.driver, &self.backend].iter().any(|text| text.to_lowercase().contains(&name))
    }
}

fn limits(of: &wgpu::Limits) -> Limits {
    Limits {
        max_buffer_size: of.max_buffer_size,
        max_storage_buffer_binding_size: of.max_storage_buffer_binding_size,
        max_storage_buffers_per_shader_stage: of.max_storage_buffers_per_shader_stage,
        max_compute_workgroup_storage_size: of.max_compute_workgroup_storage_size,
        max_compute_invocations_per_workgroup: of.max_compute_invocations_per_workgroup,
        max_compute_workgroups_per_dimension: of.max_compute_workgroups_per_dimension,
    }
}

/// Every adapter of this machine, in the order that [`AdapterChoice::Index`] counts.
///
/// # Errors
/// [`RuntimeError::Confined`], [`RuntimeError::Stacks`]: a limit of the shell leaves a driver no room, and it would say nothing, or crash.
pub fn adapters() -> Result<Vec<AdapterInfo>, RuntimeError> {
    rlimit::could_open()?;
    Ok(enumerate().iter().map(AdapterInfo::of).collect())
}

pub(crate) fn enumerate() -> Vec<wgpu::Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let mut found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    // Backends of the last resort lack compute shaders altogether.
    found.retain(|a| {
        a.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
            && a.limits().max_compute_workgroups_per_dimension > 0
    });
    found
}

/// The adapter that is meant, and what it is.
pub(crate) fn choose(choice: &AdapterChoice) -> Result<(wgpu::Adapter, AdapterInfo), RuntimeError> {
    let adapters = enumerate();
    let infos: Vec<AdapterInfo> = adapters.iter().map(AdapterInfo::of).collect();
    let at = place(&infos, choice, std::env::var(ADAPTER_VARIABLE).ok())?;
    adapters.into_iter().zip(infos).nth(at).ok_or_else(|| none(&[], "at that place".into()))
}

fn none(infos: &[AdapterInfo], wanted: String) -> RuntimeError {
    RuntimeError::NoAdapter { wanted, found: infos.iter().map(|i| i.name.clone()).collect() }
}

fn place(
    infos: &[AdapterInfo],
    choice: &AdapterChoice,
    variable: Option<String>,
) -> Result<usize, RuntimeError> {
    match choice {
        AdapterChoice::Index(index) if *index < infos.len() => Ok(*index),
        AdapterChoice::Index(index) => Err(none(infos, format!("has index {index}"))),
        AdapterChoice::Name(name) => infos
            .iter()
            .position(|i| i.answers_to(name))
            .ok_or_else(|| none(infos, format!("answers to {name:?}"))),
        AdapterChoice::Default => match variable.map(|text| text.parse()) {
            Some(Ok(AdapterChoice::Default)) | None => infos
                .iter()
                .enumerate()
                .min_by_key(|(at, info)| (info.kind, *at))
                .map(|(at, _)| at)
                .ok_or_else(|| none(infos, "was found".into())),
            Some(Ok(choice)) => place(infos, &choice, None),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::memory::MemorySource;

    fn info(name: &str, kind: AdapterKind) -> AdapterInfo {
        AdapterInfo {
            name: name.into(),
            backend: "vulkan".into(),
            driver: "driver of ".to_owned() + name,
            driver_info: String::new(),
            kind,
            limits: Limits { max_buffer_size: 1 << 40, ..Limits::webgpu_default() },
            subgroup_size: Some((8, 32)),
            features: vec![],
            memory: MemoryReading::new(None, MemorySource::Unknown),
        }
    }

    #[test]
    fn the_best_real_gpu_is_the_default() {
        let infos = [
            info("soft", AdapterKind::Cpu),
            info("small", AdapterKind::Integrated),
            info("Big", AdapterKind::Discrete),
        ];
        let pick = |text: &str| place(&infos, &text.parse().unwrap(), None);
        assert_eq!(pick("").unwrap(), 2);
        assert_eq!(pick("1").unwrap(), 1);
        assert_eq!(pick("SOFT").unwrap(), 0);
        assert_eq!(place(&infos, &AdapterChoice::Default, Some("small".into())).unwrap(), 1);
        assert_eq!(place(&infos, &AdapterChoice::Index(0), Some("small".into())).unwrap(), 0);
        let error = pick("3").unwrap_err().to_string();
        assert!(error.contains("index 3") && error.contains("soft, small, Big"), "{error}");
        assert!(pick("medium").unwrap_err().to_string().contains("medium"));
        assert!(place(&[], &AdapterChoice::Default, None).is_err());
    }

    #[test]
    fn options_only_take_away() {
        let info = info("a", AdapterKind::Discrete);
        let plain = info.profile(&DeviceOptions::default());
        assert_eq!(plain.limits, info.limits);
        assert!(plain.subgroups);
        let options = DeviceOptions {
            subgroups: false,
            webgpu_limits: true,
            max_allocation: Some(1 << 20),
            max_binding: Some(u64::MAX),
            ..Default::default()
        };
        let capped = info.profile(&options);
        assert_eq!(capped.limits.max_buffer_size, 1 << 20);
        assert_eq!(capped.limits.max_storage_buffer_binding_size, 1 << 20);
        assert!(!capped.subgroups);
    }
}
