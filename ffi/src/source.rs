//! Where a model's bytes are.

use crate::error::{Failure, slv_status};
use crate::guard::guard;
use crate::value::{Out, free, slice, text};
use selvedge::{HoldBytes, ModelSource};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Where a model's bytes are: a path, a part of an open file, memory. It may be used for any number of calls and freed after
/// them: what they opened keeps what it needs.
#[derive(Debug)]
pub struct slv_source(pub(crate) ModelSource);

/// Told when nothing uses the bytes any more, once, on any thread.
pub type slv_release_fn = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// A model's file, or the first file of a split set, by its path in UTF-8. Nothing is opened yet.
///
/// # Safety
/// `path` ends with NUL; `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_source_path(path: *const c_char, out: *mut *mut slv_source) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, path) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, text(path, "path")?) };
        out.set(Box::into_raw(Box::new(slv_source(ModelSource::Path(path.into())))));
        Ok(())
    })
}

/// A part of an open file: `n_bytes` from byte `start` on, to the end of the file where `n_bytes` is 0. The descriptor is
/// duplicated: the caller may close its own. Android's assets come this way.
///
/// # Safety
/// `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_source_fd(fd: c_int, start: u64, n_bytes: u64, out: *mut *mut slv_source) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(out, std::ptr::null_mut(), "out") }?;
        let file = Arc::new(duplicate(fd)?);
        let n_bytes = (n_bytes > 0).then_some(n_bytes);
        out.set(Box::into_raw(Box::new(slv_source(ModelSource::File { file, start, n_bytes }))));
        Ok(())
    })
}

#[cfg(unix)]
fn duplicate(fd: c_int) -> Result<std::fs::File, Failure> {
    use std::os::fd::BorrowedFd;
    if fd < 0 {
        return Err(Failure::new(slv_status::Argument, format!("the file descriptor is {fd}, expected one of an open file")));
    }
    // SAFETY: not -1; one that isn't open is refused by the system in the next call, which is all that it is used for.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let owned = borrowed.try_clone_to_owned();
    owned.map(Into::into).map_err(|e| Failure::new(slv_status::System, format!("cannot duplicate file descriptor {fd}: {e}")))
}

#[cfg(not(unix))]
fn duplicate(fd: c_int) -> Result<std::fs::File, Failure> {
    Err(Failure::new(slv_status::Unsupported, format!("file descriptor {fd} can't be used on this system: give a path")))
}

/// A caller's bytes.
#[derive(Debug)]
struct Foreign {
    bytes: &'static [u8],
    release: slv_release_fn,
    user: *mut c_void,
}

// SAFETY: the bytes stay as they are, and `slv_release_fn` may be called on any thread: the caller of `slv_source_bytes`
// promises both.
unsafe impl Send for Foreign {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Foreign {}

impl HoldBytes for Foreign {
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the caller's own function with the caller's own argument.
            unsafe { release(self.user) }
        }
    }
}

/// Bytes in memory, which stay as they are until `release` is called; a `release` of NULL: until everything that was opened
/// from them is freed. Where the call fails, `release` isn't called.
///
/// # Safety
/// `data` points to `n_bytes` bytes that stay; `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_source_bytes(
    data: *const c_void,
    n_bytes: usize,
    release: slv_release_fn,
    user: *mut c_void,
    out: *mut *mut slv_source,
) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, bytes) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, slice(data.cast::<u8>(), n_bytes, "data")?) };
        let bytes = Arc::new(Foreign { bytes, release, user });
        out.set(Box::into_raw(Box::new(slv_source(ModelSource::Bytes(bytes)))));
        Ok(())
    })
}

/// Frees a source. NULL is allowed.
///
/// # Safety
/// `source` is NULL or a source that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_source_free(source: *mut slv_source) {
    // SAFETY: the functions above boxed it.
    unsafe { free(source) }
}
