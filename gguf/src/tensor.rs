//! The tensor table: names, shapes, places, each proven to lie in the file.

use crate::cursor::{Cursor, Short};
use crate::error::{Error, shown, shown_bytes};
use crate::format::{REMOVED, TensorType};

/// Longest tensor name in bytes.
pub const MAX_TENSOR_NAME: u64 = 64;
/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// The least that a row of the table takes: name length, dimension count, type, offset.
pub(crate) const MIN_ROW_BYTES: usize = 8 + 4 + 4 + 8;

/// One tensor of a file. Its bytes lie in the file, aligned, and overlap no other tensor's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Name, UTF-8, at most 64 bytes; never to be used as a path.
    pub name: &'a str,
    /// Storage type.
    pub ty: TensorType,
    /// Elements per dimension, the contiguous one first, 1 beyond `n_dims`; `dims[0]` is a multiple of the type's block.
    pub dims: [u64; MAX_DIMS],
    /// Dimensions that the file states, 0 to 4.
    pub n_dims: usize,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Size in bytes.
    pub n_bytes: u64,
}

impl TensorInfo<'_> {
    /// Number of elements.
    pub fn n_elems(&self) -> u64 {
        product(&self.dims).unwrap_or(u64::MAX)
    }

    /// Bytes of one row, that is of `dims[0]` elements.
    pub fn row_bytes(&self) -> u64 {
        let row = self.ty.row();
        let n_blocks = self.dims[0]
            .checked_div(row.block_elems as u64)
            .unwrap_or(0);
        n_blocks.saturating_mul(row.block_bytes as u64)
    }

    /// Number of rows, the product of all dimensions but the first.
    pub fn n_rows(&self) -> u64 {
        let [_, rest @ ..] = self.dims;
        product(&rest).unwrap_or(u64::MAX)
    }
}

/// The product, 0 where any factor is, `None` where it exceeds 64 bits.
fn product(dims: &[u64]) -> Option<u64> {
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
}

/// A row of the table before the start of the data section is known.
pub(crate) struct RawTensor<'a> {
    name: &'a str,
    ty: TensorType,
    dims: [u64; MAX_DIMS],
    n_dims: usize,
    /// From the start of the data section.
    offset: u64,
    n_bytes: u64,
}

/// Reads row `index` of the table: all checks that need neither the data section nor other rows.
pub(crate) fn read_row<'a>(
    c: &mut Cursor<'a>,
    index: u64,
    file_len: u64,
) -> Result<RawTensor<'a>, Error> {
    let in_table = |short: Short| Error::Truncated {
        what: format!("row {index} of the tensor table"),
        needed: short.needed,
        file_len,
    };
    let name_len = c.u64().map_err(in_table)?;
    if name_len > MAX_TENSOR_NAME {
        return Err(Error::TensorNameLength {
            index,
            found: name_len,
            max: MAX_TENSOR_NAME,
        });
    }
    let raw_name = c.take(name_len).map_err(in_table)?;
    let name = std::str::from_utf8(raw_name).map_err(|_| Error::TensorNameEncoding {
        index,
        found: shown_bytes(raw_name),
    })?;
    let in_row = |short: Short| Error::Truncated {
        what: format!("the table row of tensor `{}`", shown(name)),
        needed: short.needed,
        file_len,
    };

    let found = c.u32().map_err(in_row)?;
    let mut dims = [1u64; MAX_DIMS];
    let n_dims = found as usize;
    let stated = dims.get_mut(..n_dims).ok_or_else(|| Error::TensorDims {
        name: shown(name),
        found,
        max: MAX_DIMS as u32,
    })?;
    for dim in stated {
        *dim = c.u64().map_err(in_row)?;
    }

    let id = c.u32().map_err(in_row)?;
    let ty = TensorType::from_id(id).ok_or_else(|| unknown_type(name, id))?;
    let offset = c.u64().map_err(in_row)?;

    let n_bytes = blocks_bytes(name, ty, &dims, file_len)?;
    Ok(RawTensor {
        name,
        ty,
        dims,
        n_dims,
        offset,
        n_bytes,
    })
}

