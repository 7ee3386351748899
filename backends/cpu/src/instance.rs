//! A CPU instance: nodes compiled to calls of chosen kernels at fixed offsets, run on a pool.

use crate::CpuBackend;
use crate::isa::Isa;
use crate::kernels::attention::{self, AttentionKernels, BlockArgs, MAX_QUERIES, Query};
use crate::kernels::element::{self, ELEMENT_ROWS, Elements};
use crate::kernels::matmul::{self, TileArgs};
use crate::load::{PackPlan, key};
use crate::pack::{Packed, TILE, pack_row, unpack_row};
use crate::pool::{Pool, ThreadCare};
use selvedge_core::backend::{BackendError, CacheShape, Instance, PackBytes, StepIo, TensorSource};
use selvedge_core::graph::{Node, ValueId, VerifiedGraph};
use selvedge_core::ids::SeqId;
use selvedge_core::kv::{KvLayer, PAGE};
use selvedge_core::ops::{Act8Layout, Attention, Elem, Epilogue, MatMul, Op, RowsDim, WeightId};
use selvedge_core::os::{ALIGN, FloatEnv, Region, align_up};
use selvedge_core::place::{Placement, StepShape};
use selvedge_core::step::Input;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows of activations that a product finishes before its epilogue: their results stay in the first-level cache.
const PRODUCT_ROWS: usize = 128;
/// Bytes of 8-bit activations that share the second-level cache with a tile of weights.
const CACHED: usize = 768 << 10;

/// Rows of `k` columns that all tiles of a product pass by before the next rows: as many as stay in a core's cache. Of many
/// columns a chunk of a prompt is larger than that, and than the weights that are then read once more.
fn cached_rows(k: usize) -> usize {
    let rows = CACHED / k.max(1);
    if rows >= PRODUCT_ROWS { rows / PRODUCT_ROWS * PRODUCT_ROWS } else { (rows / TILE * TILE).max(TILE) }
}

/// Rows of one sequence that a task of attention takes together, at least and at most.
const ATTENTION_ROWS: [usize; 2] = [8, 32];
/// Queries of a task that share the widening of keys and values: it costs them little then.
const ATTENTION_QUERIES: usize = 96;

/// The most rows in a task of attention, of so many queries each.
fn attention_rows(group: usize) -> usize {
    (ATTENTION_QUERIES / group).clamp(ATTENTION_ROWS[0], ATTENTION_ROWS[1])
}

/// Steps of up to so many rows split attention by blocks too, so that few heads fill all threads.
const SPLIT_ROWS: usize = 4;
/// The most blocks in one task of split attention.
const SPLIT_BLOCKS: usize = 4;
/// Blocks that are merged by one thread: more take longer than it takes to call the others.
const ALONE: usize = 64;

/// Weights as the backend holds them.
#[derive(Debug)]
pub(crate) struct Model {
    pub graph: Arc<VerifiedGraph>,
    pub source: Arc<dyn TensorSource>,
    pub plan: PackPlan,
    pub isa: Isa,
    pub n_threads: usize,
    pub care: ThreadCare,
    /// At least as long as the plan says, and aligned.
    pack: PackBytes,
}

impl Model {
    /// Checks once what the kernels rely on: that the packed bytes are there, and the rows of tables that aren't packed.
    pub(crate) fn new(
        graph: Arc<VerifiedGraph>,
        nodes: Range<usize>,
        source: Arc<dyn TensorSource>,
        plan: PackPlan,
        pack: PackBytes,
        backend: &CpuBackend,
    ) -> Result<Model, BackendError> {
        let CpuBackend { isa, n_threads, care, .. } = backend.clone();
        let wrong = |expected: String, found: String| Err(BackendError::Pack { expected, found });
        if pack.bytes().len() < plan.n_bytes {
            return wrong(format!("{} bytes", plan.n_bytes), format!("{} bytes", pack.bytes().len()));
        }
        if plan.n_bytes > 0 && !pack.bytes().as_ptr().addr().is_multiple_of(ALIGN) {
            return wrong(format!("aligned to {ALIGN} bytes"), "not".into());
        }
        for node in &graph.nodes[nodes] {
            let Op::Embed(embed) = &node.op else { continue };
            let decl = &graph.weights[embed.weight.0 as usize];
            let format = decl.ty.row();
            let (need, found) = (decl.n_out * (decl.n_in / format.block_elems * format.block_bytes), source.tensor(&decl.tensor).len());
            if plan.whole(&graph, embed.weight).is_none() && found < need {
                return wrong(format!("{need} bytes of {} as it is", decl.tensor), format!("{found} bytes"));
            }
        }
        Ok(Model { graph, source, plan, pack, isa, n_threads, care })
    }

