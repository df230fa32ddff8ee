//! Writing: standard output may close at any time, and that is no fault. All that is written passes here, and with it
//! whatever strangers put into names, keys and messages: what would steer a terminal is replaced.

use super::Failure;
use plimsoll_models::text::{is_printable, printable};
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Text on its way to a terminal, a log or a page that shows one.
struct Shown<'w>(&'w mut String);

impl fmt::Write for Shown<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.chars().map(printable));
        Ok(())
    }
}

fn shown(text: fmt::Arguments<'_>) -> io::Result<String> {
    let mut out = String::new();
    Shown(&mut out).write_fmt(text).map_err(io::Error::other)?;
    Ok(out)
}

/// Writes to standard output.
///
/// # Errors
/// [`Failure::Closed`] when nobody reads it, [`Failure::Standard`] otherwise.
pub fn print(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    let text = shown(text)?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a line to standard error; whoever closed it does not want it.
pub fn note(text: fmt::Arguments<'_>) {
    if let Ok(text) = shown(text) {
        let _ = io::stderr().lock().write_all((text + "\n").as_bytes());
    }
}

/// Writes to standard error without ending the line.
pub fn hint(text: fmt::Arguments<'_>) {
    if let Ok(text) = shown(text) {
        let mut err = io::stderr().lock();
        let _ = err.write_all(text.as_bytes());
        let _ = err.flush();
    }
}

/// Whether `path` can be written: tried before minutes are spent on what would go into it.
///
/// # Errors
/// [`Failure::File`].
pub fn writable(path: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::file("write", path, error);
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
        // Opening to append changes nothing; devices and pipes are left alone.
        Ok(meta) if meta.is_file() => {
            std::fs::OpenOptions::new().append(true).open(path).map(drop).map_err(failed)
        }
        Ok(_) => Ok(()),
        Err(_) => part().tempfile_in(folder(path)).and_then(tempfile::NamedTempFile::close).map_err(failed),
    }
}

/// Whether what is to be written to `path` is none of the files that are read for it: `flag` names the one that says so.
/// Files are told by what they are and not by their names.
///
/// # Errors
/// [`Failure::Usage`].
pub fn spares(flag: &str, path: &Path, inputs: &[PathBuf]) -> Result<(), Failure> {
    match inputs.iter().find(|input| is_same(path, input)) {
        Some(input) => {
            let (path, input) = (path.display(), input.display());
            Err(Failure::Usage(format!(
                "{flag} {path}: that is {input}, which this command reads: name another file"
            )))
        }
        None => Ok(()),
    }
}

/// Whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let of = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        of(one).is_some_and(|one| of(other) == Some(one))
    }
    #[cfg(not(unix))]
    {
        one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
    }
}

/// Writes a file whole or not at all: beside its place first, so that no half of one is left where there is no room.
///
/// # Errors
/// [`Failure::File`].
pub fn file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    writable(path)?;
    let before = std::fs::symlink_metadata(path).ok();
    // A rename would put a file where a link, a device or a pipe was named.
    let in_place = before.as_ref().is_some_and(|before| !before.is_file());
    let written = if in_place { std::fs::write(path, bytes) } else { replace(path, bytes, before) };
    written.map_err(|error| Failure::file("write", path, error))
}

fn replace(path: &Path, bytes: &[u8], before: Option<std::fs::Metadata>) -> io::Result<()> {
    let mut part = match part().tempfile_in(folder(path)) {
        // A folder that takes no new file may hold one that can be written.
        Err(error) if before.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
            return std::fs::write(path, bytes);
        }
        made => made?,
    };
    part.write_all(bytes)?;
    if let Some(before) = before {
        part.as_file().set_permissions(before.permissions())?;
    }
    part.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file beside another, gone again unless it takes its place: with the rights that any new file has.
fn part() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".plimsoll-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

/// Makes a write past the limit on files (`ulimit -f`) an error of that write, where it would end the process: for the
/// beginning of a program.
pub fn full_files_are_errors() {
    #[cfg(unix)]
    // SAFETY: a signal that is ignored runs nothing.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// A count with its noun, which takes an s unless there is one.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Writes one JSON document. What is not printable is spelt by its number, so that it says what it said.
///
/// # Errors
/// As [`print()`].
pub fn document(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    print(format_args!("{}\n", spelt(&text)))
}

/// JSON in which such characters are escaped; they can only stand within strings.
fn spelt(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_printable(c) || c == '\n' {
            out.push(c);
        } else {
            // Strings take whatever is written.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
    }
    out
}

/// The middle of a sorted copy; of an even number the mean of the two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{file, median, shown, spelt};

    #[test]
    fn a_file_is_replaced_and_a_link_is_written_through() {
        let folder = std::env::temp_dir().join(format!("plimsoll-whole-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("out");
        for text in ["one", "the second"] {
            file(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
            let link = folder.join("link");
            std::os::unix::fs::symlink(&path, &link).unwrap();
            file(&link, b"through the link").unwrap();
            assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
            file(&path, b"and again").unwrap();
            assert_eq!(std::fs::read(&link).unwrap(), b"and again");
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
            std::fs::remove_file(&link).unwrap();
        }
        assert!(file(&folder, b"").is_err(), "a folder");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_steers_a_terminal_is_not_written() {
        let text = shown(format_args!("a{}\tb\n", "\u{1b}[31m\u{9b}\u{202e}\r\u{7f}é")).unwrap_or_default();
        assert_eq!(text, "a\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}é\tb\n");
        let value = "\u{1b}\u{9b}\u{202e}é";
        let json = spelt(&serde_json::json!([value]).to_string());
        assert_eq!(json, "[\"\\u001b\\u009b\\u202eé\"]");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap_or_default(), [value]);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
