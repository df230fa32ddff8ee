//! Sizes of recurrent layers and of what they keep of a sequence, f32 whatever a configuration says.

use serde::{Deserialize, Serialize};

/// What a recurrent layer keeps of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecurrentShape {
    /// Values of the state.
    pub values: u32,
    /// Channels of the convolution before it.
    pub channels: u32,
    /// Taps of that convolution: the last `taps − 1` inputs are kept.
    pub taps: u32,
}

impl RecurrentShape {
    /// Bytes of the state.
    pub fn state_bytes(&self) -> u64 {
        4 * u64::from(self.values)
    }

    /// Bytes of the tail: `(taps − 1) · channels · 4`.
    pub fn tail_bytes(&self) -> u64 {
        4 * u64::from(self.channels) * u64::from(self.taps.saturating_sub(1))
    }

    /// Bytes of a sequence.
    pub fn bytes(&self) -> u64 {
        self.state_bytes() + self.tail_bytes()
    }
}

/// A selective state space (Mamba2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SsmShape {
    /// `H`.
    pub heads: u32,
    /// `P`.
    pub head_dim: u32,
    /// `N`.
    pub state: u32,
    /// `G`: head `h` uses group `h / (H/G)`.
    pub groups: u32,
}

impl SsmShape {
    /// `H·P`.
    pub fn inner(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Columns of x, B and C side by side: `H·P + 2·G·N`.
    pub fn channels(&self) -> u32 {
        self.inner() + 2 * self.groups * self.state
    }

    /// What a layer keeps, with a convolution of so many taps.
    pub fn recurrent(&self, taps: u32) -> RecurrentShape {
        RecurrentShape { values: self.inner() * self.state, channels: self.channels(), taps }
    }
}

/// A gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeltaShape {
    /// `Hv`, value heads; `Hv/Hg` of them use each key head.
    pub heads: u32,
    /// `Hg`, key heads.
    pub key_heads: u32,
    /// `Ek`.
    pub key_dim: u32,
    /// `Ev`.
    pub value_dim: u32,
}

impl DeltaShape {
    /// `Hv·Ev`.
    pub fn inner(&self) -> u32 {
        self.heads * self.value_dim
    }

    /// Columns of q, k and v side by side: `2·Hg·Ek + Hv·Ev`.
    pub fn channels(&self) -> u32 {
        2 * self.key_heads * self.key_dim + self.inner()
    }

    /// What a layer keeps, with a convolution of so many taps.
    pub fn recurrent(&self, taps: u32) -> RecurrentShape {
        RecurrentShape { values: self.inner() * self.key_dim, channels: self.channels(), taps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nemotron_3_nano_keeps_its_closed_form() {
        let shape = SsmShape { heads: 64, head_dim: 64, state: 128, groups: 8 };
        assert_eq!(23 * shape.recurrent(4).bytes(), 49_930_240);
    }

    #[test]
    fn qwen3_5_27b_keeps_its_closed_form() {
        let shape = DeltaShape { heads: 48, key_heads: 16, key_dim: 128, value_dim: 128 };
        assert_eq!(48 * shape.recurrent(4).bytes(), 156_893_184);
    }
}
