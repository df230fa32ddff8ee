//! Dispatches that differ in nothing but where they begin: a stack of experts is a thousand of them, and the states of
//! many slots are dozens. Where only their sum is asked for, one draft stands for all.

use std::sync::Arc;

/// Such dispatches: each of some experts (or none) with each of some rows (or slots). The parameters of one are
/// `base + expert · by_expert + row · by_row`, word by word, modulo 2³².
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// Those of a dispatch that begins at the first row of the first expert.
    pub base: Vec<u32>,
    steps: Arc<Steps>,
    /// Each of these experts is begun with
    pub experts: Vec<u32>,
    /// at each of these rows.
    pub rows: Vec<u32>,
}

/// What the parameters of the next expert and of the next row are more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    by_expert: Vec<u32>,
    by_row: Vec<u32>,
}

impl Steps {
    /// Between the parameters `words` of dispatches that begin there.
    pub fn of(words: impl Fn(u32, u32) -> Vec<u32>) -> Self {
        let base = words(0, 0);
        let by = |words: Vec<u32>| words.iter().zip(&base).map(|(a, b)| a.wrapping_sub(*b)).collect();
        Self { by_expert: by(words(1, 0)), by_row: by(words(0, 1)) }
    }
}

impl Family {
    /// The family of a dispatch that begins here, with no other in it.
    pub fn of(base: Vec<u32>, steps: Arc<Steps>, expert: u32, row: u32) -> Self {
        Self { base, steps, experts: vec![expert], rows: vec![row] }
    }

    /// Takes one more. What a shard begins with its first row follows with all of them.
    pub fn push(&mut self, expert: u32, row: u32) {
        match self.experts.as_slice() {
            [one] if *one == expert => self.rows.push(row),
            [.., last] if *last == expert => {}
            _ => self.experts.push(expert),
        }
    }

    /// Where each begins.
    pub fn firsts(&self) -> impl Iterator<Item = (u32, u32)> {
        self.experts.iter().flat_map(|&expert| self.rows.iter().map(move |&row| (expert, row)))
    }

    /// Whether these are the parameters of one of them.
    pub fn holds(&self, words: &[u32]) -> bool {
        let Steps { by_expert, by_row } = &*self.steps;
        let steps = || self.base.iter().zip(by_expert.iter().zip(by_row));
        let fixed = steps().zip(words).all(|((base, steps), word)| steps != (&0, &0) || base == word);
        if self.base.len() != words.len() || !fixed {
            return false;
        }
        self.firsts().any(|(expert, row)| {
            let ours = steps().map(|(base, (by_expert, by_row))| {
                base.wrapping_add(expert.wrapping_mul(*by_expert)).wrapping_add(row.wrapping_mul(*by_row))
            });
            ours.eq(words.iter().copied())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_holds_what_it_stands_for() {
        let words = |expert: u32, row: u32| vec![7, row, u32::MAX.wrapping_add(expert * 64), expert];
        let mut family = Family::of(words(0, 0), Arc::new(Steps::of(words)), 4, 0);
        for (expert, row) in [(4, 32), (8, 0), (8, 32)] {
            family.push(expert, row);
        }
        assert_eq!(family.firsts().collect::<Vec<_>>(), [(4, 0), (4, 32), (8, 0), (8, 32)]);
        for (expert, row) in family.firsts() {
            assert!(family.holds(&words(expert, row)));
        }
        assert!(!family.holds(&words(4, 16)) && !family.holds(&words(0, 0)) && !family.holds(&[7]));
        assert!(!family.holds(&[8, 0, 255, 4]));
    }
}
