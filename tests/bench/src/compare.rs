//! Both engines by turns, in one process: a slow minute of the machine hits both.

use crate::Result;
use crate::engine::{Engine, How, Ours, Shipped};
use crate::limits::{self, Buffer, Pages};
#[cfg(feature = "peer")]
use crate::llama;
use crate::system;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A prompt, and tokens decoded behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub prompt: usize,
    pub decode: usize,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub model: PathBuf,
    pub threads: usize,
    pub rounds: usize,
    pub points: Vec<Point>,
    /// A second instruction set of Selvedge, whose prefill is measured too.
    pub second_isa: Option<String>,
    /// The command, whose decode is measured too, sampling and text included.
    pub shipped: Option<String>,
    /// Whether the command is measured with `--weights mapped` besides.
    pub mapped: bool,
    pub with_peer: bool,
}

/// Rates of one engine at one point, one a round; energy where the machine tells.
#[derive(Debug, Clone, Default, Serialize)]
struct Series {
    tok_s: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tok_per_joule: Vec<f64>,
}

impl Series {
    fn add(&mut self, n: usize, seconds: f64, joules: Option<f64>) {
        self.tok_s.push(n as f64 / seconds);
        self.tok_per_joule.extend(joules.filter(|&j| j > 0.0).map(|j| n as f64 / j));
    }
}

#[derive(Debug, Serialize)]
struct Limit {
    bytes_per_token: u64,
    small: Vec<f64>,
    huge: Vec<f64>,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub struct Comparison {
    threads: usize,
    rounds: usize,
    isa: BTreeMap<String, String>,
    /// `prefill N` or `decode N at DEPTH` to engine to rates.
    series: BTreeMap<String, BTreeMap<String, Series>>,
    /// By depth: bytes that a token must read, and the bandwidth over so many bytes, GB/s, once a round and kind of page.
    bandwidth: BTreeMap<usize, Limit>,
    vnni_tops: Vec<f64>,
    amx_tops: Vec<f64>,
    /// Multiply-adds of the body's weights a row, and of the output matrix.
    body_products: f64,
    head_products: f64,
    packed_bytes: u64,
    /// Processor time that the process takes while nobody has the turn, as a share of one core: the largest seen.
    idle_cpu: f64,
    rapl: bool,
    agreement: Option<Agreement>,
    peer_buffers: Vec<String>,
}

/// Tokens after which the engines' logits are compared.
const N_AGREE: usize = 512;

/// How near both engines' logits are after the same tokens.
#[derive(Debug, Serialize)]
struct Agreement {
    n_ids: usize,
    same_best: bool,
    /// Of Selvedge's distribution from llama.cpp's.
    kl: f64,
}

/// Token ids that differ; which they are doesn't matter, and they are the same in every run and for every engine.
pub fn ids(n: usize, n_vocab: usize) -> Vec<u32> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % n_vocab as u64) as u32
    };
    std::iter::repeat_with(next).take(n).collect()
}

#[cfg(feature = "peer")]
fn agreement(peer: &[f32], ours: &[f32], n_ids: usize) -> Result<Agreement> {
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
        logits.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
    };
    let best = |p: &[f64]| (0..p.len()).max_by(|&a, &b| p[a].total_cmp(&p[b]));
    let (p, q) = (log_softmax(peer), log_softmax(ours));
    if p.len() != q.len() {
        return Err("the engines have vocabularies of different sizes".into());
    }
    let kl = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
    Ok(Agreement { n_ids, same_best: best(&p) == best(&q), kl })
}

type Job = Box<dyn FnOnce(&mut dyn Engine) + Send>;

/// An engine on a thread of its own. llama.cpp sets up a thread's tile registers once and relies on them for ever, so
/// nothing else that uses AMX may run on its threads.
struct Player {
    name: &'static str,
    /// Whether it decodes, or prefills alone.
    decodes: bool,
    jobs: mpsc::Sender<Job>,
}

impl Player {
    /// Opens an engine on its thread; with what `open` tells of it.
    fn new<E: Engine + 'static, T: Send + 'static>(
        name: &'static str,
        decodes: bool,
        open: impl FnOnce() -> Result<(E, T)> + Send + 'static,
    ) -> Result<(Player, T)> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (opened, answer) = mpsc::channel();
        std::thread::Builder::new().name(name.into()).spawn(move || match open() {
            Err(error) => {
                let _ = opened.send(Err(error));
            }
            Ok((mut engine, told)) => {
                let _ = opened.send(Ok(told));
                queue.into_iter().for_each(|job| job(&mut engine));
            }
        })?;
        Ok((Player { name, decodes, jobs }, answer.recv()??))
    }

    /// Runs something on the engine's thread and waits for it.
    fn call<T: Send + 'static>(&self, work: impl FnOnce(&mut dyn Engine) -> Result<T> + Send + 'static) -> Result<T> {
        let (done, answer) = mpsc::channel();
        let job: Job = Box::new(move |engine| {
            let _ = done.send(work(engine));
        });
        self.jobs.send(job).map_err(|_| "the engine's thread has ended")?;
        answer.recv()?
    }
}

