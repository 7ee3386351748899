//! Helpers shared by the suites that cross crates.
