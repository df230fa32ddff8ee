//! Many prices of one model on one profile: the weights are placed once, and what a geometry has in common with one seen
//! before is found again instead of made again.
//!
//! A [`Price`] is the sums of a [`Plan`](crate::Plan) without its dispatches, to the byte: the same functions place the
//! pools and lower the ops, part by part, and each part is kept under all that its lowering looks at. Only attention
//! looks at the context, so most geometries lower a layer or two of each program.

use crate::build::{Placed, Tail, largest_of_each, validate};
use crate::error::PlanError;
use crate::geometry::Geometry;
use crate::lower::{Cuts, Lowering, Named, Part, Scratch, Shared, Summary};
use crate::marks::Marks;
use crate::plan::{KvPlan, LOAD_HOST, Segment};
use crate::pool::Slab;
use crate::prepare::Prepared;
use crate::report::{Bytes, KvBytes, Largest};
use crate::sound;
use plimsoll_kernels::{Kernel, Profile};
use plimsoll_models::Model;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, PoisonError, RwLock};

/// Prices, parts and arenas that are kept; past that all are forgotten.
const KEPT: usize = 1 << 14;
/// Different parameters that are kept.
const KEPT_WORDS: usize = 1 << 20;

/// What a plan costs, without the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Bytes, segment by segment.
    pub bytes: Bytes,
    /// The upload buffer that exists during a load only.
    pub staging: u64,
    /// The largest buffer.
    pub largest_allocation: Largest,
    /// The largest part of a buffer that is bound.
    pub largest_binding: Largest,
    /// Pipelines.
    pub pipelines: u32,
}

impl Price {
    /// Bytes of the steady state.
    pub fn total(&self) -> u64 {
        self.bytes.total
    }

    /// Bytes of one segment.
    pub fn segment_bytes(&self, segment: Segment) -> u64 {
        match segment {
            Segment::Weights => self.bytes.weights,
            Segment::Kv => self.bytes.kv,
            Segment::Recurrent => self.bytes.recurrent,
            Segment::Activations => self.bytes.activations,
            Segment::Io => self.bytes.io,
            Segment::Retained => self.bytes.retained,
        }
    }
}

/// Prices one model on one profile. It may be shared between threads.
///
/// ```
/// use plimsoll_estimator::{Geometry, Pricer};
/// # let at = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/configs/smollm2-135m.json");
/// let checkpoint = plimsoll_models::Checkpoint::open(at.as_ref())?;
/// let model = plimsoll_models::Registry::standard().build(&checkpoint)?;
/// let profile = plimsoll_kernels::Profile::webgpu_default();
/// let pricer = Pricer::new(&model, &profile);
/// let geometry = Geometry { context: 2048, ..Geometry::default_for(model.context_max) };
/// assert_eq!(pricer.price(&geometry)?.total(), pricer.plan(&geometry)?.total());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pricer<'a> {
    model: &'a Model,
    profile: &'a Profile,
    prepared: Result<Prepared, PlanError>,
    memo: RwLock<Arc<Memo>>,
}

/// What is kept. Each map has all that its values depend on in its keys.
#[derive(Debug, Default)]
struct Memo {
    prices: RwLock<FxHashMap<Geometry, Result<Price, PlanError>>>,
    words: RwLock<Words>,
    parts: RwLock<FxHashMap<PartKey, Arc<Known>>>,
    rooms: RwLock<FxHashMap<(u32, u32), Room>>,
    arenas: RwLock<FxHashMap<ArenaKey, Arena>>,
}

/// Bytes of each buffer of an arena, or what does not fit.
type Arena = Result<Arc<[u64]>, PlanError>;

