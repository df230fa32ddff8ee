//! GGUF's typed key-value metadata, sliced lazily: parsing stores where values are, reading decodes them.

use super::cursor::Cursor;
use crate::checkpoint::Asked;
use crate::checkpoint::bytes::FileBytes;
use crate::error::{ModelError, quoted};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Arrays inside arrays deeper than this are refused: nothing in the wild nests at all.
const MAX_NESTING: u32 = 4;

/// The thirteen value types of the GGUF specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the specification's
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64]
    };

    /// Bytes of one value, or `None` for strings and arrays.
    const fn width(self) -> Option<u64> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Str | Array => None,
        }
    }

    fn read(cursor: &mut Cursor<'_>, what: &str) -> Result<Self, ModelError> {
        let number = cursor.u32(what)?;
        match Self::ALL.get(number as usize) {
            Some(&kind) => Ok(kind),
            None => Err(cursor.error(format!("{what} (0 to 12)"), format!("{number}"))),
        }
    }

    const fn name(self) -> &'static str {
        use ValueType::*;
        match self {
            U8 => "u8",
            I8 => "i8",
            U16 => "u16",
            I16 => "i16",
            U32 => "u32",
            I32 => "i32",
            F32 => "f32",
            Bool => "bool",
            Str => "string",
            Array => "array",
            U64 => "u64",
            I64 => "i64",
            F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where one value lies in the file, before anything is decoded.
#[derive(Clone, Debug)]
struct Raw {
    kind: ValueType,
    /// For arrays: the element type and count; `range` then covers the elements.
    elements: Option<(ValueType, u64)>,
    range: Range<usize>,
}

impl Raw {
    fn read(cursor: &mut Cursor<'_>, kind: ValueType, depth: u32) -> Result<Self, ModelError> {
        match kind {
            ValueType::Str => Ok(Raw { kind, elements: None, range: cursor.skip_string("a string")? }),
            ValueType::Array => {
                if depth == MAX_NESTING {
                    return Err(cursor.error(format!("at most {MAX_NESTING} nested arrays"), "more"));
                }
                let element = ValueType::read(cursor, "an array's element type")?;
                let len = cursor.u64("an array's length")?;
                let start = cursor.pos();
                match element.width() {
                    Some(width) => {
                        let bytes = len.saturating_mul(width);
                        cursor.skip(bytes, &format!("an array of {len} {element}"))?;
                    }
                    None => {
                        // Each element has at least its own length field, so a believable count ends soon.
                        let least: u64 = if element == ValueType::Str { 8 } else { 12 };
                        if len > cursor.left() / least {
                            return Err(cursor.error(
                                format!("an array of {len} {element}s"),
                                format!("{} bytes to the end of the file", cursor.left()),
                            ));
                        }
                        for _ in 0..len {
                            Raw::read(cursor, element, depth + 1)?;
                        }
                    }
                }
                Ok(Raw { kind, elements: Some((element, len)), range: start..cursor.pos() })
            }
            _ => {
                let range = cursor.skip(kind.width().unwrap_or(0), kind.name())?;
                Ok(Raw { kind, elements: None, range })
            }
        }
    }
}

/// One decoded value. Strings and arrays borrow from the file.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names are the specification's; integers are widened
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Str(&'a str),
    Array(Array<'a>),
}

impl Value<'_> {
    /// As a count: any integer type, not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(v) => Some(v),
            Value::Signed(v) => u64::try_from(v).ok(),
            _ => None,
        }
    }

    /// As an integer of either sign.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::Unsigned(v) => i64::try_from(v).ok(),
            Value::Signed(v) => Some(v),
            _ => None,
        }
    }

    /// As a number; integers count too.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Unsigned(v) => Some(v as f64),
            Value::Signed(v) => Some(v as f64),
            Value::Float(v) => Some(v),
            _ => None,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(v) => write!(f, "{v}"),
            Value::Signed(v) => write!(f, "{v}"),
            Value::Float(v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::Str(v) => f.write_str(&quoted(v)),
            Value::Array(a) => write!(f, "an array of {} {}", a.len(), a.element_type()),
        }
    }
}

