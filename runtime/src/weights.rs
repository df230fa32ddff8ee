//! From checkpoint to device: rows are joined from wherever the checkpoint keeps their parts and repacked into
//! records, vectors widened to f32, and everything goes through one bounded staging buffer. Stacks of experts that the
//! checkpoint stores one by one are stacked by where they are copied to: nothing is ever held twice.

mod rows;
mod run;
mod staging;

use crate::account;
use crate::buffers::Buffers;
use crate::{Device, LoadProgress, RuntimeError};
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{ALIGN, VectorPlace, View, WeightGroup};
use plimsoll_kernels::Record;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::model::{Matrix, Piece, Vector};
use plimsoll_models::{Model, ModelError};
use run::{Form, Run};
use staging::Staging;
use std::collections::HashMap;
use std::path::Path;

/// Whether the checkpoint holds what the model states: every tensor, its shape, its format, every factor; and whether
/// the model takes every row of the tensors it names, so that a checkpoint of another size is not taken for its own.
///
/// # Errors
/// [`ModelError::MissingTensor`], [`ModelError::Shape`], [`ModelError::Field`], [`ModelError::Corrupt`], each naming
/// the tensor.
pub(crate) fn check(model: &Model, checkpoint: &Checkpoint) -> Result<(), RuntimeError> {
    // The rows each tensor has, and the first that no piece before it reaches.
    let mut reached: HashMap<&str, (u64, u64, u32)> = HashMap::new();
    for matrix in &model.matrices {
        check_rows(matrix)?;
        for piece in &matrix.source.pieces {
            let end = u64::from(piece.first_row) + u64::from(piece.rows);
            rows::find(checkpoint, matrix, piece, |name, rows| {
                let known = reached.entry(name).or_insert((rows, 0, matrix.cols));
                known.1 = known.1.max(end);
            })?;
        }
    }
    if let Some((name, &(_, end, cols))) = reached.iter().find(|(_, (rows, end, _))| end < rows) {
        return Err(rows::shape(checkpoint.require(name)?, vec![end, cols.into()]).into());
    }
    for vector in &model.vectors {
        if let Some(run) = vector.joined.as_ref().map(|j| u64::from(j.run))
            && (run == 0 || !u64::from(vector.len).is_multiple_of(2 * run))
        {
            return Err(
                rows::field(&vector.tensor, "values of a run", "a divisor of half of all", run).into()
            );
        }
        vector.tensors().try_for_each(|name| values(checkpoint, vector, name).map(drop))?;
    }
    Ok(())
}

fn check_rows(matrix: &Matrix) -> Result<(), ModelError> {
    let name = matrix.source.name();
    let sum: u64 = matrix.source.pieces.iter().map(|piece| u64::from(piece.rows)).sum();
    if sum != u64::from(matrix.rows) {
        return Err(rows::field(name, "rows of the pieces", matrix.rows, sum));
    }
    if matrix.experts == 0 || !matrix.rows.is_multiple_of(matrix.experts) {
        let expected = format!("a divisor of {} rows", matrix.rows);
        return Err(rows::field(name, "experts", expected, matrix.experts));
    }
    Ok(())
}

/// The values of one of a vector's tensors, as stored. Dimensions do not matter, their product does.
fn values<'a>(checkpoint: &'a Checkpoint, vector: &Vector, name: &str) -> Result<&'a [u8], ModelError> {
    let info = checkpoint.require(name)?;
    let len = vector.tensor_len();
    let data = checkpoint.data(info)?;
    if info.dtype.format() != Some(vector.format) {
        return Err(rows::field(&info.name, "format", vector.format, &info.dtype));
    }
    if !vector.format.is_float() {
        return Err(rows::field(&info.name, "format", "f32, f16 or bf16", vector.format));
    }
    let bytes = u64::from(len) * vector.format.block_bytes() as u64;
    if info.elements() != u64::from(len) || data.len() as u64 != bytes {
        return Err(rows::shape(info, vec![len.into()]));
    }
    Ok(data)
}

