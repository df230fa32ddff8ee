//! What an estimate says, as one JSON document (schema 1: fields may be added, never changed).

use crate::budget::{Setting, Won};
use crate::coefficients::Coefficients;
use crate::devices::Check;
use crate::geometry::Geometry;
use crate::images::ImagesPart;
use crate::others::Others;
use crate::peers::{Bound, Line};
use crate::plan::{Plan, Segment};
use crate::roofline::Ceilings;
use crate::shards::Shards;
use crate::solve::{End, Frontier};
use crate::verdict::{Lasts, Suggestion};
use crate::weights::{self, Parts};
use plimsoll_kernels::step::PAGE;
use plimsoll_models::Model;
use plimsoll_models::checkpoint::{BytesRead, Checkpoint};
use plimsoll_models::model::State;
use serde::{Deserialize, Serialize};

mod around;
mod judged;
mod parts;

pub(crate) use around::contexts;
pub use judged::Question;

/// Version of the document.
pub const SCHEMA: u32 = 1;

/// The model's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are the document's
pub struct ModelPart {
    pub name: String,
    pub architecture: String,
    pub source: String,
    pub parameters: u64,
    pub checkpoint_bytes: u64,
    pub checkpoint_bytes_by_part: CheckpointBytes,
    /// Bytes of the tensors of a file with the weights that are priced: the checkpoint's, or those of another scheme.
    #[serde(default)]
    pub stored_bytes: u64,
    /// What was read to open the checkpoint: no weights.
    #[serde(default)]
    pub read: BytesRead,
    pub layers: Layers,
    pub context_max: u32,
    pub vocab: u32,
    /// What was done otherwise than the checkpoint asks, and what could not be confirmed.
    pub notes: Vec<String>,
}

/// Bytes of a checkpoint by what reads them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CheckpointBytes {
    /// What the text model reads.
    pub text: u64,
    pub vision: u64,
    /// Layers that draft tokens.
    pub draft: u64,
    pub other: u64,
}

impl CheckpointBytes {
    fn total(&self) -> u64 {
        Parts::of([self.text, self.vision, self.draft, self.other]).total()
    }
}

/// Layers by what they keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Layers {
    pub attention_full: u32,
    pub attention_sliding: u32,
    pub recurrent: u32,
    pub stateless: u32,
}

/// The geometry's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct GeometryPart {
    pub context: u32,
    pub slots: u32,
    pub prefill_chunk: u32,
    /// One name, or two where keys and values differ: `q8_0/f16`.
    pub kv: String,
    pub weights: String,
    pub images: u32,
    pub draft_depth: u32,
    #[serde(default)]
    pub snapshots: u32,
    pub page: u32,
    pub logit_rows: u32,
    /// MLX: bits of full caches once they are quantised; the others, and these before, are in `kv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_bits: Option<u32>,
}

/// Bytes by kind of KV.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct KvBytes {
    pub full: u64,
    pub sliding: u64,
    pub mla: u64,
    /// Of the layers that draft.
    #[serde(default)]
    pub draft: u64,
}

/// Bytes, segment by segment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Bytes {
    pub weights: u64,
    pub kv: u64,
    pub recurrent: u64,
    pub activations: u64,
    pub io: u64,
    pub retained: u64,
    pub total: u64,
    pub load_peak: u64,
    pub load_host: u64,
    pub kv_by_kind: KvBytes,
}

/// Which bytes are exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Exact {
    pub weights: bool,
    pub kv: bool,
    pub recurrent: bool,
    pub activations: bool,
}

/// The driver's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct OverheadPart {
    pub bytes: u64,
    pub source: String,
}

/// Something large, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Largest {
    pub name: String,
    pub bytes: u64,
}

/// The budget's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct BudgetPart {
    pub bytes: u64,
    pub source: String,
    pub requested: Option<u64>,
    pub setting: Option<String>,
    pub derived: Option<u64>,
    pub taken: Option<u64>,
    /// What the reading's source left out of it already.
    #[serde(default)]
    pub excluded: Vec<String>,
    /// What is left for others of the reading.
    #[serde(default)]
    pub reserve: Option<Setting>,
    pub won: Won,
    pub why: String,
}

/// A limit of the device, as it was resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LimitPart {
    /// `allocation` or `binding`.
    pub what: String,
    /// What counts: the smaller of the device's and the operator's.
    pub bytes: u64,
    pub device: u64,
    pub requested: Option<u64>,
    pub setting: Option<String>,
    pub won: Won,
    pub why: String,
    /// Whether nobody says what the device allows: WebGPU's least stands for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
}

/// A refusal's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RefusalPart {
    pub broke: String,
    pub name: String,
    /// `None` where what is missing is no amount.
    pub need: Option<u64>,
    /// `None` where it is a range or a thing that is not there.
    pub have: Option<u64>,
    /// The term that broke the budget.
    #[serde(default)]
    pub term: Option<String>,
    #[serde(default)]
    pub lasts: Lasts,
    pub reason: String,
    pub nearest: Vec<Suggestion>,
}

/// One context of the ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Rung {
    pub context: u32,
    pub total: Option<u64>,
    pub verdict: String,
}

/// What one change saves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Lever {
    pub change: String,
    pub saves: u64,
}

/// The largest geometries that fit, each with the rest as asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Fits {
    pub context: Option<u32>,
    pub slots: Option<u32>,
    pub prefill_chunk: Option<u32>,
    #[serde(default)]
    pub bounded_by: Ends,
    #[serde(default)]
    pub stopped_by: Stops,
}

/// The limit of the adapter that the next larger of each breaks, in a sentence; `None` where it is memory, or nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Stops {
    pub context: Option<String>,
    pub slots: Option<String>,
    pub prefill_chunk: Option<String>,
}

