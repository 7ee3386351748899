//! What the machine can do: bytes read a second, integer products a second.

use selvedge_backend_cpu::Isa;
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Kind of the pages that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB, or whatever the system's smallest is.
    Small,
    /// 2 MiB, as far as the system gives them.
    Huge,
}

/// Memory that was written once, so that every page is there.
#[derive(Debug)]
pub struct Buffer {
    base: *mut u8,
    n_bytes: usize,
}

// SAFETY: plain memory, only read after it was made.
unsafe impl Sync for Buffer {}
// SAFETY: likewise.
unsafe impl Send for Buffer {}

const HUGE: usize = 2 << 20;

impl Buffer {
    pub fn new(n_bytes: usize, pages: Pages) -> Option<Buffer> {
        let n_bytes = n_bytes.next_multiple_of(HUGE) + HUGE;
        // SAFETY: an anonymous mapping at an address of the system's choice; advice changes no contents; the writes lie inside.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let base = libc::mmap(std::ptr::null_mut(), n_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return None;
            }
            libc::madvise(base, n_bytes, if pages == Pages::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
            let buffer = Buffer { base: base.cast(), n_bytes };
            for page in (0..n_bytes).step_by(4096) {
                buffer.base.add(page).write(page as u8 | 1);
            }
            Some(buffer)
        }
    }

    /// The first `n` bytes from a border of huge pages on.
    fn bytes(&self, n: usize) -> &[u8] {
        let skip = self.base.align_offset(HUGE);
        assert!(skip + n <= self.n_bytes);
        // SAFETY: inside the mapping, which nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.base.add(skip), n) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.base.cast(), self.n_bytes) };
    }
}

/// Reads everything once, in order, and returns something that depends on all of it. `AHEAD`: bytes that are asked for in
/// advance, 0 for none.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_512<const AHEAD: usize>(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm512_setzero_si512(); 8];
    for block in bytes.chunks_exact(512) {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: within the block of 512 bytes; a prefetch may go anywhere.
            unsafe {
                let at = block.as_ptr().add(i * 64);
                if AHEAD > 0 {
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                }
                *sum = _mm512_or_si512(*sum, _mm512_loadu_si512(at.cast()));
            }
        }
    }
    sums.iter().map(|&sum| _mm512_reduce_or_epi64(sum) as u64).fold(0, |a, b| a | b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_256(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm256_setzero_si256(); 8];
    for block in bytes.chunks_exact(256) {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: within the block of 256 bytes.
            unsafe { *sum = _mm256_or_si256(*sum, _mm256_loadu_si256(block.as_ptr().add(i * 32).cast())) };
        }
    }
    // SAFETY: both are 32 plain bytes.
    sums.iter().map(|&sum| unsafe { std::mem::transmute::<__m256i, [u64; 4]>(sum) }.iter().fold(0, |a, b| a | b)).fold(0, |a, b| a | b)
}

fn read_plain(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).map(|b| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])).fold(0, |a, b| a | b)
}

/// Ways of reading; the fastest counts, as a bound must not depend on how well one of them suits the machine.
fn readers() -> Vec<fn(&[u8]) -> u64> {
    #[cfg(target_arch = "x86_64")]
    {
        if Isa::Avx512Vnni.is_available() {
            // SAFETY: the machine has the instruction set.
            return vec![|b| unsafe { read_512::<0>(b) }, |b| unsafe { read_512::<2048>(b) }, |b| unsafe { read_512::<8192>(b) }];
        }
        if Isa::Avx2.is_available() {
            // SAFETY: the machine has the instruction set.
            return vec![|b| unsafe { read_256(b) }];
        }
    }
    vec![read_plain]
}

fn median(mut xs: Vec<f64>) -> f64 {
    xs.sort_by(f64::total_cmp);
    (xs[xs.len() / 2] + xs[(xs.len() - 1) / 2]) / 2.0
}

/// Threads meet here. They spin: a sleeper's way back would be counted as reading time, some percent of a small buffer's.
struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
}

impl Meeting {
    fn wait(&self) {
        let mine = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (mine / self.threads + 1) * self.threads;
        let mut spins = 0_u32;
        while self.arrived.load(Ordering::Acquire) < all {
            spins += 1;
            // On a machine that is not idle the other may be waiting for this very core.
            if spins.is_multiple_of(100_000) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// Runs `work` on every thread at once, `passes` times after one that isn't counted, and returns the seconds of each pass.
fn together(threads: usize, passes: usize, work: impl Fn(usize) + Sync) -> Vec<f64> {
    let meeting = Meeting { threads, arrived: AtomicUsize::new(0) };
    let pass = |thread: usize| {
        let mut times = Vec::new();
        for _ in 0..=passes {
            meeting.wait();
            let start = Instant::now();
            work(thread);
            meeting.wait();
            times.push(start.elapsed().as_secs_f64());
        }
        times.split_off(1)
    };
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let pass = &pass;
            scope.spawn(move || pass(thread));
        }
        pass(0)
    })
}

