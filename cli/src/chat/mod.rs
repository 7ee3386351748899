//! `chat`: a conversation. Replies go to standard output, everything else to standard error, so that a conversation can
//! be piped through the command as well as typed.
//!
//! ```text
//!   lines ─▶ turn ─▶ /command ────────────────────────────▶ done
//!                └─▶ messages + turn ─▶ template ─▶ tokens ─▶ session (keeps the common prefix) ─▶ reply ─▶ messages
//! ```
//! A turn that fails leaves the conversation as it was. Nothing is ever dropped from it unasked.

mod input;

use crate::args::{ModelArgs, SamplingArgs, file_name, read_json};
use crate::error::{CliError, Result, printable};
use crate::os::Interrupt;
use crate::output;
use crate::prompt::{Prompter, TemplateArgs, message};
use crate::reply::Reply;
use clap::Args;
use input::{Input, Turn};
use selvedge::{Finish, GenerateOptions, Session, TokenId};
use serde_json::Value;
use std::path::Path;

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A system message before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateArgs,
    /// With --json: the K most probable tokens at each step
    #[arg(long, value_name = "K", default_value_t = 0, requires = "json", value_parser = crate::args::alternatives)]
    top_logprobs: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// What a command wants next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Turn,
    Quit,
}

/// A line of `/help` and what runs. To add a command: a row.
struct Row {
    name: &'static str,
    args: &'static str,
    about: &'static str,
    run: fn(&mut Chat, &str) -> Result<Next>,
}

const COMMANDS: [Row; 7] = [
    Row { name: "/help", args: "", about: "lists the commands", run: |_, _| help() },
    Row { name: "/reset", args: "", about: "forgets the conversation, apart from the system message", run: |chat, _| chat.reset() },
    Row { name: "/system", args: "[TEXT]", about: "sets the system message, or takes it away", run: Chat::set_system },
    Row { name: "/stats", args: "", about: "tokens and speed of the last reply", run: |chat, _| chat.stats() },
    Row { name: "/save", args: "FILE", about: "writes the messages as JSON", run: Chat::save },
    Row { name: "/load", args: "FILE", about: "continues the messages of a file", run: Chat::load },
    Row { name: "/quit", args: "", about: "ends the program, as Ctrl-D does", run: |_, _| Ok(Next::Quit) },
];

fn help() -> Result<Next> {
    for row in &COMMANDS {
        crate::output::remark!("{:<16} {}", format!("{} {}", row.name, row.args).trim_end(), row.about);
    }
    crate::output::remark!(
        "A line that ends in \\ goes on in the next; \"\"\" opens and closes a text of several lines; // begins a text with /."
    );
    crate::output::remark!("Ctrl-C stops a reply, Ctrl-D ends the program.");
    Ok(Next::Turn)
}

struct Chat {
    session: Session,
    prompter: Prompter,
    messages: Vec<Value>,
    options: GenerateOptions,
    interrupt: Interrupt,
    json: bool,
    last: Option<Reply>,
}

impl ChatArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        self.sampling.check()?;
        let options = self.model.options()?;
        let interrupt = Interrupt::watch_idle();
        let model = interrupt.run(|cancel| self.model.open(&options, None, cancel))?;
        let mut chat = Chat {
            session: model.session()?,
            prompter: Prompter::new(&model, &self.template)?,
            messages: Vec::new(),
            options: self.sampling.options(&model, json, self.top_logprobs),
            interrupt,
            json,
            last: None,
        };
        if let Some(text) = &self.system {
            chat.set_system(text)?;
        }
        let mut input = Input::new(json)?;
        if input.is_terminal() {
            crate::output::remark!("{}, {} positions. /help lists commands, Ctrl-D ends.", file_name(model.file().path()), model.n_ctx());
        }
        chat.talk(&mut input)
    }
}

