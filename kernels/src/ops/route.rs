//! Router of a mixture of experts: the best experts of each token and their weights.

use crate::{Call, Profile};
use serde::{Deserialize, Serialize};

/// Scores from logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// `sigmoid(logit)` of each expert.
    Sigmoid,
    /// Softmax over all experts.
    Softmax,
}

/// Groups of neighbouring experts: a group's score is the sum of its two best biased scores, and only the experts of
/// the `keep` best groups stand for choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Groups; they divide the experts.
    pub count: u32,
    /// Groups that stay.
    pub keep: u32,
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// `X`.
    pub experts: u32,
    /// `Top`, at most `X`.
    pub top: u32,
    /// Scores from logits.
    pub scoring: Scoring,
    /// Word offset of the correction `[X]` in the vectors: added to scores for the choice alone.
    pub bias: Option<u32>,
    /// Group limits.
    pub groups: Option<Groups>,
    /// The chosen scores are divided by (their sum + 1e-20).
    pub normalise: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// Word offset of a factor `[X]` in the vectors: the weight of a chosen expert is multiplied by its own, after the
    /// normalisation.
    pub expert_scale: Option<u32>,
    /// Factor of the logits before they become scores.
    pub logit_scale: f32,
    /// Values between rows of the logits.
    pub logits_stride: u32,
    /// Values between rows of the routing: ids (as bits) at column 0, weights at column `Top`.
    pub routing_stride: u32,
}

/// Plans the dispatch. Operands: logits (ReadArena), routing (Write, `array<u32>`), vectors (Read).
/// Equal scores go to the smaller id; chosen experts stand by falling biased score.
pub fn plan(_profile: &Profile, _args: &Args) -> Call {
    unimplemented!()
}
