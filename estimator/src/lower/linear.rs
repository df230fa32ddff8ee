//! Products: a dispatch for each piece of a matrix, with the norm before it and the gate after it where they are folded.

use super::{Lowering, Operand};
use crate::error::PlanError;
use crate::folds::Takes;
use crate::groups::pieces;
use crate::plan::Shard;
use plimsoll_kernels::ops::linear;
use plimsoll_models::graph::{self, TensorId};

impl<'a> Lowering<'a> {
    /// One stack of a linear op, a dispatch for each piece of its shards. Answers its rows.
    #[allow(clippy::too_many_arguments)] // the op's own fields
    pub(super) fn linear(
        &mut self,
        label: &'a str,
        x: TensorId,
        stack: &[graph::MatrixId],
        bias: Option<u32>,
        out: TensorId,
        column: u32,
        accumulate: bool,
    ) -> Result<u32, PlanError> {
        let group = self.group(label, stack)?;
        let (rows, record) = (group.rows, group.record);
        self.expect_width(label, x, record.cols())?;
        let max_rows = self.rows(out);
        let flops_per_row = 2 * u64::from(record.cols()) * u64::from(max_rows);
        let most = (self.shared.profile.work_budget / flops_per_row.max(1)).max(1);
        let pieces: Vec<Shard> = group.shards.iter().flat_map(|s| pieces(s, &record, most)).collect();
        let Takes { norm, gate } = self.takes;
        let (x, out) = (norm.map_or(x, |norm| norm.x), gate.map_or(out, |gate| gate.out));
        let norm = match norm {
            None => None,
            Some(norm) => {
                let weight = self.vector(label, norm.weight)?;
                Some(linear::Norm { weight, plus_one: norm.plus_one, eps: norm.eps })
            }
        };
        for piece in pieces {
            let args = linear::Args {
                format: record.format(),
                n: if gate.is_some() { piece.rows / 2 } else { piece.rows },
                k: record.cols(),
                x_stride: self.width(x),
                out_stride: self.width(out),
                out_column: column + piece.first_row,
                accumulate,
                bias: bias.map(|b| b + piece.first_row),
                unit: self.unit(out),
                max_rows,
                norm,
                gate: gate.map(|gate| gate.activation),
            };
            let operands = vec![
                Operand::View(piece.view),
                Operand::Tensor(x),
                Operand::Tensor(out),
                Operand::View(self.vectors),
            ];
            self.push(label, "", self.when(out), linear::plan(self.shared.profile, &args), operands);
        }
        Ok(rows)
    }
}
