//! `plimsoll logits`: for those who check an engine.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::bytes;
use crate::failure::Failure;
use crate::{load, output};
use clap::ValueEnum;
use plimsoll::runtime::RuntimeError;
use plimsoll::runtime::sampler::{Row, Sampler, log_sum_exp};
use plimsoll::{Engine, Runtime, SamplerOptions};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;
use std::io;
use std::path::PathBuf;

/// Which positions of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Positions {
    /// Every one
    All,
    /// The last
    Last,
}

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// Token ids, separated by commas
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        required_unless_present = "prompt",
        conflicts_with = "prompt"
    )]
    pub ids: Vec<u32>,
    /// A text, with the model's own BOS rule
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Positions of the prompt whose logits are written
    #[arg(long, value_enum, default_value_t = Positions::All)]
    pub positions: Positions,
    /// Generate this many tokens greedily, past any end token
    #[arg(long, value_name = "N", value_parser = bytes::count)]
    pub generate: Option<u32>,
    /// The safetensors file: logits [positions, V] f32, token_ids [prompt + generated] i32, generated_logits [N, V]
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

/// What is written.
struct Rows {
    ids: Vec<u32>,
    logits: Vec<f32>,
    generated: Vec<f32>,
}

/// Runs the sequence and writes the file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let opened = args.model.open()?;
    output::spares("--out", &args.out, &opened.checkpoint.files())?;
    let ids = match &args.prompt {
        Some(text) => opened.tokenizer()?.encode(text, true, false)?,
        None => args.ids.clone(),
    };
    let new = args.generate.unwrap_or(0);
    let needed = u32::try_from(ids.len()).unwrap_or(u32::MAX).saturating_add(new).max(1);
    let mut geometry = args.geometry.resolve(&opened.model, Some(needed));
    if args.positions == Positions::All {
        geometry.logit_rows = load::scoring_rows(&opened, &geometry);
    }
    load::check(&opened, &geometry, &ids, new)?;
    output::writable(&args.out)?;
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut engine, _) = ready.engine(&opened)?;
    let vocab = engine.plan().model.vocab as usize;
    let rows = collect(&mut engine, ids, args.positions, new)?;
    write(args, vocab, &rows)?;
    let mut document = load::end(engine, &args.machine, &args.output)?;
    if args.output.json {
        document["schema"] = json!(1);
        document["out"] = json!(args.out);
        document["token_ids"] = json!(rows.ids);
        document["positions"] = json!(rows.logits.len() / vocab.max(1));
        document["generated"] = json!(new);
        Ok(output::document(&document)?)
    } else {
        Ok(output::print(format_args!(
            "{}: {}, {new} generated\n",
            args.out.display(),
            output::count(rows.logits.len() / vocab.max(1), "position")
        ))?)
    }
}

fn collect(
    engine: &mut Engine<Runtime>,
    prompt: Vec<u32>,
    positions: Positions,
    new: u32,
) -> Result<Rows, RuntimeError> {
    let mut rows = Rows { ids: prompt, logits: Vec::new(), generated: Vec::new() };
    let prompt = rows.ids.clone();
    let from = match positions {
        Positions::All => 0,
        Positions::Last => prompt.len().saturating_sub(1),
    };
    let room = prompt.len().saturating_add(new as usize);
    let mut feed = engine.feed(room)?;
    let mut last = Vec::new();
    feed.push(&prompt, from, |i, row| {
        // A row that is not made of numbers is an error and no result.
        log_sum_exp(row)?;
        rows.logits.extend_from_slice(row);
        if i + 1 == prompt.len() {
            last = row.to_vec();
        }
        Ok(())
    })?;
    let mut greedy = Sampler::new(SamplerOptions::default(), &prompt)?;
    for made in 1..=new {
        let chosen = greedy.choose(Row::Logits(&last))?.id;
        rows.generated.extend_from_slice(&last);
        rows.ids.push(chosen);
        if made < new {
            feed.push(&[chosen], 0, |_, row| {
                last = row.to_vec();
                Ok(())
            })?;
        }
    }
    Ok(rows)
}

fn write(args: &Args, vocab: usize, rows: &Rows) -> Result<(), Failure> {
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let (logits, generated) = (floats(&rows.logits), floats(&rows.generated));
    let ids: Vec<u8> = rows.ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect();
    let failed =
        |error: SafeTensorError| Failure::file("write", &args.out, io::Error::other(error.to_string()));
    let matrix =
        |bytes| TensorView::new(Dtype::F32, vec![bytes_rows(bytes, vocab), vocab], bytes).map_err(failed);
    let mut tensors = vec![
        ("logits", matrix(&logits)?),
        ("token_ids", TensorView::new(Dtype::I32, vec![rows.ids.len()], &ids).map_err(failed)?),
    ];
    if args.generate.is_some() {
        tensors.push(("generated_logits", matrix(&generated)?));
    }
    let bytes = serialize(tensors, None).map_err(failed)?;
    Ok(output::file(&args.out, &bytes)?)
}

/// Rows of `vocab` f32 values.
fn bytes_rows(bytes: &[u8], vocab: usize) -> usize {
    bytes.len() / 4 / vocab.max(1)
}
