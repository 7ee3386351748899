//! The only crate that names backends. To add one: a dependency, and a row in [`REGISTRY`].

use selvedge_backend_cpu::{CpuBackend, Isa};
pub use selvedge_backend_cpu::{MAX_THREADS, ThreadCare};
use selvedge_core::backend::{Backend, BackendError, NullBackend, ReferenceBackend};
use selvedge_core::os;
use std::sync::Arc;

/// Which backends to use, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackendOptions {
    /// Name of a row of [`REGISTRY`]; `None` or `auto` takes what is best here.
    pub backend: Option<String>,
    /// Instruction set by name; `None` takes the best there is.
    pub isa: Option<String>,
    /// Threads; 0 takes one for each fast core that the system allows.
    pub n_threads: usize,
    /// Where they run, and how urgently.
    pub care: ThreadCare,
}

/// Why no backend could be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No such backend.
    #[error("there is no backend {found}; those there are: auto, {known}")]
    UnknownBackend {
        /// What was asked for.
        found: String,
        /// Those there are.
        known: String,
    },
    /// No such instruction set.
    #[error("there is no instruction set {found}; those there are: {known}")]
    UnknownIsa {
        /// What was asked for.
        found: String,
        /// Those there are.
        known: String,
    },
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A backend by name.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Whether `auto` may take it.
    pub automatic: bool,
    make: fn(&BackendOptions) -> Result<Arc<dyn Backend>, RegistryError>,
}

/// All backends, best first.
pub const REGISTRY: &[Entry] = &[
    Entry { name: "cpu", about: "the processor's vector units", automatic: true, make: cpu },
    Entry { name: "reference", about: "f32 over dequantised weights: slow, for comparisons", automatic: false, make: reference },
    Entry { name: "null", about: "computes nothing: for plans", automatic: false, make: |_| Ok(Arc::new(NullBackend)) },
];

fn threads(options: &BackendOptions) -> usize {
    if options.n_threads == 0 { os::default_threads() } else { options.n_threads }
}

fn reference(options: &BackendOptions) -> Result<Arc<dyn Backend>, RegistryError> {
    Ok(Arc::new(ReferenceBackend { n_threads: threads(options).min(selvedge_backend_cpu::MAX_THREADS) }))
}

fn cpu(options: &BackendOptions) -> Result<Arc<dyn Backend>, RegistryError> {
    Ok(Arc::new(CpuBackend::new(isa(options)?, threads(options), options.care.clone())?))
}

/// The instruction set that is asked for; `None`: the best there is.
fn isa(options: &BackendOptions) -> Result<Option<Isa>, RegistryError> {
    let Some(name) = options.isa.as_deref().filter(|name| *name != "auto") else { return Ok(None) };
    let unknown = || RegistryError::UnknownIsa { found: name.to_owned(), known: Isa::ALL.map(|(n, _)| n).join(", ") };
    Isa::from_name(name).map(Some).ok_or_else(unknown)
}

/// The number of threads that reads weights fastest here, measured anew: a tenth of a second.
///
/// # Errors
/// An instruction set that isn't there.
pub fn measure_threads(options: &BackendOptions) -> Result<usize, RegistryError> {
    let most = os::allowed_cpus().len().max(os::default_threads());
    Ok(selvedge_backend_cpu::best_thread_count(isa(options)?, most, &options.care)?)
}

/// The backends that the options ask for, best first.
pub fn backends(options: &BackendOptions) -> Result<Vec<Arc<dyn Backend>>, RegistryError> {
    // A name that nothing has is a mistake also where the backend needs none.
    isa(options)?;
    match options.backend.as_deref() {
        None | Some("auto") => REGISTRY.iter().filter(|e| e.automatic).map(|e| (e.make)(options)).collect(),
        Some(name) => {
            let entry = REGISTRY.iter().find(|e| e.name == name).ok_or_else(|| RegistryError::UnknownBackend {
                found: name.to_string(),
                known: REGISTRY.iter().map(|e| e.name).collect::<Vec<_>>().join(", "),
            })?;
            Ok(vec![(entry.make)(options)?])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_others_refused() {
        for entry in REGISTRY {
            let options = BackendOptions { backend: Some(entry.name.into()), n_threads: 1, ..BackendOptions::default() };
            assert_eq!(backends(&options).unwrap()[0].info().name, entry.name);
        }
        let auto = backends(&BackendOptions::default()).unwrap();
        assert!(auto.iter().all(|b| b.info().name != "reference" && b.info().name != "null"));
        let error = backends(&BackendOptions { backend: Some("gpu9".into()), ..BackendOptions::default() }).unwrap_err();
        assert!(error.to_string().contains("gpu9") && error.to_string().contains("cpu"));
        for backend in [None, Some("null".to_owned())] {
            let error =
                backends(&BackendOptions { backend, isa: Some("mmx".into()), n_threads: 1, ..BackendOptions::default() }).unwrap_err();
            assert!(error.to_string().contains("scalar"));
        }
    }
}
