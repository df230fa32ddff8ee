//! Plans of layers with heads of different numbers and sizes, of keys that serve as values, and of keys that layers
//! share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::check::check_plan;
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::{Geometry, Plan, PlanError};
use plimsoll_kernels::step::PAGE;
use plimsoll_kernels::{AttentionShape, Format, Kernel, KvFormat, Profile};
use plimsoll_models::Model;
use plimsoll_models::graph::{
    Attention, ClampedGate, GraphBuilder, HeadNorm, Keys, MatrixId, Op, RopeId, Rotation, Rows, StateId,
    VectorId,
};
use plimsoll_models::model::{Matrix, Source, State, Transform, Vector};
use plimsoll_models::rope::{Rope, Scaling};

const HIDDEN: u32 = 32;
const VOCAB: u32 = 96;
const LOCAL: AttentionShape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 16 };
const GLOBAL: AttentionShape = AttentionShape { heads: 6, kv_heads: 1, head_dim: 64 };
const WINDOW: u32 = 40;

/// Layers as gemma4 has them: sliding ones of small heads and full ones of large heads whose keys are the values, and
/// then two that share their keys, the last with more query heads.
fn model() -> Model {
    let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
    let mut matrix = |rows: u32, cols: u32| {
        let source = Source::tensor(format!("m{}", matrices.len()), rows);
        matrices.push(Matrix { source, rows, cols, format: Format::F32, experts: 1 });
        MatrixId(matrices.len() as u32 - 1)
    };
    let mut vector = |len: u32| {
        let tensor = format!("v{}", vectors.len());
        vectors.push(Vector { tensor, len, format: Format::F32, transform: Transform::None, joined: None });
        VectorId(vectors.len() as u32 - 1)
    };
    let mut g = GraphBuilder::new();
    let table = matrix(VOCAB, HIDDEN);
    let x = g.embed(table, HIDDEN, 1.0);
    let wide = AttentionShape { heads: 20, ..GLOBAL };
    let layers = [
        (LOCAL, 0, Keys::Own),
        (GLOBAL, 1, Keys::Values),
        (LOCAL, 0, Keys::Shared),
        (wide, 1, Keys::Shared),
        (wide, 1, Keys::Shared),
    ];
    for (layer, (shape, state, keys)) in layers.into_iter().enumerate() {
        g.scope(format!("layers.{layer}"));
        let width = keys.width(&shape);
        let qkv = g.linear("qkv", x, &[matrix(width, HIDDEN)], width);
        let norm = |weight| Some(HeadNorm { weight, plus_one: false, eps: 1e-6 });
        let writes = keys != Keys::Shared;
        // The last layer does nothing to its queries.
        let plain = layer == 4;
        let attention = Attention {
            q_norm: if plain { None } else { norm(vector(shape.head_dim)) },
            k_norm: if writes { norm(vector(shape.head_dim)) } else { None },
            v_norm: writes.then_some(1e-6),
            rotation: (!plain).then_some(Rotation { rope: RopeId(state), interleaved: false }),
            keys,
            sinks: Some(vector(shape.heads)),
            ..Attention::plain(shape, StateId(state), 1.0)
        };
        let h = g.attention(qkv, attention);
        g.linear_add("o", h, &[matrix(HIDDEN, shape.heads * shape.head_dim)], x);
        let h = g.linear("gate_up", x, &[matrix(48, HIDDEN)], 48);
        let h = g.clamped_gate(h, ClampedGate { limit: 7.0, alpha: 1.702, interleaved: true });
        g.linear_add("down", h, &[matrix(HIDDEN, 24)], x);
    }
    g.scope("");
    let rows = g.select_rows(x);
    let logits = g.linear("logits", rows, &[table], VOCAB);
    Model {
        name: "mixed".into(),
        architecture: "mixed".into(),
        vocab: VOCAB,
        hidden: HIDDEN,
        context_max: 4096,
        layers: 5,
        matrices,
        vectors,
        states: vec![State::KvSliding { shape: LOCAL, window: WINDOW }, State::KvFull { shape: GLOBAL }],
        ropes: vec![
            Rope::new(1e4, LOCAL.head_dim, Scaling::None),
            Rope::proportional(1e6, GLOBAL.head_dim, 8, Scaling::None),
        ],
        notes: vec![],
        extras: Default::default(),
        graph: g.finish(logits),
    }
}

fn geometry(context: u32, slots: u32, prefill_chunk: u32) -> Geometry {
    Geometry {
        context,
        slots,
        prefill_chunk,
        kv: KvFormat::F16,
        logit_rows: slots,
        draft_depth: 0,
        priced: Default::default(),
    }
}

fn plan(model: &Model) -> Result<Plan, PlanError> {
    Plan::new(model, &geometry(1000, 2, 64), &Profile::webgpu_default())
}

#[test]
fn heads_of_different_sizes_are_planned_whole() {
    let model = model();
    let plan = plan(&model).unwrap();
    check_plan(&model, &plan);
    // Pages of each kind times what a page of its one layer takes; the layers that share keys keep nothing.
    let page = |shape: AttentionShape| u64::from(shape.kv_heads * shape.head_dim * 2 * 2 * PAGE);
    let cells = |tokens: u32| u64::from(2 * tokens.div_ceil(PAGE));
    let expected = cells(WINDOW + 64 - 1) * page(LOCAL) + cells(1000) * page(GLOBAL);
    assert_eq!(plan.segment_bytes(Segment::Kv), expected);
    assert_eq!((plan.model.attention_full, plan.model.attention_sliding), (1, 1));
}

