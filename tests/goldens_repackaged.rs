//! Golden checkpoints in other published packagings: the same numbers in other files, under other names and beside other
//! configurations, made in memory. Answers are those of the checkpoint they were made from.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden_runs;
mod support;

use golden_runs::{Golden, run_made};
use plimsoll_kernels::Format;

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
                let scale = match module.ends_with(".in_proj") {
                    true => Stored::f32(&[rows, 1], &vec![scale; rows]),
                    false => Stored::f32(&[1], &[scale]),
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
