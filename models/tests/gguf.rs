//! GGUF: agreement with an independent reader on good files, and an error for every way a file can lie.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Gguf, Kv, data};
use plimsoll_kernels::Format;
use plimsoll_models::checkpoint::{Checkpoint, DType, Source};

fn small() -> Gguf {
    Gguf::default()
        .key("general.architecture", Kv::Str("llama"))
        .key("general.name", Kv::Str("tiny"))
        .key("llama.block_count", Kv::U32(3))
        .key("signed", Kv::I32(-4))
        .key("eps", Kv::F32(0.5))
        .key("flag", Kv::Bool(true))
        .key("wide", Kv::U64(1 << 40))
        .key("layers", Kv::I32s(vec![1, 0, 7]))
        .key("words", Kv::Strs(vec!["a".into(), "".into(), "ü".into()]))
        .tensor("token_embd.weight", &[32, 6], 8, 34 * 6)
        .tensor("norm", &[5], 0, 20)
        .tensor("odd", &[256, 2], 19, 100)
}

fn open(file: &Gguf) -> Result<Checkpoint, String> {
    parse(file.bytes())
}

fn parse(bytes: Vec<u8>) -> Result<Checkpoint, String> {
    Checkpoint::from_gguf_bytes(bytes, "test.gguf").map_err(|e| e.to_string())
}

#[test]
fn reads_what_was_written() {
    let checkpoint = open(&small()).unwrap();
    assert_eq!(checkpoint.source(), Source::Gguf);
    assert_eq!(checkpoint.name(), "tiny");
    let meta = checkpoint.metadata().unwrap();
    assert_eq!(meta.u64("llama.block_count").unwrap(), 3);
    assert_eq!(meta.u64("wide").unwrap(), 1 << 40);
    assert_eq!(meta.i64("signed").unwrap(), -4);
    assert_eq!(meta.f32("eps").unwrap(), 0.5);
    assert_eq!(meta.f32("llama.block_count").unwrap(), 3.0);
    assert!(meta.bool("flag").unwrap());
    assert_eq!(meta.array("layers").unwrap().u64s().unwrap(), [1, 0, 7]);
    let words: Result<Vec<_>, _> = meta.array("words").unwrap().strings().unwrap().collect();
    assert_eq!(words.unwrap(), ["a", "", "ü"]);
    assert_eq!(meta.opt_u64("absent").unwrap(), None);

    let names: Vec<_> = checkpoint.tensors().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["token_embd.weight", "norm", "odd"]);
    let embedding = checkpoint.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.shape, [6, 32], "outermost first");
    assert_eq!(embedding.dtype, DType::Weight(Format::Q8_0));
    assert_eq!(embedding.bytes, 204);
    assert!(checkpoint.data(embedding).unwrap().iter().all(|&b| b == 1));
    let norm = checkpoint.tensor("norm").unwrap();
    assert_eq!(checkpoint.data(norm).unwrap(), [2; 20]);
    assert_eq!(checkpoint.tensor("odd").unwrap().dtype, DType::Other("iq1_s".into()));
    assert_eq!(checkpoint.checkpoint_bytes(), 204 + 20 + 100);
    let missing = checkpoint.require("blk.0.attn_q.weight").unwrap_err().to_string();
    assert!(missing.contains("blk.0.attn_q.weight") && missing.contains("test.gguf"), "{missing}");
}

#[test]
fn version_2_reads_as_version_3() {
    let mut file = small();
    file.version = 2;
    assert_eq!(open(&file).unwrap().tensors().len(), 3);
}

