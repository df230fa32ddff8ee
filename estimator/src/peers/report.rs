//! An engine's price as the estimate's document.

use super::largest::Search;
use super::mlx::Held;
use super::{Engine, Line, Options, PeerError, Price, loaded, price};
use crate::budget::Budget;
use crate::company::Company;
use crate::error::{PlanError, grouped};
use crate::geometry::{Geometry, Images, KvPair, KvStore, Priced};
use crate::others::{Other, Role};
use crate::report::{
    BudgetPart, Bytes, Exact, Fits, GeometryPart, Largest, Lever, ModelPart, OverheadPart, Question,
    RefusalPart, Report, Rung, SCHEMA,
};
use crate::verdict::{self, Broke, Lasts, Refusal, Suggestion};
use crate::weights;
use plimsoll_models::Model;
use plimsoll_models::model::STATE_KEPT;
use std::cell::OnceCell;

/// What is refused where an engine does not start, whatever the geometry.
pub(crate) const START: &str = "what vllm takes at start";

/// The document of an engine's price: the same fields as ours, by its rules. What the engine does not start with is a
/// refusal in the document. The profile's limits of buffers and bindings are not asked.
pub fn report(question: &Question<'_>, engine: Engine, options: &Options) -> Report {
    let Question { checkpoint, model, geometry, profile, budget, overhead, company } = *question;
    let counted = model.extras.stored.is_none().then(|| weights::counted(checkpoint, model.clone()));
    let model = counted.as_ref().unwrap_or(model);
    let mut model_part = ModelPart::of(checkpoint, model);
    // What is true of our own runtime alone.
    model_part.notes.retain(|note| !note.ends_with(STATE_KEPT));
    let found = OnceCell::new();
    let asker = Asker { engine, model, options, budget, company, overhead: overhead.bytes, found };
    let priced = price(engine, model, geometry, options);
    let (verdict, refusal) = asker.judge(&priced, geometry);
    let mut geometry_part = GeometryPart::of(model, geometry);
    geometry_part.kv_bits = options.mlx.kv_bits.filter(|_| engine == Engine::Mlx);
    let mut rules = Vec::new();
    if let Ok(price) = &priced {
        geometry_part.page = price.page;
        rules.clone_from(&price.rules);
        if engine == Engine::Vllm && company.is_some_and(|company| !company.is_empty()) {
            let rule =
                "the share is of the whole device: a model that drafts is inside of it, all others outside";
            rules.push(rule.to_owned());
        }
        if let (Some(paging), Ok(Some(room))) = (&price.paging, asker.room(geometry)) {
            let pool = room.saturating_sub(price.weights).saturating_sub(overhead.bytes);
            let held = paging.hold(pool);
            // A pool of states alone holds sequences, however long they are.
            rules.push(match paging.block {
                0 => format!(
                    "a pool of {} bytes holds {} blocks of states, {:.2} sequences at once",
                    grouped(pool),
                    grouped(held.blocks),
                    held.concurrency
                ),
                _ => format!(
                    "a pool of {} bytes holds {} tokens in {} blocks, {:.2} sequences of {} tokens at once",
                    grouped(pool),
                    grouped(held.tokens),
                    grouped(held.blocks),
                    held.concurrency,
                    grouped(geometry.context.into())
                ),
            });
        }
    }
    let told = priced.as_ref().ok();
    Report {
        schema: SCHEMA,
        model: model_part,
        geometry: geometry_part,
        profile: profile.name.clone(),
        bytes: told.map(bytes),
        not_in_bytes: not_in_bytes(told),
        exact: Exact { weights: true, kv: true, recurrent: true, activations: false },
        overhead: OverheadPart {
            bytes: overhead.bytes,
            source: if overhead.measured { "measured" } else { "unknown" }.into(),
        },
        kv_bytes_per_token: told.map(|p| p.kv_bytes_per_token),
        pool_bytes_per_token: told.and_then(|p| p.pool_bytes_per_token),
        recurrent_bytes_per_slot: told.and_then(|p| p.recurrent_bytes_per_slot),
        largest_allocation: told
            .and_then(|p| p.largest.clone())
            .map(|line| Largest { name: line.name, bytes: line.bytes }),
        largest_binding: None,
        shards: None,
        budget: budget.map(BudgetPart::of),
        limits: Vec::new(),
        verdict,
        refusal,
        ladder: asker.ladder(geometry),
        levers: told.map(|p| asker.levers(geometry, p)).unwrap_or_default(),
        largest: asker.largest(geometry),
        pipelines: None,
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

/// What the rules give no figure of. `load_peak` is the total there, unless an engine's own peak is a closed form.
fn not_in_bytes(told: Option<&Price>) -> Vec<String> {
    let mut names = vec!["activations", "io", "retained", "load_host"];
    if told.is_none_or(|price| price.peak.is_none()) {
        names.push("load_peak");
    }
    names.into_iter().map(str::to_owned).collect()
}

/// Weights, KV and recurrent states; what is no closed form is 0 and not in the total.
fn bytes(price: &Price) -> Bytes {
    Bytes {
        weights: price.weights,
        kv: price.kv,
        recurrent: price.recurrent,
        total: price.total(),
        load_peak: price.most(),
        kv_by_kind: price.kv_by_kind.clone(),
        ..Bytes::default()
    }
}

/// Bytes of the others that are inside what an engine takes for a model, and of those that are not.
fn inside(engine: Engine, others: &[Other]) -> (u64, u64) {
    let drafts = |other: &&Other| engine == Engine::Vllm && other.role == Role::Draft;
    let sum = |of: &dyn Fn(&&Other) -> bool| {
        others.iter().filter(of).map(|other| other.total).fold(0, u64::saturating_add)
    };
    (sum(&drafts), sum(&|other| !drafts(other)))
}

/// All of a device that a budget is of, whatever is left for others of it.
fn whole(budget: &Budget) -> u64 {
    let has = budget.derived.as_ref().map(|reading| reading.bytes);
    has.into_iter().chain(budget.requested).min().unwrap_or(budget.bytes)
}

struct Asker<'a> {
    engine: Engine,
    model: &'a Model,
    options: &'a Options,
    budget: Option<&'a Budget>,
    /// What is beside, which grows with the geometry as the model does.
    company: Option<&'a Company<'a>>,
    overhead: u64,
    /// The largest of each with the rest as asked, once they were looked for.
    found: OnceCell<Fits>,
}

/// Bytes of a geometry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Needs {
    /// In the end.
    total: u64,
    /// The most at once.
    most: u64,
}