/// Where the search for each of the largest ended without meeting one that does not fit; `None`: the next does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Ends {
    pub context: Option<End>,
    pub slots: Option<End>,
    pub prefill_chunk: Option<End>,
}

/// The estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Report {
    pub schema: u32,
    pub model: ModelPart,
    pub geometry: GeometryPart,
    pub profile: String,
    /// `None` where a limit allows no plan: there is nothing to add up.
    pub bytes: Option<Bytes>,
    /// Fields of `bytes` that nobody can tell of another engine: 0 there, and not in the total; `load_peak` is the total.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_in_bytes: Vec<String>,
    pub exact: Exact,
    pub overhead: OverheadPart,
    /// `None` where the formats do not suit the heads.
    pub kv_bytes_per_token: Option<u64>,
    /// Of vLLM what a token of its pool costs, as start-up logs count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_bytes_per_token: Option<u64>,
    /// `None` where there is no plan, or recurrent states grow with the context (vLLM's mode all).
    pub recurrent_bytes_per_slot: Option<u64>,
    /// `None` where there is no plan, or another engine's is no closed form.
    pub largest_allocation: Option<Largest>,
    pub largest_binding: Option<Largest>,
    /// What is larger than those may be; `None` as they are.
    #[serde(default)]
    pub shards: Option<Shards>,
    pub budget: Option<BudgetPart>,
    /// What buffers and bindings keep to; empty by another engine's rules, which do not ask.
    #[serde(default)]
    pub limits: Vec<LimitPart>,
    /// `fits`, `refused` or `no_budget`.
    pub verdict: String,
    pub refusal: Option<RefusalPart>,
    pub ladder: Vec<Rung>,
    pub levers: Vec<Lever>,
    pub largest: Fits,
    pub pipelines: Option<u32>,
    /// Whose rules these are: `plimsoll`, or another engine's.
    #[serde(default = "ours")]
    pub runtime: String,
    /// The other engine's rules that were applied, in sentences.
    #[serde(default)]
    pub rules: Vec<String>,
    /// What the other engine holds on the host beside it.
    #[serde(default)]
    pub host: Vec<Line>,
    /// The most there may be at once, where the other engine holds more while it grows.
    #[serde(default)]
    pub peak: Option<Bound>,
    /// What images cost, where the model reads any.
    #[serde(default)]
    pub images: Option<ImagesPart>,
    /// Why it is a price and cannot be run, where that is so.
    #[serde(default)]
    pub estimate_only: Option<String>,
    /// What the device has of what the plan needs, where a device was named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// What the device could do at most, where a device was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<Ceilings>,
    /// What else lives on the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Others>,
    /// What the total is made of, whatever the context, slots and chunk.
    #[serde(default)]
    pub coefficients: Option<Coefficients>,
    /// The longest context that fits, by slots; empty without a budget.
    #[serde(default)]
    pub frontier: Frontier,
}

/// The runtime whose plans these are unless another is asked for.
fn ours() -> String {
    "plimsoll".to_owned()
}

impl Report {
    /// What is to be said where a limit refused that belongs to no device, or that nobody knows of this one.
    pub fn least_limits(&self) -> Option<String> {
        let refusal = self.refusal.as_ref()?;
        let bare = self.profile == "webgpu-default";
        // The operator's own limit is no device's.
        let least = |l: &LimitPart| l.what == refusal.broke && l.won == Won::Derived && (bare || l.assumed);
        self.limits.iter().any(least).then(|| match bare {
            true => "these are WebGPU's least limits: --device NAME prices against those of a device".to_owned(),
            false => format!(
                "these are WebGPU's least limits: those of {} are not known, and it may have more; another --device has its own",
                self.profile
            ),
        })
    }
}

impl Bytes {
    /// Name and bytes of each segment, in the order reports list them.
    pub fn segments(&self) -> [(&'static str, u64); 6] {
        let bytes = [self.weights, self.kv, self.recurrent, self.activations, self.io, self.retained];
        std::array::from_fn(|i| (Segment::ALL[i].name(), bytes[i]))
    }
}

/// Bytes of a plan, segment by segment.
pub fn bytes(plan: &Plan) -> Bytes {
    Bytes {
        weights: plan.segment_bytes(Segment::Weights),
        kv: plan.segment_bytes(Segment::Kv),
        recurrent: plan.segment_bytes(Segment::Recurrent),
        activations: plan.segment_bytes(Segment::Activations),
        io: plan.segment_bytes(Segment::Io),
        retained: plan.segment_bytes(Segment::Retained),
        total: plan.total(),
        load_peak: plan.load_peak(),
        load_host: plan.load_host(),
        kv_by_kind: crate::pricer::by_kind(&plan.kv),
    }
}

/// Bytes one more token of context costs a slot, past every window.
pub fn kv_bytes_per_token(model: &Model, geometry: &Geometry) -> u64 {
    let grows = model.states.iter().filter(|s| matches!(s, State::KvFull { .. } | State::KvLatent { .. }));
    let pages = grows.filter_map(|s| crate::kv::page(s, geometry).ok());
    pages.map(|(_, bytes)| bytes / u64::from(PAGE)).fold(0, u64::saturating_add)
}

/// The checkpoint's bytes, also where the model is priced in other weights than its own.
fn checkpoint_bytes(checkpoint: &Checkpoint, model: &Model) -> CheckpointBytes {
    let parts = match &model.extras.recast {
        Some(recast) => Parts::of(recast.published),
        None => weights::bytes_by_part(checkpoint, model),
    };
    let Parts { text, vision, draft, other } = parts;
    CheckpointBytes { text, vision, draft, other }
}
