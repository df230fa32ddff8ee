//! Predicted against actual: what a plan promised beside what stands in the books, term by term and buffer by buffer,
//! and beside what wgpu, the driver and the system say. A load that does not come out as planned is an error.

use crate::books::Entry;
use crate::device::RESERVATION_SLACK;
use crate::process::{Figure, ProcessMemory};
use crate::{Device, RuntimeError};
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::{Plan, grouped};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;

/// What the buffers of a load's staging are called, before their number.
pub(crate) const STAGING: &str = "staging";

/// Promised and there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Term {
    /// A segment of the plan; `staging`, which is planned while a load lasts; `unplanned`, which never is; or `total`.
    pub term: &'static str,
    /// Bytes that the plan has.
    pub planned: u64,
    /// Bytes of the buffers that exist.
    pub allocated: u64,
}

impl Term {
    fn new(term: &'static str) -> Self {
        Self { term, planned: 0, allocated: 0 }
    }

    /// Whether they are the same.
    pub fn agrees(&self) -> bool {
        self.planned == self.allocated
    }
}

/// A buffer that is not as planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its name.
    pub buffer: String,
    /// What it is counted as.
    pub term: &'static str,
    /// Its bytes in the plan; `None` where the plan has no such buffer.
    pub planned: Option<u64>,
    /// Its bytes in the books; `None` where it does not exist.
    pub allocated: Option<u64>,
}

/// What the driver's allocator has taken for the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reserved {
    /// Bytes taken from the driver, and who says so.
    #[serde(flatten)]
    pub figure: Figure,
    /// What they may exceed the buffers of the device by: [`RESERVATION_SLACK`].
    pub slack: u64,
}

/// What a load promised and what there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Every segment in the order of reports, then `staging` and `unplanned`.
    pub terms: Vec<Term>,
    /// Their sums.
    pub total: Term,
    /// Buffers that are not as planned.
    pub differences: Vec<Difference>,
    /// Bytes of the device's buffers that belong to other loads.
    pub others: u64,
    /// What wgpu keeps for itself, as it was when the device was opened.
    pub base: Figure,
    /// Memory behind all other buffers of the device, as wgpu counts it.
    pub counted: Figure,
    /// What the driver's allocator has taken.
    pub reserved: Reserved,
    /// The process.
    pub process: ProcessMemory,
}

/// The terms of a plan with `staging` bytes beside it, against the buffers that exist.
fn compare(plan: &Plan, staging: u64, entries: Vec<Entry>) -> (Vec<Term>, Vec<Difference>) {
    let mut terms: Vec<Term> = Segment::ALL.iter().map(|segment| Term::new(segment.name())).collect();
    let mut beside = Term { planned: staging, ..Term::new(STAGING) };
    let mut unplanned = Term::new("unplanned");
    let mut differences = Vec::new();
    let mut held: HashMap<&str, Vec<u64>> = HashMap::new();
    // Backwards, since what is taken first is what came last.
    for entry in entries.iter().rev() {
        held.entry(&entry.name).or_default().push(entry.bytes);
    }
    for buffer in &plan.buffers {
        let name = buffer.segment.name();
        let allocated = held.get_mut(buffer.name.as_str()).and_then(Vec::pop);
        if let Some(term) = terms.iter_mut().find(|term| term.term == name) {
            term.planned = term.planned.saturating_add(buffer.bytes);
            term.allocated = term.allocated.saturating_add(allocated.unwrap_or(0));
        }
        if allocated != Some(buffer.bytes) {
            let (buffer, planned) = (buffer.name.clone(), Some(buffer.bytes));
            differences.push(Difference { buffer, term: name, planned, allocated });
        }
    }
    // In the books' order, which is that of creation.
    for entry in &entries {
        let Some(bytes) = held.get_mut(entry.name.as_str()).and_then(Vec::pop) else { continue };
        let of_staging = entry.name.starts_with(STAGING);
        let term = if of_staging { &mut beside } else { &mut unplanned };
        term.allocated = term.allocated.saturating_add(bytes);
        // How staging is cut is the load's business: its sum is planned.
        if !of_staging || staging == 0 {
            let (buffer, allocated) = (entry.name.clone(), Some(bytes));
            differences.push(Difference { buffer, term: term.term, planned: None, allocated });
        }
    }
    terms.extend([beside, unplanned]);
    (terms, differences)
}

fn agree(terms: &[Term], differences: &[Difference]) -> bool {
    differences.is_empty() && terms.iter().all(Term::agrees)
}

/// Sees that a load has allocated its plan and `staging` bytes, and nothing else.
///
/// # Errors
/// [`RuntimeError::Account`].
pub(crate) fn check(device: &Device, plan: &Plan, staging: u64) -> Result<(), RuntimeError> {
    let (terms, differences) = compare(plan, staging, device.own_buffers());
    if agree(&terms, &differences) {
        return Ok(());
    }
    Err(RuntimeError::Account(Box::new(Account::of(device, terms, differences))))
}

impl Account {
    /// The account of a loaded plan.
    pub(crate) fn take(device: &Device, plan: &Plan) -> Self {
        let (terms, differences) = compare(plan, 0, device.own_buffers());
        Self::of(device, terms, differences)
    }

