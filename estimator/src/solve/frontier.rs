//! The search for the frontier, in which threads can join.

use super::{Beside, End, Frontier, FrontierPoint, MOST_SLOTS, Solver, with_slots};
use crate::geometry::Geometry;
use plimsoll_kernels::step::PAGE;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// More doublings than are looked at.
const ALL: u32 = u32::BITS;

/// The longest contexts that fit with 1, 2, 4, … slots, the rest as given. Whoever joins takes the fewest slots that
/// nobody has taken. What is found does not depend on who finds it, only how fast.
#[derive(Debug)]
pub(crate) struct Search<'a> {
    solver: &'a Solver<'a>,
    geometry: &'a Geometry,
    /// Doublings of one slot that are taken.
    taken: AtomicU32,
    /// By doublings.
    found: Mutex<BTreeMap<u32, Found>>,
}

/// A point, and what its price has beside what is known without.
type Found = (FrontierPoint, Option<Beside>);

impl<'a> Search<'a> {
    pub fn new(solver: &'a Solver<'a>, geometry: &'a Geometry) -> Self {
        Self { solver, geometry, taken: AtomicU32::new(0), found: Mutex::default() }
    }

    /// Searches until all points are taken.
    pub fn join(&self) {
        loop {
            let doublings = self.taken.fetch_add(1, Ordering::Relaxed);
            let Some(slots) = 1u32.checked_shl(doublings).filter(|slots| *slots <= MOST_SLOTS) else { break };
            match self.point(doublings, slots) {
                Some(point) => self.found(|found| found.insert(doublings, point)),
                // With more slots nothing fits either.
                None => {
                    self.taken.fetch_max(ALL, Ordering::Relaxed);
                    break;
                }
            };
        }
    }

    /// The points that were found, up to the first number of slots with which nothing fits.
    pub fn finish(self) -> Frontier {
        let found = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let in_turn = found.into_iter().zip(0u32..).take_while(|((doublings, _), turn)| doublings == turn);
        let points: Vec<FrontierPoint> = in_turn.map(|((_, (point, _)), _)| point).collect();
        let bounded_by = points.last().filter(|last| last.slots >= MOST_SLOTS).map(|_| End::Search);
        // With the shortest context that the last has: what twice the slots break then is not its length.
        let next = points.last().filter(|_| bounded_by.is_none()).and_then(|last| last.slots.checked_mul(2));
        let stopped_by = next.and_then(|slots| {
            let twice = with_slots(self.geometry, slots);
            let context = self.solver.first_page(&twice).saturating_mul(PAGE);
            self.solver.limit(&Geometry { context, ..twice })
        });
        Frontier { points, bounded_by, stopped_by }
    }

    fn point(&self, doublings: u32, slots: u32) -> Option<Found> {
        let geometry = with_slots(self.geometry, slots);
        let beside = self.guess(doublings, &geometry);
        let best = self.solver.longest_context(&geometry, beside)?;
        let total = self.solver.fits(&best)?;
        let bounded_by = self.solver.context_end(&geometry, best.context);
        let point = FrontierPoint { slots, context: best.context, total, bounded_by };
        Some((point, Beside::at(self.solver, &best)))
    }

    /// What a price would have beside what is known without: where the points with fewer slots lead, or as it is at the
    /// context asked for.
    fn guess(&self, doublings: u32, geometry: &Geometry) -> Option<Beside> {
        let last = self.found(|found| {
            let (at, (_, here)) = found.range(..doublings).next_back()?;
            let half = at.checked_sub(1).and_then(|half| found.get(&half)).and_then(|(_, half)| *half);
            Some((*at, *here, half))
        });
        let Some((at, here, half)) = last else { return Beside::at(self.solver, geometry) };
        let (mut here, mut half) = (here?, half);
        for _ in at..doublings {
            (here, half) = (here.twice_on(half), Some(here));
        }
        Some(here)
    }

    fn found<T>(&self, with: impl FnOnce(&mut BTreeMap<u32, Found>) -> T) -> T {
        with(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
