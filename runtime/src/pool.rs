//! The books of the paged KV pool: which physical page belongs to which slot.
//!
//! The pages themselves are allocated once, at load; here they only change hands. A request gets every page it can
//! ever need when it is admitted (prompt and answer together), so an admitted request cannot run out: what does not
//! fit now waits, what can never fit is refused. Layers of one kind hold the same tokens and share page numbers, so
//! the books are kept per kind, not per layer.
//!
//! * full attention: a slot holds `ceil(tokens / PAGE)` pages, logical page `n` at entry `n` of its table;
//! * sliding window: a slot holds the whole ring, logical page `n` at entry `n mod pages_per_slot`.
//!
//! Pages of full attention outlive the slot that wrote them, for sequences that begin alike: they are *retained*, which
//! is to say free, with contents that somebody may still want. A reservation takes them when nothing else is left.
//! While they are shared, nobody writes them: a slot writes from its first page that was not there on.

use crate::prefix::{BlockId, Prefix};
use plimsoll_estimator::plan::{KvKind, KvPlan};
use plimsoll_kernels::step::PAGE;
use thiserror::Error;

mod cache;
mod usage;
pub use cache::{CacheStats, Reserved};

/// Room for one sequence: an index below the plan's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// The index.
    pub fn index(self) -> u32 {
        self.0
    }
}

/// Why a reservation was not made. The books are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoRoom {
    /// Every slot is taken; one may come free.
    #[error("all {slots} slots are taken")]
    Slots {
        /// Slots of the plan.
        slots: u32,
    },
    /// Too few pages are free now; some may come free.
    #[error("KV kind {kind}: {need} pages are needed, {free} are free")]
    Pages {
        /// Index of the kind.
        kind: usize,
        /// Pages the sequence needs.
        need: u32,
        /// Pages free now.
        free: u32,
    },
    /// A slot can never hold as many tokens.
    #[error("KV kind {kind}: {need} pages are needed, a slot holds at most {most}")]
    Never {
        /// Index of the kind.
        kind: usize,
        /// Pages the sequence needs.
        need: u32,
        /// The most a slot holds.
        most: u32,
    },
}

/// A contradiction in the books: a defect of this crate, found by [`Pool::check`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("KV kind {kind}: {what}")]
pub struct BadBooks {
    /// Index of the kind.
    pub kind: usize,
    /// What does not add up.
    pub what: String,
}

#[derive(Debug)]
struct Kind {
    facts: KvKind,
    /// Free pages; the next to give out is the last.
    free: Vec<u32>,
    /// The block table of each slot: physical pages in logical order.
    held: Vec<Vec<u32>>,
}

impl Kind {
    fn pages_for(&self, tokens: u32) -> u32 {
        match self.facts.window {
            None => tokens.div_ceil(PAGE),
            Some(_) => self.facts.pages_per_slot,
        }
    }
}

/// What a slot that is taken holds.
#[derive(Debug, Default)]
struct Seat {
    /// Tokens reserved.
    tokens: u32,
    /// The blocks of its beginning that the index knows. Its page may be another than the block's: two slots may have
    /// computed the same.
    chain: Vec<BlockId>,
    /// Those of them that were made of its own pages.
    made: Vec<BlockId>,
}

/// Who holds which page.
#[derive(Debug)]
pub struct Pool {
    kinds: Vec<Kind>,
    /// Index of the kind whose pages can be shared.
    full: Option<usize>,
    /// `None` where a slot is free.
    slots: Vec<Option<Seat>>,
    prefix: Prefix,
    cache: cache::Facts,
    usage: usage::Facts,
}

impl Pool {
    /// The books of a plan's KV pool with `slots` slots, all free.
    pub fn new(plan: &KvPlan, slots: u32) -> Self {
        let kinds = plan.kinds.iter().map(|&facts| Kind {
            facts,
            free: (0..facts.pages).rev().collect(),
            held: vec![Vec::new(); slots as usize],
        });
        let windows = plan.kinds.iter().any(|kind| kind.window.is_some());
        Self {
            kinds: kinds.collect(),
            full: plan.kinds.iter().position(|kind| kind.window.is_none()),
            slots: (0..slots).map(|_| None).collect(),
            prefix: Prefix::new(windows, 0),
            cache: cache::Facts::of(plan),
            usage: usage::Facts::of(plan),
        }
    }

    /// Whether a slot could hold this many tokens if the pool were empty.
    ///
    /// # Errors
    /// [`NoRoom::Never`].
    pub fn could_hold(&self, tokens: u32) -> Result<(), NoRoom> {
        for (kind, books) in self.kinds.iter().enumerate() {
            let (need, most) = (books.pages_for(tokens), books.facts.pages_per_slot.min(books.facts.pages));
            if need > most {
                return Err(NoRoom::Never { kind, need, most });
            }
        }
        Ok(())
    }

