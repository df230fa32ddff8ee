//! What an op reads and writes.

use super::{Op, TensorId, VectorId};

impl Op {
    /// Tensors it reads. One it adds to, or changes in place, counts as read and written.
    pub fn reads(&self) -> Vec<TensorId> {
        match self {
            Op::Embed { .. } => vec![],
            Op::Combine { x, routing, out, accumulate } => {
                let mut all = vec![*x, *routing];
                if *accumulate {
                    all.push(*out);
                }
                all
            }
            Op::RmsNorm { x, out, accumulate, .. } | Op::Linear { x, out, accumulate, .. } => {
                if *accumulate {
                    vec![*x, *out]
                } else {
                    vec![*x]
                }
            }
            Op::Attention { qkv, .. } => vec![*qkv],
            Op::Gate { x, .. }
            | Op::ClampedGate { x, .. }
            | Op::SelectRows { x, .. }
            | Op::Softcap { x, .. }
            | Op::Conv { x, .. }
            | Op::Scale { x, .. }
            | Op::Activate { x, .. } => vec![*x],
            Op::Ssd { xbc, dt, .. } => vec![*xbc, *dt],
            Op::Delta { qkv, ab, .. } => vec![*qkv, *ab],
            Op::Multiply { x, by, .. } => vec![*x, *by],
            Op::GatedNorm { x, gate, .. } => vec![*x, *gate],
            Op::Route { logits, .. } => vec![*logits],
            Op::Experts { x, routing, .. } => vec![*x, *routing],
            Op::Add { x, to } => vec![*x, *to],
            Op::Priced { reads, .. } => reads.clone(),
        }
    }

    /// Tensors it writes.
    pub fn writes(&self) -> Vec<TensorId> {
        match self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Gate { out, .. }
            | Op::ClampedGate { out, .. }
            | Op::SelectRows { out, .. }
            | Op::Conv { out, .. }
            | Op::Ssd { out, .. }
            | Op::Delta { out, .. }
            | Op::Route { out, .. }
            | Op::Experts { out, .. }
            | Op::Combine { out, .. }
            | Op::Priced { out, .. } => vec![*out],
            Op::GatedNorm { x, .. }
            | Op::Activate { x, .. }
            | Op::Multiply { x, .. }
            | Op::Scale { x, .. } => vec![*x],
            Op::Attention { qkv, out, .. } => vec![*qkv, *out],
            Op::Add { to, .. } => vec![*to],
            Op::Softcap { x, .. } => vec![*x],
        }
    }

    /// Vectors it reads.
    pub fn vectors(&self) -> Vec<VectorId> {
        match self {
            Op::RmsNorm { weight, .. } => vec![*weight],
            Op::Linear { bias, .. } => bias.iter().flatten().copied().collect(),
            Op::Attention { attention, .. } => {
                let norms =
                    [attention.q_norm, attention.k_norm].into_iter().flatten().map(|norm| norm.weight);
                norms.chain(attention.sinks).collect()
            }
            Op::Conv { conv, .. } => [Some(conv.weight), conv.bias].into_iter().flatten().collect(),
            Op::Ssd { ssd, .. } => vec![ssd.a, ssd.d, ssd.dt_bias],
            Op::Delta { delta, .. } => vec![delta.a, delta.dt_bias],
            Op::Scale { vector, .. } => vector.iter().copied().collect(),
            Op::GatedNorm { norm, .. } => vec![norm.weight],
            Op::Route { router, .. } => [router.bias, router.expert_scale].into_iter().flatten().collect(),
            Op::Experts { bias, .. } => bias.iter().copied().collect(),
            Op::Embed { .. }
            | Op::Gate { .. }
            | Op::ClampedGate { .. }
            | Op::Multiply { .. }
            | Op::Activate { .. }
            | Op::Combine { .. }
            | Op::Add { .. }
            | Op::SelectRows { .. }
            | Op::Softcap { .. }
            | Op::Priced { .. } => vec![],
        }
    }
}