/// Numbers of parameters and pipelines, so that those of several programs are counted once without being compared.
#[derive(Debug, Default)]
struct Words {
    params: FxHashMap<Vec<u32>, u32>,
    kernels: FxHashMap<Kernel, u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PartKey {
    part: Part,
    max_tokens: u32,
    logit_rows: u32,
    inputs: [u32; 8],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ArenaKey {
    max_tokens: u32,
    logit_rows: u32,
    scratch: Vec<Scratch>,
}

/// Whether the tensors of a program fit their bindings, and the least that its arena takes.
#[derive(Clone, Debug)]
struct Room {
    refused: Option<PlanError>,
    peak: u64,
}

/// A [`Summary`] with numbers for its parameters and pipelines.
#[derive(Debug)]
struct Known {
    params: Vec<u32>,
    /// Parameters that might be those of a KV range too.
    like_ranges: Vec<(u32, [u32; 4])>,
    kernels: Vec<u32>,
    sum: Summary,
}

/// Why there is no price.
enum Stop {
    Refused(PlanError),
    /// It is past the bytes that were asked about.
    Beyond,
}

impl From<PlanError> for Stop {
    fn from(error: PlanError) -> Self {
        Stop::Refused(error)
    }
}

impl<'a> Pricer<'a> {
    /// Places the weights of a model. What stands against them is said with the first price.
    pub fn new(model: &'a Model, profile: &'a Profile) -> Self {
        let prepared = sound::check(model).and_then(|()| Prepared::new(model, profile));
        Self { model, profile, prepared, memo: RwLock::default() }
    }

    /// The model.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// The profile.
    pub fn profile(&self) -> &'a Profile {
        self.profile
    }

    /// What no geometry changes, for a geometry that is in range.
    pub(crate) fn prepared(&self, geometry: &Geometry) -> Result<&Prepared, PlanError> {
        validate(geometry, self.model)?;
        self.prepared.as_ref().map_err(Clone::clone)
    }

    /// What the plan for a geometry costs.
    ///
    /// # Errors
    /// Those of [`Pricer::plan`].
    pub fn price(&self, geometry: &Geometry) -> Result<Price, PlanError> {
        match self.priced(geometry, u64::MAX) {
            Ok(price) => Ok(price),
            Err(Stop::Refused(error)) => Err(error),
            // Sums stop at the largest number.
            Err(Stop::Beyond) => Err(PlanError::graph("the price", "it is past 2^64 bytes")),
        }
    }

    /// The price, if a plan can be made and takes at most `most` bytes. Stops as soon as that is known: a geometry far
    /// too large is found out by its pools alone.
    pub fn price_within(&self, geometry: &Geometry, most: u64) -> Option<Price> {
        self.priced(geometry, most).ok()
    }

    /// The least that a price is, in no time: weights, pools and the tables of a step without padding. `None` for most
    /// geometries that are refused.
    pub(crate) fn least(&self, geometry: &Geometry) -> Option<u64> {
        let prepared = self.prepared(geometry).ok()?;
        Placed::least(self.model, geometry, self.profile, prepared).ok()
    }

    /// The most tokens of a step and the most logit rows that any geometry may have.
    pub(crate) fn most_rows(&self) -> (u32, u32) {
        self.prepared.as_ref().map_or((0, 0), |prepared| prepared.most_rows)
    }

    /// The price: found again, where the same geometry has been priced to its end.
    fn priced(&self, geometry: &Geometry, most: u64) -> Result<Price, Stop> {
        let memo = self.memo();
        let found = read(&memo.prices, |prices| prices.get(geometry).cloned());
        let price = match found {
            Some(price) => price,
            None => match self.summed(&memo, geometry, most) {
                Err(Stop::Beyond) => return Err(Stop::Beyond),
                Err(Stop::Refused(error)) => memo.keep(geometry, Err(error)),
                Ok(price) => memo.keep(geometry, Ok(price)),
            },
        };
        let price = price?;
        if price.total() > most { Err(Stop::Beyond) } else { Ok(price) }
    }

    /// The price, from the pools and the parts of the programs.
    fn summed(&self, memo: &Memo, geometry: &Geometry, most: u64) -> Result<Price, Stop> {
        let (model, profile) = (self.model, self.profile);
        let prepared = self.prepared(geometry)?;
        if most < u64::MAX && Placed::least(model, geometry, profile, prepared)? > most {
            return Err(Stop::Beyond);
        }
        let Placed { mut slabs, kv, recurrent, step, cut, sizes, .. } =
            Placed::new(model, geometry, profile, prepared)?;
        let resident = slabs.iter().map(|s| s.bytes).fold(0, u64::saturating_add);
        if resident > most {
            return Err(Stop::Beyond);
        }
        let shared = Shared {
            model,
            geometry,
            profile,
            step: &step,
            prepared,
            kv: &kv,
            recurrent: &recurrent,
            arena_base: slabs.len() as u32,
        };
        let cuts = Cuts::new(&kv);
        let mut programs: Vec<Arc<Known>> = Vec::new();
        let mut readers: Vec<Summary> = Vec::new();
        let mut arena: Vec<u64> = Vec::new();
        let mut largest: Option<(u64, u32, Named)> = None;
        let mut results = 0;
        for &size in &sizes {
            let room = memo.room(&shared, size);
            if let Some(refused) = room.refused {
                return Err(refused.into());
            }
            if resident.saturating_add(room.peak) > most {
                return Err(Stop::Beyond);
            }
            let known = [Part::Fixed, Part::Tokens, Part::Rows, Part::Recurrent]
                .map(|part| memo.part(&shared, part, size));
            let readers_here = Lowering::summary(&shared, Part::Attention, size, Some(&cuts));
            let sums = || known.iter().map(|k| &k.sum).chain([&readers_here]);
            let first = |faults: &mut dyn Iterator<Item = &(u32, PlanError)>| {
                faults.min_by_key(|(op, _)| *op).map(|(_, fault)| Stop::Refused(fault.clone()))
            };
            if let Some(fault) = first(&mut sums().filter_map(|s| s.fault.as_ref())) {
                return Err(fault);
            }
            let mut scratch: Vec<Scratch> = sums().flat_map(|s| s.scratch.iter().copied()).collect();
            // In the order of the ops that make it; what one op makes is of one part.
            scratch.sort_by_key(|&(_, first, _)| first);
            let sizes = memo.arena(&shared, size, scratch)?;
            if let Some(broken) = first(&mut sums().filter_map(|s| s.broken.as_ref())) {
                return Err(broken);
            }
            largest_of_each(&mut arena, &sizes);
            let rows = geometry.logit_rows.min(size);
            let here = sums().filter_map(|s| s.largest(size, rows)).max_by_key(|&(bytes, op, _)| (bytes, op));
            if let Some((bytes, op, name)) = here
                && largest.as_ref().is_none_or(|(most, ..)| bytes >= *most)
            {
                largest = Some((bytes, op, name.clone()));
            }
            results = sums().map(|s| s.sampled).fold(results, u64::max);
            // The fixed part is the same in all programs.
            programs.extend(known.into_iter().skip(usize::from(!programs.is_empty())));
            readers.push(readers_here);
        }
        let (params, pipelines) = memo.count(&programs, &readers, &cut);
        crate::images::widen(&mut arena, model, geometry, profile.limits.max_buffer_size)?;
        let tail = Tail::new(&mut slabs, prepared, profile, &step, &arena, params, results)?;
        let largest = largest.map(|(bytes, op, name)| (bytes, name.of(model, op)));
        Ok(sums(&slabs, &kv, tail.staging_bytes, largest, pipelines))
    }

    /// What is kept, or a new beginning where that has grown too large.
    fn memo(&self) -> Arc<Memo> {
        let memo = read(&self.memo, Arc::clone);
        if memo.is_full() {
            let fresh = Arc::new(Memo::default());
            *self.memo.write().unwrap_or_else(PoisonError::into_inner) = fresh.clone();
            return fresh;
        }
        memo
    }
}

/// Reads under a lock. What is kept is never half written, so a thread that panicked has spoilt nothing.
fn read<T, R>(lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
    read(&lock.read().unwrap_or_else(PoisonError::into_inner))
}

/// The value of a key, made where nobody has yet.
fn kept<K: std::hash::Hash + Eq, V: Clone>(
    map: &RwLock<FxHashMap<K, V>>,
    key: K,
    make: impl FnOnce(&K) -> V,
) -> V {
    if let Some(found) = read(map, |map| map.get(&key).cloned()) {
        return found;
    }
    let made = make(&key);
    map.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(made).clone()
}

impl Memo {
    fn is_full(&self) -> bool {
        read(&self.parts, |p| p.len()) > KEPT
            || read(&self.prices, |p| p.len()) > KEPT
            || read(&self.arenas, |a| a.len()) > KEPT
            || read(&self.rooms, |r| r.len()) > KEPT
            || read(&self.words, |w| w.params.len()) > KEPT_WORDS
    }

