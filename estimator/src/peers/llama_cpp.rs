//! llama.cpp: pools of cells, one stream for all slots or one for each.
//!
//! * `context` is `-c`, the total over all slots, `prefill_chunk` is `n_ubatch`.
//! * Cells are `n_ctx` rounded up to 256, in one stream when unified; else `n_ctx / slots` of each slot rounded up.
//! * A layer holds `streams · cells · (row(k) + row(v))`; rows are whole blocks of the KV format.
//! * A sliding layer holds `min(cells, window · (slots if unified) + n_ubatch)` cells, rounded up.
//! * Recurrent states and tails are f32, `slots · (1 + drafted tokens)` rows, whatever the context.
//!
//! Sources: `src/llama-kv-cache.cpp`, `src/llama-kv-cache-iswa.cpp`, `src/llama-memory-recurrent.cpp` and the server's
//! defaults in `common/common.h` of ggml-org/llama.cpp; logs of its server agree to their rounding.

use super::{Engine, Line, Mla, PeerError, Price, Sums, bytes, loaded, pad, product, row, slides};
use crate::geometry::{Geometry, KvPair, KvStore};
use plimsoll_models::Model;
use plimsoll_models::model::State;

const ENGINE: &str = "llama.cpp";

/// The server's cap on prompts that it keeps in host memory.
const PROMPT_CACHE: u64 = 8192 << 20;

/// How it is built and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What cells are rounded to: 256, in older builds 32 without flash attention.
    pub cell_padding: u32,
    /// One stream of cells for all slots.
    pub unified: bool,
    /// Sliding layers keep every token too.
    pub swa_full: bool,
    /// Without it values are kept transposed, in rows of the widest layer's, and cannot be quantised.
    pub flash_attention: bool,
    /// Checkpoints of a slot that the server keeps on the host.
    pub checkpoints: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { cell_padding: 256, unified: false, swa_full: false, flash_attention: true, checkpoints: 32 }
    }
}

/// Cells of the pools.
struct Cells {
    /// Of a stream.
    each: u64,
    streams: u64,
    padding: u64,
    unified: bool,
    swa_full: bool,
    slots: u64,
    chunk: u64,
}

impl Cells {
    fn new(geometry: &Geometry, options: &Options) -> Self {
        let (padding, slots) = (u64::from(options.cell_padding.max(1)), u64::from(geometry.slots));
        let total = pad(geometry.context.into(), padding);
        let (each, streams) =
            if options.unified { (total, 1) } else { (pad(total / slots, padding).max(padding), slots) };
        let Options { unified, swa_full, .. } = *options;
        Self { each, streams, padding, unified, swa_full, slots, chunk: geometry.prefill_chunk.into() }
    }

    /// Of a stream of a layer with this window.
    fn sliding(&self, window: u32) -> u64 {
        let sequences = if self.unified { self.slots } else { 1 };
        let need = u64::from(window).saturating_mul(sequences).saturating_add(self.chunk);
        if self.swa_full { self.each } else { pad(self.each.min(need), self.padding) }
    }
}