    fn pack_ptr(&self) -> *const u8 {
        self.pack.bytes().as_ptr()
    }

    fn vector(&self, w: WeightId) -> &[f32] {
        let (offset, len) = self.plan.vectors.get(&w).copied().unwrap_or_default();
        // SAFETY: the plan laid the vector out inside the pack, aligned; its length was checked in `new`, and any bytes are
        // floats.
        unsafe { std::slice::from_raw_parts(self.pack_ptr().add(offset).cast(), len) }
    }
}

/// One part of a product, ready to run.
#[derive(Debug, Clone, Copy)]
struct Product {
    packed: Packed,
    /// For few rows, and for many.
    kernels: [matmul::Kernel; 2],
    bias: Option<(WeightId, usize)>,
}

impl Product {
    fn kernel(&self, n_rows: usize) -> &matmul::Kernel {
        &self.kernels[usize::from(n_rows >= self.kernels[1].min_rows)]
    }
}

/// Sizes of the scratch that an instance needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// Bytes that each thread owns.
    per_thread: usize,
    /// Bytes for the blocks of split attention.
    blocks: usize,
}

impl Scratch {
    pub(crate) fn new(graph: &VerifiedGraph, nodes: Range<usize>, steps: &[StepShape], n_ctx: usize, isa: Isa) -> Scratch {
        let products = 2 * PRODUCT_ROWS * TILE * 4;
        let mut scratch = Scratch { per_thread: align_up(products), blocks: 0 };
        let split_rows = steps.iter().map(|s| s.max_rows.min(SPLIT_ROWS)).max().unwrap_or(0);
        let max_rows = steps.iter().map(|s| s.max_rows).max().unwrap_or(0);
        for node in &graph.nodes[nodes] {
            if let Op::MatMul(m) = &node.op {
                let sizes = m.parts.iter().filter_map(|part| {
                    let decl = &graph.weights[part.rows.weight.0 as usize];
                    Some((matmul::select(pack_row(decl.ty)?.layout, isa, max_rows).scratch)(decl.n_in))
                });
                // A gate and what it gates take turns.
                let kernels = if let Epilogue::Glu(_) = m.epilogue { sizes.sum() } else { sizes.max().unwrap_or(0) };
                scratch.per_thread = scratch.per_thread.max(align_up(products + kernels));
            }
            if let Op::Attention(a) = &node.op {
                let KvLayer { n_head_kv, d_k, d_v, .. } = graph.kv_layers[a.layer];
                let group = a.n_head / n_head_kv;
                let state = align_up((d_v + 2) * 4);
                let floats = align_up((d_k + d_v) * PAGE * 4);
                scratch.per_thread = scratch.per_thread.max(attention_rows(group) * group * state + floats);
                scratch.blocks = scratch.blocks.max(split_rows * a.n_head * (n_ctx.div_ceil(PAGE) + 1) * state);
            }
        }
        scratch
    }

    pub(crate) fn n_bytes(&self, n_threads: usize) -> usize {
        self.per_thread * n_threads + self.blocks
    }
}

/// A pointer that tasks of one job share; each writes places of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared(pub(crate) *mut u8);

// SAFETY: tasks write disjoint rows or tiles of what it points to, as each use says.
unsafe impl Send for Shared {}
// SAFETY: likewise.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// `offset` lies inside what the pointer covers.
    pub(crate) unsafe fn at(self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }

    /// Start of row `row` of a float value of `cols` columns at `offset`.
    fn f32(self, offset: usize, row: usize, cols: usize) -> *mut f32 {
        // SAFETY: placements keep every value inside the arena.
        unsafe { self.0.add(offset).cast::<f32>().add(row * cols) }
    }
}

/// Rows of one sequence at consecutive places of a step.
#[derive(Debug, Clone, Copy)]
struct RowRun {
    first: usize,
    n: usize,
    seq: SeqId,
}

