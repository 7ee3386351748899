//! Arguments of C as Rust's values, checked.

use crate::error::{Failure, slv_status};
use selvedge::TokenId;
use std::ffi::{CStr, CString, c_char};

fn null(what: &str) -> Failure {
    Failure::new(slv_status::Null, format!("{what} is NULL"))
}

/// What a pointer points to.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that lives, and isn't changed, for `'a`.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// As [`given`], to be changed.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that lives, and that nobody else uses, for `'a`.
pub(crate) unsafe fn given_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// A place for a result, which may be uninitialised.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Takes a place and stores what it holds where the call fails.
    ///
    /// # Safety
    /// `pointer` is NULL or a place for a `T` during the call.
    pub(crate) unsafe fn new(pointer: *mut T, at_first: T, what: &str) -> Result<Out<T>, Failure> {
        if pointer.is_null() {
            return Err(null(what));
        }
        // SAFETY: the caller's promise; nothing is read.
        unsafe { pointer.write(at_first) };
        Ok(Out(pointer))
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: `new` was promised a place for the whole call.
        unsafe { self.0.write(value) };
    }
}

impl Out<*mut c_char> {
    /// Gives a text away, to be freed by `slv_string_free`.
    pub(crate) fn set_text(&self, text: &str) {
        self.set(owned_text(text).into_raw());
    }
}

/// A text as C reads it; NULs inside, which JSON never has, become replacement characters.
pub(crate) fn owned_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// A text that ends with NUL.
///
/// # Safety
/// `pointer` is NULL or points to bytes that end with NUL and stay as they are for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL, and the caller's promise.
    utf8(unsafe { CStr::from_ptr(pointer) }.to_bytes(), what)
}

fn utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Failure> {
    std::str::from_utf8(bytes).map_err(|e| Failure::new(slv_status::Utf8, format!("{what} isn't UTF-8 from byte {} on", e.valid_up_to())))
}

/// A text of a length, which may hold NULs.
///
/// # Safety
/// `pointer` is NULL or points to `len` bytes that stay as they are for `'a`.
pub(crate) unsafe fn text_of<'a>(pointer: *const c_char, len: usize, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    utf8(unsafe { slice(pointer.cast::<u8>(), len, what) }?, what)
}

/// Elements; NULL is allowed for none.
///
/// # Safety
/// `pointer` is NULL or points to `len` elements that stay as they are for `'a`.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    check_len::<T>(len, what)?;
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: not NULL, a length that an address space can hold, and the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

fn check_len<T>(len: usize, what: &str) -> Result<(), Failure> {
    if len > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::new(slv_status::Argument, format!("{what} has {len} elements, more than any memory holds")));
    }
    Ok(())
}

/// Copies elements to a caller's buffer; `n` is told how many there are, whether they fit or not.
///
/// # Safety
/// `buffer` is NULL or a place for `capacity` elements during the call.
pub(crate) unsafe fn fill<T: Copy>(buffer: *mut T, capacity: usize, found: &[T], n: &Out<usize>, what: &str) -> Result<(), Failure> {
    n.set(found.len());
    if found.len() > capacity {
        let message = format!("{what} holds {capacity} elements and {} are needed", found.len());
        return Err(Failure::new(slv_status::Buffer, message));
    }
    if !found.is_empty() {
        if buffer.is_null() {
            return Err(null(what));
        }
        // SAFETY: as many elements as the caller promised at least; a caller's buffer and ours don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), buffer, found.len()) };
    }
    Ok(())
}

/// Ids of tokens, each in the vocabulary.
///
/// # Safety
/// As [`slice`].
pub(crate) unsafe fn tokens(ids: *const u32, n: usize, n_vocab: usize) -> Result<Vec<TokenId>, Failure> {
    // SAFETY: the caller's promise.
    let ids = unsafe { slice(ids, n, "ids") }?;
    if let Some((i, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= n_vocab) {
        let message = format!("token {i} is {id}, expected one below {n_vocab}");
        return Err(Failure::new(slv_status::Argument, message));
    }
    Ok(ids.iter().map(|&id| TokenId(id)).collect())
}

/// A JSON text.
pub(crate) fn json(text: &str, what: &str) -> Result<serde_json::Value, Failure> {
    serde_json::from_str(text).map_err(|e| Failure::new(slv_status::Json, format!("{what}: expected JSON, but {e}")))
}

/// Frees a text that the library gave away; NULL is allowed.
///
/// # Safety
/// `text` is NULL or was given by this library and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: `Out::set_text` made it by `CString::into_raw`, and the caller frees it once.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Frees a handle; NULL is allowed.
///
/// # Safety
/// `handle` is NULL or came from `Box::into_raw` and wasn't freed.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // Whatever the drop of a handle does, a panic in it mustn't unwind into C.
        let _ = crate::guard::caught(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
