//! Selvedge: language models at the edge.

#![forbid(unsafe_code)]
