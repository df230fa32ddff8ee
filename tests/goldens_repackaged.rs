//! Golden checkpoints in other published packagings: the same numbers in other files, under other names and beside other
//! configurations, made in memory. Answers are those of the checkpoint they were made from.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::{Golden, run_made};
use plimsoll_kernels::Format;
use plimsoll_kernels::dequant::dequantize_rows;
use plimsoll_kernels::format::{ScaleType, gather};

use plimsoll_models::model::ScaleForm;
use plimsoll_models::{Checkpoint, Model, Registry};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use support::data;

/// A tensor as a file has it.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    /// Values that need no more bits than these.
    fn bf16(shape: &[usize], values: &[f32]) -> Self {
        assert!(values.iter().all(|v| v.to_bits() & 0xFFFF == 0), "more bits than bf16 has");
        let bytes = values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect();
        Self { dtype: Dtype::BF16, shape: shape.to_vec(), bytes }
    }

    fn floats(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::F32 => {
                self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
            }
            Dtype::BF16 => self
                .bytes
                .chunks_exact(2)
                .map(|b| f32::from_bits(u32::from_le_bytes([0, 0, b[0], b[1]])))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    /// One of the matrices of a stack.
    fn of_stack(&self, index: usize) -> Self {
        let size = self.bytes.len() / self.shape[0];
        let bytes = self.bytes[index * size..][..size].to_vec();
        Self { dtype: self.dtype, shape: self.shape[1..].to_vec(), bytes }
    }
}

/// Twice the e4m3 code, or `None` where that is more than the largest.
fn doubled(code: u8) -> Option<u8> {
    match code & 0x7F {
        0..8 => Some((code & 0x80) | ((code & 0x7F) * 2)),
        8..=0x76 => Some(code + 8),
        _ => None,
    }
}

/// A checkpoint to be changed tensor by tensor.
struct Package {
    family: &'static str,
    config: Value,
    tensors: BTreeMap<String, Stored>,
    /// What the first tensor of each packed matrix must be read as.
    packed: BTreeMap<String, (Format, ScaleForm)>,
}

