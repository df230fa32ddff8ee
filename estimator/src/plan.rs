//! A plan: every buffer, where everything stands in it, and every dispatch of every program. Data only; the runtime
//! creates the buffers, fills the weights and records the dispatches, and decides nothing else.

use crate::Geometry;
use plimsoll_kernels::{
    Cost, Count, Kernel, KvLayout, Profile, Record, RecurrentShape, StepLayout, StepShape, Unit,
};
use plimsoll_models::graph::{MatrixId, StateId};
use serde::{Deserialize, Serialize};

/// Offsets and sizes of buffers and views are multiples of this many bytes.
pub const ALIGN: u64 = 256;

/// What a buffer's bytes are counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    /// Matrices and vectors.
    Weights,
    /// Pages of keys and values.
    Kv,
    /// Recurrent states and convolution tails.
    Recurrent,
    /// The activation arena.
    Activations,
    /// Step tables, parameters, upload and readback.
    Io,
    /// Prefix snapshots.
    Retained,
}

impl Segment {
    /// Every segment, in the order reports list them.
    pub const ALL: [Segment; 6] = [
        Segment::Weights,
        Segment::Kv,
        Segment::Recurrent,
        Segment::Activations,
        Segment::Io,
        Segment::Retained,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Segment::Weights => "weights",
            Segment::Kv => "kv",
            Segment::Recurrent => "recurrent",
            Segment::Activations => "activations",
            Segment::Io => "io",
            Segment::Retained => "retained",
        }
    }
}

/// What the runtime does with a buffer, and so how it must be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Storage, written at load: matrices.
    Matrices,
    /// Storage, written at load: vectors, f32.
    Vectors,
    /// Storage: KV pages.
    Kv,
    /// Storage: recurrent states and tails.
    Recurrent,
    /// Storage, source of readback copies: activations.
    Arena,
    /// Storage, written each step: the step tables.
    Step,
    /// Uniform, written at load: parameters and KV ranges, each in a slot of [`ALIGN`] bytes.
    Params,
    /// Mapped for writing: what the step tables are copied from.
    Upload,
    /// Mapped for reading: results.
    Readback,
    /// Copied to and from: prefix snapshots.
    Retained,
}

/// One device buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Unique, for people.
    pub name: String,
    /// What it is counted as.
    pub segment: Segment,
    /// What it is for.
    pub role: Role,
    /// Size, a multiple of [`ALIGN`].
    pub bytes: u64,
}

/// A part of a buffer, as it is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Index in [`Plan::buffers`].
    pub buffer: u32,
    /// Bytes from its start, a multiple of [`ALIGN`].
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Consecutive rows of a weight group, within one binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// First row of the group.
    pub first_row: u32,
    /// Rows.
    pub rows: u32,
    /// Where they stand: `rows × stride` bytes.
    pub view: View,
}

/// Matrices of one format and width, one below the other, so that one dispatch computes them all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightGroup {
    /// Top to bottom.
    pub matrices: Vec<MatrixId>,
    /// The device form of a row.
    pub record: Record,
    /// Rows in all.
    pub rows: u32,
    /// In row order, together all rows.
    pub shards: Vec<Shard>,
}

/// Pages of one layer that one binding covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvSegment {
    /// First physical page.
    pub first_page: u32,
    /// Pages.
    pub pages: u32,
    /// Where they stand.
    pub view: View,
}

/// The KV of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvLayer {
    /// The model's state.
    pub state: StateId,
    /// Index in [`KvPlan::kinds`].
    pub kind: u32,
    /// Page layout. Of a latent, or of formats without kernels, `page_bytes` alone counts.
    pub layout: KvLayout,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages hold latents.
    #[serde(default)]
    pub latent: bool,
    /// In page order, together all pages of the kind.
    pub segments: Vec<KvSegment>,
}

/// Layers that hold the same tokens share page numbers and a block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvKind {
    /// `None`: every token; `Some(W)`: a ring of the last tokens.
    pub window: Option<u32>,
    /// Pages a slot may hold (full) or holds as a ring (sliding).
    pub pages_per_slot: u32,
    /// Physical pages: `pages_per_slot × slots`.
    pub pages: u32,
}

