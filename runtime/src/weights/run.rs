//! Runs: units of the checkpoint that stand one behind the other on the device, and how they become the device's.

use super::rows::{Rows, corrupt};
use crate::RuntimeError;
use plimsoll_kernels::{Format, Record, dequant};
use plimsoll_models::ModelError;
use plimsoll_models::model::Transform;
use rayon::prelude::*;
use std::path::Path;

/// Bytes on the device that one task packs at a time.
const TASK_BYTES: usize = 256 << 10;

/// Bytes of rows that one task joins from their planes at a time, unless a row is longer. Transposed rows are put
/// together a task at a time.
const SCRATCH_BYTES: usize = 32 << 10;

/// What a run is made of.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    /// Rows of a matrix.
    Rows(Record, Rows<'a>),
    /// Values of a vector, to f32.
    Values(Format, Transform, &'a [u8]),
    /// As it is.
    Raw(&'a [u8]),
}

/// Units (rows, values, slots) that stand one after the other in the source and on the device.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub form: Form<'a>,
    /// The tensor and its file, for whoever asks what is wrong with it.
    pub origin: (&'a str, &'a Path),
    /// Units of the tensor before this run.
    pub first: usize,
    pub units: usize,
    /// Bytes of a unit on the device.
    pub to: usize,
    pub buffer: u32,
    pub offset: u64,
}

impl<'a> Run<'a> {
    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.units * self.to
    }

    /// The first `units`, and the rest.
    pub fn split(self, units: usize) -> (Run<'a>, Run<'a>) {
        let units = units.min(self.units);
        let cut = |data: &'a [u8]| data.split_at(units * (data.len() / self.units.max(1)));
        let (head, tail) = match self.form {
            Form::Rows(record, Rows::Whole(data)) => {
                let (head, tail) = cut(data);
                (Form::Rows(record, Rows::Whole(head)), Form::Rows(record, Rows::Whole(tail)))
            }
            Form::Rows(record, Rows::Planes(planes)) => {
                let (head, tail) = planes.split(units);
                (Form::Rows(record, Rows::Planes(head)), Form::Rows(record, Rows::Planes(tail)))
            }
            Form::Rows(record, Rows::Transposed(rows)) => {
                let (head, tail) = rows.split(units);
                (Form::Rows(record, Rows::Transposed(head)), Form::Rows(record, Rows::Transposed(tail)))
            }
            Form::Values(format, transform, data) => {
                let (head, tail) = cut(data);
                (Form::Values(format, transform, head), Form::Values(format, transform, tail))
            }
            Form::Raw(data) => {
                let (head, tail) = cut(data);
                (Form::Raw(head), Form::Raw(tail))
            }
        };
        let offset = self.offset + (units * self.to) as u64;
        let (first, rest) = (self.first + units, self.units - units);
        (Run { form: head, units, ..self }, Run { form: tail, units: rest, offset, first, ..self })
    }

    fn not_finite(&self, unit: &str, at: usize) -> ModelError {
        let place = format!("{unit} {}", self.first + at);
        corrupt(self.origin, place, "finite numbers", "NaN or an infinity")
    }

    /// Writes the device's bytes of the whole run into `out`.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] when a weight is not a finite number: kernels promise nothing about such, and a NaN can
    /// get lost on its way to the logits.
    fn pack(&self, out: &mut [u8]) -> Result<(), RuntimeError> {
        match self.form {
            Form::Raw(data) => out.copy_from_slice(data),
            Form::Rows(record, Rows::Whole(data)) => {
                let format = record.format();
                if let Some(block) = dequant::first_not_finite(format, data) {
                    let row_bytes = data.len() / self.units.max(1);
                    return Err(self
                        .not_finite("row", block * format.block_bytes() / row_bytes.max(1))
                        .into());
                }
                repack(record, data, out)?;
            }
            Form::Rows(record, Rows::Planes(planes)) => {
                self.join(record, SCRATCH_BYTES, out, |at, rows, row_bytes| {
                    let mut rows = (at..).zip(rows.chunks_exact_mut(row_bytes));
                    rows.try_for_each(|(at, row)| planes.gather(at, row))
                })?;
            }
            // Many rows at a time: what they have in a line of the tensor is read together.
            Form::Rows(record, Rows::Transposed(columns)) => {
                self.join(record, TASK_BYTES, out, |at, rows, _| {
                    columns.read(at, rows);
                    Ok(())
                })?;
            }
            Form::Values(format, transform, data) => {
                let mut values = vec![0f32; out.len() / 4];
                dequant::dequantize(format, data, &mut values);
                if let Some(at) = values.iter().position(|v| !v.is_finite()) {
                    return Err(self.not_finite("value", at).into());
                }
                if transform != Transform::None {
                    values.iter_mut().for_each(|v| *v = transform.apply(*v));
                    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
                        let (place, got) = (format!("value {}", self.first + at), values[at].to_string());
                        let expected = format!("one that stays finite under {transform:?}");
                        return Err(corrupt(self.origin, place, &expected, got).into());
                    }
                }
                out.copy_from_slice(bytemuck::cast_slice(&values));
            }
        }
        Ok(())
    }

    /// Puts rows together in a scratch of about `scratch` bytes, a few at a time, and repacks them. `fill` writes whole
    /// rows from the one on that it is told, each of the bytes it is told.
    fn join(
        &self,
        record: Record,
        scratch: usize,
        out: &mut [u8],
        fill: impl Fn(usize, &mut [u8], usize) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let format = record.format();
        let row_bytes = format.row_bytes(record.cols().into()).map_or(0, |bytes| bytes as usize);
        if row_bytes == 0 || self.to == 0 {
            return Err(RuntimeError::plan("columns of a matrix", "whole rows", record.cols()));
        }
        let each = (scratch / row_bytes).clamp(1, self.units.max(1));
        let mut scratch = vec![0u8; each * row_bytes];
        for (at, out) in (0..).step_by(each).zip(out.chunks_mut(each * self.to)) {
            let rows = &mut scratch[..out.len() / self.to * row_bytes];
            fill(at, rows, row_bytes)?;
            if let Some(row) = dequant::first_row_not_finite(format, record.cols(), rows) {
                return Err(self.not_finite("row", at + row).into());
            }
            repack(record, rows, out)?;
        }
        Ok(())
    }
}

fn repack(record: Record, rows: &[u8], out: &mut [u8]) -> Result<(), RuntimeError> {
    record.repack(rows, out).map_err(|e| RuntimeError::plan("records of a matrix", "whole rows", e))
}

/// Packs runs one behind the other, in tasks side by side.
pub(super) fn pack(batch: &[Run<'_>], mut out: &mut [u8]) -> Result<(), RuntimeError> {
    let mut tasks = Vec::new();
    for run in batch {
        let mut rest = *run;
        while rest.units > 0 {
            let (head, tail) = rest.split((TASK_BYTES / rest.to.max(1)).max(1));
            let (mine, others) = out.split_at_mut(head.bytes());
            tasks.push((head, mine));
            (out, rest) = (others, tail);
        }
    }
    crate::workers::start()?;
    tasks.into_par_iter().try_for_each(|(run, mine)| run.pack(mine))
}