#[test]
fn getters_name_key_expected_and_got() {
    let checkpoint = open(&small()).unwrap();
    let meta = checkpoint.metadata().unwrap();
    let says = |error: plimsoll_models::ModelError, parts: &[&str]| {
        let text = error.to_string();
        assert!(parts.iter().all(|p| text.contains(p)), "{text} lacks one of {parts:?}");
    };
    says(meta.u64("llama.context_length").unwrap_err(), &["llama.context_length", "nothing"]);
    says(meta.u64("general.name").unwrap_err(), &["general.name", "integer", "string \"tiny\""]);
    says(meta.u64("signed").unwrap_err(), &["signed", "≥ 0", "-4"]);
    says(meta.str("eps").unwrap_err(), &["eps", "a string", "f32 0.5"]);
    says(meta.array("eps").unwrap_err(), &["eps", "an array"]);
    says(meta.array("layers").unwrap().strings().err().unwrap(), &["layers", "strings", "i32"]);
    says(meta.array("words").unwrap().u64s().unwrap_err(), &["words", "integers", "string"]);
}

#[test]
fn agrees_with_an_independent_reader() {
    for name in ["gguf_llama", "gguf_qwen3"] {
        let path = data(&format!("golden/{name}/model.gguf"));
        let ours = Checkpoint::open(&path).unwrap();
        let mut container = gguf_rs::get_gguf_container_array_size(path.to_str().unwrap(), u64::MAX).unwrap();
        let theirs = container.decode().unwrap();
        let file = std::fs::read(&path).unwrap();

        assert_eq!(ours.tensors().len() as u64, theirs.num_tensor());
        for (our, their) in ours.tensors().zip(theirs.tensors()) {
            assert_eq!(our.name, their.name);
            let ne: Vec<u64> = our.shape.iter().rev().copied().collect();
            assert_eq!(ne, their.shape, "{}", our.name);
            let start = (theirs.data_offset() + their.offset) as usize;
            let bytes = ours.data(our).unwrap();
            assert_eq!(bytes, &file[start..start + bytes.len()], "{}", our.name);
            // gguf-rs sizes bf16, iq4_nl, … wrongly; it is an oracle for the others.
            let format = our.dtype.format().unwrap();
            let sized_well = [
                Format::F32,
                Format::F16,
                Format::Q4_0,
                Format::Q4_1,
                Format::Q8_0,
                Format::Q4K,
                Format::Q6K,
            ];
            if sized_well.contains(&format) {
                assert_eq!(our.bytes, their.size, "{} {format}", our.name);
            }
        }

        let meta = ours.metadata().unwrap();
        assert_eq!(meta.keys().count() as u64, theirs.num_kv());
        for (key, theirs) in theirs.metadata() {
            let ours = meta.get(key).unwrap().unwrap_or_else(|| panic!("{key} is missing"));
            use plimsoll_models::checkpoint::gguf::Value;
            match ours {
                Value::Str(text) => assert_eq!(Some(text), theirs.as_str(), "{key}"),
                Value::Unsigned(n) => assert_eq!(Some(n), theirs.as_u64(), "{key}"),
                Value::Signed(n) => assert_eq!(Some(n), theirs.as_i64(), "{key}"),
                Value::Float(x) => assert!((x - theirs.as_f64().unwrap()).abs() <= x.abs() * 1e-6, "{key}"),
                Value::Bool(b) => assert_eq!(Some(b), theirs.as_bool(), "{key}"),
                Value::Array(array) => {
                    let theirs = theirs.as_array().unwrap();
                    assert_eq!(array.len(), theirs.len(), "{key}");
                    if let Ok(words) = array.strings() {
                        let words: Vec<_> = words.map(Result::unwrap).collect();
                        assert!(words.iter().zip(theirs).all(|(o, t)| Some(*o) == t.as_str()), "{key}");
                    }
                }
            }
        }
    }
}

