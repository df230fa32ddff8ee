//! `plimsoll perplexity`.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::bytes;
use crate::failure::Failure;
use crate::{load, output, run};
use indicatif::ProgressBar;
use plimsoll::runtime::evaluate::{Score, window_from, windows};
use plimsoll::{Opened, Tokenizer};
use serde_json::json;
use std::path::PathBuf;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// The text
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Windows of this many tokens, BOS first where the model has that rule; the second half of each is scored, the
    /// tail shorter than a window dropped
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = bytes::count)]
    pub window: u32,
    /// Instead of windows, documents between lines that read SEP: each by itself, from BOS to its end
    #[arg(long, value_name = "SEP", conflicts_with = "window")]
    pub documents: Option<String>,
    /// With --documents, score the model's end-of-text token after each, too
    #[arg(long, requires = "documents")]
    pub score_eos: bool,
    /// At most this many windows or documents
    #[arg(long, value_name = "N", value_parser = bytes::count)]
    pub limit: Option<u32>,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

/// A sequence, and its first token that is scored.
type Part = (Vec<u32>, usize);

fn parts(args: &Args, tokenizer: &Tokenizer, text: &str) -> Result<Vec<Part>, Failure> {
    let limit = args.limit.map_or(usize::MAX, |n| n as usize);
    let Some(separator) = &args.documents else {
        let window = args.window as usize;
        let ids = tokenizer.encode(text, true, false)?;
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        return Ok(windows(&ids, window, bos).take(limit).map(|ids| (ids, window_from(window))).collect());
    };
    let mut parts = Vec::new();
    for document in documents(text, separator).into_iter().take(limit) {
        let mut ids = tokenizer.encode(document, true, false)?;
        if let Some(bos) = tokenizer.bos().filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        if let Some(eos) = tokenizer.eos().filter(|eos| args.score_eos && ids.last() != Some(eos)) {
            ids.push(eos);
        }
        parts.push((ids, 1));
    }
    Ok(parts)
}

/// The texts between lines that read `separator`; empty ones are none.
fn documents<'t>(text: &'t str, separator: &str) -> Vec<&'t str> {
    let mut documents = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches(['\n', '\r']) == separator.trim_end_matches(['\n', '\r']) {
            documents.push(&text[start..at]);
            start = at + line.len();
        }
        at += line.len();
    }
    documents.push(&text[start..]);
    documents.retain(|document| !document.is_empty());
    documents
}

/// Scores the file.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.model.path()?;
    if args.documents.is_none() && window_from(args.window as usize) >= args.window as usize {
        let text =
            format!("--window: expected at least 3 tokens, so that one is scored, got {}", args.window);
        return Err(Failure::Usage(text));
    }
    if let Some(context) = args.geometry.context.filter(|&c| args.documents.is_none() && args.window > c) {
        let text = format!("--window {} is longer than --context {context}", args.window);
        return Err(Failure::Usage(text));
    }
    let opened: Opened = args.model.open()?;
    let text = run::read_text(&args.file)?;
    let parts = parts(args, &*opened.tokenizer()?, &text)?;
    let longest = parts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    if parts.is_empty() {
        let what = if args.documents.is_some() { "a document" } else { "one window" };
        let reason = std::io::Error::other(format!("its text is shorter than {what}"));
        return Err(Failure::file("read", &args.file, reason));
    }
    let context = u32::try_from(longest).unwrap_or(u32::MAX).max(1);
    let mut geometry = args.geometry.resolve(&opened, Some(context));
    // The last token of a part is only scored.
    load::check_length(&geometry, longest.saturating_sub(1), 0)?;
    geometry.logit_rows = load::scoring_rows(&opened, &geometry);
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut engine, _) = ready.engine(&opened)?;

    let bar = ProgressBar::new(parts.len() as u64);
    let mut score = Score::default();
    let mut running = Vec::new();
    for (ids, from) in &parts {
        score.add(engine.score(ids, *from)?);
        running.push(score.perplexity());
        if let Some(perplexity) = score.perplexity() {
            bar.set_message(format!("{perplexity:.4}"));
        }
        bar.inc(1);
        if args.output.verbose > 0 {
            output::note(format_args!(
                "[{}] perplexity so far {:.6}",
                running.len(),
                score.perplexity().unwrap_or(f64::NAN)
            ));
        }
    }
    bar.finish_and_clear();
    let mut document = load::facts(&engine);
    document["schema"] = json!(1);
    document["mean_nll"] = json!(score.mean_nll());
    document["scored_tokens"] = json!(score.tokens);
    document["perplexity"] = json!(score.perplexity());
    document["parts"] = json!(parts.len());
    document["running_perplexity"] = json!(running);
    document["rule"] = match &args.documents {
        Some(separator) => json!({"documents": separator, "score_eos": args.score_eos}),
        None => json!({"window": args.window}),
    };
    output::document(&document)
}

#[cfg(test)]
mod tests {
    use super::documents;

    #[test]
    fn documents_lie_between_lines() {
        let text = "a\nb ===\n===\nc\n===\n===\r\nd";
        assert_eq!(documents(text, "==="), ["a\nb ===\n", "c\n", "d"]);
        assert_eq!(documents(text, "===\n"), documents(text, "==="));
        assert_eq!(documents("", "==="), [""; 0]);
    }
}
