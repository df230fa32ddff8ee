//! Plans of hybrids: recurrent pools, stacks of experts, and workspaces that know the chunk but not the prompt.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::check::check_plan;
use common::hybrid::Hybrid;
use common::open;
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::report::Question;
use plimsoll_estimator::report::Report;
use plimsoll_estimator::{Geometry, Overhead, Plan, PlanError};
use plimsoll_kernels::ops::route::Groups;
use plimsoll_kernels::{AttentionShape, Format, KvFormat, Limits, Profile, Ssd, SsmShape};
use plimsoll_models::Model;
use plimsoll_models::graph::Op;
use proptest::prelude::*;

const NANO: &str = "configs/nemotron-3-nano-30b-a3b.json";

fn geometry(context: u32, slots: u32, prefill_chunk: u32, draft_depth: u32) -> Geometry {
    Geometry {
        context,
        slots,
        prefill_chunk,
        kv: KvFormat::F16,
        logit_rows: slots,
        draft_depth,
        priced: Default::default(),
    }
}

fn plan(model: &Model, geometry: &Geometry) -> Plan {
    Plan::new(model, geometry, &Profile::webgpu_default()).unwrap()
}

#[test]
fn recurrent_bytes_are_the_closed_forms() {
    // config, layers, heads, head size, state, groups, taps
    for (config, layers, h, p, n, g, taps) in [
        (NANO, 23u64, 64u64, 64u64, 128u64, 8u64, 4u64),
        ("configs/nemotron-3.5-lightning-30b-a3b-nvfp4.json", 23, 64, 64, 128, 8, 4),
        ("configs/nemotron-3-nano-30b-a3b-nvfp4.json", 23, 64, 64, 128, 8, 4),
        ("configs/nemotron-h-56b-base-8k.json", 54, 256, 64, 256, 8, 4),
        ("configs/mamba2-130m-hf.json", 24, 24, 64, 128, 1, 4),
        ("configs/mamba2-codestral-7b.json", 64, 128, 64, 128, 8, 4),
    ] {
        let (_, model) = open(config);
        let sequence = layers * 4 * (h * p * n + (taps - 1) * (h * p + 2 * g * n));
        for (slots, depth) in [(1u32, 0u32), (3, 0), (1, 2), (2, 3)] {
            let made = plan(&model, &geometry(1024, slots, 32, depth));
            let expected = sequence * u64::from(slots) * u64::from(depth + 1);
            assert_eq!(made.segment_bytes(Segment::Recurrent), expected, "{config} {slots} {depth}");
            assert_eq!(made.model.recurrent, layers as u32);
        }
    }
}

#[test]
fn nemotron_3_nano_keeps_49_930_240_bytes_a_sequence() {
    for config in [NANO, "configs/nemotron-3.5-lightning-30b-a3b-nvfp4.json"] {
        let (checkpoint, model) = open(config);
        let (geometry, profile) = (geometry(8192, 1, 512, 0), Profile::webgpu_default());
        let question = Question {
            checkpoint: &checkpoint,
            model: &model,
            geometry: &geometry,
            profile: &profile,
            budget: None,
            overhead: Overhead::default(),
            company: None,
        };
        let (report, _) = Report::new(&question).unwrap();
        assert_eq!(report.recurrent_bytes_per_slot, Some(49_930_240), "{config}");
        assert_eq!(report.bytes.as_ref().unwrap().recurrent, 49_930_240, "{config}");
        assert_eq!(report.kv_bytes_per_token, Some(6144), "{config}");
        let layers = &report.model.layers;
        assert_eq!((layers.attention_full, layers.recurrent, layers.stateless), (6, 23, 23), "{config}");
    }
}

/// The case that started this: a prefill whose memory grew with the square of the prompt.
#[test]
fn prefill_memory_does_not_know_the_prompt() {
    let (_, model) = open(NANO);
    let activations =
        |context, chunk| plan(&model, &geometry(context, 1, chunk, 0)).segment_bytes(Segment::Activations);
    let at = activations(1_500, 512);
    for context in [3_000, 6_000, 262_144] {
        assert_eq!(activations(context, 512), at, "{context}");
    }
    // Linear in the chunk: equal steps of the chunk cost equal bytes.
    let rows: Vec<u64> = [512, 1024, 1536, 2048].map(|chunk| activations(1_500, chunk)).to_vec();
    let steps: Vec<u64> = rows.windows(2).map(|w| w[1] - w[0]).collect();
    // Rounding of offsets, and tables that grow by whole tiles, are far below a hundredth of a step.
    for step in &steps {
        assert!(step.abs_diff(steps[0]) * 100 < steps[0], "{rows:?} {steps:?}");
    }
}

/// Whatever form the state space takes: what it works in is planned for the chunk.
#[test]
fn engine_bug_01_the_workspace_of_a_long_prompt_is_that_of_its_chunk() {
    let (_, model) = open(NANO);
    let activations = |ssd, context, chunk| {
        let mut profile = Profile::webgpu_default();
        profile.tuning.ssd = ssd;
        let plan = Plan::new(&model, &geometry(context, 1, chunk, 0), &profile).unwrap();
        plan.segment_bytes(Segment::Activations)
    };
    let forms = [Ssd::Sequential, Ssd::Streaming { block: 16 }, Ssd::Kernels { block: 64 }];
    for ssd in forms {
        assert_eq!(activations(ssd, 2_048, 512), activations(ssd, 16_384, 512), "{ssd:?}");
    }
    // The last of them has a workspace, so there is something that could have grown.
    let [none, streaming, kernels] = forms.map(|ssd| activations(ssd, 2_048, 512));
    assert!(none == streaming && kernels > streaming, "{none} {streaming} {kernels}");
}