/// Fills the plan's weights, vectors and parameters, and zeroes every other byte. `progress` is told the bytes of each
/// tensor that are on the device.
///
/// # Errors
/// Errors of the checkpoint, of the staging buffer and of its submits; [`RuntimeError::Account`].
pub(crate) fn upload(
    device: &Device,
    plan: &Plan,
    model: &Model,
    checkpoint: &Checkpoint,
    buffers: &Buffers,
    progress: &mut dyn FnMut(LoadProgress<'_>),
) -> Result<(), RuntimeError> {
    let params = params(plan);
    let written = written(plan, model)?;
    let total: u64 = written.iter().map(|view| view.bytes).sum();
    let mut staging = Staging::new(device, plan, buffers)?;
    account::check(device, plan, plan.staging_bytes)?;

    let mut encoder = device.encoder("clear");
    buffers.clear(plan, &mut encoder, &written)?;
    device.submit(encoder.finish())?;

    let mut tensors = tensors(plan, model);
    let mut done = 0;
    let mut flushed = |run: &Run<'_>| {
        let bytes = run.bytes() as u64;
        done += bytes;
        if let Some((tensor_done, tensor_total)) = tensors.get_mut(run.origin.0) {
            *tensor_done += bytes;
            let (tensor, tensor_done, tensor_total) = (run.origin.0, *tensor_done, *tensor_total);
            progress(LoadProgress::Weights { tensor, tensor_done, tensor_total, done, total });
        }
    };
    staging.push(
        Run {
            form: Form::Raw(&params),
            origin: (PARAMETERS, Path::new("plan")),
            first: 0,
            units: plan.params.len(),
            to: ALIGN as usize,
            buffer: plan.params_buffer,
            offset: 0,
        },
        &mut flushed,
    )?;
    for group in &plan.groups {
        push_group(&mut staging, group, model, checkpoint, &mut flushed)?;
    }
    for (vector, place) in model.vectors.iter().zip(&plan.vector_places) {
        let view = vector_view(plan, vector, place)?;
        push_vector(&mut staging, vector, view, checkpoint, &mut flushed)?;
    }
    staging.flush(&mut flushed)?;
    device.wait_idle()?;
    // What was read while somebody wrote is nobody's weights.
    Ok(checkpoint.unchanged()?)
}

/// What the parameters of the plan are called beside the tensors of a checkpoint.
const PARAMETERS: &str = "parameters";

/// Bytes that the device has and will have of every tensor, by the name that its runs go by.
fn tensors<'a>(plan: &Plan, model: &'a Model) -> HashMap<&'a str, (u64, u64)> {
    let mut tensors = HashMap::from([(PARAMETERS, (0, plan.params.len() as u64 * ALIGN))]);
    let mut add = |name: &'a str, bytes: u64| tensors.entry(name).or_default().1 += bytes;
    for group in &plan.groups {
        for matrix in group.matrices.iter().filter_map(|&id| model.matrix(id)) {
            for piece in &matrix.source.pieces {
                add(origin(piece), u64::from(piece.rows) * group.record.stride());
            }
        }
    }
    for vector in &model.vectors {
        vector.tensors().for_each(|name| add(name, u64::from(vector.tensor_len()) * 4));
    }
    tensors
}

