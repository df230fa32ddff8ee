//! Keys that look as if they cost memory and that the family at hand does not read are told, whoever else reads them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Kv;
use common::gguf::Edited;
use plimsoll_models::{Checkpoint, ModelError, Registry};
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
        ("hybrid_override_pattern", json!("M*M*")),
        ("layers_block_type", json!(["mamba", "attention"])),
        ("block_types", json!(["recurrent", "attention"])),
        ("full_attention_interval", json!(4)),
        ("attn_layer_period", json!(4)),
        ("mamba_num_heads", json!(64)),
        ("linear_num_value_heads", json!(32)),
        ("lru_width", json!(4096)),
        ("ssm_cfg", json!({"d_state": 128})),
        ("cross_attention_layers", json!([3, 8])),
        ("encoder_layers", json!(12)),
        ("is_encoder_decoder", json!(true)),
        ("vision_config", json!({"model_type": "clip_vision_model"})),
        ("audio_config", json!({"hidden_size": 1024})),
        ("global_head_dim", json!(512)),
        ("num_global_key_value_heads", json!(4)),
        ("num_meta_tokens", json!(128)),
        ("kv_heads", json!(4)),
        ("lora_rank", json!(64)),
        ("attention_chunk_size", json!(8192)),
        ("shared_expert_intermediate_size", json!(4096)),
        ("moe_shared_expert_intermediate_size", json!(4096)),
        ("first_k_dense_replace", json!(3)),
        ("moe_layer_freq", json!(2)),
        ("attn_output_gate", json!(true)),
        ("use_mla", json!(true)),
        ("mlp_bias", json!(true)),
        ("num_medusa_heads", json!(4)),
        ("swa_layers", json!([1, 3])),
        ("extra_embedding_size", json!(65_536)),
        ("num_lookahead_layers", json!(2)),
        ("num_global_layers", json!(4)),
        ("n_side_layers", json!(4)),
    ];
    // What each of these reads itself, or refuses.
    for (config, own) in [
        ("llama-3.1-8b", &["mlp_bias"][..]),
        ("qwen3-8b", &["sliding_window"][..]),
        ("phi-4", &["sliding_window"][..]),
        ("mamba2-130m-hf", &["ssm_state_size", "mamba_d_state"][..]),
        // It has a tower that is known.
        ("gemma-3-12b-it", &["sliding_window", "vision_config"][..]),
        ("gpt-oss-20b", &["sliding_window", "num_experts", "num_local_experts"][..]),
        ("qwen3-30b-a3b", &["sliding_window", "num_experts", "num_local_experts"][..]),
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

/// Lists that say of a layer what it is are held against what is priced, also where the family reads no such list.
#[test]
fn a_list_of_layers_is_held_against_the_price() {
    let build = |config: &Value| {
        let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "layers").unwrap();
        Registry::standard().build(&checkpoint)
    };
    for (config, own, others) in [
        ("llama-3.1-8b", "full_attention", ["sliding_attention", "linear_attention"]),
        ("qwen3-8b", "full_attention", ["sliding_attention", "linear_attention"]),
        ("qwen3-30b-a3b", "full_attention", ["sliding_attention", "chunked"]),
        ("deepseek-v3", "full_attention", ["sliding_attention", "linear_attention"]),
        ("mamba2-130m-hf", "mamba", ["full_attention", "sliding_attention"]),
    ] {
        let mut changed = published(&format!("../tests/data/configs/{config}.json"));
        let layers = changed["num_hidden_layers"].as_u64().unwrap() as usize;
        changed["layer_types"] = json!(vec![own; layers]);
        assert_eq!(unknown(&changed), Vec::<String>::new(), "{config}");
        for other in others {
            let mut kinds = vec![own; layers];
            kinds[layers - 1] = other;
            changed["layer_types"] = json!(kinds);
            let error = build(&changed).unwrap_err();
            assert!(matches!(error, ModelError::Unsupported { .. }), "{config}: {error}");
            let said = error.to_string();
            assert!(said.contains(other) && said.contains(&format!("layer {}", layers - 1)), "{said}");
        }
        changed["layer_types"] = json!(vec![own; layers - 1]);
        assert!(matches!(build(&changed), Err(ModelError::Field { .. })), "{config}");
    }
}

