//! Files written and read: byte-equal copies, both byte orders, both versions, random metadata.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like tests")]

mod common;

use proptest::prelude::*;
use selvedge_gguf::{Endian, Error, Gguf, OwnedValue, TensorType, Value, ValueType, Writer, decode_row};

/// A file with every kind of value and a tensor per storage type.
fn everything() -> Writer<'static> {
    let mut w = Writer::new();
    w.set("general.architecture", "llama");
    w.set("u8", 200u8).set("i8", -100i8).set("u16", 60000u16).set("i16", -30000i16);
    w.set("u32", 4_000_000_000u32).set("i32", -2_000_000_000i32).set("u64", u64::MAX).set("i64", i64::MIN);
    w.set("f32", 0.1f32).set("f64", 0.1f64).set("yes", true).set("no", false);
    w.set("raw", OwnedValue::String(vec![0xff, 0, 0xfe]));
    w.set("tokens", vec!["a", "", "\u{1f680}"]);
    w.set("scores", vec![0.5f32, -1.5]);
    w.set("types", vec![1i32, 6]);
    w.set("flags", vec![true, false]);
    let inner = |v: Vec<u16>| OwnedValue::from(v);
    w.set("nested", OwnedValue::Array { elem: ValueType::Array, values: vec![inner(vec![1, 2]), inner(vec![])] });
    w.set("empty", OwnedValue::Array { elem: ValueType::String, values: vec![] });
    for row in &selvedge_gguf::format::FORMATS {
        let n_blocks = 3;
        let data: Vec<u8> = (0..n_blocks * row.block_bytes).map(|i| (i * 37 + row.ty as usize) as u8).collect();
        w.add_tensor(&format!("t.{}", row.name), row.ty, &[row.block_elems as u64, n_blocks as u64], data);
    }
    w
}

#[test]
fn what_is_written_is_read() {
    let w = everything();
    let bytes = w.to_bytes().unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!((gguf.version, gguf.endian, gguf.alignment), (3, Endian::Little, 32));
    let m = &gguf.metadata;
    assert_eq!(m.iter().next().unwrap().0, "general.architecture");
    assert_eq!(m.str("general.architecture"), Ok(Some("llama")));
    assert_eq!(m.u32("u32"), Ok(Some(4_000_000_000)));
    assert_eq!(m.u32("u8"), Ok(Some(200)));
    assert_eq!(m.i32("i8"), Ok(Some(-100)));
    assert_eq!(m.u64("u64"), Ok(Some(u64::MAX)));
    assert_eq!((m.f32("f32"), m.f32("f64")), (Ok(Some(0.1)), Ok(Some(0.1))));
    assert_eq!((m.bool("yes"), m.bool("no")), (Ok(Some(true)), Ok(Some(false))));
    assert_eq!(m.bytes("raw"), Ok(Some(&[0xff, 0, 0xfe][..])));
    let tokens: Vec<&[u8]> = m.require_array("tokens").unwrap().strings().unwrap().collect();
    assert_eq!(tokens, [b"a".as_slice(), b"", "\u{1f680}".as_bytes()]);
    assert_eq!(m.require_array("scores").unwrap().f32s().unwrap().collect::<Vec<_>>(), [0.5, -1.5]);
    assert_eq!(m.require_array("types").unwrap().i64s().unwrap().collect::<Vec<_>>(), [1, 6]);
    assert!(m.require_array("types").unwrap().strings().is_none());
    assert!(m.require_array("flags").unwrap().i64s().is_none());
    let nested = m.require_array("nested").unwrap();
    let lens: Vec<usize> = nested.iter().map(|v| if let Value::Array(a) = v { a.len() } else { 99 }).collect();
    assert_eq!(lens, [2, 0]);
    let empty = m.require_array("empty").unwrap();
    assert!(empty.is_empty() && empty.strings().unwrap().next().is_none());

    for (tensor, written) in gguf.tensors.iter().zip(w.tensors()) {
        assert_eq!(tensor.name, written.name);
        assert_eq!(tensor.offset % 32, 0);
        assert_eq!(gguf.tensor_bytes(tensor), &*written.data);
        assert_eq!(gguf.tensor(tensor.name), Some(tensor));
        assert_eq!((tensor.n_elems(), tensor.n_rows()), (3 * tensor.dims[0], 3));
        assert_eq!(tensor.row_bytes() * 3, tensor.n_bytes);
    }
    assert_eq!(gguf.tensor("t."), None);
    assert_eq!(gguf.file_len(), bytes.len() as u64);
}

