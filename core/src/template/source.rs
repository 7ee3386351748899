//! A template's source before it is parsed: bounds on its nesting, and tags that the parser doesn't know.

use super::error::Error;
use super::limits::{self, limit};
use minijinja::machinery::{Token, Tokenizer, WhitespaceConfig};
use minijinja::syntax::SyntaxConfig;

/// How white space around tags is treated, as `apply_chat_template` sets it up.
pub(super) fn whitespace() -> WhitespaceConfig {
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true }
}

/// Tags that only mark a region for training, and the plain tags that stand for them.
const REPLACED: [(&str, &str); 2] = [("generation", "if true"), ("endgeneration", "endif")];

/// Tags that open a block; `set` does where it has no `=`.
const OPENS: [&str; 8] = ["for", "if", "with", "autoescape", "filter", "macro", "call", "generation"];

/// Words that are operators: each adds a level to the syntax tree.
const WORD_OPERATORS: [&str; 7] = ["not", "and", "or", "in", "is", "if", "else"];

/// Checks the source's bounds and gives the text that can be parsed.
///
/// The walk is a loop over tokens. What it lets through nests at most [`limits::MAX_SOURCE_DEPTH`] deep, so
/// whatever recurses along the syntax tree (the parser, the lowering, the evaluator, drops) is bounded.
///
/// # Errors
/// [`Error::Limit`], or [`Error::Syntax`] where not even tokens can be told.
pub(super) fn prepare(source: &str) -> Result<String, Error> {
    if source.len() > limits::MAX_SOURCE {
        return Err(limit("the template's size in bytes", limits::MAX_SOURCE as u64));
    }
    let mut tokenizer = Tokenizer::new(source, "template", false, SyntaxConfig, whitespace());
    let mut walk = Walk::default();
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut n_tokens = 0;
    while let Some((token, span)) = tokenizer.next_token().map_err(|error| syntax(&error))? {
        n_tokens += 1;
        let line = usize::from(span.start_line);
        if n_tokens > limits::MAX_TOKENS {
            return Err(limit("the template's number of tokens", limits::MAX_TOKENS as u64).at(line));
        }
        if let Token::Ident(word) = token
            && walk.at_keyword
            && let Some((_, stand_in)) = REPLACED.iter().find(|(name, _)| *name == word)
        {
            let start = span.start_offset as usize;
            out.push_str(&source[copied..start]);
            out.push_str(stand_in);
            copied = start + word.len();
        }
        walk.see(&token).map_err(|error| error.at(line))?;
    }
    out.push_str(&source[copied..]);
    Ok(out)
}

/// A syntax error of the parser in our words.
pub(super) fn syntax(error: &minijinja::Error) -> Error {
    let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    Error::Syntax { line: error.line().unwrap_or(0), message }
}

#[derive(Default)]
struct Walk {
    /// Open blocks, each with the number of its `elif`s.
    blocks: Vec<usize>,
    /// Operators in a row, one count for each open bracket of the tag, the tag itself first.
    chains: Vec<usize>,
    /// The next token is the keyword of a `{% %}` tag.
    at_keyword: bool,
    /// The tag is a `set` without `=` so far.
    in_set: bool,
}

impl Walk {
    fn see(&mut self, token: &Token<'_>) -> Result<(), Error> {
        let at_keyword = std::mem::take(&mut self.at_keyword);
        match token {
            Token::BlockStart | Token::VariableStart => {
                self.chains = vec![0];
                self.at_keyword = matches!(token, Token::BlockStart);
            }
            Token::BlockEnd if std::mem::take(&mut self.in_set) => self.blocks.push(0),
            Token::Ident(word) if at_keyword => return self.keyword(word),
            Token::Ident(word) if WORD_OPERATORS.contains(word) => self.operator(),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.operator();
                self.chains.push(0);
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose if self.chains.len() > 1 => {
                self.chains.pop();
            }
            Token::Comma | Token::Colon => {
                if let Some(count) = self.chains.last_mut() {
                    *count = 0;
                }
            }
            Token::Assign => self.in_set &= self.chains.len() > 1,
            Token::TemplateData(_)
            | Token::VariableEnd
            | Token::Ident(_)
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_) => {}
            _ => self.operator(),
        }
        if self.blocks.len() + self.chains.iter().sum::<usize>() > limits::MAX_SOURCE_DEPTH {
            return Err(limit("the template's nesting", limits::MAX_SOURCE_DEPTH as u64));
        }
        Ok(())
    }

    fn operator(&mut self) {
        if let Some(count) = self.chains.last_mut() {
            *count += 1;
        }
    }

    fn keyword(&mut self, word: &str) -> Result<(), Error> {
        if OPENS.contains(&word) {
            self.blocks.push(0);
        } else if word.starts_with("end") {
            self.blocks.pop();
        } else if word == "set" {
            self.in_set = true;
        } else if word == "elif"
            && let Some(count) = self.blocks.last_mut()
        {
            *count += 1;
            if *count > limits::MAX_ELIF {
                return Err(limit("the number of branches of one `if`", limits::MAX_ELIF as u64));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_bounded_in_every_direction() {
        let deep = 20_000;
        let of = |open: &str, inner: &str, close: &str| format!("{}{inner}{}", open.repeat(deep), close.repeat(deep));
        for source in [
            format!("{{{{ {} }}}}", of("(", "1", ")")),
            format!("{{{{ {} }}}}", of("[", "1", "]")),
            format!("{{{{ {} }}}}", of("{1:", "1", "}")),
            format!("{{{{ {} }}}}", of("f(", "1", ")")),
            format!("{{{{ {}1 }}}}", "not ".repeat(deep)),
            format!("{{{{ {}1 }}}}", "-".repeat(deep)),
            format!("{{{{ 1{} }}}}", "+1".repeat(deep)),
            format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(deep)),
            format!("{{{{ 1{} }}}}", "|abs".repeat(deep)),
            format!("{{{{ a{} }}}}", ".a".repeat(deep)),
            format!("{{{{ a{} }}}}", "[0]".repeat(deep)),
            format!("{{{{ a{} }}}}", " is number".repeat(deep)),
            of("{% if 1 %}", "", "{% endif %}"),
            of("{% for x in y %}", "", "{% endfor %}"),
            of("{% set x %}", "", "{% endset %}"),
            of("{% generation %}", "", "{% endgeneration %}"),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(deep)),
        ] {
            assert!(matches!(prepare(&source), Err(Error::Limit { .. })), "{}", &source[..40]);
        }
        assert!(prepare(&"{% set x = [1] %}".repeat(deep / 2)).is_ok());
        assert!(matches!(prepare(&"{{ 1 }}".repeat(limits::MAX_TOKENS)), Err(Error::Limit { .. })));
    }

    #[test]
    fn training_marks_become_plain_tags() {
        assert_eq!(
            prepare("a{%- generation %}b{% endgeneration -%}{{ generation }}").unwrap(),
            "a{%- if true %}b{% endif -%}{{ generation }}"
        );
    }
}
