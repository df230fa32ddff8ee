//! A model as data: its weights, its state, its rotations and the graph of one step.

use crate::graph::{Graph, MatrixId, RopeId, StateId, VectorId};
use crate::rope::Rope;
use plimsoll_kernels::{AttentionShape, Format, RecurrentShape};
use serde::{Deserialize, Serialize};

/// Where a matrix comes from: runs of rows, top to bottom. A plain matrix has one; a stack of experts that the
/// checkpoint stores one by one has one for each, and is stacked as it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Top to bottom, together all rows.
    pub pieces: Vec<Piece>,
}

impl Source {
    /// All rows of one tensor.
    pub fn tensor(name: impl Into<String>, rows: u32) -> Self {
        Self { pieces: vec![Piece::rows(vec![name.into()], 0, rows)] }
    }

    /// All rows of one tensor that stores its matrices the other way round: see [`Piece::transposed`].
    pub fn transposed(name: impl Into<String>, rows: u32) -> Self {
        let piece = Piece::rows(vec![name.into()], 0, rows);
        Self { pieces: vec![Piece { transposed: true, ..piece }] }
    }

    /// What to call it: the name of its first tensor.
    pub fn name(&self) -> &str {
        self.pieces.first().and_then(|p| p.planes.first()).map_or("nothing", String::as_str)
    }

    /// Every tensor it reads.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().flat_map(|piece| {
            let scale = piece.scale.as_ref().map(|s| s.tensor.as_str());
            piece.planes.iter().map(String::as_str).chain(scale)
        })
    }
}

/// Consecutive rows of a tensor, or of the tensors that hold the planes of a packed one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// One tensor of whole rows or, for packed safetensors, one for each plane: codes, scales, offsets. All have the
    /// same rows; leading dimensions (experts) count as rows.
    pub planes: Vec<String>,
    /// A factor of all values, beside the planes.
    pub scale: Option<TensorScale>,
    /// First row in the tensors.
    pub first_row: u32,
    /// Rows.
    pub rows: u32,
    /// The tensor is `[.., K, N]`, inputs by outputs, of a float format: each of its matrices is transposed as it is
    /// read. `first_row` and `rows` count rows of what comes out, so row `r` is column `r % N` of matrix `r / N`.
    pub transposed: bool,
}

impl Piece {
    /// `rows` rows from `first_row` on of a tensor, or of the tensors of its planes, as they are stored.
    pub fn rows(planes: Vec<String>, first_row: u32, rows: u32) -> Self {
        Self { planes, scale: None, first_row, rows, transposed: false }
    }
}

/// A factor that stands in a tensor of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorScale {
    /// Tensor of floats.
    pub tensor: String,
    /// Which of its values serves the piece; `None`: one for each row, from the piece's first on.
    pub index: Option<u32>,
    /// What to do with it.
    pub form: ScaleForm,
}

/// How a stored number becomes a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleForm {
    /// The factor itself.
    Times,
    /// Its reciprocal.
    Over,
    /// The largest magnitude of the tensor: the factor times 6 · 448.
    MaxAbs,
}

impl ScaleForm {
    /// The factor.
    pub fn factor(self, stored: f32) -> f32 {
        match self {
            ScaleForm::Times => stored,
            ScaleForm::Over => 1.0 / stored,
            ScaleForm::MaxAbs => stored / 2688.0,
        }
    }
}

/// A matrix `[rows, cols]`: `rows` outputs by `cols` inputs, or vocabulary by hidden; or a stack of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Where it comes from.
    pub source: Source,
    /// `N`; of a stack, of all experts together.
    pub rows: u32,
    /// `K`.
    pub cols: u32,
    /// Stored format.
    pub format: Format,
    /// Matrices of equal size one below the other; 1 for a plain one.
    pub experts: u32,
}

/// What is done to a vector's values on their way to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// Nothing.
    #[default]
    None,
    /// `−exp(v)`: decay rates, which checkpoints hold as logarithms.
    NegExp,
}

impl Transform {
    /// The value on the device.
    pub fn apply(self, value: f32) -> f32 {
        match self {
            Transform::None => value,
            Transform::NegExp => -value.exp(),
        }
    }
}

