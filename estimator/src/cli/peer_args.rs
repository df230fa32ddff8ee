//! Flags of another engine's price: which engine, and how it is built and started.

use super::Failure;
use crate::geometry::{Geometry, Images, KvPair, KvStore};
use crate::peers::llama_cpp;
use crate::peers::vllm::{self, MambaCache};
use crate::peers::{Engine, Mla, Options, StateType, mlx};
use clap::Args;

/// Reads an engine's name; ours is `plimsoll`.
///
/// # Errors
/// What there is, in a sentence.
pub fn runtime(text: &str) -> Result<Runtime, String> {
    if text == "plimsoll" {
        return Ok(Runtime(None));
    }
    let named = Engine::ALL.into_iter().find(|engine| engine.name() == text);
    let names = || format!("expected one of plimsoll, {}", Engine::ALL.map(Engine::name).join(", "));
    named.map(|engine| Runtime(Some(engine))).ok_or_else(names)
}

/// Whose rules; `None`: ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runtime(pub Option<Engine>);

fn mla(text: &str) -> Result<Mla, String> {
    let named = Mla::ALL.into_iter().find(|form| form.name() == text);
    named.ok_or_else(|| format!("expected one of {}", Mla::ALL.map(Mla::name).join(", ")))
}

fn mamba(text: &str) -> Result<MambaCache, String> {
    let named = MambaCache::ALL.into_iter().find(|mode| mode.name() == text);
    named.ok_or_else(|| format!("expected one of {}", MambaCache::ALL.map(MambaCache::name).join(", ")))
}

fn state_type(text: &str) -> Result<StateType, String> {
    let named = StateType::ALL.into_iter().find(|kind| kind.name() == text);
    named.ok_or_else(|| format!("expected one of {}", StateType::ALL.map(StateType::name).join(", ")))
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    number.ok_or_else(|| "expected a number above 0 and at most 1, e.g. 0.92".to_owned())
}

/// Reads the size of an image, `1024x768`; `max` is the largest that the tower takes.
///
/// # Errors
/// What was expected, in a sentence.
pub fn size(text: &str) -> Result<(u32, u32), String> {
    if text == "max" {
        return Ok((0, 0));
    }
    let sides = text.split_once(['x', 'X', '×']);
    let side = |text: &str| super::bytes::count(text).ok();
    let size = sides.and_then(|(width, height)| Some((side(width)?, side(height)?)));
    size.ok_or_else(|| "expected pixels such as 1024x768, or max".to_owned())
}

/// Images.
#[derive(Debug, Default, Args)]
pub struct ImageArgs {
    /// Images that one step may bring
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::bytes::at_most::<{ u32::MAX }>, allow_negative_numbers = true)]
    pub images: u32,
    /// The largest of them, in pixels, e.g. 1024x768 [default: the largest that the model takes]
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub image_size: Option<(u32, u32)>,
}

impl ImageArgs {
    /// As the geometry has them.
    pub fn images(&self) -> Images {
        let (width, height) = self.image_size.unwrap_or((0, 0));
        Images { count: self.images, width, height }
    }
}

/// Another engine.
#[derive(Debug, Default, Args)]
pub struct PeerArgs {
    /// Whose allocation rules: plimsoll, llama.cpp, vllm or mlx. --context and --chunk mean what that engine's flags mean:
    /// of llama.cpp the total over all slots and the micro-batch, of vllm max_model_len and max_num_batched_tokens, of
    /// mlx one sequence and the prefill step [default: plimsoll]
    #[arg(long, value_name = "ENGINE", value_parser = runtime)]
    pub runtime: Option<Runtime>,
    /// llama.cpp: what cells are rounded up to; older builds without flash attention had 32 [default: 256]
    #[arg(long, value_name = "CELLS", value_parser = super::bytes::count, allow_negative_numbers = true)]
    pub cell_padding: Option<u32>,
    /// llama.cpp: one stream of cells for all slots; changes the pools of sliding layers
    #[arg(long)]
    pub kv_unified: bool,
    /// llama.cpp: sliding layers keep every token
    #[arg(long)]
    pub swa_full: bool,
    /// llama.cpp: no flash attention, so that values are as wide as the widest layer's on every layer
    #[arg(long)]
    pub no_flash_attention: bool,
    /// llama.cpp: checkpoints of a slot that the server keeps in host memory [default: 32]
    #[arg(long, value_name = "N", value_parser = super::bytes::at_most::<{ u32::MAX }>, allow_negative_numbers = true)]
    pub checkpoints: Option<u32>,
    /// What is cached of multi-head latent attention: latent, kv or dense [default: as the engine does today]
    #[arg(long, value_name = "FORM", value_parser = mla)]
    pub mla: Option<Mla>,
    /// vllm: the hybrid KV manager is off, so that sliding layers keep every token
    #[arg(long)]
    pub no_hybrid_kv: bool,
    /// vllm: tokens of an attention block [default: 16]
    #[arg(long, value_name = "TOKENS", value_parser = super::bytes::count, allow_negative_numbers = true)]
    pub block_size: Option<u32>,
    /// vllm: what recurrent layers keep: none, align (with prefix caching) or all [default: none]
    #[arg(long, value_name = "MODE", value_parser = mamba)]
    pub mamba_cache: Option<MambaCache>,
    /// vllm: the type of recurrent states: auto, float32, float16 or bfloat16 [default: auto, as the model's configuration
    /// and family have it]
    #[arg(long, value_name = "TYPE", value_parser = state_type)]
    pub mamba_ssm_cache_dtype: Option<StateType>,
    /// vllm: keys and values in one byte, as with --kv fp8
    #[arg(long)]
    pub kv_fp8: bool,
    /// vllm: the share of the device that is taken at start [default: 0.92]
    #[arg(long, value_name = "SHARE", value_parser = share, allow_negative_numbers = true)]
    pub gpu_memory_utilization: Option<f64>,
    /// mlx: bits of a quantised cache, 8 or 4 [default: not quantised]
    #[arg(long, value_name = "BITS", value_parser = super::bytes::count, allow_negative_numbers = true)]
    pub kv_bits: Option<u32>,
}

