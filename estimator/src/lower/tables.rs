//! What the dispatches of a plan share: pipelines and parameters.

use plimsoll_kernels::Kernel;
use rustc_hash::FxHashMap;

/// Kernels and parameter slots, each once.
#[derive(Default)]
pub(crate) struct Tables {
    pub kernels: Vec<Kernel>,
    kernel_ids: FxHashMap<Kernel, u32>,
    pub params: Vec<Vec<u32>>,
    params_ids: FxHashMap<Vec<u32>, u32>,
}

impl Tables {
    /// The index of this pipeline.
    pub fn kernel(&mut self, kernel: Kernel) -> u32 {
        let next = self.kernels.len() as u32;
        *self.kernel_ids.entry(kernel).or_insert_with_key(|k| {
            self.kernels.push(k.clone());
            next
        })
    }

    /// The slot of these words, shared with any dispatch that has the same.
    pub fn params(&mut self, words: Vec<u32>) -> u32 {
        let next = self.params.len() as u32;
        *self.params_ids.entry(words).or_insert_with_key(|w| {
            self.params.push(w.clone());
            next
        })
    }
}
