//! Models whose weights are far from any real one: what they answer is numbers or an error that says so, and never
//! zeros that look like an answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use half::bf16;
use plimsoll::runtime::{Runtime, RuntimeError, sampler};
use plimsoll::{Checkpoint, Device, DeviceOptions, KvFormat, Registry};
use serde_json::Value;
use support::{Loaded, admitted, data, geometry};

/// A golden checkpoint with the values of some tensors replaced, f32 or bf16 as they are.
fn golden(family: &str, tensor: &str, edit: impl Fn(f32) -> f32) -> Checkpoint {
    let folder = data("golden").join(family);
    let mut bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let parsed: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let mut edited = 0;
    for (name, info) in parsed.as_object().unwrap().iter().filter(|(name, _)| name.ends_with(tensor)) {
        let at = |i: usize| 8 + header + info["data_offsets"][i].as_u64().unwrap() as usize;
        let values = &mut bytes[at(0)..at(1)];
        match info["dtype"].as_str() {
            Some("F32") => values.chunks_mut(4).for_each(|value| {
                let v = edit(f32::from_le_bytes(value.try_into().unwrap()));
                value.copy_from_slice(&v.to_le_bytes());
            }),
            Some("BF16") => values.chunks_mut(2).for_each(|value| {
                let v = edit(bf16::from_le_bytes(value.try_into().unwrap()).to_f32());
                value.copy_from_slice(&bf16::from_f32(v).to_le_bytes());
            }),
            other => panic!("{name}: {other:?}"),
        }
        edited += 1;
    }
    assert!(edited > 0, "{family} has no {tensor}");
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let files = vec![("model.safetensors".to_owned(), bytes)];
    Checkpoint::from_safetensors_bytes(None, files, Some(&config), family).unwrap()
}

/// The embedding times a factor.
fn grown(family: &str, factor: f32) -> Checkpoint {
    let table = if family.contains("nemotron") { "embeddings.weight" } else { "embed_tokens.weight" };
    golden(family, table, |v| v * factor)
}

fn logits(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let model = Registry::standard().build(checkpoint).unwrap();
    let geometry = geometry(32, 1, 8, KvFormat::F32, 8);
    let mut loaded = Loaded::new(checkpoint, &model, &DeviceOptions::default(), &geometry);
    loaded.feed(0, 0, &[3, 17, 5, 40, 9], 8)
}

#[test]
fn huge_embeddings_give_numbers_and_ones_beyond_give_none() {
    // With tied heads and without, a cap on the logits, head norms, states of both kinds.
    for family in ["llama", "nemotron_h", "qwen3_5_text", "gemma4_text_dense"] {
        for row in logits(&grown(family, 1e22)) {
            assert!(row.iter().all(|v| v.is_finite()), "{family}: {:?}", &row[..4]);
            let spread = row.iter().fold(0.0f32, |most, v| most.max((v - row[0]).abs()));
            assert!(spread > 1e-3, "{family}: {:?} and so on is no answer", &row[..4]);
        }
        for row in logits(&grown(family, 1e34)) {
            assert!(row.iter().all(|v| !v.is_finite()), "{family}: {:?}", &row[..4]);
            assert!(matches!(sampler::log_sum_exp(&row), Err(RuntimeError::Logits { .. })), "{family}");
        }
    }
}

#[test]
fn factors_of_tensors_are_numbers_above_nothing() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let fp8 = "layers.0.mixer.in_proj.weight_scale";
    let nvfp4 = "layers.5.mixer.experts.0.up_proj.weight_scale_2";
    for (name, bad) in
        [fp8, nvfp4].into_iter().flat_map(|n| [0.0, -0.5, f32::NAN, f32::INFINITY].map(|v| (n, v)))
    {
        let checkpoint = golden("modelopt_nemotron_h", name, |_| bad);
        let model = Registry::standard().build(&checkpoint).unwrap();
        let admitted = admitted(&model, &geometry(32, 1, 8, KvFormat::F32, 1), device.profile());
        let error = Runtime::load(device.clone(), &model, &checkpoint, admitted, &mut |_| ()).err().unwrap();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("above 0"), "{bad}: {text}");
    }
}
