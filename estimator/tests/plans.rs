//! Plans: closed forms, limits, shards, and the promises that hold for every geometry.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::check::check_plan;
use common::{Toy, open};
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::report::{bytes, kv_bytes_per_token};
use plimsoll_estimator::{Geometry, Plan, PlanError};
use plimsoll_kernels::{AttentionShape, Format, KvFormat, Limits, Profile, StepShape};
use plimsoll_models::Model;
use plimsoll_models::model::State;
use proptest::prelude::*;

fn geometry(context: u32, slots: u32, prefill_chunk: u32, kv: KvFormat) -> Geometry {
    Geometry {
        context,
        slots,
        prefill_chunk,
        kv,
        logit_rows: slots,
        draft_depth: 0,
        priced: Default::default(),
    }
}

fn plan(model: &Model, geometry: &Geometry) -> Plan {
    Plan::new(model, geometry, &Profile::webgpu_default()).unwrap()
}

#[test]
fn kv_bytes_are_the_closed_forms() {
    let size = |kv| match kv {
        KvFormat::F32 => (4u64, 1u64),
        KvFormat::F16 => (2, 1),
        KvFormat::Q8_0 => (34, 32),
    };
    // config, full layers, sliding layers, Hk, E, window
    for (config, full, sliding, heads, dim, window) in [
        ("configs/llama-3.1-8b.json", 32, 0, 8, 128, 0),
        ("configs/qwen3-8b.json", 36, 0, 8, 128, 0),
        ("configs/smollm2-135m.json", 30, 0, 3, 64, 0),
        ("configs/gemma-3-270m.json", 3, 15, 1, 256, 512),
        ("configs/gemma-3-4b-it-sparse.json", 5, 29, 4, 256, 1024),
        ("configs/gemma-3-27b-it-reconstructed.json", 10, 52, 16, 128, 1024),
    ] {
        let (_, model) = open(config);
        for kv in KvFormat::ALL {
            for (context, slots, chunk) in [(8192u64, 1u64, 512u64), (4096, 3, 33)] {
                let (bytes_of, per) = size(kv);
                let cell = heads * 2 * dim * bytes_of / per;
                let ring =
                    if sliding == 0 { 0 } else { context.min(window + chunk - 1).next_multiple_of(32) };
                let expected = slots * cell * (full * context + sliding * ring);
                let geometry = geometry(context as u32, slots as u32, chunk as u32, kv);
                let plan = plan(&model, &geometry);
                assert_eq!(plan.segment_bytes(Segment::Kv), expected, "{config} {kv} {geometry:?}");
                let parts = bytes(&plan).kv_by_kind;
                assert_eq!(parts.full, slots * cell * full * context, "{config}");
                assert_eq!(parts.full + parts.sliding, expected, "{config}");
                assert_eq!(kv_bytes_per_token(&model, &geometry), cell * full, "{config}");
            }
        }
    }
}

#[test]
fn parameters_are_those_published() {
    assert_eq!(open("configs/smollm2-135m.json").1.parameters(), 134_515_008);
    // 8,030,261,248 is what the public model card counts.
    assert_eq!(open("configs/llama-3.1-8b.json").1.parameters(), 8_030_261_248);
    assert_eq!(open("configs/gemma-3-270m.json").1.parameters(), 268_098_176);
}

#[test]
fn weights_are_the_records_of_every_row() {
    let (checkpoint, model) = open("golden/gguf_llama/model.gguf");
    let plan = plan(&model, &geometry(64, 1, 8, KvFormat::F32));
    let rows: u64 = model
        .matrices
        .iter()
        .map(|m| u64::from(m.rows) * plimsoll_kernels::Record::new(m.format, m.cols).unwrap().stride())
        .sum();
    let placed: u64 = plan.groups.iter().flat_map(|g| &g.shards).map(|s| s.view.bytes).sum();
    assert_eq!(placed, rows);
    // The device holds what the file holds, but for the padding of rows to 16 bytes and of views to 256.
    let stored = checkpoint.checkpoint_bytes();
    let device = plan.segment_bytes(Segment::Weights);
    let rows: u64 = model.matrices.iter().map(|m| u64::from(m.rows)).sum();
    let views = 256 * (plan.groups.len() as u64 + 1);
    assert!(device + 64 >= stored && device < stored + 16 * rows + views, "{device} against {stored}");
}

