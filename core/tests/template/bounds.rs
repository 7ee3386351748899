//! Hostile templates end with an error, in about a second, in bounded memory, on whatever stack the caller has.

use super::{cases, options, render};
use selvedge_core::template::{ChatTemplate, Error, RenderRequest, TemplateSources};
use selvedge_gguf::Gguf;
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// The smallest stack that a thread of a host may have.
const SMALL_STACK: usize = 128 << 10;

fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| std::thread::Builder::new().stack_size(SMALL_STACK).spawn_scoped(scope, work).unwrap().join().unwrap())
}

fn conversation() -> Json {
    json!({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": true})
}

/// Peak resident memory of this process, bytes.
#[cfg(target_os = "linux")]
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[cfg(not(target_os = "linux"))]
fn peak_memory() -> usize {
    0
}

#[test]
fn hostile_files_are_refused() {
    let Some(cases) = cases() else { return };
    let run = |file: &str| {
        let bytes = std::fs::read(cases.join("hostile").join(file)).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        let started = Instant::now();
        let result = on_small_stack(|| {
            let sources = TemplateSources::from_metadata(&gguf.metadata).map_err(|error| error.to_string())?;
            let source = sources.select(None, false).map_err(|error| error.to_string())?;
            render(source, &conversation()).map(|rendered| rendered.text).map_err(|error| error.to_string())
        });
        assert!(started.elapsed() < Duration::from_secs(2), "{file} took {:?}", started.elapsed());
        result
    };
    assert_eq!(run("p01_tpl_ok.gguf").unwrap(), "[user]hi");
    assert!(run("p03_tpl_infinite_range.gguf").unwrap_err().contains("limit"));
    assert!(run("p05_tpl_deep_parens.gguf").unwrap_err().contains("nesting"));
    assert!(run("p07_tpl_python_internals.gguf").unwrap_err().contains("out of reach"));
    assert!(run("p08_tpl_raise.gguf").unwrap_err().contains("bad roles"));
    assert!(run("p10_tpl_is_u32.gguf").unwrap_err().contains("tokenizer.chat_template"));
    assert!(run("m01_valid_tiny_f32.gguf").unwrap_err().contains("no chat template"));
}

/// Templates that would take all time, memory or stack if they were let.
#[test]
fn hostile_templates_are_stopped() {
    let nested_loops = "{% for a in range(99999) %}".repeat(6) + &"{% endfor %}".repeat(6);
    let doubling = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let alternating =
        "{% set ns = namespace(x='') %}{% for i in range(99999) %}{% set ns.x = ns.x ~ 'a' ~ messages[0].content %}{% endfor %}";
    let deep_value = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let shared_value = "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for (name, source) in [
        ("loops", nested_loops.as_str()),
        ("doubling", doubling),
        ("alternating", alternating),
        ("deep value", deep_value),
        ("shared value printed", &shared_value.replace("range(99)", "range(60)").replace("{% endfor %}", "{% endfor %}{{ ns.x }}")),
        ("shared value as JSON", &shared_value.replace("range(99)", "range(60)").replace("{% endfor %}", "{% endfor %}{{ ns.x|tojson }}")),
        (
            "shared value compared",
            &shared_value.replace("range(99)", "range(60)").replace("{% endfor %}", "{% endfor %}{{ ns.x == [ns.x[0], ns.x[1]] }}"),
        ),
        ("shared value nested", &shared_value.replace("range(99)", "range(500)")),
        ("repeat", "{{ 'x' * 1000000000 }}"),
        ("repeat twice", "{{ ('x' * 10000000)|replace('x', 'y' * 10000000) }}"),
        ("repeat list", "{{ [0] * 1000000000 }}"),
        ("repeat empty", "{{ '' * 10 ** 30 }}{{ [] * 10 ** 30 }}{{ 1 // 0 }}"),
        ("power", "{{ 10 ** 10 ** 10 }}"),
        ("range", "{{ range(1000000000) }}"),
        ("range huge", "{{ range(0 - 10 ** 38, 10 ** 38) }}"),
        ("join", "{{ range(100000)|join('x' * 100000) }}"),
        ("map join", "{{ range(100000)|map('string')|map('center', 100000)|join }}"),
        ("center", "{{ 'x'.center(10 ** 12) }}{{ 'x'|center(10 ** 30) }}"),
        ("zfill", "{{ 'x'.zfill(10 ** 12) }}"),
        ("expandtabs", "{{ ('\t' * 100000).expandtabs(1000000) }}"),
        ("format width", "{{ '{:1000000000000}'.format(1) }}"),
        ("percent width", "{{ '%1000000000000d' % 1 }}"),
        ("indent", "{{ 'a\nb'|indent(10 ** 12) }}"),
        ("indent many", "{{ ('a\n' * 100000)|indent(100000) }}"),
        ("tojson indent", "{{ [1]|tojson(indent=10 ** 12) }}"),
        ("tojson indent many", "{{ ([1] * 100000)|tojson(indent=100000) }}"),
        ("tojson separators", "{{ ([1] * 100000)|tojson(separators=(',' * 100000, ':')) }}"),
        ("batch fill", "{{ [1]|batch(10 ** 12, 'x') }}"),
        ("slices", "{{ [1]|slice(10 ** 12) }}"),
        ("sort", "{% for i in range(100000) %}{{ (range(100000)|sort)[0] }}{% endfor %}"),
        ("unique", "{{ range(100000)|unique|list|length }}"),
        ("in", "{% for i in range(100000) %}{{ -1 in range(100000) }}{% endfor %}"),
        ("count", "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x.count('b') }}{% endfor %}"),
        ("split", "{% set x = 'a' * 1000000 %}{% for i in range(1000) %}{{ x.split('a')|length }}{% endfor %}"),
        ("list", "{% set x = 'a' * 1000000 %}{% for i in range(1000) %}{{ x|list|length }}{% endfor %}"),
        ("namespaces", "{% for i in range(99999) %}{% for j in range(99999) %}{% set ns = namespace() %}{% endfor %}{% endfor %}"),
        ("macros", "{% for i in range(99999) %}{% for j in range(99999) %}{% macro f() %}{% endmacro %}{% endfor %}{% endfor %}"),
        ("strftime", "{{ strftime_now('%c' * 10000000) }}"),
        ("recursive macro", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
        ("recursive caller", "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}"),
        ("recursive default", "{% macro f(x=f()) %}{% endmacro %}{{ f() }}"),
        ("recursive loop", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
        ("recursive map", "{{ [1]|map(*(['map'] * 100000)) }}"),
        ("output", "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}"),
        ("unclosed", &"{% if x %}".repeat(100_000)),
        ("long", &"x".repeat(2 << 20)),
    ] {
        let started = Instant::now();
        match on_small_stack(|| render(source, &conversation())) {
            Err(Error::Limit { .. } | Error::Failed { .. }) => {}
            other => {
                panic!("{name}: {}", other.map_or_else(|error| error.to_string(), |rendered| format!("{} bytes", rendered.text.len())))
            }
        }
        assert!(started.elapsed() < Duration::from_secs(3), "{name} took {:?}", started.elapsed());
        println!("{name}: {:?}, peak {} MiB", started.elapsed(), peak_memory() >> 20);
    }
    assert!(peak_memory() < 256 << 20, "peak of {} MiB", peak_memory() >> 20);
}

/// What the bounds allow must fit the stack: every kind of nesting at the edge of its bound is tried, deeper and
/// deeper, until it is refused.
#[test]
fn nesting_within_the_bounds_fits_the_stack() {
    type Nest = fn(usize) -> String;
    let kinds: [(&str, Nest); 12] = [
        ("parentheses", |n| format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n))),
        ("lists", |n| format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n))),
        ("calls", |n| format!("{{{{ {}1{} }}}}", "dict(a=".repeat(n), ")".repeat(n))),
        ("dicts", |n| format!("{{{{ {}1{} }}}}", "{1:".repeat(n), "}".repeat(n))),
        ("not", |n| format!("{{{{ {}1 }}}}", "not ".repeat(n))),
        ("minus", |n| format!("{{{{ {}1 }}}}", "-".repeat(n))),
        ("sums", |n| format!("{{{{ 1{} }}}}", "+1".repeat(n))),
        ("choices", |n| format!("{{{{ 1{} }}}}", " if 0 else 1".repeat(n))),
        ("filters", |n| format!("{{{{ 1{} }}}}", "|string".repeat(n))),
        ("if", |n| format!("{}x{}", "{% if 1 %}".repeat(n), "{% endif %}".repeat(n))),
        ("for", |n| format!("{}x{}", "{% for x in [1] %}".repeat(n), "{% endfor %}".repeat(n))),
        ("call blocks", |n| {
            format!("{{% macro f() %}}{{{{ caller() }}}}{{% endmacro %}}{}x{}", "{% call f() %}".repeat(n), "{% endcall %}".repeat(n))
        }),
    ];
    for (name, nest) in kinds {
        let mut deepest = 0;
        for n in 1..1000 {
            let source = nest(n);
            match on_small_stack(|| render(&source, &conversation())) {
                Ok(_) => deepest = n,
                Err(Error::Limit { .. } | Error::Syntax { .. }) => break,
                Err(error) => panic!("{name} {n}: {error}"),
            }
        }
        assert!((30..999).contains(&deepest), "{name}: {deepest}");
    }
    // Calls of macros, each from inside the nesting that its source may have.
    let inner = "(".repeat(40) + "f(x - 1)" + &")".repeat(40);
    let source = format!(
        "{{% macro f(x) %}}{}{{{{ {inner} }}}}{}{{% endmacro %}}{{{{ f(1000) }}}}",
        "{% if 1 %}".repeat(40),
        "{% endif %}".repeat(40)
    );
    assert!(matches!(on_small_stack(|| render(&source, &conversation())), Err(Error::Limit { .. })));
}

#[test]
fn real_conversations_are_far_from_the_bounds() {
    let Some(source) = super::case_file("meta-llama-Llama-3.2-3B-Instruct.jinja") else { return };
    let text = "A paragraph of an ordinary length, as people write them in a conversation. ".repeat(20);
    let messages: Vec<Json> = (0..1000).map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": text})).collect();
    let messages = Json::from(messages);
    let template = ChatTemplate::new(&source, options()).unwrap();
    let started = Instant::now();
    let rendered = template.render(&RenderRequest::new(&messages)).unwrap();
    assert!(rendered.text.len() > 1_400_000);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}
