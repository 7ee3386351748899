//! Products by kernel, for the bench crate; no part of the API, and not built without the feature `bench`.

use crate::isa::Isa;
use crate::kernels::element::{ELEMENT_ROWS, scalar as element};
use crate::kernels::matmul::{Kernel, TileArgs, select};
use crate::pack::{Packed, TILE, pack_row, pack_tile};
use crate::random::Random;
use selvedge_core::ops::{Act8Layout, WeightDecl, WeightId, WeightRows};
use selvedge_core::os::Region;
use selvedge_gguf::TensorType;
use std::ops::Range;

/// Rows that a kernel gets at once, about as many as the backend hands out.
const ROWS: usize = 128;

/// A packed matrix of random numbers, and activations for it.
#[derive(Debug)]
pub struct Product {
    kernel: Kernel,
    packed: Packed,
    weights: Region,
    activations: Region,
    act: Act8Layout,
    n_rows: usize,
}

/// What a thread needs to compute tiles.
#[derive(Debug)]
pub struct Worker {
    scratch: Region,
    out: Vec<f32>,
}

impl Product {
    /// `n_out` by `k` weights stored as `ty`, for `n_rows` of activations and the kernel that `isa` takes for them. `None`
    /// where that kernel is one of a lesser instruction set, where the machine lacks `isa`, or where memory doesn't suffice.
    pub fn new(ty: TensorType, isa: Isa, n_out: usize, k: usize, n_rows: usize) -> Option<Product> {
        let row = pack_row(ty)?;
        let kernel = select(row.layout, isa, n_rows);
        if kernel.isa != isa || !isa.enable() {
            return None;
        }
        let packed = Packed { offset: 0, n_out, k, layout: row.layout };
        let weights = Region::new(packed.n_bytes(), true).ok()?;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        // One tile's numbers at the addresses of all: what is read and computed doesn't depend on their values.
        let mut tile = vec![0; packed.tile_bytes()];
        let decl = WeightDecl { tensor: "random".into(), ty, n_in: k, n_out: TILE };
        let rows = WeightRows { weight: WeightId(0), first: 0, n: TILE };
        pack_tile(&row, &decl, rows, &random.weights(ty, TILE * k), 0, &mut tile).ok()?;
        for i in 0..packed.n_tiles() {
            // SAFETY: the region has room for n_tiles tiles, and nobody else has it yet.
            unsafe { std::ptr::copy_nonoverlapping(tile.as_ptr(), weights.as_ptr().add(i * tile.len()), tile.len()) };
        }
        let x: Vec<f32> = (0..n_rows * k).map(|_| random.uniform()).collect();
        let act = Act8Layout::new(n_rows, k);
        let activations = Region::new(act.n_bytes.max(x.len() * 4), false).ok()?;
        // SAFETY: the region holds n_rows rows of k columns in either form.
        unsafe {
            if row.layout.act8() {
                for first in (0..n_rows).step_by(ELEMENT_ROWS) {
                    element::quantize_rows(x.as_ptr(), activations.as_ptr(), &act, first..(first + ELEMENT_ROWS).min(n_rows), k);
                }
            } else {
                std::ptr::copy_nonoverlapping(x.as_ptr(), activations.as_ptr().cast(), x.len());
            }
        }
        Some(Product { kernel, packed, weights, activations, act, n_rows })
    }

    /// Name of the kernel.
    pub fn kernel(&self) -> &'static str {
        self.kernel.name
    }

    /// Bytes of the packed weights.
    pub fn n_bytes(&self) -> usize {
        self.packed.n_bytes()
    }

    /// Tiles of 16 outputs.
    pub fn n_tiles(&self) -> usize {
        self.packed.n_tiles()
    }

    /// What one thread needs.
    pub fn worker(&self) -> Option<Worker> {
        Some(Worker { scratch: Region::new((self.kernel.scratch)(self.packed.k), false).ok()?, out: vec![0.0; ROWS * TILE] })
    }

    /// Computes some tiles for all rows of activations; the results stay in the worker.
    pub fn run(&self, tiles: Range<usize>, worker: &mut Worker) {
        assert!(tiles.end <= self.n_tiles() && worker.scratch.len() >= (self.kernel.scratch)(self.packed.k));
        for tile in tiles {
            for first in (0..self.n_rows).step_by(ROWS) {
                let rows = first..(first + ROWS).min(self.n_rows);
                let (out, scratch) = (worker.out.as_mut_ptr(), worker.scratch.as_ptr());
                // SAFETY: the tile was packed for this kernel; activations hold these rows, `out` takes ROWS of 16, the scratch
                // is as long as the kernel says, and `new` saw that the machine has its instruction set.
                unsafe {
                    let w = self.weights.as_ptr().add(tile * self.packed.tile_bytes());
                    let args = TileArgs::new(w, self.packed.k, self.activations.as_ptr(), &self.act, rows, out, scratch);
                    (self.kernel.run)(&TileArgs { unpacked: first > 0, ..args }, self.packed.layout);
                }
            }
        }
    }
}
