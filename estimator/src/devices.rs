//! A table of devices to hold plans against without having them: memory, limits, bandwidth, rates, each with how it is
//! known. The data stand in `data/devices.toml`, dated.

use crate::budget::Reading;
use crate::pricer::Price;
use plimsoll_kernels::{Limits, Profile};
use serde::{Deserialize, Serialize};
use thiserror::Error;

const DATA: &str = include_str!("../data/devices.toml");

/// How a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Printed by such a device, in a public log.
    Log,
    /// The vendor's figure.
    Vendor,
    /// A rule that holds for its family, not seen on this size.
    Rule,
    /// Read from a driver's source.
    Source,
    /// Measured by a third party.
    Measured,
    /// Arithmetic on published facts.
    Derived,
    /// A third party's estimate.
    Estimate,
    /// From general knowledge, to be checked before it is quoted.
    Unverified,
}

/// A device. Bytes, bytes a second, floating-point operations a second; `None` is unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // the fields are the table's, described at its head
pub struct DeviceEntry {
    pub name: String,
    pub vendor: String,
    pub chip: Option<String>,
    /// Processor and graphics share one memory.
    pub unified: bool,
    #[serde(default)]
    pub software: bool,
    pub memory: Option<u64>,
    pub usable: Option<u64>,
    pub usable_basis: Option<Basis>,
    pub usable_macos15: Option<u64>,
    pub bandwidth: Option<u64>,
    pub bandwidth_basis: Option<Basis>,
    pub f32: Option<u64>,
    pub f16: Option<u64>,
    pub matrix: Option<u64>,
    pub rate_basis: Option<Basis>,
    pub max_buffer: Option<u64>,
    pub max_binding: Option<u64>,
    pub limits_basis: Option<Basis>,
    pub subgroups: [u32; 2],
    pub source: Option<String>,
    pub note: Option<String>,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTable {
    /// Version of its structure.
    pub schema: u32,
    /// When it was compiled.
    pub date: String,
    /// The devices.
    pub device: Vec<DeviceEntry>,
}

/// Why a device was not found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// Nothing, or several, go by that name.
    #[error("no device {name:?} in the table; near it {}", near.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What it may be.
        near: Vec<String>,
    },
    /// The table is no table.
    #[error("the device table: {0}")]
    Table(String),
}

/// A limit of a device, what a plan needs of it, and whether it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Check {
    pub what: String,
    pub need: u64,
    pub have: u64,
    pub ok: bool,
}

/// What begins an entry of [`DATA`].
const ENTRY: &str = "\n[[device]]\n";

/// A name without case, spaces and dashes.
fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

impl DeviceTable {
    /// The table of this crate.
    ///
    /// # Errors
    /// [`DeviceError::Table`]: none that a build which passed its tests can have.
    pub fn standard() -> Result<Self, DeviceError> {
        Self::parse(DATA)
    }

    /// As much of the table as [`DeviceTable::find`] needs for this name: reading all of it takes longer than a price.
    ///
    /// # Errors
    /// As [`DeviceTable::standard`].
    pub fn standard_for(name: &str) -> Result<Self, DeviceError> {
        let mut parts = DATA.split(ENTRY);
        let head = parts.next().unwrap_or_default();
        let wanted = plain(name);
        let named = |entry: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix("name = \""));
            plain(line.unwrap_or_default())
        };
        let entries: Vec<(String, &str)> = parts.map(|entry| (named(entry), entry)).collect();
        let exact = entries.iter().find(|(name, _)| *name == wanted);
        let near: Vec<&str> = match exact {
            Some((_, entry)) => vec![entry],
            None => {
                entries.iter().filter(|(name, _)| name.contains(&wanted)).map(|(_, entry)| *entry).collect()
            }
        };
        if near.is_empty() {
            return Self::standard();
        }
        Self::parse(&std::iter::once(head).chain(near).collect::<Vec<_>>().join(ENTRY))
    }

    /// A table in the same form.
    ///
    /// # Errors
    /// [`DeviceError::Table`].
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        toml::from_str(text).map_err(|e| DeviceError::Table(e.message().to_owned()))
    }

    /// The device of that name; case, spaces and dashes do not matter, and a part of the name is enough where one device
    /// alone has it.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`], with those it may be.
    pub fn find(&self, name: &str) -> Result<&DeviceEntry, DeviceError> {
        let wanted = plain(name);
        let unknown = |near: Vec<&DeviceEntry>| DeviceError::Unknown {
            name: name.chars().take(80).collect(),
            near: near.into_iter().take(12).map(|d| d.name.clone()).collect(),
        };
        if let Some(exact) = self.device.iter().find(|d| plain(&d.name) == wanted) {
            return Ok(exact);
        }
        let holds = |d: &&DeviceEntry| !wanted.is_empty() && plain(&d.name).contains(&wanted);
        let parts: Vec<&DeviceEntry> = self.device.iter().filter(holds).collect();
        match parts.as_slice() {
            [one] => Ok(one),
            [] => {
                // Whatever shares the longest beginning of any of its parts.
                let shares = |d: &&DeviceEntry| {
                    let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).map(plain);
                    parts.filter(|p| p.len() > 1 && plain(&d.name).contains(p.as_str())).count()
                };
                let mut near: Vec<&DeviceEntry> = self.device.iter().collect();
                near.sort_by_key(|d| std::cmp::Reverse(shares(d)));
                Err(unknown(near))
            }
            many => Err(unknown(many.to_vec())),
        }
    }
}