impl Package {
    fn of(family: &'static str) -> Self {
        let read = |file: &str| std::fs::read(data(&format!("golden/{family}/{file}"))).unwrap();
        let file = read("model.safetensors");
        let tensors = SafeTensors::deserialize(&file).unwrap().tensors().into_iter();
        let stored = |view: TensorView<'_>| Stored {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        Self {
            family,
            config: serde_json::from_slice(&read("config.json")).unwrap(),
            tensors: tensors.map(|(name, view)| (name, stored(view))).collect(),
            packed: BTreeMap::new(),
        }
    }

    fn take(&mut self, name: &str) -> Stored {
        self.tensors.remove(name).expect(name)
    }

    fn put(&mut self, name: String, tensor: Stored) {
        assert!(self.tensors.insert(name.clone(), tensor).is_none(), "{name} twice");
    }

    /// What a packer lists as left alone: plain matrices of linear layers.
    fn plain_linears(&self) -> Vec<String> {
        let plain =
            |stored: &Stored| stored.shape.len() == 2 && matches!(stored.dtype, Dtype::F32 | Dtype::BF16);
        let names = self.tensors.iter().filter(|(_, stored)| plain(stored)).map(|(name, _)| name.as_str());
        let modules = names.filter_map(|name| name.strip_suffix(".weight"));
        modules.filter(|module| !module.contains("embed")).map(str::to_owned).collect()
    }

    /// The checkpoint with its tensors dealt to `files` files in turn, and the model of it.
    fn build(&self, files: usize) -> (Checkpoint, Model) {
        let name = |i: usize| match files {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{files:05}.safetensors", i % files + 1),
        };
        let written = |file: usize| {
            let views = self.tensors.iter().skip(file).step_by(files).map(|(name, tensor)| {
                (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap())
            });
            (name(file), safetensors::serialize(views, None).unwrap())
        };
        let map: BTreeMap<&str, String> =
            self.tensors.keys().enumerate().map(|(i, tensor)| (tensor.as_str(), name(i))).collect();
        let size: usize = self.tensors.values().map(|tensor| tensor.bytes.len()).sum();
        let index = json!({"metadata": {"total_size": size}, "weight_map": map}).to_string();
        let checkpoint = Checkpoint::from_safetensors_bytes(
            (files > 1).then_some(index.as_bytes()),
            (0..files).map(written).collect(),
            Some(self.config.to_string().as_bytes()),
            self.family,
        )
        .unwrap();
        let model = Registry::standard().build(&checkpoint).unwrap();
        self.check_formats(&model);
        // The configuration alone says the same of what is packed; plain floats may be of any type.
        let bare = Checkpoint::from_config_bytes(self.config.to_string().as_bytes(), self.family).unwrap();
        let bare = Registry::standard().build(&bare).unwrap();
        assert_eq!(bare.matrices.len(), model.matrices.len());
        for (bare, matrix) in bare.matrices.iter().zip(&model.matrices) {
            let plain = bare.format.is_float() && matrix.format.is_float();
            assert!(plain || bare.format == matrix.format, "{}: {}", matrix.source.name(), bare.format);
        }
        (checkpoint, model)
    }

    /// Packed matrices are read as what they are packed in, all of them, and nothing else is.
    fn check_formats(&self, model: &Model) {
        let mut seen = BTreeSet::new();
        for matrix in &model.matrices {
            for piece in &matrix.source.pieces {
                let got = piece.scale.as_ref().map(|scale| (matrix.format, scale.form));
                assert_eq!(got, self.packed.get(&piece.planes[0]).copied(), "{}", piece.planes[0]);
                assert!(
                    got.is_some() || matrix.format.is_float(),
                    "{} is {}",
                    piece.planes[0],
                    matrix.format
                );
                seen.insert(piece.planes[0].clone());
            }
        }
        let unread: Vec<&String> = self.packed.keys().filter(|name| !seen.contains(*name)).collect();
        assert!(unread.is_empty(), "{unread:?}");
    }

    fn run(&self, what: &str, files: usize) {
        let (checkpoint, model) = self.build(files);
        let what = format!("{} {what}", self.family);
        run_made(&what, &checkpoint, &model, &Golden::new(self.family, ""));
    }
}

/// Tensors in alphabetical order go to three files in turn: the experts of a layer are in all of them.
#[test]
fn nemotron_h_in_shards() {
    let package = Package::of("nemotron_h");
    for layer in [1, 5] {
        for part in ["up_proj", "down_proj"] {
            let experts: BTreeSet<usize> = (0..8)
                .map(|expert| format!("backbone.layers.{layer}.mixer.experts.{expert}.{part}.weight"))
                .map(|name| package.tensors.keys().position(|other| *other == name).unwrap() % 3)
                .collect();
            assert_eq!(experts.len(), 3);
        }
    }
    package.run("in three files", 3);
}

