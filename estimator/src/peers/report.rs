//! An engine's price as the estimate's document.

use super::largest::Search;
use super::{Engine, Line, Options, PeerError, Price, price};
use crate::budget::Budget;
use crate::company::Company;
use crate::error::grouped;
use crate::geometry::{Geometry, KvPair, KvStore, Priced};
use crate::report::{
    BudgetPart, Bytes, Exact, Fits, GeometryPart, Largest, Lever, ModelPart, OverheadPart, Question,
    RefusalPart, Report, Rung, SCHEMA,
};
use crate::verdict::{Lasts, Suggestion};
use plimsoll_models::Model;

/// The document of an engine's price: the same fields as ours, by its rules. What the engine does not start with is a
/// refusal in the document. The profile's limits of buffers and bindings are not asked.
pub fn report(question: &Question<'_>, engine: Engine, options: &Options) -> Report {
    let Question { checkpoint, model, geometry, profile, budget, overhead, company } = *question;
    let share = if engine == Engine::Vllm { options.vllm.utilization.clamp(0.0, 1.0) } else { 1.0 };
    let asker = Asker { engine, model, options, budget, company, share, overhead: overhead.bytes };
    let priced = price(engine, model, geometry, options);
    let (verdict, refusal) = asker.judge(&priced, geometry);
    let mut geometry_part = GeometryPart::of(model, geometry);
    let mut rules = Vec::new();
    if let Ok(price) = &priced {
        geometry_part.page = price.page;
        rules.clone_from(&price.rules);
        if let (Some(paging), Some(budget)) = (&price.paging, budget) {
            let pool = asker.room(budget).saturating_sub(price.weights).saturating_sub(overhead.bytes);
            let held = paging.hold(pool);
            rules.push(format!(
                "a pool of {} bytes holds {} tokens in {} blocks, {:.2} sequences of {} tokens at once",
                grouped(pool),
                grouped(held.tokens),
                grouped(held.blocks),
                held.concurrency,
                grouped(geometry.context.into())
            ));
        }
    }
    let told = priced.as_ref().ok();
    Report {
        schema: SCHEMA,
        model: ModelPart::of(checkpoint, model),
        geometry: geometry_part,
        profile: profile.name.clone(),
        bytes: told.map(bytes).unwrap_or_default(),
        exact: Exact { weights: true, kv: true, recurrent: true, activations: false },
        overhead: OverheadPart {
            bytes: overhead.bytes,
            source: if overhead.measured { "measured" } else { "unknown" }.into(),
        },
        kv_bytes_per_token: told.map_or(0, |p| p.kv_bytes_per_token),
        recurrent_bytes_per_slot: told.map_or(0, |p| p.recurrent_bytes_per_slot),
        largest_allocation: told
            .and_then(|p| p.largest.clone())
            .map(|line| Largest { name: line.name, bytes: line.bytes })
            .unwrap_or_default(),
        largest_binding: Largest::default(),
        budget: budget.map(BudgetPart::of),
        verdict,
        refusal,
        ladder: asker.ladder(geometry),
        levers: told.map(|p| asker.levers(geometry, p)).unwrap_or_default(),
        largest: asker.largest(geometry),
        pipelines: 0,
        estimate_only: Some(format!("by the rules of {}, which is not run here", engine.name())),
        checks: Vec::new(),
        ceilings: None,
        others: None,
        coefficients: None,
        frontier: Default::default(),
        runtime: engine.name().into(),
        rules,
        host: told.map(|p| p.host.clone()).unwrap_or_default(),
        peak: told.and_then(|p| p.peak.clone()),
        images: None,
    }
}

/// Weights, KV and recurrent states; what is no closed form is 0 and not in the total.
fn bytes(price: &Price) -> Bytes {
    Bytes {
        weights: price.weights,
        kv: price.kv,
        recurrent: price.recurrent,
        total: price.total(),
        load_peak: price.peak.as_ref().map_or(price.total(), |p| p.bytes.max(price.total())),
        kv_by_kind: price.kv_by_kind.clone(),
        ..Bytes::default()
    }
}

