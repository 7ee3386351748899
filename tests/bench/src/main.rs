//! Measures Selvedge and llama.cpp by turns in one process, each engine's memory in a process of its own, and what the
//! machine could do. Prints one JSON object; `scripts/bench-report` runs it and writes the report.
//!
//! ```text
//! selvedge-bench compare -m MODEL [-t 2] [-r 5] [--points P:N,P:N...] [--second-isa ISA] [--shipped SELVEDGE [--mapped]] [--no-peer]
//! selvedge-bench alone ENGINE -m MODEL [-t 2]       ENGINE: selvedge or llama.cpp
//! selvedge-bench limits [-t 2] [--bytes N]          read bandwidth and integer peaks
//! selvedge-bench info                               builds, instruction sets
//! selvedge-bench plot RECORD.json FOLDER            charts as SVG
//! ```

mod compare;
mod engine;
mod limits;
#[cfg(feature = "peer")]
mod llama;
mod plot;
mod system;

use compare::{Options, Point};
use selvedge_backend_cpu::Isa;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn points(text: &str) -> Result<Vec<Point>> {
    text.split(',')
        .map(|point| {
            let (prompt, decode) = point.split_once(':').ok_or_else(|| format!("a point is PROMPT:TOKENS, got {point:?}"))?;
            Ok(Point { prompt: prompt.parse()?, decode: decode.parse()? })
        })
        .collect()
}

fn run() -> Result<()> {
    let mut words = Vec::new();
    let mut options = Options {
        model: PathBuf::new(),
        threads: 2,
        rounds: 5,
        points: points("0:128,128:0,512:64,2048:64")?,
        second_isa: None,
        shipped: None,
        mapped: false,
        with_peer: cfg!(feature = "peer"),
    };
    let mut n_bytes = 256 << 20;
    let mut args = std::env::args().skip(1);
    while let Some(word) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "-m" => options.model = value()?.into(),
            "-t" => options.threads = value()?.parse::<usize>()?.max(1),
            "-r" => options.rounds = value()?.parse::<usize>()?.max(1),
            "--points" => options.points = points(&value()?)?,
            "--second-isa" => options.second_isa = Some(value()?),
            "--shipped" => options.shipped = Some(value()?),
            "--mapped" => options.mapped = true,
            "--bytes" => n_bytes = value()?.parse()?,
            "--no-peer" => options.with_peer = false,
            flag if flag.starts_with('-') => return Err(format!("unknown argument {flag}").into()),
            _ => words.push(word),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let out = match words[..] {
        ["compare"] => serde_json::to_value(compare::run(&options)?)?,
        ["alone", name] => {
            let how = engine::How { isa: None, threads: options.threads, n_ctx: 1024 };
            serde_json::to_value(compare::alone(name, &how, &options.model)?)?
        }
        ["limits"] => {
            let rate = |pages| limits::Buffer::new(n_bytes, pages).map(|b| limits::bandwidth(&b, n_bytes, options.threads, 9));
            json!({
                "threads": options.threads,
                "bytes": n_bytes,
                "small_gb_s": rate(limits::Pages::Small),
                "huge_gb_s": rate(limits::Pages::Huge),
                "tops": limits::peaks(options.threads),
            })
        }
        ["info"] => {
            let isa: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
            #[cfg(feature = "peer")]
            let peer = json!({ "engine": "llama.cpp", "isa": llama::features(), "system_info": llama::system_info() });
            #[cfg(not(feature = "peer"))]
            let peer = json!(null);
            json!({ "selvedge_isa": isa, "cache_bytes": system::cache_bytes(), "rapl": system::joules().is_some(), "peer": peer })
        }
        ["plot", record, folder] => {
            let record = serde_json::from_slice(&std::fs::read(record)?)?;
            json!({ "files": plot::all(&record, folder.as_ref())? })
        }
        _ => return Err("usage: selvedge-bench compare|alone|limits|info|plot; see the head of main.rs".into()),
    };
    println!("{out}");
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("selvedge-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
