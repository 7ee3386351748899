//! What is measured of an engine, and Selvedge as one.

use crate::Result;
use selvedge::{BackendOptions, CancelToken, Engine as Steps, Model, ModelOptions, PlanOptions, Row, SeqId, TokenId, Want};
use selvedge_core::ops::Op;
use std::path::Path;
use std::process::Command;

/// An engine with a model open. Both engines compute the logits of the last position of a prefill and of every decoded
/// token in full, and sample nothing.
pub trait Engine {
    /// Appends tokens to the context.
    fn prefill(&mut self, ids: &[u32]) -> Result<()>;
    /// Appends one.
    fn decode(&mut self, id: u32) -> Result<()>;
    /// Empties the context.
    fn clear(&mut self) -> Result<()>;
    /// Logits after the given tokens, from an empty context.
    #[cfg(feature = "peer")]
    fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>>;
    /// Wakes its threads before its turn, or puts them to sleep after it.
    fn rest(&mut self, _asleep: bool) {}
}

/// How Selvedge is opened.
#[derive(Debug, Clone)]
pub struct How {
    /// Instruction set by name; `None`: the best.
    pub isa: Option<String>,
    /// Threads.
    pub threads: usize,
    /// Positions.
    pub n_ctx: usize,
}

/// What a model costs, as Selvedge's graph says it.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// Multiply-adds of integer or float weights in every row of a prompt.
    pub body: f64,
    /// The same of the output matrix, for a row whose logits are wanted.
    pub head: f64,
    /// Bytes of the packed weights, which is what is read: some types take more bits packed than in the file.
    pub packed: u64,
}

/// Selvedge through its engine.
pub struct Ours {
    steps: Steps,
    model: Model,
    rows: Vec<Row>,
}

const SEQ: SeqId = SeqId(0);

impl Ours {
    pub fn open(path: &Path, how: &How) -> Result<Ours> {
        let options = ModelOptions {
            plan: PlanOptions { n_ctx: Some(how.n_ctx), ..PlanOptions::default() },
            backend: BackendOptions { backend: None, isa: how.isa.clone(), n_threads: how.threads, ..BackendOptions::default() },
            ..ModelOptions::default()
        };
        let model = Model::open(path, &options)?;
        let steps = Steps::new(model.inner().clone())?;
        Ok(Ours { steps, model, rows: Vec::new() })
    }

    pub fn isa(&self) -> String {
        self.model.backends().first().map(|b| b.info().device).unwrap_or_default()
    }

    pub fn n_vocab(&self) -> usize {
        self.model.n_vocab()
    }

    pub fn bytes_per_token(&self, depth: usize) -> u64 {
        self.model.bytes_per_token(depth)
    }

    pub fn costs(&self) -> Costs {
        let graph = self.model.graph();
        let products = |nodes: std::ops::Range<usize>| -> f64 {
            graph.nodes[nodes].iter().filter(|n| matches!(n.op, Op::MatMul(_))).map(|n| graph.cost(n).ops_per_row).sum()
        };
        let (head, n) = (graph.head_start(), graph.nodes.len());
        Costs { body: products(0..head), head: products(head..n), packed: self.model.plan().anonymous.pack }
    }

    fn run(&mut self, ids: &[u32], on_logits: &mut dyn FnMut(usize, &mut [f32])) -> Result<()> {
        let chunk = self.steps.max_rows();
        for (i, part) in ids.chunks(chunk).enumerate() {
            let first = self.steps.len(SEQ);
            self.rows.clear();
            for (j, &id) in part.iter().enumerate() {
                let want = if i * chunk + j + 1 == ids.len() { Want::Logits } else { Want::Nothing };
                self.rows.push(Row::token(SEQ, u32::try_from(first + j)?, TokenId(id), want));
            }
            self.steps.step(&self.rows, &CancelToken::new(), on_logits)?;
        }
        Ok(())
    }
}

impl Engine for Ours {
    fn prefill(&mut self, ids: &[u32]) -> Result<()> {
        self.run(ids, &mut |_, logits| {
            std::hint::black_box(logits);
        })
    }

    fn decode(&mut self, id: u32) -> Result<()> {
        self.prefill(&[id])
    }

    fn clear(&mut self) -> Result<()> {
        self.steps.rollback(SEQ, 0);
        Ok(())
    }

    #[cfg(feature = "peer")]
    fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        self.clear()?;
        let mut found = Vec::new();
        self.run(ids, &mut |_, logits| found = logits.to_vec())?;
        Ok(found)
    }
}

/// Selvedge's command as it is shipped, a process for each measurement: with greedy sampling, text, and its own options.
#[derive(Debug, Clone)]
pub struct Shipped {
    /// Name in the results.
    pub name: &'static str,
    pub binary: String,
    pub model: String,
    pub threads: usize,
    /// Further arguments.
    pub options: Vec<String>,
}

impl Shipped {
    /// Tokens a second of `n_gen` decoded tokens at a depth.
    pub fn decode_rate(&self, depth: usize, n_gen: usize) -> Result<f64> {
        let (depth, n_gen, threads) = (depth.to_string(), n_gen.to_string(), self.threads.to_string());
        let output = Command::new(&self.binary)
            .args(["bench", "-m", &self.model, "-p", "0", "-n", &n_gen, "-d", &depth, "-r", "1", "-t", &threads, "--json"])
            .args(&self.options)
            .output()?;
        if !output.status.success() {
            return Err(format!("selvedge bench: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        let result: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        result["tg"]["tok_s"]["median"].as_f64().ok_or_else(|| "selvedge bench gave no rate".into())
    }
}
