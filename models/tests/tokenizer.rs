//! Ids equal the references; decoding never splits a character; hostile vocabularies are errors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Gguf, Kv, own_data};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{ModelError, Tokenizer};
use serde_json::Value;
use std::collections::BTreeSet;

fn ids_of(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn fixture(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(own_data(name)).unwrap()).unwrap()
}

/// Every text of a fixture gives the recorded ids, and decodes to itself.
fn agrees(tokenizer: &Tokenizer, fixture: &Value) {
    for row in fixture["texts"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        for (key, parse_special) in [("ids", false), ("ids_special", true)] {
            let ids = tokenizer.encode(text, false, parse_special).unwrap();
            assert_eq!(ids, ids_of(&row[key]), "{text:?}, parse_special {parse_special}");
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }
    for row in fixture["prompts"].as_array().into_iter().flatten() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, true, false).unwrap(), ids_of(&row["ids"]), "{text:?}");
    }
}

fn smollm2() -> Tokenizer {
    let checkpoint = Checkpoint::open(&own_data("smollm2-vocab.gguf")).unwrap();
    Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap()
}

fn demo() -> Tokenizer {
    let read = |name: &str| std::fs::read(own_data("demo").join(name)).unwrap();
    Tokenizer::from_json(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).unwrap()
}

#[test]
fn smollm2_ids_equal_the_references() {
    let tokenizer = smollm2();
    agrees(&tokenizer, &fixture("smollm2_ids.json"));
    assert_eq!(tokenizer.vocab_size(), 49152);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), Some(2), false));
    assert_eq!(tokenizer.end_of_generation(), &BTreeSet::from([0, 2]));
    assert_eq!(tokenizer.token(504), Some("The"));
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(504));
    assert_eq!(tokenizer.token(49152), None);
}

/// Needs the real file, whose vocabulary is too large to commit. `make models` fetches it; with
/// `PLIMSOLL_REAL_MODELS=1` its absence is a failure.
#[test]
fn gemma3_ids_equal_the_references() {
    let path = common::data("../../.cache/models/gemma-3-270m-q4_k_m.gguf");
    if !path.exists() {
        assert!(
            std::env::var_os("PLIMSOLL_REAL_MODELS").is_none_or(|v| v != "1"),
            "{} is missing",
            path.display()
        );
        eprintln!("NOT RUN: {} is missing (make models)", path.display());
        return;
    }
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap();
    agrees(&tokenizer, &fixture("gemma3-270m_ids.json"));
    assert_eq!(tokenizer.vocab_size(), 262144);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(2), Some(1), true));
    let turn = tokenizer.encode("<end_of_turn>", false, true).unwrap();
    assert_eq!(turn.len(), 1);
    assert_eq!(tokenizer.end_of_generation(), &BTreeSet::from([1, turn[0]]));
}

#[test]
fn the_demo_models_tokenizer_json_gives_the_librarys_ids() {
    let tokenizer = demo();
    agrees(&tokenizer, &fixture("demo_ids.json"));
    assert_eq!(
        tokenizer.encode("A tale of the brig Kestrel.\n", true, false).unwrap(),
        [1, 37, 263, 429, 280, 269, 335, 286, 75, 643, 294]
    );
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), Some(2), true));
    assert_eq!(tokenizer.end_of_generation(), &BTreeSet::from([2]));
    assert_eq!(tokenizer.decode(&[1, 37], true), "A");
    assert_eq!(tokenizer.decode(&[1, 37], false), "<|bos|>A");
}

/// The ids of the byte-level tokens that spell these bytes one by one.
fn bytes_as_ids(tokenizer: &Tokenizer, bytes: &[u8]) -> Vec<u32> {
    let find = |b: u8| {
        (0..tokenizer.vocab_size() as u32).find(|&id| {
            tokenizer.token(id).is_some_and(|t| t.chars().count() == 1) && single(tokenizer, id) == Some(b)
        })
    };
    bytes.iter().map(|&b| find(b).unwrap()).collect()
}

/// The byte of a one-byte token, found by completing it to a character.
fn single(tokenizer: &Tokenizer, id: u32) -> Option<u8> {
    let c = tokenizer.token(id)?.chars().next()?;
    // The published scheme: printable Latin-1 is itself, the rest counts up from U+0100.
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    for b in 0..256u32 {
        let stands_for = if printable(b) {
            b
        } else {
            next += 1;
            next - 1
        };
        if stands_for == u32::from(c) {
            return Some(b as u8);
        }
    }
    None
}

