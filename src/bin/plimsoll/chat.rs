//! `plimsoll chat`: a conversation on standard input and output.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output, SamplingArgs};
use crate::failure::Failure;
use crate::{load, output};
use plimsoll::runtime::RuntimeError;
use plimsoll::{ChatTemplate, GenerateOptions, Message, RenderOptions, Session};
use serde_json::json;
use std::io::{self, BufRead, IsTerminal};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

/// Talks until the input ends, or `/quit`.
pub fn run(args: &Args) -> Result<(), Failure> {
    let opened = args.model.open()?;
    let template = opened.template()?;
    let options = args.sampling.options().for_chat();
    options.sampler.validate().map_err(RuntimeError::from)?;
    let geometry = args.geometry.resolve(&opened, None);
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut session, _) = ready.session(&opened)?;

    let mut messages: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
    let asks = io::stdin().is_terminal();
    if asks {
        output::note(format_args!(
            "one line is one message; /quit or the end of input ends the conversation"
        ));
    }
    loop {
        if asks {
            output::note(format_args!("\n>"));
        }
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 || line.trim() == "/quit" {
            break;
        }
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        messages.push(Message::new("user", line));
        match answer(&mut session, &template, &messages, &options, !args.output.json) {
            Ok(text) => messages.push(Message::new("assistant", text)),
            // One message that does not fit is not the end of the conversation; a lost device is.
            Err(Failure::Plimsoll(error)) if !device_is_lost(&error) => {
                output::note(format_args!("plimsoll: {error}"));
                messages.pop();
            }
            Err(failure) => return Err(failure),
        }
    }
    if args.output.json {
        let mut document = load::facts(session.engine());
        document["schema"] = json!(1);
        document["messages"] = json!(messages);
        output::document(&document)?;
    }
    Ok(())
}

fn device_is_lost(error: &plimsoll::Error) -> bool {
    matches!(error, plimsoll::Error::Runtime(error) if !error.device_is_usable())
}

fn answer(
    session: &mut Session,
    template: &ChatTemplate,
    messages: &[Message],
    options: &GenerateOptions,
    show: bool,
) -> Result<String, Failure> {
    let render = RenderOptions { add_generation_prompt: true, ..Default::default() };
    let prompt = template.render(messages, &render)?;
    let mut text = String::new();
    for piece in session.generate(&prompt, options)? {
        let piece = piece?;
        if show {
            output::print(format_args!("{piece}"))?;
        }
        text.push_str(&piece);
    }
    if show {
        output::print(format_args!("\n"))?;
    }
    Ok(text)
}
