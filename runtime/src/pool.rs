//! The books of the paged KV pool: which physical page belongs to which slot.
//!
//! The pages themselves are allocated once, at load; here they only change hands. A request gets every page it can
//! ever need when it is admitted (prompt and answer together), so an admitted request cannot run out: what does not
//! fit now waits, what can never fit is refused. Layers of one kind hold the same tokens and share page numbers, so
//! the books are kept per kind, not per layer.
//!
//! * full attention: a slot holds `ceil(tokens / PAGE)` pages, logical page `n` at entry `n` of its table;
//! * sliding window: a slot holds the whole ring, logical page `n` at entry `n mod pages_per_slot`.

use plimsoll_estimator::plan::{KvKind, KvPlan};
use plimsoll_kernels::step::PAGE;
use thiserror::Error;

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

/// Who holds which page.
#[derive(Debug)]
pub struct Pool {
    kinds: Vec<Kind>,
    /// Tokens reserved by each slot; `None` where it is free.
    slots: Vec<Option<u32>>,
}

impl Pool {
    /// The books of a plan's KV pool with `slots` slots, all free.
    pub fn new(plan: &KvPlan, slots: u32) -> Self {
        let kinds = plan.kinds.iter().map(|&facts| Kind {
            facts,
            free: (0..facts.pages).rev().collect(),
            held: vec![Vec::new(); slots as usize],
        });
        Self { kinds: kinds.collect(), slots: vec![None; slots as usize] }
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
        self.could_hold(tokens)?;
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            return Err(NoRoom::Slots { slots: self.slots.len() as u32 });
        };
        for (kind, books) in self.kinds.iter().enumerate() {
            let (need, free) = (books.pages_for(tokens), books.free.len() as u32);
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
        let slot = self.room(tokens)?;
        for books in &mut self.kinds {
            let rest = books.free.len() - books.pages_for(tokens) as usize;
            books.held[slot].extend(books.free.drain(rest..).rev());
        }
        self.slots[slot] = Some(tokens);
        Ok(Slot(slot as u32))
    }

    /// Gives back a slot and its pages. `false` when it was free already: nothing changes then.
    pub fn release(&mut self, slot: Slot) -> bool {
        let index = slot.0 as usize;
        if self.slots.get_mut(index).and_then(Option::take).is_none() {
            return false;
        }
        for books in &mut self.kinds {
            books.free.extend(books.held[index].drain(..).rev());
        }
        true
    }

    /// Tokens a slot has room for; `None` where it is free.
    pub fn reserved(&self, slot: Slot) -> Option<u32> {
        self.slots.get(slot.0 as usize).copied().flatten()
    }

    /// The block table of a slot in every kind: physical pages in logical order; empty where the slot is free.
    pub fn tables(&self, slot: Slot) -> impl Iterator<Item = &[u32]> {
        self.kinds.iter().map(move |books| books.held.get(slot.0 as usize).map_or(&[][..], Vec::as_slice))
    }

    /// Slots that are free.
    pub fn free_slots(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_none()).count()
    }

    /// Free pages of each kind.
    pub fn free_pages(&self) -> impl ExactSizeIterator<Item = u32> {
        self.kinds.iter().map(|books| books.free.len() as u32)
    }

    /// Whether everything is free.
    pub fn is_idle(&self) -> bool {
        self.free_slots() == self.slots.len()
    }

    /// Checks that every page is either free or held by exactly one slot, and that each slot holds what it reserved.
    ///
    /// # Errors
    /// [`BadBooks`] says what does not add up.
    pub fn check(&self) -> Result<(), BadBooks> {
        for (kind, books) in self.kinds.iter().enumerate() {
            let wrong = |what: String| Err(BadBooks { kind, what });
            for (slot, (reserved, held)) in self.slots.iter().zip(&books.held).enumerate() {
                let need = reserved.map_or(0, |tokens| books.pages_for(tokens)) as usize;
                if held.len() != need {
                    return wrong(format!("slot {slot} holds {} pages and needs {need}", held.len()));
                }
            }
            let mut owners = vec![0_u32; books.facts.pages as usize];
            for &page in books.held.iter().flatten().chain(&books.free) {
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
