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
use crate::memo::{Known, Memo, read};
use crate::plan::{KvPlan, LOAD_HOST, Segment};
use crate::pool::{Slab, padded};
use crate::prepare::Prepared;
use crate::report::{Bytes, KvBytes, Largest};
use crate::shards::{Cut, Shards, WeightCuts};
use crate::sound;
use plimsoll_kernels::{Profile, StepShape};
use plimsoll_models::Model;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, PoisonError, RwLock};

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
    /// Buffers: each is one allocation.
    pub buffers: u32,
    /// Layers whose pages are larger than a binding.
    pub kv_cut: Cut,
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

    /// Why the geometry is refused by something other than so many bytes; what is past them is not priced to its end.
    pub(crate) fn refusal_within(&self, geometry: &Geometry, most: u64) -> Option<PlanError> {
        match self.priced(geometry, most) {
            Err(Stop::Refused(error)) => Some(error),
            Err(Stop::Beyond) | Ok(_) => None,
        }
    }

    /// The least that a price is, in no time: weights, pools and the tables of a step without padding. `None` for most
    /// geometries that are refused.
    pub(crate) fn least(&self, geometry: &Geometry) -> Option<u64> {
        let prepared = self.prepared(geometry).ok()?;
        Placed::least(self.model, geometry, self.profile, prepared).ok()
    }

    /// What the limits cut of the plan with that price.
    pub fn shards(&self, price: &Price) -> Shards {
        let weights =
            self.prepared.as_ref().map(|p| WeightCuts::of(self.model, &p.groups)).unwrap_or_default();
        Shards { buffers: price.buffers, weights, kv: price.kv_cut }
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
                Err(Stop::Refused(error)) => memo.keep(geometry, Err(error.by(&self.profile.limits))),
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
        let resident = slabs.iter().map(|s| s.bytes).fold(prepared.bytes, u64::saturating_add);
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
            arena_base: (prepared.slabs.len() + slabs.len()) as u32,
        };
        // The largest program is the last, and what it takes at least is known before the others are lowered.
        if most < u64::MAX
            && let Some(&size) = sizes.last()
            && resident.saturating_add(memo.room(&shared, size).peak) > most
        {
            return Err(Stop::Beyond);
        }
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
            let known = [Part::Fixed, Part::Taken, Part::Tokens, Part::Rows, Part::Recurrent]
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
        let (params, pipelines) = memo.count(prepared.facts.places(), &programs, &readers, &cut);
        crate::images::widen(&mut arena, model, geometry, profile.limits.max_buffer_size)?;
        let tail = Tail::new(&mut slabs, prepared, profile, &step, &arena, params, results)?;
        let largest = largest.map(|(bytes, op, name)| (bytes, name.of(model, op)));
        Ok(sums(prepared, &slabs, &kv, tail.staging_bytes, largest, pipelines))
    }

    /// Bytes moved and floating-point operations of greedy steps, each with how many tokens its rows see: those of
    /// [`Plan::work`](crate::Plan::work) of the plan for a geometry that can be planned.
    ///
    /// # Errors
    /// As [`Pricer::price`].
    pub fn work<const N: usize>(
        &self,
        geometry: &Geometry,
        steps: [(StepShape, u32); N],
    ) -> Result<[(u64, u64); N], PlanError> {
        let (model, profile) = (self.model, self.profile);
        let prepared = self.prepared(geometry)?;
        let Placed { slabs, kv, recurrent, step, sizes, .. } =
            Placed::new(model, geometry, profile, prepared)?;
        let arena_base = (prepared.slabs.len() + slabs.len()) as u32;
        let shared = Shared {
            model,
            geometry,
            profile,
            step: &step,
            prepared,
            kv: &kv,
            recurrent: &recurrent,
            arena_base,
        };
        let cuts = Cuts::new(&kv);
        let mut works = [(0, 0); N];
        for (work, (step, seen)) in works.iter_mut().zip(&steps) {
            if let Some(&size) = sizes.iter().find(|&&size| step.tokens <= size) {
                *work = Lowering::work(&shared, &cuts, size, step, *seen)?;
            }
        }
        Ok(works)
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

/// Adds up the buffers of the weights and the others.
fn sums(
    weights: &Prepared,
    slabs: &[Slab],
    kv: &KvPlan,
    staging: u64,
    binding: Option<(u64, String)>,
    pipelines: u32,
) -> Price {
    let mut by_segment = [0u64; Segment::ALL.len()];
    by_segment[Segment::Weights as usize] = weights.bytes;
    let mut total = weights.bytes;
    for slab in slabs {
        let sum = &mut by_segment[slab.segment as usize];
        *sum = sum.saturating_add(slab.bytes);
        total = total.saturating_add(slab.bytes);
    }
    let of = |segment: Segment| by_segment[segment as usize];
    let largest = weights.largest.iter().chain(slabs).max_by_key(|s| s.bytes);
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
        buffers: u32::try_from(weights.slabs.len() + slabs.len()).unwrap_or(u32::MAX),
        kv_cut: Cut::of_kv(kv),
    }
}

/// Bytes of a KV pool, by what its layers look back at: with the padding of each view, so that they add up to the pool.
pub(crate) fn by_kind(kv: &KvPlan) -> KvBytes {
    let mut by_kind = KvBytes::default();
    for layer in &kv.layers {
        let bytes = layer.segments.iter().map(|s| padded(s.view.bytes)).fold(0, u64::saturating_add);
        let sum = match kv.kinds.get(layer.kind as usize).and_then(|kind| kind.window) {
            None if layer.latent => &mut by_kind.mla,
            None => &mut by_kind.full,
            Some(_) => &mut by_kind.sliding,
        };
        *sum = sum.saturating_add(bytes);
    }
    by_kind
}
