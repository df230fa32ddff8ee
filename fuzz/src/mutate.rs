//! Seeded mutations: the same seed gives the same inputs on every machine.

/// Makes inputs from other inputs.
pub struct Mutator {
    state: u64,
}

/// Lengths and counts that readers get wrong.
const EXTREMES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 61,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

/// Pieces of the grammars behind the targets.
const WORDS: [&str; 30] = [
    "{%",
    "%}",
    "{{",
    "}}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if ",
    "{% set x = ",
    "| tojson",
    "| join('')",
    "range(",
    ")",
    "'x' * 99999",
    "namespace()",
    "\"",
    "\\",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "null",
    "-1",
    "1e999",
    "NaN",
    "Infinity",
    "4294967296",
    "{\"__float__\": \"Infinity\"}",
    "\u{fffd}",
];

impl Mutator {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Mutator { state: seed }
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// `input` with one to four changes; `other` is where spliced parts come from.
    pub fn mutate(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..1 + self.below(4) {
            self.change(&mut out, other);
        }
        out
    }

    fn change(&mut self, out: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(out.len());
        match self.below(8) {
            0 if !out.is_empty() => out[at] ^= 1 << self.below(8),
            1 if !out.is_empty() => out[at] = self.number() as u8,
            2 => out.truncate(at),
            3 => {
                // A length field: four or eight bytes, little-endian.
                let value = EXTREMES[self.below(EXTREMES.len())];
                let width = if self.below(2) == 0 { 4 } else { 8 };
                if let Some(field) = out.get_mut(at..at + width) {
                    field.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            4 => {
                // A small change to a number, wherever it lies.
                if let Some(field) = out.get_mut(at..at + 4) {
                    let delta = self.below(9) as u32;
                    let value = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
                    field.copy_from_slice(&value.wrapping_add(delta).wrapping_sub(4).to_le_bytes());
                }
            }
            5 if !other.is_empty() => {
                let from = self.below(other.len());
                let len = 1 + self.below((other.len() - from).min(64));
                let end = (at + self.below(32)).min(out.len());
                out.splice(at..end, other[from..from + len].iter().copied());
            }
            6 => {
                let word = WORDS[self.below(WORDS.len())];
                out.splice(at..at, word.bytes());
            }
            _ if !out.is_empty() => {
                // Repeat a part, or take it out.
                let end = (at + 1 + self.below(32)).min(out.len());
                let part = if self.below(2) == 0 { out[at..end].repeat(2) } else { Vec::new() };
                out.splice(at..end, part);
            }
            _ => out.push(self.number() as u8),
        }
    }
}
