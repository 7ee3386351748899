//! Any template and any conversation: rendering returns or refuses, spans cover the text, and no character that only
//! the conversation contains is trusted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_core::template::{ChatTemplate, CivilTime, Clock, RenderRequest, TemplateOptions};
use serde_json::json;

/// A character that the conversation has and the template, where it is taken out, can't have.
const MARK: char = '\u{2463}';

fuzz_target!(|input: (&str, &str)| {
    let (source, content) = input;
    // Templates spell characters by escapes and make them from others' cases; the mark has no case and no such source here.
    let source = source.replace(MARK, "").replace(['\\', 'u'], "");
    let Ok(template) = ChatTemplate::new(&source, TemplateOptions { bos: "<s>".to_owned(), eos: "</s>".to_owned(), tokens: Vec::new() }) else { return };
    let marked = format!("{MARK}{content}{MARK}");
    let messages = json!([
        {"role": "system", "content": marked},
        {"role": content, "content": [{"type": "text", "text": marked}], marked.clone(): 1},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": marked, "arguments": {marked.clone(): content}}}]},
    ]);
    let tools = json!([{"type": "function", "function": {"name": marked, "parameters": {"properties": {"x": {"type": content}}}}}]);
    let Some(time) = CivilTime::parse_iso("2025-03-07T09:05:00") else { return };
    let request = RenderRequest { tools: Some(&tools), now: Clock::Fixed(time), ..RenderRequest::new(&messages) };
    let Ok(rendered) = template.render(&request) else { return };
    let mut at = 0;
    for span in &rendered.spans {
        assert!(span.range.start == at && span.range.end > at);
        at = span.range.end;
        assert!(!(span.trusted && rendered.text[span.range.clone()].contains(MARK)), "{source:?}");
    }
    assert_eq!(at, rendered.text.len());
    assert_eq!(template.render(&request).as_ref(), Ok(&rendered));
});
