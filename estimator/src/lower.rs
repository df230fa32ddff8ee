//! From a graph to a program: each op asks its kernel's planning function, activations go into the arena, and
//! every operand becomes a view.

mod attention;
mod bind;
mod experts;
mod family;
mod linear;
mod recurrent;
mod summary;
mod tables;
mod work;

use bind::Draft;
pub(crate) use family::{Family, Index, Members, begun};
pub(crate) use summary::{Cuts, Masks, Named, Part, Summary};
pub(crate) use tables::Tables;

use crate::error::PlanError;
use crate::folds::{Fold, Takes};
use crate::geometry::Geometry;
use crate::groups::stacks;
use crate::plan::{KvPlan, Program, RecurrentPlan, TOP_K, VectorPlace, View, WeightGroup, When};
use crate::prepare::{Ops, Prepared};
use family::Steps;
use plimsoll_kernels::ops::{
    activate, add, clamped_gate, embed, gate, multiply, rms_norm, scale, select_rows, softcap, top_k,
};
use plimsoll_kernels::{AttentionShape, Call, Profile, StepLayout, Unit};
use plimsoll_models::Model;
use plimsoll_models::graph::{self, Op, Rows, TensorId, VectorId};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::Arc;

/// Tokens up to which a program is for decoding: matrices are read once for at most this many vectors.
pub(crate) const NARROW: u32 = 8;

/// What all programs of a plan share.
pub(crate) struct Shared<'a> {
    pub model: &'a Model,
    pub geometry: &'a Geometry,
    pub profile: &'a Profile,
    pub step: &'a StepLayout,
    pub prepared: &'a Prepared,
    pub kv: &'a KvPlan,
    pub recurrent: &'a RecurrentPlan,
    /// Index of the first arena buffer.
    pub arena_base: u32,
}

/// Tokens a tile of the attention of `shape` holds in a program of `max_tokens`.
pub(crate) fn tile_tokens(shape: &AttentionShape, max_tokens: u32) -> u32 {
    plimsoll_kernels::ops::attention::tile_tokens(shape, max_tokens <= NARROW)
}

/// An operand of a dispatch before the arena is packed.
enum Operand {
    /// An activation.
    Tensor(TensorId),
    /// Scratch, by index.
    Scratch(usize),
    /// Anything else.
    View(View),
}

/// Bytes, and first and last op, of a scratch.
pub(crate) type Scratch = (u64, u32, u32);

/// Lowers one program.
pub(crate) struct Lowering<'a> {
    shared: &'a Shared<'a>,
    max_tokens: u32,
    drafts: Vec<Draft<'a>>,
    /// Each scratch.
    scratch: Vec<Scratch>,
    /// The sorted table of each routing, by tile.
    sorted: FxHashMap<(TensorId, u32), usize>,
    op: u32,
    /// What the op at hand does beside itself.
    takes: Takes,
    /// The window of vectors that the op at hand looks at.
    vectors: View,
    /// Vectors of the op at hand that are said to stand further on than they do, the `i`th by `1 << i` times its unit.
    moved: Vec<(VectorId, u32)>,
    /// Of families of experts, by the rows of an expert and whether there is a bias.
    steps: FxHashMap<(u32, bool), Arc<Steps>>,
    /// Whether a draft may stand for many dispatches: a sum is asked for and not a program.
    summed: bool,
}

impl<'a> Lowering<'a> {
    /// The program for steps of up to `max_tokens`, and the bytes it needs of each arena buffer.
    pub fn program(
        shared: &'a Shared<'a>,
        tables: &mut Tables,
        name: &str,
        max_tokens: u32,
    ) -> Result<(Program, Vec<u64>), PlanError> {
        let mut this = Self::new(shared, max_tokens);
        this.expect_room()?;
        for index in 0..shared.model.graph.ops.len() {
            this.lower_at(index)?;
        }
        let [greedy, top] = this.samples()?;
        this.finish(tables, name, greedy, top)
    }

