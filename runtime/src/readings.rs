//! Where readings of free memory come from while a plan is loaded: the live adapter, or a feed of somebody's own.
//!
//! Every decision takes a reading of its own: an admission, a load, the beginning of a prompt. None is kept for the next
//! one; what is kept is what a load saw last, to say how much the machine has changed since.

use crate::memory::{MemoryReading, MemorySource};
use crate::{RuntimeError, StepInput};
use plimsoll_estimator::verdict::Lasts;
use plimsoll_estimator::{Admitted, Budget, grouped};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::fmt::{self, Debug};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answers how much memory is free, whenever somebody decides something.
pub trait MemoryFeed: Debug + Send + Sync {
    /// Free memory now.
    fn read(&self) -> MemoryReading;
}

/// A feed that says what it is told to say.
#[derive(Debug, Default)]
pub struct Simulated {
    available: Mutex<Option<u64>>,
    asked: AtomicUsize,
}

impl Simulated {
    /// A feed of so many free bytes; `None` says nothing.
    pub fn new(available: Option<u64>) -> Self {
        Self { available: Mutex::new(available), asked: AtomicUsize::new(0) }
    }

    /// From now on so many bytes are free.
    pub fn set(&self, available: Option<u64>) {
        if let Ok(mut held) = self.available.lock() {
            *held = available;
        }
    }

    /// How often it was read.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl MemoryFeed for Simulated {
    fn read(&self) -> MemoryReading {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let available = self.available.lock().map_or(None, |held| *held);
        // What more it may say later nobody knows.
        let of = MemoryReading::new(available.map(|bytes| (bytes, bytes)), MemorySource::Simulated);
        MemoryReading { total: None, ..of }
    }
}

/// Free memory at the end of a load, and later: what others took or gave back, since the plan takes nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryChange {
    /// When the load ended.
    pub then: MemoryReading,
    /// Later.
    pub now: MemoryReading,
}

impl MemoryChange {
    /// Bytes that are free now and were not then; negative where it is less. `None` where either said nothing.
    pub fn difference(&self) -> Option<i128> {
        Some(i128::from(self.now.available?) - i128::from(self.then.available?))
    }

    /// Whether it is worth a word: a sixteenth of what was free, up or down.
    pub fn is_large(&self) -> bool {
        match (self.difference(), self.then.available) {
            (Some(difference), Some(then)) => difference.unsigned_abs() >= u128::from(then / 16).max(1),
            _ => false,
        }
    }
}

impl fmt::Display for MemoryChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), grouped);
        write!(f, "{} after the load, {} now", said(self.then.available), said(self.now.available))?;
        if let Some(difference) = self.difference() {
            let sign = if difference < 0 { "-" } else { "+" };
            let bytes = u64::try_from(difference.unsigned_abs()).unwrap_or(u64::MAX);
            write!(f, ", {sign}{}", grouped(bytes))?;
        }
        write!(f, ", by {}", self.now.named())
    }
}

impl Serialize for MemoryChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("MemoryChange", 3)?;
        map.serialize_field("then", &self.then)?;
        map.serialize_field("now", &self.now)?;
        // Differences of u64 are more than JSON's readers take; those of memories are not.
        let difference = self.difference().and_then(|difference| i64::try_from(difference).ok());
        map.serialize_field("difference", &difference)?;
        map.end()
    }
}

/// Which sequences begin, and what was free when the last one did.
#[derive(Debug)]
pub(crate) struct Watch {
    then: MemoryReading,
    /// Slots whose next step is the first of a sequence.
    begun: Vec<bool>,
    last: Option<MemoryChange>,
}

impl Watch {
    /// From the end of a load on, of so many slots.
    pub(crate) fn new(then: MemoryReading, slots: u32) -> Self {
        Self { then, begun: vec![false; slots as usize], last: None }
    }

    /// Against a reading of now.
    pub(crate) fn change(&self, now: MemoryReading) -> MemoryChange {
        MemoryChange { then: self.then.clone(), now }
    }

    /// What was seen when the last sequence began.
    pub(crate) fn last(&self) -> Option<&MemoryChange> {
        self.last.as_ref()
    }

