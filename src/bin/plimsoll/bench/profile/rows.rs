//! Dispatches by kernel and op.

use super::measure::Phase;
use plimsoll::Plan;
use plimsoll::runtime::lone::Ceilings;
use std::collections::BTreeMap;

/// The dispatches of one kernel for the same op of every layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub kernel: String,
    pub op: String,
    pub calls: u64,
    pub seconds: f64,
    pub bytes: u64,
    pub flops: u64,
}

/// What bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Read,
    Flops,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Bound::Read => "read",
            Bound::Flops => "flops",
        }
    }
}

/// How near a kernel comes to it.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub bound: Bound,
    pub fraction: f64,
}

impl Row {
    /// The ceiling that this work meets first, and what part of it was reached; `None` where either was not measured.
    pub fn share(&self, ceilings: Option<&Ceilings>) -> Option<Share> {
        let ceilings = ceilings?;
        if self.seconds <= 0.0 {
            return None;
        }
        let (read, flops) = (self.bytes as f64 / ceilings.read, self.flops as f64 / ceilings.flops);
        let (bound, least) = if read >= flops { (Bound::Read, read) } else { (Bound::Flops, flops) };
        Some(Share { bound, fraction: least / self.seconds })
    }
}

/// A label without the number of its layer: `blk.3.attn` is an op of `blk.*.attn`.
pub fn op(label: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = label.split('.').map(|part| if number(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// Rows by time, the longest first.
pub fn of(plan: &Plan, phase: &Phase) -> Vec<Row> {
    let mut rows: BTreeMap<(u32, String), Row> = BTreeMap::new();
    for step in &phase.steps {
        let Some(program) = plan.programs.get(step.program) else { continue };
        for sample in &step.samples {
            let Some(dispatch) = program.dispatches.get(sample.dispatch as usize) else { continue };
            let op = op(&dispatch.label);
            let row = rows.entry((dispatch.kernel, op.clone())).or_insert_with(|| Row {
                kernel: plan.kernels.get(dispatch.kernel as usize).map(|k| k.name()).unwrap_or_default(),
                op,
                ..Row::default()
            });
            row.calls += 1;
            row.seconds += sample.seconds;
            row.bytes = row.bytes.saturating_add(sample.bytes);
            row.flops = row.flops.saturating_add(sample.flops);
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    rows
}

/// All of them.
pub fn total(plan: &Plan, phase: &Phase) -> Row {
    let mut total = Row { kernel: "total".to_owned(), ..Row::default() };
    for row in of(plan, phase) {
        total.calls += row.calls;
        total.seconds += row.seconds;
        total.bytes = total.bytes.saturating_add(row.bytes);
        total.flops = total.flops.saturating_add(row.flops);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_one_op() {
        assert_eq!(op("blk.12.attn.rope_kv"), "blk.*.attn.rope_kv");
        assert_eq!(op("head"), "head");
        assert_eq!(op("w1.a..2"), "w1.a..*");
    }

    #[test]
    fn the_nearer_ceiling_binds() {
        let ceilings = Ceilings { read: 10.0, copy: 10.0, flops: 100.0 };
        let row = Row { seconds: 4.0, bytes: 20, flops: 100, ..Row::default() };
        let share = |row: &Row| row.share(Some(&ceilings)).map(|s| (s.bound, s.fraction));
        assert_eq!(share(&row), Some((Bound::Read, 0.5)));
        assert_eq!(share(&Row { flops: 400, ..row.clone() }), Some((Bound::Flops, 1.0)));
        assert_eq!(share(&Row { seconds: 0.0, ..row.clone() }), None);
        assert!(row.share(None).is_none());
    }
}
