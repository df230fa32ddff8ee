//! Keys that look as if they cost memory and that the family at hand does not read are told, whoever else reads them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::{Checkpoint, Registry};
use serde_json::{Value, json};
use std::path::Path;

fn notes(config: &Value) -> Vec<String> {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "keys").unwrap();
    Registry::standard().build(&checkpoint).unwrap_or_else(|e| panic!("{e}: {config}")).notes
}

/// What is told as unknown, key by key.
fn unknown(config: &Value) -> Vec<String> {
    let notes = notes(config);
    let told: Vec<&String> = notes.iter().filter(|n| n.contains("may cost memory")).collect();
    assert!(told.len() <= 1, "{notes:?}");
    let keys = told.first().and_then(|note| note.split_once(": "));
    keys.map(|(_, keys)| keys.split(", ").map(str::to_owned).collect()).unwrap_or_default()
}

fn published(path: &str) -> Value {
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    Checkpoint::open(&at).unwrap().config().unwrap().clone()
}

/// Families read all that their published configurations say of memory.
#[test]
fn published_configurations_have_no_unknown_keys() {
    let (mut read, mut told) = (0, Vec::new());
    for folder in ["../tests/data/configs", "tests/data/priced"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let model = Registry::standard().build(&Checkpoint::open(&path).unwrap()).unwrap();
            let unknown = model.notes.into_iter().filter(|n| n.contains("may cost memory"));
            told.extend(unknown.map(|note| (path.clone(), note)));
            read += 1;
        }
    }
    assert!(read > 40, "{read}");
    assert_eq!(told, []);
}

#[test]
fn keys_of_other_families_are_told() {
    let foreign = [
        ("sliding_window", json!(4096)),
        ("num_experts", json!(8)),
        ("num_local_experts", json!(8)),
        ("n_routed_experts", json!(8)),
        ("n_shared_experts", json!(1)),
        ("kv_lora_rank", json!(512)),
        ("q_lora_rank", json!(1536)),
        ("ssm_state_size", json!(128)),
        ("mamba_d_state", json!(128)),
        ("conv_L_cache", json!(3)),
        ("linear_conv_kernel_dim", json!(4)),
        ("num_nextn_predict_layers", json!(1)),
        ("mtp_num_hidden_layers", json!(1)),
        ("hidden_size_per_layer_input", json!(256)),
        ("num_kv_shared_layers", json!(2)),
        ("moe_latent_size", json!(1024)),
        ("block_configs", json!([{"block_type": "moe"}])),
    ];
    // What each of these reads itself, or refuses.
    for (config, own) in [
        ("llama-3.1-8b", &[][..]),
        ("qwen3-8b", &["sliding_window"][..]),
        ("phi-4", &["sliding_window"][..]),
        ("mamba2-130m-hf", &["ssm_state_size", "mamba_d_state"][..]),
        ("gemma-3-12b-it", &["sliding_window"][..]),
        ("gpt-oss-20b", &["sliding_window", "num_experts", "num_local_experts"][..]),
        (
            "qwen3-30b-a3b",
            &[
                "sliding_window",
                "num_experts",
                "num_local_experts",
                "num_nextn_predict_layers",
                "mtp_num_hidden_layers",
            ][..],
        ),
    ] {
        let plain = published(&format!("../tests/data/configs/{config}.json"));
        for (key, value) in foreign.iter().filter(|(key, _)| !own.contains(key)) {
            let mut changed = plain.clone();
            changed[key] = value.clone();
            assert_eq!(unknown(&changed), [*key], "{config} with {key}");
            // Nothing that is switched off.
            for off in [json!(null), json!(0), json!(false), json!([])] {
                changed[key] = off.clone();
                assert_eq!(unknown(&changed), Vec::<String>::new(), "{config} with {key} {off}");
            }
        }
    }
}

#[test]
fn a_window_that_is_not_used_is_no_unknown_key() {
    let mut llama = published("../tests/data/configs/llama-3.1-8b.json");
    llama["sliding_window"] = json!(4096);
    assert_eq!(unknown(&llama), ["sliding_window"]);
    llama["use_sliding_window"] = json!(false);
    assert_eq!(unknown(&llama), Vec::<String>::new());
    llama["use_sliding_window"] = json!(true);
    assert_eq!(unknown(&llama), ["sliding_window"]);
    // Where a window is off unless it is switched on, the family knows.
    let mut qwen = published("../tests/data/configs/qwen3-8b.json");
    qwen["sliding_window"] = json!(4096);
    qwen.as_object_mut().unwrap().remove("use_sliding_window");
    assert_eq!(unknown(&qwen), Vec::<String>::new());
}
