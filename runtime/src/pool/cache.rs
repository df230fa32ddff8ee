//! What the pool keeps of sequences that have ended, and what it finds of those that begin alike.

use super::{NoRoom, Pool, Seat, Slot};
use crate::prefix::{BlockId, Prefix, ROOT};
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{KvPlan, View};
use plimsoll_kernels::step::PAGE;

/// What is retained, and how often it was of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheStats {
    /// Requests whose beginning was looked for.
    pub lookups: u64,
    /// Those that began with something known.
    pub hits: u64,
    /// Prompt tokens that were not computed again.
    pub tokens_reused: u64,
    /// Pages, each with its layers, and snapshots that gave way to others or to the limit.
    pub evictions: u64,
    /// Pages that no slot holds and that are kept for what they hold; each is a page of every full-attention layer.
    pub pages: u64,
    /// Snapshots that hold something.
    pub snapshots: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// The most bytes of both.
    pub limit: Option<u64>,
}

/// A slot, and what of its sequence is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The slot.
    pub slot: Slot,
    /// Tokens that need not be computed: their keys and values are in the slot's first pages.
    pub cached: u32,
    /// The snapshot that holds the rest of what the slot must have before it goes on.
    pub snapshot: Option<u32>,
    /// Tokens that others began with alike. More than `cached` where no snapshot ends there: one would be of use.
    pub alike: u32,
}

/// What the cache costs, and what it has done.
#[derive(Debug)]
pub(super) struct Facts {
    page_bytes: u64,
    snapshot_bytes: u64,
    limit: Option<u64>,
    stats: CacheStats,
}

impl Facts {
    /// Of a plan without snapshots.
    pub fn of(plan: &KvPlan) -> Self {
        let full = |kind: u32| plan.kinds.get(kind as usize).is_some_and(|kind| kind.window.is_none());
        let pages = plan.layers.iter().filter(|layer| full(layer.kind)).map(|layer| layer.page_bytes);
        let page_bytes = pages.fold(0, u64::saturating_add);
        Self { page_bytes, snapshot_bytes: 0, limit: None, stats: CacheStats::default() }
    }
}

impl Pool {
    /// The books of a plan: its KV pool and its snapshots.
    pub fn of(plan: &Plan) -> Self {
        let mut pool = Self::new(&plan.kv, plan.geometry.slots);
        let needed = pool.prefix.needs_snapshots() || !plan.recurrent.layers.is_empty();
        pool.prefix = Prefix::new(needed, u32::try_from(plan.snapshots.len()).unwrap_or(u32::MAX));
        let bytes = |views: &Vec<View>| views.iter().map(|view| view.bytes).fold(0, u64::saturating_add);
        pool.cache.snapshot_bytes = plan.snapshots.first().map_or(0, bytes);
        pool.usage.add_plan(plan);
        pool
    }

    /// Takes a slot as [`reserve`](Self::reserve) does, with as much as is known of the beginning of a sequence. Its
    /// last token is always left to compute, so that there are logits.
    ///
    /// # Errors
    /// [`NoRoom`], with nothing taken.
    pub fn reserve_for(&mut self, tokens: u32, sequence: &[u32]) -> Result<Reserved, NoRoom> {
        let looks = self.caches();
        let (_, before) = sequence.split_last().unwrap_or((&0, &[]));
        let mut chain = if looks { self.prefix.find(before) } else { Vec::new() };
        let alike = chain.len();
        chain.truncate(self.prefix.usable(&chain));
        let blocks = chain.len();
        let snapshot = chain.last().and_then(|&block| self.prefix.snapshot(block));
        let slot = self.take(tokens, chain)?;
        let [cached, alike] = [blocks, alike].map(|blocks| blocks as u32 * PAGE);
        let stats = &mut self.cache.stats;
        stats.lookups += u64::from(looks);
        stats.hits += u64::from(cached > 0);
        stats.tokens_reused += u64::from(cached);
        Ok(Reserved { slot, cached, snapshot, alike })
    }

    /// Whether anything is kept and looked for.
    fn caches(&self) -> bool {
        self.cache.limit != Some(0) && self.prefix.is_of_use()
    }

    /// Whether snapshots are taken: the plan has some, and they are needed and within the limit.
    pub fn takes_snapshots(&self) -> bool {
        let within = self.cache.limit.is_none_or(|limit| self.cache.snapshot_bytes <= limit);
        self.caches() && self.prefix.needs_snapshots() && within
    }

    /// Makes what a slot has computed known to others: `tokens` are those of its sequence whose keys and values stand
    /// in its pages. Where pages alone are not enough to go on from, nothing is done: see
    /// [`snapshot`](Self::snapshot).
    pub fn share(&mut self, slot: Slot, tokens: &[u32]) {
        if self.caches() && !self.prefix.needs_snapshots() {
            self.extend(slot, tokens);
        }
    }

    /// The snapshot into which to copy what a slot holds after `tokens`, whole pages of them; from now on they are known
    /// to end there. `None` where there is none to be had, or none needed.
    pub fn snapshot(&mut self, slot: Slot, tokens: &[u32]) -> Option<u32> {
        let blocks = tokens.as_chunks::<{ PAGE as usize }>();
        if !self.takes_snapshots() || blocks.0.is_empty() || !blocks.1.is_empty() {
            return None;
        }
        self.extend(slot, tokens);
        let chain = self.seat(slot)?.chain.clone();
        let block = *chain.get(blocks.0.len() - 1)?;
        if self.prefix.snapshot(block).is_some() || !self.keep_to_limit(self.cache.snapshot_bytes) {
            return None;
        }
        if self.prefix.free_snapshot().is_none() {
            let oldest = self.prefix.oldest_snapshot(&chain)?;
            self.drop_snapshot_of(oldest);
        }
        let index = self.prefix.free_snapshot()?;
        self.prefix.own(block, index);
        Some(index)
    }

