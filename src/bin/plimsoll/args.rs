//! Flags that several verbs share.

use crate::failure::Failure;
use clap::Args;
pub use plimsoll::estimator::cli::args::{GeometryArgs, LimitArgs, Output};
use plimsoll::estimator::cli::args::{build, on_hub, open};
use plimsoll::estimator::cli::{bytes, output};
use plimsoll::kernels::Tuned;
pub use plimsoll::reading;
use plimsoll::runtime::{AdapterInfo, Refused, RuntimeError};
use plimsoll::tuning::Store;
use plimsoll::{
    AdapterChoice, Checkpoint, DEMO, Device, DeviceOptions, MemoryPolicy, Opened, Profile, SamplerOptions,
};
use std::path::{Path, PathBuf};

/// Which model.
#[derive(Debug, Args)]
pub struct ModelArg {
    /// A .gguf or .safetensors file, a directory with config.json, a bare config.json or hf:owner/name with :file and
    /// @revision where they matter (estimates only) [default: the bundled demo model, plimsoll-demo]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
}

impl ModelArg {
    /// The path, or the name on the hub; `None` is the bundled model.
    pub fn path(&self) -> Option<&Path> {
        self.model.as_deref()
    }

    /// Checks that the weights can be here: of a model on the hub headers are read, which is enough for a price.
    pub fn expect_weights(&self) -> Result<(), Failure> {
        match self.path().and_then(on_hub) {
            Some(name) => Err(Failure::usage(format!(
                "{name}: only headers of models on the hub are read, to estimate and to inspect: download its files and \
                 name their path"
            ))),
            None => Ok(()),
        }
    }

    /// The checkpoint. Whoever named none is told which it is.
    pub fn checkpoint(&self) -> Result<Checkpoint, Failure> {
        match self.path() {
            Some(path) => Ok(open(path)?),
            None => {
                output::note(format_args!("plimsoll: no MODEL is named: {DEMO}, the bundled one"));
                Ok(plimsoll::demo_checkpoint()?)
            }
        }
    }

    /// The opened checkpoint, to be run. Where no adapter could be opened for it, it is not read: what is left of a limit
    /// may be too little for that, too, and allocators abort.
    pub fn open(&self) -> Result<Opened, Failure> {
        self.expect_weights()?;
        Device::could_open()?;
        let checkpoint = self.checkpoint()?;
        let model = build(&checkpoint, self.model.as_deref())?;
        Ok(Opened::of(checkpoint, model))
    }
}

/// Which adapter, and how much of what it can do.
#[derive(Debug, Args)]
pub struct AdapterArgs {
    /// Which adapter: its place in `plimsoll devices`, or part of its name
    #[arg(long, value_name = "NAME|INDEX")]
    pub adapter: Option<String>,
    /// Use no more than WebGPU's default limits
    #[arg(long)]
    pub webgpu_limits: bool,
    /// Use no subgroup operations
    #[arg(long)]
    pub no_subgroups: bool,
    /// Use the built-in kernel variants, and not what `bench --tune` has saved for the adapter
    #[arg(long)]
    pub no_tuning: bool,
}

impl AdapterArgs {
    /// Opens the adapter, with the kernel variants that were measured for it where there are any.
    pub fn open(&self, options: &DeviceOptions) -> Result<Device, RuntimeError> {
        let device = Device::open(options)?;
        match self.saved(device.info(), device.profile()) {
            Some(tuned) if options.tuning.is_none() => device.with_tuning(tuned),
            _ => Ok(device),
        }
    }

    /// What was measured for an adapter. A file that is not to be used is named, and that is all.
    pub fn saved(&self, info: &AdapterInfo, profile: &Profile) -> Option<Tuned> {
        if self.no_tuning {
            return None;
        }
        Store::from_environment()?.load(info, profile).unwrap_or_else(|error| {
            output::note(format_args!(
                "plimsoll: {error}: it is ignored; `plimsoll bench --tune` makes another"
            ));
            None
        })
    }
}

/// The machine, and how much of it may be used.
#[derive(Debug, Args)]
pub struct MachineArgs {
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Load although the budget says no; every report says so
    #[arg(long)]
    pub insist: bool,
}

impl MachineArgs {
    /// Opens the adapter.
    pub fn open(&self) -> Result<Device, RuntimeError> {
        self.adapter.open(&self.options())
    }

    /// How the adapter is opened.
    pub fn options(&self) -> DeviceOptions {
        device_options(&self.adapter, &self.limits)
    }

    /// What the operator asks of memory.
    pub fn policy(&self) -> Result<MemoryPolicy, Failure> {
        Ok(self.limits.policy()?)
    }

    /// The operator's ceiling and the setting it comes from.
    pub fn ceiling(&self) -> Result<Option<(u64, String)>, Failure> {
        Ok(self.limits.ceiling()?)
    }
}

/// How an adapter is opened within limits.
pub fn device_options(adapter: &AdapterArgs, limits: &LimitArgs) -> DeviceOptions {
    let named = adapter.adapter.as_deref().map(str::parse::<AdapterChoice>);
    DeviceOptions {
        adapter: named.and_then(Result::ok).unwrap_or_default(),
        subgroups: !adapter.no_subgroups,
        webgpu_limits: adapter.webgpu_limits,
        max_allocation: limits.max_allocation,
        max_binding: limits.max_binding,
        timestamps: false,
        tuning: None,
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
                return Err(Failure::usage(format!("{}: expected {expected}, got {got}", flag(option))));
            }
            Err(other) => return Err(Failure::usage(other.to_string())),
            Ok(()) => {}
        }
        if self.stop.iter().any(String::is_empty) {
            let text = "--stop: stop strings: expected texts of at least one character, got an empty one";
            return Err(Failure::usage(text.into()));
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
