//! One named case per malformation, made here, so that they run where the cases folder is absent.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like tests")]

use selvedge_gguf::format::REMOVED;
use selvedge_gguf::{Error, Gguf, TensorType, Writer};

/// A file put together byte by byte: header, then what the closure appends.
fn file(n_tensors: u64, n_kv: u64, rest: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(n_tensors.to_le_bytes());
    bytes.extend(n_kv.to_le_bytes());
    rest(&mut bytes);
    bytes.resize(bytes.len().next_multiple_of(32) + 256, 0);
    bytes
}

fn string(bytes: &mut Vec<u8>, s: &[u8]) {
    bytes.extend((s.len() as u64).to_le_bytes());
    bytes.extend(s);
}

/// A metadata entry of type u8.
fn entry(bytes: &mut Vec<u8>, key: &[u8]) {
    string(bytes, key);
    bytes.extend(0u32.to_le_bytes());
    bytes.push(7);
}

/// A row of the tensor table with one dimension of 8.
fn row(bytes: &mut Vec<u8>, name: &[u8], ty: u32, offset: u64) {
    string(bytes, name);
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(8u64.to_le_bytes());
    bytes.extend(ty.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
}

fn error(bytes: &[u8]) -> Error {
    Gguf::parse(bytes).expect_err("the file is malformed")
}

#[test]
fn the_frame_itself_is_sound() {
    let bytes = file(1, 1, |b| {
        entry(b, b"k");
        row(b, b"t", 0, 0);
    });
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!((gguf.metadata.len(), gguf.tensors.len()), (1, 1));
}

#[test]
fn a_key_that_occurs_twice() {
    let bytes = file(0, 3, |b| [b"k", b"l", b"k"].into_iter().for_each(|key| entry(b, key)));
    assert_eq!(error(&bytes), Error::KeyDuplicate { key: "k".to_owned() });
}

#[test]
fn a_key_that_is_not_utf8() {
    let bytes = file(0, 1, |b| entry(b, b"\xff\xfe"));
    assert_eq!(error(&bytes), Error::KeyEncoding { index: 0, found: "\\xff\\xfe".to_owned() });
}

#[test]
fn a_boolean_of_2() {
    let one = file(0, 1, |b| {
        string(b, b"k");
        b.extend(7u32.to_le_bytes());
        b.push(2);
    });
    let in_array = file(0, 1, |b| {
        string(b, b"k");
        b.extend(9u32.to_le_bytes());
        b.extend(7u32.to_le_bytes());
        b.extend(3u64.to_le_bytes());
        b.extend([0, 1, 2]);
    });
    for bytes in [one, in_array] {
        assert_eq!(error(&bytes), Error::Bool { key: "k".to_owned(), found: 2 });
    }
}

#[test]
fn a_tensor_that_occurs_twice() {
    let bytes = file(2, 0, |b| {
        row(b, b"t", 0, 0);
        row(b, b"t", 0, 32);
    });
    assert_eq!(error(&bytes), Error::TensorDuplicate { name: "t".to_owned() });
}

#[test]
fn a_tensor_name_that_is_not_utf8() {
    let bytes = file(1, 0, |b| row(b, b"\xc3", 0, 0));
    assert_eq!(error(&bytes), Error::TensorNameEncoding { index: 0, found: "\\xc3".to_owned() });
}

#[test]
fn every_removed_type_says_so() {
    for removed in &REMOVED {
        let text = error(&file(1, 0, |b| row(b, b"t", removed.id, 0))).to_string();
        assert!(text.contains(removed.was) && text.contains("removed"), "{text}");
    }
}

#[test]
fn names_in_messages_neither_break_the_line_nor_reach_a_terminal() {
    let nasty = b"a\nb\x1b[2Jc";
    let text = error(&file(1, 0, |b| row(b, nasty, 99, 0))).to_string();
    assert!(!text.contains('\n') && !text.contains('\x1b') && text.contains("a\\nb"), "{text}");
    let long = "k".repeat(65535);
    let text = error(&file(0, 2, |b| [0, 1].iter().for_each(|_| entry(b, long.as_bytes())))).to_string();
    assert!(text.len() < 200, "{} bytes", text.len());
}

#[test]
fn a_count_above_what_the_file_can_hold_is_refused_before_anything_is_read() {
    let bytes = file(u64::MAX, 0, |_| {});
    assert!(matches!(error(&bytes), Error::Count { found: u64::MAX, max: 11, .. }));
    // As many as could just fit are tried, and run into the end.
    let bytes = file(11, 0, |_| {});
    assert!(matches!(error(&bytes), Error::TensorDuplicate { .. } | Error::Truncated { .. }));
}

#[test]
fn alignments() {
    for (alignment, ok) in [(0u32, false), (1, false), (4, false), (8, true), (24, false), (65536, true), (131072, false)] {
        let mut w = Writer::new();
        w.set("general.alignment", 8u32);
        w.alignment = if ok { alignment.into() } else { 8 };
        w.add_tensor("t", TensorType::F32, &[2], vec![0; 8]);
        let mut bytes = w.to_bytes().unwrap();
        if !ok {
            // The value stands behind the key's length, the key and the type.
            let at = 24 + 8 + "general.alignment".len() + 4;
            bytes[at..at + 4].copy_from_slice(&alignment.to_le_bytes());
        }
        let found = Gguf::parse(&bytes);
        assert_eq!(found.is_ok(), ok, "alignment {alignment}: {:?}", found.err());
    }
}

#[test]
fn other_files_are_told_apart() {
    let text = |bytes: &[u8]| error(bytes).to_string();
    assert!(text(b"<!DOCTYPE html><html>").contains("web page"));
    assert!(text(b"PK\x03\x04 and so on").contains("zip"));
    assert!(text(&[0; 64]).contains("starts with zeros"));
    assert!(text(b"lmgg....").contains("`ggml`"));
    assert!(text(b"algg....").contains("`ggla`"));
    assert!(text(b"GG").contains("found \"GG\""));
    assert!(text(b"\xef\xbb\xbfGGUF").contains("byte order mark"));
    assert!(text(b"version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
    assert!(text(b"GGUF\x04\0\0\0................").contains("version 4"));
    assert!(text(b"GGUF\0\0\0\x01................").contains("version 1"), "big-endian version 1");
}
