//! Flags that were written and change no byte of the model at hand. That hangs on the model, which scripts go through many
//! of, so they are told and not refused.
//!
//! One rule for all that only change a price: each is priced with its other values, and where every price is the same, of
//! the model and of what is beside it, the flag is told. A value that happens to cost as much as another is not.

use super::estimate::Args;
use crate::company::Company;
use crate::geometry::{Geometry, KvPair, KvStore};
use crate::others::Role;
use crate::peers::vllm::MambaCache;
use crate::peers::{self, Engine, Mla, Options, StateType};
use plimsoll_kernels::Profile;
use plimsoll_models::Model;
use plimsoll_models::model::{Grid, State};

/// What was asked for and changes nothing of this model's price, each in a sentence.
pub(super) fn without(
    args: &Args,
    model: &Model,
    geometry: &Geometry,
    profile: &Profile,
    companions: &[(Role, Model)],
) -> Vec<String> {
    let asked = Asked { args, model, profile, companions, at: At::of(args, geometry) };
    let idle = asked.flags().into_iter().filter(|flag| asked.is_idle(flag)).map(|flag| {
        let why = flag.why.unwrap_or("the price is the same without it");
        format!("{} changes nothing: {why}", flag.name)
    });
    let said = asked.cases().into_iter().chain(idle);
    said.map(|said| format!("{}: {said}", model.name)).collect()
}

/// All that a flag can change of a price.
#[derive(Clone)]
struct At {
    geometry: Geometry,
    options: Options,
}

impl At {
    fn of(args: &Args, geometry: &Geometry) -> Self {
        Self { geometry: geometry.clone(), options: args.peer.options(args.limits.max_allocation) }
    }

    fn with(&self, change: impl FnOnce(&mut Options)) -> Self {
        let mut at = self.clone();
        change(&mut at.options);
        at
    }

    fn stored(&self, k: KvStore, v: KvStore) -> Self {
        Self { geometry: self.geometry.clone().with_kv(KvPair { k, v }), ..self.clone() }
    }
}

/// A flag that was written.
struct Flag {
    name: &'static str,
    /// What the model lacks, where it lacks what the flag is about.
    why: Option<&'static str>,
    /// The same question with its other values.
    others: Vec<At>,
}

/// Bytes of a model by the rules that were asked for.
#[derive(PartialEq)]
enum Bytes {
    /// Of a page of each layer: no flag of ours that is compared changes anything else.
    Ours(Vec<u64>),
    Engine(Box<peers::Price>),
}

struct Asked<'a> {
    args: &'a Args,
    model: &'a Model,
    profile: &'a Profile,
    companions: &'a [(Role, Model)],
    at: At,
}

