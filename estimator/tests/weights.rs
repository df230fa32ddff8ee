//! Bytes of weights: as published, and in other formats.

#![allow(clippy::unwrap_used, clippy::panic)]

use plimsoll_estimator::Overhead;
use plimsoll_estimator::report::Question;
use plimsoll_estimator::weights::{self, Role, SCHEMES, WeightsError, bytes_by_part, inventory, recast};
use plimsoll_estimator::{Geometry, Plan, Report};
use plimsoll_kernels::{Format, Profile};
use plimsoll_models::model::Part;
use plimsoll_models::{Checkpoint, Model, Registry};
use serde_json::{Value, json};
use std::path::PathBuf;

fn configs() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/configs"))
}

fn open(name: &str) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::open(&configs().join(format!("{name}.json"))).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

fn inline(config: &Value) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "inline").unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

/// A published configuration without what it says of packed weights.
fn plain(name: &str) -> (Checkpoint, Model) {
    let bytes = std::fs::read(configs().join(format!("{name}.json"))).unwrap();
    let mut config: Value = serde_json::from_slice(&bytes).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config");
    inline(&config)
}

fn parameters(checkpoint: &Checkpoint, model: &Model) -> u64 {
    let text = |e: &&weights::Entry| e.part == Part::Text;
    inventory(checkpoint, model).iter().filter(text).map(weights::Entry::parameters).sum()
}

#[test]
fn published_totals() {
    for (name, total) in [("smollm2-135m", 134_515_008u64), ("nemotron-3-nano-30b-a3b", 31_577_940_288)] {
        let (checkpoint, model) = open(name);
        assert_eq!(parameters(&checkpoint, &model), total, "{name}");
        assert_eq!(bytes_by_part(&checkpoint, &model).text, 2 * total, "{name}");
    }
    for (name, total) in [("gpt-oss-20b", 13_761_264_768u64), ("gpt-oss-120b", 65_248_815_744)] {
        let (checkpoint, model) = open(name);
        assert_eq!(bytes_by_part(&checkpoint, &model).total(), total, "{name}");
        assert!(inventory(&checkpoint, &model).iter().all(|e| e.exact), "{name}");
    }
    let (checkpoint, model) = plain("gemma-4-31b-it-nvfp4");
    let parts = bytes_by_part(&checkpoint, &model);
    assert_eq!([parts.text, parts.vision], [2 * 30_697_345_340, 2 * 575_743_536]);
    assert_eq!(parts.total(), 62_546_177_752);
    assert_eq!(parameters(&checkpoint, &model), 30_697_345_340);
}

/// What the files say by their dtypes and not the configuration: not claimed to be exact.
#[test]
fn unknown_types_are_not_exact() {
    let (checkpoint, model) = open("nemotron-3-nano-30b-a3b");
    for entry in inventory(&checkpoint, &model) {
        let told = matches!(entry.role, Role::RouterBias | Role::Recurrence);
        assert_eq!(entry.exact, !told, "{}", entry.name);
    }
}

/// modelopt's NVFP4: 4.5 bits a value and eight bytes for each linear layer; the rest as it was.
#[test]
fn nvfp4_as_modelopt_publishes_it() {
    let (packed, model) = open("gemma-4-31b-it-nvfp4");
    let (mlp, layers) = (3u64 * 21504 * 5376, 60u64);
    let entries = inventory(&packed, &model);
    let of = |end: &str| -> u64 { entries.iter().filter(|e| e.name.ends_with(end)).map(|e| e.bytes).sum() };
    assert_eq!(of(".weight_scale"), layers * mlp / 16);
    assert_eq!(of(".weight_scale_2"), layers * 3 * 4);
    assert_eq!(of(".input_scale"), layers * 3 * 4);
    let kv = entries.iter().find(|e| e.name.starts_with("k_scale")).unwrap();
    assert_eq!((kv.bytes, kv.exact), (2 * 60 * 4, false));
    let wide = 2 * (30_697_345_340 - layers * mlp);
    let text: u64 = entries.iter().filter(|e| e.part == Part::Text).map(|e| e.bytes).sum();
    assert_eq!(text, wide + layers * (mlp / 2 + mlp / 16 + 24) + kv.bytes);
    assert_eq!(parameters(&packed, &model), 30_697_345_340);
}

/// The same weights in FP8 in square blocks, by hand.
#[test]
fn square_blocks_have_a_scale_each() {
    let (mut checkpoint, mut model) = open("llama-3.1-8b");
    let mut config = checkpoint.config().unwrap().clone();
    let block = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    config["quantization_config"] = block;
    checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "blocks").unwrap();
    model.matrices.truncate(2);
    model.vectors.truncate(1);
    model.matrices[1].rows = 200;
    let entries = inventory(&checkpoint, &model);
    assert_eq!(entries[0].bytes, 2 * 128256 * 4096);
    assert_eq!((entries[1].bytes, entries[1].format.as_str()), (200 * 4096, "f8_e4m3"));
    assert_eq!((entries[2].rows, entries[2].cols, entries[2].bytes), (2, 32, 256));
    assert!(entries[2].name.ends_with("q_proj.weight_scale_inv"));
}

