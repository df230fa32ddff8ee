//! Matrices made of runs of rows: what a checkpoint interleaves head by head.

use super::Weights;
use crate::error::ModelError;
use crate::graph::MatrixId;
use crate::model::{Matrix, Piece, Source};
use crate::zoo::packed::{self, Wanted};
use crate::zoo::quantization::Module;
use std::ops::Range;

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
            self.take(tensor, format)?;
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
