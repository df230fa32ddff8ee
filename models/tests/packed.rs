//! Packed safetensors: MLX's formats, NVFP4 and FP8 of modelopt and compressed-tensors, stacks of experts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::tensors::{Tensors, bare, config, golden};
use common::{data, scratch};
use plimsoll_kernels::Format;
use plimsoll_kernels::format::ScaleType;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::model::{Matrix, ScaleForm, Transform};
use plimsoll_models::{Model, ModelError, Registry};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Format of each matrix by the name of its first tensor.
fn formats(model: &Model) -> BTreeMap<String, Format> {
    model.matrices.iter().map(|m| (m.source.name().to_owned(), m.format)).collect()
}

#[test]
fn experts_one_by_one_and_stacked_are_one_model() {
    let c = config("golden/nemotron_h/config.json");
    let separate = Tensors::of("nemotron_h");
    let a = separate.build(&c).unwrap();
    for names in
        [["switch_mlp.fc1.weight", "switch_mlp.fc2.weight"], ["experts.up_proj", "experts.down_proj"]]
    {
        let mut stacked = separate.clone();
        for layer in [1, 5] {
            let mixer = format!("backbone.layers.{layer}.mixer");
            for (part, name) in ["up", "down"].into_iter().zip(names) {
                let mut all = Vec::new();
                for expert in 0..8 {
                    all.extend(
                        stacked.0.remove(&format!("{mixer}.experts.{expert}.{part}_proj.weight")).unwrap().2,
                    );
                }
                stacked.0.insert(format!("{mixer}.{name}"), ("F32".into(), vec![8, 64, 64], all));
            }
        }
        let b = stacked.build(&c).unwrap();
        assert_eq!((&a.graph, &a.vectors, &a.states), (&b.graph, &b.vectors, &b.states));
        for (a, b) in a.matrices.iter().zip(&b.matrices) {
            assert_eq!((a.rows, a.cols, a.format, a.experts), (b.rows, b.cols, b.format, b.experts));
            let rows = |m: &Matrix| m.source.pieces.iter().map(|p| p.rows).sum::<u32>();
            assert_eq!((rows(a), rows(b)), (a.rows, b.rows));
            if b.experts > 1 {
                assert_eq!((a.source.pieces.len(), b.source.pieces.len()), (8, 1));
            }
        }
    }
    // One expert in another format.
    let mut mixed = separate;
    mixed.set("backbone.layers.5.mixer.experts.6.up_proj.weight", "BF16", &[64, 64]);
    let error = mixed.build(&c).unwrap_err();
    assert!(
        matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains("experts.6"),
        "{error}"
    );
}

#[test]
fn packed_matrices_know_their_planes_and_factors() {
    let mlx = golden("mlx_nemotron_h_2bit");
    let found = formats(&mlx);
    let affine = Format::Affine { bits: 2, group: 64, scales: ScaleType::BF16 };
    assert_eq!(found["lm_head.weight"], affine);
    assert_eq!(found["backbone.layers.1.mixer.gate.weight"], Format::BF16);
    let stack = mlx.matrices.iter().find(|m| m.experts == 8).unwrap();
    let x = "backbone.layers.1.mixer.switch_mlp.fc1";
    assert_eq!(stack.source.pieces[0].planes, ["weight", "scales", "biases"].map(|p| format!("{x}.{p}")));
    assert_eq!(stack.source.pieces[0].scale, None);
    let a = mlx.vectors.iter().find(|v| v.tensor.ends_with("A_log")).unwrap();
    assert_eq!((a.transform, a.format), (Transform::NegExp, Format::F32));

    assert_eq!(formats(&golden("mlx_nemotron_h_nvfp4"))["lm_head.weight"], Format::Nvfp4);

    let modelopt = golden("modelopt_nemotron_h");
    let found = formats(&modelopt);
    assert_eq!(found["backbone.embeddings.weight"], Format::BF16);
    let stack = modelopt.matrices.iter().find(|m| m.experts == 8).unwrap();
    assert_eq!((stack.format, stack.source.pieces.len()), (Format::Nvfp4Scaled, 8));
    let piece = &stack.source.pieces[3];
    let x = "backbone.layers.1.mixer.experts.3.up_proj";
    assert_eq!(piece.planes, [format!("{x}.weight"), format!("{x}.weight_scale")]);
    let scale = piece.scale.as_ref().unwrap();
    assert_eq!(
        (scale.tensor.as_str(), scale.index, scale.form),
        (format!("{x}.weight_scale_2").as_str(), Some(0), ScaleForm::Times)
    );
    let fp8 = modelopt
        .matrices
        .iter()
        .find(|m| m.source.name() == "backbone.layers.0.mixer.in_proj.weight")
        .unwrap();
    assert_eq!((fp8.format, fp8.source.pieces[0].planes.len()), (Format::Fp8, 1));
}

