//! The header is what the sources say, and so is the list of symbols: a change of the interface shows in the diff of both.
//! `SELVEDGE_WRITE_HEADER=1` writes them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn header() -> String {
    let root = at("");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut out = Vec::new();
    cbindgen::Builder::new().with_crate(&root).with_config(config).with_parse_deps(false).generate().unwrap().write(&mut out);
    let text = String::from_utf8(out).unwrap();
    // What Rust asks of its own callers is said in C's words before it, and lists of promises are noise there.
    let mut lines: Vec<&str> = Vec::new();
    let mut in_safety = false;
    for line in text.lines() {
        in_safety |= line.trim_end() == " * # Safety";
        if in_safety && line.trim() == "*/" {
            in_safety = false;
            while lines.last().is_some_and(|l| l.trim() == "*") {
                lines.pop();
            }
        }
        if !in_safety {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

fn symbols(header: &str) -> String {
    let mut names: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '*', '#']) && !line.starts_with("typedef"))
        .filter_map(|line| {
            let (before, _) = line.split_once('(')?;
            Some(before.rsplit([' ', '*']).next().unwrap()).filter(|name| name.starts_with("slv_"))
        })
        .collect();
    names.sort_unstable();
    names.iter().map(|name| format!("{name}\n")).collect()
}

fn check(path: &str, found: &str) {
    let path = at(path);
    if std::env::var_os("SELVEDGE_WRITE_HEADER").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(found.lines()).position(|(a, b)| a != b);
    assert!(
        kept == found,
        "{} isn't what the sources say from line {} on; SELVEDGE_WRITE_HEADER=1 writes it",
        path.display(),
        differs.map_or(kept.lines().count().min(found.lines().count()), |i| i + 1)
    );
}

#[test]
fn header_and_symbols_are_those_of_the_sources() {
    let header = header();
    check("include/selvedge.h", &header);
    check("symbols.txt", &symbols(&header));
}

#[test]
fn every_exported_function_is_in_the_list() {
    let mut found: Vec<String> = Vec::new();
    for file in std::fs::read_dir(at("src")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let name = part.split_once("fn ").unwrap().1.split_once('(').unwrap().0;
            found.push(name.to_owned());
        }
    }
    found.sort();
    let kept = std::fs::read_to_string(at("symbols.txt")).unwrap();
    assert_eq!(found, kept.lines().collect::<Vec<_>>());
}
