//! Faults on order: what tests use to see that a failed allocation, submit or map is an error and nothing worse, and
//! that a wrong kernel is noticed. Compiled with the feature `faults` only.

pub use crate::point::{Harm, Point};
use plimsoll_kernels::Kernel;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Gives the WGSL to compile for a kernel whose own is given.
pub type Mutation = Box<dyn Fn(&Kernel, String) -> String + Send + Sync>;

/// Which event fails next. Counters run down from the moment they are armed; each fails one event.
#[derive(Default)]
pub struct Faults {
    /// By point, then by harm.
    points: [[AtomicU64; 2]; Point::ALL.len()],
    map: AtomicU64,
    resize: AtomicU64,
    by: AtomicU64,
    mutation: RwLock<Option<Mutation>>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("armed", &self.armed()).finish_non_exhaustive()
    }
}

impl Faults {
    /// Harms the `n`-th event of this kind from now, counted from 1; 0 disarms.
    pub fn order(&self, point: Point, harm: Harm, n: u64) {
        self.points[point as usize][harm as usize].store(n, Ordering::Relaxed);
    }

    /// Events of this kind up to and with the one that is to be harmed; 0 where none is, or it has been.
    pub fn ahead(&self, point: Point, harm: Harm) -> u64 {
        self.points[point as usize][harm as usize].load(Ordering::Relaxed)
    }

    /// The `n`-th buffer creation from now fails, counted from 1; 0 disarms.
    pub fn fail_buffer(&self, n: u64) {
        self.order(Point::Buffer, Harm::Fail, n);
    }

    /// The `n`-th submit from now fails and its commands are dropped; 0 disarms.
    pub fn fail_submit(&self, n: u64) {
        self.order(Point::Submit, Harm::Fail, n);
    }

    /// The `n`-th map of a buffer (upload or readback) from now fails; 0 disarms.
    pub fn fail_map(&self, n: u64) {
        self.map.store(n, Ordering::Relaxed);
    }

    /// The device is destroyed at the `n`-th submit from now; 0 disarms.
    pub fn lose_device(&self, n: u64) {
        self.order(Point::Submit, Harm::Lose, n);
    }

    /// The `n`-th buffer creation from now makes one that is larger by `bytes`, counted from 1; 0 disarms.
    pub fn enlarge_buffer(&self, n: u64, bytes: u64) {
        self.by.store(bytes, Ordering::Relaxed);
        self.resize.store(n, Ordering::Relaxed);
    }

    /// Loads from now on compile what `mutation` makes of each kernel's WGSL; `None`: what the kernel says. For tests
    /// only: one that replaces a formula by a wrong one and still sees the same results checks nothing.
    pub fn mutate(&self, mutation: Option<Mutation>) {
        *self.mutation.write().unwrap_or_else(PoisonError::into_inner) = mutation;
    }

    /// The WGSL to compile for a kernel.
    pub(crate) fn mutated(&self, kernel: &Kernel, wgsl: String) -> String {
        match &*self.mutation.read().unwrap_or_else(PoisonError::into_inner) {
            None => wgsl,
            Some(mutation) => mutation(kernel, wgsl),
        }
    }

    fn counters(&self) -> impl Iterator<Item = &AtomicU64> {
        self.points.iter().flatten().chain([&self.map, &self.resize])
    }

    /// Whether an armed fault has not struck yet.
    pub fn armed(&self) -> bool {
        self.counters().any(|c| c.load(Ordering::Relaxed) > 0)
    }

    /// Takes every order back that has not been carried out.
    pub fn disarm(&self) {
        self.counters().for_each(|c| c.store(0, Ordering::Relaxed));
    }

    /// What is done at this event.
    pub(crate) fn at(&self, point: Point) -> Option<Harm> {
        let [fail, lose] = &self.points[point as usize];
        let map = matches!(point, Point::UploadMap | Point::ReadbackMap) && strikes(&self.map);
        // Each counts every event.
        match (strikes(fail) | map, strikes(lose)) {
            (_, true) => Some(Harm::Lose),
            (true, false) => Some(Harm::Fail),
            (false, false) => None,
        }
    }

    /// The size with which a buffer is created that should be of `bytes`.
    pub(crate) fn resized(&self, bytes: u64) -> u64 {
        if strikes(&self.resize) { bytes.saturating_add(self.by.load(Ordering::Relaxed)) } else { bytes }
    }
}

fn strikes(counter: &AtomicU64) -> bool {
    counter.load(Ordering::Relaxed) > 0
        && counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_event_of_its_kind_fails_and_no_other() {
        let faults = Faults::default();
        let five = |point| -> Vec<Option<Harm>> { (0..5).map(|_| faults.at(point)).collect() };
        assert_eq!(five(Point::Buffer), [None; 5]);
        for (at, point) in Point::ALL.into_iter().enumerate() {
            for harm in [Harm::Fail, Harm::Lose] {
                faults.order(point, harm, 3);
                assert_eq!(five(Point::ALL[(at + 1) % 8]), [None; 5]);
                assert!(faults.armed());
                assert_eq!(faults.ahead(point, harm), 3);
                assert_eq!(five(point), [None, None, Some(harm), None, None]);
                assert_eq!(faults.ahead(point, harm), 0);
                assert!(!faults.armed());
            }
        }
    }

    #[test]
    fn maps_of_either_kind_count_together_where_that_is_ordered() {
        let faults = Faults::default();
        faults.fail_map(2);
        assert_eq!(faults.at(Point::UploadMap), None);
        assert_eq!(faults.at(Point::Submit), None);
        assert_eq!(faults.at(Point::ReadbackMap), Some(Harm::Fail));
        faults.fail_map(1);
        faults.disarm();
        assert_eq!(faults.at(Point::UploadMap), None);
    }
}
