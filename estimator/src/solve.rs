//! The inverse solve: what fits a budget. Every answer is a plan that was made and found to fit.

use crate::budget::Budget;
use crate::geometry::{
    Geometry, Images, MAX_CHUNK, MAX_CONTEXT, MAX_DRAFT_DEPTH, MAX_LOGIT_ROWS, MAX_SLOTS, MAX_SNAPSHOTS,
    Priced,
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

    /// The largest value in `1..=most` whose geometry fits: it does, and the next value does not.
    ///
    /// Most of what grows is in the pools, and those are placed in no time. So two of three guesses are where the pools,
    /// with what the last price had beside them, fill the budget; the others halve what is left.
    fn largest(&self, most: u32, at: impl Fn(u32) -> Geometry) -> Option<Geometry> {
        let budget = self.most()?;
        let pools = |value: u32| self.pricer.pools(&at(value)).unwrap_or(u64::MAX);
        if self.fits(&at(most)).is_some() {
            return Some(at(most));
        }
        let mut beside = self.fits(&at(1))?.saturating_sub(pools(1));
        let grows = self.budget.is_some() && pools(1) < pools(most);
        let (mut low, mut high) = (1, most);
        for turn in 0.. {
            if high - low <= 1 {
                break;
            }
            let half = |low: u32, high: u32| low + (high - low) / 2;
            let total = if grows && turn % 3 < 2 {
                let under = fullest(low, high, budget.saturating_sub(beside), pools);
                let guess = under.max(low + 1);
                let total = self.pricer.price(&at(guess)).ok().map(|price| price.total());
                if let Some(total) = total {
                    beside = total.saturating_sub(pools(guess));
                }
                (guess, total.filter(|total| *total <= budget))
            } else {
                let guess = half(low, high);
                (guess, self.fits(&at(guess)))
            };
            match total {
                (guess, Some(_)) => low = guess,
                (guess, None) => high = guess,
            }
        }
        Some(at(low))
    }
}

/// The largest value in `low..high` whose `bytes` are within `most`, or `low`. They grow nearly as a line, so that two of
/// three guesses are on the line between what is known.
fn fullest(low: u32, high: u32, most: u64, bytes: impl Fn(u32) -> u64) -> u32 {
    let (mut under, mut over) = ((low, bytes(low)), (high, bytes(high)));
    for turn in 0.. {
        let span = over.0 - under.0;
        if span <= 1 {
            break;
        }
        let step = match over.1.checked_sub(under.1) {
            Some(rise) if turn % 3 < 2 && rise > 0 => {
                let room = u128::from(most.saturating_sub(under.1));
                u32::try_from(room * u128::from(span) / u128::from(rise)).unwrap_or(span)
            }
            _ => span / 2,
        };
        let guess = under.0 + step.clamp(1, span - 1);
        let there = (guess, bytes(guess));
        if there.1 > most { over = there } else { under = there }
    }
    under.0
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
    if asked.priced.images.count > 0 {
        let priced = Priced { images: Images::default(), ..asked.priced.clone() };
        offer(Some(Geometry { priced, ..asked.clone() }));
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
