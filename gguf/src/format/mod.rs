//! Storage types of tensors: one row each in [`FORMATS`], one file per block format or family.
//!
//! To add one: write its file (layout drawn, sizes asserted, `ROW`), add the variant with its id to [`TensorType`] and
//! the row to [`FORMATS`]. The tests iterate the table and ask for fixtures of every row that decodes.
//!
//! Nearly all formats are defined by their *lattice*: small integers `q` and, per group of 16 or 32 elements, a scale and
//! for some a minimum, so that `value = q * scale - min`. The reference decode is that expression in `f32`, and the same
//! `unpack` feeds the packers of the backends: what runs fast and what defines the values share one reading of the bits.
//! All numbers in blocks are little endian here; [`swap_endian`] brings data of big-endian files into this order.

mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k_encode;
mod legacy_encode;
mod mxfp4;
mod nvfp4;
mod opaque;
mod plain;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq;

use crate::error::Error;
use std::fmt;

/// Elements in a block of the K family and of most IQ and TQ types.
pub(crate) const QK_K: usize = 256;

/// Declares [`TensorType`] with the ids of the file; the doc of a variant says what it stores.
macro_rules! tensor_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// How the elements of a tensor are stored. The discriminant is the id in the file.
        #[allow(non_camel_case_types, reason = "the names by which everybody knows the types")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum TensorType { $($(#[$doc])* $name = $id,)* }
    };
}

tensor_types! {
    /// 32-bit floats.
    F32 = 0,
    /// 16-bit IEEE floats.
    F16 = 1,
    /// 4 bits, one scale per 32.
    Q4_0 = 2,
    /// 4 bits, scale and minimum per 32.
    Q4_1 = 3,
    /// 5 bits, one scale per 32.
    Q5_0 = 6,
    /// 5 bits, scale and minimum per 32.
    Q5_1 = 7,
    /// 8 bits, one scale per 32.
    Q8_0 = 8,
    /// Activations: 8 bits, scale and sum per 32. Not found in files.
    Q8_1 = 9,
    /// 2 bits in blocks of 256 with 4-bit scales and minima per 16.
    Q2_K = 10,
    /// 3 bits in blocks of 256 with 6-bit scales per 16.
    Q3_K = 11,
    /// 4 bits in blocks of 256 with 6-bit scales and minima per 32.
    Q4_K = 12,
    /// 5 bits in blocks of 256 with 6-bit scales and minima per 32.
    Q5_K = 13,
    /// 6 bits in blocks of 256 with 8-bit scales per 16.
    Q6_K = 14,
    /// Activations: 8 bits in blocks of 256, with sums. Not found in files.
    Q8_K = 15,
    /// 2.06 bits: grid of 256 points with signs.
    IQ2_XXS = 16,
    /// 2.31 bits: grid of 512 points with signs.
    IQ2_XS = 17,
    /// 3.06 bits: grid of 256 points with signs.
    IQ3_XXS = 18,
    /// 1.56 bits: ternary grid of 2048 points.
    IQ1_S = 19,
    /// 4 bits on 16 uneven levels, one scale per 32.
    IQ4_NL = 20,
    /// 3.44 bits: grid of 512 points with signs.
    IQ3_S = 21,
    /// 2.56 bits: grid of 1024 points with signs.
    IQ2_S = 22,
    /// 4 bits on 16 uneven levels in blocks of 256 with 6-bit scales per 32.
    IQ4_XS = 23,
    /// 8-bit integers.
    I8 = 24,
    /// 16-bit integers.
    I16 = 25,
    /// 32-bit integers.
    I32 = 26,
    /// 64-bit integers.
    I64 = 27,
    /// 64-bit floats.
    F64 = 28,
    /// 1.75 bits: ternary grid of 2048 points, scales per 16.
    IQ1_M = 29,
    /// The upper half of 32-bit floats.
    BF16 = 30,
    /// Ternary, five to a byte.
    TQ1_0 = 34,
    /// Ternary, two bits each.
    TQ2_0 = 35,
    /// 4-bit floats with a power-of-two scale per 32.
    MXFP4 = 39,
    /// 4-bit floats with an 8-bit float scale per 16.
    NVFP4 = 40,
    /// 1 bit, one scale per 128. Listed, no reference for its values exists.
    Q1_0 = 41,
}

/// All storage types in the order of their ids.
pub static FORMATS: [FormatRow; N_FORMATS] = TABLE;

