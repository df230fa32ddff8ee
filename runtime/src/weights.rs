//! From checkpoint to device: rows are repacked into records, vectors widened to f32, and everything goes through
//! one bounded staging buffer, in two halves so that the host packs one while the device copies the other.

use crate::books::Buffer;
use crate::buffers::Buffers;
use crate::transfer::Upload;
use crate::{Device, RuntimeError};
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{ALIGN, View};
use plimsoll_kernels::{Format, Record, dequant};
use plimsoll_models::checkpoint::{Checkpoint, TensorInfo};
use plimsoll_models::{Model, ModelError};
use rayon::prelude::*;
use std::path::Path;

/// Bytes of records that one task packs at a time.
const TASK_BYTES: usize = 256 << 10;

/// How the bytes of a unit become the device's.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Rows of a matrix.
    Record(Record),
    /// Values of a vector, to f32.
    Vector(Format),
    /// As they are.
    Raw,
}

/// Units (rows, values, slots) that stand one after the other in the source and on the device.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    form: Form,
    /// The tensor and its file, for whoever asks what is wrong with it.
    origin: Option<(&'a str, &'a Path)>,
    /// Units of the tensor before this run.
    first: usize,
    source: &'a [u8],
    /// Bytes of a unit in the source.
    from: usize,
    /// Bytes of a unit on the device.
    to: usize,
    buffer: u32,
    offset: u64,
}

impl<'a> Run<'a> {
    fn units(&self) -> usize {
        self.source.len() / self.from.max(1)
    }

    fn bytes(&self) -> usize {
        self.units() * self.to
    }

    /// The first `units`, and the rest.
    fn split(self, units: usize) -> (Run<'a>, Run<'a>) {
        let (head, tail) = self.source.split_at((units * self.from).min(self.source.len()));
        let offset = self.offset + (units * self.to) as u64;
        let first = self.first + units;
        (Run { source: head, ..self }, Run { source: tail, offset, first, ..self })
    }

    fn view(&self) -> View {
        View { buffer: self.buffer, offset: self.offset, bytes: self.bytes() as u64 }
    }

    fn check_finite(&self) -> Result<(), ModelError> {
        let (format, unit) = match self.form {
            Form::Record(record) => (record.format(), "row"),
            Form::Vector(format) => (format, "value"),
            Form::Raw => return Ok(()),
        };
        let (Some(block), Some((name, path))) = (dequant::first_not_finite(format, self.source), self.origin)
        else {
            return Ok(());
        };
        let at = self.first + block * format.block_bytes() / self.from.max(1);
        Err(ModelError::Corrupt {
            path: path.to_owned(),
            place: format!("tensor {name}, {unit} {at}"),
            expected: "finite numbers".into(),
            got: "NaN or an infinity".into(),
        })
    }

    /// Writes the device's bytes of the whole run into `out`.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] when a weight is not a finite number: kernels promise nothing about such, and a NaN can
    /// get lost on its way to the logits.
    fn pack(&self, out: &mut [u8]) -> Result<(), RuntimeError> {
        self.check_finite()?;
        match self.form {
            Form::Record(record) => record
                .repack(self.source, out)
                .map_err(|e| RuntimeError::plan("records of a matrix", "whole rows", e))?,
            Form::Raw => out.copy_from_slice(self.source),
            Form::Vector(format) => {
                let mut values = vec![0f32; out.len() / 4];
                dequant::dequantize(format, self.source, &mut values);
                out.copy_from_slice(bytemuck::cast_slice(&values));
            }
        }
        Ok(())
    }
}

/// Whether the checkpoint holds what the model states: every tensor, its shape, its format. Nothing is allocated.
///
/// # Errors
/// [`ModelError::MissingTensor`], [`ModelError::Shape`], [`ModelError::Field`], each naming the tensor.
pub(crate) fn check(model: &Model, checkpoint: &Checkpoint) -> Result<(), RuntimeError> {
    for matrix in &model.matrices {
        let info = checkpoint.require(matrix.source.name())?;
        expect_shape(info, &[u64::from(matrix.rows), u64::from(matrix.cols)])?;
        expect_format(info, matrix.format)?;
    }
    for vector in &model.vectors {
        let info = checkpoint.require(&vector.tensor)?;
        expect_shape(info, &[u64::from(vector.len)])?;
        expect_format(info, vector.format)?;
        if !vector.format.is_float() {
            return Err(field(info, "f32, f16 or bf16", vector.format).into());
        }
    }
    Ok(())
}

