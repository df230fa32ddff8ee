//! The command line without a MODEL, on contexts beyond a model's, and over prompts of many lengths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::*;
use serde_json::json;
use std::path::PathBuf;

/// More context than a model was made for is allowed, and said: on standard error, and in the document.
#[test]
fn a_context_beyond_the_models_is_a_warning() {
    let said = "context 600 is beyond the 512 this model was made for";
    let model = speaking("beyond");
    let text = PathBuf::from(&model).join("text.txt");
    std::fs::write(&text, "a text of some words").unwrap();
    let (text, out) = (text.display().to_string(), PathBuf::from(&model).join("out").display().to_string());
    let verbs = [
        vec!["estimate", "MODEL"],
        vec!["run", "MODEL", "-p", "x", "-n", "2"],
        vec!["chat", "MODEL", "-n", "2"],
        vec!["bench", "MODEL", "-p", "4", "-n", "1", "-r", "1"],
        vec!["bench", "MODEL", "--lengths", "4,8", "-n", "1", "-r", "1"],
        vec!["logits", "MODEL", "--ids", "1,2", "--out", &out],
        vec!["perplexity", "MODEL", "--documents", &text],
    ];
    for verb in verbs {
        let with = |context: &str| {
            let args: Vec<&str> = verb.iter().map(|a| if *a == "MODEL" { &model } else { *a }).collect();
            run(&[&args[..], &["--json", "--context", context]].concat())
        };
        let beyond = with("600");
        assert_eq!(code(&beyond), 0, "{verb:?}: {}", stderr(&beyond));
        assert_eq!(document(&beyond)["warnings"], json!([said]), "{verb:?}");
        assert_eq!(stderr(&beyond).matches(said).count(), 1, "{verb:?}: {}", stderr(&beyond));
        if verb[0] == "estimate" {
            let within = with("512");
            assert_eq!(document(&within)["warnings"], json!([]), "{verb:?}");
            assert!(!stderr(&within).contains("beyond"), "{verb:?}");
        }
    }
    let refused = run(&["run", &model, "-p", "x", "--json", "--context", "600", "--memory", "1kB"]);
    assert_eq!((code(&refused), &document(&refused)["warnings"]), (3, &json!([said])));
}

/// Without a MODEL the bundled one is taken, and named.
#[test]
fn the_bundled_model_needs_no_path() {
    let output = run(&["inspect", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("plimsoll-demo, the bundled one"), "{}", stderr(&output));
    let about = document(&output);
    assert_eq!((&about["name"], &about["architecture"]), (&json!("plimsoll-demo"), &json!("nemotron_h")));
    assert_eq!(about["tokenizer"]["tokens"], 1024);
    assert!(about["chat_template"]["source"].as_str().unwrap().contains("<|assistant|>"));
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("demo-model/plimsoll-demo");
    let named = good(&["inspect", folder.to_str().unwrap(), "--json"]);
    assert_eq!(named, about);
}

#[test]
fn every_verb_takes_the_bundled_model() {
    // What stops these is the adapter they are told to take.
    let verbs = [
        vec!["run", "-p", "Ahoy"],
        vec!["run", "--chat", "-p", "Ahoy"],
        vec!["chat"],
        vec!["bench"],
        vec!["bench", "--lengths", "5,6"],
        vec!["probe"],
        vec!["logits", "--prompt", "Ahoy", "--out", "x"],
        vec!["perplexity", "--documents", "demo-model/heldout.txt"],
        vec!["perplexity", "--file", "demo-model/heldout.txt"],
        vec!["estimate"],
    ];
    for verb in verbs {
        let output = run(&[&verb[..], &["--adapter", "no such adapter"]].concat());
        assert_eq!(code(&output), 6, "{verb:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("plimsoll-demo, the bundled one"), "{}", stderr(&output));
    }
}

#[test]
fn the_state_of_the_bundled_model_is_priced() {
    let report = good(&["estimate", "--json", "--slots", "2", "--draft-depth", "3"]);
    assert_eq!(report["model"]["name"], "plimsoll-demo");
    // Four layers, eight heads of 32 by 32, and three inputs of 256 + 2·2·32 channels; four copies.
    let slot = 4 * (8 * 32 * 32 + 3 * (256 + 2 * 2 * 32)) * 4 * 4;
    assert_eq!(report["recurrent_bytes_per_slot"], slot);
    assert_eq!(
        (&report["bytes"]["recurrent"], &report["geometry"]["draft_depth"]),
        (&json!(2 * slot), &json!(3))
    );
    let table = run(&["estimate", "--slots", "2", "--draft-depth", "3"]);
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    for part in ["plimsoll-demo", "draft depth 3", "recurrent ", "recurrent state: ", "4 recurrent"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn lengths_share_a_plan_and_allocate_nothing() {
    let lengths = ["bench", &golden(), "--lengths", "40,20", "-n", "3", "-r", "2", "--chunk", "16"];
    let bench = good(&[&lengths[..], &["--json"]].concat());
    let rows = bench["lengths"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["prompt_tokens"].as_u64().unwrap()).collect::<Vec<_>>(), [20, 40]);
    assert_eq!(bench["geometry"]["context"], 40 + 3 + 1);
    for row in rows {
        assert_eq!(row["device"], bench["device_before"], "nothing is allocated after a load");
        assert_eq!(row["prefill_tokens_per_second"]["all"].as_array().unwrap().len(), 2);
        if cfg!(target_os = "linux") {
            let peak = row["process_peak_bytes"].as_u64().unwrap();
            assert!((10 << 20..8 << 30).contains(&peak), "{peak}");
        }
    }
    let table = run(&lengths);
    assert_eq!(code(&table), 0, "{}", stderr(&table));
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(text.contains("process peak") && text.contains("created since the load"), "{text}");
}

/// A prompt eight times as long needs no more memory: of the device not a byte, of the process no more than noise. The
/// model has no position encoding, so a context beyond its stated maximum is a warning only.
#[test]
fn memory_does_not_know_the_length_of_the_prompt() {
    let flat =
        ["bench", "--lengths", "500,1000,2000,4096", "--context", "16384", "-n", "1", "-r", "1", "--json"];
    let bench = good(&flat);
    assert_eq!(bench["geometry"]["context"], 16_384);
    assert!(!bench["warnings"].as_array().unwrap().is_empty());
    let rows = bench["lengths"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!(row["device"], bench["device_before"], "nothing is allocated after a load");
    }
    if cfg!(target_os = "linux") {
        let peaks: Vec<f64> = rows.iter().map(|r| r["process_peak_bytes"].as_f64().unwrap()).collect();
        for peak in &peaks {
            assert!((peak / peaks[0] - 1.0).abs() < 0.02, "{peaks:?}");
        }
    }
}
