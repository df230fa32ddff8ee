//! mlx-lm: buffers that grow by 256 cells as tokens come.
//!
//! * `context` is of one sequence, all but its last token a prompt; `prefill_chunk` is `prefill_step_size`; slots are a
//!   batch.
//! * A cache grows when a push does not fit, by the push rounded up to 256, cut first to its fill where that is no multiple
//!   of 256. While it grows the old and the new buffer are alive: that peak is a bound, since evaluation is lazy.
//! * A rotating cache holds what came until it is full, then `window − 1` cells and a step in the prefill, and the window
//!   after; the first token that comes alone makes room for 256 (`super::rotating`). Which layers rotate is a table of its
//!   families (`super::slides`). A chunked cache (Llama 4) grows as others do and is cut to its chunk before each step.
//! * A quantised cache holds `bits / 8 + 4 / 64` bytes a value; rotating and chunked ones never are, and until
//!   `quantized_kv_start` it is a plain one.
//! * Tails of convolutions are in the model's type, states in f32.
//!
//! Sources: `mlx_lm/models/cache.py`, `mlx_lm/generate.py` and the models' `make_cache`.

use super::llama_cpp::widths;
use super::rotating;
use super::slides::{self, Slides};
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

/// The cache of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// Every token.
    All,
    /// A window, in a rotating cache.
    Window(u32),
    /// A chunk, in a cache that grows and is cut.
    Chunk(u32),
}

/// What a model's layers keep by these rules: layers that keep the same are one.
pub(super) struct Held<'a> {
    layers: Vec<(&'a State, Keeps, u128)>,
    slides: Slides,
    mla: Mla,
    own: Options,
    key_size: u128,
    value_size: u128,
}

/// Cells of a rotating cache by tokens, step and window.
type Rotates = fn(u64, u64, u64) -> u64;

