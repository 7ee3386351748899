//! What the command asks the operating system: Ctrl-C, its own memory, the user's folders.

use selvedge::CancelToken;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What Ctrl-C does: cancels what runs; where nothing runs, or at the second time, it ends the program.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    cancel: CancelToken,
    running: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes Ctrl-C over, for a command whose whole work can be cancelled.
    pub(crate) fn watch() -> Interrupt {
        Interrupt::watch_with(true)
    }

    /// Takes Ctrl-C over, for a program that waits between its works: see [`Interrupt::run`].
    pub(crate) fn watch_idle() -> Interrupt {
        Interrupt::watch_with(false)
    }

    fn watch_with(running: bool) -> Interrupt {
        let interrupt = Interrupt { cancel: CancelToken::new(), running: Arc::new(AtomicBool::new(running)) };
        let seen = interrupt.clone();
        // Where no handler can be set, Ctrl-C ends the program as it would without one.
        let _ = ctrlc::set_handler(move || {
            if !seen.running.load(Ordering::Acquire) || seen.cancel.is_cancelled() {
                std::process::exit(1);
            }
            seen.cancel.cancel();
        });
        interrupt
    }

    /// The token that Ctrl-C cancels.
    pub(crate) fn token(&self) -> &CancelToken {
        &self.cancel
    }

    /// Runs work that Ctrl-C cancels, and only it.
    pub(crate) fn run<T>(&self, work: impl FnOnce(&CancelToken) -> T) -> T {
        self.cancel.reset();
        self.running.store(true, Ordering::Release);
        let result = work(&self.cancel);
        self.running.store(false, Ordering::Release);
        result
    }
}

/// A line of what the system says of this process, in bytes; `None` where it says nothing.
fn status_bytes(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The most memory that this process has had resident, bytes.
pub(crate) fn peak_rss() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// Watches this process's resident anonymous memory, of which the system keeps no maximum.
#[derive(Debug)]
pub(crate) struct AnonWatch {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl AnonWatch {
    /// Rare enough to cost a benchmark nothing, often enough to see memory that a phase holds.
    const EVERY: Duration = Duration::from_millis(20);

    /// Starts to watch.
    pub(crate) fn start() -> AnonWatch {
        let watch = AnonWatch { peak: Arc::default(), stop: Arc::default(), thread: None };
        let (peak, stop) = (watch.peak.clone(), watch.stop.clone());
        let thread = std::thread::Builder::new().name("memory".into()).spawn(move || {
            while !stop.load(Ordering::Acquire) {
                peak.fetch_max(status_bytes("RssAnon:").unwrap_or(0), Ordering::AcqRel);
                std::thread::sleep(AnonWatch::EVERY);
            }
        });
        AnonWatch { thread: thread.ok(), ..watch }
    }

    /// Ends the watch: the most bytes seen, `None` where the system says nothing.
    pub(crate) fn finish(self) -> Option<u64> {
        self.stop.store(true, Ordering::Release);
        let now = status_bytes("RssAnon:")?;
        if let Some(thread) = self.thread {
            // A watcher that failed leaves what it saw.
            let _ = thread.join();
        }
        Some(self.peak.load(Ordering::Acquire).max(now))
    }
}

fn home() -> Option<PathBuf> {
    std::env::var_os(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).filter(|h| !h.is_empty()).map(PathBuf::from)
}

/// Where pulled models lie: `SELVEDGE_MODELS`, else a folder of the user's cache.
pub(crate) fn models_dir() -> Option<PathBuf> {
    let named = std::env::var_os("SELVEDGE_MODELS").filter(|d| !d.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(home()?.join(".cache").join("selvedge").join("models")))
}

/// Where packed weights are kept: `SELVEDGE_PACKS`, which names none where it is empty, else a folder of the user's cache.
pub(crate) fn packs_dir() -> Option<PathBuf> {
    match std::env::var_os("SELVEDGE_PACKS") {
        Some(dir) => Some(PathBuf::from(dir)).filter(|dir| !dir.as_os_str().is_empty()),
        None => Some(home()?.join(".cache").join("selvedge").join("packs")),
    }
}

/// Where the lines typed in conversations are kept.
pub(crate) fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|d| !d.is_empty()).map(PathBuf::from);
    let state = state.or_else(|| Some(home()?.join(".local").join("state")))?;
    Some(state.join("selvedge").join("history"))
}
