//! What a total is made of, as the formula
//!
//! ```text
//! total(context, slots, chunk) = W + slots·(R + P(context)·kv_full + Σ min(P(context), P(window + chunk − 1))·kv_window)
//!                              + A(max(chunk, slots)) + io(context, slots, chunk) + retained
//! ```
//!
//! with `P` rounding up to whole pages; a step has room for a token of every slot. Weights, recurrent state and KV are what the pools place, but for the padding of
//! views to 256 bytes. Activations and io are lines through exact prices, and say where and how well they hold.
//!
//! Totals never fall as any of these grows, and rise strictly with the context of models that look back at all of it. With
//! the chunk they rise weakly: a total is flat where another term holds the arena, where a step has a row for each of more
//! slots than that anyway, and where tensors are padded to the same tiles. Io alone may fall as a context grows: it has
//! the parameters of the ranges that the context is cut into, and longer ranges are fewer.

use crate::error::grouped;
use crate::geometry::Geometry;
use crate::plan::ALIGN;
use crate::pricer::{Price, Pricer};
use plimsoll_kernels::step::PAGE;
use plimsoll_models::model::State;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Chunks at which activations are evaluated: multiples of this many tokens, at which no tensor is padded.
const UNIT: u32 = 64;

/// The coefficients of the total of a model on a profile, near a geometry: its KV formats, draft depth, snapshots and
/// logit rows are given, context, slots and chunk are free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coefficients {
    /// `W`: bytes of the weights.
    pub weights: u64,
    /// `R`: bytes of recurrent state of a slot, the copies for drafts among them.
    pub recurrent_per_slot: u64,
    /// Bytes of a token in the layers that look back at everything.
    pub kv_full_per_token: u64,
    /// Bytes of a token in the layers that look back through windows, by window.
    pub kv_sliding: Vec<Sliding>,
    /// `A`: bytes of the arena, by chunk.
    pub activations: Line,
    /// Bytes of step tables, parameters, upload and readback.
    pub io: Io,
    /// Bytes of the snapshots at the geometry.
    pub retained: u64,
    /// The most bytes that padding of the pools' views can add at the geometry; usually nothing is added.
    pub padding: u64,
}

/// Layers of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sliding {
    /// Tokens that a query sees, itself among them.
    pub window: u32,
    /// Bytes of a token, of all these layers.
    pub per_token: u64,
}

/// `fixed + per_token · chunk`, through the exact prices at the first and last of the chunks `checked` (context and
/// slots as in the geometry). It is for chunks from the first to the last of them: no step is for fewer tokens than slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Bytes whatever the chunk; may be negative, where the line leaves out a bend below its range.
    pub fixed: i64,
    /// Bytes of a token of the chunk.
    pub per_token: u64,
    /// Chunks that were priced.
    pub checked: Vec<u32>,
    /// The largest difference between line and price at any of them.
    pub error_bound: u64,
}

/// `fixed + per_chunk_token · chunk + per_slot · slots + per_page · slots · pages(context)`, exact at the geometry, also
/// where its chunk is below its slots. The slopes are differences of exact prices to whole bytes: tables and parameters
/// come in steps, and parameters may be fewer for a longer context. So `per_page` is the slope from the shortest to the
/// longest of the contexts that were priced, or 0 where that falls, and `error_bound` is for the contexts `checked` alone:
/// between them a pool may be cut into other pieces, which have parameters of their own. A chunk costs nothing until there
/// is a token for every slot, which is in that bound, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Bytes whatever is asked.
    pub fixed: i64,
    /// Bytes of a token of the chunk.
    pub per_chunk_token: i64,
    /// Bytes of a slot.
    pub per_slot: i64,
    /// Bytes of a page of context in a slot.
    pub per_page: i64,
    /// The largest difference from the price at any of the contexts, chunks and slots that were priced.
    pub error_bound: u64,
    /// The shortest and the longest context that was priced; 0 and 0 in documents that do not say.
    #[serde(default)]
    pub contexts: [u32; 2],
    /// Contexts that were priced: the geometry's, and by doubling from 1,024 to the model's own.
    #[serde(default)]
    pub checked: Vec<u32>,
}

