//! Product with another tensor, in place: `x = x·act(by)`, or `x = act(x)·by`.

use super::gate::Activation;
use crate::{Call, Profile, Unit};

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Activation; `None`: a plain product.
    pub activation: Option<Activation>,
    /// The activation is of `by`; else of `x`.
    pub of_by: bool,
    /// `by` has one value a row.
    pub broadcast: bool,
    /// Values of a row of `x`.
    pub width: u32,
    /// Values between rows of `x`.
    pub x_stride: u32,
    /// First column of `by`.
    pub by_column: u32,
    /// Values between rows of `by`.
    pub by_stride: u32,
    /// What a row is: tokens or logit rows.
    pub unit: Unit,
}

/// Plans the dispatch. Operands: x (Write), by (ReadArena).
pub fn plan(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}
