//! Random weights of every storage type, for tests and measurements.

use selvedge_gguf::TensorType;

/// A generator (xorshift64*, Vigna 2016), seeded by anything but zero.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From -1 to 1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `n` weights in blocks of random bytes with tame scales: sums stay finite.
    pub(crate) fn weights(&mut self, ty: TensorType, n: usize) -> Vec<u8> {
        let format = ty.row();
        let mut bytes: Vec<u8> = (0..n / format.block_elems * format.block_bytes).map(|_| self.next() as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes) {
            match ty {
                // A scale of 2^-7: products of the largest would overflow.
                TensorType::MXFP4 => block[0] = 120,
                TensorType::F32 => block.copy_from_slice(&self.uniform().to_le_bytes()),
                TensorType::F16 => block.copy_from_slice(&half::f16::from_f32(self.uniform()).to_le_bytes()),
                TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(self.uniform()).to_le_bytes()),
                _ => {
                    for field in format.fields.iter().filter(|field| field.width == 2) {
                        for i in 0..field.count {
                            let scale = half::f16::from_f32(self.uniform() * 0.01).to_le_bytes();
                            block[field.offset + 2 * i..][..2].copy_from_slice(&scale);
                        }
                    }
                }
            }
        }
        bytes
    }
}
