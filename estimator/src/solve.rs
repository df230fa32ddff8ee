//! The inverse solve: what fits a budget. Every answer is a plan that was made and found to fit.

use crate::budget::Budget;
use crate::company::Company;
use crate::error::grouped;
use crate::geometry::{Geometry, MAX_CONTEXT};
use crate::pricer::{Price, Pricer};
use crate::report::{Ends, Fits, Stops};
use crate::verdict::{Overhead, peak};
use plimsoll_kernels::step::PAGE;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

mod frontier;
mod nearest;

pub(crate) use frontier::Search;
pub use nearest::nearest;

/// A question: what fits this budget, of this model on this profile.
#[derive(Clone, Copy, Debug)]
pub struct Solver<'a> {
    /// Of what, on what.
    pub pricer: &'a Pricer<'a>,
    /// Against what; `None`: the adapter's limits alone.
    pub budget: Option<&'a Budget>,
    /// Counted against the budget too.
    pub overhead: Overhead,
    /// What else is on the device, as a geometry changes it. The budget is less by it as it is with the geometry that was
    /// asked for.
    pub company: Option<&'a Company<'a>>,
}

/// The longest context that fits, by slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frontier {
    /// With 1, 2, 4, … slots, as long as any context fits.
    pub points: Vec<FrontierPoint>,
    /// Where that is not what ended it.
    #[serde(default)]
    pub bounded_by: Option<End>,
    /// The limit of the adapter that twice the slots of the last point break with any context, in a sentence; `None` where
    /// it is memory.
    #[serde(default)]
    pub stopped_by: Option<String>,
}

/// What ended a search before anything did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Larger ones are not tried: it is the least of what the largest may be.
    Search,
    /// The model was made for no longer context.
    Model,
    /// No step is longer than its context.
    Context,
}

/// A context that is the longest, or, with a mark, the longest that was tried.
pub(crate) fn longest(context: u32, end: Option<End>) -> String {
    format!("{}{}", grouped(context.into()), if end.is_some() { "+" } else { "" })
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
    /// Where no longer context was tried.
    #[serde(default)]
    pub bounded_by: Option<End>,
}

/// The largest of one number of a geometry that fits with the rest as asked, and why none larger.
#[derive(Debug, Default)]
pub(crate) struct Extent {
    value: Option<u32>,
    end: Option<End>,
    stop: Option<String>,
}

impl Fits {
    pub(crate) fn of(context: Extent, slots: Extent, prefill_chunk: Extent) -> Self {
        Fits {
            context: context.value,
            slots: slots.value,
            prefill_chunk: prefill_chunk.value,
            bounded_by: Ends { context: context.end, slots: slots.end, prefill_chunk: prefill_chunk.end },
            stopped_by: Stops { context: context.stop, slots: slots.stop, prefill_chunk: prefill_chunk.stop },
        }
    }
}

/// The most slots that are looked at.
const MOST_SLOTS: u32 = 4096;
/// The largest chunk that is looked at.
const MOST_CHUNK: u32 = 65_536;

