//! Chat templates: the Jinja programs that checkpoints carry to turn a conversation into a prompt.
//!
//! They are programs from strangers, so they run on a budget. Every instruction and every 64 bytes made cost fuel,
//! which bounds time and memory at once; output, recursion and source size have limits of their own; and they run on
//! a thread whose stack holds the deepest value that the fuel can build. A template past a limit is an error, in
//! bounded time.
//!
//! The environment is that of the reference library (`apply_chat_template` of transformers): `trim_blocks` and
//! `lstrip_blocks`, loop controls, Python's string and dict methods, `raise_exception`, `strftime_now`, a `tojson`
//! that does not escape HTML, `{% generation %}` blocks, and `tools` and `documents` as none.

mod functions;
mod source;
mod worker;

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::SystemTime;
use worker::on_a_large_stack;

/// The longest published templates have about 30 kB. The parser recurses over chains of operators, so this also
/// bounds its stack.
const MAX_SOURCE_BYTES: usize = 1 << 17;
/// The largest prompt a template may write, beside what the messages hold (which it may write four times).
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// Fuel of an empty conversation: instructions, or units of 64 bytes. The heaviest published templates use a few
/// thousand before the first message.
const FUEL: u64 = 200_000;
/// Fuel added for each message and for each byte of them.
const FUEL_PER_MESSAGE: u64 = 2_000;
const FUEL_PER_BYTE: u64 = 2;
/// Macros calling macros.
const MAX_RECURSION: usize = 100;
/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, …
    pub role: String,
    /// What they say.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// What a template is told beside the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables by name (`enable_thinking`, `tools`, …). They win over the standard ones.
    pub variables: BTreeMap<String, serde_json::Value>,
    /// What `strftime_now` takes for now; the system's clock when `None`. In UTC.
    pub now: Option<SystemTime>,
}

/// A compiled chat template with the special tokens it refers to.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    /// `bos_token`, `eos_token`, … as the template sees them.
    tokens: BTreeMap<&'static str, String>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// When it does not parse, or is larger than 128 KiB.
    pub fn new(source: &str) -> Result<Self, ModelError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(ModelError::template(format!(
                "{} bytes; at most {MAX_SOURCE_BYTES} are read",
                source.len()
            )));
        }
        let adapted = source::without_generation_blocks(source);
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(functions::format);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_fuel(Some(FUEL));
        functions::add(&mut environment);
        // Parsing recurses too, so it gets the same stack.
        let environment = on_a_large_stack(move || {
            environment.add_template_owned("chat", adapted).map_err(failed)?;
            Ok(environment)
        })?;
        Ok(ChatTemplate {
            environment: Arc::new(environment),
            source: source.into(),
            tokens: BTreeMap::new(),
        })
    }

    /// Sets the texts of `bos_token` and `eos_token`; `None` leaves them undefined, which renders as nothing.
    #[must_use]
    pub fn with_tokens(mut self, bos: Option<&str>, eos: Option<&str>) -> Self {
        for (name, text) in [("bos_token", bos), ("eos_token", eos)] {
            match text {
                Some(text) => self.tokens.insert(name, text.to_owned()),
                None => self.tokens.remove(name),
            };
        }
        self
    }

    /// The checkpoint's template with its special tokens: GGUF's `tokenizer.chat_template`, or chat_template.jinja,
    /// chat_template.json or tokenizer_config.json (a text, or a list of which "default" is taken) beside the
    /// weights. `None` when it has none.
    ///
    /// # Errors
    /// When a file cannot be read or the template does not parse.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Self>, ModelError> {
        let Some(found) = source::find(checkpoint)? else { return Ok(None) };
        let mut template = ChatTemplate::new(&found.source)?;
        template.tokens = found.tokens;
        Ok(Some(template))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for a conversation. It holds the special tokens that the template writes: encode it with
    /// `parse_special` and without `add_special`.
    ///
    /// # Errors
    /// When the template raises one, or passes a limit.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, ModelError> {
        let bytes: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let fuel = FUEL
            .saturating_add(FUEL_PER_MESSAGE.saturating_mul(messages.len() as u64))
            .saturating_add(FUEL_PER_BYTE.saturating_mul(bytes as u64));

        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        for (name, text) in &self.tokens {
            context.insert((*name).to_owned(), Value::from(text.as_str()));
        }
        context.insert("messages".into(), Value::from(Serde(messages)));
        context.insert("add_generation_prompt".into(), Value::from(options.add_generation_prompt));
        context.insert("tools".into(), Value::from(()));
        context.insert("documents".into(), Value::from(()));
        for (name, value) in &options.variables {
            context.insert(name.clone(), from_json(value));
        }
        let now = options.now.unwrap_or_else(SystemTime::now);
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(fuel));
        functions::add_clock(&mut environment, now);
        let left = MAX_OUTPUT_BYTES.saturating_add(bytes.saturating_mul(4));
        on_a_large_stack(move || {
            let mut out = Limited { bytes: Vec::new(), left };
            environment
                .get_template("chat")
                .and_then(|template| template.render_captured_to(Value::from(context), &mut out).map(|_| ()))
                .map_err(failed)?;
            String::from_utf8(out.bytes).map_err(|_| ModelError::template("output that is not UTF-8"))
        })
    }
}

/// A JSON value as the engine sees it. By hand, because serialising a number depends on features that another crate
/// may switch on in `serde_json`.
fn from_json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(i), ..) => Value::from(i),
            (_, Some(u), _) => Value::from(u),
            (.., f) => Value::from(f.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(from_json).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

fn failed(error: minijinja::Error) -> ModelError {
    let mut reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        reason.push_str(&format!(" (line {line})"));
    }
    ModelError::template(crate::error::shortened(&reason))
}

/// A buffer that refuses more than it may hold.
struct Limited {
    bytes: Vec<u8>,
    left: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::Error::other("more output than a prompt may have"));
        }
        self.left -= bytes.len();
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
