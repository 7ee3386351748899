//! Chat templates: from messages to the text of a prompt, and whose text each piece of it is.
//!
//! # Close to jinja2 as Hugging Face sets it up
//! A model's file carries a Jinja template written for Python: `trim_blocks`, `lstrip_blocks`, loop controls,
//! `tojson` that escapes neither for ASCII nor for HTML, `raise_exception`, `strftime_now`, methods of Python's
//! strings and dicts, values printed as Python prints them, an immutable sandbox. The lexer and the parser are
//! minijinja's ([`syntax`] alone touches them). The evaluator is ours, for three reasons that minijinja's
//! can't meet from outside: a string there carries no mark of its origin and its operators have no hooks;
//! `~`, `==`, attribute lookup and printing follow Rust's ways where templates rely on Python's; and strings,
//! lists and nested values grow without a bound that could be set. For the same reasons minijinja-contrib's
//! Python methods are of no use here; [`python`] has them.
//!
//! # Who wrote what
//! A user can type `<|im_end|>`, and a tool can return it. If the whole prompt were parsed for control tokens,
//! either could close the turn and speak as the system. So [`Rendered`] carries spans: *trusted* text may be
//! parsed for control tokens, *untrusted* text may not.
//!
//! Every string of the evaluator ([`provenance`]) knows for each of its bytes whether it is trusted:
//! - trusted at birth are the template's own literals, between tags and in expressions, the special tokens given
//!   by the model's file (`bos_token`, `eos_token`, ...), and a `role` of the conversation if it is one of the
//!   words in [`ROLES`] (templates build tokens like `<|user|>` from it; nobody can spell anything else with it);
//! - untrusted at birth is everything else: messages, tools, documents, their keys, template variables.
//!
//! Operations move bytes together with their marks: what a slice, a split, a strip takes, what a join, `~`, `+`,
//! `*`, `replace`, `format` puts together. Those that change characters (`upper`, escapes of `tojson`, `repr`)
//! give a new character the mark of the one it comes from. What nobody wrote (digits of a number, brackets and
//! quotes of JSON, padding) is untrusted. So by induction over the evaluation a trusted byte is one that the
//! template, the model's file or the list of roles contained, never one that a person or tool sent; an error can
//! only fall to the other side. A template can still *decide* by what people wrote which of its own literals it
//! prints; that is what templates are for. The text itself doesn't depend on the marks: no operation reads them
//! except to pass them on.
//!
//! # Bounds
//! See [`limits`]. Parsing and rendering recurse along nesting that is bounded beforehand, and run on a thread
//! whose stack is known to suffice, so that it doesn't matter how little stack the caller has left. The thread
//! lives only while the call runs.

mod args;
mod clock;
mod error;
mod filters;
mod json;
mod limits;
mod ops;
mod predicates;
mod printf;
mod provenance;
mod python;
mod render;
mod source;
mod syntax;
mod value;

pub use clock::{CivilTime, Clock};
pub use error::Error;

use limits::Budget;
use provenance::Text;
use render::Renderer;
use serde_json::{Map, Value as Json};
use std::ops::Range;
use syntax::Program;
use value::Value;

/// Roles whose words are the protocol's and not a person's. To add one, add it here; it must be a plain word.
const ROLES: [&str; 13] = [
    "assistant",
    "bot",
    "developer",
    "function",
    "gpt",
    "human",
    "ipython",
    "model",
    "observation",
    "system",
    "tool",
    "tool_response",
    "user",
];

/// What a template needs beside its source.
#[derive(Debug, Clone, Default)]
pub struct TemplateOptions {
    /// The text of the model's start token, as `bos_token`; empty if it has none.
    pub bos: String,
    /// The text of the model's end token, as `eos_token`; empty if it has none.
    pub eos: String,
    /// Further special tokens by their variable's name: `("unk_token", "<unk>")`.
    pub tokens: Vec<(String, String)>,
}

