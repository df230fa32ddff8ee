//! Which files a measurement is of: a log is gone on from for these very ones.

use serde::Serialize;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// A file, by what changes when somebody writes it. Hashes of models would take longer than steps.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct File {
    name: String,
    bytes: u64,
    /// Nanoseconds since the Unix epoch.
    modified: u64,
}

/// What is known of a file; of one that is not there its name.
pub fn of(path: &Path) -> File {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let about = std::fs::metadata(path).ok();
    let time = about.as_ref().and_then(|about| about.modified().ok()?.duration_since(UNIX_EPOCH).ok());
    File {
        name,
        bytes: about.map_or(0, |about| about.len()),
        modified: time.and_then(|time| u64::try_from(time.as_nanos()).ok()).unwrap_or(0),
    }
}

/// Those of a model: all of a directory, or the file with the configuration beside it and the other parts of what was split.
/// None of a model that is built in.
pub fn files(path: &Path) -> Vec<File> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let own = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // `model-00001-of-00003.gguf`
    let split = own.rsplit_once("-of-").and_then(|(first, _)| Some(first.rsplit_once('-')?.0.to_owned()));
    let is_of_it = |name: &str| {
        path.is_dir()
            || name == own
            || name == "config.json"
            || split.as_ref().is_some_and(|stem| name.starts_with(stem.as_str()) && name.contains("-of-"))
    };
    if !path.exists() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    let mut files: Vec<File> = paths.map(|path| of(&path)).filter(|file| is_of_it(&file.name)).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_model_is_its_files() {
        let folder = std::env::temp_dir().join(format!("plimsoll-files-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("more")).unwrap();
        for name in ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf", "config.json"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let names = |path: &Path| files(path).into_iter().map(|file| file.name).collect::<Vec<_>>();
        assert_eq!(names(&folder).len(), 4);
        assert_eq!(names(&folder.join("b.gguf")), ["b.gguf", "config.json"]);
        let split = folder.join("a-00002-of-00002.gguf");
        assert_eq!(names(&split), ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "config.json"]);
        assert_eq!(names(&folder.join("none")), [""; 0]);
        // Written again, it is another.
        let before = files(&split);
        assert_eq!(before, files(&split));
        std::fs::write(folder.join("a-00001-of-00002.gguf"), "other, and of another size").unwrap();
        assert_ne!(before, files(&split));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
