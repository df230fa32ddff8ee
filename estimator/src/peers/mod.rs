//! What other engines would allocate for the same model and geometry, by their published rules.
//!
//! Weights, keys and values and recurrent states follow closed forms in all of them, and public logs agree with those to
//! the byte. Their compute buffers do not: those come out of an allocator that sees a graph, so they are absent here and
//! every [`Price`] says so. `context` means what that engine's own flag means, see each engine's module.

mod largest;
pub mod llama_cpp;
pub mod mlx;
mod report;
mod rotating;
mod slides;
mod states;
pub mod vllm;

pub(crate) use report::START;
pub use report::report;
pub use states::StateType;

use crate::geometry::{Geometry, KvPair, KvStore, MAX_CHUNK, MAX_CONTEXT, MAX_DRAFT_DEPTH, MAX_SLOTS};
use crate::images::MAX_IMAGES;
use crate::report::KvBytes;
use plimsoll_kernels::Format;
use plimsoll_models::Model;
use plimsoll_models::graph::Op;
use plimsoll_models::model::{Latent, Part, State};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An engine whose allocations are priced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Engine {
    /// llama.cpp and its server.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// vLLM, its V1 engine.
    #[serde(rename = "vllm")]
    Vllm,
    /// mlx-lm.
    #[serde(rename = "mlx")]
    Mlx,
}

impl Engine {
    /// Every engine.
    pub const ALL: [Engine; 3] = [Engine::LlamaCpp, Engine::Vllm, Engine::Mlx];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::LlamaCpp => "llama.cpp",
            Engine::Vllm => "vllm",
            Engine::Mlx => "mlx",
        }
    }

    /// Tokens of a micro-batch or a prefill step when nobody says: `n_ubatch`, `max_num_batched_tokens` of a server on a
    /// small card, `prefill_step_size`.
    pub const fn default_chunk(self) -> u32 {
        match self {
            Engine::LlamaCpp => 512,
            Engine::Vllm | Engine::Mlx => 2048,
        }
    }
}

/// What an engine caches of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mla {
    /// The latent, once: `rank + rope` values of a token.
    Latent,
    /// The latent as keys and its first part again as values: `rank + rope` and `rank`.
    Kv,
    /// Every head's key and value, as if there were no latent.
    Dense,
}

impl Mla {
    /// Every form.
    pub const ALL: [Mla; 3] = [Mla::Latent, Mla::Kv, Mla::Dense];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mla::Latent => "latent",
            Mla::Kv => "kv",
            Mla::Dense => "dense",
        }
    }

    /// Heads, and values of one head's key and of its value.
    pub(crate) fn widths(self, latent: &Latent) -> (u128, u32, u32) {
        match self {
            Mla::Latent => (1, latent.width(), 0),
            Mla::Kv => (1, latent.width(), latent.rank),
            Mla::Dense => (u128::from(latent.heads), latent.nope.saturating_add(latent.rope), latent.value),
        }
    }
}

/// How an engine is built and started, where that changes what it allocates. The defaults are the engines' own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// What is cached of a latent; `None`: what the engine does for this family.
    pub mla: Option<Mla>,
    /// The most bytes of one allocation; `None`: not asked.
    pub max_allocation: Option<u64>,
    /// llama.cpp's.
    pub llama_cpp: llama_cpp::Options,
    /// vLLM's.
    pub vllm: vllm::Options,
    /// MLX's.
    pub mlx: mlx::Options,
}

/// Why an engine's price cannot be told.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A number is out of range.
    #[error("{field}: expected {expected}, got {got}")]
    Geometry {
        /// Which.
        field: &'static str,
        /// The range.
        expected: String,
        /// What was asked.
        got: u64,
    },
    /// The engine refuses to start with this KV format on heads of this size.
    #[error(
        "{engine} does not start with a KV format {format} on heads of {head_dim} values: not whole blocks of 32"
    )]
    KvFormat {
        /// The engine.
        engine: &'static str,
        /// The format.
        format: &'static str,
        /// The model's head.
        head_dim: u32,
    },
    /// The engine has no such thing.
    #[error("{engine} {what}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What it has not, as the rest of a sentence.
        what: String,
    },
    /// More bytes than 64 bits count.
    #[error("{what} exceeds 2^64 bytes")]
    TooLarge {
        /// What.
        what: &'static str,
    },
}

/// Something with its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What it is, and whether it is a cap.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// A number that the engine may reach and need not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Bytes of everything priced here at that moment.
    pub bytes: u64,
    /// When that is.
    pub why: String,
}

