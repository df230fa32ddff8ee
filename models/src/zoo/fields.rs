//! Reading hyperparameters from config.json: nested in `text_config` or flat, with class defaults, and errors that
//! name the field.

use super::unknown;
use crate::checkpoint::{Asked, Checkpoint, number};
use crate::error::ModelError;
use serde_json::Value;

/// The fields of a text model's configuration.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    root: &'a Value,
    text: Option<&'a Value>,
    /// Which keys somebody asked for; what is left is unknown to the family that reads these.
    asked: Option<&'a Asked>,
}

impl<'a> Fields<'a> {
    /// The configuration of a checkpoint.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let root =
            checkpoint.config().ok_or_else(|| ModelError::field("config.json", "a file", "nothing"))?;
        let text = root.get("text_config").filter(|v| v.is_object());
        Ok(Self { root, text, asked: Some(checkpoint.asked()) })
    }

    /// The same for who is not the family that reads the model: what is asked of these stays unknown to it.
    pub(super) fn aside(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        Ok(Self { asked: None, ..Self::of(checkpoint)? })
    }

    /// The fields of an object.
    pub(super) fn over(root: &'a Value) -> Self {
        Self { root, text: None, asked: None }
    }

    /// Whether the text fields are nested, as multimodal configurations have them.
    pub fn is_nested(&self) -> bool {
        self.text.is_some()
    }

    /// `model_type` of the text model, else of the whole.
    pub fn model_type(&self) -> Option<&'a str> {
        self.get("model_type").and_then(Value::as_str)
    }

    /// Says that a family knows these keys, where it does not ask for them because others settled what they say.
    pub fn knows(&self, keys: &[&str]) {
        for key in keys.iter().filter(|key| unknown::bears(key)) {
            self.asked.inspect(|asked| asked.note(key));
        }
    }

    /// A field, `null` counting as absent; the text model's own before the outer one.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.knows(&[key]);
        let present = |v: &'a Value| v.get(key).filter(|v| !v.is_null());
        self.text.and_then(present).or_else(|| present(self.root))
    }

    /// A field of the whole, not of the text model within it.
    pub fn outer(&self, key: &str) -> Option<&'a Value> {
        self.knows(&[key]);
        self.root.get(key).filter(|v| !v.is_null())
    }

    /// What a field says wherever it is stated: in the text model, then in the whole. The first is what [`Self::get`] gives.
    pub(super) fn everywhere(&self, key: &str) -> impl Iterator<Item = (bool, &'a Value)> + use<'a> {
        self.knows(&[key]);
        let of = |outer: bool, fields: Option<&'a Value>| {
            let value = fields.and_then(|fields| fields.get(key)).filter(|v| !v.is_null());
            value.map(|value| (outer, value))
        };
        [of(false, self.text), of(self.text.is_some(), Some(self.root))].into_iter().flatten()
    }

    /// That a field is stated, be it `null`: what an absent one would mean for memory is not guessed at.
    ///
    /// # Errors
    /// When it is absent.
    pub fn stated(&self, key: &str) -> Result<(), ModelError> {
        self.knows(&[key]);
        if self.entries().any(|(name, _)| name == key) {
            return Ok(());
        }
        Err(ModelError::field(key, "a value, or null for none", "nothing"))
    }

    /// A window where its absence means the one of the family's class, and what is to be told of a `null`, which stands for
    /// none elsewhere and for that one here.
    ///
    /// # Errors
    /// When it is no size.
    pub(super) fn window(&self, default: u32) -> Result<(u32, Option<String>), ModelError> {
        let key = "sliding_window";
        let window = self.size(key, Some(default))?;
        let null = self.get(key).is_none() && self.entries().any(|(name, _)| name == key);
        let note = format!("{key} is null: priced with the {default} of this family's class");
        Ok((window, null.then_some(note)))
    }

    /// Every field of the text model and of the whole.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let of = |value: &'a Value| {
            value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
        };
        self.text.into_iter().flat_map(of).chain(of(self.root))
    }

    /// The first of several spellings that is there.
    pub fn any(&self, keys: &[&str]) -> Option<&'a Value> {
        self.knows(keys);
        keys.iter().find_map(|key| self.get(key))
    }

    /// A size: an integer from 1 to 2³¹ − 1.
    ///
    /// # Errors
    /// When it is missing and has no default, or is something else.
    pub fn size(&self, key: &str, default: Option<u32>) -> Result<u32, ModelError> {
        match (self.get(key), default) {
            (Some(value), _) => size(key, value),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(ModelError::field(key, SIZE, "nothing")),
        }
    }

    /// A finite number.
    ///
    /// # Errors
    /// When it is missing and has no default, or is something else.
    pub fn float(&self, key: &str, default: Option<f64>) -> Result<f64, ModelError> {
        match (self.get(key), default) {
            (Some(value), _) => float(key, value),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(ModelError::field(key, FLOAT, "nothing")),
        }
    }

    /// A finite number that may be absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn opt_float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.get(key).map(|value| float(key, value)).transpose()
    }

    /// A number of a range.
    ///
    /// # Errors
    /// When it is missing and has no default, or is something else.
    pub fn within(&self, key: &str, default: Option<f64>, range: Range) -> Result<f64, ModelError> {
        range.check(key, self.float(key, default)?)
    }

    /// A number of a range that may be absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn opt_within(&self, key: &str, range: Range) -> Result<Option<f64>, ModelError> {
        self.opt_float(key)?.map(|number| range.check(key, number)).transpose()
    }

    /// A switch.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => {
                value.as_bool().ok_or_else(|| ModelError::field(key, "true or false", shown(value)))
            }
        }
    }

    /// Checks that the activation a configuration states, if it does, is one of `known`: another would run, and answer
    /// nonsense.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] when it is another; [`ModelError::Field`] when it is no name.
    pub fn activation(&self, key: &str, known: &[&str]) -> Result<(), ModelError> {
        let Some(value) = self.get(key) else { return Ok(()) };
        match value.as_str() {
            Some(name) if known.contains(&name) => Ok(()),
            Some(name) => Err(ModelError::unsupported(
                format!("{key} {}", crate::error::quoted(name)),
                format!("known here are {}", known.join(", ")),
            )),
            None => Err(ModelError::field(key, "the name of an activation", shown(value))),
        }
    }

    /// A list of strings that may be absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        list.map(Some).ok_or_else(|| ModelError::field(key, "a list of strings", shown(value)))
    }
}

