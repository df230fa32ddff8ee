//! Reports as tables for people.

use super::bytes::{grouped, human};
use crate::devices::{Basis, DeviceTable};
use crate::others::Role;
use crate::peers::START;
use crate::policy::CacheLimit;
use crate::report::{BudgetPart, Bytes, Report};
use crate::solve::{End, longest};
use crate::verdict::Suggestion;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use plimsoll_models::checkpoint::BytesRead;
use std::fmt::Write;

/// A rule above, below and under the header.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// An empty table in the house style; `numbers` are the columns that align to the right.
pub fn table(header: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header.iter().copied());
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// What a plan is held against, in a line.
pub fn budget_line(budget: Option<(u64, &str)>) -> String {
    match budget {
        Some((bytes, source)) => format!("budget    {} bytes ({}), {source}", grouped(bytes), human(bytes)),
        None => "budget    none known".into(),
    }
}

/// The line of the limit of what is retained.
pub fn cache_line(limit: &CacheLimit) -> String {
    match limit.bytes {
        Some(bytes) => {
            format!("retained  at most {} bytes ({}), {}", grouped(bytes), human(bytes), limit.source)
        }
        None => format!("retained  {}", limit.source),
    }
}

/// What was read of a checkpoint to price it.
fn read_line(read: &BytesRead) -> String {
    let bytes = read.local.saturating_add(read.network).saturating_add(read.cache);
    let far = |requests| {
        format!(": {} in {requests} requests, {} kept", grouped(read.network), grouped(read.cache))
    };
    let far = if read.network > 0 || read.cache > 0 { far(read.requests) } else { String::new() };
    format!("{} bytes of configurations and headers{far}", grouped(bytes))
}

