//! Bringing weights into the packed form, on all threads.

use crate::pack::{Packed, pack_row, pack_tile};
use selvedge_core::backend::{BackendError, LoadControl, PackLayout, PackPiece, PackSink, TensorSource, pack_chunks};
use selvedge_core::cancel::CancelToken;
use selvedge_core::graph::VerifiedGraph;
use selvedge_core::ops::{Op, WeightId, WeightRows};
use selvedge_core::os::{FloatEnv, align_up};
use selvedge_gguf::TensorType;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Name of the packed form with its version, which rises with every change of a layout.
const FORM: &str = "cpu-2";

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

/// A piece of the pack and where it comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Vector(WeightId, usize),
    Matrix(WeightRows, Packed),
}

impl PackPlan {
    /// All pieces in the order of their offsets.
    fn sources(&self) -> Vec<(Range<usize>, Source)> {
        let vectors = self.vectors.iter().map(|(&w, &(offset, len))| (offset..offset + len * 4, Source::Vector(w, len)));
        let matrices = self.mats.iter().map(|(&(weight, first, n), packed)| {
            (packed.offset..packed.offset + packed.n_bytes(), Source::Matrix(WeightRows { weight, first, n }, *packed))
        });
        let mut all: Vec<_> = vectors.chain(matrices).collect();
        all.sort_unstable_by_key(|(range, _)| range.start);
        all
    }

    /// What core is told of the plan.
    pub(crate) fn layout(&self, graph: &VerifiedGraph, nodes: Range<usize>) -> PackLayout {
        let piece = |(range, source): (Range<usize>, Source)| {
            let (weight, rows, plain) = match source {
                Source::Vector(w, _) => (w, 0..1, true),
                Source::Matrix(rows, _) => (rows.weight, rows.first..rows.first + rows.n, false),
            };
            let decl = &graph.weights[weight.0 as usize];
            let (ty, n_out) = if plain { (TensorType::F32, 1) } else { (decl.ty, decl.n_out) };
            let (tensor, n_in, offset) = (decl.tensor.clone(), decl.n_in, range.start);
            PackPiece { tensor, ty, n_in, n_out, rows, plain, offset, n_bytes: range.len() }
        };
        let read = graph.nodes[nodes].iter().filter_map(|n| if let Op::Embed(e) = &n.op { Some(e.weight) } else { None });
        let unpacked = read.filter(|&w| self.whole(graph, w).is_none()).map(|w| graph.weights[w.0 as usize].tensor.clone()).collect();
        PackLayout { form: FORM.into(), pieces: self.sources().into_iter().map(piece).collect(), unpacked, n_bytes: self.n_bytes }
    }

    /// The packed form of all rows of a weight, where there is one.
    pub(crate) fn whole(&self, graph: &VerifiedGraph, w: WeightId) -> Option<Packed> {
        self.mats.get(&(w, 0, graph.weights[w.0 as usize].n_out)).copied()
    }
}

/// Packs everything, a chunk a task: a tile that two chunks share is packed for each.
pub(crate) fn pack(
    graph: &VerifiedGraph,
    plan: &PackPlan,
    weights: &dyn TensorSource,
    n_threads: usize,
    sink: &dyn PackSink,
    control: &mut LoadControl<'_>,
) -> Result<(), BackendError> {
    let sources = plan.sources();
    let chunks: Vec<Range<usize>> = pack_chunks(plan.n_bytes, sink.phase()).collect();
    let total = plan.n_bytes.max(1) as u64;
    let next = AtomicUsize::new(0);
    let fault: Mutex<Option<BackendError>> = Mutex::new(None);
    let cancel = control.cancel;
    let work = |progress: &mut dyn FnMut(usize)| {
        let _env = FloatEnv::default_here();
        let mut chunk_bytes = Vec::new();
        let mut piece_bytes = Vec::new();
        loop {
            let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            progress(chunk.start);
            chunk_bytes.clear();
            chunk_bytes.resize(chunk.len(), 0);
            let first = sources.partition_point(|(range, _)| range.end <= chunk.start);
            let result = sources[first..]
                .iter()
                .take_while(|(range, _)| range.start < chunk.end)
                .try_for_each(|(range, source)| fill(graph, weights, range, *source, chunk, &mut chunk_bytes, &mut piece_bytes, cancel));
            let kept =
                result.and_then(|()| sink.put(chunk.start, &chunk_bytes).map_err(|e| BackendError::PackWrite { reason: e.to_string() }));
            if let Err(error) = kept {
                next.store(chunks.len(), Ordering::Relaxed);
                let mut fault = fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *fault = fault.take().or(Some(error));
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads.min(chunks.len()) {
            // With fewer threads than asked for, packing is slower and nothing else.
            let _ = std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, || work(&mut |_| {}));
        }
        work(&mut |done| (control.progress)(done as u64, total));
    });
    if let Some(error) = fault.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(error);
    }
    (control.progress)(total, total);
    Ok(())
}

/// Fills what a chunk holds of a piece.
#[allow(clippy::too_many_arguments, reason = "a piece, a chunk and the buffers of a thread")]
fn fill(
    graph: &VerifiedGraph,
    weights: &dyn TensorSource,
    range: &Range<usize>,
    source: Source,
    chunk: &Range<usize>,
    chunk_bytes: &mut [u8],
    piece_bytes: &mut Vec<u8>,
    cancel: &CancelToken,
) -> Result<(), BackendError> {
    // Copies the part of some packed bytes, of which the first lies at `at`, that the chunk holds.
    let copy = |at: usize, bytes: &[u8], chunk_bytes: &mut [u8]| {
        let (start, end) = (at.max(chunk.start), (at + bytes.len()).min(chunk.end));
        if start < end {
            chunk_bytes[start - chunk.start..end - chunk.start].copy_from_slice(&bytes[start - at..end - at]);
        }
    };
    match source {
        Source::Vector(w, len) => {
            let decl = &graph.weights[w.0 as usize];
            let mut values = vec![0.0_f32; len];
            if let Some(decode) = decl.ty.row().decode {
                decode(weights.tensor(&decl.tensor), &mut values);
            }
            if !selvedge_core::math::all_finite(&values) {
                return Err(BackendError::DamagedTensor { tensor: decl.tensor.clone() });
            }
            piece_bytes.clear();
            piece_bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            copy(range.start, piece_bytes, chunk_bytes);
        }
        Source::Matrix(rows, packed) => {
            let decl = &graph.weights[rows.weight.0 as usize];
            let tensor = weights.tensor(&decl.tensor);
            let Some(row) = pack_row(decl.ty) else { return Ok(()) };
            let tile_bytes = packed.tile_bytes().max(1);
            let first = chunk.start.saturating_sub(range.start) / tile_bytes;
            let last = (chunk.end.min(range.end) - range.start).div_ceil(tile_bytes);
            for tile in first..last {
                if cancel.is_cancelled() {
                    return Err(BackendError::Cancelled);
                }
                let at = range.start + tile * tile_bytes;
                if at >= chunk.start && at + tile_bytes <= chunk.end {
                    pack_tile(&row, decl, rows, tensor, tile, &mut chunk_bytes[at - chunk.start..][..tile_bytes])?;
                } else {
                    piece_bytes.clear();
                    piece_bytes.resize(tile_bytes, 0);
                    pack_tile(&row, decl, rows, tensor, tile, piece_bytes)?;
                    copy(at, piece_bytes, chunk_bytes);
                }
            }
        }
    }
    Ok(())
}
