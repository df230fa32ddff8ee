//! Golden GGUF files, to be changed key by key.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Kv, data, put_str, put_value};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{Model, ModelError, Registry};

/// A GGUF file taken apart: keys and tensors can be changed, the data stay as they are.
#[derive(Clone)]
pub struct Edited {
    /// Name, and the bytes from the type on.
    keys: Vec<(String, Vec<u8>)>,
    /// Name, and the bytes after it.
    tensors: Vec<(String, Vec<u8>)>,
    data: Vec<u8>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        self.at += n;
        &self.bytes[self.at - n..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> usize {
        u64::from_le_bytes(self.take(8).try_into().unwrap()) as usize
    }

    fn text(&mut self) -> String {
        let len = self.u64();
        String::from_utf8(self.take(len).to_vec()).unwrap()
    }

    fn skip(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => self.at += 1,
            2 | 3 => self.at += 2,
            4..=6 => self.at += 4,
            8 => drop(self.text()),
            9 => {
                let (kind, len) = (self.u32(), self.u64());
                (0..len).for_each(|_| self.skip(kind));
            }
            _ => self.at += 8,
        }
    }
}

impl Edited {
    /// The file of a golden model.
    pub fn of(family: &str) -> Self {
        let file = std::fs::read(data(&format!("golden/{family}/model.gguf"))).unwrap();
        let mut r = Reader { bytes: &file, at: 8 };
        let (tensors, keys) = (r.u64(), r.u64());
        let keys = (0..keys).map(|_| {
            let (name, start) = (r.text(), r.at);
            let kind = r.u32();
            r.skip(kind);
            (name, file[start..r.at].to_vec())
        });
        let keys = keys.collect();
        let tensors = (0..tensors).map(|_| {
            let (name, start) = (r.text(), r.at);
            let dimensions = r.u32() as usize;
            r.at += 8 * dimensions + 12;
            (name, file[start..r.at].to_vec())
        });
        let tensors = tensors.collect();
        let data = file[r.at.next_multiple_of(32)..].to_vec();
        Self { keys, tensors, data }
    }

    /// Puts a value under a key, whether it is there or not.
    pub fn set(mut self, key: &str, value: &Kv) -> Self {
        let mut bytes = Vec::new();
        put_value(&mut bytes, value);
        match self.keys.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = bytes,
            None => self.keys.push((key.to_owned(), bytes)),
        }
        self
    }

    /// Takes a key away.
    pub fn without_key(mut self, key: &str) -> Self {
        let before = self.keys.len();
        self.keys.retain(|(name, _)| name != key);
        assert_eq!(self.keys.len() + 1, before, "{key}");
        self
    }

    /// Takes tensors away.
    pub fn without(mut self, part: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|(name, _)| !name.contains(part));
        assert!(self.tensors.len() < before, "{part}");
        self
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (name, rest) in self.keys.iter().chain(&self.tensors) {
            put_str(&mut out, name);
            out.extend(rest);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }

    /// The model of the file.
    pub fn build(&self) -> Result<Model, ModelError> {
        let checkpoint = Checkpoint::from_gguf_bytes(self.bytes(), "test")?;
        Registry::standard().build(&checkpoint)
    }
}
