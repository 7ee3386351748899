//! Every call to the operating system that core makes: anonymous memory, the floating-point environment, clocks and limits.

#[cfg(any(target_os = "linux", target_os = "android"))]
use std::path::Path;
use std::ptr::NonNull;

/// Alignment of every region and of every offset in it, bytes: one cache line, and the widest vector register.
pub const ALIGN: usize = 64;

/// Rounds up to a multiple of [`ALIGN`].
pub const fn align_up(n_bytes: usize) -> usize {
    n_bytes.next_multiple_of(ALIGN)
}

/// The system refused memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system refused {n_bytes} bytes of memory")]
pub struct OutOfMemory {
    /// What was asked for.
    pub n_bytes: usize,
}

/// Zeroed anonymous memory of fixed size, given back on drop. Pages are committed by the system when first touched,
/// so a region counts as memory used only as far as it was written.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    n_bytes: usize,
}

// SAFETY: a region is plain memory owned by the value; nothing in it is tied to a thread.
unsafe impl Send for Region {}
// SAFETY: shared access gives out `&[u8]` only; writers need `&mut` or take the raw pointer on their own promise.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `n_bytes` of zeroed memory. `huge`: ask for huge pages (a hint; fewer faults and TLB misses on weights).
    pub fn new(n_bytes: usize, huge: bool) -> Result<Region, OutOfMemory> {
        let n_bytes = align_up(n_bytes.max(1));
        #[cfg(unix)]
        {
            // SAFETY: an anonymous private mapping at an address of the system's choice touches no existing memory.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    n_bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | NORESERVE,
                    -1,
                    0,
                )
            };
            if base == libc::MAP_FAILED {
                return Err(OutOfMemory { n_bytes });
            }
            #[cfg(target_os = "linux")]
            if huge {
                // SAFETY: the range is the mapping made above; the advice changes no contents, and its failure is harmless.
                unsafe { libc::madvise(base, n_bytes, libc::MADV_HUGEPAGE) };
            }
            let _ = huge;
            let base = NonNull::new(base.cast()).ok_or(OutOfMemory { n_bytes })?;
            Ok(Region { base, n_bytes })
        }
        #[cfg(not(unix))]
        {
            let _ = huge;
            let layout = std::alloc::Layout::from_size_align(n_bytes, 4096).map_err(|_| OutOfMemory { n_bytes })?;
            // SAFETY: the layout's size is not zero.
            let base = unsafe { std::alloc::alloc_zeroed(layout) };
            let base = NonNull::new(base).ok_or(OutOfMemory { n_bytes })?;
            Ok(Region { base, n_bytes })
        }
    }

    /// Size, bytes.
    pub fn len(&self) -> usize {
        self.n_bytes
    }

    /// Whether the region holds nothing; never, as the smallest region is one line.
    pub fn is_empty(&self) -> bool {
        self.n_bytes == 0
    }

    /// Start of the memory, aligned to [`ALIGN`]. Valid for `len()` bytes while the region lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `n_bytes` long, readable, zero-initialised by the system, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.n_bytes) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.n_bytes) }
    }

    /// Gives the pages of `offset..offset + n_bytes` that lie wholly inside back to the system; they read as zero afterwards.
    pub fn release(&mut self, offset: usize, n_bytes: usize) {
        let page = page_size();
        let start = offset.min(self.n_bytes).next_multiple_of(page);
        let end = offset.saturating_add(n_bytes).min(self.n_bytes) / page * page;
        if start >= end {
            return;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: start..end lies inside the mapping and is page aligned; anonymous private pages read as zero after DONTNEED.
        unsafe {
            libc::madvise(self.base.as_ptr().add(start).cast(), end - start, libc::MADV_DONTNEED);
        }
        #[cfg(not(target_os = "linux"))]
        self.bytes_mut()[start..end].fill(0);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: base and length are those of the mapping made in `new`, unmapped once.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.n_bytes);
        }
        #[cfg(not(unix))]
        // SAFETY: the same pointer and layout as in `new`.
        unsafe {
            std::alloc::dealloc(self.base.as_ptr(), std::alloc::Layout::from_size_align_unchecked(self.n_bytes, 4096));
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const NORESERVE: libc::c_int = libc::MAP_NORESERVE;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const NORESERVE: libc::c_int = 0;

/// Size of a memory page, bytes.
pub fn page_size() -> usize {
    #[cfg(unix)]
    {
        // SAFETY: sysconf reads a constant of the system.
        let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(n).ok().filter(|n| n.is_power_of_two()).unwrap_or(4096)
    }
    #[cfg(not(unix))]
    4096
}

/// Sets the default floating-point environment (round to nearest, subnormals kept, exceptions masked) and restores the
/// caller's on drop. The bits of a result must not depend on what a host did to its thread (DESIGN 3.1).
#[derive(Debug)]
pub struct FloatEnv {
    saved: u64,
    /// The environment belongs to the thread that set it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl FloatEnv {
    /// Sets the default environment on this thread.
    pub fn default_here() -> FloatEnv {
        let saved = read_control();
        write_control(DEFAULT_CONTROL);
        FloatEnv { saved, _not_send: std::marker::PhantomData }
    }
}

impl Drop for FloatEnv {
    fn drop(&mut self) {
        write_control(self.saved);
    }
}

/// MXCSR: all exceptions masked, round to nearest, no flush to zero, no denormals-are-zero.
#[cfg(target_arch = "x86_64")]
const DEFAULT_CONTROL: u64 = 0x1f80;
/// FPCR: round to nearest, no flush to zero, no default NaN.
#[cfg(not(target_arch = "x86_64"))]
const DEFAULT_CONTROL: u64 = 0;

#[cfg(target_arch = "x86_64")]
fn read_control() -> u64 {
    let mut value: u32 = 0;
    // SAFETY: stmxcsr stores four bytes to the given address.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack)) };
    u64::from(value)
}

#[cfg(target_arch = "x86_64")]
fn write_control(value: u64) {
    let value = (value & 0xffff) as u32;
    // SAFETY: ldmxcsr loads four bytes; the value is the default or one read before, so no reserved bit is set.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, readonly)) };
}

#[cfg(target_arch = "aarch64")]
fn read_control() -> u64 {
    let value: u64;
    // SAFETY: reading FPCR has no effect.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack)) };
    value
}

#[cfg(target_arch = "aarch64")]
fn write_control(value: u64) {
    // SAFETY: the value is the default or one read before.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) value, options(nomem, nostack)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn read_control() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write_control(_value: u64) {}

/// Asks the system for the AMX tile registers, for all threads of this process from now on (Linux: arch_prctl with
/// ARCH_REQ_XCOMP_PERM, documented in the kernel's arch/x86/xstate). False where it refuses or doesn't know them.
pub fn permit_tile_registers() -> bool {
    #[cfg(all(target_arch = "x86_64", any(target_os = "linux", target_os = "android")))]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        // SAFETY: the call gives a permission and touches no memory of ours; an unknown request is answered with an error.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }
    #[cfg(not(all(target_arch = "x86_64", any(target_os = "linux", target_os = "android"))))]
    false
}

/// Threads to use by default: one for each fast physical core, as far as affinity mask and cgroup quota allow, at least one.
/// Two threads on the halves of a core, or one on a slow core among fast ones, gain little and heat much.
pub fn default_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let allowed = fast_cores(Path::new("/sys/devices"), &allowed_cpus()).map_or(allowed, |fast| fast.min(allowed));
    allowed.max(1)
}

/// Processors that this thread may run on, by the numbers of the system; empty where it doesn't tell.
pub fn allowed_cpus() -> Vec<usize> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: a set of plain bits, for which all zeros are valid.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the call fills the set that it is given, of the size that it is told.
        if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
            return Vec::new();
        }
        // SAFETY: the numbers are below the size of the set.
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    Vec::new()
}

