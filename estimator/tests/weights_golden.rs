//! What a configuration implies, against the tensors of small checkpoints in every spelling and packing.
#![allow(clippy::unwrap_used, clippy::panic)]

use plimsoll_estimator::weights::{Role, bytes_by_part, inventory, recast};
use plimsoll_models::model::Part;
use plimsoll_models::{Checkpoint, Model, Registry};
use serde_json::Value;
use std::path::PathBuf;

fn golden() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/golden"))
}

fn build(checkpoint: Checkpoint) -> (Checkpoint, Model) {
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

fn open(name: &str) -> (Checkpoint, Model) {
    build(Checkpoint::open(&golden().join(name)).unwrap())
}

/// Every directory with this file.
fn with(file: &str) -> Vec<String> {
    let all = std::fs::read_dir(golden()).unwrap().map(|d| d.unwrap().path());
    let mut names: Vec<String> = all
        .filter(|path| path.join(file).is_file())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// The bytes of a checkpoint follow from its configuration alone: plain, MLX's, modelopt's and compressed-tensors'
/// packings, gpt-oss's blocks. Where an entry says that it is not exact, a file may have twice its bytes.
#[test]
fn a_configuration_implies_the_bytes_of_its_tensors() {
    let names = with("model.safetensors");
    assert!(names.len() > 30);
    for name in names.iter().filter(|name| golden().join(name).join("config.json").is_file()) {
        let (checkpoint, model) = open(name);
        let mut config = checkpoint.config().unwrap().clone();
        // Some of these state f32, and hold their plain tensors in bf16.
        let plain =
            checkpoint.tensors().any(|t| t.name.ends_with("norm.weight") && t.dtype.to_string() == "bf16");
        for at in ["", "/text_config"] {
            if let Some(part) = config.pointer_mut(at).filter(|_| plain).and_then(Value::as_object_mut) {
                part.remove("dtype");
                part.insert("torch_dtype".to_owned(), "bfloat16".into());
            }
        }
        let bytes = config.to_string();
        let (bare, implied) = build(Checkpoint::from_config_bytes(bytes.as_bytes(), name).unwrap());
        let entries = inventory(&bare, &implied);
        let text = entries.iter().filter(|e| e.part == Part::Text);
        let (sum, vague): (u64, u64) =
            text.fold((0, 0), |(all, vague), e| (all + e.bytes, vague + if e.exact { 0 } else { e.bytes }));
        let actual = bytes_by_part(&checkpoint, &model);
        // Scales of inputs are beside the model: no kernel reads them.
        let actual = actual.text + actual.other;
        assert!((sum..=sum + vague).contains(&actual), "{name}: {sum} + {vague} implied, {actual} there");
    }
}

/// The parts of an inventory are all of the checkpoint.
#[test]
fn an_inventory_has_every_tensor() {
    let safetensors = with("model.safetensors").into_iter();
    for name in safetensors.chain(with("model.gguf")) {
        let (checkpoint, model) = open(&name);
        let parts = bytes_by_part(&checkpoint, &model);
        assert_eq!(parts.total(), checkpoint.checkpoint_bytes(), "{name}");
        assert_eq!(parts.vision > 0, name.contains("vision"), "{name}");
    }
}

/// Every spelling is known: nothing that a text model reads is "other" but what no scheme tells apart.
#[test]
fn every_tensor_has_a_role() {
    let safetensors = with("model.safetensors").into_iter();
    for name in safetensors.chain(with("model.gguf")) {
        let (_, model) = open(&name);
        for matrix in &model.matrices {
            let role = plimsoll_estimator::weights::named(matrix.source.name()).role;
            let weight = role.is_linear()
                || matches!(
                    role,
                    Role::Embedding | Role::LayerEmbedding | Role::Head | Role::Router | Role::SharedGate
                );
            assert!(weight, "{name}: {} is {role:?}", matrix.source.name());
            let expert = plimsoll_estimator::weights::named(matrix.source.name()).expert;
            assert_eq!(expert, matrix.experts > 1, "{name}: {}", matrix.source.name());
        }
        for vector in &model.vectors {
            let role = plimsoll_estimator::weights::named(&vector.tensor).role;
            let known = [
                "sinks",
                "layer_scalar",
                "layer_output_scale",
                "router.",
                "ffn_gate_inp.scale",
                "exps.scale",
            ];
            let fine = match role {
                Role::Other => known.iter().any(|part| vector.tensor.contains(part)),
                Role::Scale => known.iter().any(|part| vector.tensor.contains(part)),
                Role::Norm | Role::Bias | Role::RouterBias | Role::Recurrence | Role::Conv => true,
                _ => false,
            };
            assert!(fine, "{name}: {} is {role:?}", vector.tensor);
        }
    }
}

/// Whatever a model was stored in, another scheme makes the same of it.
#[test]
fn packed_and_gguf_checkpoints_are_recast_as_plain_ones_are() {
    for (plain, other) in [
        ("llama", "gguf_llama"),
        ("qwen3", "gguf_qwen3"),
        ("qwen3_moe", "gguf_qwen3_moe"),
        ("qwen3_5_text", "gguf_qwen3_5"),
        ("nemotron_h", "gguf_nemotron_h"),
        ("nemotron_h_latent", "gguf_nemotron_h_latent"),
        ("mamba2", "gguf_mamba2"),
        ("gpt_oss", "gguf_gpt_oss"),
        ("gpt_oss_mxfp4", "gguf_gpt_oss_mxfp4"),
        ("gemma4_text_ple", "gguf_gemma4_ple"),
        ("gemma4_text_moe", "gguf_gemma4_moe"),
    ] {
        let ((a, from), (b, to)) = (open(plain), open(other));
        if from.parameters() != to.parameters() {
            panic!("{plain} and {other} are not the same model");
        }
        // Some hold f32, in which scales would be f32 too: first, both in bf16.
        let (from, to) = (recast(&from, "bf16", &a).unwrap().model, recast(&to, "bf16", &b).unwrap().model);
        for scheme in
            ["f32", "q8_0", "q4_k_m", "q2_k", "iq4_xs", "mxfp4_moe", "mlx-4bit-g32", "nvfp4", "fp8", "mxfp4"]
        {
            let (a, b) = (recast(&from, scheme, &a), recast(&to, scheme, &b));
            let sum = |r: &plimsoll_estimator::weights::Recast| -> u64 {
                let text = r.entries.iter().filter(|e| e.part == Part::Text);
                let weights = text.filter(|e| e.role.is_linear() || e.role == Role::Scale);
                weights.map(|e| e.bytes).sum()
            };
            assert_eq!(sum(&a.unwrap()), sum(&b.unwrap()), "{plain} {other} {scheme}");
        }
    }
}

/// Bytes that an index states are held against those that are priced, with the shards and without.
#[test]
fn bytes_that_an_index_states_are_compared() {
    let folder = std::env::temp_dir().join(format!("plimsoll-stated-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(golden().join("llama/config.json"), folder.join("config.json")).unwrap();
    let (whole, _) = open("llama");
    let map: serde_json::Map<String, Value> =
        whole.tensors().map(|t| (t.name.clone(), "a.safetensors".into())).collect();
    let note = |size: u64| {
        let index = serde_json::json!({"metadata": {"total_size": size}, "weight_map": map});
        std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
        let (checkpoint, model) = build(Checkpoint::open(&folder).unwrap());
        (
            plimsoll_estimator::weights::stated_note(&checkpoint, &model),
            bytes_by_part(&checkpoint, &model).total(),
        )
    };
    let (told, implied) = note(5);
    let told = told.unwrap();
    assert!(told.contains("states 5 bytes") && told.contains("are priced have"), "{told}");
    assert_eq!(note(implied).0, None);
    assert!(note(implied + 1).0.is_some());
    std::fs::copy(golden().join("llama/model.safetensors"), folder.join("a.safetensors")).unwrap();
    assert_eq!(note(whole.checkpoint_bytes()).0, None);
    assert!(note(whole.checkpoint_bytes() - 1).0.is_some());
    std::fs::remove_dir_all(&folder).unwrap();
}
