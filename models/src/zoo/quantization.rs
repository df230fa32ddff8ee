//! What a configuration says of packed weights: which modules, in which format.
//!
//! Five dialects: DeepSeek's FP8 in square blocks (which is priced only), MLX's `quantization` block, NVIDIA modelopt's `quantization_config` (or the `hf_quant_config.json`
//! beside it), compressed-tensors' `quantization_config`, and the one of gpt-oss, whose experts alone are MXFP4. What a checkpoint *is* follows from its tensors (see
//! [`super::packed`]); this says what a bare configuration would be, and finds contradictions. Every other method is
//! refused: weights that are packed must not be priced or read as if they were plain.

mod applied;
mod assumed;
mod cache;
mod groups;
mod ignored;
mod pattern;

pub(super) use cache::cache_note;

use self::ignored::Ignored;
use self::pattern::Pattern;
use super::fields::{Fields, shown};
use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, quoted};
use plimsoll_kernels::Format;
use plimsoll_kernels::format::ScaleType;
use serde_json::Value;
use std::collections::BTreeMap;

/// How a module's weights are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// MLX's codes with scale and offset; the scales are in the model's dtype.
    Affine { bits: u8, group: u8 },
    /// Any other packed format.
    Packed(Format),
}

impl Scheme {
    /// Values that share a scale.
    pub(super) fn group(self) -> u32 {
        match self {
            Scheme::Affine { group, .. } => u32::from(group),
            Scheme::Packed(format) => format.block_len() as u32,
        }
    }

    /// The format, with scales in `plain`'s type.
    pub(super) fn format(self, plain: Format) -> Format {
        match self {
            Scheme::Packed(format) => format,
            Scheme::Affine { bits, group } => {
                let scales = match plain {
                    Format::F32 => ScaleType::F32,
                    Format::F16 => ScaleType::F16,
                    _ => ScaleType::BF16,
                };
                Format::Affine { bits, group, scales }
            }
        }
    }

    /// Whether tensors in `found` are what this says.
    fn is(self, found: Format) -> bool {
        match (self, found) {
            (Scheme::Affine { bits, group }, Format::Affine { bits: b, group: g, .. }) => {
                bits == b && group == g
            }
            (Scheme::Packed(format), found) => {
                // MLX's nvfp4 may have a tensor scale, which its configuration does not state.
                format == found || (format == Format::Nvfp4 && found == Format::Nvfp4Scaled)
            }
            _ => false,
        }
    }
}

/// What a configuration says of packed weights.
#[derive(Debug, Default)]
pub(super) struct Quantization {
    /// Where it is said; nothing where it follows from a name.
    key: String,
    /// Modules that stay plain, whatever else is said.
    ignored: Ignored,
    /// Modules named by path; `None` is plain. A name covers everything below it.
    named: BTreeMap<String, Option<Scheme>>,
    /// Rules in order.
    rules: Vec<(Pattern, Scheme)>,
    /// Embeddings are packed as well (MLX).
    embeddings: bool,
    /// Rows that are no whole number of groups stay plain (MLX); elsewhere they are a contradiction.
    ragged_stay_plain: bool,
    /// Why it can be priced and not run, where that is so.
    pub(super) priced: Option<&'static str>,
    /// What whoever reads a price should know of it.
    pub(super) note: Option<String>,
}

/// The kinds of module that rules tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    /// A linear layer.
    Linear,
    /// An embedding table.
    Embedding,
    /// A matrix that its framework holds as a bare parameter, like a router's: converters leave it plain unless a rule
    /// names it.
    Parameter,
}

