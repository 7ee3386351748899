//! Chat templates against what jinja2 renders, and against people who type control tokens.

use selvedge_core::template::{ChatTemplate, CivilTime, Clock, Error, RenderRequest, Rendered, TemplateOptions};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// The folder of test data, if it is there.
fn cases() -> Option<PathBuf> {
    let folder = std::env::var_os("SELVEDGE_CASES")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/cases")), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("SELVEDGE_REQUIRE_CASES").is_none(), "no cases folder at {}", folder.display());
    println!("skipped: no cases folder");
    None
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

fn request(conversation: &Json) -> RenderRequest<'_> {
    RenderRequest {
        tools: conversation.get("tools"),
        add_generation_prompt: conversation["add_generation_prompt"] == true,
        now: clock(),
        ..RenderRequest::new(&conversation["messages"])
    }
}

fn case_file(name: &str) -> Option<String> {
    Some(std::fs::read_to_string(cases()?.join("templates").join(name)).unwrap())
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn published_templates_render_as_jinja2_does() {
    let Some(expected) = case_file("expected.json") else {
        return;
    };
    let expected: Json = serde_json::from_str(&expected).unwrap();
    let (mut n, mut wrong) = (0, Vec::new());
    for (file, conversations) in expected["expected"].as_object().unwrap() {
        let template = template(&case_file(file).unwrap());
        for (name, want) in conversations.as_object().unwrap() {
            n += 1;
            let got = template.render(&request(&expected["conversations"][name]));
            match (&got, want["ok"] == true) {
                // Long texts are given by their hash alone.
                (Ok(got), true) if want["text"] == got.text || want["sha256"] == sha256(&got.text) => {}
                (Err(_), false) => {}
                _ => wrong.push(format!("{file} {name}\n got {got:?}\nwant {want}")),
            }
        }
    }
    assert_eq!(n, 105);
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
