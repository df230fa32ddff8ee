//! Builds small files byte by byte, so that tests can break any one field.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod gguf;
pub mod tensors;

use std::path::PathBuf;

/// Path of a file in the repository's shared test data.
pub fn data(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data")).join(name)
}

/// Path of a file in this crate's own test data.
pub fn own_data(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).join(name)
}

/// A value of GGUF metadata, as the writer sees it.
pub enum Kv {
    U32(u32),
    U64(u64),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(&'static str),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type number and the bytes after it, as they are.
    Raw(u32, Vec<u8>),
}

/// A GGUF file in the making.
pub struct Gguf {
    pub version: u32,
    pub keys: Vec<(String, Kv)>,
    /// Name, dimensions innermost first, type number, offset, bytes of data.
    pub tensors: Vec<(String, Vec<u64>, u32, u64, usize)>,
    pub key_count: Option<u64>,
    pub tensor_count: Option<u64>,
    pub alignment: usize,
}

impl Default for Gguf {
    fn default() -> Self {
        Gguf { version: 3, keys: vec![], tensors: vec![], key_count: None, tensor_count: None, alignment: 32 }
    }
}

pub fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Gguf {
    pub fn key(mut self, key: &str, value: Kv) -> Self {
        self.keys.push((key.to_owned(), value));
        self
    }

    /// A tensor placed after the ones before it.
    pub fn tensor(mut self, name: &str, ne: &[u64], kind: u32, bytes: usize) -> Self {
        let end = self.tensors.last().map_or(0, |t| t.3 as usize + t.4);
        let offset = end.next_multiple_of(self.alignment) as u64;
        self.tensors.push((name.to_owned(), ne.to_vec(), kind, offset, bytes));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        for (name, ne, kind, offset, _) in &self.tensors {
            put_str(&mut out, name);
            out.extend((ne.len() as u32).to_le_bytes());
            ne.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        if !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            let start = out.len();
            for (i, (_, _, _, offset, bytes)) in self.tensors.iter().enumerate() {
                // Offsets far outside are lies told on purpose: no data is written for them.
                if *offset < 1 << 20 {
                    let end = start + *offset as usize + bytes;
                    out.resize(end.max(out.len()), 0);
                    out[end - bytes..end].fill(i as u8 + 1);
                }
            }
        }
        out
    }
}

pub fn put_value(out: &mut Vec<u8>, value: &Kv) {
    let mut head = |kind: u32| out.extend(kind.to_le_bytes());
    match value {
        Kv::U32(v) => {
            head(4);
            out.extend(v.to_le_bytes());
        }
        Kv::U64(v) => {
            head(10);
            out.extend(v.to_le_bytes());
        }
        Kv::I32(v) => {
            head(5);
            out.extend(v.to_le_bytes());
        }
        Kv::F32(v) => {
            head(6);
            out.extend(v.to_le_bytes());
        }
        Kv::Bool(v) => {
            head(7);
            out.push(u8::from(*v));
        }
        Kv::Str(v) => {
            head(8);
            put_str(out, v);
        }
        Kv::Strs(v) => {
            head(9);
            out.extend(8u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|s| put_str(out, s));
        }
        Kv::I32s(v) => {
            head(9);
            out.extend(5u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Kv::F32s(v) => {
            head(9);
            out.extend(6u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Kv::Raw(kind, bytes) => {
            head(*kind);
            out.extend(bytes);
        }
    }
}

/// A safetensors file with this header text and this much data.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 7);
    out
}

/// A directory of its own for one test, empty.
pub fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
