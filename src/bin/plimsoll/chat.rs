//! `plimsoll chat`: a conversation on standard input and output.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output, SamplingArgs};
use crate::failure::Failure;
use crate::{load, output};
use plimsoll::{ChatTemplate, FinishReason, GenerateOptions, Message, RenderOptions, Session};
use serde_json::{Value, json};
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

const COMMANDS: &str = "one line is one message; /reset begins the conversation again, /help shows this, /quit (or \
                        /exit, /bye, or the end of input) ends it";

/// What a conversation that fills the context needs.
const ROOM: &str = "/reset begins again, a larger --context makes room";

/// A line of input.
#[derive(Debug, PartialEq, Eq)]
enum Line<'l> {
    Nothing,
    Quit,
    Reset,
    Help,
    Unknown(&'l str),
    Message(&'l str),
}

impl<'l> Line<'l> {
    fn read(line: &'l str) -> Self {
        match line.trim() {
            "" => Line::Nothing,
            "/quit" | "/exit" | "/bye" => Line::Quit,
            "/reset" => Line::Reset,
            "/help" => Line::Help,
            other if other.starts_with('/') => Line::Unknown(other),
            message => Line::Message(message),
        }
    }
}

/// What has been said.
struct Conversation {
    messages: Vec<Message>,
    /// Messages that begin every conversation.
    fixed: usize,
    /// Messages that had no answer, with the reasons, as documents.
    failed: Vec<Value>,
    /// The exit code of the last of them.
    code: u8,
    answered: usize,
}

/// Talks until the input ends, or `/quit`.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.model.expect_weights()?;
    let options = args.sampling.options()?.for_chat();
    let opened = args.model.open()?;
    let template = opened.template()?;
    let geometry = args.geometry.resolve(&opened.model, None);
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut session, _) = ready.session(&opened)?;

    let messages: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
    let fixed = messages.len();
    let mut talk = Conversation { messages, fixed, failed: Vec::new(), code: 0, answered: 0 };
    let asks = io::stdin().is_terminal();
    if asks {
        output::note(format_args!("{COMMANDS}"));
    }
    loop {
        if asks {
            output::hint(format_args!("> "));
        }
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            break;
        }
        match Line::read(&line) {
            Line::Nothing => {}
            Line::Quit => break,
            Line::Reset => {
                talk.messages.truncate(talk.fixed);
                output::note(format_args!("the conversation begins again"));
            }
            Line::Help => output::note(format_args!("{COMMANDS}")),
            Line::Unknown(command) => output::note(format_args!("no command {command}: {COMMANDS}")),
            Line::Message(text) => {
                talk.messages.push(Message::new("user", text));
                let answered = answer(&mut session, &template, &talk.messages, &options, !args.output.json);
                talk.take(text, answered)?;
            }
        }
    }
    if args.output.json {
        let mut document = load::facts(session.engine(), &args.machine)?;
        document["schema"] = json!(1);
        document["messages"] = json!(talk.messages);
        document["failed"] = json!(talk.failed);
        output::document(&document)?;
    }
    // Somebody at a terminal has seen it; a script looks at the exit code.
    if !asks && talk.answered == 0 && !talk.failed.is_empty() {
        return Err(Failure::Unanswered { messages: talk.failed.len(), code: talk.code });
    }
    Ok(())
}

impl Conversation {
    /// One message that does not fit is not the end of the conversation; a lost device is.
    fn take(&mut self, question: &str, answered: Result<String, Failure>) -> Result<(), Failure> {
        match answered {
            Ok(text) => {
                self.messages.push(Message::new("assistant", text));
                self.answered += 1;
            }
            Err(Failure::Plimsoll(error)) if !device_is_lost(&error) => {
                let permanent = error.is_permanent();
                let failure = Failure::Plimsoll(error);
                self.code = failure.code();
                let message = match self.code {
                    3 => format!("{}; {ROOM}", failure.message()),
                    _ if !permanent => format!("{}; it may be asked again", failure.message()),
                    _ => failure.message(),
                };
                output::note(format_args!("plimsoll: {message}"));
                self.messages.pop();
                // Its place in the conversation is after so many messages.
                let after = self.messages.len();
                self.failed
                    .push(json!({"role": "user", "content": question, "after": after, "error": message, "permanent": permanent}));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }
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
    let ids = session.tokenizer().encode(&prompt, options.add_special, options.parse_special)?;
    let geometry = &session.engine().plan().geometry;
    load::check_length(geometry, ids.len(), 1)?;
    // An answer may be shorter than was allowed for, but not longer than there is room.
    let left = geometry.context.saturating_sub(u32::try_from(ids.len()).unwrap_or(u32::MAX));
    let max_new = options.max_new.map_or(left, |most| most.min(left));
    let options = GenerateOptions { max_new: Some(max_new), ..options.clone() };
    let mut text = String::new();
    let mut generation = session.generate_ids(&ids, &options)?;
    for piece in generation.by_ref() {
        let piece = piece?;
        if show {
            output::print(format_args!("{piece}"))?;
        }
        text.push_str(&piece);
    }
    let full = max_new == left && generation.finish_reason() == Some(FinishReason::Length);
    if show {
        output::print(format_args!("\n"))?;
    }
    if full {
        output::note(format_args!("plimsoll: the answer ends where the context is full; {ROOM}"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn lines() {
        for quit in ["/quit\n", " /exit", "/bye\r\n"] {
            assert_eq!(Line::read(quit), Line::Quit);
        }
        assert_eq!(Line::read("/resets"), Line::Unknown("/resets"));
        assert_eq!(Line::read("\n"), Line::Nothing);
        assert_eq!(Line::read(" Hi /quit\n"), Line::Message("Hi /quit"));
    }
}
