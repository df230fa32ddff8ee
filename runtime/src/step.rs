//! What one forward takes and gives: the seam between the executor, which knows a GPU, and the scheduler and
//! sampler above it, which do not.

use crate::RuntimeError;
use crate::telemetry::{Telemetry, Usage};
use plimsoll_estimator::Plan;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which positions of a sequence's new tokens want logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// None: the middle of a prompt.
    #[default]
    None,
    /// The last new token's: what the next token is chosen from.
    Last,
    /// Every new token's: scoring.
    All,
}

impl Wanted {
    /// Rows wanted of `tokens` new tokens.
    pub fn rows(self, tokens: u32) -> u32 {
        match self {
            Wanted::None => 0,
            Wanted::Last => tokens.min(1),
            Wanted::All => tokens,
        }
    }
}

/// The new tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceInput<'a> {
    /// Its slot, under `geometry.slots`; a slot appears once in a step.
    pub slot: u32,
    /// Position of the first new token: how many tokens of the sequence earlier steps have taken. 0 begins a
    /// sequence, whatever the slot held before.
    pub position: u32,
    /// The new tokens, at least one.
    pub ids: &'a [u32],
    /// Which logits are wanted.
    pub wanted: Wanted,
}

/// What is read back of the wanted rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// Nothing; no sequence may want rows.
    #[default]
    None,
    /// The largest logit of each row.
    Greedy,
    /// The [`TOP_K`](plimsoll_estimator::plan::TOP_K) largest logits of each row.
    TopK,
    /// Whole rows.
    Logits,
}

/// Asks a step to stop. Clones share the flag; it is looked at between submits.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is down.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag; it stays up.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the flag is up.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// One forward over the new tokens of some sequences.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInput<'a> {
    /// In the order in which tokens, and so rows, are laid out.
    pub sequences: &'a [SequenceInput<'a>],
    /// What to read back.
    pub sampling: Sampling,
    /// Looked at before every submit.
    pub cancel: Option<&'a Cancel>,
}

impl StepInput<'_> {
    /// `T`.
    pub fn tokens(&self) -> u64 {
        self.sequences.iter().map(|s| s.ids.len() as u64).sum()
    }

    /// `R`.
    pub fn logit_rows(&self) -> u64 {
        self.sequences.iter().map(|s| u64::from(s.wanted.rows(s.ids.len() as u32))).sum()
    }
}

/// The largest logits of one row, largest first; equal ones by rising id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// Token ids and logits.
    pub best: Vec<(u32, f32)>,
    /// `ln Σ exp(logit)` over the whole row: `logit − log_sum_exp` is a log-probability.
    pub log_sum_exp: f32,
}

/// What was read back, rows in the order of the sequences and then of their tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StepOutput {
    /// Nothing was asked for.
    #[default]
    None,
    /// One candidate a row for [`Sampling::Greedy`], up to `TOP_K` for [`Sampling::TopK`].
    Candidates(Vec<Candidates>),
    /// `[R, V]`, row after row.
    Logits {
        /// `V`.
        vocab: u32,
        /// Values.
        values: Vec<f32>,
    },
}

/// Something that runs steps of a plan. The executor does it on a device; tests of the scheduler do it without.
pub trait Stepper {
    /// The plan it runs.
    fn plan(&self) -> &Plan;

    /// Sets the physical pages of a slot: entry `n` of `pages` is logical page `n`, in full-attention kinds page
    /// `n` of the sequence and in sliding ones cell `n` of the ring. At most `pages_per_slot` entries; those not
    /// given are never read. Takes effect with the next step.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] for a kind, slot or page that the plan does not have.
    fn set_block_table(&mut self, kind: u32, slot: u32, pages: &[u32]) -> Result<(), RuntimeError>;

    /// What is known about memory now, of a pool in this use by so many requests that run and that wait. `None` of what
    /// runs on no device.
    fn telemetry(&self, usage: Usage, requests: [usize; 2]) -> Option<Telemetry>;

    /// A sequence begins in this slot: the next step with it is that sequence's first, wherever it goes on from what is
    /// there of its beginning already. Nothing of the slot changes; who decides by what is free looks then.
    fn begin(&mut self, slot: u32);

    /// Copies what a slot that stands after `position` tokens keeps beside pages of full attention (recurrent states, the
    /// last tokens of windows) into a snapshot of the plan. `position` is whole pages.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] for a snapshot or slot that the plan does not have, and for a slot that does not stand
    /// there; device errors.
    fn snapshot(&mut self, slot: u32, position: u32, index: u32) -> Result<(), RuntimeError>;

    /// Copies a snapshot that was taken after `position` tokens into a slot whose block tables are set. With the pages
    /// of full attention of those tokens it then stands there, as the slot did that the snapshot is of.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] for a snapshot or slot that the plan does not have; device errors, after which the slot
    /// stands nowhere.
    fn restore(&mut self, index: u32, slot: u32, position: u32) -> Result<(), RuntimeError>;

    /// Runs one forward.
    ///
    /// Of a plan that keeps nothing but keys and values, a step that fails or is cancelled has written them at the
    /// positions of its new tokens and nowhere else, so the same step can simply be run again.
    ///
    /// A recurrent layer folds every token into one state, which a step changes for good. Of a plan with such layers a
    /// sequence goes on exactly where its last step ended or begins again at position 0, and the sequences of a step
    /// that failed or was cancelled must be read again from position 0: their states are unknown.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] when the step does not fit the plan, or its recurrent state; nothing has run then, and
    /// nothing has changed. [`RuntimeError::Cancelled`]; device errors.
    fn step(&mut self, input: &StepInput<'_>) -> Result<StepOutput, RuntimeError>;
}
