//! `--sweep SETTING=VALUE,…`: which setting is swept, and what each of its arms runs with.

use crate::args::GeometryArgs;
use plimsoll::estimator::cli::args::kv;
use plimsoll::estimator::cli::bytes;
use plimsoll::estimator::geometry::{KvStore, MAX_SNAPSHOTS};
use plimsoll::{CacheLimit, MemoryPolicy};

/// What a cache limit of a sweep says of where it is from.
const CACHE_SOURCE: &str = "flag --sweep cache-limit";

/// A setting that can be swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    CacheLimit,
    Chunk,
    Slots,
    Kv,
    Context,
    Snapshots,
}

impl Setting {
    const ALL: [Setting; 6] = [
        Setting::CacheLimit,
        Setting::Chunk,
        Setting::Slots,
        Setting::Kv,
        Setting::Context,
        Setting::Snapshots,
    ];

    /// As its flag has it, without the dashes.
    pub fn name(self) -> &'static str {
        match self {
            Setting::CacheLimit => "cache-limit",
            Setting::Chunk => "chunk",
            Setting::Slots => "slots",
            Setting::Kv => "kv",
            Setting::Context => "context",
            Setting::Snapshots => "snapshots",
        }
    }

    /// Whether its arms are different plans, each of which must be loaded.
    pub fn is_of_the_plan(self) -> bool {
        self != Setting::CacheLimit
    }
}

/// One value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// As it was typed.
    pub label: String,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// `None` is no limit.
    Bytes(Option<u64>),
    Count(u32),
    Kv(KvStore),
}

impl Arm {
    fn parse(setting: Setting, text: &str) -> Result<Self, String> {
        let label = text.trim().to_owned();
        let value = match setting {
            Setting::CacheLimit if label == "none" => Ok(Value::Bytes(None)),
            Setting::CacheLimit => bytes::parse(&label)
                .map(|limit| Value::Bytes(Some(limit)))
                .map_err(|why| format!("{why}, or none")),
            Setting::Kv => kv(&label).map(Value::Kv),
            Setting::Snapshots => match label.parse::<u32>() {
                Ok(number) if number <= MAX_SNAPSHOTS => Ok(Value::Count(number)),
                _ => Err(format!("expected a whole number from 0 to {MAX_SNAPSHOTS}")),
            },
            Setting::Chunk | Setting::Slots | Setting::Context => bytes::count(&label).map(Value::Count),
        };
        match value {
            Ok(value) => Ok(Self { label, value }),
            Err(why) => Err(format!("{}: {label:?}: {why}", setting.name())),
        }
    }

    /// The limit of what is retained, where that is what is swept.
    pub fn cache_limit(&self) -> Option<CacheLimit> {
        match self.value {
            Value::Bytes(Some(limit)) => {
                Some(MemoryPolicy::default().with_cache_limit(limit, CACHE_SOURCE).cache_limit())
            }
            Value::Bytes(None) => {
                let all = CacheLimit::default();
                Some(CacheLimit { source: CACHE_SOURCE.into(), ..all })
            }
            _ => None,
        }
    }
}

/// One setting and its values, at least two that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    pub setting: Setting,
    pub arms: Vec<Arm>,
}

impl Sweep {
    /// The geometry that an arm asks for: what was asked, and its value.
    pub fn geometry(&self, asked: &GeometryArgs, arm: &Arm) -> GeometryArgs {
        let mut args = GeometryArgs {
            context: asked.context,
            slots: asked.slots,
            chunk: asked.chunk,
            kv: asked.kv,
            snapshots: asked.snapshots,
        };
        match (self.setting, arm.value) {
            (Setting::Chunk, Value::Count(tokens)) => args.chunk = Some(tokens),
            (Setting::Slots, Value::Count(slots)) => args.slots = Some(slots),
            (Setting::Context, Value::Count(tokens)) => args.context = Some(tokens),
            (Setting::Snapshots, Value::Count(number)) => args.snapshots = number,
            (Setting::Kv, Value::Kv(format)) => args.kv = Some(format),
            _ => {}
        }
        args
    }

    /// Whether the setting has been given beside the sweep, too.
    pub fn is_given(&self, asked: &GeometryArgs) -> bool {
        match self.setting {
            Setting::CacheLimit => false,
            Setting::Chunk => asked.chunk.is_some(),
            Setting::Slots => asked.slots.is_some(),
            Setting::Kv => asked.kv.is_some(),
            Setting::Context => asked.context.is_some(),
            Setting::Snapshots => asked.snapshots > 0,
        }
    }
}

/// Reads `cache-limit=0,64MiB,none`.
pub fn parse(text: &str) -> Result<Sweep, String> {
    let names = Setting::ALL.map(Setting::name).join(", ");
    let (name, values) = text
        .split_once('=')
        .ok_or_else(|| format!("expected SETTING=VALUE,… with one setting of {names}"))?;
    let setting = Setting::ALL
        .into_iter()
        .find(|setting| setting.name() == name.trim())
        .ok_or_else(|| format!("{:?}: expected one setting of {names}", name.trim()))?;
    let arms = values.split(',').map(|value| Arm::parse(setting, value)).collect::<Result<Vec<_>, _>>()?;
    for (at, arm) in arms.iter().enumerate() {
        if let Some(twin) = arms[..at].iter().find(|other| other.value == arm.value) {
            return Err(format!("{}: {:?} and {:?} are one value", setting.name(), twin.label, arm.label));
        }
    }
    match arms.len() {
        0 | 1 => Err(format!("{}: expected at least 2 values, got {}", setting.name(), arms.len())),
        _ => Ok(Sweep { setting, arms }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sweeps_are_read() {
        let sweep = parse("cache-limit=0, 64MiB,none").unwrap();
        assert_eq!(sweep.setting, Setting::CacheLimit);
        let limits: Vec<_> = sweep.arms.iter().map(|arm| arm.cache_limit().unwrap().bytes).collect();
        assert_eq!(limits, [Some(0), Some(64 << 20), None]);
        assert_eq!(sweep.arms[1].label, "64MiB");
        let sweep = parse("chunk=64,1_024").unwrap();
        let asked = GeometryArgs { slots: Some(3), ..Default::default() };
        let args = sweep.geometry(&asked, &sweep.arms[1]);
        assert_eq!((args.chunk, args.slots), (Some(1024), Some(3)));
        assert_eq!(sweep.arms[0].cache_limit(), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, name) in [
            ("cache-limit", "SETTING=VALUE"),
            ("cash=1,2", "\"cash\""),
            ("cache-limit=0", "cache-limit: expected at least 2"),
            ("cache-limit=0,0B", "cache-limit: \"0\" and \"0B\""),
            ("cache-limit=0,-1", "cache-limit: \"-1\""),
            ("cache-limit=0,99999999999999999999", "cache-limit: "),
            ("chunk=0,1", "chunk: \"0\""),
            ("chunk=none,1", "chunk: \"none\""),
            ("slots=1,", "slots: \"\""),
            ("kv=f16,f17", "kv: \"f17\""),
            ("snapshots=0,4294967295", "snapshots: \"4294967295\""),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(name), "{text}: {why}");
        }
    }
}
