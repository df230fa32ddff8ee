//! Values of a configuration that another one goes before are still values of their kind, and where they say another
//! thing that is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::{Checkpoint, Model, ModelError, Registry};
use serde_json::{Value, json};
use std::path::Path;

fn published(path: &str) -> Value {
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    Checkpoint::open(&at).unwrap().config().unwrap().clone()
}

fn build(config: &Value) -> Result<Model, ModelError> {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "kinds").unwrap();
    Registry::standard().build(&checkpoint)
}

/// That it is the value of this key that is wrong.
fn wrong(config: &Value, key: &str) {
    match build(config) {
        Err(ModelError::Field { key: named, .. }) => assert_eq!(named, key),
        other => panic!("{key}: {:?}", other.map(|model| model.notes)),
    }
}

fn told(config: &Value, what: &str) -> Vec<String> {
    build(config).unwrap().notes.into_iter().filter(|note| note.contains(what)).collect()
}

#[test]
fn blocks_of_packed_weights() {
    let modelopt = published("tests/data/configs/gemma-4-31b-it-nvfp4.json");
    assert!(build(&modelopt).is_ok());
    let group = "/config_groups/group_0";
    for (at, key, bad) in [
        ("/config_groups".to_owned(), "config_groups", json!(5)),
        ("/config_groups".to_owned(), "config_groups", json!(["Linear"])),
        ("/quant_method".to_owned(), "quant_method", json!(5)),
        ("/quant_algo".to_owned(), "quant_algo", json!(["NVFP4"])),
        (group.to_owned(), "config_groups.group_0", json!("Linear")),
        (format!("{group}/weights"), "config_groups.group_0.weights", json!(4)),
        (format!("{group}/targets"), "config_groups.group_0.targets", json!(5)),
        (format!("{group}/weights/num_bits"), "config_groups.group_0.weights.num_bits", json!("4")),
    ] {
        let mut config = modelopt.clone();
        *config["quantization_config"].pointer_mut(&at).unwrap_or_else(|| panic!("{at}")) = bad;
        wrong(&config, &format!("quantization_config.{key}"));
    }
    for (key, bad) in
        [("quantized_layers", json!(5)), ("group_size", json!("16")), ("kv_cache_quant_algo", json!(8))]
    {
        let mut config = modelopt.clone();
        config["quantization_config"][key] = bad;
        wrong(&config, &format!("quantization_config.{key}"));
    }

    let weights = json!({"type": "float", "num_bits": 8, "strategy": "channel"});
    let block = json!({"quant_method": "compressed-tensors", "format": "float-quantized", "sparsity_config": {},
        "kv_cache_scheme": null, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}});
    let mut config = published("tests/data/configs/llama-3.1-8b.json");
    config["quantization_config"] = block;
    assert!(build(&config).is_ok());
    for (at, bad) in [
        ("sparsity_config", json!(5)),
        ("kv_cache_scheme", json!("fp8")),
        ("config_groups", json!(5)),
        ("config_groups.group_0", json!(5)),
        ("config_groups.group_0.weights", json!(8)),
        ("config_groups.group_0.weights.type", json!(8)),
        ("config_groups.group_0.weights.group_size", json!("x")),
    ] {
        let mut config = config.clone();
        let mut place = &mut config["quantization_config"];
        for part in at.split('.') {
            place = &mut place[part];
        }
        *place = bad;
        wrong(&config, &format!("quantization_config.{at}"));
    }
}

#[test]
fn dtypes_of_the_whole_beside_the_text_models() {
    let gemma = published("tests/data/configs/gemma-3-12b-it.json");
    assert_eq!(told(&gemma, "goes before"), [""; 0]);
    for key in ["dtype", "torch_dtype"] {
        for bad in [json!("abc"), json!(5), json!(["bfloat16"])] {
            let mut config = gemma.clone();
            config[key] = bad;
            wrong(&config, key);
        }
        let mut config = gemma.clone();
        config[key] = json!("float32");
        assert_eq!(told(&config, "goes before"), [format!("dtype bf16 goes before the outer {key} f32")]);
        // The text model's own older spelling goes before the newer one outside.
        let text = config["text_config"].as_object_mut().unwrap();
        text.remove("dtype");
        text.insert("torch_dtype".to_owned(), json!("float16"));
        config["dtype"] = json!("float32");
        let model = build(&config).unwrap();
        assert_eq!(model.matrices[0].format.to_string(), "f16");
        assert_eq!(told(&config, "goes before"), ["torch_dtype f16 goes before the outer dtype f32"]);
    }
}

#[test]
fn intervals_beside_lists_of_layers() {
    let mut gemma = published("tests/data/configs/gemma-3-12b-it.json");
    let layers = gemma["text_config"]["num_hidden_layers"].as_u64().unwrap();
    let kind = |layer: u64| if layer.is_multiple_of(6) { "full_attention" } else { "sliding_attention" };
    gemma["text_config"]["layer_types"] = (1..=layers).map(kind).collect();
    assert_eq!(told(&gemma, "beats"), [""; 0]);
    for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
        for bad in [json!(-3), json!(0), json!(1e30), json!("x"), json!(2.5), json!([6])] {
            let mut config = gemma.clone();
            config["text_config"][key] = bad;
            wrong(&config, key);
        }
        let mut config = gemma.clone();
        config["text_config"][key] = json!(5);
        let note =
            format!("{key} 5 says other layers than layer_types, which is kept to: a list beats an interval");
        assert_eq!(told(&config, "beats"), [note]);
        assert_eq!(build(&config).unwrap().states, build(&gemma).unwrap().states);
    }
}

/// The same of families that are priced alone, by whichever list there is.
#[test]
fn intervals_beside_lists_of_priced_families() {
    let slides = |layer: u64| !layer.is_multiple_of(4);
    let named = |layer| json!(if slides(layer) { "sliding_attention" } else { "full_attention" });
    let rotated = |layer| json!(u8::from(slides(layer)));
    type One<'a> = &'a dyn Fn(u64) -> Value;
    let cases: [(&str, &str, &str, One<'_>); 3] = [
        ("trinity-mini", "global_attn_every_n_layers", "layer_types", &named),
        ("llama-4-scout", "no_rope_layer_interval", "layer_types", &named),
        ("llama-4-scout", "no_rope_layer_interval", "no_rope_layers", &rotated),
    ];
    for (name, key, list, one) in cases {
        let mut config = published(&format!("models/tests/data/priced/{name}.json"));
        let nested = config.get("text_config").is_some_and(Value::is_object);
        let mut with = |every: u64| {
            let text = if nested { &mut config["text_config"] } else { &mut config };
            let layers = text["num_hidden_layers"].as_u64().unwrap();
            text[list] = (1..=layers).map(one).collect();
            text[key] = json!(every);
            config.clone()
        };
        assert_eq!(told(&with(4), "beats"), [""; 0], "{name} {list}");
        let note =
            format!("{key} 7 says other layers than {list}, which is kept to: a list beats an interval");
        assert_eq!(told(&with(7), "beats"), [note], "{name} {list}");
        wrong(&with(0), key);
    }
}
