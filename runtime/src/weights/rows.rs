//! Where the rows of a matrix stand in the checkpoint: whole in one tensor, or in planes beside a factor. Everything
//! that a strange file may get wrong is found here, before a byte is allocated or copied.

use crate::RuntimeError;
use plimsoll_kernels::format::{ScaleType, gather};
use plimsoll_kernels::{Format, dequant};
use plimsoll_models::ModelError;
use plimsoll_models::checkpoint::{Checkpoint, DType, TensorInfo};
use plimsoll_models::model::{Matrix, Piece, ScaleForm, TensorScale};
use std::path::Path;

/// Planes of the format that has most: codes, scales, offsets.
const MOST_PLANES: usize = 3;

/// The rows of one piece.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// One behind the other, as the format has them.
    Whole(&'a [u8]),
    /// Torn apart: see [`Planes`].
    Planes(Planes<'a>),
    /// Column by column: see [`Transposed`].
    Transposed(Transposed<'a>),
}

/// Rows that are the columns of matrices `[K, N]`: row `r` is column `r % N` of matrix `r / N`.
#[derive(Clone, Copy)]
pub(super) struct Transposed<'a> {
    /// The whole tensor.
    data: &'a [u8],
    /// Bytes of a value.
    value: usize,
    /// `K`.
    height: usize,
    /// `N`.
    width: usize,
    /// The row that is the first here.
    first: usize,
}

impl<'a> Transposed<'a> {
    /// Writes whole rows from row `index` on into `out`, as many as that holds.
    pub fn read(&self, index: usize, out: &mut [u8]) {
        match self.value {
            2 => self.read_values::<2>(index, out),
            _ => self.read_values::<4>(index, out),
        }
    }

    fn read_values<const BYTES: usize>(&self, index: usize, out: &mut [u8]) {
        let (out, _) = out.as_chunks_mut::<BYTES>();
        let (data, _) = self.data.as_chunks::<BYTES>();
        let mut row = self.first + index;
        let mut out = out;
        while !out.is_empty() {
            // The rows that one matrix has of these stand side by side in each of its lines.
            let (matrix, column) = (row / self.width, row % self.width);
            let count = (out.len() / self.height).min(self.width - column);
            if count == 0 {
                return;
            }
            let (here, rest) = out.split_at_mut(count * self.height);
            for k in 0..self.height {
                let line = (matrix * self.height + k) * self.width + column;
                let values = data.get(line..line + count).unwrap_or_default();
                for (to, from) in here.iter_mut().skip(k).step_by(self.height).zip(values) {
                    *to = *from;
                }
            }
            (out, row) = (rest, row + count);
        }
    }

    /// The first `rows`, and the rest.
    pub fn split(self, rows: usize) -> (Self, Self) {
        (self, Self { first: self.first + rows, ..self })
    }
}

/// Rows whose codes, scales and offsets stand in tensors of their own.
#[derive(Clone, Copy)]
pub(super) struct Planes<'a> {
    format: Format,
    /// Each plane of all rows, and its bytes in one row; those past `count` are empty.
    data: [(&'a [u8], usize); MOST_PLANES],
    count: usize,
    factors: Option<Factors<'a>>,
}

impl<'a> Planes<'a> {
    /// Joins row `index` into `row`, which is as long as the format's rows are.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] when its factor is not what a factor must be.
    pub fn gather(&self, index: usize, row: &mut [u8]) -> Result<(), RuntimeError> {
        let mut planes: [&[u8]; MOST_PLANES] = [&[]; MOST_PLANES];
        for (plane, (data, bytes)) in planes.iter_mut().zip(&self.data) {
            *plane = data.get(index * bytes..(index + 1) * bytes).unwrap_or_default();
        }
        let factor = self.factors.map_or(Ok(1.0), |f| f.at(index))?;
        gather(self.format, &planes[..self.count], factor, row)
            .map_err(|e| RuntimeError::plan("planes of a matrix", "those of whole rows", e))
    }

    /// The first `rows`, and the rest.
    pub fn split(self, rows: usize) -> (Self, Self) {
        let (mut head, mut tail) = (self, self);
        for (i, (data, bytes)) in self.data.into_iter().enumerate() {
            let (first, rest) = data.split_at((rows * bytes).min(data.len()));
            head.data[i].0 = first;
            tail.data[i].0 = rest;
        }
        if let Some(factors) = tail.factors.as_mut().filter(|f| f.per_row) {
            factors.first += rows;
        }
        (head, tail)
    }
}

/// Factors of rows, in a tensor of their own.
#[derive(Clone, Copy)]
struct Factors<'a> {
    origin: (&'a str, &'a Path),
    format: Format,
    data: &'a [u8],
    /// The value that serves the first row.
    first: usize,
    /// Whether each row has its own, or all the first.
    per_row: bool,
    form: ScaleForm,
}

impl Factors<'_> {
    fn at(&self, row: usize) -> Result<f32, ModelError> {
        let index = self.first + if self.per_row { row } else { 0 };
        let bytes = self.format.block_bytes();
        let mut stored = [f32::NAN];
        let value = self.data.get(index * bytes..(index + 1) * bytes).unwrap_or_default();
        dequant::dequantize(self.format, value, &mut stored);
        let factor = self.form.factor(stored[0]);
        if stored[0].is_finite() && factor.is_finite() && factor > 0.0 {
            return Ok(factor);
        }
        let expected = match self.form {
            ScaleForm::Times | ScaleForm::MaxAbs => "a finite number above 0",
            ScaleForm::Over => "a finite number above 0 whose reciprocal is one",
        };
        Err(corrupt(self.origin, format!("value {index}"), expected, stored[0].to_string()))
    }
}

