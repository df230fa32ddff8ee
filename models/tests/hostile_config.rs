//! Configurations from strangers: right answers or typed errors, in no time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use serde_json::{Value, json};

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
    for infinity in ["Infinity", "{\"__float__\": \"Infinity\"}", "[0.0, Infinity]"] {
        let text = format!(
            r#"{{"model_type": "mamba2", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "expand": 2.0,
                "num_heads": 8, "head_dim": 16, "state_size": 16, "conv_kernel": 4, "n_groups": 1,
                "time_step_limit": {infinity}}}"#
        );
        // Never a panic; a pair of limits is what families read.
        if infinity.starts_with('[') {
            assert_eq!(build(text.as_bytes()).unwrap().layers, 2);
        } else {
            let _ = build(text.as_bytes());
        }
    }
}

#[test]
fn large_maps_of_quantisation_are_read_in_no_time() {
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