    fn keep(&self, geometry: &Geometry, price: Result<Price, PlanError>) -> Result<Price, PlanError> {
        let mut prices = self.prices.write().unwrap_or_else(PoisonError::into_inner);
        prices.insert(geometry.clone(), price.clone());
        price
    }

    fn room(&self, shared: &Shared<'_>, max_tokens: u32) -> Room {
        let logit_rows = shared.geometry.logit_rows.min(max_tokens);
        kept(&self.rooms, (max_tokens, logit_rows), |_| {
            let (refused, peak) = Lowering::room(shared, max_tokens);
            Room { refused, peak }
        })
    }

    fn part(&self, shared: &Shared<'_>, part: Part, max_tokens: u32) -> Arc<Known> {
        let (geometry, step) = (shared.geometry, shared.step);
        let mut inputs = [0; 8];
        let mut tokens = max_tokens;
        let logit_rows = match part {
            Part::Fixed => {
                tokens = 0;
                0
            }
            Part::Tokens => {
                inputs[0] = step.ids;
                0
            }
            Part::Rows => {
                inputs[0] = step.rows;
                geometry.logit_rows.min(max_tokens)
            }
            Part::Recurrent | Part::Attention => {
                let table = (0..).zip(&step.tiles).find(|(_, t)| t.tokens == step.tokens);
                let (index, tile) =
                    table.map_or((u32::MAX, [0; 3]), |(index, t)| (index, [t.tokens, t.capacity, t.offset]));
                let Geometry { slots, draft_depth, .. } = *geometry;
                let [tokens, capacity, offset] = tile;
                inputs =
                    [slots, draft_depth, step.positions, step.token_slots, index, tokens, capacity, offset];
                0
            }
        };
        kept(&self.parts, PartKey { part, max_tokens: tokens, logit_rows, inputs }, |_| {
            Arc::new(self.known(Lowering::summary(shared, part, max_tokens, None)))
        })
    }