/// A conversation to be rendered.
#[derive(Debug, Clone)]
pub struct RenderRequest<'a> {
    /// An array of objects, each with a `role`. All fields reach the template as they are.
    pub messages: &'a Json,
    /// Tool definitions: an array, if there are any.
    pub tools: Option<&'a Json>,
    /// Documents for templates that take them: an array, if there are any.
    pub documents: Option<&'a Json>,
    /// Whether the text ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Template variables of the caller's choice: `enable_thinking`. They hide everything but the messages,
    /// the tools and the special tokens.
    pub vars: Option<&'a Map<String, Json>>,
    /// The clock of `strftime_now`.
    pub now: Clock,
}

impl<'a> RenderRequest<'a> {
    /// A request to answer `messages`: generation prompt, no tools, no variables, the system's clock.
    pub fn new(messages: &'a Json) -> Self {
        RenderRequest { messages, tools: None, documents: None, add_generation_prompt: true, vars: None, now: Clock::System }
    }
}

/// A piece of the rendered text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Bytes of the text.
    pub range: Range<usize>,
    /// Whether control tokens may be parsed in it.
    pub trusted: bool,
}

/// A prompt's text, and who wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text, exactly what the template prints.
    pub text: String,
    /// Spans in order, without gaps, neighbours of different trust; empty for an empty text.
    pub spans: Vec<Span>,
}

impl Rendered {
    /// The pieces of the text with their trust.
    pub fn pieces(&self) -> impl Iterator<Item = (&str, bool)> + '_ {
        self.spans.iter().map(|span| (&self.text[span.range.clone()], span.trusted))
    }

    /// Whether the bytes of `range` are all trusted, so that a control token spelled there is meant.
    pub fn is_trusted(&self, range: Range<usize>) -> bool {
        let first = self.spans.partition_point(|span| span.range.end <= range.start);
        self.spans.get(first).is_some_and(|span| span.trusted && span.range.end >= range.end)
    }
}

/// A parsed chat template. Immutable, and can be shared between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    options: TemplateOptions,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`Error::Syntax`] with the line, [`Error::Limit`] for a source beyond any real template's size or nesting.
    pub fn new(source: &str, options: TemplateOptions) -> Result<Self, Error> {
        let program = on_own_stack(|| Program::parse(source))?;
        Ok(ChatTemplate { program, options })
    }

    /// Whether the template mentions a variable, `tools` or `enable_thinking`.
    pub fn mentions(&self, variable: &str) -> bool {
        self.program.id(variable).is_some()
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`Error::Raised`] with the template's own words when it refuses the conversation, [`Error::Failed`] when
    /// it meets values that it isn't made for, [`Error::Limit`], [`Error::Request`].
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<Rendered, Error> {
        check_messages(request.messages)?;
        for (what, list) in [("tools", request.tools), ("documents", request.documents)] {
            match list {
                None | Some(Json::Array(_) | Json::Null) => {}
                Some(other) => return Err(wrong(what, "an array", other)),
            }
        }
        let now = request.now.now();
        on_own_stack(|| match self.render_here(request, now, Some(&Json::Null)) {
            Err(error @ Error::Failed { .. }) => self.render_here(request, now, None).map_err(|_| error),
            other => other,
        })
    }

    /// Renders with `absent` for tools and documents that aren't given. `apply_chat_template` passes none, and
    /// templates ask `is not none`; servers leave the variable out, and templates written for those loop over it.
    fn render_here(&self, request: &RenderRequest<'_>, now: CivilTime, absent: Option<&Json>) -> Result<Rendered, Error> {
        let mut renderer = Renderer::new(&self.program, now);
        for (name, json) in request.vars.into_iter().flatten() {
            let value = Value::from_json(json, renderer.budget())?;
            renderer.define(name, value);
        }
        let messages = messages_value(request.messages, renderer.budget())?;
        renderer.define("messages", messages);
        for (name, list) in [("tools", request.tools), ("documents", request.documents)] {
            let given = request.vars.is_some_and(|vars| vars.contains_key(name));
            if let Some(list) = list.or(if given { None } else { absent }) {
                let value = Value::from_json(list, renderer.budget())?;
                renderer.define(name, value);
            }
        }
        renderer.define("add_generation_prompt", Value::Bool(request.add_generation_prompt));
        let own = [("bos_token", &self.options.bos), ("eos_token", &self.options.eos)];
        let more = self.options.tokens.iter().map(|(name, text)| (name.as_str(), text));
        for (name, text) in own.into_iter().chain(more) {
            renderer.define(name, Value::Str(Text::trusted(text)));
        }
        let (text, runs) = renderer.run()?.into_parts();
        let mut start = 0;
        let spans = runs
            .into_iter()
            .map(|(end, trusted)| {
                let range = start..end;
                start = end;
                Span { range, trusted }
            })
            .collect();
        Ok(Rendered { text, spans })
    }
}