/// A vector, f32 on the device whatever the checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// Name of the tensor; its dimensions do not matter, their product is `len` (half of it where one is joined).
    pub tensor: String,
    /// Values.
    pub len: u32,
    /// Stored format: a float one.
    pub format: Format,
    /// What is done to the values.
    pub transform: Transform,
    /// A second tensor of as many values, of the same format: the two alternate.
    #[serde(default)]
    pub joined: Option<Joined>,
}

impl Vector {
    /// Every tensor it reads.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.tensor.as_str()).chain(self.joined.as_ref().map(|j| j.tensor.as_str()))
    }

    /// Values that each of its tensors has.
    pub fn tensor_len(&self) -> u32 {
        if self.joined.is_some() { self.len / 2 } else { self.len }
    }
}

/// A second tensor of a vector: biases of a stack whose gates and ups are stored apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Joined {
    /// Its name.
    pub tensor: String,
    /// Values of the first tensor before as many of this one, and so on.
    pub run: u32,
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
    /// One latent of every token, from which all heads' keys and values are made (multi-head latent attention,
    /// DeepSeek-V2, section 2.1). Priced, not run.
    KvLatent {
        /// Sizes.
        latent: Latent,
    },
    /// A recurrent state and the tail of a convolution, of a fixed size whatever the length.
    Recurrent {
        /// Sizes.
        shape: RecurrentShape,
    },
}

/// Sizes of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Latent {
    /// Query heads.
    pub heads: u32,
    /// `kv_lora_rank`: values of the compressed keys and values of a token.
    pub rank: u32,
    /// `qk_rope_head_dim`: values of the rotated key that all heads share.
    pub rope: u32,
    /// `qk_nope_head_dim`: values of a head's key that are not rotated.
    pub nope: u32,
    /// `v_head_dim`: values of a head's value.
    pub value: u32,
}

impl Latent {
    /// Values that are kept of a token: `kv_lora_rank + qk_rope_head_dim`.
    pub const fn width(&self) -> u32 {
        self.rank.saturating_add(self.rope)
    }
}

impl State {
    /// Heads of an attention state.
    pub fn attention(&self) -> Option<&AttentionShape> {
        match self {
            State::KvFull { shape } | State::KvSliding { shape, .. } => Some(shape),
            State::KvLatent { .. } | State::Recurrent { .. } => None,
        }
    }

    /// Sizes of a latent state.
    pub fn latent(&self) -> Option<&Latent> {
        match self {
            State::KvLatent { latent } => Some(latent),
            State::KvFull { .. } | State::KvSliding { .. } | State::Recurrent { .. } => None,
        }
    }

    /// Sizes of a recurrent state.
    pub fn recurrent(&self) -> Option<&RecurrentShape> {
        match self {
            State::Recurrent { shape } => Some(shape),
            State::KvFull { .. } | State::KvSliding { .. } | State::KvLatent { .. } => None,
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
    /// What a reader of the checkpoint should know: what was left out, assumed or done otherwise than stated.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What is known of it beside the text model.
    #[serde(default)]
    pub extras: Extras,
}

/// What is known of a checkpoint beside the text model that a step runs. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Extras {
    /// Why the model can be priced and not run, where that is so.
    pub estimate_only: Option<String>,
    /// Weights are priced in the nearest form that a kernel reads, not in the one they are stored in.
    #[serde(default)]
    pub nearest_weights: bool,
    /// Tensors that the text model does not read, as the configuration implies them.
    pub tensors: Vec<Beside>,
    /// What the layers that draft tokens would keep, when they draft.
    pub draft: Vec<State>,
    /// Tokens of a chunk of the recurrence, as the configuration states them: what engines that keep states within a
    /// sequence keep them at multiples of.
    #[serde(default)]
    pub state_chunk: Option<u32>,
    /// What an image goes through.
    pub vision: Option<Tower>,
    /// Weights other than the checkpoint's, where the model is priced in such.
    #[serde(default)]
    pub recast: Option<Recasting>,
    /// Bytes of the checkpoint's tensors as they are stored: of text, vision, draft and other, in that order. `None` until
    /// somebody counted them.
    #[serde(default)]
    pub stored: Option<[u64; 4]>,
    /// What other engines read of the configuration.
    #[serde(default)]
    pub stated: Stated,
}

/// How a note ends that says what our own runtime keeps instead of the type of states that a checkpoint asks for. Of other
/// engines it is not true.
pub const STATE_KEPT: &str = "; it is kept in f32";

/// What other engines read of a configuration by its keys, whatever the family makes of them here. Nothing of GGUF.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stated {
    /// `mamba_ssm_dtype`.
    pub mamba_ssm_dtype: Option<String>,
    /// `mamba_ssm_cache_dtype`.
    pub mamba_ssm_cache_dtype: Option<String>,
    /// `sliding_window_pattern`, where it is a number of layers.
    pub sliding_window_pattern: Option<u32>,
    /// `layer_types` names a layer that slides.
    pub lists_windows: bool,
    /// The text model is a part of the configuration.
    pub nested: bool,
}

