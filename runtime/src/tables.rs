//! The step tables on the host: a mirror of the step buffer, filled anew for each step, and which of its words
//! the device does not have yet.

use crate::{RuntimeError, StepInput};
use plimsoll_estimator::Plan;
use plimsoll_kernels::step::{HEADER_KV_MAX, HEADER_LOGIT_ROWS, HEADER_TILES, HEADER_TOKENS, HEADER_WORDS};
use plimsoll_kernels::{StepLayout, StepShape};
use plimsoll_models::rope::Rope;
use std::ops::Range;

/// Step tables of one runtime.
#[derive(Debug)]
pub(crate) struct Tables {
    layout: StepLayout,
    ropes: Vec<Rope>,
    context: u32,
    vocab: u32,
    /// Physical pages of each KV kind.
    pages: Vec<u32>,
    /// The step buffer's words.
    words: Vec<u32>,
    /// Rows of block tables that the device does not have: kind × slots + slot.
    dirty: Vec<bool>,
    /// Words of this step that go to the device.
    used: Vec<Range<usize>>,
    shape: StepShape,
    /// Scratch: slots seen in this step.
    seen: Vec<bool>,
    /// Scratch: angles of one token.
    angles: Vec<[f32; 2]>,
}

impl Tables {
    /// Tables for a plan whose model has these rotations.
    ///
    /// # Errors
    /// [`RuntimeError::Plan`] when the layout does not suit the rotations or contradicts itself.
    pub fn new(plan: &Plan, ropes: &[Rope]) -> Result<Self, RuntimeError> {
        let layout = plan.step.clone();
        let pairs: Vec<u32> = ropes.iter().map(Rope::pairs).collect();
        let tile_tokens: Vec<u32> = layout.tiles.iter().map(|t| t.tokens).collect();
        let logical: Vec<u32> = plan.kv.kinds.iter().map(|k| k.pages_per_slot).collect();
        // Laid out again rather than believed: every offset below is then inside the words.
        let expected =
            StepLayout::new(layout.tokens, layout.logit_rows, layout.slots, &tile_tokens, &logical, &pairs);
        if expected.as_ref() != Some(&layout) {
            return Err(RuntimeError::plan("step layout", format!("{expected:?}"), format!("{layout:?}")));
        }
        let words = usize::try_from(layout.words)
            .map_err(|_| RuntimeError::plan("words of the step tables", usize::MAX, layout.words))?;
        Ok(Self {
            ropes: ropes.to_vec(),
            context: plan.geometry.context,
            vocab: plan.model.vocab,
            pages: plan.kv.kinds.iter().map(|k| k.pages).collect(),
            words: vec![0; words],
            dirty: vec![false; layout.tables.len() * layout.slots as usize],
            used: Vec::new(),
            shape: StepShape { tiles: vec![0; layout.tiles.len()], ..StepShape::default() },
            seen: vec![false; layout.slots as usize],
            angles: Vec::new(),
            layout,
        })
    }

    /// Sets the pages of a slot; see [`crate::Stepper::set_block_table`].
    pub fn set_block_table(&mut self, kind: u32, slot: u32, pages: &[u32]) -> Result<(), RuntimeError> {
        let kinds = self.layout.tables.len();
        let (Some(table), Some(&most)) =
            (self.layout.tables.get(kind as usize), self.pages.get(kind as usize))
        else {
            return Err(RuntimeError::input("KV kind", format!("under {kinds}"), kind));
        };
        if slot >= self.layout.slots {
            return Err(RuntimeError::input("slot", format!("under {}", self.layout.slots), slot));
        }
        if pages.len() > table.pages as usize {
            let expected = format!("at most {}", table.pages);
            return Err(RuntimeError::input(format!("pages of slot {slot}"), expected, pages.len()));
        }
        if let Some(page) = pages.iter().find(|&&page| page >= most) {
            return Err(RuntimeError::input(format!("page of slot {slot}"), format!("under {most}"), page));
        }
        let start = table.offset as usize + slot as usize * table.pages as usize;
        let row = &mut self.words[start..start + pages.len()];
        if row != pages {
            row.copy_from_slice(pages);
            self.dirty[kind as usize * self.layout.slots as usize + slot as usize] = true;
        }
        Ok(())
    }

    /// The block table of a slot; `None` for a kind or slot that the plan does not have.
    pub fn block_table(&self, kind: u32, slot: u32) -> Option<&[u32]> {
        let table = self.layout.tables.get(kind as usize).filter(|_| slot < self.layout.slots)?;
        let start = table.offset as usize + slot as usize * table.pages as usize;
        self.words.get(start..start + table.pages as usize)
    }

    /// The sizes of the step that was filled last.
    pub fn shape(&self) -> &StepShape {
        &self.shape
    }

    /// What of the step buffer must be written before the step, in words.
    pub fn used(&self) -> &[Range<usize>] {
        &self.used
    }

    /// The words of a range.
    pub fn words(&self, range: &Range<usize>) -> &[u32] {
        &self.words[range.clone()]
    }

    /// The device has everything that [`used`](Self::used) lists.
    pub fn uploaded(&mut self) {
        self.dirty.fill(false);
    }

