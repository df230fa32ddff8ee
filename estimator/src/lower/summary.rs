//! A program without its dispatches: what they add to the parameters, the pipelines and the arena, part by part.
//!
//! A part is the ops whose lowering looks at the same things, so that it can be kept and found again by what it looked
//! at. The ops are lowered by the same functions as those of a plan.

use super::bind::Widest;
use super::experts::SORT;
use super::family::Layers;
use super::{Draft, Family, Lowering, Scratch, Shared};
use crate::alike::{Class, QUAD};
use crate::error::PlanError;
use crate::memo::read;
use crate::plan::{KvPlan, KvSegment};
use plimsoll_kernels::Kernel;
use plimsoll_models::Model;
use plimsoll_models::graph::Op;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::{Arc, PoisonError};

/// Ops by what their lowering looks at, beside the model, the profile and the most tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// Not even at those.
    Fixed,
    /// Not even at those, in programs for many tokens; in those for few another op does it.
    Taken,
    /// At nothing more.
    Tokens,
    /// At how many logit rows there are, and at the tables of ids and rows. Sampling is of this part.
    Rows,
    /// At the recurrent pool and the tables of sequences.
    Recurrent,
    /// At the KV pool and the block tables.
    Attention,
}

impl Part {
    /// All.
    pub const ALL: [Self; 6] =
        [Self::Fixed, Self::Taken, Self::Tokens, Self::Rows, Self::Recurrent, Self::Attention];
}

/// What a part of a program adds to a plan.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Parameters of the dispatches.
    pub params: Vec<Vec<u32>>,
    /// Parameters of those that a draft stands for.
    pub families: Vec<Family>,
    /// What some of those stand for.
    pub layers: Vec<Layers>,
    /// Pipelines, each once.
    pub kernels: Vec<Kernel>,
    /// Scratch, in the order of the ops.
    pub scratch: Vec<Scratch>,
    /// The largest binding: bytes, op, and its name.
    pub largest: Option<(u64, u32, Named)>,
    /// The largest bindings of a fixed part, where they follow other things the last of each.
    pub widest: FxHashMap<Widest, (u32, Named)>,
    /// The most bytes of a sampled result.
    pub sampled: u64,
    /// The first op that cannot be lowered.
    pub fault: Option<(u32, PlanError)>,
    /// The first op with a dispatch past a limit.
    pub broken: Option<(u32, PlanError)>,
}

