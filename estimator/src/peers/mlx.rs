//! mlx-lm: buffers that grow by 256 cells as tokens come.
//!
//! * `context` is of one sequence, all but its last token a prompt; `prefill_chunk` is `prefill_step_size`; slots are a
//!   batch.
//! * A cache grows when a push does not fit, by the push rounded up to 256, cut first to its fill where that is no multiple
//!   of 256. While it grows the old and the new buffer are alive: that peak is a bound, since evaluation is lazy.
//! * A rotating cache holds `min(T, window − 1 + step)` cells in the prefill and the window after.
//! * A quantised cache holds `bits / 8 + 4 / 64` bytes a value; rotating ones never are, and until `quantized_kv_start` it
//!   is a plain one.
//! * Tails of convolutions are in the model's type, states in f32.
//!
//! Sources: `mlx_lm/models/cache.py`, `mlx_lm/generate.py` and the models' `make_cache`.

use super::llama_cpp::widths;
use super::{Bound, Engine, Mla, PeerError, Price, Sums, bytes, loaded, product};
use crate::geometry::{Geometry, KvStore};
use plimsoll_models::Model;
use plimsoll_models::model::State;
use rustc_hash::FxHashMap;

const ENGINE: &str = "mlx";

/// Cells that a cache grows by at least.
const STEP: u64 = 256;
/// Values that share a scale and an offset in a quantised cache.
const GROUP: u32 = 64;

/// How it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bits of a quantised cache: 4 or 8 in practice.
    pub kv_bits: Option<u32>,
    /// Tokens that are kept plain before the cache is quantised.
    pub quantized_start: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { kv_bits: None, quantized_start: 5000 }
    }
}

/// Cells of a growing buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// In the end.
    pub cells: u64,
    /// Most at once: an old buffer and the new one.
    pub peak: u64,
}