/// NVFP4 with the reciprocal of modelopt's factor under another name, and FP8 with a scale of the whole or of each row.
#[test]
fn nemotron_h_of_compressed_tensors() {
    let mut package = Package::of("modelopt_nemotron_h");
    let names: Vec<String> = package.tensors.keys().cloned().collect();
    for name in names {
        let Some(module) = name.strip_suffix(".weight") else { continue };
        match package.tensors[&name].dtype {
            Dtype::U8 => {
                let codes = package.take(&name);
                let factor = package.take(&format!("{module}.weight_scale_2")).floats()[0];
                let input = package.take(&format!("{module}.input_scale")).floats()[0];
                package.put(format!("{module}.weight_packed"), codes);
                package.put(format!("{module}.weight_global_scale"), Stored::f32(&[1], &[1.0 / factor]));
                package.put(format!("{module}.input_global_scale"), Stored::f32(&[1], &[1.0 / input]));
                let read_as = (Format::Nvfp4Scaled, ScaleForm::Over);
                package.packed.insert(format!("{module}.weight_packed"), read_as);
            }
            Dtype::F8_E4M3 => {
                let rows = package.tensors[&name].shape[0];
                let scale = package.take(&format!("{module}.weight_scale")).floats()[0];
                // Activations are scaled as they come.
                package.take(&format!("{module}.input_scale"));
                let scale = if module.ends_with(".in_proj") {
                    // Every third row has another scale, for the same values.
                    let mut scales = vec![scale; rows];
                    let codes = &mut package.tensors.get_mut(&name).unwrap().bytes;
                    let cols = codes.len() / rows;
                    for (row, scale) in codes.chunks_exact_mut(cols).zip(&mut scales).step_by(3) {
                        let Some(twice) = row.iter().map(|&c| doubled(c)).collect::<Option<Vec<u8>>>() else {
                            continue;
                        };
                        row.copy_from_slice(&twice);
                        *scale /= 2.0;
                    }
                    assert!(scales.iter().any(|other| *other != scale), "{name}");
                    Stored::f32(&[rows, 1], &scales)
                } else {
                    Stored::f32(&[1], &[scale])
                };
                package.put(format!("{module}.weight_scale"), scale);
                package.packed.insert(name, (Format::Fp8, ScaleForm::Times));
            }
            _ => {}
        }
    }
    let formats: Vec<Format> = package.packed.values().map(|(format, _)| *format).collect();
    assert!(formats.contains(&Format::Fp8) && formats.contains(&Format::Nvfp4Scaled));
    let fp8 = |targets: &[&str], weights: &str, activations: &str| {
        json!({
            "format": "float-quantized", "output_activations": null, "targets": targets,
            "weights": {"num_bits": 8, "type": "float", "symmetric": true, "group_size": null,
                "strategy": weights, "block_structure": null, "dynamic": false, "actorder": null,
                "observer": "minmax", "observer_kwargs": {}},
            "input_activations": {"num_bits": 8, "type": "float", "symmetric": true, "group_size": null,
                "strategy": activations, "block_structure": null, "dynamic": true, "actorder": null,
                "observer": null, "observer_kwargs": {}},
        })
    };
    let nvfp4 = |dynamic: Value| {
        json!({"num_bits": 4, "type": "float", "symmetric": true, "group_size": 16, "strategy": "tensor_group",
            "block_structure": null, "dynamic": dynamic, "actorder": null, "scale_dtype": "torch.float8_e4m3fn",
            "zp_dtype": null, "observer": "static_minmax", "observer_kwargs": {}})
    };
    let whole: Vec<String> = package
        .packed
        .iter()
        .filter(|(_, read)| read.0 == Format::Fp8)
        .map(|(n, _)| n)
        .filter_map(|name| name.strip_suffix(".weight"))
        .filter(|module| !module.ends_with(".in_proj"))
        .map(str::to_owned)
        .collect();
    let whole: Vec<&str> = whole.iter().map(String::as_str).collect();
    package.config["quantization_config"] = json!({
        "config_groups": {
            "group_0": {"format": "nvfp4-pack-quantized", "output_activations": null, "targets": ["Linear"],
                "weights": nvfp4(json!(false)), "input_activations": nvfp4(json!("local"))},
            "group_1": fp8(&["re:.*mixer\\.in_proj$"], "channel", "token"),
            "group_2": fp8(&whole, "tensor", "tensor"),
        },
        "format": "mixed-precision", "global_compression_ratio": null, "ignore": package.plain_linears(),
        "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "sparsity_config": {}, "transform_config": {}, "version": "0.12.2",
    });
    package.run("of compressed-tensors", 1);
}

