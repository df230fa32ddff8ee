//! What the row-wise kernels share: sums over the lanes of a workgroup, and text repeated a fixed number of times.

use crate::{Reduce, Unit, step};

/// The WGSL of `Lanes`, the builtins an entry point takes, and of the reductions over them. Needs the constant `WG`.
pub(crate) fn entry(reduce: Reduce) -> &'static str {
    match reduce {
        Reduce::Subgroup => include_str!("lanes_subgroup.wgsl"),
        Reduce::Shared => include_str!("lanes_shared.wgsl"),
    }
}

/// The WGSL of `Lanes` where a workgroup is the lanes of one subgroup. Needs the constant `HALVES`.
pub(crate) const ALONE: &str = include_str!("lanes_alone.wgsl");

/// The WGSL of `key_of`, which orders floats by their bits, and of its inverses `bits_of` and `finite`.
pub(crate) const FLOAT_KEY: &str = include_str!("float_key.wgsl");

/// How names of variants call a reduction.
pub(crate) fn reduce_name(reduce: Reduce) -> &'static str {
    match reduce {
        Reduce::Subgroup => "subgroup",
        Reduce::Shared => "shared",
    }
}

/// The header word of the step that says how many `unit` there are. `Unit::One` is read as tokens, of which a
/// step has at least one: a dispatch of one workgroup has no tail to guard. Of choices it says how many tokens.
pub(crate) fn count_word(unit: Unit) -> u32 {
    match unit {
        Unit::One | Unit::Tokens | Unit::Choices(_) => step::HEADER_TOKENS,
        Unit::LogitRows => step::HEADER_LOGIT_ROWS,
        Unit::Tiles(table) => step::HEADER_TILES + table,
    }
}

/// Rows for each that [`count_word`] counts: the choices of a token, else 1.
pub(crate) fn per_token(unit: Unit) -> u32 {
    match unit {
        Unit::Choices(top) => top,
        Unit::One | Unit::Tokens | Unit::LogitRows | Unit::Tiles(_) => 1,
    }
}

/// Repeats marked lines, because the size of a register array must be known where it is indexed.
///
/// Lines from `//: for $name COUNT` to the matching `//: end` are repeated for each value below the count, with
/// `$name` replaced by the value; loops nest. Names are single lower-case words that are no prefix of each other.
pub(crate) fn unroll(text: &str, counts: &[(&str, u32)]) -> String {
    fn block<'a>(lines: &mut impl Iterator<Item = &'a str>, counts: &[(&str, u32)]) -> String {
        let mut out = String::new();
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["//:", "for", name, count] => {
                    let times = counts.iter().find(|(n, _)| n == count).map_or(0, |(_, value)| *value);
                    let body = block(lines, counts);
                    for value in 0..times {
                        out.push_str(&body.replace(name, &value.to_string()));
                    }
                }
                ["//:", "end"] => return out,
                _ => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
        out
    }
    block(&mut text.lines(), counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_nest_and_unknown_counts_vanish() {
        let text = "a\n//: for $i N\n  x$i\n    //: for $j M\n  y$i$j\n //: end\n//: end\n//: for $k Q\nz\n//: end\nb\n";
        assert_eq!(unroll(text, &[("N", 2), ("M", 1)]), "a\n  x0\n  y00\n  x1\n  y10\nb\n");
    }
}