struct Asker<'a> {
    engine: Engine,
    model: &'a Model,
    options: &'a Options,
    budget: Option<&'a Budget>,
    /// What is beside, which grows with the geometry as the model does.
    company: Option<&'a Company<'a>>,
    /// What of the budget the engine takes.
    share: f64,
    overhead: u64,
}

impl Asker<'_> {
    /// What of a budget there is for weights and caches.
    fn room(&self, budget: &Budget) -> u64 {
        self.shared(budget.bytes)
    }

    fn shared(&self, bytes: u64) -> u64 {
        if self.share < 1.0 { (bytes as f64 * self.share) as u64 } else { bytes }
    }

    /// What there is for another geometry than the one that was asked for, beside what the others then take; `None` where
    /// one of them cannot be with it.
    fn room_for(&self, budget: &Budget, geometry: &Geometry) -> Option<u64> {
        match self.company.and_then(|company| Some((company, company.ceiling?))) {
            Some((company, all)) => Some(self.shared(all.saturating_sub(company.taken(geometry)?))),
            None => Some(self.room(budget)),
        }
    }

    /// The total of a geometry that the engine starts with and whose allocations are within the limit.
    fn total(&self, geometry: &Geometry) -> Option<u64> {
        let price = price(self.engine, self.model, geometry, self.options).ok()?;
        self.exceeding(&price).is_none().then(|| price.total())
    }

    /// Whether it fits beside what the others take with this geometry; `None` where nothing is known of memory.
    fn fits(&self, geometry: &Geometry, total: u64) -> Option<bool> {
        let budget = self.budget?;
        let room = self.room_for(budget, geometry);
        Some(room.is_some_and(|room| total.saturating_add(self.overhead) <= room))
    }

    /// The allocation that is past the limit, and the limit.
    fn exceeding<'p>(&self, price: &'p Price) -> Option<(&'p Line, u64)> {
        let most = self.options.max_allocation?;
        price.largest.as_ref().filter(|line| line.bytes > most).map(|line| (line, most))
    }

    /// Geometries that fit, with one thing given up each: the step first, which costs no more than time.
    fn nearest(&self, geometry: &Geometry) -> Vec<Suggestion> {
        let Fits { context, slots, prefill_chunk } = self.largest(geometry);
        let context = context.filter(|n| *n < geometry.context);
        let slots = slots.filter(|n| *n < geometry.slots);
        let chunk = prefill_chunk.filter(|n| *n < geometry.prefill_chunk);
        let other = |g: Geometry| {
            let total = self.total(&g)?;
            Some(Suggestion {
                context: g.context,
                slots: g.slots,
                prefill_chunk: g.prefill_chunk,
                kv: g.kv,
                logit_rows: g.logit_rows,
                draft_depth: g.draft_depth,
                images: (g.priced.images.count > 0).then_some(g.priced.images.count),
                priced: g.priced,
                total,
            })
        };
        let shorter = context.map(|context| Geometry { context, ..geometry.clone() });
        let fewer = slots.map(|slots| Geometry { slots, ..geometry.clone() });
        let smaller = chunk.map(|prefill_chunk| Geometry { prefill_chunk, ..geometry.clone() });
        smaller.into_iter().chain(shorter).chain(fewer).filter_map(other).collect()
    }

    fn judge(&self, priced: &Result<Price, PeerError>, geometry: &Geometry) -> (String, Option<RefusalPart>) {
        let refusal = |broke: &str, name: &str, need, have, reason| {
            let (broke, name) = (broke.to_owned(), name.to_owned());
            let nearest = self.nearest(geometry);
            let lasts = match self.budget {
                Some(budget) if broke == "total" => Lasts::of(need, budget),
                _ => Lasts::Forever,
            };
            let part = RefusalPart { broke, name, need, have, term: None, lasts, reason, nearest };
            ("refused".to_owned(), Some(part))
        };
        let price = match priced {
            Ok(price) => price,
            Err(error) => {
                let (broke, name, got) = match error {
                    PeerError::Geometry { field, got, .. } => ("geometry", *field, *got),
                    PeerError::KvFormat { format, head_dim, .. } => {
                        ("kv_format", *format, u64::from(*head_dim))
                    }
                    PeerError::Unsupported { engine, .. } => ("limit", *engine, 0),
                    PeerError::TooLarge { what } => ("geometry", *what, u64::MAX),
                };
                return refusal(broke, name, got, 0, error.to_string());
            }
        };
        if let Some((line, most)) = self.exceeding(price) {
            let reason = format!(
                "{}: {} need {} bytes where the allocation limit is {}",
                self.engine.name(),
                line.name,
                grouped(line.bytes),
                grouped(most)
            );
            return refusal("allocation", &line.name, line.bytes, most, reason);
        }
        let need = price.total().saturating_add(self.overhead);
        match self.budget {
            None => ("no_budget".into(), None),
            Some(budget) if need <= self.room(budget) => ("fits".into(), None),
            Some(budget) => {
                let have = self.room(budget);
                let share = if self.share < 1.0 { format!("{} of ", self.share) } else { String::new() };
                let reason = format!(
                    "{} needs {} bytes before its compute buffers and there are {} ({share}{}), {} too few",
                    self.engine.name(),
                    grouped(need),
                    grouped(have),
                    budget.source,
                    grouped(need - have)
                );
                refusal("total", "total", need, have, reason)
            }
        }
    }

    fn ladder(&self, geometry: &Geometry) -> Vec<Rung> {
        let contexts = crate::report::contexts(self.model.context_max, geometry.context);
        let rung = |context: u32| {
            let geometry = Geometry { context, ..geometry.clone() };
            let total = self.total(&geometry);
            let verdict = match total.map(|t| self.fits(&geometry, t)) {
                None | Some(Some(false)) => "refused",
                Some(Some(true)) => "fits",
                Some(None) => "no_budget",
            };
            Rung { context, total, verdict: verdict.into() }
        };
        contexts.into_iter().map(rung).collect()
    }

    fn levers(&self, geometry: &Geometry, price: &Price) -> Vec<Lever> {
        let mut changes: Vec<(String, Geometry)> = Vec::new();
        let mut change = |said: String, geometry: Geometry| changes.push((said, geometry));
        if geometry.slots > 1 {
            let to = Geometry { slots: 1, ..geometry.clone() };
            change(format!("slots {} -> 1", geometry.slots), to);
        }
        if geometry.context >= 64 {
            let context = geometry.context / 2;
            change(
                format!("context {} -> {context}", geometry.context),
                Geometry { context, ..geometry.clone() },
            );
        }
        if geometry.prefill_chunk > 128 {
            let to = Geometry { prefill_chunk: 128, ..geometry.clone() };
            change(format!("prefill_chunk {} -> 128", geometry.prefill_chunk), to);
        }
        if geometry.draft_depth > 0 {
            let to = Geometry { draft_depth: 0, ..geometry.clone() };
            change(format!("draft_depth {} -> 0", geometry.draft_depth), to);
        }
        let pair = geometry.kv_pair();
        for kv in KvStore::ALL.into_iter().filter(|kv| *kv > pair.k) {
            let to = KvPair { k: kv, v: kv };
            let priced = Priced { kv: Some(to), ..geometry.priced.clone() };
            change(format!("kv {} -> {}", pair.k.name(), kv.name()), Geometry { priced, ..geometry.clone() });
        }
        let saves = |(change, geometry): (String, Geometry)| {
            let saves = price.total().checked_sub(self.total(&geometry)?)?;
            (saves > 0).then_some(Lever { change, saves })
        };
        let mut levers: Vec<Lever> = changes.into_iter().filter_map(saves).collect();
        levers.sort_by_key(|l| std::cmp::Reverse(l.saves));
        levers
    }

    /// The largest of each that fits, the rest as asked. Only where there is something to fit.
    fn largest(&self, geometry: &Geometry) -> Fits {
        if self.budget.is_none() && self.options.max_allocation.is_none() {
            return Fits::default();
        }
        let fits = |g: &Geometry| self.total(g).is_some_and(|total| self.fits(g, total) != Some(false));
        let padding = self.options.llama_cpp.cell_padding;
        Search { engine: self.engine, context_max: self.model.context_max, padding, fits: &fits }
            .all(geometry)
    }
}
