//! The weight table of a model under construction: every tensor checked against the shape the model needs.

use crate::checkpoint::{Checkpoint, DType, Source as CheckpointSource};
use crate::error::ModelError;
use crate::graph::{MatrixId, VectorId};
use crate::model::{Matrix, Source, Transform, Vector};
use plimsoll_kernels::Format;
use std::collections::HashMap;

/// Collects matrices and vectors; a tensor named twice is one weight.
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    /// Format of every matrix when there is only a configuration.
    assumed: Format,
    matrices: Vec<Matrix>,
    vectors: Vec<Vector>,
    matrix_ids: HashMap<String, MatrixId>,
    vector_ids: HashMap<String, VectorId>,
}

impl<'a> Weights<'a> {
    /// An empty table.
    ///
    /// # Errors
    /// When the configuration describes packed weights that no kernel reads, or when there is only a configuration
    /// and its dtype is none of f32, f16, bf16.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        refuse_quantised_config(checkpoint)?;
        Ok(Self {
            checkpoint,
            assumed: configured_dtype(checkpoint)?,
            matrices: Vec::new(),
            vectors: Vec::new(),
            matrix_ids: HashMap::new(),
            vector_ids: HashMap::new(),
        })
    }

    /// Whether the checkpoint has this tensor; `absent` when there is only a configuration.
    pub fn has(&self, tensor: &str, absent: bool) -> bool {
        if self.checkpoint.source() == CheckpointSource::Config {
            absent
        } else {
            self.checkpoint.tensor(tensor).is_some()
        }
    }

    /// A matrix `[rows, cols]`.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is in a format without kernels.
    pub fn matrix(&mut self, tensor: &str, rows: u32, cols: u32) -> Result<MatrixId, ModelError> {
        let format = self.format(tensor, &[u64::from(rows), u64::from(cols)])?;
        if let Some(&id) = self.matrix_ids.get(tensor) {
            return Ok(id);
        }
        let id = MatrixId(self.matrices.len() as u32);
        self.matrices.push(Matrix { source: Source::tensor(tensor, rows), rows, cols, format, experts: 1 });
        self.matrix_ids.insert(tensor.to_owned(), id);
        Ok(id)
    }

    /// A vector `[len]` of floats.
    ///
    /// # Errors
    /// When it is missing, has another shape, or holds no floats.
    pub fn vector(&mut self, tensor: &str, len: u32) -> Result<VectorId, ModelError> {
        let format = self.format(tensor, &[u64::from(len)])?;
        if !format.is_float() {
            return Err(ModelError::unsupported(
                format!("tensor {tensor} in format {format}"),
                "vectors are f32, f16 or bf16",
            ));
        }
        if let Some(&id) = self.vector_ids.get(tensor) {
            return Ok(id);
        }
        let id = VectorId(self.vectors.len() as u32);
        self.vectors.push(Vector { tensor: tensor.to_owned(), len, format, transform: Transform::None });
        self.vector_ids.insert(tensor.to_owned(), id);
        Ok(id)
    }

    /// The tables.
    pub fn finish(self) -> (Vec<Matrix>, Vec<Vector>) {
        (self.matrices, self.vectors)
    }

    fn format(&self, tensor: &str, expected: &[u64]) -> Result<Format, ModelError> {
        if self.checkpoint.source() == CheckpointSource::Config {
            return Ok(self.assumed);
        }
        let info = self.checkpoint.require(tensor)?;
        if info.shape != expected {
            return Err(ModelError::Shape {
                name: tensor.to_owned(),
                expected: expected.to_vec(),
                got: info.shape.clone(),
            });
        }
        match &info.dtype {
            DType::Weight(format) => Ok(*format),
            DType::Other(name) => Err(ModelError::unsupported(
                format!("tensor {tensor} in format {name}"),
                "no kernel reads it",
            )),
        }
    }
}

/// A configuration that describes packed weights (MLX, GPTQ, FP8, …) must not be priced as if they were plain.
fn refuse_quantised_config(checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let Ok(fields) = super::fields::Fields::of(checkpoint) else { return Ok(()) };
    for key in ["quantization", "quantization_config"] {
        if let Some(block) = fields.get(key) {
            let name = ["quant_method", "mode", "quant_algo"].iter().find_map(|k| block.get(k)?.as_str());
            let bits = block.get("bits").map(|b| format!("{b} bits"));
            let stated = name.map(str::to_owned).or(bits).unwrap_or_else(|| "of an unstated kind".into());
            return Err(ModelError::unsupported(
                format!("{key} ({})", crate::error::quoted(&stated)),
                "weights in plain f32, f16 or bf16, and GGUF's formats are",
            ));
        }
    }
    Ok(())
}

/// The dtype a bare configuration states; bf16 where it states none, as published checkpoints are.
fn configured_dtype(checkpoint: &Checkpoint) -> Result<Format, ModelError> {
    let Ok(fields) = super::fields::Fields::of(checkpoint) else { return Ok(Format::BF16) };
    match fields.any(&["dtype", "torch_dtype"]).and_then(|v| v.as_str()) {
        None | Some("bfloat16") => Ok(Format::BF16),
        Some("float16") => Ok(Format::F16),
        Some("float32") => Ok(Format::F32),
        Some(other) => {
            Err(ModelError::field("torch_dtype", "float32, float16 or bfloat16", crate::error::quoted(other)))
        }
    }
}