/// Which words of attention's parameters follow which vectors, by its kind and what follows its label.
pub(crate) type Masks = FxHashMap<(u32, &'static str), Arc<[u32]>>;

/// The name of a dispatch, that most never need.
#[derive(Clone, Debug)]
pub(crate) enum Named {
    /// The label of its op, and what follows it.
    Op(&'static str),
    /// Its own.
    Own(String),
}

impl Named {
    /// The name, of a dispatch of the op of this index.
    pub fn of(&self, model: &Model, op: u32) -> String {
        let label = model.graph.ops.get(op as usize).map_or("", |(label, _)| label.as_str());
        match self {
            Named::Op(suffix) => format!("{label}{suffix}"),
            Named::Own(name) => name.clone(),
        }
    }
}

/// Layers whose pages are cut into segments alike have one number.
pub(crate) struct Cuts(Vec<u32>);

impl Cuts {
    /// Compares the layers of a pool.
    pub fn new(kv: &KvPlan) -> Self {
        let mut known: Vec<&[KvSegment]> = Vec::new();
        let alike = |a: &[KvSegment], b: &[KvSegment]| {
            let cut = |s: &KvSegment| (s.first_page, s.pages);
            a.len() == b.len() && a.iter().map(cut).eq(b.iter().map(cut))
        };
        let mut cuts = Vec::with_capacity(kv.layers.len());
        for layer in &kv.layers {
            // Neighbours are most alike.
            let found = known.iter().rposition(|other| alike(other, &layer.segments));
            let cut = found.unwrap_or_else(|| {
                known.push(&layer.segments);
                known.len() - 1
            });
            cuts.push(cut as u32);
        }
        Self(cuts)
    }
}

/// What has been lowered, by kind and by how pages are cut.
type AllSeen = FxHashMap<(u32, u32), Seen>;

/// What an op adds where another of its kind has been lowered.
struct Seen {
    /// Bytes of each scratch; a sorted table is not among them.
    scratch: Vec<u64>,
    /// Bytes of its largest binding and what follows the label.
    largest: Option<(u64, &'static str)>,
    /// Index in [`Summary::layers`], where it stands for layers of several classes.
    layers: Option<usize>,
}

impl<'a> Lowering<'a> {
    /// Whether every tensor of the program fits a binding, and the least that its arena takes.
    pub fn room(shared: &Shared<'_>, max_tokens: u32) -> (Option<PlanError>, u64) {
        let this = Lowering::new(shared, max_tokens);
        (this.expect_room().err(), this.peak())
    }

    /// Bytes of each arena buffer of the program, with all its scratches.
    pub fn arena(shared: &Shared<'_>, max_tokens: u32, scratch: &[Scratch]) -> Result<Vec<u64>, PlanError> {
        Lowering::new(shared, max_tokens).arena_of(scratch)
    }

    /// What a part of the program for steps of up to `max_tokens` adds.
    pub fn summary(shared: &Shared<'_>, part: Part, max_tokens: u32, cuts: Option<&Cuts>) -> Summary {
        let facts = &shared.prepared.facts;
        let mut this = Lowering { summed: true, ..Lowering::new(shared, max_tokens) };
        let mut sum = Summary::default();
        let mut seen = AllSeen::default();
        let sound = facts.fault().map_or(shared.model.graph.ops.len(), |(at, _)| at);
        let ops = &shared.model.graph.ops;
        let of_part = &facts.of_part[part as usize];
        for index in of_part.iter().map(|index| *index as usize).take_while(|index| *index < sound) {
            if let Err(fault) = this.add(&mut sum, &mut seen, index, cuts) {
                sum.fault = Some((index as u32, fault));
                break;
            }
        }
        if let (None, Some((at, fault))) = (&sum.fault, facts.fault()) {
            sum.fault = Some((at as u32, fault.clone()));
        }
        if part == Part::Rows && sum.fault.is_none() {
            let end = ops.len() as u32;
            match this.samples() {
                Err(fault) => sum.fault = Some((end, fault)),
                Ok(results) => {
                    this.settle(&mut sum);
                    let bytes = results.iter().filter_map(|&i| this.scratch.get(i)).map(|s| s.0);
                    let logits = this.tensor_bytes(shared.model.graph.logits.0 as usize);
                    sum.sampled = bytes.max().unwrap_or(0).max(logits);
                }
            }
        }
        sum.scratch = this.scratch;
        sum
    }

    /// Lowers an op, if nothing like it has been lowered, and takes it into the sum.
    fn add(
        &mut self,
        sum: &mut Summary,
        seen: &mut AllSeen,
        index: usize,
        cuts: Option<&Cuts>,
    ) -> Result<(), PlanError> {
        let Some((label, op)) = self.shared.model.graph.ops.get(index) else { return Ok(()) };
        self.op = index as u32;
        let (class, kind) = match self.class(op, index, cuts) {
            Some((Class { kind, class }, cut)) => (Some((class, cut)), Some((kind, cut))),
            None => (None, None),
        };
        if let Some(alike) = kind.and_then(|kind| seen.get(&kind)) {
            // Its parameters are in the sum, but for where its vectors stand.
            if let Some(layers) = alike.layers.and_then(|layers| sum.layers.get_mut(layers))
                && let Some((class, _)) = class
                && let Err(at) = layers.binary_search(&class)
            {
                layers.insert(at, class);
            }
            match op {
                Op::Attention { attention, .. } => self.expect_writer(label, attention)?,
                Op::Experts { routing, experts, .. } => {
                    let count = self.shared.model.matrix(*experts).map_or(0, |m| m.experts);
                    self.choices(label, *routing, count);
                    self.settle(sum);
                }
                _ => {}
            }
            for &bytes in &alike.scratch {
                self.scratch(bytes);
            }
            sum.offer_as(alike, self.op);
            return Ok(());
        }
        let before = self.scratch.len();
        self.lower_at(index)?;
        // Not every op of a kind sorts its choices.
        let sorting = self.drafts.iter().take_while(|draft| draft.suffix == SORT).count();
        if sorting > 0 {
            let products = self.drafts.split_off(sorting);
            self.settle(sum);
            self.drafts = products;
        }
        let Some((kind, (class, _))) = kind.zip(class) else {
            self.settle(sum);
            return Ok(());
        };
        let mut layers = None;
        if self.ops().classes.are_many(kind.0) {
            self.follow(index, (kind.0, class), sum.layers.len())?;
            if self.drafts.iter().any(|draft| draft.family.as_ref().is_some_and(Family::follows)) {
                layers = Some(sum.layers.len());
                sum.layers.push(vec![class]);
            }
        }
        let largest = self.settle(sum);
        let made = if matches!(op, Op::Experts { .. }) { self.scratch.len() } else { before };
        let scratch = self.scratch.iter().skip(made).map(|s| s.0).collect();
        seen.insert(kind, Seen { scratch, largest, layers });
        Ok(())
    }

    /// Lets the drafts of an op of this kind and class stand for layers whose vectors stand elsewhere: those of this index.
    fn follow(&mut self, index: usize, (kind, class): (u32, u32), layers: usize) -> Result<(), PlanError> {
        let Shared { model, prepared, .. } = *self.shared;
        let Some((_, op)) = model.graph.ops.get(index) else { return Ok(()) };
        let places = prepared.facts.places().places(class);
        // All dispatches of attention that are named alike have their vectors in the same words, whatever the step.
        let attention = matches!(op, Op::Attention { .. });
        let known = |masks: &Masks| {
            let of = |draft: &Draft<'_>| masks.get(&(kind, draft.suffix)).cloned();
            self.drafts.iter().map(of).collect::<Option<Vec<_>>>()
        };
        if let Some(known) = attention.then(|| read(&prepared.masks, known)).flatten() {
            self.drafts.iter_mut().zip(&known).for_each(|(draft, masks)| draft.follow(masks, places, layers));
            return Ok(());
        }
        let drafts = std::mem::take(&mut self.drafts);
        let made = self.scratch.len();
        self.moved = op.vectors().into_iter().map(|id| (id, 1)).collect();
        self.moved.extend(self.takes.norm.map(|norm| (norm.weight, QUAD)));
        self.lower_at(index)?;
        self.moved.clear();
        self.scratch.truncate(made);
        let moved = std::mem::replace(&mut self.drafts, drafts);
        for (draft, moved) in self.drafts.iter_mut().zip(&moved) {
            let masks: Arc<[u32]> =
                draft.base().iter().zip(moved.base()).map(|(a, b)| b.wrapping_sub(*a)).collect();
            draft.follow(&masks, places, layers);
            if attention {
                let mut kept = prepared.masks.write().unwrap_or_else(PoisonError::into_inner);
                kept.insert((kind, draft.suffix), masks);
            }
        }
        Ok(())
    }

    /// The class of an op, and of attention how the pages of its layer are cut.
    pub(super) fn class(&self, op: &Op, index: usize, cuts: Option<&Cuts>) -> Option<(Class, u32)> {
        let class = self.ops().classes.of(index)?;
        let Op::Attention { attention, .. } = op else { return Some((class, 0)) };
        let layers = &self.shared.kv.layers;
        let layer = layers.binary_search_by_key(&attention.state, |l| l.state).ok()?;
        Some((class, *cuts?.0.get(layer)?))
    }

    /// Takes the drafts of an op into the sum. Answers its largest binding and what follows its label there.
    fn settle(&mut self, sum: &mut Summary) -> Option<(u64, &'static str)> {
        let op = self.op;
        let mut drafts = std::mem::take(&mut self.drafts);
        let largest = match self.held(&drafts) {
            Ok(largest) => largest.and_then(|(bytes, i)| Some((bytes, drafts.get(i)?))),
            Err(broken) => {
                sum.broken.get_or_insert((op, broken));
                None
            }
        };
        let name = |draft: &Draft<'_>| match &draft.label {
            Cow::Borrowed(_) => Named::Op(draft.suffix),
            Cow::Owned(label) => Named::Own(format!("{label}{}", draft.suffix)),
        };
        if let Some(Part::Fixed | Part::Taken) = self.shared.prepared.facts.parts.get(op as usize) {
            for draft in &drafts {
                sum.widest.insert(self.widest(draft), (op, name(draft)));
            }
        } else if let Some((bytes, draft)) = largest {
            sum.offer(bytes, op, || name(draft));
        }
        let found = largest.map(|(bytes, draft)| (bytes, draft.suffix));
        // The dispatches of one op are of few pipelines, one after the other.
        let mut last = usize::MAX;
        for Draft { call, family, .. } in drafts.drain(..) {
            sum.take(call.params, family);
            if sum.kernels.get(last) != Some(&call.kernel) {
                last = sum.kernels.iter().position(|k| *k == call.kernel).unwrap_or_else(|| {
                    sum.kernels.push(call.kernel);
                    sum.kernels.len() - 1
                });
            }
        }
        // The room is used again.
        self.drafts = drafts;
        found
    }
}

impl Draft<'_> {
    /// Its parameters, or those of the family it stands for.
    fn base(&self) -> &[u32] {
        self.family.as_ref().map_or(&self.call.params, |family| &family.base)
    }

    /// Lets it stand for layers: see [`Family::follow`].
    fn follow(&mut self, masks: &Arc<[u32]>, places: &[u32], layers: usize) {
        if masks.iter().any(|mask| *mask != 0) {
            let params = &mut self.call.params;
            let family = self.family.get_or_insert_with(|| Family::one(std::mem::take(params)));
            family.follow(masks.clone(), places, layers);
        }
    }
}

impl Summary {
    /// The largest binding in a program of so many tokens and logit rows.
    pub fn largest(&self, tokens: u32, logit_rows: u32) -> Option<(u64, u32, &Named)> {
        let widest = self.widest.iter().map(|(w, (op, name))| (w.bytes(tokens, logit_rows), *op, name));
        let one = self.largest.as_ref().map(|(bytes, op, name)| (*bytes, *op, name));
        widest.chain(one).max_by_key(|&(bytes, op, _)| (bytes, op))
    }

    /// Takes the parameters of a dispatch, or of all that it stands for.
    fn take(&mut self, params: Vec<u32>, family: Option<Family>) {
        match family {
            Some(family) => self.families.push(family),
            None => self.params.push(params),
        }
    }

    /// Takes the largest binding of an op like one that has been lowered.
    fn offer_as(&mut self, alike: &Seen, op: u32) {
        if let Some((bytes, suffix)) = alike.largest {
            self.offer(bytes, op, || Named::Op(suffix));
        }
    }

    /// Takes a binding for the largest if none before it was larger.
    fn offer(&mut self, bytes: u64, op: u32, name: impl FnOnce() -> Named) {
        if self.largest.as_ref().is_none_or(|(most, ..)| bytes >= *most) {
            self.largest = Some((bytes, op, name()));
        }
    }
}
