//! Makes plans: `plan = f(model, geometry, profile)`.

use crate::error::{Limit, PlanError};
use crate::geometry::{
    Geometry, MAX_CHUNK, MAX_CONTEXT, MAX_DRAFT_DEPTH, MAX_LOGIT_ROWS, MAX_SLOTS, MAX_SNAPSHOTS,
};
use crate::groups::Groups;
use crate::lower::{Lowering, NARROW, Shared, Tables, tile_tokens};
use crate::plan::{ALIGN, Buffer, ModelFacts, Plan, Ranges, Role, Segment};
use crate::pool::Pool;
use crate::vectors;
use plimsoll_kernels::{Profile, StepLayout, step::PAGE};
use plimsoll_models::Model;
use plimsoll_models::graph::Op;
use plimsoll_models::model::State;

/// Version of the plan's structure.
pub const PLAN_SCHEMA: u32 = 2;

/// The upload buffer of a load: large enough to keep a copy engine busy, small enough not to matter.
const STAGING: u64 = 8 << 20;

/// KV ranges a step may be cut into.
const MAX_RANGES: u64 = 1 << 20;

/// Upload buffers, used in turn so that a step can be prepared while another runs.
const UPLOADS: usize = 2;

impl Plan {
    /// Plans a model: places every byte and every dispatch, or says what limit or contradiction stands against it.
    ///
    /// # Errors
    /// See [`PlanError`]. A plan that exceeds a *budget* is a plan; [`crate::admit`] holds it against one.
    pub fn new(model: &Model, geometry: &Geometry, profile: &Profile) -> Result<Self, PlanError> {
        validate(geometry, model)?;
        let tokens = geometry.prefill_chunk.max(geometry.slots);
        let limits = &profile.limits;
        let mut buffers: Vec<Buffer> = Vec::new();

        let mut pool =
            Pool::new("weights", Segment::Weights, Role::Matrices, limits.max_buffer_size, buffers.len());
        let groups = Groups::place(model, profile, &mut pool)?;
        buffers.extend(pool.buffers());
        let matrix_bytes: u64 = buffers.iter().map(|b| b.bytes).sum();
        let longest_row = groups.all.iter().map(|g| g.record.stride()).max().unwrap_or(0);

        let (vector_places, vectors) = vectors::place(model, profile, &mut buffers)?;

        let tower = crate::images::weight_bytes(model, geometry);
        let largest = limits.max_buffer_size;
        buffers.extend(crate::images::buffers("tower", Segment::Weights, Role::Matrices, tower, largest)?);

        let mut pool = Pool::new("kv", Segment::Kv, Role::Kv, limits.max_buffer_size, buffers.len());
        let kv = crate::kv::place(model, geometry, profile, &mut pool)?;
        buffers.extend(pool.buffers());

        let mut pool = Pool::new(
            "recurrent",
            Segment::Recurrent,
            Role::Recurrent,
            limits.max_buffer_size,
            buffers.len(),
        );
        let recurrent = crate::recurrent::place(model, geometry, profile, &mut pool)?;
        buffers.extend(pool.buffers());

        let mut pool =
            Pool::new("retained", Segment::Retained, Role::Retained, limits.max_buffer_size, buffers.len());
        crate::retained::place(model, geometry, profile, &mut pool)?;
        buffers.extend(pool.buffers());

        let sizes = program_sizes(tokens, geometry.slots);
        let mut tiles: Vec<u32> = Vec::new();
        // The layers that share another's state may have query heads of their own.
        let readers = model.graph.ops.iter().filter_map(|(_, op)| match op {
            Op::Attention { attention, .. } => Some(Some(&attention.shape)),
            _ => None,
        });
        for shape in model.states.iter().map(State::attention).chain(readers) {
            for &size in &sizes {
                let tile = match shape {
                    Some(shape) => tile_tokens(shape, size),
                    // A recurrent layer takes all tokens of a sequence at once.
                    None => tokens,
                };
                if !tiles.contains(&tile) {
                    tiles.push(tile);
                }
            }
        }
        let pages: Vec<u32> = kv.kinds.iter().map(|k| k.pages_per_slot).collect();
        let pairs: Vec<u32> = model.ropes.iter().map(|r| r.pairs()).collect();
        let step = StepLayout::new(tokens, geometry.logit_rows, geometry.slots, &tiles, &pages, &pairs);
        let have = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let step = match step {
            Some(step) if step.words * 4 <= have => step,
            beyond => {
                // Without a layout its words are past what 32 bits can index.
                let need = beyond.map_or(1 << 34, |step| step.words * 4);
                return Err(PlanError::Limit {
                    limit: Limit::Binding,
                    name: "step tables".into(),
                    need,
                    have,
                });
            }
        };

        let mut tables = Tables::default();
        let ranges = ranges(model, geometry, profile, tokens, &mut tables)?;
        let arena_base = buffers.len() as u32;
        let shared = Shared {
            model,
            geometry,
            profile,
            step: &step,
            groups: &groups,
            vectors: &vectors,
            vector_places: &vector_places,
            kv: &kv,
            recurrent: &recurrent,
            arena_base,
        };
        let mut programs = Vec::new();
        let mut arena: Vec<u64> = Vec::new();
        for &size in &sizes {
            let name = if size > NARROW { "prefill" } else { "decode" };
            let (program, sizes) = Lowering::program(&shared, &mut tables, &format!("{name} {size}"), size)?;
            arena.resize(arena.len().max(sizes.len()), 0);
            for (total, size) in arena.iter_mut().zip(sizes) {
                *total = (*total).max(size);
            }
            programs.push(program);
        }
        let more = crate::images::beyond_text(model, geometry, arena.iter().sum())?;
        let images = crate::images::buffers("images", Segment::Activations, Role::Arena, more, largest)?;
        buffers.extend(arena.into_iter().enumerate().map(|(i, bytes)| Buffer {
            name: format!("arena.{i}"),
            segment: Segment::Activations,
            role: Role::Arena,
            bytes,
        }));
        buffers.extend(images);

        let mut io = |name: &str, role, bytes: u64| -> Result<u32, PlanError> {
            let bytes = bytes.max(1).next_multiple_of(ALIGN);
            if bytes > limits.max_buffer_size {
                let (limit, have) = (Limit::Allocation, limits.max_buffer_size);
                return Err(PlanError::Limit { limit, name: name.to_owned(), need: bytes, have });
            }
            buffers.push(Buffer { name: name.to_owned(), segment: Segment::Io, role, bytes });
            Ok(buffers.len() as u32 - 1)
        };
        let step_buffer = io("step", Role::Step, step.words * 4)?;
        let params_buffer = io("params", Role::Params, tables.params.len() as u64 * ALIGN)?;
        let upload_buffers = (0..UPLOADS)
            .map(|i| io(&format!("upload.{i}"), Role::Upload, step.words * 4))
            .collect::<Result<_, _>>()?;
        // A step reads back logits or candidates, never both.
        let results = programs.iter().map(|p| p.logits.bytes.max(p.top_k.bytes).max(p.greedy.bytes)).max();
        let readback_buffer = io("readback", Role::Readback, results.unwrap_or(0))?;

        let vector_bytes = vectors.iter().map(|v| v.bytes).sum::<u64>().next_multiple_of(ALIGN);
        let largest = limits.max_buffer_size / ALIGN * ALIGN;
        let staging_bytes = STAGING.min(matrix_bytes.max(vector_bytes)).min(largest).max(longest_row);
        let staging_bytes = staging_bytes.next_multiple_of(ALIGN);
        if staging_bytes > limits.max_buffer_size {
            let (limit, have) = (Limit::Allocation, limits.max_buffer_size);
            return Err(PlanError::Limit { limit, name: "staging".into(), need: staging_bytes, have });
        }
        Ok(Self {
            schema: PLAN_SCHEMA,
            model: facts(model),
            geometry: geometry.clone(),
            profile: profile.clone(),
            estimate_only: estimate_only(model, geometry),
            buffers,
            staging_bytes,
            groups: groups.all,
            vectors,
            vector_places,
            kv,
            recurrent,
            step,
            step_buffer,
            params_buffer,
            upload_buffers,
            readback_buffer,
            params: tables.params,
            ranges,
            kernels: tables.kernels,
            programs,
        })
    }
}

