//! Tensor tables drawn at random from sizes that make careless arithmetic wrap, against an oracle in big integers.

use selvedge_gguf::{Gguf, TensorType};

const DIMS: [u64; 15] = [
    0,
    1,
    2,
    31,
    32,
    33,
    255,
    256,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    (1 << 59) + 1,
    1 << 61,
    (1 << 63) - 1,
    u64::MAX,
];
const TYPES: [TensorType; 5] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Q8_0,
    TensorType::Q4_K,
    TensorType::I64,
];
const OFFSETS: [u64; 8] = [0, 32, 64, 4096, 33, 1 << 63, u64::MAX - 31, u64::MAX - 127];
const N_TABLES: usize = 10_000;
const N_DATA: usize = 1 << 14;

/// A natural number in base 2^32, lowest digit first: all that the oracle needs is to multiply, add, divide and compare.
#[derive(Clone, PartialEq, Eq)]
struct Natural(Vec<u32>);

impl Natural {
    fn from(v: u64) -> Self {
        Self(vec![v as u32, (v >> 32) as u32])
    }

    fn times(&self, v: u64) -> Self {
        let mut out = vec![0u32; self.0.len() + 2];
        for (i, &a) in self.0.iter().enumerate() {
            let mut carry = 0u64;
            for (j, b) in [v as u32, (v >> 32) as u32, 0].into_iter().enumerate() {
                if i + j >= out.len() {
                    break;
                }
                let sum = u64::from(out[i + j]) + u64::from(a) * u64::from(b) + carry;
                out[i + j] = sum as u32;
                carry = sum >> 32;
            }
            assert_eq!(carry, 0);
        }
        Self(out)
    }

    fn plus(&self, v: u64) -> Self {
        let mut carry = u128::from(v);
        let digit = |a: u32, carry: &mut u128| {
            let sum = u128::from(a) + (*carry & 0xffff_ffff);
            *carry = (*carry >> 32) + (sum >> 32);
            sum as u32
        };
        let mut out: Vec<u32> = self.0.iter().map(|&a| digit(a, &mut carry)).collect();
        out.extend([digit(0, &mut carry), digit(0, &mut carry)]);
        Self(out)
    }

    /// Quotient by a small number that divides it.
    fn over(&self, v: u32) -> Self {
        let mut rest = 0u64;
        let mut out = self.0.clone();
        for a in out.iter_mut().rev() {
            let part = rest << 32 | u64::from(*a);
            *a = (part / u64::from(v)) as u32;
            rest = part % u64::from(v);
        }
        assert_eq!(rest, 0);
        Self(out)
    }

    fn at_most(&self, v: u64) -> bool {
        let low = u64::from(self.0[0]) | u64::from(self.0[1]) << 32;
        self.0[2..].iter().all(|&a| a == 0) && low <= v
    }
}

/// Whether a table of one tensor is to be accepted, by definition.
fn oracle(n_dims: usize, dims: &[u64], ty: TensorType, offset: u64) -> bool {
    let row = ty.row();
    let row_elems = if n_dims == 0 { 1 } else { dims[0] };
    if n_dims > 4 || !row_elems.is_multiple_of(row.block_elems as u64) || !offset.is_multiple_of(32)
    {
        return false;
    }
    let elems = dims.iter().fold(Natural::from(1), |n, &d| n.times(d));
    let size = elems
        .over(row.block_elems as u32)
        .times(row.block_bytes as u64);
    size.plus(offset).at_most(N_DATA as u64)
}

fn file(n_dims: usize, dims: &[u64], ty: TensorType, offset: u64) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.push(b't');
    bytes.extend((n_dims as u32).to_le_bytes());
    dims.iter().for_each(|d| bytes.extend(d.to_le_bytes()));
    bytes.extend((ty as u32).to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32) + N_DATA, 0);
    bytes
}

#[test]
fn verdicts_equal_those_of_big_integers() {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |n: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 16) as usize % n
    };
    let (mut n_accepted, mut n_wrapping) = (0, 0);
    for _ in 0..N_TABLES {
        let n_dims = draw(7);
        let dims: Vec<u64> = (0..n_dims).map(|_| DIMS[draw(DIMS.len())]).collect();
        let ty = TYPES[draw(TYPES.len())];
        let offset = if draw(4) == 0 {
            OFFSETS[draw(OFFSETS.len())]
        } else {
            OFFSETS[draw(2)]
        };
        let bytes = file(n_dims, &dims, ty, offset);
        let expected = oracle(n_dims, &dims, ty, offset);
        let found = Gguf::parse(&bytes);
        assert_eq!(
            found.is_ok(),
            expected,
            "{ty} {dims:?} at {offset}: {:?}",
            found.err()
        );
        if let Ok(gguf) = found {
            let t = gguf.tensors[0];
            assert_eq!(gguf.tensor_bytes(&t).len() as u64, t.n_bytes);
        }
        n_accepted += usize::from(expected);
        let row = ty.row();
        let wrapped = dims.iter().fold(1u64, |n, &d| n.wrapping_mul(d)) / row.block_elems as u64;
        let wrapped = wrapped
            .wrapping_mul(row.block_bytes as u64)
            .wrapping_add(offset);
        n_wrapping += usize::from(!expected && n_dims <= 4 && wrapped <= N_DATA as u64);
    }
    // The draw must hold files of both kinds, and files that wrapping arithmetic would take.
    assert!(
        n_accepted > 500 && n_wrapping > 500,
        "{n_accepted} accepted, {n_wrapping} would wrap"
    );
}
