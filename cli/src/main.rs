//! The command `selvedge`.

fn main() {}
