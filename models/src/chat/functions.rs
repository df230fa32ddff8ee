//! What chat templates expect beside Jinja itself.

use super::Limited;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// The most text that one list or map may become. Values can share parts, so a small one can be exponentially long
/// to spell, and the engine prices the text only once it is there.
const MAX_SPELLED_BYTES: usize = 1 << 20;

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: Value| {
        if value.kind() == ValueKind::String { Ok(value) } else { spell(&value).map(Value::from) }
    });
}

/// Writes a value as text, nothing escaped.
pub(super) fn format(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None if value.is_undefined() => Ok(()),
        None => out.write_str(&spell(value)?).map_err(Error::from),
    }
}

/// A value's text, within bounds.
fn spell(value: &Value) -> Result<String, Error> {
    let mut out = Limited { bytes: Vec::new(), left: MAX_SPELLED_BYTES };
    let written = write!(out, "{value}");
    written.ok().and_then(|()| String::from_utf8(out.bytes).ok()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of more than {MAX_SPELLED_BYTES} bytes of text"),
        )
    })
}

/// `strftime_now(format)`, with the time of this rendering.
pub(super) fn add_clock(environment: &mut Environment<'static>, now: SystemTime) {
    environment.add_function("strftime_now", move |format: &str| strftime(format, now));
}

/// JSON as Python's `json.dumps` writes it: `, ` and `: ` between, nothing escaped for HTML.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let wrong = |e: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}"));
    let indent: Option<usize> = kwargs.get("indent")?;
    // Keys are sorted and text is not escaped to ASCII whatever these say; they are accepted because templates
    // spell out the defaults.
    let _: (Option<bool>, Option<bool>) = (kwargs.get("ensure_ascii")?, kwargs.get("sort_keys")?);
    kwargs.assert_all_used()?;
    let mut out = Limited { bytes: Vec::new(), left: MAX_SPELLED_BYTES };
    let written = match indent {
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, pretty))
        }
    };
    written.map_err(|e| wrong(&e))?;
    String::from_utf8(out.bytes).map_err(|e| wrong(&e))
}

/// One line, with a space after every comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// C's `strftime` in UTC and English, for the conversions that templates use.
fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
    let day_of_year = before + day + u64::from(leap && month > 2);
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut conversion = chars.next();
        // glibc's "no padding".
        let unpadded = conversion == Some('-');
        if unpadded {
            conversion = chars.next();
        }
        let two = |n: u64| if unpadded { n.to_string() } else { format!("{n:02}") };
        match conversion {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&two(year % 100)),
            Some('m') => out.push_str(&two(month)),
            Some('d') => out.push_str(&two(day)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('H') => out.push_str(&two(hour)),
            Some('I') => out.push_str(&two(hour12)),
            Some('M') => out.push_str(&two(minute)),
            Some('S') => out.push_str(&two(second)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('j') => {
                out.push_str(&if unpadded { day_of_year.to_string() } else { format!("{day_of_year:03}") })
            }
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            other => {
                let what = other.map_or_else(|| "a % at the end".to_owned(), |c| format!("%{c}"));
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: {what} is not supported"),
                ));
            }
        }
    }
    Ok(out)
}

/// Days since 1970-01-01 → year, month, day of the proleptic Gregorian calendar.
///
/// Years are counted from 1 March, so that the leap day is a year's last; 146,097 days are 400 years.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, format: &str) -> String {
        strftime(format, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn dates() {
        assert_eq!(at(0, "%A %d %B %Y %j %H:%M:%S %p %I"), "Thursday 01 January 1970 001 00:00:00 AM 12");
        assert_eq!(at(951_782_400, "%F %j %a"), "2000-02-29 060 Tue");
        assert_eq!(at(1_709_251_199, "%F %T"), "2024-02-29 23:59:59");
        assert_eq!(at(1_709_251_200, "%d %b %y, %-d %e %-m"), "01 Mar 24, 1  1 3");
        assert_eq!(at(4_102_444_799, "%F %j %I %p%%"), "2099-12-31 365 11 PM%");
        assert!(strftime("%Q", UNIX_EPOCH).is_err());
        assert!(strftime("50%", UNIX_EPOCH).is_err());
        // Every day of four centuries is the day after the one before.
        let mut last = civil(0);
        for days in 1..150_000 {
            let next = civil(days);
            let same_month = next == (last.0, last.1, last.2 + 1);
            let new_month = next.2 == 1 && last.2 >= 28 && next.0 * 12 + next.1 == last.0 * 12 + last.1 + 1;
            assert!(same_month || new_month, "{last:?} then {next:?}");
            last = next;
        }
    }
}