/// Every refusal: the file, and what the message must say.
#[test]
fn a_file_that_lies_is_refused_with_what_where_expected_and_got() {
    let key = |value: Kv| small().key("bad", value).bytes();
    let tensor = |ne: &[u64], kind, offset: u64| {
        let mut file = small();
        file.tensors.push(("bad".into(), ne.to_vec(), kind, offset, 0));
        file.bytes()
    };
    let with = |change: &dyn Fn(&mut Gguf)| {
        let mut file = small();
        change(&mut file);
        file.bytes()
    };
    let huge_array = |kind: u32, len: u64| Kv::Raw(9, [&kind.to_le_bytes()[..], &len.to_le_bytes()].concat());
    let mut big_endian = small().bytes();
    big_endian[4..8].reverse();
    let nested = {
        // Arrays in arrays, each with one element.
        let mut bytes = Vec::new();
        for _ in 0..9 {
            bytes.extend(9u32.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
        }
        Kv::Raw(9, bytes)
    };
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["header at byte 0", "magic"]),
        ("magic", b"GGML\x03\0\0\0".to_vec(), &["magic", "GGUF"]),
        ("version 1", with(&|f| f.version = 1), &["version 2 or 3", "version 1"]),
        ("version 4", with(&|f| f.version = 4), &["version 4"]),
        ("big-endian", big_endian, &["little-endian", "big-endian"]),
        ("2^63 keys", with(&|f| f.key_count = Some(1 << 63)), &["metadata keys", "9223372036854775808"]),
        ("2^63 tensors", with(&|f| f.tensor_count = Some(1 << 63)), &["tensors", "9223372036854775808"]),
        ("one key too many", with(&|f| f.key_count = Some(10)), &["test.gguf", "at byte"]),
        ("one tensor too many", with(&|f| f.tensor_count = Some(4)), &["tensor"]),
        ("value type 13", key(Kv::Raw(13, vec![0; 8])), &["\"bad\"", "0 to 12", "13"]),
        ("array type 99", key(huge_array(99, 1)), &["\"bad\"", "element type", "99"]),
        (
            "array of 2^63 bytes",
            key(huge_array(0, 1 << 63)),
            &["\"bad\"", "9223372036854775808", "end of the file"],
        ),
        ("array of 2^63 f64", key(huge_array(12, 1 << 63)), &["\"bad\"", "f64"]),
        ("array of 2^61 strings", key(huge_array(8, 1 << 61)), &["\"bad\"", "strings"]),
        (
            "string of 2^63",
            key(Kv::Raw(8, (1u64 << 63).to_le_bytes().to_vec())),
            &["\"bad\"", "9223372036854775808"],
        ),
        ("nested arrays", key(nested), &["nested"]),
        ("duplicate key", small().key("eps", Kv::U32(1)).bytes(), &["\"eps\"", "once"]),
        (
            "alignment 0",
            small().key("general.alignment", Kv::U32(0)).bytes(),
            &["general.alignment", "power of two", "0"],
        ),
        ("alignment 48", small().key("general.alignment", Kv::U32(48)).bytes(), &["general.alignment", "48"]),
        (
            "alignment 2^31",
            small().key("general.alignment", Kv::U32(1 << 31)).bytes(),
            &["general.alignment", "2147483648"],
        ),
        (
            "alignment text",
            small().key("general.alignment", Kv::Str("32")).bytes(),
            &["general.alignment", "integer"],
        ),
        ("type 77", tensor(&[32], 77, 384), &["tensor \"bad\"", "type number 77"]),
        ("withdrawn type 4", tensor(&[32], 4, 384), &["tensor \"bad\"", "type number 4"]),
        ("5 dimensions", tensor(&[1; 5], 0, 384), &["tensor \"bad\"", "at most 4", "5"]),
        ("dimension 0", tensor(&[4, 0], 0, 384), &["tensor \"bad\"", "[4, 0]"]),
        ("overflow", tensor(&[1 << 32, 1 << 32], 0, 384), &["tensor \"bad\"", "4294967296"]),
        ("rows of no whole block", tensor(&[33, 2], 8, 384), &["tensor \"bad\"", "q8_0", "[33, 2]"]),
        ("offset unaligned", tensor(&[1], 0, 385), &["tensor \"bad\"", "multiple of 32", "385"]),
        ("offset past the end", tensor(&[1], 0, 1 << 40), &["tensor \"bad\"", "1099511627776"]),
        ("offset 2^64 - 32", tensor(&[1], 0, u64::MAX - 31), &["tensor \"bad\""]),
        ("too long for the file", tensor(&[1 << 30], 0, 384), &["tensor \"bad\"", "4294967296 bytes"]),
        ("over another tensor", tensor(&[8], 0, 32), &["tensor \"bad\"", "token_embd.weight"]),
        ("duplicate tensor", small().tensor("norm", &[1], 0, 4).bytes(), &["tensor \"norm\"", "once"]),
    ];
    for (name, bytes, parts) in cases {
        let error = parse(bytes).err().unwrap_or_else(|| panic!("{name}: accepted"));
        assert!(error.contains("test.gguf") || error.contains("general.alignment"), "{name}: {error}");
        for part in parts {
            assert!(error.contains(part), "{name}: {error:?} lacks {part:?}");
        }
    }
}

