//! Rotations as published configurations state them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::ModelError;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::rope::Rope;
use plimsoll_models::zoo::fields::Fields;
use plimsoll_models::zoo::ropes::Spelling;
use serde_json::{Value, json};

fn read(config: &Value, spelling: Spelling<'_>) -> Result<Rope, ModelError> {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "test")?;
    spelling.rope(&Fields::of(&checkpoint)?)
}

fn spelling(head_dim: u32, partial: Option<f64>) -> Spelling<'static> {
    Spelling {
        layer_type: "full_attention",
        old_theta: "rope_theta",
        default_theta: 10_000.0,
        head_dim,
        partial,
    }
}

/// Frequencies `e^(−k·step)`, by repeated division.
fn falling(count: usize, ratio: f64) -> Vec<f64> {
    std::iter::successors(Some(1.0), |f| Some(f / ratio)).take(count).collect()
}

fn close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-12 * expected, "{got} is not {expected}");
    }
}

#[test]
fn a_share_of_a_head_rotates_where_the_family_says_so() {
    // 8 of 32 channels: 100,000^(1/4) between neighbours. In either place, and by the family's default.
    let expected = falling(4, 100_000f64.sqrt().sqrt());
    for config in [
        json!({"rope_parameters": {"rope_theta": 100_000.0, "partial_rotary_factor": 0.25, "rope_type": "default",
            "mrope_interleaved": true, "mrope_section": [2, 1, 1]}}),
        json!({"rope_theta": 100_000.0, "rope_scaling": null, "partial_rotary_factor": 0.25}),
        json!({"rope_theta": 100_000.0}),
    ] {
        let rope = read(&config, spelling(32, Some(0.25))).unwrap();
        close(&rope.frequencies, &expected);
        assert_eq!(rope.growth, 1.0);
    }
    let whole =
        read(&json!({"rope_theta": 100_000.0, "partial_rotary_factor": 1}), spelling(32, None)).unwrap();
    close(&whole.frequencies, &falling(16, 100_000f64.powf(1.0 / 16.0)));
    for config in [
        json!({"partial_rotary_factor": 0.25}),
        json!({"rope_parameters": {"partial_rotary_factor": 0.25}}),
        json!({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25}}}),
        json!({"rope_parameters": {"rope_type": "proportional"}}),
    ] {
        let error = read(&config, spelling(32, None)).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{config}: {error}");
    }
}

#[test]
fn gemma4_has_two_ropes() {
    let config = json!({"rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}});
    let full = read(&config, spelling(512, Some(1.0))).unwrap();
    let mut expected = falling(64, 1e6f64.powf(1.0 / 256.0));
    expected.resize(256, 0.0);
    for (got, expected) in full.frequencies.iter().zip(&expected) {
        assert!((got - expected).abs() <= 1e-12, "{got} is not {expected}");
    }
    let sliding = Spelling { layer_type: "sliding_attention", ..spelling(256, Some(1.0)) };
    close(&read(&config, sliding).unwrap().frequencies, &falling(128, 1e4f64.powf(1.0 / 128.0)));
}

#[test]
fn yarn_is_read_in_old_fields_and_new() {
    let block = json!({"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "truncate": false,
        "original_max_position_embeddings": 256, "rope_type": "yarn"});
    let old = json!({"rope_theta": 150_000.0, "rope_scaling": block});
    let mut new = json!({"rope_parameters": block});
    new["rope_parameters"]["rope_theta"] = json!(150_000.0);
    let [a, b] = [old, new].map(|config| read(&config, spelling(32, None)).unwrap());
    assert_eq!(a, b);
    // By turns within 256 tokens: pair 0 turns 40.7 times, pair 1 19.3: log2 of 32 is 5, of 1 is 0.
    let plain = falling(16, 150_000f64.powf(1.0 / 16.0));
    let share = |i: usize| (a.frequencies[i] / plain[i] - 0.25) / 0.75;
    assert_eq!(a.frequencies[0], 1.0);
    for (i, frequency) in plain.iter().enumerate() {
        let turns = 256.0 * frequency / std::f64::consts::TAU;
        let expected = (turns.log2() / 5.0).clamp(0.0, 1.0);
        assert!((share(i) - expected).abs() < 1e-9, "{i}: {} is not {expected}", share(i));
    }
    assert!((a.growth - 1.138_629_436_111_989).abs() < 1e-12, "0.1·ln 4 + 1");

    let mut whole = block.clone();
    whole["truncate"] = Value::Null;
    whole["attention_factor"] = json!(1.0);
    let whole = read(&json!({"rope_theta": 150_000.0, "rope_scaling": whole}), spelling(32, None)).unwrap();
    assert!(whole.growth == 1.0 && whole.frequencies != a.frequencies, "a missing truncate means true");
}

#[test]
fn what_no_rotation_can_be_is_named() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    let with = |key: &str, value: Value| {
        let mut block = yarn.clone();
        block[key] = value;
        json!({"rope_scaling": block})
    };
    for config in [
        json!({"partial_rotary_factor": 0.0}),
        json!({"partial_rotary_factor": 1.5}),
        json!({"partial_rotary_factor": "half"}),
        // Three channels are no pairs.
        json!({"partial_rotary_factor": 0.1}),
        json!({"rope_parameters": {"mrope_section": [2, 1]}}),
        json!({"rope_parameters": {"mrope_section": "all"}}),
        with("factor", json!(0.0)),
        with("factor", Value::Null),
        with("original_max_position_embeddings", Value::Null),
        with("beta_fast", json!(0.5)),
        with("truncate", json!("no")),
        with("attention_factor", json!(-1.0)),
        json!({"rope_theta": 1.0, "rope_scaling": yarn}),
    ] {
        let error = read(&config, spelling(32, Some(0.5))).unwrap_err();
        assert!(matches!(error, ModelError::Field { .. }), "{config}: {error}");
    }
    let error = read(&with("mscale", json!(0.7)), spelling(32, None)).unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
}

/// What stands under the name of a block and is none is a mistake, not the default.
#[test]
fn blocks_of_another_kind_are_refused() {
    for wrong in [json!("x"), json!(-1), json!([]), json!(true)] {
        for config in [
            json!({"model_type": "x", "rope_scaling": wrong}),
            json!({"model_type": "x", "rope_parameters": wrong}),
            json!({"model_type": "x", "rope_parameters": {"full_attention": wrong}}),
        ] {
            let error = read(&config, spelling(32, None)).unwrap_err();
            assert!(matches!(error, ModelError::Field { .. }), "{config}: {error}");
        }
    }
    for wrong in [json!(3), json!([]), json!(0.5)] {
        let config = json!({"model_type": "x", "rope_scaling": {"rope_type": wrong, "factor": 8.0}});
        let error = read(&config, spelling(32, None)).unwrap_err();
        assert!(matches!(error, ModelError::Field { .. }), "{config}: {error}");
    }
}