/// Dimensions of one do not count: a vector may be stored as a row or a column.
fn expect_shape(info: &TensorInfo, expected: &[u64]) -> Result<(), ModelError> {
    let real = |shape: &[u64]| shape.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
    if real(&info.shape) == real(expected) {
        return Ok(());
    }
    Err(ModelError::Shape { name: info.name.clone(), expected: expected.to_vec(), got: info.shape.clone() })
}

fn expect_format(info: &TensorInfo, expected: Format) -> Result<(), ModelError> {
    if info.dtype.format() == Some(expected) { Ok(()) } else { Err(field(info, expected, &info.dtype)) }
}

fn field(info: &TensorInfo, expected: impl ToString, got: impl ToString) -> ModelError {
    ModelError::Field {
        key: format!("format of tensor {}", info.name),
        expected: expected.to_string(),
        got: got.to_string(),
    }
}

/// Fills the plan's weights, vectors and parameters, and zeroes every other byte. `progress` is told the bytes on
/// the device and of how many.
///
/// # Errors
/// Errors of the checkpoint, of the staging buffer and of its submits.
pub(crate) fn upload(
    device: &Device,
    plan: &Plan,
    model: &Model,
    checkpoint: &Checkpoint,
    buffers: &Buffers,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), RuntimeError> {
    let params = params(plan);
    let runs = runs(plan, model, checkpoint, &params)?;
    let total: u64 = runs.iter().map(|r| r.bytes() as u64).sum();
    let mut staging = Staging::new(device, plan)?;

    let mut encoder = device.encoder("clear");
    let written: Vec<View> = runs.iter().map(Run::view).collect();
    buffers.clear(plan, &mut encoder, &written)?;
    device.submit(encoder.finish())?;

    let mut done = 0;
    let mut batch: Vec<Run<'_>> = Vec::new();
    let mut used = 0;
    for mut run in runs {
        while run.units() > 0 {
            let fit = (staging.room() - used) / run.to;
            if fit == 0 {
                if batch.is_empty() {
                    let what = "bytes of the staging buffer";
                    return Err(RuntimeError::plan(what, format!("at least {}", run.to), staging.room()));
                }
                done += staging.flush(device, buffers, &mut batch)?;
                used = 0;
                progress(done, total);
                continue;
            }
            let (head, tail) = run.split(fit.min(run.units()));
            used += head.bytes();
            batch.push(head);
            run = tail;
        }
    }
    done += staging.flush(device, buffers, &mut batch)?;
    device.wait_idle()?;
    progress(done, total);
    Ok(())
}

/// The parameter slots, one after the other.
fn params(plan: &Plan) -> Vec<u8> {
    let mut bytes = vec![0; plan.params.len() * ALIGN as usize];
    for (slot, words) in bytes.chunks_exact_mut(ALIGN as usize).zip(&plan.params) {
        let words: &[u8] = bytemuck::cast_slice(words);
        slot[..words.len()].copy_from_slice(words);
    }
    bytes
}

/// Everything the load writes.
fn runs<'a>(
    plan: &Plan,
    model: &'a Model,
    checkpoint: &'a Checkpoint,
    params: &'a [u8],
) -> Result<Vec<Run<'a>>, RuntimeError> {
    let unit = ALIGN as usize;
    let mut runs = vec![Run {
        form: Form::Raw,
        origin: None,
        first: 0,
        source: params,
        from: unit,
        to: unit,
        buffer: plan.params_buffer,
        offset: 0,
    }];
    for group in &plan.groups {
        let to = group.record.stride();
        let mut shards = group.shards.iter();
        let mut shard: Option<View> = None;
        for &id in &group.matrices {
            let matrix = model
                .matrix(id)
                .ok_or_else(|| RuntimeError::plan("matrix of a group", "one of the model", id.0))?;
            if Record::new(matrix.format, matrix.cols) != Some(group.record) {
                let got = format!("{} columns of {}", matrix.cols, matrix.format);
                return Err(RuntimeError::plan("matrices of a group", format!("{:?}", group.record), got));
            }
            let source = checkpoint.data(checkpoint.require(matrix.source.name())?)?;
            let from = source.len() / matrix.rows.max(1) as usize;
            let mut rest = Run {
                form: Form::Record(group.record),
                origin: Some((matrix.source.name(), checkpoint.path())),
                first: 0,
                source,
                from,
                to: to as usize,
                buffer: 0,
                offset: 0,
            };
            while rest.units() > 0 {
                let Some(view) = shard.filter(|v| v.bytes > 0).or_else(|| shards.next().map(|s| s.view))
                else {
                    return Err(RuntimeError::plan("rows of a group", group.rows, "more"));
                };
                let units = rest.units().min((view.bytes / to) as usize);
                let (head, tail) = Run { buffer: view.buffer, offset: view.offset, ..rest }.split(units);
                let taken = head.bytes() as u64;
                shard = Some(View { offset: view.offset + taken, bytes: view.bytes - taken, ..view });
                runs.push(head);
                rest = tail;
            }
        }
    }
    if plan.vector_offsets.len() != model.vectors.len() {
        return Err(RuntimeError::plan("vector offsets", model.vectors.len(), plan.vector_offsets.len()));
    }
    for (vector, &word) in model.vectors.iter().zip(&plan.vector_offsets) {
        let source = checkpoint.data(checkpoint.require(&vector.tensor)?)?;
        let offset = u64::from(word) * 4;
        if offset + u64::from(vector.len) * 4 > plan.vectors.bytes {
            return Err(RuntimeError::plan("bytes of the vectors", "room for each", plan.vectors.bytes));
        }
        runs.push(Run {
            form: Form::Vector(vector.format),
            origin: Some((vector.tensor.as_str(), checkpoint.path())),
            first: 0,
            source,
            from: vector.format.block_bytes(),
            to: 4,
            buffer: plan.vectors.buffer,
            offset: plan.vectors.offset + offset,
        });
    }
    Ok(runs)
}

