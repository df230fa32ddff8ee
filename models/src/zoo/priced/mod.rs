//! Families that are priced and not run: what a step of each holds, layer by layer, without the last word on its
//! arithmetic.
//!
//! A family says in a [`Spec`] what its layers are made of; [`build`] makes a model of it, with the names of the published
//! checkpoints. Operations that have a kernel are that kernel's; the others are [`Op::Priced`](crate::graph::Op::Priced),
//! so that liveness and peaks are a real step's. Every model that comes from here says why it is not run.

mod build;
mod deepseek;
mod dense;
mod hybrids;
mod sparse;

pub use deepseek::{DeepSeek, Mistral4};
pub use dense::{Mistral, Phi3, Qwen2, Qwen3Vl};
pub use hybrids::{GraniteHybrid, Lfm2};
pub use sparse::{Afmoe, Llama4, Qwen3VlMoe};

use super::dense::Dense;
use super::mamba;
use crate::checkpoint::Checkpoint;
use crate::model::{Latent, State};
use plimsoll_kernels::AttentionShape;

/// What a model is made of.
struct Spec {
    architecture: &'static str,
    /// Why it is not run.
    why: &'static str,
    sizes: Dense,
    names: Names,
    layers: Vec<Layer>,
    notes: Vec<String>,
    /// Layers after the last that draft tokens.
    drafts: Vec<Layer>,
    /// Tokens of a chunk of its recurrence, where it has one and says so.
    state_chunk: Option<u32>,
}

/// How tensors are called.
#[derive(Clone, Copy)]
struct Names {
    /// Before `embed_tokens` and `layers`.
    prefix: &'static str,
    attention: &'static str,
    output: &'static str,
    head_norms: [&'static str; 2],
    /// Norms before the mixer and before what follows it.
    norms: [&'static str; 2],
    /// The norm before the head.
    last: &'static str,
    head: &'static str,
}

impl Names {
    /// As llama has them.
    const LLAMA: Self = Self {
        prefix: "model",
        attention: "self_attn",
        output: "o_proj",
        head_norms: ["q_norm", "k_norm"],
        norms: ["input_layernorm", "post_attention_layernorm"],
        last: "norm",
        head: "lm_head.weight",
    };

    /// With the prefix that the checkpoint has, of those that wrappers with a tower give the text model.
    fn found(self, checkpoint: &Checkpoint, nested: bool) -> Self {
        const PREFIXES: [&str; 4] =
            ["model", "language_model.model", "model.language_model", "model.text_model"];
        let there = |prefix: &&str| {
            checkpoint.names().any(|name| name.starts_with(&format!("{prefix}.embed_tokens.")))
        };
        let bare = if nested { "language_model.model" } else { self.prefix };
        let prefix = PREFIXES.into_iter().find(there).unwrap_or(bare);
        let head = if prefix == "language_model.model" { "language_model.lm_head.weight" } else { self.head };
        Self { prefix, head, ..self }
    }
}

/// One layer: a mixer, then the sum of what follows it.
#[derive(Clone)]
struct Layer {
    mixer: Mixer,
    ffn: Vec<Ffn>,
    /// Norms after the mixer and after what follows it, too.
    sandwich: Option<[&'static str; 2]>,
}

/// What mixes tokens.
#[derive(Clone)]
enum Mixer {
    Attention(Attention),
    Latent(LatentAttention),
    Mamba {
        mixer: mamba::Mixer,
        prefix: &'static str,
    },
    /// A gated short convolution: `out(C ⊙ conv(B ⊙ x))`.
    ShortConv {
        taps: u32,
        bias: bool,
    },
}

#[derive(Clone, Copy)]
struct Attention {
    shape: AttentionShape,
    window: Option<u32>,
    head_norms: bool,
    qkv_bias: bool,
    output_bias: bool,
    /// Queries, keys and values are one tensor, `qkv_proj`.
    fused: bool,
    /// Outputs are gated by `gate_proj`.
    gated: bool,
}

impl Attention {
    fn plain(shape: AttentionShape) -> Self {
        Self {
            shape,
            window: None,
            head_norms: false,
            qkv_bias: false,
            output_bias: false,
            fused: false,
            gated: false,
        }
    }

    fn state(&self) -> State {
        let shape = self.shape;
        self.window.map_or(State::KvFull { shape }, |window| State::KvSliding { shape, window })
    }
}

#[derive(Clone, Copy)]
struct LatentAttention {
    latent: Latent,
    /// `q_lora_rank`.
    query_rank: Option<u32>,
}

/// What follows the mixer.
#[derive(Clone)]
enum Ffn {
    Gated {
        width: u32,
        /// Names of gate, up and down.
        names: [&'static str; 3],
    },
    /// Gate and up are one tensor.
    Fused {
        width: u32,
        /// Names of gate and up, and of down.
        names: [&'static str; 2],
    },
    Experts(Experts),
}

#[derive(Clone)]
struct Experts {
    count: u32,
    top: u32,
    width: u32,
    router: &'static str,
    /// The vector that is added to scores for the choice.
    router_bias: Option<&'static str>,
    stacks: Stacks,
    /// Width and names of gate, up and down of experts that every token visits.
    shared: Option<(u32, [&'static str; 3])>,
}

/// How experts are stored.
#[derive(Clone, Copy)]
enum Stacks {
    /// One tensor for each: the folder, and names of gate, up and down.
    Separate(&'static str, [&'static str; 3]),
    /// Gates and ups of all in one tensor, downs in another; inputs by outputs where `transposed`.
    Stacked { names: [&'static str; 2], transposed: bool },
}

/// Names of gate, up and down as llama has them.
const MLP: [&str; 3] = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

/// Why a family that is made of known operations is priced only.
const UNCOMPARED: &str = "its logits have not been compared with a reference";
