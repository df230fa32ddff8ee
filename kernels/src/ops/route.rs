//! Router of a mixture of experts: the best experts of each token and their weights.
//!
//! `s = sigmoid(logit)` or softmax over all experts, in f32; the `Top` best of `s + correction` are chosen, equal ones by
//! the smaller id; `weight = s (/ (Σ s of the chosen + 1e-20)) · scale`. With groups only the experts of the best groups
//! stand for choice, whatever the signs of the others' scores.
//!
//! Grid: one workgroup a token. A lane owns every WG-th expert and offers its best; each pick is two reductions over the
//! lanes, after which the lane that offered it looks for its next. Ids are always below X and different, also when
//! logits are NaN: scores are compared by bits, and a NaN takes the place of the most negative finite float. Its weight
//! is a NaN, so what follows shows it.
//!
//! Measured (as in [`super::experts`]): one token 22 of 512 takes 38 µs, twice what 6 of 128 takes.
//!
//! Workgroup memory: 4 bytes a lane and 8 a group; none of it, and no barrier, where the workgroup is one subgroup and
//! there are no groups. Limits: 4 storage buffers.

use super::lanes;
use crate::shader::{Access, Shader, Source};
use crate::{Call, Cost, Count, Profile, Reduce, Unit};
use serde::{Deserialize, Serialize};

/// The most groups: their scores stand in workgroup memory.
pub const MAX_GROUPS: u32 = 1024;

/// `Params::bias` of a router without a correction.
const NO_BIAS: u32 = u32::MAX;

/// Scores from logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// `sigmoid(logit)` of each expert.
    Sigmoid,
    /// Softmax over all experts.
    Softmax,
}

/// Groups of neighbouring experts: a group's score is the sum of its two best biased scores (of its one, when it has
/// one expert), and only the experts of the `keep` best groups stand for choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Groups, at most [`MAX_GROUPS`]; they divide the experts.
    pub count: u32,
    /// Groups that stay.
    pub keep: u32,
}

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// `X`.
    pub experts: u32,
    /// `Top`.
    pub top: u32,
    /// Scores from logits.
    pub scoring: Scoring,
    /// Groups; 0: no group limits.
    pub groups: u32,
    /// Sums over lanes.
    pub reduce: Reduce,
    /// Invocations.
    pub workgroup: u32,
}

