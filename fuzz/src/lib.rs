//! The bodies of the fuzz targets, as plain functions: libFuzzer, the replay driver and a debugger all call these.
//!
//! A target fails by panicking, by hanging or by taking more memory than the input could justify. What it returns is
//! of no interest, except where two ways must agree.

mod mutate;

pub use mutate::Mutator;

use plimsoll_models::checkpoint::{self, Checkpoint, gguf};
use plimsoll_models::{ChatTemplate, Message, Registry, RenderOptions, Tokenizer};

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus directory.
pub const TARGETS: [Target; 5] = [
    ("gguf_header", gguf_header),
    ("safetensors_index", safetensors_index),
    ("config_json", config_json),
    ("tokenizer_vocab", tokenizer_vocab),
    ("chat_template", chat_template),
];

/// Separates the parts of an input that has several.
pub const SEPARATOR: &[u8] = b"\n=====\n";

fn parts(data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = data;
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|w| w == SEPARATOR) {
        parts.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    parts.push(rest);
    parts
}

/// A GGUF file: every value and every tensor that the header promises must be readable; the zoo builds it or says why not.
pub fn gguf_header(data: &[u8]) {
    let Ok(checkpoint) = Checkpoint::from_gguf_bytes(data.to_vec(), "fuzz.gguf") else { return };
    let metadata = checkpoint.metadata().expect("a GGUF checkpoint has metadata");
    for key in metadata.keys() {
        let _ =
            (metadata.u64(key), metadata.i64(key), metadata.f32(key), metadata.bool(key), metadata.str(key));
        if let Ok(Some(gguf::Value::Array(array))) = metadata.get(key) {
            let strings = array.strings().map(Iterator::count);
            assert!(
                strings.is_err() || strings.is_ok_and(|n| n == array.len()),
                "{key}: strings are missing"
            );
            let numbers = array.i64s().map(|v| v.len());
            assert!(
                numbers.is_err() || numbers.is_ok_and(|n| n == array.len()),
                "{key}: numbers are missing"
            );
            let _ = (array.u64s(), array.f32s(), array.bools());
        }
    }
    tensors_are_there(&checkpoint, data.len());
    let _ = ChatTemplate::from_checkpoint(&checkpoint);
    builds_or_says_why(&checkpoint);
}

/// A model that a family accepts can be counted.
fn builds_or_says_why(checkpoint: &Checkpoint) {
    if let Ok(model) = Registry::standard().build(checkpoint) {
        assert!(model.parameters() > 0 && !model.graph.ops.is_empty(), "a model of nothing");
    }
}

fn tensors_are_there(checkpoint: &Checkpoint, total: usize) {
    for tensor in checkpoint.tensors() {
        let bytes = checkpoint.data(tensor).expect("a tensor that was accepted lies in its file");
        assert_eq!(bytes.len() as u64, tensor.bytes, "{}", tensor.name);
        assert_eq!(checkpoint.tensor(&tensor.name), Some(tensor));
    }
    assert!(checkpoint.checkpoint_bytes() <= total as u64, "tensors overlap");
}

/// An index, then the files it may name (`a`, `b`, …), separated; or one safetensors file alone.
pub fn safetensors_index(data: &[u8]) {
    let parts = parts(data);
    let (index, files) = match parts.as_slice() {
        [file] => (None, vec![("a".to_owned(), file.to_vec())]),
        [index, files @ ..] => {
            let name = |i: usize| char::from(b'a' + (i % 26) as u8).to_string();
            (Some(*index), files.iter().enumerate().map(|(i, f)| (name(i), f.to_vec())).collect())
        }
        [] => return,
    };
    if let Ok(checkpoint) = Checkpoint::from_safetensors_bytes(index, files, None, "fuzz") {
        tensors_are_there(&checkpoint, data.len());
    }
}

/// A config.json: what parses must be an object, and every number in it finite or one of the three words; the zoo builds
/// it or says why not.
pub fn config_json(data: &[u8]) {
    let Ok(checkpoint) = Checkpoint::from_config_bytes(data, "config.json") else { return };
    let config = checkpoint.config().expect("a configuration was read");
    for value in config.as_object().expect("it is an object").values() {
        let _ = checkpoint::number(value);
    }
    let _ = (Tokenizer::from_checkpoint(&checkpoint), ChatTemplate::from_checkpoint(&checkpoint));
    builds_or_says_why(&checkpoint);
}

const TEXT: &str = "Hello  world! Café 12345 <s> <think>\n\n\t😊 北京";

/// A GGUF vocabulary, or a tokenizer.json with perhaps its tokenizer_config.json: what loads must encode and decode.
pub fn tokenizer_vocab(data: &[u8]) {
    let tokenizer = if data.starts_with(b"GGUF") {
        let Ok(checkpoint) = Checkpoint::from_gguf_bytes(data.to_vec(), "fuzz.gguf") else { return };
        Tokenizer::from_checkpoint(&checkpoint)
    } else {
        let parts = parts(data);
        Tokenizer::from_json(parts.first().copied().unwrap_or_default(), parts.get(1).copied()).map(Some)
    };
    let Ok(Some(tokenizer)) = tokenizer else { return };
    for (add_special, parse_special) in [(false, false), (true, true)] {
        if let Ok(ids) = tokenizer.encode(TEXT, add_special, parse_special) {
            assert!(ids.iter().all(|&id| tokenizer.token(id).is_some()), "an id without a token: {ids:?}");
            let whole = tokenizer.decode(&ids, true);
            let mut stream = tokenizer.stream(true);
            let mut streamed: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
            streamed.extend(stream.finish());
            assert_eq!(streamed, whole);
        }
    }
    let all: Vec<u32> = (0..tokenizer.vocab_size().min(2000) as u32).collect();
    let _ = tokenizer.decode(&all, false);
    assert!(tokenizer.end_of_generation().iter().all(|&id| tokenizer.token(id).is_some()));
}

/// A template: it parses or not, renders or not, in bounded time.
pub fn chat_template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages =
        [Message::new("system", "Be brief."), Message::new("user", "Hi"), Message::new("assistant", "Hello")];
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let _ = template.with_tokens(Some("<s>"), Some("</s>")).render(&messages, &options);
}
