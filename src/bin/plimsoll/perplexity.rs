//! `plimsoll perplexity`.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::failure::Failure;
use crate::{load, output, show, text};
use indicatif::ProgressBar;
use plimsoll::estimator::cli::bytes::{self, grouped};
use plimsoll::models::ModelError;
use plimsoll::runtime::evaluate::{Score, window_from, windows};
use plimsoll::{Opened, Tokenizer};
use serde::Serialize;
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// The text
    #[arg(long, value_name = "FILE", required_unless_present = "documents")]
    pub file: Option<PathBuf>,
    /// Windows of this many tokens, BOS first where the model has that rule; the second half of each is scored, the
    /// tail shorter than a window dropped
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = bytes::count)]
    pub window: u32,
    /// Documents instead of windows, each scored by itself: every token from BOS to the end-of-text token after it.
    /// They stand in FILE between lines that read `=====`. Beside --file, the line that stands between them there
    #[arg(long, value_name = "FILE|LINE", conflicts_with = "window")]
    pub documents: Option<String>,
    /// With --file and --documents, score the model's end-of-text token after each, too
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

/// The line between documents of a file that has no other.
const SEPARATOR: &str = "=====";

/// How a text is cut, and what of it is scored.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Rule<'a> {
    Windows { window: u32 },
    Documents { documents: &'a str, score_eos: bool },
}

impl Args {
    /// The text's file and the rule.
    fn rule(&self) -> (PathBuf, Rule<'_>) {
        match (&self.file, &self.documents) {
            (Some(file), None) => (file.clone(), Rule::Windows { window: self.window }),
            (Some(file), Some(line)) => {
                (file.clone(), Rule::Documents { documents: line, score_eos: self.score_eos })
            }
            (None, file) => {
                let file = PathBuf::from(file.as_deref().unwrap_or_default());
                (file, Rule::Documents { documents: SEPARATOR, score_eos: true })
            }
        }
    }
}

/// A sequence, and its first token that is scored.
type Part = (Vec<u32>, usize);

impl Rule<'_> {
    fn parts(&self, tokenizer: &Tokenizer, text: &str, limit: usize) -> Result<Vec<Part>, ModelError> {
        let (separator, score_eos) = match self {
            Rule::Documents { documents, score_eos } => (documents, *score_eos),
            Rule::Windows { window } => {
                let window = *window as usize;
                let ids = tokenizer.encode(text, true, false)?;
                let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
                let windows = windows(&ids, window, bos).take(limit);
                return Ok(windows.map(|ids| (ids, window_from(window))).collect());
            }
        };
        let mut parts = Vec::new();
        for document in documents(text, separator).into_iter().take(limit) {
            let mut ids = tokenizer.encode(document, true, false)?;
            if let Some(bos) = tokenizer.bos().filter(|bos| ids.first() != Some(bos)) {
                ids.insert(0, bos);
            }
            if let Some(eos) = tokenizer.eos().filter(|eos| score_eos && ids.last() != Some(eos)) {
                ids.push(eos);
            }
            parts.push((ids, 1));
        }
        Ok(parts)
    }

    /// Why a text gives nothing to score: it was cut into nothing, or nothing of a part is scored.
    fn nothing_to_score(&self, no_part: bool) -> String {
        match self {
            Rule::Windows { window } => format!("it has fewer tokens than one window of {window}"),
            Rule::Documents { documents, .. } if no_part => {
                let line = documents.trim_end_matches(['\n', '\r']);
                format!(
                    "it has no document: there is no text before, between or after lines that read {line:?}"
                )
            }
            Rule::Documents { .. } => {
                "no document has a token after its first, to be scored from it".to_owned()
            }
        }
    }

    /// What it cuts a text into.
    fn unit(&self) -> &'static str {
        match self {
            Rule::Windows { .. } => "window",
            Rule::Documents { .. } => "document",
        }
    }
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

/// The most bytes of a text that is scored: all of it is tokenized at once, which takes a hundred times its memory.
const MOST_TEXT: u64 = 64 << 20;

