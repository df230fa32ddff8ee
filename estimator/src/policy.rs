//! What an operator asked of memory: a ceiling, a reserve for others, and a limit of what is kept without being live.
//!
//! The three are values with the names of their settings, made once and passed on: a model that is loaded again in the
//! same process is held against the same policy, and against a reading of its own. Flags, environment and library
//! resolve them here and nowhere else.

use crate::budget::{Budget, Reading, Setting};
use crate::bytes::{self, grouped};
use crate::others::Others;
use serde::{Deserialize, Serialize};
use std::env::VarError;

/// The ceiling's environment variable.
pub const MEMORY_VARIABLE: &str = "PLIMSOLL_MEMORY_LIMIT";
/// The reserve's environment variable.
pub const RESERVE_VARIABLE: &str = "PLIMSOLL_RESERVE";
/// The environment variable of the limit on retained memory.
pub const CACHE_VARIABLE: &str = "PLIMSOLL_CACHE_LIMIT";

/// A setting whose text is no amount, or one that it may not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value {text:?} for {setting}: {why}")]
pub struct SettingError {
    /// The setting's name.
    pub setting: String,
    /// What it says.
    pub text: String,
    /// What was expected, in a sentence.
    pub why: String,
}

/// The limit of what is kept without being live: pages of the prefix cache, snapshots, pooled staging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLimit {
    /// Bytes; 0 keeps nothing. `None`: every free page, and as many snapshots as the geometry has.
    pub bytes: Option<u64>,
    /// The setting it is from.
    pub source: String,
}

impl Default for CacheLimit {
    fn default() -> Self {
        Self { bytes: None, source: "default: all free pages, snapshots as the geometry asks".into() }
    }
}

impl CacheLimit {
    /// Whether so many snapshots of so many bytes each may be kept under it.
    ///
    /// # Errors
    /// Why they would be paid for and never kept: all of them, or those beyond what the limit holds.
    pub fn keeps(&self, snapshots: u32, each: u64) -> Result<(), String> {
        let (Some(limit), false) = (self.bytes, snapshots == 0) else { return Ok(()) };
        let source = &self.source;
        if limit == 0 {
            return Err(format!(
                "--snapshots {snapshots}: {source} is 0, which keeps nothing, and they would only take room: leave one of \
                 them out"
            ));
        }
        let all = each.saturating_mul(snapshots.into());
        if all <= limit {
            return Ok(());
        }
        Err(format!(
            "--snapshots {snapshots}: they take {} bytes ({} each), {source} is {}, which keeps {} of them, and the others \
             would only take room: ask for fewer, or for a larger limit",
            grouped(all),
            grouped(each),
            grouped(limit),
            limit / each.max(1),
        ))
    }
}

/// The three limits of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPolicy {
    memory: Option<Setting>,
    reserve: Option<Setting>,
    cache: Option<Setting>,
}

/// Of two settings the one that leaves less.
fn stricter(
    one: Option<Setting>,
    other: Option<Setting>,
    less: impl Fn(u64, u64) -> bool,
) -> Option<Setting> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if less(other.bytes, one.bytes) { other } else { one }),
        (one, other) => one.or(other),
    }
}

impl MemoryPolicy {
    /// What the environment asks for.
    ///
    /// # Errors
    /// [`SettingError`], naming the variable: one that is no amount, and a ceiling of nothing.
    pub fn from_environment() -> Result<Self, SettingError> {
        Self::from_variables(|name| std::env::var(name))
    }

