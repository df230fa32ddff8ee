//! Matrices as safetensors hold them: plain, or packed in several tensors whose names tell the form.
//!
//! | form | codes | scales | offsets | factor of the whole |
//! | --- | --- | --- | --- | --- |
//! | MLX affine | `X.weight` u32 | `X.scales` float | `X.biases` float | |
//! | MLX mxfp4, mxfp8, nvfp4 | `X.weight` u32 | `X.scales` u8 | | nvfp4: perhaps `X.global_scale`, the largest magnitude |
//! | modelopt NVFP4 | `X.weight` u8 | `X.weight_scale` e4m3 | | `X.weight_scale_2`, times |
//! | compressed-tensors NVFP4 | `X.weight_packed` u8 | `X.weight_scale` e4m3 | | `X.weight_global_scale`, over |
//! | MXFP4 as gpt-oss publishes it | `X_blocks` u8, 16 bytes a block | `X_scales` u8 | | |
//! | FP8 | `X.weight` e4m3 | | | `X.weight_scale`, times; of the whole or of each row |
//!
//! Bits and groups follow from the shapes, because the model knows how many inputs a row has. Scales of activations
//! (`input_scale` and the like) are of no use here: activations stay floats.

use crate::checkpoint::{Checkpoint, DType, TensorInfo};
use crate::error::ModelError;
use crate::model::{Piece, ScaleForm, TensorScale};
use plimsoll_kernels::Format;
use plimsoll_kernels::format::ScaleType;

/// The shape a matrix must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Matrices in a stack, where it is one.
    pub experts: Option<u32>,
    /// Rows of each.
    pub rows: u32,
    /// Values of a row.
    pub cols: u32,
}

impl Wanted {
    /// Dimensions of a tensor with `last` values in each row.
    fn shape(self, last: u64) -> Vec<u64> {
        let experts = self.experts.map(u64::from);
        experts.into_iter().chain([u64::from(self.rows), last]).collect()
    }
}

/// How many factors a packed matrix has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    Whole,
    Expert,
    Row,
}

/// A matrix, or a stack of them, in the tensors of a checkpoint.
#[derive(Debug)]
pub(super) struct Found {
    pub format: Format,
    planes: Vec<String>,
    scale: Option<(String, ScaleForm, Spread)>,
}

impl Found {
    /// Where the rows of each expert of a stack are.
    pub(super) fn expert_pieces(&self, wanted: Wanted) -> Vec<Piece> {
        let piece = |expert: u32| {
            let scale = self.scale.as_ref().map(|(tensor, form, spread)| TensorScale {
                tensor: tensor.clone(),
                index: match spread {
                    Spread::Whole => Some(0),
                    Spread::Expert => Some(expert),
                    Spread::Row => None,
                },
                form: *form,
            });
            Piece { scale, ..Piece::rows(self.planes.clone(), expert * wanted.rows, wanted.rows) }
        };
        (0..wanted.experts.unwrap_or(1)).map(piece).collect()
    }

    /// Where its rows are. A stack in which each expert has its own factor is one piece for each.
    pub(super) fn pieces(&self, wanted: Wanted) -> Vec<Piece> {
        let experts = wanted.experts.unwrap_or(1);
        let piece = |first_row: u32, rows: u32, index: Option<u32>| {
            let scale = self.scale.as_ref().map(|(tensor, form, _)| TensorScale {
                tensor: tensor.clone(),
                index,
                form: *form,
            });
            Piece { planes: self.planes.clone(), scale, first_row, rows, transposed: false }
        };
        match self.scale.as_ref().map(|(_, _, spread)| *spread) {
            Some(Spread::Expert) => {
                (0..experts).map(|e| piece(e * wanted.rows, wanted.rows, Some(e))).collect()
            }
            Some(Spread::Row) => vec![piece(0, experts * wanted.rows, None)],
            Some(Spread::Whole) | None => vec![piece(0, experts * wanted.rows, Some(0))],
        }
    }
}

/// The path of the module a tensor belongs to.
pub(super) fn module(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}

