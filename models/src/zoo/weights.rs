//! The weight table of a model under construction: every tensor checked against the shape the model needs.

mod slices;
mod stacks;

pub use stacks::{GateUp, GateUpNames};

use super::packed::{self, Wanted};
use super::quantization::{Module, Quantization};
use crate::checkpoint::{Checkpoint, DType, Source as CheckpointSource, TensorInfo};
use crate::error::ModelError;
use crate::graph::{MatrixId, VectorId};
use crate::model::{Matrix, Source, Transform, Vector};
use foldhash::fast::RandomState;
use plimsoll_kernels::Format;
use std::collections::HashMap;

/// Collects matrices and vectors; a tensor named twice is one weight.
///
/// Matrices may be packed in several tensors (MLX's formats, NVFP4, FP8): name the `X.weight` among them. Which form it
/// is follows from the tensors that are there; with a configuration alone, from what that says of packed weights.
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    /// Format of every plain matrix when there is only a configuration.
    assumed: Format,
    /// Whatever tensors there are, the configuration alone counts.
    bare: bool,
    /// Which tensors there are is known all the same: from an index without its shards.
    listed: bool,
    quantization: Quantization,
    matrices: Vec<Matrix>,
    vectors: Vec<Vector>,
    // Names come from files: the hasher's seed is random, and it is several times faster than the standard one.
    matrix_ids: HashMap<String, MatrixId, RandomState>,
    vector_ids: HashMap<(String, Transform), VectorId, RandomState>,
}

/// The names a stack of experts goes by.
pub struct ExpertNames<'n> {
    /// Tensors that hold the whole stack `[experts, rows, cols]`; the first that is there is taken.
    pub stacked: &'n [String],
    /// The tensor of one expert, where they are stored one by one.
    pub separate: Option<&'n dyn Fn(u32) -> String>,
}

