//! The packed form of weights: the one layout that every instruction set reads.
//!
//! A matrix is cut into tiles of [`TILE`] output rows, which lie in the lanes of a vector. A tile runs over the columns in
//! steps of 32:
//!
//! ```text
//! tile of an integer weight = [super] step step step ...          `super` comes before every eighth step, where there is one
//! super                     = d f16[16] (dmin f16[16])            scales of 256 columns
//! step                      = q  (scales)
//! q, nibble                 = 4 x 64 bytes: byte (j, r, i) holds column 4j + i of row r low, column 16 + 4j + i high
//! q, 5 bits                 = nibbles, then 64 bytes: bit j of byte (r, i) is the highest of column 4j + i of row r
//! q, 6 bits                 = nibbles, then 2 x 64 bytes: bits 2m and 2m + 1 of byte (p, r, i) are those of column 4(4p + m) + i
//! q, byte                   = 8 x 64 bytes: byte (j, r, i) holds column 4j + i of row r
//! scales, F16               = d f16[16] (m f16[16])               w = d, added minimum m
//! scales, Super             = per group: sc i8[16], then per group: (mn u8[16])   w = d * sc, subtracted minimum dmin * mn
//! scales, F32               = per group: w f32[16], then per group: (min f32[16])
//!
//! tile of a float weight    = column by column, 16 rows each, in the file's own type
//! ```
//! Four columns of sixteen rows in 64 bytes are what `maddubs`, `vpdpbusd`, `sdot` and an AMX tile want alike. Rows beyond
//! the last are zero. Scales stay as the file has them: their products are taken by the kernels, each rounded once in
//! f32, in the order of DESIGN 3.1.
//!
//! To add a storage type: a row in [`ROWS`] that names its layout and a reader of one block.

mod blocks;
mod unpack;

pub(crate) use unpack::unpack_row;

use selvedge_core::backend::BackendError;
use selvedge_core::ops::{WeightDecl, WeightRows};
use selvedge_gguf::TensorType;

/// Output rows in a tile.
pub(crate) const TILE: usize = 16;
/// Columns in a step.
pub(crate) const STEP: usize = 32;
/// Columns that share a super scale.
pub(crate) const SUPER: usize = 256;

/// How the integers of a weight are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Quant {
    /// 4 bits, value `q - offset`.
    Nibble {
        /// Subtracted from every integer.
        offset: i8,
    },
    /// 4 bits, an index into the table of IQ4.
    NibbleIq4,
    /// 5 bits, value `q - offset`.
    Five {
        /// Subtracted from every integer.
        offset: i8,
    },
    /// 6 bits, value `q - offset`.
    Six {
        /// Subtracted from every integer.
        offset: i8,
    },
    /// Signed bytes, -128 included.
    Signed,
}

/// How the scales of a weight are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scales {
    /// One f16 per 32 columns, and an added minimum.
    F16 {
        /// Whether there is a minimum.
        min: bool,
    },
    /// An f16 per 256 columns times an 8-bit integer per group, and a subtracted minimum of the same kind.
    Super {
        /// Columns in a group: 32 or 16.
        group: usize,
        /// Whether there is a minimum.
        min: bool,
    },
    /// One f32 per group, and a subtracted minimum.
    F32 {
        /// Columns in a group: 32 or 16.
        group: usize,
        /// Whether there is a minimum.
        min: bool,
    },
}

/// Layout of a packed weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// Integers with scales, multiplied with 8-bit activations.
    Int {
        /// Integers.
        quant: Quant,
        /// Scales.
        scales: Scales,
    },
    /// 32-bit floats, multiplied with float activations; like the next two.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
}

impl Quant {
    /// Bytes of the integers of a step.
    pub(crate) const fn step_bytes(self) -> usize {
        match self {
            Quant::Nibble { .. } | Quant::NibbleIq4 => STEP * TILE / 2,
            Quant::Five { .. } => STEP * TILE / 8 * 5,
            Quant::Six { .. } => STEP * TILE / 8 * 6,
            Quant::Signed => STEP * TILE,
        }
    }
}

impl Scales {
    /// Groups in a step.
    pub(crate) const fn groups(self) -> usize {
        match self {
            Scales::F16 { .. } => 1,
            Scales::Super { group, .. } | Scales::F32 { group, .. } => STEP / group,
        }
    }