fn validate(geometry: &Geometry, model: &Model) -> Result<(), PlanError> {
    let range = |field, value: u32, low: u32, high: u32| {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(PlanError::Geometry { field, expected: format!("{low} to {high}"), got: value.into() })
    };
    range("context", geometry.context, 1, MAX_CONTEXT)?;
    range("slots", geometry.slots, 1, MAX_SLOTS)?;
    range("prefill_chunk", geometry.prefill_chunk, 1, MAX_CHUNK)?;
    range("logit_rows", geometry.logit_rows, 1, MAX_LOGIT_ROWS)?;
    range("draft_depth", geometry.draft_depth, 0, MAX_DRAFT_DEPTH)?;
    range("snapshots", geometry.priced.snapshots, 0, MAX_SNAPSHOTS)?;
    if model.graph.ops.is_empty() {
        return Err(PlanError::graph("the model", "it has no ops"));
    }
    Ok(())
}

/// Why a plan of this model for this geometry can be priced and not run.
fn estimate_only(model: &Model, geometry: &Geometry) -> Option<String> {
    let priced = &geometry.priced;
    let unrun = model.graph.ops.iter().any(|(_, op)| matches!(op, Op::Priced { .. }));
    let unrun = unrun.then(|| format!("{} has operations without kernels", model.architecture));
    let formats = priced.kv.map(|pair| match (pair.k, pair.v) {
        (k, v) if k == v => format!("KV in {} has no kernels", k.name()),
        (k, v) => format!("keys in {} and values in {} have no kernels", k.name(), v.name()),
    });
    let images = (priced.images.count > 0).then(|| "images are priced and not yet read".to_owned());
    model.extras.estimate_only.clone().or(unrun).or(formats).or(images)
}

