//! (module tokenizer)
