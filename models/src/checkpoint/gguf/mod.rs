//! A bounded, zero-copy reader of GGUF v2 and v3.
//!
//! Layout (GGUF specification): magic, version, tensor count, key count, the keys with typed values, the tensor
//! descriptions, padding to the alignment, then the tensors' data at offsets relative to there. The reader touches
//! the header only, stores ranges instead of values, and never believes a length, a count or an offset before it
//! is compared with what is left of the file.

mod cursor;
mod metadata;
mod types;

pub use metadata::{Array, Metadata, Value, ValueType};

use super::bytes::FileBytes;
use super::{DType, Place, TensorInfo};
use crate::error::{ModelError, quoted};
use cursor::Cursor;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use types::GgmlType;

const MAGIC: [u8; 4] = *b"GGUF";
/// Where data begins unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Larger alignments than a huge page have no use; a file that asks for one is damaged.
const MAX_ALIGNMENT: u64 = 1 << 21;
/// The specification's (and ggml's) largest number of dimensions.
const MAX_DIMS: u32 = 4;
/// The most metadata keys and tensors believed; real files have dozens and thousands.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;

/// What the header of one GGUF file says.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
}

/// Reads the header of the file with index `file` in its checkpoint.
pub(crate) fn read(bytes: &Arc<FileBytes>, path: &Path, file: usize) -> Result<Header, ModelError> {
    let mut cursor = Cursor::new(bytes, path);
    let (tensor_count, key_count) = read_counts(&mut cursor)?;

    let mut metadata = Metadata::new(Arc::clone(bytes));
    for ordinal in 0..key_count {
        metadata.read_entry(&mut cursor, ordinal)?;
    }
    let alignment = alignment(&metadata)?;

    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for ordinal in 0..tensor_count {
        cursor.subject = format!("tensor {ordinal}");
        let tensor = read_tensor(&mut cursor, alignment, file)?;
        if !names.insert(tensor.name.clone()) {
            return Err(cursor.error("every tensor name once", "the name again"));
        }
        tensors.push(tensor);
    }

    let header_end = cursor.pos() as u64;
    let data_start = header_end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    place_tensors(&mut tensors, data_start, bytes.total(), path)?;
    Ok(Header { metadata, tensors })
}

fn read_counts(cursor: &mut Cursor<'_>) -> Result<(u64, u64), ModelError> {
    let magic = cursor.u32("the magic")?.to_le_bytes();
    if magic != MAGIC {
        return Err(cursor.error("magic \"GGUF\"", format!("bytes {magic:02x?}")));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => {}
        // A small number in the other byte order: the whole file is big-endian.
        v if v & 0xffff == 0 && v != 0 => {
            return Err(cursor
                .error("a little-endian file", format!("a big-endian one (version {})", v.swap_bytes())));
        }
        v => return Err(cursor.error("GGUF version 2 or 3", format!("version {v}"))),
    }
    let tensors = cursor.u64("the tensor count")?;
    let keys = cursor.u64("the metadata count")?;
    // A key has at least a length, a type and a byte; a tensor a length, dimensions, type and offset.
    let left = cursor.left();
    if keys > MAX_KEYS || keys > left / 13 {
        return Err(
            cursor.error(format!("at most {} metadata keys", MAX_KEYS.min(left / 13)), format!("{keys}"))
        );
    }
    if tensors > MAX_TENSORS || tensors > left / 24 {
        return Err(
            cursor.error(format!("at most {} tensors", MAX_TENSORS.min(left / 24)), format!("{tensors}"))
        );
    }
    Ok((tensors, keys))
}

fn alignment(metadata: &Metadata) -> Result<u64, ModelError> {
    const KEY: &str = "general.alignment";
    match metadata.opt_u64(KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(n) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n),
        Some(n) => {
            Err(ModelError::field(KEY, format!("a power of two up to {MAX_ALIGNMENT}"), n.to_string()))
        }
    }
}

/// Reads one description; `place.start` is still relative to the data section.
fn read_tensor(cursor: &mut Cursor<'_>, alignment: u64, file: usize) -> Result<TensorInfo, ModelError> {
    let name = cursor.name("a tensor's name")?;
    cursor.subject = format!("tensor {}", quoted(&name));
    let dims = cursor.u32("the dimension count")?;
    if dims > MAX_DIMS {
        return Err(cursor.error(format!("at most {MAX_DIMS} dimensions"), dims.to_string()));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        shape.push(cursor.u64("a dimension")?);
    }
    let number = cursor.u32("the tensor type")?;
    let offset = cursor.u64("the data offset")?;
    let Some(kind) = GgmlType::from_number(number) else {
        return Err(cursor.error("a known tensor type", format!("type number {number}")));
    };
    if !offset.is_multiple_of(alignment) {
        return Err(
            cursor.error(format!("a data offset that is a multiple of {alignment}"), offset.to_string())
        );
    }
    let bytes = match tensor_bytes(&shape, kind) {
        Some(bytes) => bytes,
        None => {
            return Err(cursor.error(
                format!(
                    "dimensions ≥ 1 whose size fits 63 bits, rows of whole {} blocks of {}",
                    kind.name(),
                    kind.block_len()
                ),
                format!("{shape:?} (innermost first)"),
            ));
        }
    };
    shape.reverse();
    let dtype = match kind {
        GgmlType::Known(format) => DType::Weight(format),
        GgmlType::Named(name, ..) => DType::Other(name.to_owned()),
    };
    Ok(TensorInfo { name, shape, dtype, bytes, place: Place { file, start: offset } })
}

/// Bytes of a tensor with these dimensions, innermost first.
fn tensor_bytes(ne: &[u64], kind: GgmlType) -> Option<u64> {
    let cols = ne.first().copied().unwrap_or(1);
    if ne.contains(&0) || !cols.is_multiple_of(kind.block_len()) {
        return None;
    }
    // The element count must fit too: everything downstream multiplies it.
    let elements = ne.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    let bytes = (elements / kind.block_len()).checked_mul(kind.block_bytes())?;
    (elements.max(bytes) <= i64::MAX as u64).then_some(bytes)
}

/// Makes offsets absolute, and checks that every tensor lies in the file and none over another.
fn place_tensors(
    tensors: &mut [TensorInfo],
    data_start: u64,
    file_len: u64,
    path: &Path,
) -> Result<(), ModelError> {
    for tensor in tensors.iter_mut() {
        let start = data_start.checked_add(tensor.place.start);
        let end = start.and_then(|s| s.checked_add(tensor.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => tensor.place.start = start,
            _ => {
                return Err(ModelError::corrupt(
                    path,
                    format!("tensor {}", quoted(&tensor.name)),
                    format!("{} bytes at offset {} of the data", tensor.bytes, tensor.place.start),
                    format!("{} bytes of data in the file", file_len.saturating_sub(data_start)),
                ));
            }
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.place.start);
    for pair in order.windows(2) {
        let (left, right) = (pair[0], pair[1]);
        if left.place.start + left.bytes > right.place.start {
            return Err(ModelError::corrupt(
                path,
                format!("tensor {}", quoted(&right.name)),
                format!("data after the {} bytes of tensor {}", left.bytes, quoted(&left.name)),
                format!("data {} bytes into it", right.place.start - left.place.start),
            ));
        }
    }
    Ok(())
}
