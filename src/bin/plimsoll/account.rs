//! Predicted against actual, as a table for people.

use crate::show;
use plimsoll::estimator::cli::bytes::{grouped, human};
use plimsoll::runtime::Account;
use serde_json::{Value, json};
use std::fmt::Write;

/// Bytes in digits and in words; nobody's are unknown.
pub fn amount(bytes: Option<u64>) -> String {
    bytes.map_or("unknown".to_owned(), |b| format!("{} ({})", grouped(b), human(b)))
}

/// Terms as planned and as allocated, then what wgpu, the driver and the system say.
pub fn table(account: &Account) -> String {
    table_of(&json!(account))
}

/// The same of an account as documents and logs have it: a probe reads those of its steps' processes.
pub fn table_of(account: &Value) -> String {
    let bytes = |of: &Value, name: &str| of[name].as_u64();
    let digits = |bytes: Option<u64>| bytes.map_or("none".to_owned(), grouped);
    let text = |of: &Value, name: &str| of[name].as_str().unwrap_or("unknown").to_owned();
    let list = |name: &str| account[name].as_array().map_or(&[][..], Vec::as_slice).iter();
    let figure = |figure: &Value| match bytes(figure, "bytes") {
        known @ Some(_) => format!("{} by {}", amount(known), text(figure, "source")),
        None => "unknown".to_owned(),
    };
    let mut table = show::table(&["term", "planned", "allocated", ""], &[1, 2]);
    for term in list("terms").chain([&account["total"]]) {
        let (planned, allocated) = (bytes(term, "planned"), bytes(term, "allocated"));
        // Terms that a model does not have are noise; the sum is always shown.
        if planned > Some(0) || allocated > Some(0) || term["term"] == "total" {
            let same = if planned == allocated { "as planned" } else { "NOT AS PLANNED" };
            table.add_row([text(term, "term"), digits(planned), digits(allocated), same.to_owned()]);
        }
    }
    let mut shown = format!("{table}\n");
    for wrong in list("differences") {
        let (planned, allocated) = (digits(bytes(wrong, "planned")), digits(bytes(wrong, "allocated")));
        let (buffer, term) = (text(wrong, "buffer"), text(wrong, "term"));
        let _ = writeln!(shown, "buffer {buffer} ({term}): {planned} planned, {allocated} allocated");
    }
    if bytes(account, "others") > Some(0) {
        let _ = writeln!(shown, "other loads on this device: {}", amount(bytes(account, "others")));
    }
    let process = |name: &str| amount(bytes(&account["process"][name], "bytes"));
    let _ = write!(
        shown,
        "wgpu      {} for these buffers; {} of its own\n\
         driver    reserved {}: at most {} more than all buffers, in blocks for small ones\n\
         process   resident {}, peak {}, swap {} by {}",
        figure(&account["counted"]),
        amount(bytes(&account["base"], "bytes")),
        figure(&account["reserved"]),
        human(bytes(&account["reserved"], "slack").unwrap_or(0)),
        process("resident"),
        process("peak"),
        process("swap"),
        text(&account["process"]["resident"], "source"),
    );
    shown
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