impl Asked<'_> {
    /// Those of which no price is compared.
    fn cases(&self) -> Vec<String> {
        let Self { args, model, .. } = self;
        let recurrent = model.states.iter().any(|state| state.recurrent().is_some());
        let vision = model.extras.vision.as_ref();
        let scales_all = vision.is_some_and(|tower| matches!(tower.grid, Grid::Fixed { .. }));
        let drafter = args.draft.is_some() || !model.extras.draft.is_empty();
        // Of an engine the limit is held against scores that are not streamed.
        let scoreless =
            || matches!(self.price(&self.at), Some(Bytes::Engine(price)) if price.largest.is_none());
        let cases = [
            (args.draft.is_some() && args.draft_depth == 0, "--draft drafts nothing without --draft-depth"),
            (args.draft_depth > 0 && !recurrent && !drafter, "--draft-depth costs nothing without --draft"),
            (
                args.images.image_size.is_some() && vision.is_none(),
                "--image-size changes nothing: how images are read is not known",
            ),
            (
                args.images.image_size.is_some_and(|size| size != (0, 0)) && scales_all,
                "--image-size changes nothing: every image is scaled to one size",
            ),
            (
                args.limits.max_allocation.is_some() && args.peer.engine().is_some() && scoreless(),
                "--max-allocation changes nothing: no layer has scores",
            ),
        ];
        cases.into_iter().filter(|(holds, _)| *holds).map(|(_, said)| said.to_owned()).collect()
    }

    /// Those that were written, with their other values.
    fn flags(&self) -> Vec<Flag> {
        let Self { args, model, at, .. } = self;
        let peer = &args.peer;
        let any = |is: fn(&State) -> bool| model.states.iter().any(is);
        let recurrent = any(|state| state.recurrent().is_some());
        let keyed = any(|state| state.recurrent().is_none());
        let valued = any(|state| matches!(state, State::KvFull { .. } | State::KvSliding { .. }));
        let sliding = any(|state| matches!(state, State::KvSliding { .. }));
        let every = any(|state| matches!(state, State::KvFull { .. } | State::KvLatent { .. }));
        let latent = any(|state| state.latent().is_some());
        let lacks = |has: bool, why: &'static str| (!has).then_some(why);
        let no_keys = lacks(keyed, "no layer has keys and values");

        let pair = at.geometry.kv_pair();
        let both = || KvStore::ALL.map(|kv| at.stored(kv, kv)).to_vec();
        // Some engines have one type for both.
        let one = matches!(peer.engine(), Some(Engine::Vllm | Engine::Mlx));
        let keys = || if one { both() } else { KvStore::ALL.map(|kv| at.stored(kv, pair.v)).to_vec() };
        let values = || if one { both() } else { KvStore::ALL.map(|kv| at.stored(pair.k, kv)).to_vec() };
        let padding = |cells: u32| at.with(|o| o.llama_cpp.cell_padding = cells);
        let block = |tokens: u32| at.with(|o| o.vllm.block = tokens);
        let checkpoints = || {
            let count = at.options.llama_cpp.checkpoints;
            at.with(|o| o.llama_cpp.checkpoints = count.checked_add(1).unwrap_or(0))
        };

        let mut flags = Vec::new();
        let mut flag = |given: bool, name, why, others: &dyn Fn() -> Vec<At>| {
            if given {
                flags.push(Flag { name, why, others: others() });
            }
        };
        flag(args.geometry.kv.is_some(), "--kv", no_keys, &both);
        flag(args.kv_k.is_some(), "--kv-k", no_keys, &keys);
        let no_values = no_keys.or(lacks(valued, "a latent is stored as keys alone"));
        flag(args.kv_v.is_some(), "--kv-v", no_values, &values);
        flag(peer.kv_fp8, "--kv-fp8", no_keys, &both);
        flag(peer.cell_padding.is_some(), "--cell-padding", no_keys, &|| {
            vec![padding(1), padding(at.geometry.context.saturating_add(1))]
        });
        let one_stream = lacks(at.geometry.slots > 1, "one slot has one stream");
        flag(peer.kv_unified, "--kv-unified", no_keys.or(one_stream), &|| {
            vec![at.with(|o| o.llama_cpp.unified = false)]
        });
        let no_windows = lacks(sliding, "no layer slides");
        flag(peer.swa_full, "--swa-full", no_windows, &|| vec![at.with(|o| o.llama_cpp.swa_full = false)]);
        flag(peer.no_flash_attention, "--no-flash-attention", no_keys, &|| {
            vec![at.with(|o| o.llama_cpp.flash_attention = true)]
        });
        let stateless = lacks(recurrent || sliding, "no layer is recurrent and none slides");
        flag(peer.checkpoints.is_some(), "--checkpoints", stateless, &|| vec![checkpoints()]);
        flag(peer.mla.is_some(), "--mla", lacks(latent, "no layer caches a latent"), &|| {
            Mla::ALL.map(|form| at.with(|o| o.mla = Some(form))).to_vec()
        });
        let alike = lacks(sliding || recurrent, "all layers are alike").or(no_windows);
        flag(peer.no_hybrid_kv, "--no-hybrid-kv", alike, &|| vec![at.with(|o| o.vllm.hybrid = true)]);
        flag(peer.block_size.is_some(), "--block-size", no_keys, &|| {
            [1, 16, 32, 48, 64, 1 << 20].map(block).to_vec()
        });
        flag(peer.mamba_cache.is_some(), "--mamba-cache", lacks(recurrent, "no layer is recurrent"), &|| {
            MambaCache::ALL.map(|mode| at.with(|o| o.vllm.mamba = mode)).to_vec()
        });
        let states = any(|state| state.recurrent().is_some_and(|shape| shape.values > 0));
        let no_states = lacks(states, "no layer keeps a recurrent state");
        flag(peer.mamba_ssm_cache_dtype.is_some(), "--mamba-ssm-cache-dtype", no_states, &|| {
            StateType::ALL.map(|state| at.with(|o| o.vllm.state = state)).to_vec()
        });
        let plain = lacks(every, "no layer keeps every token, and others are never quantised");
        flag(peer.kv_bits.is_some(), "--kv-bits", no_keys.or(plain), &|| {
            [None, Some(4), Some(8)].map(|bits| at.with(|o| o.mlx.kv_bits = bits)).to_vec()
        });
        flags
    }

    /// Whether all prices are the same, of those that there are. A flag without which there is none changes something.
    fn is_idle(&self, flag: &Flag) -> bool {
        let Some(here) = self.price(&self.at) else { return false };
        let others: Vec<(&At, Bytes)> =
            flag.others.iter().filter_map(|at| Some((at, self.price(at)?))).collect();
        if others.is_empty() || others.iter().any(|(_, there)| *there != here) {
            return false;
        }
        let beside = self.beside(&self.at);
        others.into_iter().all(|(at, _)| self.beside(at) == beside)
    }

    /// What the model takes; `None` where it has no price.
    fn price(&self, at: &At) -> Option<Bytes> {
        let Some(engine) = self.args.peer.engine() else {
            let states = self.model.states.iter().filter(|state| state.recurrent().is_none());
            let pages = states.map(|state| crate::kv::page(state, &at.geometry).map(|(_, bytes)| bytes));
            return Some(Bytes::Ours(pages.collect::<Result<_, _>>().ok()?));
        };
        let price = peers::price(engine, self.model, &at.geometry, &at.options).ok()?;
        // Sentences and what cells are rounded to are no bytes.
        Some(Bytes::Engine(Box::new(peers::Price { rules: Vec::new(), page: 0, ..price })))
    }

    /// What is beside it takes.
    fn beside(&self, at: &At) -> Vec<crate::others::Other> {
        let engine = self.args.peer.engine();
        let drafts = engine.is_none().then_some(self.model);
        let company = Company::new(self.companions, drafts, self.profile).held_by(engine, at.options);
        company.able(&at.geometry)
    }
}
