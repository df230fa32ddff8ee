//! What stands around a geometry: other contexts, and what single changes save.

use super::{Lever, Rung};
use crate::geometry::{Geometry, KvPair, Priced};
use crate::pricer::Pricer;
use crate::solve::Solver;
use plimsoll_kernels::KvFormat;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Does all of these, on two threads if there can be another: each takes the first that nobody has taken.
pub(super) fn shared(jobs: &[&(dyn Fn() + Sync)]) {
    let taken = AtomicUsize::new(0);
    let work = || {
        while let Some(job) = jobs.get(taken.fetch_add(1, Ordering::Relaxed)) {
            job();
        }
    };
    std::thread::scope(|scope| {
        // A panic there goes on here; without a second thread all of it is done here.
        let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        work();
    });
}

/// What a job makes.
pub(super) struct Made<T>(Mutex<Option<T>>);

impl<T> Made<T> {
    pub fn nothing() -> Self {
        Self(Mutex::new(None))
    }

    pub fn set(&self, made: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    }

    /// What was made last, if the job was done.
    pub fn take(self) -> Option<T> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Contexts from 1,024 by doubling to the model's, and the one asked for.
pub(crate) fn contexts(context_max: u32, asked: u32) -> Vec<u32> {
    let top = context_max.max(asked);
    let doubling = std::iter::successors(Some(1024u32), |c| c.checked_mul(2)).take_while(|c| *c < top);
    let mut contexts: Vec<u32> = doubling.chain([asked, top]).collect();
    contexts.sort_unstable();
    contexts.dedup();
    contexts
}

/// The price and the verdict at each of those.
pub(super) fn ladder(solver: &Solver<'_>, geometry: &Geometry) -> Vec<Rung> {
    let contexts = contexts(solver.pricer.model().context_max, geometry.context);
    let rung = |context: u32| {
        let geometry = Geometry { context, ..geometry.clone() };
        let price = solver.pricer.price(&geometry).ok();
        let verdict = match price.as_ref().map(|price| solver.has_room(&geometry, price)) {
            None | Some(Some(false)) => "refused",
            Some(Some(true)) => "fits",
            Some(None) => "no_budget",
        };
        Rung { context, total: price.map(|p| p.total()), verdict: verdict.into() }
    };
    contexts.into_iter().map(rung).collect()
}

/// What single changes save, most first.
pub(super) fn levers(pricer: &Pricer<'_>, g: &Geometry, total: u64) -> Vec<Lever> {
    let mut changes: Vec<(String, Geometry)> = Vec::new();
    if g.slots > 1 {
        let logit_rows = if g.logit_rows == g.slots { 1 } else { g.logit_rows };
        changes.push((format!("slots {} -> 1", g.slots), Geometry { slots: 1, logit_rows, ..g.clone() }));
    }
    if g.context >= 64 {
        let context = g.context / 2;
        changes.push((format!("context {} -> {context}", g.context), Geometry { context, ..g.clone() }));
    }
    if g.prefill_chunk > 128 {
        changes.push((
            format!("prefill_chunk {} -> 128", g.prefill_chunk),
            Geometry { prefill_chunk: 128, ..g.clone() },
        ));
    }
    let asked = g.kv_pair();
    for kv in KvFormat::ALL.map(KvPair::from) {
        changes.push((format!("kv {asked} -> {kv}"), g.clone().with_kv(kv)));
    }
    if g.priced.snapshots > 0 {
        let priced = Priced { snapshots: 0, ..g.priced.clone() };
        changes.push((format!("snapshots {} -> 0", g.priced.snapshots), Geometry { priced, ..g.clone() }));
    }
    if g.draft_depth > 0 {
        changes
            .push((format!("draft_depth {} -> 0", g.draft_depth), Geometry { draft_depth: 0, ..g.clone() }));
    }
    if g.logit_rows > g.slots {
        changes.push((
            format!("logit_rows {} -> {}", g.logit_rows, g.slots),
            Geometry { logit_rows: g.slots, ..g.clone() },
        ));
    }
    let mut levers: Vec<Lever> = changes
        .into_iter()
        .filter_map(|(change, geometry)| {
            let saves = total.checked_sub(pricer.price(&geometry).ok()?.total())?;
            (saves > 0).then_some(Lever { change, saves })
        })
        .collect();
    levers.sort_by_key(|l| std::cmp::Reverse(l.saves));
    levers
}
