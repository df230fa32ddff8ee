//! The verdict: a plan held against a budget. [`Admitted`] is the only key that opens the runtime.

use crate::budget::Budget;
use crate::error::{PlanError, grouped};
use crate::geometry::{Geometry, KvPair, Priced};
use crate::peers::PeerError;
use crate::plan::{Plan, Segment};
use crate::pricer::{Price, Pricer};
use crate::solve::{self, Solver};
use plimsoll_kernels::{KvFormat, Profile};
use plimsoll_models::Model;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the driver takes per device and per pipeline, outside the plan's buffers, and what it rounds those up to: they are
/// few, so that whole pages of a heap (64 KiB) are under a thousandth of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overhead {
    /// Bytes.
    pub bytes: u64,
    /// Measured on the adapter; otherwise unknown, and 0.
    pub measured: bool,
}

/// A plan that may be loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    plan: Plan,
    budget: Option<Budget>,
    overridden: bool,
}

impl Admitted {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What it was held against; `None` when nothing was known.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// Whether somebody insisted although the budget said no (or that no budget was to be asked).
    pub fn overridden(&self) -> bool {
        self.overridden
    }

    /// Admits a plan against the budget's advice. Marked in every report; limits of the adapter still hold, since
    /// the plan was made within them.
    pub fn insist(plan: Plan, budget: Option<Budget>) -> Self {
        Self { plan, budget, overridden: true }
    }
}

/// What a refusal broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Broke {
    /// Total and overhead exceed the budget.
    Total,
    /// The total fits, and what the load holds beside it does not.
    LoadPeak,
    /// One buffer exceeds the adapter's limit.
    Allocation,
    /// One binding does.
    Binding,
    /// Another limit of the adapter.
    Limit,
    /// The KV format does not suit the heads.
    KvFormat,
    /// A number of the geometry is out of range.
    Geometry,
}

impl Broke {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Broke::Total => "total",
            Broke::LoadPeak => "load_peak",
            Broke::Allocation => "allocation",
            Broke::Binding => "binding",
            Broke::Limit => "limit",
            Broke::KvFormat => "kv_format",
            Broke::Geometry => "geometry",
        }
    }
}

/// A geometry that fits, found by trying it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suggestion {
    /// Context.
    pub context: u32,
    /// Slots.
    pub slots: u32,
    /// Prefill chunk.
    pub prefill_chunk: u32,
    /// How keys and values are stored: in documents one name, or two where they differ, `q8_0/f16`.
    #[serde(with = "crate::geometry::by_name")]
    pub kv: KvPair,
    /// Most logit rows of a step.
    pub logit_rows: u32,
    /// Draft depth.
    #[serde(default)]
    pub draft_depth: u32,
    /// What is priced and not run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priced: Priced,
    /// Images, where some were asked for: those of `priced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<u32>,
    /// Snapshots, where some were asked for: those of `priced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u32>,
    /// What its plan costs.
    pub total: u64,
}

fn is_default(priced: &Priced) -> bool {
    *priced == Priced::default()
}

impl Suggestion {
    /// A geometry and what it costs.
    pub fn new(geometry: Geometry, total: u64) -> Self {
        let kv = geometry.kv_pair();
        let Geometry { context, slots, prefill_chunk, kv: _, logit_rows, draft_depth, priced } = geometry;
        let images = (priced.images.count > 0).then_some(priced.images.count);
        let snapshots = (priced.snapshots > 0).then_some(priced.snapshots);
        Self { context, slots, prefill_chunk, kv, logit_rows, draft_depth, priced, images, snapshots, total }
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        let Self { context, slots, prefill_chunk, kv, logit_rows, draft_depth, .. } = *self;
        let priced = self.priced.clone();
        Geometry { context, slots, prefill_chunk, kv: KvFormat::F16, logit_rows, draft_depth, priced }
            .with_kv(kv)
    }
}

/// How long a refusal holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lasts {
    /// For good: whoever asks the same again gets the same answer. There is nothing to retry.
    #[default]
    Forever,
    /// While the machine's reading is what it was: more may be free later, and the operator's ceiling allows it.
    Reading,
}

impl Lasts {
    /// Of a need that is over a budget: what the operator's ceiling forbids stays forbidden, and what all of the machine
    /// less the reserve could not hold stays impossible; what is only not free it may have later.
    pub fn of(need: u64, budget: &Budget) -> Self {
        let forbidden = budget.requested.is_some_and(|most| need > most.saturating_sub(budget.others));
        // All that there is, and nobody in it but who was asked for, less what is left for others.
        let most = budget.derived.as_ref().and_then(|reading| reading.total);
        let reserve = budget.reserve.as_ref().map_or(0, |reserve| reserve.bytes);
        let impossible =
            most.is_some_and(|most| need > most.saturating_sub(reserve).saturating_sub(budget.others));
        if budget.derived.is_none() || forbidden || impossible { Self::Forever } else { Self::Reading }
    }