impl Chat {
    fn talk(&mut self, input: &mut Input) -> Result<()> {
        loop {
            let next = match input.turn()? {
                Turn::End => return Ok(()),
                Turn::Interrupted => {
                    crate::output::remark!("Ctrl-C stops a reply; /quit or Ctrl-D ends the program.");
                    continue;
                }
                Turn::Text(text) => self.take(&text),
            };
            match next {
                Ok(Next::Turn) => {}
                Ok(Next::Quit) => return Ok(()),
                // A person reads the message and goes on; a script must not take silence for a reply.
                Err(e) if input.is_terminal() && !matches!(e, CliError::Pipe | CliError::Output(_)) => {
                    crate::output::remark!("error: {}", printable(&e.to_string()))
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn take(&mut self, text: &str) -> Result<Next> {
        if text.trim().is_empty() {
            return Ok(Next::Turn);
        }
        match text.strip_prefix('/') {
            // One slash more than a command: a text that begins with a slash.
            Some(rest) if rest.starts_with('/') => self.say(rest),
            Some(_) => {
                let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
                let Some(row) = COMMANDS.iter().find(|row| row.name == name) else {
                    let what = format!("there is no command {name}: /help lists those there are, // begins a text with /");
                    return Err(CliError::Usage(what));
                };
                (row.run)(self, rest.trim())
            }
            None => self.say(text),
        }
    }

    /// A turn of the user, and the reply to it.
    fn say(&mut self, text: &str) -> Result<Next> {
        self.messages.push(message("user", text));
        let reply = self.reply();
        if reply.is_err() {
            self.messages.pop();
        }
        reply
    }

    fn reply(&mut self) -> Result<Next> {
        let prompt = self.prompter.tokens(&Value::Array(self.messages.clone()))?;
        self.check_fits(&prompt)?;
        let json = self.json;
        let show = &mut |text: &str| if json { Ok(()) } else { output::text(text) };
        let (session, options) = (&mut self.session, &self.options);
        let reply = self.interrupt.run(|cancel| Reply::make(session, &prompt, options, cancel, show))?;
        if json {
            output::json(&reply)?;
        } else if !reply.text.ends_with('\n') {
            output::text("\n")?;
        }
        match reply.why {
            Finish::Cancelled if reply.text.is_empty() => {
                self.messages.pop();
                crate::output::remark!("stopped before the reply began: your turn was taken back");
            }
            why => {
                self.messages.push(message("assistant", &reply.text));
                match why {
                    Finish::Cancelled => crate::output::remark!("stopped: the reply so far is kept"),
                    Finish::Context => crate::output::remark!(
                        "the reply was cut: the context of {} positions is full; /reset forgets the conversation, -c sets a longer context",
                        self.session.n_ctx()
                    ),
                    _ => {}
                }
            }
        }
        self.last = Some(reply);
        Ok(Next::Turn)
    }

    /// Refuses what the context doesn't hold, in the words of a conversation.
    fn check_fits(&self, prompt: &[TokenId]) -> Result<()> {
        let n_ctx = self.session.n_ctx();
        if prompt.len() <= n_ctx {
            return Ok(());
        }
        Err(CliError::ConversationTooLong { tokens: prompt.len(), n_ctx })
    }

    fn reset(&mut self) -> Result<Next> {
        self.messages.retain(is_system);
        self.session.reset();
        self.last = None;
        crate::output::remark!("the conversation is forgotten");
        Ok(Next::Turn)
    }

    fn set_system(&mut self, text: &str) -> Result<Next> {
        let mut messages = self.messages.clone();
        messages.retain(|m| !is_system(m));
        if !text.is_empty() {
            messages.insert(0, message("system", text));
        }
        self.replace(messages)
    }

    fn stats(&mut self) -> Result<Next> {
        match &self.last {
            None => crate::output::remark!("there was no reply yet"),
            Some(reply) => crate::output::remark!("{}", reply.summary()),
        }
        crate::output::remark!("{} of {} positions of the context are taken", self.session.tokens().len(), self.session.n_ctx());
        Ok(Next::Turn)
    }

    fn save(&mut self, file: &str) -> Result<Next> {
        let path = named(file, "/save")?;
        let json = serde_json::to_string_pretty(&self.messages).map_err(|e| CliError::Output(e.into()))?;
        std::fs::write(path, json + "\n").map_err(CliError::file("write", path))?;
        crate::output::remark!("{} written", count(self.messages.len()));
        Ok(Next::Turn)
    }

    fn load(&mut self, file: &str) -> Result<Next> {
        let path = named(file, "/load")?;
        let Value::Array(messages) = read_json(path)? else {
            return Err(CliError::Content { path: path.to_owned(), what: "expected a JSON array of messages".into() });
        };
        let n_messages = messages.len();
        self.replace(messages)?;
        crate::output::remark!("{} loaded", count(n_messages));
        Ok(Next::Turn)
    }

    /// Takes other messages, if the template can render them with a turn after them.
    fn replace(&mut self, messages: Vec<Value>) -> Result<Next> {
        let ends_with_user = messages.last().is_some_and(|m| m["role"] == "user");
        let turn = (!ends_with_user).then(|| message("user", "."));
        self.prompter.tokens(&messages.iter().cloned().chain(turn).collect())?;
        self.messages = messages;
        Ok(Next::Turn)
    }
}

/// A number of messages, in words.
fn count(n_messages: usize) -> String {
    if n_messages == 1 { "1 message".into() } else { format!("{n_messages} messages") }
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

fn named<'a>(file: &'a str, command: &str) -> Result<&'a Path> {
    if file.is_empty() { Err(CliError::Usage(format!("{command} needs the name of a file"))) } else { Ok(Path::new(file)) }
}
