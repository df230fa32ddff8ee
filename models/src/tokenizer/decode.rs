//! From ids back to text: every id is bytes, and text is emitted only in whole characters.

use super::Tokenizer;
use std::sync::Arc;

/// How the pieces of ordinary tokens spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// One printable character per byte (byte-level BPE).
    ByteLevel,
    /// Plain text with `▁` for a space and `<0x0A>` for a single byte (SentencePiece). `strip` removes the one
    /// space that encoding put before the text.
    Sentence {
        /// Whether one leading space is removed.
        strip: bool,
    },
}

/// The byte that a printable character stands for in byte-level vocabularies.
///
/// The 188 printable Latin-1 characters stand for themselves; the other 68 bytes, in order, are the characters
/// from U+0100 on (the scheme that GPT-2 introduced).
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// `<0x0A>` → 10.
pub(super) fn byte_token(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

impl Spelling {
    /// Appends the bytes of an ordinary piece.
    fn push(self, piece: &str, out: &mut Vec<u8>) {
        match self {
            Spelling::ByteLevel => {
                let start = out.len();
                for c in piece.chars() {
                    match byte_of(c) {
                        Some(byte) => out.push(byte),
                        None => {
                            // Not spelled byte by byte after all: the piece is its own text.
                            out.truncate(start);
                            out.extend_from_slice(piece.as_bytes());
                            return;
                        }
                    }
                }
            }
            Spelling::Sentence { .. } => match byte_token(piece) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(piece.replace('▁', " ").as_bytes()),
            },
        }
    }
}

/// The tokenizer of a stream.
#[derive(Clone, Debug)]
enum Handle<'a> {
    Borrowed(&'a Tokenizer),
    Shared(Arc<Tokenizer>),
}

impl Handle<'_> {
    fn get(&self) -> &Tokenizer {
        match self {
            Handle::Borrowed(tokenizer) => tokenizer,
            Handle::Shared(tokenizer) => tokenizer,
        }
    }
}

/// Turns ids into text as they arrive, without ever splitting a character.
///
/// Bytes that may still become a character are held back until the next id, or until [`DecodeStream::finish`].
#[derive(Clone, Debug)]
pub struct DecodeStream<'a> {
    tokenizer: Handle<'a>,
    skip_special: bool,
    /// Bytes of an incomplete character, at most three between calls.
    pending: Vec<u8>,
    /// Whether the next byte is the text's first.
    at_start: bool,
}

impl<'a> DecodeStream<'a> {
    fn new(tokenizer: Handle<'a>, skip_special: bool) -> Self {
        DecodeStream { tokenizer, skip_special, pending: Vec::new(), at_start: true }
    }

    /// Adds an id and returns the text that is now complete, if any. Ids outside the vocabulary are no text.
    ///
    /// Bytes that no character can begin with become U+FFFD at once.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let tokenizer = self.tokenizer.get();
        if self.skip_special && tokenizer.is_special(id) {
            return None;
        }
        let before = self.pending.len();
        tokenizer.push_bytes(id, &mut self.pending);
        if self.at_start && self.pending.len() > before {
            self.at_start = false;
            if tokenizer.spelling == (Spelling::Sentence { strip: true })
                && self.pending.first() == Some(&b' ')
            {
                self.pending.remove(0);
            }
        }
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.pending.clear();
                    break;
                }
                Err(error) => {
                    let (valid, rest) = self.pending.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        // The tail may become a character: keep it.
                        None => {
                            self.pending = rest.to_vec();
                            break;
                        }
                        Some(bad) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            self.pending = rest[bad..].to_vec();
                        }
                    }
                }
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// Ends the text: a character that never completed becomes one U+FFFD.
    pub fn finish(&mut self) -> Option<String> {
        let held = !self.pending.is_empty();
        self.pending.clear();
        held.then(|| char::REPLACEMENT_CHARACTER.to_string())
    }
}

impl Tokenizer {
    /// The text of ids. Special tokens are left out or spelled, as asked; bytes that form no character become
    /// U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.stream(skip_special);
        let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
        text.extend(stream.finish());
        text
    }

    /// Decodes ids one at a time.
    pub fn stream(&self, skip_special: bool) -> DecodeStream<'_> {
        DecodeStream::new(Handle::Borrowed(self), skip_special)
    }

    /// Decodes ids one at a time, keeping the tokenizer alive as long as the stream.
    pub fn shared_stream(self: &Arc<Self>, skip_special: bool) -> DecodeStream<'static> {
        DecodeStream::new(Handle::Shared(Arc::clone(self)), skip_special)
    }

    fn push_bytes(&self, id: u32, out: &mut Vec<u8>) {
        if let Some(piece) = self.token(id) {
            // Added tokens are text as it stands; only SentencePiece ones may hold escaped spaces.
            if self.is_added(id) && self.spelling == Spelling::ByteLevel || self.is_special(id) {
                out.extend_from_slice(piece.as_bytes());
            } else {
                self.spelling.push(piece, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [false; 256];
        for c in (0u32..0x200).filter_map(char::from_u32) {
            if let Some(byte) = byte_of(c) {
                assert!(!seen[usize::from(byte)], "{c:?}");
                seen[usize::from(byte)] = true;
            }
        }
        assert!(seen.iter().all(|&s| s));
        // The well-known ones.
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('ĉ')), (Some(b' '), Some(b'\n'), Some(b'\t')));
    }

    #[test]
    fn byte_tokens() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for other in ["<0x+A>", "<0x>", "<0xAAA>", "0x0A", "<0xé>"] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }
}
