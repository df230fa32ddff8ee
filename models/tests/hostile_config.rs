//! Configurations from strangers: right answers or typed errors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use serde_json::{Value, json};
use std::path::Path;

fn build(config: &[u8]) -> Result<Model, ModelError> {
    Registry::standard().build(&Checkpoint::from_config_bytes(config, "hostile")?)
}

/// A small llama, changed.
fn llama(change: impl FnOnce(&mut Value)) -> Result<Model, ModelError> {
    let mut config = json!({
        "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "max_position_embeddings": 2048
    });
    change(&mut config);
    build(config.to_string().as_bytes())
}

fn refused(built: Result<Model, ModelError>, what: &str) {
    match built {
        Err(error) => assert!(!error.to_string().is_empty() && error.to_string().len() < 4000, "{what}"),
        Ok(_) => panic!("{what} was taken"),
    }
}

#[test]
fn numbers_beyond_anything_are_errors_by_name() {
    for key in [
        "num_hidden_layers",
        "hidden_size",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "head_dim",
        "max_position_embeddings",
    ] {
        for bad in [
            json!(-1),
            json!(0),
            json!(1_000_000_000_000u64),
            json!(1u64 << 40),
            json!(u64::MAX),
            json!(1e18),
            json!(2.5),
            json!("many"),
            json!([1]),
            json!({"a": 1}),
        ] {
            let built = llama(|c| c[key] = bad.clone());
            let Err(ModelError::Field { key: named, .. }) = &built else {
                panic!("{key} = {bad}: {built:?}")
            };
            assert!(!named.is_empty());
        }
    }
}

#[test]
fn thousands_of_layers_are_built_and_more_are_an_error() {
    let layers = |n: u32| llama(|c| c["num_hidden_layers"] = json!(n));
    assert_eq!(layers(4096).unwrap().states.len(), 4096);
    refused(layers(4097), "4,097 layers");
}

/// A published configuration with one field of its text model, or of `part`, changed.
fn published(path: &str, part: &str, key: &str, value: &Value) -> Result<Model, ModelError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut config = serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let place = if config[part].is_object() { &mut config[part] } else { &mut config };
    place[key] = value.clone();
    build(config.to_string().as_bytes())
}

/// What is past a bound is an error by its name: what was dropped or cut off would be missing from a price.
#[test]
fn nothing_past_a_bound_is_dropped() {
    for (path, key, most) in [
        ("../tests/data/configs/qwen3.5-27b.json", "mtp_num_hidden_layers", 64),
        ("../tests/data/configs/qwen3.5-35b-a3b.json", "mtp_num_hidden_layers", 64),
        ("../tests/data/configs/qwen3.5-27b.json", "num_nextn_predict_layers", 64),
        ("tests/data/priced/qwen3-next-80b-a3b.json", "num_nextn_predict_layers", 64),
        ("../tests/data/configs/deepseek-v3.json", "num_nextn_predict_layers", 64),
    ] {
        let with = |count: u64| {
            // The field that goes before, where both stand.
            published(path, "text_config", key, &json!(count)).map(|model| model.extras.draft.len() as u64)
        };
        let own = with(most).unwrap();
        assert!(own == most || key == "num_nextn_predict_layers" && own == 1, "{path} {key}: {own}");
        for count in [most + 1, 4096, 4097, 1_000_000, u64::MAX] {
            match with(count) {
                Err(ModelError::Field { key: named, .. }) => assert_eq!(named, key, "{path}"),
                other => panic!("{path}: {key} = {count}: {other:?}"),
            }
        }
    }
    for (path, part, key, value) in [
        ("tests/data/priced/mistral-small-3.2-24b.json", "", "spatial_merge_size", json!(65)),
        ("tests/data/priced/llama-4-scout.json", "vision_config", "pixel_shuffle_ratio", json!(7.5)),
        (
            "tests/data/priced/qwen3-vl-8b.json",
            "vision_config",
            "deepstack_visual_indexes",
            json!(vec![1; 1000]),
        ),
    ] {
        match published(path, part, key, &value) {
            Err(ModelError::Field { key: named, .. }) => assert!(named.contains(key), "{path}: {named}"),
            other => panic!("{path}: {key} = {value}: {:?}", other.map(|model| model.name)),
        }
    }
}

