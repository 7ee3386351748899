//! The only crate that names backends.
