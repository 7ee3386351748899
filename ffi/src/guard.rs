//! The edge of every call: no panic passes it, and what failed can be read afterwards.

use crate::error::{Failure, slv_status};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// The sentence of the last call that failed on this thread, empty where none did. Valid until the next call that fails on it.
#[unsafe(no_mangle)]
pub extern "C" fn slv_last_error() -> *const c_char {
    // A thread that is coming to its end has no storage any more.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs a call. Its failure becomes the thread's last error and a status.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Failure>) -> slv_status {
    let failure = match caught(call) {
        Ok(()) => return slv_status::Ok,
        Err(failure) => failure,
    };
    let _ = LAST.try_with(|last| *last.borrow_mut() = failure.c_message());
    failure.status
}

/// Runs something that may panic: a panic becomes a failure.
pub(crate) fn caught<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // Whatever a panic leaves half done is a session's, which is closed for good, or is dropped.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Failure::new(slv_status::Internal, format!("a fault of the library: {}", words.unwrap_or_default())))
    })
}
