//! The other engines' rules as their logs and sources state them: pools, states, caches that grow, and what does not start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/published.rs"]
mod published;

use plimsoll_estimator::peers::{self, Engine, Options};
use plimsoll_estimator::{Geometry, KvPair, KvStore, Priced};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{Model, Registry};
use published::{File, config, model};
use serde_json::{Value, json};

const GIB: f64 = 1073741824.0;

/// Start-up lines of vLLM: blocks, tokens of a pool, concurrency.
#[test]
fn vllm_pools_hold_what_its_logs_say() {
    let price_in = |name: &str, context: u32, kv: KvStore, change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        let geometry = Geometry { context, prefill_chunk: 8192, ..Geometry::default_for(context) };
        let geometry = geometry.with_kv(KvPair { k: kv, v: kv });
        let price = peers::price(Engine::Vllm, &model(name), &geometry, &options).unwrap();
        price.paging.unwrap()
    };
    let price = |name, context, change| price_in(name, context, KvStore::F16, change);
    let available = |gib: f64| (gib * GIB) as u64;
    assert_eq!(price("qwen3.5-27b", 32768, |_| ()).block, 784);
    let fp8 = price_in("qwen3.5-27b", 32768, KvStore::Fp8, |o| {
        o.vllm.mamba = peers::vllm::MambaCache::Align;
    });
    assert_eq!((fp8.block, fp8.group_size, fp8.groups), (1568, 16, 4));
    let held = fp8.hold(available(6.67));
    assert_eq!(held.tokens, 53_312);
    assert_eq!((held.concurrency * 100.0).round(), 515.0);
    assert_eq!(price("qwen3.5-35b-a3b", 8192, |_| ()).block, 1056);
    assert_eq!(price("qwen3.5-9b", 8192, |o| o.vllm.state = peers::StateType::Float16).block, 272);
    let gemma = price("gemma-4-31b-it-nvfp4", 8192, |_| ());
    assert_eq!((gemma.groups, gemma.group_size), (6, 10));
    assert_eq!(gemma.hold(available(24.54)).tokens, 26_800);
    // The log's 5.38 GiB is rounded: its 78,384 tokens lie within.
    for hybrid in [true, false] {
        let oss = price("gpt-oss-120b", 8192, if hybrid { |_| () } else { |o| o.vllm.hybrid = false });
        let (low, high) = (oss.hold(available(5.375)).tokens, oss.hold(available(5.385)).tokens);
        assert!((low..=high).contains(&78_384), "{low} {high}");
    }
}

/// In mode all every block of a recurrent layer is as long as one of attention, and ends with a chunk of the recurrence.
#[test]
fn vllm_keeps_the_state_at_every_blocks_end_in_mode_all() {
    let mut options = Options::default();
    options.vllm.mamba = peers::vllm::MambaCache::All;
    let price_of = |model: &Model, context: u32| {
        peers::price(Engine::Vllm, model, &Geometry { context, ..Geometry::default_for(context) }, &options)
    };
    let nano = model("nemotron-3-nano-30b-a3b");
    assert_eq!(nano.extras.state_chunk, Some(128));
    // One group of attention and four of states, each of six layers of 1,024 bytes a token.
    let block = 6 * 2176 * 1024;
    for (context, blocks) in [(2176, 1), (2177, 2), (8192, 4), (131_072, 61)] {
        let price = price_of(&nano, context).unwrap();
        let paging = price.paging.as_ref().unwrap();
        assert_eq!((paging.block, paging.group_bytes, paging.groups), (2176, block, 5), "{context}");
        assert_eq!((paging.request_blocks, price.recurrent), (5 * blocks, 4 * blocks * block), "{context}");
        assert_eq!(price.recurrent_bytes_per_slot, None);
        // What the ladder rises by.
        let more = price_of(&nano, context + 10 * 2176).unwrap();
        let rise = more.total() - price.total();
        assert_eq!(rise, 10 * 2176 * price.kv_bytes_per_token, "{context}");
        assert_eq!(price.pool_bytes_per_token, Some(price.kv_bytes_per_token));
    }
    // Without a chunk steps are of 2,048; one that shares a factor with the block makes steps of both.
    for (chunk, tokens) in
        [(None, 4096), (Some(96), 2112), (Some(1), 2096), (Some(u32::MAX), 16 * u64::from(u32::MAX))]
    {
        let mut other = nano.clone();
        other.extras.state_chunk = chunk;
        assert_eq!(price_of(&other, 8192).unwrap().paging.unwrap().block, tokens, "{chunk:?}");
    }
    // In the other modes nothing of that is asked for.
    options.vllm.mamba = peers::vllm::MambaCache::Align;
    let align = peers::price(Engine::Vllm, &nano, &Geometry::default_for(8192), &options).unwrap();
    assert_eq!(align.paging.unwrap().block, 2096);
    assert!(align.recurrent_bytes_per_slot.is_some());
    options.vllm.mamba = peers::vllm::MambaCache::All;
    for (name, why) in [("qwen3.5-27b", "gated delta"), ("mamba2-130m-hf", "without attention")] {
        let refused = peers::price(Engine::Vllm, &model(name), &Geometry::default_for(8192), &options);
        assert!(refused.unwrap_err().to_string().contains(why), "{name}");
    }
    // A chunk that is no size is an error of its key.
    for odd in [json!(0), json!(-128), json!(1u64 << 40), json!("128")] {
        let text = std::fs::read_to_string(config("nemotron-3-nano-30b-a3b")).unwrap();
        let mut stated: Value = serde_json::from_str(&text.replace("Infinity", "1e30")).unwrap();
        stated["chunk_size"] = odd.clone();
        let file = File::new("chunk", &stated);
        let error = Registry::standard().build(&Checkpoint::open(&file.0).unwrap()).unwrap_err();
        assert!(error.to_string().contains("chunk_size"), "{odd}: {error}");
    }
}

