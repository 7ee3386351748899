//! Block formats against what the `gguf` Python package computes, and against each other. Tables are iterated: a new row
//! of `FORMATS` is tested by its presence.

use selvedge_gguf::format::{FORMATS, FormatRow, REMOVED, encode_row};
use selvedge_gguf::{Error, TensorType, decode_row, swap_endian};
use sha2::{Digest, Sha256};

const DECODE_BIN: &[u8] = include_bytes!("data/decode.bin");
const DECODE_TXT: &str = include_str!("data/decode.txt");
const ENCODE_TXT: &str = include_str!("data/encode.txt");

/// xorshift64*, as in `data/make_fixtures.py`.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn random_bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut rng = Xorshift(seed);
    let mut bytes: Vec<u8> = (0..n.div_ceil(8))
        .flat_map(|_| rng.next().to_le_bytes())
        .collect();
    bytes.truncate(n);
    bytes
}

/// Blocks of 32 values as `values_to_encode` of `data/make_fixtures.py` makes them.
fn values_to_encode(seed: u64, n_blocks: usize) -> Vec<f32> {
    let mut rng = Xorshift(seed);
    let mut out = Vec::with_capacity(n_blocks * 32);
    for b in 0..n_blocks {
        let scale = power_of_two((rng.next() % 40) as i32 - 30);
        for i in 0..32 {
            let u = rng.next();
            let (lo, hi) = (u as u32 as i32, (u >> 32) as u32 as i32);
            let wide = ((lo >> 8) + (hi >> 8)) as f32 * power_of_two(-24);
            out.push(match b % 16 {
                0 => 0.0,
                1 => scale,
                2 if i == b % 32 => -scale,
                2 => -0.0,
                3 => (lo >> 24) as f32 / 8.0,
                4 => wide * power_of_two(120),
                _ => wide * scale,
            });
        }
    }
    out
}

fn power_of_two(e: i32) -> f32 {
    f32::from_bits(((127 + e) as u32) << 23)
}

/// Bits with every NaN made the same.
fn bits(v: f32) -> u32 {
    if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }
}

