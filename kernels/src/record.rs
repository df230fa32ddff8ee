//! Device records: each row of a matrix as one fixed-stride run of bytes, quants first, then scales.

use crate::Format;
use serde::{Deserialize, Serialize};

/// The device form of the rows of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    format: Format,
    cols: u32,
}

impl Record {
    /// The record of rows of `cols` values, or `None` when they are not whole blocks.
    pub fn new(format: Format, cols: u32) -> Option<Self> {
        format.row_bytes(u64::from(cols))?;
        Some(Self { format, cols })
    }

    /// Bytes between rows on the device: a multiple of 16.
    pub fn stride(&self) -> u64 {
        todo!()
    }
}
