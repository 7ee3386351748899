//! A pool of threads that run one job at a time, split into tasks.
//!
//! ```text
//!   run(): publish the job, open it, wake sleepers ──▶ the caller and whoever comes in claim tasks ──▶ none is left:
//!   close it, wait for those inside
//!   worker: spin a while for an open job, then yield a while, then sleep
//! ```
//! Nobody waits for a worker that hasn't come in: one that the system keeps from running, or that is only waking up, costs
//! a job nothing. The caller works too, so a pool of one thread starts none. Results never depend on who claims what: each
//! task writes places of its own, and what it computes depends on its index alone.
//!
//! Tasks are dealt out in ranges, one a thread, so that each reads memory from front to back; a thread that is done takes
//! half of what the slowest has left. Cores of unequal speed, and cores that the system takes away, even out so.

use selvedge_core::backend::BackendError;
use selvedge_core::os::{self, FloatEnv};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that a waiting thread spins before it yields: several times the gap between two nodes.
const SPIN: Duration = Duration::from_micros(20);
/// Yields before an idle worker sleeps: some hundred microseconds where nothing else runs, so an idle session costs nothing.
const YIELDS: u32 = 200;

/// The most threads that a pool may have.
pub const MAX_THREADS: usize = 256;

/// In a state: workers may come in.
const OPEN: u64 = 1 << 31;
/// In a state: the workers inside.
const INSIDE: u64 = OPEN - 1;
/// In a state: one job.
const JOB: u64 = 1 << 32;

type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// What the threads share.
struct Shared {
    /// The job; written by the caller while none is open, read by workers that came in.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Tasks that each thread has left, the caller's first.
    ranges: Vec<TaskRange>,
    /// Number of the job in the upper half, [`OPEN`], and how many workers are inside.
    state: AtomicU64,
    /// Workers that have come to life.
    started: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    sleeping: Vec<AtomicBool>,
    spins: u32,
}

// SAFETY: `job` is written only in `run` (which takes `&mut self`) while the state is closed with nobody inside; a worker
// reads it after it came in, which an open state alone allows, and `run` returns only when nobody is inside any more.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer inside is used under the rule above, from whichever thread.
unsafe impl Send for Shared {}

/// Where a pool's threads run, and how urgently. The caller's own thread stays as the host made it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadCare {
    /// Processors by the system's numbers: the caller is left the first, each further thread is bound to the next. Empty:
    /// the system chooses.
    pub cpus: Vec<usize>,
    /// Priority as `nice` counts it, from -20 (first) to 19 (last).
    pub niceness: i32,
}

impl ThreadCare {
    /// Settles the calling worker. A system that refuses leaves it as it was: slower perhaps, never wrong.
    fn take(&self, worker: usize) {
        if let Some(&cpu) = self.cpus.get((worker + 1) % self.cpus.len().max(1)) {
            os::bind_to_cpus(&[cpu]);
        }
        if self.niceness != 0 {
            os::set_niceness(self.niceness);
        }
    }
}

/// The pool.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("n_threads", &self.n_threads()).finish()
    }
}

