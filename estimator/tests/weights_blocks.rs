//! DeepSeek-V3 as published: FP8 with a scale for each 128 × 128 values, tensor by tensor.
//!
//! The tensors are listed by hand here, by the sizes of the published configuration; the totals are the Hub's census of
//! dtypes: 680,571,043,840 F8, 3,918,786,560 BF16 and 41,555,600 F32.
#![allow(clippy::unwrap_used)]

use plimsoll_estimator::weights::{Entry, bytes_by_part, inventory, recast};
use plimsoll_kernels::Format;
use plimsoll_models::graph::{Graph, GraphBuilder};
use plimsoll_models::model::{Beside, Latent, Matrix, Part, Source, State, Transform, Vector};
use plimsoll_models::{Checkpoint, Model};

const HIDDEN: u32 = 7168;
const VOCAB: u32 = 129_280;
const LATENT: Latent = Latent { heads: 128, rank: 512, rope: 64, nope: 128, value: 128 };

/// A tensor: name, matrices of it, rows, columns; a vector has one row.
type Tensor = (String, u32, u32, u32);

/// The tensors of a layer with dense MLPs or experts.
fn layer(l: u32, dense: bool) -> Vec<Tensor> {
    let of = |part: &str, n: u32, rows: u32, cols: u32| (format!("model.layers.{l}.{part}"), n, rows, cols);
    let Latent { heads, rank, rope, nope, value } = LATENT;
    let mut all = vec![
        of("self_attn.q_a_proj.weight", 1, 1536, HIDDEN),
        of("self_attn.q_b_proj.weight", 1, heads * (nope + rope), 1536),
        of("self_attn.kv_a_proj_with_mqa.weight", 1, rank + rope, HIDDEN),
        of("self_attn.kv_b_proj.weight", 1, heads * (nope + value), rank),
        of("self_attn.o_proj.weight", 1, HIDDEN, heads * value),
        of("self_attn.q_a_layernorm.weight", 1, 1, 1536),
        of("self_attn.kv_a_layernorm.weight", 1, 1, rank),
        of("input_layernorm.weight", 1, 1, HIDDEN),
        of("post_attention_layernorm.weight", 1, 1, HIDDEN),
    ];
    if dense {
        all.push(of("mlp.gate_proj.weight", 1, 18432, HIDDEN));
        all.push(of("mlp.up_proj.weight", 1, 18432, HIDDEN));
        all.push(of("mlp.down_proj.weight", 1, HIDDEN, 18432));
    } else {
        all.push(of("mlp.gate.weight", 1, 256, HIDDEN));
        all.push(of("mlp.gate.e_score_correction_bias", 1, 1, 256));
        all.push(of("mlp.experts.gate_up_proj", 256, 2 * 2048, HIDDEN));
        all.push(of("mlp.experts.down_proj", 256, HIDDEN, 2048));
        all.push(of("mlp.shared_experts.gate_proj.weight", 1, 2048, HIDDEN));
        all.push(of("mlp.shared_experts.up_proj.weight", 1, 2048, HIDDEN));
        all.push(of("mlp.shared_experts.down_proj.weight", 1, HIDDEN, 2048));
    }
    all
}

fn graph() -> Graph {
    let mut builder = GraphBuilder::new();
    let x = builder.embed(plimsoll_models::graph::MatrixId(0), HIDDEN, 1.0);
    builder.finish(x)
}

