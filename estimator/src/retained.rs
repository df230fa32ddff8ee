//! Room for prefix snapshots: what of a sequence cannot be shared by page.
//!
//! Pages of full attention are shared as they are and cost nothing more. A snapshot holds the rest, once: the recurrent
//! states of every layer, and the pages of every window (a ring is overwritten as its sequence goes on).

use crate::error::{PlanError, grouped};
use crate::geometry::Geometry;
use crate::plan::View;
use crate::pool::Pool;
use plimsoll_kernels::{Profile, step::PAGE};
use plimsoll_models::Model;
use plimsoll_models::model::State;

/// Bytes of one snapshot.
///
/// # Errors
/// When the KV format does not suit the heads.
pub(crate) fn bytes_per_snapshot(model: &Model, geometry: &Geometry) -> Result<u64, PlanError> {
    let mut bytes = 0u64;
    for state in &model.states {
        bytes = bytes.saturating_add(match state {
            State::KvFull { .. } | State::KvLatent { .. } => 0,
            State::KvSliding { window, .. } => {
                let cells = geometry.context.min(*window).div_ceil(PAGE);
                crate::kv::page(state, geometry)?.1.saturating_mul(cells.into())
            }
            State::Recurrent { shape } => shape.bytes(),
        });
    }
    Ok(bytes)
}

/// Bytes of one snapshot of this model; 0 where pages hold all there is to keep, so that it takes none, or where the
/// geometry cannot be planned anyhow.
pub fn snapshot_bytes(model: &Model, geometry: &Geometry) -> u64 {
    bytes_per_snapshot(model, geometry).unwrap_or(0)
}

/// Places the snapshots, each in one piece where a buffer holds it: the pieces of each, none of them empty.
///
/// # Errors
/// As [`bytes_per_snapshot`]; [`PlanError::Geometry`] when they take more buffers than anybody has memory for.
pub(crate) fn place(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    pool: &mut Pool,
) -> Result<Vec<Vec<View>>, PlanError> {
    const MAX_BUFFERS: u64 = 1 << 14;
    let count = u64::from(geometry.priced.snapshots);
    let each = if count == 0 { 0 } else { bytes_per_snapshot(model, geometry)? };
    if each == 0 {
        return Ok(Vec::new());
    }
    let most = (profile.limits.max_buffer_size / crate::plan::ALIGN * crate::plan::ALIGN).max(1);
    let pieces = each.div_ceil(most).saturating_mul(count);
    if pieces > MAX_BUFFERS {
        let expected = format!("at most {} buffers of {} bytes", grouped(MAX_BUFFERS), grouped(most));
        return Err(PlanError::Geometry { field: "snapshots", expected, got: pieces, have: MAX_BUFFERS });
    }
    let mut snapshot = || {
        let mut views = Vec::new();
        let mut left = each;
        while left > 0 {
            let here = left.min(most);
            views.push(pool.place(here));
            left -= here;
        }
        views
    };
    Ok((0..count).map(|_| snapshot()).collect())
}
