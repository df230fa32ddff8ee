//! vLLM: one pool of pages that every kind of layer takes blocks of.
//!
//! * `context` is `max_model_len`, of one sequence; `prefill_chunk` is `max_num_batched_tokens`.
//! * A page holds a block of one layer: `block · Hk · (Dk + Dv) · size`, a latent `block · (rank + rope) · size`, a
//!   recurrent layer's whole state (tail in the model's type, state in its own: see `peers/states.rs`).
//! * With recurrent layers the attention block grows until its page holds a state; between kinds of attention the smaller
//!   page's block is multiplied. In mode `all` it grows in steps of `lcm(chunk of the recurrence, block)`, and a recurrent
//!   layer's block is of as many tokens.
//! * Layers of a kind are cut into groups of equal size, which share the pool: `available / page / group size` blocks.
//! * A sequence of `T` tokens takes `⌈T / block⌉` blocks of a full group, `⌈min(window − 1 + chunk, T) / block⌉ + 1` of a
//!   sliding one, and 1 (2 with prefix caching) and one for each drafted token of a recurrent one; in mode `all`
//!   `⌈T / block⌉` of that too.
//!
//! Sources: `vllm/v1/core/kv_cache_utils.py`, `vllm/v1/kv_cache_interface.py`, `vllm/platforms/interface.py`; pools, blocks
//! and concurrency in its logs come out exactly.

use super::llama_cpp::widths;
use super::{Engine, Mla, PeerError, Price, StateType, Sums, bytes, loaded, product, states};
use crate::geometry::{Geometry, KvStore};
use plimsoll_models::Model;
use plimsoll_models::graph::Op;
use plimsoll_models::model::State;

const ENGINE: &str = "vllm";

/// What recurrent layers keep of a sequence for others to reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MambaCache {
    /// Nothing: one state.
    #[default]
    None,
    /// The state at the last block's end (prefix caching): two.
    Align,
    /// The state at every block's end.
    All,
}

impl MambaCache {
    /// Every mode.
    pub const ALL: [MambaCache; 3] = [MambaCache::None, MambaCache::Align, MambaCache::All];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            MambaCache::None => "none",
            MambaCache::Align => "align",
            MambaCache::All => "all",
        }
    }
}

/// How it is started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Kinds of layers keep what they need; without it sliding layers keep every token.
    pub hybrid: bool,
    /// Tokens of an attention block.
    pub block: u32,
    /// What recurrent layers keep.
    pub mamba: MambaCache,
    /// The type of recurrent states.
    pub state: StateType,
    /// The share of the device that it takes.
    pub utilization: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { hybrid: true, block: 16, mamba: MambaCache::None, state: StateType::Auto, utilization: 0.92 }
    }
}

/// What a layer keeps, as the engine compares layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Full,
    Sliding(u32),
    Latent,
    Recurrent,
}

impl Kind {
    fn attention(self) -> bool {
        self != Kind::Recurrent
    }
}

/// Layers of a kind with equal pages.
#[derive(Clone, Copy, Debug)]
struct Layers {
    kind: Kind,
    /// Bytes of a token, of a recurrent layer of its state.
    unit: u128,
    /// Tokens of a block.
    block: u64,
    count: u64,
    /// Layers of `count` that only draft.
    drafting: u64,
}

impl Layers {
    fn page(&self) -> u128 {
        if self.kind.attention() { self.unit.saturating_mul(self.block.into()) } else { self.unit }
    }
}

/// The pool's unit: pages of all layers of a group, for every group.
#[derive(Clone, Debug, PartialEq)]
pub struct Paging {
    /// Bytes of a block over the layers of a group.
    pub group_bytes: u64,
    /// Groups that take blocks of the pool.
    pub groups: u64,
    /// Tokens of the smallest attention block; 0 without attention.
    pub block: u64,
    /// Layers of a group.
    pub group_size: u64,
    /// Blocks of one sequence of the geometry's context, over all groups.
    pub request_blocks: u64,
}

/// What a pool of some size holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Blocks.
    pub blocks: u64,
    /// Tokens, as start-up logs count them: the blocks dealt evenly to the groups.
    pub tokens: u64,
    /// Sequences of the geometry's context at once.
    pub concurrency: f64,
}

