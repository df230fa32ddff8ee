//! Amounts as people write and read them.

pub use crate::error::{grouped, human};

/// What is said of more bytes than an amount may be.
pub(crate) const TOO_LARGE: &str = "too large: more than 9,223,372,036,854,775,807 bytes (2^63 - 1)";

/// Reads an amount of bytes: `1_000_000`, `48GB` (powers of 1,000), `48GiB` (powers of 1,024), `1.5GiB`. Units in any
/// case. A size that is no whole number of bytes, as `1.3GiB`, is cut to whole ones; a fraction of a byte is no size.
///
/// # Errors
/// What was expected, in a sentence.
pub fn parse(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "expected an amount such as 48GiB, 48GB or 1_000_000";
    let wrong = |why: &str| format!("{why}: {EXPECTED}");
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u128 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1000_u128.pow(2),
        "gb" => 1000_u128.pow(3),
        "tb" => 1000_u128.pow(4),
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => {
            return Err(wrong(&format!(
                "no unit {unit:?} (there are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
            )));
        }
    };
    let number = number.trim();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let (Some(whole), Some(part)) = (digits(whole, usize::MAX), digits(fraction, 18)) else {
        return Err(wrong("not a number"));
    };
    let scale = 10_u128.pow(fraction.chars().filter(|&c| c != '_').count() as u32);
    let bytes = whole.saturating_mul(factor).saturating_add(part * factor / scale);
    if part > 0 && (factor == 1 || bytes == 0) {
        return Err(wrong(if bytes == 0 {
            "less than one byte, and not more than 0"
        } else {
            "a part of a byte"
        }));
    }
    match u64::try_from(bytes) {
        Ok(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
        _ => Err(wrong(TOO_LARGE)),
    }
}

/// Reads at most so many digits, between which there may be `_`. More than any machine's bytes have are a number all the
/// same.
fn digits(text: &str, most: usize) -> Option<u128> {
    let bare: String = text.chars().filter(|&c| c != '_').collect();
    let good = !bare.is_empty()
        && bare.len() <= most
        && bare.bytes().all(|b| b.is_ascii_digit())
        && !text.starts_with('_')
        && !text.ends_with('_');
    good.then(|| bare.parse().unwrap_or(u128::MAX))
}

/// The same, where an amount of nothing is no amount: a limit of 0 bytes would refuse everything.
///
/// # Errors
/// What was expected, in a sentence.
pub fn positive(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err("0 bytes would refuse everything: expected more than 0".into()),
        bytes => Ok(bytes),
    }
}

/// Reads a positive count, `8192` or `8_192`.
///
/// # Errors
/// What was expected, in a sentence.
pub fn count(text: &str) -> Result<u32, String> {
    within(text, 1, u32::MAX)
}

/// Reads a count that may be none, up to `MOST`.
///
/// # Errors
/// What was expected, in a sentence.
pub fn at_most<const MOST: u32>(text: &str) -> Result<u32, String> {
    within(text, 0, MOST)
}

fn within(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = digits(text.trim(), usize::MAX).and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn amounts() {
        let good = [
            ("0", 0),
            ("1_000_000", 1_000_000),
            ("48GiB", 48 << 30),
            ("48GB", 48_000_000_000),
            ("48 gib", 48 << 30),
            ("1.5GiB", 3 << 29),
            ("0.1kB", 100),
            ("12b", 12),
            ("1.0", 1),
            ("1.3GiB", 1_395_864_371),
            ("3MiB", 3 << 20),
            ("2TB", 2_000_000_000_000),
        ];
        for (text, bytes) in good {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "GiB",
            "48G",
            "48Gb/s",
            "-1",
            "1e9",
            "0x10",
            "1..5GB",
            "_1",
            "1_",
            "1.5",
            "1.5B",
            "0.0001kB",
            "9999999TiB",
            "ten",
            "１",
        ] {
            assert!(parse(text).unwrap_err().contains("48GiB"), "{text}");
            assert!(positive(text).unwrap_err().contains("48GiB"), "{text}");
        }
        // More than there can be is a number all the same.
        for text in [
            "18446744073709551616",
            "9223372036854775808",
            "9_999_999TiB",
            &"9".repeat(60),
            &format!("{}TB", "9".repeat(38)),
        ] {
            assert!(parse(text).unwrap_err().contains("9,223,372,036,854,775,807 bytes"), "{text}");
        }
        assert_eq!(parse("9223372036854775807"), Ok(i64::MAX as u64));
        assert_eq!(positive("1"), Ok(1));
        for nothing in ["0", "0GiB", "0.0001kB"] {
            assert!(positive(nothing).unwrap_err().contains("more than 0"), "{nothing}");
        }
    }

    #[test]
    fn counts() {
        assert_eq!(count("8_192"), Ok(8192));
        for text in ["0", "-1", "4294967296", "1.5", "", "many", "+5", "_8", "8_", "0x10", "１"] {
            assert!(count(text).unwrap_err().contains("from 1 to 4294967295"), "{text}");
        }
        assert_eq!((at_most::<64>("0"), at_most::<64>("64")), (Ok(0), Ok(64)));
        for text in ["65", "-1", "", "many", "+5", "4294967296", &"9".repeat(60)] {
            assert!(at_most::<64>(text).unwrap_err().contains("from 0 to 64"), "{text}");
        }
    }

    #[test]
    fn people_read_groups_and_units() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(3 << 29), "1.50 GiB");
    }
}
