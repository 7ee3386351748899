//! The rules of the house that no compiler checks: who may depend on whom, what may stand where, what documents promise.
//!
//! Every rule is a function from the tree to a list of problems, so that a rule can be tried on a bad example too.
//! To add one: write such a function and a test that calls [`none`] on it.

#[path = "tidy/source.rs"]
mod source;

use source::{find_float_function, find_word, line_of, names_after, strip, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

// ---------------------------------------------------------------------------------------------------------------------
// Tables.

/// Who may depend on whom inside the workspace. A crate that isn't listed may depend on nothing and nothing on it.
const ALLOWED_EDGES: &[(&str, &[&str])] = &[
    ("selvedge-gguf", &[]),
    ("selvedge-core", &["selvedge-gguf"]),
    ("selvedge-backend-cpu", &["selvedge-core", "selvedge-gguf"]),
    ("selvedge-backends", &["selvedge-backend-cpu", "selvedge-core", "selvedge-gguf"]),
    ("selvedge", &["selvedge-backends", "selvedge-core", "selvedge-gguf"]),
    ("selvedge-ffi", &["selvedge"]),
    ("selvedge-cli", &["selvedge"]),
    // The suites look at every layer.
    ("selvedge-tests", &["selvedge", "selvedge-backend-cpu", "selvedge-backends", "selvedge-core", "selvedge-ffi", "selvedge-gguf"]),
];

/// Functions of std's floats whose last bits differ between systems (DESIGN 3.1); `core::math` has our own.
const TRANSCENDENTAL: &[&str] = &[
    "exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "powf", "powi", "sin", "cos", "tan", "sin_cos", "asin", "acos", "atan",
    "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "cbrt", "hypot", "gamma", "ln_gamma",
];

/// Where those are forbidden.
const SAME_BITS: &[&str] = &["core/src/", "backends/cpu/src/"];

/// Crates below the public API: they open no connection, and files in the listed places only.
const NO_NET: &[&str] = &["gguf/src/", "core/src/", "backends/"];

/// Files of these crates that may use `std::fs`: what maps models, what keeps packs, and what asks the operating system about itself.
const FILES: &[&str] =
    &["core/src/model/file.rs", "core/src/model/mapped.rs", "core/src/model/source.rs", "core/src/model/pack/", "core/src/os.rs"];

/// Files outside an `os` module that may call the operating system through libc, each with its reason.
const LIBC: &[(&str, &str)] = &[("core/src/template/clock.rs", "local time for strftime_now")];

/// Crate roots that promise to hold no unsafe code.
const FORBID_UNSAFE: &[&str] = &["gguf/src/lib.rs", "bindings/rust/src/lib.rs", "cli/src/main.rs"];

/// Where printing is the purpose.
const MAY_PRINT: &[&str] = &["cli/src/"];

/// How the reason of an ignored test may begin; `scripts/test --full` runs these.
const IGNORE_REASONS: &[&str] = &["long"];

/// Hosts of package registries and paths of one machine; in pieces, as this file is read too.
const FOREIGN_TEXT: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("deb.debian", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("/wo", "rk"),
    concat!("/ro", "ot"),
    concat!("/ho", "me"),
];

// ---------------------------------------------------------------------------------------------------------------------
// The tree.

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

/// Tracked files and those that would be, relative to the root, with `/` between the parts.
fn files() -> Vec<String> {
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let files: BTreeSet<_> = listed.split('\0').filter(|f| !f.is_empty() && root().join(f).is_file()).map(str::to_owned).collect();
    assert!(files.contains("tests/tidy.rs"), "git lists this file");
    files.into_iter().collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Production code by path: stripped, without tests, without files that are compiled for tests only.
fn production() -> BTreeMap<String, String> {
    let mut code = BTreeMap::new();
    let mut test_files = BTreeSet::new();
    for path in files().into_iter().filter(|p| p.ends_with(".rs") && !is_test_path(p)) {
        let (text, test_modules) = without_tests(&strip(&read(&path)));
        let folder = match path.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
            _ => path.trim_end_matches(".rs").to_owned(),
        };
        for module in test_modules {
            test_files.insert(format!("{folder}/{module}.rs"));
            test_files.insert(format!("{folder}/{module}/mod.rs"));
        }
        code.insert(path, text);
    }
    code.retain(|path, _| !test_files.contains(path));
    assert!(code.contains_key("core/src/lib.rs"), "core's production code is among it");
    code
}

fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"))
}

