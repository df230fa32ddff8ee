//! Kimi K2 against its published file, tensor by tensor: the 3,416 values that the hub counts and no model has.
//!
//! Published of moonshotai/Kimi-K2-Instruct, by the headers of its 61 files: 139,644 tensors, 1,029,173,256,720 bytes, and
//! 1,026,408,235,864 values as the hub counts them (without the scales of blocks). Of the 3,416 that are more than the
//! configuration's, the headers leave one tensor of each of the 61 layers with 56 values of two bytes: a buffer of inverse
//! frequencies, half of hidden size / heads = 112, which training software saved and no layer reads: rotations here are
//! of 64 of a head's values and take 32.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_kernels::Format;
use plimsoll_models::{Checkpoint, Registry};
use serde_json::{Value, json};

#[test]
fn what_the_published_file_has_more_is_one_buffer_a_layer() {
    let mut config: Value = serde_json::from_str(include_str!("data/priced/kimi-k2.json")).unwrap();
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "kimi-k2").unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    let (mut tensors, mut bytes, mut scales) = (0u64, 0u64, 0u64);
    for matrix in &model.matrices {
        let (rows, cols, experts) =
            (u64::from(matrix.rows), u64::from(matrix.cols), u64::from(matrix.experts));
        let files = matrix.source.tensors().filter(|name| name.ends_with(".weight")).count() as u64;
        if matrix.format == Format::Fp8 {
            // A byte a value, and four of a scale for each block of 128 rows and columns.
            let blocks = experts * (rows / experts).div_ceil(128) * cols.div_ceil(128);
            scales += blocks;
            bytes += rows * cols + 4 * blocks;
            // Gates and ups of an expert, 2,048 rows each, are one matrix here and two in the file.
            let apart = if experts > 1 && cols == 7168 { rows / experts / 2048 } else { 1 };
            tensors += 2 * if experts > 1 { experts * apart } else { files };
        } else {
            bytes += 2 * rows * cols;
            tensors += files;
        }
    }
    for vector in &model.vectors {
        let correction = vector.tensors().any(|name| name.ends_with("e_score_correction_bias"));
        bytes += u64::from(vector.len) * if correction { 4 } else { 2 };
        tensors += 1;
    }
    let (layers, hidden, heads) = (61, 7168, 64);
    let buffer = hidden / heads / 2;
    assert_eq!(buffer, 56);
    assert_eq!(tensors + layers, 139_644);
    assert_eq!(bytes + layers * buffer * 2, 1_029_173_256_720);
    assert_eq!(model.parameters() + layers * buffer, 1_026_408_235_864);
    // The hub counts the scales of the base model, whose file is laid out alike, as values too.
    assert_eq!(model.parameters() + layers * buffer + scales, 1_026_470_731_056);
}

#[test]
fn the_buffer_is_known_for_what_it_is() {
    let config = br#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "intermediate_size": 4, "tie_word_embeddings": true, "max_position_embeddings": 16}"#;
    let bare = Registry::standard().build(&Checkpoint::from_config_bytes(config, "a").unwrap()).unwrap();
    let mut header = serde_json::Map::new();
    let mut at = 0;
    let mut add = |name: &str, shape: Vec<u64>| {
        let end = at + 2 * shape.iter().product::<u64>();
        header.insert(name.to_owned(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    };
    for matrix in &bare.matrices {
        let names: Vec<&str> = matrix.source.tensors().collect();
        let [name] = names[..] else { panic!("{names:?}") };
        add(name, vec![matrix.rows.into(), matrix.cols.into()]);
    }
    for vector in &bare.vectors {
        add(vector.tensors().next().unwrap(), vec![vector.len.into()]);
    }
    add("model.layers.0.self_attn.rotary_emb.inv_freq", vec![2]);
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.resize(file.len() + at as usize, 0);
    let files = vec![("model.safetensors".to_owned(), file)];
    let checkpoint = Checkpoint::from_safetensors_bytes(None, files, Some(config), "a").unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    assert_eq!(model.parameters(), bare.parameters());
}
