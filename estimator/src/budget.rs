//! Budgets: bytes with a source and a time, and the operator's ceiling.

use crate::bytes::grouped;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// A reading of how much memory there is for us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Bytes.
    pub bytes: u64,
    /// The most that it can ever be, all else gone: the machine's memory, a heap, a limit; what a limit of this process leaves
    /// it. `None` where nobody says.
    #[serde(default)]
    pub total: Option<u64>,
    /// Bytes that were left out for what a load takes beside its buffers.
    #[serde(default)]
    pub beside: u64,
    /// Where from: `VK_EXT_memory_budget`, `/proc/meminfo MemAvailable`, …
    pub source: String,
    /// Seconds since the Unix epoch when it was taken; 0 of what was not read but stands in a table or a file, and has its
    /// date in `source`. A report has `null` there.
    pub taken: u64,
    /// What the source left out of these bytes already: what other processes use, our own allocations, …
    #[serde(default)]
    pub excluded: Vec<String>,
}

impl Reading {
    /// A reading taken now, of which nothing is known to have been left out.
    pub fn now(bytes: u64, source: impl Into<String>) -> Self {
        let taken = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self { bytes, total: None, beside: 0, source: source.into(), taken, excluded: Vec::new() }
    }
}

/// An amount that somebody set, and the setting's name, e.g. `flag --memory`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Setting {
    /// Bytes.
    pub bytes: u64,
    /// The setting.
    pub name: String,
}

/// Which of the two values a budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Won {
    /// The operator's ceiling.
    Requested,
    /// The machine's reading, less the reserve.
    Derived,
}

/// What a plan is held against: the smaller of what was derived from the machine and what the operator asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// What counts: `min(derived - reserve, requested)`.
    pub bytes: u64,
    /// Which of the two it is, and where that came from.
    pub source: String,
    /// The operator's ceiling.
    pub requested: Option<u64>,
    /// The setting that asked for it.
    #[serde(default)]
    pub setting: Option<String>,
    /// The machine's reading, before anything was left for others.
    pub derived: Option<Reading>,
    /// What is left for others of the reading.
    #[serde(default)]
    pub reserve: Option<Setting>,
    /// What others on the device hold of the smaller value, planned and not read.
    #[serde(default)]
    pub others: u64,
    /// Which of the two values it is.
    pub won: Won,
    /// Both values and which is the smaller, in a sentence.
    pub why: String,
}

impl Budget {
    /// Resolves a ceiling (with the name of its setting, e.g. `flag --memory`) against a reading. `None` when there
    /// is neither.
    pub fn resolve(requested: Option<(u64, &str)>, derived: Option<Reading>) -> Option<Self> {
        Self::resolve_beside(requested, derived, None)
    }

    /// The same, where `reserve` of the reading is left for others. A ceiling is not made smaller by it: who sets one
    /// says what we may take, and a reserve says what the machine keeps.
    pub fn resolve_beside(
        requested: Option<(u64, &str)>,
        derived: Option<Reading>,
        reserve: Option<&Setting>,
    ) -> Option<Self> {
        let left = derived.as_ref().map(|reading| match reserve {
            Some(reserve) if reserve.bytes > 0 => (
                reading.bytes.saturating_sub(reserve.bytes),
                format!("{}, less {} by {}", reading.source, grouped(reserve.bytes), reserve.name),
            ),
            _ => (reading.bytes, reading.source.clone()),
        });
        let (bytes, source, won, why) = match (requested, left) {
            (None, None) => return None,
            (Some((asked, setting)), Some((left, source))) => {
                let derived = format!("{} ({source})", grouped(left));
                let requested = format!("{} ({setting})", grouped(asked));
                if asked > left {
                    let why = format!("derived: {derived} is below {requested}");
                    (left, format!("{source} (below {setting})"), Won::Derived, why)
                } else {
                    let why = format!("requested: {requested} is not above {derived}");
                    (asked, setting.to_owned(), Won::Requested, why)
                }
            }
            (Some((asked, setting)), None) => {
                let left = match reserve {
                    Some(reserve) if reserve.bytes > 0 => {
                        format!(", of which {} ({}) would be left", grouped(reserve.bytes), reserve.name)
                    }
                    _ => String::new(),
                };
                let why = format!("requested: {} ({setting}); no reading was there{left}", grouped(asked));
                (asked, setting.to_owned(), Won::Requested, why)
            }
            (None, Some((left, source))) => {
                let why = format!("derived: {} ({source}); nothing was requested", grouped(left));
                (left, source, Won::Derived, why)
            }
        };
        Some(Self {
            bytes,
            source,
            requested: requested.map(|(asked, _)| asked),
            setting: requested.map(|(_, setting)| setting.to_owned()),
            derived,
            reserve: reserve.cloned(),
            others: 0,
            won,
            why,
        })
    }

