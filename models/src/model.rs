//! A model as data: its weights, its state, its rotations and the graph of one step.

use crate::graph::{Graph, MatrixId, RopeId, StateId, VectorId};
use crate::rope::Rope;
use plimsoll_kernels::{AttentionShape, Format};
use serde::{Deserialize, Serialize};

/// Where a weight comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Name of the tensor in the checkpoint.
    pub tensor: String,
}

/// A matrix `[rows, cols]`: `rows` outputs by `cols` inputs, or vocabulary by hidden.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Where it comes from.
    pub source: Source,
    /// `N`.
    pub rows: u32,
    /// `K`.
    pub cols: u32,
    /// Stored format.
    pub format: Format,
}

/// A vector, f32 on the device whatever the checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// Where it comes from.
    pub source: Source,
    /// Values.
    pub len: u32,
    /// Stored format: a float one.
    pub format: Format,
}

/// What a layer keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum State {
    /// Keys and values of every token.
    KvFull {
        /// Heads.
        shape: AttentionShape,
    },
    /// Keys and values of the last `window` tokens.
    KvSliding {
        /// Heads.
        shape: AttentionShape,
        /// A query at `q` sees keys in `(q − window, q]`.
        window: u32,
    },
}

impl State {
    /// Heads of an attention state.
    pub fn shape(&self) -> &AttentionShape {
        match self {
            State::KvFull { shape } | State::KvSliding { shape, .. } => shape,
        }
    }
}

/// A model: everything a plan needs to know, and where its weights are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// What the checkpoint calls itself.
    pub name: String,
    /// The registry's name of the family.
    pub architecture: String,
    /// `V`.
    pub vocab: u32,
    /// `D`.
    pub hidden: u32,
    /// The longest context the model was made for, in tokens.
    pub context_max: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Matrices, by [`MatrixId`].
    pub matrices: Vec<Matrix>,
    /// Vectors, by [`VectorId`].
    pub vectors: Vec<Vector>,
    /// States, by [`StateId`]; one per layer that keeps any.
    pub states: Vec<State>,
    /// Rotations, by [`RopeId`].
    pub ropes: Vec<Rope>,
    /// One step.
    pub graph: Graph,
}

impl Model {
    /// Weights of the text model, tied embeddings once.
    pub fn parameters(&self) -> u64 {
        let matrices: u64 = self.matrices.iter().map(|m| u64::from(m.rows) * u64::from(m.cols)).sum();
        matrices + self.vectors.iter().map(|v| u64::from(v.len)).sum::<u64>()
    }

    /// The matrix with this id.
    pub fn matrix(&self, id: MatrixId) -> Option<&Matrix> {
        self.matrices.get(id.0 as usize)
    }

    /// The vector with this id.
    pub fn vector(&self, id: VectorId) -> Option<&Vector> {
        self.vectors.get(id.0 as usize)
    }

    /// The state with this id.
    pub fn state(&self, id: StateId) -> Option<&State> {
        self.states.get(id.0 as usize)
    }

    /// The rotation with this id.
    pub fn rope(&self, id: RopeId) -> Option<&Rope> {
        self.ropes.get(id.0 as usize)
    }
}
