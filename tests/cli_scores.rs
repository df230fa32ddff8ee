//! What the command line says of given tokens: their logits and their perplexity, held against the references.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::*;
use serde_json::json;
use std::path::Path;
use support::{Tensors, data, distance};

fn ids(tensors: &Tensors, name: &str) -> Vec<u32> {
    tensors.ids(name)
}

#[test]
fn logits_equal_the_reference() {
    let expected = Tensors::read(&data("golden/llama/expected.safetensors"));
    let prompt = ids(&expected, "decode.prompt_ids");
    let listed: Vec<String> = prompt.iter().map(u32::to_string).collect();
    let out = scratch("logits").join("out.safetensors");
    let path = out.to_str().unwrap();
    let ask = |positions: &str| {
        let args = [
            "logits",
            &golden(),
            "--ids",
            &listed.join(","),
            "--positions",
            positions,
            "--generate",
            "16",
            "--out",
            path,
            "--kv",
            "f32",
            "--chunk",
            "16",
            "--json",
        ];
        (good(&args), Tensors::read(&out))
    };
    let (about, got) = ask("all");
    assert_eq!(about["positions"], prompt.len());
    assert_eq!(got.rows("logits").len(), prompt.len());
    let tokens = ids(&got, "token_ids");
    assert_eq!(tokens[..prompt.len()], prompt);
    assert_eq!(tokens[prompt.len()..], ids(&expected, "decode.token_ids"));
    let generated = got.rows("generated_logits");
    for (row, reference) in generated.iter().zip(expected.rows("decode.logits")) {
        assert!(distance(row, &reference) < 1e-3);
    }
    assert_eq!(generated.len(), 16);
    assert_eq!(got.rows("logits").last(), generated.first());
    let (_, last) = ask("last");
    assert_eq!(last.rows("logits").len(), 1);
    assert!(distance(&last.rows("logits")[0], &generated[0]) < 1e-4);
    let unknown = run(&["logits", &golden(), "--ids", "1,256", "--out", path]);
    assert_eq!(code(&unknown), 2, "{}", stderr(&unknown));
}

/// `−ln p` of each token after the first, from rows of logits.
fn nll(rows: &[Vec<f32>], tokens: &[u32]) -> Vec<f64> {
    let score = |row: &[f32], id: u32| {
        let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
        sum.ln() - f64::from(row[id as usize])
    };
    rows.iter().zip(&tokens[1..]).map(|(row, &id)| score(row, id)).collect()
}

#[test]
fn perplexity_is_what_the_logits_say() {
    let model = speaking("perplexity");
    let folder = Path::new(&model);
    let text = "It is a truth universally acknowledged";
    std::fs::write(folder.join("text.txt"), text).unwrap();
    let file = folder.join("text.txt").display().to_string();
    // Beside the model it would be read as a part of it.
    let out = scratch("perplexity-rows").join("rows.safetensors");
    let rows_of = |text: &str| {
        good(&["logits", &model, "--prompt", text, "--out", out.to_str().unwrap(), "--kv", "f32", "--json"]);
        let got = Tensors::read(&out);
        (got.rows("logits"), ids(&got, "token_ids"))
    };
    // 39 tokens with BOS: two windows of 16, the second of which begins with a BOS of its own.
    let got = good(&["perplexity", &model, "--file", &file, "--window", "16", "--kv", "f32", "--chunk", "8"]);
    assert_eq!((&got["scored_tokens"], &got["parts"]), (&json!(14), &json!(2)));
    let mut expected = Vec::new();
    for part in [&text[..15], &text[16..31]] {
        let (rows, tokens) = rows_of(part);
        assert_eq!(tokens.len(), 16);
        expected.extend_from_slice(&nll(&rows, &tokens)[8..]);
    }
    let mean = |nll: &[f64]| nll.iter().sum::<f64>() / nll.len() as f64;
    assert!((got["mean_nll"].as_f64().unwrap() - mean(&expected)).abs() < 1e-4);
    let perplexity = got["perplexity"].as_f64().unwrap();
    assert!((perplexity.ln() - got["mean_nll"].as_f64().unwrap()).abs() < 1e-9);

    std::fs::write(folder.join("documents.txt"), "one\n====\nand two\n").unwrap();
    let file = folder.join("documents.txt").display().to_string();
    let got = good(&["perplexity", &model, "--file", &file, "--documents", "====", "--kv", "f32"]);
    assert_eq!(got["scored_tokens"], 4 + 8);
    let mut expected = Vec::new();
    for document in ["one\n", "and two\n"] {
        let (rows, tokens) = rows_of(document);
        expected.extend(nll(&rows, &tokens));
    }
    assert!((got["mean_nll"].as_f64().unwrap() - mean(&expected)).abs() < 1e-4);
    let ended = good(&["perplexity", &model, "--file", &file, "--documents", "====", "--score-eos"]);
    assert_eq!(ended["scored_tokens"], 4 + 8 + 2);
    // A file of documents with the line that is usual between them.
    std::fs::write(folder.join("usual.txt"), "one\n=====\nand two\n").unwrap();
    let file = folder.join("usual.txt").display().to_string();
    let usual = good(&["perplexity", &model, "--documents", &file, "--kv", "f32"]);
    assert_eq!(usual["rule"], json!({"documents": "=====", "score_eos": true}));
    assert_eq!((&usual["scored_tokens"], &usual["parts"]), (&json!(14), &json!(2)));
    let separated =
        ["perplexity", &model, "--file", &file, "--documents", "=====", "--score-eos", "--kv", "f32"];
    assert_eq!(usual["mean_nll"], good(&separated)["mean_nll"]);
    let short = run(&["perplexity", &model, "--file", &file]);
    assert_eq!(code(&short), 5, "shorter than one window: {}", stderr(&short));
}
