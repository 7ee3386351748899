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