/// Places in `code` where any of `words` stands.
fn word_problems(path: &str, code: &str, words: &[&str], what: &str) -> Vec<String> {
    let found = words.iter().flat_map(|word| find_word(code, word).into_iter().map(move |i| (i, *word)));
    found.map(|(i, word)| format!("{path}:{}: {word}: {what}", line_of(code, i))).collect()
}

/// Fails with the problems, one a line.
fn none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

// ---------------------------------------------------------------------------------------------------------------------
// Dependencies.

/// `cargo metadata` of the workspace's own packages.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

/// `(package, dependency)` inside the workspace, of every kind: a test must not turn an arrow round either.
fn edges(packages: &[serde_json::Value]) -> Vec<(String, String)> {
    let name = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let inside: BTreeSet<_> = packages.iter().map(name).collect();
    let mut edges = Vec::new();
    for package in packages {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if inside.contains(&name(dependency)) {
                edges.push((name(package), name(dependency)));
            }
        }
    }
    edges
}

fn edge_problems(names: &[String], edges: &[(String, String)]) -> Vec<String> {
    let allowed = |package: &str| ALLOWED_EDGES.iter().find(|(name, _)| *name == package).map(|(_, to)| *to);
    let unlisted = names.iter().filter(|n| allowed(n).is_none()).map(|n| format!("{n}: not in ALLOWED_EDGES"));
    let wrong = edges
        .iter()
        .filter(|(from, to)| !allowed(from).is_some_and(|list| list.contains(&to.as_str())))
        .map(|(from, to)| format!("{from} depends on {to}: not in ALLOWED_EDGES"));
    unlisted.chain(wrong).collect()
}

#[test]
fn dependency_direction() {
    let packages = packages();
    let names: Vec<_> = packages.iter().map(|p| p["name"].as_str().expect("a name").to_owned()).collect();
    let edges = edges(&packages);
    assert!(edges.contains(&("selvedge-core".into(), "selvedge-gguf".into())), "core reads files through gguf: {edges:?}");
    none(edge_problems(&names, &edges));
    // The rule can fail.
    assert_eq!(edge_problems(&[], &[("selvedge-gguf".into(), "selvedge-core".into())]).len(), 1);
    assert_eq!(edge_problems(&["selvedge-new".into()], &[]).len(), 1);
}

#[test]
fn edge_table_has_no_cycle() {
    // Rows stand in order: a crate may name earlier rows only.
    let mut seen = BTreeSet::new();
    for (name, to) in ALLOWED_EDGES {
        let later: Vec<_> = to.iter().filter(|t| !seen.contains(*t)).collect();
        assert!(later.is_empty() || *name == "selvedge-tests", "{name} names later rows: {later:?}");
        seen.insert(*name);
    }
}

fn backend_name_problems(path: &str, code: &str) -> Vec<String> {
    let own = path.split('/').nth(1).filter(|_| path.starts_with("backends/")).unwrap_or("");
    if own == "registry" {
        return Vec::new();
    }
    names_in(code, "selvedge_backend_")
        .into_iter()
        .filter(|(_, name)| *name != format!("selvedge_backend_{own}"))
        .map(|(i, name)| format!("{path}:{}: {name}: only backends/registry names backends", line_of(code, i)))
        .collect()
}

/// Whole words that begin with `prefix`.
fn names_in<'a>(code: &'a str, prefix: &str) -> Vec<(usize, &'a str)> {
    code.match_indices(prefix).map(|(i, _)| (i, &code[i..i + code[i..].find(|c| !source::is_word(c)).unwrap_or(code.len() - i)])).collect()
}

#[test]
fn only_registry_names_backends() {
    none(production().iter().flat_map(|(path, code)| backend_name_problems(path, code)).collect());
    assert_eq!(backend_name_problems("cli/src/main.rs", "use selvedge_backend_cpu::X;").len(), 1);
    assert_eq!(backend_name_problems("backends/wgpu/src/lib.rs", "selvedge_backend_cpu::x(); selvedge_backend_wgpu::y()").len(), 1);
    assert!(backend_name_problems("backends/registry/src/lib.rs", "selvedge_backend_cpu::X").is_empty());
}