/// Weights of another scheme than the checkpoint's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recasting {
    /// The scheme's name.
    pub scheme: String,
    /// Bytes of a file in that scheme, without its header: of text, vision, draft and other, in that order.
    pub stored: [u64; 4],
    /// Bytes of the checkpoint that there is, in the same order.
    pub published: [u64; 4],
}

/// A part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// What the text model reads.
    Text,
    /// What reads images.
    Vision,
    /// Layers that draft tokens.
    Draft,
    /// Anything else.
    Other,
}

/// Beginnings of the names of tensors that read images, and of those that draft tokens, in the spellings of
/// safetensors and GGUF.
const VISION: [&str; 10] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "visual.",
    "model.visual.",
    "model.vision",
    "model.multi_modal_projector.",
    "model.embed_vision.",
    "v.",
    "mm.",
];
const DRAFT: [&str; 3] = ["mtp.", "model.mtp", "nextn."];

impl Part {
    /// What reads a tensor that the text model does not read, by its name.
    pub fn beside(name: &str) -> Self {
        let begins = |names: &[&str]| names.iter().any(|n| name.starts_with(n));
        if begins(&VISION) {
            Part::Vision
        } else if begins(&DRAFT) || name.contains(".nextn.") {
            Part::Draft
        } else {
            Part::Other
        }
    }
}

/// Tensors of equal shape that the text model does not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// Its name, or a name for all of them.
    pub name: String,
    /// What reads it.
    pub part: Part,
    /// Tensors of this shape.
    pub count: u64,
    /// Rows; 1 of a vector.
    pub rows: u64,
    /// Values of a row.
    pub cols: u64,
    /// Stored format.
    pub format: Format,
}

/// A vision tower: sizes of what an image goes through, for its price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tower {
    /// Width of a patch's row.
    pub hidden: u32,
    /// Width of its MLP.
    pub ffn: u32,
    /// Heads.
    pub heads: u32,
    /// Layers.
    pub layers: u32,
    /// Pixels of a patch's side.
    pub patch: u32,
    /// How pixels become patches and patches become tokens.
    pub grid: Grid,
}

/// How an image's pixels become patches and tokens of the text model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Grid {
    /// Every image is scaled to a square of `side` pixels and becomes `tokens` tokens.
    Fixed {
        /// Pixels of the side.
        side: u32,
        /// Tokens.
        tokens: u32,
    },
    /// An image keeps its proportions within a number of pixels; `merge` × `merge` patches become a token.
    Native {
        /// Patches of a token's side.
        merge: u32,
        /// The fewest pixels; smaller images are scaled up.
        min_pixels: u64,
        /// The most pixels; larger images are scaled down.
        max_pixels: u64,
    },
    /// Every image, small or large, is scaled to the pixels of `tokens` tokens, proportions kept, and its sides rounded
    /// down to whole tokens of `merge` × `merge` patches.
    Filled {
        /// Patches of a token's side.
        merge: u32,
        /// The most tokens.
        tokens: u32,
    },
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
