//! What of the pool is in use, in bytes.

use super::Pool;
use crate::telemetry::Usage;
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{KvPlan, View};

/// What things cost, and the most that was in use.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// A page of each kind: of every layer of it.
    page: Vec<u64>,
    /// The recurrent states of a slot, with every copy.
    slot: u64,
    /// All snapshots.
    snapshots: u64,
    peak: u64,
}

impl Facts {
    /// Of a plan's pages alone.
    pub fn of(plan: &KvPlan) -> Self {
        let page = |kind| {
            let layers = plan.layers.iter().filter(|layer| layer.kind as usize == kind);
            layers.map(|layer| layer.page_bytes).fold(0, u64::saturating_add)
        };
        Self { page: (0..plan.kinds.len()).map(page).collect(), ..Self::default() }
    }

    /// With its recurrent states and snapshots.
    pub fn add_plan(&mut self, plan: &Plan) {
        let sum =
            |views: &mut dyn Iterator<Item = View>| views.map(|view| view.bytes).fold(0, u64::saturating_add);
        let segments = plan.recurrent.layers.iter().flat_map(|layer| &layer.segments);
        let states = sum(&mut segments.flat_map(|segment| [segment.states, segment.tails]));
        self.slot = states / u64::from(plan.geometry.slots.max(1));
        self.snapshots = sum(&mut plan.snapshots.iter().flatten().copied());
    }
}

impl Pool {
    /// Bytes of the pages and states that slots hold now. A page that several hold is one.
    pub fn active_bytes(&self) -> u64 {
        let pages = self.kinds.iter().zip(self.free_pages()).zip(&self.usage.page);
        let held = pages.map(|((kind, free), &bytes)| {
            u64::from(kind.facts.pages.saturating_sub(free)).saturating_mul(bytes)
        });
        let seats = (self.slots.len() - self.free_slots()) as u64;
        held.fold(seats.saturating_mul(self.usage.slot), u64::saturating_add)
    }

    /// What is in use, kept and there in all.
    pub fn usage(&self) -> Usage {
        let facts = &self.usage;
        let pages = self.kinds.iter().zip(&facts.page);
        let pages = pages.map(|(kind, &bytes)| u64::from(kind.facts.pages).saturating_mul(bytes));
        let states = (self.slots.len() as u64).saturating_mul(facts.slot);
        Usage {
            active: self.active_bytes(),
            reserved: pages.fold(states.saturating_add(facts.snapshots), u64::saturating_add),
            retained: self.retained_bytes(),
            peak_active: facts.peak,
        }
    }

    /// Remembers what is in use if it has never been more.
    pub(super) fn note_peak(&mut self) {
        self.usage.peak = self.usage.peak.max(self.active_bytes());
    }
}
