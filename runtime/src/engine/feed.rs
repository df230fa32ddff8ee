//! Feeding a sequence by hand and looking at its logits: for scoring and for checking, not for serving.

use super::Engine;
use crate::pool::Slot;
use crate::request::{Refused, check_ids};
use crate::step::{Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted};
use crate::{Cancel, RuntimeError};
use std::ops::Range;

/// A sequence whose tokens are given and whose logits are seen. It holds a slot until it is dropped.
pub struct Feed<'e, S: Stepper> {
    engine: &'e mut Engine<S>,
    slot: Slot,
    length: u32,
    room: u32,
    cancel: Option<Cancel>,
    /// A step failed, and with it went the recurrent state.
    lost: bool,
}

impl<S: Stepper> Engine<S> {
    /// Opens a sequence of at most `room` tokens.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] when the context is smaller; [`RuntimeError::Busy`] when no slot is free, or too few pages are.
    pub fn feed(&mut self, room: usize) -> Result<Feed<'_, S>, RuntimeError> {
        let room = self.check_room(room, 0)?;
        match self.take_slot(room)? {
            Some(slot) => Ok(Feed { engine: self, slot, length: 0, room, cancel: None, lost: false }),
            None => {
                let lacks = self.pool.room(room).err();
                Err(RuntimeError::Busy { waiting: self.waiting.len(), limit: 0, lacks })
            }
        }
    }
}

impl<S: Stepper> Feed<'_, S> {
    /// Tokens taken so far.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Lets `cancel` end a [`push`](Feed::push) between submits, with [`RuntimeError::Cancelled`].
    pub fn on_cancel(&mut self, cancel: Cancel) {
        self.cancel = Some(cancel);
    }

    /// Appends tokens, in as many steps as the plan's chunk and logit rows ask for, and shows the logits `[V]` after
    /// each of `ids[from..]`: `see(i, logits)` has those that follow `ids[i]`.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] for no tokens, unknown ones, or more than there is room for, before anything runs.
    /// After an error of `see` the tokens of the steps so far are part of the sequence.
    ///
    /// After an error of a step (one that was cancelled too) its tokens are not part of the sequence; earlier ones are,
    /// and it can go on. Not so where the plan has recurrent layers: the sequence is lost with the step, every further
    /// push is [`RuntimeError::SequenceLost`], and its tokens must be fed again to a new one.
    pub fn push(
        &mut self,
        ids: &[u32],
        from: usize,
        mut see: impl FnMut(usize, &[f32]) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        if self.lost {
            return Err(RuntimeError::SequenceLost { tokens: self.length });
        }
        check_ids(self.engine.plan().model.vocab, ids)?;
        let more = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if more > self.room - self.length {
            return Err(Refused::TooLong { prompt: self.length, max_new: more, context: self.room }.into());
        }
        let geometry = &self.engine.stepper.plan().geometry;
        let pieces = pieces(ids.len(), from, geometry.prefill_chunk as usize, geometry.logit_rows as usize);
        for (range, wanted) in pieces {
            let first = match wanted {
                Wanted::All => range.start,
                Wanted::Last | Wanted::None => range.end - 1,
            };
            let sequence = SequenceInput {
                slot: self.slot.index(),
                position: self.length,
                ids: &ids[range.clone()],
                wanted,
            };
            let sampling = if wanted == Wanted::None { Sampling::None } else { Sampling::Logits };
            let input = StepInput { sequences: &[sequence], sampling, cancel: self.cancel.as_ref() };
            let rows = input.logit_rows() as usize;
            let output = match self.engine.stepper.step(&input) {
                Ok(output) => output,
                Err(error) => {
                    self.lost = !self.engine.plan().recurrent.layers.is_empty();
                    return Err(error);
                }
            };
            self.length += range.len() as u32;
            match output {
                _ if rows == 0 => {}
                StepOutput::Logits { vocab, values } if values.len() == rows * vocab as usize => {
                    for (row, logits) in values.chunks_exact(vocab.max(1) as usize).enumerate() {
                        see(first + row, logits)?;
                    }
                }
                _ => return Err(RuntimeError::input("rows read back", rows, "others")),
            }
        }
        Ok(())
    }
}

impl<S: Stepper> Drop for Feed<'_, S> {
    fn drop(&mut self) {
        self.engine.pool.release(self.slot);
    }
}

/// Cuts `len` tokens, those from `from` on with logits, into steps.
fn pieces(len: usize, from: usize, chunk: usize, rows: usize) -> Vec<(Range<usize>, Wanted)> {
    let from = from.min(len);
    let (chunk, rows) = (chunk.max(1), rows.clamp(1, chunk.max(1)));
    let mut pieces = Vec::new();
    // One row at the end can ride with the tokens before it.
    let only_last = from + 1 == len;
    let (plain, mut start) = (if only_last { len } else { from }, 0);
    while start < plain {
        let end = (start + chunk).min(plain);
        let wanted = if only_last && end == len { Wanted::Last } else { Wanted::None };
        pieces.push((start..end, wanted));
        start = end;
    }
    while start < len {
        let end = (start + rows).min(len);
        pieces.push((start..end, Wanted::All));
        start = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_row_rides_along() {
        assert_eq!(pieces(5, 4, 4, 1), [(0..4, Wanted::None), (4..5, Wanted::Last)]);
        assert_eq!(pieces(4, 3, 4, 1), [(0..4, Wanted::Last)]);
        assert_eq!(pieces(3, 3, 4, 1), [(0..3, Wanted::None)]);
        assert_eq!(pieces(5, 2, 4, 2), [(0..2, Wanted::None), (2..4, Wanted::All), (4..5, Wanted::All)]);
    }

    proptest! {
        #[test]
        fn every_token_is_fed_once_and_every_row_seen_once(
            len in 0_usize..60, from in 0_usize..70, chunk in 1_usize..20, rows in 1_usize..20,
        ) {
            let (mut at, mut seen) = (0, Vec::new());
            for (range, wanted) in pieces(len, from, chunk, rows) {
                prop_assert_eq!(range.start, at);
                prop_assert!(!range.is_empty() && range.len() <= chunk);
                prop_assert!(wanted.rows(range.len() as u32) as usize <= rows);
                match wanted {
                    Wanted::None => {}
                    Wanted::Last => seen.push(range.end - 1),
                    Wanted::All => seen.extend(range.clone()),
                }
                at = range.end;
            }
            prop_assert_eq!(at, len);
            prop_assert_eq!(seen, (from.min(len)..len).collect::<Vec<_>>());
        }
    }
}