/// Tokens, seconds and energy of what was measured in a turn, by its name.
type Measured = Vec<(String, usize, f64, Option<f64>)>;

/// One turn of an engine at a point.
fn turn(engine: &mut dyn Engine, prompt: usize, decode: usize, tokens: &[u32]) -> Result<Measured> {
    let mut found = Vec::new();
    engine.rest(false);
    // Wakes its threads and brings back what the other engine drove out of the caches.
    engine.clear()?;
    engine.decode(tokens[0])?;
    engine.decode(tokens[1])?;
    engine.clear()?;
    let mut measured = |what: String, n: usize, work: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let (energy, start) = (system::joules(), Instant::now());
        work()?;
        let seconds = start.elapsed().as_secs_f64();
        found.push((what, n, seconds, energy.and_then(|before| Some(system::joules()? - before))));
        Ok(())
    };
    if prompt > 0 {
        measured(format!("prefill {prompt}"), prompt, &mut || engine.prefill(&tokens[..prompt]))?;
    }
    if decode > 0 {
        let ids = &tokens[prompt..][..decode];
        measured(format!("decode {decode} at {prompt}"), decode, &mut || ids.iter().try_for_each(|&id| engine.decode(id)))?;
    }
    engine.rest(true);
    Ok(found)
}

pub fn run(options: &Options) -> Result<Comparison> {
    let longest = options.points.iter().map(|p| p.prompt + p.decode).max().unwrap_or(0).max(N_AGREE) + 8;
    let how = How { isa: None, threads: options.threads, n_ctx: longest };
    let open = |name, decodes, how: How| {
        let (model, depths) = (options.model.clone(), options.points.iter().map(|p| p.prompt + p.decode / 2).collect::<Vec<_>>());
        Player::new(name, decodes, move || {
            let ours = Ours::open(&model, &how)?;
            let bytes: Vec<u64> = depths.iter().map(|&depth| ours.bytes_per_token(depth)).collect();
            let told = (ours.isa(), ours.n_vocab(), ours.costs(), bytes);
            Ok((ours, told))
        })
    };
    let (ours, (isa, n_vocab, costs, bytes)) = open("selvedge", true, how.clone())?;
    let tokens: Arc<[u32]> = ids(longest, n_vocab).into();
    let mut result = Comparison {
        threads: options.threads,
        rounds: options.rounds,
        isa: BTreeMap::from([("selvedge".to_owned(), isa)]),
        series: BTreeMap::new(),
        bandwidth: BTreeMap::new(),
        vnni_tops: Vec::new(),
        amx_tops: Vec::new(),
        body_products: costs.body,
        head_products: costs.head,
        packed_bytes: costs.packed,
        idle_cpu: 0.0,
        rapl: system::joules().is_some(),
        agreement: None,
        peer_buffers: Vec::new(),
    };
    for (p, bytes_per_token) in options.points.iter().zip(bytes).filter(|(p, _)| p.decode > 0) {
        result.bandwidth.insert(p.prompt, Limit { bytes_per_token, small: Vec::new(), huge: Vec::new() });
    }
    let most = result.bandwidth.values().map(|l| l.bytes_per_token).max().unwrap_or(0) as usize;
    let buffers = [Pages::Small, Pages::Huge].map(|pages| Buffer::new(most, pages));

    let mut players = vec![ours];
    #[cfg(feature = "peer")]
    if options.with_peer {
        let (model, threads) = (options.model.clone(), options.threads);
        let (peer, buffers) = Player::new("llama.cpp", true, move || {
            let peer = llama::Peer::open(&model, threads, longest)?;
            let buffers = peer.buffers.clone();
            Ok((peer, buffers))
        })?;
        let (ids, same) = (tokens.clone(), tokens.clone());
        let theirs = peer.call(move |engine| {
            let logits = engine.logits(&ids[..N_AGREE]);
            engine.rest(true);
            logits
        })?;
        let logits = players[0].call(move |engine| engine.logits(&same[..N_AGREE]))?;
        result.agreement = Some(agreement(&theirs, &logits, N_AGREE)?);
        result.isa.insert("llama.cpp".into(), llama::features().join(" "));
        result.peer_buffers = buffers;
        players.push(peer);
    }
    if let Some(isa) = &options.second_isa {
        let (second, told) = open("selvedge second", false, How { isa: Some(isa.clone()), ..how })?;
        result.isa.insert("selvedge second".into(), told.0);
        players.push(second);
    }
    let shipped = |name: &'static str, more: &[&str]| {
        options.shipped.as_ref().map(|binary| Shipped {
            name,
            binary: binary.clone(),
            model: options.model.to_string_lossy().into_owned(),
            threads: options.threads,
            options: more.iter().map(|&word| word.to_owned()).collect(),
        })
    };
    let greedy = shipped("selvedge greedy", &[]);
    let mapped = if options.mapped { shipped("selvedge mapped", &["--weights", "mapped"]) } else { None };
    let deepest = options.points.iter().filter(|p| p.decode > 0).map(|p| p.prompt).max();

    for round in 0..options.rounds {
        eprintln!("bench: round {} of {}", round + 1, options.rounds);
        // Limits beside each other and beside the engines, as they move with the machine's other load.
        for limit in result.bandwidth.values_mut() {
            for (buffer, rates) in buffers.iter().zip([&mut limit.small, &mut limit.huge]) {
                let rate = |b| limits::bandwidth(b, limit.bytes_per_token as usize, options.threads, 5);
                rates.extend(buffer.as_ref().map(rate));
            }
        }
        let peaks = limits::peaks(options.threads);
        result.vnni_tops.extend(peaks.vnni);
        result.amx_tops.extend(peaks.amx);
        for &Point { prompt, decode } in &options.points {
            // The first of a pair is the last of the next.
            players.reverse();
            for player in &players {
                let decode = if player.decodes { decode } else { 0 };
                // The second instruction set is there for comparison: its longest prompts would take a third of the time.
                if prompt + decode == 0 || !player.decodes && prompt > 512 {
                    continue;
                }
                let ids = tokens.clone();
                for (what, n, seconds, joules) in player.call(move |engine| turn(engine, prompt, decode, &ids))? {
                    result.series.entry(what).or_default().entry(player.name.into()).or_default().add(n, seconds, joules);
                }
                let (before, start) = (system::cpu_seconds(), Instant::now());
                std::thread::sleep(Duration::from_millis(20));
                let share = (system::cpu_seconds() - before) / start.elapsed().as_secs_f64();
                result.idle_cpu = result.idle_cpu.max(share);
            }
            // A process for each, which opens the model: where a claim stands on it.
            let greedy = greedy.iter().filter(|_| prompt == 0);
            let mapped = mapped.iter().filter(|_| prompt == 0 || Some(prompt) == deepest);
            for command in greedy.chain(mapped).filter(|_| decode > 0) {
                let rate = command.decode_rate(prompt, decode)?;
                let what = format!("decode {decode} at {prompt}");
                result.series.entry(what).or_default().entry(command.name.into()).or_default().tok_s.push(rate);
            }
        }
    }
    Ok(result)
}

