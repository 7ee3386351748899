//! The best number of threads, by measurement: decoding reads all weights once a token, so what counts is how fast a number
//! of threads reads a matrix that no cache holds.

use crate::instance::Shared;
use crate::isa::Isa;
use crate::kernels::matmul::{self, TileArgs};
use crate::pack::{Packed, TILE, pack_row};
use crate::pool::{Pool, ThreadCare};
use selvedge_core::backend::BackendError;
use selvedge_core::ops::Act8Layout;
use selvedge_core::os::{FloatEnv, Region, align_up};
use selvedge_gguf::TensorType;
use std::time::{Duration, Instant};

/// Bytes of the matrix: more than caches share out to one program, little enough to be read in a few milliseconds.
const MATRIX_BYTES: usize = 48 << 20;
/// Its columns, as a small model has them.
const COLUMNS: usize = 1024;
/// Reads of which the fastest counts.
const ROUNDS: usize = 5;
/// More threads must gain this much over fewer, percent: they take power, and others want cores too.
const WORTH: u128 = 4;

/// The number of threads up to `most` that decodes fastest, the smallest of those nearly as fast.
///
/// # Errors
/// An instruction set that isn't there, threads or memory that the system refuses.
pub fn best_thread_count(isa: Option<Isa>, most: usize, care: &ThreadCare) -> Result<usize, BackendError> {
    let most = most.clamp(1, crate::MAX_THREADS);
    let isa = crate::CpuBackend::new(isa, 1, care.clone())?.isa();
    let Some(row) = pack_row(TensorType::Q4_0) else { return Ok(most) };
    let kernel = matmul::select(row.layout, isa, 1);
    let tile_bytes = row.layout.tile_bytes(COLUMNS);
    let packed = Packed { offset: 0, n_out: MATRIX_BYTES / tile_bytes * TILE, k: COLUMNS, layout: row.layout };
    let mut weights = Region::new(packed.n_bytes(), true)?;
    // Other pages than the one page of zeros that the system lends to memory that was never written.
    weights.bytes_mut().iter_mut().step_by(1024).for_each(|byte| *byte = 1);
    let act = Act8Layout::new(1, COLUMNS);
    let activations = Region::new(act.n_bytes, false)?;
    let result_bytes = align_up(TILE * 4);
    let results = Region::new(most * result_bytes, false)?;
    let (w, x, out) = (Shared(weights.as_ptr()), Shared(activations.as_ptr()), Shared(results.as_ptr()));
    let mut times = Vec::new();
    let _env = FloatEnv::default_here();
    for n in counts(most) {
        let mut pool = Pool::new(n, care)?;
        let mut fastest = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            pool.run(packed.n_tiles(), &|tile, thread| {
                // SAFETY: the tile lies inside the matrix, the activations hold one row, each thread has a result of its own, and
                // `CpuBackend::new` saw that the machine has the instruction set.
                unsafe {
                    let (tile, out) = (w.at(tile * tile_bytes), out.at(thread * result_bytes).cast());
                    (kernel.run)(&TileArgs::new(tile, COLUMNS, x.at(0), &act, 0..1, out, std::ptr::null_mut()), row.layout);
                }
            });
            fastest = fastest.min(start.elapsed());
        }
        times.push((n, fastest));
    }
    Ok(best(&times))
}

/// Numbers that are tried: all of them where they are few, else steps of half as much again.
fn counts(most: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |&n| Some((n + n / 2).max(n + 1))).take_while(|&n| n < most).collect();
    counts.push(most);
    counts
}

/// The smallest number that no larger one beats by what is worth it.
fn best(times: &[(usize, Duration)]) -> usize {
    let fastest = times.iter().map(|(_, time)| time.as_nanos()).min().unwrap_or(0);
    times.iter().find(|(_, time)| time.as_nanos() * 100 <= fastest * (100 + WORTH)).map_or(1, |(n, _)| *n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_number_that_is_nearly_fastest_wins() {
        let times = |of: &[(usize, u64)]| of.iter().map(|&(n, us)| (n, Duration::from_micros(us))).collect::<Vec<_>>();
        assert_eq!(best(&times(&[(1, 1000), (2, 510), (3, 500), (4, 700)])), 2);
        assert_eq!(best(&times(&[(1, 1000), (2, 1001)])), 1);
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(10), [1, 2, 3, 4, 6, 9, 10]);
    }

    #[test]
    fn a_count_is_found_within_what_there_is() {
        let n = best_thread_count(None, 2, &ThreadCare::default()).unwrap();
        assert!((1..=2).contains(&n));
    }
}