/// The instance.
#[derive(Debug)]
pub(crate) struct CpuInstance {
    model: Arc<Model>,
    placements: Vec<Placement>,
    pool: Pool,
    elements: Elements,
    attention: AttentionKernels,
    /// Products by node, of all plans alike.
    products: Vec<Vec<Product>>,
    scratch: Region,
    scratch_sizes: Scratch,
    runs: Vec<RowRun>,
}

impl CpuInstance {
    pub(crate) fn new(model: Arc<Model>, placements: &[Placement], cache: CacheShape) -> Result<CpuInstance, BackendError> {
        let graph = &model.graph;
        let pool = Pool::new(model.n_threads, &model.care)?;
        let steps: Vec<StepShape> = placements.iter().map(|p| p.shape).collect();
        let scratch_sizes = Scratch::new(graph, 0..graph.nodes.len(), &steps, cache.n_ctx, model.isa);
        let scratch = Region::new(scratch_sizes.n_bytes(pool.n_threads()), false)?;
        let products = graph
            .nodes
            .iter()
            .map(|node| match &node.op {
                Op::MatMul(m) => m
                    .parts
                    .iter()
                    .filter_map(|part| {
                        let packed = *model.plan.mats.get(&key(part.rows))?;
                        let kernels = [1, usize::MAX].map(|n_rows| matmul::select(packed.layout, model.isa, n_rows));
                        Some(Product { packed, kernels, bias: part.bias.map(|b| (b, part.bias_first)) })
                    })
                    .collect(),
                _ => Vec::new(),
            })
            .collect();
        let max_rows = steps.iter().map(|s| s.max_rows).max().unwrap_or(0);
        Ok(CpuInstance {
            elements: element::select(model.isa),
            attention: attention::select(model.isa),
            placements: placements.to_vec(),
            pool,
            products,
            scratch,
            scratch_sizes,
            runs: Vec::with_capacity(max_rows),
            model,
        })
    }

    /// Runs `job` for all rows, at most [`ELEMENT_ROWS`] at once, on all threads where that pays; its answers are joined
    /// by "and".
    fn for_blocks(pool: &mut Pool, n_rows: usize, job: impl Fn(Range<usize>) -> bool + Sync) -> bool {
        let block = |task: usize| task * ELEMENT_ROWS..((task + 1) * ELEMENT_ROWS).min(n_rows);
        let n_tasks = n_rows.div_ceil(ELEMENT_ROWS);
        if n_tasks <= 2 {
            return (0..n_tasks).fold(true, |ok, task| job(block(task)) & ok);
        }
        let ok = AtomicBool::new(true);
        pool.run(n_tasks, &|task, _| {
            if !job(block(task)) {
                ok.store(false, Ordering::Relaxed);
            }
        });
        ok.into_inner()
    }

    /// The same, row by row.
    fn for_rows(pool: &mut Pool, n_rows: usize, job: impl Fn(usize) -> bool + Sync) -> bool {
        Self::for_blocks(pool, n_rows, |rows| rows.fold(true, |ok, row| job(row) & ok))
    }