    /// In words, to stand behind a reason.
    pub const fn says(self) -> &'static str {
        match self {
            Self::Forever => "permanent: asked again, the answer is the same",
            Self::Reading => "not permanent: it may be asked again when more is free",
        }
    }
}

/// A refusal, as a value. Nothing has been allocated or launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Which limit broke.
    pub broke: Broke,
    /// What exceeded it: `total`, a tensor, a buffer.
    pub name: String,
    /// What was needed.
    pub need: u64,
    /// What there was.
    pub have: u64,
    /// The need, term by term, when there is a plan.
    pub terms: Vec<(Segment, u64)>,
    /// The term that broke the budget: the first with which the sum is over it, those that no context changes first.
    #[serde(default)]
    pub term: Option<Segment>,
    /// How long it holds.
    #[serde(default)]
    pub lasts: Lasts,
    /// Geometries that fit, nearest first; empty when none does.
    pub nearest: Vec<Suggestion>,
    /// The whole story in a sentence, but how long it holds: that is said behind it where a refusal is shown.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.lasts.says())
    }
}

impl std::error::Error for Refusal {}

/// Admitted or refused.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // made once a load
pub enum Verdict {
    /// It may be loaded.
    Admitted(Admitted),
    /// It may not: this geometry against this budget. The refusal says whether another reading may change that.
    Refused(Refusal),
}

impl Verdict {
    /// The admitted plan, or the refusal as an error.
    ///
    /// # Errors
    /// The refusal.
    pub fn admitted(self) -> Result<Admitted, Box<Refusal>> {
        match self {
            Verdict::Admitted(admitted) => Ok(admitted),
            Verdict::Refused(refusal) => Err(Box::new(refusal)),
        }
    }
}

/// Plans a model and holds the plan against a budget. Without a budget every plan that keeps the adapter's limits is
/// admitted.
///
/// # Errors
/// Only [`PlanError::Graph`], a fault of the architecture; everything else is a refusal.
pub fn admit(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    budget: Option<&Budget>,
    overhead: Overhead,
) -> Result<Verdict, PlanError> {
    let pricer = Pricer::new(model, profile);
    admit_within(&Solver { pricer: &pricer, budget, overhead, company: None }, geometry)
}

/// The same, where more is asked of the model than this geometry.
///
/// # Errors
/// As [`admit`].
pub fn admit_within(solver: &Solver<'_>, geometry: &Geometry) -> Result<Verdict, PlanError> {
    match refusal(solver, geometry)? {
        Some(refusal) => Ok(Verdict::Refused(refusal)),
        None => admitted(solver, geometry),
    }
}

/// The verdict on what [`refusal`] has nothing against.
///
/// # Errors
/// As [`admit`].
pub(crate) fn admitted(solver: &Solver<'_>, geometry: &Geometry) -> Result<Verdict, PlanError> {
    let plan = solver.pricer.plan(geometry)?;
    Ok(Verdict::Admitted(Admitted { plan, budget: solver.budget.cloned(), overridden: false }))
}

/// What stands against a geometry, from its price: a plan is made only where it will be used.
///
/// # Errors
/// As [`admit`].
pub(crate) fn refusal(solver: &Solver<'_>, geometry: &Geometry) -> Result<Option<Refusal>, PlanError> {
    let Solver { pricer, budget, overhead, company } = *solver;
    // What cannot be by itself is said before what it cannot be beside.
    let beside = || company.map_or(Ok(()), |company| company.with(geometry).map(drop));
    let price = match pricer.price(geometry).and_then(|price| beside().map(|()| price)) {
        Ok(price) => price,
        Err(error) if error.is_fault() => return Err(error),
        Err(error) => return Ok(Some(refuse_limit(&error, solve::nearest(solver, geometry)))),
    };
    match budget {
        Some(budget) if price.total().saturating_add(overhead.bytes) > budget.bytes => {
            let nearest = solve::nearest(solver, geometry);
            Ok(Some(refuse_total(&price, budget, overhead, nearest)))
        }
        // What fits once it is there must also fit while it comes.
        Some(budget) => match budget.load_room().filter(|room| peak(&price, overhead) > *room) {
            Some(room) => {
                let nearest = solve::nearest(solver, geometry);
                Ok(Some(refuse_load(peak(&price, overhead), room, budget, nearest)))
            }
            None => Ok(None),
        },
        None => Ok(None),
    }
}

