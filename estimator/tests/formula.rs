//! The formula of a total against prices: where it is exact, and how far it may be off.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::open;
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::{Coefficients, Geometry, KvPair, Pricer};
use plimsoll_kernels::{KvFormat, Profile};
use proptest::prelude::*;

/// What the formula of io says, as its document reads.
fn io(line: &Coefficients, at: &Geometry) -> i128 {
    let io = &line.io;
    let [fixed, chunk, slot, page] = [io.fixed, io.per_chunk_token, io.per_slot, io.per_page].map(i128::from);
    let [pages, slots, tokens] = [at.context.div_ceil(32), at.slots, at.prefill_chunk].map(i128::from);
    fixed + chunk * tokens + slot * slots + page * slots * pages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Io is exact at the geometry and within its bound at the contexts that it names, also with fewer tokens in a step than slots.
    #[test]
    fn io_is_exact_at_the_geometry_and_within_its_bound_at_its_contexts(
        which in prop::sample::select(&["deepseek-v3", "llama-3.1-8b", "phi-4", "gemma-3-12b-it", "qwen3.5-9b", "mamba2-130m-hf"]),
        slots in 1u32..64, chunk in prop_oneof![Just(1u32), 1u32..64, 1u32..1000],
        context in prop_oneof![Just(1u32), 1u32..5000, 1u32..131_072],
        kv in prop::sample::select(&["f16", "f32", "q4_0"]), wide in any::<bool>(),
    ) {
        let (_, model) = open(&format!("configs/{which}.json"));
        let mut profile = Profile::webgpu_default();
        if wide {
            profile.limits.max_buffer_size = 1 << 40;
            profile.limits.max_storage_buffer_binding_size = (1 << 32) - 4;
        }
        let pricer = Pricer::new(&model, &profile);
        let asked = Geometry {
            context, slots, prefill_chunk: chunk, logit_rows: slots, ..Geometry::default_for(8192)
        }.with_kv(kv.parse::<KvPair>().unwrap());
        let Ok(here) = pricer.price(&asked) else { return Ok(()) };
        let Some(line) = Coefficients::new(&pricer, &asked) else { return Ok(()) };
        prop_assert_eq!(io(&line, &asked), i128::from(here.bytes.io), "{:?} {:?}", asked, line.io);
        let total = line.total(context, slots, chunk);
        prop_assert!(total.abs_diff(here.total()) <= line.error_bound(), "{} {}", total, here.total());
        let checked = &line.io.checked;
        prop_assert!(checked.contains(&context) && checked.is_sorted(), "{:?}", line.io);
        prop_assert_eq!([checked[0], checked[checked.len() - 1]], line.io.contexts);
        for there in checked {
            let there = Geometry { context: *there, ..asked.clone() };
            let Ok(price) = pricer.price(&there) else { continue };
            let off = io(&line, &there).abs_diff(i128::from(price.bytes.io));
            prop_assert!(off <= u128::from(line.io.error_bound), "{:?}: {} {:?}", there, off, line.io);
        }
    }
}

/// The formula is the price: weights, KV and recurrent state to the byte, the rest within what it says.
#[test]
fn coefficients_make_the_total() {
    for config in [
        "nemotron-3-nano-30b-a3b",
        "llama-3.1-8b",
        "gemma-3-27b-it-reconstructed",
        "gemma-4-31b-it-nvfp4",
        "gpt-oss-20b",
        "qwen3.5-9b",
        "mamba2-130m-hf",
        "smollm2-135m",
    ] {
        let (_, model) = open(&format!("configs/{config}.json"));
        let profile = Profile::webgpu_default();
        let pricer = Pricer::new(&model, &profile);
        for (slots, chunk, draft_depth) in [(1, 512, 0), (4, 256, 2)] {
            let asked = Geometry {
                slots,
                prefill_chunk: chunk,
                draft_depth,
                logit_rows: slots,
                ..Geometry::default_for(8192)
            };
            let line = Coefficients::new(&pricer, &asked).unwrap();
            let json = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Coefficients>(&json).unwrap(), line);
            assert!(line.activations.error_bound < 1 << 20, "{config} {line:?}");
            for (context, slots, chunk) in [
                (8192, slots, chunk),
                (4096, slots, chunk),
                (32, slots, chunk),
                (32_768, slots, chunk),
                (8192, slots, 64),
                (8192, 2 * slots, chunk),
            ] {
                let at =
                    Geometry { context, slots, prefill_chunk: chunk, logit_rows: slots, ..asked.clone() };
                let price = pricer.price(&at).unwrap();
                assert_eq!(line.weights, price.segment_bytes(Segment::Weights), "{config}");
                assert_eq!(
                    line.recurrent_per_slot * u64::from(slots),
                    price.segment_bytes(Segment::Recurrent),
                    "{config}"
                );
                assert_eq!(
                    line.kv_per_slot(context, chunk) * u64::from(slots),
                    price.segment_bytes(Segment::Kv),
                    "{config}"
                );
                if line.activations.checked.contains(&chunk)
                    && slots == asked.slots
                    && [8192, 4096, 32_768].contains(&context)
                {
                    let (formula, total) = (line.total(context, slots, chunk), price.total());
                    assert!(
                        formula.abs_diff(total) <= line.error_bound(),
                        "{config} {at:?}: {formula} for {total}, {line:?}"
                    );
                }
            }
        }
    }
}

/// Parameters of KV ranges are fewer for some longer contexts: the formula has no fall of them in it, and says between
/// which contexts its bound holds.
#[test]
fn coefficients_do_not_fall_with_the_context() {
    let (_, model) = open("configs/phi-4.json");
    let profile = Profile::webgpu_default();
    let pricer = Pricer::new(&model, &profile);
    for context in [8192, 20_000, 60_000, 82_573] {
        let asked = Geometry {
            context,
            slots: 8,
            prefill_chunk: 511,
            kv: KvFormat::F32,
            logit_rows: 8,
            ..Geometry::default_for(8192)
        };
        let line = Coefficients::new(&pricer, &asked).unwrap();
        assert!(line.io.per_page >= 0, "{context}: {:?}", line.io);
        assert_eq!(line.io.contexts, [1024, context.max(model.context_max)]);
        let [short, long] = line.io.contexts;
        let priced = std::iter::successors(Some(short), |c| Some(2 * c)).take_while(|c| *c < long);
        for there in priced.chain([context, long]) {
            let price = pricer.price(&Geometry { context: there, ..asked.clone() }).unwrap();
            let off = line.total(there, 8, 511).abs_diff(price.total());
            assert!(off <= line.error_bound(), "{context}, {there}: {off}, {:?}", line.io);
        }
    }
}