/// The estimate. `on_adapter`: the limits are a device's.
pub fn report(report: &Report, on_adapter: bool) -> String {
    let mut text = String::new();
    let (model, g) = (&report.model, &report.geometry);
    let _ = writeln!(
        text,
        "model     {} ({}, {}), {} parameters, {} bytes in the checkpoint",
        model.name,
        model.architecture,
        model.source,
        grouped(model.parameters),
        grouped(model.checkpoint_bytes)
    );
    let _ = writeln!(text, "read      {}", read_line(&model.read));
    let layers = &model.layers;
    let _ = writeln!(
        text,
        "layers    {} full attention, {} sliding, {} recurrent, {} stateless",
        layers.attention_full, layers.attention_sliding, layers.recurrent, layers.stateless
    );
    for note in &model.notes {
        let _ = writeln!(text, "note      {note}");
    }
    let _ = writeln!(
        text,
        "geometry  context {}, slots {}, chunk {}, KV {}{}{}, on {}",
        g.context,
        g.slots,
        g.prefill_chunk,
        g.kv,
        g.kv_bits.map_or(String::new(), |bits| format!(" (full caches in {bits} bits)")),
        drafts(g.draft_depth),
        report.profile
    );
    if let Some(why) = &report.estimate_only {
        let _ = writeln!(text, "note      an estimate only: {why}");
    }
    if let Some(others) = &report.others {
        for other in &others.here {
            let _ = writeln!(
                text,
                "{:<9} {}: {} bytes ({}){}",
                if other.role == Role::Beside { "beside" } else { "drafts" },
                other.name,
                grouped(other.total),
                human(other.total),
                // As much as it was made for.
                match other.context < g.context {
                    true => format!(", at a context of {}", grouped(other.context.into())),
                    false => String::new(),
                }
            );
        }
        for gone in &others.replaced {
            let _ = writeln!(
                text,
                "replaces  {}: {} bytes ({}) become free",
                gone.name,
                grouped(gone.bytes),
                human(gone.bytes)
            );
        }
        if !others.replaced.is_empty() {
            let added = match &report.budget {
                Some(_) if others.credited > 0 => "added to what was read as free",
                Some(_) => "not added to the budget, which is for everything together",
                None => "no budget is known to add them to",
            };
            let _ = writeln!(text, "          {added}");
        }
    }
    if !report.rules.is_empty() {
        let _ = writeln!(text, "runtime   {}", report.runtime);
    }
    for rule in &report.rules {
        let _ = writeln!(text, "rule      {rule}");
    }
    let _ = writeln!(text, "{}", budget_line(report.budget.as_ref().map(|b| (b.bytes, b.source.as_str()))));
    if let Some(budget) = report.budget.as_ref().filter(|b| resolved_of_several(b)) {
        let _ = writeln!(text, "          {}", budget.why);
    }
    for limit in report.limits.iter().filter(|limit| limit.requested.is_some()) {
        let _ = writeln!(text, "limit     {} {}, {}", limit.what, human(limit.bytes), limit.why);
    }

    // Limits may allow no plan: then there is nothing to add up.
    if let Some(bytes) = &report.bytes {
        let _ = writeln!(text, "{}", segments(bytes));
        if layers.attention_full + layers.attention_sliding == 0 {
            let _ = writeln!(text, "no attention layer: every context costs the same");
        } else if let Some(bytes) = report.kv_bytes_per_token {
            let _ = writeln!(text, "one more token of context: {} bytes a slot", grouped(bytes));
            if let Some(pool) = report.pool_bytes_per_token.filter(|pool| *pool != bytes) {
                let _ = writeln!(text, "a token of the pool, as logs count them: {} bytes", grouped(pool));
            }
        }
        // What a slot costs however long its sequence is.
        if let Some(bytes) = report.recurrent_bytes_per_slot.filter(|bytes| *bytes > 0) {
            let _ = write!(text, "recurrent state: {} bytes a slot, at any context", grouped(bytes));
            // Each layer's places begin where bindings may, and one of a layer that keeps a tail alone is no less.
            let slots = bytes.saturating_mul(g.slots.into());
            let padding = report.bytes.as_ref().map_or(0, |bytes| bytes.recurrent.saturating_sub(slots));
            if report.coefficients.is_some() && padding > 0 {
                let _ = write!(text, ", and {} of padding in all", grouped(padding));
            }
            let _ = writeln!(text);
        }
        for line in report.largest_lines() {
            let _ = writeln!(text, "{line}");
        }
        for line in &report.host {
            let _ = writeln!(text, "on the host: {}, {}", line.name, human(line.bytes));
        }
        if let Some(images) = &report.images {
            let _ = writeln!(
                text,
                "an image: {} patches, {} tokens, {} in the tower while it is read; the largest is {} x {}; {} fit",
                grouped(images.patches),
                grouped(images.tokens_per_image),
                human(images.tower_peak),
                images.cap.width,
                images.cap.height,
                images.largest_count
            );
        }
    }
    for check in &report.checks {
        let word = if check.ok { "kept" } else { "broken" };
        let (need, have) = (human(check.need), human(check.have));
        let _ = writeln!(text, "device    {}: {need} of {have}, {word}", check.what);
    }
    if let Some(c) = &report.ceilings {
        let rate = |rate: Option<f64>| rate.map_or("unknown".to_owned(), |r| format!("{r:.1} tokens/s"));
        let _ = writeln!(
            text,
            "ceilings  decode {} (reading {} a token), prefill {} (chunks of {}): not predictions",
            rate(c.decode_tokens_per_second),
            human(c.decode_bytes),
            rate(c.prefill_tokens_per_second),
            c.prefill_chunk
        );
    }
    if report.ladder.iter().any(|rung| rung.total.is_some()) {
        ladder(report, &mut text);
    }
    if let Some(coefficients) = &report.coefficients {
        let _ = writeln!(text, "formula   {coefficients}");
    }
    if !report.frontier.points.is_empty() {
        let points: Vec<String> = report
            .frontier
            .points
            .iter()
            .map(|p| format!("{} × {}", p.slots, longest(p.context, p.bounded_by)))
            .collect();
        let end = match report.frontier.bounded_by {
            Some(_) => "; more slots are not tried",
            None => "",
        };
        let _ = writeln!(text, "frontier  slots × longest context: {}{end}", points.join(", "));
        if report.frontier.points.iter().any(|p| p.bounded_by.is_some()) {
            let _ = writeln!(text, "          + at least: no longer context is tried there");
        }
        if let (Some(why), Some(last)) = (&report.frontier.stopped_by, report.frontier.points.last()) {
            let _ = writeln!(text, "          with {} slots: {why}", grouped(u64::from(last.slots) * 2));
        }
    }
    if report.budget.is_some() || on_adapter {
        largest(report, &mut text);
    }
    if !report.levers.is_empty() {
        let mut levers = table(&["change", "saves", ""], &[1, 2]);
        for lever in &report.levers {
            levers.add_row([flag(&lever.change), grouped(lever.saves), human(lever.saves)]);
        }
        let _ = writeln!(text, "{levers}");
    }
    verdict(report, &mut text);
    text
}

/// The draft depth, where there is one.
fn drafts(depth: u32) -> String {
    if depth == 0 { String::new() } else { format!(", draft depth {depth}") }
}

