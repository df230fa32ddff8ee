//! How configurations state rotations: bases, shares of a head, and scalings, in old fields and new.

use super::dense::missing;
use super::fields::{Fields, Range, float, shown};
use crate::error::ModelError;
use crate::rope::{Rope, Scaling};
use serde_json::Value;

/// The rotation of a family that rotates whole heads: `rope_theta` and `rope_scaling`, or their newer home
/// `rope_parameters` (possibly per layer type).
///
/// # Errors
/// When a field is of another kind, a part of the head rotates, or the scaling is of a type that has no formula here.
pub fn rope_from_config(
    fields: &Fields<'_>,
    layer_type: &str,
    old_theta: &str,
    default_theta: f64,
    rotated: u32,
) -> Result<Rope, ModelError> {
    Spelling { layer_type, old_theta, default_theta, head_dim: rotated, partial: None }.rope(fields)
}

/// Where a family's configurations state the rotation of a kind of layer.
#[derive(Clone, Copy, Debug)]
pub struct Spelling<'a> {
    /// The entry of a `rope_parameters` that has one for each type of layer.
    pub layer_type: &'a str,
    /// Where older files state the base.
    pub old_theta: &'a str,
    /// The base where nothing states it.
    pub default_theta: f64,
    /// `E`.
    pub head_dim: u32,
    /// `partial_rotary_factor` where nothing states it; `None`: the family rotates whole heads, and a file that states
    /// another share is refused.
    pub partial: Option<f64>,
}

impl Spelling<'_> {
    /// The rotation.
    ///
    /// A share of a head means its first channels, with exponents over their number; in files that say `proportional`
    /// it means the first pairs of the whole head. `mrope_section` divides the pairs among the positions of time,
    /// height and width: those of a text token are equal, so that any division turns it alike.
    ///
    /// # Errors
    /// When a field is of another kind or out of range, or the scaling is of a type that has no formula here.
    pub fn rope(&self, fields: &Fields<'_>) -> Result<Rope, ModelError> {
        let parameters = object("rope_parameters", fields.get("rope_parameters"))?;
        let nested = parameters.and_then(|p| p.get(self.layer_type)).filter(|p| !p.is_null());
        let nested = object(self.layer_type, nested)?;
        let block = nested.or(parameters);
        let stated = |key: &str| block.and_then(|b| b.get(key)).filter(|v| !v.is_null());
        let theta = match stated("rope_theta") {
            Some(value) => float("rope_theta", value)?,
            None => fields.float(self.old_theta, Some(self.default_theta))?,
        };
        let theta = Range::THETA.check(self.old_theta, theta)?;
        let block = match block {
            Some(block) => Some(block),
            None => object("rope_scaling", fields.get("rope_scaling"))?,
        };
        let kind = block.map_or(Ok("default"), kind)?;

        let key = "partial_rotary_factor";
        let share = match stated(key) {
            Some(value) => Some(float(key, value)?),
            None => fields.opt_float(key)?,
        };
        let share = match (self.partial, share) {
            (None, Some(share)) if share != 1.0 => {
                return Err(ModelError::unsupported(key, "this family rotates whole heads"));
            }
            (None, _) => 1.0,
            (Some(default), share) => share.unwrap_or(default),
        };
        if !(share > 0.0 && share <= 1.0) {
            return Err(ModelError::field(key, "a share above 0 and up to 1", share.to_string()));
        }
        if let Some(section) = block.and_then(|b| b.get("mrope_section")).filter(|v| !v.is_null())
            && !section.as_array().is_some_and(|s| s.len() == 3 && s.iter().all(Value::is_u64))
        {
            return Err(ModelError::field("mrope_section", "three numbers of pairs", shown(section)));
        }

        let channels = f64::from(self.head_dim) * share;
        if kind == "proportional" && self.partial.is_some() {
            return Ok(Rope::proportional(theta, self.head_dim, (channels / 2.0) as u32, Scaling::None));
        }
        let rotated = channels as u32;
        if rotated == 0 || !rotated.is_multiple_of(2) {
            let expected = format!("an even number of the head's {} channels", self.head_dim);
            return Err(ModelError::field(key, expected, share.to_string()));
        }
        let scaling = block.map_or(Ok(Scaling::None), |block| scaling(block, kind, theta))?;
        Ok(Rope::new(theta, rotated, scaling))
    }
}

/// What a block calls its scaling.
fn kind(block: &Value) -> Result<&str, ModelError> {
    let stated = |key: &str| block.get(key).filter(|v| !v.is_null());
    match stated("rope_type").or_else(|| stated("type")) {
        None => Ok("default"),
        Some(value) => value
            .as_str()
            .ok_or_else(|| ModelError::field("rope_type", "a string", crate::error::shown(value))),
    }
}

/// A block of fields, if it is there: anything else under its name is a mistake, not the default.
fn object<'v>(key: &str, value: Option<&'v Value>) -> Result<Option<&'v Value>, ModelError> {
    match value {
        Some(other) if !other.is_object() => {
            Err(ModelError::field(key, "an object", crate::error::shown(other)))
        }
        value => Ok(value),
    }
}

/// One `rope_scaling` block of type `kind`.
fn scaling(block: &Value, kind: &str, theta: f64) -> Result<Scaling, ModelError> {
    let name = |key: &str| format!("rope_scaling.{key}");
    let optional = |key: &str| -> Result<Option<f64>, ModelError> {
        let value = block.get(key).filter(|v| !v.is_null());
        value.map(|value| Range::STRETCH.check(&name(key), float(&name(key), value)?)).transpose()
    };
    let required = |key: &str| optional(key)?.ok_or_else(|| missing(&name(key)));
    match kind {
        "default" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: required("factor")? }),
        "llama3" => {
            let (low, high) = (required("low_freq_factor")?, required("high_freq_factor")?);
            if high <= low {
                let expected = format!("above low_freq_factor ({low})");
                return Err(ModelError::field(name("high_freq_factor"), expected, high.to_string()));
            }
            Ok(Scaling::Llama3 {
                factor: required("factor")?,
                low,
                high,
                original: required("original_max_position_embeddings")?,
            })
        }
        "yarn" => {
            for key in ["mscale", "mscale_all_dim"] {
                if block.get(key).is_some_and(|v| !v.is_null()) {
                    return Err(ModelError::unsupported(
                        name(key),
                        "YaRN with an attention_factor is, or none",
                    ));
                }
            }
            let slow = optional("beta_slow")?.unwrap_or(1.0);
            let fast = optional("beta_fast")?.unwrap_or(32.0);
            if fast < slow {
                let expected = format!("at least beta_slow ({slow})");
                return Err(ModelError::field(name("beta_fast"), expected, fast.to_string()));
            }
            if theta <= 1.0 {
                // Every pair would turn alike, and none could be told to be slow.
                return Err(ModelError::field("rope_theta", "above 1, to scale by YaRN", theta.to_string()));
            }
            let truncate = match block.get("truncate").filter(|v| !v.is_null()) {
                None => true,
                Some(value) => value
                    .as_bool()
                    .ok_or_else(|| ModelError::field(name("truncate"), "true or false", shown(value)))?,
            };
            Ok(Scaling::Yarn {
                factor: required("factor")?,
                beta_fast: fast,
                beta_slow: slow,
                original: required("original_max_position_embeddings")?,
                truncate,
                attention_factor: optional("attention_factor")?,
            })
        }
        other => Err(ModelError::unsupported(
            format!("rope scaling {}", crate::error::quoted(other)),
            "default, linear, llama3 and yarn are",
        )),
    }
}
