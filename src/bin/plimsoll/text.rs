//! Texts of the user's: files, standard input and its lines, none of which need ever end. No more is read than could be
//! of use, and one byte, by which it is seen that there is more.

use crate::failure::Failure;
use plimsoll::runtime::request::most_text;
use plimsoll::runtime::{Refused, RuntimeError};
use plimsoll::{Geometry, Tokenizer};
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// A line that is too long is passed over; one that goes on for so many bytes is none.
const MOST_PASSED: u64 = 1 << 30;

/// The most that is read for a geometry, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    bytes: u64,
    context: u32,
}

impl Most {
    pub fn of(geometry: &Geometry, tokenizer: &Tokenizer) -> Self {
        let context = geometry.context;
        Self { bytes: most_text(context, tokenizer), context }
    }

    fn refusal(self) -> Failure {
        let refused = Refused::Text { most: self.bytes, context: self.context };
        plimsoll::Error::from(RuntimeError::from(refused)).into()
    }

    /// All that a stream has.
    pub fn read(self, from: impl Read) -> Result<Result<String, Failure>, io::Error> {
        Ok(match bounded(from, self.bytes)? {
            Some(text) => Ok(text),
            None => Err(self.refusal()),
        })
    }

    /// A file.
    pub fn file(self, path: &Path) -> Result<String, Failure> {
        let text = File::open(path).and_then(|file| self.read(file));
        text.map_err(|error| Failure::file("read", path, error))?
    }

    /// The next line with its end, `None` after the last. One that is too long is passed over and an error of its own, after
    /// which there may be others; where it does not end, all of it is.
    pub fn line(self, from: &mut impl BufRead) -> Result<Option<Result<String, Failure>>, Failure> {
        let mut bytes = Vec::new();
        if from.by_ref().take(self.bytes + 1).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        if bytes.len() as u64 > self.bytes {
            if bytes.last() != Some(&b'\n') && !passes_line(from)? {
                return Err(self.refusal());
            }
            return Ok(Some(Err(self.refusal())));
        }
        Ok(Some(Ok(utf8(bytes)?)))
    }
}

/// A text of at most so many bytes; `None` of a longer one.
pub fn bounded(from: impl Read, most: u64) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Ok(None) } else { utf8(bytes).map(Some) }
}

fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(bytes).map_err(wrong)
}

/// Leaves out what is left of a line; whether it ended.
fn passes_line(from: &mut impl BufRead) -> io::Result<bool> {
    let mut passed = 0;
    while passed < MOST_PASSED {
        let held = from.fill_buf()?;
        let (used, ended) = match held.iter().position(|&byte| byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (held.len(), held.is_empty()),
        };
        from.consume(used);
        if ended {
            return Ok(true);
        }
        passed += used as u64;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MOST: Most = Most { bytes: 4, context: 2 };

    #[test]
    fn no_more_is_read_than_could_fit() {
        assert_eq!(MOST.read(&b"abcd"[..]).unwrap().unwrap(), "abcd");
        for long in [&b"abcde"[..], "abc\u{e9}".as_bytes()] {
            let refused = MOST.read(long).unwrap().unwrap_err();
            assert_eq!(refused.code(), 3);
            assert!(
                refused.message().contains("more than 4 bytes") && refused.message().contains("context of 2")
            );
        }
        assert!(MOST.read(io::repeat(b'a')).unwrap().is_err());
        assert!(MOST.read(&[0xff][..]).is_err());
    }

    #[test]
    fn a_line_that_is_too_long_is_not_the_end() {
        let mut input = &b"abc\nabcdefgh\nabcd\nabc\n\nx"[..];
        let mut seen = Vec::new();
        while let Some(line) = MOST.line(&mut input).unwrap() {
            seen.push(line.map_err(|error| error.code()));
        }
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(seen, [ok("abc\n"), Err(3), Err(3), ok("abc\n"), ok("\n"), ok("x")]);
        // But one that never ends is.
        let mut endless = io::BufReader::new(io::repeat(b'a'));
        assert_eq!(MOST.line(&mut endless).unwrap_err().code(), 3);
    }
}