/// The chat templates of a model's file: a plain one and named ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateSources {
    /// The template without a name.
    pub plain: Option<String>,
    /// Templates by name, in the file's order.
    pub named: Vec<(String, String)>,
}

/// The metadata key of the plain template; a name follows it after a dot.
const KEY: &str = "tokenizer.chat_template";
/// The name under which files keep a template for conversations with tools.
const TOOL_USE: &str = "tool_use";

impl TemplateSources {
    /// Picks the templates out of a file's metadata, of which `entries` are the strings.
    pub fn collect<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut sources = TemplateSources::default();
        for (key, source) in entries {
            match key.strip_prefix(KEY) {
                Some("") => sources.plain = Some(source.to_owned()),
                Some(name) => {
                    if let Some(name) = name.strip_prefix('.') {
                        sources.named.push((name.to_owned(), source.to_owned()));
                    }
                }
                None => {}
            }
        }
        sources
    }

    /// The source to use: the one asked for by name; else, with tools, the one named `tool_use`; else the plain
    /// one; else the one named `default`, or the only one there is.
    ///
    /// # Errors
    /// [`Error::NoSuchName`], [`Error::Missing`].
    pub fn select(&self, name: Option<&str>, tools: bool) -> Result<&str, Error> {
        let by_name = |name: &str| self.named.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str());
        if let Some(name) = name {
            return by_name(name).ok_or_else(|| Error::NoSuchName {
                name: name.to_owned(),
                found: self.named.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
            });
        }
        let for_tools = if tools { by_name(TOOL_USE) } else { None };
        let only = || {
            if self.named.len() == 1 { self.named.first().map(|(_, source)| source.as_str()) } else { None }
        };
        for_tools.or(self.plain.as_deref()).or_else(|| by_name("default")).or_else(only).ok_or(Error::Missing)
    }
}

fn kind(json: &Json) -> String {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
    .to_owned()
}

fn wrong(what: impl Into<String>, expected: &'static str, found: &Json) -> Error {
    Error::Request { what: what.into(), expected, found: kind(found) }
}

fn check_messages(messages: &Json) -> Result<(), Error> {
    let Json::Array(list) = messages else {
        return Err(wrong("messages", "an array", messages));
    };
    for (i, message) in list.iter().enumerate() {
        let Json::Object(fields) = message else {
            return Err(wrong(format!("messages[{i}]"), "an object", message));
        };
        match fields.get("role") {
            Some(Json::String(_)) => {}
            other => {
                return Err(wrong(format!("messages[{i}].role"), "a string", other.unwrap_or(&Json::Null)));
            }
        }
    }
    Ok(())
}

/// The messages with roles of [`ROLES`] trusted.
fn messages_value(messages: &Json, budget: &mut Budget) -> Result<Value, Error> {
    let mut out = Vec::new();
    for message in messages.as_array().into_iter().flatten() {
        let mut entries = Vec::new();
        for (key, json) in message.as_object().into_iter().flatten() {
            let value = match json {
                Json::String(role) if key == "role" && ROLES.contains(&role.as_str()) => Value::str(role),
                _ => Value::from_json(json, budget)?,
            };
            entries.push((Value::Str(Text::untrusted(key)), value));
        }
        out.push(Value::dict(entries, budget)?);
    }
    Value::list(out, budget)
}

/// Runs `work` on a stack of [`limits::STACK_BYTES`].
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    // Without threads the host's stack has to do; browsers give a page's main thread about a megabyte.
    if cfg!(target_family = "wasm") {
        return work();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("selvedge-template".to_owned())
            .stack_size(limits::STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| Error::Thread { message: error.to_string() })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
