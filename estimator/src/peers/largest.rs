//! The largest context, slots and step that fit by another engine's rules: to the token, since their flags take any number.
//!
//! Halving finds the last of a run only where what fits once does not fail below. It fails in three places, each of which
//! has a way of its own here:
//!
//! * MLX by context: what there is at once while a cache grows hangs on what the last pushes were.
//! * MLX by steps: what the last cells of a growth are cut to depends on how the step divides the prompt.
//! * llama.cpp by slots: each slot's cells are rounded up, so that more slots may need fewer cells in all.

use super::Engine;
use super::mlx::Held;
use crate::geometry::{Geometry, MAX_CONTEXT};
use crate::report::{Ends, Fits, Stops};
use crate::solve::End;

/// The most slots and the largest chunk that are tried.
const MOST: u32 = 1 << 16;
/// Cells that MLX grows by.
const GROWTH: u32 = 256;

/// Looks for the largest.
pub(super) struct Search<'a> {
    pub engine: Engine,
    pub context_max: u32,
    /// llama.cpp: what cells are rounded up to.
    pub padding: u32,
    /// Whether a geometry fits.
    pub fits: &'a dyn Fn(&Geometry) -> bool,
    /// MLX: whether it may fit by the least that there is while it grows, which is never less of more context.
    pub least: &'a dyn Fn(&Geometry) -> bool,
    /// MLX: whether what it is in the end would fit.
    pub ends: &'a dyn Fn(&Geometry) -> bool,
    /// MLX: tokens that are kept plain before a cache is quantised.
    pub plain: u32,
}

impl Search<'_> {
    pub(super) fn all(&self, geometry: &Geometry) -> Fits {
        let [context, slots, prefill_chunk] =
            [self.context(geometry), self.slots(geometry), self.chunk(geometry)];
        let longest = self.longest(geometry);
        let end = if longest == self.of_model(geometry) { End::Model } else { End::Search };
        let most = |number: Option<u32>| number.filter(|n| *n >= MOST).map(|_| End::Search);
        let bounded_by = Ends {
            context: context.filter(|n| *n >= longest).map(|_| end),
            slots: most(slots),
            prefill_chunk: most(prefill_chunk).or(prefill_chunk
                .filter(|n| self.engine == Engine::Mlx && *n >= geometry.context)
                .map(|_| End::Context)),
        };
        Fits { context, slots, prefill_chunk, bounded_by, stopped_by: Stops::default() }
    }

    /// The context that the model was made for, as the engine counts it; 0 where it says none.
    fn of_model(&self, geometry: &Geometry) -> u32 {
        // There it is the total over all slots.
        let slots = if self.engine == Engine::LlamaCpp { geometry.slots } else { 1 };
        self.context_max.saturating_mul(slots)
    }

    /// The longest context that is tried.
    fn longest(&self, geometry: &Geometry) -> u32 {
        self.of_model(geometry).max(geometry.context).min(MAX_CONTEXT)
    }

    fn context(&self, geometry: &Geometry) -> Option<u32> {
        let fits = |context: u32| (self.fits)(&Geometry { context, ..geometry.clone() });
        let most = self.longest(geometry);
        match self.engine {
            Engine::LlamaCpp | Engine::Vllm => last(1, most, fits),
            Engine::Mlx => {
                let least = |context: u32| (self.least)(&Geometry { context, ..geometry.clone() });
                let found = last(1, most, least)?;
                // One step of all of it: a prompt that fills its cache stands alone, as the one after it is as the one
                // before it, or larger.
                let pairs = |most: u32| {
                    let pair = last(1, most, |n| fits(n) || (n < most && fits(n + 1)))?;
                    (1..=pair).rev().take(2).find(|n| fits(*n))
                };
                if geometry.prefill_chunk >= found {
                    return pairs(found);
                }
                // A step below, the most there may be is no more than the least there is here.
                let step = Held::grows_by(geometry).saturating_add(GROWTH);
                let near = found.saturating_sub(step).max(1);
                // Unless what is beside has windows, or turning plain cells into quantised ones takes more, which is the
                // same from some context on.
                let short = (1..near.min(self.plain.saturating_add(2))).rev();
                let mut tried = (near..=found).rev();
                tried
                    .find(|n| fits(*n))
                    .or_else(|| pairs(near))
                    .or_else(|| short.into_iter().find(|n| fits(*n)))
            }
        }
    }

    fn slots(&self, geometry: &Geometry) -> Option<u32> {
        let fits = |slots: u32| (self.fits)(&Geometry { slots, ..geometry.clone() });
        if self.engine != Engine::LlamaCpp {
            return last(1, MOST, fits);
        }
        // From here on every slot has the fewest cells there are.
        let even = geometry.context.div_ceil(self.padding.max(1)).clamp(1, MOST);
        last(even, MOST, fits).or_else(|| {
            // Numbers of slots of as many cells each are a run, in which fewer never need more.
            let cells = |slots: u32| {
                (geometry.context.next_multiple_of(self.padding.max(1)) / slots).div_ceil(self.padding.max(1))
            };
            let mut end = even - 1;
            while end > 0 {
                let (mut first, mut before) = (end, 0);
                while first - before > 1 {
                    let middle = before + (first - before) / 2;
                    if cells(middle) == cells(end) { first = middle } else { before = middle }
                }
                if let Some(found) = last(first, end, fits) {
                    return Some(found);
                }
                end = first - 1;
            }
            None
        })
    }

    fn chunk(&self, geometry: &Geometry) -> Option<u32> {
        let fits = |prefill_chunk: u32| (self.fits)(&Geometry { prefill_chunk, ..geometry.clone() });
        if self.engine != Engine::Mlx || geometry.context <= GROWTH {
            return last(1, MOST, fits);
        }
        if fits(MOST) {
            return Some(MOST);
        }
        // A cache without waste holds the context's whole multiples of 256 at least: where those do not fit nothing does,
        // and they hold with steps of whole multiples, of which fewer are never more.
        let whole = Geometry { context: geometry.context / GROWTH * GROWTH, ..geometry.clone() };
        let least =
            |n: u32| (self.ends)(&Geometry { prefill_chunk: n.saturating_mul(GROWTH), ..whole.clone() });
        let most = last(1, MOST / GROWTH, least).unwrap_or(0).saturating_add(1).saturating_mul(GROWTH);
        // A step of the context and every longer one are alike.
        (1..=most.min(MOST).min(geometry.context)).rev().find(|n| fits(*n))
    }
}

/// The last of `first..=most` that holds, where all before it do; `None` where the first does not.
fn last(first: u32, most: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    if first > most || !holds(first) {
        return None;
    }
    if holds(most) {
        return Some(most);
    }
    let (mut low, mut high) = (first, most);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle }
    }
    Some(low)
}