impl Pool {
    /// A pool of `n_threads`, the caller included.
    pub(crate) fn new(n_threads: usize, care: &ThreadCare) -> Result<Pool, BackendError> {
        let n_workers = n_threads.clamp(1, MAX_THREADS) - 1;
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            ranges: (0..=n_workers).map(|_| TaskRange::default()).collect(),
            state: AtomicU64::new(0),
            started: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            sleeping: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            spins: spins(),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(n_workers) };
        for index in 0..n_workers {
            let (shared, care) = (pool.shared.clone(), care.clone());
            // Kernels keep their scratch elsewhere: half a megabyte of stack is plenty.
            let spawned = std::thread::Builder::new().name(format!("selvedge-{}", index + 1)).stack_size(512 << 10).spawn(move || {
                care.take(index);
                work(&shared, index);
            });
            match spawned {
                Ok(handle) => pool.workers.push(handle),
                Err(_) => return Err(BackendError::Thread { index: index + 1, wanted: n_threads }),
            }
        }
        // What the system allocates for a thread it allocates now, not between two tokens.
        let mut waited = 0;
        while pool.shared.started.load(Ordering::Acquire) < n_workers {
            pause(&mut waited, pool.shared.spins);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub(crate) fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(task, thread)` for every task below `n_tasks` and returns when all are done. `thread < n_threads()`, and
    /// no two tasks run at once with the same thread number.
    pub(crate) fn run(&mut self, n_tasks: usize, job: &Job<'_>) {
        if self.workers.is_empty() || n_tasks <= 1 {
            (0..n_tasks).for_each(|task| job(task, 0));
            return;
        }
        let shared = &*self.shared;
        debug_assert!(n_tasks <= MAX_TASKS, "{n_tasks} tasks");
        // SAFETY: the lifetime is erased only while this call lasts: it returns after the job was closed and everybody left,
        // and nobody is inside now, as the last call returned.
        unsafe { *shared.job.get() = Some(std::mem::transmute::<*const Job<'_>, *const Job<'static>>(std::ptr::from_ref(job))) };
        let n = shared.ranges.len();
        for (i, range) in shared.ranges.iter().enumerate() {
            range.set(n_tasks * i / n..n_tasks * (i + 1) / n);
        }
        // Sequential consistency here and in `work`: either the worker sees the open job or we see it asleep. Only this
        // thread changes a closed state.
        let last = shared.state.load(Ordering::Relaxed);
        shared.state.store(last.wrapping_add(JOB) | OPEN, Ordering::SeqCst);
        for (flag, worker) in shared.sleeping.iter().zip(&self.workers) {
            if flag.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        {
            let _close = Close(shared);
            claim(shared, job, 0);
        }
        if shared.panicked.swap(false, Ordering::Relaxed) {
            // A kernel's fault, told by the panic hook already; whoever embeds us catches it at its own edge.
            std::panic::resume_unwind(Box::new("a worker thread panicked"));
        }
    }
}

/// Closes the job and waits for those inside, also while a panic of the caller's own task unwinds: the job must outlive
/// its use.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut waited = 0;
        while self.0.state.load(Ordering::Acquire) & INSIDE != 0 {
            pause(&mut waited, self.0.spins);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its jobs throw, so there is nothing to hand on.
            let _ = worker.join();
        }
    }
}

/// Tasks that a thread has left: the first in the lower half, the one past the last in the upper. On a cache line of its
/// own, as its owner changes it at every task.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TaskRange(AtomicU64);

/// Most tasks of a job: their numbers are kept in 32 bits.
const MAX_TASKS: usize = u32::MAX as usize;

impl TaskRange {
    fn set(&self, tasks: std::ops::Range<usize>) {
        self.0.store(tasks.start as u64 | (tasks.end as u64) << 32, Ordering::Relaxed);
    }

    fn split(word: u64) -> (usize, usize) {
        (word as u32 as usize, (word >> 32) as usize)
    }

    fn left(&self) -> usize {
        let (start, end) = TaskRange::split(self.0.load(Ordering::Relaxed));
        end.saturating_sub(start)
    }

    /// Takes the first task.
    fn take_first(&self) -> Option<usize> {
        let take = |word| {
            let (start, end) = TaskRange::split(word);
            (start < end).then_some(word + 1)
        };
        // Whatever the tasks read and write is ordered by the job's opening and closing, not by who takes what.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|word| TaskRange::split(word).0)
    }

    /// Takes the later half, at least one task.
    fn take_half(&self) -> Option<std::ops::Range<usize>> {
        let half = |word| {
            let (start, end) = TaskRange::split(word);
            (start < end).then(|| end - (end - start).div_ceil(2)..end)
        };
        let keep = |word| half(word).map(|taken| TaskRange::split(word).0 as u64 | (taken.start as u64) << 32);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep).ok().and_then(half)
    }
}

/// Runs tasks until none is left that nobody has taken.
fn claim(shared: &Shared, job: &Job<'_>, thread: usize) {
    let mine = &shared.ranges[thread];
    loop {
        while let Some(task) = mine.take_first() {
            job(task, thread);
        }
        let Some(slowest) = shared.ranges.iter().max_by_key(|range| range.left()) else { return };
        match slowest.take_half() {
            Some(tasks) => mine.set(tasks),
            // It finished meanwhile; others may have tasks left.
            None if slowest.left() == 0 && shared.ranges.iter().all(|range| range.left() == 0) => return,
            None => {}
        }
    }
}

/// Rounds of spinning that take [`SPIN`]: the instruction takes ten cycles on some processors and over a hundred on others.
fn spins() -> u32 {
    static SPINS: OnceLock<u32> = OnceLock::new();
    const ROUNDS: u32 = 200;
    let time = || {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| std::hint::spin_loop());
        start.elapsed()
    };
    // The shortest of three: an interruption makes one longer.
    let shortest = || (0..3).map(|_| time()).min().unwrap_or(SPIN).max(Duration::from_nanos(1));
    *SPINS.get_or_init(|| (SPIN.as_nanos() * u128::from(ROUNDS) / shortest().as_nanos()).clamp(10, 100_000) as u32)
}

/// Spins at first, then lets others run: with more threads than cores a spinner would keep the one it waits for away.
fn pause(waited: &mut u32, spins: u32) {
    *waited += 1;
    if *waited < spins {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Comes into a job that is open and isn't number `seen`; its number.
fn come_in(shared: &Shared, seen: u64, order: Ordering) -> Option<u64> {
    let mut state = shared.state.load(order);
    while state & OPEN != 0 && state / JOB != seen {
        match shared.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, order) {
            Ok(_) => return Some(state / JOB),
            Err(now) => state = now,
        }
    }
    None
}

fn work(shared: &Shared, index: usize) {
    let _env = FloatEnv::default_here();
    shared.started.fetch_add(1, Ordering::Release);
    let (mut seen, mut waited) = (0, 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let mut inside = come_in(shared, seen, Ordering::Acquire);
        if inside.is_none() && waited > shared.spins + YIELDS {
            shared.sleeping[index].store(true, Ordering::SeqCst);
            inside = come_in(shared, seen, Ordering::SeqCst);
            if inside.is_none() && !shared.stop.load(Ordering::SeqCst) {
                std::thread::park();
                waited = 0;
            }
            shared.sleeping[index].store(false, Ordering::SeqCst);
        }
        let Some(number) = inside else {
            pause(&mut waited, shared.spins);
            continue;
        };
        (seen, waited) = (number, 0);
        // SAFETY: this thread is inside, so the job was written before the state was opened, and the caller waits for us.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: as above: the closure lives until everybody left.
            let job = unsafe { &*job };
            let run = std::panic::AssertUnwindSafe(|| claim(shared, job, index + 1));
            if std::panic::catch_unwind(run).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for n_threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(n_threads, &ThreadCare::default()).unwrap();
            for n_tasks in [0, 1, 2, 7, 1000] {
                for _ in 0..20 {
                    let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(n_tasks, &|task, thread| {
                        assert!(thread < n_threads);
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives() {
        let mut pool = Pool::new(3, &ThreadCare::default()).unwrap();
        for bad in [0, 50, 99] {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.run(100, &|task, _| assert!(task != bad, "task {bad} fails on purpose"));
            }));
            assert!(caught.is_err());
            pool.run(10, &|_, _| {});
        }
    }

    #[test]
    fn sleepers_wake() {
        // Also those that are bound to a processor, or were to be bound to one that isn't there.
        let care = ThreadCare { cpus: vec![0, 9999], niceness: 3 };
        let mut pool = Pool::new(2, &care).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let n = AtomicUsize::new(0);
            pool.run(64, &|_, _| {
                n.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(n.load(Ordering::Relaxed), 64);
        }
    }
}