impl Quantization {
    /// Reads the configuration of a checkpoint.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a method, a mode or a scheme without kernels; [`ModelError::Field`] for one that
    /// contradicts itself.
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        let Ok(fields) = Fields::of(checkpoint) else { return Ok(Self::default()) };
        // The last is what the second was called once.
        let keys = ["quantization", "quantization_config", "compression_config"];
        let mut blocks = keys.into_iter().filter_map(|key| Some((key, fields.get(key)?)));
        if let Some((key, block)) = blocks.next() {
            let mut read = read(key, block)?;
            // MLX writes the same under two names.
            if let Some((other, _)) = blocks.find(|(_, other)| *other != block) {
                let said = format!("{key} and {other} differ: what {key} says is followed");
                read.note = Some(read.note.map_or(said.clone(), |note| format!("{note}; {said}")));
            }
            return Ok(read);
        }
        match checkpoint.hf_quant_config() {
            Some(file) => read("hf_quant_config.json", file.get("quantization").unwrap_or(file)),
            None => Ok(assumed::of(checkpoint, &fields)),
        }
    }

    /// Whether it says nothing of packed weights.
    pub(super) fn is_none(&self) -> bool {
        self.named.is_empty() && self.rules.is_empty()
    }

    /// Whether an entry names the module.
    pub(super) fn names(&self, module: &str) -> bool {
        self.named(module).is_some()
    }

    /// Whether it may say different things of modules whose paths differ in a number only, as those of these two do. A
    /// glob without digits never does: it takes a number by a `*`, and that takes any. A name does that goes on with a
    /// number where the two part.
    pub(super) fn tells_apart(&self, one: &str, other: &str) -> bool {
        let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let stem = one.get(..same).unwrap_or_default();
        let is_number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
        let has_digits = |glob: &str| glob.bytes().any(|b| b.is_ascii_digit());
        let tells = |pattern: &Pattern| match pattern {
            Pattern::Linear => false,
            Pattern::Glob(glob) => glob.split_once('*').map_or_else(
                || glob.strip_prefix(stem).is_some_and(is_number),
                |(begin, _)| (begin.starts_with(stem) || stem.starts_with(begin)) && has_digits(glob),
            ),
            Pattern::Regex(_) => true,
        };
        let (from, to) = (format!("{stem}0"), format!("{stem}:"));
        self.ignored.has_between(&from, &to)
            || self.named.range(from..to).next().is_some()
            || self.ignored.patterns().chain(self.rules.iter().map(|(p, _)| p)).any(tells)
    }

    /// What it says of a module of this path whose rows have `cols` values; `None` is plain.
    ///
    /// # Errors
    /// When the rows are no whole number of groups and the dialect has no rule for that.
    pub(super) fn scheme(&self, module: &str, kind: Module, cols: u32) -> Result<Option<Scheme>, ModelError> {
        match self.stated(module, kind) {
            Some(scheme) if !cols.is_multiple_of(scheme.group()) => {
                if self.ragged_stay_plain {
                    return Ok(None);
                }
                Err(ModelError::field(
                    format!("quantization of {}", quoted(module)),
                    format!("rows of whole groups of {}", scheme.group()),
                    format!("rows of {cols}"),
                ))
            }
            scheme => Ok(scheme),
        }
    }

    /// What it says of a module, whatever its rows are; `None` is plain.
    fn stated(&self, module: &str, kind: Module) -> Option<Scheme> {
        match self.named(module) {
            Some(named) => named,
            None if self.covers(kind) && !self.ignored.matches(module) => {
                self.rules.iter().find(|(pattern, _)| pattern.matches(module)).map(|(_, scheme)| *scheme)
            }
            None => None,
        }
    }

    /// Compares tensors that are packed with what is said of them, also where rows are no whole number of the groups
    /// that are stated: rows that stay plain for that are not packed in others.
    ///
    /// # Errors
    /// When it says another format.
    pub(super) fn check(&self, module: &str, found: Format) -> Result<(), ModelError> {
        let stated = match (self.stated(module, Module::Linear), self.named(module)) {
            (Some(scheme), _) if scheme.is(found) => return Ok(()),
            (Some(scheme), _) => scheme.format(Format::BF16).to_string(),
            (None, Some(None)) => "no packing".to_owned(),
            // A module that is packed though nothing is said of it, or under another name, is what its tensors are.
            (None, _) => return Ok(()),
        };
        let key = format!("quantization of {}", quoted(module));
        Err(ModelError::field(key, format!("{found}, as its tensors are"), stated))
    }

    /// The entry of the module or of one above it.
    fn named(&self, module: &str) -> Option<Option<Scheme>> {
        if self.named.is_empty() {
            return None;
        }
        let parents = module.rmatch_indices('.').map(|(at, _)| &module[..at]);
        std::iter::once(module).chain(parents).find_map(|name| self.named.get(name).copied())
    }

    fn covers(&self, kind: Module) -> bool {
        match kind {
            Module::Linear => true,
            Module::Embedding => self.embeddings,
            Module::Parameter => false,
        }
    }
}

fn read(key: &str, block: &Value) -> Result<Quantization, ModelError> {
    if !block.is_object() {
        return Err(ModelError::field(key, "an object", shown(block)));
    }
    let method = name(key, block, "quant_method")?;
    let algo = name(key, block, "quant_algo")?;
    let said = match (method, algo) {
        (Some("compressed-tensors"), _) => groups::compressed_tensors(key, block),
        (Some("mxfp4"), _) => mxfp4(key, block),
        (Some("fp8"), _) if block.get("weight_block_size").is_some_and(|v| !v.is_null()) => {
            blocks(key, block)
        }
        (Some("modelopt"), _) | (None, Some(_)) => modelopt(key, block),
        // hf_quant_config.json says which tool wrote it beside this block, and nothing of a method in it.
        (None, None) if block.get("quant_algo").is_some() => modelopt(key, block),
        (None, None) if block.get("bits").is_some() || block.get("mode").is_some() => mlx(key, block),
        (stated, _) => Err(ModelError::unsupported(
            format!("{key} ({})", quoted(stated.unwrap_or("of an unstated kind"))),
            "weights in plain f32, f16 or bf16, GGUF's formats, MLX's, gpt-oss's MXFP4, and NVFP4 and FP8 by \
             modelopt and compressed-tensors are",
        )),
    };
    said.map(|said| Quantization { key: key.to_owned(), ..said })
}