/// All KV.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvPlan {
    /// Index `i` uses block table `i` of the step layout.
    pub kinds: Vec<KvKind>,
    /// In the order of the model's states.
    pub layers: Vec<KvLayer>,
}

/// States of one layer that one binding covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecurrentSegment {
    /// First place; copy `c` of slot `s` is at place `c · slots + s`.
    pub first: u32,
    /// Places.
    pub places: u32,
    /// `[places, values]`, f32.
    pub states: View,
    /// `[places, taps − 1, channels]`, f32.
    pub tails: View,
}

/// What one recurrent layer keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecurrentLayer {
    /// The model's state.
    pub state: StateId,
    /// Sizes.
    pub shape: RecurrentShape,
    /// In place order, together all places.
    pub segments: Vec<RecurrentSegment>,
}

/// All recurrent state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecurrentPlan {
    /// Copies of each slot's state: draft depth and one.
    pub copies: u32,
    /// In the order of the model's states.
    pub layers: Vec<RecurrentLayer>,
}

/// When a dispatch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// In every step.
    Always,
    /// In steps that want logit rows (the head).
    Logits,
    /// In steps sampled greedily: the largest logit.
    Greedy,
    /// In steps sampled from the largest logits.
    TopK,
}

/// One dispatch, bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// For people and profiles.
    pub label: String,
    /// When it runs.
    pub when: When,
    /// Index in [`Plan::kernels`].
    pub kernel: u32,
    /// Slot in the parameter buffer: its dynamic offset is `slot × ALIGN`.
    pub params: u32,
    /// Operands from binding 2 on; a kernel's `Range` operand has no view.
    pub views: Vec<View>,
    /// Whether it is repeated for every KV range in reach (and how far a range reaches).
    pub ranged: bool,
    /// Workgroups.
    pub workgroups: Count,
    /// What `cost` counts as rows.
    pub rows: Unit,
    /// What it costs.
    pub cost: Cost,
}

/// The dispatches of a step of up to `max_tokens` tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// For people.
    pub name: String,
    /// Most tokens.
    pub max_tokens: u32,
    /// In order.
    pub dispatches: Vec<Dispatch>,
    /// Logits `[R, V]`, f32.
    pub logits: View,
    /// Greedy result: per row `[id, logit]` and `[0, log-sum-exp]`, 32-bit words.
    pub greedy: View,
    /// Top-k result: per row [`Plan::top_k`] pairs `[id, logit]` and `[0, log-sum-exp]`, 32-bit words.
    pub top_k: View,
}

/// Candidates the device returns for sampling, or the whole vocabulary where that is smaller.
pub const TOP_K: u32 = 64;

/// KV ranges: the pieces a long attention is cut into, one dispatch each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    /// Tokens of a range, a multiple of the page.
    pub tokens: u32,
    /// Ranges that cover the context.
    pub count: u32,
    /// Slot of range 0 in the parameter buffer; range `i` is `[i·tokens, tokens, 0, 0]` at slot `first + i`.
    pub first: u32,
    /// Slot of a range that covers everything, for dispatches with a `Range` operand that are not repeated.
    pub whole: u32,
}

/// What the report says of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Name.
    pub name: String,
    /// Family.
    pub architecture: String,
    /// Parameters of the text model.
    pub parameters: u64,
    /// `V`.
    pub vocab: u32,
    /// Longest context the model was made for.
    pub context_max: u32,
    /// Layers with full attention.
    pub attention_full: u32,
    /// Layers with sliding attention.
    pub attention_sliding: u32,
    /// Layers with recurrent state.
    pub recurrent: u32,
    /// Layers that keep nothing.
    pub stateless: u32,
}