    fn of(device: &Device, terms: Vec<Term>, differences: Vec<Difference>) -> Self {
        const COUNTERS: &str = "wgpu's counters";
        let total = terms.iter().fold(Term::new("total"), |sum, term| Term {
            planned: sum.planned.saturating_add(term.planned),
            allocated: sum.allocated.saturating_add(term.allocated),
            ..sum
        });
        let (base, now) = (device.base(), device.counters());
        // A backend that counts buffers need not count their bytes.
        let counts = now.buffer_memory > 0 || now.buffers == 0;
        let counted = |bytes: i64| counts.then(|| u64::try_from(bytes).ok()).flatten();
        let reserved = device.reservation().map(|reservation| reservation.reserved);
        Self {
            others: device.totals().live_bytes.saturating_sub(total.allocated),
            terms,
            total,
            differences,
            base: Figure::new(counted(base.buffer_memory), COUNTERS),
            counted: Figure::new(counted(now.buffer_memory.saturating_sub(base.buffer_memory)), COUNTERS),
            reserved: Reserved {
                figure: Figure::new(reserved, "wgpu's allocator"),
                slack: RESERVATION_SLACK,
            },
            process: ProcessMemory::take(),
        }
    }

    /// Whether exactly what was planned is allocated: every term, and every buffer of every term.
    pub fn agrees(&self) -> bool {
        agree(&self.terms, &self.differences)
    }

    /// Sees that exactly what was planned is allocated.
    ///
    /// # Errors
    /// The account, if it is not.
    pub fn check(&self) -> Result<(), Box<Account>> {
        if self.agrees() { Ok(()) } else { Err(Box::new(self.clone())) }
    }

    /// The terms that do not agree, and the first buffer that is not as planned, in a line.
    pub(crate) fn disagreement(&self) -> String {
        let mut text = String::new();
        for term in self.terms.iter().filter(|term| !term.agrees()) {
            let separator = if text.is_empty() { "" } else { ", " };
            let (planned, allocated) = (grouped(term.planned), grouped(term.allocated));
            let _ = write!(text, "{separator}{}: {planned} bytes planned, {allocated} allocated", term.term);
        }
        if let Some(first) = self.differences.first() {
            let bytes = |bytes: Option<u64>| bytes.map_or("none".to_owned(), grouped);
            let separator = if text.is_empty() { "" } else { "; " };
            let (planned, allocated) = (bytes(first.planned), bytes(first.allocated));
            let _ =
                write!(text, "{separator}buffer {}: {planned} planned, {allocated} allocated", first.buffer);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::plan;
    use plimsoll_estimator::plan::{Buffer, Role};

    /// Two buffers of keys and values, and one for the tables.
    fn planned() -> Plan {
        let buffer = |name: &str, segment, role, bytes| Buffer { name: name.into(), segment, role, bytes };
        let buffers = vec![
            buffer("kv.0", Segment::Kv, Role::Kv, 1024),
            buffer("kv.1", Segment::Kv, Role::Kv, 512),
            buffer("step", Segment::Io, Role::Step, 256),
        ];
        Plan { buffers, ..plan(64, 1, 8, 1) }
    }

    fn entries(plan: &Plan) -> Vec<Entry> {
        plan.buffers.iter().map(|b| Entry { name: b.name.clone(), bytes: b.bytes }).collect()
    }

    fn named(terms: &[Term], name: &str) -> (u64, u64) {
        let term = terms.iter().find(|term| term.term == name).unwrap();
        (term.planned, term.allocated)
    }

    #[test]
    fn what_is_as_planned_agrees_in_every_term() {
        let plan = planned();
        let (terms, differences) = compare(&plan, 0, entries(&plan));
        assert!(agree(&terms, &differences), "{differences:?}");
        let names: Vec<&str> = terms.iter().map(|term| term.term).collect();
        assert_eq!(names[..6], Segment::ALL.map(Segment::name));
        assert_eq!(names[6..], ["staging", "unplanned"]);
        assert_eq!((named(&terms, "kv"), named(&terms, "io")), ((1536, 1536), (256, 256)));
        assert_eq!(named(&terms, "weights"), (0, 0));
    }

    #[test]
    fn a_buffer_of_another_size_or_none_is_named() {
        let plan = planned();
        let mut held = entries(&plan);
        held[1].bytes = 768;
        held.remove(2);
        let (terms, differences) = compare(&plan, 0, held);
        assert!(!agree(&terms, &differences));
        assert_eq!((named(&terms, "kv"), named(&terms, "io")), ((1536, 1792), (256, 0)));
        let found: Vec<_> =
            differences.iter().map(|d| (d.buffer.as_str(), d.term, d.planned, d.allocated)).collect();
        assert_eq!(found, [("kv.1", "kv", Some(512), Some(768)), ("step", "io", Some(256), None)]);
    }

    /// Sums that agree are not enough.
    #[test]
    fn two_wrongs_make_no_right() {
        let plan = planned();
        let mut held = entries(&plan);
        (held[0].bytes, held[1].bytes) = (512, 1024);
        let (terms, differences) = compare(&plan, 0, held);
        assert!(terms.iter().all(Term::agrees) && differences.len() == 2);
        assert!(!agree(&terms, &differences));
    }

    #[test]
    fn what_no_plan_has_is_counted_apart() {
        let plan = planned();
        let mut held = entries(&plan);
        held.push(Entry { name: "kv.0".into(), bytes: 64 });
        held.push(Entry { name: "staging.0".into(), bytes: 4096 });
        let (terms, differences) = compare(&plan, 4096, held.clone());
        assert_eq!((named(&terms, "staging"), named(&terms, "unplanned")), ((4096, 4096), (0, 64)));
        assert_eq!(differences.len(), 1);
        // Staging is gone once the load is done.
        let (terms, differences) = compare(&plan, 0, held);
        assert_eq!(named(&terms, "staging"), (0, 4096));
        assert_eq!(differences.len(), 2);
        assert!(!agree(&terms, &differences));
    }
}
