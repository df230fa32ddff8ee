//! Which files make up a checkpoint, and opening them.

use super::bytes::FileBytes;
use super::json::{self, MAX_CONFIG_BYTES};
use super::safetensors::{Index, MAX_INDEX_BYTES};
use super::{Checkpoint, Listed, SideFiles, Source, gguf as gguf_reader, safetensors};
use crate::error::{ModelError, quoted};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// More parts than this are a damaged number.
const MAX_PARTS: u64 = 1000;

pub(super) fn open(path: &Path) -> Result<Checkpoint, ModelError> {
    let mut checkpoint = open_any(path)?;
    checkpoint.read.local = headers(&checkpoint).saturating_add(configurations(&checkpoint));
    Ok(checkpoint)
}

/// Bytes before the data of each file.
fn headers(checkpoint: &Checkpoint) -> u64 {
    let mut starts = vec![None; checkpoint.files.len()];
    for tensor in &checkpoint.tensors {
        if let Some(start) = starts.get_mut(tensor.place.file) {
            *start = Some(start.map_or(tensor.place.start, |s: u64| s.min(tensor.place.start)));
        }
    }
    starts.into_iter().flatten().sum()
}

/// Bytes of the JSON files that were read.
fn configurations(checkpoint: &Checkpoint) -> u64 {
    let (path, size) =
        (checkpoint.path(), |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len()));
    let SideFiles::Directory(folder) = &checkpoint.side else { return 0 };
    let named = path.extension() == Some(OsStr::new("json")) && !path.ends_with(CONFIG);
    let own = if named { size(path) } else { 0 };
    let beside = [
        (CONFIG, checkpoint.config.is_some() && (!named || checkpoint.listed.is_some())),
        (INDEX, !named && checkpoint.stated_bytes.is_some()),
        ("generation_config.json", checkpoint.generation_config.is_some()),
        ("hf_quant_config.json", checkpoint.hf_quant_config.is_some()),
        ("preprocessor_config.json", checkpoint.preprocessor_config.is_some()),
    ];
    own + beside.into_iter().filter(|(_, read)| *read).map(|(name, _)| size(&folder.join(name))).sum::<u64>()
}

