//! Every kernel row for every packed layout: one row of activations on a matrix larger than the cache (GB/s), and 512 rows
//! on 2048 by 2048 (operations a second, a multiply-add as two).
//!
//! `cargo bench --no-default-features [-- FILTER]`: llama.cpp isn't built for it. `scripts/bench-report` sets the results
//! beside the bandwidth and the peaks that it measures in the same run. SELVEDGE_BENCH_QUICK: small matrices, a look.

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use selvedge::gguf::TensorType;
use selvedge_backend_cpu::Isa;
use selvedge_backend_cpu::bench::{Product, Worker};
use std::sync::Mutex;
use std::time::Duration;

const TYPES: &[TensorType] = &[
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q4_K,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::F16,
    TensorType::BF16,
    TensorType::F32,
];

/// Bytes of the largest cache that the system names.
fn cache_bytes() -> usize {
    let read = |index: usize| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    (0..8).filter_map(read).max().unwrap_or(32 << 20)
}

/// All tiles, shared out evenly.
fn run(product: &Product, workers: &[Mutex<Worker>]) {
    let per_thread = product.n_tiles().div_ceil(workers.len());
    let part = |i: usize| {
        let first = (i * per_thread).min(product.n_tiles());
        let mut worker = workers[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        product.run(first..(first + per_thread).min(product.n_tiles()), &mut worker);
    };
    std::thread::scope(|scope| {
        for i in 1..workers.len() {
            let part = &part;
            scope.spawn(move || part(i));
        }
        part(0);
    });
}

fn workers(product: &Product, n: usize) -> Vec<Mutex<Worker>> {
    (0..n).filter_map(|_| product.worker().map(Mutex::new)).collect()
}

fn kernels(c: &mut Criterion) {
    let quick = std::env::var_os("SELVEDGE_BENCH_QUICK").is_some();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(2);
    let k = 2048;
    // A quarter more than the cache holds; beyond a gigabyte memory would run short sooner than the cache helps.
    let gemv_bytes = if quick { 16 << 20 } else { (cache_bytes() / 4 * 5).min(1 << 30) };
    for isa in Isa::available().into_iter().rev() {
        // The scalar row defines the bits and has no bound of speed; a few rows show what it does.
        let gemm_rows = if isa == Isa::Scalar || quick { 16 } else { 512 };
        for &ty in TYPES {
            let tile_bytes = Product::new(ty, Isa::Scalar, 16, k, 1).map_or(1, |p| p.n_bytes());
            let n_out = gemv_bytes / tile_bytes * 16 / if isa == Isa::Scalar { 8 } else { 1 };
            if let Some(product) = Product::new(ty, isa, n_out, k, 1) {
                let mut group = c.benchmark_group("gemv");
                group.throughput(Throughput::Bytes(product.n_bytes() as u64)).sampling_mode(SamplingMode::Flat);
                for n in 1..=if isa == Isa::Scalar { 1 } else { threads } {
                    let workers = workers(&product, n);
                    let id = BenchmarkId::new(format!("{}/{ty}", product.kernel()), format!("threads={n}"));
                    group.bench_function(id, |b| b.iter(|| run(&product, &workers)));
                }
            }
            if let Some(product) = Product::new(ty, isa, 2048, k, gemm_rows) {
                let mut group = c.benchmark_group("gemm");
                group.throughput(Throughput::Elements((2 * 2048 * k * gemm_rows) as u64)).sampling_mode(SamplingMode::Flat);
                let workers = workers(&product, 1);
                let id = BenchmarkId::new(format!("{}/{ty}", product.kernel()), "threads=1");
                group.bench_function(id, |b| b.iter(|| run(&product, &workers)));
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(700))
        .without_plots();
    targets = kernels
}
criterion_main!(benches);
