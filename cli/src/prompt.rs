//! Conversations to tokens: the chat template with its variables.

use crate::args::read_text;
use crate::error::Result;
use clap::Args;
use selvedge::{ChatTemplate, Clock, Model, RenderRequest, TextModel, TokenId};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Which template is rendered, and with what.
#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// A variable of the chat template: JSON, or else text; may be given several times
    #[arg(long, value_name = "K=V", value_parser = variable, allow_hyphen_values = true)]
    var: Vec<(String, Value)>,
    /// A chat template instead of the model's
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
}

fn variable(text: &str) -> std::result::Result<(String, Value), String> {
    let (key, value) =
        text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("expected a name and a value, as enable_thinking=false")?;
    Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()))))
}

impl TemplateArgs {
    /// The variables; of two values for a name the later counts.
    pub(crate) fn vars(&self) -> Map<String, Value> {
        self.var.iter().cloned().collect()
    }

    /// Whether another template than the model's is asked for.
    pub(crate) fn names_template(&self) -> bool {
        self.template.is_some()
    }

    /// The source of the template that is asked for.
    pub(crate) fn source(&self) -> Result<Option<String>> {
        self.template.as_deref().map(read_text).transpose()
    }

    /// The template that is asked for, or the model's.
    pub(crate) fn template(&self, text: &TextModel) -> Result<ChatTemplate> {
        match self.source()? {
            Some(source) => Ok(ChatTemplate::new(&source, text.template_tokens().clone()).map_err(selvedge::TextError::from)?),
            None => Ok(text.template(None, false)?),
        }
    }
}

/// Turns conversations into prompts.
#[derive(Debug)]
pub(crate) struct Prompter {
    model: Model,
    template: ChatTemplate,
    vars: Map<String, Value>,
}

impl Prompter {
    /// Fails where the model has no template and none is given.
    pub(crate) fn new(model: &Model, args: &TemplateArgs) -> Result<Prompter> {
        Ok(Prompter { model: model.clone(), template: args.template(model.text())?, vars: args.vars() })
    }

    /// Tokens of a conversation that is to be answered. Control tokens are found in the template's own words only.
    pub(crate) fn tokens(&self, messages: &Value) -> Result<Vec<TokenId>> {
        let request = RenderRequest { vars: Some(&self.vars), now: Clock::System, ..RenderRequest::new(messages) };
        let rendered = self.template.render(&request).map_err(selvedge::TextError::from)?;
        Ok(self.model.text().encode_rendered(&rendered)?)
    }
}

/// A message of a conversation.
pub(crate) fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_json_or_text() {
        let value = |text: &str| variable(text).map(|(_, value)| value);
        assert_eq!(value("a=false"), Ok(json!(false)));
        assert_eq!(value("a=3"), Ok(json!(3)));
        assert_eq!(value("a=\"3\""), Ok(json!("3")));
        assert_eq!(value("a=low"), Ok(json!("low")));
        assert_eq!(value("a=b=c"), Ok(json!("b=c")));
        assert_eq!(value("a="), Ok(json!("")));
        assert!(value("a").is_err() && value("=1").is_err());
    }
}
