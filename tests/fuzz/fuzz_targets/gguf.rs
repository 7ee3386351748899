//! Any bytes: the reader returns or refuses; what it returns is walked, decoded, written again and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_gguf::{Array, Gguf, OwnedValue, SplitInfo, Value, Writer, decode_row, split};

fn walk(array: &Array<'_>) -> usize {
    let inner = |v: Value<'_>| if let Value::Array(a) = v { walk(&a) } else { 1 };
    assert_eq!(array.iter().count(), array.len());
    array.iter().map(inner).sum::<usize>()
        + array.strings().map_or(0, |s| s.map(<[u8]>::len).sum())
        + array.i64s().map_or(0, Iterator::count)
        + array.f32s().map_or(0, Iterator::count)
}

fuzz_target!(|bytes: &[u8]| {
    let gguf = match Gguf::parse(bytes) {
        Ok(gguf) => gguf,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    for (key, value) in gguf.metadata.iter() {
        assert!(gguf.metadata.get(key).is_some());
        let _ = (gguf.metadata.u32(key), gguf.metadata.f32(key), gguf.metadata.str(key), value.to_string());
        if let Value::Array(array) = value {
            walk(&array);
        }
    }
    for tensor in &gguf.tensors {
        let data = gguf.tensor_bytes(tensor);
        assert_eq!(data.len() as u64, tensor.n_bytes);
        assert_eq!(gguf.tensor(tensor.name), Some(tensor));
        if tensor.ty.row().decode.is_some() {
            // Blocks take at least an eighth of a byte per element.
            let mut out = vec![0.0; usize::try_from(tensor.n_elems()).expect("bounded by the data")];
            decode_row(tensor.ty, data, &mut out).expect("whole blocks");
        }
    }
    let _ = (SplitInfo::of(&gguf), split::siblings(&gguf, "m-00001-of-00002.gguf"), split::check_set(std::slice::from_ref(&gguf)));

    let written = Writer::from_gguf(&gguf).to_bytes().expect("what was read can be written");
    let again = Gguf::parse(&written).expect("what was written can be read");
    assert_eq!(again.metadata.len(), gguf.metadata.len());
    for (tensor, copy) in gguf.tensors.iter().zip(&again.tensors) {
        assert_eq!((tensor.name, tensor.ty, tensor.dims), (copy.name, copy.ty, copy.dims));
        assert_eq!(gguf.tensor_bytes(tensor), again.tensor_bytes(copy));
    }
    for ((key, value), (copy_key, copy)) in gguf.metadata.iter().zip(again.metadata.iter()) {
        assert_eq!(key, copy_key);
        // As text, so that NaN equals NaN.
        assert_eq!(format!("{:?}", OwnedValue::from(value)), format!("{:?}", OwnedValue::from(copy)));
    }
    let twice = Writer::from_gguf(&again).to_bytes().expect("writable");
    assert_eq!(twice, written);
});