#[test]
fn value_types_have_the_ids_of_the_format() {
    for id in 0..13 {
        assert_eq!(ValueType::from_id(id).map(|ty| ty as u32), Some(id));
    }
    assert_eq!(ValueType::from_id(13), None);
}

#[test]
fn getters_say_what_is_wrong() {
    let bytes = everything().to_bytes().unwrap();
    let m = Gguf::parse(&bytes).unwrap().metadata;
    let text = |e: Error| e.to_string();
    assert_eq!(m.u32("absent"), Ok(None));
    assert_eq!(text(m.require_u32("absent").unwrap_err()), "the metadata lacks the key `absent`");
    let wrong = m.u32("general.architecture").unwrap_err();
    let expected = "metadata key `general.architecture` should be an integer from 0 to 4294967295, found string \"llama\"";
    assert_eq!(text(wrong), expected);
    assert!(text(m.u32("i8").unwrap_err()).ends_with("found i8 -100"));
    assert!(text(m.i32("u32").unwrap_err()).ends_with("found u32 4000000000"));
    assert!(text(m.str("raw").unwrap_err()).contains("should be a UTF-8 string"));
    assert!(text(m.bool("u8").unwrap_err()).ends_with("found u8 200"));
    assert!(text(m.f32("u8").unwrap_err()).contains("floating-point"));
    assert!(text(m.array("u8").unwrap_err()).contains("should be an array"));
    assert!(text(m.u32("tokens").unwrap_err()).ends_with("found array of 3 string"));
}

#[test]
fn copies_are_byte_equal_in_every_version_and_byte_order() {
    for version in [2, 3] {
        for endian in [Endian::Little, Endian::Big] {
            for alignment in [8, 32, 64, 4096] {
                let mut w = everything();
                (w.version, w.endian, w.alignment) = (version, endian, alignment);
                let bytes = w.to_bytes().unwrap();
                let gguf = Gguf::parse(&bytes).unwrap();
                assert_eq!((gguf.version, gguf.endian, gguf.alignment), (version, endian, alignment));
                let copy = Writer::from_gguf(&gguf).to_bytes().unwrap();
                assert!(copy == bytes, "version {version} {endian:?} alignment {alignment}");
                let mut streamed = Vec::new();
                Writer::from_gguf(&gguf).write_to(&mut streamed).unwrap();
                assert!(streamed == bytes);
            }
        }
    }
}

#[test]
fn a_file_without_padding_at_its_end_is_kept() {
    let bytes = everything().to_bytes().unwrap();
    let last = Gguf::parse(&bytes).unwrap().tensors.iter().map(|t| t.offset + t.n_bytes).max().unwrap() as usize;
    let longer = [bytes.as_slice(), &[0; 100]].concat();
    for file in [&bytes[..last], &longer] {
        let copy = Writer::from_gguf(&Gguf::parse(file).unwrap()).to_bytes().unwrap();
        assert!(copy == file, "{} bytes", file.len());
    }
}

#[test]
fn a_big_endian_copy_holds_the_same_values() {
    let mut w = everything();
    let little = w.to_bytes().unwrap();
    w.endian = Endian::Big;
    let big = w.to_bytes().unwrap();
    assert_ne!(little, big);
    let (little, big) = (Gguf::parse(&little).unwrap(), Gguf::parse(&big).unwrap());
    let owned = |g: &Gguf<'_>| g.metadata.iter().map(|(k, v)| (k.to_owned(), OwnedValue::from(v))).collect::<Vec<_>>();
    assert_eq!(owned(&little), owned(&big));
    for (a, b) in little.tensors.iter().zip(&big.tensors) {
        assert_eq!(a, b);
        let mut swapped = big.tensor_bytes(b).to_vec();
        selvedge_gguf::swap_endian(b.ty, &mut swapped);
        assert_eq!(swapped, little.tensor_bytes(a), "{}", a.name);
    }
}