impl PeerArgs {
    /// The engine, where it is not ours.
    pub fn engine(&self) -> Option<Engine> {
        self.runtime.unwrap_or_default().0
    }

    /// Whether every flag that was given is one of the engine's: one that changes nothing is a misunderstanding.
    ///
    /// # Errors
    /// [`Failure::Usage`], naming the flag and whose it is.
    pub fn check(&self) -> Result<(), Failure> {
        use Engine::{LlamaCpp, Mlx, Vllm};
        let of: [(&str, bool, &[Engine]); 13] = [
            ("--cell-padding", self.cell_padding.is_some(), &[LlamaCpp]),
            ("--kv-unified", self.kv_unified, &[LlamaCpp]),
            ("--swa-full", self.swa_full, &[LlamaCpp]),
            ("--no-flash-attention", self.no_flash_attention, &[LlamaCpp]),
            ("--checkpoints", self.checkpoints.is_some(), &[LlamaCpp]),
            ("--mla", self.mla.is_some(), &Engine::ALL),
            ("--no-hybrid-kv", self.no_hybrid_kv, &[Vllm]),
            ("--block-size", self.block_size.is_some(), &[Vllm]),
            ("--mamba-cache", self.mamba_cache.is_some(), &[Vllm]),
            ("--mamba-ssm-cache-dtype", self.mamba_ssm_cache_dtype.is_some(), &[Vllm]),
            ("--kv-fp8", self.kv_fp8, &[Vllm]),
            ("--gpu-memory-utilization", self.gpu_memory_utilization.is_some(), &[Vllm]),
            ("--kv-bits", self.kv_bits.is_some(), &[Mlx]),
        ];
        for (flag, given, engines) in of {
            if given && !self.engine().is_some_and(|engine| engines.contains(&engine)) {
                let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
                return Err(Failure::Usage(format!("{flag} is for --runtime {}", names.join(", "))));
            }
        }
        match self.kv_bits {
            None | Some(4 | 8) => Ok(()),
            Some(bits) => Err(Failure::Usage(format!("--kv-bits: expected 4 or 8, got {bits}"))),
        }
    }

    /// The geometry with the engine's own format of keys and values, and its own step where nobody asked for one.
    pub fn geometry(&self, geometry: Geometry, chunk: Option<u32>) -> Geometry {
        let fp8 = KvPair { k: KvStore::Fp8, v: KvStore::Fp8 };
        let geometry = if self.kv_fp8 { geometry.with_kv(fp8) } else { geometry };
        match (self.engine(), chunk) {
            (Some(engine), None) => Geometry { prefill_chunk: engine.default_chunk(), ..geometry },
            _ => geometry,
        }
    }

    /// How the engine is built and started, and the most bytes of one allocation.
    pub fn options(&self, max_allocation: Option<u64>) -> Options {
        let default = Options::default();
        Options {
            mla: self.mla,
            max_allocation,
            llama_cpp: llama_cpp::Options {
                cell_padding: self.cell_padding.unwrap_or(default.llama_cpp.cell_padding),
                unified: self.kv_unified,
                swa_full: self.swa_full,
                flash_attention: !self.no_flash_attention,
                checkpoints: self.checkpoints.unwrap_or(default.llama_cpp.checkpoints),
            },
            vllm: vllm::Options {
                hybrid: !self.no_hybrid_kv,
                block: self.block_size.unwrap_or(default.vllm.block),
                mamba: self.mamba_cache.unwrap_or_default(),
                state: self.mamba_ssm_cache_dtype.unwrap_or_default(),
                utilization: self.gpu_memory_utilization.unwrap_or(default.vllm.utilization),
            },
            mlx: mlx::Options { kv_bits: self.kv_bits, ..default.mlx },
        }
    }
}