impl Line {
    fn at(&self, chunk: u32) -> i128 {
        i128::from(self.fixed) + i128::from(self.per_token) * i128::from(chunk)
    }
}

impl Io {
    fn at(&self, context: u32, slots: u32, chunk: u32) -> i128 {
        let Self { fixed, per_chunk_token, per_slot, per_page, .. } = *self;
        let [fixed, per_chunk_token, per_slot, per_page] =
            [fixed, per_chunk_token, per_slot, per_page].map(i128::from);
        let [pages, slots, chunk] = [context.div_ceil(PAGE), slots, chunk].map(i128::from);
        fixed + per_chunk_token * chunk + per_slot * slots + per_page * slots * pages
    }
}

impl Coefficients {
    /// The coefficients near a geometry; `None` where it cannot be planned, or nothing larger or smaller can.
    pub fn new(pricer: &Pricer<'_>, geometry: &Geometry) -> Option<Self> {
        let price = pricer.price(geometry).ok()?;
        let model = pricer.model();
        let mut full = 0u64;
        let mut sliding: Vec<Sliding> = Vec::new();
        let mut views = 0u64;
        for state in &model.states {
            let window = match state {
                State::Recurrent { .. } => continue,
                State::KvFull { .. } | State::KvLatent { .. } => None,
                State::KvSliding { window, .. } => Some(*window),
            };
            let per_token = crate::kv::page(state, geometry).ok()?.1 / u64::from(PAGE);
            let sum = match window {
                None => &mut full,
                Some(window) => match sliding.iter().position(|s| s.window == window) {
                    Some(i) => &mut sliding[i].per_token,
                    None => {
                        sliding.push(Sliding { window, per_token: 0 });
                        &mut sliding.last_mut()?.per_token
                    }
                },
            };
            *sum = sum.saturating_add(per_token);
        }
        // A view is at least half a binding, or the only one, or the first or last of its layer.
        let limits = &pricer.profile().limits;
        let binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).max(1);
        let pools = price.bytes.kv.saturating_add(price.bytes.recurrent);
        views = views.saturating_add(4 * model.states.len() as u64).saturating_add(8 * (pools / binding));
        let mut line = Self {
            weights: price.bytes.weights,
            recurrent_per_slot: crate::recurrent::bytes_per_slot(model, geometry),
            kv_full_per_token: full,
            kv_sliding: sliding,
            activations: Line { fixed: 0, per_token: 0, checked: Vec::new(), error_bound: 0 },
            io: Io {
                fixed: 0,
                per_chunk_token: 0,
                per_slot: 0,
                per_page: 0,
                error_bound: 0,
                contexts: [0; 2],
                checked: Vec::new(),
            },
            retained: price.bytes.retained,
            padding: views.saturating_mul(ALIGN - 1),
        };
        let chunks = chunks(pricer, geometry);
        line.activations = activations(geometry, &price, &chunks)?;
        line.io = io(pricer, geometry, &price, &chunks);
        Some(line)
    }

    /// Geometries whose prices [`Coefficients::new`] takes beside those of the contexts of a ladder: they can be made
    /// before, by several threads.
    pub(crate) fn around(geometry: &Geometry) -> Vec<Geometry> {
        let chunk = |prefill_chunk| Geometry { prefill_chunk, ..geometry.clone() };
        sampled(geometry).into_iter().map(chunk).chain([twice(geometry)]).collect()
    }

    /// Bytes of KV of one slot.
    pub fn kv_per_slot(&self, context: u32, chunk: u32) -> u64 {
        let cells = |tokens: u64| tokens.next_multiple_of(PAGE.into());
        let context = u64::from(context);
        let sliding = self.kv_sliding.iter().map(|s| {
            let ring = u64::from(s.window).saturating_add(u64::from(chunk)).saturating_sub(1);
            cells(context.min(ring)).saturating_mul(s.per_token)
        });
        sliding.fold(cells(context).saturating_mul(self.kv_full_per_token), u64::saturating_add)
    }

    /// The formula.
    pub fn total(&self, context: u32, slots: u32, chunk: u32) -> u64 {
        let slot = self.recurrent_per_slot.saturating_add(self.kv_per_slot(context, chunk));
        let pools = u64::from(slots).saturating_mul(slot);
        let exact = self.weights.saturating_add(pools).saturating_add(self.retained);
        let lines = self.activations.at(chunk.max(slots)) + self.io.at(context, slots, chunk);
        u64::try_from(i128::from(exact) + lines).unwrap_or(if lines < 0 { 0 } else { u64::MAX })
    }

    /// The largest difference from the price at the geometry and at what was priced for the lines.
    pub fn error_bound(&self) -> u64 {
        self.padding.saturating_add(self.activations.error_bound).saturating_add(self.io.error_bound)
    }
}

