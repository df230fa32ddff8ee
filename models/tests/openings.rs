//! What of a directory was not there or not read is told, and values of the wrong kind are errors of their keys.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(unused)]
mod common;

use common::{Gguf, Kv};
use plimsoll_kernels::Format;
use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use serde_json::{Value, json};
use std::path::PathBuf;

fn config() -> Value {
    json!({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128, "tie_word_embeddings": false, "torch_dtype": "float16"})
}

fn directory(test: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("plimsoll-openings-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    for (name, bytes) in files {
        std::fs::write(path.join(name), bytes).unwrap();
    }
    path
}

fn notes(path: &std::path::Path) -> String {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    assert!(checkpoint.notes().iter().all(|note| model.notes.contains(note)));
    checkpoint.notes().join("\n")
}

fn build(config: &str) -> Result<Model, ModelError> {
    Registry::standard().build(&Checkpoint::from_config_bytes(config.as_bytes(), "stranger")?)
}

#[test]
fn weights_that_are_not_read_are_told() {
    let text = config().to_string();
    let config = ("config.json", text.as_bytes());
    let layer =
        ["input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    let attention = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("self_attn.{part}"));
    let layer = layer.map(str::to_owned).into_iter().chain(attention);
    let names = layer
        .map(|part| format!("model.layers.0.{part}.weight"))
        .chain(["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"].map(str::to_owned));
    let map: serde_json::Map<String, Value> = names.map(|name| (name, json!("a.safetensors"))).collect();
    let map = json!({"weight_map": map}).to_string();
    let index = ("model.safetensors.index.json", map.as_bytes());
    let alone = directory("alone", &[config]);
    assert_eq!(notes(&alone), "");
    let indexed = directory("indexed", &[config, index]);
    for path in [indexed.clone(), indexed.join(index.0)] {
        assert!(notes(&path).contains("model.safetensors.index.json"), "{}", notes(&path));
    }
    let two = directory("two", &[config, ("a.safetensors", b"no header"), ("b.safetensors", b"")]);
    let said = notes(&two);
    assert!(
        said.contains("2 in all") && said.contains("a.safetensors") && said.contains("config.json alone"),
        "{said}"
    );
    let torch = directory("torch", &[config, ("pytorch_model.bin", b""), ("training_args.bin", b"")]);
    assert!(notes(&torch).contains("1 in all") && notes(&torch).contains("pytorch_model.bin"));
    let part = directory("part", &[config, ("m-00003-of-00003.gguf", b"GGUF")]);
    assert!(notes(&part).contains("m-00003-of-00003.gguf"), "{}", notes(&part));
    for path in [alone, indexed, two, torch, part] {
        std::fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn a_part_by_its_name_alone_is_told() {
    let gguf = Gguf::default().key("general.architecture", Kv::Str("llama")).bytes();
    let path = directory("named", &[("m-00003-of-00003.gguf", &gguf), ("m.gguf", &gguf)]);
    let opened = Checkpoint::open(&path.join("m-00003-of-00003.gguf")).unwrap();
    assert!(opened.notes()[0].contains("says nothing of parts"), "{:?}", opened.notes());
    assert!(Checkpoint::open(&path.join("m.gguf")).unwrap().notes().is_empty());
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn values_of_another_kind_are_errors_of_their_keys() {
    for key in ["torch_dtype", "dtype", "model_type"] {
        for bad in [json!(5), json!(true), json!(["bfloat16"]), json!({"a": "b"}), json!(1.5)] {
            let mut config = config();
            config.as_object_mut().unwrap().remove("torch_dtype");
            config[key] = bad.clone();
            let error = build(&config.to_string()).unwrap_err();
            let shown = bad.to_string();
            let named = matches!(&error, ModelError::Field { key: k, got, .. } if k == key && *got == shown);
            assert!(named, "{key} = {bad}: {error:?}");
        }
    }
    let dtype = |name: &str| {
        let mut config = config();
        config["torch_dtype"] = json!(name);
        build(&config.to_string()).map(|model| model.matrices[0].format)
    };
    assert_eq!(dtype("float16").unwrap(), Format::F16);
    assert_eq!(dtype("torch.float32").unwrap(), Format::F32);
    assert!(dtype("float8").is_err() && dtype("").is_err());
    let gguf = Gguf::default().key("general.architecture", Kv::U32(5)).bytes();
    let checkpoint = Checkpoint::from_gguf_bytes(gguf, "m.gguf").unwrap();
    let error = Registry::standard().build(&checkpoint).unwrap_err();
    assert!(matches!(&error, ModelError::Field { key, .. } if key == "general.architecture"), "{error}");
}

#[test]
fn numbers_that_no_float_holds_are_infinite_however_they_are_spelt() {
    let with = |key: &str, text: &str| {
        let config = config().to_string();
        build(&format!("{}, \"{key}\": {text}}}", config.strip_suffix('}').unwrap()))
    };
    let huge = "9".repeat(400);
    let infinite =
        ["Infinity", "-Infinity", "1e400", "-1e400", "1E+999", huge.as_str(), r#"{"__float__": "Infinity"}"#];
    for text in infinite {
        // Nothing reads it.
        assert!(with("initializer_range", text).is_ok(), "{text}");
        for key in ["rope_theta", "rms_norm_eps", "num_hidden_layers"] {
            let error = with(key, text).unwrap_err();
            assert!(
                matches!(&error, ModelError::Field { key: k, .. } if k == key),
                "{key} {text}: {error:?}"
            );
        }
    }
}