/// The values of a matrix in planes, row after row.
fn decoded(format: Format, rows: usize, planes: &[&Stored]) -> Vec<f32> {
    let bits = if format == Format::Nvfp4 { 4 } else { 8 };
    let mut values = Vec::new();
    for row in 0..rows {
        let planes: Vec<&[u8]> = planes
            .iter()
            .map(|plane| plane.bytes.chunks_exact(plane.bytes.len() / rows).nth(row).unwrap())
            .collect();
        let blocks = planes[0].len() * 8 / bits / format.block_len();
        let mut bytes = vec![0; blocks * format.block_bytes()];
        gather(format, &planes, 1.0, &mut bytes).unwrap();
        let mut out = vec![f32::NAN; blocks * format.block_len()];
        dequantize_rows(format, out.len() as u32, &bytes, &mut out);
        values.extend(out);
    }
    assert!(values.iter().all(|v| v.is_finite()));
    values
}

impl Package {
    /// A matrix as modelopt packs it. Factors are not the same everywhere, so that one matrix' factor is no other's;
    /// block scales make up for them, and the values are what they were.
    fn put_nvfp4(&mut self, module: &str, codes: Stored, scales: Stored) {
        let (rows, mut blocks) = (codes.shape[0], scales.bytes);
        let most = 6 + self.packed.len() % 3;
        let mut factor = 1.0;
        for _ in 0..most {
            let Some(next) = blocks.iter().map(|&code| doubled(code)).collect() else { break };
            (blocks, factor) = (next, factor / 2.0);
        }
        assert!(factor < 1.0, "{module}");
        let shape = vec![rows, codes.bytes.len() / rows];
        self.put(format!("{module}.weight"), Stored { dtype: Dtype::U8, shape, bytes: codes.bytes });
        let scales = Stored { dtype: Dtype::F8_E4M3, shape: scales.shape, bytes: blocks };
        self.put(format!("{module}.weight_scale"), scales);
        self.put(format!("{module}.weight_scale_2"), Stored::f32(&[], &[factor]));
        self.put(format!("{module}.input_scale"), Stored::f32(&[], &[0.125]));
        self.packed.insert(format!("{module}.weight"), (Format::Nvfp4Scaled, ScaleForm::Times));
    }

    /// What MLX's converter made NVFP4, as modelopt packs the published checkpoint: embeddings, head and routers are
    /// plain, experts stand one by one. `published` is the name of what MLX calls so, of one expert where it is a
    /// stack.
    fn of_modelopt(family: &'static str, published: impl Fn(&str, Option<usize>) -> String) -> Self {
        let mut from = Self::of(family);
        let mut to =
            Self { family, config: from.config.take(), tensors: BTreeMap::new(), packed: BTreeMap::new() };
        let (mut experts, mut affine) = (0, 0);
        for (name, tensor) in &from.tensors {
            let (module, part) = name.rsplit_once('.').unwrap();
            let beside = |part: &str| from.tensors.get(&format!("{module}.{part}"));
            match (part, beside("scales"), beside("biases")) {
                ("scales" | "biases", ..) => {}
                ("weight", Some(scales), Some(biases)) => {
                    let format = Format::Affine { bits: 8, group: 64, scales: ScaleType::BF16 };
                    let rows = tensor.shape[0];
                    let values = decoded(format, rows, &[tensor, scales, biases]);
                    let shape = [rows, values.len() / rows];
                    to.put(published(name, None), Stored::f32(&shape, &values));
                    affine += 1;
                }
                ("weight", Some(scales), None) if module.contains("embed") || module.ends_with("lm_head") => {
                    let rows = tensor.shape[0];
                    let values = decoded(Format::Nvfp4, rows, &[tensor, scales]);
                    let shape = [rows, values.len() / rows];
                    to.put(published(name, None), Stored::bf16(&shape, &values));
                }
                ("weight", Some(scales), None) if tensor.shape.len() == 3 => {
                    for expert in 0..tensor.shape[0] {
                        let module = published(module, Some(expert));
                        to.put_nvfp4(&module, tensor.of_stack(expert), scales.of_stack(expert));
                        experts += 1;
                    }
                }
                ("weight", Some(scales), None) => {
                    to.put_nvfp4(&published(module, None), tensor.clone(), scales.clone());
                }
                _ => to.put(published(name, None), tensor.clone()),
            }
        }
        assert_eq!(experts > 0, affine > 0, "routers are affine, and only models with experts have some");
        let numbers = json!({"num_bits": 4, "type": "float", "group_size": 16, "dynamic": false});
        let config = to.config.as_object_mut().unwrap();
        assert!(config.remove("quantization").is_some() && config.remove("quantization_config").is_some());
        to.config["quantization_config"] = json!({
            "config_groups": {"group_0": {
                "input_activations": numbers, "weights": numbers, "targets": ["Linear"],
            }},
            "ignore": to.plain_linears(), "quant_algo": "NVFP4", "quant_method": "modelopt",
            "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.47.0"},
        });
        to
    }
}