/// Prices at chunks from 64 tokens (or one for each slot) by doubling to the one asked for, in whole units; twice that
/// where the one asked for is as small as can be.
fn chunks(pricer: &Pricer<'_>, geometry: &Geometry) -> Vec<(u32, Price)> {
    let price = |chunk: u32| {
        let price = pricer.price(&Geometry { prefill_chunk: chunk, ..geometry.clone() });
        price.ok().map(|price| (chunk, price))
    };
    sampled(geometry).into_iter().filter_map(price).collect()
}

fn sampled(geometry: &Geometry) -> Vec<u32> {
    // A step has room for a token of every slot.
    let low = geometry.slots.next_multiple_of(UNIT);
    let high = geometry.prefill_chunk.next_multiple_of(UNIT).max(low.saturating_mul(2));
    let doubling =
        std::iter::successors(Some(low), |chunk| chunk.checked_mul(2)).take_while(|chunk| *chunk < high);
    doubling.chain([high]).collect()
}

fn activations(geometry: &Geometry, price: &Price, chunks: &[(u32, Price)]) -> Option<Line> {
    let (low, high) = (chunks.first()?, chunks.last()?);
    let bytes = |price: &Price| i128::from(price.bytes.activations);
    let tokens = i128::from(high.0) - i128::from(low.0);
    let slope = if tokens > 0 { (bytes(&high.1) - bytes(&low.1)) / tokens } else { 0 };
    let per_token = u64::try_from(slope.max(0)).ok()?;
    let fixed = bytes(&high.1) - i128::from(per_token) * i128::from(high.0);
    let mut line = Line { fixed: i64::try_from(fixed).ok()?, per_token, checked: Vec::new(), error_bound: 0 };
    let asked = (geometry.prefill_chunk.max(geometry.slots), price);
    for (chunk, price) in chunks.iter().map(|(chunk, price)| (*chunk, price)).chain([asked]) {
        let off = line.at(chunk).abs_diff(bytes(price));
        line.error_bound = line.error_bound.max(u64::try_from(off).unwrap_or(u64::MAX));
        line.checked.push(chunk);
    }
    line.checked.sort_unstable();
    line.checked.dedup();
    Some(line)
}

/// With twice the slots; as many logit rows, where there were as many.
fn twice(geometry: &Geometry) -> Geometry {
    let slots = geometry.slots.saturating_mul(2);
    let logit_rows = if geometry.logit_rows == geometry.slots { slots } else { geometry.logit_rows };
    Geometry { slots, logit_rows, ..geometry.clone() }
}