    /// One node; false where a value isn't finite.
    fn node(&mut self, plan: usize, node_idx: usize, io: &mut StepIo<'_>) -> bool {
        let model = self.model.clone();
        let graph = &*model.graph;
        let node = &graph.nodes[node_idx];
        let placement = &self.placements[plan];
        let arena = Shared(io.arena.as_mut_ptr());
        let e = self.elements;
        let rows_of = |v: usize| {
            let shape = graph.shape(node.inputs.get(v).copied().unwrap_or(node.outputs[0]));
            if shape.rows == RowsDim::Step { io.rows.len() } else { io.wanted.len() }
        };
        let input = |i: usize| placement.offset(node.inputs[i]);
        let output = |i: usize| placement.offset(node.outputs[i]);
        let in_cols = |i: usize| graph.shape(node.inputs[i]).cols;
        match &node.op {
            Op::Embed(embed) => {
                let decl = &graph.weights[embed.weight.0 as usize];
                let (format, d_model) = (decl.ty.row(), decl.n_in);
                let row_bytes = d_model / format.block_elems * format.block_bytes;
                // Rows of a table that is packed as a matrix too come from there: the file may hold it in no other form.
                let packed = model.plan.whole(graph, embed.weight);
                let table = if packed.is_some() { &[] } else { model.source.tensor(&decl.tensor) };
                let (out, rows) = (output(0), io.rows);
                Self::for_rows(&mut self.pool, rows.len(), |row| {
                    let Input::Token(token) = rows[row].input else { return true };
                    // SAFETY: each task writes rows of its own.
                    let x = unsafe { std::slice::from_raw_parts_mut(arena.f32(out, row, d_model), d_model) };
                    if let Some(packed) = packed {
                        let at = packed.offset + token.0 as usize / TILE * packed.tile_bytes();
                        unpack_row(&model.pack.bytes()[at..][..packed.tile_bytes()], packed.layout, token.0 as usize % TILE, x);
                    } else if let Some(decode) = format.decode {
                        decode(&table[token.0 as usize * row_bytes..][..row_bytes], x);
                    }
                    if embed.scale != 1.0 {
                        // SAFETY: in place over d_model floats.
                        unsafe { (e.scale)(x.as_ptr(), embed.scale, x.as_mut_ptr(), d_model) };
                    }
                    true
                })
            }
            Op::RmsNorm(norm) => {
                let (n_rows, cols, w) = (rows_of(0), in_cols(0), model.vector(norm.weight));
                let (x, out) = (input(0), output(0));
                let residual = norm.residual.then(|| input(1));
                let act = Act8Layout::new(n_rows, cols);
                match norm.out {
                    Elem::F32 => Self::for_rows(&mut self.pool, n_rows, |row| {
                        let residual = residual.map_or(std::ptr::null(), |r| arena.f32(r, row, cols).cast_const());
                        // SAFETY: the placement gives these rows to the node's values; each task takes rows of its own.
                        unsafe { (e.rms_norm_row)(arena.f32(x, row, cols), cols, w, norm.eps, residual, arena.f32(out, row, cols)) }
                    }),
                    Elem::Act8 => Self::for_blocks(&mut self.pool, n_rows, |rows| {
                        // SAFETY: likewise.
                        unsafe { (e.rms_norm_quantize_rows)(arena.f32(x, 0, cols), w, norm.eps, arena.at(out), &act, rows) }
                    }),
                }
            }
            Op::Quantize(_) => {
                let (n_rows, cols, x, out) = (rows_of(0), in_cols(0), input(0), output(0));
                let act = Act8Layout::new(n_rows, cols);
                Self::for_blocks(&mut self.pool, n_rows, |rows| {
                    // SAFETY: as for the norm.
                    unsafe { (e.quantize_rows)(arena.f32(x, 0, cols), arena.at(out), &act, rows, cols) }
                })
            }
            Op::MatMul(m) => {
                self.matmul(m, node, node_idx, plan, rows_of(0), arena);
                true
            }
            Op::RopeTable(table) => {
                let (n, out, rows) = (table.inv_freq.len(), output(0), io.rows);
                Self::for_rows(&mut self.pool, rows.len(), |row| {
                    // SAFETY: each task writes rows of its own.
                    let t = unsafe { std::slice::from_raw_parts_mut(arena.f32(out, row, 2 * n), 2 * n) };
                    for i in 0..n {
                        (t[i], t[n + i]) = table.eval(rows[row].pos[0], i);
                    }
                    true
                })
            }
            Op::Rope(rope) => {
                let (cols, x, table, out) = (in_cols(0), input(0), input(1), output(0));
                Self::for_rows(&mut self.pool, rows_of(0), |row| {
                    // SAFETY: each task takes rows of its own; the output is the input's place or another.
                    unsafe {
                        let (src, dst) = (arena.f32(x, row, cols), arena.f32(out, row, cols));
                        if src != dst {
                            std::ptr::copy_nonoverlapping(src, dst, cols);
                        }
                        let t = std::slice::from_raw_parts(arena.f32(table, row, rope.n_rot), rope.n_rot);
                        (e.rope_row)(std::slice::from_raw_parts_mut(dst, cols), t, rope);
                    }
                    true
                })
            }
            Op::KvStore(store) => {
                let (rows, kv) = (io.rows, io.kv);
                let layout = kv.layout(store.layer);
                let (d_k, d_v) = (layout.d_k, layout.d_v);
                let (k, v) = (input(0), input(1));
                let rope = store.rope.map(|rope| (rope, input(2)));
                Self::for_rows(&mut self.pool, rows.len(), |row| {
                    let pos = rows[row].pos[0] as usize;
                    let Some(base) = kv.block(store.layer, rows[row].seq, pos / PAGE) else { return true };
                    // SAFETY: each task takes rows, hence positions, of its own; the keys die here and may be turned in place.
                    unsafe {
                        let k = std::slice::from_raw_parts_mut(arena.f32(k, row, layout.n_head_kv * d_k), layout.n_head_kv * d_k);
                        let v = std::slice::from_raw_parts(arena.f32(v, row, layout.n_head_kv * d_v), layout.n_head_kv * d_v);
                        if let Some((rope, table)) = &rope {
                            let t = std::slice::from_raw_parts(arena.f32(*table, row, rope.n_rot), rope.n_rot);
                            (e.rope_row)(k, t, rope);
                        }
                        (e.kv_store)(base, &layout, pos % PAGE, k, v);
                    }
                    true
                })
            }
            Op::Attention(a) => {
                self.attention(a, input(0), output(0), io, arena);
                true
            }
            Op::Glu(glu) => {
                let (cols, gate, up, out) = (in_cols(0), input(0), input(1), output(0));
                Self::for_rows(&mut self.pool, rows_of(0), |row| {
                    // SAFETY: each task takes rows of its own; the output is the gate's place or another.
                    unsafe { (e.glu)(glu.act, arena.f32(gate, row, cols), arena.f32(up, row, cols), arena.f32(out, row, cols), cols) };
                    true
                })
            }
            Op::Add(add) => {
                let (cols, a, b, out) = (in_cols(0), input(0), input(1), output(0));
                Self::for_rows(&mut self.pool, rows_of(0), |row| {
                    // SAFETY: as for the gate.
                    unsafe { (e.add)(arena.f32(a, row, cols), arena.f32(b, row, cols), add.scale, arena.f32(out, row, cols), cols) };
                    true
                })
            }
            Op::Scale(scale) => {
                let (cols, x, out) = (in_cols(0), input(0), output(0));
                Self::for_rows(&mut self.pool, rows_of(0), |row| {
                    // SAFETY: as for the gate.
                    unsafe { (e.scale)(arena.f32(x, row, cols), scale.factor, arena.f32(out, row, cols), cols) };
                    true
                })
            }
            Op::SoftCap(cap) => {
                let (cols, x, out) = (in_cols(0), input(0), output(0));
                Self::for_rows(&mut self.pool, rows_of(0), |row| {
                    // SAFETY: as for the gate.
                    unsafe { (e.soft_cap)(arena.f32(x, row, cols), cap.cap, arena.f32(out, row, cols), cols) };
                    true
                })
            }
            Op::Select(_) => {
                let (cols, x, out) = (in_cols(0), input(0), output(0));
                for (i, &row) in io.wanted.iter().enumerate() {
                    // SAFETY: wanted rows are rows of the step; the output has a place of its own.
                    unsafe { std::ptr::copy_nonoverlapping(arena.f32(x, row as usize, cols), arena.f32(out, i, cols), cols) };
                }
                true
            }
            // `supports` refuses what is not listed here.
            _ => true,
        }
    }