/// Finds the rows of a piece and checks whatever can be without reading them: that the tensors are there, hold what
/// the format keeps in them, and have as many rows as the piece takes. `each` is told every plane's tensor and how
/// many rows that has.
///
/// # Errors
/// [`ModelError::MissingTensor`], [`ModelError::Shape`], [`ModelError::Field`], each naming the tensor.
pub(super) fn find<'a>(
    checkpoint: &'a Checkpoint,
    matrix: &Matrix,
    piece: &'a Piece,
    mut each: impl FnMut(&'a str, u64),
) -> Result<Rows<'a>, ModelError> {
    let Matrix { format, cols, .. } = *matrix;
    let name = matrix.source.name();
    let planes = format.planes(cols.into()).filter(|planes| planes.len() == piece.planes.len());
    let mut cut = |name: &'a str, per_row: u64| {
        let info = checkpoint.require(name)?;
        let (data, rows) = rows_of(checkpoint, info, per_row, piece, matrix, planes.is_some())?;
        each(name, rows);
        Ok::<_, ModelError>((data, rows))
    };
    let Some(planes) = &planes else {
        let ([tensor], Some(per_row)) = (&piece.planes[..], format.row_bytes(cols.into())) else {
            let expected = format!("the planes of whole rows of {cols} values");
            return Err(field(name, "planes", expected, format!("{} tensors", piece.planes.len())));
        };
        let info = checkpoint.require(tensor)?;
        if info.dtype.format() != Some(format) {
            return Err(field(tensor, "format", format, &info.dtype));
        }
        if let Some(scale) = &piece.scale {
            return Err(field(&scale.tensor, "use", format!("no factor beside {format}"), "one"));
        }
        if !piece.transposed {
            return Ok(Rows::Whole(cut(tensor, per_row)?.0));
        }
        let (found, rows) = transposed(checkpoint, info, piece, matrix)?;
        each(tensor, rows);
        return Ok(Rows::Transposed(found));
    };
    if piece.transposed {
        return Err(field(name, "format", "f32, f16 or bf16 to be transposed", format));
    }
    let mut found = Planes { format, data: [(&[], 0); MOST_PLANES], count: planes.len(), factors: None };
    let mut rows_before = None;
    for (plane, (tensor, &per_row)) in piece.planes.iter().zip(planes).enumerate() {
        let dtype = &checkpoint.require(tensor)?.dtype;
        if !holds(format, plane, dtype) {
            let expected = format!("one that holds plane {plane} of {format}");
            return Err(field(tensor, "format", expected, dtype));
        }
        let (data, rows) = cut(tensor, per_row)?;
        if let Some(before) = rows_before.replace(rows).filter(|before| *before != rows) {
            return Err(field(tensor, "rows", format!("{before}, as {} has", piece.planes[0]), rows));
        }
        let Some(place) = found.data.get_mut(plane) else {
            return Err(field(tensor, "planes", format!("at most {MOST_PLANES}"), planes.len()));
        };
        *place = (data, per_row as usize);
    }
    found.factors = piece.scale.as_ref().map(|s| factors(checkpoint, format, piece, s)).transpose()?;
    Ok(Rows::Planes(found))
}

/// The bytes of a piece's rows in a tensor whose rows have `per_row` bytes, and the rows of the whole tensor.
fn rows_of<'a>(
    checkpoint: &'a Checkpoint,
    info: &TensorInfo,
    per_row: u64,
    piece: &Piece,
    matrix: &Matrix,
    packed: bool,
) -> Result<(&'a [u8], u64), ModelError> {
    let (first, end) = (u64::from(piece.first_row), u64::from(piece.first_row) + u64::from(piece.rows));
    // A row is made of the innermost dimensions, however many; those before them count rows. Plain formats are
    // counted in values and planes in bytes: what a plane's type calls a value is the writer's affair.
    let (elements, bytes) = (u128::from(info.elements()), u128::from(info.bytes));
    let mut inner = 1u128;
    let whole = info.shape.iter().rev().map(|&d| u128::from(d)).any(|dimension| {
        inner = inner.saturating_mul(dimension);
        if packed {
            inner.saturating_mul(bytes) == u128::from(per_row).saturating_mul(elements)
        } else {
            inner == u128::from(matrix.cols)
        }
    });
    let rows = info.bytes / per_row.max(1);
    let data = checkpoint.data(info)?;
    // What does not fit an address lies past the data.
    let at = |row: u64| usize::try_from(row.saturating_mul(per_row)).unwrap_or(usize::MAX);
    match data.get(at(first)..at(end)) {
        Some(data) if whole && info.bytes == rows * per_row => Ok((data, rows)),
        _ if packed => {
            let expected = format!("at least {end} rows of {per_row} bytes");
            Err(field(&info.name, "shape", expected, format!("{} bytes as {:?}", info.bytes, info.shape)))
        }
        _ => Err(shape(info, vec![end, matrix.cols.into()])),
    }
}

