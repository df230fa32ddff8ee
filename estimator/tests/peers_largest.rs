//! The largest that fits by other engines' rules is what trying every number finds, also beside companions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_estimator::company::Company;
use plimsoll_estimator::geometry::{KvPair, KvStore};
use plimsoll_estimator::others::{Others, Role};
use plimsoll_estimator::peers::{self, Engine, Options};
use plimsoll_estimator::report::{Fits, Question};
use plimsoll_estimator::{Geometry, MemoryPolicy, Overhead, Priced};
use plimsoll_kernels::Profile;
use plimsoll_models::{Checkpoint, Model, Registry};
use serde_json::{Value, json};

/// The longest context that models here were made for.
const MOST: u32 = 3000;

fn model(config: &Value) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "tiny").unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

fn llama(layers: u32, most: u32) -> Value {
    json!({"model_type": "llama", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": layers,
        "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": most})
}

/// Windows of 512 on one of two layers.
fn gemma() -> Value {
    json!({"model_type": "gemma3_text", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 6,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64,
        "sliding_window": 512, "max_position_embeddings": MOST, "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention"]})
}

struct Case<'a> {
    engine: Engine,
    options: Options,
    opened: &'a (Checkpoint, Model),
    company: &'a mut Company<'a>,
    profile: &'a Profile,
}

impl Case<'_> {
    fn need(&self, geometry: &Geometry) -> u64 {
        let own = peers::price(self.engine, &self.opened.1, geometry, &self.options).unwrap().most();
        own + self.company.taken(geometry).unwrap()
    }

    fn answer(&mut self, geometry: &Geometry, bytes: u64) -> Fits {
        self.company.ceiling = Some(bytes);
        let others = Others { here: self.company.with(geometry).unwrap(), ..Others::default() };
        let policy = MemoryPolicy::default().with_memory(bytes, "test").unwrap();
        let budget = policy.budget_beside(None, &others).unwrap();
        let question = Question {
            checkpoint: &self.opened.0,
            model: &self.opened.1,
            geometry,
            profile: self.profile,
            budget: Some(&budget),
            overhead: Overhead::default(),
            company: Some(self.company),
        };
        peers::report(&question, self.engine, &self.options).largest
    }
}

/// Holds the answers for budgets around what these contexts need against every number there is.
fn holds(engine: Engine, config: &Value, beside: &[Value], base: &Geometry) {
    holds_in(engine, None, config, beside, base);
}

/// The same, where MLX quantises caches of more than 700 tokens.
fn holds_in(engine: Engine, bits: Option<u32>, config: &Value, beside: &[Value], base: &Geometry) {
    let profile = Profile::webgpu_default();
    let opened = model(config);
    // All of a device that vLLM takes is beside nothing: what drafts is inside of it.
    let role = if engine == Engine::Vllm { Role::Draft } else { Role::Beside };
    let models: Vec<(Role, Model)> = beside.iter().map(|c| (role, model(c).1)).collect();
    let mut options = Options::default();
    options.vllm.utilization = 1.0;
    options.mlx = peers::mlx::Options { kv_bits: bits, quantized_start: 700 };
    let mut company = Company::new(&models, None, &profile).held_by(Some(engine), options);
    let mut case = Case { engine, options, opened: &opened, company: &mut company, profile: &profile };
    let slots = if engine == Engine::LlamaCpp { base.slots } else { 1 };
    let contexts: Vec<u64> =
        (1..=MOST * slots).map(|context| case.need(&Geometry { context, ..base.clone() })).collect();
    let many: Vec<u64> = (1..=400).map(|slots| case.need(&Geometry { slots, ..base.clone() })).collect();
    let steps: Vec<u64> =
        (1..=4096).map(|prefill_chunk| case.need(&Geometry { prefill_chunk, ..base.clone() })).collect();
    let best =
        |needs: &[u64], bytes: u64| needs.iter().rposition(|need| *need <= bytes).map(|at| at as u32 + 1);
    for context in [1u64, 3, 100, 255, 256, 257, 300, 511, 512, 513, 769, 1000, 1537, 2048, 2049, 2900] {
        let need = contexts[context as usize - 1];
        for bytes in [need.saturating_sub(1), need, need + 1, need + 4096] {
            let what = format!("{engine:?}, step {}, {bytes} bytes", base.prefill_chunk);
            let found = case.answer(base, bytes);
            assert_eq!(found.context, best(&contexts, bytes), "context: {what}");
            let expected = best(&many, bytes);
            if expected.is_none_or(|n| n < 400) {
                assert_eq!(found.slots, expected, "slots: {what}");
            }
            // From the context on a step holds all of it.
            match best(&steps, bytes) {
                Some(4096) => assert!(found.prefill_chunk.is_some_and(|n| n >= 4096), "step: {what}"),
                expected => assert_eq!(found.prefill_chunk, expected, "step: {what}"),
            }
        }
    }
}