    /// All tiles of all parts, shared out by tile.
    fn matmul(&mut self, m: &MatMul, node: &Node, node_idx: usize, plan: usize, n_rows: usize, arena: Shared) {
        let model = self.model.clone();
        let graph = &*model.graph;
        let placement = &self.placements[plan];
        let products = &self.products[node_idx];
        let k = graph.shape(node.inputs[0]).cols;
        let x = placement.offset(node.inputs[0]);
        let act = Act8Layout::new(n_rows, k);
        let e = self.elements;
        let scratch = Shared(self.scratch.as_ptr());
        let per_thread = self.scratch_sizes.per_thread;
        let pack = Shared(model.pack_ptr().cast_mut());
        // SAFETY: `x` is the placed input of n_rows rows, in the layout that the graph says; row + n stays inside.
        let args = |w: *const u8, row: usize, n: usize, out: *mut f32, scratch: *mut u8| unsafe {
            TileArgs::new(w, k, arena.at(x), &act, row..row + n, out, scratch)
        };
        let run = |product: &Product, tile: usize, row: usize, n: usize, out: *mut f32, kernel_scratch: *mut u8, unpacked: bool| {
            // SAFETY: tile < n_tiles; the packed matrix lies inside the pack.
            let w = unsafe { pack.at(product.packed.offset + tile * product.packed.tile_bytes()) };
            // SAFETY: the operands are those that `TileArgs` asks for; `isa` was available when the model was loaded.
            unsafe { (product.kernel(n).run)(&TileArgs { unpacked, ..args(w, row, n, out, kernel_scratch) }, product.packed.layout) };
            if let Some((bias, first)) = product.bias {
                let width = TILE.min(product.packed.n_out - tile * TILE);
                let bias = &model.vector(bias)[first + tile * TILE..][..width];
                for r in 0..n {
                    // SAFETY: `out` holds n rows of 16.
                    unsafe { (e.add)(out.add(r * TILE), bias.as_ptr(), 1.0, out.add(r * TILE), width) };
                }
            }
        };
        let n_tiles = |p: &Product| p.packed.n_tiles();
        let glu = if let Epilogue::Glu(act) = m.epilogue { Some(act) } else { None };
        let total: usize = if glu.is_some() { n_tiles(&products[0]) } else { products.iter().map(n_tiles).sum() };
        let block = cached_rows(k);
        for first in (0..n_rows).step_by(block) {
            let last = (first + block).min(n_rows);
            self.pool.run(total, &|task, thread| {
                // SAFETY: each thread has scratch of its own, large enough for two results of PRODUCT_ROWS and its kernels'.
                let (out, second, rest) = unsafe {
                    let out = scratch.at(thread * per_thread).cast::<f32>();
                    (out, out.add(PRODUCT_ROWS * TILE), out.add(2 * PRODUCT_ROWS * TILE).cast::<u8>())
                };
                let (mut part, mut tile) = (0, task);
                while glu.is_none() && tile >= n_tiles(&products[part]) {
                    tile -= n_tiles(&products[part]);
                    part += 1;
                }
                let n_out = products[part].packed.n_out;
                let width = TILE.min(n_out - tile * TILE);
                for row in (first..last).step_by(PRODUCT_ROWS) {
                    let n = PRODUCT_ROWS.min(last - row);
                    run(&products[part], tile, row, n, out, rest, row > first);
                    if let Some(act) = glu {
                        // SAFETY: the gate's kernel has so much of the scratch, a multiple of a cache line; the rest is the other's.
                        let rest = unsafe { rest.add((products[0].kernel(n).scratch)(k)) };
                        run(&products[1], tile, row, n, second, rest, row > first);
                        // SAFETY: both hold n rows of 16.
                        unsafe { (e.glu)(act, out, second, out, n * TILE) };
                    }
                    let at = |v: ValueId| arena.f32(placement.offset(v), row, n_out).wrapping_add(tile * TILE);
                    // SAFETY: this task alone writes columns tile * 16 .. + width of these rows; the residual is the output's own
                    // place or another that nobody writes now.
                    unsafe {
                        match m.epilogue {
                            Epilogue::Residual { scale } => {
                                (e.add_tile)(at(node.inputs[1]), out, scale, at(node.outputs[0]), n, n_out, width);
                            }
                            Epilogue::None => (e.copy_tile)(out, at(node.outputs[part]), n, n_out, width),
                            Epilogue::Glu(_) => (e.copy_tile)(out, at(node.outputs[0]), n, n_out, width),
                        }
                    }
                }
            });
        }
    }

