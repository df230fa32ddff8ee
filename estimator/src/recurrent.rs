//! The recurrent pool: what every slot keeps of every recurrent layer, whatever its length.

use crate::error::{Limit, PlanError};
use crate::geometry::Geometry;
use crate::plan::{RecurrentLayer, RecurrentPlan, RecurrentSegment};
use crate::pool::Pool;
use plimsoll_kernels::Profile;
use plimsoll_models::Model;
use plimsoll_models::graph::StateId;

/// Places the states and tails of every recurrent layer.
pub(crate) fn place(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    pool: &mut Pool,
) -> Result<RecurrentPlan, PlanError> {
    let copies = geometry.draft_depth + 1;
    // Slots and draft depth are bounded, so this is far below 2³².
    let places = geometry.slots * copies;
    let limits = &profile.limits;
    let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let mut layers = Vec::new();
    for (index, state) in model.states.iter().enumerate() {
        let Some(&shape) = state.recurrent() else { continue };
        let (values, tail) = (shape.state_bytes(), shape.tail_bytes());
        let largest = values.max(tail).max(4);
        if largest > most {
            let name = format!("the state of layer {index}");
            return Err(PlanError::Limit { limit: Limit::Binding, name, need: largest, have: most });
        }
        let fit = (most / largest).min(places.into()) as u32;
        let mut segments = Vec::new();
        let mut first = 0;
        while first < places {
            let here = fit.min(places - first);
            segments.push(RecurrentSegment {
                first,
                places: here,
                states: pool.place(values * u64::from(here)),
                tails: pool.place((tail * u64::from(here)).max(4)),
            });
            first += here;
        }
        layers.push(RecurrentLayer { state: StateId(index as u32), shape, segments });
    }
    Ok(RecurrentPlan { copies, layers })
}

/// Bytes that a slot keeps, all copies: `Σ (H·P·N + (taps − 1)·C) · 4 · (draft depth + 1)` over the layers.
pub(crate) fn bytes_per_slot(model: &Model, geometry: &Geometry) -> u64 {
    let bytes: u64 = model.states.iter().filter_map(|s| s.recurrent()).map(|s| s.bytes()).sum();
    bytes * (u64::from(geometry.draft_depth) + 1)
}
