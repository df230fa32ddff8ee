//! An estimate as one page: no network, no script, nothing outside the file.
//!
//! Every picture has its numbers in a table beside it, so that nothing depends on seeing colours or shapes. All text that
//! comes from a checkpoint is escaped.

mod svg;

use crate::error::{grouped, human};
use crate::report::{Bytes, Report};
use crate::solve::longest;
use plimsoll_models::text::is_printable;
use std::fmt::{self, Write};

const STYLE: &str = include_str!("style.css");

/// Text with the five characters escaped that mean something to HTML, and without what no document may hold; its first 400
/// characters. Whatever writes a page writes strangers' text through this.
pub struct Text<'t>(pub &'t str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name of a megabyte would be a page of its own.
        for c in self.0.chars().take(400) {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_whitespace() || !is_printable(c) => f.write_char(' ')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// The page.
pub fn page(report: &Report) -> String {
    let mut out = String::with_capacity(1 << 15);
    // Writing to a string does not fail.
    let _ = write_page(&mut out, report);
    out
}

fn write_page(out: &mut String, report: &Report) -> fmt::Result {
    let (model, g) = (&report.model, &report.geometry);
    let name = Text(&model.name);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{name}: memory</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{name}</h1>\n"
    )?;
    writeln!(
        out,
        "<p class=\"soft\">{} ({}), {} parameters. Context {}, slots {}, chunk {}, KV {}{}, weights {}, on {}.</p>",
        Text(&model.architecture),
        Text(&model.source),
        grouped(model.parameters),
        grouped(g.context.into()),
        g.slots,
        g.prefill_chunk,
        Text(&g.kv),
        g.kv_bits.map_or(String::new(), |bits| format!(" (full caches in {bits} bits)")),
        Text(&g.weights),
        Text(&report.profile),
    )?;
    verdict(out, report)?;
    writeln!(out, "</header>")?;
    if let Some(bytes) = &report.bytes {
        bar(out, report, bytes)?;
    }
    contexts(out, report)?;
    frontier(out, report)?;
    levers(out, report)?;
    checks(out, report)?;
    notes(out, report)?;
    writeln!(out, "</main>\n</body>\n</html>")
}

fn verdict(out: &mut String, report: &Report) -> fmt::Result {
    let said = match report.verdict.as_str() {
        "fits" => "Fits",
        "refused" => "Refused",
        _ => "No budget to hold it against",
    };
    writeln!(out, "<p class=\"verdict {}\" role=\"status\">{said}</p>", Text(&report.verdict))?;
    if let Some(budget) = &report.budget {
        let (have, source) = (human(budget.bytes), Text(&budget.source));
        match &report.bytes {
            Some(bytes) => writeln!(out, "<p>{} of {have} ({source}).</p>", human(bytes.total))?,
            None => writeln!(out, "<p>There are {have} ({source}).</p>")?,
        }
    }
    if let Some(refusal) = &report.refusal {
        writeln!(out, "<p>Broke: {}. {}.</p>", Text(&refusal.broke), Text(&refusal.reason))?;
        if let Some(said) = report.least_limits() {
            writeln!(out, "<p>Note: {}.</p>", Text(&said))?;
        }
    }
    Ok(())
}

fn bar(out: &mut String, report: &Report, bytes: &Bytes) -> fmt::Result {
    let budget = report.budget.as_ref().map(|b| b.bytes);
    writeln!(out, "<section aria-labelledby=\"bytes\">\n<h2 id=\"bytes\">Where the bytes go</h2>\n<figure>")?;
    svg::bar(out, bytes, budget)?;
    writeln!(out, "<figcaption>Device memory of the steady state, to scale.</figcaption>\n</figure>")?;
    table_head(out, "Bytes by segment", &["Segment", "Bytes", "", "Share"])?;
    let all = bytes;
    for (name, bytes) in all.segments().into_iter().filter(|(_, bytes)| *bytes > 0) {
        let share = 100.0 * bytes as f64 / all.total.max(1) as f64;
        writeln!(
            out,
            "<tr><th scope=\"row\"><span class=\"key\" style=\"background:var(--{name})\"></span>{name}</th>\
             <td>{}</td><td>{}</td><td>{share:.1} %</td></tr>",
            grouped(bytes),
            human(bytes)
        )?;
    }
    let sums = [("total", all.total), ("load peak", all.load_peak), ("load, host", all.load_host)];
    // What nobody can tell is no 0.
    for (name, bytes) in sums.into_iter().filter(|(name, bytes)| *bytes > 0 || *name == "total") {
        let cells = format!("<td>{}</td><td>{}</td><td></td>", grouped(bytes), human(bytes));
        writeln!(out, "<tr><th scope=\"row\">{name}</th>{cells}</tr>")?;
    }
    table_end(out)?;
    writeln!(out, "</section>")
}