/// As Qwen3.5 is published: MLX's converter has moved the dimensions of convolutions and added 1 to the norms.
fn qwen3_5(family: &'static str) -> Package {
    let mut package = Package::of_modelopt(family, |name, expert| {
        let name = match name.strip_prefix("language_model.model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => name.strip_prefix("language_model.").unwrap().to_owned(),
        };
        match expert {
            Some(expert) => name.replace(".switch_mlp.", &format!(".experts.{expert}.")),
            None => name,
        }
    });
    let (mut convolutions, mut norms) = (0, 0);
    for (name, tensor) in &mut package.tensors {
        if name.ends_with(".conv1d.weight") {
            let [channels, taps, 1] = tensor.shape[..] else { panic!("{name}: {:?}", tensor.shape) };
            tensor.shape = vec![channels, 1, taps];
            convolutions += 1;
        } else if name.ends_with("norm.weight") && !name.ends_with(".linear_attn.norm.weight") {
            // bf16 has not the bits for all of them.
            let values: Vec<f32> = tensor.floats().into_iter().map(|v| v - 1.0).collect();
            *tensor = Stored::f32(&tensor.shape, &values);
            norms += 1;
        }
    }
    assert!(convolutions >= 2 && norms >= 9, "{convolutions}, {norms}");
    package
}

#[test]
fn qwen3_5_of_modelopt() {
    qwen3_5("mlx_qwen3_5_nvfp4").run("of modelopt", 1);
}

#[test]
fn qwen3_5_moe_of_modelopt() {
    let package = qwen3_5("mlx_qwen3_5_moe_nvfp4");
    assert!(package.packed.contains_key("model.language_model.layers.1.mlp.experts.5.down_proj.weight"));
    package.run("of modelopt", 2);
}

/// As Gemma 4 is published: the text model is a part of one that sees. `experts` is where experts stand one by one.
fn gemma4(family: &'static str, experts: &str) -> Package {
    let mut package = Package::of_modelopt(family, |name, expert| {
        let name = format!("model.language_model.{}", name.strip_prefix("model.").unwrap());
        match expert {
            Some(expert) => name.replace(".experts.switch_glu.", &format!(".{experts}.{expert}.")),
            None => name,
        }
    });
    let mut text = package.config.take();
    let quantization = text.as_object_mut().unwrap().remove("quantization_config").unwrap();
    text.as_object_mut().unwrap().remove("architectures").unwrap();
    package.config = json!({
        "architectures": ["Gemma4ForConditionalGeneration"], "dtype": "bfloat16", "model_type": "gemma4",
        "quantization_config": quantization, "text_config": text, "tie_word_embeddings": true,
    });
    package
}

#[test]
fn gemma4_of_modelopt() {
    gemma4("mlx_gemma4_nvfp4", "experts").run("of modelopt", 1);
}

#[test]
fn gemma4_moe_of_modelopt() {
    for experts in ["experts", "moe.experts"] {
        let package = gemma4("mlx_gemma4_moe_nvfp4", experts);
        let expert = format!("model.language_model.layers.1.{experts}.5.down_proj.weight");
        assert!(package.packed.contains_key(&expert));
        package.run(&format!("of modelopt, in {experts}"), 2);
    }
}