impl Paging {
    /// What a pool of `available` bytes holds.
    pub fn hold(&self, available: u64) -> Held {
        let blocks = available.checked_div(self.group_bytes).unwrap_or(0);
        let tokens = (blocks / self.groups.max(1)).saturating_mul(self.block);
        Held { blocks, tokens, concurrency: blocks as f64 / self.request_blocks.max(1) as f64 }
    }
}

/// Prices a model.
///
/// # Errors
/// [`PeerError`].
pub fn price(model: &Model, geometry: &Geometry, options: &super::Options) -> Result<Price, PeerError> {
    let own = &options.vllm;
    let pair = geometry.kv_pair();
    let size = |store: KvStore| match store {
        KvStore::Fp8 => Ok(1),
        KvStore::F16 | KvStore::Bf16 => Ok(2u128),
        KvStore::F32 => Ok(4),
        KvStore::Q8_0 | KvStore::Q4_0 => {
            let what = format!("has no KV format {}: f16, bf16, f32 or fp8", store.name());
            Err(PeerError::Unsupported { engine: ENGINE, what })
        }
    };
    let (key_size, value_size) = (size(pair.k)?, size(pair.v)?);
    super::one_format(ENGINE, pair)?;
    let mla = options.mla.unwrap_or(Mla::Latent);
    let block = u64::from(own.block.max(1));
    let depth = u128::from(geometry.draft_depth);
    let kept = states::of(model, own.state)?;

    let mut layers: Vec<Layers> = Vec::new();
    let drafted = model.extras.draft.iter().filter(|s| geometry.draft_depth > 0 && s.recurrent().is_none());
    let states = model.states.iter().map(|s| (s, false)).chain(drafted.map(|s| (s, true)));
    for (state, drafting) in states {
        let kind = match state {
            State::KvFull { .. } => Kind::Full,
            State::KvSliding { .. } if drafting || !own.hybrid => Kind::Full,
            State::KvSliding { window, .. } => Kind::Sliding(*window),
            State::KvLatent { .. } if mla == Mla::Dense => Kind::Full,
            State::KvLatent { .. } => Kind::Latent,
            State::Recurrent { .. } => Kind::Recurrent,
        };
        let unit = match (state.recurrent(), widths(state, mla)) {
            (Some(shape), _) => {
                let taps = u128::from(shape.taps.saturating_sub(1)).saturating_add(depth);
                let tail = product(&[shape.channels.into(), taps, 2]);
                tail.saturating_add(product(&[shape.values.into(), kept.bytes.into()]))
            }
            (None, Some((heads, key, value))) => product(&[heads, key.into(), key_size])
                .saturating_add(product(&[heads, value.into(), value_size])),
            (None, None) => continue,
        };
        let drafting = u64::from(drafting);
        match layers.iter_mut().find(|l| l.kind == kind && l.unit == unit) {
            Some(alike) => {
                alike.count += 1;
                alike.drafting += drafting;
            }
            None => layers.push(Layers { kind, unit, block, count: 1, drafting }),
        }
    }

    let all = own.mamba == MambaCache::All && layers.iter().any(|l| l.kind == Kind::Recurrent);
    if all {
        keeps_every_state(model, &layers)?;
    }

    let mut rules = vec![
        "context is max_model_len of one sequence, chunk max_num_batched_tokens; slots multiply".to_owned(),
    ];
    if [pair.k, pair.v].contains(&KvStore::Fp8) && layers.iter().any(|l| l.kind.attention()) {
        rules.push("keys and values in fp8, one byte a value, without their scales".into());
    }
    let sliding = model.states.iter().any(|s| matches!(s, State::KvSliding { .. }));
    if sliding {
        rules.push(if own.hybrid {
            "hybrid KV manager on: sliding layers hold their window and a batch".into()
        } else {
            "hybrid KV manager off: sliding layers hold every token".into()
        });
    }
    // The pages of one kind of layers may differ in size; those of several are made equal.
    let kinds =
        layers.iter().map(|l| std::mem::discriminant(&l.kind)).collect::<std::collections::HashSet<_>>();
    let alike = kinds.len() <= 1 && layers.iter().all(|l| !matches!(l.kind, Kind::Sliding(_)));
    if !alike {
        unify(&mut layers, own, model.extras.state_chunk, &mut rules)?;
    }
    let (group_size, group_bytes) = if alike {
        // Every layer has a tensor of its own.
        let count: u64 = layers.iter().map(|l| l.count).sum();
        let pages = layers.iter().map(|l| l.page().saturating_mul(l.count.into()));
        (count, pages.fold(0, u128::saturating_add))
    } else {
        let size = group_size(&layers);
        (size, product(&[layers.iter().map(Layers::page).max().unwrap_or(0), size.into()]))
    };
    let of_groups = |l: &Layers| l.count.div_ceil(group_size.max(1));
    let groups: u64 = if alike { 1 } else { layers.iter().map(of_groups).sum() };

    let mut sums = Sums::default();
    let mut request_blocks = 0u64;
    let (mut state_blocks, mut attention_groups) = (0u64, 0u64);
    // What grows with a sequence past every window.
    let mut marginal = 0u128;
    for l in &layers {
        let blocks = blocks(l, geometry, own);
        let groups = if alike { 1 } else { of_groups(l) };
        let bytes_of_block = if alike { l.page().saturating_mul(l.count.into()) } else { group_bytes };
        let held = product(&[blocks.into(), groups.into(), bytes_of_block, geometry.slots.into()]);
        let part = held.saturating_mul(l.drafting.into()) / u128::from(l.count.max(1));
        sums.draft = sums.draft.saturating_add(part);
        let rest = held - part;
        let sum = match l.kind {
            Kind::Full => &mut sums.full,
            Kind::Sliding(_) => &mut sums.sliding,
            Kind::Latent => &mut sums.mla,
            Kind::Recurrent => &mut sums.recurrent,
        };
        *sum = sum.saturating_add(rest);
        if matches!(l.kind, Kind::Full | Kind::Latent) || (all && l.kind == Kind::Recurrent) {
            let rise = product(&[groups.into(), bytes_of_block]) / u128::from(l.block.max(1));
            marginal = marginal.saturating_add(rise);
        }
        if l.kind.attention() || all {
            attention_groups += groups;
        } else {
            state_blocks = state_blocks.saturating_add(blocks.saturating_mul(groups));
        }
        request_blocks = if alike {
            request_blocks.max(blocks)
        } else {
            request_blocks.saturating_add(blocks.saturating_mul(groups))
        };
    }
    let attention_groups = if alike { attention_groups.min(1) } else { attention_groups };
    let smallest = layers.iter().filter(|l| l.kind.attention()).map(|l| l.block).min().unwrap_or(0);
    let token = match smallest {
        0 => 0,
        block => product(&[group_bytes, attention_groups.into()]) / u128::from(block),
    };
    if !alike {
        rules.push(format!(
            "{groups} groups of {group_size} layers share the pool, a block of which is {group_bytes} bytes"
        ));
    }
    if token != marginal {
        rules.push(format!(
            "a token of the pool costs {token} bytes, as start-up logs count them; one more token of a long sequence {marginal}"
        ));
    }
    if layers.iter().any(|l| l.kind == Kind::Recurrent) {
        rules.push(format!(
            "recurrent states: mode {}, tail in 2 bytes a value{}{}",
            own.mamba.name(),
            kept.rule,
            if smallest == 0 { "" } else { ", padded to an attention page" }
        ));
    }
    if all {
        rules.push(
            "a recurrent layer keeps a state at the end of every block: what it holds grows with the context"
                .into(),
        );
    }
    rules.push(format!(
        "the engine takes {} of the device at start, whatever the context; the pool is that less weights, the profiled peak and CUDA graphs, which are not closed forms and not in the total",
        own.utilization
    ));
    let (kv_by_kind, kv) = sums.by_kind()?;
    Ok(Price {
        engine: Engine::Vllm,
        weights: loaded(model, geometry),
        kv,
        kv_by_kind,
        recurrent: bytes("recurrent state", sums.recurrent)?,
        host: Vec::new(),
        kv_bytes_per_token: bytes("KV of a token", marginal)?,
        pool_bytes_per_token: Some(bytes("KV of a token", token)?),
        recurrent_bytes_per_slot: match all {
            true => None,
            false => Some(bytes("recurrent state", product(&[state_blocks.into(), group_bytes]))?),
        },
        largest: None,
        peak: None,
        page: u32::try_from(smallest).unwrap_or(u32::MAX),
        paging: Some(Paging {
            group_bytes: bytes("a block", group_bytes)?,
            groups,
            block: smallest,
            group_size,
            request_blocks,
        }),
        rules,
    })
}