/// Whether the matrix called `tensor` is there in any form.
pub(super) fn is_there(checkpoint: &Checkpoint, tensor: &str) -> bool {
    checkpoint.tensor(tensor).is_some()
        || checkpoint.tensor(&format!("{}.weight_packed", module(tensor))).is_some()
        || checkpoint.tensor(&format!("{}_blocks", module(tensor))).is_some()
}

/// The same of an index without its shards; `None` where it cannot tell.
pub(super) fn is_listed(checkpoint: &Checkpoint, tensor: &str) -> Option<bool> {
    if !checkpoint.has_list() {
        return None;
    }
    let packed = [format!("{}.weight_packed", module(tensor)), format!("{}_blocks", module(tensor))];
    if packed.iter().any(|name| checkpoint.lists(name) == Some(true)) {
        return Some(true);
    }
    checkpoint.lists(tensor)
}

/// Takes the matrix called `tensor` from an index without its shards, with the tensors that stand beside one that is not
/// `plain`; whether it is there.
pub(super) fn take(checkpoint: &Checkpoint, tensor: &str, plain: bool) -> bool {
    const CODES: [&str; 2] = [".weight_packed", "_blocks"];
    const SIDE: [&str; 8] = [
        ".scales",
        ".biases",
        ".global_scale",
        ".weight_scale",
        ".weight_scale_2",
        ".weight_global_scale",
        ".weight_scale_inv",
        "_scales",
    ];
    let mut there = checkpoint.take(tensor);
    if plain {
        return there;
    }
    let beside = |part: &str| checkpoint.take(&format!("{}{part}", module(tensor)));
    for codes in CODES {
        there |= beside(codes);
    }
    for side in SIDE {
        beside(side);
    }
    there
}

/// Recognises the matrix called `tensor` (`X.weight`) and checks the shape of everything it is stored in.
///
/// # Errors
/// When a tensor is missing, has another shape or dtype than its form asks for, or the form has no kernels.
pub(super) fn find(checkpoint: &Checkpoint, tensor: &str, wanted: Wanted) -> Result<Found, ModelError> {
    let reader = Reader { checkpoint, base: module(tensor), wanted };
    if let Some(codes) = checkpoint.tensor(tensor) {
        return match &codes.dtype {
            DType::Weight(format) => {
                expect_shape(codes, &wanted.shape(u64::from(wanted.cols)))?;
                Ok(Found { format: *format, planes: vec![codes.name.clone()], scale: None })
            }
            DType::Other(name) if name == "u32" => reader.mlx(codes),
            DType::Other(name) if name == "u8" => reader.nvfp4(codes, "weight_scale_2", ScaleForm::Times),
            DType::Other(name) if name == "f8_e4m3" => reader.fp8(codes),
            DType::Other(_) => Err(unreadable(codes)),
        };
    }
    if let Some(blocks) = checkpoint.tensor(&format!("{}_blocks", reader.base)) {
        return reader.blocks(blocks);
    }
    match checkpoint.tensor(&format!("{}.weight_packed", reader.base)) {
        Some(codes) if codes.dtype == DType::Other("u8".into()) => {
            reader.nvfp4(codes, "weight_global_scale", ScaleForm::Over)
        }
        Some(codes) => Err(unreadable(codes)),
        None => {
            Err(ModelError::MissingTensor { name: tensor.to_owned(), path: checkpoint.path().to_owned() })
        }
    }
}

fn unreadable(tensor: &TensorInfo) -> ModelError {
    ModelError::unsupported(
        format!("tensor {} in format {}", tensor.name, tensor.dtype),
        "no kernel reads it",
    )
}

fn expect_shape(tensor: &TensorInfo, expected: &[u64]) -> Result<(), ModelError> {
    if tensor.shape == expected {
        return Ok(());
    }
    Err(ModelError::Shape {
        name: tensor.name.clone(),
        expected: expected.to_vec(),
        got: tensor.shape.clone(),
    })
}