impl<'a> Weights<'a> {
    /// An empty table.
    ///
    /// # Errors
    /// When the configuration describes packed weights that no kernel reads, or when there is only a configuration
    /// and its dtype is none of f32, f16, bf16.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        Ok(Self {
            checkpoint,
            quantization: Quantization::of(checkpoint)?,
            assumed: configured_dtype(checkpoint)?,
            bare: checkpoint.source() == CheckpointSource::Config,
            listed: checkpoint.source() == CheckpointSource::Config && checkpoint.has_list(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            matrix_ids: HashMap::default(),
            vector_ids: HashMap::default(),
        })
    }

    /// An empty table of what the configuration alone implies: of parts that no step reads.
    ///
    /// # Errors
    /// As [`Weights::new`].
    pub fn bare(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        Ok(Self { bare: true, listed: false, ..Self::new(checkpoint)? })
    }

    /// Whether there is only a configuration.
    pub fn is_bare(&self) -> bool {
        self.bare
    }

    /// Whether the checkpoint has this tensor, perhaps packed; when there is only a configuration, what an index
    /// without shards says, else `absent`.
    pub fn has(&self, tensor: &str, absent: bool) -> bool {
        if self.is_bare() {
            packed::is_listed(self.checkpoint, tensor).unwrap_or(absent)
        } else {
            packed::is_there(self.checkpoint, tensor)
        }
    }

    /// Takes a tensor from an index without its shards, which must name it as a file would have to have it.
    fn take(&self, tensor: &str, format: Format) -> Result<(), ModelError> {
        if !self.listed || packed::take(self.checkpoint, tensor, format.is_float()) {
            return Ok(());
        }
        Err(ModelError::MissingTensor { name: tensor.to_owned(), path: self.checkpoint.path().to_owned() })
    }

    /// The same of a stack of experts, or of each of them.
    fn take_experts(&self, names: &ExpertNames<'_>, experts: u32, format: Format) -> Result<(), ModelError> {
        if !self.listed {
            return Ok(());
        }
        match (names.stacked.iter().find(|name| self.has(name, false)), names.separate) {
            (None, Some(separate)) => {
                (0..experts).try_for_each(|expert| self.take(&separate(expert), format))
            }
            (stacked, _) => stacked.or(names.stacked.first()).map_or(Ok(()), |name| self.take(name, format)),
        }
    }

    /// The matrix `[rows, cols]` of a linear layer.
    ///
    /// # Errors
    /// When it is missing, has another shape, is in a format without kernels, or in another than the configuration says.
    pub fn matrix(&mut self, tensor: &str, rows: u32, cols: u32) -> Result<MatrixId, ModelError> {
        self.add(tensor, rows, cols, Module::Linear)
    }

    /// An embedding table `[rows, cols]`, perhaps of a tied head too: MLX packs it like any matrix, others leave it
    /// plain.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn embedding(&mut self, tensor: &str, rows: u32, cols: u32) -> Result<MatrixId, ModelError> {
        self.add(tensor, rows, cols, Module::Embedding)
    }

    /// A matrix `[rows, cols]` that converters leave plain unless the configuration names it: a router.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn parameter(&mut self, tensor: &str, rows: u32, cols: u32) -> Result<MatrixId, ModelError> {
        self.add(tensor, rows, cols, Module::Parameter)
    }

    /// A matrix `[1, cols]`, which writers may store as a vector.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn row(&mut self, tensor: &str, cols: u32) -> Result<MatrixId, ModelError> {
        let flat = self.checkpoint.tensor(tensor).filter(|info| info.shape == [u64::from(cols)]);
        match flat.and_then(|info| info.dtype.format()) {
            None => self.matrix(tensor, 1, cols),
            Some(format) => {
                let source = Source::tensor(tensor, 1);
                Ok(self.push(tensor, Matrix { source, rows: 1, cols, format, experts: 1 }))
            }
        }
    }

    fn add(&mut self, tensor: &str, rows: u32, cols: u32, kind: Module) -> Result<MatrixId, ModelError> {
        let wanted = Wanted { experts: None, rows, cols };
        let (format, source) = if self.is_bare() {
            let scheme = self.quantization.scheme(packed::module(tensor), kind, cols)?;
            let format = scheme.map_or(self.assumed, |s| s.format(self.assumed));
            self.take(tensor, format)?;
            (format, Source::tensor(tensor, rows))
        } else {
            let found = packed::find(self.checkpoint, tensor, wanted)?;
            self.compare(tensor, cols, found.format)?;
            (found.format, Source { pieces: found.pieces(wanted) })
        };
        Ok(self.push(tensor, Matrix { source, rows, cols, format, experts: 1 }))
    }

    /// A stack of `experts` matrices `[rows, cols]`, from one tensor or one for each.
    ///
    /// # Errors
    /// As [`Weights::matrix`]; also when the experts are not all in one format, or more rows than 2³¹.
    pub fn experts(
        &mut self,
        names: &ExpertNames<'_>,
        experts: u32,
        rows: u32,
        cols: u32,
    ) -> Result<MatrixId, ModelError> {
        let total = experts.checked_mul(rows).filter(|&n| n > 0 && n < 1 << 31).ok_or_else(|| {
            ModelError::field("experts × rows", "1 to 2147483647", format!("{experts} × {rows}"))
        })?;
        let stacked = names.stacked.iter().find(|name| self.has(name, false));
        let (name, format, source) = match (stacked, names.separate) {
            _ if self.is_bare() => {
                let format = self.bare_experts(names, experts, cols)?;
                self.take_experts(names, experts, format)?;
                let name = names.stacked.first().cloned();
                let name = name.or_else(|| names.separate.map(|f| f(0))).unwrap_or_default();
                let source = Source::tensor(name.clone(), total);
                (name, format, source)
            }
            (None, Some(separate)) => {
                let wanted = Wanted { experts: None, rows, cols };
                let (format, source) = self.separate_experts(separate, experts, wanted)?;
                (separate(0), format, source)
            }
            (stacked, _) => {
                let first = stacked
                    .or(names.stacked.first())
                    .ok_or_else(|| ModelError::field("names of experts", "at least one", "none"))?;
                let wanted = Wanted { experts: Some(experts), rows, cols };
                let found = packed::find(self.checkpoint, first, wanted)?;
                self.compare(first, cols, found.format)?;
                (first.clone(), found.format, Source { pieces: found.pieces(wanted) })
            }
        };
        Ok(self.push(&name, Matrix { source, rows: total, cols, format, experts }))
    }

    /// What a configuration alone says of a stack: of any of its names.
    fn bare_experts(&self, names: &ExpertNames<'_>, experts: u32, cols: u32) -> Result<Format, ModelError> {
        let scheme = |name: &str| self.quantization.scheme(packed::module(name), Module::Linear, cols);
        if self.quantization.is_none() {
            return Ok(self.assumed);
        }
        let first = match (names.separate, names.stacked.first()) {
            (Some(separate), _) => scheme(&separate(0))?,
            (None, Some(stacked)) => scheme(stacked)?,
            (None, None) => None,
        };
        // There are tens of thousands of names, and most configurations speak of all experts alike.
        let apart = |separate: &&dyn Fn(u32) -> String| {
            let [one, other] = [separate(0), separate(1)];
            self.quantization.tells_apart(packed::module(&one), packed::module(&other))
        };
        if let Some(separate) = names.separate.filter(apart) {
            for expert in 1..experts {
                if scheme(&separate(expert))? != first {
                    return Err(mixed(&separate(expert)));
                }
            }
        }
        // MLX names the stack, and only there.
        for stacked in names.stacked {
            if self.quantization.names(packed::module(stacked)) {
                let scheme = scheme(stacked)?;
                return Ok(scheme.map_or(self.assumed, |s| s.format(self.assumed)));
            }
        }
        Ok(first.map_or(self.assumed, |s| s.format(self.assumed)))
    }

    fn separate_experts(
        &self,
        separate: &dyn Fn(u32) -> String,
        experts: u32,
        wanted: Wanted,
    ) -> Result<(Format, Source), ModelError> {
        let (mut format, mut pieces) = (None, Vec::new());
        for expert in 0..experts {
            let name = separate(expert);
            let found = packed::find(self.checkpoint, &name, wanted)?;
            self.compare(&name, wanted.cols, found.format)?;
            if *format.get_or_insert(found.format) != found.format {
                return Err(mixed(&name));
            }
            pieces.extend(found.pieces(wanted));
        }
        Ok((format.unwrap_or(self.assumed), Source { pieces }))
    }

    /// Packed tensors against the configuration.
    fn compare(&self, tensor: &str, cols: u32, found: Format) -> Result<(), ModelError> {
        let packed = found.planes(u64::from(cols)).is_some() && !found.is_float();
        if packed && self.checkpoint.source() == CheckpointSource::Safetensors {
            self.quantization.check(packed::module(tensor), found)?;
        }
        Ok(())
    }

    fn push(&mut self, name: &str, matrix: Matrix) -> MatrixId {
        *self.matrix_ids.entry(name.to_owned()).or_insert_with(|| {
            self.matrices.push(matrix);
            MatrixId(self.matrices.len() as u32 - 1)
        })
    }

    /// A vector of `len` floats; dimensions of 1 beside that one do not matter.
    ///
    /// # Errors
    /// When it is missing, has another shape, or holds no floats.
    pub fn vector(&mut self, tensor: &str, len: u32) -> Result<VectorId, ModelError> {
        self.vector_as(tensor, len, Transform::None)
    }

    /// A vector whose values are transformed on their way to the device.
    ///
    /// # Errors
    /// As [`Weights::vector`].
    pub fn vector_as(
        &mut self,
        tensor: &str,
        len: u32,
        transform: Transform,
    ) -> Result<VectorId, ModelError> {
        self.shaped_vector(tensor, &[len], transform)
    }

    /// One vector for each of `rows` things, `[rows, each]`: biases of a stack of experts.
    ///
    /// # Errors
    /// As [`Weights::vector`].
    pub fn stacked_vector(&mut self, tensor: &str, rows: u32, each: u32) -> Result<VectorId, ModelError> {
        self.shaped_vector(tensor, &[rows, each], Transform::None)
    }

    /// The same as one vector or as `[groups, each]`, whichever the checkpoint has: norms of groups of channels.
    ///
    /// # Errors
    /// As [`Weights::vector`].
    pub fn grouped_vector(&mut self, tensor: &str, groups: u32, each: u32) -> Result<VectorId, ModelError> {
        match self.checkpoint.tensor(tensor) {
            Some(info) if squeezed(&info.shape).len() > 1 => self.stacked_vector(tensor, groups, each),
            _ => self.vector(tensor, groups.saturating_mul(each)),
        }
    }

    fn shaped_vector(
        &mut self,
        tensor: &str,
        dims: &[u32],
        transform: Transform,
    ) -> Result<VectorId, ModelError> {
        let format = self.float_format(tensor, dims)?;
        let len = dims.iter().try_fold(1u32, |all, d| all.checked_mul(*d)).ok_or_else(|| {
            ModelError::field(format!("values of {tensor}"), "under 2^32", format!("{dims:?}"))
        })?;
        let vectors = &mut self.vectors;
        Ok(*self.vector_ids.entry((tensor.to_owned(), transform)).or_insert_with(|| {
            vectors.push(Vector { tensor: tensor.to_owned(), len, format, transform, joined: None });
            VectorId(vectors.len() as u32 - 1)
        }))
    }

    /// The format of a tensor of floats with these dimensions, but for ones.
    fn float_format(&self, tensor: &str, dims: &[u32]) -> Result<Format, ModelError> {
        if self.is_bare() {
            self.take(tensor, self.assumed)?;
            return Ok(self.assumed);
        }
        let info = self.checkpoint.require(tensor)?;
        let expected: Vec<u64> = dims.iter().copied().map(u64::from).collect();
        if squeezed(&info.shape) != squeezed(&expected) {
            return Err(shape(info, &expected));
        }
        match &info.dtype {
            DType::Weight(format) if format.is_float() => Ok(*format),
            other => Err(ModelError::unsupported(
                format!("tensor {tensor} in format {other}"),
                "vectors are f32, f16 or bf16",
            )),
        }
    }

    /// The weight of a depthwise convolution, `[channels, taps]` with a dimension of 1 anywhere after the first.
    ///
    /// # Errors
    /// As [`Weights::vector`].
    pub fn conv(&mut self, tensor: &str, channels: u32, taps: u32) -> Result<VectorId, ModelError> {
        if let Some(info) = self.checkpoint.tensor(tensor)
            && info.shape.first() != Some(&u64::from(channels))
        {
            return Err(shape(info, &[u64::from(channels), 1, u64::from(taps)]));
        }
        self.stacked_vector(tensor, channels, taps)
    }

    /// The matrix that makes logits: `tied` to the embedding, or of its own.
    ///
    /// A file that says it is tied and has another head all the same means the head, as transformers and vLLM have it
    /// (they warn, and so does [`Registry::build`](crate::zoo::Registry::build) by a note); a copy of the embedding is
    /// not kept twice.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn head(
        &mut self,
        tied: Option<MatrixId>,
        tensor: &str,
        vocab: u32,
        hidden: u32,
    ) -> Result<MatrixId, ModelError> {
        match tied {
            Some(table) if !self.has(tensor, false) || self.same(table, tensor) => Ok(table),
            _ => self.matrix(tensor, vocab, hidden),
        }
    }

    /// Whether a tensor is stored as a matrix is, value by value.
    fn same(&self, matrix: MatrixId, tensor: &str) -> bool {
        let Some(Matrix { source, rows, cols, format, .. }) = self.matrices.get(matrix.0 as usize) else {
            return false;
        };
        let wanted = Wanted { experts: None, rows: *rows, cols: *cols };
        let Ok(found) = packed::find(self.checkpoint, tensor, wanted) else { return false };
        let other = Source { pieces: found.pieces(wanted) };
        let bytes = |name: &str| self.checkpoint.tensor(name).and_then(|t| self.checkpoint.data(t).ok());
        found.format == *format
            && source.tensors().count() == other.tensors().count()
            && source.tensors().zip(other.tensors()).all(|(a, b)| bytes(a).is_some() && bytes(a) == bytes(b))
    }

    /// The bias `[len]` of a linear layer, if it has one: as the configuration states it where it does, else as the
    /// tensors have it.
    ///
    /// # Errors
    /// When `stated` (the value of the field `key`) and the tensors contradict each other, and as [`Weights::vector`].
    pub fn bias(
        &mut self,
        key: &str,
        stated: Option<bool>,
        tensor: &str,
        len: u32,
    ) -> Result<Option<VectorId>, ModelError> {
        let there = self.has(tensor, stated.unwrap_or(false));
        match stated {
            Some(false) if there => {
                Err(ModelError::field(key, format!("true, as there is {tensor}"), "false"))
            }
            _ if there || stated == Some(true) => self.vector(tensor, len).map(Some),
            _ => Ok(None),
        }
    }

    /// The tables.
    pub fn finish(self) -> (Vec<Matrix>, Vec<Vector>) {
        (self.matrices, self.vectors)
    }
}

