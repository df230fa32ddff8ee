#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::pattern::glob_matches;
use super::*;
use serde_json::json;

fn of(block: Value) -> Quantization {
    read("quantization_config", &block).unwrap()
}

fn linear(quantization: &Quantization, module: &str) -> Option<Scheme> {
    quantization.scheme(module, Module::Linear, 128).unwrap()
}

const NVFP4: Option<Scheme> = Some(Scheme::Packed(Format::Nvfp4Scaled));
const FP8: Option<Scheme> = Some(Scheme::Packed(Format::Fp8));

#[test]
fn globs_match_whole_names_and_whole_components() {
    for (glob, text, expected) in [
        ("lm_head", "lm_head", true),
        ("mtp*", "mtp.layers.0.x", true),
        ("a.*.c", "a.b.b.c", true),
        ("a.*.c", "a.b.b.d", false),
        ("*", "", true),
        ("**a*", "bab", true),
    ] {
        assert_eq!(glob_matches(glob, text), expected, "{glob} {text}");
    }
    let pattern = Pattern::Glob("layers.1".into());
    assert!(pattern.matches("layers.1.up") && !pattern.matches("layers.10.up"));
}

#[test]
fn mlx_entries_without_a_mode_are_affine() {
    let q = of(json!({"group_size": 16, "bits": 4, "mode": "nvfp4",
        "a.gate": {"group_size": 64, "bits": 8}, "b": false}));
    assert_eq!(linear(&q, "x"), Some(Scheme::Packed(Format::Nvfp4)));
    assert_eq!(linear(&q, "a.gate"), Some(Scheme::Affine { bits: 8, group: 64 }));
    assert_eq!(linear(&q, "b"), None);
    assert_eq!(q.scheme("x", Module::Linear, 24).unwrap(), None);
    assert!(q.scheme("e", Module::Embedding, 32).unwrap().is_some());
    assert!(q.scheme("e", Module::Parameter, 32).unwrap().is_none());
    assert!(q.check("a.gate", Format::Nvfp4).is_err());
    assert!(q.check("x", Format::Nvfp4Scaled).is_ok());
}

#[test]
fn modelopt_says_by_algorithm_or_by_module() {
    let q = of(json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.attn*"]}));
    assert_eq!((linear(&q, "l.0.up"), linear(&q, "lm_head"), linear(&q, "l.0.attn.q")), (NVFP4, None, None));
    assert_eq!(q.scheme("e", Module::Embedding, 32).unwrap(), None);
    let q = of(json!({"quant_algo": "MIXED_PRECISION", "quantized_layers": {
        "l.0.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16}, "l.0.q": {"quant_algo": "FP8"}}}));
    assert_eq!(
        (linear(&q, "l.0.experts.7.up"), linear(&q, "l.0.q"), linear(&q, "l.1.q")),
        (NVFP4, FP8, None)
    );
    assert!(q.scheme("l.0.experts", Module::Linear, 24).is_err());
}

#[test]
fn mxfp4_is_of_experts_alone() {
    let q = of(json!({"quant_method": "mxfp4", "modules_to_not_convert": ["l.*.attn", "l.1.mlp.experts"]}));
    let mxfp4 = Some(Scheme::Packed(Format::Mxfp4));
    assert_eq!(linear(&q, "l.0.mlp.experts.up"), mxfp4);
    for plain in ["l.0.attn.q", "l.0.mlp.router", "lm_head", "l.1.mlp.experts.up"] {
        assert_eq!(linear(&q, plain), None, "{plain}");
    }
    assert!(q.scheme("l.0.mlp.experts", Module::Linear, 48).is_err());
    assert!(read("q", &json!({"quant_method": "mxfp4", "modules_to_not_convert": "lm_head"})).is_err());
}

#[test]
fn compressed_tensors_target_classes_names_and_patterns() {
    let nvfp4 = json!({"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"});
    let fp8 = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let q = of(json!({"quant_method": "compressed-tensors", "ignore": ["re:.*gate$", "lm_head"],
        "config_groups": {"a": {"targets": ["Linear"], "weights": nvfp4},
            "b": {"targets": ["re:l\\.\\d+\\.attn\\."], "weights": fp8}}}));
    assert_eq!((linear(&q, "l.0.up"), linear(&q, "l.0.gate"), linear(&q, "lm_head")), (NVFP4, None, None));
    assert_eq!((linear(&q, "l.12.attn.q"), linear(&q, "x.l.1.attn.q")), (FP8, NVFP4));
}

#[test]
fn square_blocks_are_priced_only() {
    let block =
        json!({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["l.3.a"]});
    let q = of(block);
    assert_eq!((linear(&q, "l.0.up"), linear(&q, "lm_head"), linear(&q, "m.l.3.a.x")), (FP8, None, None));
    assert!(q.priced.is_some());
    assert!(of(json!({"quant_algo": "FP8"})).priced.is_none());
}

#[test]
fn what_has_no_kernels_is_refused_and_what_contradicts_itself_too() {
    let group = |weights: Value| {
        json!({"quant_method": "compressed-tensors",
        "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}})
    };
    for block in [
        json!({"quant_method": "gptq", "bits": 4}),
        json!({"quant_method": "awq"}),
        json!({"quant_method": "bitnet"}),
        json!({"quant_method": "fp8"}),
        json!({"load_in_4bit": true}),
        json!({"bits": 7, "group_size": 64}),
        json!({"bits": 4, "group_size": 16}),
        json!({"mode": "mxfp6", "bits": 6}),
        json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}),
        group(json!({"num_bits": 4, "type": "int", "group_size": 128})),
        group(json!({"num_bits": 8, "type": "float", "strategy": "block"})),
        json!({"quant_method": "compressed-tensors", "ignore": ["re:(?=x)"], "config_groups": {}}),
    ] {
        let error = read("q", &block).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{block}: {error}");
    }
    let modelopt = |algo: &str, weights: Value| {
        json!({"quant_method": "modelopt", "quant_algo": algo,
            "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}}})
    };
    assert!(read("q", &modelopt("NVFP4", json!({"num_bits": 4, "group_size": 16}))).is_ok());
    assert!(read("q", &modelopt("FP8", json!({"num_bits": 8}))).is_ok());
    for block in [
        json!("mxfp4"),
        json!({"quant_method": "fp8", "weight_block_size": [128]}),
        json!({"quant_method": "fp8", "weight_block_size": [128, 0]}),
        json!({"quant_method": "fp8", "weight_block_size": [128, -1]}),
        json!({"mode": "nvfp4", "bits": 8}),
        json!({"mode": 4, "bits": 8}),
        json!({"bits": "four"}),
        json!({"quant_algo": "NVFP4", "group_size": 32}),
        json!({"quant_algo": "MIXED_PRECISION"}),
        json!({"quant_algo": "FP8", "ignore": "lm_head"}),
        json!({"quant_method": "compressed-tensors"}),
        // What is said twice must be the same.
        json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "config_groups": {"g": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8}}}}),
        json!({"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"g": {"targets": ["Linear"],
                "weights": {"type": "float", "num_bits": 4, "group_size": 16}}}}),
        json!({"quant_method": "compressed-tensors", "format": "mixed-precision",
            "config_groups": {"g": {"targets": ["Linear"], "format": "pack-quantized",
                "weights": {"type": "float", "num_bits": 4, "group_size": 16}}}}),
        json!({"quant_method": "compressed-tensors", "format": 4,
            "config_groups": {"g": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8}}}}),
        modelopt("NVFP4", json!({"num_bits": 8, "group_size": 16})),
        modelopt("NVFP4", json!({"num_bits": 4, "group_size": 32})),
        modelopt("NVFP4", json!({"num_bits": "4"})),
        modelopt("FP8", json!({"num_bits": 4})),
        modelopt("FP8", json!({"num_bits": 8, "group_size": 16})),
        modelopt("FP8", json!({"num_bits": -8})),
        json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"]}}}),
    ] {
        let error = read("q", &block).unwrap_err();
        assert!(matches!(error, ModelError::Field { .. }), "{block}: {error}");
    }
}