/// Tokens of a chunk of a recurrence whose configuration names none.
const CHUNK: u32 = 2048;

/// Whether there is a rule for keeping the state at the end of every block.
///
/// # Errors
/// [`PeerError::Unsupported`] for recurrences of which that is not kept, and where no attention says what a block is.
fn keeps_every_state(model: &Model, layers: &[Layers]) -> Result<(), PeerError> {
    let unsupported = |what: &str| Err(PeerError::Unsupported { engine: ENGINE, what: what.to_owned() });
    if model.graph.ops.iter().any(|(_, op)| matches!(op, Op::Delta { .. })) {
        return unsupported("has no mode all for gated delta layers: --mamba-cache none or align");
    }
    if !layers.iter().any(|l| l.kind.attention()) {
        return unsupported("publishes no rule for mode all without attention: --mamba-cache none or align");
    }
    Ok(())
}

/// The least common multiple of two numbers above 0.
fn lcm(a: u128, b: u128) -> u128 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).saturating_mul(b)
}

/// Makes the pages of all kinds equal: attention blocks grow until a state fits, then smaller pages hold more tokens.
/// `chunk` are the tokens of a chunk of the recurrence, where the configuration says so.
fn unify(
    layers: &mut [Layers],
    own: &Options,
    chunk: Option<u32>,
    rules: &mut Vec<String>,
) -> Result<(), PeerError> {
    let unsupported = |what: &str| PeerError::Unsupported { engine: ENGINE, what: what.to_owned() };
    let state = layers.iter().filter(|l| l.kind == Kind::Recurrent).map(|l| l.unit).max();
    let narrowest = layers.iter().filter(|l| l.kind.attention()).map(|l| l.unit).max();
    if let (Some(state), Some(token)) = (state, narrowest) {
        let all = own.mamba == MambaCache::All;
        let least = match u128::from(own.block.max(16)) {
            // Every block ends with a chunk of the recurrence.
            least if all => lcm(chunk.unwrap_or(CHUNK).max(1).into(), least),
            least => least,
        };
        let step = least.saturating_mul(token.max(1));
        let block = u64::try_from(least.saturating_mul(state.div_ceil(step)))
            .map_err(|_| PeerError::TooLarge { what: "a block" })?;
        let page = token.saturating_mul(block.into());
        for layer in layers.iter_mut() {
            if layer.kind.attention() {
                layer.block = block;
            } else {
                layer.unit = page;
                if all {
                    layer.block = block;
                }
            }
        }
        let steps = if all { format!(" and they are whole steps of {least}") } else { String::new() };
        rules.push(format!(
            "attention blocks of {block} tokens, so that a page holds a recurrent state of {state} bytes{steps}"
        ));
    }
    let largest = layers.iter().map(Layers::page).max().unwrap_or(0);
    for layer in layers.iter_mut().filter(|l| l.kind.attention()) {
        let page = layer.page().max(1);
        if largest % page != 0 {
            return Err(unsupported(
                "does not make pages equal where the larger is no multiple of the smaller",
            ));
        }
        let ratio = largest / page;
        if ratio > 1 {
            layer.block = u64::try_from(u128::from(layer.block).saturating_mul(ratio))
                .map_err(|_| PeerError::TooLarge { what: "a block" })?;
            rules.push(format!("blocks of {} tokens where a token takes {} bytes", layer.block, layer.unit));
        }
    }
    Ok(())
}

/// Layers of a group: as many as the rarest kind has, or the commonest where that is less than half as many again.
fn group_size(layers: &[Layers]) -> u64 {
    let least = layers.iter().map(|l| l.count).min().unwrap_or(0);
    let most = layers.iter().map(|l| l.count).max().unwrap_or(0);
    if most.saturating_mul(2) < least.saturating_mul(3) { most } else { least }
}

/// Blocks that one sequence of the geometry's context takes of a group.
fn blocks(layers: &Layers, geometry: &Geometry, own: &Options) -> u64 {
    let (context, chunk) = (u64::from(geometry.context), u64::from(geometry.prefill_chunk));
    let block = layers.block.max(1);
    match layers.kind {
        Kind::Full | Kind::Latent => context.div_ceil(block),
        Kind::Sliding(window) => {
            (u64::from(window).saturating_sub(1).saturating_add(chunk)).min(context).div_ceil(block) + 1
        }
        Kind::Recurrent => {
            let drafted = u64::from(geometry.draft_depth);
            match own.mamba {
                MambaCache::None => 1 + drafted,
                MambaCache::Align => 2 + drafted,
                MambaCache::All => context.div_ceil(block),
            }
        }
    }
}
