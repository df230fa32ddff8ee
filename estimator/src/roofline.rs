//! Two ceilings that no engine passes: what a device could do if it did nothing but read, or nothing but multiply.
//!
//! Decode reads every weight a token touches, its keys and values, and the states: `bandwidth / bytes of a step of one
//! token`. Prefill multiplies: `rate · T / operations of a step of T tokens`. Both count what the plan's dispatches move
//! and do ([`Plan::work`]), so of experts those that are chosen. They are ceilings, not predictions.

use crate::devices::{Basis, DeviceEntry};
use crate::error::PlanError;
use crate::geometry::Geometry;
#[cfg(doc)]
use crate::plan::Plan;
use crate::pricer::Pricer;
use plimsoll_kernels::StepShape;
use serde::{Deserialize, Serialize};

/// Ceilings of a plan on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are the document's
pub struct Ceilings {
    /// Bytes of a step of one token at the end of the context.
    pub decode_bytes: u64,
    /// Tokens a second that reading them allows.
    pub decode_tokens_per_second: Option<f64>,
    /// Floating-point operations of a prefill chunk in the middle of the context.
    pub prefill_flops: u64,
    pub prefill_chunk: u32,
    /// Tokens a second that they allow, at the shader rate.
    pub prefill_tokens_per_second: Option<f64>,
    pub bandwidth_basis: Option<Basis>,
    pub rate_basis: Option<Basis>,
}

/// The ceilings of a plan on a device, which is not made for that: its dispatches are only added up.
///
/// # Errors
/// As [`Pricer::price`].
pub fn ceilings(
    pricer: &Pricer<'_>,
    geometry: &Geometry,
    device: &DeviceEntry,
) -> Result<Ceilings, PlanError> {
    let context = geometry.context.max(1);
    let decode = StepShape { tokens: 1, logit_rows: 1, kv_max: context, ..StepShape::default() };
    let chunk = geometry.prefill_chunk.min(context).max(1);
    let seen = context / 2 + 1;
    let prefill = StepShape { tokens: chunk, logit_rows: 1, kv_max: seen, ..StepShape::default() };
    let [(decode_bytes, _), (_, prefill_flops)] =
        pricer.work(geometry, [(decode, context), (prefill, seen)])?;
    let per_second = |rate: Option<u64>, work: u64, tokens: u32| {
        rate.filter(|_| work > 0).map(|rate| rate as f64 * f64::from(tokens) / work as f64)
    };
    Ok(Ceilings {
        decode_bytes,
        decode_tokens_per_second: per_second(device.bandwidth, decode_bytes, 1),
        prefill_flops,
        prefill_chunk: chunk,
        prefill_tokens_per_second: per_second(device.f32, prefill_flops, chunk),
        bandwidth_basis: device.bandwidth_basis,
        rate_basis: device.rate_basis,
    })
}
