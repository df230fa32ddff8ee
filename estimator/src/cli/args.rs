//! Flags that several verbs share.

use super::{Failure, bytes, output};
use crate::budget::Won;
use crate::geometry::{Geometry, KvPair, KvStore, MAX_SNAPSHOTS, Priced};
use crate::policy::{MemoryPolicy, SettingError};
use crate::report::LimitPart;
use crate::weights;
use clap::Args;
use plimsoll_kernels::{Limits, Profile};
use plimsoll_models::hub::{self, HubOptions};
use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use std::path::Path;

/// What is printed.
#[derive(Debug, Args)]
pub struct Output {
    /// Print one JSON document on standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Say more: of an estimate how long it took, of what runs the admitted plan, and twice every buffer and dispatch of it
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The name of a checkpoint on the hub, where it is one and no path.
pub fn on_hub(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.starts_with(hub::PREFIX))
}

/// Opens a checkpoint by its path, or one on the hub by its headers, as the environment says.
///
/// # Errors
/// As [`Checkpoint::open`], [`hub::open`] and [`HubOptions::from_environment`].
pub fn open(path: &Path) -> Result<Checkpoint, Failure> {
    match on_hub(path) {
        Some(name) => Ok(hub::open(&name.parse()?, &HubOptions::from_environment()?)?),
        None => Checkpoint::open(path).map_err(|error| Failure::of_checkpoint(error, path.to_owned())),
    }
}

/// Builds the model of a checkpoint that was named by `path`.
///
/// # Errors
/// As [`Registry::build`]; [`Failure::NoConfig`] for weights without the file that says what they are.
pub fn build(checkpoint: &Checkpoint, path: Option<&Path>) -> Result<Model, Failure> {
    match (Registry::standard().build(checkpoint), path) {
        // Weights alone do not say what they are.
        (Err(ModelError::UnknownArchitecture { stated, .. }), Some(path))
            if stated == "nothing" && path.extension().is_some_and(|e| e == "safetensors") =>
        {
            Err(Failure::NoConfig(path.to_owned()))
        }
        (Err(error), _) => Err(Failure::of_checkpoint(error, checkpoint.stated_in())),
        (Ok(model), _) => Ok(weights::counted(checkpoint, model)),
    }
}

/// Reads the name of a format of keys and values.
///
/// # Errors
/// What there is, in a sentence.
pub fn kv(text: &str) -> Result<KvStore, String> {
    text.parse()
}

/// The geometry.
#[derive(Debug, Default, Args)]
pub struct GeometryArgs {
    /// Tokens a sequence may hold [default: the model's maximum, at most 8192]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count, allow_negative_numbers = true)]
    pub context: Option<u32>,
    /// Sequences held at once [default: 1]
    #[arg(long, value_name = "N", value_parser = bytes::count, allow_negative_numbers = true)]
    pub slots: Option<u32>,
    /// Most tokens in a step [default: 512]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count, allow_negative_numbers = true)]
    pub chunk: Option<u32>,
    /// How keys and values are stored: f32, f16 or q8_0, and for estimates also bf16, fp8 or q4_0 [default: f16]
    #[arg(long, value_name = "FORMAT", value_parser = kv)]
    pub kv: Option<KvStore>,
    /// Prefix snapshots kept: recurrent states and what sliding windows hold
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = bytes::at_most::<MAX_SNAPSHOTS>, allow_negative_numbers = true)]
    pub snapshots: u32,
}

impl GeometryArgs {
    /// The geometry for a model, with these wishes. `context` is what the verb needs when nobody says.
    pub fn resolve(&self, model: &Model, context: Option<u32>) -> Geometry {
        let default = Geometry::default_for(model.context_max);
        let slots = self.slots.unwrap_or(default.slots);
        let geometry = Geometry {
            context: self.context.or(context).unwrap_or(default.context),
            slots,
            prefill_chunk: self.chunk.unwrap_or(default.prefill_chunk),
            logit_rows: default.logit_rows.max(slots),
            priced: Priced { snapshots: self.snapshots, ..Priced::default() },
            ..default
        };
        match self.kv {
            Some(kv) => geometry.with_kv(KvPair { k: kv, v: kv }),
            None => geometry,
        }
    }
}

/// The smaller of a device's limit and what was asked for.
fn resolved(what: &str, device: u64, requested: Option<(u64, &str)>, of: &str) -> LimitPart {
    let there = format!("{} ({of})", bytes::grouped(device));
    let (bytes, won, why) = match requested {
        None => (device, Won::Derived, format!("derived: {there}; nothing was requested")),
        Some((asked, setting)) => {
            let said = format!("{} ({setting})", bytes::grouped(asked));
            if asked > device {
                (device, Won::Derived, format!("derived: {there} is below {said}"))
            } else {
                (asked, Won::Requested, format!("requested: {said} is not above {there}"))
            }
        }
    };
    let (requested, setting) = requested.map(|(asked, setting)| (asked, setting.to_owned())).unzip();
    LimitPart { what: what.to_owned(), bytes, device, requested, setting, won, why, assumed: false }
}

