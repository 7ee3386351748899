//! A position in the file's bytes: every read is checked against what remains.

use crate::reader::Endian;

/// A read that the file is too short for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Short {
    /// One past the last byte needed, from the start of the file; saturated.
    pub(crate) needed: u64,
}

/// Position in `bytes`; `pos <= bytes.len()` always.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    endian: Endian,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, pos: 0, endian }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn endian(&self) -> Endian {
        self.endian
    }

    /// Bytes left.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.pos)
    }

    /// The next `n` bytes. `n` comes from the file, so it may be anything.
    #[inline]
    pub(crate) fn take(&mut self, n: u64) -> Result<&'a [u8], Short> {
        let short = Short { needed: (self.pos as u64).saturating_add(n) };
        let n = usize::try_from(n).map_err(|_| short)?;
        let end = self.pos.checked_add(n).ok_or(short)?;
        let taken = self.bytes.get(self.pos..end).ok_or(short)?;
        self.pos = end;
        Ok(taken)
    }

    /// The next `N` bytes in little-endian order.
    #[inline]
    fn number<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let short = Short { needed: (self.pos as u64).saturating_add(N as u64) };
        let mut raw = self.take(N as u64)?.first_chunk::<N>().copied().ok_or(short)?;
        if self.endian == Endian::Big {
            raw.reverse();
        }
        Ok(raw)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        Ok(u8::from_le_bytes(self.number()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Short> {
        Ok(u16::from_le_bytes(self.number()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_le_bytes(self.number()?))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_le_bytes(self.number()?))
    }

    /// A string: u64 length, then that many bytes, of any content.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Short> {
        let len = self.u64()?;
        self.take(len)
    }
}