impl DeviceEntry {
    /// What a plan may assume of it: its limits where they are known, else WebGPU's.
    pub fn profile(&self) -> Profile {
        let mut limits = Limits::webgpu_default();
        limits.max_buffer_size = self.max_buffer.unwrap_or(limits.max_buffer_size);
        limits.max_storage_buffer_binding_size =
            self.max_binding.unwrap_or(limits.max_storage_buffer_binding_size).min(limits.max_buffer_size);
        let [low, high] = self.subgroups;
        Profile::new(&self.name, limits, (low > 1).then_some((low, high)), self.software)
    }

    /// Bytes there are for a process, and where that is known from. `None` of a device whose memory is the host's.
    pub fn reading(&self, date: &str) -> Option<Reading> {
        let (bytes, what) = match (self.usable, self.memory) {
            (Some(bytes), _) if self.vendor == "apple" => (bytes, "recommended working set"),
            (Some(bytes), _) => (bytes, "visible to the driver"),
            (None, Some(bytes)) => (bytes, "memory as sold; the driver keeps some of it"),
            (None, None) => return None,
        };
        let source = format!("device table {} ({what}, {date})", self.name);
        // A figure of a table is as it is, whenever it is asked.
        Some(Reading { bytes, total: Some(bytes), beside: 0, source, taken: 0, excluded: Vec::new() })
    }

    /// The memory that is one pool for the host and the device, where it is.
    pub fn pool(&self) -> Option<u64> {
        self.memory.filter(|_| self.unified)
    }

    /// What a plan needs against what the device has: the steady state and the load's peak of its memory (with the host's
    /// share where memory is one pool), the largest buffer and the largest binding. `taken` is what others hold,
    /// `reserve` what is left for others of the memory.
    pub fn checks(&self, price: &Price, taken: u64, reserve: u64) -> Vec<Check> {
        let check = |what: &str, need: u64, have: Option<u64>| {
            have.map(|have| Check { what: what.to_owned(), need, have, ok: need <= have })
        };
        let steady = price.total().saturating_add(taken);
        let peak = price.bytes.load_peak.saturating_add(taken);
        let left = |bytes: Option<u64>| bytes.map(|bytes| bytes.saturating_sub(reserve));
        let usable = left(self.usable.or(self.memory));
        let mut checks = vec![check("steady state", steady, usable), check("load peak", peak, usable)];
        if self.unified {
            // The host's part of a load need not be in the working set; it must be in the memory.
            let need = peak.saturating_add(price.bytes.load_host);
            checks.push(check("load peak with the host's share", need, left(self.memory)));
        }
        checks.push(check("largest buffer", price.largest_allocation.bytes, self.max_buffer));
        checks.push(check("largest binding", price.largest_binding.bytes, self.max_binding));
        checks.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_whole_and_says_how_it_knows() {
        let table = DeviceTable::standard().unwrap();
        let mut names = HashSet::new();
        assert!(table.device.len() >= 80);
        for d in &table.device {
            assert!(names.insert(&d.name), "{} twice", d.name);
            assert_eq!(d.usable.is_some(), d.usable_basis.is_some(), "{}", d.name);
            assert_eq!(d.bandwidth.is_some(), d.bandwidth_basis.is_some(), "{}", d.name);
            assert_eq!(d.f32.or(d.f16).or(d.matrix).is_some(), d.rate_basis.is_some(), "{}", d.name);
            assert_eq!(d.max_buffer.is_some(), d.limits_basis.is_some(), "{}", d.name);
            assert!(d.source.as_ref().is_some_and(|s| s.starts_with("https://")), "{}", d.name);
            assert!(d.usable.zip(d.memory).is_none_or(|(usable, all)| usable <= all), "{}", d.name);
            assert!(
                d.bandwidth.is_none_or(|b| (10_000_000_000..20_000_000_000_000).contains(&b)),
                "{}",
                d.name
            );
            let profile = d.profile();
            assert!(profile.limits.max_storage_buffer_binding_size <= profile.limits.max_buffer_size);
        }
        // Working sets of macOS 26: two thirds of 8 GiB, 74 % of 16, in whole pages of 16 KiB.
        assert_eq!(table.find("apple-m1-8").unwrap().usable, Some(5_726_633_984));
        let m2 = table.find("Apple M2 16").unwrap();
        let pages = (16u64 << 30) / 16384;
        assert_eq!(m2.usable, Some((pages * 74).div_ceil(100) * 16384));
    }

    #[test]
    fn names_are_found_or_near() {
        let table = DeviceTable::standard().unwrap();
        assert_eq!(table.find("4090").unwrap().name, "nvidia-rtx-4090-24");
        assert_eq!(table.find("RTX 4090").unwrap().name, "nvidia-rtx-4090-24");
        let Err(DeviceError::Unknown { near, .. }) = table.find("m4 max") else {
            panic!("there are several")
        };
        assert!(near.contains(&"apple-m4-max-64".to_owned()) && near.len() == 4, "{near:?}");
        assert!(table.find("").is_err() && table.find("warp drive").is_err());
        assert!(DeviceTable::parse("device = 3").is_err());
    }

    #[test]
    fn a_part_of_the_table_finds_what_the_table_finds() {
        let table = DeviceTable::standard().unwrap();
        let names = table.device.iter().map(|d| d.name.as_str());
        for name in names.chain(["4090", "RTX 4090", "m4 max", "Apple", "", "warp drive", "h200 ", "x\"y"]) {
            let part = DeviceTable::standard_for(name).unwrap();
            assert_eq!((part.schema, &part.date), (table.schema, &table.date));
            match (part.find(name), table.find(name)) {
                (Ok(a), Ok(b)) => assert_eq!(a, b),
                (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
                (a, b) => panic!("{name}: {a:?}, {b:?}"),
            }
        }
        let one = DeviceTable::standard_for("h200").unwrap();
        assert_eq!(one.device.len(), 1, "{:?}", one.device);
    }
}