/// A one-dimensional array of metadata, decoded element by element.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    key: &'a str,
    kind: ValueType,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// How many elements.
    pub fn len(&self) -> usize {
        // Parsing proved that every element has bytes in the file, so the count fits.
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.kind
    }

    fn wrong(&self, expected: &str) -> ModelError {
        ModelError::field(self.key, expected, format!("an array of {}", self.kind))
    }

    /// The strings, in order.
    ///
    /// # Errors
    /// At once when the elements are not strings; at an element that is not UTF-8.
    pub fn strings(&self) -> Result<impl Iterator<Item = Result<&'a str, ModelError>> + use<'a>, ModelError> {
        let key = self.key;
        let raw = self.raw_strings().ok_or_else(|| self.wrong("an array of strings"))?;
        Ok(raw.enumerate().map(move |(i, bytes)| {
            std::str::from_utf8(bytes)
                .map_err(|_| ModelError::field(format!("{key}[{i}]"), "UTF-8", "other bytes"))
        }))
    }

    fn raw_strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        if self.kind != ValueType::Str {
            return None;
        }
        let mut rest = self.bytes;
        Some(std::iter::from_fn(move || {
            let (len, tail) = rest.split_first_chunk::<8>()?;
            let (text, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
            rest = tail;
            Some(text)
        }))
    }

    fn scalars(&self) -> Option<impl Iterator<Item = Value<'a>> + use<'a>> {
        let width = self.kind.width()? as usize;
        let kind = self.kind;
        Some(self.bytes.chunks_exact(width).filter_map(move |bytes| scalar(kind, bytes)))
    }

    /// The elements as integers, whatever their width.
    ///
    /// # Errors
    /// When they are not integers, or one does not fit.
    pub fn i64s(&self) -> Result<Vec<i64>, ModelError> {
        self.numbers("an array of integers", |v| v.as_i64())
    }

    /// The elements as counts, whatever their width.
    ///
    /// # Errors
    /// When they are not integers, or one is negative.
    pub fn u64s(&self) -> Result<Vec<u64>, ModelError> {
        self.numbers("an array of integers ≥ 0", |v| v.as_u64())
    }

    /// The elements as 32-bit floats; integers count too.
    ///
    /// # Errors
    /// When they are not numbers.
    pub fn f32s(&self) -> Result<Vec<f32>, ModelError> {
        self.numbers("an array of numbers", |v| v.as_f64().map(|v| v as f32))
    }

    /// The elements as booleans.
    ///
    /// # Errors
    /// When they are not booleans.
    pub fn bools(&self) -> Result<Vec<bool>, ModelError> {
        self.numbers("an array of booleans", |v| if let Value::Bool(b) = v { Some(*b) } else { None })
    }

    fn numbers<T>(
        &self,
        expected: &str,
        get: impl Fn(&Value<'_>) -> Option<T>,
    ) -> Result<Vec<T>, ModelError> {
        let scalars = self.scalars().ok_or_else(|| self.wrong(expected))?;
        scalars
            .enumerate()
            .map(|(i, v)| {
                get(&v).ok_or_else(|| {
                    ModelError::field(format!("{}[{i}]", self.key), expected, format!("{} {v}", self.kind))
                })
            })
            .collect()
    }
}

fn scalar<'a>(kind: ValueType, bytes: &[u8]) -> Option<Value<'a>> {
    Some(match kind {
        ValueType::U8 => Value::Unsigned(u64::from(*bytes.first()?)),
        ValueType::I8 => Value::Signed(i64::from(*bytes.first()? as i8)),
        ValueType::U16 => Value::Unsigned(u64::from(u16::from_le_bytes(*bytes.first_chunk()?))),
        ValueType::I16 => Value::Signed(i64::from(i16::from_le_bytes(*bytes.first_chunk()?))),
        ValueType::U32 => Value::Unsigned(u64::from(u32::from_le_bytes(*bytes.first_chunk()?))),
        ValueType::I32 => Value::Signed(i64::from(i32::from_le_bytes(*bytes.first_chunk()?))),
        ValueType::U64 => Value::Unsigned(u64::from_le_bytes(*bytes.first_chunk()?)),
        ValueType::I64 => Value::Signed(i64::from_le_bytes(*bytes.first_chunk()?)),
        ValueType::F32 => Value::Float(f64::from(f32::from_le_bytes(*bytes.first_chunk()?))),
        ValueType::F64 => Value::Float(f64::from_le_bytes(*bytes.first_chunk()?)),
        ValueType::Bool => Value::Bool(*bytes.first()? != 0),
        ValueType::Str | ValueType::Array => return None,
    })
}

/// All metadata of a GGUF file.
///
/// Getters come in pairs: `u64(key)` wants the key to be there, `opt_u64(key)` returns `None` when it is not. Both
/// name the key, what was expected and what is there when the type is wrong. Integers of any width are widened.
#[derive(Clone, Debug)]
pub struct Metadata {
    bytes: Arc<FileBytes>,
    entries: BTreeMap<String, Raw>,
    /// Keys that somebody asked for; what is left of an architecture's is unknown to the family that reads it.
    asked: Arc<Asked>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt:ident -> $ty:ty, $expected:literal, $get:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// When the key is missing or holds something else.
        pub fn $name(&self, key: &str) -> Result<$ty, ModelError> {
            self.$opt(key)?.ok_or_else(|| ModelError::field(key, $expected, "nothing"))
        }

