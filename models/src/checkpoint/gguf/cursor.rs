//! A reading position in untrusted bytes: no length is believed before it is compared with what is left.

use crate::checkpoint::bytes::FileBytes;
use crate::error::ModelError;
use std::ops::Range;
use std::path::Path;

/// Reads little-endian values from a file's bytes, one after another.
pub(super) struct Cursor<'a> {
    /// The file, or the beginning of one that lies elsewhere.
    bytes: &'a FileBytes,
    pos: usize,
    path: &'a Path,
    /// What is being read, for messages: "header", `key "general.name"`, `tensor "output.weight"`.
    pub(super) subject: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a FileBytes, path: &'a Path) -> Self {
        Cursor { bytes, pos: 0, path, subject: "header".to_owned() }
    }

    /// Bytes read so far: the offset of the next byte in the file.
    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// Bytes to the end of the file.
    pub(super) fn left(&self) -> u64 {
        self.bytes.total().saturating_sub(self.pos as u64)
    }

    /// An error at the current position.
    pub(super) fn error(&self, expected: impl Into<String>, got: impl Into<String>) -> ModelError {
        ModelError::corrupt(self.path, format!("{} at byte {}", self.subject, self.pos), expected, got)
    }

    /// Skips `n` bytes and returns where they are.
    pub(super) fn skip(&mut self, n: u64, what: &str) -> Result<Range<usize>, ModelError> {
        if n > self.left() {
            let got = format!("{} bytes to the end of the file", self.left());
            return Err(self.error(format!("{n} bytes of {what}"), got));
        }
        let start = self.pos;
        let end = usize::try_from(n).ok().and_then(|n| start.checked_add(n));
        match end {
            Some(end) if end <= self.bytes.len() => {
                self.pos = end;
                Ok(start..end)
            }
            // Of a file elsewhere, more must be read first.
            _ => Err(ModelError::NotDownloaded { name: self.subject.clone(), path: self.path.to_owned() }),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ModelError> {
        let range = self.skip(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[range]);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string (u64 length, then bytes): where it is, without looking at its characters.
    pub(super) fn skip_string(&mut self, what: &str) -> Result<Range<usize>, ModelError> {
        let len = self.u64(what)?;
        self.skip(len, what)
    }

    /// A short string that is needed now: a key or a tensor name.
    pub(super) fn name(&mut self, what: &str) -> Result<String, ModelError> {
        let range = self.skip_string(what)?;
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.error(format!("{what} in UTF-8"), "other bytes")),
        }
    }
}