/// mlx-community's Llama-3.2-1B-Instruct-4bit states this total_size in its index.
#[test]
fn mlx_4bit_of_llama_3_2_1b() {
    let (checkpoint, model) = inline(&json!({
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
        "tie_word_embeddings": true, "hidden_act": "silu",
    }));
    let recast = recast(&model, "mlx-4bit-g64", &checkpoint).unwrap();
    assert_eq!(recast.stored.total(), 695_242_752);
    assert!(recast.entries.iter().any(|e| e.role == Role::Embedding && e.format == "affine4_g64_bf16"));
}

#[test]
fn routers_are_what_their_models_make_of_them() {
    let router = |name: &str, scheme: &str| {
        let (checkpoint, model) = open(name);
        let recast = recast(&model, scheme, &checkpoint).unwrap();
        recast.entries.iter().find(|e| e.role == Role::Router).unwrap().format.clone()
    };
    assert_eq!(router("qwen3-30b-a3b", "mlx-4bit-g32"), "affine8_g64_bf16");
    assert_eq!(router("gpt-oss-20b", "mlx-mxfp4"), "affine8_g64_bf16");
    assert_eq!(router("nemotron-3-nano-30b-a3b", "mlx-4bit"), "bf16");
    assert_eq!(router("qwen3-30b-a3b", "q4_k_m"), "f32");
    assert_eq!(router("qwen3-30b-a3b", "nvfp4"), "bf16");
    assert_eq!(router("qwen3-30b-a3b", "fp8"), "bf16");
}

/// One tensor's bytes: 682.03 MiB of embeddings in Q4_K, and embeddings in Q8_0.
#[test]
fn largest_tensors() {
    let table = |name: &str, scheme: &str| {
        let (checkpoint, model) = open(name);
        let recast = recast(&model, scheme, &checkpoint).unwrap();
        recast.entries.into_iter().find(|e| e.role == Role::Embedding).unwrap()
    };
    let q4 = table("qwen3.5-27b", "q4_k_m");
    assert_eq!((q4.bytes, q4.rows, q4.cols), (248_320 * 5120 / 256 * 144, 248_320, 5120));
    assert_eq!((q4.bytes as f64 / f64::from(1 << 20) * 100.0).round(), 68203.0);
    let q8 = table("nemotron-3-nano-30b-a3b", "q8_0");
    assert_eq!((q8.bytes, q8.rows, q8.cols), (131_072 * (2688 / 32 * 34), 131_072, 2688));
}

/// Schemes without braces, and what the braces stand for.
fn schemes() -> Vec<String> {
    let mut all: Vec<String> = SCHEMES.iter().filter(|s| !s.contains('{')).map(|s| (*s).to_owned()).collect();
    for bits in [2, 3, 5, 6] {
        for group in [32, 64, 128] {
            all.push(format!("mlx-{bits}bit-g{group}"));
        }
    }
    all
}