fn model() -> Model {
    let whole = |name: &str, rows| (name.to_owned(), 1, rows, HIDDEN);
    let mut tensors = vec![
        whole("model.embed_tokens.weight", VOCAB),
        whole("lm_head.weight", VOCAB),
        whole("model.norm.weight", 1),
    ];
    tensors.extend((0..61).flat_map(|l| layer(l, l < 3)));
    let (vectors, matrices): (Vec<Tensor>, Vec<Tensor>) = tensors.into_iter().partition(|t| t.2 == 1);
    let matrix = |(name, experts, rows, cols): Tensor| Matrix {
        source: Source::tensor(name, experts * rows),
        rows: experts * rows,
        cols,
        format: Format::BF16,
        experts,
    };
    let vector = |(tensor, _, _, len): Tensor| Vector {
        tensor,
        len,
        format: Format::BF16,
        transform: Transform::None,
        joined: None,
    };
    // The layer that drafts: the same, with an embedding and a head of its own.
    let mut draft = layer(61, false);
    for (part, rows, cols) in [
        ("embed_tokens.weight", VOCAB, HIDDEN),
        ("shared_head.head.weight", VOCAB, HIDDEN),
        ("eh_proj.weight", HIDDEN, 2 * HIDDEN),
        ("enorm.weight", 1, HIDDEN),
        ("hnorm.weight", 1, HIDDEN),
        ("shared_head.norm.weight", 1, HIDDEN),
    ] {
        draft.push((format!("model.layers.61.{part}"), 1, rows, cols));
    }
    let beside = |(name, count, rows, cols): Tensor| Beside {
        name,
        part: Part::Draft,
        count: count.into(),
        rows: rows.into(),
        cols: cols.into(),
        format: Format::BF16,
    };
    let mut model = Model {
        name: "DeepSeek-V3".into(),
        architecture: "deepseek_v3".into(),
        vocab: VOCAB,
        hidden: HIDDEN,
        context_max: 163_840,
        layers: 61,
        matrices: matrices.into_iter().map(matrix).collect(),
        vectors: vectors.into_iter().map(vector).collect(),
        states: vec![State::KvLatent { latent: LATENT }; 61],
        ropes: Vec::new(),
        graph: graph(),
        notes: Vec::new(),
        extras: Default::default(),
    };
    model.extras.tensors = draft.into_iter().map(beside).collect();
    model
}

fn checkpoint() -> Checkpoint {
    let config = br#"{"model_type": "deepseek_v3", "torch_dtype": "bfloat16", "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}}"#;
    Checkpoint::from_config_bytes(config, "DeepSeek-V3").unwrap()
}

#[test]
fn deepseek_v3_has_its_published_bytes() {
    let (checkpoint, model) = (checkpoint(), model());
    let entries = inventory(&checkpoint, &model);
    let values = |format: &str| -> u64 {
        let of = entries.iter().filter(|e| e.format == format);
        of.map(|e| e.rows * e.cols * e.count).sum()
    };
    assert_eq!(
        [values("f8_e4m3"), values("bf16"), values("f32")],
        [680_571_043_840, 3_918_786_560, 41_555_600]
    );
    assert_eq!(bytes_by_part(&checkpoint, &model).total(), 688_574_839_360);
    // As llama.cpp counts them, without the layer that drafts.
    let text = entries.iter().filter(|e| e.part == Part::Text).map(Entry::parameters).sum::<u64>();
    assert_eq!(text, 671_026_419_200);
    assert!(entries.iter().all(|e| e.exact));
}

/// GGUF's writer parts the latent's keys, whose rows of 128 values are no blocks of 256, from its values.
#[test]
fn keys_of_a_latent_fall_back_and_values_do_not() {
    let model = model();
    let recast = recast(&model, "q4_k_m", &checkpoint()).unwrap();
    let parts: Vec<_> =
        recast.entries.iter().filter(|e| e.name == "model.layers.0.self_attn.kv_b_proj.weight").collect();
    let heads = u64::from(LATENT.heads);
    assert_eq!((parts[0].format.as_str(), parts[0].rows, parts[0].cols), ("q5_0", heads * 512, 128));
    assert_eq!((parts[1].format.as_str(), parts[1].rows, parts[1].cols), ("q4_k", heads * 128, 512));
    assert!(recast.notes.iter().any(|note| note.contains("latent")), "{:?}", recast.notes);
    assert_eq!(recast.stored.draft, 0);
}

/// The family's own model of the published configuration says the same.
#[test]
fn the_published_configuration_implies_them() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/configs/deepseek-v3.json");
    let checkpoint = Checkpoint::open(path.as_ref()).unwrap();
    let model = plimsoll_models::Registry::standard().build(&checkpoint).unwrap();
    let parts = bytes_by_part(&checkpoint, &model);
    assert_eq!(parts.total(), 688_574_839_360);
    assert!(parts.draft > 0 && parts.vision == 0 && parts.other == 0);
    assert_eq!(parts, bytes_by_part(&self::checkpoint(), &self::model()));
    let recast = recast(&model, "q4_k_m", &checkpoint).unwrap();
    let own = self::recast(&self::model(), "q4_k_m", &self::checkpoint()).unwrap();
    assert_eq!(recast.stored, own.stored);
    assert!(model.extras.estimate_only.is_some());
}
