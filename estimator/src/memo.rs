//! What a [`Pricer`](crate::Pricer) keeps of the prices it has made: parts of programs under all that their lowering
//! looks at, and numbers for parameters and pipelines, so that those of several programs are counted without being
//! compared.

use crate::build::Cut;
use crate::error::PlanError;
use crate::geometry::Geometry;
use crate::lower::{Family, Lowering, NARROW, Part, Scratch, Shared, Summary};
use crate::marks::Marks;
use crate::pricer::Price;
use plimsoll_kernels::Kernel;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, PoisonError, RwLock};

/// Prices, parts and arenas that are kept; past that all are forgotten.
const KEPT: usize = 1 << 14;
/// Different parameters that are kept.
const KEPT_WORDS: usize = 1 << 20;

/// What is kept. Each map has all that its values depend on in its keys.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    pub prices: RwLock<FxHashMap<Geometry, Result<Price, PlanError>>>,
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
    /// How long those are.
    lengths: Vec<usize>,
    /// The bases of families.
    bases: FxHashMap<Vec<u32>, u32>,
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
pub(crate) struct Room {
    pub refused: Option<PlanError>,
    pub peak: u64,
}

/// A [`Summary`] with numbers for its parameters and pipelines.
#[derive(Debug)]
pub(crate) struct Known {
    params: Vec<u32>,
    /// Parameters that might be those of a KV range too.
    like_ranges: Vec<(u32, [u32; 4])>,
    /// Of the sum's families.
    bases: Vec<u32>,
    kernels: Vec<u32>,
    pub sum: Summary,
}

/// Reads under a lock. What is kept is never half written, so a thread that panicked has spoilt nothing.
pub(crate) fn read<T, R>(lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
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
    pub fn is_full(&self) -> bool {
        read(&self.parts, |p| p.len()) > KEPT
            || read(&self.prices, |p| p.len()) > KEPT
            || read(&self.arenas, |a| a.len()) > KEPT
            || read(&self.rooms, |r| r.len()) > KEPT
            || read(&self.words, |w| w.params.len() + w.bases.len()) > KEPT_WORDS
    }

    pub fn keep(&self, geometry: &Geometry, price: Result<Price, PlanError>) -> Result<Price, PlanError> {
        let mut prices = self.prices.write().unwrap_or_else(PoisonError::into_inner);
        prices.insert(geometry.clone(), price.clone());
        price
    }

    pub fn room(&self, shared: &Shared<'_>, max_tokens: u32) -> Room {
        let logit_rows = shared.geometry.logit_rows.min(max_tokens);
        kept(&self.rooms, (max_tokens, logit_rows), |_| {
            let (refused, peak) = Lowering::room(shared, max_tokens);
            Room { refused, peak }
        })
    }

    pub fn part(&self, shared: &Shared<'_>, part: Part, max_tokens: u32) -> Arc<Known> {
        let (geometry, step) = (shared.geometry, shared.step);
        let mut inputs = [0; 8];
        let mut tokens = max_tokens;
        let logit_rows = match part {
            Part::Fixed => {
                tokens = 0;
                0
            }
            Part::Taken => {
                tokens = (max_tokens > NARROW).into();
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

    pub fn arena(
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
            if !words.lengths.contains(&param.len()) {
                words.lengths.push(param.len());
            }
            let range = <[u32; 4]>::try_from(&param[..]).ok();
            let id = *words.params.entry(param).or_insert(next);
            match range {
                Some(range) => like_ranges.push((id, range)),
                None if met.mark(id) => params.push(id),
                None => {}
            }
        }
        let bases = sum.families.iter().map(|family| {
            let next = words.bases.len() as u32;
            *words.bases.entry(family.base.clone()).or_insert(next)
        });
        let bases = bases.collect();
        let kernels = std::mem::take(&mut sum.kernels).into_iter().map(|kernel| {
            let next = words.kernels.len() as u32;
            *words.kernels.entry(kernel).or_insert(next)
        });
        let kernels = kernels.collect();
        Known { params, like_ranges, bases, kernels, sum }
    }

    /// Different parameters, those of the ranges with them, and different pipelines.
    pub fn count(&self, programs: &[Arc<Known>], readers: &[Summary], cut: &Cut) -> (u64, u32) {
        let (mut params, mut kernels) = (Marks::default(), Marks::default());
        let mut families: Vec<(u32, &Family)> = Vec::new();
        for known in programs {
            let more = known.like_ranges.iter().filter(|(_, words)| !cut.holds(*words));
            for id in known.params.iter().copied().chain(more.map(|&(id, _)| id)) {
                params.mark(id);
            }
            for &id in &known.kernels {
                kernels.mark(id);
            }
            families.extend(known.bases.iter().copied().zip(&known.sum.families));
        }
        let mut fresh: FxHashSet<&[u32]> = FxHashSet::default();
        let mut unseen: FxHashSet<&Kernel> = FxHashSet::default();
        let members = read(&self.words, |words| {
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
            members(&families) - words.met(&families, |id| params.has(id), &fresh)
        });
        // The ranges, and the one that covers any position.
        let ranges = u64::from(cut.count) + 1;
        let params = ranges + u64::from(params.count) + fresh.len() as u64 + members;
        (params, kernels.count + unseen.len() as u32)
    }
}

/// Different parameters in families, each with the number of its base.
fn members(families: &[(u32, &Family)]) -> u64 {
    let mut sorted = families.to_vec();
    sorted.sort_unstable_by_key(|(base, _)| *base);
    // Those of one base are different where they begin elsewhere.
    let different = sorted.chunk_by(|(a, _), (b, _)| a == b).map(|alike| {
        let rows = alike.first().map_or(&[][..], |(_, family)| &family.rows);
        if alike.iter().any(|(_, family)| family.rows != rows) {
            return alike.iter().flat_map(|(_, family)| family.firsts()).collect::<FxHashSet<_>>().len();
        }
        let mut experts: Vec<u32> = alike.iter().flat_map(|(_, family)| &family.experts).copied().collect();
        experts.sort_unstable();
        experts.dedup();
        experts.len() * rows.len()
    });
    different.map(|count| count as u64).sum()
}

impl Words {
    /// How many parameters of single dispatches are those of a member of a family too.
    fn met(
        &self,
        families: &[(u32, &Family)],
        is_counted: impl Fn(u32) -> bool,
        fresh: &FxHashSet<&[u32]>,
    ) -> u64 {
        // Hardly any kernel has as many parameters.
        let mut lengths: Vec<usize> = families.iter().map(|(_, family)| family.base.len()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let of_length = |words: &&[u32]| lengths.contains(&words.len());
        let known = self.lengths.iter().any(|length| lengths.contains(length));
        let counted =
            self.params.iter().filter(|(_, id)| known && is_counted(**id)).map(|(words, _)| &words[..]);
        let single = counted.chain(fresh.iter().copied()).filter(of_length);
        single.filter(|words| families.iter().any(|(_, family)| family.holds(words))).count() as u64
    }
}
