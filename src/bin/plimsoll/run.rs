//! `plimsoll run`: the main job.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output, SamplingArgs};
use crate::failure::Failure;
use crate::text::Most;
use crate::{account, load, output};
use plimsoll::{GenerateOptions, Geometry, Message, Opened, RenderOptions};
use serde_json::json;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Instant;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// The prompt; without it (and without --file) standard input is read
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Put the prompt into the model's chat template, as one question
    #[arg(long)]
    pub chat: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

fn prompt(args: &Args, most: Most) -> Result<String, Failure> {
    match (&args.prompt, &args.file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) => most.file(path),
        (None, None) if io::stdin().is_terminal() => {
            Err(Failure::usage("no prompt: give --prompt TEXT, --file FILE, or standard input".into()))
        }
        (None, None) => most.read(io::stdin().lock())?,
    }
}

/// The prompt and its ids, and how it is continued.
fn question(
    args: &Args,
    opened: &Opened,
    geometry: &Geometry,
    mut options: GenerateOptions,
) -> Result<(String, Vec<u32>, GenerateOptions), Failure> {
    let tokenizer = opened.tokenizer()?;
    let mut text = prompt(args, Most::of(geometry, &tokenizer))?;
    if args.chat {
        let render = RenderOptions { add_generation_prompt: true, ..Default::default() };
        text = opened.template()?.render(&[Message::new("user", text)], &render)?;
        options = options.for_chat();
    }
    load::check_text(geometry, &tokenizer, &text)?;
    let ids = tokenizer.encode(&text, options.add_special, options.parse_special)?;
    Ok((text, ids, options))
}

/// Continues the prompt.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.model.expect_weights()?;
    let options = args.sampling.options()?;
    let opened = args.model.open()?;
    load::check_stops(&opened, &options)?;
    let geometry = args.geometry.resolve(&opened.model, None);
    let (prompt, ids, options) = question(args, &opened, &geometry, options)?;
    load::check(&opened, &geometry, &ids, options.max_new.unwrap_or(1))?;
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut session, load_time) = ready.session(&opened)?;
    if args.output.verbose > 0 {
        output::note(format_args!("{}", account::table(&session.engine().stepper().account())));
    }

    let start = Instant::now();
    let bar = load::prefill_bar(ids.len() as u64);
    let mut generation = session.generate_ids(&ids, &options)?.on_prefill(|done, total| {
        bar.set_position(done.into());
        if done == total {
            bar.finish_and_clear();
        }
    });
    // People see the sentence whole; standard output has the continuation alone. Not before the bar is gone.
    let mut unsaid = (args.output.verbose > 0 && !args.output.json).then_some(prompt);
    let mut say_prompt = || {
        if let Some(prompt) = unsaid.take() {
            output::hint(format_args!("{prompt}"));
        }
    };
    let mut first = None;
    let mut text = String::new();
    while let Some(piece) = generation.next() {
        let piece = piece?;
        say_prompt();
        first.get_or_insert_with(|| (start.elapsed(), generation.tokens().len()));
        if args.output.json {
            text.push_str(&piece);
        } else {
            output::print(format_args!("{piece}"))?;
        }
    }
    say_prompt();
    let total = start.elapsed();
    let tokens = generation.tokens().to_vec();
    let finish = generation.finish_reason();
    drop(generation);
    if !args.output.json {
        output::print(format_args!("\n"))?;
    }
    let (first_time, first_tokens) = first.unwrap_or((total, tokens.len()));
    let later = (tokens.len() - first_tokens) as f64;
    let decode = later / (total - first_time).as_secs_f64();
    let decode = (later > 0.0 && decode.is_finite()).then_some(decode);
    if args.output.verbose > 0 {
        output::note(format_args!(
            "loaded in {:.2} s; {}, first text after {:.2} s; {}{}; ended by {}",
            load_time.as_secs_f64(),
            output::count(ids.len(), "prompt token"),
            first_time.as_secs_f64(),
            output::count(tokens.len(), "new token"),
            decode.map_or(String::new(), |rate| format!(", {rate:.1} a second")),
            finish.map_or("an error", |f| f.name())
        ));
    }
    if args.output.verbose > 0 {
        output::note(format_args!("{}", session.engine().telemetry()));
    }
    let mut document = load::end(session.into_engine(), &args.machine, &args.output)?;
    if args.output.json {
        document["schema"] = json!(1);
        document["text"] = json!(text);
        document["prompt_ids"] = json!(ids);
        document["token_ids"] = json!(tokens);
        document["finish"] = json!(finish.map(|f| f.name()));
        document["seconds"] = json!({
            "load": load_time.as_secs_f64(), "first_text": first_time.as_secs_f64(), "generation": total.as_secs_f64(),
        });
        document["decode_tokens_per_second"] = json!(decode);
        output::document(&document)?;
    }
    Ok(())
}