/// Read bandwidth over `n_bytes` that all threads share, GB/s: the median of some passes in the fastest way.
pub fn bandwidth(buffer: &Buffer, n_bytes: usize, threads: usize, passes: usize) -> f64 {
    let part = n_bytes / threads / 4096 * 4096;
    let bytes = buffer.bytes(part * threads);
    let rate = |read: &fn(&[u8]) -> u64| {
        let times = together(threads, passes, |thread| {
            std::hint::black_box(read(std::hint::black_box(&bytes[thread * part..][..part])));
        });
        (part * threads) as f64 / median(times) / 1e9
    };
    readers().iter().map(rate).fold(0.0, f64::max)
}

/// `vpdpbusd` on 24 registers that don't wait for each other: products that were computed, multiply and add as two.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni(rounds: u64) -> f64 {
    // SAFETY: registers only; all that are written are named.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpdpbusd zmm0, zmm30, zmm31", "vpdpbusd zmm1, zmm30, zmm31", "vpdpbusd zmm2, zmm30, zmm31", "vpdpbusd zmm3, zmm30, zmm31",
            "vpdpbusd zmm4, zmm30, zmm31", "vpdpbusd zmm5, zmm30, zmm31", "vpdpbusd zmm6, zmm30, zmm31", "vpdpbusd zmm7, zmm30, zmm31",
            "vpdpbusd zmm8, zmm30, zmm31", "vpdpbusd zmm9, zmm30, zmm31", "vpdpbusd zmm10, zmm30, zmm31", "vpdpbusd zmm11, zmm30, zmm31",
            "vpdpbusd zmm12, zmm30, zmm31", "vpdpbusd zmm13, zmm30, zmm31", "vpdpbusd zmm14, zmm30, zmm31", "vpdpbusd zmm15, zmm30, zmm31",
            "vpdpbusd zmm16, zmm30, zmm31", "vpdpbusd zmm17, zmm30, zmm31", "vpdpbusd zmm18, zmm30, zmm31", "vpdpbusd zmm19, zmm30, zmm31",
            "vpdpbusd zmm20, zmm30, zmm31", "vpdpbusd zmm21, zmm30, zmm31", "vpdpbusd zmm22, zmm30, zmm31", "vpdpbusd zmm23, zmm30, zmm31",
            "dec {n}",
            "jnz 2b",
            n = inout(reg) rounds => _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            options(nomem, nostack),
        );
    }
    rounds as f64 * 24.0 * 64.0 * 2.0
}

/// `tdpbssd` of two by two tiles, from registers.
#[cfg(target_arch = "x86_64")]
fn amx(rounds: u64) -> f64 {
    #[repr(align(64))]
    struct Config([u8; 64]);
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    for tile in 0..8 {
        // 64 bytes a row, 16 rows.
        config.0[16 + 2 * tile] = 64;
        config.0[48 + tile] = 16;
    }
    // SAFETY: called only where AMX was enabled for the process; all tiles are named, and given back.
    unsafe {
        std::arch::asm!(
            "ldtilecfg [{c}]",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            "tdpbssd tmm0, tmm4, tmm6", "tdpbssd tmm1, tmm4, tmm7", "tdpbssd tmm2, tmm5, tmm6", "tdpbssd tmm3, tmm5, tmm7",
            "dec {n}",
            "jnz 2b",
            "tilerelease",
            c = in(reg) config.0.as_ptr(),
            n = inout(reg) rounds => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(readonly, nostack),
        );
    }
    rounds as f64 * 4.0 * 16.0 * 16.0 * 64.0 * 2.0
}

/// Integer products a second of all threads together, tera-operations; `None` where the machine lacks the instructions.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Peaks {
    pub vnni: Option<f64>,
    pub amx: Option<f64>,
}

/// Measures both peaks in about a tenth of a second each.
pub fn peaks(threads: usize) -> Peaks {
    #[cfg(target_arch = "x86_64")]
    {
        let rate = |run: fn(u64) -> f64, rounds: u64| {
            let n = std::sync::Mutex::new(0.0);
            let times = together(threads, 5, |_| {
                let done = run(rounds);
                *n.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = done;
            });
            let done = n.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            threads as f64 * done / median(times) / 1e12
        };
        // SAFETY: `then` calls it only where the machine has the instruction set.
        let run_vnni = |n| unsafe { vnni(n) };
        Peaks { vnni: Isa::Avx512Vnni.enable().then(|| rate(run_vnni, 1_500_000)), amx: Isa::Amx.enable().then(|| rate(amx, 1_000_000)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = threads;
        Peaks { vnni: None, amx: None }
    }
}
