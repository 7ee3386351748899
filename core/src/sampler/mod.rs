//! (module sampler)