/// Prices a model.
///
/// # Errors
/// [`PeerError`].
pub fn price(model: &Model, geometry: &Geometry, options: &super::Options) -> Result<Price, PeerError> {
    let own = &options.llama_cpp;
    let pair = geometry.kv_pair();
    let quantised = |store: KvStore| matches!(store, KvStore::Q8_0 | KvStore::Q4_0);
    if quantised(pair.v) && !own.flash_attention {
        let what = format!("does not keep values in {} without flash attention", pair.v.name());
        return Err(PeerError::Unsupported { engine: ENGINE, what });
    }
    if [pair.k, pair.v].contains(&KvStore::Fp8) {
        return Err(PeerError::Unsupported { engine: ENGINE, what: "has no KV format fp8".into() });
    }
    let mla = options.mla.unwrap_or(Mla::Latent);
    let cells = Cells::new(geometry, own);
    let slides = slides::of_llama_cpp(model);
    let layers = Layers { pair, mla, widest: (!own.flash_attention).then(|| widest(model, mla)) };

    let mut sums = Sums::default();
    let (mut per_token, mut per_slot, mut checkpoint) = (0u128, 0u128, 0u128);
    for (index, state) in model.states.iter().enumerate() {
        if let State::Recurrent { shape } = state {
            per_slot = per_slot.saturating_add(shape.bytes().into());
            continue;
        }
        let cell = layers.cell(state)?;
        match slides.window(index) {
            Some(window) => {
                let held = cells.sliding(window);
                let pool = product(&[held.into(), cells.streams.into(), cell]);
                sums.sliding = sums.sliding.saturating_add(pool);
                if own.swa_full {
                    per_token = per_token.saturating_add(cell);
                } else {
                    // A checkpoint holds what one sequence has in the pool.
                    let used = held.min(u64::from(window).saturating_add(cells.chunk));
                    checkpoint = checkpoint.saturating_add(product(&[used.into(), cell]));
                }
            }
            None => {
                let pool = product(&[cells.each.into(), cells.streams.into(), cell]);
                let latent = state.latent().is_some() && mla != Mla::Dense;
                let sum = if latent { &mut sums.mla } else { &mut sums.full };
                *sum = sum.saturating_add(pool);
                per_token = per_token.saturating_add(cell);
            }
        }
    }
    checkpoint = checkpoint.saturating_add(per_slot);
    let drafts = geometry.draft_depth > 0;
    if drafts {
        // A context of its own, of the same length, with attention on every token.
        for state in model.extras.draft.iter().filter(|s| s.recurrent().is_none()) {
            let cell = layers.cell(state)?;
            sums.draft = sums.draft.saturating_add(product(&[cells.each.into(), cells.streams.into(), cell]));
            per_token = per_token.saturating_add(cell);
        }
    }
    let copies = u128::from(geometry.draft_depth) + 1;
    sums.recurrent = product(&[per_slot, copies, geometry.slots.into()]);

    let mut host = Vec::new();
    if checkpoint > 0 {
        let each = product(&[checkpoint, own.checkpoints.into(), geometry.slots.into()]);
        let name = format!("context checkpoints, at most {} a slot", own.checkpoints);
        host.push(Line { name, bytes: bytes("context checkpoints", each)? });
    }
    host.push(Line { name: "prompt cache, at most".into(), bytes: PROMPT_CACHE });
    if let Some((rows, cols, format)) = super::token_embedding(model)
        && let Some(bytes) = super::tensor_bytes(format, rows, cols)
    {
        host.push(Line { name: "token embedding, mapped (of the weights)".into(), bytes });
    }

    let scores = super::unfused_scores(model, cells.chunk, cells.each, 4);
    let largest = (!own.flash_attention && scores > 0)
        .then(|| Line { name: "scores of a layer, f32".to_owned(), bytes: scores });
    let (kv_by_kind, kv) = sums.by_kind()?;
    Ok(Price {
        engine: Engine::LlamaCpp,
        weights: loaded(model, geometry),
        kv,
        kv_by_kind,
        recurrent: bytes("recurrent state", sums.recurrent)?,
        host,
        kv_bytes_per_token: bytes("KV of a token", per_token)?,
        pool_bytes_per_token: None,
        recurrent_bytes_per_slot: Some(bytes("recurrent state", per_slot.saturating_mul(copies))?),
        largest,
        peak: None,
        page: own.cell_padding,
        paging: None,
        rules: rules(model, geometry, own, &cells, mla, slides),
    })
}

/// How keys and values of a layer are stored.
struct Layers {
    pair: KvPair,
    mla: Mla,
    /// Values of the widest layer's row, where every layer's is as wide.
    widest: Option<(u128, u32)>,
}

