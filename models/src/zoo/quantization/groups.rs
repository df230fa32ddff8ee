//! Groups of modules with a scheme for each: compressed-tensors' own, and modelopt's copy of them.

use super::{Pattern, Quantization, Scheme, expect_object, name, object, strings, whole};
use crate::error::{ModelError, quoted};
use crate::zoo::fields::shown;
use plimsoll_kernels::Format;
use regex::RegexBuilder;
use serde_json::Value;

/// `config_groups`, each a scheme and its targets; `ignore` stays plain. Without groups it is of keys and values alone.
pub(super) fn compressed_tensors(key: &str, block: &Value) -> Result<Quantization, ModelError> {
    let ignored = strings(&format!("{key}.ignore"), block.get("ignore"))?
        .into_iter()
        .map(|text| target(key, text))
        .collect::<Result<_, _>>()?;
    let place = format!("{key}.config_groups");
    let mut groups = object(&place, block.get("config_groups"))?.peekable();
    expect_object(&format!("{key}.kv_cache_scheme"), block.get("kv_cache_scheme"))?;
    expect_dense(key, block)?;
    if groups.peek().is_none() {
        let keys_alone = block.get("kv_cache_scheme").is_some_and(|v| !v.is_null());
        if !keys_alone || block.get("config_groups").is_none_or(Value::is_null) {
            return Err(ModelError::field(place, "groups", "nothing"));
        }
        let note = Some(format!("{key} states no groups of weights: priced plain"));
        return Ok(Quantization { note, ..Quantization::default() });
    }
    let (mut precise, mut rules) = (Vec::new(), Vec::new());
    for (name, group) in groups {
        let place = format!("{key}.config_groups.{name}");
        let scheme = group_scheme(&place, group)?;
        for (place, format) in [(key, block.get("format")), (place.as_str(), group.get("format"))] {
            check_format(place, format, scheme)?;
        }
        let targets = strings(&format!("{place}.targets"), group.get("targets"))?;
        if targets.is_empty() {
            return Err(ModelError::field(format!("{place}.targets"), "what it is of", "nothing"));
        }
        for text in targets {
            let pattern = target(key, text)?;
            // A module's own name goes before its class.
            if matches!(pattern, Pattern::Linear) { &mut rules } else { &mut precise }
                .push((pattern, scheme));
        }
    }
    precise.extend(rules);
    Ok(Quantization { ignored, rules: precise, ..Quantization::default() })
}

/// That no values are left out of what is stored: where some are, the rest has a form of its own.
fn expect_dense(key: &str, block: &Value) -> Result<(), ModelError> {
    let place = format!("{key}.sparsity_config");
    let stated = block.get("sparsity_config");
    expect_object(&place, stated)?;
    match stated.map(|config| name(&place, config, "format")).transpose()?.flatten() {
        None | Some("dense") => Ok(()),
        Some(other) => Err(ModelError::unsupported(format!("{place}.format {}", quoted(other)), "dense is")),
    }
}

/// That the name of how weights are stored, where there is one, is of the same format as the scheme.
fn check_format(place: &str, format: Option<&Value>, scheme: Scheme) -> Result<(), ModelError> {
    let Some(stated) = format.filter(|v| !v.is_null()) else { return Ok(()) };
    let key = format!("{place}.format");
    let Some(name) = stated.as_str() else {
        return Err(ModelError::field(key, "the name of a format", shown(stated)));
    };
    let (known, bits) = match scheme {
        Scheme::Packed(Format::Nvfp4Scaled) => {
            (&["nvfp4-pack-quantized"][..], "4-bit floats in groups of 16")
        }
        _ => (&["float-quantized", "naive-quantized"][..], "8-bit floats"),
    };
    if known.contains(&name) || name == "mixed-precision" {
        return Ok(());
    }
    Err(ModelError::field(key, format!("{}, as its groups of {bits} are", known.join(" or ")), quoted(name)))
}

