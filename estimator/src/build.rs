//! Makes plans: `plan = f(model, geometry, profile)`.

use crate::error::{Limit, PlanError, grouped};
use crate::geometry::{
    Geometry, MAX_CHUNK, MAX_CONTEXT, MAX_DRAFT_DEPTH, MAX_LOGIT_ROWS, MAX_SLOTS, MAX_SNAPSHOTS,
};
use crate::lower::{Lowering, NARROW, Shared, Tables, tile_tokens};
use crate::plan::{ALIGN, Buffer, KvPlan, ModelFacts, Plan, Ranges, RecurrentPlan, Role, Segment, View};
use crate::pool::{Pool, Slab};
use crate::prepare::Prepared;
use crate::pricer::Pricer;
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
const UPLOADS: u32 = 2;

impl Plan {
    /// Plans a model: places every byte and every dispatch, or says what limit or contradiction stands against it.
    ///
    /// # Errors
    /// See [`PlanError`]. A plan that exceeds a *budget* is a plan; [`crate::admit`] holds it against one.
    pub fn new(model: &Model, geometry: &Geometry, profile: &Profile) -> Result<Self, PlanError> {
        Pricer::new(model, profile).plan(geometry)
    }
}

/// What a geometry places before any op is lowered.
pub(crate) struct Placed {
    /// KV, recurrent states and snapshots, after those of the weights.
    pub slabs: Vec<Slab>,
    pub kv: KvPlan,
    pub recurrent: RecurrentPlan,
    pub snapshots: Vec<Vec<View>>,
    pub step: StepLayout,
    pub cut: Cut,
    /// Most tokens of each program.
    pub sizes: Vec<u32>,
}

/// What no operation has a say in.
pub(crate) struct Pools {
    /// Of the KV, the recurrent states and the snapshots, after those of the weights.
    pub slabs: Vec<Slab>,
    pub kv: KvPlan,
    pub recurrent: RecurrentPlan,
    pub snapshots: Vec<Vec<View>>,
}

impl Placed {
    pub fn new(
        model: &Model,
        geometry: &Geometry,
        profile: &Profile,
        prepared: &Prepared,
    ) -> Result<Self, PlanError> {
        let tokens = geometry.prefill_chunk.max(geometry.slots);
        let Pools { slabs, kv, recurrent, snapshots } = Self::pools(model, geometry, profile, prepared)?;
        let sizes = program_sizes(tokens);
        let pages: Vec<u32> = kv.kinds.iter().map(|k| k.pages_per_slot).collect();
        let step = step_tables(model, geometry, profile, prepared, &sizes, &pages)?;
        let cut = Cut::new(prepared.facts.dearest, geometry, profile, tokens)?;
        Ok(Self { slabs, kv, recurrent, snapshots, step, cut, sizes })
    }

    /// Bytes of the weights, the pools and the tables of a step, without padding: a plan takes no less, and all that the
    /// context changes but for scratch is among them.
    ///
    /// # Errors
    /// Some of those of [`Placed::new`], which has no others for most geometries.
    pub fn least(
        model: &Model,
        geometry: &Geometry,
        profile: &Profile,
        prepared: &Prepared,
    ) -> Result<u64, PlanError> {
        let tokens = geometry.prefill_chunk.max(geometry.slots);
        let (kv, pages) = crate::kv::least(model, geometry, profile)?;
        let sizes = program_sizes(tokens);
        let step = step_tables(model, geometry, profile, prepared, &sizes, &pages)?;
        Cut::new(prepared.facts.dearest, geometry, profile, tokens)?;
        let states = crate::recurrent::bytes_per_slot(model, geometry).saturating_mul(geometry.slots.into());
        let snapshots = match geometry.priced.snapshots {
            0 => 0,
            count => crate::retained::bytes_per_snapshot(model, geometry)?.saturating_mul(count.into()),
        };
        let tables = step.words.saturating_mul(4).saturating_mul(u64::from(UPLOADS) + 1);
        let parts =
            [prepared.bytes, crate::images::weight_bytes(model, geometry), kv, states, snapshots, tables];
        Ok(parts.into_iter().fold(0, u64::saturating_add))
    }
}