    /// Attention of all rows: by runs of rows and key heads; by blocks too where rows are few.
    fn attention(&mut self, a: &Attention, q: usize, out: usize, io: &StepIo<'_>, arena: Shared) {
        let (rows, kv) = (io.rows, io.kv);
        let layout = kv.layout(a.layer);
        let (d_k, d_v) = (layout.d_k, layout.d_v);
        let group = a.n_head / layout.n_head_kv;
        let state_len = align_up((d_v + 2) * 4) / 4;
        let kernels = self.attention;
        let scratch = Shared(self.scratch.as_ptr());
        let per_thread = self.scratch_sizes.per_thread;
        let pos = |row: usize| rows[row].pos[0] as usize;
        // The positions of a block that a row sees.
        let seen = |row: usize, block: usize| -> Option<Range<usize>> {
            let (first, last) = (a.mask.first(pos(row)).max(block * PAGE), pos(row).min(block * PAGE + PAGE - 1));
            (first <= last).then(|| first - block * PAGE..last + 1 - block * PAGE)
        };
        let query = |row: usize, head: usize, seen: &Range<usize>, out: *mut f32, merge: bool| Query {
            // SAFETY: the head lies inside the row.
            q: unsafe { arena.f32(q, row, a.n_head * d_k).add(head * d_k) },
            lo: seen.start,
            hi: seen.end,
            out,
            merge,
        };
        let block_args = |head: usize, page: *mut u8, next: *const u8| BlockArgs {
            page,
            layout,
            head,
            scale: a.scale,
            soft_cap: a.soft_cap.unwrap_or(0.0),
            next,
        };
        let blocks = |row: usize| a.mask.first(pos(row)) / PAGE..pos(row) / PAGE + 1;
        let finish = |row: usize, head: usize, state: *const f32| {
            // SAFETY: the state is finished; the head's columns of the row are this task's own.
            unsafe { (kernels.finish)(state, d_v, arena.f32(out, row, a.n_head * d_v).add(head * d_v)) };
        };
        if rows.len() <= SPLIT_ROWS {
            // SAFETY: the blocks' scratch follows the threads'.
            let results = Shared(unsafe { scratch.at(per_thread * self.pool.n_threads()) });
            let n_blocks = rows.iter().enumerate().map(|(row, _)| blocks(row).len()).max().unwrap_or(0);
            // Tasks enough for threads of unequal speed, of several blocks where there are many.
            let n_heads = rows.len() * layout.n_head_kv;
            let per_task = (n_blocks * n_heads / (4 * self.pool.n_threads())).clamp(1, SPLIT_BLOCKS);
            let chunks = n_blocks.div_ceil(per_task);
            let result = |row: usize, head: usize, i: usize| {
                let idx = (row * a.n_head + head) * n_blocks + i;
                // SAFETY: sized for SPLIT_ROWS rows, all heads and all blocks of the context.
                unsafe { results.at(idx * state_len * 4).cast::<f32>() }
            };
            self.pool.run(rows.len() * layout.n_head_kv * chunks, &|task, _| {
                let (row, head_kv, chunk) = (task / chunks / layout.n_head_kv, task / chunks % layout.n_head_kv, task % chunks);
                let range = blocks(row);
                for i in chunk * per_task..((chunk + 1) * per_task).min(range.len()) {
                    let block = range.start + i;
                    let Some(page) = kv.block(a.layer, rows[row].seq, block) else { continue };
                    // The next block is mostly this thread's, in this task or the one after; any address may be fetched.
                    let next = kv.block(a.layer, rows[row].seq, block + 1).unwrap_or(page);
                    let Some(seen) = seen(row, block) else { continue };
                    let args = block_args(head_kv, page, next);
                    let mut pass = Pass::new(&kernels, &args);
                    for head in head_kv * group..(head_kv + 1) * group {
                        pass.add(query(row, head, &seen, result(row, head, i), false));
                    }
                    pass.run();
                }
            });
            let merge = |task: usize| {
                let (row, head) = (task / a.n_head, task % a.n_head);
                for i in 1..blocks(row).len() {
                    // SAFETY: two results of d_v + 2 floats.
                    unsafe { (kernels.merge)(result(row, head, 0), result(row, head, i), d_v) };
                }
                finish(row, head, result(row, head, 0));
            };
            let n_merges = rows.len() * a.n_head;
            if n_merges * n_blocks > ALONE {
                self.pool.run(n_merges, &|task, _| merge(task));
            } else {
                (0..n_merges).for_each(merge);
            }
            return;
        }
        // Tasks enough for threads of unequal speed.
        let most = attention_rows(group);
        let per_task = (rows.len() * layout.n_head_kv / (8 * self.pool.n_threads())).clamp(ATTENTION_ROWS[0], most);
        self.runs.clear();
        for (i, row) in rows.iter().enumerate() {
            match self.runs.last_mut() {
                Some(run) if run.seq == row.seq && run.n < per_task => run.n += 1,
                _ => self.runs.push(RowRun { first: i, n: 1, seq: row.seq }),
            }
        }
        let runs = &self.runs;
        // Later rows see more: they go first, so that no thread is left with a long task at the end.
        self.pool.run(runs.len() * layout.n_head_kv, &|task, thread| {
            let run = runs[runs.len() - 1 - task / layout.n_head_kv];
            let head_kv = task % layout.n_head_kv;
            // SAFETY: each thread has scratch of its own: a state per query, then the floats of a head's keys and values.
            let mine = unsafe { scratch.at(thread * per_thread).cast::<f32>() };
            // SAFETY: likewise.
            let state = |row: usize, i: usize| unsafe { mine.add(((row - run.first) * group + i) * state_len) };
            // SAFETY: likewise.
            let floats = unsafe { mine.add(most * group * state_len) };
            let in_run = run.first..run.first + run.n;
            let first = in_run.clone().map(|row| blocks(row).start).min().unwrap_or(0);
            let last = in_run.clone().map(|row| blocks(row).end).max().unwrap_or(0);
            for block in first..last {
                let Some(page) = kv.block(a.layer, run.seq, block) else { continue };
                let mut args = block_args(head_kv, page, std::ptr::null());
                // Two passes convert as fast as they would read what was converted.
                if run.n * group > 2 * MAX_QUERIES {
                    let seen = || in_run.clone().filter_map(|row| seen(row, block));
                    let all = seen().map(|s| s.start).min().unwrap_or(0)..seen().map(|s| s.end).max().unwrap_or(0);
                    // SAFETY: as for a pass; the scratch has room for the floats.
                    args = unsafe { (kernels.widen)(&args, all, floats) };
                }
                let mut pass = Pass::new(&kernels, &args);
                for row in in_run.clone() {
                    let Some(seen) = seen(row, block) else { continue };
                    let merge = blocks(row).start != block;
                    for i in 0..group {
                        pass.add(query(row, head_kv * group + i, &seen, state(row, i), merge));
                    }
                }
                pass.run();
            }
            for row in in_run {
                for i in 0..group {
                    finish(row, head_kv * group + i, state(row, i));
                }
            }
        });
    }