/// Both byte orders as the `gguf` Python package writes them.
#[test]
fn files_of_another_writer_in_both_byte_orders_are_one() {
    let big = include_bytes!("data/big_endian.gguf").as_slice();
    let little = include_bytes!("data/little_endian.gguf").as_slice();
    let (b, l) = (Gguf::parse(big).unwrap(), Gguf::parse(little).unwrap());
    assert_eq!((b.endian, l.endian), (Endian::Big, Endian::Little));
    for gguf in [&b, &l] {
        let m = &gguf.metadata;
        assert_eq!((m.u32("u16"), m.i32("i32")), (Ok(Some(0x1234)), Ok(Some(-2))));
        assert_eq!((m.f32("f32"), m.f32("f64")), (Ok(Some(0.1)), Ok(Some(0.1))));
        assert_eq!((m.bool("yes"), m.u64("u64")), (Ok(Some(true)), Ok(Some((1 << 40) + 1))));
        assert_eq!(m.str("text"), Ok(Some("a\u{20ac}b")));
        let strings: Vec<&[u8]> = m.require_array("strings").unwrap().strings().unwrap().collect();
        assert_eq!(strings, [b"x".as_slice(), b"", b"yz"]);
        assert_eq!(m.require_array("ints").unwrap().i64s().unwrap().collect::<Vec<_>>(), [1, -2, 3]);
    }
    let values = |gguf: &Gguf<'_>, name: &str| {
        let t = gguf.tensor(name).unwrap();
        let mut data = gguf.tensor_bytes(t).to_vec();
        if gguf.endian == Endian::Big {
            selvedge_gguf::swap_endian(t.ty, &mut data);
        }
        let mut out = vec![0.0; t.n_elems() as usize];
        decode_row(t.ty, &data, &mut out).unwrap();
        out
    };
    for name in ["f32", "f16", "q8_0", "q4_k"] {
        assert_eq!(values(&b, name), values(&l, name), "{name}");
    }
    assert_eq!(values(&b, "f32")[9], 9.0 / 8.0);
    assert_eq!(b.tensor("f16").unwrap().dims, [32, 2, 1, 1]);
    // Each turned into the other, byte for byte.
    for (from, to, endian) in [(&b, little, Endian::Little), (&l, big, Endian::Big)] {
        let mut w = Writer::from_gguf(from);
        w.endian = endian;
        assert!(w.to_bytes().unwrap() == to, "to {endian:?}");
    }
}

#[test]
fn copies_of_real_files_are_byte_equal() {
    let mut files = common::models();
    if let Some(dir) = common::cases() {
        files.extend(["hostile", "arch", "vocab"].iter().flat_map(|sub| common::gguf_files(&dir.join(sub))));
    }
    let mut n_equal = 0;
    for path in &files {
        let bytes = std::fs::read(path).unwrap();
        let Ok(gguf) = Gguf::parse(&bytes) else {
            continue;
        };
        let copy = Writer::from_gguf(&gguf).to_bytes().unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        // The one file with unused bytes between its tensors.
        assert_eq!(copy == bytes, name != "t21_gap.gguf", "{name}");
        n_equal += usize::from(copy == bytes);
    }
    println!("{n_equal} of {} files copied byte-equal", files.len());
    assert!(files.is_empty() || n_equal >= 2);
}

#[test]
fn encoded_tensors_come_back() {
    let values: Vec<f32> = (0..512).map(|i| (i as f32 - 256.0) / 64.0).collect();
    let mut w = Writer::new();
    w.add_values("a", TensorType::F32, &[256, 2], &values).unwrap();
    w.add_values("b", TensorType::Q8_0, &[256, 2], &values).unwrap();
    assert!(matches!(w.add_values("c", TensorType::Q4_K, &[255], &values[..255]), Err(Error::BlockLength { .. })));
    let bytes = w.to_bytes().unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    for (t, bound) in gguf.tensors.iter().zip([0.0, 4.0 / 127.0 / 2.0 * 1.01]) {
        let mut back = vec![0.0; 512];
        decode_row(t.ty, gguf.tensor_bytes(t), &mut back).unwrap();
        assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() <= bound), "{}", t.name);
    }
}