crate::params! {
    /// Sizes and places.
    pub struct Params {
        /// Groups that stay.
        keep: u32,
        /// Place of the correction in the vectors, or `NO_BIAS`.
        bias: u32,
        /// 1 to divide by the sum of the chosen scores.
        normalise: u32,
        /// Factor of the weights.
        scale: f32,
        /// Factor of the logits.
        logit_scale: f32,
        /// Place of the experts' own factors in the vectors, or `NO_BIAS`.
        expert_scale: u32,
        /// Values between rows of the logits.
        logits_stride: u32,
        /// Values between rows of the routing.
        routing_stride: u32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// `X`.
    pub experts: u32,
    /// `Top`, at most `X`, and at most the experts of the groups that stay.
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

/// Plans the dispatch. Operands: logits (ReadArena), routing (Write, `array<u32>`), vectors (Read; any one word when
/// there is no correction). Equal scores go to the smaller id; chosen experts stand by falling biased score.
pub fn plan(profile: &Profile, args: &Args) -> Call {
    let tuning = &profile.tuning;
    // One subgroup where there are subgroups: picks follow each other, and a barrier costs more than a longer look.
    let lanes = match tuning.reduce {
        Reduce::Subgroup => profile.subgroup_size.1,
        Reduce::Shared => 64,
    };
    let workgroup = lanes.min(tuning.row_workgroup).clamp(1, args.experts.max(1).next_power_of_two());
    let variant = Variant {
        experts: args.experts,
        top: args.top,
        scoring: args.scoring,
        groups: args.groups.map_or(0, |g| g.count),
        reduce: tuning.reduce,
        workgroup,
    };
    let params = Params {
        keep: args.groups.map_or(0, |g| g.keep),
        bias: args.bias.unwrap_or(NO_BIAS),
        normalise: args.normalise.into(),
        scale: args.scale,
        logit_scale: args.logit_scale,
        expert_scale: args.expert_scale.unwrap_or(NO_BIAS),
        logits_stride: args.logits_stride,
        routing_stride: args.routing_stride,
    };
    let (experts, top) = (u64::from(args.experts), u64::from(args.top));
    let bias = if args.bias.is_some() { 4 * experts } else { 0 };
    Call {
        kernel: variant.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tokens, 1, 1),
        rows: Unit::Tokens,
        cost: Cost {
            bytes_fixed: bias,
            bytes_per_row: 4 * experts + 8 * top,
            // A score and a comparison for each expert, and what the lane of each pick looks through again.
            flops_per_row: 8 * experts + top * experts.div_ceil(u64::from(workgroup)),
            ..Cost::default()
        },
    }
}

/// The CPU twin over `tokens` tokens: ids and weights into `routing`. Scores are computed in f64, rounded, and compared
/// as the f32 the device has.
pub fn twin(args: &Args, tokens: usize, logits: &[f32], vectors: &[f32], routing: &mut [u32]) {
    let (experts, top) = (args.experts as usize, args.top as usize);
    for t in 0..tokens {
        let logits = &logits[t * args.logits_stride as usize..][..experts];
        let scaled: Vec<f32> = logits.iter().map(|l| l * args.logit_scale).collect();
        let scores = scores(args.scoring, &scaled);
        let biased: Vec<f32> = scores
            .iter()
            .enumerate()
            .map(|(i, s)| comparable(*s as f32 + args.bias.map_or(0.0, |at| vectors[at as usize + i])))
            .collect();
        let stands = |expert: usize| args.groups.is_none_or(|g| kept(g, &biased).contains(&expert));
        let mut order: Vec<usize> = (0..experts).filter(|e| stands(*e)).collect();
        order.sort_by(|a, b| biased[*b].total_cmp(&biased[*a]).then(a.cmp(b)));
        order.truncate(top);
        let sum: f64 = order.iter().map(|e| scores[*e]).sum();
        let factor = f64::from(args.scale) / if args.normalise { sum + 1e-20 } else { 1.0 };
        let out = &mut routing[t * args.routing_stride as usize..][..2 * top];
        for (i, expert) in order.into_iter().enumerate() {
            out[i] = expert as u32;
            let own = args.expert_scale.map_or(1.0, |at| f64::from(vectors[at as usize + expert]));
            out[top + i] = ((scores[expert] * factor * own) as f32).to_bits();
        }
    }
}

fn scores(scoring: Scoring, logits: &[f32]) -> Vec<f64> {
    match scoring {
        Scoring::Sigmoid => logits.iter().map(|l| 1.0 / (1.0 + (-f64::from(*l)).exp())).collect(),
        Scoring::Softmax => {
            let most = logits.iter().map(|l| f64::from(comparable(*l))).fold(f64::MIN, f64::max);
            let most = most.clamp(f64::from(-f32::MAX), f64::from(f32::MAX));
            let terms: Vec<f64> = logits.iter().map(|l| (f64::from(*l) - most).exp()).collect();
            let sum: f64 = terms.iter().sum();
            terms.into_iter().map(|v| v / sum).collect()
        }
    }
}

/// What keys order: a NaN as the most negative finite float, one zero.
fn comparable(v: f32) -> f32 {
    if v.is_nan() { -f32::MAX } else { v + 0.0 }
}

/// The experts of the groups that stay.
fn kept(groups: Groups, biased: &[f32]) -> Vec<usize> {
    let size = (biased.len() / groups.count.max(1) as usize).max(1);
    let score = |group: usize| {
        let mut of = biased[group * size..][..size].to_vec();
        of.sort_by(|a, b| b.total_cmp(a));
        of.iter().take(2).fold(0.0, |sum, v| sum + v)
    };
    let scores: Vec<f32> = (0..groups.count as usize).map(|g| comparable(score(g))).collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.iter().take(groups.keep as usize).flat_map(|g| g * size..(g + 1) * size).collect()
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (reduce, workgroup) in [(Reduce::Subgroup, 8), (Reduce::Subgroup, 32), (Reduce::Shared, 64)] {
            let base =
                Self { experts: 512, top: 22, scoring: Scoring::Sigmoid, groups: 0, reduce, workgroup };
            all.push(base.clone());
            all.push(Self { groups: 8, ..base.clone() });
            all.push(Self { scoring: Scoring::Softmax, experts: 4096, top: 64, ..base.clone() });
            all.push(Self { scoring: Scoring::Softmax, groups: MAX_GROUPS, experts: 4096, ..base });
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        let Self { experts, top, scoring, groups, reduce, workgroup } = self;
        let scoring = match scoring {
            Scoring::Sigmoid => "sigmoid",
            Scoring::Softmax => "softmax",
        };
        let reduce = lanes::reduce_name(*reduce);
        format!("route_{scoring}_x{experts}_top{top}_g{groups}_{reduce}_w{workgroup}")
    }

    fn wgsl(&self) -> String {
        let lanes_of = |count: u32| count.div_ceil(self.workgroup.max(1)).max(1);
        Source::new(Params::WGSL)
            .operand(0, Access::ReadArena, "logits", "array<f32>")
            .operand(1, Access::Write, "routing", "array<u32>")
            .operand(2, Access::Read, "vectors", "array<f32>")
            .constant("WG", self.workgroup)
            .constant("EXPERTS", self.experts)
            .constant("TOP", self.top)
            .constant("EACH", lanes_of(self.experts))
            .constant("KEPT", lanes_of(self.top))
            .constant("GROUPS", self.groups)
            .constant("NO_BIAS", NO_BIAS)
            .text(lanes::entry(self.reduce))
            .text(lanes::FLOAT_KEY)
            .text("fn logit_at(i: u32) -> f32 { return logits[i] * p.logit_scale; }")
            .text(match self.scoring {
                Scoring::Sigmoid => include_str!("route_sigmoid.wgsl"),
                Scoring::Softmax => include_str!("route_softmax.wgsl"),
            })
            .text(match self.groups {
                0 => include_str!("route_all.wgsl"),
                _ => include_str!("route_groups.wgsl"),
            })
            .text(include_str!("route.wgsl"))
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::ReadArena, Access::Write, Access::Read]
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(experts: u32, top: u32) -> Args {
        Args {
            experts,
            top,
            scoring: Scoring::Sigmoid,
            bias: None,
            groups: None,
            normalise: false,
            scale: 1.0,
            expert_scale: None,
            logit_scale: 1.0,
            logits_stride: experts,
            routing_stride: 2 * top,
        }
    }

    fn route(args: &Args, logits: &[f32], vectors: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let mut out = vec![0; 2 * args.top as usize];
        twin(args, 1, logits, vectors, &mut out);
        let weights = out.split_off(args.top as usize);
        (out, weights.into_iter().map(f32::from_bits).collect())
    }

    #[test]
    fn the_correction_chooses_and_does_not_weigh() {
        let (ids, weights) =
            route(&Args { bias: Some(1), ..args(3, 1) }, &[0.0, 1.0, -1.0], &[9.0, 0.0, 0.0, 0.9]);
        assert_eq!(ids, [2]);
        assert!((weights[0] - 0.268_941_4).abs() < 1e-6);
    }

    #[test]
    fn weights_add_up_to_the_scale() {
        let normalised = Args { normalise: true, scale: 2.5, ..args(4, 3) };
        let (ids, weights) = route(&normalised, &[0.5, 0.5, 3.0, -1.0], &[]);
        assert_eq!(ids, [2, 0, 1]);
        assert!((weights.iter().sum::<f32>() - 2.5).abs() < 1e-6 && weights[1] == weights[2]);
    }

    #[test]
    fn experts_have_factors_of_their_own() {
        let own = Args { normalise: true, expert_scale: Some(1), logit_scale: 0.5, ..args(3, 2) };
        let own = Args { scoring: Scoring::Softmax, ..own };
        let (ids, weights) = route(&own, &[2.0, 4.0, -9.0], &[7.0, 3.0, 0.5, 1.0]);
        assert_eq!(ids, [1, 0]);
        let (best, next) = (2f32.exp(), 1f32.exp());
        assert!((weights[0] - 0.5 * best / (best + next)).abs() < 1e-6);
        assert!((weights[1] - 3.0 * next / (best + next)).abs() < 1e-6);
    }

    #[test]
    fn a_group_counts_by_its_two_best() {
        // Group 1 has the best expert, group 0 the best two; with negative scores too nobody else comes in.
        let grouped = Args { groups: Some(Groups { count: 2, keep: 1 }), bias: Some(0), ..args(6, 3) };
        let logits = [2.0, 1.9, -9.0, 2.1, -9.0, -9.0];
        let (ids, _) = route(&grouped, &logits, &[-2.0; 6]);
        assert_eq!(ids, [0, 1, 2]);
        let alone = Args { groups: Some(Groups { count: 6, keep: 2 }), ..args(6, 2) };
        assert_eq!(route(&alone, &logits, &[]).0, [3, 0]);
    }
}