#[test]
fn every_family_plans() {
    for path in [
        "golden/llama",
        "golden/qwen3",
        "golden/gemma3_text",
        "golden/gguf_llama/model.gguf",
        "golden/gguf_qwen3/model.gguf",
        "configs/llama-3.1-8b.json",
        "configs/gemma-3-27b-it-reconstructed.json",
        "configs/qwen3-8b.json",
    ] {
        let (_, model) = open(path);
        check_plan(
            &model,
            &plan(&model, &Geometry { context: 256, ..Geometry::default_for(model.context_max) }),
        );
    }
}

#[test]
fn plans_serialise() {
    let (_, model) = open("golden/gguf_llama/model.gguf");
    let made = plan(&model, &geometry(128, 2, 16, KvFormat::Q8_0.min(KvFormat::F16)));
    let json = serde_json::to_string(&made).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), made);
}

#[test]
fn a_whole_plan_reads_well() {
    let (_, model) = open("golden/gemma3_text");
    let made = plan(&model, &geometry(96, 2, 16, KvFormat::F16));
    insta::assert_snapshot!(made.to_string());
}

/// A binding may hold 128 MiB: one row group more is a second shard, in order and whole.
#[test]
fn engine_bug_06b_a_tensor_past_the_binding_limit_is_sharded() {
    // 1,048,578 rows of 128 bytes are 134,217,728 + 256 bytes.
    let toy = Toy { vocab: 1_048_578, hidden: 32, ..Toy::small() };
    let model = toy.build();
    let made = plan(&model, &geometry(64, 1, 16, KvFormat::F32));
    check_plan(&model, &made);
    let table = &made.groups[0];
    assert_eq!(u64::from(table.rows) * table.record.stride(), 134_217_728 + 256);
    assert!(table.shards.len() >= 2);
}

#[test]
fn engine_bug_06c_a_2_5_gb_embedding_is_planned_under_2_gib() {
    let toy = Toy { vocab: 248_320, hidden: 5120, ffn: 512, format: Format::BF16, ..Toy::small() };
    let model = toy.build();
    let limits = Limits {
        max_buffer_size: (1 << 31) - 1,
        max_storage_buffer_binding_size: (1 << 31) - 1,
        ..Limits::webgpu_default()
    };
    let profile = Profile::new("2 GiB - 1", limits, None, false);
    let made = Plan::new(&model, &geometry(64, 1, 16, KvFormat::F16), &profile).unwrap();
    check_plan(&model, &made);
    let table = &made.groups[0];
    assert_eq!(table.shards.iter().map(|s| s.view.bytes).sum::<u64>(), 2_542_796_800);
    assert!(table.shards.len() >= 2);
}

#[test]
fn a_part_that_cannot_be_split_names_its_limit() {
    let model = Toy::small().build();
    let limits = Limits { max_storage_buffer_binding_size: 8192, ..Limits::webgpu_default() };
    let profile = Profile::new("tiny bindings", limits, None, false);
    let error = Plan::new(&model, &geometry(64, 1, 512, KvFormat::F32), &profile).unwrap_err();
    let PlanError::Limit { name, need, have, .. } = &error else { panic!("{error}") };
    assert!(*need > *have && *have == 8192 && !name.is_empty(), "{error}");
}

/// Sixteen of 64 layers hold KV: the estimate must not count the others.
#[test]
fn engine_bug_17_only_layers_with_kv_are_priced() {
    let shape = AttentionShape { heads: 24, kv_heads: 4, head_dim: 256 };
    let toy = Toy { shape, states: vec![State::KvFull { shape }; 16], ..Toy::small() };
    let mut model = toy.build();
    model.layers = 64;
    for (kv, bytes) in [(KvFormat::F32, 4), (KvFormat::F16, 2)] {
        let made = plan(&model, &geometry(8192, 1, 32, kv));
        assert_eq!(made.segment_bytes(Segment::Kv), 2 * 16 * 4 * 256 * 8192 * bytes);
        assert_eq!(made.model.stateless, 48);
    }
}

