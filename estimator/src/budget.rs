//! Budgets: bytes with a source and a time, and the operator's ceiling.

use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// A reading of how much memory there is for us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Bytes.
    pub bytes: u64,
    /// Where from: `VK_EXT_memory_budget`, `/proc/meminfo MemAvailable`, …
    pub source: String,
    /// Seconds since the Unix epoch when it was taken.
    pub taken: u64,
}

impl Reading {
    /// A reading taken now.
    pub fn now(bytes: u64, source: impl Into<String>) -> Self {
        let taken = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self { bytes, source: source.into(), taken }
    }
}

/// What a plan is held against: the smaller of what was derived from the machine and what the operator asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// What counts: `min(derived, requested)`.
    pub bytes: u64,
    /// Which of the two it is, and where that came from.
    pub source: String,
    /// The operator's ceiling.
    pub requested: Option<u64>,
    /// The machine's reading.
    pub derived: Option<Reading>,
}

impl Budget {
    /// Resolves a ceiling (with the name of its setting, e.g. `flag --memory`) against a reading. `None` when there
    /// is neither.
    pub fn resolve(requested: Option<(u64, &str)>, derived: Option<Reading>) -> Option<Self> {
        let (bytes, source) = match (requested, &derived) {
            (None, None) => return None,
            (Some((asked, setting)), Some(reading)) if asked > reading.bytes => {
                (reading.bytes, format!("{} (below {setting})", reading.source))
            }
            (Some((asked, setting)), _) => (asked, setting.to_owned()),
            (None, Some(reading)) => (reading.bytes, reading.source.clone()),
        };
        Some(Self { bytes, source, requested: requested.map(|(asked, _)| asked), derived })
    }

    /// A ceiling of the operator's alone.
    pub fn flag(bytes: u64, setting: &str) -> Self {
        Self { bytes, source: setting.to_owned(), requested: Some(bytes), derived: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_wins_and_says_so() {
        let reading = Reading::now(100, "/proc/meminfo");
        let budget = |asked| Budget::resolve(asked, Some(reading.clone()));
        assert_eq!(budget(None).map(|b| (b.bytes, b.source)), Some((100, "/proc/meminfo".into())));
        assert_eq!(
            budget(Some((60, "flag --memory"))).map(|b| (b.bytes, b.source)),
            Some((60, "flag --memory".into()))
        );
        let over = budget(Some((160, "flag --memory")));
        assert_eq!(over.as_ref().map(|b| (b.bytes, b.requested)), Some((100, Some(160))));
        assert!(over.is_some_and(|b| b.source.contains("/proc/meminfo") && b.source.contains("--memory")));
        assert_eq!(Budget::resolve(None, None), None);
    }
}