/// Number of rows in [`FORMATS`].
const N_FORMATS: usize = 34;
const TABLE: [FormatRow; N_FORMATS] = [
    plain::F32,
    plain::F16,
    q4_0::ROW,
    q4_1::ROW,
    q5_0::ROW,
    q5_1::ROW,
    q8_0::ROW,
    opaque::Q8_1,
    q2_k::ROW,
    q3_k::ROW,
    q4_k::ROW,
    q5_k::ROW,
    q6_k::ROW,
    opaque::Q8_K,
    iq2::XXS,
    iq2::XS,
    iq3::XXS,
    iq1::S,
    iq4::NL,
    iq3::S,
    iq2::S,
    iq4::XS,
    opaque::I8,
    opaque::I16,
    opaque::I32,
    opaque::I64,
    opaque::F64,
    iq1::M,
    plain::BF16,
    tq::TQ1_0,
    tq::TQ2_0,
    mxfp4::ROW,
    nvfp4::ROW,
    opaque::Q1_0,
];

/// A storage type that files may still carry although its id was withdrawn.
#[derive(Debug, Clone, Copy)]
pub struct Removed {
    /// The id in the file.
    pub id: u32,
    /// What it was called.
    pub was: &'static str,
    /// What to do about it.
    pub way_out: &'static str,
}

const OLD_CONVERTER: &str = "convert the model again from its original weights";
const REPACKED: &str = "use the Q4_0 file of the same model, rows are repacked while loading now";
const REPACKED_NL: &str =
    "use the IQ4_NL file of the same model, rows are repacked while loading now";

/// Withdrawn ids; to add one, add its row.
pub static REMOVED: [Removed; 8] = [
    Removed {
        id: 4,
        was: "Q4_2",
        way_out: OLD_CONVERTER,
    },
    Removed {
        id: 5,
        was: "Q4_3",
        way_out: OLD_CONVERTER,
    },
    Removed {
        id: 31,
        was: "Q4_0_4_4",
        way_out: REPACKED,
    },
    Removed {
        id: 32,
        was: "Q4_0_4_8",
        way_out: REPACKED,
    },
    Removed {
        id: 33,
        was: "Q4_0_8_8",
        way_out: REPACKED,
    },
    Removed {
        id: 36,
        was: "IQ4_NL_4_4",
        way_out: REPACKED_NL,
    },
    Removed {
        id: 37,
        was: "IQ4_NL_4_8",
        way_out: REPACKED_NL,
    },
    Removed {
        id: 38,
        was: "IQ4_NL_8_8",
        way_out: REPACKED_NL,
    },
];

/// Reference decode of n blocks of little-endian bytes to n * `block_elems` values.
pub type Decode = fn(&[u8], &mut [f32]);

/// Reference encode of n * `block_elems` values to n blocks of little-endian bytes.
pub type Encode = fn(&[f32], &mut [u8]);

/// Facts about a storage type.
#[derive(Debug, Clone, Copy)]
pub struct FormatRow {
    /// The type.
    pub ty: TensorType,
    /// Its usual name, such as `Q4_K`.
    pub name: &'static str,
    /// Elements in a block; a row of a tensor is a whole number of blocks.
    pub block_elems: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Reference decode, bit-equal to that of the `gguf` Python package.
    pub decode: Option<Decode>,
    /// Reference encode.
    pub encode: Option<Encode>,
    /// View as 8-bit integers with scales; `None` for types of 16 bits and more and for those without decode.
    pub lattice: Option<LatticeRow>,
    /// Numbers of several bytes inside a block, for swapping the byte order.
    pub fields: &'static [Field],
}

/// A run of `count` numbers of `width` bytes at `offset` in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// First byte, from the start of the block.
    pub offset: usize,
    /// Bytes of each number.
    pub width: usize,
    /// How many follow each other.
    pub count: usize,
}

impl Field {
    const fn new(offset: usize, width: usize, count: usize) -> Self {
        Self {
            offset,
            width,
            count,
        }
    }
}

/// One block to integers and scales: `unpack(block, q, scale, min)`.
///
/// `block` has `block_bytes` bytes, `q` takes `block_elems` integers in element order, `scale` and `min` one `f32` per
/// group. The slices must have these lengths; `min` isn't touched where the row has none.
pub type Unpack = fn(&[u8], &mut [i8], &mut [f32], &mut [f32]);

/// View of a block format as 8-bit integers: `value = q * scale - min`, per group of consecutive elements.
#[derive(Debug, Clone, Copy)]
pub struct LatticeRow {
    /// Elements that share a scale: 16 or 32.
    pub group: usize,
    /// Whether `min` is used.
    pub has_min: bool,
    /// Reads one block. Scales and minima are rounded once to `f32`, and `q * scale - min` has the bits of the decode.
    pub unpack: Unpack,
}

/// Position of each id in [`FORMATS`]; `u8::MAX` where there is none.
const BY_ID: [u8; 64] = {
    let mut by_id = [u8::MAX; 64];
    let mut i = 0;
    while i < TABLE.len() {
        by_id[TABLE[i].ty as usize] = i as u8;
        i += 1;
    }
    by_id
};

