//! `pack`: weights in packed form, ahead of the first load or in a file that ships.

use crate::args::{FileArgs, PackArgs, bytes};
use crate::error::{CliError, Result};
use crate::os::Interrupt;
use crate::output;
use crate::progress::{Progress, Unit};
use clap::Args;
use selvedge::{BackendOptions, LoadStage, Model, ModelOptions, PackOptions, PackStore, PlanOptions, Weights, pack_to};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct PackCommandArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Threads that pack [default: one a fast core]
    #[arg(short = 't', long)]
    threads: Option<usize>,
    #[command(flatten)]
    packs: PackArgs,
    /// Write a file that ships instead of the model's and loads with nothing to prepare
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["pack_dir", "clean", "pack_limit"])]
    out: Option<PathBuf>,
    /// Take all packed weights out of the folder
    #[arg(long, conflicts_with_all = ["model", "threads", "pack_limit"])]
    clean: bool,
    /// Take those out that were used longest ago, until all fit: 4G, 500M, or plain bytes
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pack_limit: Option<u64>,
}

impl PackCommandArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        match &self.out {
            Some(out) => self.ship(out, json),
            None => self.keep(json),
        }
    }

    fn options(&self, packs: PackOptions) -> ModelOptions {
        // Packing needs no context.
        let plan = PlanOptions { n_ctx: Some(1), weights: Weights::Mapped, ..PlanOptions::default() };
        let backend = BackendOptions { backend: Some("cpu".into()), n_threads: self.threads.unwrap_or(0), ..BackendOptions::default() };
        ModelOptions { plan, backend, packs, ..ModelOptions::default() }
    }

    fn ship(&self, out: &std::path::Path, json: bool) -> Result<()> {
        let path = self.file.path()?;
        let interrupt = Interrupt::watch();
        let mut progress = Progress::new("packing", Unit::Bytes);
        let packed = pack_to(&path, out, &self.options(PackOptions::default()), interrupt.token(), &mut |_, done, total| {
            progress.update(done, total)
        });
        progress.finish();
        let n_bytes = packed?;
        if json {
            output::json(&json!({ "file": out.display().to_string(), "bytes": n_bytes }))
        } else {
            output::lines(&format!("{}: {n_bytes} bytes\n", out.display()))
        }
    }

    fn keep(&self, json: bool) -> Result<()> {
        let dir =
            self.packs.dir().ok_or_else(|| CliError::Usage("there is no folder for packed weights: name one with --pack-dir".into()))?;
        let store = PackStore::open(&dir, self.pack_limit).map_err(|e| CliError::Pack(e.to_string()))?;
        if self.clean {
            let cleaned = store.clean();
            return tell(json, &dir, None, cleaned);
        }
        // A limit alone is a wish to tidy up; with a model, to pack it within the limit.
        let model = if self.pack_limit.is_none() || self.file.is_named() { Some(self.pack(dir.clone())?) } else { None };
        let keep = model.as_ref().and_then(|m| m.packs().next());
        let cleaned = self.pack_limit.map(|limit| store.prune(limit, keep)).unwrap_or_default();
        tell(json, &dir, model.as_ref(), cleaned)
    }

    fn pack(&self, dir: PathBuf) -> Result<Model> {
        let path = self.file.path()?;
        let options = self.options(PackOptions { dir: Some(dir), limit: self.pack_limit });
        let interrupt = Interrupt::watch();
        let mut progress = Progress::new("packing", Unit::Bytes);
        let model = Model::open_with(&path, &options, interrupt.token(), &mut |stage, done, total| {
            if matches!(stage, LoadStage::Weights | LoadStage::Hash) {
                progress.update(done, total);
            }
        });
        progress.finish();
        let model = model?;
        let kept = model.packs().next().is_some() || model.file().packed().is_some();
        match model.notes() {
            [.., why] if !kept => Err(CliError::Pack(why.clone())),
            _ => Ok(model),
        }
    }
}

fn tell(json: bool, dir: &std::path::Path, model: Option<&Model>, cleaned: selvedge::Cleaned) -> Result<()> {
    let size = |path: &std::path::Path| path.metadata().map_or(0, |m| m.len());
    let packs: Vec<_> = model.iter().flat_map(|m| m.packs()).collect();
    if json {
        let packs: Vec<_> = packs.iter().map(|p| json!({ "file": p.display().to_string(), "bytes": size(p) })).collect();
        return output::json(&json!({
            "dir": dir.display().to_string(), "packs": packs, "removed": cleaned.n_files, "removed_bytes": cleaned.n_bytes,
        }));
    }
    let mut out: String = packs.iter().map(|p| format!("{}: {} bytes\n", p.display(), size(p))).collect();
    if cleaned.n_files > 0 || model.is_none() {
        out += &format!("{} packs of {} bytes taken out of {}\n", cleaned.n_files, cleaned.n_bytes, dir.display());
    }
    output::lines(&out)
}