    /// The snapshot that was promised was not made.
    pub fn forget_snapshot(&mut self, slot: Slot, tokens: &[u32]) {
        let last = (tokens.len() / PAGE as usize).saturating_sub(1);
        let block = self.seat(slot).and_then(|seat| seat.chain.get(last).copied());
        if let Some(block) = block {
            self.prefix.disown(block);
        }
    }

    /// Gives back a slot of which nothing may be kept: whatever it made known is forgotten again, unless somebody has
    /// already gone on from there.
    pub fn discard(&mut self, slot: Slot) -> bool {
        let Some(Seat { made, .. }) = self.vacate(slot) else { return false };
        for block in made.into_iter().rev() {
            let page = self.prefix.remove(block);
            self.give_back(page);
        }
        true
    }

    /// Sees to it that a slot holds a block for each whole page of these tokens: the one that is known, or a new one
    /// made of the slot's page.
    fn extend(&mut self, slot: Slot, tokens: &[u32]) {
        let index = slot.index() as usize;
        let Some(Some(seat)) = self.slots.get_mut(index) else { return };
        let pages = self.full.map(|full| self.kinds[full].held[index].as_slice());
        let blocks = tokens.as_chunks::<{ PAGE as usize }>().0;
        for (at, ids) in blocks.iter().enumerate().skip(seat.chain.len()) {
            let parent = seat.chain.last().copied().unwrap_or(ROOT);
            if let Some(known) = self.prefix.after(parent, ids) {
                self.prefix.hold(known);
                seat.chain.push(known);
                continue;
            }
            let page = match pages {
                Some(pages) => match pages.get(at) {
                    Some(&page) => Some(page),
                    // More tokens than were reserved.
                    None => return,
                },
                None => None,
            };
            let block = self.prefix.insert(parent, *ids, page);
            seat.chain.push(block);
            seat.made.push(block);
        }
    }

    /// Sets the most bytes that are retained, pages that no slot holds and snapshots together; `None`: as many as there
    /// are free pages and snapshots. What is more goes at once. 0 keeps nothing and looks for nothing.
    pub fn set_cache_limit(&mut self, limit: Option<u64>) {
        self.cache.limit = limit;
        self.keep_to_limit(0);
    }

    /// Drops everything that is retained: the bytes it took.
    pub fn trim(&mut self) -> u64 {
        let bytes = self.retained_bytes();
        while self.evict() || self.evict_snapshot() {}
        bytes
    }

    /// What is retained, and how often it was of use.
    pub fn cache_stats(&self) -> CacheStats {
        CacheStats {
            pages: if self.full.is_some() { self.prefix.idle() as u64 } else { 0 },
            snapshots: self.prefix.snapshots_used() as u64,
            bytes: self.retained_bytes(),
            limit: self.cache.limit,
            ..self.cache.stats
        }
    }

    /// Every block that is known and its page.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> std::collections::HashMap<BlockId, Option<u32>> {
        self.prefix.all()
    }

    /// Bytes of the pages that no slot holds and of the snapshots.
    pub fn retained_bytes(&self) -> u64 {
        let pages = self.cache.page_bytes.saturating_mul(self.prefix.idle() as u64);
        let each = self.cache.snapshot_bytes;
        pages.saturating_add(each.saturating_mul(self.prefix.snapshots_used() as u64))
    }

    /// Makes room for `more` bytes under the limit; `false` where there is not so much. What goes first is what nobody
    /// has used for longest.
    pub(super) fn keep_to_limit(&mut self, more: u64) -> bool {
        let Some(limit) = self.cache.limit else { return true };
        if more > limit {
            return false;
        }
        let something = |pool: &Self| pool.prefix.idle() + pool.prefix.snapshots_used() > 0;
        while self.retained_bytes().saturating_add(more) > limit || (limit == 0 && something(self)) {
            if !self.evict() && !self.evict_snapshot() {
                return false;
            }
        }
        true
    }

    /// Frees the page whose use is longest ago.
    pub(super) fn evict(&mut self) -> bool {
        let Some(block) = self.prefix.oldest() else { return false };
        self.cache.stats.evictions += 1;
        let before = self.prefix.parent(block);
        let page = self.prefix.remove(block);
        self.give_back(page);
        if let Some(before) = before {
            self.prune(before);
        }
        true
    }

    /// Frees the snapshot whose use is longest ago, of those whose blocks are held.
    fn evict_snapshot(&mut self) -> bool {
        self.prefix.oldest_snapshot(&[]).is_some_and(|oldest| self.drop_snapshot_of(oldest))
    }

    fn drop_snapshot_of(&mut self, block: BlockId) -> bool {
        let dropped = self.prefix.disown(block);
        self.cache.stats.evictions += u64::from(dropped);
        self.prune(block);
        dropped
    }

    /// Removes the end of a path that leads nowhere.
    pub(super) fn prune(&mut self, mut block: BlockId) {
        while let Some(before) = self.prefix.dead_end(block) {
            let page = self.prefix.remove(block);
            self.give_back(page);
            block = before;
        }
    }

    fn give_back(&mut self, page: Option<u32>) {
        if let (Some(full), Some(page)) = (self.full, page) {
            self.kinds[full].free.push(page);
        }
    }
}
