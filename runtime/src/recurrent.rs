//! Where the recurrent state of each slot stands: a state is what all tokens before it made of it, so only a step that
//! goes on exactly there, or one that begins anew, is right.

use crate::{RuntimeError, StepInput};
use plimsoll_estimator::Plan;

/// The next position of each slot.
#[derive(Debug)]
pub(crate) struct Standing {
    /// `None` where nobody knows: before the first step of a slot and after one that failed. Empty for plans without
    /// recurrent layers, whose steps may be at any position.
    next: Vec<Option<u32>>,
}

impl Standing {
    /// Of a plan that has just been loaded.
    pub fn new(plan: &Plan) -> Self {
        let slots = if plan.recurrent.layers.is_empty() { 0 } else { plan.geometry.slots };
        Self { next: vec![None; slots as usize] }
    }

    /// Whether every sequence goes on where its slot stands. Slots that the plan does not have are somebody else's to
    /// refuse.
    ///
    /// # Errors
    /// [`RuntimeError::Input`].
    pub fn check(&self, input: &StepInput<'_>) -> Result<(), RuntimeError> {
        for sequence in input.sequences {
            let Some(&next) = self.next.get(sequence.slot as usize) else { continue };
            if sequence.position == 0 || next == Some(sequence.position) {
                continue;
            }
            let expected = match next {
                None => "0: its recurrent state is unknown".to_owned(),
                Some(next) => format!("0 or {next}, where its recurrent state stands"),
            };
            let what = format!("position of slot {}", sequence.slot);
            return Err(RuntimeError::input(what, expected, sequence.position));
        }
        Ok(())
    }

    /// Whether a slot stands after so many tokens, where that matters.
    ///
    /// # Errors
    /// [`RuntimeError::Input`].
    pub fn check_at(&self, slot: u32, position: u32) -> Result<(), RuntimeError> {
        match self.next.get(slot as usize) {
            Some(&next) if next != Some(position) => {
                let expected = format!("{next:?}, where its recurrent state stands");
                Err(RuntimeError::input(format!("position of slot {slot}"), expected, position))
            }
            _ => Ok(()),
        }
    }

    /// A slot was put somewhere; nowhere while it is on its way.
    pub fn put(&mut self, slot: u32, position: Option<u32>) {
        if let Some(next) = self.next.get_mut(slot as usize) {
            *next = position;
        }
    }

    /// The step begins: until it is [`done`](Self::done) its slots stand nowhere.
    pub fn begin(&mut self, input: &StepInput<'_>) {
        self.set(input, |_, _| None);
    }

    /// The step was run to its end.
    pub fn done(&mut self, input: &StepInput<'_>) {
        self.set(input, |position, tokens| position.checked_add(tokens));
    }

    fn set(&mut self, input: &StepInput<'_>, to: impl Fn(u32, u32) -> Option<u32>) {
        for sequence in input.sequences {
            if let Some(next) = self.next.get_mut(sequence.slot as usize) {
                *next = to(sequence.position, sequence.ids.len() as u32);
            }
        }
    }
}
