//! Flags that several verbs share.

use crate::bytes;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use plimsoll::models::ModelError;
use plimsoll::runtime::Refused;
use plimsoll::{
    AdapterChoice, Checkpoint, DEMO, DeviceOptions, Geometry, KvFormat, Limits, Opened, Registry,
    SamplerOptions,
};
use std::path::PathBuf;

/// The environment variable that is a memory ceiling beside `--memory`.
pub const MEMORY_VARIABLE: &str = "PLIMSOLL_MEMORY_LIMIT";

/// What is printed.
#[derive(Debug, Args)]
pub struct Output {
    /// Print one JSON document on standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Say more: the admitted plan; twice: every buffer and dispatch of it
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Which model.
#[derive(Debug, Args)]
pub struct ModelArg {
    /// A .gguf or .safetensors file, a directory with config.json, or a bare config.json (estimates only) [default:
    /// the bundled demo model, plimsoll-demo]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
}

impl ModelArg {
    /// The path; `None` is the bundled model. A name that is no path is an error of the usage.
    pub fn path(&self) -> Result<Option<&PathBuf>, Failure> {
        if self.model.as_ref().and_then(|path| path.to_str()).is_some_and(|text| text.starts_with("hf:")) {
            let text = "hf: models cannot be fetched yet: download the files and name their path";
            return Err(Failure::Usage(text.into()));
        }
        Ok(self.model.as_ref())
    }

    /// The checkpoint. Whoever named none is told which it is.
    pub fn checkpoint(&self) -> Result<Checkpoint, Failure> {
        match self.path()? {
            Some(path) => Ok(Checkpoint::open(path)?),
            None => {
                output::note(format_args!("plimsoll: no MODEL is named: {DEMO}, the bundled one"));
                Ok(plimsoll::demo_checkpoint()?)
            }
        }
    }

    /// The opened checkpoint.
    pub fn open(&self) -> Result<Opened, Failure> {
        let checkpoint = self.checkpoint()?;
        match (Opened::new(checkpoint, &Registry::standard()), &self.model) {
            // Weights alone do not say what they are.
            (Err(plimsoll::Error::Model(ModelError::UnknownArchitecture { stated, .. })), Some(path))
                if stated == "nothing" && path.extension().is_some_and(|e| e == "safetensors") =>
            {
                Err(Failure::NoConfig(path.clone()))
            }
            (opened, _) => Ok(opened?),
        }
    }
}

fn kv(text: &str) -> Result<KvFormat, String> {
    let named = KvFormat::ALL.into_iter().find(|format| format.name() == text);
    named.ok_or_else(|| format!("expected one of {}", KvFormat::ALL.map(KvFormat::name).join(", ")))
}

/// The geometry.
#[derive(Debug, Args)]
pub struct GeometryArgs {
    /// Tokens a sequence may hold [default: the model's maximum, at most 8192]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count)]
    pub context: Option<u32>,
    /// Sequences held at once [default: 1]
    #[arg(long, value_name = "N", value_parser = bytes::count)]
    pub slots: Option<u32>,
    /// Most tokens in a step [default: 512]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count)]
    pub chunk: Option<u32>,
    /// How keys and values are stored: f32, f16 or q8_0 [default: f16]
    #[arg(long, value_name = "FORMAT", value_parser = kv)]
    pub kv: Option<KvFormat>,
}

impl GeometryArgs {
    /// The geometry for a model, with these wishes. `context` is what the verb needs when nobody says.
    pub fn resolve(&self, opened: &Opened, context: Option<u32>) -> Geometry {
        let default = opened.geometry();
        let slots = self.slots.unwrap_or(default.slots);
        Geometry {
            context: self.context.or(context).unwrap_or(default.context),
            slots,
            prefill_chunk: self.chunk.unwrap_or(default.prefill_chunk),
            kv: self.kv.unwrap_or(default.kv),
            logit_rows: default.logit_rows.max(slots),
            draft_depth: 0,
            priced: Default::default(),
        }
    }
}

/// The machine, and how much of it may be used.
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// A ceiling on device memory for the steady state, e.g. 48GiB, 48GB or 1_000_000; the load's staging (the line
    /// `load peak`) comes on top. PLIMSOLL_MEMORY_LIMIT is another ceiling
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    pub memory: Option<u64>,
    /// The most bytes of one buffer
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    pub max_allocation: Option<u64>,
    /// The most bytes of one storage binding
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    pub max_binding: Option<u64>,
    /// Which adapter: its place in `plimsoll devices`, or part of its name
    #[arg(long, value_name = "NAME|INDEX")]
    pub adapter: Option<String>,
    /// Use no more than WebGPU's default limits
    #[arg(long)]
    pub webgpu_limits: bool,
    /// Use no subgroup operations
    #[arg(long)]
    pub no_subgroups: bool,
    /// Load although the budget says no; every report says so
    #[arg(long)]
    pub insist: bool,
}

