//! Which files of a checkpoint a tokenizer is read from, and what a tokenizer.json must not say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Gguf, own_data};
use plimsoll_models::Tokenizer;
use plimsoll_models::checkpoint::Checkpoint;
use std::collections::BTreeSet;

#[test]
fn hostile_tokenizer_json_is_refused() {
    let model = |m: &str| {
        format!(
            r#"{{"version":"1.0","decoder":{{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}},"model":{m}}}"#
        )
    };
    let bpe =
        |vocab: &str, merges: &str| model(&format!(r#"{{"type":"BPE","vocab":{vocab},"merges":{merges}}}"#));
    let fine = bpe(r#"{"a":0,"b":1,"ab":2}"#, r#"["a b"]"#);
    Tokenizer::from_json(fine.as_bytes(), None).unwrap();
    let cases = [
        (bpe(r#"{"a":0,"b":1}"#, r#"["a b"]"#), "merges[0]"),
        (bpe(r#"{"a":0,"b":1,"ab":2}"#, r#"["a c"]"#), "\"c\""),
        (bpe(r#"{"a":0,"b":1,"ab":2}"#, r#"["ab"]"#), "two tokens"),
        (bpe(r#"{"a":0,"b":1,"ab":2}"#, r#"[["a"]]"#), "two tokens"),
        (bpe(r#"{"a":0,"b":0}"#, "[]"), "an id of its own"),
        (bpe(r#"{"a":4294967296}"#, "[]"), "4294967296"),
        (bpe(r#"{"a":-1}"#, "[]"), "-1"),
        (bpe(r#"{"a":4194304}"#, "[]"), "below 4194304"),
        (bpe("{}", "[]"), "ids"),
        (model("{}"), "without a type"),
        (model(r#"{"type":"WordPiece","vocab":{}}"#), "WordPiece"),
        (model(r#"{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.5}"#), "dropout"),
        (model(r#"{"type":"BPE","vocab":{"a":0},"merges":[],"continuing_subword_prefix":"é"}"#), "continuing_subword_prefix"),
        (model(r#"{"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"u"}"#), "unk_token"),
        (model(r#"{"type":"Unigram","vocab":[["a",0]],"unk_id":1}"#), "unk_id"),
        (model(r#"{"type":"Unigram","vocab":[["a",0],["a",0]],"unk_id":0}"#), "a text of its own"),
        (fine.replace("ByteLevel", "WordPiece"), "decoder"),
        (fine.replace("\"decoder\"", r#""added_tokens":[{"id":9,"content":"<x>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],"decoder""#), "id 9"),
        (fine.replace("\"decoder\"", r#""post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}}],"pair":[],"special_tokens":{}},"decoder""#), "post_processor"),
        ("{".into(), "valid JSON"),
        (String::new(), "valid JSON"),
    ];
    for (text, part) in cases {
        let error = Tokenizer::from_json(text.as_bytes(), None).expect_err(&text).to_string();
        assert!(error.contains(part), "{text}: {error:?} lacks {part:?}");
    }
}

#[test]
fn a_checkpoint_without_a_vocabulary_has_no_tokenizer() {
    let checkpoint = Checkpoint::from_gguf_bytes(Gguf::default().bytes(), "t").unwrap();
    assert!(Tokenizer::from_checkpoint(&checkpoint).unwrap().is_none());
    let dir = common::scratch("no_tokenizer");
    std::fs::write(dir.join("config.json"), r#"{"eos_token_id": [2, 9, 99999], "bos_token_id": 1}"#).unwrap();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    assert!(Tokenizer::from_checkpoint(&checkpoint).unwrap().is_none());
    // With one, the configuration names the ends; ids that the vocabulary lacks never come.
    std::fs::copy(own_data("demo").join("tokenizer.json"), dir.join("tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap();
    assert_eq!(tokenizer.end_of_generation(), &BTreeSet::from([2, 9]));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    // An explicit rule beats the post-processor.
    std::fs::write(dir.join("tokenizer_config.json"), r#"{"add_bos_token": false}"#).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap();
    assert!(!tokenizer.adds_bos());
    assert!(tokenizer.encode("", true, false).unwrap().is_empty());
}

#[test]
fn placeholder_vocabularies_load() {
    for name in ["gguf_llama", "gguf_qwen3"] {
        let checkpoint = Checkpoint::open(&common::data(&format!("golden/{name}/model.gguf"))).unwrap();
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap();
        assert_eq!(
            tokenizer.vocab_size(),
            checkpoint.metadata().unwrap().array("tokenizer.ggml.tokens").unwrap().len()
        );
        assert_eq!(tokenizer.token(1), Some("<1>"));
    }
}
