//! JSON from strangers: bounded, and tolerant of the three words Python's writer uses for non-finite numbers.

use crate::error::ModelError;
use serde::Deserialize;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde_json::Value;
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
/// `{"__float__": "Infinity"}`.
///
/// All of these become the JSON *strings* `"Infinity"`, `"-Infinity"`, `"NaN"`, because JSON numbers cannot hold
/// them; [`number`] reads both. Nesting is bounded (128 levels) by the parser. Of duplicate keys the last one counts.
pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Value, ModelError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        ModelError::corrupt(path, format!("byte {}", e.valid_up_to()), "UTF-8", "other bytes")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut value = from_str(&quote_non_finite(text), path)?;
    unwrap_floats(&mut value);
    Ok(value)
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

/// Puts quotes around the bare words, leaving strings alone.
fn quote_non_finite(text: &str) -> std::borrow::Cow<'_, str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !text.contains("Infinity") && !text.contains("NaN") {
        return text.into();
    }
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
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out.into()
}

/// Replaces `{"__float__": "Infinity"}` by its inner string. Depth is bounded because parsing was.
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
    }

    #[test]
    fn bad_json_is_an_error_with_a_position() {
        let deep = "[".repeat(100_000);
        for text in ["", "{", "{\"a\": Infinit}", "{\"a\": NaN NaN}", "\"\\", &deep] {
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