/// FP8 with a scale for each block of rows and columns: no kernel reads it, so it is priced in the nearest form that one
/// does, with a scale for each row, and only from a configuration. The head stays plain, as published ones do.
fn blocks(key: &str, block: &Value) -> Result<Quantization, ModelError> {
    let key_of = |name: &str| format!("{key}.{name}");
    let size = block.get("weight_block_size").unwrap_or(&Value::Null);
    let sizes = size.as_array().map(|list| list.iter().map(Value::as_u64).collect::<Vec<_>>());
    if !matches!(sizes.as_deref(), Some([Some(1..=65536), Some(1..=65536)])) {
        return Err(ModelError::field(
            key_of("weight_block_size"),
            "rows and columns of a block",
            shown(size),
        ));
    }
    // Their reader looks for these anywhere in a module's path.
    let plain = strings(&key_of("modules_to_not_convert"), block.get("modules_to_not_convert"))?;
    let plain = plain.into_iter().map(|text| Pattern::Glob(format!("*{text}*")));
    Ok(Quantization {
        ignored: plain.chain([Pattern::Glob("*lm_head".to_owned())]).collect(),
        rules: vec![(Pattern::Linear, Scheme::Packed(Format::Fp8))],
        priced: Some("FP8 with a scale for each block has no kernels: priced with a scale for each row"),
        ..Quantization::default()
    })
}

/// The experts alone, but for what `modules_to_not_convert` names.
fn mxfp4(key: &str, block: &Value) -> Result<Quantization, ModelError> {
    let plain = strings(&format!("{key}.modules_to_not_convert"), block.get("modules_to_not_convert"))?;
    Ok(Quantization {
        ignored: plain.into_iter().map(|text| Pattern::Glob(text.to_owned())).collect(),
        rules: vec![(Pattern::Glob("*.experts".to_owned()), Scheme::Packed(Format::Mxfp4))],
        ..Quantization::default()
    })
}

/// `{group_size, bits, mode}` and entries of single modules by their path.
fn mlx(key: &str, block: &Value) -> Result<Quantization, ModelError> {
    let default = mlx_scheme(key, block)?;
    let mut named = BTreeMap::new();
    for (name, value) in block.as_object().into_iter().flatten() {
        let scheme = match value {
            Value::Bool(false) => None,
            Value::Bool(true) => Some(default),
            // An entry without a mode is affine, whatever the whole is.
            Value::Object(_) => Some(mlx_scheme(&format!("{key}.{name}"), value)?),
            _ => continue,
        };
        named.insert(name.clone(), scheme);
    }
    Ok(Quantization {
        named,
        rules: vec![(Pattern::Linear, default)],
        embeddings: true,
        ragged_stay_plain: true,
        ..Quantization::default()
    })
}

fn mlx_scheme(key: &str, block: &Value) -> Result<Scheme, ModelError> {
    let number = |name: &str, default: u64| whole(key, block, name).map(|stated| stated.unwrap_or(default));
    let mode = name(key, block, "mode")?.unwrap_or("affine");
    let (format, bits, group) = match mode {
        "affine" => {
            let (bits, group) = (number("bits", 4)?, number("group_size", 64)?);
            if !matches!(bits, 1..=6 | 8) || !matches!(group, 32 | 64 | 128) {
                return Err(ModelError::unsupported(
                    format!("{key} of {bits} bits in groups of {group}"),
                    "1 to 6 and 8 bits in groups of 32, 64 and 128 are",
                ));
            }
            return Ok(Scheme::Affine { bits: bits as u8, group: group as u8 });
        }
        "mxfp4" => (Format::Mxfp4, 4, 32),
        "mxfp8" => (Format::Mxfp8, 8, 32),
        "nvfp4" => (Format::Nvfp4, 4, 16),
        other => {
            return Err(ModelError::unsupported(
                format!("{key} of mode {}", quoted(other)),
                "affine, mxfp4, mxfp8 and nvfp4 are",
            ));
        }
    };
    for (name, fixed) in [("bits", bits), ("group_size", group)] {
        let stated = number(name, fixed)?;
        if stated != fixed {
            return Err(ModelError::field(
                format!("{key}.{name}"),
                format!("{fixed}, which {mode} always has"),
                stated.to_string(),
            ));
        }
    }
    Ok(Scheme::Packed(format))
}