/// One engine alone in its process: opening, a prompt, some tokens; what it took.
#[derive(Debug, Serialize)]
pub struct Alone {
    open_ms: f64,
    first_token_ms: f64,
    peak_anon: u64,
    peak_mapped: u64,
    anon_huge: u64,
    file_huge: u64,
}

pub fn alone(engine: &str, how: &How, model: &std::path::Path) -> Result<Alone> {
    let watch = system::MemoryWatch::start();
    let start = Instant::now();
    let mut engine: Box<dyn Engine> = match engine {
        "selvedge" => Box::new(Ours::open(model, how)?),
        #[cfg(feature = "peer")]
        "llama.cpp" => Box::new(llama::Peer::open(model, how.threads, how.n_ctx)?),
        other => return Err(format!("no engine {other:?}").into()),
    };
    let open_ms = start.elapsed().as_secs_f64() * 1e3;
    // A small id is in every vocabulary.
    engine.prefill(&[1])?;
    let first_token_ms = start.elapsed().as_secs_f64() * 1e3;
    engine.clear()?;
    let tokens = ids(512 + 16, 1000);
    engine.prefill(&tokens[..512])?;
    tokens[512..].iter().try_for_each(|&id| engine.decode(id))?;
    let [anon_huge, file_huge] = system::huge_pages();
    let [peak_anon, peak_mapped] = watch.finish();
    Ok(Alone { open_ms, first_token_ms, peak_anon, peak_mapped, anon_huge, file_huge })
}
