//! Keys that stand twice in one object of JSON: readers take the last, and whoever wrote the first may mean that.

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, de};
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// As many are looked for as anybody reads of.
pub(super) const MOST: usize = 8;
/// Of a path so many characters are kept: keys are a stranger's, and may be megabytes.
const LONGEST: usize = 100;

/// The keys of a text that is JSON which have different values in one object, the first few of them, by their paths.
pub(super) fn keys(text: &str) -> Vec<String> {
    let mut found = Found::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    // It was read as a value before: there is nothing to be told of it here.
    let _ = Looking(&mut found).deserialize(&mut reader);
    found.keys
}

/// What has been found, and where in the text the reader is.
#[derive(Default)]
struct Found {
    path: Vec<String>,
    keys: Vec<String>,
}

impl Found {
    /// The path of a key of the object that is being read.
    fn at(&self, key: &str) -> String {
        let parts = self.path.iter().map(String::as_str).chain([key]);
        let dotted = parts
            .enumerate()
            .flat_map(|(at, part)| ["", "."][usize::from(at > 0)].chars().chain(part.chars()));
        dotted.take(LONGEST).collect()
    }
}

/// Reads one value into a digest: texts may be long and lists longer.
struct Looking<'f>(&'f mut Found);

fn digest(kind: u8, value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (kind, value).hash(&mut hasher);
    hasher.finish()
}

impl<'de> DeserializeSeed<'de> for Looking<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u64, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Looking<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<u64, E> {
        Ok(digest(0, ()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<u64, E> {
        Ok(digest(1, value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
        Ok(digest(2, value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        Ok(digest(3, value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<u64, E> {
        Ok(digest(4, value.to_bits()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
        Ok(digest(5, value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<u64, A::Error> {
        let mut all = digest(6, ());
        while let Some(item) = access.next_element_seed(Looking(self.0))? {
            all = digest(6, (all, item));
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<u64, A::Error> {
        let mut entries: HashMap<String, u64> = HashMap::new();
        while let Some(key) = access.next_key::<String>()? {
            self.0.path.push(key);
            let value = access.next_value_seed(Looking(self.0))?;
            let key = self.0.path.pop().unwrap_or_default();
            let differs = entries.get(&key).is_some_and(|before| *before != value);
            if differs && self.0.keys.len() < MOST {
                let path = self.0.at(&key);
                if !self.0.keys.contains(&path) {
                    self.0.keys.push(path);
                }
            }
            entries.insert(key, value);
        }
        // Whatever the order of the keys.
        let all = entries.into_iter().map(|entry| digest(7, entry));
        Ok(all.fold(digest(7, ()), u64::wrapping_add))
    }
}

#[cfg(test)]
mod tests {
    use super::keys;

    #[test]
    fn keys_with_different_values_are_found_wherever_they_stand() {
        for (text, found) in [
            (r#"{"a": 1, "b": 1, "a": 1}"#, &[][..]),
            (r#"{"a": 1, "b": 2, "a": 3, "a": 4}"#, &["a"]),
            (
                r#"{"a": {"x": [1, {"y": 2, "y": "2"}], "x": 1}, "b": null, "b": false}"#,
                &["a.x.y", "a.x", "b"],
            ),
            (r#"{"a": {"x": 1, "y": 2}, "a": {"y": 2, "x": 1}}"#, &[]),
            (r#"{"a": [1, 2], "a": [2, 1]}"#, &["a"]),
            (r#"{"a": 1e400, "a": -1e400, "n": 1.5, "n": 1.5}"#, &["a"]),
            (r#"[{"a": 1}, {"a": 2}]"#, &[]),
            ("7", &[]),
        ] {
            assert_eq!(keys(text), found, "{text}");
        }
    }
}