/// `quant_algo` for all linear layers, or `quantized_layers` by path; `ignore` (`exclude_modules`) stays plain. Without an
/// algorithm it is weights that stay plain only where it says so: with `null`, or with keys and values alone.
fn modelopt(key: &str, block: &Value) -> Result<Quantization, ModelError> {
    let mut ignored = Vec::new();
    for name in ["ignore", "exclude_modules"] {
        for text in strings(&format!("{key}.{name}"), block.get(name))? {
            ignored.push(Pattern::Glob(text.to_owned()));
        }
    }
    let mut named = BTreeMap::new();
    for (name, layer) in object(&format!("{key}.quantized_layers"), block.get("quantized_layers"))? {
        let place = format!("{key}.quantized_layers.{name}");
        expect_object(&place, Some(layer))?;
        named.insert(name.clone(), modelopt_scheme(&place, layer)?);
    }
    name(key, block, "kv_cache_quant_algo")?;
    let mixed = name(key, block, "quant_algo")? == Some("MIXED_PRECISION");
    let default = if mixed { None } else { modelopt_scheme(key, block)? };
    groups::check_modelopt(key, block)?;
    if mixed && named.is_empty() {
        return Err(ModelError::field(
            format!("{key}.quantized_layers"),
            "a scheme for each module",
            "nothing",
        ));
    }
    let mut note = None;
    if default.is_none() && named.is_empty() {
        let stated = |name: &str| block.get(name).is_some_and(|v| !v.is_null());
        if !stated("kv_cache_quant_algo") && block.get("quant_algo").is_none() {
            let expected = "FP8, NVFP4 or another algorithm, or null for none";
            return Err(ModelError::field(format!("{key}.quant_algo"), expected, "nothing"));
        }
        note = Some(format!("{key} states no algorithm for weights: priced plain"));
    }
    let rules = default.map(|scheme| (Pattern::Linear, scheme)).into_iter().collect();
    let ignored = ignored.into_iter().collect();
    Ok(Quantization { ignored, named, rules, note, ..Quantization::default() })
}

fn modelopt_scheme(key: &str, block: &Value) -> Result<Option<Scheme>, ModelError> {
    let Some(algo) = name(key, block, "quant_algo")? else { return Ok(None) };
    match algo {
        "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" => Ok(Some(Scheme::Packed(Format::Fp8))),
        "NVFP4" | "W4A16_NVFP4" => match whole(key, block, "group_size")?.unwrap_or(16) {
            16 => Ok(Some(Scheme::Packed(Format::Nvfp4Scaled))),
            other => Err(ModelError::field(
                format!("{key}.group_size"),
                "16, which NVFP4 always has",
                other.to_string(),
            )),
        },
        _ => Err(ModelError::unsupported(
            format!("{key}.quant_algo {}", quoted(algo)),
            "FP8, NVFP4, W4A16_NVFP4 and MIXED_PRECISION of them are",
        )),
    }
}

/// A name within a block, `null` counting as absent.
fn name<'a>(key: &str, block: &'a Value, field: &str) -> Result<Option<&'a str>, ModelError> {
    let Some(value) = block.get(field).filter(|v| !v.is_null()) else { return Ok(None) };
    let name = value.as_str();
    name.map(Some).ok_or_else(|| ModelError::field(format!("{key}.{field}"), "a name", shown(value)))
}

/// A whole number within a block, `null` counting as absent.
fn whole(key: &str, block: &Value, field: &str) -> Result<Option<u64>, ModelError> {
    let Some(value) = block.get(field).filter(|v| !v.is_null()) else { return Ok(None) };
    let whole = value.as_u64();
    whole.map(Some).ok_or_else(|| ModelError::field(format!("{key}.{field}"), "a whole number", shown(value)))
}

/// The entries of an object; `null` counts as one without any.
fn object<'a>(
    key: &str,
    value: Option<&'a Value>,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)> + use<'a>, ModelError> {
    let value = value.filter(|v| !v.is_null());
    match value.filter(|v| !v.is_object()) {
        Some(other) => Err(ModelError::field(key, "an object", shown(other))),
        None => Ok(value.and_then(Value::as_object).into_iter().flatten()),
    }
}

/// That a value, where there is one, is an object.
fn expect_object(key: &str, value: Option<&Value>) -> Result<(), ModelError> {
    object(key, value).map(|_| ())
}

fn strings<'a>(key: &str, value: Option<&'a Value>) -> Result<Vec<&'a str>, ModelError> {
    let Some(value) = value.filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
    let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    list.ok_or_else(|| ModelError::field(key, "a list of strings", shown(value)))
}

#[cfg(test)]
mod tests;
