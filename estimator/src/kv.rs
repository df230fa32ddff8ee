//! The KV pool: kinds of pages, segments of layers, and where they stand.

use crate::error::{Limit, PlanError};
use crate::geometry::Geometry;
use crate::plan::{KvKind, KvLayer, KvPlan, KvSegment};
use crate::pool::Pool;
use plimsoll_kernels::{KvLayout, Profile, step::PAGE};
use plimsoll_models::Model;
use plimsoll_models::graph::StateId;
use plimsoll_models::model::State;

/// Bindings of a KV pool, 2 TiB of them at WebGPU's default limits. Past that a plan is no use to anybody, and making
/// it would take minutes: a binding is a dispatch in every program.
const MAX_BINDINGS: u64 = 1 << 14;

/// Places the pages of every attention layer.
pub(crate) fn place(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    pool: &mut Pool,
) -> Result<KvPlan, PlanError> {
    let mut bindings = 0u64;
    let mut plan = KvPlan { kinds: Vec::new(), layers: Vec::new() };
    let limits = &profile.limits;
    let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    for (index, state) in model.states.iter().enumerate() {
        let (shape, window) = match state {
            State::KvFull { shape } => (shape, None),
            State::KvSliding { shape, window } => (shape, Some(*window)),
            State::Recurrent { .. } => continue,
        };
        let kind = match plan.kinds.iter().position(|k| k.window == window) {
            Some(kind) => kind,
            None => {
                plan.kinds.push(kind_of(window, geometry)?);
                plan.kinds.len() - 1
            }
        };
        let pages = plan.kinds[kind].pages;
        let layout = KvLayout::new(geometry.kv, shape)
            .ok_or(PlanError::KvFormat { format: geometry.kv, head_dim: shape.head_dim })?;
        let page = layout.page_bytes();
        if page > most {
            let name = format!("a KV page of layer {index}");
            return Err(PlanError::Limit { limit: Limit::Binding, name, need: page, have: most });
        }
        bindings += u64::from(pages).div_ceil(most / page);
        if bindings > MAX_BINDINGS {
            // The rest is only counted.
            continue;
        }
        let mut segments = Vec::new();
        let mut first_page = 0;
        while first_page < pages {
            let left = u64::from(pages - first_page);
            let room = if left * page <= most && left * page <= pool.room() {
                left
            } else {
                // A layer that does not fit what is left starts a new buffer unless the rest holds a good part of it.
                let here = most.min(pool.room()) / page;
                let fresh = (most / page).min(left);
                if here >= fresh.div_ceil(4) { here.min(left) } else { fresh }
            };
            let segment = room as u32;
            segments.push(KvSegment { first_page, pages: segment, view: pool.place(room * page) });
            first_page += segment;
        }
        plan.layers.push(KvLayer { state: StateId(index as u32), kind: kind as u32, layout, segments });
    }
    if bindings > MAX_BINDINGS {
        return Err(PlanError::Geometry {
            field: "context × slots",
            expected: format!("a KV pool of at most {MAX_BINDINGS} bindings of {most} bytes"),
            got: bindings,
        });
    }
    Ok(plan)
}

/// Cells of a slot: the context, or `min(context, window + chunk − 1)`, in whole pages.
fn kind_of(window: Option<u32>, geometry: &Geometry) -> Result<KvKind, PlanError> {
    let context = u64::from(geometry.context);
    let cells = match window {
        None => context,
        Some(window) => context.min(u64::from(window) + u64::from(geometry.prefill_chunk) - 1),
    };
    let pages_per_slot = cells.div_ceil(u64::from(PAGE));
    let pages = pages_per_slot * u64::from(geometry.slots);
    let pages = u32::try_from(pages).ok().filter(|p| *p < 1 << 31).ok_or(PlanError::Geometry {
        field: "context × slots",
        expected: "under 2^31 pages".into(),
        got: pages,
    })?;
    Ok(KvKind { window, pages_per_slot: pages_per_slot as u32, pages })
}