/// What a model × geometry costs on a profile, and what it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this structure.
    pub schema: u32,
    /// Of what.
    pub model: ModelFacts,
    /// For what.
    pub geometry: Geometry,
    /// On what.
    pub profile: Profile,
    /// Why it is a price and cannot be loaded, where that is so.
    #[serde(default)]
    pub estimate_only: Option<String>,
    /// Every buffer of the steady state; nothing else is allocated.
    pub buffers: Vec<Buffer>,
    /// The upload buffer that exists during a load only.
    pub staging_bytes: u64,
    /// Matrices.
    pub groups: Vec<WeightGroup>,
    /// Windows in which the vectors stand, each of at most a binding.
    pub vectors: Vec<View>,
    /// Where each vector stands, by `VectorId`.
    pub vector_places: Vec<VectorPlace>,
    /// Keys and values.
    pub kv: KvPlan,
    /// Recurrent states.
    pub recurrent: RecurrentPlan,
    /// Prefix snapshots, each the pieces that follow one another: what a slot keeps beside pages of full attention. None
    /// where a slot keeps nothing else.
    #[serde(default)]
    pub snapshots: Vec<Vec<View>>,
    /// Step tables.
    pub step: StepLayout,
    /// Index of the step buffer.
    pub step_buffer: u32,
    /// Index of the parameter buffer.
    pub params_buffer: u32,
    /// Indices of the upload buffers, used in turn.
    pub upload_buffers: Vec<u32>,
    /// Index of the readback buffer.
    pub readback_buffer: u32,
    /// Contents of the parameter buffer, slot by slot (each at most `ALIGN` bytes).
    pub params: Vec<Vec<u32>>,
    /// KV ranges.
    pub ranges: Ranges,
    /// Pipelines.
    pub kernels: Vec<Kernel>,
    /// By rising `max_tokens`; a step uses the first that holds it.
    pub programs: Vec<Program>,
}

/// What a load holds on the host beside [`Plan::staging_bytes`]: the tables of a step, what the graphics stack keeps of
/// a buffer or a submit, and what the tasks of one batch pack with. A bound, held to by a test of loads from files.
pub const LOAD_HOST: u64 = 2 << 20;

/// Where a vector stands. Vectors of one op are in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorPlace {
    /// Index in [`Plan::vectors`].
    pub window: u32,
    /// Values before it there.
    pub word: u32,
}

impl Plan {
    /// Bytes of one segment.
    pub fn segment_bytes(&self, segment: Segment) -> u64 {
        self.buffers.iter().filter(|b| b.segment == segment).map(|b| b.bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of the steady state: the sum of the buffers.
    pub fn total(&self) -> u64 {
        self.buffers.iter().map(|b| b.bytes).fold(0, u64::saturating_add)
    }

    /// The most bytes there ever are: the steady state and the load's staging.
    pub fn load_peak(&self) -> u64 {
        self.total().saturating_add(self.staging_bytes)
    }

    /// The most bytes of its own that a host holds for the load, beside the device's: a second staging's worth in
    /// which batches are packed, and [`LOAD_HOST`]. Checkpoints are mapped files, which the system may drop at will.
    pub fn load_host(&self) -> u64 {
        self.staging_bytes.saturating_add(LOAD_HOST)
    }

    /// Candidates of a row of [`Program::top_k`].
    pub fn top_k(&self) -> u32 {
        TOP_K.min(self.model.vocab)
    }

    /// The program for a step of `tokens`.
    pub fn program(&self, tokens: u32) -> Option<&Program> {
        self.programs.iter().find(|p| tokens <= p.max_tokens)
    }

    /// Bytes moved and floating-point operations of a greedy step whose rows see `kv` tokens each.
    pub fn work(&self, step: &StepShape, kv: u32) -> (u64, u64) {
        let counted = |d: &&Dispatch| match d.when {
            When::Always => true,
            When::Logits | When::Greedy => step.logit_rows > 0,
            When::TopK => false,
        };
        let dispatches = self.program(step.tokens).map_or(&[][..], |p| &p.dispatches);
        dispatches.iter().filter(counted).fold((0, 0), |(bytes, flops), d| {
            let rows = d.rows.of(step);
            (bytes + d.cost.bytes(rows, kv.into()), flops + d.cost.flops(rows, kv.into()))
        })
    }

    /// Floating-point operations a dispatch does in a step, for one KV range if it is ranged.
    pub fn flops(&self, dispatch: &Dispatch, step: &StepShape) -> u64 {
        let kv = if dispatch.ranged { step.kv_max.min(self.ranges.tokens) } else { step.kv_max };
        dispatch.cost.flops(dispatch.rows.of(step), u64::from(kv))
    }
}
