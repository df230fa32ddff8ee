//! A stepper without a device, for tests: a "model" whose logits are a function of the whole sequence, kept in paged
//! memory the way the executor keeps it. Whoever mixes up a page, a slot or a position gets other logits.
//!
//! With recurrent layers the sequence is folded into a state per slot instead, which every step moves on from wherever
//! it stands, also one that fails: whoever skips or repeats a token gets other logits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::RuntimeError;
use crate::rng::Rng;
use crate::sampler::log_sum_exp;
use crate::step::*;
use crate::telemetry::{Telemetry, Usage};
use plimsoll_estimator::plan::*;
use plimsoll_estimator::{Geometry, Plan};
use plimsoll_kernels::step::PAGE;
use plimsoll_kernels::{KvFormat, KvLayout, Profile, RecurrentShape, StepLayout};
use plimsoll_models::graph::StateId;

/// `V` of the fake.
pub const VOCAB: u32 = 97;
/// Window of its second KV kind.
pub const WINDOW: u32 = 40;

/// A plan with a full and a sliding KV kind and no buffers.
pub fn plan(context: u32, slots: u32, prefill_chunk: u32, logit_rows: u32) -> Plan {
    let view = View { buffer: 0, offset: 0, bytes: 0 };
    let full = context.div_ceil(PAGE);
    let ring = context.min(WINDOW + prefill_chunk - 1).div_ceil(PAGE);
    let kinds = [(None, full), (Some(WINDOW), ring)];
    let kind = |&(window, pages_per_slot)| KvKind { window, pages_per_slot, pages: pages_per_slot * slots };
    Plan {
        schema: 1,
        model: ModelFacts {
            name: "fake".into(),
            architecture: "fake".into(),
            parameters: 0,
            vocab: VOCAB,
            context_max: context,
            attention_full: 1,
            attention_sliding: 1,
            recurrent: 0,
            stateless: 0,
        },
        geometry: Geometry {
            context,
            slots,
            prefill_chunk,
            kv: KvFormat::F32,
            logit_rows,
            draft_depth: 0,
            priced: Default::default(),
        },
        profile: Profile::webgpu_default(),
        estimate_only: None,
        buffers: vec![],
        staging_bytes: 0,
        groups: vec![],
        vectors: vec![view],
        vector_places: vec![],
        kv: KvPlan { kinds: kinds.iter().map(kind).collect(), layers: vec![] },
        recurrent: RecurrentPlan::default(),
        snapshots: vec![],
        step: StepLayout::new(prefill_chunk, logit_rows, slots, &[], &[full, ring], &[]).unwrap(),
        step_buffer: 0,
        params_buffer: 0,
        upload_buffers: vec![],
        readback_buffer: 0,
        params: vec![],
        ranges: Ranges { tokens: PAGE, count: full, first: 0, whole: 0 },
        kernels: vec![],
        programs: vec![],
    }
}

/// The same with a recurrent layer: beside the KV kinds, or instead of them.
pub fn recurrent_plan(context: u32, slots: u32, prefill_chunk: u32, attention: bool) -> Plan {
    let mut plan = plan(context, slots, prefill_chunk, slots);
    let shape = RecurrentShape { values: 1, channels: 1, taps: WINDOW };
    let layer = RecurrentLayer { state: StateId(0), shape, segments: vec![] };
    plan.recurrent = RecurrentPlan { copies: 1, layers: vec![layer] };
    plan.model.recurrent = 1;
    if !attention {
        plan.kv.kinds.clear();
        (plan.model.attention_full, plan.model.attention_sliding) = (0, 0);
        plan.step = StepLayout::new(prefill_chunk, slots, slots, &[], &[], &[]).unwrap();
    }
    plan
}

/// Bytes of a page of every full-attention layer of [`caching_plan`].
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of its snapshots.
pub const SNAPSHOT_BYTES: u64 = 1024;

/// A plan with something to cache: full attention alone (0), beside a window (1), a recurrent layer (2) or both (3), or
/// a recurrent layer alone (4).
pub fn caching_plan(kind: u32, context: u32, slots: u32, prefill_chunk: u32, snapshots: u32) -> Plan {
    let mut plan = match kind {
        0 | 1 => plan(context, slots, prefill_chunk, slots),
        kind => recurrent_plan(context, slots, prefill_chunk, kind != 4),
    };
    if kind == 0 || kind == 2 {
        plan.kv.kinds.truncate(1);
    }
    let layout = KvLayout { format: KvFormat::F32, kv_heads: 1, head_dim: 8 };
    let layer = |kind| KvLayer {
        state: StateId(0),
        kind,
        layout,
        page_bytes: PAGE_BYTES,
        latent: false,
        segments: vec![],
    };
    plan.kv.layers = (0..plan.kv.kinds.len() as u32).map(layer).collect();
    plan.geometry.priced.snapshots = snapshots;
    plan.snapshots = vec![vec![View { buffer: 0, offset: 0, bytes: SNAPSHOT_BYTES }]; snapshots as usize];
    plan
}