    /// Whether there is a minimum.
    pub(crate) const fn has_min(self) -> bool {
        match self {
            Scales::F16 { min } | Scales::Super { min, .. } | Scales::F32 { min, .. } => min,
        }
    }

    /// Bytes of the scales of a step.
    pub(crate) const fn step_bytes(self) -> usize {
        let width = match self {
            Scales::F16 { .. } => 2,
            Scales::Super { .. } => 1,
            Scales::F32 { .. } => 4,
        };
        self.groups() * TILE * width * (1 + self.has_min() as usize)
    }

    /// Bytes before every eighth step.
    pub(crate) const fn super_bytes(self) -> usize {
        match self {
            Scales::Super { min, .. } => TILE * 2 * (1 + min as usize),
            _ => 0,
        }
    }
}

impl Layout {
    /// Bytes of a tile of `k` columns.
    pub(crate) const fn tile_bytes(self, k: usize) -> usize {
        match self {
            Layout::Int { quant, scales } => {
                k / STEP * (quant.step_bytes() + scales.step_bytes()) + k.div_ceil(SUPER) * scales.super_bytes()
            }
            Layout::F32 => k * TILE * 4,
            Layout::F16 | Layout::Bf16 => k * TILE * 2,
        }
    }

    /// Whether products take 8-bit activations.
    pub(crate) const fn act8(self) -> bool {
        matches!(self, Layout::Int { .. })
    }
}

/// How a storage type is packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackRow {
    /// Type in the file.
    pub(crate) ty: TensorType,
    /// Layout in memory.
    pub(crate) layout: Layout,
    /// Reads one block of the file.
    read: blocks::ReadBlock,
}

macro_rules! rows {
    ($($ty:ident: $quant:expr, $scales:expr, $read:ident;)*) => {
        &[$(PackRow { ty: TensorType::$ty, layout: Layout::Int { quant: $quant, scales: $scales }, read: blocks::$read },)*]
    };
}

/// Types with a layout of their own. All others go through their int8 lattice, or f32 where they have none.
const ROWS: &[PackRow] = rows! {
    Q4_0: Quant::Nibble { offset: 8 }, Scales::F16 { min: false }, q4_0;
    Q4_1: Quant::Nibble { offset: 0 }, Scales::F16 { min: true }, q4_1;
    Q5_0: Quant::Five { offset: 16 }, Scales::F16 { min: false }, q5_0;
    Q5_1: Quant::Five { offset: 0 }, Scales::F16 { min: true }, q5_1;
    Q8_0: Quant::Signed, Scales::F16 { min: false }, q8_0;
    Q2_K: Quant::Nibble { offset: 0 }, Scales::Super { group: 16, min: true }, q2_k;
    Q3_K: Quant::Nibble { offset: 4 }, Scales::Super { group: 16, min: false }, q3_k;
    Q4_K: Quant::Nibble { offset: 0 }, Scales::Super { group: 32, min: true }, q4_k;
    Q5_K: Quant::Five { offset: 0 }, Scales::Super { group: 32, min: true }, q5_k;
    Q6_K: Quant::Six { offset: 32 }, Scales::Super { group: 16, min: false }, q6_k;
    IQ4_NL: Quant::NibbleIq4, Scales::F16 { min: false }, iq4_nl;
    IQ4_XS: Quant::NibbleIq4, Scales::Super { group: 32, min: false }, iq4_xs;
};

/// The packing of a storage type; `None` where nothing decodes it.
pub(crate) fn pack_row(ty: TensorType) -> Option<PackRow> {
    if let Some(row) = ROWS.iter().find(|row| row.ty == ty) {
        return Some(*row);
    }
    let format = ty.row();
    let layout = match (ty, format.lattice, format.decode) {
        (TensorType::F16, ..) => Layout::F16,
        (TensorType::BF16, ..) => Layout::Bf16,
        (_, Some(l), _) => Layout::Int { quant: Quant::Signed, scales: Scales::F32 { group: l.group, min: l.has_min } },
        (_, None, Some(_)) => Layout::F32,
        (_, None, None) => return None,
    };
    Some(PackRow { ty, layout, read: blocks::lattice })
}

/// A packed matrix: where it lies and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Offset in the pack, bytes.
    pub(crate) offset: usize,
    /// Output rows.
    pub(crate) n_out: usize,
    /// Columns.
    pub(crate) k: usize,
    /// Layout of a tile.
    pub(crate) layout: Layout,
}