    fn new(shared: &'a Shared<'a>, max_tokens: u32) -> Self {
        let vectors = View { buffer: 0, offset: 0, bytes: 0 };
        Self {
            shared,
            max_tokens,
            drafts: Vec::new(),
            scratch: Vec::new(),
            sorted: FxHashMap::default(),
            vectors,
            moved: Vec::new(),
            steps: FxHashMap::default(),
            summed: false,
            op: 0,
            takes: Takes::default(),
        }
    }

    /// Whether the program is for few tokens.
    fn is_narrow(&self) -> bool {
        self.max_tokens <= NARROW
    }

    /// What its ops touch.
    fn ops(&self) -> &'a Ops {
        self.shared.prepared.facts.ops(self.is_narrow())
    }

    /// Lowers the op of this index.
    fn lower_at(&mut self, index: usize) -> Result<(), PlanError> {
        let facts = &self.shared.prepared.facts;
        if let Some(fault) = facts.fault_at(index) {
            return Err(fault.clone());
        }
        let (label, op) = &self.shared.model.graph.ops[index];
        self.takes = match facts.folds.get(index) {
            Some(Fold::Taken) if self.is_narrow() => return Ok(()),
            Some(Fold::Takes(takes)) if self.is_narrow() => *takes,
            _ => Takes::default(),
        };
        self.op = index as u32;
        self.vectors = facts.windows[index];
        self.lower(label, op)
    }

    /// Both ways to sample, after the last op; answers the scratch of their results.
    fn samples(&mut self) -> Result<[usize; 2], PlanError> {
        let model = self.shared.model;
        self.op = model.graph.ops.len() as u32;
        Ok([self.sample(When::Greedy, 1)?, self.sample(When::TopK, TOP_K.min(model.vocab))?])
    }

    fn lower(&mut self, label: &'a str, op: &'a Op) -> Result<(), PlanError> {
        let profile = self.shared.profile;
        let choices = |id: &TensorId| matches!(self.tensor_rows(*id), Rows::Choices(_));
        let knows = matches!(
            op,
            Op::Activate { .. }
                | Op::Gate { .. }
                | Op::ClampedGate { .. }
                | Op::Experts { .. }
                | Op::Combine { .. }
                | Op::Priced { .. }
        );
        if !knows && op.reads().iter().chain(&op.writes()).any(choices) {
            return Err(PlanError::graph(label, "this op takes no rows of choices"));
        }
        match op {
            Op::Embed { table, scale, out } => {
                let group = self.group(label, &[*table])?;
                self.expect_width(label, *out, group.record.cols())?;
                for shard in &group.shards {
                    let args = embed::Args {
                        format: group.record.format(),
                        width: group.record.cols(),
                        first_row: shard.first_row,
                        rows: shard.rows,
                        scale: *scale,
                        ids: self.shared.step.ids,
                        out_stride: self.width(*out),
                    };
                    let operands = vec![Operand::View(shard.view), Operand::Tensor(*out)];
                    self.push(label, "", When::Always, embed::plan(profile, &args), operands);
                }
            }
            Op::RmsNorm { x, weight, plus_one, eps, out, accumulate } => {
                self.expect_width(label, *out, self.width(*x))?;
                let groups = self.norm_groups(label, *weight, self.width(*x))?;
                let args = rms_norm::Args {
                    width: self.width(*x) / groups,
                    groups,
                    x_stride: self.width(*x),
                    out_stride: self.width(*out),
                    eps: *eps,
                    weight: self.vector(label, *weight)?,
                    plus_one: *plus_one,
                    accumulate: *accumulate,
                    unit: self.unit(*out),
                };
                let operands = vec![Operand::Tensor(*x), Operand::Tensor(*out), Operand::View(self.vectors)];
                self.push(label, "", self.when(*out), rms_norm::plan(profile, &args), operands);
            }
            Op::Linear { x, bias, out, accumulate, .. } => {
                let mut column = 0;
                for (i, stack) in stacks(self.shared.model, label, op)?.iter().enumerate() {
                    let bias = match bias.get(i).copied().flatten() {
                        None => None,
                        Some(id) => {
                            let group = self.group(label, stack)?;
                            self.vector_of(label, Some(id), group.rows)?
                        }
                    };
                    column += self.linear(label, *x, stack, bias, *out, column, *accumulate)?;
                }
                self.expect_width(label, *out, column)?;
            }
            Op::Attention { qkv, attention, out } => self.attention(label, *qkv, attention, *out)?,
            Op::Conv { x, conv, out } => self.conv(label, *x, conv, *out)?,
            Op::Ssd { xbc, dt, ssd, out } => self.ssd(label, *xbc, *dt, ssd, *out)?,
            Op::Delta { qkv, ab, delta, out } => self.delta(label, *qkv, *ab, delta, *out)?,
            Op::Multiply { x, by, multiply } => {
                let columns = if multiply.broadcast { 1 } else { self.width(*x) };
                self.expect_columns(label, *by, multiply.column, columns)?;
                let args = multiply::Args {
                    activation: multiply.activation,
                    of_by: multiply.of_by,
                    broadcast: multiply.broadcast,
                    width: self.width(*x),
                    x_stride: self.width(*x),
                    by_column: multiply.column,
                    by_stride: self.width(*by),
                    unit: self.unit(*x),
                };
                let operands = vec![Operand::Tensor(*x), Operand::Tensor(*by)];
                self.push(label, "", self.when(*x), multiply::plan(profile, &args), operands);
            }
            Op::Scale { x, factor, vector } => {
                let vector = self.vector_of(label, *vector, 1)?;
                let (width, unit) = (self.width(*x), self.unit(*x));
                let args = scale::Args { factor: *factor, vector, width, stride: width, unit };
                let operands = vec![Operand::Tensor(*x), Operand::View(self.vectors)];
                self.push(label, "", self.when(*x), scale::plan(profile, &args), operands);
            }
            Op::GatedNorm { x, gate, norm } => self.gated_norm(label, *x, *gate, norm)?,
            Op::Activate { x, activation } => {
                // Rows stand one after the other, so the choices of a token are one row.
                let (width, unit) = match self.tensor_rows(*x) {
                    Rows::Choices(top) => (self.width(*x).saturating_mul(top), Unit::Tokens),
                    Rows::Tokens | Rows::LogitRows => (self.width(*x), self.unit(*x)),
                };
                let args = activate::Args { activation: *activation, width, stride: width, unit };
                let operands = vec![Operand::Tensor(*x)];
                self.push(label, "", self.when(*x), activate::plan(profile, &args), operands);
            }
            Op::Route { logits, router, out } => self.route(label, *logits, router, *out)?,
            Op::Experts { x, routing, experts, bias, out } => {
                self.experts(label, *x, *routing, *experts, *bias, *out)?;
            }
            Op::Combine { x, routing, out, accumulate } => {
                self.combine(label, *x, *routing, *out, *accumulate)?;
            }
            Op::Gate { x, activation, out } => {
                self.expect_halves(label, *x, *out)?;
                let args = gate::Args {
                    activation: *activation,
                    width: self.width(*out),
                    x_stride: self.width(*x),
                    out_stride: self.width(*out),
                    unit: self.unit(*out),
                };
                let operands = vec![Operand::Tensor(*x), Operand::Tensor(*out)];
                self.push(label, "", self.when(*out), gate::plan(profile, &args), operands);
            }
            Op::ClampedGate { x, gate, out } => {
                self.expect_halves(label, *x, *out)?;
                if !(gate.limit.is_finite() && gate.limit > 0.0 && gate.alpha.is_finite()) {
                    return Err(PlanError::graph(label, "a gate without a positive bound"));
                }
                let args = clamped_gate::Args {
                    width: self.width(*out),
                    x_stride: self.width(*x),
                    out_stride: self.width(*out),
                    interleaved: gate.interleaved,
                    limit: gate.limit,
                    alpha: gate.alpha,
                    unit: self.unit(*out),
                };
                let operands = vec![Operand::Tensor(*x), Operand::Tensor(*out)];
                self.push(label, "", self.when(*out), clamped_gate::plan(profile, &args), operands);
            }
            Op::Add { x, to } => {
                self.expect_width(label, *x, self.width(*to))?;
                let args = add::Args {
                    width: self.width(*x),
                    x_stride: self.width(*x),
                    out_stride: self.width(*to),
                    unit: self.unit(*to),
                };
                let operands = vec![Operand::Tensor(*x), Operand::Tensor(*to)];
                self.push(label, "", self.when(*to), add::plan(profile, &args), operands);
            }
            Op::SelectRows { x, out } => {
                self.expect_width(label, *x, self.width(*out))?;
                let args = select_rows::Args {
                    width: self.width(*x),
                    rows: self.shared.step.rows,
                    x_stride: self.width(*x),
                    out_stride: self.width(*out),
                };
                let operands = vec![Operand::Tensor(*x), Operand::Tensor(*out)];
                self.push(label, "", When::Logits, select_rows::plan(profile, &args), operands);
            }
            Op::Softcap { x, cap } => {
                let args = softcap::Args {
                    width: self.width(*x),
                    stride: self.width(*x),
                    cap: *cap,
                    unit: self.unit(*x),
                };
                self.push(label, "", self.when(*x), softcap::plan(profile, &args), vec![Operand::Tensor(*x)]);
            }
            Op::Priced { out, scratch, .. } => {
                // Nothing runs; the room is made.
                if *scratch > 0 {
                    self.scratch(scratch.saturating_mul(self.rows(*out).into()));
                }
            }
        }
        Ok(())
    }

    /// The `k` largest logits of each row; answers the scratch that holds the result.
    fn sample(&mut self, when: When, k: u32) -> Result<usize, PlanError> {
        let logits = self.shared.model.graph.logits;
        let at = "sampling";
        if !self.ops().is_alive(logits) {
            return Err(PlanError::graph(at, "the logits are never written"));
        }
        self.expect_width(at, logits, self.shared.model.vocab)?;
        let rows = self.rows(logits);
        let args = top_k::Args { vocab: self.width(logits), stride: self.width(logits), k };
        let [first, second] =
            top_k::plan(self.shared.profile, &args).ok_or_else(|| PlanError::graph(at, "no such top-k"))?;
        let scratch = self.scratch(top_k::scratch_words(args.vocab, k, rows) * 4);
        let out = self.scratch(top_k::out_words(k) * u64::from(rows) * 4);
        let label = format!("top_{k}");
        let operands = vec![Operand::Tensor(logits), Operand::Scratch(scratch)];
        self.push(label.clone(), "", when, first, operands);
        let operands = vec![Operand::Scratch(scratch), Operand::Scratch(out)];
        self.push(label, ".merge", when, second, operands);
        Ok(out)
    }

    fn push(
        &mut self,
        label: impl Into<Cow<'a, str>>,
        suffix: &'static str,
        when: When,
        call: Call,
        operands: Vec<Operand>,
    ) {
        let label = label.into();
        self.drafts.push(Draft { label, suffix, when, call, operands, ranged: false, family: None });
    }

    fn scratch(&mut self, bytes: u64) -> usize {
        self.scratch.push((bytes, self.op, self.op));
        self.scratch.len() - 1
    }

    fn group(&self, label: &str, parts: &[graph::MatrixId]) -> Result<&'a WeightGroup, PlanError> {
        self.shared
            .prepared
            .groups
            .get(parts)
            .ok_or_else(|| PlanError::graph(label, "a matrix was not placed"))
    }

    fn vector(&self, label: &str, id: VectorId) -> Result<u32, PlanError> {
        let word = self.place(label, id)?.word;
        let moved = (0..).zip(&self.moved).find(|(_, (moved, _))| *moved == id);
        Ok(moved.map_or(word, |(i, (_, unit))| word.wrapping_add(unit.wrapping_shl(i))))
    }

    fn place(&self, label: &str, id: VectorId) -> Result<VectorPlace, PlanError> {
        let place = self.shared.prepared.vector_places.get(id.0 as usize).copied();
        place.ok_or_else(|| PlanError::graph(label, "no such vector"))
    }

    /// How many groups a norm cuts rows of `width` into: each is as long as its weight.
    fn norm_groups(&self, label: &str, id: VectorId, width: u32) -> Result<u32, PlanError> {
        let len = self.shared.model.vector(id).map_or(width, |v| v.len).max(1);
        let groups = if width.is_multiple_of(len) { (width / len).max(1) } else { 1 };
        self.expect_vector(label, id, width / groups)?;
        Ok(groups)
    }

    /// The place of a vector of `len` values that an op may do without.
    fn vector_of(&self, label: &str, id: Option<VectorId>, len: u32) -> Result<Option<u32>, PlanError> {
        let Some(id) = id else { return Ok(None) };
        self.expect_vector(label, id, len)?;
        self.vector(label, id).map(Some)
    }

    /// That `x` has two values for each of `out`, and the same rows.
    fn expect_halves(&self, label: &str, x: TensorId, out: TensorId) -> Result<(), PlanError> {
        self.expect_width(label, x, self.width(out).saturating_mul(2))?;
        if self.tensor_rows(x) != self.tensor_rows(out) {
            return Err(PlanError::graph(label, "its input and its output have other rows"));
        }
        Ok(())
    }

    fn expect_vector(&self, label: &str, id: VectorId, len: u32) -> Result<(), PlanError> {
        match self.shared.model.vector(id) {
            Some(vector) if vector.len == len => Ok(()),
            Some(vector) => {
                Err(PlanError::graph(label, format!("a vector of {} where {len} are needed", vector.len)))
            }
            None => Err(PlanError::graph(label, "no such vector")),
        }
    }

    fn expect_width(&self, label: &str, id: TensorId, width: u32) -> Result<(), PlanError> {
        let got = self.width(id);
        if got == width {
            return Ok(());
        }
        Err(PlanError::graph(label, format!("a tensor of width {got} where {width} is needed")))
    }

    fn width(&self, id: TensorId) -> u32 {
        self.shared.model.graph.tensors.get(id.0 as usize).map_or(0, |t| t.width)
    }

    fn tensor_rows(&self, id: TensorId) -> Rows {
        self.shared.model.graph.tensors.get(id.0 as usize).map_or(Rows::Tokens, |t| t.rows)
    }

    fn unit(&self, id: TensorId) -> Unit {
        match self.tensor_rows(id) {
            Rows::Tokens => Unit::Tokens,
            Rows::LogitRows => Unit::LogitRows,
            Rows::Choices(top) => Unit::Choices(top),
        }
    }

    fn when(&self, id: TensorId) -> When {
        match self.tensor_rows(id) {
            Rows::Tokens | Rows::Choices(_) => When::Always,
            Rows::LogitRows => When::Logits,
        }
    }

    fn logit_rows(&self) -> u32 {
        self.shared.geometry.logit_rows.min(self.max_tokens)
    }

    fn rows(&self, id: TensorId) -> u32 {
        match self.tensor_rows(id) {
            Rows::Tokens => self.max_tokens,
            Rows::LogitRows => self.logit_rows(),
            Rows::Choices(top) => self.max_tokens.saturating_mul(top),
        }
    }
}
