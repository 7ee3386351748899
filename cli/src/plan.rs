//! `plan`: what loading would take and where the model would run.

use crate::args::{ModelArgs, file_name, warn};
use crate::error::{Result, printable};
use crate::output;
use clap::Args;
use selvedge::{Planned, TextModel};

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Say why each part runs where it does, with which kernels, and what is odd about the file
    #[arg(long)]
    explain: bool,
}

fn table(planned: &Planned, explain: bool) -> String {
    let (plan, config) = (&planned.plan, &planned.arch.config);
    let a = plan.anonymous;
    let mut out = format!(
        "{}: {}, {} layers, {} tokens\n",
        file_name(planned.file.path()),
        planned.arch.spec.gguf_name,
        planned.graph.kv_layers.len(),
        config.n_vocab
    );
    let rows = [
        ("mapped", plan.mapped, "files; spared where memory is short"),
        ("anonymous", a.total(), ""),
        ("  kv", a.kv, "with the context full"),
        ("  arena", a.arena, "intermediate values, scratch"),
        ("  pack", a.pack, "weights in the backend's form"),
        ("  tokenizer", a.tokenizer, ""),
        ("  other", a.other, ""),
        ("gpu", plan.gpu, ""),
    ];
    for (name, bytes, what) in rows {
        out += format!("{name:<12}{:>10.1} MiB  {what}", bytes as f64 / 1048576.0).trim_end();
        out.push('\n');
    }
    let longest = match plan.max_ctx {
        0 => format!("none fits, trained for {}", config.n_ctx_train),
        n if n == config.n_ctx_train => format!("all {n} that it was trained for would fit"),
        n => format!("at most {n} fit of {} that it was trained for", config.n_ctx_train),
    };
    out += &format!("context     {:>10}      {longest}\n", plan.n_ctx);
    out += &format!("weights     {:>10}      {}\n", plan.held.name(), printable(&plan.held_why));
    for segment in &plan.segments {
        out += &format!("runs on     {:>10}      {} nodes\n", segment.backend, segment.nodes.len());
        if explain {
            out += &format!("  {}\n", segment.reason);
        }
    }
    out
}

impl PlanArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        let planned = selvedge::plan(&self.model.file.path()?, &self.model.options()?)?;
        if json {
            output::json(&selvedge::plan_json(&planned.plan))?;
        } else {
            output::lines(&table(&planned, self.explain))?;
        }
        if self.explain {
            planned.backends.iter().filter_map(|backend| backend.info().remark).for_each(|remark| output::note(&remark));
            warn(TextModel::from_metadata(&planned.file.gguf()?.metadata)?.tokenizer());
        }
        // What loading would refuse is no success here either; the plan says what would fit.
        Ok(planned.check_memory()?)
    }
}
