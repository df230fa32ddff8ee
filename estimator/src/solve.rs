//! The inverse solve: what fits a budget. Every answer is a plan that was made and found to fit.

use crate::budget::Budget;
use crate::geometry::{
    Geometry, MAX_CHUNK, MAX_CONTEXT, MAX_DRAFT_DEPTH, MAX_LOGIT_ROWS, MAX_SLOTS, MAX_SNAPSHOTS, Priced,
};
use crate::pricer::Pricer;
use crate::verdict::{Overhead, Suggestion};
use plimsoll_kernels::{KvFormat, KvLayout, step::PAGE};
use plimsoll_models::model::State;
use serde::{Deserialize, Serialize};

/// A question: what fits this budget, of this model on this profile.
#[derive(Clone, Copy, Debug)]
pub struct Solver<'a> {
    /// Of what, on what.
    pub pricer: &'a Pricer<'a>,
    /// Against what; `None`: the adapter's limits alone.
    pub budget: Option<&'a Budget>,
    /// Counted against the budget too.
    pub overhead: Overhead,
}

/// The longest context that fits, by slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frontier {
    /// With 1, 2, 4, … slots, as long as any context fits.
    pub points: Vec<FrontierPoint>,
}

/// A point of the frontier: with one page more it does not fit, unless the context is the longest that was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontierPoint {
    /// Slots.
    pub slots: u32,
    /// The longest context of each, in whole pages or the longest asked about.
    pub context: u32,
    /// What the plan costs.
    pub total: u64,
}

/// The most slots that are looked at.
const MOST_SLOTS: u32 = 4096;
/// The largest chunk that is looked at.
const MOST_CHUNK: u32 = 65_536;

impl Solver<'_> {
    /// Bytes that a plan may take.
    fn most(&self) -> Option<u64> {
        self.budget.map_or(Some(u64::MAX), |b| b.bytes.checked_sub(self.overhead.bytes))
    }

    /// What the geometry costs, if it can be planned and fits.
    pub fn fits(&self, geometry: &Geometry) -> Option<u64> {
        self.pricer.price_within(geometry, self.most()?).map(|price| price.total())
    }

    /// The longest context that is looked at: the model's, or the one asked for if that is longer.
    pub fn longest(&self, geometry: &Geometry) -> u32 {
        self.pricer.model().context_max.max(geometry.context).clamp(1, MAX_CONTEXT)
    }

    /// The largest context up to [`Solver::longest`] that fits with the rest as given, in whole pages.
    pub fn largest_context(&self, geometry: &Geometry) -> Option<Geometry> {
        let most = self.longest(geometry).div_ceil(PAGE);
        self.largest(most, |pages| Geometry { context: pages * PAGE, ..geometry.clone() })
    }

    /// The most slots that fit, up to 4,096.
    pub fn largest_slots(&self, geometry: &Geometry) -> Option<Geometry> {
        self.largest(MOST_SLOTS, |slots| with_slots(geometry, slots))
    }

    /// The largest prefill chunk that fits, up to 65,536 and the context in whole pages: no step is longer than that.
    pub fn largest_chunk(&self, geometry: &Geometry) -> Option<Geometry> {
        let context = geometry.context.clamp(1, MAX_CONTEXT).next_multiple_of(PAGE);
        let most = context.min(MOST_CHUNK);
        self.largest(most, |prefill_chunk| Geometry { prefill_chunk, ..geometry.clone() })
    }

    /// The longest contexts that fit with 1, 2, 4, … slots, the rest as given.
    pub fn frontier(&self, geometry: &Geometry) -> Frontier {
        let mut points = Vec::new();
        let doubling = std::iter::successors(Some(1u32), |slots| slots.checked_mul(2));
        for slots in doubling.take_while(|slots| *slots <= MOST_SLOTS) {
            let Some(best) = self.largest_context(&with_slots(geometry, slots)) else { break };
            let Some(total) = self.fits(&best) else { break };
            points.push(FrontierPoint { slots, context: best.context, total });
        }
        Frontier { points }
    }

    /// The largest value in `1..=most` whose geometry fits, by halving. It fits, and the next value does not.
    fn largest(&self, most: u32, at: impl Fn(u32) -> Geometry) -> Option<Geometry> {
        let fits = |value: u32| self.fits(&at(value)).is_some();
        if fits(most) {
            return Some(at(most));
        }
        if !fits(1) {
            return None;
        }
        let (mut low, mut high) = (1, most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(at(low))
    }
}

