//! Reading hyperparameters from config.json: nested in `text_config` or flat, with class defaults, and errors that
//! name the field.

use crate::checkpoint::{Checkpoint, number};
use crate::error::ModelError;
use serde_json::Value;

/// The fields of a text model's configuration.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    root: &'a Value,
    text: Option<&'a Value>,
}

impl<'a> Fields<'a> {
    /// The configuration of a checkpoint.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let root =
            checkpoint.config().ok_or_else(|| ModelError::field("config.json", "a file", "nothing"))?;
        Ok(Self { root, text: root.get("text_config").filter(|v| v.is_object()) })
    }

    /// Whether the text fields are nested, as multimodal configurations have them.
    pub fn is_nested(&self) -> bool {
        self.text.is_some()
    }

    /// `model_type` of the text model, else of the whole.
    pub fn model_type(&self) -> Option<&'a str> {
        self.get("model_type").and_then(Value::as_str)
    }

    /// A field, `null` counting as absent; the text model's own before the outer one.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        let present = |v: &'a Value| v.get(key).filter(|v| !v.is_null());
        self.text.and_then(present).or_else(|| present(self.root))
    }

    /// The first of several spellings that is there.
    pub fn any(&self, keys: &[&str]) -> Option<&'a Value> {
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
    crate::error::quoted(&value.to_string())
}
