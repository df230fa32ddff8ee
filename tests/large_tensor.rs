//! A matrix past the largest binding, on the device: what the limits cut apart answers as one matrix.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use plimsoll_kernels::KvFormat;
use plimsoll_models::Registry;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_runtime::{DeviceOptions, Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted};
use safetensors::tensor::{Dtype, TensorView};
use support::{Loaded, argmax, distance, geometry};

const HIDDEN: usize = 32;
/// 1,048,578 rows of 128 bytes are 134,217,728 + 256 bytes: one unit of rows more than a default binding holds.
const VOCAB: usize = 1_048_578;
const EPS: f64 = 1e-5;

/// A value in −1..1 that depends on every bit of its place.
fn noise(place: usize) -> f32 {
    let mut v = (place as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    v = (v ^ v >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (v >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// A llama of one layer that adds nothing, since its output projections are zero: logits are the tied table times
/// the normed row of the token.
fn checkpoint(table: &[f32]) -> Checkpoint {
    let zeros = vec![0u8; HIDDEN * HIDDEN * 4];
    let ones: Vec<u8> = [1f32; HIDDEN].iter().flat_map(|v| v.to_le_bytes()).collect();
    let matrix = |name: &str| (format!("model.layers.0.{name}.weight"), vec![HIDDEN, HIDDEN], &zeros[..]);
    let vector = |name: &str| (format!("model.{name}.weight"), vec![HIDDEN], &ones[..]);
    let mut tensors =
        vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN], bytemuck::cast_slice(table))];
    tensors.extend(["q_proj", "k_proj", "v_proj", "o_proj"].map(|n| matrix(&format!("self_attn.{n}"))));
    tensors.extend(["gate_proj", "up_proj", "down_proj"].map(|n| matrix(&format!("mlp.{n}"))));
    tensors.extend(["norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"].map(vector));
    let views = tensors
        .into_iter()
        .map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape, data).unwrap()));
    let file = safetensors::serialize(views, None).unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HIDDEN,
        "max_position_embeddings": 64, "rms_norm_eps": EPS, "tie_word_embeddings": true,
    });
    let files = vec![("model.safetensors".to_owned(), file)];
    Checkpoint::from_safetensors_bytes(None, files, Some(config.to_string().as_bytes()), "wide").unwrap()
}

/// All logits after a token, in f64.
fn reference(table: &[f32], id: usize) -> Vec<f32> {
    let row = &table[id * HIDDEN..][..HIDDEN];
    let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / HIDDEN as f64;
    let scale = 1.0 / (mean + EPS).sqrt();
    let x: Vec<f64> = row.iter().map(|&v| f64::from(v) * scale).collect();
    table
        .chunks_exact(HIDDEN)
        .map(|row| row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() as f32)
        .collect()
}

#[test]
fn engine_bug_06b_a_tensor_past_the_binding_limit_is_read_and_multiplied_whole() {
    let table: Vec<f32> = (0..VOCAB * HIDDEN).map(noise).collect();
    let checkpoint = checkpoint(&table);
    let model = Registry::standard().build(&checkpoint).unwrap();
    let options = DeviceOptions { webgpu_limits: true, ..DeviceOptions::default() };
    let mut loaded = Loaded::new(&checkpoint, &model, &options, &geometry(32, 1, 4, KvFormat::F32, 1));

    let plan = loaded.runtime.plan().clone();
    let group = plan.groups.iter().find(|g| g.rows as usize == VOCAB).unwrap();
    assert_eq!(u64::from(group.rows) * group.record.stride(), (128 << 20) + 256);
    assert!(group.shards.len() > 1 && plan.profile.limits.max_storage_buffer_binding_size == 128 << 20);

    // The first row, those on both sides of the cut, the last.
    let cut = group.shards[1].first_row as usize;
    for (position, id) in (0u32..).zip([0, cut - 1, cut, VOCAB - 1]) {
        let expected = reference(&table, id);
        let row = loaded.step(&[(0, position, &[id as u32], Wanted::Last)]).pop().unwrap();
        let off = distance(&row, &expected);
        assert!(off < 1e-4, "token {id}: off by {off}");
        // A row of noise is nearest to itself.
        assert_eq!(argmax(&row) as usize, id);
        let sequences = [SequenceInput { slot: 0, position, ids: &[id as u32], wanted: Wanted::Last }];
        let input = StepInput { sequences: &sequences, sampling: Sampling::Greedy, cancel: None };
        let StepOutput::Candidates(rows) = loaded.runtime.step(&input).unwrap() else { panic!() };
        assert_eq!(rows[0].best, [(id as u32, row[id])]);
    }
}
