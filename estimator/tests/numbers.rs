//! Every flag that takes a number, at the ends of what it takes and past them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/binary.rs"]
mod binary;

use binary::run;

/// The most bytes that are an amount.
const MOST_BYTES: u64 = i64::MAX as u64;
const MOST_COUNT: u64 = u32::MAX as u64;

/// What a flag takes.
struct Takes {
    flag: &'static str,
    /// Flags without which it changes nothing.
    beside: &'static [&'static str],
    least: u64,
    most: u64,
    /// What its error says that was expected.
    says: &'static str,
}

fn count(flag: &'static str, beside: &'static [&'static str], least: u64, most: u64) -> Takes {
    Takes { flag, beside, least, most, says: "expected a whole number from" }
}

fn amount(flag: &'static str, beside: &'static [&'static str], least: u64) -> Takes {
    Takes { flag, beside, least, most: MOST_BYTES, says: "expected" }
}

fn all() -> Vec<Takes> {
    const LLAMA_CPP: &[&str] = &["--runtime", "llama.cpp"];
    const VLLM: &[&str] = &["--runtime", "vllm"];
    vec![
        count("--context", &[], 1, MOST_COUNT),
        count("--slots", &[], 1, MOST_COUNT),
        count("--chunk", &[], 1, MOST_COUNT),
        count("--snapshots", &[], 0, 1 << 16),
        count("--draft-depth", &[], 0, 64),
        count("--images", &[], 0, MOST_COUNT),
        count("--cell-padding", LLAMA_CPP, 1, MOST_COUNT),
        count("--checkpoints", LLAMA_CPP, 0, MOST_COUNT),
        count("--block-size", VLLM, 1, MOST_COUNT),
        amount("--memory", &[], 1),
        amount("--max-allocation", &[], 1),
        amount("--max-binding", &[], 1),
        amount("--replaces", &[], 1),
        amount("--reserve", &["--device", "h200"], 0),
        amount("--cache-limit", &[], 0),
    ]
}

/// Both ways to write a value.
fn written(takes: &Takes, value: &str) -> [Vec<String>; 2] {
    let config = format!("{}/../tests/data/configs/qwen3.5-27b.json", env!("CARGO_MANIFEST_DIR"));
    let base = std::iter::once(config.as_str()).chain(takes.beside.iter().copied()).map(str::to_owned);
    let base: Vec<String> = base.collect();
    let one = [&base[..], &[format!("{}={value}", takes.flag)]].concat();
    let two = [&base[..], &[takes.flag.to_owned(), value.to_owned()]].concat();
    [one, two]
}

fn ends(args: &[String]) -> (i32, String) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = run(&args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    (output.status.code().unwrap(), said)
}

/// What is a number is answered, with whatever verdict.
#[test]
fn the_ends_of_what_a_flag_takes_are_answered() {
    for takes in all() {
        for value in [takes.least, takes.most] {
            for args in written(&takes, &value.to_string()) {
                let (code, said) = ends(&args);
                assert!(matches!(code, 0 | 3), "{args:?}: {code} {said}");
            }
        }
    }
}

/// What is none is a mistake of the usage, in a sentence with the flag, the value and what was expected.
#[test]
fn what_is_no_number_of_a_flag_is_a_usage_error() {
    for takes in all() {
        let past = u128::from(takes.most) + 1;
        let mut values = vec![past, u128::from(u64::MAX) + 1, u128::MAX];
        values.extend(takes.least.checked_sub(1).map(u128::from));
        if takes.most <= MOST_COUNT {
            values.extend([1 << 32, 1 << 40, u128::from(u64::MAX)]);
        }
        let values = values.iter().map(u128::to_string);
        let junk = ["-1", "-0", "", " ", "junk", "1e3", "0x10", "+5", "_8", "8_", "1.5", "NaN", "٣"]
            .map(str::to_owned);
        for value in values.chain(junk) {
            for args in written(&takes, &value) {
                let (code, said) = ends(&args);
                assert_eq!(code, 2, "{args:?}: {said}");
                assert!(said.contains(takes.flag), "{args:?}: {said}");
                // Of nothing the parser itself says that a value is missing.
                let none = value.is_empty() && said.contains("value is required");
                assert!(none || said.contains(takes.says) && said.contains(&value), "{args:?}: {said}");
            }
        }
    }
}

/// Bits are of two kinds, and a share is a part of one.
#[test]
fn numbers_of_other_ranges_are_held_to_them() {
    let mlx = |most| count("--kv-bits", &["--runtime", "mlx"], 1, most);
    let share = amount("--gpu-memory-utilization", &["--runtime", "vllm", "--memory", "80GB"], 1);
    for value in ["4", "8"] {
        assert_eq!(ends(&written(&mlx(8), value)[0]).0, 0, "{value}");
    }
    for value in ["0", "3", "16", "-1", "4294967295", "4294967296", "", "junk"] {
        for args in written(&mlx(8), value) {
            let (code, said) = ends(&args);
            assert!(code == 2 && said.contains("--kv-bits"), "{args:?}: {code} {said}");
        }
    }
    assert_eq!(ends(&written(&share, "1")[0]).0, 0);
    for value in ["0", "1.0000001", "-1", "-0.5", "NaN", "inf", "", "junk", "1e400"] {
        for args in written(&share, value) {
            let (code, said) = ends(&args);
            assert!(code == 2 && said.contains("--gpu-memory-utilization"), "{args:?}: {code} {said}");
        }
    }
}
