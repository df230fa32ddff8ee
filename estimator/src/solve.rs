//! The inverse solve: what fits a budget. Every answer is a plan that was made and found to fit.

use crate::budget::Budget;
use crate::geometry::{
    Geometry, Images, MAX_CHUNK, MAX_CONTEXT, MAX_DRAFT_DEPTH, MAX_LOGIT_ROWS, MAX_SLOTS, MAX_SNAPSHOTS,
    Priced,
};
use crate::plan::Plan;
use crate::verdict::{Overhead, Suggestion};
use plimsoll_kernels::{KvFormat, KvLayout, Profile, step::PAGE};
use plimsoll_models::Model;
use plimsoll_models::model::State;

/// A question: what fits this budget on this adapter.
#[derive(Clone, Copy)]
pub struct Solver<'a> {
    /// Of what.
    pub model: &'a Model,
    /// On what.
    pub profile: &'a Profile,
    /// Against what; `None`: the adapter's limits alone.
    pub budget: Option<&'a Budget>,
    /// Counted against the budget too.
    pub overhead: Overhead,
}

impl Solver<'_> {
    /// What the geometry costs, if it can be planned and fits.
    pub fn fits(&self, geometry: &Geometry) -> Option<u64> {
        let total = Plan::new(self.model, geometry, self.profile).ok()?.total();
        let bytes = total.saturating_add(self.overhead.bytes);
        self.budget.is_none_or(|b| bytes <= b.bytes).then_some(total)
    }

    /// The largest context up to the model's (or the one asked for, if that is longer) that fits with the rest as
    /// given, in whole pages.
    pub fn largest_context(&self, geometry: &Geometry) -> Option<Geometry> {
        let most = self.model.context_max.max(geometry.context).min(MAX_CONTEXT).div_ceil(PAGE);
        self.largest(most, |pages| Geometry { context: pages * PAGE, ..geometry.clone() })
    }

    /// The most slots that fit, up to 4,096.
    pub fn largest_slots(&self, geometry: &Geometry) -> Option<Geometry> {
        let rows_follow = geometry.logit_rows == geometry.slots;
        self.largest(4096, |slots| Geometry {
            slots,
            logit_rows: if rows_follow { slots } else { geometry.logit_rows },
            ..geometry.clone()
        })
    }

    /// The largest prefill chunk that fits, up to 65,536.
    pub fn largest_chunk(&self, geometry: &Geometry) -> Option<Geometry> {
        self.largest(65_536, |prefill_chunk| Geometry { prefill_chunk, ..geometry.clone() })
    }

    /// The largest value in `1..=most` whose geometry fits, by doubling and halving: costs rise with each of them.
    fn largest(&self, most: u32, at: impl Fn(u32) -> Geometry) -> Option<Geometry> {
        let fits = |value: u32| self.fits(&at(value)).is_some();
        if !fits(1) {
            return None;
        }
        if fits(most) {
            return Some(at(most));
        }
        let (mut low, mut high) = (1, most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(at(low))
    }
}

/// Geometries near the one asked for that fit, each with one thing given up where that is enough: context, slots,
/// chunk, KV format; else the smallest geometry with the longest context it allows.
pub fn nearest(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    budget: Option<&Budget>,
    overhead: Overhead,
) -> Vec<Suggestion> {
    let solver = Solver { model, profile, budget, overhead };
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
    offer(shorter(&solver, &asked));
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
        offer(shorter(&solver, &other));
    }
    if asked.draft_depth > 0 {
        offer(Some(Geometry { draft_depth: 0, ..asked.clone() }));
    }
    if asked.priced.images.count > 0 {
        let priced = Priced { images: Images::default(), ..asked.priced.clone() };
        offer(Some(Geometry { priced, ..asked.clone() }));
    }
    let smallest = Geometry { slots: 1, logit_rows: 1, prefill_chunk: asked.prefill_chunk.min(32), ..asked };
    offer(shorter(&solver, &smallest));
    for kv in KvFormat::ALL {
        offer(shorter(&solver, &Geometry { kv, prefill_chunk: 1, ..smallest.clone() }));
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