fn contexts(out: &mut String, report: &Report) -> fmt::Result {
    if !report.ladder.iter().any(|rung| rung.total.is_some()) {
        return Ok(());
    }
    writeln!(
        out,
        "<section aria-labelledby=\"context\">\n<h2 id=\"context\">Memory against context</h2>\n<figure>"
    )?;
    let points: Vec<(f64, f64)> =
        report.ladder.iter().filter_map(|rung| Some((f64::from(rung.context), rung.total? as f64))).collect();
    let budget = report.budget.as_ref().map(|b| b.bytes as f64);
    let axes = svg::Axes {
        title: "Bytes in all at each context",
        x: "context, tokens",
        y: human_axis,
        limit: budget,
    };
    svg::line(out, &points, &axes)?;
    writeln!(out, "<figcaption>")?;
    if let Some(c) = report.coefficients.as_ref() {
        writeln!(out, "{}", Text(&c.to_string()))?;
    }
    writeln!(out, "</figcaption>\n</figure>")?;
    table_head(out, "The ladder", &["Context", "Bytes", "", "Verdict"])?;
    for rung in &report.ladder {
        let (exact, rough) = rung.total.map_or(("no plan".into(), String::new()), |t| (grouped(t), human(t)));
        writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{exact}</td><td>{rough}</td><td>{}</td></tr>",
            grouped(rung.context.into()),
            Text(&rung.verdict.replace('_', " "))
        )?;
    }
    table_end(out)?;
    writeln!(out, "</section>")
}

fn human_axis(value: f64) -> String {
    human(value as u64)
}

fn frontier(out: &mut String, report: &Report) -> fmt::Result {
    let points = &report.frontier.points;
    if points.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<section aria-labelledby=\"frontier\">\n<h2 id=\"frontier\">The longest context for each number of slots</h2>\n<figure>"
    )?;
    let line: Vec<(f64, f64)> = points.iter().map(|p| (f64::from(p.slots), f64::from(p.context))).collect();
    let tokens = |value: f64| grouped(value as u64);
    let axes = svg::Axes { title: "Longest context that fits", x: "slots", y: tokens, limit: None };
    svg::line(out, &line, &axes)?;
    let end = match (points.iter().any(|p| p.bounded_by.is_some()), report.frontier.bounded_by) {
        (false, None) => "",
        (true, None) => " + at least: no longer context is tried there.",
        (false, Some(_)) => " More slots are not tried.",
        (true, Some(_)) => " + at least: no longer context is tried there, and no more slots.",
    };
    let caption = "Everything on or under the line fits the budget.";
    writeln!(out, "<figcaption>{caption}{end}</figcaption>\n</figure>")?;
    table_head(out, "The frontier", &["Slots", "Context", "Bytes", ""])?;
    for p in points {
        writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
            p.slots,
            longest(p.context, p.bounded_by),
            grouped(p.total),
            human(p.total)
        )?;
    }
    table_end(out)?;
    writeln!(out, "</section>")
}

fn levers(out: &mut String, report: &Report) -> fmt::Result {
    if report.levers.is_empty() {
        return Ok(());
    }
    writeln!(out, "<section aria-labelledby=\"levers\">\n<h2 id=\"levers\">What saves most</h2>")?;
    table_head(out, "Levers, each alone", &["Change", "Saves", ""])?;
    for lever in &report.levers {
        let saves = format!("<td>{}</td><td>{}</td>", grouped(lever.saves), human(lever.saves));
        writeln!(out, "<tr><th scope=\"row\">{}</th>{saves}</tr>", Text(&lever.change))?;
    }
    table_end(out)?;
    writeln!(out, "</section>")
}

fn checks(out: &mut String, report: &Report) -> fmt::Result {
    let largest = report.largest_lines();
    if report.checks.is_empty() && report.ceilings.is_none() && largest.is_empty() {
        return Ok(());
    }
    writeln!(out, "<section aria-labelledby=\"limits\">\n<h2 id=\"limits\">Limits</h2>\n<ul>")?;
    for line in largest {
        writeln!(out, "<li>{}</li>", Text(&line))?;
    }
    for check in &report.checks {
        let word = if check.ok { "kept" } else { "broken" };
        writeln!(
            out,
            "<li>{}: {} of {}, {word}</li>",
            Text(&check.what),
            human(check.need),
            human(check.have)
        )?;
    }
    if let Some(c) = &report.ceilings {
        let rate =
            |rate: Option<f64>| rate.map_or("unknown".to_owned(), |r| format!("{r:.1} tokens a second"));
        writeln!(
            out,
            "<li>Ceilings, not predictions: decode {}, prefill {}</li>",
            rate(c.decode_tokens_per_second),
            rate(c.prefill_tokens_per_second)
        )?;
    }
    writeln!(out, "</ul>\n</section>")
}

fn notes(out: &mut String, report: &Report) -> fmt::Result {
    let only = report.estimate_only.as_ref().map(|why| format!("An estimate only: {why}"));
    let notes: Vec<&String> = report.model.notes.iter().chain(&only).collect();
    if notes.is_empty() {
        return Ok(());
    }
    writeln!(out, "<section aria-labelledby=\"notes\">\n<h2 id=\"notes\">Notes</h2>\n<ul>")?;
    for note in notes {
        writeln!(out, "<li>{}</li>", Text(note))?;
    }
    writeln!(out, "</ul>\n</section>")
}

fn table_head(out: &mut String, caption: &str, header: &[&str]) -> fmt::Result {
    // What is wider than a phone scrolls by itself, and by keyboard.
    writeln!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\n<table>\n<caption>{caption}</caption>\n<thead><tr>"
    )?;
    for cell in header {
        match *cell {
            "" => writeln!(out, "<td></td>")?,
            cell => writeln!(out, "<th scope=\"col\">{cell}</th>")?,
        }
    }
    writeln!(out, "</tr></thead>\n<tbody>")
}

fn table_end(out: &mut String) -> fmt::Result {
    writeln!(out, "</tbody>\n</table>\n</div>")
}
