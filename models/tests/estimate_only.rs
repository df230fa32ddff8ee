//! Families that are priced and not run, and what stands beside text models: numbers of values against the totals that
//! the published checkpoints have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::model::{Grid, Part, State};
use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use serde_json::{Value, json};

fn read(path: &str) -> Vec<u8> {
    let at = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&at).unwrap_or_else(|e| panic!("{at}: {e}"))
}

fn build(config: &[u8]) -> Result<Model, ModelError> {
    Registry::standard().build(&Checkpoint::from_config_bytes(config, "priced")?)
}

fn beside(model: &Model, part: Part) -> u64 {
    let of = model.extras.tensors.iter().filter(|t| t.part == part);
    of.map(|t| t.count * t.rows * t.cols).sum()
}

#[test]
fn text_models_have_the_published_number_of_values() {
    for (name, text) in [
        ("mistral-7b-v0.3", 7_248_023_552),
        ("mistral-nemo", 12_247_782_400),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-72b", 72_706_203_648),
        ("phi-3-mini", 3_821_079_552),
        ("phi-4-mini", 3_836_021_760),
        ("llama-4-scout", 107_769_861_120),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        // The published file has 3,416 more, which no layer reads: see kimi.rs.
        ("kimi-k2", 1_026_408_232_448),
        ("granite-4.0-h-small", 32_207_337_984),
        ("nemotron-3-super", 120_668_707_840),
        ("lfm2-1.2b", 1_170_340_608),
        // With 704 values of biases that the published total leaves out.
        ("lfm2-8b-a1b", 8_339_929_856 + 704),
        ("trinity-nano", 6_120_003_328),
        ("trinity-mini", 26_123_974_400),
        // Published as 119 billion, with the tower.
        ("mistral-small-4-119b", 118_972_826_624),
        // Published as 75.3 billion, without the layers that draft.
        ("nemotron-3-puzzle-75b", 75_353_345_024),
    ] {
        let model =
            build(&read(&format!("tests/data/priced/{name}.json"))).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(model.parameters(), text, "{name}");
        // Nemotron's latent experts have kernels.
        assert_eq!(model.extras.estimate_only.is_some(), name != "nemotron-3-super", "{name}");
    }
    for (name, text) in [("phi-4", 14_659_507_200), ("deepseek-v3", 671_026_419_200)] {
        let model = build(&read(&format!("../tests/data/configs/{name}.json"))).unwrap();
        assert_eq!(model.parameters(), text, "{name}");
    }
}