/// What an engine allocates.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// Whose rules.
    pub engine: Engine,
    /// Tensors that are loaded, as stored: as they were counted ([`crate::weights::counted`]), else in the formats of the
    /// model's matrices and vectors.
    pub weights: u64,
    /// Keys and values, the drafting layers' included: the sum of `kv_by_kind`.
    pub kv: u64,
    /// By what holds them.
    pub kv_by_kind: KvBytes,
    /// Recurrent states and convolution tails.
    pub recurrent: u64,
    /// What lies on the host beside it.
    pub host: Vec<Line>,
    /// What one more token of context costs a sequence, past every window.
    pub kv_bytes_per_token: u64,
    /// vLLM: what a token of its pool costs, as start-up logs count them: all groups hold it.
    pub pool_bytes_per_token: Option<u64>,
    /// What recurrent layers cost a sequence whatever its length; `None` where that grows with it, and is in
    /// `kv_bytes_per_token`.
    pub recurrent_bytes_per_slot: Option<u64>,
    /// The largest single allocation, where it is a closed form: scores that are not streamed.
    pub largest: Option<Line>,
    /// The most there may be at once, where the engine holds more while it grows.
    pub peak: Option<Bound>,
    /// Cells of a page, or what cells are rounded to.
    pub page: u32,
    /// vLLM's pages, for what fits a pool.
    pub paging: Option<vllm::Paging>,
    /// Which rules were applied, in sentences.
    pub rules: Vec<String>,
}

impl Price {
    /// What is priced: weights, keys and values, recurrent states. Compute buffers are not.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.recurrent)
    }

    /// The most of that there may be at once.
    pub fn most(&self) -> u64 {
        self.peak.as_ref().map_or(0, |peak| peak.bytes).max(self.total())
    }

    /// Bytes of the host line whose name begins so.
    pub fn host_bytes(&self, name: &str) -> Option<u64> {
        self.host.iter().find(|line| line.name.starts_with(name)).map(|line| line.bytes)
    }
}

/// Prices a model for a geometry by an engine's rules.
///
/// # Errors
/// [`PeerError`].
pub fn price(
    engine: Engine,
    model: &Model,
    geometry: &Geometry,
    options: &Options,
) -> Result<Price, PeerError> {
    let range = |field, got: u32, low: u32, high: u32| {
        let inside = (low..=high).contains(&got);
        let expected = || format!("{low} to {high}");
        if inside {
            Ok(())
        } else {
            Err(PeerError::Geometry { field, expected: expected(), got: got.into() })
        }
    };
    range("context", geometry.context, 1, MAX_CONTEXT)?;
    range("slots", geometry.slots, 1, MAX_SLOTS)?;
    range("prefill_chunk", geometry.prefill_chunk, 1, MAX_CHUNK)?;
    range("draft_depth", geometry.draft_depth, 0, MAX_DRAFT_DEPTH)?;
    let images = geometry.priced.images.count;
    if images > 0 && model.extras.vision.is_none() {
        let expected = "0: this model reads no images, or how is not known".to_owned();
        return Err(PeerError::Geometry { field: "images", expected, got: images.into() });
    }
    range("images", images, 0, MAX_IMAGES)?;
    let mut price = match engine {
        Engine::LlamaCpp => llama_cpp::price(model, geometry, options),
        Engine::Vllm => vllm::price(model, geometry, options),
        Engine::Mlx => mlx::price(model, geometry, options),
    }?;
    if images > 0 {
        price.rules.push(format!(
            "images: the tower's weights are loaded, {} bytes however many images there are; what it holds while it \
             reads them is not a closed form and not in the total, and their tokens are part of the context",
            as_stored(model, Part::Vision)
        ));
    }
    Ok(price)
}

/// Bytes of the tensors of a part of a model as the file has them that an engine loads: with the factors and scales that
/// stand beside packed weights there, and nothing that our own runtime adds.
fn as_stored(model: &Model, part: Part) -> u64 {
    let at = match part {
        Part::Text => 0,
        Part::Vision => 1,
        Part::Draft => 2,
        Part::Other => 3,
    };
    let extras = &model.extras;
    // A scheme may leave what is beside the text to files of their own, which stay as they are.
    let (scheme, beside) = (extras.recast.as_ref().map(|recast| recast.stored[at]), part != Part::Text);
    let scheme = scheme.filter(|bytes| *bytes > 0 || !beside);
    let counted = extras.stored.map(|stored| stored[at]).filter(|_| extras.recast.is_none() || beside);
    scheme.or(counted).unwrap_or_else(|| stored_bytes(model, part))
}