/// The most cells of a cache that is cut to its chunk before each step, where it would have `uncut` without.
fn chunked(uncut: u64, step: u64, chunk: u64) -> u64 {
    uncut.min(chunk.saturating_add(step.max(1).next_multiple_of(STEP)))
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

    /// The same while caches grow.
    pub(super) fn most(&self, slots: u32) -> u128 {
        self.peak.saturating_mul(slots.into()).saturating_add(self.sums.recurrent).max(self.total())
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
        let slides = slides::of_mlx(model);
        let mut layers: Vec<(&State, Keeps, u128)> = Vec::new();
        for (index, state) in model.states.iter().enumerate() {
            let keeps = match slides.window(index) {
                None => Keeps::All,
                Some(chunk) if family.starts_with("llama4") => Keeps::Chunk(chunk),
                Some(window) => Keeps::Window(window),
            };
            match layers.iter_mut().find(|(like, kept, _)| *like == state && *kept == keeps) {
                Some((.., count)) => *count += 1,
                None => layers.push((state, keeps, 1)),
            }
        }
        Ok(Self { layers, slides, mla, own, key_size, value_size })
    }

    /// Whether any layer keeps so.
    fn any(&self, is: fn(Keeps) -> bool) -> bool {
        self.layers.iter().any(|(state, keeps, _)| state.recurrent().is_none() && is(*keeps))
    }

    /// Steps of whole 256s that a cache grows by.
    pub(super) fn grows_by(geometry: &Geometry) -> u32 {
        geometry.prefill_chunk.max(1).next_multiple_of(STEP as u32)
    }

    /// What they keep of a geometry.
    pub(super) fn sums(&self, geometry: &Geometry) -> Result<Summed, PeerError> {
        let full = growth(geometry.context.into(), geometry.prefill_chunk.into());
        self.grown(geometry, full, rotating::cells)
    }

    /// What there is in the end with caches of windows that hold no more than their window: never more of fewer steps of
    /// whole 256s, which it is of those that join a step to a window.
    pub(super) fn ends(&self, geometry: &Geometry) -> Result<u128, PeerError> {
        let full = growth(geometry.context.into(), geometry.prefill_chunk.into());
        Ok(self.grown(geometry, full, |tokens, _, window| tokens.min(window))?.total())
    }

    /// What they keep at the least while they grow, and never less of more context: a cache of `n` cells grew by at most a
    /// step from one that was no smaller than its fill, so that there were `2·n` of both less a step. There were `2·n` and
    /// a step at the most.
    pub(super) fn least(&self, geometry: &Geometry) -> Result<u128, PeerError> {
        let tokens = u64::from(geometry.context);
        let peak = tokens.saturating_mul(2).saturating_sub(Self::grows_by(geometry).into()).max(tokens);
        // What turns into a quantised cache is left out.
        let own = Options { quantized_start: 0, ..self.own };
        let grown = Growth { cells: tokens, peak };
        Ok(self.grown_in(own, geometry, grown, rotating::cells)?.most(geometry.slots))
    }

    /// The same where full caches grew so, and rotating ones hold so many cells of tokens, step and window.
    fn grown(&self, geometry: &Geometry, full: Growth, rotates: Rotates) -> Result<Summed, PeerError> {
        self.grown_in(self.own, geometry, full, rotates)
    }

    fn grown_in(
        &self,
        own: Options,
        geometry: &Geometry,
        full: Growth,
        rotates: Rotates,
    ) -> Result<Summed, PeerError> {
        let Self { mla, key_size, value_size, .. } = *self;
        let unsupported = |what: String| PeerError::Unsupported { engine: ENGINE, what };
        let (context, step) = (u64::from(geometry.context), u64::from(geometry.prefill_chunk));
        // What is still plain when a cache is quantised.
        let plain =
            own.kv_bits.map(|_| growth(context.min(own.quantized_start.into()), step)).unwrap_or_default();

        let mut sums = Sums::default();
        let (mut per_token, mut per_slot, mut peak) = (0u128, 0u128, 0u128);
        for (state, keeps, count) in self.layers.iter().copied() {
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
            let windowed = match keeps {
                Keeps::All => None,
                Keeps::Window(window) => Some(rotates(context, step, window.into())),
                Keeps::Chunk(chunk) => Some(chunked(full.cells, step, chunk.into())),
            };
            if let Some(cells) = windowed {
                sums.sliding = sums.sliding.saturating_add(product(&[count, cell, cells.into()]));
                // A step makes a new buffer of the one before and itself.
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
    if held.any(|keeps| keeps == Keeps::All) {
        rules.push(format!("caches grow by 256 cells or a step: {} cells in the end", full.cells));
    }
    if grows {
        rules.push(
            "while a cache grows the old and the new buffer are alive; evaluation is lazy, so that peak is a bound"
                .to_owned(),
        );
    }
    rules.extend(held.slides.rule.clone());
    let (context, step) = (u64::from(geometry.context), u64::from(geometry.prefill_chunk));
    let mut windows: Vec<Keeps> = Vec::new();
    for (_, keeps, _) in held.layers.iter().filter(|(_, keeps, _)| *keeps != Keeps::All) {
        if !windows.contains(keeps) {
            windows.push(*keeps);
        }
    }
    for keeps in windows {
        rules.push(match keeps {
            Keeps::Window(window) => format!(
                "a rotating cache of {window} holds what came, past it window - 1 + step until the prefill ends, and room \
                 for 256 more up to the window once a token comes alone: {} cells at most",
                rotating::cells(context, step, window.into())
            ),
            Keeps::Chunk(chunk) => format!(
                "a chunked cache of {chunk} grows likewise and is cut to its chunk before each step: {} cells at most",
                chunked(full.cells, step, chunk.into())
            ),
            Keeps::All => continue,
        });
    }
    if let Some(bits) = own.kv_bits {
        rules.push(format!(
            "full caches quantised to {bits} bits in groups of {GROUP} after {} tokens",
            own.quantized_start
        ));
        if held.any(|keeps| matches!(keeps, Keeps::Window(_))) {
            rules.push(format!(
                "rotating caches are never quantised: {} ends with an error once there are {} tokens",
                slides::MLX_LM,
                own.quantized_start
            ));
        }
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
        recurrent_bytes_per_slot: Some(bytes("recurrent state", per_slot)?),
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
