//! Bringing weights into the packed form, on all threads.

use crate::pack::{Packed, TILE, pack_row, pack_tile, unpack_row};
use selvedge_core::backend::{BackendError, LoadControl, PACK_CHUNK, PackLayout, PackPiece, PackSink, TensorSource, pack_chunks};
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
    // A thread holds a chunk, and a tile or vector that lies across its border.
    let longest = sources.iter().map(|(range, source)| if let Source::Matrix(_, p) = source { p.tile_bytes() } else { range.len() }).max();
    let per_thread = PACK_CHUNK + longest.unwrap_or(0);
    let n_threads = n_threads.min(usize::try_from(control.memory).unwrap_or(usize::MAX) / per_thread);
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

/// Refuses packed numbers that are infinite or undefined.
pub(crate) fn check(graph: &VerifiedGraph, plan: &PackPlan, pack: &[u8], cancel: &CancelToken) -> Result<(), BackendError> {
    let name = |w: WeightId| graph.weights[w.0 as usize].tensor.clone();
    for (range, source) in plan.sources() {
        let Some(bytes) = pack.get(range) else {
            return Err(BackendError::Pack { expected: format!("{} bytes", plan.n_bytes), found: format!("{} bytes", pack.len()) });
        };
        match source {
            Source::Vector(w, _) => {
                if bytes.chunks_exact(4).any(|x| !f32::from_le_bytes([x[0], x[1], x[2], x[3]]).is_finite()) {
                    return Err(BackendError::DamagedTensor { tensor: name(w) });
                }
            }
            Source::Matrix(rows, packed) => {
                let mut values = vec![0.0; packed.k];
                for (t, tile) in bytes.chunks_exact(packed.tile_bytes().max(1)).enumerate() {
                    for r in 0..TILE.min(rows.n - t * TILE) {
                        unpack_row(tile, packed.layout, r, &mut values);
                        if !selvedge_core::math::all_finite(&values) {
                            return Err(BackendError::DamagedTensor { tensor: name(rows.weight) });
                        }
                    }
                    if cancel.is_cancelled() {
                        return Err(BackendError::Cancelled);
                    }
                }
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::random;
    use selvedge_core::graph::Graph;
    use selvedge_core::ops::{Elem, Embed, MatMul, RmsNorm, Select, WeightDecl};

    #[derive(Debug)]
    struct Tensors(BTreeMap<String, Vec<u8>>);

    impl TensorSource for Tensors {
        fn tensor(&self, name: &str) -> &[u8] {
            &self.0[name]
        }
    }

    /// Takes chunks as a file does, the first of which ends where the file's own chunk does.
    struct Sink {
        phase: usize,
        bytes: Mutex<Vec<Option<u8>>>,
    }

    impl PackSink for Sink {
        fn phase(&self) -> usize {
            self.phase
        }
        fn put(&self, offset: usize, bytes: &[u8]) -> std::io::Result<()> {
            assert!(offset == 0 || offset % PACK_CHUNK == self.phase, "a chunk at {offset}");
            for (to, &from) in self.bytes.lock().unwrap()[offset..].iter_mut().zip(bytes) {
                assert_eq!(to.replace(from), None, "written twice");
            }
            Ok(())
        }
    }

    /// A graph with matrices of several kinds, some of them in parts, and vectors of two types.
    fn model() -> (VerifiedGraph, Tensors) {
        let mut graph = Graph::default();
        let mut tensors = BTreeMap::new();
        let mut weight = |graph: &mut Graph, name: &str, ty: TensorType, n_in: usize, n_out: usize| {
            tensors.insert(name.to_owned(), random::tensor(ty, n_out, n_in, 5 + tensors.len() as u64));
            graph.weight(WeightDecl { tensor: name.into(), ty, n_in, n_out })
        };
        let embedding = weight(&mut graph, "embedding", TensorType::Q6_K, 512, 1999);
        let norm = weight(&mut graph, "norm", TensorType::F32, 512, 1);
        let bias = weight(&mut graph, "bias", TensorType::F16, 1030, 1);
        let wide = weight(&mut graph, "wide", TensorType::Q4_K, 512, 5100);
        let back = weight(&mut graph, "back", TensorType::F32, 1024, 512);
        let mut x = graph.push1(None, Embed { weight: embedding, n_vocab: 1999, scale: 1.0 }, &[], "x").unwrap();
        x = graph.push1(None, RmsNorm { weight: norm, group: 512, eps: 1e-5, residual: false, out: Elem::F32 }, &[x], "normed").unwrap();
        // Rows 3 to 1033 with a part of the bias would need 1030; 1024 of them feed the next product.
        let rows = WeightRows { weight: wide, first: 3, n: 1024 };
        let y = graph.push1(None, MatMul::of_rows(rows, Some(bias), 5), &[x], "y").unwrap();
        graph.push1(None, MatMul::new(wide, 5100, None), &[x], "z").unwrap();
        x = graph.push1(None, MatMul::new(back, 512, None), &[y], "back").unwrap();
        x = graph.push1(None, Select, &[x], "wanted").unwrap();
        graph.logits = Some(graph.push1(None, MatMul::new(embedding, 1999, None), &[x], "logits").unwrap());
        (graph.verify().unwrap(), Tensors(tensors))
    }

    #[test]
    fn chunks_of_any_phase_on_any_threads_give_the_bytes_of_whole_tiles() {
        let (graph, tensors) = model();
        let plan = PackPlan::new(&graph, 0..graph.nodes.len());
        let mut want = vec![0; plan.n_bytes];
        for (range, source) in plan.sources() {
            match source {
                Source::Vector(w, len) => {
                    let decl = &graph.weights[w.0 as usize];
                    let mut values = vec![0.0; len];
                    selvedge_gguf::decode_row(decl.ty, tensors.tensor(&decl.tensor), &mut values).unwrap();
                    want[range].copy_from_slice(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
                }
                Source::Matrix(rows, packed) => {
                    let decl = &graph.weights[rows.weight.0 as usize];
                    for (tile, bytes) in want[range].chunks_exact_mut(packed.tile_bytes()).enumerate() {
                        pack_tile(&pack_row(decl.ty).unwrap(), decl, rows, tensors.tensor(&decl.tensor), tile, bytes).unwrap();
                    }
                }
            }
        }
        assert!(plan.n_bytes > 2 * PACK_CHUNK, "{} bytes", plan.n_bytes);
        for (phase, n_threads) in [(0, 1), (0, 3), (64, 2), (4096 + 192, 5), (PACK_CHUNK - 64, 3)] {
            let sink = Sink { phase, bytes: Mutex::new(vec![None; plan.n_bytes]) };
            let mut told = Vec::new();
            let mut tell = |done, total| told.push((done, total));
            let mut control = LoadControl { progress: &mut tell, cancel: &CancelToken::new(), memory: u64::MAX };
            pack(&graph, &plan, &tensors, n_threads, &sink, &mut control).unwrap();
            let got: Vec<u8> = sink.bytes.into_inner().unwrap().into_iter().map(|b| b.expect("every byte is written")).collect();
            let differs = got.iter().zip(&want).position(|(got, want)| got != want);
            assert_eq!(differs, None, "phase {phase}, {n_threads} threads");
            assert!(told.is_sorted() && told.last() == Some(&(plan.n_bytes as u64, plan.n_bytes as u64)), "{told:?}");
        }
    }

    #[test]
    fn a_check_of_packed_weights_finds_what_packing_would_refuse() {
        let (graph, tensors) = model();
        let plan = PackPlan::new(&graph, 0..graph.nodes.len());
        let sink = Sink { phase: 0, bytes: Mutex::new(vec![None; plan.n_bytes]) };
        let cancel = CancelToken::new();
        pack(&graph, &plan, &tensors, 2, &sink, &mut LoadControl { progress: &mut |_, _| {}, cancel: &cancel, memory: 0 }).unwrap();
        let mut bytes: Vec<u8> = sink.bytes.into_inner().unwrap().into_iter().flatten().collect();
        check(&graph, &plan, &bytes, &cancel).unwrap();
        let refused = |bytes: &[u8], name: &str| {
            assert_eq!(check(&graph, &plan, bytes, &cancel), Err(BackendError::DamagedTensor { tensor: name.into() }));
        };
        for (range, source) in plan.sources() {
            let (name, value, at) = match source {
                Source::Vector(w, _) => (&graph.weights[w.0 as usize].tensor, &f32::INFINITY.to_le_bytes()[..], range.end - 4),
                // The last row's first number: a float, or the scale of its first group.
                Source::Matrix(rows, packed) => {
                    let (n_bytes, r) = (packed.tile_bytes(), (rows.n - 1) % TILE);
                    let name = &graph.weights[rows.weight.0 as usize].tensor;
                    let tile = range.start + (packed.n_tiles() - 1) * n_bytes;
                    match name.as_str() {
                        "back" => (name, &f32::NAN.to_le_bytes()[..], tile + 4 * r),
                        _ => (name, &[0, 0x7c][..], tile + 2 * r),
                    }
                }
            };
            let kept = bytes[at..at + value.len()].to_vec();
            bytes[at..at + value.len()].copy_from_slice(value);
            refused(&bytes, name);
            bytes[at..at + value.len()].copy_from_slice(&kept);
        }
        assert!(matches!(check(&graph, &plan, &bytes[..bytes.len() - 4096], &cancel), Err(BackendError::Pack { .. })));
        cancel.cancel();
        assert_eq!(check(&graph, &plan, &bytes, &cancel), Err(BackendError::Cancelled));
    }
}