impl Solver<'_> {
    /// Bytes that a plan and what else is on the device may take.
    fn most(&self) -> Option<u64> {
        let bytes = self.company.and_then(|c| c.ceiling).or(self.budget.map(|b| b.bytes));
        bytes.map_or(Some(u64::MAX), |bytes| bytes.checked_sub(self.overhead.bytes))
    }

    /// What else is on the device with this geometry; `None` where it cannot be with it.
    fn taken(&self, geometry: &Geometry) -> Option<u64> {
        self.company.map_or(Some(0), |company| company.taken(geometry))
    }

    /// Whether there is room for a price beside so many bytes of others, also while it is loaded.
    fn holds(&self, price: &Price, taken: u64) -> bool {
        self.most().is_some_and(|most| price.total().saturating_add(taken) <= most)
            && match self.company {
                Some(company) => company.loads(price, taken),
                None => self
                    .budget
                    .and_then(Budget::load_room)
                    .is_none_or(|room| peak(price, self.overhead) <= room),
            }
    }

    /// What the geometry costs, if it can be planned and fits.
    pub fn fits(&self, geometry: &Geometry) -> Option<u64> {
        let taken = self.taken(geometry)?;
        let price = self.pricer.price_within(geometry, self.most()?.checked_sub(taken)?)?;
        self.holds(&price, taken).then(|| price.total())
    }

    /// The longest context that is looked at: the model's, or the one asked for if that is longer.
    pub fn longest(&self, geometry: &Geometry) -> u32 {
        self.pricer.model().context_max.max(geometry.context).clamp(1, MAX_CONTEXT)
    }

    /// The largest context up to [`Solver::longest`] that fits with the rest as given, in whole pages.
    pub fn largest_context(&self, geometry: &Geometry) -> Option<Geometry> {
        self.longest_context(geometry, Beside::at(self, geometry))
    }

    /// The most slots that fit, up to 4,096.
    pub fn largest_slots(&self, geometry: &Geometry) -> Option<Geometry> {
        // A step has a token and a row of logits for every slot.
        let (tokens, rows) = self.pricer.most_rows();
        let most = MOST_SLOTS.min(tokens).min(rows);
        let (_, first) = crate::images::needs(self.pricer.model(), geometry);
        self.largest(first.max(1)..=most, Beside::at(self, geometry), |slots| with_slots(geometry, slots))
    }

    /// The largest prefill chunk that fits, up to 65,536 and the context in whole pages: no step is longer than that.
    pub fn largest_chunk(&self, geometry: &Geometry) -> Option<Geometry> {
        let most = longest_step(geometry).min(MOST_CHUNK).min(self.pricer.most_rows().0);
        // The arena grows with the tokens of a step.
        let beside = Beside::at(self, geometry).map(|b| b.growing(geometry.prefill_chunk));
        self.largest(1..=most, beside, |prefill_chunk| Geometry { prefill_chunk, ..geometry.clone() })
    }

    /// [`Solver::largest_context`], and what ended the search.
    pub(crate) fn context_found(&self, geometry: &Geometry) -> Extent {
        let context = self.largest_context(geometry).map(|g| g.context);
        let end = context.and_then(|context| self.context_end(geometry, context));
        self.found(context, end, |n| Geometry {
            context: (n.div_ceil(PAGE) + 1).saturating_mul(PAGE),
            ..geometry.clone()
        })
    }

    /// [`Solver::largest_slots`], and what ended the search.
    pub(crate) fn slots_found(&self, geometry: &Geometry) -> Extent {
        let slots = self.largest_slots(geometry).map(|g| g.slots);
        let end = slots.filter(|slots| *slots >= MOST_SLOTS).map(|_| End::Search);
        self.found(slots, end, |n| with_slots(geometry, n + 1))
    }

    /// [`Solver::largest_chunk`], and what ended the search.
    pub(crate) fn chunk_found(&self, geometry: &Geometry) -> Extent {
        let chunk = self.largest_chunk(geometry).map(|g| g.prefill_chunk);
        let end = chunk.and_then(|chunk| match chunk {
            _ if chunk >= longest_step(geometry) => Some(End::Context),
            _ => (chunk >= MOST_CHUNK).then_some(End::Search),
        });
        self.found(chunk, end, |n| Geometry { prefill_chunk: n + 1, ..geometry.clone() })
    }

    fn found(&self, largest: Option<u32>, end: Option<End>, more: impl Fn(u32) -> Geometry) -> Extent {
        // A step past what was found and not past what was tried.
        let stop = largest.filter(|_| end.is_none()).and_then(|n| self.limit(&more(n)));
        Extent { value: largest, end, stop }
    }

    /// What a geometry breaks before any memory, in a sentence.
    pub(crate) fn limit(&self, geometry: &Geometry) -> Option<String> {
        let most = self.most()?.checked_sub(self.taken(geometry)?)?;
        self.pricer.refusal_within(geometry, most).map(|error| error.to_string())
    }

    /// What ended the search for the longest context at this one, where a page more was not tried.
    pub(crate) fn context_end(&self, geometry: &Geometry, context: u32) -> Option<End> {
        let longest = self.longest(geometry);
        let end = if longest == self.pricer.model().context_max { End::Model } else { End::Search };
        (context >= longest).then_some(end)
    }

    /// The longest contexts that fit with 1, 2, 4, … slots, the rest as given.
    pub fn frontier(&self, geometry: &Geometry) -> Frontier {
        let search = Search::new(self, geometry);
        search.join();
        search.finish()
    }

    /// The least that a geometry takes with what else is on the device.
    fn least(&self, geometry: &Geometry) -> Option<u64> {
        Some(self.pricer.least(geometry)?.saturating_add(self.taken(geometry)?))
    }

    /// Whether there is room for a price of this geometry; `None` where nothing limits it.
    pub(crate) fn has_room(&self, geometry: &Geometry, price: &Price) -> Option<bool> {
        let Some(taken) = self.taken(geometry) else { return Some(false) };
        self.budget.map(|_| self.holds(price, taken))
    }

    fn longest_context(&self, geometry: &Geometry, beside: Option<Beside>) -> Option<Geometry> {
        let most = self.longest(geometry).div_ceil(PAGE);
        self.largest(self.first_page(geometry)..=most, beside, |pages| Geometry {
            context: pages * PAGE,
            ..geometry.clone()
        })
    }

    /// The pages of the shortest context that is looked at: what images need, where there are any.
    fn first_page(&self, geometry: &Geometry) -> u32 {
        crate::images::needs(self.pricer.model(), geometry).0.div_ceil(PAGE).max(1)
    }

    /// The largest of the values, from 1 or more on, whose geometry fits: it does, and the next value does not.
    ///
    /// Most of what grows is in the pools and the tables of a step, which are known without a price. So three of four
    /// guesses are where those, with what the last prices had beside them, fill the budget; the others halve what is
    /// left.
    fn largest(
        &self,
        values: RangeInclusive<u32>,
        beside: Option<Beside>,
        at: impl Fn(u32) -> Geometry,
    ) -> Option<Geometry> {
        let (first, most) = values.into_inner();
        // What is refused without a price is past any budget.
        let budget = self.most()?.min(u64::MAX - 1);
        let least = |value: u32| self.least(&at(value)).unwrap_or(u64::MAX);
        if most < first || least(first) > budget {
            return None;
        }
        let most = allowed(first, most, least);
        if self.fits(&at(most)).is_some() {
            return Some(at(most));
        }
        let (mut low, mut high) = (first - 1, most);
        let mut beside = match beside {
            Some(beside) => beside,
            None => {
                let total = self.fits(&at(first))?.saturating_add(self.taken(&at(first))?);
                low = first;
                Beside::of(total.saturating_sub(least(first)))
            }
        };
        for turn in 0.. {
            if high - low <= 1 {
                break;
            }
            // Without a budget nothing stands on a line.
            let guess = if self.budget.is_some() && turn % 4 < 3 {
                let bytes = |value: u32| least(value).saturating_add(beside.of_value(value));
                fullest(low.max(first), high, budget, bytes).max(low + 1)
            } else {
                low + (high - low) / 2
            };
            let there = at(guess);
            // The last question has a yes or a no, and a no seldom takes a price.
            if guess == low + 1 && self.budget.is_some() {
                if self.fits(&there).is_some() {
                    low = guess
                } else {
                    high = guess
                }
                continue;
            }
            let price = self.taken(&there).zip(self.pricer.price(&there).ok());
            if let Some((taken, price)) = &price {
                beside.know(guess, price.total().saturating_add(*taken).saturating_sub(least(guess)));
            }
            if price.is_some_and(|(taken, price)| self.holds(&price, taken)) {
                low = guess
            } else {
                high = guess
            }
        }
        (low >= first).then(|| at(low))
    }
}

