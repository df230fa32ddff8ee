//! What a [`Pricer`](crate::Pricer) keeps of the prices it has made: parts of programs under all that their lowering
//! looks at, and numbers for parameters and pipelines, so that those of several programs are counted without being
//! compared.

use crate::alike::Classes;
use crate::build::Cut;
use crate::error::PlanError;
use crate::geometry::Geometry;
use crate::lower::{Family, Index, Lowering, Members, NARROW, Part, Scratch, Shared, Summary, begun};
use crate::marks::Marks;
use crate::pricer::Price;
use plimsoll_kernels::Kernel;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicU32, Ordering};
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
    /// Different parameters in the families of parts, by their numbers.
    begun: RwLock<FxHashMap<Vec<u32>, u64>>,
    parts_begun: AtomicU32,
}

/// Bytes of each buffer of an arena, or what does not fit.
type Arena = Result<Arc<[u64]>, PlanError>;

/// Numbers of parameters and pipelines, so that those of several programs are counted once without being compared.
#[derive(Debug, Default)]
struct Words {
    params: FxHashMap<Arc<[u32]>, u32>,
    /// Those of each number.
    numbered: Vec<Arc<[u32]>>,
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
    /// Its number, where it has families of many beginnings.
    id: Option<u32>,
    params: Vec<u32>,
    /// Parameters that might be those of a KV range too.
    like_ranges: Vec<(u32, [u32; 4])>,
    /// The base of each layer of a family of many beginnings, and its index.
    begun: Vec<(u32, usize)>,
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
            || read(&self.begun, |b| b.len()) > KEPT
            || read(&self.words, |w| w.numbered.len()) > KEPT_WORDS
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
            Part::Tokens => 0,
            Part::Rows => {
                inputs[..2].copy_from_slice(&[step.ids, step.rows]);
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
            let classes = shared.prepared.facts.places();
            Arc::new(self.known(classes, Lowering::summary(shared, part, max_tokens, None)))
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
    fn known(&self, classes: &Classes, mut sum: Summary) -> Known {
        let mut words = self.words.write().unwrap_or_else(PoisonError::into_inner);
        let (mut params, mut like_ranges, mut met) = (Vec::new(), Vec::new(), Marks::default());
        let mut take = |words: &mut Words, param: &[u32]| {
            let id = words.number(param);
            match <[u32; 4]>::try_from(param) {
                Ok(range) => like_ranges.push((id, range)),
                Err(_) if met.mark(id) => params.push(id),
                Err(_) => {}
            }
        };
        std::mem::take(&mut sum.params).iter().for_each(|param| take(&mut words, param));
        let mut begun = Vec::new();
        for (index, family) in sum.families.iter().enumerate().filter(|(_, family)| !family.is_one()) {
            let bases = Members::new(family, &sum.layers, classes).bases();
            begun.extend(bases.into_iter().map(|base| (words.number(&base), index)));
        }
        let kernels = std::mem::take(&mut sum.kernels).into_iter().map(|kernel| {
            let next = words.kernels.len() as u32;
            *words.kernels.entry(kernel).or_insert(next)
        });
        let kernels = kernels.collect();
        let id = (!begun.is_empty()).then(|| self.parts_begun.fetch_add(1, Ordering::Relaxed));
        Known { id, params, like_ranges, begun, kernels, sum }
    }

    /// Different parameters, those of the ranges with them, and different pipelines.
    pub fn count(
        &self,
        classes: &Classes,
        programs: &[Arc<Known>],
        readers: &[Summary],
        cut: &Cut,
    ) -> (u64, u32) {
        let (mut params, mut kernels) = (Marks::default(), Marks::default());
        let mut ids: Vec<u32> = Vec::new();
        for known in programs {
            let more = known.like_ranges.iter().filter(|(_, words)| !cut.holds(*words));
            let more = more.map(|&(id, _)| id);
            ids.extend(known.params.iter().copied().chain(more).filter(|&id| params.mark(id)));
            for &id in &known.kernels {
                kernels.mark(id);
            }
        }
        // Families whose bases have numbers, and the others.
        let (mut old, mut made): (Vec<Members<'_>>, Vec<Members<'_>>) = Default::default();
        for known in programs {
            for one in members(&known.sum, classes) {
                if one.is_one() { made.push(one) } else { old.push(one) }
            }
        }
        made.extend(readers.iter().flat_map(|sum| members(sum, classes)));
        let ids_begun = programs.iter().filter_map(|known| known.id).collect();
        let begun = kept(&self.begun, ids_begun, |_| {
            let bases = programs.iter().flat_map(|known| {
                let family = |index: usize| known.sum.families.get(index);
                known.begun.iter().filter_map(move |&(base, index)| Some((base, family(index)?)))
            });
            begun(&mut bases.collect::<Vec<(u32, &Family)>>())
        });
        let mut fresh: FxHashSet<&[u32]> = FxHashSet::default();
        let mut unseen: FxHashSet<&Kernel> = FxHashSet::default();
        let params = read(&self.words, |words| {
            for sum in readers {
                for param in &sum.params {
                    match words.params.get(&param[..]) {
                        _ if <[u32; 4]>::try_from(&param[..]).is_ok_and(|range| cut.holds(range)) => {}
                        Some(&id) if params.mark(id) => ids.push(id),
                        Some(_) => {}
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
            let known = ids.iter().filter_map(|&id| words.numbered.get(id as usize)).map(|words| &words[..]);
            let single = known.chain(fresh.iter().copied());
            // Hardly any kernels have as many parameters.
            if made.iter().any(|one| old.iter().any(|other| one.length() == other.length())) {
                old.extend(made);
                let mut index = Index::new(&old);
                return index.count() + single.filter(|words| !index.holds(words)).count() as u64;
            }
            let lengths = old.iter().fold(0, |lengths, m| lengths | bit(m.length()));
            let mut found: Option<Index<'_>> = None;
            let mut made = Index::new(&made);
            let mut held = |words: &[u32]| {
                made.holds(words)
                    || bit(words.len()) & lengths != 0
                        && found.get_or_insert_with(|| Index::new(&old)).holds(words)
            };
            let single = single.filter(|words| !held(words)).count() as u64;
            begun + made.count() + single
        });
        // The ranges, and the one that covers any position.
        let ranges = u64::from(cut.count) + 1;
        (ranges + params, kernels.count + unseen.len() as u32)
    }
}

/// The families of a summary with their layers.
fn members<'a>(sum: &'a Summary, classes: &'a Classes) -> impl Iterator<Item = Members<'a>> {
    sum.families.iter().map(|family| Members::new(family, &sum.layers, classes))
}

/// A bit for a length, of 64.
fn bit(length: usize) -> u64 {
    1 << (length % 64)
}

impl Words {
    /// The number of parameters.
    fn number(&mut self, param: &[u32]) -> u32 {
        if let Some(&id) = self.params.get(param) {
            return id;
        }
        let (id, param) = (self.numbered.len() as u32, Arc::<[u32]>::from(param));
        self.numbered.push(param.clone());
        self.params.insert(param, id);
        id
    }
}