/// Rows of a 2-byte tensor at odd places: views are cut at whole 256 bytes only.
#[test]
fn engine_bug_21_views_are_never_unaligned() {
    let toy = Toy { vocab: 1_000_003, hidden: 70, ffn: 33, format: Format::F16, ..Toy::small() };
    let model = toy.build();
    let profile = Profile { work_budget: 1 << 22, ..Profile::webgpu_default() };
    let made = Plan::new(&model, &geometry(64, 1, 16, KvFormat::F16), &profile).unwrap();
    check_plan(&model, &made);
    let pieces = made.programs.last().unwrap().dispatches.iter().filter(|d| d.label == "logits").count();
    assert!(pieces > 10, "the head is cut in pieces by the work budget: {pieces}");
}

#[test]
fn dispatches_keep_to_the_work_budget() {
    let (_, model) = open("configs/llama-3.1-8b.json");
    let profile = Profile::webgpu_default();
    let made = Plan::new(&model, &Geometry::default_for(131_072), &profile).unwrap();
    let shape = StepShape { tokens: 512, logit_rows: 1, tiles: vec![512; 8], kv_max: 8192 };
    for dispatch in &made.programs.last().unwrap().dispatches {
        let flops = made.flops(dispatch, &shape);
        assert!(flops <= profile.work_budget + profile.work_budget / 8, "{} {flops}", dispatch.label);
    }
}

/// A watchdog acts per submit, and what is submitted is one dispatch at least: 2,048 queries of 24 heads of 256 over 53,248
/// keys would be 2.68 TFLOP in one, and so would the keys of a longer context, or the delta rule at 20,000.
#[test]
fn engine_bug_05_no_dispatch_of_a_long_prefill_outlasts_a_watchdog() {
    let (_, model) = open("configs/qwen3.5-27b.json");
    let (queries, heads, size) = (2_048_u32, 24_u64, 256_u64);
    for cpu in [false, true] {
        // 2,048 rows of two products of 17,408 are 285 MB.
        let limits = Limits {
            max_storage_buffer_binding_size: (2 << 30) - 256,
            max_buffer_size: 4 << 30,
            ..Limits::webgpu_default()
        };
        let profile = Profile::new("long", limits, None, cpu);
        let budget = profile.work_budget;
        let made = Plan::new(&model, &geometry(131_072, 1, queries, KvFormat::F16), &profile).unwrap();
        let program = made.program(queries).unwrap();
        for keys in [20_480_u32, 53_248, 65_536 + queries, 131_072] {
            let shape = StepShape { tokens: queries, logit_rows: 1, tiles: vec![queries; 8], kv_max: keys };
            let ranges = u64::from(keys.div_ceil(made.ranges.tokens));
            assert!(ranges <= made.ranges.count.into(), "{keys} keys are in reach");
            let (mut attention, mut all) = (0, 0);
            for dispatch in &program.dispatches {
                let flops = made.flops(dispatch, &shape);
                assert!(flops <= budget, "{} over {keys} keys: {flops} of {budget}", dispatch.label);
                let times = if dispatch.ranged { ranges } else { 1 };
                all += flops * times;
                if dispatch.ranged {
                    attention += flops * times;
                }
            }
            // A quarter of the layers attends: nothing of the work has been left out.
            let layers = u64::from(model.layers) / 4;
            let whole = layers * u64::from(queries) * heads * size * 4 * u64::from(keys);
            assert!(attention >= whole, "{attention} of {whole}");
            // A submit takes dispatches until the budget is reached, so there are as many chances to cancel.
            assert!(all / budget > 1_000, "{all} of {budget}");
        }
    }
}

/// A cold pipeline takes up to 600 ms to compile, and each dispatch of a decode step waits for the one before it.
#[test]
fn pipelines_and_dispatches_keep_to_their_budgets() {
    for (path, per_layer) in [
        ("golden/llama", 10),
        ("golden/qwen3", 10),
        ("golden/gemma3_text", 12),
        ("golden/gguf_llama/model.gguf", 14),
        ("golden/gguf_qwen3/model.gguf", 14),
        ("configs/smollm2-135m.json", 10),
        ("configs/gemma-3-270m.json", 12),
    ] {
        let (_, model) = open(path);
        let made = plan(&model, &Geometry { context: 512, ..Geometry::default_for(model.context_max) });
        assert!(made.kernels.len() <= 40, "{path}: {} pipelines", made.kernels.len());
        // Beside the layers: embedding, rows, norm, head (in shards), two stages of each way to sample.
        let decode = made.programs[0].dispatches.len();
        assert!(decode <= per_layer * model.layers as usize + 12, "{path}: {decode} dispatches");
    }
}

