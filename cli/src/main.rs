//! The command `selvedge`.

#![forbid(unsafe_code)]

fn main() {}