/// The tables of a step, whose programs are for so many tokens and whose slots have so many pages of each kind.
fn step_tables(
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    prepared: &Prepared,
    sizes: &[u32],
    pages: &[u32],
) -> Result<StepLayout, PlanError> {
    let tokens = geometry.prefill_chunk.max(geometry.slots);
    let limits = &profile.limits;
    let mut tiles: Vec<u32> = Vec::new();
    // The layers that share another's state may have query heads of their own.
    for shape in &prepared.facts.shapes {
        for &size in sizes {
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
    let pairs: Vec<u32> = model.ropes.iter().map(|r| r.pairs()).collect();
    let step = StepLayout::new(tokens, geometry.logit_rows, geometry.slots, &tiles, pages, &pairs);
    let have = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    match step {
        Some(step) if step.words.saturating_mul(4) <= have => Ok(step),
        beyond => {
            // Without a layout its words are past what 32 bits can index.
            let need = beyond.map_or(1 << 34, |step| step.words.saturating_mul(4));
            Err(PlanError::Limit { limit: Limit::Binding, name: "step tables".into(), need, have })
        }
    }
}

impl Placed {
    /// The buffers of the KV, the recurrent states and the snapshots, and what stands in them.
    pub fn pools(
        model: &Model,
        geometry: &Geometry,
        profile: &Profile,
        prepared: &Prepared,
    ) -> Result<Pools, PlanError> {
        let limits = &profile.limits;
        let weights = prepared.slabs.len();
        let mut slabs = Vec::new();

        let tower = crate::images::weight_bytes(model, geometry);
        let most = limits.max_buffer_size;
        slabs.extend(crate::images::slabs("tower", Segment::Weights, Role::Matrices, tower, most)?);

        let mut pool = Pool::new("kv", Segment::Kv, Role::Kv, limits.max_buffer_size, weights + slabs.len());
        let kv = crate::kv::place(model, geometry, profile, &mut pool)?;
        slabs.extend(pool.slabs());

        let mut pool = Pool::new(
            "recurrent",
            Segment::Recurrent,
            Role::Recurrent,
            limits.max_buffer_size,
            weights + slabs.len(),
        );
        let recurrent = crate::recurrent::place(model, geometry, profile, &mut pool)?;
        slabs.extend(pool.slabs());

        let mut pool = Pool::new(
            "retained",
            Segment::Retained,
            Role::Retained,
            limits.max_buffer_size,
            weights + slabs.len(),
        );
        let snapshots = crate::retained::place(model, geometry, profile, &mut pool)?;
        slabs.extend(pool.slabs());
        Ok(Pools { slabs, kv, recurrent, snapshots })
    }
}

/// The last buffers of a plan: the arena and what goes to and from the device.
pub(crate) struct Tail {
    pub step_buffer: u32,
    pub params_buffer: u32,
    pub upload_buffers: Vec<u32>,
    pub readback_buffer: u32,
    pub staging_bytes: u64,
}

impl Tail {
    /// Adds them after those of the weights and the others: `arena` by buffer, `params` slots, and `results` the most bytes of a step's results.
    pub fn new(
        slabs: &mut Vec<Slab>,
        prepared: &Prepared,
        profile: &Profile,
        step: &StepLayout,
        arena: &[u64],
        params: u64,
        results: u64,
    ) -> Result<Self, PlanError> {
        let limits = &profile.limits;
        slabs.extend((0..).zip(arena).map(|(i, &bytes)| Slab {
            name: "arena",
            index: Some(i),
            segment: Segment::Activations,
            role: Role::Arena,
            bytes,
        }));
        let mut io = |name: &'static str, index: Option<u32>, role, bytes: u64| -> Result<u32, PlanError> {
            let bytes = bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
            let slab = Slab { name, index, segment: Segment::Io, role, bytes };
            if bytes > limits.max_buffer_size {
                let (limit, have) = (Limit::Allocation, limits.max_buffer_size);
                return Err(PlanError::Limit { limit, name: slab.name(), need: bytes, have });
            }
            slabs.push(slab);
            Ok((prepared.slabs.len() + slabs.len()) as u32 - 1)
        };
        let step_bytes = step.words.saturating_mul(4);
        let step_buffer = io("step", None, Role::Step, step_bytes)?;
        let params_buffer = io("params", None, Role::Params, params.saturating_mul(ALIGN))?;
        let upload_buffers = (0..UPLOADS)
            .map(|i| io("upload", Some(i), Role::Upload, step_bytes))
            .collect::<Result<_, _>>()?;
        let readback_buffer = io("readback", None, Role::Readback, results)?;

        let vector_bytes = prepared.vectors.iter().map(|v| v.bytes).sum::<u64>().next_multiple_of(ALIGN);
        let largest = limits.max_buffer_size / ALIGN * ALIGN;
        let staging_bytes = STAGING.min(prepared.matrix_bytes.max(vector_bytes)).min(largest);
        let staging_bytes = staging_bytes.max(prepared.longest_row).next_multiple_of(ALIGN);
        if staging_bytes > limits.max_buffer_size {
            let (limit, have) = (Limit::Allocation, limits.max_buffer_size);
            return Err(PlanError::Limit { limit, name: "staging".into(), need: staging_bytes, have });
        }
        Ok(Self { step_buffer, params_buffer, upload_buffers, readback_buffer, staging_bytes })
    }
}

impl Pricer<'_> {
    /// The whole plan for a geometry.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn plan(&self, geometry: &Geometry) -> Result<Plan, PlanError> {
        self.planned(geometry).map_err(|error| error.by(&self.profile().limits))
    }

    fn planned(&self, geometry: &Geometry) -> Result<Plan, PlanError> {
        let (model, profile) = (self.model(), self.profile());
        let prepared = self.prepared(geometry)?;
        let Placed { mut slabs, kv, recurrent, snapshots, step, cut, sizes } =
            Placed::new(model, geometry, profile, prepared)?;
        let mut tables = Tables::default();
        let ranges = cut.ranges(&mut tables);
        let shared = Shared {
            model,
            geometry,
            profile,
            step: &step,
            prepared,
            kv: &kv,
            recurrent: &recurrent,
            arena_base: (prepared.slabs.len() + slabs.len()) as u32,
        };
        let mut programs = Vec::new();
        let mut arena: Vec<u64> = Vec::new();
        for &size in &sizes {
            let name = if size > NARROW { "prefill" } else { "decode" };
            let (program, sizes) = Lowering::program(&shared, &mut tables, &format!("{name} {size}"), size)?;
            largest_of_each(&mut arena, &sizes);
            programs.push(program);
        }
        // A step reads back logits or candidates, never both.
        let results = programs.iter().map(|p| p.logits.bytes.max(p.top_k.bytes).max(p.greedy.bytes)).max();
        let (params, results) = (tables.params.len() as u64, results.unwrap_or(0));
        crate::images::widen(&mut arena, model, geometry, profile.limits.max_buffer_size)?;
        let tail = Tail::new(&mut slabs, prepared, profile, &step, &arena, params, results)?;
        Ok(Plan {
            schema: PLAN_SCHEMA,
            model: facts(model),
            geometry: geometry.clone(),
            profile: profile.clone(),
            estimate_only: estimate_only(model, geometry),
            buffers: prepared.slabs.iter().chain(&slabs).map(Buffer::from).collect(),
            staging_bytes: tail.staging_bytes,
            groups: prepared.groups.all.clone(),
            vectors: prepared.vectors.clone(),
            vector_places: prepared.vector_places.clone(),
            kv,
            recurrent,
            snapshots,
            step,
            step_buffer: tail.step_buffer,
            params_buffer: tail.params_buffer,
            upload_buffers: tail.upload_buffers,
            readback_buffer: tail.readback_buffer,
            params: tables.params,
            ranges,
            kernels: tables.kernels,
            programs,
        })
    }
}