/// Dimensions that are not 1.
fn squeezed(shape: &[u64]) -> Vec<u64> {
    shape.iter().copied().filter(|d| *d != 1).collect()
}

fn shape(info: &TensorInfo, expected: &[u64]) -> ModelError {
    ModelError::Shape { name: info.name.clone(), expected: expected.to_vec(), got: info.shape.clone() }
}

fn mixed(name: &str) -> ModelError {
    ModelError::unsupported(
        format!("expert {name} in another format than the first"),
        "experts of one format are",
    )
}

/// The dtype a bare configuration states; bf16 where it states none, as published checkpoints are.
pub(super) fn configured_dtype(checkpoint: &Checkpoint) -> Result<Format, ModelError> {
    Ok(stated_dtypes(checkpoint)?.first().map_or(Format::BF16, |stated| stated.format))
}

/// What is to be told of dtypes that a configuration states and that another goes before.
pub(super) fn dtype_note(checkpoint: &Checkpoint) -> Result<Option<String>, ModelError> {
    let stated = stated_dtypes(checkpoint)?;
    let Some(first) = stated.first() else { return Ok(None) };
    let other = stated.iter().find(|other| other.format != first.format);
    Ok(other.map(|other| {
        format!("{} {} goes before {} {}", first.place(), first.format, other.place(), other.format)
    }))
}