/// Layers that draft are like a layer of the model's own; a family without any that are known says that it leaves them out.
#[test]
fn layers_that_draft_are_priced_or_told() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/configs/qwen3.5-27b.json");
    let mut config = serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let layers = config["text_config"]["num_hidden_layers"].as_u64().unwrap() as usize;
    config["text_config"]["layer_types"] = json!(vec!["linear_attention"; layers]);
    config["text_config"].as_object_mut().unwrap().remove("full_attention_interval");
    match build(config.to_string().as_bytes()) {
        Err(ModelError::Unsupported { what, .. }) => assert!(what.contains("draft"), "{what}"),
        other => panic!("{:?}", other.map(|model| model.extras.draft)),
    }
    let qwen = "../tests/data/configs/qwen3-30b-a3b.json";
    let model = published(qwen, "", "mtp_num_hidden_layers", &json!(3)).unwrap();
    let told = |note: &String| note.ends_with("may cost memory: mtp_num_hidden_layers");
    assert!(model.notes.iter().any(told), "{:?}", model.notes);
}

#[test]
fn broken_documents_are_errors() {
    let deep =
        |open: &str, close: &str| format!("{{\"a\":{}1{}}}", open.repeat(100_000), close.repeat(100_000));
    let huge = format!("{{\"model_type\": \"{}\"}}", "x".repeat(1 << 20));
    for (what, text) in [
        ("nothing", String::new()),
        ("white", "   \n".into()),
        ("an open brace", "{".into()),
        ("a list", "[]".into()),
        ("a number", "3".into()),
        ("lists in lists", deep("[", "]")),
        ("objects in objects", deep("{\"a\":", "}")),
        ("no end", "{\"model_type\": \"llama\"".into()),
        ("a huge name", huge),
        ("text after it", "{} x".into()),
        ("nothing in it", "{}".into()),
        ("a null type", "{\"model_type\": null}".into()),
        ("a type that is a number", "{\"model_type\": 7}".into()),
        ("text_config of the wrong kind", "{\"model_type\": \"gemma3\", \"text_config\": 3}".into()),
    ] {
        refused(build(text.as_bytes()), what);
    }
    refused(build(&[0xff, 0xfe, 0x00]), "no text");
    refused(build(b"{\"model_type\": \"llama\", \"hidden_size\": 1e999}"), "an infinite size");
}

#[test]
fn of_a_key_that_is_there_twice_the_last_counts() {
    // As Python's reader has it, with which these files were written.
    let text = br#"{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 7,
        "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2}"#;
    assert_eq!(build(text).unwrap().layers, 2);
}

#[test]
fn numbers_that_json_does_not_have_are_read_as_python_writes_them() {
    for (infinity, read) in [
        ("[0.0, Infinity]", true),
        ("[0.0, {\"__float__\": \"Infinity\"}]", true),
        ("Infinity", false),
        ("{\"__float__\": \"Infinity\"}", false),
    ] {
        let text = format!(
            r#"{{"model_type": "mamba2", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "expand": 2.0,
                "num_heads": 8, "head_dim": 16, "state_size": 16, "conv_kernel": 4, "n_groups": 1,
                "time_step_limit": {infinity}}}"#
        );
        // A pair of limits is what families read.
        match build(text.as_bytes()) {
            Ok(model) => assert!(read && model.layers == 2, "{infinity}"),
            Err(ModelError::Field { key, got, .. }) => {
                assert!(!read && key == "time_step_limit" && got.contains("Infinity"), "{key}: {got}");
            }
            Err(error) => panic!("{infinity}: {error}"),
        }
    }
}

#[test]
fn maps_of_quantisation_name_thousands_of_modules() {
    let mut map = serde_json::Map::new();
    map.insert("group_size".into(), json!(64));
    map.insert("bits".into(), json!(4));
    for i in 0..2000 {
        map.insert(
            format!("model.layers.{i}.mlp.down_proj.with.a.long.name"),
            json!({"group_size": 64, "bits": 8}),
        );
    }
    let model = llama(|c| c["quantization"] = Value::Object(map)).unwrap();
    assert_eq!(model.layers, 2);
    refused(llama(|c| c["quantization"] = json!([1, 2, 3])), "a list of quantisation");
    refused(llama(|c| c["quantization"] = json!({"bits": 1e300, "group_size": -4})), "absurd bits");
}

#[test]
fn what_may_cost_memory_and_is_not_known_is_said() {
    let model = llama(|c| {
        c["index_head_dim"] = json!(128);
        c["num_memory_blocks"] = json!(4);
        c["engram_size"] = json!(1 << 20);
        c["use_cache"] = json!(true);
        c["compress_ratios"] = json!([]);
        c["mtp_depth"] = json!(0);
    })
    .unwrap();
    let note = model.notes.iter().find(|n| n.contains("may cost memory")).unwrap();
    assert!(note.ends_with("engram_size, index_head_dim, num_memory_blocks"), "{note}");
    assert!(llama(|_| ()).unwrap().notes.is_empty());
}