/// The staging buffer: two halves where a half holds the longest row, else one.
struct Staging {
    halves: Vec<(Buffer, Upload)>,
    turn: usize,
    /// Where a batch is packed: mappings may be write-combining memory, which is best written once and in order.
    packed: Vec<u8>,
}

impl Staging {
    fn new(device: &Device, plan: &Plan) -> Result<Self, RuntimeError> {
        let longest = plan.groups.iter().map(|g| g.record.stride()).max().unwrap_or(0).max(ALIGN);
        let half = plan.staging_bytes / 2 / ALIGN * ALIGN;
        let sizes =
            if half >= longest { vec![half, plan.staging_bytes - half] } else { vec![plan.staging_bytes] };
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let halves = (0..)
            .zip(sizes)
            .map(|(i, bytes)| {
                let buffer = device.create_buffer(&format!("staging.{i}"), bytes, usage, true)?;
                Ok((buffer, Upload::new()))
            })
            .collect::<Result<_, RuntimeError>>()?;
        Ok(Self { halves, turn: 0, packed: Vec::new() })
    }

    /// Bytes that one flush may hold.
    fn room(&self) -> usize {
        self.halves.iter().map(|(b, _)| b.bytes() as usize).min().unwrap_or(0)
    }

    /// Packs the batch into the half whose turn it is and has the device copy it. Answers its bytes.
    fn flush(
        &mut self,
        device: &Device,
        buffers: &Buffers,
        batch: &mut Vec<Run<'_>>,
    ) -> Result<u64, RuntimeError> {
        if batch.is_empty() {
            return Ok(0);
        }
        let turn = self.turn;
        self.turn = (turn + 1) % self.halves.len();
        let (buffer, upload) = &mut self.halves[turn];
        self.packed.resize(batch.iter().map(Run::bytes).sum(), 0);
        pack(batch, &mut self.packed)?;
        let packed = &self.packed;
        upload.write(device, buffer, |mut out| {
            out.slice(..packed.len()).copy_from_slice(packed);
            Ok(())
        })?;
        let mut encoder = device.encoder("weights");
        let mut at = 0;
        for run in batch.iter() {
            let bytes = run.bytes() as u64;
            let target = buffers.get(run.buffer)?.raw();
            encoder.copy_buffer_to_buffer(buffer.raw(), at, target, run.offset, bytes);
            at += bytes;
        }
        upload.used(buffer, device.submit(encoder.finish())?);
        batch.clear();
        Ok(at)
    }
}

/// Packs runs one behind the other, in tasks side by side.
fn pack(batch: &[Run<'_>], mut out: &mut [u8]) -> Result<(), RuntimeError> {
    let mut tasks = Vec::new();
    for run in batch {
        let mut rest = *run;
        while rest.units() > 0 {
            let (head, tail) = rest.split((TASK_BYTES / rest.to).clamp(1, rest.units()));
            let (mine, others) = out.split_at_mut(head.bytes());
            tasks.push((head, mine));
            (out, rest) = (others, tail);
        }
    }
    tasks.into_par_iter().try_for_each(|(run, mine)| run.pack(mine))
}