/// Under the reason of a refusal: the need, term by term, and what would fit.
pub fn refusal(report: &Report) -> String {
    let mut text = String::new();
    if let Some(bytes) = &report.bytes {
        let _ = writeln!(text, "{}", segments(bytes));
    }
    nearest(report, &mut text);
    text
}

/// Whether a budget is what came of more than one amount.
fn resolved_of_several(budget: &BudgetPart) -> bool {
    [budget.requested.is_some(), budget.derived.is_some(), budget.reserve.is_some()]
        .into_iter()
        .filter(|b| *b)
        .count()
        > 1
}

/// Bytes per segment.
fn segments(b: &Bytes) -> Table {
    let mut bytes = table(&["segment", "bytes", ""], &[1, 2]);
    let sums = [("total", b.total), ("load peak", b.load_peak), ("load, host", b.load_host)];
    for (name, amount) in b.segments().into_iter().chain(sums) {
        // Segments that a model does not have are noise; the sums are always shown.
        if amount > 0 || name == "total" {
            bytes.add_row([name.to_owned(), grouped(amount), human(amount)]);
        }
    }
    bytes
}

/// `prefill_chunk 512 -> 128` as the flag that does it.
fn flag(change: &str) -> String {
    let value = |at| change.split_whitespace().nth(at).unwrap_or_default();
    let flag = match change.split_whitespace().next() {
        Some("slots") => "--slots",
        Some("context") => "--context",
        Some("prefill_chunk") => "--chunk",
        Some("kv") => return kv_flags(value(1), value(3)),
        Some("draft_depth") => "--draft-depth",
        Some("snapshots") => "--snapshots",
        _ => return change.to_owned(),
    };
    format!("{flag} {}", value(3))
}

/// The flags for these formats of keys and values, by their names, in place of those that asked for the others: a command
/// that says both has both to replace.
fn kv_flags(asked: &str, to: &str) -> String {
    match to.split_once('/').or(asked.contains('/').then_some((to, to))) {
        Some((k, v)) => format!("--kv-k {k} --kv-v {v}"),
        None => format!("--kv {to}"),
    }
}

/// The table of devices, for people.
pub fn devices(devices: &DeviceTable) -> Table {
    let header = ["device", "memory", "usable", "GB/s", "TFLOP/s", "buffer", "binding"];
    let mut table = table(&header, &[1, 2, 3, 4, 5, 6]);
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), human);
    // A figure that nobody checked says so.
    let mark = |basis: Option<Basis>| if basis == Some(Basis::Unverified) { "?" } else { "" };
    for d in &devices.device {
        let per = |value: Option<u64>, unit: f64, basis| {
            value.map_or("unknown".to_owned(), |v| format!("{:.1}{}", v as f64 / unit, mark(basis)))
        };
        table.add_row([
            d.name.clone(),
            size(d.memory),
            size(d.usable),
            per(d.bandwidth, 1e9, d.bandwidth_basis),
            per(d.f32, 1e12, d.rate_basis),
            size(d.max_buffer),
            size(d.max_binding),
        ]);
    }
    table
}

fn ladder(report: &Report, text: &mut String) {
    // Without a budget there is no verdict to tell.
    let judged = report.budget.is_some();
    let header: &[&str] =
        if judged { &["context", "bytes", "", "verdict"] } else { &["context", "bytes", ""] };
    let mut ladder = table(header, &[0, 1, 2]);
    for rung in &report.ladder {
        let none = || ("no plan".to_owned(), String::new());
        let (exact, rough) = rung.total.map_or_else(none, |t| (grouped(t), human(t)));
        let mut row = vec![grouped(rung.context.into()), exact, rough];
        if judged {
            row.push(rung.verdict.clone());
        }
        ladder.add_row(row);
    }
    let _ = writeln!(text, "{ladder}");
}