#[test]
fn compressed_tensors_and_factors_of_rows_and_experts() {
    let plain = |mut c: Value| {
        c.as_object_mut().unwrap().remove("quantization_config");
        c
    };
    let c = plain(config("golden/modelopt_nemotron_h/config.json"));
    let mut tensors = Tensors::of("modelopt_nemotron_h");
    let x = "backbone.layers.4.mixer.up_proj";
    tensors.rename(&format!("{x}.weight"), &format!("{x}.weight_packed"));
    tensors.0.remove(&format!("{x}.weight_scale_2"));
    tensors.set(&format!("{x}.weight_global_scale"), "F32", &[1]);
    let y = "backbone.layers.4.mixer.down_proj";
    for part in ["weight_scale", "weight_scale_2"] {
        tensors.0.remove(&format!("{y}.{part}"));
    }
    tensors.set(&format!("{y}.weight"), "F8_E4M3", &[64, 64]);
    tensors.set(&format!("{y}.weight_scale"), "BF16", &[64, 1]);
    let model = tensors.build(&c).unwrap();
    let of = |name: &str| model.matrices.iter().find(|m| m.source.name() == name).unwrap();
    let piece = &of(&format!("{x}.weight_packed")).source.pieces[0];
    assert_eq!(piece.scale.as_ref().map(|s| (s.index, s.form)), Some((Some(0), ScaleForm::Over)));
    let rows = of(&format!("{y}.weight"));
    assert_eq!(rows.format, Format::Fp8);
    assert_eq!(
        rows.source.pieces[0].scale.as_ref().map(|s| (s.index, s.form)),
        Some((None, ScaleForm::Times))
    );
    // What is said must be what is there.
    let mut said = c.clone();
    said["quantization_config"] = json!({"quant_method": "compressed-tensors", "ignore": [],
        "config_groups": {"g": {"targets": ["re:.*down_proj$"], "weights": {"type": "float", "num_bits": 4, "group_size": 16}}}});
    let error = tensors.build(&said).unwrap_err();
    assert!(matches!(error, ModelError::Field { .. }) && error.to_string().contains("down_proj"), "{error}");

    let mut tensors = Tensors::of("mlx_nemotron_h_nvfp4");
    let x = "backbone.layers.1.mixer.switch_mlp.fc1.global_scale";
    tensors.set(x, "F32", &[8]);
    let c = config("golden/mlx_nemotron_h_nvfp4/config.json");
    let model = tensors.build(&c).unwrap();
    let stack = model.matrices.iter().find(|m| m.experts == 8).unwrap();
    assert_eq!((stack.format, stack.source.pieces.len()), (Format::Nvfp4Scaled, 8));
    let piece = &stack.source.pieces[5];
    assert_eq!((piece.first_row, piece.rows), (5 * 64, 64));
    assert_eq!(piece.scale.as_ref().map(|s| (s.index, s.form)), Some((Some(5), ScaleForm::MaxAbs)));
    tensors.set(x, "F32", &[7]);
    assert!(matches!(tensors.build(&c).unwrap_err(), ModelError::Shape { name, .. } if name == x));
}

#[test]
fn a_configuration_alone_prices_the_formats_it_states() {
    // The scales' type is the model's dtype, which these files state otherwise than their tensors have it.
    for (family, dtype) in [("mlx_nemotron_h_2bit", "bfloat16"), ("mlx_nemotron_h_nvfp4", "bfloat16")] {
        let mut c = config(&format!("golden/{family}/config.json"));
        c["dtype"] = json!(dtype);
        let (bare, loaded) = (bare(&c).unwrap(), golden(family));
        assert_eq!(formats(&bare), formats(&loaded), "{family}");
    }
    let mut c = config("golden/modelopt_nemotron_h/config.json");
    c["dtype"] = json!("bfloat16");
    let loaded: Vec<Format> = golden("modelopt_nemotron_h").matrices.iter().map(|m| m.format).collect();
    let list = |m: &Model| m.matrices.iter().map(|m| m.format).collect::<Vec<_>>();
    assert_eq!(list(&bare(&c).unwrap()), loaded);
    // The description may be a file of its own.
    c.as_object_mut().unwrap().remove("quantization_config");
    assert!(list(&bare(&c).unwrap()).iter().all(|f| *f == Format::BF16));
    let dir = scratch("hf_quant_config");
    std::fs::write(dir.join("config.json"), c.to_string()).unwrap();
    std::fs::copy(data("golden/modelopt_nemotron_h/hf_quant_config.json"), dir.join("hf_quant_config.json"))
        .unwrap();
    for path in [dir.clone(), dir.join("config.json")] {
        let model = Registry::standard().build(&Checkpoint::open(&path).unwrap()).unwrap();
        assert_eq!(list(&model), loaded);
    }
    // Of a stack, MLX names the stack.
    let mut c = config("golden/mlx_nemotron_h_nvfp4/config.json");
    c["quantization"]["backbone.layers.1.mixer.switch_mlp.fc1"] = json!({"bits": 8, "group_size": 32});
    c["quantization"]["backbone.layers.1.mixer.switch_mlp.fc2"] = json!(false);
    let found = formats(&bare(&c).unwrap());
    let x = |name: &str| found[&format!("backbone.layers.{name}.weight")];
    assert_eq!(x("1.mixer.switch_mlp.fc1"), Format::Affine { bits: 8, group: 32, scales: ScaleType::F32 });
    assert_eq!((x("1.mixer.switch_mlp.fc2"), x("5.mixer.switch_mlp.fc2")), (Format::F32, Format::Nvfp4));
    // Experts that are not all alike.
    let mut c = config("golden/modelopt_nemotron_h/config.json");
    c["quantization_config"]["quantized_layers"]["backbone.layers.1.mixer.experts.4.up_proj"] =
        json!({"quant_algo": "FP8"});
    assert!(matches!(bare(&c).unwrap_err(), ModelError::Unsupported { .. }));
}

