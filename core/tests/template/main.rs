//! Chat templates against what jinja2 renders, against people who type control tokens, and against hostile files.

#![allow(clippy::unwrap_used)] // tests fail by it

mod bounds;
mod errors;
mod provenance;
mod reference;

use selvedge_core::template::{ChatTemplate, CivilTime, Clock, Error, RenderRequest, Rendered, TemplateOptions};
use serde_json::Value as Json;
use std::path::PathBuf;

/// The folder of test data, if it is there.
fn cases() -> Option<PathBuf> {
    let folder = std::env::var_os("SELVEDGE_CASES")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/cases")), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("SELVEDGE_REQUIRE_CASES").is_none_or(|v| v != "1"), "no cases folder at {}", folder.display());
    println!("skipped: no cases folder");
    None
}

/// A file of the published templates.
fn case_file(name: &str) -> Option<String> {
    Some(std::fs::read_to_string(cases()?.join("templates").join(name)).unwrap())
}

/// What jinja2 makes of the published templates, and the names of these.
fn published() -> Option<(Json, Vec<String>)> {
    let expected: Json = serde_json::from_str(&case_file("expected.json")?).unwrap();
    let names = expected["expected"].as_object().unwrap().keys().cloned().collect();
    Some((expected, names))
}

fn options() -> TemplateOptions {
    TemplateOptions { bos: "<BOS>".to_owned(), eos: "<EOS>".to_owned(), tokens: Vec::new() }
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, options()).unwrap()
}

fn clock() -> Clock {
    Clock::Fixed(CivilTime::parse_iso("2025-03-07T09:05:00").unwrap())
}

/// A conversation as expected.json has them.
fn request(conversation: &Json) -> RenderRequest<'_> {
    RenderRequest {
        tools: conversation.get("tools"),
        add_generation_prompt: conversation["add_generation_prompt"] == true,
        now: clock(),
        ..RenderRequest::new(&conversation["messages"])
    }
}

fn render(source: &str, conversation: &Json) -> Result<Rendered, Error> {
    ChatTemplate::new(source, options())?.render(&request(conversation))
}
