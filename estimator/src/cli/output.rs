//! Writing: standard output may close at any time, and that is no fault.

use super::Failure;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// Writes to standard output.
///
/// # Errors
/// [`Failure::Closed`] when nobody reads it, [`Failure::Standard`] otherwise.
pub fn print(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    Ok(out.flush()?)
}

/// Writes a line to standard error; whoever closed it does not want it.
pub fn note(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes to standard error without ending the line.
pub fn hint(text: fmt::Arguments<'_>) {
    let mut err = io::stderr().lock();
    let _ = err.write_fmt(text);
    let _ = err.flush();
}

/// Whether `path` can be written: tried before minutes are spent on what would go into it.
///
/// # Errors
/// [`Failure::File`].
pub fn writable(path: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::file("write", path, error);
    let open = |path: &Path, options: &mut std::fs::OpenOptions| options.open(path).map(drop).map_err(failed);
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
        // Opening to append changes nothing; devices and pipes are left alone.
        Ok(meta) if meta.is_file() => open(path, std::fs::OpenOptions::new().append(true)),
        Ok(_) => Ok(()),
        Err(_) => {
            let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let trial = folder.join(format!(".plimsoll-{}", std::process::id()));
            open(&trial, std::fs::OpenOptions::new().write(true).create_new(true))?;
            std::fs::remove_file(&trial).map_err(failed)
        }
    }
}

/// A count with its noun, which takes an s unless there is one.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Writes one JSON document.
///
/// # Errors
/// As [`print()`].
pub fn document(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    print(format_args!("{text}\n"))
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
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
