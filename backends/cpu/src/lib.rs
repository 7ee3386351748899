//! CPU backend: W4A8 kernels over one packed layout, attention over pages, a thread pool that splits by rows. Every
//! instruction set and thread count gives the same bits (DESIGN 3.1).

mod isa;
mod kernels;
mod pack;
mod pool;

pub use isa::Isa;