/// Numbers that a kind of setting may have, far beyond what published models state on both sides: what is outside is a
/// mistake that would run, and answer nonsense or nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Range {
    /// What is added inside the root of a norm. Norms know what to do without: published models state 1e-12 to 1e-5.
    pub const EPSILON: Self = Self::new(0.0, 1.0);
    /// The base of a rotation: under 1, later pairs would turn faster. Published: 1e4 to 1e8.
    pub const THETA: Self = Self::new(1.0, 1e12);
    /// What bounds logits or gates. Published: 7 to 50.
    pub const CAP: Self = Self::new(1e-2, 1e6);
    /// A factor of what experts or gates give. Published: 1 to 16.
    pub const FACTOR: Self = Self::new(1e-4, 1e4);
    /// What a rotation is stretched by, a number of turns, a length in tokens. Published: 1 to 262,144.
    pub const STRETCH: Self = Self::new(1e-4, 1e9);
    /// A size under the root that attention divides by. Published: 64 to 256.
    pub const SCALAR: Self = Self::new(1e-2, 1e6);

    const fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// The number, if it is one of the range.
    ///
    /// # Errors
    /// [`ModelError::Field`], which names the range.
    pub fn check(self, key: &str, number: f64) -> Result<f64, ModelError> {
        if number >= self.low && number <= self.high {
            return Ok(number);
        }
        Err(ModelError::field(
            key,
            format!("a number from {} to {}", self.low, self.high),
            number.to_string(),
        ))
    }
}

/// What whoever reads a price should know of an interval, of which every so many layers is a full one, where a list says
/// another thing of the layers.
pub(super) fn interval_note(
    key: &str,
    every: u32,
    list: &str,
    slides: impl Iterator<Item = bool>,
) -> Option<String> {
    let differ = (1u32..).zip(slides).any(|(layer, slides)| slides == layer.is_multiple_of(every));
    differ.then(|| {
        format!("{key} {every} says other layers than {list}, which is kept to: a list beats an interval")
    })
}

const SIZE: &str = "an integer from 1 to 2147483647";
const FLOAT: &str = "a finite number of 32 bits";

/// A size: an integer from 1 to 2³¹ − 1.
///
/// # Errors
/// When it is something else.
pub fn size(key: &str, value: &Value) -> Result<u32, ModelError> {
    let size = value.as_u64().filter(|&n| (1..1 << 31).contains(&n));
    size.map(|n| n as u32).ok_or_else(|| ModelError::field(key, SIZE, shown(value)))
}

/// A number that is finite in the 32 bits of the device, too.
///
/// # Errors
/// When it is something else.
pub fn float(key: &str, value: &Value) -> Result<f64, ModelError> {
    number(value).filter(|n| fits(*n)).ok_or_else(|| ModelError::field(key, FLOAT, shown(value)))
}

fn fits(number: f64) -> bool {
    (number as f32).is_finite()
}

/// A number above 0 that is finite in 32 bits.
///
/// # Errors
/// When it is something else.
pub fn positive(key: &str, number: f64) -> Result<f64, ModelError> {
    if fits(number) && number > 0.0 {
        return Ok(number);
    }
    Err(ModelError::field(key, "a finite number above 0 of 32 bits", number.to_string()))
}

/// A value for an error message.
pub fn shown(value: &Value) -> String {
    // Numbers that JSON has no word for were read as text.
    if let Some(word) = value.as_str().filter(|_| number(value).is_some()) {
        return word.to_owned();
    }
    crate::error::shown(value)
}
