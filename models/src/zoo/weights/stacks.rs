//! Stacks of experts whose gates and ups are one product: stored together, the other way round, or apart.

use super::{ExpertNames, Weights, mixed, shape};
use crate::error::ModelError;
use crate::graph::{MatrixId, VectorId};
use crate::model::{Joined, Matrix, Piece, Source, Transform, Vector};
use crate::zoo::packed::{self, Wanted};
use plimsoll_kernels::Format;

/// The names of gates and ups.
pub struct GateUpNames<'n> {
    /// The stack of both, `[experts, 2·width, cols]`.
    pub fused: &'n str,
    /// Where it is plain, its matrices are `[cols, 2·width]`.
    pub transposed: bool,
    /// The stacks of the gates and of the ups, `[experts, width, cols]` each.
    pub split: [&'n str; 2],
}

/// A stack of gates and ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateUp {
    /// `[experts · 2·width, cols]`.
    pub matrix: MatrixId,
    /// It was stored apart: each expert has its gates first, then its ups. Else as the checkpoint has them.
    pub split: bool,
}

impl Weights<'_> {
    /// The gates and ups of `experts` experts, `width` of each.
    ///
    /// # Errors
    /// As [`Weights::experts`].
    pub fn gate_up(
        &mut self,
        names: &GateUpNames<'_>,
        experts: u32,
        width: u32,
        cols: u32,
    ) -> Result<GateUp, ModelError> {
        let rows = width.saturating_mul(2);
        if self.is_bare() {
            let [gate, up] = names.split.map(str::to_owned);
            let stacked = [names.fused.to_owned(), gate, up];
            let matrix =
                self.experts(&ExpertNames { stacked: &stacked, separate: None }, experts, rows, cols)?;
            let split = self.quantization.names(packed::module(names.split[0]));
            return Ok(GateUp { matrix, split });
        }
        if !names.split.iter().any(|name| self.has(name, false)) {
            let matrix = self.stack(names.fused, names.transposed, experts, rows, cols)?;
            return Ok(GateUp { matrix, split: false });
        }
        let total = total(experts, rows)?;
        let wanted = Wanted { experts: Some(experts), rows: width, cols };
        let mut halves = Vec::new();
        let mut format: Option<Format> = None;
        for name in names.split {
            let found = packed::find(self.checkpoint, name, wanted)?;
            self.compare(name, cols, found.format)?;
            if *format.get_or_insert(found.format) != found.format {
                return Err(mixed(name));
            }
            halves.push(found.expert_pieces(wanted));
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for expert in 0..experts as usize {
            pieces.extend(halves.iter().filter_map(|half| half.get(expert).cloned()));
        }
        let format = format.unwrap_or(self.assumed);
        let matrix = Matrix { source: Source { pieces }, rows: total, cols, format, experts };
        Ok(GateUp { matrix: self.push(names.split[0], matrix), split: true })
    }

    /// A stack of `experts` matrices `[rows, cols]` in one tensor, or in that one's packed form; where it is plain
    /// and `transposed`, its matrices are stored `[cols, rows]`.
    ///
    /// # Errors
    /// As [`Weights::experts`].
    pub fn stack(
        &mut self,
        tensor: &str,
        transposed: bool,
        experts: u32,
        rows: u32,
        cols: u32,
    ) -> Result<MatrixId, ModelError> {
        let format = self.checkpoint.tensor(tensor).and_then(|info| Some((info, info.dtype.format()?)));
        let Some((info, format)) = format.filter(|(_, format)| transposed && format.is_float()) else {
            let stacked = [tensor.to_owned()];
            return self.experts(&ExpertNames { stacked: &stacked, separate: None }, experts, rows, cols);
        };
        let total = total(experts, rows)?;
        let expected = [u64::from(experts), u64::from(cols), u64::from(rows)];
        if info.shape != expected {
            return Err(shape(info, &expected));
        }
        let source = Source::transposed(tensor, total);
        Ok(self.push(tensor, Matrix { source, rows: total, cols, format, experts }))
    }

    /// A bias for each row of a stack of gates and ups: `[experts, 2·width]` in one tensor, or in two that are
    /// `[experts, width]`, then with each expert's gates before its ups.
    ///
    /// # Errors
    /// As [`Weights::vector`]; also when the two are in different formats.
    pub fn gate_up_bias(
        &mut self,
        fused: &str,
        split: Option<[&str; 2]>,
        experts: u32,
        width: u32,
    ) -> Result<VectorId, ModelError> {
        let len = total(experts, width.saturating_mul(2))?;
        let Some([gate, up]) = split.filter(|_| !self.is_bare()) else {
            return self.stacked_vector(fused, experts, width.saturating_mul(2));
        };
        let format = self.float_format(gate, &[experts, width])?;
        if self.float_format(up, &[experts, width])? != format {
            return Err(mixed(up));
        }
        let joined = Some(Joined { tensor: up.to_owned(), run: width });
        let vector = Vector { tensor: gate.to_owned(), len, format, transform: Transform::None, joined };
        self.vectors.push(vector);
        Ok(VectorId(self.vectors.len() as u32 - 1))
    }
}

fn total(experts: u32, rows: u32) -> Result<u32, ModelError> {
    experts
        .checked_mul(rows)
        .filter(|&n| n > 0 && n < 1 << 31)
        .ok_or_else(|| ModelError::field("experts × rows", "1 to 2147483647", format!("{experts} × {rows}")))
}
