//! A template's own words reach the caller, and what can't be rendered says why.

use super::{case_file, clock, published, render, template};
use selvedge_core::template::{ChatTemplate, Error, RenderRequest, TemplateOptions, TemplateSources};
use serde_json::{Value as Json, json};

fn conversation(roles: &[&str]) -> Json {
    let messages: Vec<Json> = roles.iter().map(|role| json!({"role": role, "content": "x"})).collect();
    json!({"messages": messages, "add_generation_prompt": true})
}

fn raised(source: &str, conversation: &Json) -> String {
    match render(source, conversation) {
        Err(error @ Error::Raised { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn templates_refuse_in_their_own_words() {
    if published().is_none() {
        return;
    }
    let gemma = case_file("google-gemma-2-2b-it.jinja").unwrap();
    assert!(raised(&gemma, &conversation(&["system", "user"])).contains("System role not supported"));
    assert!(raised(&gemma, &conversation(&["user", "user"])).contains("must alternate"));
    let mistral = case_file("Mistral-Small-3.2-24B-Instruct-2506.jinja").unwrap();
    raised(&mistral, &conversation(&["user", "user"]));
}

#[test]
fn errors_name_the_line() {
    let empty = conversation(&[]);
    let line = |source: &str| match render(source, &empty) {
        Err(Error::Raised { line, .. } | Error::Failed { line, .. } | Error::Syntax { line, .. } | Error::Limit { line, .. }) => line,
        other => panic!("{source}: {other:?}"),
    };
    assert_eq!(line("a\n{{ raise_exception('x') }}"), 2);
    assert_eq!(line("a\nb\n{% for x in [1] %}\n{{ nope.x }}{% endfor %}"), 4);
    assert_eq!(line("a\n{% if %}"), 2);
    assert_eq!(line("a\n\n{% nope %}"), 3);
    assert_eq!(line("a\n{{ range(10 ** 9) }}"), 2);
    assert_eq!(line("{% macro f() %}\n{{ 1 + 'a' }}{% endmacro %}\n{{ f() }}"), 2);
    let error = render("{{ 'a' + 1 }}", &empty).unwrap_err().to_string();
    assert!(error.contains("'str' and 'int'") && !error.contains('\n'), "{error}");
    let error = render("{{ messages[0].content }}", &empty).unwrap_err().to_string();
    assert!(error.contains("undefined"), "{error}");
}

#[test]
fn requests_of_the_wrong_shape_are_refused() {
    let template = template("{{ messages|length }}");
    for (messages, what) in [
        (json!({}), "messages must be an array, found an object"),
        (json!("x"), "messages must be an array, found a string"),
        (json!([{"role": "user"}, 1]), "messages[1] must be an object, found a number"),
        (json!([{"content": "x"}]), "messages[0].role must be a string, found null"),
        (json!([{"role": 1}]), "messages[0].role must be a string, found a number"),
    ] {
        assert_eq!(template.render(&RenderRequest::new(&messages)).unwrap_err().to_string(), what);
    }
    let (messages, tools) = (json!([]), json!({}));
    let request = RenderRequest { tools: Some(&tools), ..RenderRequest::new(&messages) };
    assert_eq!(template.render(&request).unwrap_err().to_string(), "tools must be an array, found an object");
    let mut deep = json!([]);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let messages = json!([{"role": "user", "content": deep}]);
    assert!(matches!(template.render(&RenderRequest::new(&messages)), Err(Error::Limit { .. })));
}

#[test]
fn unknown_fields_reach_the_template() {
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "a"}], "weird": {"x": [1, null]}}]);
    let source = "{{ messages[0].weird.x[0] }}{{ messages[0].content[0]['text'] }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}";
    let request = RenderRequest { add_generation_prompt: false, now: clock(), ..RenderRequest::new(&messages) };
    assert_eq!(template(source).render(&request).unwrap().text, "1aTrueTrueFalse");
}

#[test]
fn the_right_template_is_selected() {
    let entries = [
        ("general.name", "x"),
        ("tokenizer.chat_template", "plain"),
        ("tokenizer.chat_template.tool_use", "tools"),
        ("tokenizer.chat_template.rag", "rag"),
    ];
    let sources = TemplateSources::collect(entries);
    assert_eq!(sources.select(None, false), Ok("plain"));
    assert_eq!(sources.select(None, true), Ok("tools"));
    assert_eq!(sources.select(Some("rag"), true), Ok("rag"));
    assert_eq!(
        sources.select(Some("x"), false).unwrap_err().to_string(),
        "this model has no chat template named 'x', it has: tool_use, rag"
    );
    assert_eq!(TemplateSources::collect(entries[..2].iter().copied()).select(None, true), Ok("plain"));
    assert_eq!(TemplateSources::collect(entries[3..].iter().copied()).select(None, true), Ok("rag"));
    let error = TemplateSources::default().select(None, false).unwrap_err();
    assert!(error == Error::Missing && error.to_string().contains("--raw"));
}

#[test]
fn templates_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}{% endfor %}", TemplateOptions::default()).unwrap();
    shared(&template);
    let messages = conversation(&["user", "assistant"])["messages"].clone();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(template.render(&RenderRequest::new(&messages)).unwrap().text, "xx"));
        }
    });
}
