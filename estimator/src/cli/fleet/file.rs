//! The file of a fleet, as it is written.

use super::super::{Failure, bytes};
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::{Path, PathBuf};

/// More bytes than this are no such file.
const MAX_FILE: u64 = 16 << 20;

/// Bytes, written as a number or as `48GiB`. Nothing fits in nothing: 0 is a slip, and no row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amount(pub u64);

impl<'d> Deserialize<'d> for Amount {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes, as a number above 0 or a text like \"48GiB\"")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Amount, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(Unexpected::Other("less than none"), &self)),
                }
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Amount, E> {
                if number == 0 {
                    return Err(E::invalid_value(
                        Unexpected::Other("0, which would refuse everything"),
                        &self,
                    ));
                }
                if number > i64::MAX as u64 {
                    return Err(E::custom(bytes::TOO_LARGE));
                }
                Ok(Amount(number))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Amount, E> {
                self.visit_u64(bytes::parse(text).map_err(E::custom)?)
            }
        }
        from.deserialize_any(Reader)
    }
}

/// A number of a geometry, as its flag takes it: none of anything is a slip.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct Count(u32);

impl TryFrom<i64> for Count {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        bytes::count(&number.to_string()).map(Self).map_err(|why| format!("{why}, got {number}"))
    }
}

/// A device's name: it is shown on terminals.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Name(pub String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name.chars().any(char::is_control) {
            return Err(format!("device {name:?}: expected a name without control characters"));
        }
        Ok(Self(name))
    }
}

/// What is wrong with the text, behind the number of its line and before the line.
fn at_line(text: &str, error: &toml::de::Error) -> String {
    const LONGEST: usize = 120;
    let before = error.span().and_then(|span| text.get(..span.start));
    let number = before.map_or_else(|| line_of(text, error), |before| before.matches('\n').count());
    let line = text.lines().nth(number).unwrap_or_default().trim();
    let end = if line.chars().count() > LONGEST { "…" } else { "" };
    let line: String = line.chars().take(LONGEST).collect();
    let colon = if line.is_empty() { "" } else { ": " };
    format!("line {}: {}{colon}{line}{end}", number + 1, error.message())
}

/// The line of an error that does not say where it is: the last of the fewest lines that end in the same one.
fn line_of(text: &str, error: &toml::de::Error) -> usize {
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).chain([text.len()]).collect();
    let same = |end: usize| {
        let part = text.get(..end).unwrap_or_default();
        toml::from_str::<toml::Table>(part)
            .is_err_and(|e| e.span().is_none() && e.message() == error.message())
    };
    ends.partition_point(|end| !same(*end)).min(ends.len() - 1)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceRow {
    pub name: Name,
    pub memory: Option<Amount>,
    pub max_buffer: Option<Amount>,
    pub max_binding: Option<Amount>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelRow {
    pub path: PathBuf,
    pub weights: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GeometryRow {
    pub context: Option<Count>,
    pub slots: Option<Count>,
    pub chunk: Option<Count>,
    pub kv: Option<String>,
}

impl GeometryRow {
    /// Context, slots and chunk, where they are stated.
    pub fn numbers(&self) -> [Option<u32>; 3] {
        [self.context, self.slots, self.chunk].map(|number| number.map(|Count(number)| number))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub device: Vec<DeviceRow>,
    pub model: Vec<ModelRow>,
    #[serde(default)]
    pub geometry: Vec<GeometryRow>,
}

impl File {
    /// Reads it.
    ///
    /// # Errors
    /// [`Failure::File`] when it cannot be read; [`Failure::Usage`] when it is no such file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let read = |error| Failure::file("read", path, error);
        let meta = std::fs::metadata(path).map_err(read)?;
        let wrong = |why: String| Failure::Usage(format!("--fleet {}: {why}", path.display()));
        if !meta.is_file() {
            return Err(wrong("no regular file".into()));
        }
        if meta.len() > MAX_FILE {
            let size = meta.len();
            return Err(wrong(format!(
                "{size} bytes are too many for a list of devices, models and geometries"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        toml::from_str(&text).map_err(|e| wrong(at_line(&text, &e)))
    }
}
