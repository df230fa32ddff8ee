//! What a planning function answers: a kernel, its parameters, how many workgroups it needs as a function of the
//! step, and what the dispatch reads, writes and computes.

use crate::Kernel;
use serde::{Deserialize, Serialize};

/// The sizes of one step, known when it is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepShape {
    /// `T`, tokens in the step.
    pub tokens: u32,
    /// `R`, rows whose logits are wanted.
    pub logit_rows: u32,
    /// Entries used in each tile table of the step layout.
    pub tiles: Vec<u32>,
    /// The longest KV length (tokens, this step included) of any sequence in the step.
    pub kv_max: u32,
}

/// A quantity of the step that a workgroup count grows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Always 1.
    One,
    /// Tokens.
    Tokens,
    /// Logit rows.
    LogitRows,
    /// Entries of the tile table with this index.
    Tiles(u32),
    /// Tokens times experts chosen by each.
    Choices(u32),
}

impl Unit {
    /// The value in a step.
    pub fn of(self, step: &StepShape) -> u64 {
        match self {
            Unit::One => 1,
            Unit::Tokens => u64::from(step.tokens),
            Unit::LogitRows => u64::from(step.logit_rows),
            Unit::Tiles(table) => u64::from(step.tiles.get(table as usize).copied().unwrap_or(0)),
            Unit::Choices(top) => u64::from(step.tokens) * u64::from(top),
        }
    }
}

/// Workgroups of a dispatch: `(ceil(unit / tile) + plus) × per`. Kernels fold the count over two dimensions themselves:
/// the linear index is `workgroup_id.x + workgroup_id.y × num_workgroups.x`, and indices past the count leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// What grows.
    pub unit: Unit,
    /// How many units one workgroup covers.
    pub tile: u32,
    /// Tiles besides those.
    pub plus: u32,
    /// Workgroups for each tile of units.
    pub per: u32,
}

impl Count {
    /// A count that does not depend on the step.
    pub const fn fixed(per: u32) -> Self {
        Self { unit: Unit::One, tile: 1, plus: 0, per }
    }

    /// `per` workgroups for every `tile` units.
    pub const fn each(unit: Unit, tile: u32, per: u32) -> Self {
        Self { unit, tile, plus: 0, per }
    }

    /// The number of workgroups in a step.
    pub fn of(&self, step: &StepShape) -> u64 {
        (self.unit.of(step).div_ceil(u64::from(self.tile.max(1))) + u64::from(self.plus))
            * u64::from(self.per)
    }

    /// The same with `plus` more tiles, whatever the step holds: every expert may end in a partly filled one.
    pub const fn and(self, plus: u32) -> Self {
        Self { plus, ..self }
    }

    /// The dispatch size for `count` workgroups when a dimension holds at most `max`; `None` past `max²`.
    pub fn fold(count: u64, max: u32) -> Option<[u32; 3]> {
        let max = u64::from(max);
        if count <= max {
            return Some([count as u32, 1, 1]);
        }
        let y = count.div_ceil(max);
        // The flattest rectangle: at most one row of idle workgroups.
        let x = count.div_ceil(y);
        (y <= max).then_some([x as u32, y as u32, 1])
    }
}

/// Bytes moved and floating-point operations of one dispatch, linear in the step: what budgets and rooflines use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes read or written whatever the step holds (weights).
    pub bytes_fixed: u64,
    /// Bytes per unit of `unit` rows (activations).
    pub bytes_per_row: u64,
    /// Operations per row.
    pub flops_per_row: u64,
    /// Bytes per row and KV token in reach (attention).
    pub bytes_per_row_kv: u64,
    /// Operations per row and KV token in reach.
    pub flops_per_row_kv: u64,
}

impl Cost {
    /// Operations for `rows` rows that each see `kv` tokens.
    pub fn flops(&self, rows: u64, kv: u64) -> u64 {
        rows.saturating_mul(self.flops_per_row.saturating_add(self.flops_per_row_kv.saturating_mul(kv)))
    }

    /// Bytes for `rows` rows that each see `kv` tokens.
    pub fn bytes(&self, rows: u64, kv: u64) -> u64 {
        let row = self.bytes_per_row.saturating_add(self.bytes_per_row_kv.saturating_mul(kv));
        self.bytes_fixed.saturating_add(rows.saturating_mul(row))
    }
}

/// One dispatch, before it is bound to buffers. The operands a kernel expects, in order, are in its module's docs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Which pipeline.
    pub kernel: Kernel,
    /// The kernel's `Params`, as 32-bit words.
    pub params: Vec<u32>,
    /// How many workgroups.
    pub workgroups: Count,
    /// What `Cost::flops` counts as a row.
    pub rows: Unit,
    /// What it costs.
    pub cost: Cost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fold_over_two_dimensions() {
        assert_eq!(Count::fold(65_535, 65_535), Some([65_535, 1, 1]));
        let [x, y, z] = Count::fold(65_536, 65_535).unwrap_or_default();
        assert!(u64::from(x) * u64::from(y) >= 65_536 && z == 1 && y == 2);
        assert_eq!(Count::fold(u64::MAX, 65_535), None);
    }
}
