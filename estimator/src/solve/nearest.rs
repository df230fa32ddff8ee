//! What is offered beside a refusal: geometries near the one asked for that fit.

use super::{Beside, Solver};
use crate::geometry::{
    Geometry, Images, KvPair, MAX_CHUNK, MAX_CONTEXT, MAX_DRAFT_DEPTH, MAX_LOGIT_ROWS, MAX_SLOTS,
    MAX_SNAPSHOTS, Priced,
};
use crate::images::largest_count;
use crate::verdict::Suggestion;
use plimsoll_kernels::{KvFormat, step::PAGE};

/// Geometries near the one asked for that fit, each with one thing given up where that is enough: snapshots, context,
/// slots, chunk, and last the formats of keys and values; else the smallest geometry with the longest context it allows.
pub fn nearest(solver: &Solver<'_>, geometry: &Geometry) -> Vec<Suggestion> {
    let model = solver.pricer.model();
    let asked = within_range(geometry);
    let seeing = asked.priced.images.count > 0;
    let mut found: Vec<Suggestion> = Vec::new();
    let mut offer = |geometry: Option<Geometry>| {
        let Some(g) = geometry else { return };
        let Some(total) = solver.fits(&g) else { return };
        let mut suggestion = Suggestion::new(g, total);
        // None are a change where some were asked for.
        suggestion.images = seeing.then_some(suggestion.priced.images.count);
        suggestion.snapshots = (asked.priced.snapshots > 0).then_some(suggestion.priced.snapshots);
        if !found.contains(&suggestion) {
            found.push(suggestion);
        }
    };
    offer(Some(asked.clone()));
    // What is only kept for later is given up first: no answer changes with it.
    let with = |snapshots| Geometry { priced: Priced { snapshots, ..asked.priced.clone() }, ..asked.clone() };
    if asked.priced.snapshots > 0 {
        let fewer = solver.largest(1..=asked.priced.snapshots, Beside::at(solver, &asked), with);
        offer(Some(fewer.unwrap_or_else(|| with(0))));
    }
    offer(shorter(solver, &asked));
    offer(solver.largest_slots(&asked).filter(|g| g.slots < asked.slots));
    offer(solver.largest_chunk(&asked).filter(|g| g.prefill_chunk < asked.prefill_chunk).map(round_chunk));
    // The kernels' narrower formats, or where the heads do not suit those asked for all of them, the nearest first.
    let pair = asked.kv_pair();
    let suited = crate::kv::suits(solver.pricer.model(), &asked)
        && solver.company.is_none_or(|company| company.suits(&asked));
    let mut others: Vec<KvPair> =
        KvFormat::ALL.map(KvPair::from).into_iter().filter(|kv| *kv != pair).collect();
    if suited {
        others.retain(|kv| kv.width() < pair.width());
    } else {
        others.reverse();
    }
    for kv in &others {
        let other = asked.clone().with_kv(*kv);
        offer(Some(other.clone()));
        offer(shorter(solver, &other));
    }
    if asked.draft_depth > 0 {
        offer(Some(Geometry { draft_depth: 0, ..asked.clone() }));
    }
    if let Images { count: 1.., .. } = asked.priced.images {
        // A context that has room for them, or fewer of them, or none.
        let (context, _) = crate::images::needs(model, &asked);
        let roomy = context.checked_next_multiple_of(PAGE).filter(|context| *context > asked.context);
        offer(roomy.filter(|c| *c <= MAX_CONTEXT).map(|context| Geometry { context, ..asked.clone() }));
        let fewer = model.extras.vision.as_ref().map(|tower| largest_count(solver, tower, &asked));
        for count in [fewer.unwrap_or(0).min(asked.priced.images.count - 1), 0] {
            let images = if count == 0 { Images::default() } else { Images { count, ..asked.priced.images } };
            offer(Some(Geometry { priced: Priced { images, ..asked.priced.clone() }, ..asked.clone() }));
        }
    }
    let smallest =
        Geometry { slots: 1, logit_rows: 1, prefill_chunk: asked.prefill_chunk.min(32), ..with(0) };
    offer(shorter(solver, &smallest));
    for kv in std::iter::once(pair).chain(others) {
        offer(shorter(solver, &Geometry { prefill_chunk: 1, ..smallest.clone() }.with_kv(kv)));
    }
    found.truncate(6);
    found
}

/// The longest context up to the one asked for.
fn shorter(solver: &Solver<'_>, geometry: &Geometry) -> Option<Geometry> {
    let pages = solver.first_page(geometry)..=geometry.context.div_ceil(PAGE);
    solver.largest(pages, Beside::at(solver, geometry), |pages| Geometry {
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
    let slots = geometry.slots.clamp(1, MAX_SLOTS);
    // A row for each slot stays that.
    let logit_rows = if geometry.logit_rows == geometry.slots { slots } else { geometry.logit_rows };
    Geometry {
        context: geometry.context.clamp(1, MAX_CONTEXT),
        slots,
        prefill_chunk: geometry.prefill_chunk.clamp(1, MAX_CHUNK),
        kv: geometry.kv,
        logit_rows: logit_rows.clamp(1, MAX_LOGIT_ROWS),
        draft_depth: geometry.draft_depth.min(MAX_DRAFT_DEPTH),
        priced: Priced { snapshots: geometry.priced.snapshots.min(MAX_SNAPSHOTS), ..geometry.priced.clone() },
    }
}