impl MachineArgs {
    /// How the adapter is opened.
    pub fn options(&self) -> DeviceOptions {
        let named = self.adapter.as_deref().map(str::parse::<AdapterChoice>);
        DeviceOptions {
            adapter: named.and_then(Result::ok).unwrap_or_default(),
            subgroups: !self.no_subgroups,
            webgpu_limits: self.webgpu_limits,
            max_allocation: self.max_allocation,
            max_binding: self.max_binding,
        }
    }

    /// The operator's ceiling and the setting it comes from: the smaller of flag and environment.
    pub fn ceiling(&self) -> Result<Option<(u64, String)>, Failure> {
        let flag = self.memory.map(|bytes| (bytes, "flag --memory".to_owned()));
        let variable = match std::env::var(MEMORY_VARIABLE) {
            Err(std::env::VarError::NotPresent) => None,
            Err(error) => return Err(Failure::Usage(format!("{MEMORY_VARIABLE}: {error}"))),
            Ok(text) => {
                let parsed = bytes::parse(&text);
                let amount = parsed.map_err(|why| {
                    Failure::Usage(format!("invalid value {text:?} for {MEMORY_VARIABLE}: {why}"))
                })?;
                Some((amount, format!("environment {MEMORY_VARIABLE}")))
            }
        };
        Ok(flag.into_iter().chain(variable).min_by_key(|(bytes, _)| *bytes))
    }

    /// Takes these limits away from those of a profile.
    pub fn cap(&self, limits: &mut Limits) {
        let cap = |limit: &mut u64, most: Option<u64>| *limit = (*limit).min(most.unwrap_or(u64::MAX));
        cap(&mut limits.max_buffer_size, self.max_allocation);
        cap(&mut limits.max_storage_buffer_binding_size, self.max_binding);
        cap(&mut limits.max_storage_buffer_binding_size, Some(limits.max_buffer_size));
    }
}

/// How tokens are chosen.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// Most new tokens [default: what is left of the context]
    #[arg(short = 'n', long = "max-new", value_name = "TOKENS", value_parser = bytes::count)]
    pub max_new: Option<u32>,
    /// 0 takes the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_hyphen_values = true)]
    pub temperature: f32,
    /// Keep the K most probable; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Keep the most probable that reach probability P
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_hyphen_values = true)]
    pub top_p: f32,
    /// Keep those at least P times as probable as the most probable
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_hyphen_values = true)]
    pub min_p: f32,
    /// Divide the logits of recent tokens by R
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_hyphen_values = true)]
    pub repeat_penalty: f32,
    /// How many tokens are recent
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repeat_last_n: u32,
    /// The same seed chooses the same tokens
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Stop at this token; may be given several times
    #[arg(long, value_name = "ID")]
    pub stop_token: Vec<u32>,
    /// Go on past the model's end-of-generation tokens
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplingArgs {
    /// As the library takes them, checked: before anything is opened.
    pub fn options(&self) -> Result<plimsoll::GenerateOptions, Failure> {
        let options = self.unchecked();
        let flag = |option: &str| match option {
            "repetition_penalty" => "--repeat-penalty".to_owned(),
            other => format!("--{}", other.replace('_', "-")),
        };
        match options.sampler.validate() {
            Err(Refused::Option { option, expected, got }) => {
                return Err(Failure::Usage(format!("{}: expected {expected}, got {got}", flag(option))));
            }
            Err(other) => return Err(Failure::Usage(other.to_string())),
            Ok(()) => {}
        }
        if self.stop.iter().any(String::is_empty) {
            let text = "--stop: stop strings: expected texts of at least one character, got an empty one";
            return Err(Failure::Usage(text.into()));
        }
        Ok(options)
    }

    fn unchecked(&self) -> plimsoll::GenerateOptions {
        plimsoll::GenerateOptions {
            max_new: self.max_new,
            sampler: SamplerOptions {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repeat_penalty,
                repetition_window: self.repeat_last_n,
                seed: self.seed,
            },
            stop: self.stop.clone(),
            stop_tokens: self.stop_token.clone(),
            ignore_end: self.ignore_eos,
            ..Default::default()
        }
    }
}
