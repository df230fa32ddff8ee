//! safetensors files: one, or shards named by an index.
//!
//! The `safetensors` crate parses and validates the header; the lengths around it are checked here first, so that
//! the message can say what was expected and what the file has.

use super::bytes::FileBytes;
use super::json::{self, UniqueMap};
use super::{DType, Place, TensorInfo};
use crate::error::{ModelError, quoted, shown};
use plimsoll_kernels::Format;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// Bytes of the header's own length field.
pub(crate) const LENGTH_FIELD: u64 = 8;
/// The format's own limit.
pub(crate) const MAX_HEADER: u64 = 100_000_000;
/// Indices of the largest published checkpoints stay under 20 MB.
pub(crate) const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Reads the header of the file with index `file` in its checkpoint; tensors come in the order of their data.
pub(super) fn read(bytes: &FileBytes, path: &Path, file: usize) -> Result<Vec<TensorInfo>, ModelError> {
    let corrupt =
        |place: &str, expected: String, got: String| ModelError::corrupt(path, place, expected, got);
    let total = bytes.total();
    let Some(field) = bytes.first_chunk::<8>() else {
        return Err(corrupt("header length", "8 bytes".into(), format!("a file of {total} bytes")));
    };
    let length = u64::from_le_bytes(*field);
    let most = MAX_HEADER.min(total.saturating_sub(LENGTH_FIELD));
    if length > most {
        return Err(corrupt("header length", format!("at most {most} bytes"), length.to_string()));
    }
    let data_start = LENGTH_FIELD + length;
    let header = bytes.get(LENGTH_FIELD as usize..data_start as usize).unwrap_or(&[]);
    let header =
        std::str::from_utf8(header).map_err(|_| corrupt("header", "UTF-8".into(), "other bytes".into()))?;
    // The crate's reader keeps the last of two tensors of one name.
    json::from_str::<UniqueMap<serde::de::IgnoredAny>>(header, path)?;
    let header: Metadata = json::from_str(header, path)?;
    let data_len = header.data_len() as u64;
    if data_start.checked_add(data_len) != Some(total) {
        return Err(corrupt("data", format!("{data_len} bytes"), format!("{}", total - data_start)));
    }
    let mut tensors = Vec::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        let (start, end) = info.data_offsets;
        tensors.push(TensorInfo {
            shape: info.shape.iter().map(|&d| d as u64).collect(),
            dtype: dtype(info.dtype),
            bytes: (end - start) as u64,
            place: Place { file, start: data_start + start as u64 },
            name,
        });
    }
    Ok(tensors)
}

fn dtype(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F32 => DType::Weight(Format::F32),
        Dtype::F16 => DType::Weight(Format::F16),
        Dtype::BF16 => DType::Weight(Format::BF16),
        other => DType::Other(format!("{other:?}").to_lowercase()),
    }
}

/// `model.safetensors.index.json`: which file has which tensor.
#[derive(Debug)]
pub(crate) struct Index {
    /// File name → the tensors it must have, both sorted.
    pub files: BTreeMap<String, Vec<String>>,
    /// Bytes of all tensors, as `metadata.total_size` states them.
    pub total_size: Option<u64>,
    /// What is to be told of it.
    pub note: Option<String>,
}

impl Index {
    /// Parses an index. File names must be plain names: an index cannot reach outside its directory.
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Self, ModelError> {
        #[derive(Deserialize)]
        struct File {
            weight_map: UniqueMap<String>,
            #[serde(default)]
            metadata: serde_json::Value,
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| ModelError::corrupt(path, "index", "UTF-8", "other bytes"))?;
        let index: File = json::from_str(text, path)?;
        // Some writers state it as a float.
        let stated = index.metadata.get("total_size").filter(|size| !size.is_null());
        let total_size = index.metadata.get("total_size").and_then(|size| {
            let float = size.as_f64().filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f));
            size.as_u64().or(float.map(|f| f as u64))
        });
        let note = stated.filter(|_| total_size.is_none()).map(|size| {
            let size = shown(size);
            format!("metadata.total_size of the index is no number of bytes: {size}")
        });
        let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in index.weight_map.0 {
            if !is_plain_name(&file) {
                return Err(ModelError::corrupt(
                    path,
                    format!("weight_map entry {}", quoted(&tensor)),
                    "the plain name of a file beside the index",
                    quoted(&file),
                ));
            }
            files.entry(file).or_default().push(tensor);
        }
        if files.is_empty() {
            return Err(ModelError::corrupt(path, "weight_map", "at least one tensor", "none"));
        }
        Ok(Index { files, total_size, note })
    }
}

/// One normal component and no separator of any platform (so `..\x` and `c:x` are refused on Linux too).
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        && !name.contains(['/', '\\', ':', '\0'])
}
