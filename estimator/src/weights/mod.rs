//! Bytes of weights: as a checkpoint stores them, and as a scheme of quantisation would.
//!
//! [`inventory`] lists the tensors of a checkpoint; of a bare configuration it lists those that its published files have.
//! [`recast`] gives the same model with each matrix in the format that a scheme's own tool would give it, so that a plan
//! prices it as the runtime would allocate it, and the bytes that its file would have.
//!
//! # Where published totals and these differ
//!
//! | checkpoint | published | here |
//! |---|---|---|
//! | SmolLM2-135M | 134,515,008 parameters | the same; 269,030,016 bytes |
//! | Nemotron 3 Nano 30B-A3B | 31,577,940,288 parameters | the same; the 128 router biases of each mixture and the decays may be f32 in the files, so those entries are not `exact` |
//! | gpt-oss-20b, -120b | 13,761,264,768 and 65,248,815,744 bytes | the same: experts in blocks of 17 bytes for 32 values, all else bf16 |
//! | Gemma 4 31B | 62,546,177,752 bytes | the text model's 30,697,345,340 parameters are 61,394,690,680; the tower and its projection are 575,743,536 parameters, 1,151,487,072 bytes |
//! | DeepSeek-V3 | 688,574,839,360 bytes | each linear layer F8 with an f32 scale for 128 × 128 values; embeddings, head, norms, routers and the draft layer's `eh_proj` bf16; biases of routers f32 |
//! | modelopt's NVFP4 and FP8 | none found | from the layout: codes, scales, and two f32 factors for each linear layer, experts each; scales of a KV cache are listed, and not `exact` |
//!
//! # Schemes
//!
//! | scheme | packed | wide |
//! |---|---|---|
//! | `f32`, `f16`, `bf16` | | everything in that type |
//! | GGUF's mixes (`q4_k_m`, …) | all matrices but those beside, by the rules of [`gguf`] | routers, convolutions and vectors f32 |
//! | `mlx-Nbit-gN`, `mlx-mxfp4`, … | all matrices whose rows are whole groups, also embeddings and head; routers 8-bit in groups of 64 where their model asks for it | routers that are bare parameters (DeepSeek, Nemotron), vectors |
//! | `nvfp4`, `fp8` (modelopt) | linear layers of the stack | embeddings, head, routers, gates of shared experts, vectors |
//! | `mxfp4` | of a mixture the experts alone, as gpt-oss is published; of a dense model the linear layers of the stack, as conversions by compressed-tensors are | the rest |

pub mod gguf;
mod inventory;
mod layout;
mod recast;
pub mod role;
mod scheme;

pub use inventory::{bytes_by_part, counted, inventory, stated_note};
pub use recast::{Recast, recast};
pub use role::{Named, Role, named};
pub use scheme::{SCHEMES, Scheme};

use plimsoll_models::Model;
use plimsoll_models::model::Part;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a report calls the weights of a model: the scheme that it is priced in, or `as-stored`.
pub fn scheme_of(model: &Model) -> String {
    model.extras.recast.as_ref().map_or_else(|| "as-stored".to_owned(), |recast| recast.scheme.clone())
}

/// A tensor of a checkpoint, or several of one shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name, or a name for all of them.
    pub name: String,
    /// What reads it.
    pub part: Part,
    /// What it is for.
    pub role: Role,
    /// Rows; those of all matrices of a stack.
    pub rows: u64,
    /// Values of a row.
    pub cols: u64,
    /// Tensors of this shape.
    pub count: u64,
    /// How values are stored.
    pub format: String,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Whether published files have these bytes for certain.
    pub exact: bool,
}

impl Entry {
    /// Weights, all tensors together; of what stands beside packed weights, none.
    pub fn parameters(&self) -> u64 {
        if self.role == Role::Scale {
            return 0;
        }
        self.rows.saturating_mul(self.cols).saturating_mul(self.count)
    }
}

/// Bytes by what reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// The text model.
    pub text: u64,
    /// What reads images.
    pub vision: u64,
    /// Layers that draft tokens.
    pub draft: u64,
    /// Anything else.
    pub other: u64,
}

impl Parts {
    /// Everything.
    pub fn total(&self) -> u64 {
        self.by_part().into_iter().fold(0, u64::saturating_add)
    }

    /// Text, vision, draft, other.
    pub const fn by_part(&self) -> [u64; 4] {
        [self.text, self.vision, self.draft, self.other]
    }

    /// Of text, vision, draft and other.
    pub const fn of([text, vision, draft, other]: [u64; 4]) -> Self {
        Self { text, vision, draft, other }
    }

    fn with(mut self, entry: &Entry) -> Self {
        let part = match entry.part {
            Part::Text => &mut self.text,
            Part::Vision => &mut self.vision,
            Part::Draft => &mut self.draft,
            Part::Other => &mut self.other,
        };
        *part = part.saturating_add(entry.bytes);
        self
    }
}

/// Why a model cannot be priced in a scheme.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// No such scheme.
    #[error("no scheme of weights is called {scheme:?}: known are {known}")]
    Unknown {
        /// Asked for.
        scheme: String,
        /// What there is.
        known: String,
    },
    /// The scheme stores tensors in a format that no kernel reads. Its file can be sized, and no plan made.
    #[error(
        "{scheme} stores {tensor} as {format}, which no kernel reads: a file of it has {} bytes of tensors, and there is no plan \
         for a device",
        crate::grouped(*stored)
    )]
    NoKernels {
        /// The scheme.
        scheme: String,
        /// The first such format.
        format: String,
        /// The first such tensor.
        tensor: String,
        /// Bytes of all tensors in that scheme.
        stored: u64,
    },
    /// Rows of a tensor are no whole number of blocks, and the scheme has no rule for that.
    #[error("{tensor}: rows of {cols} values are no whole blocks of {format}")]
    Ragged {
        /// The tensor.
        tensor: String,
        /// Values of its rows.
        cols: u64,
        /// The format.
        format: String,
    },
}
