//! The admitted plan as a table for people.

use plimsoll::estimator::cli::bytes::{grouped, human};
use plimsoll::estimator::cli::show::{budget_line, cache_line};
pub use plimsoll::estimator::cli::show::{refusal, table};
use plimsoll::estimator::plan::Segment;
use plimsoll::kernels::Limits;
use plimsoll::{Budget, CacheLimit, Device, Plan};
use std::fmt::Write;

/// What was resolved of every limit, in a line: what a figure is worth depends on it.
pub fn limits(of: &Limits, budget: Option<&Budget>, cache: &CacheLimit) -> String {
    let words = |line: String| line.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "limits    {}; {}; a buffer {}, a binding {}",
        words(budget_line(budget.map(|b| (b.bytes, b.source.as_str())))),
        words(cache_line(cache)),
        human(of.max_buffer_size),
        human(of.max_storage_buffer_binding_size),
    )
}

/// The admitted plan: bytes per segment.
pub fn plan(plan: &Plan, device: &Device, budget: Option<&Budget>, cache: &CacheLimit) -> String {
    let g = &plan.geometry;
    let mut text = String::new();
    let _ = writeln!(text, "model     {} ({})", plan.model.name, plan.model.architecture);
    let _ = writeln!(text, "adapter   {} ({})", device.info().name, device.info().backend);
    let _ = writeln!(
        text,
        "geometry  context {}, slots {}, chunk {}, KV {}, logit rows {}",
        g.context, g.slots, g.prefill_chunk, g.kv, g.logit_rows
    );
    let _ = writeln!(text, "{}", budget_line(budget.map(|b| (b.bytes, b.source.as_str()))));
    if let Some(budget) = budget {
        let _ = writeln!(text, "          {}", budget.why);
        for what in budget.derived.iter().flat_map(|reading| &reading.excluded) {
            let _ = writeln!(text, "          left out of the reading: {what}");
        }
    }
    let _ = writeln!(text, "{}", cache_line(cache));
    let mut table = table(&["segment", "bytes", ""], &[1, 2]);
    for segment in Segment::ALL {
        let bytes = plan.segment_bytes(segment);
        table.add_row([segment.name().to_owned(), grouped(bytes), human(bytes)]);
    }
    table.add_row(["total".to_owned(), grouped(plan.total()), human(plan.total())]);
    table.add_row(["load peak".to_owned(), grouped(plan.load_peak()), human(plan.load_peak())]);
    table.add_row(["load, host".to_owned(), grouped(plan.load_host()), human(plan.load_host())]);
    let _ = write!(text, "{table}");
    text
}
