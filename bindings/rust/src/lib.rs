//! Selvedge: language models at the edge.