/// Binds this thread to some processors; false where the system refuses or has no such thing.
pub fn bind_to_cpus(cpus: &[usize]) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: a set of plain bits, for which all zeros are valid.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
            // SAFETY: the number is below the size of the set.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        // SAFETY: the call reads the set; 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) == 0 }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = cpus;
        false
    }
}

/// Sets this thread's priority as `nice` counts it, from -20 (first) to 19 (last); false where the system refuses.
pub fn set_niceness(niceness: i32) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: the calls change the priority of the calling thread and touch no memory.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, niceness) == 0 }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = niceness;
        false
    }
}

/// Share of the fastest core's speed below which a core counts as slow, percent.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SLOW: u64 = 60;

/// Physical cores among the allowed processors that are fast, by what the system says under `devices`; `None` where it
/// says nothing.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn fast_cores(devices: &Path, allowed: &[usize]) -> Option<usize> {
    let read = |path: String| std::fs::read_to_string(devices.join(path)).ok();
    // Intel's hybrid processors list their efficient cores, which are not much slower at their best and still a drag.
    let efficient = cpu_list(&read("cpu_atom/cpus".into()).unwrap_or_default());
    let speed = |cpu: &usize| {
        let number = |file: &str| read(format!("system/cpu/cpu{cpu}/{file}"))?.trim().parse::<u64>().ok();
        number("cpu_capacity").or_else(|| number("cpufreq/cpuinfo_max_freq")).unwrap_or(0)
    };
    let cores: Vec<(u64, String)> = allowed
        .iter()
        .filter(|cpu| !efficient.contains(cpu))
        .filter_map(|cpu| Some((speed(cpu), read(format!("system/cpu/cpu{cpu}/topology/thread_siblings_list"))?)))
        .collect();
    let fastest = cores.iter().map(|(speed, _)| *speed).max()?;
    let fast = cores.iter().filter(|(speed, _)| speed * 100 >= fastest * SLOW).map(|(_, siblings)| siblings.as_str());
    Some(fast.collect::<std::collections::BTreeSet<_>>().len())
}