#[test]
fn geometry_out_of_range_is_named() {
    let model = Toy::small().build();
    let profile = Profile::webgpu_default();
    for (bad, field) in [
        (geometry(0, 1, 1, KvFormat::F32), "context"),
        (geometry(64, 0, 1, KvFormat::F32), "slots"),
        (geometry(64, 1, 0, KvFormat::F32), "prefill_chunk"),
        (geometry(u32::MAX, 1, 1, KvFormat::F32), "context"),
        (geometry(64, u32::MAX, 1, KvFormat::F32), "slots"),
    ] {
        let error = Plan::new(&model, &bad, &profile).unwrap_err();
        assert!(matches!(error, PlanError::Geometry { field: f, .. } if f == field), "{error}");
    }
    let error = Plan::new(&model, &geometry(64, 1, 1, KvFormat::Q8_0), &profile).unwrap_err();
    assert!(matches!(error, PlanError::KvFormat { head_dim: 16, .. }), "{error}");
}

#[test]
fn a_graph_that_contradicts_itself_is_an_error() {
    let toy = Toy::small();
    let profile = Profile::webgpu_default();
    let geometry = geometry(64, 1, 8, KvFormat::F32);
    let mut narrow = toy.build();
    narrow.graph.tensors[0].width += 1;
    let mut unknown = toy.build();
    unknown.matrices.truncate(3);
    let mut vectors = toy.build();
    vectors.vectors[0].len -= 1;
    let mut early = toy.build();
    early.graph.ops.remove(0);
    let mut ratio = toy.build();
    for (_, op) in &mut ratio.graph.ops {
        if let plimsoll_models::graph::Op::Attention { attention, .. } = op {
            attention.shape.heads = 3;
        }
    }
    for model in [narrow, unknown, vectors, early, ratio] {
        let error = Plan::new(&model, &geometry, &profile).unwrap_err();
        assert!(matches!(error, PlanError::Graph { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_geometry_is_planned_whole(
        context in 1u32..3000,
        slots in 1u32..7,
        chunk in 1u32..200,
        window in prop::option::of(1u32..300),
        kv in prop::sample::select(&[KvFormat::F32, KvFormat::F16, KvFormat::Q8_0]),
        format in prop::sample::select(&[Format::F32, Format::Q4_0, Format::Q8_0, Format::BF16]),
        heads in prop::sample::select(&[(1u32, 1u32), (7, 1), (6, 2), (5, 5)]),
        binding in prop::sample::select(&[1u64 << 18, 1 << 20, 128 << 20]),
    ) {
        let shape = AttentionShape { heads: heads.0, kv_heads: heads.1, head_dim: 32 };
        let mut states = vec![State::KvFull { shape }];
        states.extend(window.map(|window| State::KvSliding { shape, window }));
        let model = Toy { vocab: 1000, shape, states, format, ..Toy::small() }.build();
        let limits = Limits { max_storage_buffer_binding_size: binding, ..Limits::webgpu_default() };
        let profile = Profile::new("test", limits, None, false);
        match Plan::new(&model, &geometry(context, slots, chunk, kv), &profile) {
            Ok(plan) => check_plan(&model, &plan),
            Err(PlanError::Limit { need, have, .. }) => prop_assert!(need > have),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn every_page_of_context_costs_more_and_past_the_window_as_printed(
        pages in 1u32..80, slots in 1u32..4, chunk in 1u32..64, window in 1u32..128,
    ) {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 32 };
        let states = vec![State::KvFull { shape }, State::KvSliding { shape, window }];
        let model = Toy { shape, states, ..Toy::small() }.build();
        let at = |pages: u32| plan(&model, &geometry(pages * 32, slots, chunk, KvFormat::F16));
        let (a, b) = (at(pages), at(pages + 1));
        prop_assert!(a.total() < b.total());
        if pages * 32 > window + chunk {
            let slope = b.segment_bytes(Segment::Kv) - a.segment_bytes(Segment::Kv);
            prop_assert_eq!(slope, u64::from(slots) * 32 * kv_bytes_per_token(&model, &geometry(32, 1, 1, KvFormat::F16)));
        }
    }
}
