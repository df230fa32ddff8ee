//! A set of small numbers that is counted.

/// Which numbers have been met.
#[derive(Default)]
pub(crate) struct Marks {
    bits: Vec<u64>,
    /// How many.
    pub count: u32,
}

impl Marks {
    /// Meets a number. Answers whether it is met for the first time.
    pub fn mark(&mut self, id: u32) -> bool {
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        let fresh = self.bits[word] & bit == 0;
        if fresh {
            self.bits[word] |= bit;
            self.count += 1;
        }
        fresh
    }
}