/// How a cache grows to `tokens`: all but the last in steps of `step`, then one.
///
/// Not push by push: what a push does depends on the fill, as far as it is no multiple of 256, and on the cells that are
/// left free, and both come back.
pub fn growth(tokens: u64, step: u64) -> Growth {
    let step = step.max(1);
    let prompt = tokens.saturating_sub(1);
    // So many steps after a fill of whole 256s is the next.
    let period = STEP / gcd(step, STEP);
    let mut at = Growth::default();
    let mut fill = 0;
    // Free cells at fills of whole periods, and where that was.
    let mut seen: FxHashMap<u64, u64> = FxHashMap::default();
    let mut looking = step < STEP;
    if step >= STEP {
        // Only the two pushes after such a fill may have room left by what was not cut; all others grow a cache that was
        // cut to its fill, whatever was before.
        let pushes = prompt / step;
        let grows = |pushes: &u64| (pushes - 1) % period >= 2.min(period - 1);
        if let Some(pushes) = (1..pushes.saturating_sub(1)).rev().take(4).find(grows) {
            fill = pushes * step;
            at.cells = fill - step + step.next_multiple_of(STEP);
        }
    }
    let push = |growth: &mut Growth, fill: u64, tokens: u64| {
        if fill + tokens > growth.cells {
            let kept = if fill.is_multiple_of(STEP) { growth.cells } else { fill };
            let grown = kept + tokens.next_multiple_of(STEP);
            // Each growth is to more than the one before.
            growth.peak = growth.cells + grown;
            growth.cells = grown;
        }
    };
    while fill < prompt {
        let mut room = prompt - fill;
        if looking {
            let whole = period * step;
            if fill.is_multiple_of(whole)
                && let Some(before) = seen.insert(at.cells - fill, fill)
            {
                let again = room / (fill - before) * (fill - before);
                fill += again;
                at = Growth { cells: at.cells + again, peak: at.peak + 2 * again };
                looking = false;
                continue;
            }
            room = room.min(whole - fill % whole);
        }
        // Pushes that fit change nothing.
        let fitting = ((at.cells - fill) / step).min(room / step);
        if fitting > 0 {
            fill += fitting * step;
            continue;
        }
        let tokens = step.min(prompt - fill);
        push(&mut at, fill, tokens);
        fill += tokens;
    }
    if tokens > 0 {
        push(&mut at, fill, 1);
    }
    at.peak = at.peak.max(at.cells);
    at
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What a model's layers keep by these rules: layers that keep the same are one.
pub(super) struct Held<'a> {
    layers: Vec<(&'a State, u128)>,
    mla: Mla,
    own: Options,
    key_size: u128,
    value_size: u128,
}

/// Sums of a geometry.
pub(super) struct Summed {
    sums: Sums,
    per_token: u128,
    per_slot: u128,
    /// Most bytes of caches while they grow.
    peak: u128,
    full: Growth,
}

impl Summed {
    /// Keys, values and recurrent states.
    pub(super) fn total(&self) -> u128 {
        let Sums { full, sliding, mla, draft, recurrent } = self.sums;
        [full, sliding, mla, draft, recurrent].into_iter().fold(0, u128::saturating_add)
    }
}

impl<'a> Held<'a> {
    /// Of a model, with the formats of keys and values of a geometry.
    pub(super) fn new(
        model: &'a Model,
        geometry: &Geometry,
        options: &super::Options,
    ) -> Result<Self, PeerError> {
        let own = options.mlx;
        let unsupported = |what: String| PeerError::Unsupported { engine: ENGINE, what };
        if geometry.draft_depth > 0 {
            let what = if model.extras.draft.is_empty() {
                "has no rule here for what drafting keeps: leave the draft depth at 0"
            } else {
                "does not draft with a model's own layers: leave the draft depth at 0"
            };
            return Err(unsupported(what.into()));
        }
        let pair = geometry.kv_pair();
        let size = |store: KvStore| match store {
            KvStore::F16 | KvStore::Bf16 => Ok(2u128),
            KvStore::F32 => Ok(4),
            KvStore::Fp8 | KvStore::Q8_0 | KvStore::Q4_0 => {
                Err(unsupported(format!("has no KV format {}: quantise with bits 8 or 4", store.name())))
            }
        };
        let (key_size, value_size) = (size(pair.k)?, size(pair.v)?);
        super::one_format(ENGINE, pair)?;
        if let Some(bits) = own.kv_bits.filter(|bits| ![2, 3, 4, 5, 6, 8].contains(bits)) {
            return Err(unsupported(format!("does not quantise to {bits} bits")));
        }
        let family = model.architecture.as_str();
        let dense = matches!(family, "deepseek_v2" | "minicpm3" | "youtu_llm");
        let mla = options.mla.unwrap_or(if dense { Mla::Dense } else { Mla::Latent });
        let mut layers: Vec<(&State, u128)> = Vec::new();
        for state in &model.states {
            match layers.iter_mut().find(|(like, _)| *like == state) {
                Some((_, count)) => *count += 1,
                None => layers.push((state, 1)),
            }
        }
        Ok(Self { layers, mla, own, key_size, value_size })
    }

    /// What they keep of a geometry.
    pub(super) fn sums(&self, geometry: &Geometry) -> Result<Summed, PeerError> {
        let Self { mla, own, key_size, value_size, .. } = *self;
        let unsupported = |what: String| PeerError::Unsupported { engine: ENGINE, what };
        let (context, step) = (u64::from(geometry.context), u64::from(geometry.prefill_chunk));
        let full = growth(context, step);
        // What is still plain when a cache is quantised.
        let plain =
            own.kv_bits.map(|_| growth(context.min(own.quantized_start.into()), step)).unwrap_or_default();

        let mut sums = Sums::default();
        let (mut per_token, mut per_slot, mut peak) = (0u128, 0u128, 0u128);
        for (state, count) in self.layers.iter().copied() {
            if let State::Recurrent { shape } = state {
                let tail = product(&[shape.channels.into(), shape.taps.saturating_sub(1).into(), 2]);
                let state = tail.saturating_add(shape.state_bytes().into());
                per_slot = per_slot.saturating_add(state.saturating_mul(count));
                continue;
            }
            let Some((heads, key, value)) = widths(state, mla) else { continue };
            let cell = product(&[heads, key.into(), key_size]).saturating_add(product(&[
                heads,
                value.into(),
                value_size,
            ]));
            if let State::KvSliding { window, .. } = state {
                let prefill = context.min(u64::from(*window).saturating_sub(1).saturating_add(step));
                let after = context.next_multiple_of(STEP).min(u64::from(*window));
                let cells = prefill.max(after);
                sums.sliding = sums.sliding.saturating_add(product(&[count, cell, cells.into()]));
                // The prefill joins the buffer and the step into a new one.
                peak = peak.saturating_add(product(&[count, cell, 2, cells.into()]));
                continue;
            }
            let (cell, at_once) = match own.kv_bits {
                None => (cell, cell.saturating_mul(full.peak.into())),
                Some(bits) => {
                    let width = if key.is_multiple_of(GROUP) { value } else { key };
                    if !width.is_multiple_of(GROUP) {
                        let what =
                            format!("does not quantise heads of {width} values: not whole groups of {GROUP}");
                        return Err(unsupported(what));
                    }
                    // Codes, and a scale and an offset of two bytes each for a group.
                    let values = heads.saturating_mul(u128::from(key).saturating_add(value.into()));
                    let packed = values.saturating_mul(u128::from(bits * GROUP / 8 + 4)) / u128::from(GROUP);
                    let growing = packed.saturating_mul(full.peak.into());
                    let turning = product(&[cell, plain.cells.into()])
                        .saturating_add(product(&[packed, plain.cells.into()]));
                    (packed, growing.max(turning))
                }
            };
            let sum =
                if state.latent().is_some() && mla != Mla::Dense { &mut sums.mla } else { &mut sums.full };
            *sum = sum.saturating_add(product(&[count, cell, full.cells.into()]));
            peak = peak.saturating_add(at_once.saturating_mul(count));
            per_token = per_token.saturating_add(cell.saturating_mul(count));
        }
        let slots = u128::from(geometry.slots);
        for sum in [&mut sums.full, &mut sums.sliding, &mut sums.mla] {
            *sum = sum.saturating_mul(slots);
        }
        sums.recurrent = per_slot.saturating_mul(slots);
        Ok(Summed { sums, per_token, per_slot, peak, full })
    }
}

/// Prices a model.
///
/// # Errors
/// [`PeerError`].
pub fn price(model: &Model, geometry: &Geometry, options: &super::Options) -> Result<Price, PeerError> {
    let own = &options.mlx;
    let held = Held::new(model, geometry, options)?;
    let mla = held.mla;
    let Summed { sums, per_token, per_slot, peak, full } = held.sums(geometry)?;
    let mut rules = vec![
        "context is of one sequence and chunk the prefill step; slots are a batch, each row as long as the longest".to_owned(),
    ];
    // Recurrent layers have no cells.
    let grows = peak > 0;
    if grows {
        rules.push(format!("caches grow by 256 cells or a step: {} cells in the end", full.cells));
        rules.push(
            "while a cache grows the old and the new buffer are alive; evaluation is lazy, so that peak is a bound"
                .to_owned(),
        );
    }
    if model.states.iter().any(|s| matches!(s, State::KvSliding { .. })) {
        rules.push("rotating caches hold window - 1 + step in the prefill and are never quantised".into());
    }
    if let Some(bits) = own.kv_bits {
        rules.push(format!(
            "full caches quantised to {bits} bits in groups of {GROUP} after {} tokens",
            own.quantized_start
        ));
    }
    if model.states.iter().any(|s| s.latent().is_some()) {
        rules.push(match mla {
            Mla::Dense => "every head's keys and values are cached in this family".to_owned(),
            other => format!("latent attention cached as {}", other.name()),
        });
    }
    let logits = super::unreduced_logits(model, geometry.prefill_chunk, 2);
    rules.push(format!(
        "a server that evaluates the logits of a whole step holds {logits} bytes more; mlx-lm itself does not"
    ));
    rules.push("activations are not a closed form and are not in the total".into());
    let (kv_by_kind, kv) = sums.by_kind()?;
    let weights = loaded(model, geometry);
    let recurrent = bytes("recurrent state", sums.recurrent)?;
    let growing = bytes("KV", peak.saturating_mul(geometry.slots.into()))?;
    Ok(Price {
        engine: Engine::Mlx,
        weights,
        kv,
        kv_by_kind,
        recurrent,
        host: Vec::new(),
        kv_bytes_per_token: bytes("KV of a token", per_token)?,
        pool_bytes_per_token: None,
        recurrent_bytes_per_slot: bytes("recurrent state", per_slot)?,
        largest: None,
        peak: grows.then(|| Bound {
            bytes: weights.saturating_add(recurrent).saturating_add(growing),
            why: "both copies of every cache while it grows, a bound".into(),
        }),
        page: STEP as u32,
        paging: None,
        rules,
    })
}
