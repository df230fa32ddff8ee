//! Matrices made of runs of rows: heads that a checkpoint interleaves, and stacks of experts whose two projections
//! are stored side by side, one after the other, or apart.

use super::{ExpertNames, Weights, mixed};
use crate::error::ModelError;
use crate::graph::MatrixId;
use crate::model::{Matrix, Piece, Source};
use crate::zoo::packed::{self, Wanted};
use crate::zoo::quantization::Module;
use plimsoll_kernels::Format;
use std::ops::Range;

/// The names of stacks of gated experts: a gate and an up projection for each.
pub struct GatedNames<'n> {
    /// Both projections of every expert in one tensor `[experts, 2·rows, cols]`, gates first.
    pub joined: &'n str,
    /// A stack `[experts, rows, cols]` of each projection.
    pub stacked: [&'n str; 2],
    /// A tensor for each expert and projection.
    pub separate: &'n dyn Fn(u32, usize) -> String,
}

impl Weights<'_> {
    /// The matrix of some rows of `[stored, cols]`, one run of rows after the other. `part` tells it from other parts
    /// of the same tensor.
    ///
    /// # Errors
    /// As [`Weights::matrix`]; also when a run is not among the rows.
    pub fn rows(
        &mut self,
        tensor: &str,
        part: &str,
        stored: u32,
        cols: u32,
        runs: &[Range<u32>],
    ) -> Result<MatrixId, ModelError> {
        let wanted = Wanted { experts: None, rows: stored, cols };
        let (format, pieces) = if self.is_bare() {
            let scheme = self.quantization.scheme(packed::module(tensor), Module::Linear, cols)?;
            let format = scheme.map_or(self.assumed, |s| s.format(self.assumed));
            (format, Source::tensor(tensor, stored).pieces)
        } else {
            let found = packed::find(self.checkpoint, tensor, wanted)?;
            self.compare(tensor, cols, found.format)?;
            (found.format, found.pieces(wanted))
        };
        let (mut cut, mut rows) = (Vec::new(), 0u32);
        for run in runs {
            let inside = run.start < run.end && run.end <= stored;
            let total = inside.then(|| rows.checked_add(run.end - run.start)).flatten();
            rows = total.ok_or_else(|| {
                ModelError::field(format!("rows of {tensor}"), format!("among {stored}"), format!("{run:?}"))
            })?;
            cut_rows(&pieces, run.clone(), &mut cut);
        }
        let matrix = Matrix { source: Source { pieces: cut }, rows, cols, format, experts: 1 };
        Ok(self.push(&format!("{tensor}[{part}]"), matrix))
    }

    /// A stack of `experts` matrices `[2·rows, cols]`: the gate's rows of an expert, then the up projection's.
    ///
    /// # Errors
    /// As [`Weights::experts`]; also when gates and ups are in different formats.
    pub fn gated_experts(
        &mut self,
        names: &GatedNames<'_>,
        experts: u32,
        rows: u32,
        cols: u32,
    ) -> Result<MatrixId, ModelError> {
        let count = experts.checked_mul(rows).and_then(|n| n.checked_mul(2));
        let total = count.filter(|&n| n > 0 && n < 1 << 31).ok_or_else(|| {
            ModelError::field("experts × 2 × rows", "1 to 2147483647", format!("{experts} × 2 × {rows}"))
        })?;
        let (format, source) = if self.is_bare() {
            (self.bare_gated(names, experts, cols)?, Source::tensor(names.joined, total))
        } else if self.has(names.joined, false) {
            let wanted = Wanted { experts: Some(experts), rows: 2 * rows, cols };
            let found = packed::find(self.checkpoint, names.joined, wanted)?;
            self.compare(names.joined, cols, found.format)?;
            (found.format, Source { pieces: found.pieces(wanted) })
        } else {
            let [gates, ups] = if self.has(names.stacked[0], false) {
                let wanted = Wanted { experts: Some(experts), rows, cols };
                let mut halves = [(self.assumed, Vec::new()), (self.assumed, Vec::new())];
                for (half, name) in halves.iter_mut().zip(names.stacked) {
                    let found = packed::find(self.checkpoint, name, wanted)?;
                    self.compare(name, cols, found.format)?;
                    *half = (found.format, found.pieces(wanted));
                }
                halves
            } else {
                let half = |part: usize| {
                    let name = |expert: u32| (names.separate)(expert, part);
                    let (format, source) = self.separate_experts(&name, experts, rows, cols)?;
                    Ok::<_, ModelError>((format, source.pieces))
                };
                [half(0)?, half(1)?]
            };
            if gates.0 != ups.0 {
                return Err(mixed(names.stacked[1]));
            }
            let mut pieces = Vec::new();
            for expert in 0..experts {
                for half in [&gates.1, &ups.1] {
                    match half.get(expert as usize) {
                        // A piece for each, rather than one walk over all for every expert.
                        Some(piece) if half.len() == experts as usize => pieces.push(piece.clone()),
                        _ => cut_rows(half, expert * rows..(expert + 1) * rows, &mut pieces),
                    }
                }
            }
            (gates.0, Source { pieces })
        };
        Ok(self.push(names.joined, Matrix { source, rows: total, cols, format, experts }))
    }

    /// What a configuration alone says of such a stack.
    fn bare_gated(&self, names: &GatedNames<'_>, experts: u32, cols: u32) -> Result<Format, ModelError> {
        let half = |part: usize| {
            let separate = |expert: u32| (names.separate)(expert, part);
            let stacked = [names.joined.to_owned(), names.stacked[part].to_owned()];
            let names = ExpertNames { stacked: &stacked, separate: Some(&separate) };
            self.bare_experts(&names, experts, cols)
        };
        let (gates, ups) = (half(0)?, half(1)?);
        if gates == ups { Ok(gates) } else { Err(mixed(names.stacked[1])) }
    }
}

/// Appends what makes up the rows `run` of a matrix made of `pieces`, from top to bottom.
fn cut_rows(pieces: &[Piece], run: Range<u32>, out: &mut Vec<Piece>) {
    let mut start = 0u32;
    for piece in pieces {
        let end = start.saturating_add(piece.rows);
        let (from, to) = (run.start.max(start), run.end.min(end));
        if from < to {
            let first_row = piece.first_row + (from - start);
            out.push(Piece { first_row, rows: to - from, ..piece.clone() });
        }
        if end >= run.end {
            break;
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_across_pieces_takes_the_end_of_one_and_the_start_of_the_next() {
        let piece = |name: &str, first_row, rows| Piece::rows(vec![name.to_owned()], first_row, rows);
        let pieces = [piece("a", 10, 4), piece("b", 0, 3), piece("c", 7, 5)];
        let cut = |run| {
            let mut out = Vec::new();
            cut_rows(&pieces, run, &mut out);
            out
        };
        assert_eq!(cut(0..12), pieces);
        assert_eq!(cut(3..8), [piece("a", 13, 1), piece("b", 0, 3), piece("c", 7, 1)]);
        assert_eq!(cut(5..6), [piece("b", 1, 1)]);
        assert_eq!(cut(7..12), [piece("c", 7, 5)]);
    }
}
