//! An estimate as a picture of characters: the stacked bar, and memory against context.

use crate::error::human;
use crate::report::{Bytes, Report};
use std::fmt::Write;

/// What each segment is drawn with.
const MARKS: [char; 6] = ['█', '▓', '▒', '░', '▚', '▞'];

/// The chart, at most `width` characters wide (at least 40).
pub fn chart(report: &Report, width: usize) -> String {
    let width = width.clamp(40, 200);
    let mut text = String::new();
    if let Some(bytes) = &report.bytes {
        bar(bytes, report.budget.as_ref().map(|b| b.bytes), width, &mut text);
    }
    contexts(report, width, &mut text);
    text
}

fn bar(bytes: &Bytes, budget: Option<u64>, width: usize, text: &mut String) {
    let total = bytes.total;
    let whole = total.max(budget.unwrap_or(0)).max(1);
    // Places of the ends, so that rounding never adds up to more than the whole.
    let place = |bytes: u64| (u128::from(bytes) * width as u128 / u128::from(whole)) as usize;
    let (mut before, mut line) = (0u64, String::new());
    for ((_, bytes), mark) in bytes.segments().into_iter().zip(MARKS) {
        let (from, to) = (place(before), place(before.saturating_add(bytes)));
        line.extend(std::iter::repeat_n(mark, to - from));
        before = before.saturating_add(bytes);
    }
    let left = width.saturating_sub(line.chars().count());
    line.extend(std::iter::repeat_n('·', left));
    let _ = writeln!(text, "{line}");
    let mut key: Vec<String> = bytes
        .segments()
        .into_iter()
        .zip(MARKS)
        .filter(|((_, bytes), _)| *bytes > 0)
        .map(|((name, bytes), mark)| format!("{mark} {name} {}", human(bytes)))
        .collect();
    if let Some(free) = budget.and_then(|b| b.checked_sub(total)) {
        key.push(format!("· free {}", human(free)));
    }
    let mut length = 0;
    for (i, part) in key.iter().enumerate() {
        let more = part.chars().count() + 2;
        if i > 0 && length + more > width {
            let _ = writeln!(text);
            length = 0;
        }
        let _ = write!(text, "{part}  ");
        length += more;
    }
    let _ = writeln!(text, "\n");
}

fn contexts(report: &Report, width: usize, text: &mut String) {
    let rungs: Vec<(u32, u64)> =
        report.ladder.iter().filter_map(|rung| Some((rung.context, rung.total?))).collect();
    let budget = report.budget.as_ref().map(|b| b.bytes);
    let Some(most) = rungs.iter().map(|r| r.1).chain(budget).max().filter(|m| *m > 0) else { return };
    let room = width - 26;
    let place = |bytes: u64| (u128::from(bytes) * room as u128 / u128::from(most)) as usize;
    for (context, total) in rungs {
        let mut line: Vec<char> = vec![' '; room + 1];
        line[..place(total)].fill('█');
        if let Some(budget) = budget {
            let mark = if total > budget { '!' } else { '|' };
            line[place(budget).min(room)] = mark;
        }
        let line: String = line.into_iter().collect();
        let _ = writeln!(text, "{context:>11} {line} {}", human(total));
    }
    if budget.is_some() {
        let _ = writeln!(text, "{:>11} | the budget, ! what is beyond it", "context");
    }
}