fn open_any(path: &Path) -> Result<Checkpoint, ModelError> {
    let meta = std::fs::metadata(path).map_err(|e| ModelError::io("open", path, e))?;
    if meta.is_dir() {
        return directory(path);
    }
    if !meta.is_file() {
        return Err(ModelError::corrupt(
            path,
            "file type",
            "a regular file or a directory",
            "something else",
        ));
    }
    match path.extension().and_then(OsStr::to_str) {
        Some("gguf") => open_gguf(path),
        Some("safetensors") => {
            let config = match path.parent() {
                Some(parent) if parent.join(CONFIG).is_file() => Some(read_config(&parent.join(CONFIG))?),
                _ => None,
            };
            let mut checkpoint = Checkpoint::new(Source::Safetensors, stem(path), path, config);
            add_file(&mut checkpoint, path)?;
            add_side_files(&mut checkpoint)?;
            Ok(checkpoint)
        }
        Some("json") if file_name(path).ends_with(".safetensors.index.json") => {
            let config = path.with_file_name(CONFIG);
            if !config.is_file() {
                return Err(ModelError::corrupt(path, "index", "config.json beside it", "none"));
            }
            let name =
                directory_name(path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")));
            let mut checkpoint = Checkpoint::new(Source::Config, name, path, Some(read_config(&config)?));
            list(&mut checkpoint, Index::parse(&json::read_bytes(path, MAX_INDEX_BYTES)?, path)?);
            checkpoint.notes.push(without_shards(&file_name(path)));
            add_side_files(&mut checkpoint)?;
            Ok(checkpoint)
        }
        Some("json") => {
            let config = read_config(path)?;
            let mut checkpoint = Checkpoint::new(Source::Config, config_name(path), path, Some(config));
            add_side_files(&mut checkpoint)?;
            Ok(checkpoint)
        }
        // Content-addressed caches store weights without an extension.
        _ if starts_like_gguf(path)? => open_gguf(path),
        _ => Err(ModelError::corrupt(
            path,
            "file name",
            ".gguf, .safetensors or config.json",
            quoted(&file_name(path)),
        )),
    }
}

fn directory(path: &Path) -> Result<Checkpoint, ModelError> {
    let config = path.join(CONFIG);
    let (single, index) = (path.join(SINGLE), path.join(INDEX));
    let has_weights = single.is_file() || index.is_file();
    let mut notes = Vec::new();
    if !has_weights {
        let ggufs = list_ggufs(path)?;
        notes.extend(unread(path)?);
        match ggufs.as_slice() {
            [one] => return open_gguf(one),
            [] => {}
            many => {
                let names: Vec<String> = many.iter().take(5).map(|p| file_name(p)).collect();
                return Err(ModelError::corrupt(
                    path,
                    "directory",
                    "exactly one model (name the .gguf file)",
                    format!("{}: {}", many.len(), names.join(", ")),
                ));
            }
        }
    }
    if !config.is_file() {
        let got = match std::fs::symlink_metadata(&config) {
            Ok(_) => format!("a {CONFIG} that is no regular file"),
            Err(_) if notes.is_empty() => "neither".to_owned(),
            Err(_) => "weights, and nothing that says what they are or how they belong together".to_owned(),
        };
        return Err(ModelError::corrupt(path, "directory", "config.json or one .gguf file", got));
    }
    if !single.is_file() && index.is_file() {
        // No shard at all: names come from here, the rest from the configuration.
        let parsed = Index::parse(&json::read_bytes(&index, MAX_INDEX_BYTES)?, &index)?;
        if !has_safetensors(path)? {
            let mut checkpoint =
                Checkpoint::new(Source::Config, directory_name(path), path, Some(read_config(&config)?));
            list(&mut checkpoint, parsed);
            checkpoint.notes.push(without_shards(INDEX));
            add_side_files(&mut checkpoint)?;
            return Ok(checkpoint);
        }
    }
    let source = if has_weights { Source::Safetensors } else { Source::Config };
    let mut checkpoint = Checkpoint::new(source, directory_name(path), path, Some(read_config(&config)?));
    checkpoint.notes.extend(notes);
    if single.is_file() {
        add_file(&mut checkpoint, &single)?;
    } else if index.is_file() {
        let parsed = Index::parse(&json::read_bytes(&index, MAX_INDEX_BYTES)?, &index)?;
        add_indexed(&mut checkpoint, parsed, &index, |name| {
            let shard = path.join(name);
            if !shard.is_file() {
                return Err(ModelError::corrupt(
                    &index,
                    "weight_map",
                    format!("a file {}", quoted(name)),
                    "no such file",
                ));
            }
            Ok((shard.clone(), Arc::new(FileBytes::map(&shard)?)))
        })?;
    }
    add_side_files(&mut checkpoint)?;
    Ok(checkpoint)
}

/// That an index is all there is of the weights.
fn without_shards(index: &str) -> String {
    format!("of the weights only {} was read: priced from config.json and the names in it", quoted(index))
}

/// That files of weights lie in a directory which are not read, because nothing says how they belong together.
fn unread(path: &Path) -> Result<Option<String>, ModelError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| ModelError::io("list", path, e))? {
        let file = entry.map_err(|e| ModelError::io("list", path, e))?.path();
        let kind = file.extension().and_then(OsStr::to_str);
        let torch = kind == Some("bin") && stem(&file).contains("model");
        let part = kind == Some("gguf") && part_number(&file).is_some_and(|n| n != 1);
        if part || torch || kind == Some("safetensors") {
            names.push(file_name(&file));
        }
    }
    names.sort();
    let shown = names.iter().take(3).map(|n| quoted(n)).collect::<Vec<_>>().join(", ");
    let more = if names.len() > 3 { ", …" } else { "" };
    let count = names.len();
    Ok((count > 0).then(|| {
        format!("weights in {shown}{more} ({count} in all) were not read, since no index and no first part tells of them: priced from config.json alone")
    }))
}

fn add_file(checkpoint: &mut Checkpoint, path: &Path) -> Result<(), ModelError> {
    let bytes = Arc::new(FileBytes::map(path)?);
    let tensors = safetensors::read(&bytes, path, checkpoint.files.len())?;
    checkpoint.files.push(bytes);
    checkpoint.add_tensors(tensors)
}

/// Keeps the names of an index none of whose shards is here: enough to price with the configuration.
fn list(checkpoint: &mut Checkpoint, index: Index) {
    checkpoint.stated_bytes = index.total_size;
    checkpoint.notes.extend(index.note);
    checkpoint.listed = Some(Arc::new(Listed::of(index.files.into_values().flatten())));
}

/// Adds the tensors an index names, each from the file it names. Tensors the index does not name are left out.
fn add_indexed(
    checkpoint: &mut Checkpoint,
    index: Index,
    index_path: &Path,
    mut load: impl FnMut(&str) -> Result<(PathBuf, Arc<FileBytes>), ModelError>,
) -> Result<(), ModelError> {
    checkpoint.stated_bytes = index.total_size;
    checkpoint.notes.extend(index.note);
    for (name, wanted) in index.files {
        let (path, bytes) = load(&name)?;
        let mut tensors = safetensors::read(&bytes, &path, checkpoint.files.len())?;
        checkpoint.files.push(bytes);
        let missing = {
            let present: std::collections::HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
            wanted.iter().find(|w| !present.contains(w.as_str())).cloned()
        };
        if let Some(missing) = missing {
            return Err(ModelError::corrupt(
                index_path,
                "weight_map",
                format!("tensor {} in {}", quoted(&missing), quoted(&name)),
                "a file without it",
            ));
        }
        // `wanted` is sorted: the index is a sorted map.
        tensors.retain(|t| wanted.binary_search(&t.name).is_ok());
        checkpoint.add_tensors(tensors)?;
    }
    Ok(())
}