/// Numbers of a list like `0-3,8`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..last.parse::<usize>().ok()?.min(4096) + 1)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Bytes that the system says a program may still take without swapping; `None` where it says nothing.
pub fn available_memory() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    None
}

/// Whether a path leads to an open file. Where the system numbers no files, whatever is there counts as the same.
pub fn is_open_at(file: &std::fs::File, path: &std::path::Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        #[cfg(unix)]
        (Ok(a), Ok(b)) => {
            use std::os::unix::fs::MetadataExt;
            (a.dev(), a.ino()) == (b.dev(), b.ino())
        }
        #[cfg(not(unix))]
        (Ok(_), Ok(_)) => true,
        _ => false,
    }
}

/// Refuses a file larger than this process may write: writing beyond that is a signal, which ends the process, not an error.
///
/// # Errors
/// With both sizes.
#[allow(clippy::unnecessary_cast, reason = "the limit has 32 bits on some systems")]
pub fn check_file_size(n_bytes: u64) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call fills the structure that it is given.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
        if known && limit.rlim_cur != libc::RLIM_INFINITY && n_bytes > limit.rlim_cur {
            let text = format!("this process may write files of at most {} bytes, and {n_bytes} are needed", limit.rlim_cur);
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, text));
        }
    }
    let _ = n_bytes;
    Ok(())
}

/// Lets the system begin to bring written bytes of a file to its disk, so that less is left to wait for. A hint.
pub fn begin_writing(file: &std::fs::File, at: u64, n_bytes: u64) {
    #[cfg(target_os = "linux")]
    sync_range(file, at, n_bytes, libc::SYNC_FILE_RANGE_WRITE);
    #[cfg(not(target_os = "linux"))]
    let _ = (file, at, n_bytes);
}

/// Waits until written bytes of a file are at its disk; where the system can't do that by parts, it doesn't wait.
pub fn finish_writing(file: &std::fs::File, at: u64, n_bytes: u64) {
    #[cfg(target_os = "linux")]
    {
        let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        sync_range(file, at, n_bytes, wait);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, at, n_bytes);
}

#[cfg(target_os = "linux")]
fn sync_range(file: &std::fs::File, at: u64, n_bytes: u64, flags: libc::c_uint) {
    use std::os::fd::AsRawFd;
    // SAFETY: the call touches no memory of ours. What goes wrong is told by the sync of the whole file that follows.
    unsafe { libc::sync_file_range(file.as_raw_fd(), at as libc::off64_t, n_bytes as libc::off64_t, flags) };
}

/// What the processor calls itself; empty where the system doesn't tell.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| ["model name", "Hardware", "CPU part"].iter().any(|key| line.starts_with(key)));
    line.and_then(|line| line.split_once(':')).map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