fn io(pricer: &Pricer<'_>, geometry: &Geometry, price: &Price, chunks: &[(u32, Price)]) -> Io {
    // Io buffers are each within a limit of the adapter, and few.
    let bytes = |price: &Price| i64::try_from(price.bytes.io).unwrap_or(i64::MAX);
    let here = bytes(price);
    let slope = |from: (u32, i64), to: (u32, i64)| {
        let (run, rise) = (i64::from(to.0) - i64::from(from.0), to.1.saturating_sub(from.1));
        if run == 0 { 0 } else { rise / run }
    };
    // Up to a token of every slot a longer chunk is the same price: the formula, which is a line, is off there.
    let level = Geometry { prefill_chunk: geometry.prefill_chunk.max(geometry.slots), ..geometry.clone() };
    let mut points: Vec<(Geometry, i64)> = vec![(geometry.clone(), here), (level, here)];
    let mut add = |other: Geometry| {
        let there = bytes(&pricer.price(&other).ok()?);
        points.push((other, there));
        Some(there)
    };
    let per_chunk_token = match (chunks.first(), chunks.last()) {
        (Some(low), Some(high)) => slope((low.0, bytes(&low.1)), (high.0, bytes(&high.1))),
        _ => 0,
    };
    for (chunk, _) in chunks {
        add(Geometry { prefill_chunk: *chunk, ..geometry.clone() });
    }
    // Contexts by doubling, to the model's own.
    let pages = |context: u32| context.div_ceil(PAGE);
    let slots = i64::from(geometry.slots.max(1));
    let longest = pricer.model().context_max.max(geometry.context);
    let doubling = std::iter::successors(Some(1024u32), |c| c.checked_mul(2)).take_while(|c| *c < longest);
    let mut lengths = vec![(geometry.context, here)];
    for context in doubling.chain([longest]) {
        lengths.extend(add(Geometry { context, ..geometry.clone() }).map(|there| (context, there)));
    }
    lengths.sort_unstable();
    let (short, long) = (lengths[0], lengths[lengths.len() - 1]);
    let per_page = (slope((pages(short.0), short.1), (pages(long.0), long.1)) / slots).max(0);
    let doubled = twice(geometry);
    let twice = doubled.slots;
    let tables = per_page.saturating_mul(pages(geometry.context).into());
    let per_slot =
        add(doubled).map_or(0, |there| slope((geometry.slots, here), (twice, there)).saturating_sub(tables));
    let mut checked: Vec<u32> = lengths.iter().map(|(context, _)| *context).collect();
    checked.dedup();
    let contexts = [short.0, long.0];
    let mut io = Io { fixed: 0, per_chunk_token, per_slot, per_page, error_bound: 0, contexts, checked };
    let at = |io: &Io, g: &Geometry| io.at(g.context, g.slots, g.prefill_chunk);
    io.fixed = i64::try_from(i128::from(here) - at(&io, geometry)).unwrap_or(0);
    let off = |(g, bytes): &(Geometry, i64)| at(&io, g).abs_diff(i128::from(*bytes));
    let most = points.iter().map(off).max().unwrap_or(0);
    io.error_bound = u64::try_from(most).unwrap_or(u64::MAX);
    io
}

impl fmt::Display for Coefficients {
    /// The formula with its numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (w, r, kv) =
            (grouped(self.weights), grouped(self.recurrent_per_slot), grouped(self.kv_full_per_token));
        write!(f, "total = {w} + slots × ({r} + context × {kv}")?;
        for s in &self.kv_sliding {
            write!(f, " + min(context, {} + chunk − 1) × {}", s.window, grouped(s.per_token))?;
        }
        let a = &self.activations;
        let sign = if a.fixed < 0 { '−' } else { '+' };
        let (fixed, per_token) = (grouped(a.fixed.unsigned_abs()), grouped(a.per_token));
        write!(f, ") {sign} {fixed} + max(chunk, slots) × {per_token} + tables")?;
        if self.retained > 0 {
            write!(f, " + {}", grouped(self.retained))?;
        }
        Ok(())
    }
}