/// A piece that is stored the other way round, and the rows of the whole tensor.
fn transposed<'a>(
    checkpoint: &'a Checkpoint,
    info: &TensorInfo,
    piece: &Piece,
    matrix: &Matrix,
) -> Result<(Transposed<'a>, u64), ModelError> {
    let Matrix { format, cols, .. } = *matrix;
    if !format.is_float() {
        return Err(field(&info.name, "format", "f32, f16 or bf16 to be transposed", format));
    }
    let data = checkpoint.data(info)?;
    let (end, value) = (u64::from(piece.first_row) + u64::from(piece.rows), format.block_bytes());
    let rows = info.elements() / u64::from(cols).max(1);
    match info.shape[..] {
        [.., height, width] if height == u64::from(cols) && end <= rows && width > 0 => {
            if data.len() as u64 != info.elements() * value as u64 {
                return Err(shape(info, info.shape.clone()));
            }
            let (height, width) = (height as usize, width as usize);
            Ok((Transposed { data, value, height, width, first: piece.first_row as usize }, rows))
        }
        _ => Err(shape(info, vec![cols.into(), end])),
    }
}

/// The factors of a piece. All are read once, so that a bad one is found before anything is created.
fn factors<'a>(
    checkpoint: &'a Checkpoint,
    format: Format,
    piece: &Piece,
    scale: &'a TensorScale,
) -> Result<Factors<'a>, ModelError> {
    let tensor = &scale.tensor;
    if format.row_tail() == 0 {
        return Err(field(tensor, "use", format!("no factor beside {format}"), "one"));
    }
    let info = checkpoint.require(tensor)?;
    let Some(stored) = info.dtype.format().filter(|f| f.is_float()) else {
        return Err(field(tensor, "format", "f32, f16 or bf16", &info.dtype));
    };
    let data = checkpoint.data(info)?;
    let (first, used) = match scale.index {
        Some(index) => (u64::from(index), 1),
        None => (u64::from(piece.first_row), u64::from(piece.rows)),
    };
    if (first + used) * stored.block_bytes() as u64 > data.len() as u64 {
        return Err(shape(info, vec![first + used]));
    }
    let factors = Factors {
        origin: (tensor, checkpoint.path()),
        format: stored,
        data,
        first: first as usize,
        per_row: scale.index.is_none(),
        form: scale.form,
    };
    (0..used as usize).try_for_each(|row| factors.at(row).map(drop))?;
    Ok(factors)
}

/// Whether a plane may be of this type: the format's own, or the bare integers that writers without it pack it into.
fn holds(format: Format, plane: usize, dtype: &DType) -> bool {
    let any = |names: &[&str]| matches!(dtype, DType::Other(name) if names.contains(&name.as_str()));
    let packed = || any(&["u8", "i8", "u32", "i32"]);
    let e4m3 = || any(&["u8", "f8_e4m3"]) || dtype.format() == Some(Format::Fp8);
    match (format, plane) {
        (Format::Affine { scales, .. }, 1..) => {
            let float = match scales {
                ScaleType::F32 => Format::F32,
                ScaleType::F16 => Format::F16,
                ScaleType::BF16 => Format::BF16,
            };
            dtype.format() == Some(float)
        }
        (Format::Mxfp4 | Format::Nvfp4 | Format::Nvfp4Scaled, 0) => packed() || any(&["f4"]),
        (Format::Mxfp8 | Format::Fp8, 0) => packed() || e4m3(),
        (Format::Mxfp4 | Format::Mxfp8, _) => any(&["u8", "f8_e8m0"]),
        (Format::Nvfp4 | Format::Nvfp4Scaled, _) => e4m3(),
        _ => packed(),
    }
}

/// Something in the bytes of a tensor that no weight may be.
pub(super) fn corrupt(
    (name, path): (&str, &Path),
    place: String,
    expected: &str,
    got: impl Into<String>,
) -> ModelError {
    ModelError::Corrupt {
        path: path.to_owned(),
        place: format!("tensor {name}, {place}"),
        expected: expected.to_owned(),
        got: got.into(),
    }
}

/// A tensor of another shape.
pub(super) fn shape(info: &TensorInfo, expected: Vec<u64>) -> ModelError {
    ModelError::Shape { name: info.name.clone(), expected, got: info.shape.clone() }
}

/// A tensor of another kind.
pub(super) fn field(name: &str, what: &str, expected: impl ToString, got: impl ToString) -> ModelError {
    ModelError::Field {
        key: format!("{what} of tensor {name}"),
        expected: expected.to_string(),
        got: got.to_string(),
    }
}
