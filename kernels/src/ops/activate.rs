//! Activation in place: `x = act(x)`.

use super::gate::Activation;
use crate::{Call, Profile, Unit};

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Activation.
    pub activation: Activation,
    /// Values of a row.
    pub width: u32,
    /// Values between rows.
    pub stride: u32,
    /// What a row is: tokens or logit rows.
    pub unit: Unit,
}

/// Plans the dispatch. Operands: x (Write).
pub fn plan(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}