#[test]
fn a_key_that_is_no_plain_name_is_told_in_quotes() {
    let mut changed = published("../tests/data/configs/llama-3.1-8b.json");
    changed["evil_cache\u{1b}[31m"] = json!(5);
    assert_eq!(unknown(&changed), [r#""evil_cache\u{1b}[31m""#]);
}

/// A format of keys and values beside that of the weights, wherever it is stated.
#[test]
fn a_format_of_keys_and_values_is_told() {
    let told = |notes: &[String], key: &str| {
        notes.iter().filter(|n| n.contains(key) && n.contains("is not followed")).count()
    };
    let gemma = published("../tests/data/configs/gemma-4-31b-it-nvfp4.json");
    let said = notes(&gemma);
    assert_eq!(
        told(&said, "quantization_config.kv_cache_scheme asks for keys and values of 8 bits"),
        1,
        "{said:?}"
    );
    let mut none = gemma.clone();
    none["quantization_config"]["kv_cache_scheme"] = Value::Null;
    assert_eq!(told(&notes(&none), "kv_cache"), 0);
    let llama = published("../tests/data/configs/llama-3.1-8b.json").to_string();
    for (algo, times) in [(json!("FP8"), 1), (Value::Null, 0)] {
        let file = json!({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": algo}}).to_string();
        let checkpoint = Checkpoint::from_config_bytes(llama.as_bytes(), "kv").unwrap();
        let files = vec![("hf_quant_config.json".to_owned(), file.into_bytes())];
        let model = Registry::standard().build(&checkpoint.with_side_files(files).unwrap()).unwrap();
        assert_eq!(
            told(&model.notes, "hf_quant_config.json.kv_cache_quant_algo"),
            times,
            "{:?}",
            model.notes
        );
    }
}

/// What is beside the text model is told of every family alike.
#[test]
fn towers_and_drafts_are_told_whichever_family_has_them() {
    for (config, tower, drafts) in [
        ("gemma-3-12b-it", true, false),
        ("gemma-4-31b-it-nvfp4", true, false),
        ("qwen3.5-27b", true, true),
        ("deepseek-v3", false, true),
        ("nemotron-3.5-lightning-30b-a3b-nvfp4", false, true),
        ("llama-3.1-8b", false, false),
        ("gemma-3-270m", false, false),
    ] {
        let notes = notes(&published(&format!("../tests/data/configs/{config}.json")));
        let told = |what: &str| notes.iter().filter(|n| n.starts_with(what)).count();
        let tower_told = told("the tower that reads images is left out unless images are asked for");
        assert_eq!(tower_told, usize::from(tower), "{config}: {notes:?}");
        let drafts_told =
            told("the layers that predict further tokens are left out unless drafts are asked for");
        assert_eq!(drafts_told, usize::from(drafts), "{config}: {notes:?}");
    }
}

#[test]
fn a_window_of_null_is_told_and_intervals_agree() {
    for (config, window) in [("gemma-3-12b-it", 4096), ("gpt-oss-20b", 128), ("gemma-4-31b-it-nvfp4", 512)] {
        let mut changed = published(&format!("../tests/data/configs/{config}.json"));
        let text =
            if changed.get("text_config").is_some() { &mut changed["text_config"] } else { &mut changed };
        text["sliding_window"] = Value::Null;
        let notes = notes(&changed);
        let expected = format!("sliding_window is null: priced with the {window} of this family's class");
        assert!(notes.contains(&expected), "{config}: {notes:?}");
    }
    let mut gemma = published("../tests/data/configs/gemma-3-270m.json");
    gemma.as_object_mut().unwrap().remove("layer_types");
    gemma["sliding_window_pattern"] = json!(6);
    for (other, fits) in [(6, true), (5, false)] {
        gemma["_sliding_window_pattern"] = json!(other);
        let checkpoint = Checkpoint::from_config_bytes(gemma.to_string().as_bytes(), "keys").unwrap();
        assert_eq!(Registry::standard().build(&checkpoint).is_ok(), fits);
    }
}

#[test]
fn numbers_that_no_float_holds_are_shown_as_they_were_written() {
    let text = published("../tests/data/configs/mamba2-130m-hf.json").to_string();
    let build = |text: &str| {
        let checkpoint = Checkpoint::from_config_bytes(text.as_bytes(), "numbers").unwrap();
        Registry::standard().build(&checkpoint).unwrap_err().to_string()
    };
    let mut changed = serde_json::from_str::<Value>(&text).unwrap();
    changed["expand"] = json!("HERE");
    let said = build(&changed.to_string().replace("\"HERE\"", "Infinity"));
    assert!(said.ends_with("got Infinity"), "{said}");
    changed["expand"] = json!(2.3);
    let said = build(&changed.to_string());
    assert!(said.contains("expand × hidden_size, 2.3 × 768,"), "{said}");
}

/// That every layer has experts is what is priced; blocks of packed weights under two names say one thing.
#[test]
fn what_says_nothing_new_is_not_told_and_what_contradicts_is() {
    let mut sparse = published("../tests/data/configs/qwen3-30b-a3b.json");
    sparse["moe_layer_freq"] = json!(1);
    assert_eq!(unknown(&sparse), Vec::<String>::new());
    let mut packed = published("../tests/data/configs/llama-3.1-8b.json");
    let differ = |config: &Value| notes(config).iter().filter(|note| note.contains("differ")).count();
    packed["quantization"] = json!({"group_size": 64, "bits": 4});
    packed["quantization_config"] = json!({"group_size": 64, "bits": 4});
    assert_eq!(differ(&packed), 0);
    packed["quantization_config"] = json!({"group_size": 64, "bits": 8});
    assert_eq!(differ(&packed), 1, "{:?}", notes(&packed));
}

/// GGUF's keys as configurations' are: what looks like memory and is not read is told, whatever its value is.
#[test]
fn keys_of_gguf_that_a_family_does_not_read_are_told() {
    let told = |edited: &Edited| -> Vec<String> {
        let notes = edited.build().unwrap().notes;
        notes.into_iter().filter(|note| note.contains("may cost memory")).collect()
    };
    let folders =
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden")).unwrap();
    let mut read = 0;
    for folder in folders.map(|entry| entry.unwrap().path()).filter(|path| path.join("model.gguf").is_file())
    {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(told(&Edited::of(&name)), Vec::<String>::new(), "{name}");
        read += 1;
    }
    assert!(read >= 14, "{read}");
    let llama = Edited::of("gguf_llama");
    for (key, value) in [
        ("llama.expert_count", Kv::U32(3)),
        ("llama.attention.sliding_window", Kv::U32(1)),
        ("llama.attention.sliding_window", Kv::F32(f32::NAN)),
        ("llama.attention.sliding_window", Kv::Str("many")),
        ("llama.attention.sliding_window", Kv::Raw(8, [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat())),
        ("llama.ssm.state_size", Kv::U32(16)),
        ("llama.attention.kv_lora_rank", Kv::U64(512)),
        ("llama.leading_dense_block_count", Kv::I32(1)),
        ("llama.full_attention_interval", Kv::U32(4)),
        ("llama.nextn_predict_layers", Kv::U32(1)),
        ("llama.attention.shared_kv_layers", Kv::I32s(vec![1])),
    ] {
        assert_eq!(
            told(&llama.clone().set(key, &value)),
            [format!("not priced, and may cost memory: {key}")]
        );
    }
    for (key, off) in [
        ("llama.expert_count", Kv::U32(0)),
        ("llama.attention.sliding_window", Kv::F32(0.0)),
        ("llama.attention.sliding_window", Kv::Bool(false)),
        ("llama.attention.shared_kv_layers", Kv::I32s(vec![])),
        // Of another architecture, or of nothing's memory.
        ("qwen3moe.expert_count", Kv::U32(8)),
        ("llama.expert_weights_norm", Kv::Bool(true)),
    ] {
        assert_eq!(told(&llama.clone().set(key, &off)), Vec::<String>::new(), "{key}");
    }
}

#[test]
fn a_key_that_stands_twice_with_two_values_is_told() {
    let plain = published("../tests/data/configs/llama-3.1-8b.json").to_string();
    let told = |first: &str| -> Vec<String> {
        let text = plain.replacen('{', &format!("{{{first}"), 1);
        let checkpoint = Checkpoint::from_config_bytes(text.as_bytes(), "twice").unwrap();
        let notes = Registry::standard().build(&checkpoint).unwrap().notes;
        notes.into_iter().filter(|note| note.contains("says two things")).collect()
    };
    assert_eq!(told(""), Vec::<String>::new());
    assert_eq!(told(r#""model_type": "llama","#), Vec::<String>::new(), "once more the same");
    let last = "of a key that stands twice the last counts";
    assert_eq!(
        told(r#""hidden_size": 64,"#),
        [format!("config.json says two things of \"hidden_size\": {last}")]
    );
    let many: String =
        ["num_hidden_layers", "vocab_size", "num_attention_heads", "rope_theta", "hidden_size", "hidden_act"]
            .map(|key| format!("\"{key}\": Infinity,"))
            .concat();
    let notes = told(&many);
    assert!(notes.len() == 1 && notes[0].contains("and others: "), "{notes:?}");
    let inner = r#""quantization": {"bits": 4, "group_size": 64, "bits": 8},"#;
    assert!(told(inner)[0].contains("\"quantization.bits\""), "{:?}", told(inner));
}

/// Text of a file is in one pair of quotes wherever it is shown.
#[test]
fn text_is_quoted_once() {
    let with = |key: &str, value: Value| {
        let mut config = published("../tests/data/configs/llama-3.1-8b.json");
        config[key] = value;
        let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "quotes").unwrap();
        Registry::standard().build(&checkpoint)
    };
    let said = with("hidden_size", json!("weird")).unwrap_err().to_string();
    assert!(said.ends_with("got \"weird\""), "{said}");
    let said = with("hidden_size", json!(-1)).unwrap_err().to_string();
    assert!(said.ends_with("got -1"), "{said}");
    let said = with("rope_scaling", json!("weird")).unwrap_err().to_string();
    assert!(said.ends_with("got \"weird\""), "{said}");
    let block = json!({"bits": 4, "group_size": 64, "kv_cache_scheme": "FP8"});
    let notes = with("quantization", block).unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("values of \"FP8\",")), "{notes:?}");
}
