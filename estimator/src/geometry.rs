//! What is asked of a model: how much context, how many sequences, in what steps.

use plimsoll_kernels::KvFormat;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest context a plan is made for, in tokens.
pub const MAX_CONTEXT: u32 = 1 << 30;
/// The most slots a plan is made for.
pub const MAX_SLOTS: u32 = 1 << 16;
/// The most tokens a step is planned for.
pub const MAX_CHUNK: u32 = 1 << 20;
/// The deepest draft a plan is made for.
pub const MAX_DRAFT_DEPTH: u32 = 64;
/// The most snapshots a plan has room for.
pub const MAX_SNAPSHOTS: u32 = 1 << 16;
/// The most logit rows a step is planned for.
pub const MAX_LOGIT_ROWS: u32 = 1 << 20;

/// The numbers a plan is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// Tokens a sequence may hold, prompt and answer together.
    pub context: u32,
    /// Sequences held at once.
    pub slots: u32,
    /// Most tokens in a step.
    pub prefill_chunk: u32,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// Most positions of a step whose logits are computed; at least `slots`.
    pub logit_rows: u32,
    /// Tokens drafted ahead: every recurrent state is kept `draft_depth + 1` times.
    #[serde(default)]
    pub draft_depth: u32,
    /// What is asked beside what the runtime does.
    #[serde(default)]
    pub priced: Priced,
}

/// What a geometry asks that is priced and not run: a plan for it says so and is never loaded. Snapshots apart: their room
/// is made like any other, and the runtime uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Priced {
    /// Keys and values in other formats than the kernels', or in two of them.
    pub kv: Option<KvPair>,
    /// Prefix snapshots kept: recurrent states and what sliding windows hold.
    pub snapshots: u32,
    /// Images in a step.
    pub images: Images,
}

/// Formats of keys and of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct KvPair {
    pub k: KvStore,
    pub v: KvStore,
}

impl KvPair {
    /// Bytes of 32 values of a key and 32 of a value: which of two pairs is the narrower.
    pub fn width(self) -> u64 {
        [self.k, self.v].into_iter().filter_map(|store| store.row_bytes(32)).sum()
    }
}

impl fmt::Display for KvPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.k == self.v {
            return f.write_str(self.k.name());
        }
        write!(f, "{}/{}", self.k.name(), self.v.name())
    }
}

impl std::str::FromStr for KvPair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (k, v) = text.split_once('/').unwrap_or((text, text));
        Ok(Self { k: k.parse()?, v: v.parse()? })
    }
}

/// A pair by its name, `q8_0/f16`, as documents have it.
pub(crate) mod by_name {
    use super::KvPair;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(pair: &KvPair, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(pair)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<KvPair, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// How keys or values can be priced. The kernels have [`KvFormat`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the formats' own
pub enum KvStore {
    F32,
    F16,
    Bf16,
    Q8_0,
    Fp8,
    Q4_0,
}

impl KvStore {
    /// Every format, widest first.
    pub const ALL: [KvStore; 6] =
        [KvStore::F32, KvStore::F16, KvStore::Bf16, KvStore::Q8_0, KvStore::Fp8, KvStore::Q4_0];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            KvStore::F32 => "f32",
            KvStore::F16 => "f16",
            KvStore::Bf16 => "bf16",
            KvStore::Fp8 => "fp8",
            KvStore::Q8_0 => "q8_0",
            KvStore::Q4_0 => "q4_0",
        }
    }

    /// The kernels' format of that name, where they have it.
    pub fn run(self) -> Option<KvFormat> {
        KvFormat::ALL.into_iter().find(|format| format.name() == self.name())
    }

    /// Bytes of `values` consecutive values: 2 of an f16 or bf16, 1 of an fp8, 34 a block of 32 in q8_0, 18 in q4_0. `None` where
    /// they are not whole blocks.
    pub fn row_bytes(self, values: u32) -> Option<u64> {
        let values = u64::from(values);
        let block = |bytes: u64| values.is_multiple_of(32).then(|| values / 32 * bytes);
        match self {
            KvStore::F32 => Some(values * 4),
            KvStore::F16 | KvStore::Bf16 => Some(values * 2),
            KvStore::Fp8 => Some(values),
            KvStore::Q8_0 => block(34),
            KvStore::Q4_0 => block(18),
        }
    }
}

impl std::str::FromStr for KvStore {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|format| format.name() == text);
        named.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl From<KvFormat> for KvPair {
    fn from(format: KvFormat) -> Self {
        Self { k: format.into(), v: format.into() }
    }
}

impl From<KvFormat> for KvStore {
    fn from(format: KvFormat) -> Self {
        match format {
            KvFormat::F32 => KvStore::F32,
            KvFormat::F16 => KvStore::F16,
            KvFormat::Q8_0 => KvStore::Q8_0,
        }
    }
}

/// Images that one step may bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Images {
    pub count: u32,
    /// Pixels; 0 × 0 is the largest that the tower takes.
    pub width: u32,
    pub height: u32,
}

impl Geometry {
    /// The default for a model of `context_max`: context 8,192 or the model's maximum, one slot, chunks of 512,
    /// f16 KV.
    pub fn default_for(context_max: u32) -> Self {
        Self {
            context: context_max.clamp(1, 8192),
            slots: 1,
            prefill_chunk: 512,
            kv: KvFormat::F16,
            logit_rows: 1,
            draft_depth: 0,
            priced: Priced::default(),
        }
    }

    /// Formats of keys and of values.
    pub fn kv_pair(&self) -> KvPair {
        self.priced.kv.unwrap_or(self.kv.into())
    }

    /// The same with keys and values in these formats: the kernels' own where both are one that they have.
    #[must_use]
    pub fn with_kv(self, pair: KvPair) -> Self {
        let run = pair.k.run().filter(|_| pair.k == pair.v);
        let priced = Priced { kv: run.is_none().then_some(pair), ..self.priced };
        Self { kv: run.unwrap_or(KvFormat::F16), priced, ..self }
    }
}