impl TensorType {
    /// The type with this id in the file.
    pub fn from_id(id: u32) -> Option<Self> {
        let at = *BY_ID.get(id as usize)?;
        FORMATS.get(at as usize).map(|row| row.ty)
    }

    /// The type with this usual name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        FORMATS
            .iter()
            .find(|row| row.name.eq_ignore_ascii_case(name))
            .map(|row| row.ty)
    }

    /// Sizes and functions of the type.
    pub fn row(self) -> &'static FormatRow {
        &FORMATS[BY_ID[self as usize] as usize]
    }
}

/// The usual name, such as `Q4_K`.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}

/// Decodes whole blocks: `bytes` little endian, `out.len()` elements.
///
/// # Errors
/// [`Error::NoDecoder`] for types without a reference; [`Error::BlockLength`] where `out` isn't a whole number of blocks
/// or `bytes` has another length than these blocks take.
pub fn decode_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    let row = ty.row();
    let decode = row.decode.ok_or(Error::NoDecoder { ty })?;
    check_lengths(row, bytes.len(), out.len())?;
    decode(bytes, out);
    Ok(())
}

/// Encodes whole blocks: `values.len()` elements to little-endian bytes.
///
/// # Errors
/// [`Error::NoEncoder`] for types without one; [`Error::BlockLength`] as in [`decode_row`].
pub fn encode_row(ty: TensorType, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    let row = ty.row();
    let encode = row.encode.ok_or_else(|| Error::NoEncoder {
        ty,
        available: encodable(),
    })?;
    check_lengths(row, out.len(), values.len())?;
    encode(values, out);
    Ok(())
}

fn encodable() -> String {
    let names: Vec<&str> = FORMATS
        .iter()
        .filter(|row| row.encode.is_some())
        .map(|row| row.name)
        .collect();
    names.join(", ")
}

fn check_lengths(row: &FormatRow, n_bytes: usize, n_elems: usize) -> Result<(), Error> {
    let whole = n_elems.is_multiple_of(row.block_elems);
    let expected = if whole {
        (n_elems / row.block_elems).saturating_mul(row.block_bytes)
    } else {
        0
    };
    if !whole || expected != n_bytes {
        let (elems, expected, found) = (n_elems as u64, expected as u64, n_bytes as u64);
        return Err(Error::BlockLength {
            ty: row.ty,
            elems,
            expected,
            found,
        });
    }
    Ok(())
}

/// Turns big-endian data of whole blocks into little endian, or back: reverses each number of [`FormatRow::fields`].
/// Bytes after the last whole block stay.
pub fn swap_endian(ty: TensorType, bytes: &mut [u8]) {
    let row = ty.row();
    for block in bytes.chunks_exact_mut(row.block_bytes) {
        for field in row.fields {
            let run = &mut block[field.offset..field.offset + field.width * field.count];
            run.chunks_exact_mut(field.width).for_each(<[u8]>::reverse);
        }
    }
}

/// The reference decode of a format with `ELEMS` elements in `BYTES` bytes and `GROUPS` groups: its lattice in `f32`.
fn decode_lattice<const BYTES: usize, const ELEMS: usize, const GROUPS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    lattice: &LatticeRow,
) {
    let mut q = [0i8; ELEMS];
    let mut scale = [0f32; GROUPS];
    let mut min = [0f32; GROUPS];
    for (block, out) in bytes.chunks_exact(BYTES).zip(out.chunks_exact_mut(ELEMS)) {
        (lattice.unpack)(block, &mut q, &mut scale, &mut min);
        let groups = q
            .chunks_exact(ELEMS / GROUPS)
            .zip(out.chunks_exact_mut(ELEMS / GROUPS));
        for ((q, out), (&scale, &min)) in groups.zip(scale.iter().zip(&min)) {
            for (&q, out) in q.iter().zip(out) {
                *out = if lattice.has_min {
                    q as f32 * scale - min
                } else {
                    q as f32 * scale
                };
            }
        }
    }
}

/// The little-endian f16 at `at` as f32, which is exact.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_bits(u16_at(block, at)).to_f32()
}

/// The little-endian u16 at `at`.
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The little-endian u32 at `at`.
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Stores `value`, rounded to the nearest f16 (ties to even), little endian at `at`.
fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// Splits 16 bytes into 32 integers of 4 bits: low nibbles first, then high nibbles.
fn nibbles(packed: &[u8], q: &mut [i8], of: impl Fn(u8) -> i8) {
    let (low, high) = q.split_at_mut(packed.len());
    for ((&byte, low), high) in packed.iter().zip(low).zip(high) {
        *low = of(byte & 0x0f);
        *high = of(byte >> 4);
    }
}