    /// The slot that a sequence of this many tokens would get now. Nothing is taken.
    ///
    /// # Errors
    /// [`NoRoom`]: what it lacks.
    pub fn room(&self, tokens: u32) -> Result<usize, NoRoom> {
        self.room_for(tokens, &[])
    }

    /// The same for one that begins with these blocks.
    fn room_for(&self, tokens: u32, chain: &[BlockId]) -> Result<usize, NoRoom> {
        self.could_hold(tokens)?;
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            return Err(NoRoom::Slots { slots: self.slots.len() as u32 });
        };
        for (kind, books) in self.kinds.iter().enumerate() {
            let (mut need, mut free) = (books.pages_for(tokens), books.free.len() as u32);
            if self.full == Some(kind) {
                need = need.saturating_sub(chain.len() as u32);
                free += (self.prefix.idle() - self.prefix.idle_of(chain)) as u32;
            }
            if need > free {
                return Err(NoRoom::Pages { kind, need, free });
            }
        }
        Ok(slot)
    }

    /// Takes a slot, and the pages for `tokens` tokens of every kind: all or nothing.
    ///
    /// # Errors
    /// [`NoRoom`], with nothing taken.
    pub fn reserve(&mut self, tokens: u32) -> Result<Slot, NoRoom> {
        self.take(tokens, Vec::new())
    }

    /// Takes a slot that begins with these blocks.
    fn take(&mut self, tokens: u32, chain: Vec<BlockId>) -> Result<Slot, NoRoom> {
        let slot = self.room_for(tokens, &chain)?;
        for &block in &chain {
            self.prefix.hold(block);
        }
        for kind in 0..self.kinds.len() {
            let mut need = self.kinds[kind].pages_for(tokens) as usize;
            if self.full == Some(kind) {
                need = need.saturating_sub(chain.len());
                // There are enough: they were counted.
                while self.kinds[kind].free.len() < need && self.evict() {}
                let shared = chain.iter().filter_map(|&block| self.prefix.page(block));
                self.kinds[kind].held[slot].extend(shared);
            }
            let books = &mut self.kinds[kind];
            let rest = books.free.len().saturating_sub(need);
            books.held[slot].extend(books.free.drain(rest..).rev());
        }
        self.slots[slot] = Some(Seat { tokens, chain, made: Vec::new() });
        self.note_peak();
        Ok(Slot(slot as u32))
    }

    /// Gives back a slot and its pages. `false` when it was free already: nothing changes then.
    pub fn release(&mut self, slot: Slot) -> bool {
        self.vacate(slot).is_some()
    }

    fn vacate(&mut self, slot: Slot) -> Option<Seat> {
        let index = slot.0 as usize;
        let seat = self.slots.get_mut(index)?.take()?;
        for (kind, books) in self.kinds.iter_mut().enumerate() {
            for (at, page) in books.held[index].drain(..).enumerate().rev() {
                let block = seat.chain.get(at).filter(|_| self.full == Some(kind));
                if block.and_then(|&block| self.prefix.page(block)) != Some(page) {
                    books.free.push(page);
                }
            }
        }
        self.prefix.let_go(&seat.chain);
        if let Some(&last) = seat.chain.last() {
            self.prune(last);
        }
        self.keep_to_limit(0);
        Some(seat)
    }

    /// Tokens a slot has room for; `None` where it is free.
    pub fn reserved(&self, slot: Slot) -> Option<u32> {
        self.seat(slot).map(|seat| seat.tokens)
    }

    fn seat(&self, slot: Slot) -> Option<&Seat> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    /// The block table of a slot in every kind: physical pages in logical order; empty where the slot is free.
    pub fn tables(&self, slot: Slot) -> impl Iterator<Item = &[u32]> {
        self.kinds.iter().map(move |books| books.held.get(slot.0 as usize).map_or(&[][..], Vec::as_slice))
    }

    /// Slots that are free.
    pub fn free_slots(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_none()).count()
    }

    /// Free pages of each kind, those among them that are retained.
    pub fn free_pages(&self) -> impl ExactSizeIterator<Item = u32> {
        self.kinds.iter().enumerate().map(|(kind, books)| {
            let retained = if self.full == Some(kind) { self.prefix.idle() } else { 0 };
            (books.free.len() + retained) as u32
        })
    }

    /// Whether every slot is free, and with it every page.
    pub fn is_idle(&self) -> bool {
        self.free_slots() == self.slots.len()
    }

    /// Checks that every page is free, or shared, or held by exactly one slot, that each slot holds what it reserved,
    /// and that what is shared is counted right.
    ///
    /// # Errors
    /// [`BadBooks`] says what does not add up.
    pub fn check(&self) -> Result<(), BadBooks> {
        let chains = self.slots.iter().flatten().map(|seat| seat.chain.as_slice());
        self.prefix.check(chains).map_err(|what| BadBooks { kind: self.full.unwrap_or(0), what })?;
        for (kind, books) in self.kinds.iter().enumerate() {
            let wrong = |what: String| Err(BadBooks { kind, what });
            let mut owners = vec![0_u32; books.facts.pages as usize];
            let mut owned: Vec<u32> = books.free.clone();
            if self.full == Some(kind) {
                owned.extend(self.prefix.pages());
            }
            for (slot, (seat, held)) in self.slots.iter().zip(&books.held).enumerate() {
                let need = seat.as_ref().map_or(0, |seat| books.pages_for(seat.tokens)) as usize;
                if held.len() != need {
                    return wrong(format!("slot {slot} holds {} pages and needs {need}", held.len()));
                }
                let chain = seat.as_ref().filter(|_| self.full == Some(kind)).map_or(&[][..], |s| &s.chain);
                let shared = |at: usize| chain.get(at).and_then(|&block| self.prefix.page(block));
                let alone = held.iter().enumerate().filter(|&(at, &page)| shared(at) != Some(page));
                owned.extend(alone.map(|(_, page)| page));
            }
            for page in owned {
                match owners.get_mut(page as usize) {
                    Some(count) => *count += 1,
                    None => return wrong(format!("page {page} of {}", books.facts.pages)),
                }
            }
            if let Some(page) = owners.iter().position(|&count| count != 1) {
                return wrong(format!("page {page} has {} owners", owners[page]));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn kv(kinds: &[(Option<u32>, u32, u32)]) -> KvPlan {
        let kinds =
            kinds.iter().map(|&(window, pages_per_slot, pages)| KvKind { window, pages_per_slot, pages });
        KvPlan { kinds: kinds.collect(), layers: Vec::new() }
    }

    #[test]
    fn pages_follow_the_tokens_and_the_ring_is_whole() {
        let mut pool = Pool::new(&kv(&[(None, 4, 8), (Some(16), 2, 4)]), 2);
        let slot = pool.reserve(33).unwrap();
        assert_eq!(slot.index(), 0);
        assert_eq!(pool.free_pages().collect::<Vec<_>>(), [6, 2]);
        assert_eq!(pool.tables(slot).collect::<Vec<_>>(), [[0, 1], [0, 1]]);
        assert_eq!(pool.reserved(slot), Some(33));
        assert!(pool.release(slot));
        assert!(!pool.release(slot), "a second release changes nothing");
        pool.check().unwrap();
        assert!(pool.is_idle());
    }

    #[test]
    fn room_that_is_never_there_is_told_from_room_that_is_not_there_now() {
        let mut pool = Pool::new(&kv(&[(None, 4, 5)]), 2);
        assert_eq!(pool.reserve(129), Err(NoRoom::Never { kind: 0, need: 5, most: 4 }));
        let first = pool.reserve(128).unwrap();
        assert_eq!(pool.reserve(33), Err(NoRoom::Pages { kind: 0, need: 2, free: 1 }));
        pool.reserve(32).unwrap();
        assert_eq!(pool.reserve(1), Err(NoRoom::Slots { slots: 2 }));
        pool.release(first);
        pool.reserve(33).unwrap();
        pool.check().unwrap();
    }

    proptest! {
        #[test]
        fn nothing_leaks_whatever_the_order(
            full in 1_u32..6,
            ring in 1_u32..4,
            slots in 1_u32..5,
            spare in 0_u32..8,
            events in prop::collection::vec((any::<bool>(), 0_u32..220), 0..60),
        ) {
            let pages = (full * slots).saturating_sub(spare);
            let mut pool = Pool::new(&kv(&[(None, full, pages), (Some(40), ring, ring * slots)]), slots);
            let mut held = Vec::new();
            for (take, number) in events {
                if take {
                    let before: Vec<u32> = pool.free_pages().collect();
                    match pool.reserve(number) {
                        Ok(slot) => {
                            prop_assert!(!held.contains(&slot));
                            held.push(slot);
                        }
                        Err(_) => prop_assert_eq!(before, pool.free_pages().collect::<Vec<_>>()),
                    }
                } else if !held.is_empty() {
                    let slot = held.swap_remove(number as usize % held.len());
                    prop_assert!(pool.release(slot));
                }
                pool.check().unwrap();
            }
            for slot in held {
                pool.release(slot);
            }
            pool.check().unwrap();
            prop_assert!(pool.is_idle());
            prop_assert_eq!(pool.free_pages().collect::<Vec<_>>(), vec![pages, ring * slots]);
        }
    }
}