/// What a recurrent layer of the fake keeps of a slot.
#[derive(Clone)]
struct State {
    fold: u64,
    /// The last tokens, at most `WINDOW`.
    tail: Vec<u32>,
}

impl State {
    fn new() -> Self {
        Self { fold: fold(&[]), tail: vec![] }
    }

    fn take(&mut self, id: u32) {
        self.fold = fold_one(self.fold, id);
        self.tail.push(id);
        if self.tail.len() > WINDOW as usize {
            self.tail.remove(0);
        }
    }
}

fn fold_one(fold: u64, id: u32) -> u64 {
    (fold ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3)
}

fn fold(ids: &[u32]) -> u64 {
    ids.iter().fold(0xcbf2_9ce4_8422_2325, |h, &id| fold_one(h, id))
}

fn window(sequence: &[u32]) -> &[u32] {
    &sequence[sequence.len().saturating_sub(WINDOW as usize)..]
}

/// Logits after a sequence: quarters, so that ties happen.
pub fn logits(sequence: &[u32]) -> Vec<f32> {
    logits_of(fold(sequence), window(sequence))
}

fn logits_of(folded: u64, window: &[u32]) -> Vec<f32> {
    let mut rng = Rng::new(folded ^ fold(window).rotate_left(17));
    (0..VOCAB).map(|_| (rng.next_u64() % 64) as f32 * 0.25 - 8.0).collect()
}

