//! Byte for byte what jinja2 renders.

use super::{case_file, published, request, template};
use selvedge_core::template::{ChatTemplate, CivilTime, Clock, RenderRequest, TemplateOptions};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

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

/// Small templates, one feature each: `core/tests/data/template_cases.py` writes what jinja2 makes of them.
#[test]
fn small_templates_render_as_jinja2_does() {
    let expected: Json = serde_json::from_str(include_str!("../data/template_cases.json")).unwrap();
    let vars = expected["vars"].as_object().unwrap();
    let messages = &vars["messages"];
    let now = Clock::Fixed(CivilTime::parse_iso(expected["now"].as_str().unwrap()).unwrap());
    let mut wrong = Vec::new();
    let cases = expected["cases"].as_array().unwrap();
    for case in cases {
        let (source, want) = (case[0].as_str().unwrap(), case[1].as_str());
        let got = ChatTemplate::new(source, TemplateOptions::default())
            .and_then(|template| template.render(&RenderRequest { vars: Some(vars), now, ..RenderRequest::new(messages) }));
        match (&got, want) {
            (Ok(got), Some(want)) if got.text == want => {}
            (Err(_), None) => {}
            (Ok(got), _) => wrong.push(format!("{source:?}\n got {:?}\nwant {want:?} {}", got.text, case[2])),
            (Err(error), _) => wrong.push(format!("{source:?}\n got error {error}\nwant {want:?}")),
        }
    }
    assert!(cases.len() > 500);
    assert!(wrong.is_empty(), "{} of {} wrong\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn the_date_comes_from_the_clock_given() {
    let Some((expected, _)) = published() else { return };
    let source = case_file("meta-llama-Llama-3.2-3B-Instruct.jinja").unwrap();
    let conversation = &expected["conversations"]["sys_multi"];
    let got = template(&source).render(&request(conversation)).unwrap();
    assert!(got.text.contains("Today Date: 07 Mar 2025"), "{}", got.text);
    assert_eq!(got.text.chars().count(), 354);
    let without = source.replace("strftime_now is defined", "nothing_now is defined");
    assert_ne!(source, without);
    assert!(template(&without).render(&request(conversation)).unwrap().text.contains("Today Date: 26 Jul 2024"));
    let system = RenderRequest { now: Clock::System, ..request(conversation) };
    assert!(!template(&source).render(&system).unwrap().text.contains("07 Mar 2025"));
}

/// Every directive on days around the turns of years, as Python writes them.
#[test]
fn dates_are_written_as_python_does() {
    let expected: Json = serde_json::from_str(include_str!("../data/template_cases.json")).unwrap();
    let dates = expected["dates"].as_array().unwrap();
    assert!(dates.len() > 100);
    for date in dates {
        let time = CivilTime::parse_iso(date[0].as_str().unwrap()).unwrap();
        assert_eq!(time.strftime(expected["directives"].as_str().unwrap()), date[1].as_str().unwrap(), "{}", date[0]);
    }
}

#[test]
fn special_tokens_have_their_names() {
    let options = TemplateOptions { tokens: vec![("unk_token".to_owned(), "<unk>".to_owned())], ..super::options() };
    let template = ChatTemplate::new("{{ bos_token }}{{ unk_token }}{{ eos_token }}{{ pad_token is defined }}", options).unwrap();
    let messages = serde_json::json!([]);
    let vars = serde_json::json!({"bos_token": "mine"});
    let got = template.render(&RenderRequest { vars: vars.as_object(), ..RenderRequest::new(&messages) }).unwrap();
    assert_eq!(got.text, "<BOS><unk><EOS>False");
    assert!(template.mentions("unk_token") && !template.mentions("tools"));
}