impl Layers {
    /// Bytes of a cell of a layer: a row of keys and one of values.
    fn cell(&self, state: &State) -> Result<u128, PeerError> {
        let Some((heads, key, value)) = widths(state, self.mla) else { return Ok(0) };
        let whole = |store: KvStore, width: u32| match store.row_bytes(width) {
            Some(_) => Ok(()),
            None => Err(PeerError::KvFormat { engine: ENGINE, format: store.name(), head_dim: width }),
        };
        whole(self.pair.k, key)?;
        whole(self.pair.v, value)?;
        let values = match self.widest {
            Some((heads, width)) if value > 0 => row(self.pair.v, heads, width),
            _ => row(self.pair.v, heads, value),
        };
        Ok(row(self.pair.k, heads, key).saturating_add(values))
    }
}

/// KV heads, and values of one head's key and value.
pub(super) fn widths(state: &State, mla: Mla) -> Option<(u128, u32, u32)> {
    match state {
        State::KvFull { shape } | State::KvSliding { shape, .. } => {
            Some((shape.kv_heads.into(), shape.head_dim, shape.head_dim))
        }
        State::KvLatent { latent } => Some(mla.widths(latent)),
        State::Recurrent { .. } => None,
    }
}

/// Heads and width of the layer with the most values in a row.
fn widest(model: &Model, mla: Mla) -> (u128, u32) {
    let rows = model.states.iter().filter_map(|state| widths(state, mla));
    let widest = rows.max_by_key(|(heads, _, value)| heads.saturating_mul((*value).into()));
    widest.map_or((0, 0), |(heads, _, value)| (heads, value))
}

fn rules(
    model: &Model,
    geometry: &Geometry,
    own: &Options,
    cells: &Cells,
    mla: Mla,
    slides: slides::Slides,
) -> Vec<String> {
    let mut rules =
        vec!["context is the total over all slots (-c), chunk the micro-batch (n_ubatch)".to_owned()];
    let sliding = slides.any();
    // Recurrent layers have no cells.
    let drafting = geometry.draft_depth > 0 && !model.extras.draft.is_empty();
    if drafting || model.states.iter().any(|s| s.recurrent().is_none()) {
        rules.push(format!(
            "cells rounded up to {}: {} in each of {} {}",
            own.cell_padding,
            cells.each,
            cells.streams,
            if cells.streams == 1 { "stream" } else { "streams" }
        ));
        let streams = if own.unified {
            "unified: the slots share one stream"
        } else {
            "not unified: each slot has a stream"
        };
        let holds = match (sliding && !own.swa_full, own.unified) {
            (false, _) => "",
            (true, true) => "; a sliding layer holds window x slots + micro-batch",
            (true, false) => "; a sliding layer holds window + micro-batch in each",
        };
        rules.push(format!("{streams}{holds}"));
    }
    rules.extend(slides.rule);
    if sliding && own.swa_full {
        rules.push("sliding layers keep every token (--swa-full)".into());
    }
    if !own.flash_attention {
        rules.push("no flash attention: values in rows of the widest layer's".into());
    }
    if model.states.iter().any(|s| s.latent().is_some()) {
        rules.push(format!(
            "latent attention cached as {}",
            match mla {
                Mla::Latent => "one latent (builds since January 2026)",
                Mla::Kv => "the latent as keys and again as values (builds of April 2025 to January 2026)",
                Mla::Dense =>
                    "every head's keys and values (builds before April 2025, and files without the split)",
            }
        ));
    }
    if model.states.iter().any(|s| s.recurrent().is_some()) {
        rules.push(format!(
            "recurrent states in f32, {} of each slot, whatever the context",
            match geometry.draft_depth {
                0 => "one".to_owned(),
                depth => format!("1 + {depth} copies"),
            }
        ));
    }
    if drafting {
        rules.push("the drafting layers have a context of their own, as long as the target's".into());
    }
    rules.push("compute buffers are not a closed form and are not in the total".into());
    rules
}