#[test]
fn text_tower_and_drafts_together_have_the_published_number_of_values() {
    let configs = "../tests/data/configs";
    for (path, total) in [
        ("tests/data/priced/mistral-small-3.2-24b.json".to_owned(), 24_011_361_280),
        ("tests/data/priced/qwen3-vl-8b.json".to_owned(), 8_767_123_696),
        ("tests/data/priced/llama-4-scout.json".to_owned(), 108_641_793_536),
        ("tests/data/priced/llama-4-maverick.json".to_owned(), 401_583_781_376),
        (format!("{configs}/gemma-3-12b-it.json"), 12_187_325_040),
        (format!("{configs}/gemma-3-4b-it-sparse.json"), 4_300_079_472),
        (format!("{configs}/gemma-3-27b-it-reconstructed.json"), 27_432_406_640),
        (format!("{configs}/qwen3.5-27b.json"), 27_781_427_952),
        ("tests/data/priced/qwen3-next-80b-a3b.json".to_owned(), 81_324_862_720),
        ("tests/data/priced/qwen3-vl-30b-a3b.json".to_owned(), 31_070_754_032),
        ("tests/data/priced/qwen3-vl-235b-a22b.json".to_owned(), 235_670_022_896),
        (format!("{configs}/nemotron-3.5-lightning-30b-a3b-nvfp4.json"), 32_913_266_240),
        // The published 684,531,386,000 counts 41,540,496 scales of blocks.
        (format!("{configs}/deepseek-v3.json"), 684_531_386_000 - 41_540_496),
    ] {
        let model = build(&read(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (vision, draft) = (beside(&model, Part::Vision), beside(&model, Part::Draft));
        assert_eq!(model.parameters() + vision + draft, total, "{path}: {vision} and {draft}");
        assert_eq!(model.extras.vision.is_some(), vision > 0, "{path}");
    }
    let mut gemma: Value =
        serde_json::from_slice(&read(&format!("{configs}/gemma-4-31b-it-nvfp4.json"))).unwrap();
    gemma.as_object_mut().unwrap().remove("quantization_config");
    let model = build(gemma.to_string().as_bytes()).unwrap();
    assert_eq!(model.parameters(), 30_697_345_340);
    assert_eq!(beside(&model, Part::Vision), 575_743_536);
}

#[test]
fn states_are_those_of_the_layers() {
    let of = |name: &str| build(&read(&format!("tests/data/priced/{name}.json"))).unwrap();
    let count = |model: &Model, f: fn(&State) -> bool| model.states.iter().filter(|s| f(s)).count();
    let sliding = |s: &State| matches!(s, State::KvSliding { .. });
    let full = |s: &State| matches!(s, State::KvFull { .. });
    let recurrent = |s: &State| matches!(s, State::Recurrent { .. });

    let scout = of("llama-4-scout");
    assert_eq!((count(&scout, sliding), count(&scout, full)), (36, 12));
    let trinity = of("trinity-nano");
    assert_eq!((count(&trinity, sliding), count(&trinity, full)), (42, 14));
    let granite = of("granite-4.0-h-small");
    assert_eq!((count(&granite, recurrent), count(&granite, full)), (36, 4));
    let lfm = of("lfm2-1.2b");
    assert_eq!((count(&lfm, recurrent), count(&lfm, full)), (10, 6));
    assert_eq!(lfm.states[0].recurrent().unwrap().bytes(), 2 * 2048 * 4);
    assert_eq!(count(&of("phi-3-mini"), sliding), 32);
    assert_eq!(count(&of("mistral-7b-v0.3"), full), 32);
    // A window that the configuration says not to use is none.
    assert_eq!(count(&of("qwen2.5-7b"), full), 28);
    let deepseek = build(&read("../tests/data/configs/deepseek-v3.json")).unwrap();
    assert!(deepseek.states.iter().all(|s| s.latent().is_some_and(|l| l.width() == 576)));
    assert_eq!((deepseek.states.len(), deepseek.extras.draft.len()), (61, 1));
    let mistral = of("mistral-small-4-119b");
    assert!(mistral.states.iter().all(|s| s.latent().is_some_and(|l| l.width() == 320)));
    let puzzle = of("nemotron-3-puzzle-75b");
    assert_eq!((count(&puzzle, recurrent), count(&puzzle, full)), (40, 8));
}

#[test]
fn layers_of_nemotron_that_draft_keep_their_attention_and_weights() {
    let lightning = "../tests/data/configs/nemotron-3.5-lightning-30b-a3b-nvfp4.json";
    for (path, values) in
        [(lightning, 1_335_325_952), ("tests/data/priced/nemotron-3-puzzle-75b.json", 2_942_325_248)]
    {
        let mut config: Value = serde_json::from_slice(&read(path)).unwrap();
        let model = build(config.to_string().as_bytes()).unwrap();
        assert!(matches!(model.extras.draft[..], [State::KvFull { .. }]), "{path}");
        assert_eq!(beside(&model, Part::Draft), values, "{path}");
        assert!(model.extras.tensors.iter().all(|t| t.name.starts_with("mtp.layers.")), "{path}");
        // Two stacks are twice one; none is nothing.
        config["num_nextn_predict_layers"] = json!(2);
        let twice = build(config.to_string().as_bytes()).unwrap();
        assert_eq!((beside(&twice, Part::Draft), twice.extras.draft.len()), (2 * values, 2), "{path}");
        config["num_nextn_predict_layers"] = json!(0);
        let none = build(config.to_string().as_bytes()).unwrap();
        assert_eq!((beside(&none, Part::Draft), none.extras.draft.len()), (0, 0), "{path}");
        assert_eq!(none.parameters(), model.parameters(), "{path}");
        for bad in [json!(1_000_000), json!(u64::MAX), json!(-1), json!("1")] {
            config["num_nextn_predict_layers"] = bad;
            assert!(matches!(build(config.to_string().as_bytes()), Err(ModelError::Field { .. })), "{path}");
        }
    }
}

#[test]
fn bounds_of_images_are_those_of_the_preprocessor() {
    let bounds = |file: Option<&str>| {
        let config = read("tests/data/priced/qwen3-vl-8b.json");
        let checkpoint = Checkpoint::from_config_bytes(&config, "config.json")?;
        let files =
            file.map(|text| ("preprocessor_config.json".to_owned(), text.as_bytes().to_vec())).into_iter();
        let model = Registry::standard().build(&checkpoint.with_side_files(files.collect())?)?;
        match model.extras.vision.unwrap().grid {
            Grid::Native { min_pixels, max_pixels, .. } => Ok::<_, ModelError>((min_pixels, max_pixels)),
            fixed @ (Grid::Fixed { .. } | Grid::Filled { .. }) => panic!("{fixed:?}"),
        }
    };
    assert_eq!(bounds(None).unwrap(), (65_536, 16_777_216));
    assert_eq!(bounds(Some("{}")).unwrap(), (65_536, 16_777_216));
    let size = r#"{"size": {"shortest_edge": 3136, "longest_edge": 12845056}}"#;
    assert_eq!(bounds(Some(size)).unwrap(), (3136, 12_845_056));
    let both = r#"{"max_pixels": 1003520, "size": {"shortest_edge": 3136, "longest_edge": 12845056}}"#;
    assert_eq!(bounds(Some(both)).unwrap(), (3136, 1_003_520));
    for bad in [
        r#"{"size": {"shortest_edge": 0, "longest_edge": 1}}"#,
        r#"{"size": {"shortest_edge": 9, "longest_edge": 8}}"#,
        r#"{"min_pixels": "x"}"#,
        r#"{"max_pixels": 18446744073709551615}"#,
        r#"{"max_pixels": -1}"#,
    ] {
        assert!(bounds(Some(bad)).is_err(), "{bad}");
    }
}

#[test]
fn layers_with_sizes_of_their_own_are_priced_or_named() {
    let good: Value = serde_json::from_slice(&read("tests/data/priced/nemotron-3-puzzle-75b.json")).unwrap();
    let values = build(good.to_string().as_bytes()).unwrap().parameters();
    let with = |block: usize, key: &str, value: Value| {
        let mut config = good.clone();
        config["block_configs"][block][key] = value;
        build(config.to_string().as_bytes())
    };
    // 512 experts, two matrices each, of 1,024 latent values.
    let wider = with(1, "moe_intermediate_size", json!(1281)).unwrap();
    assert_eq!(wider.parameters(), values + 512 * 2 * 1024);
    let fewer = with(7, "num_attention_heads", json!(16)).unwrap();
    assert_eq!(fewer.parameters(), values - 2 * 16 * 128 * 4096);
    // What the model says anyway, and nothing at all, changes nothing.
    assert_eq!(with(0, "ssm_state_size", json!(96)).unwrap().parameters(), values);
    assert_eq!(with(0, "sliding_window", Value::Null).unwrap().parameters(), values);
    for (block, key, value) in [
        (0, "ssm_state_size", json!(128)),
        (7, "sliding_window", json!(4096)),
        (7, "q_indexer_dim", json!(128)),
    ] {
        match with(block, key, value) {
            Err(error @ ModelError::Unsupported { .. }) => {
                assert!(error.to_string().contains(key), "{error}")
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    for (block, key, value) in [
        (1, "moe_intermediate_size", Value::Null),
        (1, "num_experts_per_tok", Value::Null),
        (1, "num_experts_per_tok", json!(513)),
        (1, "block_type", Value::Null),
        (1, "block_type", json!("mamba3")),
    ] {
        let error = with(block, key, value.clone()).unwrap_err();
        assert!(matches!(error, ModelError::Field { .. }), "{key} {value}: {error}");
    }
    let mut other = good.clone();
    other["layers_block_type"] = json!(vec!["mamba"; 88]);
    assert!(matches!(build(other.to_string().as_bytes()), Err(ModelError::Field { .. })));
}

#[test]
fn what_is_missing_or_absurd_is_an_error_by_name() {
    let files = std::fs::read_dir(format!("{}/tests/data/priced", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut tried = 0;
    for file in files {
        let good: Value = serde_json::from_slice(&std::fs::read(file.unwrap().path()).unwrap()).unwrap();
        let mut pointers = vec![String::new()];
        pointers.extend(
            ["text_config", "vision_config"]
                .into_iter()
                .filter(|k| good.get(k).is_some())
                .map(|k| format!("/{k}")),
        );
        for at in pointers {
            let keys: Vec<String> = good.pointer(&at).unwrap().as_object().unwrap().keys().cloned().collect();
            for key in keys {
                for bad in [
                    Value::Null,
                    json!(-1),
                    json!(0),
                    json!(1_000_000_000_000u64),
                    json!(u64::MAX),
                    json!(1e300),
                    json!(1.5),
                    json!("x"),
                    json!([]),
                    json!({}),
                    json!([null]),
                    json!(2_147_483_647),
                    json!(65_535),
                ] {
                    let mut config = good.clone();
                    config.pointer_mut(&at).unwrap()[&key] = bad.clone();
                    // A model or a typed error: never a panic, whose message would not be one.
                    match build(config.to_string().as_bytes()) {
                        Ok(model) => assert!(model.parameters() > 0),
                        Err(error) => assert!(!error.to_string().is_empty(), "{key} {bad}"),
                    }
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 3000, "{tried}");
    // What is worth gigabytes is never guessed.
    let deepseek: Value = serde_json::from_slice(&read("../tests/data/configs/deepseek-v3.json")).unwrap();
    let of = |name: &str| {
        serde_json::from_slice::<Value>(&read(&format!("tests/data/priced/{name}.json"))).unwrap()
    };
    for (config, keys) in [
        (
            deepseek,
            vec![
                "q_lora_rank",
                "n_routed_experts",
                "n_shared_experts",
                "first_k_dense_replace",
                "kv_lora_rank",
                "moe_intermediate_size",
                "num_experts_per_tok",
                "qk_rope_head_dim",
                "v_head_dim",
            ],
        ),
        (
            of("trinity-nano"),
            vec!["sliding_window", "num_dense_layers", "global_attn_every_n_layers", "num_experts"],
        ),
        (of("granite-4.0-h-small"), vec!["layer_types", "num_local_experts", "shared_intermediate_size"]),
        (of("lfm2-8b-a1b"), vec!["layer_types", "num_dense_layers", "moe_intermediate_size"]),
        (of("mistral-7b-v0.3"), vec!["sliding_window", "num_hidden_layers", "vocab_size"]),
    ] {
        for key in keys {
            let mut config = config.clone();
            config.as_object_mut().unwrap().remove(key);
            match build(config.to_string().as_bytes()) {
                Err(ModelError::Field { got, .. }) => assert_eq!(got, "nothing", "{key}"),
                other => panic!("{key} is missing: {other:?}"),
            }
        }
    }
    for key in ["attention_chunk_size", "intermediate_size_mlp", "num_local_experts"] {
        let mut config = of("llama-4-scout");
        config["text_config"].as_object_mut().unwrap().remove(key);
        assert!(matches!(build(config.to_string().as_bytes()), Err(ModelError::Field { .. })), "{key}");
    }
    for (name, keys) in [
        (
            "mistral-small-4-119b",
            ["q_lora_rank", "n_routed_experts", "n_shared_experts", "first_k_dense_replace"],
        ),
        (
            "qwen3-vl-30b-a3b",
            ["num_experts", "moe_intermediate_size", "num_experts_per_tok", "num_key_value_heads"],
        ),
    ] {
        for key in keys {
            let mut config = of(name);
            config["text_config"].as_object_mut().unwrap().remove(key);
            match build(config.to_string().as_bytes()) {
                Err(ModelError::Field { got, .. }) => assert_eq!(got, "nothing", "{name} {key}"),
                other => panic!("{name} {key} is missing: {other:?}"),
            }
        }
        // The text model's fields without the wrapper.
        let nested = of(name);
        let mut flat = nested["text_config"].clone();
        flat["tie_word_embeddings"] = json!(false);
        let flat = build(flat.to_string().as_bytes()).unwrap();
        assert_eq!(flat.parameters(), build(nested.to_string().as_bytes()).unwrap().parameters(), "{name}");
        assert!(flat.extras.vision.is_none(), "{name}");
    }
    let missing = br#"{"model_type": "deepseek_v3", "hidden_size": 64}"#;
    let Err(ModelError::Field { got, .. }) = build(missing) else { panic!("a field is missing") };
    assert_eq!(got, "nothing");
}
