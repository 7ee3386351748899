//! Bringing weights into the packed form, on all threads.

use crate::pack::{Packed, pack_row, pack_tile};
use selvedge_core::backend::{BackendError, LoadControl, TensorSource};
use selvedge_core::graph::VerifiedGraph;
use selvedge_core::ops::{Op, WeightId, WeightRows};
use selvedge_core::os::{FloatEnv, Region, align_up};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where every weight of a segment goes, known before any is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct PackPlan {
    /// Matrices by the rows that they hold.
    pub mats: BTreeMap<(WeightId, usize, usize), Packed>,
    /// Vectors (norms, biases) as f32: offset and length.
    pub vectors: BTreeMap<WeightId, (usize, usize)>,
    /// Bytes in all.
    pub n_bytes: usize,
}

pub(crate) fn key(rows: WeightRows) -> (WeightId, usize, usize) {
    (rows.weight, rows.first, rows.n)
}

impl PackPlan {
    /// Lays out the weights of the nodes. Types without a decoder were refused by `supports`.
    pub(crate) fn new(graph: &VerifiedGraph, nodes: Range<usize>) -> PackPlan {
        let mut plan = PackPlan::default();
        for node in &graph.nodes[nodes] {
            let vector = |plan: &mut PackPlan, w: WeightId| {
                if !plan.vectors.contains_key(&w) {
                    let len = graph.weights[w.0 as usize].n_in;
                    plan.vectors.insert(w, (plan.n_bytes, len));
                    plan.n_bytes += align_up(len * 4);
                }
            };
            match &node.op {
                Op::MatMul(m) => {
                    for part in &m.parts {
                        let decl = &graph.weights[part.rows.weight.0 as usize];
                        if let (false, Some(row)) = (plan.mats.contains_key(&key(part.rows)), pack_row(decl.ty)) {
                            let packed = Packed { offset: plan.n_bytes, n_out: part.rows.n, k: decl.n_in, layout: row.layout };
                            plan.n_bytes += align_up(packed.n_bytes());
                            plan.mats.insert(key(part.rows), packed);
                        }
                        if let Some(bias) = part.bias {
                            vector(&mut plan, bias);
                        }
                    }
                }
                Op::RmsNorm(n) => vector(&mut plan, n.weight),
                _ => {}
            }
        }
        plan
    }
}

/// Bytes of tiles that one task packs: small enough to share out evenly, large enough to be worth claiming.
const TASK_BYTES: usize = 256 << 10;

/// Packs everything into a fresh region.
pub(crate) fn pack(
    graph: &VerifiedGraph,
    plan: &PackPlan,
    weights: &dyn TensorSource,
    n_threads: usize,
    control: &mut LoadControl<'_>,
) -> Result<Region, BackendError> {
    let region = Region::new(plan.n_bytes, true)?;
    for (&w, &(offset, len)) in &plan.vectors {
        let decl = &graph.weights[w.0 as usize];
        let mut values = vec![0.0_f32; len];
        if let Some(decode) = decl.ty.row().decode {
            decode(weights.tensor(&decl.tensor), &mut values);
        }
        if !selvedge_core::math::all_finite(&values) {
            return Err(BackendError::DamagedTensor { tensor: decl.tensor.clone() });
        }
        // SAFETY: the plan gives each vector len * 4 bytes of its own, aligned to a cache line; nobody else writes yet.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), region.as_ptr().add(offset).cast(), len) };
    }
    let mut tasks: Vec<(WeightRows, Packed, Range<usize>)> = Vec::new();
    for (&(weight, first, n), packed) in &plan.mats {
        let per_task = (TASK_BYTES / packed.tile_bytes().max(1)).max(1);
        for start in (0..packed.n_tiles()).step_by(per_task) {
            tasks.push((WeightRows { weight, first, n }, *packed, start..(start + per_task).min(packed.n_tiles())));
        }
    }
    let total = tasks.iter().map(|(_, p, tiles)| (tiles.len() * p.tile_bytes()) as u64).sum::<u64>().max(1);
    let next = AtomicUsize::new(0);
    let fault: Mutex<Option<BackendError>> = Mutex::new(None);
    let cancel = control.cancel;
    let work = |progress: &mut dyn FnMut(usize)| {
        let _env = FloatEnv::default_here();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some((rows, packed, tiles)) = tasks.get(i) else { return };
            progress(i);
            let decl = &graph.weights[rows.weight.0 as usize];
            let tensor = weights.tensor(&decl.tensor);
            let Some(row) = pack_row(decl.ty) else { continue };
            for tile in tiles.clone() {
                let at = packed.offset + tile * packed.tile_bytes();
                // SAFETY: the tile's bytes lie inside the region, and each tile is in one task, claimed by one thread.
                let dst = unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(at), packed.tile_bytes()) };
                let packed = pack_tile(&row, decl, *rows, tensor, tile, dst);
                let stop = if cancel.is_cancelled() { Some(BackendError::Cancelled) } else { packed.err() };
                if let Some(error) = stop {
                    next.store(tasks.len(), Ordering::Relaxed);
                    let mut fault = fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    *fault = fault.take().or(Some(error));
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads.min(tasks.len()) {
            // With fewer threads than asked for, packing is slower and nothing else.
            let _ = std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, || work(&mut |_| {}));
        }
        work(&mut |i| (control.progress)(total * i as u64 / tasks.len() as u64, total));
    });
    if let Some(error) = fault.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(error);
    }
    (control.progress)(total, total);
    Ok(region)
}
