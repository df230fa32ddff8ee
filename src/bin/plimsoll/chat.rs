//! `plimsoll chat`: a conversation on standard input and output.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output, SamplingArgs};
use crate::failure::Failure;
use crate::text::Most;
use crate::{load, output};
use plimsoll::{
    ChatTemplate, FinishReason, GenerateOptions, Geometry, Message, Opened, RenderOptions, Session,
};
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::time::Duration;

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

/// What a lost device leaves.
const AGAIN: &str = "the model is loaded again and the conversation goes on: what was said before is read again with the \
                     next message, the message that had no answer may be asked again";

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
    /// Devices that were lost, and how many of them since the last answer.
    lost: u32,
    in_a_row: u32,
}

/// Devices in a row that may be lost without an answer between, and tries to load the model again after each.
const MOST_LOST: u32 = 3;

/// Talks until the input ends, or `/quit`.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.model.expect_weights()?;
    let options = args.sampling.options()?.for_chat();
    let opened = args.model.open()?;
    load::check_stops(&opened, &options)?;
    let template = opened.template()?;
    let geometry = args.geometry.resolve(&opened.model, None);
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut session, _) = ready.session(&opened)?;

    let messages: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
    let fixed = messages.len();
    let mut talk =
        Conversation { messages, fixed, failed: Vec::new(), code: 0, answered: 0, lost: 0, in_a_row: 0 };
    // Whether it has been told that memory is short, so that it is not told with every message.
    let mut told = false;
    let asks = io::stdin().is_terminal();
    let most = Most::of(&geometry, session.tokenizer());
    if asks {
        output::note(format_args!("{COMMANDS}"));
    }
    loop {
        if asks {
            output::hint(format_args!("> "));
        }
        let Some(line) = most.line(&mut io::stdin().lock())? else { break };
        let line = match line {
            Ok(line) => line,
            Err(failure) => {
                // It is no part of the conversation, and there is nobody who would want it back.
                talk.messages.push(Message::new("user", ""));
                talk.take("", "", Err(failure))?;
                continue;
            }
        };
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
                let mut said = String::new();
                let show = !args.output.json;
                let answered = answer(&mut session, &template, &talk.messages, &options, show, &mut said);
                let change = session.engine().stepper().memory_when_last_begun();
                told = match change.filter(|change| change.is_large()) {
                    Some(_) if told => true,
                    change => load::tell_change(change),
                };
                if talk.take(text, &said, answered)? {
                    session = recovered(&opened, session, &geometry, args)?;
                    output::note(format_args!("plimsoll: {AGAIN}"));
                }
            }
        }
    }
    let mut document = load::end_told(session.into_engine(), &args.machine, &args.output)?;
    if args.output.json {
        document["schema"] = json!(1);
        document["messages"] = json!(talk.messages);
        document["failed"] = json!(talk.failed);
        document["devices_lost"] = json!(talk.lost);
        output::document(&document)?;
    }
    // Somebody at a terminal has seen it; a script looks at the exit code.
    if !asks && talk.answered == 0 && !talk.failed.is_empty() {
        return Err(Failure::Unanswered { messages: talk.failed.len(), code: talk.code });
    }
    Ok(())
}

impl Conversation {
    /// One message that does not fit is not the end of the conversation. Nor is a lost device, unless one after the other
    /// is lost over the same message. Answers whether one was.
    fn take(&mut self, question: &str, said: &str, answered: Result<(), Failure>) -> Result<bool, Failure> {
        let failure = match answered {
            Ok(()) => {
                self.messages.push(Message::new("assistant", said));
                self.answered += 1;
                self.in_a_row = 0;
                return Ok(false);
            }
            Err(failure) => failure,
        };
        let Failure::Plimsoll(error) = &failure else { return Err(failure) };
        let (permanent, lost) = (error.is_permanent(), device_is_lost(error));
        self.code = failure.code();
        let message = match self.code {
            3 => format!("{}; {ROOM}", failure.message()),
            _ if lost && !said.is_empty() => format!("{}; the answer ends here", failure.message()),
            _ if lost || permanent => failure.message(),
            _ => format!("{}; it may be asked again", failure.message()),
        };
        output::note(format_args!("plimsoll: {message}"));
        self.messages.pop();
        // Its place in the conversation is after so many messages.
        let after = self.messages.len();
        self.failed.push(
            json!({"role": "user", "content": question, "after": after, "said": said, "error": message,
            "permanent": permanent, "device_lost": lost}),
        );
        if lost {
            self.lost = self.lost.saturating_add(1);
            self.in_a_row = self.in_a_row.saturating_add(1);
            if self.in_a_row >= MOST_LOST {
                return Err(failure);
            }
        }
        Ok(lost)
    }
}

/// The same model on a device that is opened again, after the first is lost. Adapters may be away for a moment after
/// that; what is refused for good is not tried again.
fn recovered(
    opened: &Opened,
    session: Session,
    geometry: &Geometry,
    args: &Args,
) -> Result<Session, Failure> {
    let tokenizer = session.tokenizer().clone();
    let mut last = match opened.recover(session.into_engine(), None, &mut |_| ()) {
        Ok(recovered) => return Ok(Session::new(recovered.engine, tokenizer)),
        Err(error) => Failure::from(error),
    };
    for again in 1..MOST_LOST {
        if matches!(&last, Failure::Plimsoll(error) if error.is_permanent()) {
            break;
        }
        output::note(format_args!("plimsoll: it cannot be loaded again yet: {}", last.message()));
        std::thread::sleep(Duration::from_secs(again.into()));
        let ready = load::admit(opened, geometry, &args.machine, &args.output);
        match ready.and_then(|ready| ready.session(opened)) {
            Ok((session, _)) => return Ok(session),
            Err(failure) => last = failure,
        }
    }
    Err(last)
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
    said: &mut String,
) -> Result<(), Failure> {
    let render = RenderOptions { add_generation_prompt: true, ..Default::default() };
    let prompt = template.render(messages, &render)?;
    load::check_text(&session.engine().plan().geometry, session.tokenizer(), &prompt)?;
    let ids = session.tokenizer().encode(&prompt, options.add_special, options.parse_special)?;
    let geometry = &session.engine().plan().geometry;
    load::check_length(geometry, ids.len(), 1)?;
    // An answer may be shorter than was allowed for, but not longer than there is room.
    let left = geometry.context.saturating_sub(u32::try_from(ids.len()).unwrap_or(u32::MAX));
    let max_new = options.max_new.map_or(left, |most| most.min(left));
    let options = GenerateOptions { max_new: Some(max_new), ..options.clone() };
    let mut generation = session.generate_ids(&ids, &options)?;
    for piece in generation.by_ref() {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                if show && !said.is_empty() {
                    output::print(format_args!("\n"))?;
                }
                return Err(error.into());
            }
        };
        if show {
            output::print(format_args!("{piece}"))?;
        }
        said.push_str(&piece);
    }
    let full = max_new == left && generation.finish_reason() == Some(FinishReason::Length);
    if show {
        output::print(format_args!("\n"))?;
    }
    if full {
        output::note(format_args!("plimsoll: the answer ends where the context is full; {ROOM}"));
    }
    Ok(())
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