    fn arena(
        &self,
        shared: &Shared<'_>,
        max_tokens: u32,
        scratch: Vec<Scratch>,
    ) -> Result<Arc<[u64]>, PlanError> {
        let logit_rows = shared.geometry.logit_rows.min(max_tokens);
        kept(&self.arenas, ArenaKey { max_tokens, logit_rows, scratch }, |key| {
            Lowering::arena(shared, max_tokens, &key.scratch).map(Arc::from)
        })
    }

    /// Gives the parameters and pipelines of a part their numbers.
    fn known(&self, mut sum: Summary) -> Known {
        let mut words = self.words.write().unwrap_or_else(PoisonError::into_inner);
        let (mut params, mut like_ranges, mut met) = (Vec::new(), Vec::new(), Marks::default());
        words.params.reserve(sum.params.len());
        for param in std::mem::take(&mut sum.params) {
            let next = words.params.len() as u32;
            let range = <[u32; 4]>::try_from(&param[..]).ok();
            let id = *words.params.entry(param).or_insert(next);
            match range {
                Some(range) => like_ranges.push((id, range)),
                None if met.mark(id) => params.push(id),
                None => {}
            }
        }
        let kernels = std::mem::take(&mut sum.kernels).into_iter().map(|kernel| {
            let next = words.kernels.len() as u32;
            *words.kernels.entry(kernel).or_insert(next)
        });
        let kernels = kernels.collect();
        Known { params, like_ranges, kernels, sum }
    }