#[test]
fn engine_bug_14_streamed_characters_stay_whole() {
    let tokenizer = smollm2();
    for (character, bytes) in [("😊", "😊".as_bytes()), ("ď", "ď".as_bytes())] {
        let ids = bytes_as_ids(&tokenizer, bytes);
        assert_eq!(ids.len(), bytes.len());
        let mut stream = tokenizer.stream(true);
        let (last, head) = ids.split_last().unwrap();
        for &id in head {
            assert_eq!(stream.push(id), None, "half a character was emitted");
        }
        assert_eq!(stream.push(*last).as_deref(), Some(character));
        assert_eq!(stream.finish(), None);
        assert_eq!(tokenizer.decode(&ids, true), character, "buffered");

        // Cut in the middle: one replacement character, once, at the end.
        let mut stream = tokenizer.stream(true);
        for &id in head {
            assert_eq!(stream.push(id), None);
        }
        assert_eq!(stream.finish().as_deref(), Some("\u{fffd}"));
        assert_eq!(stream.finish(), None);
        assert_eq!(tokenizer.decode(head, true), "\u{fffd}");
    }
    // A character cut off by another one: what can never complete is replaced at once, the rest is kept.
    let mut ids = bytes_as_ids(&tokenizer, &[0xf0, 0x9f]);
    ids.extend(bytes_as_ids(&tokenizer, b"a"));
    ids.extend(bytes_as_ids(&tokenizer, &[0xc4, 0x8f]));
    assert_eq!(tokenizer.decode(&ids, true), "\u{fffd}aď");
}

#[test]
fn engine_bug_14_streaming_equals_decoding_whatever_the_text() {
    for tokenizer in [smollm2(), demo(), tiny_spm(true), tiny_spm(false)] {
        for text in ["Hello world! Café déjà vu — 123 😊", " a  b\n\n", "北京 👩‍👩‍👧‍👦", "ď"]
        {
            let ids = tokenizer.encode(text, false, false).unwrap();
            let mut stream = tokenizer.stream(false);
            let mut whole: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
            assert_eq!(stream.finish(), None);
            assert_eq!(whole, text);
            whole.clear();
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }
}

#[test]
fn engine_bug_16_special_tokens_accents_and_indentation() {
    let tokenizer = smollm2();
    // Glued to punctuation, and only when special texts are asked for.
    assert_eq!(tokenizer.encode("X.<|im_end|>", false, true).unwrap(), [72, 30, 2]);
    assert!(!tokenizer.encode("X.<|im_end|>", false, false).unwrap().contains(&2));
    // Accents and emoji.
    assert_eq!(
        tokenizer.encode("Hello world! Café déjà vu — 123 😊", false, true).unwrap(),
        [19556, 905, 17, 48031, 2756, 32564, 90, 16739, 386, 101, 1841, 216, 33, 34, 35, 40303, 228]
    );
    // The last of several spaces belongs to the word: `\s+(?!\S)`.
    assert_eq!(tokenizer.encode("  two leading spaces", false, true).unwrap(), [216, 827, 2899, 5600]);
}

#[test]
fn engine_bug_16_a_user_defined_token_is_never_split() {
    let tokenizer = with_think(4);
    let think = tokenizer.vocab_size() as u32 - 1;
    for parse_special in [true, false] {
        let ids = tokenizer.encode("a<think>b", false, parse_special).unwrap();
        assert_eq!(ids.len(), 3);
        assert_eq!(ids[1], think);
    }
    assert_eq!(tokenizer.decode(&[think], true), "<think>", "not a control token: it is text");
    // The same text as a control token is a token only when asked for, and no text.
    let control = with_think(3);
    assert_eq!(control.encode("a<think>b", false, true).unwrap().len(), 3);
    assert_eq!(control.encode("a<think>b", false, false).unwrap().len(), 9);
    assert_eq!(control.decode(&[think], true), "");
}

/// The 256 characters that stand for bytes.
fn byte_alphabet() -> Vec<String> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    (0..256u32)
        .map(|b| {
            let c = if printable(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(c).unwrap().to_string()
        })
        .collect()
}

fn bpe(tokens: Vec<String>, types: Vec<i32>, merges: &[&str]) -> Gguf {
    Gguf::default()
        .key("tokenizer.ggml.model", Kv::Str("gpt2"))
        .key("tokenizer.ggml.pre", Kv::Str("gpt-2"))
        .key("tokenizer.ggml.tokens", Kv::Strs(tokens))
        .key("tokenizer.ggml.token_type", Kv::I32s(types))
        .key("tokenizer.ggml.merges", Kv::Strs(merges.iter().map(|m| (*m).to_owned()).collect()))
}

fn load(file: &Gguf) -> Result<Tokenizer, ModelError> {
    let checkpoint = Checkpoint::from_gguf_bytes(file.bytes(), "t.gguf").unwrap();
    Tokenizer::from_checkpoint(&checkpoint).map(Option::unwrap)
}

fn with_think(kind: i32) -> Tokenizer {
    let mut tokens = byte_alphabet();
    tokens.push("<think>".into());
    let mut types = vec![1; 256];
    types.push(kind);
    load(&bpe(tokens, types, &[])).unwrap()
}

/// A SentencePiece vocabulary: three special tokens, 256 bytes, and a few pieces with scores.
fn spm(prefix: bool) -> Gguf {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    types.extend([6; 256]);
    let pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "aa", "aaa", "é"];
    let mut scores = vec![0.0; 259];
    for (piece, score) in
        pieces.iter().zip([-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0, -5.0, -6.0, -9.0])
    {
        tokens.push((*piece).into());
        types.push(1);
        scores.push(score);
    }
    Gguf::default()
        .key("tokenizer.ggml.model", Kv::Str("llama"))
        .key("tokenizer.ggml.tokens", Kv::Strs(tokens))
        .key("tokenizer.ggml.scores", Kv::F32s(scores))
        .key("tokenizer.ggml.token_type", Kv::I32s(types))
        .key("tokenizer.ggml.add_space_prefix", Kv::Bool(prefix))
}

