//! Test data, and a driver that feeds sequences to the reference backend.
#![allow(dead_code, reason = "each test program uses its part")]

use selvedge_core::arch::Architecture;
use selvedge_core::backend::{Backend, BackendError, CacheShape, Instance, ReferenceBackend, StepIo, f32_value, no_pack};
use selvedge_core::cancel::CancelToken;
use selvedge_core::graph::VerifiedGraph;
use selvedge_core::ids::{SeqId, TokenId};
use selvedge_core::kv::{KvCache, KvElem, KvSpec};
use selvedge_core::model::{ModelError, ModelFile};
use selvedge_core::os::Region;
use selvedge_core::place::{Placement, StepShape};
use selvedge_core::step::{Row, Want};
use std::path::PathBuf;
use std::sync::Arc;

/// A folder of the cases, or `None` after saying so; a panic where the environment demands the cases.
pub(crate) fn cases(folder: &str) -> Option<PathBuf> {
    let root = std::env::var_os("SELVEDGE_CASES")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases"), PathBuf::from);
    let path = root.join(folder);
    if path.is_dir() {
        return Some(path);
    }
    assert!(std::env::var_os("SELVEDGE_REQUIRE_CASES").is_none_or(|v| v != "1"), "no cases folder at {}", path.display());
    println!("skipped: no cases folder");
    None
}

/// A real model's file, or `None` after saying so; a panic where the environment demands it.
pub(crate) fn real_model(name: &str) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from).join(".cache/selvedge/models");
    let path = std::env::var_os("SELVEDGE_MODELS").map_or_else(home, PathBuf::from).join(name);
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var_os("SELVEDGE_REQUIRE_CASES").is_none_or(|v| v != "1"), "no model at {}", path.display());
    println!("skipped: no model {name}");
    None
}

/// A row to feed: its sequence, its token, whether its logits are wanted.
pub(crate) type Fed = (u32, u32, bool);

/// An open model with its graph.
pub(crate) struct Model {
    pub(crate) file: Arc<ModelFile>,
    pub(crate) arch: Architecture,
    pub(crate) graph: VerifiedGraph,
    pub(crate) n_ctx: usize,
}

impl Model {
    /// Opens a model and builds its graph for `n_ctx` positions.
    pub(crate) fn open(path: &std::path::Path, n_ctx: usize) -> Model {
        let model = ModelFile::open(path).and_then(|file| Model::of(file, n_ctx));
        model.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The same with a file that is open already.
    pub(crate) fn of(file: ModelFile, n_ctx: usize) -> Result<Model, ModelError> {
        let arch = Architecture::of(&file)?;
        let graph = arch.build(&file, n_ctx)?;
        Ok(Model { file: Arc::new(file), arch, graph, n_ctx })
    }

    /// Logits of all positions, `[tokens, n_vocab]`, fed in chunks.
    pub(crate) fn logits(&self, tokens: &[u32], chunk: usize) -> Result<Vec<Vec<f32>>, BackendError> {
        self.logits_of(&self.graph, tokens, chunk, 1)
    }

    /// The same on another graph of the same model.
    pub(crate) fn logits_of(
        &self,
        graph: &VerifiedGraph,
        tokens: &[u32],
        chunk: usize,
        n_threads: usize,
    ) -> Result<Vec<Vec<f32>>, BackendError> {
        let step = |tokens: &[u32]| tokens.iter().map(|&t| (0, t, true)).collect();
        let steps: Vec<Vec<Fed>> = tokens.chunks(chunk).map(step).collect();
        Ok(self.run(graph, &steps, n_threads)?.into_iter().map(|(_, logits)| logits).collect())
    }

    /// Feeds steps of rows; gives the sequence and the logits of each row that wants them, in the order of feeding.
    pub(crate) fn run(&self, graph: &VerifiedGraph, steps: &[Vec<Fed>], n_threads: usize) -> Result<Vec<(u32, Vec<f32>)>, BackendError> {
        let graph = Arc::new(graph.clone());
        let n_wanted = |step: &Vec<Fed>| step.iter().filter(|(_, _, wanted)| *wanted).count();
        let max_rows = steps.iter().map(Vec::len).max().unwrap_or(0);
        let shape = StepShape { max_rows, max_wanted: steps.iter().map(n_wanted).max().unwrap_or(0) };
        let placement = Placement::new(&graph, shape);
        let mut instance = self.instance(&graph, &placement, n_threads)?;
        let n_seq = steps.iter().flatten().map(|&(seq, _, _)| seq as usize + 1).max().unwrap_or(0);
        let layers = graph.kv_layers.clone();
        let mut kv = KvCache::new(&KvSpec { layers, elem: KvElem::F32, n_ctx: self.n_ctx, n_seq, max_chunk: max_rows }).unwrap();
        let mut arena = Region::new(placement.n_bytes, false).unwrap();
        let mut logits = Vec::new();
        let cancel = CancelToken::new();
        for step in steps {
            let mut n_new = vec![0; n_seq];
            let mut rows = Vec::new();
            for &(seq, token, wanted) in step {
                let pos = kv.len(SeqId(seq)) + n_new[seq as usize];
                n_new[seq as usize] += 1;
                rows.push(Row::token(SeqId(seq), pos as u32, TokenId(token), if wanted { Want::Logits } else { Want::Nothing }));
            }
            for (seq, &n) in n_new.iter().enumerate() {
                kv.reserve(SeqId(seq as u32), n).unwrap();
            }
            let wanted: Vec<u32> = (0..rows.len() as u32).filter(|&i| rows[i as usize].want == Want::Logits).collect();
            for (nodes, wanted) in [(0..graph.head_start(), &[][..]), (graph.head_start()..graph.nodes.len(), &wanted[..])] {
                let mut io = StepIo { rows: &rows, wanted, arena: arena.bytes_mut(), kv: kv.pages(), cancel: &cancel, tap: None };
                instance.run(0, nodes, &mut io)?;
            }
            for (seq, &n) in n_new.iter().enumerate() {
                kv.commit(SeqId(seq as u32), n);
            }
            let all = f32_value(&graph, &placement, arena.bytes(), graph.logits(), wanted.len());
            let seqs = wanted.iter().map(|&i| rows[i as usize].seq.0);
            logits.extend(seqs.zip(all.chunks(graph.n_vocab()).map(<[f32]>::to_vec)));
        }
        Ok(logits)
    }

    fn instance(&self, graph: &Arc<VerifiedGraph>, placement: &Placement, n_threads: usize) -> Result<Box<dyn Instance>, BackendError> {
        let backend = ReferenceBackend { n_threads };
        let loaded = backend.load(graph.clone(), 0..graph.nodes.len(), self.file.clone(), no_pack())?;
        loaded.instance(std::slice::from_ref(placement), CacheShape { elem: KvElem::F32, n_ctx: self.n_ctx })
    }
}

/// Index of the largest, the lowest of equals.
pub(crate) fn argmax(xs: &[f32]) -> usize {
    (0..xs.len()).fold(0, |best, i| if xs[i] > xs[best] { i } else { best })
}

/// `ln sum exp`, in f64.
pub(crate) fn logsumexp(xs: &[f32]) -> f64 {
    let max = f64::from(xs[argmax(xs)]);
    max + xs.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}