/// The same with so many slots; as many logit rows, where there were as many.
fn with_slots(geometry: &Geometry, slots: u32) -> Geometry {
    let logit_rows =
        if geometry.logit_rows == geometry.slots { slots } else { geometry.logit_rows.max(slots) };
    Geometry { slots, logit_rows, ..geometry.clone() }
}

/// Geometries near the one asked for that fit, each with one thing given up where that is enough: context, slots,
/// chunk, KV format; else the smallest geometry with the longest context it allows.
pub fn nearest(solver: &Solver<'_>, geometry: &Geometry) -> Vec<Suggestion> {
    let model = solver.pricer.model();
    let asked = within_range(geometry);
    let mut found: Vec<Suggestion> = Vec::new();
    let mut offer = |geometry: Option<Geometry>| {
        let Some(g) = geometry else { return };
        let Some(total) = solver.fits(&g) else { return };
        let Geometry { context, slots, prefill_chunk, kv, logit_rows, draft_depth, priced } = g;
        let suggestion =
            Suggestion { context, slots, prefill_chunk, kv, logit_rows, draft_depth, priced, total };
        if !found.contains(&suggestion) {
            found.push(suggestion);
        }
    };
    offer(Some(asked.clone()));
    offer(shorter(solver, &asked));
    offer(solver.largest_slots(&asked).filter(|g| g.slots < asked.slots));
    offer(solver.largest_chunk(&asked).filter(|g| g.prefill_chunk < asked.prefill_chunk).map(round_chunk));
    // Narrower formats, or where the heads do not suit the one asked for the others, the nearest first.
    let suits = |kv| model.states.iter().filter_map(State::attention).all(|s| KvLayout::new(kv, s).is_some());
    let suited = suits(asked.kv);
    let mut others: Vec<KvFormat> =
        KvFormat::ALL.into_iter().filter(|kv| *kv > asked.kv || (!suited && *kv != asked.kv)).collect();
    if !suited {
        others.reverse();
    }
    for kv in others {
        let other = Geometry { kv, ..asked.clone() };
        offer(Some(other.clone()));
        offer(shorter(solver, &other));
    }
    if asked.draft_depth > 0 {
        offer(Some(Geometry { draft_depth: 0, ..asked.clone() }));
    }
    let smallest = Geometry { slots: 1, logit_rows: 1, prefill_chunk: asked.prefill_chunk.min(32), ..asked };
    offer(shorter(solver, &smallest));
    for kv in KvFormat::ALL {
        offer(shorter(solver, &Geometry { kv, prefill_chunk: 1, ..smallest.clone() }));
    }
    found.truncate(6);
    found
}

/// The longest context up to the one asked for.
fn shorter(solver: &Solver<'_>, geometry: &Geometry) -> Option<Geometry> {
    solver.largest(geometry.context.div_ceil(PAGE), |pages| Geometry {
        context: (pages * PAGE).min(geometry.context),
        ..geometry.clone()
    })
}

/// Chunks people would type.
fn round_chunk(geometry: Geometry) -> Geometry {
    let chunk = geometry.prefill_chunk;
    let round = if chunk >= 32 { chunk / 32 * 32 } else { chunk };
    Geometry { prefill_chunk: round, ..geometry }
}

/// Numbers out of range are brought back into it before anything near them is tried.
fn within_range(geometry: &Geometry) -> Geometry {
    Geometry {
        context: geometry.context.clamp(1, MAX_CONTEXT),
        slots: geometry.slots.clamp(1, MAX_SLOTS),
        prefill_chunk: geometry.prefill_chunk.clamp(1, MAX_CHUNK),
        kv: geometry.kv,
        logit_rows: geometry.logit_rows.clamp(1, MAX_LOGIT_ROWS),
        draft_depth: geometry.draft_depth.min(MAX_DRAFT_DEPTH),
        priced: Priced { snapshots: geometry.priced.snapshots.min(MAX_SNAPSHOTS), ..geometry.priced.clone() },
    }
}
