//! Product with a number, in place: `x = factor·x`, or `x = factor·v·x` where `v` stands in the vectors.

use crate::{Call, Profile, Unit};

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Factor.
    pub factor: f32,
    /// Word offset of a second factor in the vectors.
    pub vector: Option<u32>,
    /// Values of a row.
    pub width: u32,
    /// Values between rows.
    pub stride: u32,
    /// What a row is: tokens or logit rows.
    pub unit: Unit,
}

/// Plans the dispatch. Operands: x (Write), vectors (Read).
pub fn plan(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}
