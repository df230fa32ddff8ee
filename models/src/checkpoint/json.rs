//! JSON from strangers: bounded, and tolerant of the three words Python's writer uses for non-finite numbers.

use super::repeated;
use crate::error::ModelError;
use serde::Deserialize;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Configurations are kilobytes; quantised ones with per-module lists reach megabytes.
pub(crate) const MAX_CONFIG_BYTES: u64 = 32 << 20;

/// Reads a small text file into memory; nothing is read when it is larger than `limit` or no regular file.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    let meta = std::fs::metadata(path).map_err(|e| ModelError::io("open", path, e))?;
    if !meta.is_file() {
        return Err(ModelError::corrupt(path, "file type", "a regular file", "something else"));
    }
    if meta.len() > limit {
        return Err(ModelError::corrupt(
            path,
            "file size",
            format!("at most {limit} bytes"),
            meta.len().to_string(),
        ));
    }
    std::fs::read(path).map_err(|e| ModelError::io("read", path, e))
}

/// Parses JSON in which bare `Infinity`, `-Infinity` and `NaN` may stand for numbers, and so may
/// `{"__float__": "Infinity"}`. A number past what 64 bits hold, as `1e400`, is what every reader of floats makes of it:
/// infinite.
///
/// All of these become the JSON *strings* `"Infinity"`, `"-Infinity"`, `"NaN"`, because JSON numbers cannot hold
/// them; [`number`] reads both. Nesting is bounded (128 levels) by the parser. Of duplicate keys the last one counts.
pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Value, ModelError> {
    parsed(bytes, path).map(|(value, _)| value)
}

/// The same, with the first few keys that stand twice in one object with different values, by their paths.
pub(crate) fn parse_with_repeated(bytes: &[u8], path: &Path) -> Result<(Value, Vec<String>), ModelError> {
    let (value, text) = parsed(bytes, path)?;
    let repeated = repeated::keys(&text);
    Ok((value, repeated))
}

/// The value, and the text in strict JSON.
fn parsed<'t>(bytes: &'t [u8], path: &Path) -> Result<(Value, Cow<'t, str>), ModelError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        ModelError::corrupt(path, format!("byte {}", e.valid_up_to()), "UTF-8", "other bytes")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Strict JSON is by far the most of it.
    let (mut value, text) = match serde_json::from_str(text) {
        Ok(value) => (value, Cow::Borrowed(text)),
        Err(_) => {
            let quoted = quote_non_finite(text);
            (from_str(&quoted, path)?, Cow::Owned(quoted))
        }
    };
    unwrap_floats(&mut value);
    Ok((value, text))
}

/// Strict JSON into a type, with the parser's position in the error.
pub(crate) fn from_str<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ModelError> {
    serde_json::from_str(text).map_err(|e| {
        ModelError::corrupt(
            path,
            format!("line {} column {}", e.line(), e.column()),
            "valid JSON",
            e.to_string(),
        )
    })
}

/// A number, also where the file spells a non-finite one (see [`parse`]).
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => match s.as_str() {
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            "NaN" => Some(f64::NAN),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a text is a number of JSON's: no leading zeros, digits around the point.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

/// Puts quotes around the bare words, and around the word for a number that is too large, leaving strings alone.
fn quote_non_finite(text: &str) -> String {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        if in_string {
            match c {
                // An escape hides the next character, which may be a quote.
                '\\' => taken += rest[1..].chars().next().map_or(0, char::len_utf8),
                '"' => in_string = false,
                _ => {}
            }
        } else if c == '"' {
            in_string = true;
        } else if let Some(word) = WORDS.iter().find(|w| rest.starts_with(**w)) {
            out.push('"');
            out.push_str(word);
            out.push('"');
            rest = &rest[word.len()..];
            continue;
        }
        if !in_string && (c == '-' || c.is_ascii_digit()) {
            let number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
            taken = rest.find(|c| !number(c)).unwrap_or(rest.len());
            let token = &rest[..taken];
            if is_number(token) && token.parse().is_ok_and(f64::is_infinite) {
                out.push_str(if c == '-' { "\"-Infinity\"" } else { "\"Infinity\"" });
                rest = &rest[taken..];
                continue;
            }
        }
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// Replaces `{"__float__": "Infinity"}` by its inner string, and by its word a number that the parser kept as text because
/// no float holds it. Depth is bounded because parsing was.
fn unwrap_floats(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.len() == 1
                && let Some(inner @ Value::String(_)) = map.get_mut("__float__")
            {
                *value = inner.take();
                return;
            }
            map.values_mut().for_each(unwrap_floats);
        }
        Value::Array(items) => items.iter_mut().for_each(unwrap_floats),
        Value::Number(number) if number.as_f64().is_none_or(f64::is_infinite) => {
            let negative = number.to_string().starts_with('-');
            *value = Value::String(if negative { "-Infinity" } else { "Infinity" }.to_owned());
        }
        _ => {}
    }
}

/// A JSON object in which a key that occurs twice is an error, not a silent overwrite.
#[derive(Debug)]
pub(crate) struct UniqueMap<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with every key once")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some((key, value)) = access.next_entry::<String, V>()? {
                    if map.contains_key(&key) {
                        return Err(serde::de::Error::custom(format!(
                            "key {} occurs twice",
                            crate::error::quoted(&key)
                        )));
                    }
                    map.insert(key, value);
                }
                Ok(UniqueMap(map))
            }
        }
        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn parsed(text: &str) -> Value {
        parse(text.as_bytes(), Path::new("config.json")).unwrap()
    }

    #[test]
    fn non_finite_words_are_numbers_outside_strings_only() {
        let v = parsed(
            r#"{"limit": [0.0, Infinity], "low": -Infinity, "x": NaN, "s": "a \" Infinity \\", "t": "NaN"}"#,
        );
        assert_eq!(number(&v["limit"][1]), Some(f64::INFINITY));
        assert_eq!(number(&v["low"]), Some(f64::NEG_INFINITY));
        assert!(number(&v["x"]).unwrap().is_nan());
        assert_eq!(v["s"], r#"a " Infinity \"#);
        assert_eq!(parsed(r#"[0, {"__float__": "Infinity"}]"#)[1], "Infinity");
        let digits = "9".repeat(400);
        let v = parsed(&format!(
            r#"{{"a": 1e400, "b": [-1.5E+999, {digits}], "s": "1e400", "t": 1e-400, "u": 1e3}}"#
        ));
        assert_eq!((&v["a"], &v["b"][0]), (&"Infinity".into(), &"-Infinity".into()));
        assert_eq!((number(&v["b"][1]), &v["s"]), (Some(f64::INFINITY), &"1e400".into()));
        assert_eq!((number(&v["t"]), number(&v["u"])), (Some(0.0), Some(1000.0)));
    }

    #[test]
    fn bad_json_is_an_error_with_a_position() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "[01e400]",
            "[1.e400]",
            "[1e400e1]",
            "[--1e400]",
            "[1e400",
            "{\"a\": Infinit}",
            "{\"a\": NaN NaN}",
            "\"\\",
            &deep,
        ] {
            let error = parse(text.as_bytes(), Path::new("config.json")).unwrap_err().to_string();
            assert!(error.contains("line"), "{error}");
        }
        assert!(parse(&[0x7b, 0xff], Path::new("c")).unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn duplicate_keys_are_refused_where_asked() {
        let map: Result<UniqueMap<String>, _> = serde_json::from_str(r#"{"a": "1", "a": "2"}"#);
        assert!(map.unwrap_err().to_string().contains("twice"));
    }
}