        $(#[$doc])*
        ///
        /// # Errors
        /// When the key is there and holds something else.
        pub fn $opt(&self, key: &str) -> Result<Option<$ty>, ModelError> {
            let Some(value) = self.get(key)? else { return Ok(None) };
            let get: fn(Value<'_>) -> Option<$ty> = $get;
            match get(value) {
                Some(v) => Ok(Some(v)),
                None => Err(ModelError::field(key, $expected, self.describe(key, value))),
            }
        }
    )*};
}

impl Metadata {
    pub(super) fn new(bytes: Arc<FileBytes>) -> Self {
        Metadata { bytes, entries: BTreeMap::new(), asked: Arc::default() }
    }

    /// Reads one key and its value; a second value for a key is an error.
    pub(super) fn read_entry(&mut self, cursor: &mut Cursor<'_>, ordinal: u64) -> Result<(), ModelError> {
        cursor.subject = format!("metadata entry {ordinal}");
        let key = cursor.name("a key")?;
        cursor.subject = format!("metadata key {}", quoted(&key));
        let kind = ValueType::read(cursor, "a value type")?;
        let raw = Raw::read(cursor, kind, 0)?;
        if self.entries.contains_key(&key) {
            return Err(cursor.error("every key once", "the key again"));
        }
        self.entries.insert(key, raw);
        Ok(())
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.asked.note(key);
        self.entries.contains_key(key)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When it is a string that is not UTF-8.
    pub fn get(&self, key: &str) -> Result<Option<Value<'_>>, ModelError> {
        self.asked.note(key);
        self.look(key)
    }

    /// The keys that somebody asked for.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The value of a key, for who is not the family that reads it.
    pub(crate) fn look(&self, key: &str) -> Result<Option<Value<'_>>, ModelError> {
        let Some((key, raw)) = self.entries.get_key_value(key) else { return Ok(None) };
        let bytes = self.bytes.get(raw.range.clone()).unwrap_or(&[]);
        let value = match (raw.kind, raw.elements) {
            (ValueType::Str, _) => {
                let text = std::str::from_utf8(bytes);
                Value::Str(text.map_err(|_| ModelError::field(key, "a string in UTF-8", "other bytes"))?)
            }
            (_, Some((kind, len))) => Value::Array(Array { key, kind, len, bytes }),
            (kind, None) => {
                scalar(kind, bytes).ok_or_else(|| ModelError::field(key, kind.name(), "a value cut short"))?
            }
        };
        Ok(Some(value))
    }

    fn describe(&self, key: &str, value: Value<'_>) -> String {
        match self.entries.get(key) {
            Some(raw) if raw.elements.is_none() => format!("{} {value}", raw.kind),
            _ => value.to_string(),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// When the key is missing or holds something else.
    pub fn str(&self, key: &str) -> Result<&str, ModelError> {
        self.opt_str(key)?.ok_or_else(|| ModelError::field(key, "a string", "nothing"))
    }

    /// A string, if the key is there.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.get(key)? {
            None => Ok(None),
            Some(Value::Str(text)) => Ok(Some(text)),
            Some(value) => Err(ModelError::field(key, "a string", self.describe(key, value))),
        }
    }

    /// An array of any element type.
    ///
    /// # Errors
    /// When the key is missing or holds something else.
    pub fn array(&self, key: &str) -> Result<Array<'_>, ModelError> {
        self.opt_array(key)?.ok_or_else(|| ModelError::field(key, "an array", "nothing"))
    }

    /// An array of any element type, if the key is there.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn opt_array(&self, key: &str) -> Result<Option<Array<'_>>, ModelError> {
        match self.get(key)? {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(value) => Err(ModelError::field(key, "an array", self.describe(key, value))),
        }
    }

    getters! {
        /// A count: an integer of any width that is not negative.
        u64, opt_u64 -> u64, "an integer ≥ 0", |v| v.as_u64();
        /// An integer of any width and sign.
        i64, opt_i64 -> i64, "an integer", |v| v.as_i64();
        /// A number of any width, as a 32-bit float.
        f32, opt_f32 -> f32, "a number", |v| v.as_f64().map(|v| v as f32);
        /// A number of any width, as a 64-bit float.
        f64, opt_f64 -> f64, "a number", |v| v.as_f64();
        /// A boolean.
        bool, opt_bool -> bool, "a boolean", |v| if let Value::Bool(b) = v { Some(b) } else { None };
    }
}