#[test]
fn names_tell_experts_apart_only_below_their_stack() {
    let entry = json!({"group_size": 64, "bits": 8});
    let block = |name: &str| json!({"group_size": 16, "bits": 4, "mode": "nvfp4", name: entry.clone()});
    let (one, other) = ("l.3.experts.0.up", "l.3.experts.1.up");
    for (name, apart) in [
        ("l.3.experts.7.up", true),
        ("l.3.experts.12", true),
        ("l.3.experts", false),
        ("l.3.experts.all", false),
        ("l.4.experts.1.up", false),
        ("l.3", false),
    ] {
        assert_eq!(of(block(name)).tells_apart(one, other), apart, "{name}");
    }
}

#[test]
fn globs_tell_experts_apart_only_where_they_can_match() {
    let (one, other) = ("l.3.experts.0.up", "l.3.experts.1.up");
    for (glob, apart) in [
        ("l.3.experts.7", true),
        ("l.3.experts.1*", true),
        ("*.1.up", true),
        ("l.*.1.up", true),
        ("l.3.experts", false),
        ("l.3.self_attn", false),
        ("mtp.layers.0*", false),
        ("l.*.up", false),
    ] {
        let ignored = [Pattern::Glob(glob.into())].into_iter().collect();
        let quantization = Quantization { ignored, ..Quantization::default() };
        assert_eq!(quantization.tells_apart(one, other), apart, "{glob}");
    }
}

#[test]
fn a_million_names_that_stay_plain_are_looked_up() {
    let entries = (0..1_000_000).map(|n| Pattern::Glob(format!("stranger.{n}")));
    let known = ["model.layers.1.mlp", "*.gate"].map(|glob| Pattern::Glob(glob.into()));
    let ignored: super::Ignored = entries.chain(known).collect();
    let begun = std::time::Instant::now();
    for layer in 0..10_000 {
        let module = |part: &str| format!("model.layers.{layer}.{part}");
        assert_eq!(ignored.matches(&module("mlp.up_proj")), layer == 1);
        assert_eq!(ignored.matches(&module("mlp")), layer == 1);
        assert!(ignored.matches(&module("router.gate")) && !ignored.matches(&module("mlp2")));
    }
    assert!(ignored.matches("stranger.999999.weight") && !ignored.matches("stranger"));
    // One after the other they would take a minute.
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}
