//! `tokenize`, `detokenize`, `render`: what happens to words before and after the model. No weight is read, so these
//! work on files that hold a vocabulary alone.

use crate::args::{FileArgs, TextArgs, read_ids, read_json};
use crate::error::{CliError, Result};
use crate::output;
use crate::prompt::TemplateArgs;
use clap::Args;
use selvedge::{ChatTemplate, CivilTime, Clock, EncodeOptions, ParseSpecial, RenderRequest, TemplateOptions, TextError};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    model: FileArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Leave out the start and end tokens that the file asks for
    #[arg(long)]
    no_bos: bool,
    /// Control tokens that the text spells are text
    #[arg(long)]
    no_parse_special: bool,
}

impl TokenizeArgs {
    pub(crate) fn run(self) -> Result<()> {
        let text = self.text.read()?;
        let model = selvedge::open_text(&self.model.path()?)?;
        let parse_special = if self.no_parse_special { ParseSpecial::UserDefined } else { ParseSpecial::All };
        let ids = model.tokenizer().encode(&text, EncodeOptions { add_special: !self.no_bos, parse_special })?;
        output::json(&json!({ "ids": ids.iter().map(|id| id.0).collect::<Vec<_>>() }))
    }
}

#[derive(Debug, Args)]
pub(crate) struct DetokenizeArgs {
    #[command(flatten)]
    model: FileArgs,
    /// A JSON array of token ids; - is standard input
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// Show control tokens as they are spelled
    #[arg(long)]
    special: bool,
}

impl DetokenizeArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        let model = selvedge::open_text(&self.model.path()?)?;
        let tokenizer = model.tokenizer();
        let text = tokenizer.decode(&read_ids(&self.ids, tokenizer.n_vocab())?, self.special);
        if json { output::json(&json!({ "text": text })) } else { output::text(&text) }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    model: FileArgs,
    /// A JSON array of messages, each with a role; - is standard input
    #[arg(long, value_name = "FILE")]
    messages: PathBuf,
    /// A JSON array of tool definitions
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    #[command(flatten)]
    template: TemplateArgs,
    /// Don't open the assistant's turn at the end
    #[arg(long)]
    no_generation_prompt: bool,
    /// The time that the template is told, as 2026-01-31T12:00:00
    #[arg(long, value_name = "ISO8601", value_parser = time)]
    now: Option<CivilTime>,
    /// The start token's text [default: the model's]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    bos: Option<String>,
    /// The end token's text [default: the model's]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    eos: Option<String>,
}

fn time(text: &str) -> std::result::Result<CivilTime, String> {
    CivilTime::parse_iso(text).ok_or_else(|| "expected a date and a time, as 2026-01-31T12:00:00".into())
}

impl RenderArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        let messages = read_json(&self.messages)?;
        let tools = self.tools.as_deref().map(read_json).transpose()?;
        if let (Some(tools), Some(path)) = (&tools, &self.tools)
            && !tools.is_array()
        {
            return Err(CliError::Content { path: path.clone(), what: "expected a JSON array of tool definitions".into() });
        }
        // A template of its own needs no model, unless one is named for its special tokens.
        let text = match self.template.names_template() && !self.model.is_named() {
            true => None,
            false => Some(selvedge::open_text(&self.model.path()?)?),
        };
        let mut tokens = text.as_ref().map_or_else(TemplateOptions::default, |text| text.template_tokens().clone());
        tokens.bos = self.bos.unwrap_or(tokens.bos);
        tokens.eos = self.eos.unwrap_or(tokens.eos);
        let has_tools = tools.as_ref().and_then(|t| t.as_array()).is_some_and(|t| !t.is_empty());
        let template = match (self.template.source()?, &text) {
            (Some(source), _) => ChatTemplate::new(&source, tokens).map_err(TextError::from)?,
            (None, Some(text)) => text.template_with(None, has_tools, tokens)?,
            (None, None) => return Err(CliError::Usage("a template is needed: name a model with -m or a file with --template".into())),
        };
        let vars = self.template.vars();
        let request = RenderRequest {
            tools: tools.as_ref(),
            add_generation_prompt: !self.no_generation_prompt,
            vars: Some(&vars),
            now: self.now.map_or(Clock::System, Clock::Fixed),
            ..RenderRequest::new(&messages)
        };
        let rendered = template.render(&request).map_err(TextError::from)?;
        if json { output::json(&json!({ "text": rendered.text })) } else { output::text(&rendered.text) }
    }
}