/// A model with no attention layer costs the same at every context, and says so.
#[test]
fn a_pure_recurrent_model_has_no_slope() {
    let (_, model) = open("configs/mamba2-130m-hf.json");
    let totals =
        [32, 1024, 100_000, 1 << 24].map(|context| plan(&model, &geometry(context, 2, 64, 0)).total());
    assert!(totals.iter().all(|t| *t == totals[0]), "{totals:?}");
}

#[test]
fn a_stack_past_the_binding_limit_is_cut_between_experts() {
    let toy = Hybrid { experts: 128, width: 1856, hidden: 2688, format: Format::BF16, ..Hybrid::small() };
    let model = toy.build();
    let made = plan(&model, &geometry(64, 1, 16, 0));
    check_plan(&model, &made);
    let stacks = made.groups.iter().filter(|g| model.matrices[g.matrices[0].0 as usize].experts > 1);
    for group in stacks {
        assert!(group.shards.len() > 8, "1.28 GB in bindings of 128 MiB");
    }
    for program in &made.programs {
        let up: Vec<_> = program.dispatches.iter().filter(|d| d.label == "up").collect();
        assert!(up.len() >= 10, "a dispatch a shard");
    }
}

#[test]
fn states_past_the_binding_limit_are_cut_between_slots() {
    let ssm = SsmShape { heads: 64, head_dim: 64, state: 128, groups: 8 };
    let model = Hybrid { ssm, ..Hybrid::small() }.build();
    let made = plan(&model, &geometry(64, 80, 80, 1));
    check_plan(&model, &made);
    assert!(made.recurrent.layers[0].segments.len() >= 3);
    // Only the live copy has dispatches: 80 slots in bindings of 64 states.
    for program in &made.programs {
        let tails = program.dispatches.iter().filter(|d| d.label == "conv.tail").count();
        assert_eq!(tails, 2, "{}", program.name);
    }
}

#[test]
fn a_hybrid_that_contradicts_itself_is_an_error() {
    type Edit = fn(&mut Op);
    let edits: [(&str, Edit); 11] = [
        ("groups", |op| {
            if let Op::Ssd { ssd, .. } = op {
                ssd.shape.groups = 3
            }
        }),
        ("no groups", |op| {
            if let Op::Ssd { ssd, .. } = op {
                ssd.shape.groups = 0
            }
        }),
        ("columns", |op| {
            if let Op::Ssd { ssd, .. } = op {
                ssd.dt_column += 1
            }
        }),
        ("conv column", |op| {
            if let Op::Conv { conv, .. } = op {
                conv.column = u32::MAX
            }
        }),
        ("norm groups", |op| {
            if let Op::GatedNorm { norm, .. } = op {
                norm.groups = 5
            }
        }),
        ("top", |op| {
            if let Op::Route { router, .. } = op {
                router.top = 9
            }
        }),
        ("top 0", |op| {
            if let Op::Route { router, .. } = op {
                router.top = 0
            }
        }),
        ("kept groups", |op| {
            if let Op::Route { router, .. } = op {
                router.groups = Some(Groups { count: 4, keep: 5 });
            }
        }),
        ("expert scale", |op| {
            if let Op::Route { router, .. } = op {
                router.expert_scale = Some(plimsoll_models::graph::VectorId(0));
            }
        }),
        ("expert bias", |op| {
            if let Op::Experts { bias, .. } = op {
                *bias = Some(plimsoll_models::graph::VectorId(0));
            }
        }),
        ("state", |op| {
            if let Op::Attention { attention, .. } = op {
                attention.state = plimsoll_models::graph::StateId(0);
            }
        }),
    ];
    for (name, edit) in edits {
        let mut model = Hybrid::small().build();
        model.graph.ops.iter_mut().for_each(|(_, op)| edit(op));
        let error = Plan::new(&model, &geometry(64, 1, 8, 0), &Profile::webgpu_default()).unwrap_err();
        assert!(matches!(error, PlanError::Graph { .. }), "{name}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_hybrid_is_planned_whole(
        context in 1u32..3000,
        slots in 1u32..12,
        chunk in 1u32..200,
        depth in 0u32..4,
        heads in prop::sample::select(&[(1u32, 1u32), (4, 2), (6, 3), (5, 5), (7, 1)]),
        head_dim in 1u32..40,
        state in 1u32..40,
        taps in 1u32..6,
        experts in prop::sample::select(&[(1u32, 1u32), (3, 3), (8, 2), (40, 8), (512, 22)]),
        binding in prop::sample::select(&[1u64 << 18, 1 << 20, 128 << 20]),
    ) {
        let ssm = SsmShape { heads: heads.0, head_dim, state, groups: heads.1 };
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 32 };
        let (experts, top) = experts;
        let model = Hybrid { ssm, shape, taps, experts, top, ..Hybrid::small() }.build();
        let limits = Limits { max_storage_buffer_binding_size: binding, ..Limits::webgpu_default() };
        let profile = Profile::new("test", limits, None, false);
        match Plan::new(&model, &geometry(context, slots, chunk, depth), &profile) {
            Ok(plan) => check_plan(&model, &plan),
            Err(PlanError::Limit { need, have, .. }) => prop_assert!(need > have),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