/// The tensor that a piece's rows go by: the codes, where other planes stand beside.
fn origin(piece: &Piece) -> &str {
    piece.planes.first().map_or("nothing", String::as_str)
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

/// Everything the load writes: the parameters, the rows of every group, every vector.
fn written(plan: &Plan, model: &Model) -> Result<Vec<View>, RuntimeError> {
    let bytes = plan.params.len() as u64 * ALIGN;
    let mut views = vec![View { buffer: plan.params_buffer, offset: 0, bytes }];
    for group in &plan.groups {
        let rows: u64 =
            group.matrices.iter().filter_map(|&id| model.matrix(id)).map(|m| u64::from(m.rows)).sum();
        if rows != u64::from(group.rows) {
            return Err(RuntimeError::plan("rows of a group", group.rows, rows));
        }
        views.extend(group.shards.iter().map(|shard| shard.view));
    }
    if plan.vector_places.len() != model.vectors.len() {
        return Err(RuntimeError::plan("places of vectors", model.vectors.len(), plan.vector_places.len()));
    }
    for (vector, place) in model.vectors.iter().zip(&plan.vector_places) {
        views.push(vector_view(plan, vector, place)?);
    }
    Ok(views)
}

/// The bytes of a vector on the device.
fn vector_view(plan: &Plan, vector: &Vector, place: &VectorPlace) -> Result<View, RuntimeError> {
    let windows = plan.vectors.len();
    let window = plan.vectors.get(place.window as usize);
    let window = window.ok_or_else(|| RuntimeError::plan("windows of vectors", place.window + 1, windows))?;
    let (offset, bytes) = (u64::from(place.word) * 4, u64::from(vector.len) * 4);
    if offset + bytes > window.bytes {
        return Err(RuntimeError::plan("bytes of the vectors", "room for each", window.bytes));
    }
    Ok(View { buffer: window.buffer, offset: window.offset + offset, bytes })
}

/// Pushes the values of a vector to where `view` begins, run by run where two tensors alternate.
fn push_vector<'a>(
    staging: &mut Staging<'a>,
    vector: &'a Vector,
    view: View,
    checkpoint: &'a Checkpoint,
    flushed: &mut dyn FnMut(&Run<'a>),
) -> Result<(), RuntimeError> {
    let units = vector.joined.as_ref().map_or(vector.len, |j| j.run) as usize;
    let mut parts = Vec::new();
    for name in vector.tensors() {
        parts.push(Run {
            form: Form::Values(vector.format, vector.transform, values(checkpoint, vector, name)?),
            origin: (name, checkpoint.path()),
            first: 0,
            units: vector.tensor_len() as usize,
            to: 4,
            buffer: view.buffer,
            offset: view.offset,
        });
    }
    let mut offset = view.offset;
    while units > 0 && parts.iter().any(|part| part.units > 0) {
        for part in &mut parts {
            let (head, tail) = part.split(units);
            let bytes = head.bytes() as u64;
            staging.push(Run { offset, ..head }, flushed)?;
            (*part, offset) = (tail, offset + bytes);
        }
    }
    Ok(())
}

/// Pushes the rows of a group's matrices, piece by piece, to where its shards stand.
fn push_group<'a>(
    staging: &mut Staging<'a>,
    group: &WeightGroup,
    model: &'a Model,
    checkpoint: &'a Checkpoint,
    flushed: &mut dyn FnMut(&Run<'a>),
) -> Result<(), RuntimeError> {
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
        for piece in &matrix.source.pieces {
            let mut rest = Run {
                form: Form::Rows(group.record, rows::find(checkpoint, matrix, piece, |_, _| ())?),
                origin: (origin(piece), checkpoint.path()),
                first: piece.first_row as usize,
                units: piece.rows as usize,
                to: to as usize,
                buffer: 0,
                offset: 0,
            };
            while rest.units > 0 {
                let Some(view) = shard.filter(|v| v.bytes > 0).or_else(|| shards.next().map(|s| s.view))
                else {
                    return Err(RuntimeError::plan("rows of a group", group.rows, "more"));
                };
                let place = Run { buffer: view.buffer, offset: view.offset, ..rest };
                let (head, tail) = place.split((view.bytes / to) as usize);
                let taken = head.bytes() as u64;
                shard = Some(View { offset: view.offset + taken, bytes: view.bytes - taken, ..view });
                staging.push(head, flushed)?;
                rest = tail;
            }
        }
    }
    Ok(())
}
