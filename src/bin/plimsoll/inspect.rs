//! `plimsoll inspect`.

use crate::args::{ModelArg, Output};
use crate::failure::Failure;
use plimsoll::estimator::cli::bytes::{grouped, human};
use plimsoll::estimator::cli::{output, show};
use plimsoll::models::zoo::stated;
use plimsoll::{ChatTemplate, Checkpoint, Registry, Tokenizer};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub output: Output,
}

/// Describes a checkpoint. One whose architecture is not in the zoo can still be looked at.
pub fn run(args: &Args) -> Result<(), Failure> {
    let checkpoint = args.model.checkpoint()?;
    if args.output.json { document(&checkpoint) } else { tables(&checkpoint, args.output.verbose > 0) }
}

/// Tensors and bytes of each format.
fn formats(checkpoint: &Checkpoint) -> BTreeMap<String, (u64, u64)> {
    let mut formats = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let entry: &mut (u64, u64) = formats.entry(tensor.dtype.to_string()).or_default();
        entry.0 += 1;
        entry.1 += tensor.bytes;
    }
    formats
}

fn document(checkpoint: &Checkpoint) -> Result<(), Failure> {
    let model = match Registry::standard().build(checkpoint) {
        Ok(model) => json!({
            "family": model.architecture, "parameters": model.parameters(), "context_max": model.context_max,
            "vocab": model.vocab, "hidden": model.hidden, "layers": model.layers, "notes": model.notes,
        }),
        Err(error) => json!({"error": error.to_string()}),
    };
    let tokenizer = match Tokenizer::from_checkpoint(checkpoint) {
        Ok(Some(t)) => json!({
            "tokens": t.vocab_size(), "bos": t.bos(), "eos": t.eos(), "adds_bos": t.adds_bos(),
            "end_of_generation": t.end_of_generation(),
        }),
        Ok(None) => Value::Null,
        Err(error) => json!({"error": error.to_string()}),
    };
    let template = match ChatTemplate::from_checkpoint(checkpoint) {
        Ok(Some(template)) => json!({"source": template.source()}),
        Ok(None) => Value::Null,
        Err(error) => json!({"error": error.to_string()}),
    };
    let tensors: Vec<Value> = checkpoint
        .tensors()
        .map(|t| json!({"name": t.name, "shape": t.shape, "format": t.dtype.to_string(), "bytes": t.bytes}))
        .collect();
    let formats: BTreeMap<String, Value> = formats(checkpoint)
        .into_iter()
        .map(|(name, (tensors, bytes))| (name, json!({"tensors": tensors, "bytes": bytes})))
        .collect();
    Ok(output::document(&json!({
        "schema": 1,
        "name": checkpoint.name(),
        "source": checkpoint.source().to_string(),
        "architecture": stated(checkpoint),
        "checkpoint_bytes": checkpoint.checkpoint_bytes(),
        "model": model,
        "tokenizer": tokenizer,
        "chat_template": template,
        "formats": formats,
        "tensors": tensors,
    }))?)
}

fn tables(checkpoint: &Checkpoint, verbose: bool) -> Result<(), Failure> {
    let mut about = show::table(&[checkpoint.name(), ""], &[]);
    let mut row = |name: &str, value: String| {
        about.add_row([name.to_owned(), value]);
    };
    row("source", checkpoint.source().to_string());
    row("architecture", stated(checkpoint).unwrap_or_else(|| "not stated".into()));
    match Registry::standard().build(checkpoint) {
        Ok(model) => {
            row("family", model.architecture.clone());
            row("parameters", grouped(model.parameters()));
            row("layers", model.layers.to_string());
            row("hidden", model.hidden.to_string());
            row("vocabulary", grouped(model.vocab.into()));
            row("context", grouped(model.context_max.into()));
            for note in &model.notes {
                row("note", note.clone());
            }
        }
        Err(error) => row("cannot run", error.to_string()),
    }
    row("tensors", checkpoint.tensors().len().to_string());
    row(
        "bytes",
        format!("{} ({})", grouped(checkpoint.checkpoint_bytes()), human(checkpoint.checkpoint_bytes())),
    );
    match Tokenizer::from_checkpoint(checkpoint) {
        Ok(Some(t)) => {
            let id = |id: Option<u32>| {
                id.map_or("none".to_owned(), |id| format!("{id} {}", t.token(id).unwrap_or_default()))
            };
            let added = if t.adds_bos() { " (added)" } else { "" };
            row("tokenizer", format!("{} tokens", grouped(t.vocab_size() as u64)));
            row("BOS", id(t.bos()) + added);
            row("EOS", id(t.eos()));
        }
        Ok(None) => row("tokenizer", "none".into()),
        Err(error) => row("tokenizer", error.to_string()),
    }
    row(
        "chat template",
        match ChatTemplate::from_checkpoint(checkpoint) {
            Ok(Some(template)) => format!("{} bytes", grouped(template.source().len() as u64)),
            Ok(None) => "none".into(),
            Err(error) => error.to_string(),
        },
    );
    output::print(format_args!("{about}\n"))?;
    let mut table = show::table(&["format", "tensors", "bytes", ""], &[1, 2, 3]);
    for (name, (tensors, bytes)) in formats(checkpoint) {
        table.add_row([name, tensors.to_string(), grouped(bytes), human(bytes)]);
    }
    output::print(format_args!("{table}\n"))?;
    if verbose {
        let mut table = show::table(&["tensor", "shape", "format", "bytes"], &[3]);
        for tensor in checkpoint.tensors() {
            let shape = format!("{:?}", tensor.shape);
            table.add_row([tensor.name.clone(), shape, tensor.dtype.to_string(), grouped(tensor.bytes)]);
        }
        output::print(format_args!("{table}\n"))?;
    }
    Ok(())
}