impl Packed {
    /// Tiles.
    pub(crate) fn n_tiles(&self) -> usize {
        self.n_out.div_ceil(TILE)
    }

    /// Bytes of a tile, a multiple of 16.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.layout.tile_bytes(self.k)
    }

    /// Bytes of all tiles.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_tiles() * self.tile_bytes()
    }
}

/// Packs one tile. `tensor`: all bytes of the weight; `tile`: index within `rows`; `dst`: the tile's bytes, zeroed.
/// Fails on a scale or float that is infinite or not a number.
pub(crate) fn pack_tile(
    row: &PackRow,
    decl: &WeightDecl,
    rows: WeightRows,
    tensor: &[u8],
    tile: usize,
    dst: &mut [u8],
) -> Result<(), BackendError> {
    let format = row.ty.row();
    let (k, block_elems) = (decl.n_in, format.block_elems);
    let row_bytes = k / block_elems * format.block_bytes;
    let n = (rows.n - tile * TILE).min(TILE);
    let src = |r: usize| &tensor[(rows.first + tile * TILE + r) * row_bytes..][..row_bytes];
    let finite = match row.layout {
        Layout::Int { quant, scales } => {
            let mut finite = true;
            let mut block = blocks::Block::default();
            for b in 0..k / block_elems {
                for r in 0..n {
                    let bytes = &src(r)[b * format.block_bytes..][..format.block_bytes];
                    (row.read)(row.ty, bytes, &mut block);
                    finite &= block.finite(scales);
                    blocks::scatter(&block, quant, scales, b * block_elems, block_elems, r, dst);
                }
            }
            finite
        }
        Layout::F32 => {
            let mut values = vec![0.0_f32; k];
            let mut finite = true;
            for r in 0..n {
                if let Some(decode) = format.decode {
                    decode(src(r), &mut values);
                }
                finite &= selvedge_core::math::all_finite(&values);
                for (c, x) in values.iter().enumerate() {
                    dst[(c * TILE + r) * 4..][..4].copy_from_slice(&x.to_le_bytes());
                }
            }
            finite
        }
        Layout::F16 | Layout::Bf16 => {
            let exponent = if row.layout == Layout::F16 { 0x7c00 } else { 0x7f80 };
            let mut finite = true;
            for r in 0..n {
                for (c, x) in src(r).chunks_exact(2).enumerate() {
                    finite &= u16::from_le_bytes([x[0], x[1]]) & exponent != exponent;
                    dst[(c * TILE + r) * 2..][..2].copy_from_slice(x);
                }
            }
            finite
        }
    };
    if finite { Ok(()) } else { Err(BackendError::DamagedTensor { tensor: decl.tensor.clone() }) }
}

#[cfg(test)]
pub(crate) mod random {
    //! Blocks for tests: random bits with scales that are numbers.

    use crate::random::Random;
    use selvedge_gguf::TensorType;

    /// Every type that packs.
    pub(crate) fn types() -> Vec<TensorType> {
        (0..64).filter_map(TensorType::from_id).filter(|&ty| super::pack_row(ty).is_some()).collect()
    }

    /// The bytes of a tensor.
    pub(crate) fn tensor(ty: TensorType, n_out: usize, k: usize, seed: u64) -> Vec<u8> {
        let mut random = Random(seed | 1);
        let format = ty.row();
        let mut bytes: Vec<u8> = (0..n_out * k / format.block_elems * format.block_bytes).map(|_| (random.next() >> 32) as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes) {
            // Exponents that stay clear of infinity, in whatever has one; signs and fractions as they fell.
            let mut tame = |at: usize, mask: u8| block[at] &= mask;
            match ty {
                TensorType::F64 => tame(7, 0xbf),
                TensorType::F32 | TensorType::BF16 => tame(format.block_bytes - 1, 0xbf),
                TensorType::F16 => tame(1, 0xbf),
                TensorType::MXFP4 => tame(0, 0x7f),
                TensorType::NVFP4 => (0..4).for_each(|i| tame(i, 0x3f)),
                _ => {
                    for field in format.fields.iter().filter(|f| f.width == 2) {
                        (0..field.count).for_each(|i| tame(field.offset + 2 * i + 1, 0xbf));
                    }
                }
            }
        }
        bytes
    }
}