fn ignore<T>(_: T) {}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let with = |change: &dyn Fn(&mut Writer<'static>)| {
        let mut w = Writer::new();
        w.add_tensor("a", TensorType::F32, &[4], vec![0; 16]);
        change(&mut w);
        w.to_bytes().unwrap_err()
    };
    assert!(matches!(with(&|w| w.version = 4), Error::Version { found: 4, .. }));
    assert!(matches!(with(&|w| w.alignment = 24), Error::Alignment { .. }));
    assert!(matches!(with(&|w| ignore(w.set("", 1u8))), Error::KeyLength { found: 0, .. }));
    assert!(matches!(with(&|w| ignore(w.set(&"k".repeat(65536), 1u8))), Error::KeyLength { found: 65536, .. }));
    let mixed = OwnedValue::Array { elem: ValueType::U8, values: vec![OwnedValue::I8(1)] };
    assert!(matches!(with(&|w| ignore(w.set("k", mixed.clone()))), Error::ArrayElement { .. }));
    let deep = (0..5).fold(OwnedValue::U8(0), |v, _| OwnedValue::Array { elem: v.value_type(), values: vec![v] });
    assert!(matches!(with(&|w| ignore(w.set("k", deep.clone()))), Error::ArrayDepth { .. }));
    let add = |name: &str, ty, dims: &[u64], n: usize| {
        let name = name.to_owned();
        let dims = dims.to_vec();
        move |w: &mut Writer<'static>| ignore(w.add_tensor(&name, ty, &dims, vec![0; n]))
    };
    assert!(matches!(with(&add("a", TensorType::F32, &[4], 16)), Error::TensorDuplicate { .. }));
    assert!(matches!(with(&add("b", TensorType::F32, &[4], 12)), Error::TensorData { expected: 16, found: 12, .. }));
    assert!(matches!(with(&add("b", TensorType::F32, &[1; 5], 4)), Error::TensorDims { found: 5, .. }));
    assert!(matches!(with(&add("b", TensorType::Q4_0, &[33], 18)), Error::TensorRow { .. }));
    assert!(matches!(with(&add("b", TensorType::F32, &[u64::MAX, 2], 8)), Error::TensorSize { .. }));
    assert!(matches!(with(&add(&"n".repeat(65), TensorType::F32, &[1], 4)), Error::TensorNameLength { found: 65, .. }));
    let io = {
        let mut w = Writer::new();
        w.version = 1;
        w.write_to(&mut Vec::new()).unwrap_err()
    };
    assert_eq!(io.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn nesting_is_bounded_in_the_reader_too() {
    // Four levels pass; a fifth, and a million, are refused without recursion following the file.
    for (depth, ok) in [(4usize, true), (5, false), (1_000_000, false)] {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.push(b'k');
        bytes.extend(9u32.to_le_bytes());
        for level in 1..=depth {
            bytes.extend(if level == depth { 0u32 } else { 9 }.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
        }
        bytes.push(7);
        let parsed = Gguf::parse(&bytes);
        assert_eq!(parsed.is_ok(), ok, "{depth} levels");
        if !ok {
            assert_eq!(parsed.unwrap_err(), Error::ArrayDepth { key: "k".to_owned(), max: 4 });
        }
    }
}

fn scalar() -> impl Strategy<Value = OwnedValue> {
    prop_oneof![
        any::<u8>().prop_map(OwnedValue::U8),
        any::<i8>().prop_map(OwnedValue::I8),
        any::<u16>().prop_map(OwnedValue::U16),
        any::<i16>().prop_map(OwnedValue::I16),
        any::<u32>().prop_map(OwnedValue::U32),
        any::<i32>().prop_map(OwnedValue::I32),
        // PartialEq of NaN would fail the comparison, not the file; finite numbers are enough here.
        proptest::num::f32::NORMAL.prop_map(OwnedValue::F32),
        any::<bool>().prop_map(OwnedValue::Bool),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(OwnedValue::String),
        any::<u64>().prop_map(OwnedValue::U64),
        any::<i64>().prop_map(OwnedValue::I64),
        proptest::num::f64::NORMAL.prop_map(OwnedValue::F64),
    ]
}

/// Arrays of one scalar's type, and arrays of those, down to the deepest that is allowed.
fn value() -> impl Strategy<Value = OwnedValue> {
    let array = |inner: BoxedStrategy<OwnedValue>| {
        (inner, 0usize..5).prop_map(|(v, n)| OwnedValue::Array { elem: v.value_type(), values: vec![v; n] }).boxed()
    };
    let one = array(scalar().boxed());
    let two = array(one.clone());
    let four = array(array(two.clone()));
    prop_oneof![4 => scalar(), 3 => one, 1 => two, 1 => four]
}

proptest! {
    #[test]
    fn random_metadata_comes_back(
        entries in proptest::collection::btree_map("[a-z.\u{e9}]{1,12}", value(), 0..12),
        version in 2u32..=3,
        big in any::<bool>(),
        n in 0u64..5,
    ) {
        let mut w = Writer::new();
        w.version = version;
        w.endian = if big { Endian::Big } else { Endian::Little };
        for (key, value) in &entries {
            w.set(key, value.clone());
        }
        for i in 0..n {
            let data: Vec<u8> = (0..i * 34).map(|b| b as u8).collect();
            w.add_tensor(&format!("t{i}"), TensorType::Q8_0, &[32, i], data);
        }
        let bytes = w.to_bytes().unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        prop_assert_eq!(gguf.metadata.len(), entries.len());
        for (key, value) in gguf.metadata.iter() {
            prop_assert_eq!(Some(&OwnedValue::from(value)), entries.get(key));
        }
        prop_assert_eq!(Writer::from_gguf(&gguf).to_bytes().unwrap(), bytes);
    }

    #[test]
    fn random_bytes_in_a_valid_file_never_panic(seed in any::<u64>(), n_changes in 1usize..6) {
        let mut bytes = everything().to_bytes().unwrap();
        let head = Gguf::parse(&bytes).unwrap().data_start as usize;
        let mut x = seed | 1;
        for _ in 0..n_changes {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes[(x >> 20) as usize % head] = (x >> 56) as u8;
        }
        if let Ok(gguf) = Gguf::parse(&bytes) {
            for (_, value) in gguf.metadata.iter() {
                let _ = OwnedValue::from(value);
            }
            for t in &gguf.tensors {
                prop_assert_eq!(gguf.tensor_bytes(t).len() as u64, t.n_bytes);
            }
        }
    }
}

#[test]
fn an_outline_is_the_file_without_its_data() {
    let mut writer = Writer::new();
    writer.alignment = 64;
    writer.set("general.architecture", OwnedValue::String(b"llama".to_vec()));
    writer.add_tensor("a", TensorType::I8, &[100], vec![7; 100]);
    writer.add_tensor("b", TensorType::F32, &[3], vec![1; 12]);
    let whole = writer.to_bytes().unwrap();
    for tensor in writer.tensors_mut() {
        tensor.data = Vec::new().into();
    }
    let outline = writer.outline().unwrap();
    assert_eq!((outline.file_len, &outline.offsets[..]), (whole.len() as u64, &[0, 128][..]));
    assert!(whole.starts_with(&outline.head));
    assert_eq!(outline.data_start % 64, 0);
    assert_eq!(whole[outline.data_start as usize + 128..][..12], [1; 12]);
    assert!(matches!(writer.to_bytes(), Err(Error::TensorData { .. })), "the data itself is missing");
    writer.add_tensor("c", TensorType::F32, &[u64::MAX / 8, 1], Vec::new());
    writer.add_tensor("d", TensorType::F32, &[u64::MAX / 8, 1], Vec::new());
    writer.add_tensor("e", TensorType::F32, &[u64::MAX / 8, 1], Vec::new());
    assert!(writer.outline().is_err(), "sizes that overflow");
}
