//! The profile as one page: no network, no script, nothing outside the file. The timeline is a picture of what the table
//! beside it says in words.

use super::measure::Phase;
use super::{Profile, rows, text};
use plimsoll::estimator::html::Text;
use plimsoll::runtime::profiler::{Sample, StepProfile};
use std::fmt::{self, Write};

const STYLE: &str = include_str!("page.css");

/// Width of a drawing in its own units; it scales to the page.
const WIDTH: f64 = 1000.0;
/// Height of one line of it.
const LINE: f64 = 26.0;
/// Hues of ops there are in the style.
const HUES: usize = 8;
/// Dispatches drawn of a step: a page of every range of a long prompt would be megabytes.
const DRAWN: usize = 4000;

/// The page.
pub fn page(profile: &Profile<'_>) -> String {
    let mut out = String::with_capacity(1 << 16);
    // Writing to a string does not fail.
    let _ = write_page(&mut out, profile);
    out
}

fn write_page(out: &mut String, profile: &Profile<'_>) -> fmt::Result {
    let name = Text(&profile.plan.model.name);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{name}: profile</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{name}</h1>\n"
    )?;
    for line in text::head(profile) {
        writeln!(out, "<p class=\"soft\">{}</p>", Text(&line))?;
    }
    writeln!(out, "</header>")?;
    for phase in &profile.phases {
        section(out, profile, phase)?;
    }
    writeln!(out, "</main>\n</body>\n</html>")
}

fn section(out: &mut String, profile: &Profile<'_>, phase: &Phase) -> fmt::Result {
    let (name, title) = (phase.name, text::title(phase));
    writeln!(out, "<section aria-labelledby=\"{name}\">\n<h2 id=\"{name}\">{}</h2>", Text(&title))?;
    for line in text::accounts(profile, phase) {
        writeln!(out, "<p>{}</p>", Text(&line))?;
    }
    // Of several steps the one with the most work says most of what there is to see.
    let drawn = phase.steps.iter().max_by_key(|step| (step.shape.tokens, step.shape.kv_max));
    if let Some(step) = drawn {
        timeline(out, profile, phase, step)?;
    }
    let caption = format!("Kernels of {name}, a step, by time");
    writeln!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\n<table>\n\
         <caption>{caption}</caption>\n<thead><tr>"
    )?;
    for head in text::HEADER {
        writeln!(out, "<th scope=\"col\">{head}</th>")?;
    }
    writeln!(out, "</tr></thead>\n<tbody>")?;
    let rows = rows::of(profile.plan, phase);
    let total = rows::total(profile.plan, phase);
    for (hue, row) in
        rows.iter().map(|row| Some(hue(&rows, &row.op))).chain([None]).zip(rows.iter().chain([&total]))
    {
        let [kernel, cells @ ..] =
            text::cells(row, phase.steps.len(), total.seconds, profile.ceilings.as_ref().ok());
        let key = hue.map_or(String::new(), |hue| format!("<span class=\"key h{hue}\"></span>"));
        write!(out, "<tr><th scope=\"row\">{key}{}</th>", Text(&kernel))?;
        for cell in cells {
            write!(out, "<td>{}</td>", Text(&cell))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>\n</section>")
}

/// The colour of an op: the ops that take longest have one each, the rest share the last.
fn hue(rows: &[rows::Row], op: &str) -> usize {
    let mut ops: Vec<&str> = Vec::new();
    for row in rows {
        if !ops.contains(&row.op.as_str()) {
            ops.push(&row.op);
        }
    }
    ops.iter().position(|known| *known == op).unwrap_or(HUES).min(HUES - 1)
}

/// The layer of a label: what stands up to its number, or the whole.
fn layer(label: &str) -> &str {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut end = 0;
    for part in label.split('.') {
        end += part.len();
        if number(part) {
            return &label[..end];
        }
        end += 1;
    }
    label
}

/// A step from left to right: whole, by layer, by dispatch.
fn timeline(out: &mut String, profile: &Profile<'_>, phase: &Phase, step: &StepProfile) -> fmt::Result {
    let Some(program) = profile.plan.programs.get(step.program) else { return Ok(()) };
    let label =
        |sample: &Sample| program.dispatches.get(sample.dispatch as usize).map_or("", |d| d.label.as_str());
    let all: f64 = step.samples.iter().map(|s| s.seconds).sum();
    let scale = WIDTH / all.max(f64::MIN_POSITIVE);
    let (name, height) = (phase.name, 3.0 * LINE);
    let words = format!(
        "{} dispatches in {:.3} ms, from left to right: the step, its layers, its dispatches. The table below has the sums.",
        step.samples.len(),
        1e3 * all
    );
    writeln!(
        out,
        "<figure>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{name}-title {name}-desc\">\n\
         <title id=\"{name}-title\">One step of {name} as a timeline</title>\n<desc id=\"{name}-desc\">{}</desc>",
        Text(&words)
    )?;
    bar(out, "whole", (0.0, WIDTH, 0.0), program.name.as_str(), all)?;
    let mut groups: Vec<(&str, f64, f64)> = Vec::new();
    for sample in &step.samples {
        let layer = layer(label(sample));
        match groups.last_mut() {
            Some(last) if last.0 == layer => last.2 += sample.seconds,
            _ => groups.push((layer, sample.start, sample.seconds)),
        }
    }
    for (layer, start, seconds) in groups.into_iter().take(DRAWN) {
        bar(out, "layer", (start * scale, seconds * scale, LINE), layer, seconds)?;
    }
    let rows = rows::of(profile.plan, phase);
    for sample in step.samples.iter().take(DRAWN) {
        let (label, class) = (label(sample), format!("h{}", hue(&rows, &rows::op(label(sample)))));
        bar(out, &class, (sample.start * scale, sample.seconds * scale, 2.0 * LINE), label, sample.seconds)?;
    }
    let more = step.samples.len().saturating_sub(DRAWN);
    let cut = if more > 0 { format!(" The last {more} are not drawn.") } else { String::new() };
    writeln!(
        out,
        "</svg>\n<figcaption>One step, {} tokens, {:.3} ms of dispatches: the step, its layers, its dispatches. Colours \
         are those of the table.{cut}</figcaption>\n</figure>",
        step.shape.tokens,
        1e3 * all
    )
}

/// A block with its name where there is room, and with name and time for whoever points at it.
fn bar(
    out: &mut String,
    class: &str,
    (x, width, y): (f64, f64, f64),
    name: &str,
    seconds: f64,
) -> fmt::Result {
    let name = Text(name);
    writeln!(
        out,
        "<g><title>{name}: {:.1} µs</title><rect class=\"{class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\"/>",
        1e6 * seconds,
        width.max(0.05),
        LINE - 2.0
    )?;
    if width > 7.5 * name.0.len() as f64 {
        writeln!(out, "<text x=\"{:.2}\" y=\"{}\">{name}</text>", x + 3.0, y + LINE - 9.0)?;
    }
    writeln!(out, "</g>")
}

#[cfg(test)]
mod tests {
    use super::layer;

    #[test]
    fn layers_end_at_their_number() {
        assert_eq!(layer("blk.3.attn.rope_kv"), "blk.3");
        assert_eq!(layer("head"), "head");
        assert_eq!(layer("a.b"), "a.b");
        assert_eq!(layer(""), "");
    }
}