/// What stands against a geometry whatever the model takes with it.
enum Against {
    /// One of the others cannot be with it.
    Beside(PlanError),
    /// vLLM takes its share of a device at start, and refuses to where that is not free.
    Start { takes: u64, whole: u64, free: u64 },
}

impl Asker<'_> {
    /// What there is with a geometry for weights and caches, beside what the others then take; `None` where nothing is
    /// known of memory.
    ///
    /// vLLM's is a share of the whole device, and what drafts for the model is inside of it; whatever else is on the
    /// device is outside, and must leave the share free.
    fn room(&self, geometry: &Geometry) -> Result<Option<u64>, Against> {
        let others = self.company.map_or(Ok(Vec::new()), |company| company.with(geometry));
        let others = others.map_err(Against::Beside)?;
        let Some(budget) = self.budget else { return Ok(None) };
        let (all, others) = match self.company.and_then(|company| company.ceiling) {
            Some(all) => (all, others),
            // Whoever knows of no more has taken the others away.
            None => (budget.bytes, Vec::new()),
        };
        let (inside, outside) = inside(self.engine, &others);
        let free = all.saturating_sub(outside);
        if self.engine != Engine::Vllm {
            return Ok(Some(free.saturating_sub(inside)));
        }
        let whole = whole(budget);
        let takes = self.share(whole);
        if takes > free {
            return Err(Against::Start { takes, whole, free });
        }
        Ok(Some(takes.saturating_sub(inside)))
    }

    /// What vLLM takes of so much.
    fn share(&self, whole: u64) -> u64 {
        let share = self.options.vllm.utilization.clamp(0.0, 1.0);
        if share < 1.0 { (whole as f64 * share) as u64 } else { whole }
    }

    /// What a geometry needs that the engine starts with and whose allocations are within the limit.
    fn needs(&self, geometry: &Geometry) -> Option<Needs> {
        let price = price(self.engine, self.model, geometry, self.options).ok()?;
        self.exceeding(&price).is_none().then(|| Needs { total: price.total(), most: price.most() })
    }

    /// Whether it fits beside what the others take with this geometry, also while it grows; `None` where nothing is known of
    /// memory.
    fn fits(&self, geometry: &Geometry, needs: Needs) -> Option<bool> {
        match self.room(geometry) {
            Err(_) => Some(false),
            Ok(room) => Some(needs.most.saturating_add(self.overhead) <= room?),
        }
    }

    /// The allocation that is past the limit, and the limit.
    fn exceeding<'p>(&self, price: &'p Price) -> Option<(&'p Line, u64)> {
        let most = self.options.max_allocation?;
        price.largest.as_ref().filter(|line| line.bytes > most).map(|line| (line, most))
    }

    /// Geometries that fit, with one thing given up each: the step first, which costs no more than time; the formats of
    /// keys and values, the images and the drafts where the engine does not have those.
    fn nearest(&self, geometry: &Geometry) -> Vec<Suggestion> {
        if price(self.engine, self.model, geometry, self.options).is_err() || !self.suits(geometry) {
            return self.mended(geometry);
        }
        self.smaller(geometry, self.found.get_or_init(|| self.searched(geometry)))
    }

    /// Whether what is beside can have its keys and values in these formats.
    fn suits(&self, geometry: &Geometry) -> bool {
        self.company.is_none_or(|company| company.suits(geometry))
    }

    /// Of a geometry that has a price.
    fn smaller(&self, geometry: &Geometry, largest: &Fits) -> Vec<Suggestion> {
        let Fits { context, slots, prefill_chunk, .. } = *largest;
        let context = context.filter(|n| *n < geometry.context);
        let slots = slots.filter(|n| *n < geometry.slots);
        let chunk = prefill_chunk.filter(|n| *n < geometry.prefill_chunk);
        let other = |g: Geometry| {
            let total = self.needs(&g)?.total;
            Some(Suggestion::new(g, total))
        };
        let shorter = context.map(|context| Geometry { context, ..geometry.clone() });
        let fewer = slots.map(|slots| crate::solve::with_slots(geometry, slots));
        let smaller = chunk.map(|prefill_chunk| Geometry { prefill_chunk, ..geometry.clone() });
        smaller.into_iter().chain(shorter).chain(fewer).filter_map(other).collect()
    }

    /// Of one that the engine does not start with: with as little of it given up as there needs to be, and what of those
    /// fits; where none does, what is smaller.
    fn mended(&self, geometry: &Geometry) -> Vec<Suggestion> {
        let mut mended: Vec<(usize, Needs, Geometry)> = Vec::new();
        let without = Geometry { draft_depth: 0, ..geometry.clone() };
        for drafts in [geometry, &without] {
            let priced = Priced { images: Images::default(), ..drafts.priced.clone() };
            for images in [drafts, &Geometry { priced, ..drafts.clone() }] {
                let stores = KvStore::ALL.map(|kv| images.clone().with_kv(KvPair { k: kv, v: kv }));
                for g in std::iter::once(images.clone()).chain(stores) {
                    let changes = usize::from(g.draft_depth != geometry.draft_depth)
                        + usize::from(g.priced.images != geometry.priced.images)
                        + usize::from(g.kv_pair() != geometry.kv_pair());
                    if let Some(needs) = self.needs(&g).filter(|_| self.suits(&g)) {
                        mended.push((changes, needs, g));
                    }
                }
            }
        }
        mended.sort_by_key(|(changes, needs, _)| (*changes, *needs));
        mended.dedup_by(|(.., a), (.., b)| a == b);
        let Some(least) = mended.first().map(|(changes, ..)| *changes) else {
            // Then it is a number out of range, or the allocation is past its limit.
            return self.smaller(geometry, &self.searched(geometry));
        };
        mended.retain(|(changes, ..)| *changes == least);
        let fitting = mended.iter().filter(|(_, needs, g)| self.fits(g, *needs) != Some(false));
        let near: Vec<Suggestion> =
            fitting.map(|(_, needs, g)| Suggestion::new(g.clone(), needs.total)).collect();
        match mended.first() {
            Some((.., g)) if near.is_empty() => self.smaller(g, &self.searched(g)),
            _ => near,
        }
    }

    fn judge(&self, priced: &Result<Price, PeerError>, geometry: &Geometry) -> (String, Option<RefusalPart>) {
        let refused = |refusal: Refusal| ("refused".to_owned(), Some(RefusalPart::of(&refusal)));
        let short = |broke: Broke, name: &str, need: u64, have: u64, reason: String| {
            let lasts = match self.budget {
                // An engine may take a share of the budget only: what is short of that is short of the whole.
                Some(budget) if broke == Broke::Total => {
                    Lasts::of(need.saturating_add(budget.bytes.saturating_sub(have)), budget)
                }
                _ => Lasts::Forever,
            };
            let (name, nearest) = (name.to_owned(), self.nearest(geometry));
            let (terms, term) = (Vec::new(), None);
            refused(Refusal { broke, name, need, have, terms, term, lasts, nearest, reason })
        };
        let price = match priced {
            Ok(price) => price,
            Err(error) => {
                let error = PlanError::Engine(error.clone());
                return refused(verdict::refuse_limit(&error, self.nearest(geometry)));
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
            return short(Broke::Allocation, &line.name, line.bytes, most, reason);
        }
        let need = price.total().saturating_add(self.overhead);
        match self.room(geometry) {
            Ok(None) => ("no_budget".into(), None),
            Ok(Some(have)) if price.most().saturating_add(self.overhead) <= have => ("fits".into(), None),
            // What fits once it is there must also fit while it comes.
            Ok(Some(have)) if need <= have => {
                let most = price.most().saturating_add(self.overhead);
                let when = price.peak.as_ref().map_or("", |peak| peak.why.as_str());
                let reason = format!(
                    "load peak: {} may hold {} bytes at once ({when}) and there are {} ({}), {} too few",
                    self.engine.name(),
                    grouped(most),
                    grouped(have),
                    self.source(geometry),
                    grouped(most - have)
                );
                let (verdict, refusal) = short(Broke::Total, "load peak", most, have, reason);
                (verdict, refusal.map(|part| RefusalPart { broke: "load_peak".into(), ..part }))
            }
            Ok(Some(have)) => {
                let reason = format!(
                    "{} needs {} bytes before its compute buffers and there are {} ({}), {} too few",
                    self.engine.name(),
                    grouped(need),
                    grouped(have),
                    self.source(geometry),
                    grouped(need - have)
                );
                short(Broke::Total, "total", need, have, reason)
            }
            Err(Against::Beside(error)) => refused(verdict::refuse_limit(&error, self.nearest(geometry))),
            Err(Against::Start { takes, whole, free }) => {
                // Rounded down, so that it does.
                let share = (free as f64 / whole.max(1) as f64 * 1e4).floor() / 1e4;
                let remedy = if share > 0.0 {
                    format!("; with --gpu-memory-utilization {share} at most it does")
                } else {
                    String::new()
                };
                let reason = format!(
                    "vllm takes {} of {} bytes at start, {}, and beside what else is there {} are free: it does not \
                     start{remedy}",
                    self.options.vllm.utilization,
                    grouped(whole),
                    grouped(takes),
                    grouped(free)
                );
                short(Broke::Total, START, takes, free, reason)
            }
        }
    }

    /// What the room for weights and caches is, in words.
    fn source(&self, geometry: &Geometry) -> String {
        let Some(budget) = self.budget else { return String::new() };
        if self.engine != Engine::Vllm {
            return budget.source.clone();
        }
        let others = self.company.and_then(|company| company.with(geometry).ok()).unwrap_or_default();
        let less = match inside(self.engine, &others).0 {
            0 => String::new(),
            bytes => format!(", less {} for what drafts", grouped(bytes)),
        };
        format!("{} of {}{less}", self.options.vllm.utilization, grouped(whole(budget)))
    }

    fn ladder(&self, geometry: &Geometry) -> Vec<Rung> {
        let contexts = crate::report::contexts(self.model.context_max, geometry.context);
        let rung = |context: u32| {
            let geometry = Geometry { context, ..geometry.clone() };
            let needs = self.needs(&geometry);
            let total = needs.map(|needs| needs.total);
            let verdict = match needs.map(|needs| self.fits(&geometry, needs)) {
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
        for kv in KvStore::ALL.map(|kv| KvPair { k: kv, v: kv }).into_iter().filter(|kv| *kv != pair) {
            change(format!("kv {pair} -> {kv}"), geometry.clone().with_kv(kv));
        }
        let saves = |(change, geometry): (String, Geometry)| {
            let saves = price.total().checked_sub(self.needs(&geometry)?.total)?;
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
        self.found.get_or_init(|| self.searched(geometry)).clone()
    }

    /// MLX: bytes that what is beside takes at the least, never less of more context: caches that grow by 256 and no step.
    /// `None` where it cannot be with this geometry.
    fn least_beside(&self, geometry: &Geometry) -> Option<u64> {
        let Some(company) = self.company.filter(|company| company.ceiling.is_some()) else { return Some(0) };
        let context = geometry.context.saturating_sub(256).max(1);
        company.taken(&Geometry { context, prefill_chunk: 1, ..geometry.clone() })
    }

    fn searched(&self, geometry: &Geometry) -> Fits {
        // MLX takes trying every number: what the model alone is too large for is known in no time.
        let held = (self.engine == Engine::Mlx)
            .then(|| Held::new(self.model, geometry, self.options).ok())
            .flatten();
        let beside = loaded(self.model, geometry).saturating_add(self.overhead);
        let most =
            self.company.and_then(|company| company.ceiling).or(self.budget.map(|budget| budget.bytes));
        let within = |needs: &dyn Fn(&Held<'_>) -> Result<u128, PeerError>| match (&held, most) {
            (Some(held), Some(most)) => {
                needs(held).is_ok_and(|bytes| bytes.saturating_add(beside.into()) <= most.into())
            }
            _ => true,
        };
        let fits = |g: &Geometry| {
            within(&|held| Ok(held.sums(g)?.most(g.slots)))
                && self.needs(g).is_some_and(|needs| self.fits(g, needs) != Some(false))
        };
        let search = Search {
            engine: self.engine,
            context_max: self.model.context_max,
            padding: self.options.llama_cpp.cell_padding,
            fits: &fits,
            least: &|g| {
                let beside = self.least_beside(g);
                beside.is_some_and(|beside| within(&|held| Ok(held.least(g)?.saturating_add(beside.into()))))
            },
            ends: &|g| within(&|held| held.ends(g)),
            plain: self.options.mlx.quantized_start,
        };
        search.all(geometry)
    }
}