    /// Shows the float outputs of a node to the tap.
    fn show(&self, plan: usize, node: &Node, io: &mut StepIo<'_>) {
        let graph = &*self.model.graph;
        let Some(tap) = &mut io.tap else { return };
        for &v in &node.outputs {
            let shape = graph.shape(v);
            if shape.elem == Elem::F32 {
                let n_rows = if shape.rows == RowsDim::Step { io.rows.len() } else { io.wanted.len() };
                tap(v, selvedge_core::backend::f32_value(graph, &self.placements[plan], io.arena, v, n_rows));
            }
        }
    }
}

/// Queries that share a pass over a block, collected until it is full.
struct Pass<'a> {
    kernels: &'a AttentionKernels,
    args: &'a BlockArgs,
    queries: [Query; MAX_QUERIES],
    n: usize,
}

impl<'a> Pass<'a> {
    fn new(kernels: &'a AttentionKernels, args: &'a BlockArgs) -> Pass<'a> {
        let none = Query { q: std::ptr::null(), lo: 0, hi: 0, out: std::ptr::null_mut(), merge: false };
        Pass { kernels, args, queries: [none; MAX_QUERIES], n: 0 }
    }

    fn add(&mut self, query: Query) {
        self.queries[self.n] = query;
        self.n += 1;
        if self.n == MAX_QUERIES {
            self.run();
        }
    }

    fn run(&mut self) {
        // SAFETY: queries point at the step's values, `args` at a page of the layer or its floats, and `isa` was available at
        // load.
        unsafe { (self.kernels.block)(self.args, &self.queries[..self.n]) };
        self.n = 0;
    }
}

impl Instance for CpuInstance {
    fn run(&mut self, plan: usize, nodes: Range<usize>, io: &mut StepIo<'_>) -> Result<(), BackendError> {
        let _env = FloatEnv::default_here();
        debug_assert!(io.arena.len() >= self.placements[plan].n_bytes);
        let model = self.model.clone();
        for i in nodes {
            if io.cancel.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
            let node = &model.graph.nodes[i];
            if !self.node(plan, i, io) {
                return Err(BackendError::NonFinite { node: model.graph.node_name(node), layer: node.layer });
            }
            if io.tap.is_some() {
                self.show(plan, node, io);
            }
        }
        Ok(())
    }
}
