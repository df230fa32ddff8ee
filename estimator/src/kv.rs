//! The KV pool: kinds of pages, segments of layers, and where they stand.

use crate::error::{Limit, PlanError, grouped};
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
            return Err(too_wide(index, page, most));
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
    expect_bindings(bindings, most)?;
    Ok(plan)
}

/// Bytes of all pages without padding, and the pages per slot of each kind, as [`place`] would place them.
///
/// # Errors
/// As [`place`].
pub(crate) fn least(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
) -> Result<(u64, Vec<u32>), PlanError> {
    let limits = &profile.limits;
    let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let mut kinds: Vec<KvKind> = Vec::new();
    let (mut bytes, mut bindings) = (0u64, 0u64);
    // Most layers are as the one before.
    let mut before: Option<(&State, u64, u64)> = None;
    for (index, state) in model.states.iter().enumerate() {
        let window = match state {
            State::KvFull { .. } | State::KvLatent { .. } => None,
            State::KvSliding { window, .. } => Some(*window),
            State::Recurrent { .. } => continue,
        };
        let (layer, bound) = match before {
            Some((other, layer, bound)) if other == state => (layer, bound),
            _ => {
                let kind = match kinds.iter().find(|k| k.window == window) {
                    Some(kind) => *kind,
                    None => {
                        kinds.push(kind_of(window, geometry)?);
                        kinds[kinds.len() - 1]
                    }
                };
                let page = page(state, geometry)?.1;
                if page > most {
                    return Err(too_wide(index, page, most));
                }
                let pages = u64::from(kind.pages);
                (pages.saturating_mul(page), pages.div_ceil(most / page))
            }
        };
        before = Some((state, layer, bound));
        bytes = bytes.saturating_add(layer);
        bindings = bindings.saturating_add(bound);
    }
    expect_bindings(bindings, most)?;
    Ok((bytes, kinds.iter().map(|k| k.pages_per_slot).collect()))
}

/// A page that no binding holds.
fn too_wide(layer: usize, need: u64, have: u64) -> PlanError {
    PlanError::Limit { limit: Limit::Binding, name: format!("a KV page of layer {layer}"), need, have }
}

/// That a pool is one that anybody has a use for.
fn expect_bindings(bindings: u64, most: u64) -> Result<(), PlanError> {
    if bindings <= MAX_BINDINGS {
        return Ok(());
    }
    Err(PlanError::Geometry {
        field: "context × slots",
        expected: format!(
            "a KV pool of at most {} bindings of {} bytes",
            grouped(MAX_BINDINGS),
            grouped(most)
        ),
        got: bindings,
        have: MAX_BINDINGS,
    })
}

/// Whether the formats suit the heads of every layer.
pub(crate) fn suits(model: &Model, geometry: &Geometry) -> bool {
    let mut pages = model.states.iter().filter(|state| state.recurrent().is_none());
    pages.all(|state| page(state, geometry).is_ok())
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
        expected: format!("under {} pages of KV", grouped(1 << 31)),
        got: pages,
        have: (1 << 31) - 1,
    })?;
    Ok(KvKind { window, pages_per_slot: pages_per_slot as u32, pages })
}