/// Name and version of the system's kernel; empty where it isn't told.
pub fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Whether most of a mapped file is mapped in huge pages; `None` where the system doesn't tell.
pub fn in_huge_pages(bytes: &[u8]) -> Option<bool> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let wanted = format!("{:x}-", bytes.as_ptr().addr());
    let of_mapping = maps.lines().skip_while(|line| !line.starts_with(&wanted));
    let kib: usize =
        of_mapping.map(|line| line.strip_prefix("FilePmdMapped:")).find_map(|l| l)?.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024 * 2 > bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_zeroed_aligned_and_released() {
        let mut r = Region::new(1 << 20, false).unwrap();
        assert_eq!(r.as_ptr() as usize % ALIGN, 0);
        assert!(r.bytes().iter().all(|&b| b == 0));
        r.bytes_mut().fill(7);
        r.release(100, (1 << 20) - 200);
        let page = page_size();
        assert_eq!(r.bytes()[page - 1], 7);
        assert_eq!(r.bytes()[page], 0);
        assert_eq!(r.bytes()[(1 << 20) - 1], 7);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn fast_cores_are_counted() {
        assert_eq!(cpu_list("0-3,8,x,5-\n"), [0, 1, 2, 3, 8]);
        let count = |name: &str, cores: &[(u64, &str)], efficient: &str, allowed: &[usize]| {
            let devices = std::env::temp_dir().join(format!("selvedge-cores-{name}-{}", std::process::id()));
            for (i, (speed, siblings)) in cores.iter().enumerate() {
                let cpu = devices.join(format!("system/cpu/cpu{i}"));
                std::fs::create_dir_all(cpu.join("topology")).unwrap();
                std::fs::write(cpu.join("topology/thread_siblings_list"), siblings).unwrap();
                if *speed > 0 {
                    std::fs::write(cpu.join("cpu_capacity"), format!("{speed}\n")).unwrap();
                }
            }
            std::fs::create_dir_all(devices.join("cpu_atom")).unwrap();
            std::fs::write(devices.join("cpu_atom/cpus"), efficient).unwrap();
            let n = fast_cores(&devices, allowed);
            std::fs::remove_dir_all(&devices).unwrap();
            n
        };
        let all = |n: usize| (0..n).collect::<Vec<_>>();
        // A phone: four small cores, three large, one larger.
        let phone = [(325, "0"), (325, "1"), (325, "2"), (325, "3"), (830, "4"), (830, "5"), (830, "6"), (1024, "7")];
        assert_eq!(count("phone", &phone, "", &all(8)), Some(4));
        assert_eq!(count("small", &phone, "", &[0, 1]), Some(2), "bound to small cores, those are the fast ones");
        // Two hyperthreaded cores and two efficient ones; and a machine that tells no speed.
        let hybrid = [(1024, "0-1"), (1024, "0-1"), (1024, "2-3"), (1024, "2-3"), (800, "4"), (800, "5")];
        assert_eq!(count("hybrid", &hybrid, "4-5", &all(6)), Some(2));
        assert_eq!(count("plain", &[(0, "0"), (0, "1")], "", &all(2)), Some(2));
        assert_eq!(count("none", &[], "", &all(2)), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_bound_and_nice() {
        std::thread::spawn(|| {
            let cpus = allowed_cpus();
            assert!(!cpus.is_empty() && bind_to_cpus(&cpus[..1]));
            assert_eq!(allowed_cpus(), cpus[..1]);
            assert!(!bind_to_cpus(&[]), "no processor at all");
            assert!(set_niceness(5));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn absurd_region_is_refused() {
        assert_eq!(Region::new(usize::MAX / 2, false).unwrap_err().n_bytes, align_up(usize::MAX / 2));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn float_environment_is_set_and_restored() {
        // Round up and flush to zero, as audio hosts set it.
        write_control(0x1f80 | 0x8000 | 0x4000);
        {
            let _env = FloatEnv::default_here();
            assert_eq!(read_control(), DEFAULT_CONTROL);
        }
        assert_eq!(read_control() & 0xffc0, 0x1f80 | 0x8000 | 0x4000);
        write_control(DEFAULT_CONTROL);
    }
}