    /// Fills the tables for a step.
    ///
    /// # Errors
    /// [`RuntimeError::Input`]; the tables are then as before.
    pub fn fill(&mut self, input: &StepInput<'_>) -> Result<(), RuntimeError> {
        self.validate(input)?;
        let layout = &self.layout;
        let words = &mut self.words;
        let (mut token, mut row, mut kv_max) = (0u32, 0u32, 0u32);
        self.shape.tiles.fill(0);
        for sequence in input.sequences {
            let count = sequence.ids.len() as u32;
            for (i, &id) in (0u32..).zip(sequence.ids) {
                let (at, position) = ((token + i) as usize, sequence.position + i);
                words[layout.ids as usize + at] = id;
                words[layout.positions as usize + at] = position;
                words[layout.token_slots as usize + at] = sequence.slot;
                for (rope, table) in self.ropes.iter().zip(&layout.ropes) {
                    self.angles.clear();
                    rope.fill(position, &mut self.angles);
                    let start = table.offset as usize + at * table.pairs as usize * 2;
                    let values = bytemuck::cast_slice(&self.angles);
                    words[start..start + values.len()].copy_from_slice(values);
                }
            }
            for index in count - sequence.wanted.rows(count)..count {
                words[(layout.rows + row) as usize] = token + index;
                row += 1;
            }
            for (table, used) in layout.tiles.iter().zip(&mut self.shape.tiles) {
                for first in (0..count).step_by(table.tokens as usize) {
                    let run = table.tokens.min(count - first);
                    let entry = [token + first, run, sequence.slot, sequence.position + first];
                    let start = table.offset as usize + *used as usize * entry.len();
                    words[start..start + entry.len()].copy_from_slice(&entry);
                    *used += 1;
                }
            }
            token += count;
            kv_max = kv_max.max(sequence.position + count);
        }
        words[HEADER_TOKENS as usize] = token;
        words[HEADER_LOGIT_ROWS as usize] = row;
        words[HEADER_KV_MAX as usize] = kv_max;
        for (i, used) in self.shape.tiles.iter().enumerate() {
            words[HEADER_TILES as usize + i] = *used;
        }
        (self.shape.tokens, self.shape.logit_rows, self.shape.kv_max) = (token, row, kv_max);
        self.list_used();
        Ok(())
    }

    fn validate(&mut self, input: &StepInput<'_>) -> Result<(), RuntimeError> {
        let layout = &self.layout;
        if input.sequences.is_empty() {
            return Err(RuntimeError::input("sequences of a step", "at least one", 0));
        }
        let (tokens, rows) = (input.tokens(), input.logit_rows());
        if tokens > u64::from(layout.tokens) {
            return Err(RuntimeError::input(
                "tokens of a step",
                format!("at most {}", layout.tokens),
                tokens,
            ));
        }
        let most = if input.sampling == crate::Sampling::None { 0 } else { layout.logit_rows };
        if rows > u64::from(most) {
            return Err(RuntimeError::input("logit rows of a step", format!("at most {most}"), rows));
        }
        self.seen.fill(false);
        for sequence in input.sequences {
            let slot = sequence.slot;
            match self.seen.get_mut(slot as usize) {
                None => {
                    return Err(RuntimeError::input("slot", format!("under {}", layout.slots), slot));
                }
                Some(true) => return Err(RuntimeError::input("slot", "once in a step", slot)),
                Some(seen) => *seen = true,
            }
            if sequence.ids.is_empty() {
                return Err(RuntimeError::input(format!("new tokens of slot {slot}"), "at least one", 0));
            }
            let end = u64::from(sequence.position) + sequence.ids.len() as u64;
            if end > u64::from(self.context) {
                let expected = format!("at most {}", self.context);
                return Err(RuntimeError::input(format!("tokens of slot {slot}"), expected, end));
            }
            if let Some(id) = sequence.ids.iter().find(|&&id| id >= self.vocab) {
                return Err(RuntimeError::input("token id", format!("under {}", self.vocab), id));
            }
        }
        Ok(())
    }

    fn list_used(&mut self) {
        let layout = &self.layout;
        let (tokens, slots) = (self.shape.tokens as usize, layout.slots as usize);
        self.used.clear();
        let mut add = |offset: u32, words: usize| {
            if words > 0 {
                self.used.push(offset as usize..offset as usize + words);
            }
        };
        add(0, HEADER_WORDS as usize);
        add(layout.ids, tokens);
        add(layout.positions, tokens);
        add(layout.token_slots, tokens);
        add(layout.rows, self.shape.logit_rows as usize);
        for (table, used) in layout.tiles.iter().zip(&self.shape.tiles) {
            add(table.offset, *used as usize * 4);
        }
        for (kind, table) in layout.tables.iter().enumerate() {
            for slot in (0..slots).filter(|slot| self.dirty[kind * slots + slot]) {
                add(table.offset + slot as u32 * table.pages, table.pages as usize);
            }
        }
        for table in &layout.ropes {
            add(table.offset, tokens * table.pairs as usize * 2);
        }
    }
}

#[cfg(test)]
mod tests;