/// What greedy decoding of the fake continues a prompt with.
pub fn greedy(prompt: &[u32], new: usize) -> Vec<u32> {
    let mut sequence = prompt.to_vec();
    for _ in 0..new {
        let row = logits(&sequence);
        let best = (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        sequence.push(best as u32);
    }
    sequence.split_off(prompt.len())
}

/// See the module.
pub struct Fake {
    pub plan: Plan,
    /// Per kind and slot.
    tables: Vec<Vec<Vec<u32>>>,
    /// Per kind: `[pages, PAGE]` of `(position, id)`.
    memory: Vec<Vec<(u32, u32)>>,
    /// Per slot, where the plan has recurrent layers.
    states: Vec<State>,
    pub steps: u64,
    /// Fails the step with this number after it has written.
    pub fail_at: Option<u64>,
    /// Cancels the step with this number after it has written, though no flag is up.
    pub cancel_at: Option<u64>,
    pub lost: bool,
    /// A slot whose rows are NaN.
    pub poison: Option<u32>,
    /// Raises the flag of a step in the middle of it.
    pub cancel_in_step: Option<Cancel>,
    pub last_sampling: Sampling,
    pub fail_snapshots: bool,
    /// Full-attention pages that the last step wrote.
    pub written: Vec<u32>,
    kept: Vec<Option<(u32, Kept)>>,
}

/// A snapshot.
#[derive(Clone)]
struct Kept {
    /// Of each sliding kind, the last cells.
    rings: Vec<Vec<(u32, u32)>>,
    state: Option<State>,
}

impl Fake {
    pub fn new(plan: Plan) -> Self {
        let slots = plan.geometry.slots as usize;
        let memory = plan.kv.kinds.iter().map(|k| vec![(u32::MAX, u32::MAX); (k.pages * PAGE) as usize]);
        Self {
            tables: vec![vec![vec![]; slots]; plan.kv.kinds.len()],
            memory: memory.collect(),
            states: if plan.recurrent.layers.is_empty() { vec![] } else { vec![State::new(); slots] },
            kept: vec![None; plan.snapshots.len()],
            fail_snapshots: false,
            written: vec![],
            plan,
            steps: 0,
            fail_at: None,
            cancel_at: None,
            lost: false,
            poison: None,
            cancel_in_step: None,
            last_sampling: Sampling::None,
        }
    }

    /// Index in `memory` of a position of a slot.
    fn cell(&self, kind: usize, slot: u32, position: u32) -> usize {
        let table = &self.tables[kind][slot as usize];
        let logical = (position / PAGE) % self.plan.kv.kinds[kind].pages_per_slot;
        (table[logical as usize] * PAGE + position % PAGE) as usize
    }

    /// The logits after `length` tokens of a slot.
    fn row(&self, slot: u32, length: u32) -> Vec<f32> {
        let read = (!self.memory.is_empty()).then(|| self.read(slot, length));
        match (read, self.states.get(slot as usize)) {
            (Some(ids), None) => logits(&ids),
            (Some(ids), Some(state)) => logits_of(state.fold, window(&ids)),
            (None, Some(state)) => logits_of(state.fold, &state.tail),
            (None, None) => panic!("a plan that keeps nothing"),
        }
    }

    fn read(&self, slot: u32, length: u32) -> Vec<u32> {
        for kind in 0..self.memory.len() {
            let from = if kind == 0 { 0 } else { length.saturating_sub(WINDOW) };
            for position in from..length {
                let (at, id) = self.memory[kind][self.cell(kind, slot, position)];
                let full = self.memory[0][self.cell(0, slot, position)].1;
                assert_eq!((at, id), (position, full), "kind {kind}, slot {slot}");
            }
        }
        (0..length).map(|position| self.memory[0][self.cell(0, slot, position)].1).collect()
    }
}

impl Stepper for Fake {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn set_block_table(&mut self, kind: u32, slot: u32, pages: &[u32]) -> Result<(), RuntimeError> {
        self.tables[kind as usize][slot as usize] = pages.to_vec();
        Ok(())
    }

    fn telemetry(&self, _: Usage, _: [usize; 2]) -> Option<Telemetry> {
        None
    }

    fn begin(&mut self, _: u32) {}

    fn snapshot(&mut self, slot: u32, position: u32, index: u32) -> Result<(), RuntimeError> {
        if self.fail_snapshots {
            return Err(RuntimeError::Submit { submit: self.steps, reason: "test".into() });
        }
        assert!(position.is_multiple_of(PAGE) && position > 0);
        let rings = (0..self.memory.len()).filter(|&kind| self.plan.kv.kinds[kind].window.is_some());
        let first = position - position.min(WINDOW.next_multiple_of(PAGE));
        let ring = |kind| (first..position).map(|at| self.memory[kind][self.cell(kind, slot, at)]).collect();
        let kept = Kept { rings: rings.map(ring).collect(), state: self.states.get(slot as usize).cloned() };
        self.kept[index as usize] = Some((position, kept));
        Ok(())
    }

    fn restore(&mut self, index: u32, slot: u32, position: u32) -> Result<(), RuntimeError> {
        let (at, kept) = self.kept[index as usize].clone().expect("a snapshot that was taken");
        assert_eq!(at, position);
        let rings = (0..self.memory.len()).filter(|&kind| self.plan.kv.kinds[kind].window.is_some());
        let first = position - position.min(WINDOW.next_multiple_of(PAGE));
        for (kind, ring) in rings.collect::<Vec<_>>().into_iter().zip(kept.rings) {
            for (at, cell) in (first..position).zip(ring) {
                let to = self.cell(kind, slot, at);
                self.memory[kind][to] = cell;
            }
        }
        if let Some(state) = kept.state {
            self.states[slot as usize] = state;
        }
        Ok(())
    }

    fn step(&mut self, input: &StepInput<'_>) -> Result<StepOutput, RuntimeError> {
        let geometry = self.plan.geometry.clone();
        assert!((1..=u64::from(geometry.prefill_chunk)).contains(&input.tokens()));
        assert!(input.logit_rows() <= u64::from(geometry.logit_rows));
        assert_eq!(input.sampling == Sampling::None, input.logit_rows() == 0);
        self.last_sampling = input.sampling;
        self.steps += 1;
        self.written.clear();
        if self.lost {
            return Err(RuntimeError::DeviceLost { reason: "test".into() });
        }
        if let Some(cancel) = self.cancel_in_step.take() {
            cancel.cancel();
        }
        if input.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(RuntimeError::Cancelled);
        }
        let mut seen = vec![];
        let mut rows = vec![];
        for sequence in input.sequences {
            assert!(!seen.contains(&sequence.slot) && sequence.slot < geometry.slots);
            seen.push(sequence.slot);
            for (position, &id) in (sequence.position..).zip(sequence.ids) {
                for kind in 0..self.memory.len() {
                    let cell = self.cell(kind, sequence.slot, position);
                    self.memory[kind][cell] = (position, id);
                    if kind == 0 {
                        self.written.push(cell as u32 / PAGE);
                    }
                }
                if let Some(state) = self.states.get_mut(sequence.slot as usize) {
                    if position == 0 {
                        *state = State::new();
                    }
                    state.take(id);
                }
                let rows_from = sequence.position + sequence.ids.len() as u32;
                let wanted = match sequence.wanted {
                    Wanted::None => false,
                    Wanted::Last => position + 1 == rows_from,
                    Wanted::All => true,
                };
                if wanted {
                    let mut row = self.row(sequence.slot, position + 1);
                    if self.poison == Some(sequence.slot) {
                        row[3] = f32::NAN;
                    }
                    rows.push(row);
                }
            }
        }
        if self.fail_at == Some(self.steps) {
            return Err(RuntimeError::Submit { submit: self.steps, reason: "test".into() });
        }
        if self.cancel_at == Some(self.steps) {
            return Err(RuntimeError::Cancelled);
        }
        let best = |row: &Vec<f32>, k: usize| {
            let mut best: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            best.truncate(k);
            Candidates { best, log_sum_exp: log_sum_exp(row).map_or(f32::NAN, |l| l as f32) }
        };
        Ok(match input.sampling {
            Sampling::None => StepOutput::None,
            Sampling::Greedy => StepOutput::Candidates(rows.iter().map(|row| best(row, 1)).collect()),
            Sampling::TopK => {
                StepOutput::Candidates(rows.iter().map(|row| best(row, TOP_K as usize)).collect())
            }
            Sampling::Logits => StepOutput::Logits { vocab: VOCAB, values: rows.concat() },
        })
    }
}