fn expect_dtype(tensor: &TensorInfo, expected: &str) -> Result<(), ModelError> {
    if tensor.dtype.to_string() == expected {
        return Ok(());
    }
    Err(ModelError::field(format!("dtype of {}", tensor.name), expected, tensor.dtype.to_string()))
}

/// The type of scales, offsets and factors.
fn float_type(tensor: &TensorInfo) -> Result<ScaleType, ModelError> {
    match tensor.dtype.format() {
        Some(Format::F32) => Ok(ScaleType::F32),
        Some(Format::F16) => Ok(ScaleType::F16),
        Some(Format::BF16) => Ok(ScaleType::BF16),
        _ => Err(ModelError::field(
            format!("dtype of {}", tensor.name),
            "f32, f16 or bf16",
            tensor.dtype.to_string(),
        )),
    }
}

/// Reads one module's tensors.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    base: &'a str,
    wanted: Wanted,
}

impl<'a> Reader<'a> {
    fn optional(&self, part: &str) -> Option<&'a TensorInfo> {
        self.checkpoint.tensor(&format!("{}.{part}", self.base))
    }

    fn required(&self, part: &str) -> Result<&'a TensorInfo, ModelError> {
        self.checkpoint.require(&format!("{}.{part}", self.base))
    }

    /// The codes and scales of MLX: bits and group by the shapes.
    fn mlx(&self, codes: &TensorInfo) -> Result<Found, ModelError> {
        let scales = self.required("scales")?;
        let cols = u64::from(self.wanted.cols);
        for tensor in [codes, scales] {
            expect_shape(tensor, &self.wanted.shape(tensor.shape.last().copied().unwrap_or(0)))?;
        }
        let last = |tensor: &TensorInfo| tensor.shape.last().copied().filter(|&n| n > 0);
        let group = last(scales).filter(|n| cols.is_multiple_of(*n)).map(|n| cols / n);
        let bits =
            last(codes).and_then(|n| n.checked_mul(32)).filter(|n| n.is_multiple_of(cols)).map(|n| n / cols);
        let (Some(group), Some(bits)) = (group, bits) else {
            return Err(ModelError::field(
                format!("shapes of {} and {}", codes.name, scales.name),
                format!("whole groups and whole bits for rows of {cols}"),
                format!("{:?} and {:?}", codes.shape, scales.shape),
            ));
        };
        let offsets = self.optional("biases");
        let format = match (offsets, bits, group) {
            (Some(offsets), 1..=6 | 8, 32 | 64 | 128) => {
                let (scales, other) = (float_type(scales)?, float_type(offsets)?);
                if scales != other {
                    return Err(ModelError::field(
                        format!("dtype of {}", offsets.name),
                        "that of the scales",
                        offsets.dtype.to_string(),
                    ));
                }
                Format::Affine { bits: bits as u8, group: group as u8, scales }
            }
            (None, 4, 32) => Format::Mxfp4,
            (None, 8, 32) => Format::Mxfp8,
            (None, 4, 16) if self.optional("global_scale").is_some() => Format::Nvfp4Scaled,
            (None, 4, 16) => Format::Nvfp4,
            (offsets, ..) => {
                let kind = if offsets.is_some() { "with" } else { "without" };
                return Err(ModelError::unsupported(
                    format!("tensor {} of {bits} bits in groups of {group} {kind} offsets", codes.name),
                    "MLX's affine (1 to 6 and 8 bits by 32, 64 or 128), mxfp4, mxfp8 and nvfp4 are",
                ));
            }
        };
        let planes: Vec<&TensorInfo> = [Some(codes), Some(scales), offsets].into_iter().flatten().collect();
        if offsets.is_none() {
            expect_dtype(scales, "u8")?;
        }
        let scale = match format {
            Format::Nvfp4Scaled => Some(self.factor("global_scale", ScaleForm::MaxAbs)?),
            _ => None,
        };
        self.found(format, &planes, scale)
    }

    /// Blocks of 32 codes, two in a byte one after the other, and a scale for each.
    fn blocks(&self, codes: &TensorInfo) -> Result<Found, ModelError> {
        let scales = self.checkpoint.require(&format!("{}_scales", self.base))?;
        if !self.wanted.cols.is_multiple_of(32) {
            let expected = "whole blocks of 32".to_owned();
            let key = format!("rows of {}", self.base);
            return Err(ModelError::field(key, expected, self.wanted.cols.to_string()));
        }
        let shape = self.wanted.shape(u64::from(self.wanted.cols / 32));
        expect_shape(scales, &shape)?;
        expect_shape(codes, &[shape.as_slice(), &[16]].concat())?;
        expect_dtype(codes, "u8")?;
        expect_dtype(scales, "u8")?;
        let planes = vec![codes.name.clone(), scales.name.clone()];
        Ok(Found { format: Format::Mxfp4, planes, scale: None })
    }

    /// Two codes in a byte, an e4m3 scale for 16 values, a factor for all.
    fn nvfp4(&self, codes: &TensorInfo, factor: &str, form: ScaleForm) -> Result<Found, ModelError> {
        let scales = self.required("weight_scale")?;
        expect_dtype(scales, "f8_e4m3")?;
        let scale = self.factor(factor, form)?;
        self.found(Format::Nvfp4Scaled, &[codes, scales], Some(scale))
    }

    fn fp8(&self, codes: &TensorInfo) -> Result<Found, ModelError> {
        if self.optional("weight_scale_inv").is_some() {
            return Err(ModelError::unsupported(
                format!("tensor {} with scales of square blocks", codes.name),
                "FP8 with a scale of the whole or of each row is",
            ));
        }
        let scale = self.factor("weight_scale", ScaleForm::Times)?;
        self.found(Format::Fp8, &[codes], Some(scale))
    }

    /// The factor beside the planes, and what it is a factor of.
    fn factor(&self, part: &str, form: ScaleForm) -> Result<(String, ScaleForm, Spread), ModelError> {
        let tensor = self.required(part)?;
        float_type(tensor)?;
        let rows = u64::from(self.wanted.rows);
        let experts = self.wanted.experts.map(u64::from);
        // Ones at the end say nothing; a single row or expert is the whole.
        let mut shape = tensor.shape.as_slice();
        while let [rest @ .., 1] = shape {
            shape = rest;
        }
        let by_row = part == "weight_scale";
        let spread = match (experts, shape) {
            (_, []) => Spread::Whole,
            (Some(experts), [n]) if *n == experts => Spread::Expert,
            (Some(experts), [n, m]) if *n == experts && *m == rows && by_row => Spread::Row,
            (None, [n]) if *n == rows && by_row => Spread::Row,
            _ => {
                return Err(ModelError::Shape {
                    name: tensor.name.clone(),
                    expected: experts.into_iter().chain(by_row.then_some(rows)).collect(),
                    got: tensor.shape.clone(),
                });
            }
        };
        Ok((tensor.name.clone(), form, spread))
    }

    /// Checks every plane against the bytes the format has in a row.
    fn found(
        &self,
        format: Format,
        planes: &[&TensorInfo],
        scale: Option<(String, ScaleForm, Spread)>,
    ) -> Result<Found, ModelError> {
        let cols = u64::from(self.wanted.cols);
        let bytes = format.planes(cols).filter(|bytes| bytes.len() == planes.len()).ok_or_else(|| {
            ModelError::field(
                format!("rows of {}", self.base),
                format!("whole blocks of {}", format.block_len()),
                cols.to_string(),
            )
        })?;
        for (tensor, bytes) in planes.iter().zip(bytes) {
            let size = match (&tensor.dtype, tensor.dtype.to_string().as_str()) {
                (DType::Weight(format), _) => format.block_bytes() as u64,
                (_, "u32") => 4,
                _ => 1,
            };
            expect_shape(tensor, &self.wanted.shape(bytes / size))?;
        }
        Ok(Found { format, planes: planes.iter().map(|t| t.name.clone()).collect(), scale })
    }
}
