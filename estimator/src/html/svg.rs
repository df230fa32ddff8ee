//! The pictures: a stacked bar and a line, drawn as SVG with a title each.

use crate::error::human;
use crate::report::Bytes;
use std::fmt::{self, Write};

/// Width of a drawing in its own units; it scales to the page.
const WIDTH: f64 = 640.0;

/// What a line chart says beside its points.
pub(super) struct Axes {
    pub title: &'static str,
    pub x: &'static str,
    /// A number of the vertical axis in words.
    pub y: fn(f64) -> String,
    /// A horizontal line not to be crossed.
    pub limit: Option<f64>,
}

/// The segments side by side, and what is left of the budget or what is beyond it.
pub(super) fn bar(out: &mut String, bytes: &Bytes, budget: Option<u64>) -> fmt::Result {
    let total = bytes.total.max(1);
    let whole = total.max(budget.unwrap_or(0)) as f64;
    let words: Vec<String> = bytes
        .segments()
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{name} {}", human(bytes)))
        .collect();
    let against = budget.map_or(String::new(), |b| format!(", of a budget of {}", human(b)));
    writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} 92\" role=\"img\" aria-labelledby=\"bar-title bar-desc\">\n\
         <title id=\"bar-title\">Memory by segment</title>\n<desc id=\"bar-desc\">{}, {} in all{against}</desc>",
        words.join(", "),
        human(total)
    )?;
    writeln!(out, "<rect x=\"0\" y=\"14\" width=\"{WIDTH}\" height=\"46\" rx=\"4\" fill=\"var(--free)\"/>")?;
    let mut x = 0.0;
    for (name, bytes) in bytes.segments().into_iter().filter(|(_, bytes)| *bytes > 0) {
        let width = bytes as f64 / whole * WIDTH;
        writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"14\" width=\"{:.2}\" height=\"46\" fill=\"var(--{name})\" stroke=\"var(--card)\"/>",
            width.max(0.5)
        )?;
        // A name where there is room for it, under its part.
        if width > 10.0 * name.len() as f64 {
            writeln!(out, "<text x=\"{:.2}\" y=\"78\">{name}</text>", x + 2.0)?;
        }
        x += width;
    }
    if let Some(budget) = budget {
        let at = (budget as f64 / whole * WIDTH).clamp(1.0, WIDTH - 1.0);
        writeln!(out, "<line class=\"limit\" x1=\"{at:.2}\" x2=\"{at:.2}\" y1=\"8\" y2=\"66\"/>")?;
        let (anchor, word) = if at > WIDTH / 2.0 { ("end", at - 4.0) } else { ("start", at + 4.0) };
        writeln!(
            out,
            "<text class=\"tick\" x=\"{word:.2}\" y=\"10\" text-anchor=\"{anchor}\">budget {}</text>",
            human(budget)
        )?;
    }
    writeln!(out, "</svg>")
}

/// Points joined by a line. Horizontal positions are powers of two apart, as contexts and slots are.
pub(super) fn line(out: &mut String, points: &[(f64, f64)], axes: &Axes) -> fmt::Result {
    const HEIGHT: f64 = 260.0;
    const LEFT: f64 = 92.0;
    const RIGHT: f64 = 16.0;
    const TOP: f64 = 16.0;
    const BOTTOM: f64 = 46.0;
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(()) };
    let log = |x: f64| x.max(1.0).log2();
    let (low, high) = (log(first.0), log(last.0));
    let span = if high > low { high - low } else { 1.0 };
    let most = points.iter().map(|p| p.1).chain(axes.limit).fold(1.0, f64::max) * 1.05;
    let at = |(x, y): (f64, f64)| {
        let across = LEFT + (log(x) - low) / span * (WIDTH - LEFT - RIGHT);
        (across, HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM))
    };
    let id = axes.x.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("x");
    let summary =
        format!("from {} at {} {} to {} at {}", (axes.y)(first.1), first.0, axes.x, (axes.y)(last.1), last.0);
    writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n\
         <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-desc\">{summary}</desc>",
        axes.title
    )?;
    for step in 0..=4 {
        let value = most * f64::from(step) / 4.0;
        let (_, y) = at((first.0, value));
        writeln!(
            out,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.2}\" y2=\"{y:.2}\"/>",
            WIDTH - RIGHT
        )?;
        writeln!(
            out,
            "<text class=\"tick\" x=\"{}\" y=\"{:.2}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            (axes.y)(value)
        )?;
    }
    // No more words than fit side by side.
    let every = points.len().div_ceil(7).max(1);
    for (x, _) in points.iter().rev().step_by(every) {
        let (across, _) = at((*x, 0.0));
        let anchor = if across > WIDTH - 60.0 { "end" } else { "middle" };
        writeln!(
            out,
            "<text class=\"tick\" x=\"{across:.2}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            short(*x)
        )?;
    }
    writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        axes.x
    )?;
    if let Some(limit) = axes.limit {
        let (_, y) = at((first.0, limit));
        writeln!(
            out,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.2}\" y2=\"{y:.2}\"/>",
            WIDTH - RIGHT
        )?;
        writeln!(out, "<text x=\"{}\" y=\"{:.2}\">budget</text>", LEFT + 6.0, y - 5.0)?;
    }
    let path: Vec<String> = points.iter().map(|p| at(*p)).map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
    writeln!(out, "<polyline class=\"data\" points=\"{}\"/>", path.join(" "))?;
    for point in points {
        let (x, y) = at(*point);
        writeln!(out, "<circle class=\"dot\" cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"3.5\"/>")?;
    }
    writeln!(out, "</svg>")
}

/// A count in few characters: `8k`, `1M`.
fn short(value: f64) -> String {
    let value = value as u64;
    match value {
        0..1024 => value.to_string(),
        1024..1_048_576 if value.is_multiple_of(1024) => format!("{}k", value / 1024),
        1024..1_048_576 => format!("{:.1}k", value as f64 / 1024.0),
        _ => format!("{:.1}M", value as f64 / 1_048_576.0),
    }
}