    /// The same, of variables that `variable` answers.
    ///
    /// # Errors
    /// As [`from_environment`](Self::from_environment).
    pub fn from_variables(variable: impl Fn(&str) -> Result<String, VarError>) -> Result<Self, SettingError> {
        let read = |name: &str, parse: fn(&str) -> Result<u64, String>| {
            let wrong = |text: String, why: String| SettingError { setting: name.to_owned(), text, why };
            match variable(name) {
                Err(VarError::NotPresent) => Ok(None),
                Err(VarError::NotUnicode(text)) => {
                    Err(wrong(text.to_string_lossy().into_owned(), "not unicode".into()))
                }
                Ok(text) => match parse(&text) {
                    Ok(bytes) => Ok(Some(Setting { bytes, name: format!("environment {name}") })),
                    Err(why) => Err(wrong(text, why)),
                },
            }
        };
        Ok(Self {
            memory: read(MEMORY_VARIABLE, bytes::positive)?,
            reserve: read(RESERVE_VARIABLE, bytes::parse)?,
            cache: read(CACHE_VARIABLE, bytes::parse)?,
        })
    }

    /// With a ceiling of this setting's, where it is the smaller one.
    ///
    /// # Errors
    /// [`SettingError`] for a ceiling of nothing.
    pub fn with_memory(mut self, bytes: u64, setting: &str) -> Result<Self, SettingError> {
        bytes::positive(&bytes.to_string()).map_err(|why| SettingError {
            setting: setting.to_owned(),
            text: bytes.to_string(),
            why,
        })?;
        let asked = Some(Setting { bytes, name: setting.to_owned() });
        self.memory = stricter(asked, self.memory, |a, b| a < b);
        Ok(self)
    }

    /// With a reserve of this setting's, where it is the larger one.
    #[must_use]
    pub fn with_reserve(mut self, bytes: u64, setting: &str) -> Self {
        let asked = Some(Setting { bytes, name: setting.to_owned() });
        self.reserve = stricter(asked, self.reserve, |a, b| a > b);
        self
    }

    /// With a limit of what is retained of this setting's, where it is the smaller one.
    #[must_use]
    pub fn with_cache_limit(mut self, bytes: u64, setting: &str) -> Self {
        let asked = Some(Setting { bytes, name: setting.to_owned() });
        self.cache = stricter(asked, self.cache, |a, b| a < b);
        self
    }

    /// The ceiling.
    pub fn memory(&self) -> Option<&Setting> {
        self.memory.as_ref()
    }

    /// What is left for others of every reading.
    pub fn reserve(&self) -> Option<&Setting> {
        self.reserve.as_ref()
    }

    /// The limit of what is retained, as it was resolved.
    pub fn cache_limit(&self) -> CacheLimit {
        match &self.cache {
            Some(setting) => CacheLimit { bytes: Some(setting.bytes), source: setting.name.clone() },
            None => CacheLimit::default(),
        }
    }

    /// What a plan is held against, of a reading that was taken for this decision. `None` when nothing is known.
    pub fn budget(&self, derived: Option<Reading>) -> Option<Budget> {
        self.budget_beside(derived, &Others::default())
    }