/// Dependencies in the root manifest that have no reason, and in members that have a version of their own.
fn dependency_reason_problems() -> Vec<String> {
    let mut problems = Vec::new();
    for (name, reason) in external_dependencies() {
        if reason.len() < 10 {
            problems.push(format!("Cargo.toml: {name} has no reason behind a #, nor on the line above"));
        }
    }
    for path in files()
        .iter()
        .filter(|p| p.ends_with("Cargo.toml") && *p != "Cargo.toml" && !p.starts_with("tests/bench") && !p.starts_with("tests/fuzz"))
    {
        let mut in_dependencies = false;
        for (i, line) in read(path).lines().enumerate() {
            if line.starts_with('[') {
                in_dependencies = line.ends_with("dependencies]");
            } else if in_dependencies && line.contains('=') && !line.trim_start().starts_with('#') && !line.contains("workspace = true") {
                problems.push(format!("{path}:{}: {line}: take the version from the workspace", i + 1));
            }
        }
    }
    problems
}

/// Names of the root manifest's dependencies that come from outside, with the reason given behind or above them.
fn external_dependencies() -> Vec<(String, String)> {
    let manifest = read("Cargo.toml");
    let (_, section) = manifest.split_once("[workspace.dependencies]").expect("the manifest lists dependencies");
    let mut found = Vec::new();
    let mut above = "";
    for line in section.lines().skip(1).take_while(|line| !line.starts_with('[')) {
        if line.contains('=') && !line.starts_with('#') && !line.contains("path =") {
            let name = line.split(['=', ' ']).next().unwrap_or_default().to_owned();
            let reason = line.split_once('#').map_or(above, |(_, reason)| reason);
            found.push((name, reason.trim().to_owned()));
        }
        above = line.strip_prefix('#').unwrap_or("");
    }
    assert!(found.iter().any(|(name, _)| name == "thiserror"), "the list is found: {found:?}");
    found
}

#[test]
fn every_dependency_has_its_reason() {
    none(dependency_reason_problems());
}

// ---------------------------------------------------------------------------------------------------------------------
// Order of modules in core.

/// Modules in the order of their declaration.
fn modules_of(lib: &str) -> Vec<String> {
    let words = find_word(lib, "mod").into_iter().map(|i| &lib[i + 3..]);
    words
        .filter_map(|rest| rest.split_once(';'))
        .map(|(name, _)| name.trim().to_owned())
        .filter(|n| n.chars().all(source::is_word))
        .collect()
}

fn module_order_problems(modules: &[String], path: &str, code: &str) -> Vec<String> {
    let Some(own) = path.strip_prefix("core/src/").and_then(|p| p.split('/').next()).map(|p| p.trim_end_matches(".rs")) else {
        return Vec::new();
    };
    let position = |name: &str| modules.iter().position(|m| m == name);
    let Some(own_position) = position(own) else {
        return if own == "lib" { Vec::new() } else { vec![format!("{path}: belongs to no module of lib.rs")] };
    };
    // In a top module's own file `super::` is the crate; deeper it is something else.
    let is_top = path == format!("core/src/{own}.rs") || path == format!("core/src/{own}/mod.rs");
    let mut names = names_after(code, "crate::");
    if is_top {
        names.extend(names_after(code, "super::").into_iter().filter(|(_, name)| position(name).is_some()));
    }
    let mut problems = Vec::new();
    for (i, name) in names {
        let place = format!("{path}:{}", line_of(code, i));
        let is_macro = code[i..].split_once(&name).is_some_and(|(_, rest)| rest.starts_with('!'));
        match position(&name) {
            Some(p) if p > own_position => problems.push(format!("{place}: {own} uses {name}, which lib.rs declares later")),
            None if !is_macro => problems.push(format!("{place}: crate::{name} is no module of lib.rs; name the module")),
            _ => {}
        }
    }
    problems
}