fn read(path: &Path) -> Result<String, Failure> {
    let text = std::fs::File::open(path).and_then(|file| {
        let long =
            || std::io::Error::other(format!("expected a text of at most {MOST_TEXT} bytes, got more"));
        text::bounded(file, MOST_TEXT)?.ok_or_else(long)
    });
    text.map_err(|error| Failure::file("read", path, error))
}

/// Scores the file.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.model.expect_weights()?;
    let (file, rule) = args.rule();
    if let Rule::Windows { window } = rule {
        if window_from(window as usize) >= window as usize {
            let text = format!("--window: expected at least 3 tokens, so that one is scored, got {window}");
            return Err(Failure::usage(text));
        }
        if let Some(context) = args.geometry.context.filter(|&context| window > context) {
            let text = format!("--window {window} is longer than --context {context}");
            return Err(Failure::usage(text));
        }
    }
    let opened: Opened = args.model.open()?;
    let text = read(&file)?;
    let limit = args.limit.map_or(usize::MAX, |n| n as usize);
    let parts = rule.parts(&*opened.tokenizer()?, &text, limit)?;
    let longest = parts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    if parts.iter().all(|(ids, from)| ids.len() <= *from) {
        let reason = rule.nothing_to_score(parts.is_empty());
        return Err(Failure::file("score", &file, std::io::Error::other(reason)));
    }
    let context = u32::try_from(longest).unwrap_or(u32::MAX).max(1);
    let mut geometry = args.geometry.resolve(&opened.model, Some(context));
    // The last token of a part is only scored.
    load::check_length(&geometry, longest.saturating_sub(1), 0)?;
    geometry.logit_rows = load::scoring_rows(&opened, &geometry);
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut engine, _) = ready.engine(&opened)?;

    let bar = ProgressBar::new(parts.len() as u64);
    let mut score = Score::default();
    let (mut running, mut each) = (Vec::new(), Vec::new());
    for (ids, from) in &parts {
        let part = engine.score(ids, *from)?;
        each.push(part.mean_nll());
        score.add(part);
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
    let name = engine.plan().model.name.clone();
    let mut document = load::end(engine, &args.machine, &args.output)?;
    document["schema"] = json!(1);
    document["mean_nll"] = json!(score.mean_nll());
    document["scored_tokens"] = json!(score.tokens);
    document["perplexity"] = json!(score.perplexity());
    document["parts"] = json!(parts.len());
    document["mean_nll_by_part"] = json!(each);
    document["running_perplexity"] = json!(running);
    document["rule"] = json!(rule);
    // Scripts get the document, asked for or not; people get a table.
    if args.output.json || !std::io::stdout().is_terminal() {
        return Ok(output::document(&document)?);
    }
    Ok(output::print(format_args!("{}\n", table(&name, &rule, parts.len(), &score)))?)
}

/// The score for people.
fn table(model: &str, rule: &Rule<'_>, parts: usize, score: &Score) -> String {
    let mut table = show::table(&[model, ""], &[1]);
    let mut row = |name: String, value: String| {
        table.add_row([name, value]);
    };
    row(format!("{}s", rule.unit()), grouped(parts as u64));
    row("tokens scored".into(), grouped(score.tokens));
    if let (Some(mean), Some(perplexity)) = (score.mean_nll(), score.perplexity()) {
        row("mean loss, nats a token".into(), format!("{mean:.5}"));
        row("perplexity".into(), format!("{perplexity:.4}"));
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_lie_between_lines() {
        let text = "a\nb ===\n===\nc\n===\n===\r\nd";
        assert_eq!(documents(text, "==="), ["a\nb ===\n", "c\n", "d"]);
        assert_eq!(documents(text, "===\n"), documents(text, "==="));
        assert_eq!(documents("", "==="), [""; 0]);
    }

    #[test]
    fn people_get_the_mean_and_its_exponential() {
        let score = Score { nll: 3.0 * 1.5, tokens: 3 };
        let rule = Rule::Documents { documents: SEPARATOR, score_eos: true };
        let text = table("demo", &rule, 2, &score);
        for part in ["demo", "documents", "tokens scored", "1.50000", "4.4817"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