    /// The same question against another reading: the ceiling, the reserve and what others hold stay. What `derived` said
    /// before is forgotten, and with it what was credited then: what goes is gone by now, or it is not free.
    pub fn again(&self, derived: Option<Reading>) -> Option<Self> {
        let requested = self.requested.zip(self.setting.as_deref());
        let mut budget = Self::resolve_beside(requested, derived, self.reserve.as_ref())?;
        if self.others > 0 {
            budget.leave(self.others, "others");
        }
        Some(budget)
    }

    /// What a load must keep to while it runs: the machine's reading, less the reserve and what others hold. A ceiling says
    /// what a loaded plan may hold; the load's staging comes on top of it. `None` where nothing was read.
    pub fn load_room(&self) -> Option<u64> {
        let reserve = self.reserve.as_ref().map_or(0, |reserve| reserve.bytes);
        let reading = self.derived.as_ref()?;
        Some(reading.bytes.saturating_sub(reserve).saturating_sub(self.others))
    }

    /// Takes away what others hold.
    pub(crate) fn leave(&mut self, bytes: u64, whom: &str) {
        self.others = self.others.saturating_add(bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        for text in [&mut self.source, &mut self.why] {
            text.push_str(&format!(", less {} for {whom}", grouped(bytes)));
        }
    }

    /// A ceiling of the operator's alone.
    pub fn flag(bytes: u64, setting: &str) -> Self {
        let why = format!("requested: {} ({setting}); no reading was asked for", grouped(bytes));
        Self {
            bytes,
            source: setting.to_owned(),
            requested: Some(bytes),
            setting: Some(setting.to_owned()),
            derived: None,
            reserve: None,
            others: 0,
            won: Won::Requested,
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_smaller_wins_and_says_so() {
        let reading = Reading::now(100, "/proc/meminfo");
        let budget = |asked| Budget::resolve(asked, Some(reading.clone())).unwrap();
        let alone = budget(None);
        assert_eq!((alone.bytes, alone.source.as_str(), alone.won), (100, "/proc/meminfo", Won::Derived));
        let under = budget(Some((60, "flag --memory")));
        assert_eq!((under.bytes, under.source.as_str(), under.won), (60, "flag --memory", Won::Requested));
        assert_eq!(budget(Some((100, "flag"))).won, Won::Requested, "a tie is what was asked for");
        let over = budget(Some((160, "flag --memory")));
        assert_eq!((over.bytes, over.requested, over.won), (100, Some(160), Won::Derived));
        assert!(over.source.contains("/proc/meminfo") && over.source.contains("--memory"));
        // Both values are told whichever won.
        for text in [&under.why, &over.why] {
            assert!(text.contains("100 (/proc/meminfo)") && text.contains("0 (flag --memory)"), "{text}");
        }
        assert_eq!(Budget::resolve(None, None), None);
    }

    #[test]
    fn a_reserve_is_taken_from_the_reading_alone() {
        let reading = || Some(Reading::now(100, "card"));
        let reserve = Setting { bytes: 30, name: "flag --reserve".into() };
        let with = |asked, derived| Budget::resolve_beside(asked, derived, Some(&reserve));
        let derived = with(None, reading()).unwrap();
        assert_eq!((derived.bytes, derived.derived.as_ref().map(|r| r.bytes)), (70, Some(100)));
        assert!(derived.source.contains("less 30 by flag --reserve"), "{}", derived.source);
        assert_eq!(with(Some((80, "flag")), reading()).unwrap().bytes, 70);
        assert_eq!(with(Some((60, "flag")), reading()).unwrap().bytes, 60);
        // Without a reading there is nothing to leave for anybody.
        assert_eq!(with(Some((60, "flag")), None).unwrap().bytes, 60);
        assert_eq!(with(None, None), None);
        // More than there is leaves nothing, and does not wrap.
        let all = Setting { bytes: u64::MAX, name: "flag".into() };
        assert_eq!(Budget::resolve_beside(None, reading(), Some(&all)).unwrap().bytes, 0);
    }

    #[test]
    fn another_reading_is_held_against_the_same_settings() {
        let reserve = Setting { bytes: 30, name: "reserve".into() };
        let at = |bytes| Some(Reading::now(bytes, "card"));
        let first = Budget::resolve_beside(Some((60, "flag")), at(200), Some(&reserve)).unwrap();
        let values: Vec<u64> = [20, 50, 200].map(|b| first.again(at(b)).unwrap().bytes).into();
        assert_eq!(values, [0, 20, 60]);
        assert_eq!(first.again(at(50)).unwrap().again(at(200)), Some(first.clone()));
        // What others hold is still held.
        let mut less = first;
        less.leave(15, "beside");
        assert_eq!((less.bytes, less.again(at(50)).unwrap().bytes), (45, 5));
    }
}
