//! Cancel tokens.

use crate::error::{Failure, slv_status};
use crate::guard::guard;
use crate::value::{Out, free, given};
use selvedge::CancelToken;

/// Ends calls that it was given to, from any thread, within the time of a layer. One token may serve any number of calls.
#[derive(Debug)]
pub struct slv_cancel(CancelToken);

/// Makes a token.
///
/// # Safety
/// `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_cancel_new(out: *mut *mut slv_cancel) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(out, std::ptr::null_mut(), "out") }?;
        out.set(Box::into_raw(Box::new(slv_cancel(CancelToken::new()))));
        Ok(())
    })
}

/// Cancels: harmless before a call begins, twice, and after it ended. From any thread.
///
/// # Safety
/// `cancel` is NULL or a token that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_cancel_cancel(cancel: *const slv_cancel) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { given(cancel, "cancel") }?.0.cancel();
        Ok(())
    })
}

/// Takes a cancel back, so that the token can serve further calls.
///
/// # Safety
/// As `slv_cancel_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_cancel_reset(cancel: *const slv_cancel) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { given(cancel, "cancel") }?.0.reset();
        Ok(())
    })
}

/// Frees a token; calls that use it go on. NULL is allowed.
///
/// # Safety
/// `cancel` is NULL or a token that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_cancel_free(cancel: *mut slv_cancel) {
    // SAFETY: `slv_cancel_new` boxed it.
    unsafe { free(cancel) }
}

/// A token of a call's own, cancelled with the caller's, if there is one.
///
/// # Safety
/// As `slv_cancel_cancel`.
pub(crate) unsafe fn of_call(cancel: *const slv_cancel) -> Result<CancelToken, Failure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { cancel.as_ref() }.map_or_else(CancelToken::new, |cancel| cancel.0.child()))
}
