//! Predicted against actual, as a table for people.

use crate::show;
use plimsoll::estimator::cli::bytes::{grouped, human};
use plimsoll::runtime::Account;
use plimsoll::runtime::process::Figure;
use std::fmt::Write;

/// Bytes in digits and in words; nobody's are unknown.
pub fn amount(bytes: Option<u64>) -> String {
    bytes.map_or("unknown".to_owned(), |b| format!("{} ({})", grouped(b), human(b)))
}

fn figure(figure: Figure) -> String {
    match figure.bytes {
        Some(_) => format!("{} by {}", amount(figure.bytes), figure.source),
        None => "unknown".to_owned(),
    }
}

/// Terms as planned and as allocated, then what wgpu, the driver and the system say.
pub fn table(account: &Account) -> String {
    let mut table = show::table(&["term", "planned", "allocated", ""], &[1, 2]);
    for term in account.terms.iter().chain([&account.total]) {
        // Terms that a model does not have are noise; the sum is always shown.
        if term.planned > 0 || term.allocated > 0 || term.term == "total" {
            let same = if term.agrees() { "as planned" } else { "NOT AS PLANNED" };
            let (planned, allocated) = (grouped(term.planned), grouped(term.allocated));
            table.add_row([term.term.to_owned(), planned, allocated, same.to_owned()]);
        }
    }
    let mut text = format!("{table}\n");
    for wrong in &account.differences {
        let bytes = |bytes: Option<u64>| bytes.map_or("none".to_owned(), grouped);
        let (planned, allocated) = (bytes(wrong.planned), bytes(wrong.allocated));
        let _ = writeln!(
            text,
            "buffer {} ({}): {planned} planned, {allocated} allocated",
            wrong.buffer, wrong.term
        );
    }
    if account.others > 0 {
        let _ = writeln!(text, "other loads on this device: {}", amount(Some(account.others)));
    }
    let process = &account.process;
    let _ = write!(
        text,
        "wgpu      {} for these buffers; {} of its own\n\
         driver    reserved {}: at most {} more than all buffers, in blocks for small ones\n\
         process   resident {}, peak {}, swap {} by {}",
        figure(account.counted),
        amount(account.base.bytes),
        figure(account.reserved.figure),
        human(account.reserved.slack),
        amount(process.resident.bytes),
        amount(process.peak.bytes),
        amount(process.swap.bytes),
        process.resident.source,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::failure::Failure;
    use plimsoll::runtime::account::{Difference, Reserved, Term};
    use plimsoll::runtime::process::{Figure, ProcessMemory};
    use plimsoll::runtime::{Account, RuntimeError};

    #[test]
    fn what_is_not_as_planned_is_6_and_says_what() {
        let unknown = Figure::new(None, "");
        let kv = Term { term: "kv", planned: 1024, allocated: 1536 };
        let account = Account {
            terms: vec![Term { term: "weights", planned: 512, allocated: 512 }, kv],
            total: Term { term: "total", planned: 1536, allocated: 2048 },
            differences: vec![Difference {
                buffer: "kv.0".to_owned(),
                term: "kv",
                planned: Some(1024),
                allocated: Some(1536),
            }],
            others: 0,
            base: unknown,
            counted: unknown,
            reserved: Reserved { figure: unknown, slack: 0 },
            process: ProcessMemory { resident: unknown, peak: unknown, swap: unknown },
        };
        let text = table(&account);
        assert_eq!(text.matches("NOT AS PLANNED").count(), 2, "{text}");
        assert!(text.contains("buffer kv.0 (kv): 1,024 planned, 1,536 allocated"), "{text}");
        assert!(text.contains("driver    reserved unknown"), "{text}");
        let failure = Failure::from(RuntimeError::Account(Box::new(account)));
        assert_eq!(failure.code(), 6);
        assert!(failure.message().contains("kv: 1,024 bytes planned, 1,536 allocated"), "{failure}");
        let shown = Failure::Shown(Box::new(failure));
        assert_eq!(shown.code(), 6);
        assert!(shown.message().contains("kv.0"), "{shown}");
    }
}