fn tiny_spm(prefix: bool) -> Tokenizer {
    load(&spm(prefix)).unwrap()
}

#[test]
fn sentencepiece_merges_the_highest_score_first() {
    let tokenizer = tiny_spm(false);
    let spelled = |text: &str| {
        let ids = tokenizer.encode(text, false, false).unwrap();
        ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<Vec<_>>().join("|")
    };
    // bc (-1) before ab (-2), although ab comes first; then a + bc is abc.
    assert_eq!(spelled("abc"), "abc");
    assert_eq!(spelled("cbc"), "c|bc");
    assert_eq!(spelled("aab"), "a|ab");
    assert_eq!(spelled(" ab"), "▁|ab");
    assert_eq!(spelled(" a"), "▁a");
    assert_eq!(spelled("aaaa"), "aa|aa");
    // A character without a token is its bytes.
    assert_eq!(spelled("é😊"), "é|<0xF0>|<0x9F>|<0x98>|<0x8A>");
    assert_eq!(tokenizer.encode("a", true, false).unwrap(), [1, 260], "BOS is added unless the file says no");
    // The texts of control tokens are text.
    assert!(!tokenizer.encode("<s>", false, false).unwrap().contains(&1));
    assert_eq!(tokenizer.encode("<s>", false, true).unwrap(), [1]);
}

#[test]
fn the_space_before_a_text_comes_and_goes() {
    let tokenizer = tiny_spm(true);
    let ids = tokenizer.encode("a b", true, false).unwrap();
    assert_eq!(
        ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<Vec<_>>(),
        ["<s>", "▁a", "▁", "b"]
    );
    assert_eq!(tokenizer.decode(&ids, true), "a b");
    assert_eq!(tokenizer.decode(&tokenizer.encode("  a", false, false).unwrap(), true), "  a");
}