pub(crate) fn safetensors_in_memory(
    index: Option<&[u8]>,
    files: Vec<(String, Arc<FileBytes>)>,
    config: Option<&[u8]>,
    name: &str,
) -> Result<Checkpoint, ModelError> {
    let path = Path::new(name);
    let config = config.map(|c| config_object(c, path)).transpose()?;
    let mut checkpoint = Checkpoint::in_memory(Source::Safetensors, name, config);
    match index {
        Some(index) => {
            let index = Index::parse(index, path)?;
            let mut files: HashMap<String, Arc<FileBytes>> = files.into_iter().collect();
            add_indexed(&mut checkpoint, index, path, |name| match files.remove(name) {
                Some(bytes) => Ok((PathBuf::from(name), bytes)),
                None => Err(ModelError::corrupt(
                    path,
                    "weight_map",
                    format!("a file {}", quoted(name)),
                    "no such file",
                )),
            })?;
        }
        None => {
            for (name, bytes) in files {
                let tensors = safetensors::read(&bytes, Path::new(&name), checkpoint.files.len())?;
                checkpoint.files.push(bytes);
                checkpoint.add_tensors(tensors)?;
            }
        }
    }
    Ok(checkpoint)
}

fn open_gguf(path: &Path) -> Result<Checkpoint, ModelError> {
    let named = Arc::new(FileBytes::map(path)?);
    let header = gguf_reader::read(&named, path, 0)?;
    let mut parts = Vec::new();
    for part in part_names(&file_name(path), path, &header.metadata)? {
        let part = path.with_file_name(part);
        let bytes = if part == path { Arc::clone(&named) } else { Arc::new(FileBytes::map(&part)?) };
        parts.push((part, bytes));
    }
    let whole = parts.len() == 1;
    let mut checkpoint = gguf(parts)?;
    if whole && part_number(path).is_some() {
        let name = quoted(&file_name(path));
        checkpoint
            .notes
            .push(format!("{name} is named as a part of several and says nothing of parts: read as a whole"));
    }
    Ok(checkpoint)
}

/// The file names of all parts, `name-00001-of-00003.gguf` and so on, whichever of them `name` is; only `name` itself
/// where the file is whole.
pub(crate) fn part_names(
    name: &str,
    path: &Path,
    metadata: &gguf_reader::Metadata,
) -> Result<Vec<String>, ModelError> {
    let count = metadata.opt_u64("split.count")?.unwrap_or(0);
    if count <= 1 {
        return Ok(vec![name.to_owned()]);
    }
    if count > MAX_PARTS {
        return Err(ModelError::field("split.count", format!("at most {MAX_PARTS}"), count.to_string()));
    }
    let number = metadata.opt_u64("split.no")?.unwrap_or(0).saturating_add(1);
    let suffix = format!("-{number:05}-of-{count:05}.gguf");
    let Some(base) = name.strip_suffix(&suffix) else {
        let expected = format!("part {number}, named *{suffix}");
        return Err(ModelError::corrupt(path, "file name", expected, quoted(name)));
    };
    Ok((1..=count).map(|n| format!("{base}-{n:05}-of-{count:05}.gguf")).collect())
}

/// A checkpoint of the parts of one GGUF, in order; metadata is the first part's.
pub(crate) fn gguf(parts: Vec<(PathBuf, Arc<FileBytes>)>) -> Result<Checkpoint, ModelError> {
    let expected = parts.len() as u64;
    let mut checkpoint: Option<Checkpoint> = None;
    for (number, (path, bytes)) in parts.into_iter().enumerate() {
        let header = gguf_reader::read(&bytes, &path, number)?;
        let (no, count) =
            (header.metadata.opt_u64("split.no")?, header.metadata.opt_u64("split.count")?.unwrap_or(0));
        if count.max(1) != expected || (count > 1 && no != Some(number as u64)) {
            return Err(ModelError::corrupt(
                &path,
                "split.no, split.count",
                format!("part {number} of {expected}"),
                no.map_or_else(|| "no part".to_owned(), |no| format!("part {no} of {count}")),
            ));
        }
        let target = match &mut checkpoint {
            Some(checkpoint) => checkpoint,
            None => {
                let name = match header.metadata.opt_str("general.name")? {
                    Some(name) if !name.trim().is_empty() => name.to_owned(),
                    _ => stem(&path),
                };
                let new = checkpoint.insert(Checkpoint::new(Source::Gguf, name, &path, None));
                new.metadata = Some(header.metadata);
                new
            }
        };
        target.files.push(bytes);
        target.add_tensors(header.tensors)?;
    }
    let checkpoint =
        checkpoint.ok_or_else(|| ModelError::corrupt(Path::new(""), "split", "at least one part", "none"))?;
    let total = match &checkpoint.metadata {
        Some(metadata) => metadata.opt_u64("split.tensors.count")?,
        None => None,
    };
    match total {
        Some(n) if n != checkpoint.tensors.len() as u64 => {
            Err(ModelError::field("split.tensors.count", checkpoint.tensors.len().to_string(), n.to_string()))
        }
        _ => Ok(checkpoint),
    }
}