    /// Different parameters, those of the ranges with them, and different pipelines.
    fn count(&self, programs: &[Arc<Known>], readers: &[Summary], cut: &crate::build::Cut) -> (u64, u32) {
        let (mut params, mut kernels) = (Marks::default(), Marks::default());
        for known in programs {
            let more = known.like_ranges.iter().filter(|(_, words)| !cut.holds(*words));
            for id in known.params.iter().copied().chain(more.map(|&(id, _)| id)) {
                params.mark(id);
            }
            for &id in &known.kernels {
                kernels.mark(id);
            }
        }
        let mut fresh: FxHashSet<&[u32]> = FxHashSet::default();
        let mut unseen: FxHashSet<&Kernel> = FxHashSet::default();
        read(&self.words, |words| {
            for sum in readers {
                for param in &sum.params {
                    match words.params.get(&param[..]) {
                        _ if <[u32; 4]>::try_from(&param[..]).is_ok_and(|range| cut.holds(range)) => {}
                        Some(&id) => {
                            params.mark(id);
                        }
                        None => {
                            fresh.insert(&param[..]);
                        }
                    }
                }
                for kernel in &sum.kernels {
                    match words.kernels.get(kernel) {
                        Some(&id) => {
                            kernels.mark(id);
                        }
                        None => {
                            unseen.insert(kernel);
                        }
                    }
                }
            }
        });
        // The ranges, and the one that covers any position.
        let ranges = u64::from(cut.count) + 1;
        (ranges + u64::from(params.count) + fresh.len() as u64, kernels.count + unseen.len() as u32)
    }
}

/// Adds up buffers.
fn sums(slabs: &[Slab], kv: &KvPlan, staging: u64, binding: Option<(u64, String)>, pipelines: u32) -> Price {
    let mut by_segment = [0u64; Segment::ALL.len()];
    let mut total = 0u64;
    for slab in slabs {
        let sum = &mut by_segment[slab.segment as usize];
        *sum = sum.saturating_add(slab.bytes);
        total = total.saturating_add(slab.bytes);
    }
    let of = |segment: Segment| by_segment[segment as usize];
    let largest = slabs.iter().max_by_key(|s| s.bytes);
    Price {
        bytes: Bytes {
            weights: of(Segment::Weights),
            kv: of(Segment::Kv),
            recurrent: of(Segment::Recurrent),
            activations: of(Segment::Activations),
            io: of(Segment::Io),
            retained: of(Segment::Retained),
            total,
            load_peak: total.saturating_add(staging),
            load_host: staging.saturating_add(LOAD_HOST),
            kv_by_kind: by_kind(kv),
        },
        staging,
        largest_allocation: largest.map(|s| Largest { name: s.name(), bytes: s.bytes }).unwrap_or_default(),
        largest_binding: binding.map(|(bytes, name)| Largest { name, bytes }).unwrap_or_default(),
        pipelines,
    }
}

/// Bytes of a KV pool, by what its layers look back at.
pub(crate) fn by_kind(kv: &KvPlan) -> KvBytes {
    let mut by_kind = KvBytes::default();
    for layer in &kv.layers {
        let bytes = layer.segments.iter().map(|s| s.view.bytes).fold(0, u64::saturating_add);
        let sum = match kv.kinds.get(layer.kind as usize).and_then(|kind| kind.window) {
            None if layer.latent => &mut by_kind.mla,
            None => &mut by_kind.full,
            Some(_) => &mut by_kind.sliding,
        };
        *sum = sum.saturating_add(bytes);
    }
    by_kind
}