/// Merges in their order, not by score; spaces are spelled as SentencePiece does, and none is put before a text.
#[test]
fn gemma4_merges_as_listed() {
    let mut file = spm(false).key("tokenizer.ggml.bos_token_id", Kv::U32(1));
    let merges = ["▁ a", "a b", "b c", "a a", "\n \n"].map(String::from);
    file.keys
        .retain(|(key, _)| !["tokenizer.ggml.scores", "tokenizer.ggml.add_space_prefix"].contains(&&key[..]));
    for (key, value) in &mut file.keys {
        match (key.as_str(), value) {
            ("tokenizer.ggml.model", value) => *value = Kv::Str("gemma4"),
            ("tokenizer.ggml.tokens", Kv::Strs(tokens)) => {
                tokens.extend(["\n", "\n\n", "c"].map(String::from));
            }
            ("tokenizer.ggml.token_type", Kv::I32s(types)) => types.extend([1; 3]),
            _ => {}
        }
    }
    assert!(load(&file).unwrap_err().to_string().contains("merges"));
    let tokenizer = load(&file.key("tokenizer.ggml.merges", Kv::Strs(merges.to_vec()))).unwrap();
    let spelled = |text: &str| {
        let ids = tokenizer.encode(text, false, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true), text);
        ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<Vec<_>>().join("|")
    };
    assert_eq!(spelled("abc"), "ab|c");
    assert_eq!(spelled(" ab"), "▁a|b");
    assert_eq!(spelled("a\n\n\nbc"), "a|\n\n|\n|bc");
    assert_eq!(spelled("é😊"), "é|<0xF0>|<0x9F>|<0x98>|<0x8A>");
    assert_eq!(tokenizer.encode("a", true, false).unwrap(), [1, 260], "BOS is added unless the file says no");
    assert_eq!(tokenizer.encode("c", false, false).unwrap(), [272], "of two the last");
}

#[test]
fn text_that_cannot_be_spelled_is_an_error() {
    let tokens = vec!["a".to_owned(), "b".to_owned()];
    let tokenizer = load(&bpe(tokens, vec![1, 1], &[])).unwrap();
    assert_eq!(tokenizer.encode("ab", false, false).unwrap(), [0, 1]);
    for text in ["c", "ac", "ca", "aca"] {
        let error = tokenizer.encode(text, false, false).unwrap_err().to_string();
        assert!(error.contains("no tokens for"), "{error}");
    }
}

#[test]
fn duplicate_tokens_and_impossible_merges_are_tolerated() {
    let mut tokens = byte_alphabet();
    tokens.extend(["ab", "ab", ""].map(String::from));
    let tokenizer = load(&bpe(tokens, vec![1; 259], &["a b", "x y", "zz z", "a nonsense"])).unwrap();
    assert_eq!(tokenizer.encode("abxy", false, false).unwrap().first(), Some(&256), "the lowest id");
    assert_eq!(tokenizer.decode(&[257, 256, 258, 4_000_000_000], false), "abab");
}

/// Every refusal: the file, and what the message must say.
#[test]
fn hostile_vocabularies_are_refused() {
    let alphabet = || bpe(byte_alphabet(), vec![1; 256], &[]);
    let without = |key: &str| {
        let mut file = spm(true);
        file.keys.retain(|(k, _)| k != key);
        file
    };
    let replace = |key: &str, value: Kv| without(key).key(key, value);
    let cases: Vec<(Gguf, &[&str])> = vec![
        (alphabet().key("tokenizer.ggml.bos_token_id", Kv::U32(256)), &["bos_token_id", "below 256", "256"]),
        (alphabet().key("tokenizer.ggml.eos_token_id", Kv::U64(1 << 32)), &["eos_token_id", "4294967296"]),
        (alphabet().key("tokenizer.ggml.eot_token_id", Kv::I32(-1)), &["eot_token_id", "-1"]),
        (alphabet().key("tokenizer.ggml.add_bos_token", Kv::Bool(true)), &["add_bos_token", "none"]),
        (bpe(byte_alphabet(), vec![1; 255], &[]), &["token_type", "256", "255"]),
        (bpe(byte_alphabet(), vec![7; 256], &[]), &["token_type[0]", "0 to 6", "7"]),
        (bpe(vec![], vec![], &[]), &["tokens", "0"]),
        (bpe(byte_alphabet(), vec![1; 256], &["ab"]), &["merges[0]", "\"ab\""]),
        (bpe(byte_alphabet(), vec![1; 256], &["a b", ""]), &["merges[1]"]),
        (without("tokenizer.ggml.tokens"), &["tokenizer.ggml.tokens", "nothing"]),
        (without("tokenizer.ggml.scores"), &["tokenizer.ggml.scores", "nothing"]),
        (replace("tokenizer.ggml.scores", Kv::F32s(vec![0.0; 3])), &["scores", "3"]),
        (replace("tokenizer.ggml.tokens", Kv::I32s(vec![1, 2])), &["tokens", "strings"]),
        (replace("tokenizer.ggml.model", Kv::Str("t5")), &["tokenizer model \"t5\"", "not supported"]),
        (
            replace(
                "tokenizer.ggml.tokens",
                Kv::Strs((0..269).map(|i| i.to_string()).chain(["a".repeat(1 << 17)]).collect()),
            ),
            &["sane length"],
        ),
        (
            Gguf::default()
                .key("tokenizer.ggml.model", Kv::Str("gpt2"))
                .key("tokenizer.ggml.tokens", Kv::Strs(vec!["a".into()]))
                .key("tokenizer.ggml.pre", Kv::Str("klingon")),
            &["pre-tokenizer \"klingon\"", "qwen35"],
        ),
    ];
    for (file, parts) in cases {
        let error = load(&file).expect_err("accepted").to_string();
        assert!(parts.iter().all(|p| error.contains(p)), "{error:?} lacks one of {parts:?}");
    }
}