/// That modelopt's groups, which say again what `quant_algo` says, say the same.
///
/// # Errors
/// [`ModelError::Field`] for bits or a group size that are another format's.
pub(super) fn check_modelopt(key: &str, block: &Value) -> Result<(), ModelError> {
    let algo = block.get("quant_algo").and_then(Value::as_str).unwrap_or_default();
    let nvfp4 = algo.contains("NVFP4");
    for (name, group) in object(&format!("{key}.config_groups"), block.get("config_groups"))? {
        let place = format!("{key}.config_groups.{name}");
        expect_object(&place, Some(group))?;
        strings(&format!("{place}.targets"), group.get("targets"))?;
        expect_object(&format!("{place}.weights"), group.get("weights"))?;
        let Some(weights) = group.get("weights").filter(|v| v.is_object()) else { continue };
        let number = |field: &str| weights.get(field).filter(|v| !v.is_null());
        let of = |field: &str, expected: &str| {
            let got = number(field).map_or_else(|| "nothing".to_owned(), shown);
            Err(ModelError::field(
                format!("{place}.weights.{field}"),
                format!("{expected}, as {algo} has"),
                got,
            ))
        };
        let bits = number("num_bits").map(Value::as_u64);
        let group = number("group_size").map(Value::as_u64);
        let mixed = algo == "MIXED_PRECISION";
        match (bits, group) {
            (None | Some(Some(4)), None | Some(Some(16))) if mixed || nvfp4 => {}
            (None | Some(Some(8)), None) if mixed || !nvfp4 => {}
            (None | Some(Some(4)), _) if mixed || nvfp4 => return of("group_size", "16"),
            (None | Some(Some(8)), _) if mixed || !nvfp4 => return of("group_size", "no groups"),
            _ if mixed => return of("num_bits", "4 or 8"),
            _ => return of("num_bits", if nvfp4 { "4" } else { "8" }),
        }
    }
    Ok(())
}

fn group_scheme(place: &str, group: &Value) -> Result<Scheme, ModelError> {
    expect_object(place, Some(group))?;
    let key = format!("{place}.weights");
    expect_object(&key, group.get("weights"))?;
    let weights = group.get("weights").filter(|v| v.is_object());
    let weights = weights.ok_or_else(|| ModelError::field(key.as_str(), "a scheme", "nothing"))?;
    let text = |field: &str| name(&key, weights, field);
    let number = |field: &str| whole(&key, weights, field);
    match (text("type")?, number("num_bits")?, number("group_size")?, text("strategy")?) {
        (Some("float"), Some(4), Some(16), _) => Ok(Scheme::Packed(Format::Nvfp4Scaled)),
        (Some("float"), Some(8), None, None | Some("tensor" | "channel")) => Ok(Scheme::Packed(Format::Fp8)),
        (kind, bits, group, strategy) => Err(ModelError::unsupported(
            format!(
                "{place} ({} of {} bits, group {group:?}, strategy {})",
                quoted(kind.unwrap_or("unstated")),
                bits.map_or("unstated".to_owned(), |b| b.to_string()),
                quoted(strategy.unwrap_or("unstated")),
            ),
            "4-bit floats in groups of 16 and 8-bit floats by tensor or channel are",
        )),
    }
}

/// `Linear`, a module's path, or `re:` and a regular expression.
fn target(key: &str, text: &str) -> Result<Pattern, ModelError> {
    if text == "Linear" {
        return Ok(Pattern::Linear);
    }
    let Some(pattern) = text.strip_prefix("re:") else { return Ok(Pattern::Glob(text.to_owned())) };
    // Python's `match` looks at the beginning only. The engine takes linear time; the limit bounds its tables.
    let built = RegexBuilder::new(&format!("^(?:{pattern})")).size_limit(1 << 20).build();
    built.map(Pattern::Regex).map_err(|_| {
        ModelError::unsupported(
            format!("{key}: pattern {}", quoted(text)),
            "it has no regular expression here",
        )
    })
}