/// Bytes of a tensor: rows must be whole blocks, and the size must fit 64 bits.
pub(crate) fn blocks_bytes(
    name: &str,
    ty: TensorType,
    dims: &[u64],
    file_len: u64,
) -> Result<u64, Error> {
    let row = ty.row();
    let block = row.block_elems as u64;
    let row_elems = dims.first().copied().unwrap_or(1);
    if row_elems.checked_rem(block) != Some(0) {
        return Err(Error::TensorRow {
            name: shown(name),
            ty,
            expected: block,
            found: row_elems,
        });
    }
    product(dims)
        .and_then(|n| n.checked_div(block))
        .and_then(|n| n.checked_mul(row.block_bytes as u64))
        .ok_or_else(|| Error::TensorSize {
            name: shown(name),
            found: dims.to_vec(),
            file_len,
        })
}

fn unknown_type(name: &str, id: u32) -> Error {
    let name = shown(name);
    match REMOVED.iter().find(|r| r.id == id) {
        Some(r) => Error::TensorTypeRemoved {
            name,
            found: id,
            was: r.was,
            way_out: r.way_out,
        },
        None => Error::TensorType { name, found: id },
    }
}

/// Places the tensors in the file: alignment, bounds in subtraction form, overlaps, duplicate names.
/// Returns the tensors in table order, and their indices sorted by name.
pub(crate) fn place<'a>(
    raw: Vec<RawTensor<'a>>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<(Vec<TensorInfo<'a>>, Vec<usize>), Error> {
    let mut tensors = Vec::with_capacity(raw.len());
    for t in raw {
        if t.offset.checked_rem(alignment) != Some(0) {
            return Err(Error::TensorUnaligned {
                name: shown(t.name),
                expected: alignment,
                found: t.offset,
            });
        }
        let available = file_len
            .checked_sub(data_start)
            .and_then(|n| n.checked_sub(t.offset));
        let offset = data_start.checked_add(t.offset);
        let (Some(offset), true) = (offset, available.is_some_and(|n| t.n_bytes <= n)) else {
            let what = format!(
                "tensor `{}` ({} bytes at offset {} of the data section)",
                shown(t.name),
                t.n_bytes,
                t.offset
            );
            let needed = data_start
                .saturating_add(t.offset)
                .saturating_add(t.n_bytes);
            return Err(Error::Truncated {
                what,
                needed,
                file_len,
            });
        };
        let RawTensor {
            name,
            ty,
            dims,
            n_dims,
            n_bytes,
            ..
        } = t;
        tensors.push(TensorInfo {
            name,
            ty,
            dims,
            n_dims,
            offset,
            n_bytes,
        });
    }
    check_overlaps(&tensors)?;
    let by_name = index_by_name(&tensors)?;
    Ok((tensors, by_name))
}

fn check_overlaps(tensors: &[TensorInfo<'_>]) -> Result<(), Error> {
    let mut by_offset: Vec<&TensorInfo<'_>> = tensors.iter().filter(|t| t.n_bytes > 0).collect();
    by_offset.sort_unstable_by_key(|t| t.offset);
    for pair in by_offset.windows(2) {
        let [a, b] = pair else { continue };
        // The bounds check has shown that the end lies in the file.
        let end = a.offset.saturating_add(a.n_bytes);
        if end > b.offset {
            let (first, second) = (shown(a.name), shown(b.name));
            return Err(Error::TensorOverlap {
                first,
                second,
                end,
                start: b.offset,
            });
        }
    }
    Ok(())
}

fn index_by_name(tensors: &[TensorInfo<'_>]) -> Result<Vec<usize>, Error> {
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_unstable_by_key(|&i| tensors.get(i).map(|t| t.name));
    let mut last = None;
    for name in by_name
        .iter()
        .filter_map(|&i| tensors.get(i))
        .map(|t| t.name)
    {
        if last == Some(name) {
            return Err(Error::TensorDuplicate { name: shown(name) });
        }
        last = Some(name);
    }
    Ok(by_name)
}
