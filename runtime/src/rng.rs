//! Randomness for sampling: SplitMix64, read by counter.
//!
//! Draw `i` of seed `s` is `mix(s + (i + 1)·0x9e3779b97f4a7c15)` in arithmetic modulo 2⁶⁴, with the finaliser of
//! Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014). It is a pure function of
//! `(s, i)`: the same on every platform, and a generation can be resumed at any token.

/// The draws of one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rng {
    seed: u64,
    drawn: u64,
}

impl Rng {
    /// The draws of `seed`, from the first.
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        let mut z = self.seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_the_published_ones() {
        let mut rng = Rng::new(1_234_567);
        let draws: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(draws, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn fractions_fill_the_unit_interval_evenly() {
        let mut rng = Rng::new(7);
        let draws: Vec<f64> = (0..10_000).map(|_| rng.next_f64()).collect();
        assert!(draws.iter().all(|x| (0.0..1.0).contains(x)));
        for tenth in 0..10 {
            let share = draws.iter().filter(|&&x| (x * 10.0) as u32 == tenth).count();
            assert!((850..1150).contains(&share), "{share} draws in tenth {tenth}");
        }
    }
}