    /// A sequence begins in this slot. Its first step tells nothing of that by its position: it goes on where what is
    /// known of its beginning ends, and that may be where the sequence before it ended.
    pub(crate) fn begin(&mut self, slot: u32) {
        if let Some(begun) = self.begun.get_mut(slot as usize) {
            *begun = true;
        }
    }

    /// Reads what is free if a sequence begins with this step: it was said to, or is at its first token. Nothing is
    /// allocated for it, so less is no reason to refuse it, and is told.
    pub(crate) fn see(&mut self, input: &StepInput<'_>, read: impl FnOnce() -> MemoryReading) {
        let mut begins = false;
        for sequence in input.sequences {
            let said = self.begun.get_mut(sequence.slot as usize).is_some_and(std::mem::take);
            begins |= said || sequence.position == 0;
        }
        if !begins {
            return;
        }
        let change = self.change(read());
        let (source, available) = (change.now.named(), change.now.available);
        let difference = change.difference();
        if change.is_large() {
            tracing::warn!(source, available, ?difference, "free memory has changed since the load");
        } else {
            tracing::debug!(source, available, ?difference, "a sequence begins");
        }
        self.last = Some(change);
    }
}

/// Holds an admitted plan against what is free now, before anything of it is allocated. A reading that has fallen since
/// the admission refuses it, and one that says nothing does not; nor is anybody's word against the budget's asked again.
pub(crate) fn still_fits(admitted: &Admitted, now: &MemoryReading) -> Result<(), RuntimeError> {
    let Some(budget) = admitted.budget() else { return Ok(()) };
    tracing::info!(bytes = budget.bytes, why = budget.why, overridden = admitted.overridden(), "budget");
    let (Some(then), Some(reading), false) = (&budget.derived, now.reading(), admitted.overridden()) else {
        return Ok(());
    };
    let difference = i128::from(reading.bytes) - i128::from(then.bytes);
    let Some(again) = budget.again(Some(reading)) else { return Ok(()) };
    tracing::info!(bytes = again.bytes, %difference, "budget at load");
    let (total, peak) = (admitted.plan().total(), admitted.plan().load_peak());
    // The ceiling is for what is there after the load; what was read must hold the load, too.
    let (need, have, lasts) = match again.load_room() {
        _ if total > again.bytes => (total, again.bytes, Lasts::of(total, &again)),
        Some(room) if peak > room => {
            (peak, room, Lasts::of(peak, &Budget { requested: None, ..again.clone() }))
        }
        _ => return Ok(()),
    };
    let (then, source_of) = (budget.bytes, again.source);
    Err(RuntimeError::NoRoom { need, have, then, source_of, lasts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_counted_up_and_down() {
        let feed = Simulated::new(Some(1600));
        let then = feed.read();
        for (now, difference, large) in [
            (Some(1600), Some(0), false),
            (Some(1501), Some(-99), false),
            (Some(1500), Some(-100), true),
            (Some(1700), Some(100), true),
            (Some(0), Some(-1600), true),
            (Some(u64::MAX), Some(i128::from(u64::MAX) - 1600), true),
            (None, None, false),
        ] {
            feed.set(now);
            let change = MemoryChange { then: then.clone(), now: feed.read() };
            assert_eq!((change.difference(), change.is_large()), (difference, large), "{now:?}");
            let text = change.to_string();
            let said = match now {
                Some(1500) => "1,600 after the load, 1,500 now, -100, by simulated",
                Some(1700) => "1,600 after the load, 1,700 now, +100, by simulated",
                Some(1600) => "1,600 after the load, 1,600 now, +0, by simulated",
                None => "1,600 after the load, unknown now, by unknown",
                Some(_) => continue,
            };
            assert_eq!(text, said);
        }
        assert_eq!(feed.asked(), 8);
        // A machine that had nothing, and still has.
        let none = MemoryReading::new(Some((0, 0)), MemorySource::Simulated);
        assert!(!MemoryChange { then: none.clone(), now: none }.is_large());
    }
}