    /// The same, with what else is on the device: less by what stays, more by what goes.
    pub fn budget_beside(&self, derived: Option<Reading>, others: &Others) -> Option<Budget> {
        let requested = self.memory.as_ref().map(|s| (s.bytes, s.name.as_str()));
        others.budget_leaving(requested, derived, self.reserve.as_ref())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A policy of variables in the order memory, reserve, cache.
    fn of(texts: [Option<&str>; 3]) -> Result<MemoryPolicy, SettingError> {
        let names = [MEMORY_VARIABLE, RESERVE_VARIABLE, CACHE_VARIABLE];
        MemoryPolicy::from_variables(|name| {
            let at = names.iter().position(|n| *n == name).unwrap();
            texts[at].map(str::to_owned).ok_or(VarError::NotPresent)
        })
    }

    #[test]
    fn what_every_variable_may_and_may_not_be() {
        let names = [MEMORY_VARIABLE, RESERVE_VARIABLE, CACHE_VARIABLE];
        let junk = [
            "",
            " ",
            "lots",
            "-1",
            "-0",
            "1e9",
            "0x10",
            "NaN",
            "inf",
            "1.5.5GB",
            "48Gb/s",
            "99999999999TiB",
            "18446744073709551616",
            "9223372036854775808",
            "１",
            "max",
        ];
        for (at, name) in names.into_iter().enumerate() {
            for text in junk {
                let mut texts = [None; 3];
                texts[at] = Some(text);
                let error = of(texts).unwrap_err();
                assert_eq!((error.setting.as_str(), error.text.as_str()), (name, text));
                assert!(error.to_string().contains(name), "{error}");
            }
            // Nothing is a limit of what is kept, and a reserve; it is no ceiling.
            let mut texts = [None; 3];
            texts[at] = Some("0");
            assert_eq!(of(texts).is_ok(), name != MEMORY_VARIABLE, "{name}");
        }
        let policy = of([Some("4GiB"), Some("1.5GiB"), Some("0")]).unwrap();
        assert_eq!(
            policy.memory(),
            Some(&Setting { bytes: 4 << 30, name: format!("environment {MEMORY_VARIABLE}") })
        );
        assert_eq!(policy.reserve().map(|s| s.bytes), Some(3 << 29));
        let limit = CacheLimit { bytes: Some(0), source: format!("environment {CACHE_VARIABLE}") };
        assert_eq!(policy.cache_limit(), limit);
        assert_eq!(of([None; 3]), Ok(MemoryPolicy::default()));
        assert_eq!(MemoryPolicy::default().cache_limit(), CacheLimit::default());
        assert_eq!(CacheLimit::default().bytes, None);
    }

    #[test]
    fn the_stricter_of_two_settings_holds() {
        let environment = of([Some("10"), Some("10"), Some("10")]).unwrap();
        let with = |bytes| {
            let memory = environment.clone().with_memory(bytes, "flag").unwrap();
            let all = memory.with_reserve(bytes, "flag").with_cache_limit(bytes, "flag");
            [all.memory().unwrap().bytes, all.reserve().unwrap().bytes, all.cache_limit().bytes.unwrap()]
        };
        assert_eq!(with(5), [5, 10, 5]);
        assert_eq!(with(20), [10, 20, 10]);
        let error = environment.with_memory(0, "flag --memory").unwrap_err();
        assert!(error.to_string().contains("--memory"), "{error}");
    }

    #[test]
    fn snapshots_that_a_limit_cannot_hold_are_refused_with_both_numbers() {
        let limit = |bytes| CacheLimit { bytes, source: "flag --cache-limit".into() };
        let keeps = |bytes, snapshots| limit(bytes).keeps(snapshots, 149_504);
        for (bytes, snapshots) in
            [(None, 9), (Some(0), 0), (Some(1), 0), (Some(299_008), 2), (Some(149_504), 1)]
        {
            assert_eq!(keeps(bytes, snapshots), Ok(()), "{bytes:?} {snapshots}");
        }
        for (bytes, kept) in [(1, 0), (149_503, 0), (149_504, 1), (299_007, 1)] {
            let why = keeps(Some(bytes), 2).unwrap_err();
            for part in
                ["--snapshots 2", "299,008", "149,504 each", &grouped(bytes), &format!("keeps {kept} of")]
            {
                assert!(why.contains(part), "{part}: {why}");
            }
        }
        assert!(keeps(Some(0), 2).unwrap_err().contains("is 0"));
        // None are needed, and none are made: that is said elsewhere, and takes no room.
        assert_eq!(limit(Some(1)).keeps(2, 0), Ok(()));
        assert!(limit(Some(1)).keeps(u32::MAX, u64::MAX).is_err());
    }

    #[test]
    fn a_policy_answers_every_reading_afresh() {
        let policy = MemoryPolicy::default().with_memory(80, "flag --memory").unwrap().with_reserve(10, "r");
        let at = |bytes| policy.budget(Some(Reading::now(bytes, "card"))).unwrap().bytes;
        assert_eq!([100, 50, 5, 90, 200].map(at), [80, 40, 0, 80, 80]);
        assert_eq!(policy.budget(None).unwrap().bytes, 80);
        assert_eq!(MemoryPolicy::default().budget(None), None);
    }
}