#[test]
fn a_shared_layer_prepares_its_queries_and_reads() {
    let model = model();
    let plan = plan(&model).unwrap();
    for program in &plan.programs {
        let labels = |label: &str| program.dispatches.iter().filter(|d| d.label == label).collect::<Vec<_>>();
        for layer in 0..4 {
            assert_eq!(labels(&format!("layers.{layer}.attention.rope_kv")).len(), 1, "{}", program.name);
        }
        assert!(labels("layers.4.attention.rope_kv").is_empty(), "nothing is to be done");
        for (layer, other) in [(2, 0), (3, 1), (4, 1)] {
            let view = |layer: u32| labels(&format!("layers.{layer}.attention"))[0].views[1];
            assert_eq!(view(layer), view(other), "the same pages");
        }
        // Workgroups of a token: query heads and KV heads, or query heads alone.
        let per = |layer: u32| labels(&format!("layers.{layer}.attention.rope_kv"))[0].workgroups.per;
        assert_eq!([0, 1, 2, 3].map(per), [6, 7, 4, 20]);
        // Sinks are bound where the division is.
        let merges = program
            .dispatches
            .iter()
            .filter(|d| d.label.ends_with(".merge"))
            .filter(|d| matches!(plan.kernels[d.kernel as usize], Kernel::AttentionMerge(_)));
        let with = merges.clone().filter(|d| d.views.len() == 3).count();
        assert_eq!(with, merges.count());
        let attentions = program
            .dispatches
            .iter()
            .filter(|d| matches!(plan.kernels[d.kernel as usize], Kernel::Attention(_)));
        let with = attentions.filter(|d| d.views.len() == 5).count();
        assert_eq!(with, if program.max_tokens <= 8 { 0 } else { 5 }, "{}", program.name);
    }
}

#[test]
fn an_attention_that_contradicts_itself_is_an_error() {
    type Edit = fn(usize, &mut Attention);
    let edits: [(&str, Edit); 9] = [
        ("nobody wrote the keys", |layer, a| {
            if layer < 2 {
                a.keys = Keys::Shared;
                (a.k_norm, a.v_norm) = (None, None);
            }
        }),
        ("the keys have two writers", |layer, a| {
            if layer == 2 {
                a.keys = Keys::Own;
            }
        }),
        ("shared values are normed again", |layer, a| {
            if layer == 2 {
                a.v_norm = Some(1e-6);
            }
        }),
        ("shared keys are normed again", |layer, a| {
            if layer == 2 {
                a.k_norm = a.q_norm;
            }
        }),
        ("shared keys of another size", |layer, a| {
            if layer == 2 {
                a.shape.head_dim = 8;
            }
        }),
        ("shared keys of another number", |layer, a| {
            if layer == 2 {
                a.shape.kv_heads = 1;
            }
        }),
        ("a projection of other columns", |layer, a| {
            if layer == 1 {
                a.keys = Keys::Own;
            }
        }),
        ("sinks of another number", |layer, a| {
            if layer == 0 {
                a.sinks = a.q_norm.map(|n| n.weight);
            }
        }),
        ("no such sinks", |layer, a| {
            if layer == 0 {
                a.sinks = Some(VectorId(999));
            }
        }),
    ];
    for (name, edit) in edits {
        let mut model = model();
        let mut layer = 0;
        for (_, op) in &mut model.graph.ops {
            if let Op::Attention { attention, .. } = op {
                edit(layer, attention);
                layer += 1;
            }
        }
        let error = plan(&model).expect_err(name);
        assert!(matches!(error, PlanError::Graph { .. }), "{name}: {error}");
    }
}

#[test]
fn a_clamped_gate_that_contradicts_itself_is_an_error() {
    type Edit = fn(&mut Model, usize);
    fn gate(model: &mut Model, at: usize) -> &mut ClampedGate {
        match &mut model.graph.ops[at].1 {
            Op::ClampedGate { gate, .. } => gate,
            other => panic!("{other:?}"),
        }
    }
    let edits: [(&str, Edit); 5] = [
        ("no bound", |m, at| gate(m, at).limit = 0.0),
        ("a bound that is no number", |m, at| gate(m, at).limit = f32::NAN),
        ("an endless factor", |m, at| gate(m, at).alpha = f32::INFINITY),
        ("another width", |m, at| {
            let out = m.graph.ops[at].1.writes()[0];
            m.graph.tensors[out.0 as usize].width = 25;
        }),
        ("other rows", |m, at| {
            let out = m.graph.ops[at].1.writes()[0];
            m.graph.tensors[out.0 as usize].rows = Rows::Choices(2);
        }),
    ];
    for (name, edit) in edits {
        let mut model = model();
        let at = model.graph.ops.iter().position(|(_, op)| matches!(op, Op::ClampedGate { .. })).unwrap();
        edit(&mut model, at);
        let error = plan(&model).expect_err(name);
        assert!(matches!(error, PlanError::Graph { .. }), "{name}: {error}");
    }
}