/// What MLX's caches grow to, and hold while they do.
#[test]
fn mlx_caches_grow_by_their_step() {
    let cells = |tokens, step| {
        let growth = peers::mlx::growth(tokens, step);
        (growth.cells, growth.peak)
    };
    assert_eq!(cells(8192, 2048), (8192, 14_336));
    assert_eq!(cells(131_073, 2048), (131_328, 262_400));
    assert_eq!(cells(1, 512), (256, 256));
    assert_eq!(cells(257, 256), (512, 768));
    // Against a plain count of every push.
    let some = [(1000u64, 1u64), (5000, 7), (5000, 300), (4097, 512), (3000, 255), (70_000, 1024)];
    let steps = (1..512u64).chain([513, 640, 704, 1000, 1023, 1025, 2047, 2048, 3000]);
    let all = steps.flat_map(|step| [1, 2, 37, 256, 300, 997].map(|pushes| (pushes * step + step / 3, step)));
    // Prompts of hundreds of periods of a short step, too.
    let long = [3u64, 5, 6, 7, 10, 12, 13, 129, 255].map(|step| (700_001, step));
    for (tokens, step) in some.into_iter().chain(all.filter(|(tokens, _)| *tokens > 0)).chain(long) {
        let (mut cells_, mut fill, mut peak) = (0u64, 0u64, 0u64);
        let mut left = tokens - 1;
        while left > 0 || fill < tokens {
            let push = if left > 0 { step.min(left) } else { 1 };
            left -= push.min(left);
            if fill + push > cells_ {
                let kept = if fill % 256 == 0 { cells_ } else { fill };
                let grown = kept + push.div_ceil(256) * 256;
                peak = peak.max(cells_ + grown);
                cells_ = grown;
            }
            fill += push;
        }
        assert_eq!(cells(tokens, step), (cells_, peak), "{tokens} {step}");
    }
    // 8 bits and a scale and an offset for 64 values: 1.0625 bytes a value.
    let llama = model("llama-3.1-8b");
    let geometry = Geometry { context: 8192, prefill_chunk: 2048, ..Geometry::default_for(8192) };
    let kv = |bits| {
        let mut options = Options::default();
        options.mlx.kv_bits = bits;
        peers::price(Engine::Mlx, &llama, &geometry, &options).unwrap().kv
    };
    let values = 8192 * 32 * 2 * 8 * 128u64;
    assert_eq!((kv(None), kv(Some(8)), kv(Some(4))), (values * 2, values * 17 / 16, values * 9 / 16));
}

#[test]
fn what_an_engine_does_not_start_with_is_said() {
    let llama = model("llama-3.1-8b");
    let ask = |engine, change: fn(&mut Geometry, &mut Options)| {
        let mut geometry = Geometry::default_for(8192);
        let mut options = Options::default();
        change(&mut geometry, &mut options);
        peers::price(engine, &llama, &geometry, &options)
    };
    let quantised = |g: &mut Geometry, o: &mut Options| {
        let pair = KvPair { k: KvStore::F16, v: KvStore::Q8_0 };
        g.priced = Priced { kv: Some(pair), ..Priced::default() };
        o.llama_cpp.flash_attention = false;
    };
    let said = |result: Result<peers::Price, peers::PeerError>| result.unwrap_err().to_string();
    assert!(said(ask(Engine::LlamaCpp, quantised)).contains("flash attention"));
    assert!(said(ask(Engine::Vllm, quantised)).contains("q8_0"));
    assert!(said(ask(Engine::Mlx, quantised)).contains("q8_0"));
    assert!(said(ask(Engine::Mlx, |g, _| g.draft_depth = 1)).contains("draft"));
    for engine in Engine::ALL {
        assert!(said(ask(engine, |g, _| g.context = 0)).contains("context"));
        let most = ask(engine, |g, o| {
            let pair = KvPair { k: KvStore::F32, v: KvStore::F32 };
            g.priced = Priced { kv: Some(pair), ..Priced::default() };
            (g.context, g.slots) = (1 << 30, 1 << 16);
            o.llama_cpp.unified = true;
        });
        // Of llama.cpp the context is that of all slots together.
        match engine {
            Engine::LlamaCpp => assert_eq!(most.unwrap().kv, (1 << 30) * 32 * 2 * 1024 * 4),
            _ => assert!(said(most).contains("2^64")),
        }
    }
}