/// A golden checkpoint, what is done to it, and what the error must name.
type Case = (&'static str, fn(&mut Tensors, &mut Value), &'static str);

#[test]
fn packed_tensors_that_contradict_are_refused() {
    const MLX: &str = "mlx_nemotron_h_2bit";
    const NVIDIA: &str = "modelopt_nemotron_h";
    const X: &str = "backbone.layers.0.mixer.in_proj";
    let part = |name: &str| format!("{X}.{name}");
    let cases: [Case; 17] = [
        (MLX, |_, c| c["quantization"]["bits"] = json!(4), "affine2_g64_bf16, as its tensors are"),
        (MLX, |_, c| c["quantization"]["group_size"] = json!(32), "got affine2_g32"),
        (MLX, |_, c| c["quantization"][X] = json!({"bits": 3, "group_size": 64}), "in_proj\": expected"),
        (MLX, |t, _| drop(t.0.remove(&format!("{X}.scales"))), "in_proj.scales is missing"),
        (MLX, |t, _| drop(t.0.remove(&format!("{X}.biases"))), "without offsets"),
        (MLX, |t, _| t.set(&format!("{X}.scales"), "I32", &[328, 1]), "got i32"),
        (MLX, |t, _| t.set(&format!("{X}.biases"), "F16", &[328, 1]), "that of the scales"),
        (MLX, |t, _| t.set(&format!("{X}.scales"), "BF16", &[327, 1]), "[328, 1], got [327, 1]"),
        (MLX, |t, _| t.set(&format!("{X}.biases"), "BF16", &[328, 2]), "[328, 1], got [328, 2]"),
        (MLX, |t, _| t.set(&format!("{X}.scales"), "BF16", &[328, 0]), "whole groups"),
        (MLX, |t, _| t.set(&format!("{X}.scales"), "BF16", &[328, 3]), "whole groups"),
        (MLX, |t, _| t.set(&format!("{X}.weight"), "U32", &[328, 5]), "whole bits"),
        (MLX, |t, _| t.set(&format!("{X}.weight"), "U32", &[328]), "got [328]"),
        (
            MLX,
            |t, _| t.set("backbone.layers.1.mixer.switch_mlp.fc1.scales", "BF16", &[4, 64, 1]),
            "[8, 64, 1], got [4, 64, 1]",
        ),
        (NVIDIA, |t, _| drop(t.0.remove(&format!("{X}.weight_scale"))), "weight_scale is missing"),
        (NVIDIA, |t, _| t.set(&format!("{X}.weight_scale"), "F32", &[7]), "got [7]"),
        (
            NVIDIA,
            |t, _| t.set("backbone.layers.4.mixer.up_proj.weight_scale", "U8", &[64, 4]),
            "expected f8_e4m3, got u8",
        ),
    ];
    for (family, change, named) in cases {
        let (mut tensors, mut c) = (Tensors::of(family), config(&format!("golden/{family}/config.json")));
        tensors.build(&c).unwrap();
        change(&mut tensors, &mut c);
        let error = tensors.build(&c).expect_err(named);
        assert!(error.to_string().contains(named), "{named}: {error}");
    }
    let mut tensors = Tensors::of(NVIDIA);
    tensors.set(&part("weight_scale_inv"), "F32", &[3, 1]);
    let error = tensors.build(&config("golden/modelopt_nemotron_h/config.json")).unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
}
