//! Families that are priced and not run, and what stands beside text models: numbers of values against the totals that
//! the published checkpoints have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::model::{Part, State};
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
        // 3,416 fewer than the published file's values and scales, for reasons unknown.
        ("kimi-k2", 1_026_408_232_448),
        ("granite-4.0-h-small", 32_207_337_984),
        ("nemotron-3-super", 120_668_707_840),
        ("lfm2-1.2b", 1_170_340_608),
        // With 704 values of biases that the published total leaves out.
        ("lfm2-8b-a1b", 8_339_929_856 + 704),
        ("trinity-nano", 6_120_003_328),
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
        (format!("{configs}/qwen3.5-27b.json"), 27_781_427_952),
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
    let missing = br#"{"model_type": "deepseek_v3", "hidden_size": 64}"#;
    let Err(ModelError::Field { got, .. }) = build(missing) else { panic!("a field is missing") };
    assert_eq!(got, "nothing");
}