#[test]
fn module_order_in_core() {
    let production = production();
    let modules = modules_of(&production["core/src/lib.rs"]);
    assert!(modules.len() > 5, "modules are found: {modules:?}");
    none(production.iter().flat_map(|(path, code)| module_order_problems(&modules, path, code)).collect());
    // The rule can fail.
    let modules = modules_of("pub mod os;\nmod math;\npub(crate) mod engine;");
    assert_eq!(modules, ["os", "math", "engine"]);
    assert_eq!(module_order_problems(&modules, "core/src/math/lanes.rs", "use crate::engine::Engine;").len(), 1);
    assert_eq!(module_order_problems(&modules, "core/src/math/lanes.rs", "use crate::{os, engine};").len(), 1);
    assert_eq!(module_order_problems(&modules, "core/src/math.rs", "super::engine::x()").len(), 1);
    assert_eq!(module_order_problems(&modules, "core/src/engine.rs", "use crate::Engine;").len(), 1);
    assert!(module_order_problems(&modules, "core/src/engine.rs", "crate::os::x(); crate::engine::y(); crate::z!()").is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// What may stand where.

fn starts_with_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

fn transcendental_problems(path: &str, code: &str) -> Vec<String> {
    if !starts_with_any(path, SAME_BITS) {
        return Vec::new();
    }
    let found = TRANSCENDENTAL.iter().flat_map(|name| find_float_function(code, name).into_iter().map(move |i| (i, name)));
    found.map(|(i, name)| format!("{path}:{}: std's {name} differs between systems; use core::math", line_of(code, i))).collect()
}

#[test]
fn no_std_transcendental_functions() {
    none(production().iter().flat_map(|(path, code)| transcendental_problems(path, code)).collect());
    assert_eq!(transcendental_problems("core/src/x.rs", "let y = x.tanh() + f64::powi(x, 2);").len(), 2);
    assert!(transcendental_problems("core/src/x.rs", "let y = math::tanh(x).sqrt();").is_empty());
}

fn io_problems(path: &str, code: &str) -> Vec<String> {
    if !starts_with_any(path, NO_NET) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (i, name) in names_after(code, "std::").into_iter().chain(names_after(code, "core::")) {
        let what = match name.as_str() {
            "net" => "nothing below the public API opens a connection",
            "fs" if !starts_with_any(path, FILES) => "files are opened in the places that FILES lists",
            _ => continue,
        };
        problems.push(format!("{path}:{}: std::{name}: {what}", line_of(code, i)));
    }
    problems
}

#[test]
fn no_network_and_files_in_one_place() {
    none(production().iter().flat_map(|(path, code)| io_problems(path, code)).collect());
    assert_eq!(io_problems("core/src/x.rs", "use std::{fs::File, io}; std::net::TcpStream::connect(a)").len(), 2);
    assert!(io_problems("core/src/model/file.rs", "std::fs::File::open(p)").is_empty());
    assert!(io_problems("cli/src/main.rs", "std::fs::File::open(p)").is_empty());
}

fn libc_problems(path: &str, code: &str) -> Vec<String> {
    let in_os = path.ends_with("/os.rs") || path.contains("/os/") || LIBC.iter().any(|(file, _)| *file == path);
    if in_os { Vec::new() } else { word_problems(path, code, &["libc"], "calls of the operating system stand in a crate's `os` module") }
}

#[test]
fn operating_system_in_os_modules() {
    none(production().iter().flat_map(|(path, code)| libc_problems(path, code)).collect());
    assert_eq!(libc_problems("backends/cpu/src/pool.rs", "unsafe { libc::sched_yield() }").len(), 1);
    assert!(libc_problems("backends/cpu/src/os.rs", "unsafe { libc::sched_yield() }").is_empty());
}

#[test]
fn unsafe_is_forbidden_where_promised() {
    let missing = FORBID_UNSAFE.iter().filter(|path| !strip(&read(path)).contains("#![forbid(unsafe_code)]"));
    none(missing.map(|path| format!("{path}: #![forbid(unsafe_code)] is missing")).collect());
}

fn print_problems(path: &str, code: &str) -> Vec<String> {
    if starts_with_any(path, MAY_PRINT) || path.ends_with("build.rs") {
        return Vec::new();
    }
    word_problems(path, code, &["println!", "eprintln!", "print!", "eprint!"], "a library hands text to its caller")
}

#[test]
fn libraries_do_not_print() {
    none(production().iter().flat_map(|(path, code)| print_problems(path, code)).collect());
    assert_eq!(print_problems("core/src/x.rs", "fn f() { eprintln!(\"\"); }").len(), 1);
}

fn ignore_problems(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("#[ignore") else { continue };
        let reason = rest.split_once('"').map_or("", |(_, reason)| reason);
        if !starts_with_any(reason, IGNORE_REASONS) {
            problems.push(format!("{path}:{}: an ignored test gives a reason that begins with one of {IGNORE_REASONS:?}", i + 1));
        }
    }
    problems
}

#[test]
fn ignored_tests_say_why() {
    none(files().iter().filter(|p| p.ends_with(".rs")).flat_map(|path| ignore_problems(path, &read(path))).collect());
    assert_eq!(ignore_problems("x", concat!("#[ign", "ore]")).len(), 1);
    assert_eq!(ignore_problems("x", concat!("#[ign", "ore = \"flaky\"]")).len(), 1);
    assert!(ignore_problems("x", concat!("#[ign", "ore = \"long: an hour\"]")).is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Text.

#[test]
fn every_source_file_says_what_it_is() {
    let silent = files().into_iter().filter(|p| p.ends_with(".rs") && !read(p).starts_with("//!"));
    none(silent.map(|path| format!("{path}: does not begin with a `//!` line")).collect());
}

fn foreign_text_problems(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for foreign in FOREIGN_TEXT {
        for i in find_word(text, foreign) {
            // `tests/root` and `$HOME/work` are relative to something.
            let relative = foreign.starts_with('/') && text[..i].ends_with(|c: char| source::is_word(c) || "}.~)-".contains(c));
            if !relative {
                problems.push(format!("{path}:{}: {foreign} belongs to one machine or registry", line_of(text, i)));
            }
        }
    }
    problems
}

#[test]
fn no_registry_hosts_and_no_machine_paths() {
    let mut problems = Vec::new();
    // Lock files are written by cargo, with the registry's name in them.
    for path in files().iter().filter(|p| !p.ends_with(".lock")) {
        if let Ok(text) = std::fs::read_to_string(root().join(path)) {
            problems.extend(foreign_text_problems(path, &text));
        }
    }
    none(problems);
    assert_eq!(foreign_text_problems("x", concat!("cd /ho", "me/me; open https://pypi", ".org/x")).len(), 2);
    assert!(foreign_text_problems("x", concat!("tests/ro", "ot /ro", "ots")).is_empty());
}

#[test]
fn architecture_describes_every_crate_and_dependency() {
    let text = read("ARCHITECTURE.md");
    let mut problems = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        if !text.contains(&format!("\n### `{name}`")) {
            problems.push(format!("ARCHITECTURE.md: no heading ### `{name}`"));
        }
    }
    for module in modules_of(&production()["core/src/lib.rs"]) {
        if !text.contains(&format!("\n- `{module}`: ")) {
            problems.push(format!("ARCHITECTURE.md: no line - `{module}`: among core's modules"));
        }
    }
    let (_, table) = text.split_once("## Dependencies").expect("ARCHITECTURE.md has a section Dependencies");
    for (name, _) in external_dependencies() {
        if !table.contains(&format!("| `{name}` |")) {
            problems.push(format!("ARCHITECTURE.md: no row for the dependency {name}"));
        }
    }
    none(problems);
}

/// Problems of the section Invariants: every numbered item names at least one test, and every test named exists.
fn invariant_problems(text: &str, has_test: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let Some((_, section)) = text.split_once("\n## Invariants\n") else { return vec!["no section Invariants".into()] };
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut items: Vec<String> = Vec::new();
    for line in section.lines() {
        let is_item = line.split_once(". ").is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
        if is_item {
            items.push(line.to_owned());
        } else if let Some(item) = items.last_mut() {
            item.push(' ');
            item.push_str(line);
        }
    }
    let mut problems = Vec::new();
    if items.is_empty() {
        problems.push("no invariant is listed".into());
    }
    for item in items {
        let title: String = item.chars().take(60).collect();
        let Some((_, held)) = item.split_once("Held by") else {
            problems.push(format!("{title}: names no test (Held by `file.rs::test`)"));
            continue;
        };
        let tests: Vec<_> = held.split('`').skip(1).step_by(2).filter_map(|name| name.rsplit_once("::")).collect();
        if tests.is_empty() {
            problems.push(format!("{title}: names no test (Held by `file.rs::test`)"));
        }
        for (file, test) in tests {
            if !has_test(file, test) {
                problems.push(format!("{title}: there is no test {test} in {file}"));
            }
        }
    }
    problems
}

#[test]
fn every_invariant_names_its_test() {
    let has_test = |file: &str, test: &str| {
        root().join(file).is_file() && {
            let code = strip(&read(file));
            find_word(&code, &format!("fn {test}")).into_iter().any(|i| code[..i].trim_end().ends_with(']'))
        }
    };
    none(invariant_problems(&read("ARCHITECTURE.md"), has_test));
    // The rule can fail.
    assert_eq!(invariant_problems("\n## Invariants\n\n1. **A.** b\n2. **C.** Held by `x.rs::t`.\n", |_, _| false).len(), 2);
    assert!(invariant_problems("\n## Invariants\n\n1. **C.** d\n   Held by `x.rs::t`.\n", |_, _| true).is_empty());
}