/// How much of a machine may be used.
#[derive(Debug, Default, Args)]
pub struct LimitArgs {
    /// A ceiling on device memory for the steady state, e.g. 48GiB, 48GB or 1_000_000; the load's staging comes
    /// on top of it, and the line `load peak` must fit what the machine or a --device has, less --reserve.
    /// PLIMSOLL_MEMORY_LIMIT is another ceiling
    #[arg(long, value_name = "BYTES", value_parser = bytes::positive, allow_hyphen_values = true)]
    pub memory: Option<u64>,
    /// Left for others of the memory that a device has (--device) or an adapter says is free; a --memory is not made
    /// smaller by it. PLIMSOLL_RESERVE is another reserve
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub reserve: Option<u64>,
    /// The most that is kept without being live: prefix pages, snapshots; 0 keeps nothing [default: all free pages,
    /// snapshots as the geometry asks]. PLIMSOLL_CACHE_LIMIT is another limit; beside another engine's rules it changes nothing
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub cache_limit: Option<u64>,
    /// The most bytes of one buffer, where the device allows more
    #[arg(long, value_name = "BYTES", value_parser = bytes::positive, allow_hyphen_values = true)]
    pub max_allocation: Option<u64>,
    /// The most bytes of one storage binding, where the device allows more
    #[arg(long, value_name = "BYTES", value_parser = bytes::positive, allow_hyphen_values = true)]
    pub max_binding: Option<u64>,
}

impl LimitArgs {
    /// What the operator asks of memory: the stricter of flag and environment.
    ///
    /// # Errors
    /// [`Failure::Usage`] when the environment's is no amount.
    pub fn policy(&self) -> Result<MemoryPolicy, Failure> {
        let usage = |error: SettingError| Failure::Usage(error.to_string());
        let mut policy = MemoryPolicy::from_environment().map_err(usage)?;
        if let Some(bytes) = self.memory {
            policy = policy.with_memory(bytes, "flag --memory").map_err(usage)?;
        }
        if let Some(bytes) = self.reserve {
            policy = policy.with_reserve(bytes, "flag --reserve");
        }
        if let Some(bytes) = self.cache_limit {
            policy = policy.with_cache_limit(bytes, "flag --cache-limit");
        }
        Ok(policy)
    }

    /// The operator's ceiling and the setting it comes from: the smaller of flag and environment.
    ///
    /// # Errors
    /// As [`policy`](Self::policy).
    pub fn ceiling(&self) -> Result<Option<(u64, String)>, Failure> {
        Ok(self.policy()?.memory().map(|setting| (setting.bytes, setting.name.clone())))
    }

    /// Takes these limits away from those of a profile, and answers how they were resolved: the smaller of the device's and
    /// the operator's. A binding never reaches past its buffer.
    pub fn cap(&self, profile: &mut Profile) -> Vec<LimitPart> {
        let (limits, name) = (&mut profile.limits, &profile.name);
        let flag = |name: &'static str, bytes: Option<u64>| bytes.map(|bytes| (bytes, name));
        let (buffer, binding) = (limits.max_buffer_size, limits.max_storage_buffer_binding_size);
        let of_buffers = flag("flag --max-allocation", self.max_allocation);
        let below = of_buffers.filter(|(bytes, _)| *bytes < binding);
        let of_bindings = flag("flag --max-binding", self.max_binding).into_iter().chain(below).min();
        let parts = [
            resolved("allocation", buffer, of_buffers, name),
            resolved("binding", binding, of_bindings, name),
        ];
        (limits.max_buffer_size, limits.max_storage_buffer_binding_size) = (parts[0].bytes, parts[1].bytes);
        parts.into()
    }

    /// Says of each of these limits that is above what there is that it changes nothing.
    pub fn note(&self, limits: &Limits, whose: &str) {
        let pairs = [
            ("--max-allocation", self.max_allocation, limits.max_buffer_size),
            ("--max-binding", self.max_binding, limits.max_storage_buffer_binding_size),
        ];
        for (flag, asked, bytes) in pairs {
            if let Some(asked) = asked.filter(|asked| *asked > bytes) {
                let (asked, bytes) = (bytes::human(asked), bytes::human(bytes));
                output::note(format_args!(
                    "plimsoll: {flag} {asked} changes nothing: {whose} allows no more than {bytes}"
                ));
            }
        }
    }
}