struct StatedDtype {
    key: &'static str,
    /// Of the whole, where the text model has fields of its own.
    outer: bool,
    format: Format,
}

impl StatedDtype {
    fn place(&self) -> String {
        format!("{}{}", if self.outer { "the outer " } else { "" }, self.key)
    }
}

/// Every dtype that a configuration states: the text model's own first, and the newer spelling first.
fn stated_dtypes(checkpoint: &Checkpoint) -> Result<Vec<StatedDtype>, ModelError> {
    let Ok(fields) = super::fields::Fields::of(checkpoint) else { return Ok(Vec::new()) };
    let mut stated = Vec::new();
    for key in ["dtype", "torch_dtype"] {
        for (outer, value) in fields.everywhere(key) {
            stated.push(StatedDtype { key, outer, format: dtype(key, value)? });
        }
    }
    stated.sort_by_key(|stated| stated.outer);
    Ok(stated)
}

fn dtype(key: &str, value: &serde_json::Value) -> Result<Format, ModelError> {
    // Some writers keep the framework's own name of it.
    match value.as_str().map(|name| name.strip_prefix("torch.").unwrap_or(name)) {
        Some("bfloat16") => Ok(Format::BF16),
        Some("float16") => Ok(Format::F16),
        Some("float32") => Ok(Format::F32),
        _ => Err(ModelError::field(key, "float32, float16 or bfloat16", super::fields::shown(value))),
    }
}
