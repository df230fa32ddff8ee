//! Faults on order: what tests use to see that a failed allocation, submit or map is an error and nothing worse, and
//! that a wrong kernel is noticed. Compiled with the feature `faults` only.

use plimsoll_kernels::Kernel;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Gives the WGSL to compile for a kernel whose own is given.
pub type Mutation = Box<dyn Fn(&Kernel, String) -> String + Send + Sync>;

/// Which event fails next. Counters run down from the moment they are armed; each fails one event.
#[derive(Default)]
pub struct Faults {
    buffer: AtomicU64,
    submit: AtomicU64,
    map: AtomicU64,
    lose: AtomicU64,
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
    /// The `n`-th buffer creation from now fails, counted from 1; 0 disarms.
    pub fn fail_buffer(&self, n: u64) {
        self.buffer.store(n, Ordering::Relaxed);
    }

    /// The `n`-th submit from now fails and its commands are dropped; 0 disarms.
    pub fn fail_submit(&self, n: u64) {
        self.submit.store(n, Ordering::Relaxed);
    }

    /// The `n`-th map of a buffer (upload or readback) from now fails; 0 disarms.
    pub fn fail_map(&self, n: u64) {
        self.map.store(n, Ordering::Relaxed);
    }

    /// The device is destroyed at the `n`-th submit from now; 0 disarms.
    pub fn lose_device(&self, n: u64) {
        self.lose.store(n, Ordering::Relaxed);
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

    /// Whether an armed fault has not struck yet.
    pub fn armed(&self) -> bool {
        [&self.buffer, &self.submit, &self.map, &self.lose, &self.resize]
            .iter()
            .any(|c| c.load(Ordering::Relaxed) > 0)
    }

    pub(crate) fn buffer_fails(&self) -> bool {
        strikes(&self.buffer)
    }

    /// The size with which a buffer is created that should be of `bytes`.
    pub(crate) fn resized(&self, bytes: u64) -> u64 {
        if strikes(&self.resize) { bytes.saturating_add(self.by.load(Ordering::Relaxed)) } else { bytes }
    }

    pub(crate) fn submit_fails(&self) -> bool {
        strikes(&self.submit)
    }

    pub(crate) fn map_fails(&self) -> bool {
        strikes(&self.map)
    }

    pub(crate) fn device_goes(&self) -> bool {
        strikes(&self.lose)
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
    fn the_nth_event_fails_and_no_other() {
        let faults = Faults::default();
        assert!(!faults.buffer_fails());
        faults.fail_buffer(3);
        let struck: Vec<bool> = (0..5).map(|_| faults.buffer_fails()).collect();
        assert_eq!(struck, [false, false, true, false, false]);
        assert!(!faults.armed());
    }
}