fn largest(report: &Report, text: &mut String) {
    let number = |n: Option<u32>, end: Option<End>| match (n.map(|n| grouped(n.into())), end) {
        (None, _) => "none".to_owned(),
        (Some(n), None) => n,
        (Some(n), Some(End::Search)) => format!("at least {n} (more is not tried)"),
        (Some(n), Some(End::Model)) => format!("{n} (all that the model was made for)"),
        (Some(n), Some(End::Context)) => format!("{n} (the whole context)"),
    };
    let (fits, ends) = (&report.largest, &report.largest.bounded_by);
    let _ = writeln!(
        text,
        "largest that fits, each with the rest as asked: context {}, slots {}, chunk {}",
        number(fits.context, ends.context),
        number(fits.slots, ends.slots),
        number(fits.prefill_chunk, ends.prefill_chunk)
    );
    // The smallest that there is breaks it too, whatever there is of memory.
    let none = fits.context.is_none() && fits.slots.is_none() && fits.prefill_chunk.is_none();
    if none && report.least_limits().is_some() {
        let _ = writeln!(
            text,
            "          not memory but WebGPU's least limits leave none: --device NAME has others"
        );
    }
    let stops = &fits.stopped_by;
    for (what, why) in [("context", &stops.context), ("slots", &stops.slots), ("chunk", &stops.prefill_chunk)]
    {
        if let Some(why) = why {
            let _ = writeln!(text, "          not memory but a limit ends the {what}: with more, {why}");
        }
    }
}

fn verdict(report: &Report, text: &mut String) {
    let Some(refusal) = &report.refusal else {
        let said = match report.verdict.as_str() {
            "no_budget" if report.profile == "webgpu-default" => {
                "no budget: give --memory 8GiB, or --device NAME (of --list-devices)".to_owned()
            }
            "no_budget" => {
                format!(
                    "no budget: {} has no memory of its own that is known: give --memory 8GiB",
                    report.profile
                )
            }
            other => other.to_owned(),
        };
        let _ = write!(text, "verdict   {said}");
        return;
    };
    let _ = writeln!(text, "verdict   {} ({}): {}", report.verdict, refusal.broke, refusal.reason);
    let _ = writeln!(text, "lasts     {}", refusal.lasts.says());
    if let Some(said) = report.least_limits() {
        let _ = writeln!(text, "{said}");
    }
    nearest(report, text);
}

/// What would fit, and the first of it as flags to copy.
fn nearest(report: &Report, text: &mut String) {
    let suggestions = report.refusal.as_ref().map(|r| r.nearest.as_slice()).unwrap_or_default();
    let Some(first) = suggestions.first() else {
        let started = report.refusal.as_ref().is_none_or(|refusal| refusal.name != START);
        let said = match (started, report.least_limits()) {
            (true, Some(_)) => "no geometry of this model fits them",
            (true, None) => "no geometry of this model fits",
            (false, _) => "no other geometry changes that",
        };
        let _ = write!(text, "{said}");
        return;
    };
    let mut header = vec!["that fits: context", "slots", "chunk", "KV", "bytes", ""];
    let asked = &report.geometry;
    let (drafts, images, snapshots) = (asked.draft_depth > 0, asked.images > 0, asked.snapshots > 0);
    header.extend(drafts.then_some("drafts"));
    header.extend(images.then_some("images"));
    header.extend(snapshots.then_some("snapshots"));
    let mut nearest = table(&header, &[0, 1, 2, 4, 5, 6, 7, 8]);
    for s in suggestions {
        let mut row = vec![
            grouped(s.context.into()),
            s.slots.to_string(),
            s.prefill_chunk.to_string(),
            s.kv.to_string(),
            grouped(s.total),
            human(s.total),
        ];
        row.extend(drafts.then(|| s.draft_depth.to_string()));
        row.extend(images.then(|| s.priced.images.count.to_string()));
        row.extend(snapshots.then(|| s.priced.snapshots.to_string()));
        nearest.add_row(row);
    }
    let _ = write!(text, "{nearest}\nnearest:{}", flags(first, report));
}

/// What of a suggestion is not as asked, as flags.
fn flags(suggestion: &Suggestion, report: &Report) -> String {
    let asked = &report.geometry;
    let mut text = String::new();
    let changes = [
        ("context", suggestion.context, asked.context),
        ("slots", suggestion.slots, asked.slots),
        ("chunk", suggestion.prefill_chunk, asked.prefill_chunk),
    ];
    for (name, new, old) in changes {
        if new != old {
            let _ = write!(text, " --{name} {new}");
        }
    }
    if suggestion.draft_depth != asked.draft_depth {
        let _ = write!(text, " --draft-depth {}", suggestion.draft_depth);
    }
    if suggestion.priced.snapshots != asked.snapshots {
        let _ = write!(text, " --snapshots {}", suggestion.priced.snapshots);
    }
    if suggestion.priced.images.count != asked.images {
        let _ = write!(text, " --images {}", suggestion.priced.images.count);
    }
    let kv = suggestion.kv.to_string();
    if kv != asked.kv {
        let _ = write!(text, " {}", kv_flags(&asked.kv, &kv));
    }
    text
}