fn names() -> Vec<String> {
    let files = std::fs::read_dir(configs()).unwrap();
    let mut names: Vec<String> =
        files.map(|f| f.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Every scheme of every published configuration makes a plan, or says why not.
#[test]
fn every_scheme_prices_every_model() {
    let (profile, mut plans, mut refused) = (Profile::webgpu_default(), 0, 0);
    let geometry = Geometry { context: 1024, prefill_chunk: 32, ..Geometry::default_for(1024) };
    for name in names() {
        let checkpoint = Checkpoint::open(&configs().join(format!("{name}.json"))).unwrap();
        let model = Registry::standard().build(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = model.parameters();
        for scheme in schemes() {
            match recast(&model, &scheme, &checkpoint) {
                Ok(recast) => {
                    let of = |e: &&weights::Entry| e.part == Part::Text && e.role != Role::Rotation;
                    let all: u64 = recast.entries.iter().filter(of).map(weights::Entry::parameters).sum();
                    assert_eq!(all, text, "{name} {scheme}: no weight is lost");
                    assert!(recast.model.extras.estimate_only.is_some());
                    // Planning takes most of the time: some schemes stand for their like.
                    if matches!(
                        scheme.as_str(),
                        "bf16"
                            | "q4_k_m"
                            | "iq4_xs"
                            | "mxfp4_moe"
                            | "mlx-4bit-g64"
                            | "mlx-nvfp4"
                            | "nvfp4"
                            | "mxfp4"
                            | "fp8"
                    ) {
                        let plan = Plan::new(&recast.model, &geometry, &profile);
                        let plan = plan.unwrap_or_else(|e| panic!("{name} {scheme}: {e}"));
                        assert!(plan.estimate_only.is_some());
                        plans += 1;
                    }
                }
                Err(WeightsError::NoKernels { stored, format, .. }) => {
                    assert!(Format::from_name(&format).is_none(), "{name} {scheme} {format}");
                    assert!(stored > text / 8, "{name} {scheme}");
                    refused += 1;
                }
                Err(error) => panic!("{name} {scheme}: {error}"),
            }
        }
    }
    assert!(plans > 100 && refused > 100, "{plans} {refused}");
}

/// A tower is in the same file where packers leave it there; GGUF and MLX have it elsewhere, or nowhere, and say so.
#[test]
fn towers_are_counted_where_they_are() {
    let (checkpoint, model) = plain("gemma-4-31b-it-nvfp4");
    let of = |scheme: &str| recast(&model, scheme, &checkpoint).unwrap();
    assert_eq!(of("nvfp4").stored.vision, 2 * 575_743_536);
    assert_eq!(of("f32").stored.vision, 4 * 575_743_536);
    assert_eq!(of("f32").stored.text, 4 * 30_697_345_340);
    for scheme in ["q4_k_m", "mlx-4bit"] {
        let recast = of(scheme);
        assert_eq!(recast.stored.vision, 0);
        assert!(recast.notes.iter().any(|n| n.contains("1,151,487,072 bytes")), "{:?}", recast.notes);
    }
    let tower = of("f32").model.extras.tensors;
    assert!(tower.iter().all(|beside| beside.format == Format::F32));
}

/// More bits are more bytes, in the file and on the device.
#[test]
fn bytes_are_in_order() {
    let order = [
        "f32", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "q3_k_l", "q3_k_m", "q3_k_s",
        "q2_k",
    ];
    let mlx = [
        "mlx-8bit-g32",
        "mlx-8bit-g64",
        "mlx-6bit-g64",
        "mlx-5bit-g64",
        "mlx-4bit-g32",
        "mlx-4bit-g64",
        "mlx-4bit-g128",
        "mlx-3bit-g64",
        "mlx-2bit-g64",
    ];
    for name in ["llama-3.1-8b", "qwen3-30b-a3b", "qwen3.5-27b"] {
        let (checkpoint, model) = open(name);
        let geometry = Geometry { context: 1024, prefill_chunk: 32, ..Geometry::default_for(1024) };
        for order in [&order[..], &mlx] {
            let bytes = |scheme: &&str| {
                let recast = recast(&model, scheme, &checkpoint).unwrap();
                let plan = Plan::new(&recast.model, &geometry, &Profile::webgpu_default()).unwrap();
                (recast.stored.total(), plan.segment_bytes(plimsoll_estimator::plan::Segment::Weights))
            };
            let all: Vec<(u64, u64)> = order.iter().map(bytes).collect();
            for (pair, which) in all.windows(2).zip(order) {
                assert!(pair[0].0 > pair[1].0 && pair[0].1 > pair[1].1, "{name} {which}: {pair:?}");
            }
        }
    }
}

/// A report of other weights: the device's bytes are theirs, the checkpoint's stay its own.
#[test]
fn a_report_names_the_scheme_and_keeps_the_checkpoint() {
    let (checkpoint, model) = open("gpt-oss-20b");
    let recast = recast(&model, "Q8_0", &checkpoint).unwrap();
    let (profile, geometry) = (
        Profile::webgpu_default(),
        Geometry { context: 1024, prefill_chunk: 32, ..Geometry::default_for(1024) },
    );
    let report = |model: &Model| {
        let question = Question {
            checkpoint: &checkpoint,
            model,
            geometry: &geometry,
            profile: &profile,
            budget: None,
            overhead: Overhead::default(),
            company: None,
        };
        Report::new(&question).unwrap().0
    };
    let (own, other) = (report(&model), report(&recast.model));
    assert_eq!((own.geometry.weights.as_str(), other.geometry.weights.as_str()), ("as-stored", "q8_0"));
    assert_eq!(own.model.checkpoint_bytes, other.model.checkpoint_bytes);
    assert_eq!(own.model.checkpoint_bytes_by_part, other.model.checkpoint_bytes_by_part);
    assert_eq!(own.model.stored_bytes, own.model.checkpoint_bytes);
    assert_eq!(other.model.stored_bytes, recast.stored.total());
    let (own, other) = (own.bytes.unwrap(), other.bytes.unwrap());
    assert!(other.weights > own.weights);
    assert_eq!(own.kv, other.kv);
}

#[test]
fn unknown_schemes_list_the_known() {
    let (checkpoint, model) = open("smollm2-135m");
    let error = recast(&model, "q4_k_xxl", &checkpoint).unwrap_err();
    assert!(matches!(error, WeightsError::Unknown { .. }));
    assert!(error.to_string().contains("q4_k_m") && error.to_string().contains("mlx-4bit-g64"));
    let error = recast(&model, "iq2_xs", &checkpoint).unwrap_err().to_string();
    assert!(error.contains("which no kernel reads"), "{error}");
}