/// The longest step that can be full.
fn longest_step(geometry: &Geometry) -> u32 {
    geometry.context.clamp(1, MAX_CONTEXT).next_multiple_of(PAGE)
}

/// The largest value in `first..=most` that is not refused without a price; the first is not.
fn allowed(first: u32, most: u32, least: impl Fn(u32) -> u64) -> u32 {
    if least(most) < u64::MAX {
        return most;
    }
    let (mut low, mut high) = (first, most);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if least(middle) < u64::MAX { low = middle } else { high = middle }
    }
    low
}

/// What prices have beside the [`Pricer::least`] of their geometries: the arena and the parameters. Two points of a line.
#[derive(Clone, Copy, Debug)]
struct Beside {
    points: [(u32, u64); 2],
}

impl Beside {
    /// The same at every value.
    fn of(bytes: u64) -> Self {
        Self { points: [(0, bytes); 2] }
    }

    /// That of a geometry, if its price is near the budget: one far past it may take long to make.
    fn at(solver: &Solver<'_>, geometry: &Geometry) -> Option<Self> {
        let least = solver.least(geometry)?;
        if least > solver.most()?.saturating_mul(2) {
            return None;
        }
        let total = solver.pricer.price(geometry).ok()?.total().saturating_add(solver.taken(geometry)?);
        Some(Self::of(total.saturating_sub(least)))
    }

    /// In proportion to a value at which it is this.
    fn growing(self, value: u32) -> Self {
        Self { points: [(0, 0), (value, self.points[1].1)] }
    }

    /// Where it would be with twice the slots, on a line with what it was with half of them.
    fn twice_on(self, half: Option<Self>) -> Self {
        let here = self.points[1].1;
        let rise = half.map_or(0, |half| here.saturating_sub(half.points[1].1));
        Self::of(here.saturating_add(rise.saturating_mul(2)))
    }

    /// Takes what a price had. The line goes through the last two.
    fn know(&mut self, value: u32, bytes: u64) {
        let [_, last] = self.points;
        // What stands at 0 was a guess.
        let before = if last.0 == 0 || last.0 == value { (value, bytes) } else { last };
        self.points = [before, (value, bytes)];
    }

    /// The bytes at a value.
    fn of_value(&self, value: u32) -> u64 {
        let [(from, low), (to, high)] = self.points;
        let (run, rise) = (i128::from(to) - i128::from(from), i128::from(high) - i128::from(low));
        if run == 0 {
            return high;
        }
        let bytes = i128::from(high) + rise * (i128::from(value) - i128::from(to)) / run;
        u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)
    }
}

/// The largest value in `low..high` whose `bytes` are within `most`, or `low`. They grow nearly as a line, so that two of
/// three guesses are on the line between what is known.
fn fullest(low: u32, high: u32, most: u64, bytes: impl Fn(u32) -> u64) -> u32 {
    let (mut under, mut over) = ((low, bytes(low)), (high, bytes(high)));
    for turn in 0.. {
        let span = over.0.saturating_sub(under.0);
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
pub(crate) fn with_slots(geometry: &Geometry, slots: u32) -> Geometry {
    let logit_rows =
        if geometry.logit_rows == geometry.slots { slots } else { geometry.logit_rows.max(slots) };
    Geometry { slots, logit_rows, ..geometry.clone() }
}
