//! The KV pool: kinds of pages, segments of layers, and where they stand.

use crate::error::{Limit, PlanError};
use crate::geometry::{Geometry, KvStore};
use crate::plan::{KvKind, KvLayer, KvPlan, KvSegment};
use crate::pool::Pool;
use plimsoll_kernels::{AttentionShape, KvLayout, Profile, step::PAGE};
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
        let window = match state {
            State::KvFull { .. } | State::KvLatent { .. } => None,
            State::KvSliding { window, .. } => Some(*window),
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
        let (layout, page) = page(state, geometry)?;
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
        plan.layers.push(KvLayer {
            state: StateId(index as u32),
            kind: kind as u32,
            layout,
            page_bytes: page,
            latent: state.latent().is_some(),
            segments,
        });
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

/// The layout of a layer's pages and the bytes of one: `page × Hk · (E·size(k) + E·size(v))`, or `page × (rank + rope) ·
/// size(k)` of a latent. Where kernels have the format it is their own layout's; other formats are priced as whole blocks.
pub(crate) fn page(state: &State, geometry: &Geometry) -> Result<(KvLayout, u64), PlanError> {
    let run = geometry.kv;
    let (shape, values) = match state {
        State::KvLatent { latent } => {
            (AttentionShape { heads: latent.heads, kv_heads: 1, head_dim: latent.width() }, false)
        }
        State::KvFull { shape } | State::KvSliding { shape, .. } => (*shape, true),
        State::Recurrent { .. } => return Err(PlanError::graph("KV", "a recurrent state has no pages")),
    };
    let nominal = KvLayout { format: run, kv_heads: shape.kv_heads, head_dim: shape.head_dim };
    let pair = geometry.kv_pair();
    if geometry.priced.kv.is_none() && values {
        let layout = KvLayout::new(run, &shape)
            .ok_or(PlanError::KvFormat { format: run.name(), head_dim: shape.head_dim })?;
        return Ok((layout, layout.page_bytes()));
    }
    let row = |store: KvStore| {
        let refused = || PlanError::KvFormat { format: store.name(), head_dim: shape.head_dim };
        store.row_bytes(shape.head_dim).ok_or_else(refused)
    };
    let cell = row(pair.k)? + if values { row(pair.v)? } else { 0 };
    Ok((nominal, cell * u64::from(shape.kv_heads) * u64::from(PAGE)))
}

/// Cells of a slot: the context, or `min(context, window + chunk − 1)`, in whole pages.
pub(crate) fn kind_of(window: Option<u32>, geometry: &Geometry) -> Result<KvKind, PlanError> {
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
