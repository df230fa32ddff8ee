//! Stacks of experts whose gates and ups are one product: stored together, the other way round, apart, or each expert
//! by itself.

use super::{ExpertNames, Weights, mixed, shape};
use crate::error::ModelError;
use crate::graph::{MatrixId, VectorId};
use crate::model::{Joined, Matrix, Source, Transform, Vector};
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
    /// The tensor `[width, cols]` of one expert's gate (0) or up (1), where they are stored one by one.
    pub separate: Option<&'n dyn Fn(u32, usize) -> String>,
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
    /// As [`Weights::experts`]; also when gates and ups are in different formats.
    pub fn gate_up(
        &mut self,
        names: &GateUpNames<'_>,
        experts: u32,
        width: u32,
        cols: u32,
    ) -> Result<GateUp, ModelError> {
        let rows = width.saturating_mul(2);
        let total = total(experts, rows)?;
        let apart = names.split.iter().any(|name| self.has(name, false));
        let (format, source, split) = if self.is_bare() {
            let split = match self.listed {
                true => !self.has(names.fused, false),
                false => self.quantization.names(packed::module(names.split[0])),
            };
            let format = self.bare_gate_up(names, experts, cols)?;
            self.take_gate_up(names, apart, experts, format)?;
            (format, Source::tensor(names.fused, total), split)
        } else if let Some(separate) = names.separate.filter(|_| !apart && !self.has(names.fused, false)) {
            let wanted = Wanted { experts: None, rows: width, cols };
            let half = |part: usize| {
                let name = |expert: u32| separate(expert, part);
                self.separate_experts(&name, experts, wanted)
            };
            let (format, source) = alternating([half(0)?, half(1)?], &separate(0, 1))?;
            (format, source, true)
        } else if apart {
            let wanted = Wanted { experts: Some(experts), rows: width, cols };
            let half = |name: &str| {
                let found = packed::find(self.checkpoint, name, wanted)?;
                self.compare(name, cols, found.format)?;
                Ok::<_, ModelError>((found.format, Source { pieces: found.expert_pieces(wanted) }))
            };
            let [gates, ups] = names.split;
            let (format, source) = alternating([half(gates)?, half(ups)?], ups)?;
            (format, source, true)
        } else {
            let matrix = self.stack(names.fused, names.transposed, experts, rows, cols)?;
            return Ok(GateUp { matrix, split: false });
        };
        let matrix = Matrix { source, rows: total, cols, format, experts };
        Ok(GateUp { matrix: self.push(names.fused, matrix), split })
    }

    /// Takes such a stack from an index without its shards.
    fn take_gate_up(
        &self,
        names: &GateUpNames<'_>,
        apart: bool,
        experts: u32,
        format: Format,
    ) -> Result<(), ModelError> {
        match names.separate.filter(|_| !apart && !self.has(names.fused, false)) {
            _ if !self.listed => Ok(()),
            Some(separate) => (0..experts)
                .flat_map(|expert| [(expert, 0), (expert, 1)])
                .try_for_each(|(expert, part)| self.take(&separate(expert, part), format)),
            None if apart => names.split.iter().try_for_each(|name| self.take(name, format)),
            None => self.take(names.fused, format),
        }
    }

    /// What a configuration alone says of such a stack.
    fn bare_gate_up(&self, names: &GateUpNames<'_>, experts: u32, cols: u32) -> Result<Format, ModelError> {
        let half = |part: usize| {
            let one = |expert: u32| names.separate.map_or_else(String::new, |name| name(expert, part));
            let stacked = [names.fused.to_owned(), names.split[part].to_owned()];
            let separate = names.separate.is_some().then_some(&one as &dyn Fn(u32) -> String);
            self.bare_experts(&ExpertNames { stacked: &stacked, separate }, experts, cols)
        };
        let (gates, ups) = (half(0)?, half(1)?);
        if gates == ups { Ok(gates) } else { Err(mixed(names.split[1])) }
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
        let Some([gate, up]) =
            split.filter(|[gate, _]| !self.is_bare() || self.listed && self.has(gate, false))
        else {
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

/// Each expert's gate, then its up, of a piece for each.
fn alternating(halves: [(Format, Source); 2], ups: &str) -> Result<(Format, Source), ModelError> {
    let [(format, gates), (other, up)] = halves;
    if format != other {
        return Err(mixed(ups));
    }
    let pieces = gates.pieces.into_iter().zip(up.pieces).flat_map(|(gate, up)| [gate, up]).collect();
    Ok((format, Source { pieces }))
}

fn total(experts: u32, rows: u32) -> Result<u32, ModelError> {
    experts
        .checked_mul(rows)
        .filter(|&n| n > 0 && n < 1 << 31)
        .ok_or_else(|| ModelError::field("experts × rows", "1 to 2147483647", format!("{experts} × {rows}")))
}