fn sha256(bytes: impl IntoIterator<Item = u8>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().collect();
    Sha256::digest(&bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn decode(row: &FormatRow, blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; blocks.len() / row.block_bytes * row.block_elems];
    decode_row(row.ty, blocks, &mut out).unwrap();
    out
}

/// Lines of a fixture: type, count, hash.
fn lines(text: &str) -> impl Iterator<Item = (&FormatRow, usize, &str)> {
    text.lines().map(|line| {
        let [name, count, hash] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        (
            TensorType::from_name(name).unwrap().row(),
            count.parse().unwrap(),
            hash,
        )
    })
}

#[test]
fn the_table_is_complete_and_consistent() {
    for row in &FORMATS {
        assert_eq!(row.ty.row().name, row.name);
        assert_eq!(
            TensorType::from_id(row.ty as u32),
            Some(row.ty),
            "{}",
            row.name
        );
        assert_eq!(
            TensorType::from_name(&row.name.to_lowercase()),
            Some(row.ty)
        );
        assert_eq!(row.ty.to_string(), row.name);
        for field in row.fields {
            assert!(
                field.offset + field.width * field.count <= row.block_bytes,
                "{}",
                row.name
            );
        }
        if let Some(lattice) = row.lattice {
            assert!(
                matches!(lattice.group, 16 | 32) && row.block_elems % lattice.group == 0,
                "{}",
                row.name
            );
            assert!(row.decode.is_some(), "{}", row.name);
        }
    }
    assert!(
        FORMATS.is_sorted_by(|a, b| (a.ty as u32) < b.ty as u32),
        "rows stand in the order of their ids"
    );
    for removed in &REMOVED {
        assert_eq!(TensorType::from_id(removed.id), None, "{}", removed.was);
    }
    for id in [34u32, 41].into_iter().chain([42, 63, 64, u32::MAX]) {
        assert_eq!(TensorType::from_id(id).is_some(), id < 42, "id {id}");
    }
}

#[test]
fn decode_equals_the_python_package_value_by_value() {
    let mut rest = DECODE_BIN;
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head
    };
    let number = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
    for _ in lines(DECODE_TXT) {
        let row = TensorType::from_id(number(take(4))).unwrap().row();
        let n_blocks = number(take(4)) as usize;
        let values = decode(row, take(n_blocks * row.block_bytes));
        for (i, &value) in values.iter().enumerate() {
            let expected = f32::from_bits(number(take(4)));
            assert_eq!(
                bits(value),
                bits(expected),
                "{} element {i}: {value} should be {expected}",
                row.name
            );
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn decode_equals_the_python_package_on_many_blocks() {
    for (row, n_blocks, hash) in lines(DECODE_TXT) {
        let blocks = random_bytes(1000 + row.ty as u64, n_blocks * row.block_bytes);
        let values = decode(row, &blocks);
        assert_eq!(
            sha256(values.iter().flat_map(|&v| bits(v).to_le_bytes())),
            hash,
            "{}",
            row.name
        );
    }
    let with_fixture: Vec<TensorType> = lines(DECODE_TXT).map(|(row, ..)| row.ty).collect();
    for row in FORMATS.iter().filter(|row| row.decode.is_some()) {
        assert!(
            with_fixture.contains(&row.ty),
            "{} decodes but has no fixture",
            row.name
        );
    }
}

#[test]
fn encode_equals_the_python_package() {
    for (row, n_values, hash) in lines(ENCODE_TXT) {
        let values = values_to_encode(7, n_values / 32);
        let mut out = vec![0; n_values / row.block_elems * row.block_bytes];
        encode_row(row.ty, &values, &mut out).unwrap();
        assert_eq!(sha256(out), hash, "{}", row.name);
    }
}

/// Unpacks every block by the lattice and compares `q * scale - min`, computed in f64, with the values of the fixture:
/// they may differ by the decode's own roundings, half a unit of the product and half a unit of the result.
#[test]
fn lattice_agrees_with_the_decode() {
    for row in &FORMATS {
        let Some(lattice) = row.lattice else { continue };
        let blocks = random_bytes(2000 + row.ty as u64, 512 * row.block_bytes);
        let values = decode(row, &blocks);
        let n_groups = row.block_elems / lattice.group;
        const UNTOUCHED: f32 = 12345.0;
        for (block, values) in blocks
            .chunks_exact(row.block_bytes)
            .zip(values.chunks_exact(row.block_elems))
        {
            let mut q = vec![i8::MIN; row.block_elems];
            let (mut scale, mut min) = (vec![f32::NAN; n_groups], vec![UNTOUCHED; n_groups]);
            (lattice.unpack)(block, &mut q, &mut scale, &mut min);
            assert!(
                lattice.has_min || min.iter().all(|&m| m == UNTOUCHED),
                "{}",
                row.name
            );
            for (i, &value) in values.iter().enumerate() {
                let (scale, min) = (
                    scale[i / lattice.group] as f64,
                    min[i / lattice.group] as f64,
                );
                let min = if lattice.has_min { min } else { 0.0 };
                let product = q[i] as f64 * scale;
                let exact = product - min;
                if !value.is_finite() || !exact.is_finite() {
                    let beyond = exact.abs() >= f32::MAX as f64;
                    assert!(
                        !exact.is_finite() || beyond,
                        "{} element {i}: {exact} decodes to {value}",
                        row.name
                    );
                    continue;
                }
                let half_unit =
                    |v: f64| v.abs() * 0.5 * f64::from(f32::EPSILON) + f64::from(f32::from_bits(1));
                let bound = half_unit(product) + half_unit(exact);
                let error = (exact - f64::from(value)).abs();
                assert!(
                    error <= bound,
                    "{} element {i}: {exact} decodes to {value}",
                    row.name
                );
            }
        }
    }
}

#[test]
fn types_of_2_to_8_bits_have_a_lattice_and_others_have_none() {
    let without: Vec<&str> = FORMATS
        .iter()
        .filter(|row| row.lattice.is_none())
        .map(|row| row.name)
        .collect();
    let expected = [
        "F32", "F16", "Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "BF16", "Q1_0",
    ];
    assert_eq!(without, expected);
}

#[test]
fn q8_0_keeps_minus_128_and_subnormal_scales() {
    let row = TensorType::Q8_0.row();
    let mut block = vec![0x01, 0x00];
    block.extend((0..32).map(|i| if i == 0 { 0x80 } else { 0x7f }));
    let values = decode(row, &block);
    assert_eq!(values[0], -128.0 * power_of_two(-24));
    assert_eq!(values[1], 127.0 * power_of_two(-24));
}

#[test]
fn lengths_and_missing_functions_are_errors() {
    let mut out = [0.0; 32];
    let short = decode_row(TensorType::Q4_0, &[0; 17], &mut out);
    let (ty, elems) = (TensorType::Q4_0, 32);
    assert_eq!(
        short,
        Err(Error::BlockLength {
            ty,
            elems,
            expected: 18,
            found: 17
        })
    );
    let odd = decode_row(TensorType::Q4_0, &[0; 18], &mut out[..31]);
    assert_eq!(
        odd,
        Err(Error::BlockLength {
            ty,
            elems: 31,
            expected: 0,
            found: 18
        })
    );
    assert_eq!(decode_row(TensorType::Q4_0, &[], &mut []), Ok(()));
    let none = decode_row(TensorType::Q1_0, &[0; 18], &mut [0.0; 128]);
    assert_eq!(
        none,
        Err(Error::NoDecoder {
            ty: TensorType::Q1_0
        })
    );
    let none = encode_row(TensorType::IQ2_XS, &[0.0; 256], &mut [0; 74]).unwrap_err();
    assert!(
        none.to_string()
            .contains("Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16"),
        "{none}"
    );
}

#[test]
fn encoding_anything_neither_panics_nor_changes_the_size() {
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        -0.0,
        1e-45,
    ];
    let mut rng = Xorshift(5);
    for row in FORMATS.iter().filter(|row| row.encode.is_some()) {
        for round in 0..64 {
            let value = |u: u64| {
                if u % 8 < round % 8 {
                    special[u as usize / 8 % 8]
                } else {
                    f32::from_bits((u >> 32) as u32)
                }
            };
            let values: Vec<f32> = (0..256).map(|_| value(rng.next())).collect();
            let mut out = vec![0; 256 / row.block_elems * row.block_bytes];
            encode_row(row.ty, &values, &mut out).unwrap();
        }
    }
}

/// Root mean square of the error of a round trip, over that of the values.
fn round_trip_error(ty: TensorType, values: &[f32]) -> f64 {
    let row = ty.row();
    let mut blocks = vec![0; values.len() / row.block_elems * row.block_bytes];
    encode_row(ty, values, &mut blocks).unwrap();
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = values
        .iter()
        .zip(decode(row, &blocks))
        .map(|(&a, b)| square(a - b))
        .sum();
    (error / values.iter().map(|&v| square(v)).sum::<f64>()).sqrt()
}

/// Sums of twelve uniform numbers: near enough to the bell curve of trained weights.
fn bell(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Xorshift(seed);
    let uniform = |u: u64| (u >> 40) as f32 * power_of_two(-24);
    (0..n)
        .map(|_| (0..12).map(|_| uniform(rng.next())).sum::<f32>() - 6.0)
        .collect()
}

#[test]
fn swapping_the_byte_order_twice_changes_nothing() {
    for row in &FORMATS {
        let blocks = random_bytes(
            3000 + row.ty as u64,
            5 * row.block_bytes + row.block_bytes / 2,
        );
        let mut swapped = blocks.clone();
        swap_endian(row.ty, &mut swapped);
        assert_eq!(swapped != blocks, !row.fields.is_empty(), "{}", row.name);
        swap_endian(row.ty, &mut swapped);
        assert_eq!(swapped, blocks, "{}", row.name);
    }
}

/// What stands where, written down a second time: the bytes of one block after the swap, as indices into the original.
#[test]
fn swapping_moves_the_bytes_of_numbers_only() {
    let check = |ty: TensorType, fields: &[(usize, usize)]| {
        let n = ty.row().block_bytes;
        let mut block: Vec<u8> = (0..n).map(|i| i as u8).collect();
        let mut expected = block.clone();
        for &(at, width) in fields {
            expected[at..at + width].reverse();
        }
        swap_endian(ty, &mut block);
        assert_eq!(block, expected, "{ty}");
    };
    check(TensorType::F32, &[(0, 4)]);
    check(TensorType::BF16, &[(0, 2)]);
    check(TensorType::Q4_0, &[(0, 2)]);
    check(TensorType::Q4_1, &[(0, 2), (2, 2)]);
    check(TensorType::Q5_1, &[(0, 2), (2, 2), (4, 4)]);
    check(TensorType::Q8_0, &[(0, 2)]);
    check(TensorType::Q4_K, &[(0, 2), (2, 2)]);
    check(TensorType::Q6_K, &[(208, 2)]);
    check(TensorType::Q2_K, &[(80, 2), (82, 2)]);
    check(TensorType::IQ4_XS, &[(0, 2), (2, 2)]);
    check(TensorType::IQ1_M, &[(48, 2), (50, 2), (52, 2), (54, 2)]);
    check(TensorType::MXFP4, &[]);
    check(TensorType::NVFP4, &[]);
}