/// The most that a plan holds on the device while it is loaded.
pub(crate) fn peak(price: &Price, overhead: Overhead) -> u64 {
    price.total().saturating_add(price.staging).saturating_add(overhead.bytes)
}

fn refuse_load(need: u64, have: u64, budget: &Budget, nearest: Vec<Suggestion>) -> Refusal {
    // The ceiling has nothing against it.
    let read = Budget { requested: None, ..budget.clone() };
    let source = budget.derived.as_ref().map_or("", |reading| reading.source.as_str());
    let less = match &budget.reserve {
        Some(reserve) if reserve.bytes > 0 => {
            format!(", less {} by {}", grouped(reserve.bytes), reserve.name)
        }
        _ => String::new(),
    };
    let less = match budget.others {
        0 => less,
        others => format!("{less}, less {} for others", grouped(others)),
    };
    Refusal {
        broke: Broke::LoadPeak,
        name: "load peak".into(),
        need,
        have,
        terms: Vec::new(),
        term: None,
        lasts: Lasts::of(need, &read),
        nearest,
        reason: format!("load peak: {} bytes of {} ({source}{less})", grouped(need), grouped(have)),
    }
}

fn refuse_total(price: &Price, budget: &Budget, overhead: Overhead, nearest: Vec<Suggestion>) -> Refusal {
    let need = price.total().saturating_add(overhead.bytes);
    let terms: Vec<(Segment, u64)> = Segment::ALL.iter().map(|&s| (s, price.segment_bytes(s))).collect();
    let weights = price.segment_bytes(Segment::Weights);
    let term = breaking(price, budget.bytes);
    let below = match term {
        Some(Segment::Weights) => {
            format!("; the budget is below the weights alone ({} bytes)", grouped(weights))
        }
        Some(term) => {
            format!("; {} ({} bytes) takes it over", term.name(), grouped(price.segment_bytes(term)))
        }
        None => String::new(),
    };
    Refusal {
        broke: Broke::Total,
        name: "total".into(),
        need,
        have: budget.bytes,
        terms,
        term,
        lasts: Lasts::of(need, budget),
        nearest,
        reason: format!(
            "the plan needs {} bytes and there are {} ({}), {} too few{below}",
            grouped(need),
            grouped(budget.bytes),
            budget.source,
            grouped(need - budget.bytes),
        ),
    }
}

/// The first term with which the sum is over `most`: the weights, what any context needs beside them, and last the keys
/// and values. `None` where only the driver's overhead is over it.
fn breaking(price: &Price, most: u64) -> Option<Segment> {
    use Segment::{Activations, Io, Kv, Recurrent, Retained, Weights};
    let mut sum = 0u64;
    [Weights, Io, Activations, Recurrent, Retained, Kv].into_iter().find(|&segment| {
        sum = sum.saturating_add(price.segment_bytes(segment));
        sum > most
    })
}

pub(crate) fn refuse_limit(error: &PlanError, nearest: Vec<Suggestion>) -> Refusal {
    let (broke, name, need, have) = broken(error);
    Refusal {
        broke,
        name,
        need,
        have,
        terms: Vec::new(),
        term: None,
        lasts: Lasts::Forever,
        nearest,
        reason: error.to_string(),
    }
}

/// What broke, of what, what it needs, and what there is.
fn broken(error: &PlanError) -> (Broke, String, u64, u64) {
    use crate::error::Limit;
    match error {
        PlanError::Limit { limit, name, need, have } => {
            let broke = match limit {
                Limit::Allocation => Broke::Allocation,
                Limit::Binding => Broke::Binding,
                _ => Broke::Limit,
            };
            (broke, name.clone(), *need, *have)
        }
        PlanError::KvFormat { format, head_dim } => {
            (Broke::KvFormat, (*format).to_owned(), u64::from(*head_dim), 32)
        }
        PlanError::Geometry { field, got, have, .. } => (Broke::Geometry, (*field).to_owned(), *got, *have),
        PlanError::Engine(error) => match error {
            PeerError::Geometry { field, got, .. } => (Broke::Geometry, (*field).to_owned(), *got, 0),
            PeerError::KvFormat { format, head_dim, .. } => {
                (Broke::KvFormat, (*format).to_owned(), u64::from(*head_dim), 32)
            }
            PeerError::TooLarge { what } => (Broke::Geometry, (*what).to_owned(), u64::MAX, 0),
            PeerError::Unsupported { engine, .. } => (Broke::Limit, (*engine).to_owned(), 0, 0),
        },
        PlanError::Beside { model, error, .. } => {
            let (broke, name, need, have) = broken(error);
            (broke, format!("{model}: {name}"), need, have)
        }
        PlanError::Graph { at: name, .. } => (Broke::Limit, name.clone(), 0, 0),
    }
}
