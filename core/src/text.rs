//! The words of a model: its tokenizer and its chat templates, usable without a single weight.

use crate::ids::TokenId;
use crate::template::{self, ChatTemplate, RenderRequest, Rendered, TemplateOptions, TemplateSources};
use crate::tokenizer::{self, EncodeOptions, ParseSpecial, Span, Tokenizer};
use selvedge_gguf::{Metadata, Value};
use std::sync::Arc;

/// Tokenizer and templates of a file.
#[derive(Debug, Clone)]
pub struct TextModel {
    tokenizer: Arc<Tokenizer>,
    templates: TemplateSources,
    /// Why the file's template can't be used, where its key holds something else than text.
    fault: Option<String>,
    tokens: TemplateOptions,
}

/// Why a conversation couldn't become tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The template.
    #[error(transparent)]
    Template(#[from] template::Error),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// The file's template key holds no text.
    #[error("the file's chat template can't be used: {0}")]
    File(String),
}

impl TextModel {
    /// Reads a file's vocabulary and templates.
    pub fn from_metadata(metadata: &Metadata<'_>) -> Result<TextModel, tokenizer::Error> {
        let tokenizer = Tokenizer::from_metadata(metadata)?;
        let mut fault = None;
        let entries = metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.chat_template")).filter_map(|(key, value)| {
            match value {
                Value::String(bytes) => match std::str::from_utf8(bytes) {
                    Ok(text) => return Some((key, text)),
                    Err(e) => fault = Some(format!("`{key}` isn't UTF-8 ({e})")),
                },
                // The list of names that files keep beside named templates.
                Value::Array(_) => {}
                other => fault = Some(format!("`{key}` is of type {}, expected a string", other.value_type().name())),
            }
            None
        });
        let templates = TemplateSources::collect(entries);
        let spelling =
            |id: Option<TokenId>| id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).unwrap_or_default();
        let special = tokenizer.special();
        let more = [("unk_token", special.unk), ("pad_token", special.pad), ("sep_token", special.sep), ("cls_token", special.cls)];
        let tokens = TemplateOptions {
            bos: spelling(special.bos),
            eos: spelling(special.eos),
            tokens: more.into_iter().filter(|(_, id)| id.is_some()).map(|(name, id)| (name.to_string(), spelling(id))).collect(),
        };
        Ok(TextModel { tokenizer: Arc::new(tokenizer), templates, fault, tokens })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The special tokens' texts, as templates see them.
    pub fn template_tokens(&self) -> &TemplateOptions {
        &self.tokens
    }

    /// Whether there is a template.
    pub fn has_template(&self) -> bool {
        self.templates.select(None, false).is_ok()
    }

    /// Tokens of a text that is to be continued as it stands: with the start token that the file asks for, never with an
    /// end token. `parse_special`: which special tokens that the text spells are meant.
    pub fn continuation(&self, text: &str, parse_special: ParseSpecial) -> Result<Vec<TokenId>, TextError> {
        let mut tokens = self.tokenizer.encode(text, EncodeOptions { add_special: false, parse_special })?;
        if let Some(first) = self.tokenizer.first_token().filter(|first| tokens.first() != Some(first)) {
            tokens.insert(0, first);
        }
        Ok(tokens)
    }

    /// The template of that name, or the one that fits: parsed, ready to render many conversations.
    pub fn template(&self, name: Option<&str>, tools: bool) -> Result<ChatTemplate, TextError> {
        self.template_with(name, tools, self.tokens.clone())
    }

    /// As [`TextModel::template`], with other texts for the special tokens.
    pub fn template_with(&self, name: Option<&str>, tools: bool, tokens: TemplateOptions) -> Result<ChatTemplate, TextError> {
        let source = match (self.templates.select(name, tools), &self.fault) {
            (Err(template::Error::Missing), Some(fault)) => return Err(TextError::File(fault.clone())),
            (source, _) => source?,
        };
        Ok(ChatTemplate::new(source, tokens)?)
    }

    /// Renders a conversation with the file's template.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<Rendered, TextError> {
        let tools = request.tools.is_some_and(|t| t.as_array().is_some_and(|a| !a.is_empty()));
        Ok(self.template(None, tools)?.render(request)?)
    }

    /// Tokens of a rendered conversation: control tokens are found in the template's own words and nowhere else.
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<TokenId>, TextError> {
        let spans: Vec<Span<'_>> = rendered.pieces().map(|(text, trusted)| Span { text, trusted }).collect();
        Ok(self.tokenizer.encode_spans(&spans, true)?)
    }
}