fn starts_like_gguf(path: &Path) -> Result<bool, ModelError> {
    let mut magic = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| ModelError::io("open", path, e))?;
    file.take(4).read_to_end(&mut magic).map_err(|e| ModelError::io("read", path, e))?;
    Ok(magic == b"GGUF")
}

/// Whether a directory has any safetensors file: then its index must be right about all of them.
fn has_safetensors(path: &Path) -> Result<bool, ModelError> {
    for entry in std::fs::read_dir(path).map_err(|e| ModelError::io("list", path, e))? {
        let file = entry.map_err(|e| ModelError::io("list", path, e))?.path();
        if file.extension() == Some(OsStr::new("safetensors")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The GGUF files of a directory; of a split one only the first part.
fn list_ggufs(path: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| ModelError::io("list", path, e))? {
        let file = entry.map_err(|e| ModelError::io("list", path, e))?.path();
        let is_gguf = file.extension() == Some(OsStr::new("gguf")) && file.is_file();
        if is_gguf && part_number(&file).is_none_or(|n| n == 1) {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

/// 2 for `name-00002-of-00003.gguf`.
pub(crate) fn part_number(path: &Path) -> Option<u64> {
    let stem = stem(path);
    let (base, count) = stem.rsplit_once("-of-")?;
    let (_, number) = base.rsplit_once('-')?;
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    if digits(count) && digits(number) { number.parse().ok() } else { None }
}

fn read_config(path: &Path) -> Result<Config, ModelError> {
    config_object(&json::read_bytes(path, MAX_CONFIG_BYTES)?, path)
}

/// A configuration, and what is to be told of how it is written.
#[derive(Debug)]
pub(crate) struct Config {
    pub value: Value,
    pub note: Option<String>,
}

/// What is to be told of keys that stand twice.
fn repeated_note(keys: &[String]) -> Option<String> {
    const NAMED: usize = 5;
    let named: Vec<String> = keys.iter().take(NAMED).map(|key| quoted(key)).collect();
    let more = if keys.len() > NAMED { " and others" } else { "" };
    let named = named.join(", ");
    let note =
        format!("{CONFIG} says two things of {named}{more}: of a key that stands twice the last counts");
    (!keys.is_empty()).then_some(note)
}

pub(crate) fn config_object(bytes: &[u8], path: &Path) -> Result<Config, ModelError> {
    let (value, repeated) = json::parse_with_repeated(bytes, path)?;
    if value.is_object() {
        Ok(Config { value, note: repeated_note(&repeated) })
    } else {
        Err(ModelError::corrupt(path, "top level", "an object", "another value"))
    }
}

pub(super) fn add_side_files(checkpoint: &mut Checkpoint) -> Result<(), ModelError> {
    checkpoint.generation_config = checkpoint.side.json("generation_config.json", MAX_CONFIG_BYTES)?;
    // A configuration under another name may lie beside those of other models.
    let path = checkpoint.path();
    if checkpoint.source() != Source::Config
        || checkpoint.listed.is_some()
        // Whoever put files beside it knows which are its own.
        || matches!(checkpoint.side, SideFiles::Memory(_))
        || path.is_dir()
        || path.ends_with(CONFIG)
    {
        checkpoint.hf_quant_config = checkpoint.side.json("hf_quant_config.json", MAX_CONFIG_BYTES)?;
        checkpoint.preprocessor_config =
            checkpoint.side.json("preprocessor_config.json", MAX_CONFIG_BYTES)?;
    }
    Ok(())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn directory_name(path: &Path) -> String {
    match path.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        // `.` and `..` have no name of their own.
        None => path.canonicalize().ok().map(|p| file_name(&p)).unwrap_or_default(),
    }
}

/// A bare `config.json` says nothing; the directory it lies in usually does.
fn config_name(path: &Path) -> String {
    match path.parent() {
        Some(parent) if stem(path) == "config" => {
            directory_name(if parent == Path::new("") { Path::new(".") } else { parent })
        }
        _ => stem(path),
    }
}
