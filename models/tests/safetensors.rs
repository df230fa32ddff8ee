//! safetensors, indices and directories: what is read, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{safetensors, scratch};
use plimsoll_kernels::Format;
use plimsoll_models::checkpoint::{Checkpoint, DType, Source, number};
use std::fs;

const TWO: &str = r#"{"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"a":{"dtype":"U8","shape":[4],"data_offsets":[12,16]}}"#;
const ONE: &str = r#"{"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;

fn fails(result: Result<Checkpoint, plimsoll_models::ModelError>, parts: &[&str]) {
    let error = result.expect_err("accepted").to_string();
    assert!(parts.iter().all(|p| error.contains(p)), "{error:?} lacks one of {parts:?}");
}

#[test]
fn a_directory_with_one_file() {
    let dir = scratch("one_file");
    fs::write(dir.join("config.json"), r#"{"limit": [0, Infinity]}"#).unwrap();
    fs::write(dir.join("generation_config.json"), r#"{"eos_token_id": [1, 2]}"#).unwrap();
    fs::write(dir.join("model.safetensors"), safetensors(TWO, 16)).unwrap();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    assert_eq!(checkpoint.source(), Source::Safetensors);
    assert_eq!(checkpoint.name(), "one_file");
    let names: Vec<_> = checkpoint.tensors().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["b", "a"], "in the order of the data");
    let b = checkpoint.tensor("b").unwrap();
    assert_eq!((b.shape.as_slice(), &b.dtype), ([2, 3].as_slice(), &DType::Weight(Format::BF16)));
    assert_eq!(checkpoint.tensor("a").unwrap().dtype, DType::Other("u8".into()));
    assert_eq!(checkpoint.data(b).unwrap(), [7; 12]);
    assert_eq!(number(&checkpoint.config().unwrap()["limit"][1]), Some(f64::INFINITY));
    assert_eq!(checkpoint.generation_config().unwrap()["eos_token_id"][1], 2);

    let file = Checkpoint::open(&dir.join("model.safetensors")).unwrap();
    assert!(file.config().is_some(), "the configuration beside the file belongs to it");
    let config = Checkpoint::open(&dir.join("config.json")).unwrap();
    assert_eq!((config.source(), config.name(), config.tensors().len()), (Source::Config, "one_file", 0));
}

#[test]
fn shards_by_an_index() {
    let dir = scratch("shards");
    fs::write(dir.join("config.json"), "{}").unwrap();
    fs::write(dir.join("x-2.safetensors"), safetensors(TWO, 16)).unwrap();
    fs::write(dir.join("x-1.safetensors"), safetensors(ONE, 4)).unwrap();
    let index = |text: &str| {
        fs::write(dir.join("model.safetensors.index.json"), format!(r#"{{"weight_map":{text}}}"#)).unwrap()
    };
    index(r#"{"a":"x-2.safetensors","b":"x-2.safetensors","c":"x-1.safetensors"}"#);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let names: Vec<_> = checkpoint.tensors().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["c", "b", "a"]);
    assert_eq!(checkpoint.checkpoint_bytes(), 20);

    index(r#"{"a":"x-2.safetensors"}"#);
    assert_eq!(Checkpoint::open(&dir).unwrap().tensors().len(), 1, "only what the index names");
    index(r#"{"a":"x-3.safetensors"}"#);
    fails(Checkpoint::open(&dir), &["x-3.safetensors", "no such file"]);
    index(r#"{"c":"x-2.safetensors"}"#);
    fails(Checkpoint::open(&dir), &["\"c\"", "x-2.safetensors"]);
    index(r#"{"a":"x-2.safetensors","a":"x-1.safetensors"}"#);
    fails(Checkpoint::open(&dir), &["\"a\"", "twice"]);
    index("{}");
    fails(Checkpoint::open(&dir), &["at least one tensor"]);
    for name in ["../x-1.safetensors", "/etc/passwd", "sub/x", "..", ".", "", r"..\\x", "c:x"] {
        index(&format!(r#"{{"a":"{name}"}}"#));
        fails(Checkpoint::open(&dir), &["weight_map entry \"a\"", "plain name"]);
    }
}

#[test]
fn damaged_headers_are_refused() {
    let open =
        |bytes: Vec<u8>| Checkpoint::from_safetensors_bytes(None, vec![("m".into(), bytes)], None, "m");
    let header = |text: &str| open(safetensors(text, 16));
    assert!(header(TWO).is_ok());
    fails(open(vec![]), &["8 bytes", "a file of 0 bytes"]);
    fails(open((1u64 << 63).to_le_bytes().to_vec()), &["header length", "9223372036854775808"]);
    fails(open(safetensors(TWO, 15)), &["16 bytes", "15"]);
    fails(open(safetensors(TWO, 17)), &["16 bytes", "17"]);
    fails(header("{"), &["valid JSON"]);
    fails(header(&TWO.replace("[2,3]", "[2,4]")), &["valid JSON"]);
    fails(header(&TWO.replace("BF16", "BF17")), &["BF17"]);
    fails(header(&TWO.replace("[12,16]", "[13,17]")), &["valid JSON"]);
    fails(header(&TWO.replace("[2,3]", "[4294967296,4294967296,3]")), &["valid JSON"]);
    // Sizes that only together overflow 64 bits.
    let part = |i: u64| {
        let (start, end) = (i << 60, ((i + 1) << 60).wrapping_sub(u64::from(i == 15)));
        format!(
            r#""t{i}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#,
            end.wrapping_sub(start)
        )
    };
    let parts: Vec<String> = (0..16).map(part).collect();
    fails(header(&format!("{{{}}}", parts.join(","))), &["data"]);
    for len in 0..TWO.len() + 24 {
        assert!(open(safetensors(TWO, 16)[..len].to_vec()).is_err(), "{len} bytes were accepted");
    }
}

#[test]
fn a_name_that_a_header_has_twice_is_refused() {
    let dir = scratch("twice");
    let one = ONE.strip_suffix('}').unwrap();
    let twice = format!(r#"{one},"c":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}"#);
    let file = dir.join("model.safetensors");
    fs::write(&file, safetensors(&twice, 8)).unwrap();
    fails(Checkpoint::open(&file), &["\"c\"", "twice"]);
}

#[test]
fn a_directory_without_a_model_says_what_there_is() {
    let dir = scratch("without");
    fails(Checkpoint::open(&dir), &["got neither"]);
    fs::write(dir.join("model-00002-of-00003.safetensors"), safetensors(ONE, 4)).unwrap();
    fails(Checkpoint::open(&dir), &["got weights, and nothing that says what they are"]);
    fs::create_dir(dir.join("config.json")).unwrap();
    fails(Checkpoint::open(&dir), &["config.json that is no regular file"]);
}

#[test]
fn directories_and_files_that_are_no_model() {
    let dir = scratch("no_model");
    fails(Checkpoint::open(&dir), &["config.json or one .gguf"]);
    fails(Checkpoint::open(&dir.join("absent.gguf")), &["cannot open", "absent.gguf"]);
    fs::write(dir.join("readme.txt"), "hello").unwrap();
    fails(Checkpoint::open(&dir.join("readme.txt")), &[".gguf, .safetensors or config.json", "readme.txt"]);
    fs::write(dir.join("config.json"), "[1]").unwrap();
    fails(Checkpoint::open(&dir), &["an object"]);
    fs::write(dir.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    assert_eq!(Checkpoint::open(&dir).unwrap().source(), Source::Config);

    let tiny = common::Gguf::default().bytes();
    fs::write(dir.join("a.gguf"), &tiny).unwrap();
    assert_eq!(Checkpoint::open(&dir).unwrap().name(), "a");
    fs::write(dir.join("blob"), &tiny).unwrap();
    assert_eq!(
        Checkpoint::open(&dir.join("blob")).unwrap().source(),
        Source::Gguf,
        "recognised by its first bytes"
    );
    fs::write(dir.join("b.gguf"), &tiny).unwrap();
    fails(Checkpoint::open(&dir), &["exactly one", "a.gguf", "b.gguf"]);
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_refused_without_reading() {
    fails(Checkpoint::open("/dev/zero".as_ref()), &["regular file"]);
}
