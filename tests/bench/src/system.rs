//! What the system says of this process and of the machine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn bytes_in(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Resident memory by kind, the largest that was seen.
#[derive(Debug)]
pub struct MemoryWatch {
    peaks: Arc<[AtomicU64; 2]>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

const KINDS: [&str; 2] = ["RssAnon:", "RssFile:"];

impl MemoryWatch {
    pub fn start() -> MemoryWatch {
        let (peaks, stop) = (Arc::new([const { AtomicU64::new(0) }; 2]), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (peaks.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                for (peak, kind) in seen.iter().zip(KINDS) {
                    peak.fetch_max(bytes_in("/proc/self/status", kind).unwrap_or(0), Ordering::AcqRel);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        MemoryWatch { peaks, stop, thread }
    }

    /// Peaks of anonymous and of mapped memory.
    pub fn finish(self) -> [u64; 2] {
        self.stop.store(true, Ordering::Release);
        let _ = self.thread.join();
        [self.peaks[0].load(Ordering::Acquire), self.peaks[1].load(Ordering::Acquire)]
    }
}

/// Bytes of this process in huge pages: anonymous, of files.
pub fn huge_pages() -> [u64; 2] {
    ["AnonHugePages:", "FilePmdMapped:"].map(|name| bytes_in("/proc/self/smaps_rollup", name).unwrap_or(0))
}

/// Processor time of this process, seconds.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Energy of all packages since some moment, joules; `None` where the machine doesn't tell.
pub fn joules() -> Option<f64> {
    let mut sum = None;
    for entry in std::fs::read_dir("/sys/class/powercap").ok()?.flatten() {
        // Packages are `intel-rapl:N`; their parts, `intel-rapl:N:M`, are counted in them.
        if entry.file_name().to_string_lossy().matches(':').count() == 1 {
            let text = std::fs::read_to_string(entry.path().join("energy_uj")).ok()?;
            sum = Some(sum.unwrap_or(0.0) + text.trim().parse::<f64>().ok()? * 1e-6);
        }
    }
    sum
}

/// Bytes of the largest cache.
pub fn cache_bytes() -> usize {
    let read = |index: usize| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(Path::new(&file)).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    (0..8).filter_map(read).max().unwrap_or(32 << 20)
}