fn geometry(context: u32, slots: u32, chunk: u32) -> Geometry {
    let f16 = KvPair { k: KvStore::F16, v: KvStore::F16 };
    let priced = Priced { kv: Some(f16), ..Priced::default() };
    Geometry { context, slots, prefill_chunk: chunk, priced, ..Geometry::default_for(MOST) }
}

#[test]
fn every_number_is_tried_for_mlx() {
    for chunk in [1, 100, 256, 300, 700, 2048] {
        holds(Engine::Mlx, &llama(2, MOST), &[], &geometry(1000, 1, chunk));
        holds(Engine::Mlx, &gemma(), &[llama(3, 1500)], &geometry(1000, 2, chunk));
    }
}

#[test]
fn every_number_is_tried_for_quantised_caches() {
    let wide = json!({"model_type": "llama", "vocab_size": 64, "hidden_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": MOST});
    for (bits, chunk) in [(4, 256), (8, 300), (4, 100), (8, 2048)] {
        holds_in(Engine::Mlx, Some(bits), &wide, &[], &geometry(1000, 1, chunk));
    }
}

#[test]
fn every_number_is_tried_for_llama_cpp() {
    holds(Engine::LlamaCpp, &llama(2, MOST), &[], &geometry(2600, 1, 512));
    holds(Engine::LlamaCpp, &llama(2, MOST), &[llama(1, 700)], &geometry(2600, 3, 64));
    holds(Engine::LlamaCpp, &gemma(), &[llama(3, MOST)], &geometry(1000, 2, 512));
}

#[test]
fn every_number_is_tried_for_vllm() {
    holds(Engine::Vllm, &llama(2, MOST), &[], &geometry(1000, 1, 512));
    holds(Engine::Vllm, &gemma(), &[llama(3, 1500), llama(1, MOST)], &geometry(1000, 2, 300));
}

/// However long the context, by any engine's rules, on little memory or much.
#[test]
fn contexts_without_measure_are_answered_at_once() {
    let config = llama(32, 100_000);
    let profile = Profile::webgpu_default();
    let opened = model(&config);
    for engine in Engine::ALL {
        for context in [100_000, 1_000_001, 1 << 30] {
            let mut company = Company::new(&[], None, &profile);
            let options = Options::default();
            let mut case =
                Case { engine, options, opened: &opened, company: &mut company, profile: &profile };
            let asked = geometry(context, 1, 2048);
            let whole = geometry(context / 256 * 256, 1, 256);
            // Between what whole growths need and what this context does no step fits, and all are tried.
            let need = case.need(&whole);
            for bytes in [1 << 20, need - 1, need, need + 1000, 4 * need] {
                let begun = std::time::Instant::now();
                case.answer(&asked, bytes);
                let took = begun.elapsed();
                assert!(took.as_millis() < 1500, "{engine:?} {context} {bytes}: {took:?}");
            }
        }
    }
}

#[test]
fn four_thousand_tokens_are_four_thousand() {
    // Where a cache of 4,096 cells is the last that fits, every context up to 4,096 is.
    let config = llama(2, 100_000);
    let profile = Profile::webgpu_default();
    let opened = model(&config);
    let options = Options::default();
    let mut company = Company::new(&[], None, &profile);
    let mut case =
        Case { engine: Engine::Mlx, options, opened: &opened, company: &mut company, profile: &profile };
    let asked = geometry(4000, 1, 2048);
    let bytes = case.need(&asked);
    assert_eq!(case.answer(&asked, bytes).context, Some(4096));
    let short = geometry(100, 1, 2048);
    let bytes = case.need(&short);
    assert_eq!(case.answer(&short, bytes).context, Some(256));
}