/// Most tokens of each program: one sequence decoding, a few, a prefill chunk.
fn program_sizes(tokens: u32, slots: u32) -> Vec<u32> {
    let mut sizes = vec![1];
    if tokens > NARROW {
        if slots > 1 {
            sizes.push(NARROW);
        }
        sizes.push(tokens);
    } else if tokens > 1 {
        sizes.push(tokens);
    }
    sizes
}

/// How long a KV range may be so that the dearest attention dispatch keeps to the work budget.
///
/// # Errors
/// [`Limit::Allocation`] when there are more of them than parameter slots, before any is made.
fn ranges(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    tokens: u32,
    tables: &mut Tables,
) -> Result<Ranges, PlanError> {
    let readers = model.graph.ops.iter().filter_map(|(_, op)| match op {
        Op::Attention { attention, .. } => Some(&attention.shape),
        _ => None,
    });
    let shapes = model.states.iter().filter_map(State::attention).chain(readers);
    let dearest = shapes.map(|s| u64::from(s.heads) * u64::from(s.head_dim)).max();
    let context = u64::from(geometry.context).next_multiple_of(PAGE.into());
    let page = u64::from(PAGE);
    let length = match dearest {
        // Nobody looks back: one range, whatever the context.
        None => context,
        Some(width) => {
            let per_key = 4 * u64::from(tokens) * width.max(1);
            (profile.work_budget / per_key / page * page).clamp(page, context)
        }
    } as u32;
    let count = context.div_ceil(u64::from(length));
    let have = profile.limits.max_buffer_size.min(MAX_RANGES * ALIGN);
    if count * ALIGN > have {
        let name = "parameters of KV ranges".into();
        return Err(PlanError::Limit { limit: Limit::Allocation, name, need: count * ALIGN, have });
    }
    let count = count as u32;
    // A range that is not repeated covers any position.
    let whole = tables.params(vec![0, 1 << 31, 0, 0]);
    let mut first = None;
    for i in 0..count {
        let slot = tables.params(vec![i * length, length, 0, 0]);
        first.get_or_insert(slot);
    }
    Ok(Ranges { tokens: length, count, first: first.unwrap_or(whole), whole })
}

/// What reports say of a model, whatever plan it has.
pub(crate) fn facts(model: &Model) -> ModelFacts {
    let count = |f: fn(&State) -> bool| model.states.iter().filter(|s| f(s)).count() as u32;
    let full = count(|s| matches!(s, State::KvFull { .. } | State::KvLatent { .. }));
    let sliding = count(|s| matches!(s, State::KvSliding { .. }));
    let recurrent = count(|s| matches!(s, State::Recurrent { .. }));
    ModelFacts {
        name: model.name.clone(),
        architecture: model.architecture.clone(),
        parameters: model.parameters(),
        vocab: model.vocab,
        context_max: model.context_max,
        attention_full: full,
        attention_sliding: sliding,
        recurrent,
        stateless: model.layers.saturating_sub(full + sliding + recurrent),
    }
}
