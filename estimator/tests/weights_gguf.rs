//! GGUF's mixes against the sizes of published files.
//!
//! A file is its tensors and its metadata (vocabulary, merges, template), and the metadata of one repository's files are
//! the same but for a few bytes. So the sizes less the tensors' bytes must be one number for all mixes of a repository.

#![allow(clippy::unwrap_used, clippy::panic)]

use plimsoll_estimator::weights::{WeightsError, recast};
use plimsoll_kernels::Format;
use plimsoll_models::model::{Transform, Vector};
use plimsoll_models::{Checkpoint, Model, Registry};
use serde_json::{Value, json};

/// What a configuration says.
fn build(config: &Value) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "published").unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

/// Bytes of tensors in a scheme, also where no kernel reads it.
fn stored((checkpoint, model): &(Checkpoint, Model), scheme: &str) -> u64 {
    match recast(model, scheme, checkpoint) {
        Ok(recast) => recast.stored.total(),
        Err(WeightsError::NoKernels { stored, .. }) => stored,
        Err(error) => panic!("{scheme}: {error}"),
    }
}

/// Hidden, inner, heads, layers, KV heads, vocabulary.
fn dense(kind: &str, [h, f, heads, layers, kv, vocab]: [u64; 6], more: Value) -> Value {
    let mut config = json!({
        "model_type": kind, "hidden_size": h, "intermediate_size": f, "num_attention_heads": heads,
        "num_hidden_layers": layers, "num_key_value_heads": kv, "vocab_size": vocab, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
        "tie_word_embeddings": false, "hidden_act": "silu",
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// All files of one repository; `more` is said of every mix.
fn repository(config: &Value, more: &str, files: &[(&str, u64)]) {
    same_header(&build(config), more, files);
}

fn same_header(built: &(Checkpoint, Model), more: &str, files: &[(&str, u64)]) {
    let headers: Vec<(i64, &str)> = files
        .iter()
        .map(|(mix, bytes)| (*bytes as i64 - stored(built, &format!("{mix}{more}")) as i64, *mix))
        .collect();
    let (least, most) = (headers.iter().min().unwrap(), headers.iter().max().unwrap());
    assert!(least.0 > 500_000 && most.0 < 16_000_000, "{headers:?}");
    assert!(most.0 - least.0 <= 4096, "{headers:?}");
}

fn llama3(factor: f64) -> Value {
    json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    })
}

#[test]
fn llama_3_1_8b() {
    let config = dense("llama", [4096, 14336, 32, 32, 8, 128256], json!({"rope_scaling": llama3(8.0)}));
    repository(
        &config,
        "+imatrix",
        &[
            ("iq2_m", 2948285856),
            ("iq3_m", 3784828320),
            ("iq3_xs", 3518752160),
            ("iq4_nl", 4677993888),
            ("iq4_xs", 4447667616),
            ("q2_k", 3179136416),
            ("q3_k_l", 4321961376),
            ("q3_k_m", 4018922912),
            ("q3_k_s", 3664504224),
            ("q4_k_m", 4920739232),
            ("q4_k_s", 4692673952),
            ("q5_k_m", 5732992416),
            ("q5_k_s", 5599298976),
            ("q6_k", 6596011424),
            ("q8_0", 8540775840),
        ],
    );
}

#[test]
fn llama_3_2_1b_and_3b_whose_heads_are_tied() {
    let tied = json!({"rope_scaling": llama3(32.0), "tie_word_embeddings": true});
    repository(
        &dense("llama", [2048, 8192, 32, 16, 8, 128256], tied.clone()),
        "+imatrix",
        &[
            ("iq3_m", 657289344),
            ("iq4_xs", 743141504),
            ("q3_k_l", 732524672),
            ("q4_0", 773025920),
            ("q4_k_m", 807694464),
            ("q4_k_s", 775647360),
            ("q5_k_m", 911503488),
            ("q5_k_s", 892563584),
            ("q6_k", 1021800576),
            ("q8_0", 1321083008),
        ],
    );
    repository(
        &dense("llama", [3072, 8192, 24, 28, 8, 128256], tied),
        "+imatrix",
        &[
            ("q2_k", 1363935680),
            ("q3_k_m", 1687159232),
            ("q3_k_s", 1542848960),
            ("q4_k_m", 2019377600),
            ("q4_k_s", 1928200640),
            ("q5_k_m", 2322153920),
            ("q6_k", 2643853760),
            ("q8_0", 3421898816),
            ("iq4_xs", 1829110208),
        ],
    );
}

#[test]
fn qwen3_8b_and_4b() {
    let head = |tied: bool| json!({"head_dim": 128, "tie_word_embeddings": tied, "attention_bias": false});
    repository(
        &dense("qwen3", [4096, 12288, 32, 36, 8, 151936], head(false)),
        "",
        &[
            ("q4_k_m", 5027783488),
            ("q5_0", 5720761152),
            ("q5_k_m", 5851112224),
            ("q6_k", 6725899040),
            ("q8_0", 8709518112),
        ],
    );
    repository(
        &dense("qwen3", [2560, 9728, 32, 36, 8, 151936], head(true)),
        "",
        &[
            ("q4_k_m", 2497280256),
            ("q5_0", 2823710976),
            ("q5_k_m", 2889513184),
            ("q6_k", 3306260704),
            ("q8_0", 4280404704),
        ],
    );
}

/// Qwen2.5: the same as llama, with biases of queries, keys and values.
fn qwen2(sizes: [u64; 6]) -> (Checkpoint, Model) {
    let (checkpoint, mut model) = build(&dense("llama", sizes, json!({})));
    let rows: Vec<(String, u32)> = model
        .matrices
        .iter()
        .map(|m| (m.source.name().to_owned(), m.rows))
        .filter(|(name, _)| ["q_proj", "k_proj", "v_proj"].iter().any(|part| name.contains(part)))
        .collect();
    assert_eq!(rows.len() as u64, 3 * sizes[3]);
    for (name, len) in rows {
        let tensor = name.replace(".weight", ".bias");
        let (format, transform) = (Format::BF16, Transform::None);
        model.vectors.push(Vector { tensor, len, format, transform, joined: None });
    }
    model.architecture = "qwen2".to_owned();
    (checkpoint, model)
}

#[test]
fn qwen2_5_coder_7b_and_32b() {
    same_header(
        &qwen2([3584, 18944, 28, 28, 4, 152064]),
        "",
        &[
            ("q2_k", 3015940032),
            ("q3_k_m", 3808391104),
            ("q4_0", 4431390720),
            ("q4_k_m", 4683073536),
            ("q5_k_m", 5444831232),
            ("q6_k", 6254198784),
            ("q8_0", 8098525184),
        ],
    );
    same_header(
        &qwen2([5120, 27648, 40, 64, 8, 152064]),
        "",
        &[
            ("q2_k", 12313098432),
            ("q3_k_m", 15935047872),
            ("q4_0", 18640230592),
            ("q4_k_m", 19851335872),
            ("q5_0", 22638254272),
            ("q5_k_m", 23262156992),
            ("q6_k", 26886154432),
            ("q8_0", 34820884672),
        ],
    );
}

/// Rows of 896 values in the smaller one are no whole blocks of 256. Both files have a head of their own.
#[test]
fn qwen2_5_half_and_one_and_a_half_b() {
    same_header(
        &qwen2([1536, 8960, 12, 28, 2, 151936]),
        "",
        &[
            ("q2_k", 752880160),
            ("q3_k_m", 924455968),
            ("q4_0", 1066227232),
            ("q4_k_m", 1117320736),
            ("q5_0", 1259173408),
            ("q5_k_m", 1285494304),
            ("q6_k", 1464178720),
            ("q8_0", 1894532128),
        ],
    );
    same_header(
        &qwen2([896, 4864, 14, 24, 2, 151936]),
        "",
        &[
            ("q2_k", 415182688),
            ("q3_k_m", 432041824),
            ("q4_0", 428730208),
            ("q4_k_m", 491400032),
            ("q5_0", 490475360),
            ("q5_k_m", 522186592),
            ("q6_k", 650379104),
            ("q8_0", 675710816),
        ],
    );
}

/// Phi: the same as llama, with queries, keys and values in one tensor, and gates and ups in one.
fn phi3(sizes: [u64; 6], more: Value) -> (Checkpoint, Model) {
    let (_, mut model) = build(&dense("llama", sizes, json!({})));
    for matrix in &mut model.matrices {
        for name in matrix.source.pieces.iter_mut().flat_map(|p| &mut p.planes) {
            for (from, to) in [
                ("q_proj", "qkv_proj"),
                ("k_proj", "qkv_proj"),
                ("v_proj", "qkv_proj"),
                ("gate_proj", "gate_up_proj"),
                (".up_proj", ".gate_up_proj"),
            ] {
                if name.contains(from) && !name.contains("qkv") && !name.contains("gate_up") {
                    *name = name.replace(from, to);
                }
            }
        }
    }
    model.architecture = "phi3".to_owned();
    (Checkpoint::from_config_bytes(dense("phi3", sizes, more).to_string().as_bytes(), "phi3").unwrap(), model)
}

/// Files from before the quantiser counted a fused `attn_qkv` among the values: the newer rule does not give their sizes.
#[test]
fn phi_3_5_mini_and_phi_4() {
    let files = [
        ("iq2_m", 1316395296),
        ("iq3_m", 1855600416),
        ("iq3_xs", 1625175840),
        ("iq4_xs", 2059853088),
        ("q2_k", 1416204576),
        ("q3_k_l", 2087597856),
        ("q3_k_m", 1955477280),
        ("q3_k_s", 1681798944),
        ("q4_k_m", 2393232672),
        ("q4_k_s", 2188760352),
        ("q5_k_m", 2815276320),
        ("q5_k_s", 2641474848),
        ("q6_k", 3135853344),
        ("q8_0", 4061222688),
    ];
    let mini = phi3([3072, 8192, 32, 32, 32, 32064], json!({"rope_scaling": {"type": "longrope"}}));
    same_header(&mini, "+imatrix", &files);
    let newer = |mix: &str| stored(&mini, &format!("{mix}+imatrix+new-qkv"));
    let (older, all) = (|mix: &str| stored(&mini, &format!("{mix}+imatrix")), ["q4_k_m", "q3_k_l", "q2_k"]);
    assert!(all.iter().all(|mix| newer(mix) != older(mix)));
    let phi4 = phi3([5120, 17920, 40, 40, 10, 100352], json!({}));
    same_header(&phi4, "+imatrix", &[("q4_k_m", 9053114816)]);
}

/// Rows of 576 and 1536 values: most are no whole blocks of 256, and fall back.
#[test]
fn smollm2_135m() {
    let config = dense("llama", [576, 1536, 9, 30, 3, 49152], json!({"tie_word_embeddings": true}));
    repository(&config, "+imatrix", &[("q2_k", 88202080), ("q4_k_m", 105454432)]);
}

/// How many tensors of each type a published file has.
#[test]
fn types_are_as_many_as_published() {
    let config = |name: &str| {
        let path = format!("{}/../tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        Checkpoint::open(path.as_ref()).unwrap()
    };
    for (name, f32s, q4s, q6s) in [
        ("llama-3.1-8b", 66, 193, 33),
        ("qwen3-8b", 145, 217, 37),
        // Gates and ups are one tensor here and two in the file.
        ("qwen3-30b-a3b", 241, 289 - 48, 49),
    ] {
        let checkpoint = config(name);
        let model = Registry::standard().build(&checkpoint).unwrap();
        let recast = recast(&model, "q4_k_m", &checkpoint).unwrap();
        let count = |format: &str| recast.entries.iter().filter(|e| e.format == format).count();
        assert_eq!([count("f32"), count("q4_k"), count("q6_k")], [f32s, q4s, q6s], "{name}");
    }
    // A log of llama.cpp: 17.28 GiB.
    let checkpoint = config("qwen3-30b-a3b");
    let model = Registry::standard().build(&checkpoint).unwrap();
    let bytes = recast(&model, "q4_k_m", &checkpoint).unwrap().stored.total();
    assert_eq!((bytes as f64 / (1u64 << 30) as f64 * 100.0).round(), 1728.0);
}

/// What ggml-org publishes: experts as they are, everything else of two dimensions in Q8_0.
#[test]
fn gpt_oss_as_mxfp4_moe() {
    for (name, tensors, file) in [
        ("gpt-oss-20b", 12_096_558_336u64, 12_109_566_624u64),
        ("gpt-oss-120b", 63_374_323_968, 63_387_346_208),
    ] {
        let path = format!("{}/../tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(stored(&build(&config), "mxfp4_moe"), tensors, "{name}");
        assert_eq!((file - tensors) / 1_000_000, 13);
    }
}
