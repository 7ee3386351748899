//! The C ABI: opaque handles, options by key, one event callback, typed statuses. The header is `include/selvedge.h`, made
//! from these sources; `docs/c.md` is its guide.
//!
//! What holds for every function: a NULL that isn't said to be allowed is an error and changes nothing; no panic and no
//! unwinding leaves it; nothing is printed; nothing is global but the last error, which each thread has of its own.
#![allow(non_camel_case_types, reason = "names of the C interface")]

pub mod cancel;
pub mod error;
pub mod event;
pub mod guard;
pub mod model;
pub mod options;
pub mod session;
pub mod source;
pub mod text;
pub mod value;
pub mod version;