/// Grows each arena buffer to what a program needs of it.
pub(crate) fn largest_of_each(arena: &mut Vec<u64>, sizes: &[u64]) {
    arena.resize(arena.len().max(sizes.len()), 0);
    for (total, size) in arena.iter_mut().zip(sizes) {
        *total = (*total).max(*size);
    }
}

/// That the numbers of a geometry are ones a plan is made for.
pub(crate) fn validate(geometry: &Geometry, model: &Model) -> Result<(), PlanError> {
    let range = |field, value: u32, low: u32, high: u32| {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        let have = if value < low { low } else { high };
        let expected = format!("{} to {}", grouped(low.into()), grouped(high.into()));
        Err(PlanError::Geometry { field, expected, got: value.into(), have: have.into() })
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
pub(crate) fn estimate_only(model: &Model, geometry: &Geometry) -> Option<String> {
    let priced = &geometry.priced;
    let unrun = model.graph.ops.iter().any(|(_, op)| matches!(op, Op::Priced { .. }));
    let unrun = unrun.then(|| format!("{} has operations without kernels", model.architecture));
    // Recurrent states have neither keys nor values.
    let keyed = |states: &[State]| states.iter().any(|state| state.recurrent().is_none());
    let stored = keyed(&model.states) || geometry.draft_depth > 0 && keyed(&model.extras.draft);
    let formats = priced.kv.filter(|_| stored).map(|pair| match (pair.k, pair.v) {
        (k, v) if k == v => format!("KV in {} has no kernels", k.name()),
        (k, v) => format!("keys in {} and values in {} have no kernels", k.name(), v.name()),
    });
    let images = (priced.images.count > 0).then(|| "images are priced and not yet read".to_owned());
    model.extras.estimate_only.clone().or(unrun).or(formats).or(images)
}

/// Most tokens of each program: one sequence decoding; a few tokens, of as many sequences or of the end of a prompt; a
/// prefill chunk. A larger step has the programs of a smaller one beside its own, so that it takes no less: the few can
/// need more scratch than some more, whose attention is not split.
fn program_sizes(tokens: u32) -> Vec<u32> {
    let mut sizes = vec![1, tokens.min(NARROW), tokens];
    sizes.dedup();
    sizes
}

/// How the context is cut into KV ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Tokens of a range.
    length: u32,
    /// Ranges.
    pub count: u32,
}

/// The parameters of a range that covers any position.
const WHOLE: [u32; 4] = [0, 1 << 31, 0, 0];

impl Cut {
    /// Ranges so long that the dearest attention dispatch (`dearest` operations for a row of queries and a key)
    /// keeps to the work budget.
    ///
    /// # Errors
    /// [`Limit::Allocation`] when there are more of them than parameter slots, before any is made.
    fn new(
        dearest: Option<u64>,
        geometry: &Geometry,
        profile: &Profile,
        tokens: u32,
    ) -> Result<Self, PlanError> {
        let context = u64::from(geometry.context).next_multiple_of(PAGE.into());
        let page = u64::from(PAGE);
        let length = match dearest {
            // Nobody looks back: one range, whatever the context.
            None => context,
            Some(row) => {
                let per_key = u64::from(tokens).saturating_mul(row.max(1));
                (profile.work_budget / per_key / page * page).clamp(page, context)
            }
        } as u32;
        let count = context.div_ceil(u64::from(length));
        let have = profile.limits.max_buffer_size.min(MAX_RANGES * ALIGN);
        if count * ALIGN > have {
            let name = "parameters of KV ranges".into();
            return Err(PlanError::Limit { limit: Limit::Allocation, name, need: count * ALIGN, have });
        }
        Ok(Self { length, count: count as u32 })
    }

    /// Whether these are the parameters of a range.
    pub fn holds(&self, words: [u32; 4]) -> bool {
        let [start, length, ..] = words;
        let ours = length == self.length && start % length == 0 && start / length < self.count;
        words == WHOLE || (ours && words[2..] == [0, 0])
    }

    /// Gives each range its parameters.
    fn ranges(&self, tables: &mut Tables) -> Ranges {
        let Self { length, count } = *self;
        let whole = tables.params(WHOLE.to_vec());
        let mut first = None;
        for i in 0..count {
            let slot = tables.params(vec![i * length, length, 0, 0]);
            first.get_or_insert(slot);
        }
        Ranges { tokens: length, count, first: first.unwrap_or(whole), whole }
    }
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