/// Bytes of the tensors of a part of a model in the formats that the model has; the text's are its matrices and vectors.
pub fn stored_bytes(model: &Model, part: Part) -> u64 {
    if part == Part::Text {
        let matrices = model.matrices.iter().map(|m| tensor_bytes(m.format, m.rows.into(), m.cols.into()));
        let vectors = model.vectors.iter().map(|v| tensor_bytes(v.format, 1, v.len.into()));
        return matrices.chain(vectors).flatten().fold(0, u64::saturating_add);
    }
    let beside = model.extras.tensors.iter().filter(|t| t.part == part);
    let bytes = beside.filter_map(|t| tensor_bytes(t.format, t.rows, t.cols)?.checked_mul(t.count));
    bytes.fold(0, u64::saturating_add)
}

/// Bytes of one tensor: `rows` rows of `cols` values. `None` where rows are not whole blocks or the product overflows.
pub fn tensor_bytes(format: Format, rows: u64, cols: u64) -> Option<u64> {
    format.row_bytes(cols)?.checked_mul(rows)
}

/// Bytes of the logits of every row of a chunk, which an engine holds that does not reduce a chunk to its last row before
/// the head: `chunk × vocab × bytes of a value`.
pub fn unreduced_logits(model: &Model, chunk: u32, value_bytes: u32) -> u64 {
    u64::from(chunk).saturating_mul(model.vocab.into()).saturating_mul(value_bytes.into())
}

/// Bytes of the widest layer's scores where attention is not streamed: `heads × chunk × cells × bytes of a value`.
pub fn unfused_scores(model: &Model, chunk: u64, cells: u64, value_bytes: u64) -> u64 {
    let heads = |state: &State| match state {
        State::KvFull { shape } | State::KvSliding { shape, .. } => shape.heads,
        State::KvLatent { latent } => latent.heads,
        State::Recurrent { .. } => 0,
    };
    let most = model.states.iter().map(heads).max().unwrap_or(0);
    u64::from(most).saturating_mul(chunk).saturating_mul(cells).saturating_mul(value_bytes)
}

/// Rows and columns of the table that tokens are looked up in.
pub fn token_embedding(model: &Model) -> Option<(u64, u64, Format)> {
    let table = model.graph.ops.iter().find_map(|(_, op)| match op {
        Op::Embed { table, .. } => model.matrix(*table),
        _ => None,
    })?;
    Some((table.rows.into(), table.cols.into(), table.format))
}

/// What is loaded of a checkpoint: the text; the drafting layers when they draft; the tower when there are images.
fn loaded(model: &Model, geometry: &Geometry) -> u64 {
    let drafts = geometry.draft_depth > 0 && !model.extras.draft.is_empty();
    let draft = if drafts { as_stored(model, Part::Draft) } else { 0 };
    let vision = if geometry.priced.images.count > 0 { as_stored(model, Part::Vision) } else { 0 };
    as_stored(model, Part::Text).saturating_add(draft).saturating_add(vision)
}

/// Bytes of `heads` runs of `width` values; blocks are whole where `width` is a multiple of 32.
fn row(store: KvStore, heads: u128, width: u32) -> u128 {
    let values = heads.saturating_mul(width.into());
    match store {
        KvStore::F32 => values.saturating_mul(4),
        KvStore::F16 | KvStore::Bf16 => values.saturating_mul(2),
        KvStore::Fp8 => values,
        KvStore::Q8_0 => (values / 32).saturating_mul(34),
        KvStore::Q4_0 => (values / 32).saturating_mul(18),
    }
}

/// That keys and values are stored alike, where an engine has one type for both.
fn one_format(engine: &'static str, pair: KvPair) -> Result<(), PeerError> {
    if pair.k == pair.v {
        return Ok(());
    }
    let what = format!("has one type for keys and values, not {} and {}", pair.k.name(), pair.v.name());
    Err(PeerError::Unsupported { engine, what })
}

/// A product that saturates: what does is refused at the end by [`bytes`].
fn product(factors: &[u128]) -> u128 {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}

/// Rounds up to a multiple.
fn pad(value: u64, to: u64) -> u64 {
    value.div_ceil(to.max(1)).saturating_mul(to.max(1))
}

/// The sum as bytes.
fn bytes(what: &'static str, sum: u128) -> Result<u64, PeerError> {
    u64::try_from(sum).map_err(|_| PeerError::TooLarge { what })
}

/// Sums by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    full: u128,
    sliding: u128,
    mla: u128,
    draft: u128,
    recurrent: u128,
}

impl Sums {
    fn by_kind(&self) -> Result<(KvBytes, u64), PeerError> {
        let sum = [self.full, self.sliding, self.mla, self.draft].into_iter().fold(0, u128::saturating_add);
        let kinds = KvBytes {
            full: bytes("KV", self.full)?,
            sliding: bytes("KV", self.sliding)?,
            mla: bytes("KV", self.mla)?,
            draft: bytes("KV", self.draft)?,
        };
        Ok((kinds, bytes("KV", sum)?))
    }
}