#[test]
fn names_that_are_not_utf8_are_refused() {
    let mut bytes = small().bytes();
    let at = bytes.windows(7).position(|w| w == b"general").unwrap();
    bytes[at] = 0xff;
    assert!(parse(bytes).unwrap_err().contains("UTF-8"));
}

#[test]
fn a_truncated_file_is_an_error_at_every_length() {
    let bytes = small().bytes();
    for len in 0..bytes.len() {
        assert!(
            parse(bytes[..len].to_vec()).is_err(),
            "the first {len} of {} bytes were accepted",
            bytes.len()
        );
    }
    assert!(parse(bytes).is_ok());
}

#[test]
fn a_bit_flip_never_panics() {
    let bytes = small().bytes();
    for bit in 0..bytes.len() * 8 {
        let mut broken = bytes.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        if let Ok(checkpoint) = parse(broken) {
            for tensor in checkpoint.tensors() {
                assert_eq!(checkpoint.data(tensor).unwrap().len() as u64, tensor.bytes);
            }
        }
    }
}

#[test]
fn a_large_array_is_counted() {
    let words =
        Kv::Raw(9, [&8u32.to_le_bytes()[..], &(8u64 << 20).to_le_bytes(), &vec![0; 64 << 20]].concat());
    let bytes = Gguf::default().key("words", words).bytes();
    let checkpoint = parse(bytes).unwrap();
    assert_eq!(checkpoint.metadata().unwrap().array("words").unwrap().len(), 8 << 20);
}

#[test]
fn split_files_are_one_checkpoint() {
    let dir = common::scratch("split_gguf");
    let part = |no: u32, count: u32, tensor: &str| {
        let mut file = Gguf::default().key("split.no", Kv::U32(no)).key("split.count", Kv::U32(count));
        if no == 0 {
            file = file.key("general.name", Kv::Str("whole")).key("split.tensors.count", Kv::I32(2));
        }
        file.tensor(tensor, &[4], 0, 16).bytes()
    };
    let path = |n: u32| dir.join(format!("m-{n:05}-of-00002.gguf"));
    std::fs::write(path(1), part(0, 2, "a")).unwrap();
    let missing = Checkpoint::open(&path(1)).unwrap_err().to_string();
    assert!(missing.contains("m-00002-of-00002.gguf"), "{missing}");
    std::fs::write(path(2), part(1, 2, "b")).unwrap();
    for opened in [path(1), path(2), dir.clone()] {
        let checkpoint = Checkpoint::open(&opened).unwrap();
        assert_eq!(checkpoint.name(), "whole");
        assert_eq!(checkpoint.checkpoint_bytes(), 32);
        assert_eq!(checkpoint.data(checkpoint.tensor("b").unwrap()).unwrap(), [1; 16]);
        assert_eq!(checkpoint.files(), [path(1), path(2)], "{}", opened.display());
    }
    let renamed = dir.join("n-00001-of-00002.gguf");
    std::fs::copy(path(2), &renamed).unwrap();
    let renamed = Checkpoint::open(&renamed).unwrap_err().to_string();
    assert!(renamed.contains("part 2, named *-00002-of-00002.gguf"), "{renamed}");
    std::fs::write(path(2), part(1, 2, "a")).unwrap();
    assert!(Checkpoint::open(&path(1)).unwrap_err().to_string().contains("once"));
    std::fs::write(path(2), part(0, 2, "b")).unwrap();
    assert!(Checkpoint::open(&path(1)).unwrap_err().to_string().contains("split.no"));
}