#[test]
fn every_named_pre_tokenizer_spells_every_text() {
    let names = [
        "default",
        "gpt-2",
        "llama-bpe",
        "llama3",
        "qwen2",
        "qwen35",
        "smollm",
        "refact",
        "command-r",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "tekken",
        "gpt-4o",
    ];
    for name in names {
        let mut file = bpe(byte_alphabet(), vec![1; 256], &[]);
        file.keys[1].1 = Kv::Str(name);
        let tokenizer = load(&file).unwrap();
        for text in ["I'll  say: déjà\n\n vu 12345 ½ 北京\t!!  ", "\u{a0}x", ""] {
            let ids = tokenizer.encode(text, false, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
        }
    }
}

#[test]
fn pre_tokenizers_cut_where_their_models_do() {
    // Merges reach across whatever one piece holds, so the tokens show the cuts.
    let tokens = |pre: &'static str, pieces: &[&str], merges: &[&str], text: &str| {
        let mut all = byte_alphabet();
        all.extend(pieces.iter().map(|p| (*p).to_owned()));
        let count = all.len();
        let mut file = bpe(all, vec![1; count], merges);
        file.keys[1].1 = Kv::Str(pre);
        let tokenizer = load(&file).unwrap();
        let ids = tokenizer.encode(text, false, false).unwrap();
        ids.iter().map(|&id| tokenizer.token(id).unwrap().to_owned()).collect::<Vec<_>>().join("|")
    };
    let digits = |pre| tokens(pre, &["11", "111", "1111"], &["1 1", "11 11", "11 1"], "11111");
    assert_eq!(digits("gpt-2"), "1111|1");
    assert_eq!(digits("llama-bpe"), "111|11");
    assert_eq!(digits("gpt-4o"), "111|11");
    assert_eq!(digits("deepseek-v3"), "111|11");
    for single in ["qwen2", "qwen35", "smollm", "refact", "command-r", "tekken"] {
        assert_eq!(digits(single), "1|1|1|1|1", "{single}");
    }
    assert_eq!(digits("default"), "111|11");
    // A word keeps the punctuation before it in the newer families only.
    let glued = |pre| tokens(pre, &["(a"], &["( a"], "(a");
    assert_eq!(glued("gpt-2"), "(|a");
    assert_eq!(glued("qwen2"), "(a");
    assert_eq!(glued("llama3"), "(a");
    assert_eq!(glued("default"), "(|a");
    // Combining marks stay with their letter in qwen35; e + U+0301 is composed first.
    let composed = tokens("qwen2", &[], &[], "e\u{301}");
    assert_eq!(composed, "Ã|©");
    assert_eq!(tokens("llama3", &[], &[], "e\u{301}"), "e|Ì|ģ");
    // Upper case begins a new word in tekken and gpt-4o.
    assert_eq!(tokens("tekken", &["aB"], &["a B"], "aB"), "a|B");
    assert_eq!(tokens("llama3", &["aB"], &["a B"], "aB"), "aB");
    // A whole word that is a token needs no merges where the family says so.
    assert_eq!(tokens("llama3", &["zyx"], &[], "zyx"), "zyx");
    assert_eq!(tokens("qwen2", &["zyx"], &[], "zyx"), "z|y|x");
}
