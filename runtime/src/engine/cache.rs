//! What sequences leave behind for those that begin alike, and how much of it is kept.

use super::Engine;
use crate::RuntimeError;
use crate::pool::{CacheStats, NoRoom, Reserved};
use crate::request::Refused;
use crate::step::Stepper;
use plimsoll_kernels::step::PAGE;

impl<S: Stepper> Engine<S> {
    /// Sets the most bytes that are retained of sequences that have ended: their pages, and the snapshots of the plan
    /// that hold something. `None`, as it is from the beginning: as much as there are free pages and snapshots, which
    /// costs nothing, for the room is planned. What is more goes at once. 0 keeps nothing and looks for nothing.
    pub fn set_cache_limit(&mut self, limit: Option<u64>) {
        self.pool.set_cache_limit(limit);
    }

    /// Drops everything that is retained and is not in use: the bytes it took, which are room for sequences again. No
    /// memory of the device is freed by it: the room is the plan's.
    pub fn trim(&mut self) -> u64 {
        let bytes = self.pool.trim();
        self.tell("trim", [None]);
        bytes
    }

    /// What is retained, and how often it was of use.
    pub fn cache_stats(&self) -> CacheStats {
        self.pool.cache_stats()
    }

    /// A slot with room for `tokens` whose block tables are set, standing after what is known of the beginning of
    /// `sequence`; `None` when there is no room now.
    pub(super) fn take_slot(
        &mut self,
        tokens: u32,
        sequence: &[u32],
    ) -> Result<Option<Reserved>, RuntimeError> {
        let reserved = match self.pool.reserve_for(tokens, sequence) {
            Ok(reserved) => reserved,
            Err(NoRoom::Never { kind, need, most }) => {
                return Err(Refused::from(NoRoom::Never { kind, need, most }).into());
            }
            Err(_) => return Ok(None),
        };
        let (stepper, slot) = (&mut self.stepper, reserved.slot);
        let set = (0..)
            .zip(self.pool.tables(slot))
            .try_for_each(|(kind, pages)| stepper.set_block_table(kind, slot.index(), pages))
            .and_then(|()| match reserved.snapshot {
                Some(index) => stepper.restore(index, slot.index(), reserved.cached),
                None => Ok(()),
            });
        match set {
            Ok(()) => {
                stepper.begin(slot.index());
                Ok(Some(reserved))
            }
            Err(error) => {
                self.pool.release(slot);
                Err(error)
            }
        }
    }

    /// Where the steps of a sequence must end so that snapshots can be taken, the first last: at its last whole page, so
    /// that one that goes on from here or asks the same again finds it; and where others were alike so far, for they
    /// will not be the last.
    pub(super) fn marks(&self, tokens: usize, cached: u32, alike: u32) -> Vec<usize> {
        if !self.pool.takes_snapshots() {
            return Vec::new();
        }
        let page = PAGE as usize;
        let last = tokens.saturating_sub(1) / page * page;
        let mut marks: Vec<usize> =
            [last, alike as usize].into_iter().filter(|&mark| mark > cached as usize).collect();
        marks.dedup();
        marks
    }

    /// Takes the snapshots that are due, and makes the pages of prompts known that have been read.
    pub(super) fn settle(&mut self) {
        for running in &mut self.running {
            let (slot, done) = (running.slot, &running.tokens[..running.computed]);
            if running.marks.last() == Some(&running.computed) {
                running.marks.pop();
                if let Some(index) = self.pool.snapshot(slot, done) {
                    let length = done.len() as u32;
                    if let Err(error) = self.stepper.snapshot(slot.index(), length, index) {
                        // The request can do without.
                        tracing::warn!(%error, "no snapshot");
                        self.pool.forget_snapshot(slot, done);
                    }
                }
            }
            if !running.shared && running.computed >= running.prompt as usize {
                running.shared = true;
                self.pool.share(slot, done);
            }
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
